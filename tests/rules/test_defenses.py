"""Every named rule against its naive twin and against the laws that hold for all of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Block, Context, Defense, State, Step
from sparsefed.defenses import (
    DEFENSES,
    MODES,
    PRE,
    PRESETS,
    CommonOptions,
    aggregate,
    build,
    chain,
    pipeline,
    rule_info,
)
from sparsefed.defenses.clip import clip_l2, no_clip
from sparsefed.defenses.combine import mean, stacked
from sparsefed.defenses.server import momentum
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.kernels import RowsBlock, as_blocks
from tests.support import golden_peers, golden_presets, reference

D, N = 11, 8
# A value for each parameter that some rule cannot do without, and small tables where the usual ones are large.
REQUIRED: dict[str, Any] = {"k": 3, "f": 1, "sigma": 0.01, "radius": 1.0, "model_norm": 2.0, "threshold": 2}
SMALL: dict[str, dict[str, Any]] = {"fetchsgd": {"columns": 40}}
FEWEST = {
    "krum": 3,
    "multi_krum": 3,
    "bulyan": 3,
    "rlr": 2,
}  # updates that a definition needs even for f = 0 (rlr: its threshold); else 1
RULES = sorted(DEFENSES)
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums in another order
FACTS: dict[str, Any] = {  # for the rules that need them
    "theta": torch.linspace(-1, 1, D),
    "root": torch.linspace(2, -1, D),
    "layers": (4, 1, 6),
}


def settings_of(name: str) -> dict[str, Any]:
    """What a rule must be given."""
    needed = [p.name for p in parameters(rule_info(DEFENSES[name]).builder) if p.required]
    return {p: REQUIRED[p] for p in needed} | SMALL.get(name, {})


def rule(name: str, **params: Any) -> Defense:
    return build(name, **settings_of(name) | params)


def context(round: int, lr: float) -> Context:
    return Context(round, lr, **FACTS)


def blocks(cohort: Tensor, size: int, senders: Tensor | None = None) -> Iterator[RowsBlock]:
    names = torch.arange(len(cohort)) if senders is None else senders
    for start in range(0, len(cohort), size):
        yield RowsBlock(cohort[start : start + size], names[start : start + size].numpy())


def updates(seed: int, round: int = 0, n: int = N) -> Tensor:
    """Norms from well below to well above the clip."""
    generator = rng(seed, "updates", round)
    return torch.from_numpy((generator.normal(size=(n, D)) * generator.uniform(0.1, 5, size=(n, 1))).astype(np.float32))


def rounds(defense: Defense, cohorts: list[Tensor], block_size: int = N, senders: Tensor | None = None) -> list[Step]:
    state, steps = defense.init(D), []
    for t, cohort in enumerate(cohorts):
        steps.append(defense.step(state, blocks(cohort, block_size, senders), context(t, lr=0.5 / (t + 1))))
        state = steps[-1].state
    return steps


def assert_same(ours: list[Step], theirs: list[Step]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.delta, b.delta, **CLOSE)
        assert a.state.keys() == b.state.keys()
        for name in a.state:
            torch.testing.assert_close(a.state[name], b.state[name], **CLOSE)


# Laws, for every rule in the dict.


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RULES)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_neither_order_nor_blocks_matter(name: str, mode: str, seed: int) -> None:
    defense = rule(name, mode=mode)
    cohorts = [updates(seed, t) for t in range(3)]
    whole = rounds(defense, cohorts)
    order = torch.from_numpy(rng(seed, "order").permutation(N))
    assert_same(rounds(defense, [cohort[order] for cohort in cohorts], senders=order), whole)
    for block_size in (1, 3):
        assert_same(rounds(defense, cohorts, block_size), whole)


@pytest.mark.parametrize("name", RULES)
def test_inputs_and_states_stay_as_they_were(name: str) -> None:
    defense, cohort = rule(name), updates(1)
    first, copy = defense.init(D), cohort.clone()
    second = defense.step(first, as_blocks(cohort, 3), context(0, 0.5)).state
    kept = {key: value.clone() for key, value in second.items()}
    again = [defense.step(second, as_blocks(cohort, 3), context(1, 0.5)) for _ in range(2)]
    assert torch.equal(cohort, copy)
    assert all(not bool(value.any()) for value in first.values())
    assert all(torch.equal(second[key], kept[key]) for key in kept)
    assert torch.equal(again[0].delta, again[1].delta)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_the_result_is_a_float32_vector_of_d(name: str, many: bool) -> None:
    few = {"f": 0} if "f" in settings_of(name) and not many else {}
    (step,) = rounds(rule(name, **few), [updates(2, n=N if many else FEWEST.get(name, 1))])
    assert step.delta.shape == (D,)
    assert step.delta.dtype == torch.float32
    assert step.stats["applied"] == int(torch.count_nonzero(step.delta)) > 0
    assert all(value.dtype in (torch.float32, torch.int64) for value in step.state.values())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_unusable_updates_are_left_out_and_counted(name: str, bad: float) -> None:
    cohort = updates(3)
    dirty = torch.cat([cohort, cohort[:2]])
    dirty[N, 4] = dirty[N + 1, 0] = bad
    (step,) = rounds(rule(name), [dirty], block_size=3)
    assert_same([step], rounds(rule(name), [cohort]))
    assert (step.stats["received"], step.stats["dropped"]) == (N + 2, 2)


@pytest.mark.parametrize("name", RULES)
def test_a_round_without_a_usable_update_did_not_happen(name: str) -> None:
    defense = rule(name)
    before = rounds(defense, [updates(4)])[0].state
    step = defense.step(before, as_blocks(torch.full((N, D), math.nan), 3), context(1, 0.5))
    assert not step.delta.any()
    assert step.delta.shape == (D,)
    assert step.state.keys() == before.keys()
    assert all(torch.equal(step.state[key], before[key]) for key in before)
    assert step.stats == {"received": N, "dropped": N, "clipped": 0, "median_norm": 0, "applied": 0} | {
        "upload_bytes": 4 * D,
        "download_bytes": 0,
        "skipped": 1,
    }


@pytest.mark.parametrize("name", RULES)
def test_a_round_without_updates_is_an_error(name: str) -> None:
    defense = rule(name)
    with pytest.raises(ConfigError, match="round 7 brought no updates at all"):
        defense.step(defense.init(D), [], context(7, 0.5))


# Which way the definitions turn when all updates are scaled by a, or moved by b: agg(a x + b) = a agg(x) + b.
SCALES = {
    "mean", "undefended", "trimmed_mean", "median", "krum", "multi_krum", "bulyan", "geometric_median", "foolsgold",
    "rlr", "dnc", "signguard", "signguard_sim", "lasa", "local_topk", "fetchsgd", "flame",
}  # fmt: skip
MOVES = {"mean", "undefended", "trimmed_mean", "median", "krum", "multi_krum", "bulyan", "geometric_median", "dnc"}


@pytest.mark.parametrize("name", sorted(SCALES))
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([2.0**-12, 0.5, 4.0, 2.0**10]))
def test_scaling_all_updates_scales_the_result(name: str, seed: int, scale: float) -> None:
    params = settings_of(name) | {"clip_norm": None} | ({"compare": "updates"} if name == "flame" else {})
    cohort = updates(seed)
    plain, scaled = (aggregate(name, rows, layers=FACTS["layers"], **params) for rows in (cohort, scale * cohort))
    torch.testing.assert_close(scaled, scale * plain, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("name", sorted(MOVES))
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.5, 100.0]))
def test_moving_all_updates_moves_the_result(name: str, seed: int, size: float) -> None:
    move = torch.from_numpy(rng(seed, "move").normal(size=D).astype(np.float32)) * size
    cohort = updates(seed)
    plain, moved = (aggregate(name, rows, **settings_of(name)) for rows in (cohort, cohort + move))
    torch.testing.assert_close(moved, plain + move, rtol=1e-4, atol=2e-6 * size + 1e-5)


@pytest.mark.parametrize("pre", sorted(PRE))
@pytest.mark.parametrize("name", RULES)
def test_every_rule_composes_with_clipping_and_every_pre_aggregation(name: str, pre: str) -> None:
    entry = {"name": pre} | ({"f": 1} if any(p.name == "f" for p in parameters(PRE[pre])) else {})
    fewer = {"f": 0} if "f" in settings_of(name) and pre == "bucketing" else {}
    defense = rule(name, clip_norm=0.5, rho=0.5, pre=[entry], **fewer)
    steps = rounds(defense, [updates(9, t) for t in range(2)], block_size=3)
    assert all(bool(torch.isfinite(step.delta).all()) for step in steps)
    assert (steps[0].stats["received"], steps[0].stats["clipped"]) == (N, 1.0)
    clip_alone = rounds(rule(name, clip_norm=0.5, rho=0.5, **fewer), [updates(9)])[0]
    assert clip_alone.stats["clipped"] == 1.0
    if name in ("mean", "clipping"):  # of what came in, each of norm 0.5
        np.testing.assert_allclose(clip_alone.delta, 0.5 * unit_mean(updates(9)), rtol=1e-5, atol=1e-6)


def unit_mean(rows: Tensor) -> Tensor:
    """lr = 0.5 in round 0, so the mean of the rows cut to norm 0.5 is half the mean of these."""
    units: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return 0.5 * units.mean(0)


def test_trimming_nobody_is_the_mean() -> None:
    cohort = updates(10)
    torch.testing.assert_close(aggregate("trimmed_mean", cohort, f=0), cohort.mean(0), **CLOSE)


@pytest.mark.parametrize(
    ("name", "n", "f", "least"),
    [("trimmed_mean", 8, 4, 9), ("krum", 8, 3, 9), ("multi_krum", 8, 3, 9), ("bulyan", 8, 2, 11)],
)
def test_too_many_attackers_for_a_cohort_is_one_sentence(name: str, n: int, f: int, least: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} with f = {f} needs at least n = {least} updates.* there are {n}"):
        aggregate(name, updates(11, n=n), f=f)
    assert aggregate(name, updates(11, n=least), f=f).shape == (D,)
    with pytest.raises(ConfigError, match="f is -1, but it is a number of attackers: choose f >= 0"):
        aggregate(name, updates(11, n=n), f=-1)


@pytest.mark.parametrize("name", ["trimmed_mean", "krum", "multi_krum", "bulyan"])
def test_who_sends_nan_cannot_stop_the_training(name: str) -> None:
    f, n = {"trimmed_mean": (3, 7), "krum": (3, 9), "multi_krum": (3, 9), "bulyan": (2, 11)}[name]
    cohort = updates(12, n=n)
    cohort[:2] = math.nan
    left = {"trimmed_mean": 2, "krum": 2, "multi_krum": 2, "bulyan": 1}[name]
    torch.testing.assert_close(aggregate(name, cohort, f=f), aggregate(name, cohort[2:], f=left))


def test_a_pre_aggregation_is_no_rule_and_says_so() -> None:
    with pytest.raises(ConfigError, match=r"'nnm' is a pre-aggregation: choose a rule and put pre = \['nnm'\]"):
        aggregate("nnm", updates(0), f=1)
    with pytest.raises(ConfigError, match=r"unknown pre-aggregation 'nmm' \(did you mean 'nnm'\?\)"):
        aggregate("mean", updates(0), pre="nmm")
    with pytest.raises(ConfigError, match="pre-aggregation nnm needs f"):
        aggregate("mean", updates(0), pre="nnm")


class NormsOnly:
    """A block of an engine that never writes the rows."""

    def __init__(self, rows: Tensor) -> None:
        self._hidden = RowsBlock(rows)
        self.size, self.senders = self._hidden.size, self._hidden.senders

    def norms(self) -> Tensor:
        return self._hidden.norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._hidden.weighted_sum(weights)

    def rows(self) -> Tensor:
        raise AssertionError("this rule said that it needs norms only")


@pytest.mark.parametrize(
    "name", [name for name in RULES if not {"rows", "all rows"} & {*rule_info(DEFENSES[name]).needs}]
)
def test_a_rule_on_norms_never_asks_for_rows_and_frees_each_block(name: str) -> None:
    alive: list[weakref.ref[NormsOnly]] = []

    def stream() -> Iterator[Block]:
        for _ in range(4):
            assert all(ref() is None for ref in alive), "the block before is still held"
            block = NormsOnly(updates(5))
            alive.append(weakref.ref(block))
            yield block
            del block

    defense = rule(name)
    step = defense.step(defense.init(D), stream(), context(0, 0.5))
    assert len(alive) == 4
    assert_same([step], rounds(defense, [updates(5)]))


COMPILED_IN_A_ROUND = """
import importlib, os, pkgutil, sys
import numba, numpy, torch
from numba.core.dispatcher import Dispatcher
from sparsefed import kernels as vectors
from tests.rules.test_defenses import D, RULES, blocks, context, rule, updates

