"""A round, and the loop around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.attacks import Attack
from sparsefed.config import BuiltSimulation
from sparsefed.core import dtypes as arithmetic
from sparsefed.core.round import RoundReport, ServerState, simulate, start
from sparsefed.defenses import DEFENSES
from tests.support.configs import BASE, experiment, run
from tests.support.processes import Nursery, Server


def same(one: ServerState, other: ServerState) -> bool:
    tensors = zip([one.theta, *one.defense.values()], [other.theta, *other.defense.values()], strict=True)
    return one.round == other.round and all(torch.equal(a, b) for a, b in tensors)


def test_the_same_config_and_seed_give_the_same_bits() -> None:
    one, other, third = run(experiment()), run(experiment()), run(experiment(seed=4))
    assert [r.metrics for r in one] == [r.metrics for r in other]
    assert same(one[-1].state, other[-1].state)
    assert not torch.equal(one[-1].state.theta, third[-1].state.theta)


@pytest.mark.parametrize("at", [0, 4, 11])
def test_going_on_from_a_state_is_the_same_run(at: int) -> None:
    whole = run(experiment())
    resumed = run(experiment(), whole[at].state)
    assert [r.metrics for r in resumed] == [r.metrics for r in whole[at + 1 :]]
    if resumed:
        assert same(resumed[-1].state, whole[-1].state)


SETTINGS: dict[str, dict[str, Any]] = {
    "sparsefed": {"k": 60},
    "fetchsgd": {"k": 60, "columns": 300},
    "local_topk": {"k": 60, "remember": 40},
    "foolsgold": {"remember": 40},
    "dp_noise": {"sigma": 0.01},
    "crfl": {"model_norm": 5.0, "sigma": 0.001},
    "centered_clipping": {"radius": 1.0},
    "rlr": {"threshold": 4},
    **{name: {"f": 6} for name in ("trimmed_mean", "krum", "multi_krum", "bulyan", "dnc")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_every_defense_trains_from_a_config_and_resumes_from_its_folder(name: str, tmp_path: Path) -> None:
    """30 devices a round, 3 of them attackers on average; saved after round 3 and gone on with, twice the same bits."""
    table = {**BASE, "rounds": 6, "defense": {"name": name, **SETTINGS.get(name, {})}}
    built = configs.build(configs.parse(table))
    whole = run(built, rounds=6)
    assert all(bool(torch.isfinite(report.state.theta).all()) for report in whole)
    assert float((whole[-1].state.theta - built.theta).abs().max()) > 0
    runs.create(tmp_path / "run", configs.dump(built.config))
    for stop in (3, 6):
        runs.execute(tmp_path / "run", built.begin(), partial(rounds_to, built, stop), checkpoint_every=3)
    saved = runs.load_state(tmp_path / "run")
    assert saved is not None and saved.round == 6
    assert torch.equal(saved.theta, whole[-1].state.theta)
    assert saved.defense.keys() == whole[-1].state.defense.keys()
    assert all(torch.equal(saved.defense[key], tensor) for key, tensor in whole[-1].state.defense.items())
    written = runs.load_run(tmp_path / "run").rows[-1]
    assert written["upload_bytes"] > 0 and written["download_bytes"] > 0


def rounds_to(built: BuiltSimulation, stop: int, state: ServerState) -> Iterator[RoundReport]:
    return simulate(built.setup, state, stop)


def test_states_are_values() -> None:
    built = experiment()
    begin = start(built.setup, built.theta)
    before = begin.theta.clone(), {name: t.clone() for name, t in begin.defense.items()}
    run(built, begin)
    assert torch.equal(begin.theta, before[0])
    assert all(torch.equal(t, before[1][name]) for name, t in begin.defense.items())


def test_it_learns_and_evaluates_when_it_should() -> None:
    reports = run(experiment(threat={}, attack=None, defense={"name": "undefended"}), rounds=12)
    assert [r.metrics["round"] for r in reports if "test_accuracy" in r.metrics] == [5, 10, 12]
    assert reports[-1].metrics["test_accuracy"] > 0.6
    assert "attack_accuracy" not in reports[-1].metrics


def test_fedavg_with_one_step_and_no_momentum_is_uncompressed() -> None:
    """lambda * mean(g) is mean(lambda * g)."""
    calm: dict[str, Any] = {"threat": {}, "attack": None, "defense": {"name": "undefended", "rho": 0.0}}
    plain = run(experiment(**calm))
    fedavg = run(experiment(**calm, train={**BASE["train"], "mode": "fedavg"}))
    torch.testing.assert_close(plain[-1].state.theta, fedavg[-1].state.theta, rtol=1e-4, atol=1e-6)


def test_a_round_by_hand() -> None:
    """The undefended first round is one plain step on the mean of the devices' mean losses, weight decay and all."""
    decay, lr = 0.03, 0.5
    built = experiment(
        threat={},
        attack=None,
        defense={"name": "undefended", "rho": 0.0},
        train={"cohort": 7, "lr": lr, "schedule": "constant", "weight_decay": decay * 7},
    )
    federation = built.setup.federation
    theta = built.theta.double().requires_grad_()
    weight, bias = theta[:640].view(10, 64), theta[640:]
    loss = torch.zeros((), dtype=torch.float64)
    ids = federation.cohort(1)
    for device in ids:
        batch = federation.gather(np.array([device]))
        task_input = (batch.x.double() / 255 - torch.tensor(_digits_mean())) / torch.tensor(_digits_std())
        logits = task_input.permute(0, 3, 1, 2).flatten(1) @ weight.t() + bias
        loss = loss + torch.nn.functional.cross_entropy(logits, batch.y) / len(ids)
    (gradient,) = torch.autograd.grad(loss, theta)
    expected = theta.detach() - lr * (gradient + decay * theta.detach())
    (report,) = run(built, rounds=1)
    torch.testing.assert_close(report.state.theta.double(), expected, rtol=1e-5, atol=1e-6)


