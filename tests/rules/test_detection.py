"""Whom rules that select devices reject: against naive twins, by hand, and as a run records it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparsefed import Simulation, attacks, defenses
from sparsefed.commands.audit.aftermath import rates
from sparsefed.core.metrics import rejected
from sparsefed.core.types import Context
from sparsefed.defenses.combine import accepted
from sparsefed.kernels.blocks import RowsBlock
from tests.support import reference

N, D, SENDERS = 13, 40, np.arange(13) * 7
LIARS = {int(SENDERS[i]) for i in (4, 11)}
SELECTING: dict[str, dict[str, Any]] = {
    "krum": {"f": 2},
    "multi_krum": {"f": 2},
    "bulyan": {"f": 2},
    "dnc": {"f": 2},
    "flame": {"compare": "updates"},
    "signguard": {"share": 1.0},
    "signguard_sim": {"share": 1.0},
    "foolsgold": {},
    "fltrust": {},
    "lasa": {"sparsity": 0.0},
}


@given(st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), min_size=1, max_size=12))
def test_less_than_half_of_an_equal_share_is_rejected(weights: list[float]) -> None:
    senders = np.arange(len(weights)) + 5
    told = accepted(senders, torch.tensor(weights, dtype=torch.float64))
    assert {*senders.tolist()} - told == {i + 5 for i in reference.rejected_senders(weights)}


COHORT = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(st.lists(COHORT, min_size=1, max_size=5))
def test_the_rates_are_the_naive_ones(rounds: list[list[tuple[bool, bool]]]) -> None:
    rows = []
    for cohort in rounds:
        kinds = [[i for i, (attacks, _) in enumerate(cohort) if attacks == kind] for kind in (False, True)]
        good = frozenset(i for i, (_, was_rejected) in enumerate(cohort) if not was_rejected)
        counted = rejected(good, honest=kinds[0], attackers=kinds[1])
        rows.append({"cohort": len(cohort), "attackers": len(kinds[1]), **counted})
    assert rates(rows) == reference.detection_rates(rounds)


def test_a_rule_that_selects_nobody_has_no_rates() -> None:
    assert rates([{"cohort": 9, "attackers": 1}]) is None


def updates() -> torch.Tensor:
    """Honest rows around one direction, and two liars who go the other way, three and six times as far."""
    draw = torch.Generator().manual_seed(1)
    rows = torch.ones(D) + 0.8 * torch.randn(N, D, generator=draw)
    rows[4], rows[11] = -3.0, -6.0  # if they sent the same, Bulyan would take them among its last picks
    return rows


@pytest.mark.parametrize("name", SELECTING)
def test_liars_are_rejected_by_the_sender_whatever_the_order(name: str) -> None:
    rows, context = updates(), Context(1, 1.0, root=torch.ones(D))
    defense = defenses.build(name, **SELECTING[name])
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    told = []
    for index in (torch.arange(N), order):
        blocks = [RowsBlock(rows[part], SENDERS[part.numpy()]) for part in torch.split(index, 5)]
        told.append(defense.step(defense.init(D), blocks, context).accepted)
    assert told[0] is not None and told[0] == told[1]
    assert not told[0] & LIARS and told[0] <= {*SENDERS.tolist()}
    assert len(told[0]) == 1 if name == "krum" else len(told[0]) >= (N - 2) // 2


@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean", "sparsefed", "centered_clipping"])
def test_rules_that_select_nobody_say_nothing(name: str) -> None:
    own: dict[str, Any] = {"trimmed_mean": {"f": 2}, "sparsefed": {"k": 5}, "centered_clipping": {"radius": 1.0}}
    defense = defenses.build(name, **own.get(name, {}))
    assert defense.step(defense.init(D), [RowsBlock(updates(), SENDERS)], Context(1, 1.0)).accepted is None


def test_rows_that_were_mixed_before_have_no_sender() -> None:
    defense = defenses.build("multi_krum", f=2, pre=["nnm"])
    assert defense.step(defense.init(D), [RowsBlock(updates(), SENDERS)], Context(1, 1.0)).accepted is None


def test_an_update_that_the_server_drops_is_rejected() -> None:
    rows = updates()
    rows[4] = torch.nan
    defense = defenses.build("multi_krum", f=2)
    told = defense.step(defense.init(D), [RowsBlock(rows, SENDERS)], Context(1, 1.0)).accepted
    assert told is not None and int(SENDERS[4]) not in told


def test_a_run_counts_who_was_rejected() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=draw)
    simulation = Simulation(
        nn.Linear(5, 2),
        (x, (x[:, 0] > 0).long()),
        devices=40,
        cohort=20,
        rounds=4,
        defense=defenses.multi_krum(f=4),
        attack=attacks.sign_flip(),
        threat=0.2,
    ).run()
    for row in simulation.to_dataframe().to_dict("records"):
        assert row["honest_rejected"] + row["attackers_rejected"] == 4
        assert 0 <= row["attackers_rejected"] <= row["attackers"]