torch.set_num_threads(1)
modules = [importlib.import_module(f"sparsefed.kernels.{m.name}") for m in pkgutil.iter_modules(vectors.__path__)]
kernels = {f"{m.__name__}.{n}": k for m in modules for n, k in vars(m).items() if isinstance(k, Dispatcher)}
assert len(kernels) > 10
numba.njit(lambda values: values + 1)(numpy.zeros(1))  # numba itself starts once, not in every child
assert not any(k.signatures for k in kernels.values())
cases = [(name, []) for name in RULES] + [("mean", [{"name": n, "f": 1}]) for n in ("nnm", "arc")]
for name, pre in cases:
    child = os.fork()  # nothing is compiled yet in the parent, so each rule begins with nothing
    if child == 0:
        defense = rule(name, pre=pre)
        state = defense.init(D)
        before = {kernel: len(k.signatures) for kernel, k in kernels.items()}
        defense.step(state, blocks(updates(1), 3), context(0, 0.5))
        found = [kernel for kernel, k in kernels.items() if len(k.signatures) != before[kernel]]
        print(*[f"{name} {pre}: {kernel}" for kernel in found], sep="\\n", end="\\n" if found else "", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.mark.process
def test_no_kernel_is_compiled_inside_a_round() -> None:
    command = [sys.executable, "-c", COMPILED_IN_A_ROUND]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_compilation_says_so(tmp_path: Path) -> None:
    script = "import numpy, sparsefed; print(sparsefed.aggregate('median', numpy.eye(3)))"
    cold = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=cold, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[0. 0. 0.]\n"
    assert "preparing the CPU kernels of sparsefed.kernels.columns; the first time they are compiled" in done.stderr


# The twins.


@st.composite
def cohort_lists(draw: st.DrawFn) -> list[list[list[float]]]:
    """Several rounds of small integers: ties, zeros, duplicates, and now and then a row that is not finite."""
    d, n = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 5]))
    row = st.lists(st.integers(-4, 4).map(float), min_size=d, max_size=d)
    rows = row | row.map(lambda r: [draw(st.sampled_from([math.nan, math.inf])), *r[1:]])
    cohorts = draw(st.lists(st.lists(rows, min_size=n, max_size=n), min_size=1, max_size=4))
    return [[*cohort, cohort[0]] for cohort in cohorts]


