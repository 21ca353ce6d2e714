"""Several local steps: the fast ways equal the loop; orders, rates and the proximal term are what they say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import config
from sparsefed.attacks import ATTACKS
from sparsefed.core.engine import Cohort, LocalPlan, LocalStep, one_step, turns
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import RoundReport, ServerState, run_round
from sparsefed.core.task import Task, make_task
from sparsefed.core.types import Batch
from sparsefed.engines import ENGINES, fused, local, loop
from sparsefed.engines.several_steps import share_out
from sparsefed.models import MODELS, TEXT_MODELS, cnn
from tests.support.local_reference import drawn_batches, trained

TOLERANCE = 1e-4  # relative to a client's norm, float32, after up to a dozen steps of a smooth model
FAST = ("fused", "by_client", "stacked")


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def examples(shape: tuple[int, ...], sizes: list[int], classes: int, seed: int = 0) -> Cohort:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), *shape, generator=generator)
    y = torch.randint(classes, (sum(sizes),), generator=generator)
    return dealt(x, y, sizes)


def texts(length: int, sizes: list[int], vocabulary: int) -> Cohort:
    tokens = torch.randint(vocabulary, (sum(sizes), length + 1), generator=torch.Generator().manual_seed(0))
    return dealt(tokens[:, :-1], tokens[:, 1:], sizes)


def dealt(x: Tensor, y: Tensor, sizes: list[int]) -> Cohort:
    stops = np.cumsum(sizes)

    def gather(ids: Any) -> Batch:
        rows = torch.from_numpy(np.concatenate([np.arange(stops[i] - sizes[i], stops[i]) for i in ids]))
        return Batch(x[rows], y[rows], np.array(sizes)[ids])

    return Cohort(np.arange(len(sizes)), np.array(sizes), gather)


def only(cohort: Cohort, ids: list[int]) -> Cohort:
    return Cohort(np.array(ids), cohort.sizes[ids], cohort.gather)


def by_device(engine: Any, task: Task, cohort: Cohort, step: LocalStep) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for block in engine(task.initial(), cohort, step):
        found |= dict(zip(block.senders.tolist(), block.rows(), strict=True))
    return found


def assert_near(
    found: dict[int, Tensor], truth: dict[int, Tensor], tolerance: float = TOLERANCE, floor: float = 1e-6
) -> None:
    """Near relative to the update; `floor` is the rounding of the weights themselves, of which it is a difference."""
    assert found.keys() == truth.keys()
    for device, row in truth.items():
        assert float((found[device] - row).norm()) <= tolerance * float(row.norm()) + floor


def smooth(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 3)
    )


# --- the fast ways against the loop ----------------------------------------------------------------------------------

plans = st.builds(
    lambda epochs, batch, decay, prox: LocalPlan(epochs, batch, decay, prox),
    st.integers(1, 3),
    st.none() | st.integers(1, 4),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=12, deadline=None)
@given(
    plan=plans,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=13),
    seed=st.integers(0, 999),
    decay=st.booleans(),
)
def test_the_fast_ways_equal_the_loop(plan: LocalPlan, sizes: list[int], seed: int, decay: bool) -> None:
    task, cohort = make_task(seeded(smooth, seed)), examples((2, 4, 4), sizes, 3, seed)
    step = LocalStep(0.1, 0.05 if decay else 0.0, seed, plan)
    truth = by_device(loop(task), task, cohort, step)
    for name in FAST:
        assert_near(by_device(ENGINES[name](task), task, cohort, step), truth)


class Hidden(nn.Module):
    """Uses a layer's weight behind its back, holds a parameter of its own, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.unused = nn.Linear(4, 4), nn.Parameter(torch.ones(4)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.layer(x * self.scale)), self.layer.weight)


