"""Records of runs that were never run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparsefed.core.rng import rng
from sparsefed.core.types import RunRecord


def record(name: str, rows: Sequence[Mapping[str, Any]], status: str = "finished", **config: Any) -> RunRecord:
    manifest = {
        "created": "2031-05-04T10:20:30+00:00",
        "seed": 1,
        "rounds": len(rows),
        "parameters": 98_442,
        "commit": "3f2c1d0e9b8a",
        "status": status,
        "command": f"sparsefed run {name}.toml",
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "machine": {"cpus": 2, "system": "Linux"},
    }
    return RunRecord(
        name, {"seed": 1, "model": {"name": "cnn"}, "defense": {"name": name, **config}}, manifest, tuple(rows)
    )


def plausible(name: str, top: float, attacked: float, budget: float | None, rounds: int = 300) -> RunRecord:
    """A run such as the demo makes: noisy curves that rise, evaluated every tenth round."""
    noise = rng(7, f"plausible-{name}").standard_normal((rounds, 3))
    rows = [_row(t, noise[t - 1], top, attacked, budget) for t in range(1, rounds + 1)]
    run = record(name, rows, clip_norm=budget or 0)
    return replace(run, config={**run.config, "attack": {"name": "pgd"}, "threat": {"share": 0.02}})


def _row(t: int, noise: Any, top: float, attacked: float, budget: float | None) -> dict[str, Any]:
    honest = 3.5 * math.exp(-t / 300 + 0.1 * noise[0])
    enforced = None if budget is None else budget * (1 - t / 400)
    sent = (40 * math.exp(0.2 * noise[1]) if enforced is None else enforced) if noise[2] > -1.1 else None
    rise = 1 - math.exp(-t / 60)
    evaluated = {
        "test_accuracy": min(1.0, 0.1 + (top - 0.1) * rise + 0.012 * float(noise[0])),
        "test_loss": 2.3 * math.exp(-t / 200),
        "attack_accuracy": min(1.0, max(0.0, attacked * rise + 0.03 * float(noise[1]))),
    }
    row = {"round": t, "lr": 0.1, "honest_norm": honest, "attacker_norm": sent, "budget": enforced, "cohort": 100}
    row |= {"attackers": 2 if sent else 0, "dropped": 0, "clipped": 0.02 + 0.3 / t, "applied": 5000, "seconds": 0.21}
    return row | (evaluated if t % 10 == 0 else {})


def demo(rounds: int = 300) -> list[RunRecord]:
    return [
        plausible("undefended", 0.83, 0.97, None, rounds),
        plausible("clipping", 0.82, 0.55, 3.0, rounds),
        plausible("sparsefed", 0.81, 0.04, 3.0, rounds),
    ]


def evaluated(
    round: int, test: float, attack: float | None = None, loss: float | None = 0.5, **more: Any
) -> dict[str, Any]:
    return {"round": round, "test_accuracy": test, "test_loss": loss, "attack_accuracy": attack, **more}