@pytest.mark.parametrize("name", ["mean", "clipping"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@settings(deadline=None, max_examples=30)
@given(cohorts=cohort_lists(), clip_norm=st.sampled_from([0.5, 2.0, 1e6]), rho=st.sampled_from([0.0, 0.9]))
def test_mean_and_clipping_are_their_twins(
    name: str, mode: str, preset: str, cohorts: list[list[list[float]]], clip_norm: float, rho: float
) -> None:
    d = len(cohorts[0][0])
    params = {} if name == "mean" else {"clip_norm": clip_norm}
    limit = math.inf if name == "mean" else clip_norm
    defense = build(name, rho=rho, mode=mode, preset=preset, **params)
    twin = reference.Server(d, 0, limit, rho, mode, preset)
    state = defense.init(d)
    for t, cohort in enumerate(cohorts):
        lr = 0.3 * (t + 1)
        step = defense.step(state, as_blocks(torch.tensor(cohort), 2), Context(t, lr))
        state = step.state
        np.testing.assert_allclose(step.delta, twin.step(cohort, lr), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("feedback", ["momentum", "update"])
@pytest.mark.parametrize("masking", ["zero", "subtract"])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), d=st.integers(1, 12), rho=st.sampled_from([0.0, 0.5]))
def test_topk_memory_is_its_twin_exactly(feedback: Any, masking: Any, data: st.DataObject, d: int, rho: float) -> None:
    k = data.draw(st.integers(1, d) | st.just(d))
    vector = st.lists(st.integers(-4, 4).map(float), min_size=d, max_size=d)
    transform, twin = topk_memory(k, rho, feedback, masking), reference.TopkMemory(d, k, rho, feedback, masking)
    state = transform.init(d)
    received, applied = torch.zeros(d), torch.zeros(d)
    for t, update in enumerate(data.draw(st.lists(vector, min_size=1, max_size=5))):
        flow = transform.step(state, torch.tensor(update), Context(t, 0.1))
        state = flow.state
        assert flow.vector.tolist() == twin.step(update)  # halves of small integers: float32 is exact
        assert (state["momentum"].tolist(), state["memory"].tolist()) == (twin.momentum, twin.memory)
        received, applied = received + torch.tensor(update), applied + flow.vector
        if feedback == "update":
            assert torch.equal(state["memory"] + applied, received)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", sorted(PRESETS))
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 4, D]), n=st.sampled_from([1, N]), spoil=st.booleans())
def test_sparsefed_is_its_twin(mode: str, preset: str, seed: int, k: int, n: int, spoil: bool) -> None:
    steps = 3 if mode == "fedavg" else 1
    defense = build("sparsefed", k=k, clip_norm=2.0, rho=0.9, mode=mode, preset=preset, local_steps=steps)
    twin = reference.Server(D, k, 2.0, 0.9, mode, preset, steps)
    state: State = defense.init(D)
    for t in range(4):
        cohort, lr = updates(seed, t, n), 0.4 / (t + 1)
        if spoil and t == 2:
            cohort[0, 1] = math.nan
        step = defense.step(state, as_blocks(cohort, 3), Context(t, lr))
        state = step.state
        np.testing.assert_allclose(step.delta, twin.step(cohort.tolist(), lr), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", golden_presets.MODES)
@pytest.mark.parametrize("preset", golden_presets.PRESETS)
def test_golden_trajectories(preset: str, mode: str) -> None:
    golden = json.loads(golden_presets.FILE.read_text())[preset][mode]
    np.testing.assert_allclose(golden_presets.trajectory(preset, mode), golden, rtol=1e-5, atol=1e-6)
    twin = reference.Server(
        golden_presets.D,
        golden_presets.K,
        golden_presets.CLIP_NORM,
        golden_presets.RHO,
        mode,
        preset,
        golden_presets.local_steps(mode),
    )
    np.testing.assert_allclose(
        golden_presets.run(mode, lambda rows, t, lr: twin.step(rows, lr)),  # noqa: ARG005
        golden,
        rtol=1e-4,
        atol=1e-5,
    )


def test_the_golden_presets_tell_all_readings_apart() -> None:
    golden = json.loads(golden_presets.FILE.read_text())
    assert sorted(golden) == sorted(PRESETS)
    ends = [golden[preset]["fedavg"][-1] for preset in golden_presets.PRESETS]
    assert ends[0] != ends[1] != ends[2] != ends[0]
    assert golden["paper"]["uncompressed"] == golden["authors-2021-08"]["uncompressed"]  # they differ in FedAvg alone
    assert golden["paper"]["uncompressed"] != golden["authors-2021-05"]["uncompressed"]


# What the server enforces.


@pytest.mark.parametrize(
    ("params", "budget"),
    [
        ({"mode": "uncompressed"}, 5.0),
        ({"mode": "uncompressed", "preset": "authors-2021-05"}, 5.0),
        ({"mode": "uncompressed", "clip": "adaptive"}, 1.0),
        ({"mode": "fedavg"}, 5.0),
        ({"mode": "fedavg", "clip": "adaptive"}, 1.0),
        ({"mode": "fedavg", "preset": "authors-2021-05"}, 1.0),
        ({"mode": "fedavg", "preset": "authors-2021-05", "local_steps": 3}, 3.0),
        ({"mode": "fedavg", "preset": "authors-2021-08", "local_steps": 3}, 1.0),
        ({"mode": "fedavg", "preset": "authors-2021-08", "clip_norm": math.inf}, math.inf),
    ],
)
def test_the_budget_is_what_a_liar_is_cut_to(params: dict[str, Any], budget: float) -> None:
    defense = build("clipping", **{"clip_norm": 5.0, "rho": 0.0} | params)
    context = Context(0, lr=0.2)
    assert defense.budget({}, context) == pytest.approx(budget)
    liar = torch.zeros(1, D)
    liar[0, 0] = 1e6
    delta = defense.step(defense.init(D), as_blocks(liar, 1), context).delta
    lr = 0.2 if params["mode"] == "uncompressed" else 1.0
    assert float(delta.norm()) == pytest.approx(lr * min(budget, 1e6), rel=1e-6)


def test_undefended_has_no_budget_and_an_adaptive_one_may_be_zero() -> None:
    assert build("mean").budget({}, Context(0, 0.1)) == math.inf
    defense = build("sparsefed", k=2, mode="fedavg", clip="adaptive")
    cohort = torch.cat([updates(6), torch.zeros(1, D)])
    step = defense.step(defense.init(D), as_blocks(cohort, 4), Context(0, lr=0.0))
    assert not step.delta.any()
    assert step.stats["dropped"] == 0


def test_stats_say_what_was_received() -> None:
    cohort = torch.zeros(6, D)
    cohort[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0, math.nan, 0.0])
    cohort[3, 0] = 2.0 * (1 + 2e-7)  # a device that clipped itself in float32
    (step,) = rounds(build("clipping", clip_norm=2.0), [cohort], block_size=4)
    assert step.stats == {"received": 6, "dropped": 1, "clipped": 0.2, "median_norm": 2.0, "applied": 1} | {
        "upload_bytes": 4 * D,
        "download_bytes": 8,
    }