class Sorted(nn.Module):
    """Looks at a number: it cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if float(out.detach().sum()) > 1e9 else torch.tanh(out)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x.unsqueeze(-1))[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("net", [Hidden, Sorted, Recurrent])
@pytest.mark.parametrize("name", FAST)
def test_any_module_is_trained(net: Callable[[], nn.Module], name: str) -> None:
    task, cohort = make_task(seeded(net)), examples((4,), [2, 3, 3, 1, 3], 4)
    step = LocalStep(0.1, 0.01, 3, LocalPlan(2, 2))
    assert_near(by_device(ENGINES[name](task), task, cohort, step), by_device(loop(task), task, cohort, step))


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[pytest.mark.slow] if "101" in name else []) for name in MODELS]
)
def test_every_model_trains_alike(model: str) -> None:
    """At a small rate: where a ReLU or a maximum flips, two correct ways part."""
    text, sizes = model in TEXT_MODELS, [3, 1, 3, 2]
    shape = (6,) if text else (1, 16, 16)
    task = make_task(seeded(lambda: MODELS[model](shape, 10, **({"width": 4} if "resnet" in model else {}))))
    cohort = texts(6, sizes, 10) if text else examples(shape, sizes, 10)
    step = LocalStep(1e-3, 5e-4, 0, LocalPlan(3, 2))
    truth = by_device(loop(task), task, cohort, step)
    # Updates are differences of weights: five steps round each ten times, by up to 6e-8 of it, half on average.
    floor = max(5e-6, 3e-7 * float(task.initial().norm()))
    for name in FAST:
        assert_near(by_device(ENGINES[name](task), task, cohort, step), truth, 1e-3, floor=floor)


def test_bfloat16_keeps_its_weights_in_float32() -> None:
    """A step of 1e-4 is below what a bfloat16 weight can resolve: ten of them must still add up."""
    task, cohort = make_task(seeded(smooth)), examples((2, 4, 4), [4] * 5, 3)
    step = LocalStep(1e-4, 0.0, 0, LocalPlan(10))
    truth = by_device(loop(task), task, cohort, step)
    for name in ("loop", *FAST):
        assert_near(by_device(ENGINES[name](task, torch.bfloat16), task, cohort, step), truth, 0.05)


def test_one_step_is_the_present_engine_bit_for_bit() -> None:
    task, cohort = make_task(seeded(lambda: cnn((1, 8, 8), 10))), examples((1, 8, 8), [3, 1, 3, 2], 10)
    plain = LocalStep(0.1, 0.01, 5)
    for plan in (LocalPlan(), LocalPlan(1, 3), LocalPlan(1, None, 0.5), LocalPlan(1, None, 1.0, 7.0)):
        assert one_step(plan, cohort.sizes)
        for ours, before in ((local(task), fused(task)), (loop(task), loop(task))):
            found = by_device(ours, task, cohort, plain._replace(plan=plan))
            assert all(torch.equal(row, found[i]) for i, row in by_device(before, task, cohort, plain).items())
    with pytest.raises(ConfigError, match="one local step, not several"):
        list(fused(task)(task.initial(), cohort, plain._replace(plan=LocalPlan(2))))


def test_several_threads_compute_what_one_does() -> None:
    """Bit for bit in the steps after the first: each piece is computed on one core, whoever takes it."""
    task, cohort = make_task(seeded(Hidden)), examples((4,), [3] * 23, 4)  # no batched first step
    step, before = LocalStep(0.1, 0.01, 3, LocalPlan(3, 2)), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append([by_device(ENGINES[name](task), task, cohort, step) for name in FAST])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*found, strict=True):
        assert all(torch.equal(row, three[device]) for device, row in one.items())


def test_an_error_in_a_thread_is_an_error() -> None:
    def work(module: nn.Module, piece: int) -> None:  # noqa: ARG001
        if piece == 3:
            raise ValueError("piece 3")

    with pytest.raises(ValueError, match="piece 3"):
        share_out(work, range(8), [nn.Identity(), nn.Identity()])


# --- orders ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(plan=plans, size=st.integers(1, 9), seed=st.integers(0, 2**63 - 1), device=st.integers(0, 10**6))
def test_an_epoch_sees_every_example_once(plan: LocalPlan, size: int, seed: int, device: int) -> None:
    step = LocalStep(0.1, 0.0, seed, plan)
    taken = turns(step, device, size)
    assert [(t.rate, None if t.examples is None else t.examples.tolist()) for t in taken] == [
        (t.rate, None if t.examples is None else t.examples.tolist()) for t in turns(step, device, size)
    ]
    per_epoch = len(taken) // plan.epochs
    for epoch in range(plan.epochs):
        part = taken[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert {turn.rate for turn in part} == {0.1 * plan.decay**epoch}
        if plan.batch is not None and plan.batch < size:
            lists = [turn.examples.tolist() for turn in part if turn.examples is not None]
            assert sorted(np.concatenate(lists).tolist()) == list(range(size))
            assert [len(some) for some in lists[:-1]] == [plan.batch] * (len(lists) - 1)


def test_orders_differ_between_seeds_devices_and_epochs() -> None:
    orders = [
        tuple(np.concatenate([t.examples for t in taken if t.examples is not None]).tolist())
        for seed in (1, 2)
        for device in (0, 1)
        for taken in (turns(LocalStep(0.1, 0.0, seed, LocalPlan(2, 20)), device, 40),)
    ]
    halves = {order[:40] for order in orders} | {order[40:] for order in orders}
    assert len(halves) == 8


@pytest.mark.parametrize("name", [*FAST, "loop"])
def test_neither_blocks_nor_company_change_an_update(name: str) -> None:
    task, cohort = make_task(seeded(smooth)), examples((2, 4, 4), [3, 5, 3, 4, 3, 3, 5], 3)
    step = LocalStep(0.2, 0.01, 9, LocalPlan(2, 2))
    whole = by_device(ENGINES[name](task), task, cohort, step)
    tight = ENGINES[name](task, torch.float32, 3_000)
    assert len(list(tight(task.initial(), cohort, step))) > 3
    assert_near(by_device(tight, task, cohort, step), whole, 1e-5)
    for ids in ([4], [6, 0, 2]):
        alone = by_device(ENGINES[name](task), task, only(cohort, ids), step)
        assert_near(alone, {device: whole[device] for device in ids}, 1e-5)


def test_dropout_is_seeded_by_device_and_leaves_the_global_generator_alone() -> None:
    task = make_task(seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 3))))
    cohort, before = examples((8,), [4, 4, 2], 3), torch.random.get_rng_state()
    step = LocalStep(0.1, 0.0, 1, LocalPlan(2))
    one, again, other = (by_device(local(task), task, cohort, step._replace(seed=seed)) for seed in (1, 1, 2))
    alone = by_device(local(task), task, only(cohort, [1]), step)
    assert all(torch.equal(one[i], again[i]) and not torch.equal(one[i], other[i]) for i in one)
    assert torch.equal(alone[1], one[1])
    assert torch.equal(before, torch.random.get_rng_state())


# --- steps on drawn batches ------------------------------------------------------------------------------------------

step_plans = st.builds(
    lambda batch, prox, steps, momentum: LocalPlan(batch=batch, prox=prox, steps=steps, momentum=momentum),
    st.none() | st.integers(1, 4),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.9]),
)
adam_plans = st.builds(
    lambda batch, steps: LocalPlan(batch=batch, steps=steps, adam=True),
    st.none() | st.integers(1, 4),
    st.integers(1, 3),
)


@settings(max_examples=12, deadline=None)
@given(
    plan=step_plans | adam_plans,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    seed=st.integers(0, 999),
    decay=st.booleans(),
)
def test_steps_on_drawn_batches_equal_torchs_optimizer(
    plan: LocalPlan, sizes: list[int], seed: int, decay: bool
) -> None:
    task, cohort = make_task(seeded(smooth, seed)), examples((2, 4, 4), sizes, 3, seed)
    step = LocalStep(0.01 if plan.adam else 0.1, 0.05 if decay else 0.0, seed, plan)
    truth = {}
    for device in cohort.ids.tolist():
        own = cohort.gather(np.array([device]))
        truth[device] = trained(task, own.x, own.y, step, device)
    for name in (*FAST, "loop"):
        found = by_device(ENGINES[name](task), task, cohort, step)
        assert_near(found, truth, 1e-2 if plan.adam else TOLERANCE)  # Adam divides rounding by gradients near 0


def test_one_drawn_batch_is_a_gradient_without_rounding_of_the_weights() -> None:
    """With rate 1 and weights of 1e4, theta - theta_local would lose four digits."""
    task = make_task(seeded(lambda: nn.Linear(4, 3)))
    cohort, step = examples((4,), [9, 3, 1], 3), LocalStep(1.0, 0.0, 5, LocalPlan(batch=3, steps=1))
    far = task.initial() + 1e4
    for name in (*FAST, "loop"):
        for block in ENGINES[name](task)(far, cohort, step):
            for device, row in zip(block.senders.tolist(), block.rows(), strict=True):
                own, (batch,) = cohort.gather(np.array([device])), drawn_batches(step, device, cohort.sizes[device])
                shares = torch.softmax(nn.functional.linear(own.x[batch], far[:12].view(3, 4), far[12:]), 1)
                errors = (shares - nn.functional.one_hot(own.y[batch], 3)) / len(batch)
                expected = torch.cat([(errors.T @ own.x[batch]).reshape(-1), errors.sum(0)])
                torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-3)


def test_drawn_batches_differ_between_steps_devices_and_seeds() -> None:
    batches = [
        tuple(turn.examples.tolist())
        for seed in (1, 2)
        for device in (0, 1)
        for turn in turns(LocalStep(0.1, 0.0, seed, LocalPlan(batch=20, steps=3)), device, 60)
        if turn.examples is not None
    ]
    assert len(set(batches)) == len(batches) == 12
    assert all(list(batch) == sorted(set(batch)) and len(batch) == 20 for batch in batches)


def test_a_run_of_steps_learns_and_resumes_to_the_same_bits() -> None:
    few, given = (table(train={"local_steps": steps, "local_epochs": 1}) for steps in (1, 12))
    whole = reports(given)
    assert whole[-1].metrics["test_loss"] < reports(few)[-1].metrics["test_loss"] - 0.1
    assert torch.equal(reports(given, whole[1].state)[-1].state.theta, whole[-1].state.theta)


def test_one_minibatch_gradient_a_round_in_uncompressed_mode() -> None:
    train = {"mode": "uncompressed", "local_epochs": 1, "local_steps": 1, "local_batch": 3}
    built = config.build(config.parse(table(train=train)))
    found = {
        name: run_round(replace(built.setup, engine=ENGINES[name](built.task)), built.begin()).state.theta
        for name in ("fused", "loop")
    }
    torch.testing.assert_close(found["fused"], found["loop"], rtol=1e-4, atol=1e-6)
    whole = config.build(config.parse(table(train={**train, "local_steps": None, "local_batch": None})))
    assert not torch.equal(_mean_update(whole), _mean_update(built))


@pytest.mark.parametrize("name", [*FAST, "loop"])
def test_local_momentum_in_closed_form(name: str) -> None:
    """With a constant gradient g, the t-th step is rate (1 + beta + ... + beta^(t-1)) g."""
    task = make_task(Straight())
    labels = torch.zeros(3, dtype=torch.int64)
    cohort = dealt(torch.ones(3, 1), labels, [1, 1, 1])
    for plan in (LocalPlan(4, momentum=0.5), LocalPlan(steps=4, momentum=0.5)):
        u = 2.0 * (1 + 1.5 + 1.75 + 1.875) * torch.tensor([-1.0, 1.0])
        for row in by_device(ENGINES[name](task), task, cohort, LocalStep(2.0, 0.0, 0, plan)).values():
            torch.testing.assert_close(row, u, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("name", [*FAST, "loop"])
def test_adams_first_step_has_the_rates_length_in_every_coordinate(name: str) -> None:
    task, cohort = make_task(seeded(smooth)), examples((2, 4, 4), [3, 2, 3], 3)
    plain = by_device(loop(task), task, cohort, LocalStep(1.0, 0.0))
    rows = by_device(ENGINES[name](task), task, cohort, LocalStep(0.01, 0.0, 0, LocalPlan(adam=True)))
    for device, row in rows.items():
        clear = plain[device].abs() > 1e-4
        torch.testing.assert_close(row[clear], 0.01 * plain[device].sign()[clear], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("train", [{"local_momentum": 0.9}, {"local_optimizer": "adam", "local_lr": 0.01}])
def test_a_run_with_a_local_optimizer_resumes_to_the_same_bits(train: dict[str, Any]) -> None:
    whole = reports(table(train=train))
    assert torch.equal(reports(table(train=train), whole[1].state)[-1].state.theta, whole[-1].state.theta)
    assert not torch.equal(whole[-1].state.theta, reports(table())[-1].state.theta)
    assert np.isfinite(whole[-1].metrics["test_loss"])


def test_a_key_at_its_default_is_left_out_of_the_dump() -> None:
    written = config.dump(config.parse(table()))["train"]
    assert not {"local_steps", "local_momentum", "local_optimizer"} & written.keys()
    assert config.dump(config.parse(table(train={"local_epochs": 1, "local_steps": 3})))["train"]["local_steps"] == 3


# --- closed forms ----------------------------------------------------------------------------------------------------


class Straight(nn.Module):
    """The gradient is the same everywhere near: log-odds of two classes far from 0, so that only the decay and the
    proximal term bend the way."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 2, bias=False)
        self.out.weight.data = torch.tensor([[-500.0], [500.0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*FAST, "loop"])
def test_fedprox_and_decay_in_closed_form(name: str) -> None:
    """With a constant gradient g, u_s = u_(s-1) (1 - r mu) + r g: a geometric series in every epoch's rate."""
    task = make_task(Straight())

    def gather(ids: Any) -> Batch:
        return Batch(torch.ones(len(ids), 1), torch.zeros(len(ids), dtype=torch.int64), np.ones(len(ids), np.int64))

    cohort = Cohort(np.arange(3), np.ones(3, np.int64), gather)
    g = torch.tensor([-1.0, 1.0])  # softmax minus one-hot: class 0 is right, class 1 is certain
    for plan in (LocalPlan(4, None, 1.0, 0.7), LocalPlan(3, None, 0.5, 0.0), LocalPlan(5, 1, 0.9, 1.5)):
        u, rate = torch.zeros(2), 2.0
        for _ in range(plan.epochs):
            u, rate = u * (1 - rate * plan.prox) + rate * g, rate * plan.decay
        for row in by_device(ENGINES[name](task), task, cohort, LocalStep(2.0, 0.0, 0, plan)).values():
            torch.testing.assert_close(row, u, rtol=1e-4, atol=2e-3)  # theta is 500: a float32 there has steps of 6e-5


def test_weight_decay_acts_in_every_local_step() -> None:
    """Without a gradient, S steps shrink the model to (1 - r w)^S of itself."""
    task = make_task(Straight())
    one = torch.ones(1, dtype=torch.int64)
    cohort = Cohort(np.arange(1), np.ones(1, np.int64), lambda ids: Batch(torch.ones(1, 1), one, np.ones(1, np.int64)))  # noqa: ARG005
    for name in (*FAST, "loop"):
        row = by_device(ENGINES[name](task), task, cohort, LocalStep(0.5, 0.2, 0, LocalPlan(3)))[0]
        torch.testing.assert_close(row, task.initial() * (1 - 0.9**3), rtol=1e-5, atol=1e-3)


def test_a_strong_proximal_term_keeps_devices_at_home() -> None:
    task, cohort = make_task(seeded(smooth)), examples((2, 4, 4), [4] * 3, 3)
    norms = [
        float(by_device(local(task), task, cohort, LocalStep(0.1, 0.0, 0, LocalPlan(8, None, 1.0, mu)))[0].norm())
        for mu in (0.0, 1.0, 5.0)
    ]
    assert norms[0] > 1.3 * norms[1] > 1.3 * norms[2]


# --- whole runs ------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "partition": "iid", "devices": 20, "per_device": 20},
    "model": {"name": "softmax"},
    "train": {"mode": "fedavg", "cohort": 5, "lr": 0.1, "local_epochs": 2, "local_batch": 8, "schedule": "constant"},
}


