"""Run folders to be watched: of a simulation, and of a deployment with refused replies and hostile names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sparsefed import runs
from sparsefed.core.round import ServerState
from sparsefed.flower.journal import COHORTS, Journal
from sparsefed.flower.replies import RefusedReply
from sparsefed.flower.roster import Roster

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
NODES = [10**15 + 7 * i for i in range(10)]


def row(round: int, **more: Any) -> dict[str, Any]:
    norm = 2.0 + math.sin(round)
    return {
        "round": round,
        "lr": 0.1,
        "cohort": 10,
        "attackers": 0,
        "honest_norm": norm,
        "honest_longest": norm * 3,
        "attacker_norm": None,
        "budget": 4.0,
        "update_norm": 0.3,
        "clipped": 0.2,
        "dropped": 0,
        "test_accuracy": 0.9 - 0.8 / round,
        "test_loss": 1 / round,
        "seconds": 6.5,
        **more,
    }


def folder_of(folder: Path, rows: int, rounds: int = 50, name: str = "live") -> Path:
    """A run folder with so many rounds, written as runs write them."""
    table = {"name": name, "seed": 1, "rounds": rounds, "model": {"name": "flower"}, "defense": {"name": "sparsefed"}}
    state = ServerState(rows, torch.zeros(3), {})
    runs.save(folder, table, {}, state, [row(t) for t in range(1, rows + 1)], rounds)
    return folder


def grown(folder: Path, rows: int) -> None:
    """Go on with the run up to a round."""
    table = runs.load_config(folder)
    state = ServerState(rows, torch.zeros(3), {})
    runs.save(folder, table, {}, state, [row(t) for t in range(1, rows + 1)], table["rounds"])


def refuse(folder: Path, refused: Iterable[tuple[int, int, str, str]]) -> None:
    """Add lines (round, node, reason, detail) to the account of refusals."""
    lines = (RefusedReply(round, node, NODES.index(node), reason, detail) for round, node, reason, detail in refused)
    Journal(folder).refuse(lines)


def deployment(folder: Path, rows: int = 12) -> Path:
    """A deployment in which node 3 lies, node 5 is late now and then, and one detail is hostile."""
    folder_of(folder, rows, name="live")
    for t in range(1, rows + 1):
        refuse(folder, [(t, NODES[3], "not finite", "650 of 650 numbers")])
        if t % 3 == 0:
            refuse(folder, [(t, NODES[5], "late", "")])
    cohort(folder, rows)
    refuse(folder, [(rows, NODES[7], "keys", f"array {HOSTILE} is missing")])
    return folder


def cohort(folder: Path, rows: int, clipped: Iterable[int] = (2, 4)) -> None:
    """Write the cohorts of the rounds, with the devices that were clipped, and the roster."""
    lines = (
        {"round": t, "asked": [*range(10)], "used": [*range(8)], "clipped": [*clipped]} for t in range(1, rows + 1)
    )
    (folder / COHORTS).write_bytes(b"".join(map(runs.line, lines)))
    Roster({node: number for number, node in enumerate(NODES)}).save(folder)