def test_modes_place_the_learning_rate() -> None:
    cohort = updates(7)
    plain = aggregate("mean", cohort)
    for mode, factor in (("uncompressed", 0.25), ("fedavg", 1.0)):
        defense = build("mean", mode=mode, rho=0.0)
        delta = defense.step(defense.init(D), as_blocks(cohort, N), Context(0, 0.25)).delta
        torch.testing.assert_close(delta, factor * plain)


# Words and sentences.


def test_chained_states_do_not_meet() -> None:
    twice = chain(momentum(0.5), momentum(0.5))
    state = twice.init(1)
    assert set(state) == {"0.momentum", "1.momentum"}
    seen: list[float] = []
    for t in range(3):
        flow = twice.step(state, torch.ones(1), Context(t, 1.0))
        state, seen = flow.state, [*seen, float(flow.vector)]
    assert seen == [1.0, 2.0, 2.75]  # the sums of 1, 1 + 1/2, 1 + 1/2 + 1/4, halved each round


def test_a_rule_on_rows_composes_with_clipping_and_dropping() -> None:
    defense = pipeline(clip_l2(1.0), stacked(lambda rows: rows.amax(dim=0)), chain())
    rows = torch.tensor([[3.0, 4.0], [0.1, 0.2], [math.nan, 9.0]])
    step = defense.step({}, as_blocks(rows, 2), Context(0, 1.0))
    torch.testing.assert_close(step.delta, torch.tensor([0.6, 0.8]))
    assert not defense.step({}, as_blocks(rows[2:], 2), Context(0, 1.0)).delta.any()
    with pytest.raises(ConfigError, match="no updates at all"):
        defense.step({}, [], Context(0, 1.0))