def table(**more: Any) -> dict[str, Any]:
    return {**RUN, "train": {**RUN["train"], **more.pop("train", {})}, **more}


def reports(given: dict[str, Any], state: ServerState | None = None) -> list[RoundReport]:
    experiment = config.build(config.parse(given))
    return list(experiment.reports(state or experiment.begin()))


def test_going_on_from_a_state_is_the_same_run() -> None:
    whole = reports(table())
    rest = reports(table(), whole[1].state)
    assert [report.metrics for report in rest] == [report.metrics for report in whole[2:]]
    assert torch.equal(rest[-1].state.theta, whole[-1].state.theta)


def test_more_local_epochs_learn_more_a_round() -> None:
    losses = [reports(table(train={"local_epochs": epochs}))[-1].metrics["test_loss"] for epochs in (1, 4)]
    assert losses[1] < losses[0] - 0.1


def test_the_local_rate_replaces_the_schedules() -> None:
    same = [reports(table(train=train))[-1].state.theta for train in ({}, {"local_lr": 0.1, "lr": 7.0})]
    assert torch.equal(*same)
    assert not torch.equal(same[0], reports(table(train={"local_lr": 0.05}))[-1].state.theta)


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (
            {"mode": "uncompressed"},
            r"train.local_epochs and train.local_batch are for devices.*train.mode = \"fedavg\"",
        ),
        ({"mode": "uncompressed", "local_epochs": 1, "local_batch": 9}, r"train.local_batch is for devices"),
        ({"local_steps": 3}, "train.local_epochs counts epochs.*local_steps takes their place"),
        ({"local_epochs": 1, "local_steps": 3, "local_decay": 0.5}, "train.local_decay counts epochs"),
        ({"mode": "uncompressed", "local_epochs": 1, "local_steps": 2}, "train.local_batch and train.local_steps are"),
        ({"local_epochs": 1, "local_steps": 0}, "local_steps"),
        ({"local_momentum": 1.0}, "local_momentum"),
        ({"local_momentum": 0.9, "local_optimizer": "adam"}, "Adam has a momentum of its own"),
        ({"local_optimizer": "lion"}, "local_optimizer"),
        (
            {"mode": "uncompressed", "local_epochs": 1, "local_batch": None, "local_momentum": 0.9},
            "train.local_momentum is",
        ),
        ({"local_epochs": 0}, "local_epochs"),
        ({"local_batch": 0}, "local_batch"),
        ({"local_lr": 0.0}, "local_lr"),
        ({"local_decay": 0.0}, "local_decay"),
        ({"prox": -1.0}, "prox"),
    ],
)
def test_impossible_local_training_is_refused(train: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config.parse(table(train=train))


# --- attackers -------------------------------------------------------------------------------------------------------


def test_attackers_imitate_what_an_honest_device_sends() -> None:
    """sign_flip with boost 1 sends exactly minus what the same device would have sent, local steps and all."""
    attacked = table(attack={"name": "sign_flip", "boost": 1.0}, threat={"ids": [3, 7, 11]}, rounds=8)
    attacked["train"]["cohort"] = 20
    honest = {**attacked, "attack": None, "threat": {}}
    (good, bad) = (config.build(config.parse({k: v for k, v in t.items() if v})) for t in (honest, attacked))
    sent = [_mean_update(experiment) for experiment in (good, bad)]
    assert "sign_flip" in ATTACKS
    federation = good.setup.federation
    ids = np.array([3, 7, 11])
    step = LocalStep(0.1, good.setup.weight_decay, _seed(good), good.setup.plan)
    theirs = sum(by_row(good.setup.engine, good.theta, Cohort(ids, federation.sizes(ids), federation.gather), step))
    torch.testing.assert_close(sent[0] - sent[1], 2 * torch.as_tensor(theirs) / 20, rtol=1e-3, atol=1e-6)


def by_row(engine: Any, theta: Tensor, cohort: Cohort, step: LocalStep) -> list[Tensor]:
    return [row for block in engine(theta, cohort, step) for row in block.rows()]


def _seed(experiment: config.BuiltSimulation) -> int:
    return integer_seed(experiment.setup.seed, "layers", 1)


def _mean_update(experiment: config.BuiltSimulation) -> Tensor:
    state = experiment.begin()
    return state.theta - run_round(experiment.setup, state).state.theta


@pytest.mark.parametrize("name", ["label_flip", "drift", "boosted", "fang_trimmed"])
def test_attacks_on_own_data_run_with_several_steps(name: str) -> None:
    knowledge = ["own data", "honest updates"]
    attack = {"name": name, **({"auxiliary": 50} if name == "boosted" else {})}
    attacked = table(attack=attack, threat={"count": 8, "knowledge": knowledge}, rounds=2)
    assert all(np.isfinite(report.metrics["update_norm"]) for report in reports(attacked))


def test_the_choice_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    task, cohort = make_task(seeded(smooth)), examples((2, 4, 4), [3] * 5, 3)
    with caplog.at_level(logging.INFO):
        engine = local(task)
        for _ in range(2):
            by_device(engine, task, cohort, LocalStep(0.1, 0.0, 0, LocalPlan(2)))
    assert caplog.text.count("are stacked") == 1
