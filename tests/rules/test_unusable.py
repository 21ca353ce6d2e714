"""The law of unusable updates: within f, no clients can stop the training, whatever the rule and pre-aggregation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import config
from sparsefed.attacks import attack
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import RoundReport
from sparsefed.core.signatures import parameters
from sparsefed.core.threat import Knowledge
from sparsefed.core.types import Context, Defense, Step
from sparsefed.defenses import DEFENSES, MODES, PRE, build, rule_info
from sparsefed.kernels import RowsBlock
from sparsefed.server import Server

D = 7
REQUIRED: dict[str, Any] = {"k": 3, "sigma": 0.01, "radius": 1.0, "model_norm": 2.0, "threshold": 3}
SMALL: dict[str, dict[str, Any]] = {"fetchsgd": {"columns": 40}}
FACTS: dict[str, Any] = {"theta": torch.linspace(-1, 1, D), "root": torch.linspace(2, -1, D), "layers": (4, 1, 2)}
BAD = (math.nan, math.inf, -math.inf, 3e38)  # dropped
HUGE = 1e29  # finite, and kept
# The naive twin of each definition: the largest f among n updates.
MOST: dict[str, Callable[[int], int]] = {
    "trimmed_mean": lambda n: max(f for f in range(-1, n + 1) if 2 * f < n),
    "krum": lambda n: max(f for f in range(-9, n + 1) if 2 * f + 3 <= n),
    "multi_krum": lambda n: max(f for f in range(-9, n + 1) if 2 * f + 3 <= n),
    "bulyan": lambda n: max(f for f in range(-9, n + 1) if 4 * f + 3 <= n),
    "dnc": lambda n: n - 1,
    "nnm": lambda n: n - 1,
    "arc": lambda n: max(f for f in range(-1, n + 1) if 2 * f < n),
}


def takes_f(builder: Callable[..., Any]) -> bool:
    return any(p.name == "f" for p in parameters(builder))


def params_of(name: str, f: int) -> dict[str, Any]:
    """What a rule must be given, with this f if it takes one."""
    builder = rule_info(DEFENSES[name]).builder
    needed = [p.name for p in parameters(builder) if p.required and p.name != "f"]
    return {p: REQUIRED[p] for p in needed} | SMALL.get(name, {}) | ({"f": f} if takes_f(builder) else {})


def pre_of(pre: str | None, f: int) -> list[dict[str, Any]]:
    if pre is None:
        return []
    return [{"name": pre} | ({"f": f} if takes_f(PRE[pre]) else {})]


def smallest(defense: Defense, f: int) -> int:
    """The least cohort that the defense accepts and that has an honest majority."""
    for n in count(2 * f + 1):
        try:
            defense.check(n)
        except ConfigError:
            continue
        return n
    raise AssertionError


def one_round(defense: Defense, rows: Tensor, senders: Any) -> Step:
    return defense.step(defense.init(D), [RowsBlock(rows, np.asarray(senders))], Context(1, 0.5, **FACTS))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[str, str | None, str, int, Tensor, list[int]]:
    """A rule, a pre-aggregation, a mode, f, the smallest cohort for them, and 1 to f senders of unusable updates."""
    name, mode = draw(st.sampled_from(sorted(DEFENSES))), draw(st.sampled_from(MODES))
    pre, f = draw(st.sampled_from([None, *sorted(PRE)])), draw(st.integers(1, 3))
    n = smallest(build(name, mode=mode, pre=pre_of(pre, f), **params_of(name, f)), f)
    rows = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n, D)).astype(np.float32))
    bad = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=f, unique=True))
    for sender in bad:
        rows[sender, draw(st.integers(0, D - 1))] = draw(st.sampled_from(BAD))
    if len(bad) < f and draw(st.booleans()):
        rows[(max(bad) + 1) % n if (max(bad) + 1) % n not in bad else min(set(range(n)) - set(bad))] = HUGE
    return name, pre, mode, f, rows, bad


@settings(deadline=None, max_examples=600)
@given(case=rounds())
def test_no_f_clients_can_stop_the_training(case: tuple[str, str | None, str, int, Tensor, list[int]]) -> None:
    name, pre, mode, f, rows, bad = case
    n, c = len(rows), len(bad)
    step = one_round(build(name, mode=mode, pre=pre_of(pre, f), **params_of(name, f)), rows, range(n))
    assert bool(torch.isfinite(step.delta).all()) and "skipped" not in step.stats
    assert (step.stats["received"], step.stats["dropped"]) == (n, c)
    left = [i for i in range(n) if i not in bad]
    # The naive twin: the rows that are left, with the largest f that each stage is defined for.
    mixed = min(f, MOST[pre](n - c)) if pre in MOST else f
    size = math.ceil((n - c) / 2) if pre == "bucketing" else n - c
    used = min(f, MOST[name](size)) if name in MOST else f
    assert used >= f - c and mixed >= f - c  # enough for every attacker that is left
    small = {"threshold": min(REQUIRED["threshold"], size)} if name == "rlr" else {}
    twin = build(name, mode=mode, pre=pre_of(pre, mixed), **params_of(name, used) | small)
    assert torch.equal(step.delta, one_round(twin, rows[left], left).delta)
    smaller = used if used < f and name in MOST else mixed
    assert step.stats.get("f_used", f) == (smaller if name in MOST or pre in MOST else f)


@pytest.mark.parametrize("pre", [None, *sorted(PRE)])
@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_more_unusable_updates_than_f_stop_nothing_either(name: str, pre: str | None) -> None:
    defense = build(name, pre=pre_of(pre, 2), **params_of(name, 2))
    n = smallest(defense, 2)
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(n, D)).astype(np.float32))
    for c in range(3, n + 1):
        rows[:c] = math.nan
        step = one_round(defense, rows, range(n))
        assert bool(torch.isfinite(step.delta).all())
        if "skipped" in step.stats:
            assert not step.delta.any()
            assert all(torch.equal(step.state[key], value) for key, value in defense.init(D).items())
    assert step.stats["skipped"] == 1


@pytest.mark.parametrize("pre", [None, *sorted(PRE)])
@pytest.mark.parametrize("name", sorted(MOST.keys() & DEFENSES.keys()))
def test_a_cohort_that_is_too_small_by_itself_is_still_an_error(name: str, pre: str | None) -> None:
    defense = build(name, pre=pre_of(pre, 2), **params_of(name, 2))
    n = next(n for n in count(1) if accepts(defense, n))
    with pytest.raises(ConfigError, match="f = 2 needs at least n = "):
        one_round(defense, torch.ones(n - 1, D), range(n - 1))
    assert one_round(defense, torch.ones(n, D), range(n)).delta.shape == (D,)
    bad = torch.ones(n - 1, D)
    bad[0] = math.nan  # whoever sends NaN changes nothing about it
    with pytest.raises(ConfigError, match="f = 2 needs at least n = "):
        one_round(defense, bad, range(n - 1))


def accepts(defense: Defense, n: int) -> bool:
    try:
        defense.check(n)
    except ConfigError:
        return False
    return True


# --- where rounds are run ---


@pytest.mark.parametrize("pre", [None, *sorted(PRE)])
@pytest.mark.parametrize("name", sorted(MOST.keys() & DEFENSES.keys()))
def test_a_server_goes_on_and_says_with_which_f(name: str, pre: str | None) -> None:
    server = Server(name, like=D, pre=pre_of(pre, 2), **params_of(name, 2))
    n = smallest(server._defense, 2)
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(n, D)).astype(np.float32))
    assert server.step(rows).notice == ""
    rows[:2] = math.inf
    done = server.step(rows)
    assert done.dropped == (0, 1) and bool(torch.isfinite(done.theta).all())
    if "f_used" in done.stats:
        assert f"f = {int(done.stats['f_used'])}" in done.notice and "2 of" in done.notice
    before, memory = server.theta, server.state_dict()
    nothing = server.step(torch.full((n, D), math.nan))
    assert torch.equal(server.theta, before) and not nothing.delta.any() and nothing.stats["skipped"] == 1
    assert "the model was left as it is" in nothing.notice
    assert all(torch.equal(server.state_dict()[key], memory[key]) for key in memory if key != "round")


@attack(needs=())
def sends_nan(knowledge: Knowledge) -> Tensor:
    """Send NaN."""
    return torch.full_like(knowledge.theta, math.nan)


def simulated(defense: dict[str, Any], threat: dict[str, Any], cohort: int) -> Iterator[RoundReport]:
    built = config.build(
        config.parse(
            {
                "rounds": 2,
                "data": {"name": "digits", "devices": 40, "partition": "iid"},
                "model": {"name": "softmax"},
                "train": {"cohort": cohort, "sampling": "uniform"},
                "defense": defense,
                "threat": threat,
                "attack": {"name": "tests.rules.test_unusable:sends_nan"},
            }
        )
    )
    return built.reports(built.begin())


@pytest.mark.parametrize("pre", [None, *sorted(PRE)])
@pytest.mark.parametrize("name", ["krum", "trimmed_mean", "bulyan", "rlr", "sparsefed"])
def test_an_attacked_run_goes_on_and_its_report_says_so(
    name: str, pre: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"name": name, "pre": pre_of(pre, 3), **params_of(name, 3)}
    n = smallest(build(**table), 3)
    with caplog.at_level(logging.WARNING):
        reports = list(simulated(table, {"per_round": 3}, n))
    for report in reports:
        assert report.metrics["dropped"] == 3 and math.isfinite(report.metrics["update_norm"])
        assert bool(torch.isfinite(report.state.theta).all())
        assert ("f_used" in report.metrics) == bool(report.notice)
    notices = [record for record in caplog.records if "updates" in record.getMessage()]
    assert len(notices) == (1 if reports[0].notice else 0)
    if name in ("krum", "trimmed_mean", "bulyan"):
        assert reports[0].metrics["f_used"] < 3


def test_a_run_of_attackers_alone_leaves_the_model_as_it_is() -> None:
    reports = list(simulated({"name": "krum", "f": 3, "pre": "nnm"}, {"count": 40}, 9))
    assert all(report.metrics["skipped"] == 1 and report.metrics["update_norm"] == 0 for report in reports)
    assert torch.equal(reports[0].state.theta, reports[1].state.theta)


def test_a_config_whose_cohort_is_too_small_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="krum with f = 3 needs at least n = 9 updates a round, but there are 8"):
        simulated({"name": "krum", "f": 3}, {"per_round": 1}, 8)