def test_a_million_updates_of_the_largest_kept_norm_stay_finite() -> None:
    row = torch.full((1, 1), 9e29)
    blocks = (RowsBlock(row.expand(1000, 1)) for _ in range(1000))
    step = pipeline(no_clip(), mean(), chain()).step({}, blocks, Context(0, 1.0))
    assert float(step.delta) == pytest.approx(9e29, rel=1e-3)


# Names and parameters.


@pytest.mark.parametrize("name", RULES)
def test_every_rule_describes_itself(name: str) -> None:
    entry = rule_info(DEFENSES[name])
    assert entry.summary.endswith(".")
    assert any(year in entry.paper for year in map(str, range(2015, 2030)))
    for parameter in parameters(entry.builder):
        assert parameter.doc, f"{name}.{parameter.name} has no line"


def test_a_parameter_is_read_from_the_signature() -> None:
    by_name = {p.name: p for p in (*parameters(rule_info(DEFENSES["sparsefed"]).builder), *parameters(CommonOptions))}
    assert (by_name["k"].type, by_name["k"].required) == ("int | str", True)
    assert (by_name["rho"].type, by_name["rho"].default) == ("float", 0.9)
    assert by_name["clip"].type == "'fixed' | 'adaptive' | 'per_step' | 'quantile'"


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("sparsfed", {}, r"unknown defense 'sparsfed' \(did you mean 'sparsefed'\?\); valid choices: bulyan, "),
        ("clipping", {"clipnorm": 1.0}, r"clipping: unknown parameter 'clipnorm' \(did you mean 'clip_norm'\?\)"),
        ("sparsefed", {}, r"sparsefed needs k \(int \| str: coordinates"),
        ("sparsefed", {"k": 0}, r"k is 0.*choose k >= 1"),
        ("sparsefed", {"k": 2.0}, r"k is 2\.0, but must be int"),
        ("sparsefed", {"k": True}, r"k is True, but must be int"),
        ("sparsefed", {"k": 99}, rf"k is 99.*d = {D}.*from 1 to {D}"),
        ("sparsefed", {"k": 1, "feedback": "none"}, r"feedback is 'none', but must be 'momentum' \| 'update'"),
        ("clipping", {"clip_norm": 0}, r"clip_norm is 0.*choose clip_norm > 0"),
        ("clipping", {"clip_norm": math.nan}, r"clip_norm is nan"),
        ("clipping", {"rho": 1.0}, r"rho is 1\.0.*0 <= rho < 1"),
        ("mean", {"rho": -0.1}, r"rho is -0\.1"),
        ("mean", {"rho": "0.9"}, r"rho is '0\.9', but must be float"),
        ("mean", {"mode": "sgd"}, r"mode is 'sgd', but must be 'uncompressed' \| 'fedavg'"),
        ("mean", {"preset": "authors"}, r"preset is 'authors', but must be 'paper' \| 'authors-2021-05'"),
        ("clipping", {"mode": "fedavg", "local_steps": 0}, r"local_steps is 0.*choose local_steps >= 1"),
        ("clipping", {"local_steps": 2}, r"local_steps is 2.*use mode 'fedavg'"),
    ],
)
def test_what_cannot_be_is_one_sentence(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        aggregate(name, updates(0), **params)


# The one-liner.


@pytest.mark.parametrize("name", RULES)
def test_aggregate_returns_the_kind_it_was_given(name: str) -> None:
    params = settings_of(name) | FACTS
    cohort = updates(8)
    (step,) = rounds(rule(name, mode="fedavg"), [cohort])
    tensor = aggregate(name, cohort.requires_grad_(), **params)
    assert isinstance(tensor, Tensor)
    torch.testing.assert_close(tensor, step.delta)
    wide: npt.NDArray[np.float64] = np.zeros((D, 2 * N))
    wide[:, ::2] = cohort.detach().numpy().T
    array = aggregate(name, wide[:, ::2].T, **params)  # float64, strided, transposed
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    np.testing.assert_allclose(array, step.delta, **CLOSE)


def test_aggregate_is_clip_mean_topk() -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.3, 0.0, 0.4], [np.nan, 1.0, 1.0]])
    np.testing.assert_allclose(aggregate("mean", rows), [1.65, 2.0, 0.2], rtol=1e-6)
    np.testing.assert_allclose(aggregate("clipping", rows, clip_norm=1.0), [0.45, 0.4, 0.2], rtol=1e-6)
    np.testing.assert_allclose(aggregate("sparsefed", rows, k=1, clip_norm=1.0), [0.45, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([[1.0]], "updates is a list, but must be a NumPy array or a torch tensor"),
        (np.ones(3), r"shape \[3\], but must be \[n, d\]"),
        (torch.ones(2, 3, 4), r"shape \[2, 3, 4\], but must be \[n, d\]"),
        (np.ones((0, 3)), r"shape \[0, 3\]: there must be at least one client"),
        (np.ones((3, 0)), r"shape \[3, 0\]: there must be at least one client and one coordinate"),
        (np.ones((2, 2), dtype=complex), "holds complex128, but must hold real numbers"),
        (torch.ones(2, 2, dtype=torch.bool), r"holds torch\.bool, but must hold real numbers"),
    ],
)
def test_updates_that_are_none_are_one_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        aggregate("mean", value)


# Independent implementations.


@pytest.mark.parametrize("kind", golden_peers.INPUTS)
@pytest.mark.parametrize("number", range(len(golden_peers.CASES)))
def test_byzfl_and_flower_say_the_same_where_they_define_the_same(number: int, kind: str) -> None:
    case = golden_peers.CASES[number]
    theirs = json.loads(golden_peers.FILE.read_text()).get(golden_peers.key(kind, number))
    assert (theirs is not None) == golden_peers.usable(case, kind)
    if theirs is not None:
        ours = aggregate(case.rule, golden_peers.inputs(kind), **case.ours)
        scale = float(np.abs(golden_peers.inputs(kind)).max())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * scale)