def _digits_mean() -> tuple[float, ...]:
    from sparsefed import data

    return data.load("digits").mean


def _digits_std() -> tuple[float, ...]:
    from sparsefed import data

    return data.load("digits").std


def test_attackers_replace_honest_devices_and_send_what_the_server_allows() -> None:
    for report in run(experiment()):
        metrics = report.metrics
        assert metrics["cohort"] == 30
        if metrics["attackers"]:
            assert metrics["attacker_norm"] == pytest.approx(metrics["budget"], rel=1e-6)
        else:
            assert metrics["attacker_norm"] is None
        assert metrics["applied"] <= 60
    assert {bool(r.metrics["attackers"]) for r in run(experiment(threat={"count": 300, "stop": 6}))} == {True, False}


def test_the_budget_follows_the_clip_rule() -> None:
    adaptive = {"name": "clipping", "clip_norm": 2.0, "clip": "adaptive"}
    for report in run(experiment(defense=adaptive, train={**BASE["train"], "mode": "fedavg"}), rounds=3):
        assert report.metrics["budget"] == pytest.approx(2.0 * report.metrics["lr"])


def test_devices_that_send_garbage_are_dropped_and_counted() -> None:
    built = experiment(threat={"share": 0.3})

    def garbage(knowledge: Any) -> torch.Tensor:  # noqa: ARG001
        return torch.full_like(built.theta, float("nan"))

    broken = replace(built, setup=replace(built.setup, attack=Attack(garbage)))
    reports = run(broken)
    assert all(r.metrics["dropped"] == r.metrics["attackers"] for r in reports)
    assert sum(r.metrics["dropped"] for r in reports) > 50
    assert bool(torch.isfinite(reports[-1].state.theta).all())


def test_bfloat16_reaches_the_same_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda _device: True)  # imitated, where it is not there
    calm: dict[str, Any] = {"threat": {}, "attack": None, "rounds": 60}
    accuracy = [
        run(experiment(**calm, train={**BASE["train"], "dtype": dtype}), rounds=60)[-1].metrics["test_accuracy"]
        for dtype in ("float32", "bfloat16")
    ]
    assert accuracy[0] > 0.85 and abs(accuracy[0] - accuracy[1]) <= 0.01


# --- memory ----------------------------------------------------------------------------------------------------------

PEAK = """
import resource, sys, numpy as np, torch
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.engines import fused
from sparsefed.defenses import build
from sparsefed.models import cnn
from sparsefed.core.task import make_task
from sparsefed.core.types import Batch, Context
torch.set_num_threads(1)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
task = make_task(cnn((1, 28, 28), 10))
engine, rule = fused(task, budget=64 * 2**20), build("sparsefed", k=1000)
def gather(ids):
    return Batch(torch.zeros(6 * len(ids), 1, 28, 28), torch.zeros(6 * len(ids)).long(), np.full(len(ids), 6))
for n in (50, int(sys.argv[1])):
    cohort = Cohort(np.arange(n), np.full(n, 6), gather)
    rule.step(rule.init(task.d), engine(task.initial(), cohort, LocalStep(1.0, 5e-6)), Context(1, 0.1))
    print(peak())
"""


@pytest.mark.slow
@pytest.mark.process
def test_peak_memory_does_not_grow_with_the_cohort() -> None:
    """A cohort 30 times larger: the rows alone would be 570 MB; what is allowed is a fraction of one block."""
    out = subprocess.run([sys.executable, "-c", PEAK, "1500"], capture_output=True, text=True, check=True)
    small, large = map(int, out.stdout.split())
    assert large - small <= 32


@pytest.mark.slow
@pytest.mark.process
def test_the_example_with_a_users_own_model_runs_and_is_short(process_server: Server, tmp_path: Path) -> None:
    """Undefended, the attackers own their points; SparseFed keeps most of them out."""
    script = Path(__file__).parents[2] / "examples" / "own_model.py"
    assert len(script.read_text().splitlines()) < 30
    out = Nursery(process_server, tmp_path).script(script)
    attacked = {line.split()[0]: float(line.split()[-1].rstrip("%")) for line in out.splitlines()}
    assert attacked["undefended"] > 80 and attacked["sparsefed"] < attacked["undefended"] - 30


def test_what_attackers_get_into_the_model_is_measured() -> None:
    """The plain mean without momentum, 6 of 30 devices sending ones: share and landing from their definitions."""
    built = experiment(defense={"name": "mean", "rho": 0.0}, threat={"per_round": 6})
    ones = replace(built.setup, attack=Attack(lambda knowledge: torch.ones_like(knowledge.theta)))
    begin = start(ones, built.theta)
    report = next(simulate(ones, begin, 1))
    delta = (begin.theta - report.state.theta).double()
    theirs = torch.full_like(delta, report.metrics["lr"] * 6 / 30)
    assert report.metrics["attack_share"] == pytest.approx(float(delta @ theirs / (delta @ delta)), rel=1e-4)
    assert report.metrics["attack_landed"] == pytest.approx(1.0)
    sparse = replace(ones, defense=experiment(threat={"per_round": 6}).setup.defense)
    landed = next(simulate(sparse, start(sparse, built.theta), 1)).metrics
    assert landed["attack_landed"] == pytest.approx(60 / len(built.theta))  # k = 60 of d coordinates, all alike
    quiet = next(simulate(replace(ones, attack=None), begin, 1)).metrics
    assert "attack_share" not in quiet


def test_per_round_attackers_are_drawn_anew_each_round() -> None:
    built = experiment(threat={"per_round": 3, "start": 2, "every": 2})
    federation = built.setup.federation
    assert [r.metrics["attackers"] for r in run(built, rounds=6)] == [0, 3, 0, 3, 0, 3]
    drawn = [federation.cohort(r)[federation.attackers(federation.cohort(r), r)].tolist() for r in (2, 2, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
