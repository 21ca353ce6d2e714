"""Golden trajectories of the presets on a tiny problem.

`python -m tests.support.golden_presets --write` makes them anew.

Six devices, each with the loss ||theta - target_i||^2 / 2 and its own target, 12 parameters, 8 rounds in which the
learning rate rises and falls. In FedAvg mode a device takes two local steps. The clip bites.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.kernels import as_blocks

FILE = Path(__file__).parents[1] / "golden" / "presets.json"
PRESETS = ("paper", "authors-2021-05", "authors-2021-08")
MODES = ("uncompressed", "fedavg")
LRS = (0.0, 0.25, 0.5, 0.75, 0.6, 0.4, 0.2, 0.1)
D, K, DEVICES, CLIP_NORM, RHO = 12, 3, 6, 1.0, 0.5

Rows = list[list[float]]
Server = Callable[[Rows, int, float], list[float]]  # updates, round, lr -> what to subtract


def local_steps(mode: str) -> int:
    return 2 if mode == "fedavg" else 1


def run(mode: str, server: Server) -> Rows:
    """theta after every round, for any server."""
    targets = [rng(7, "golden", 0, device).normal(size=D).tolist() for device in range(DEVICES)]
    theta = [0.0] * D
    path: Rows = []
    for t, lr in enumerate(LRS):
        delta = server([update(theta, target, mode, lr) for target in targets], t, lr)
        theta = [a - b for a, b in zip(theta, delta, strict=True)]
        path.append(theta)
    return path


def update(theta: list[float], target: list[float], mode: str, lr: float) -> list[float]:
    """A device's gradient, or its way over the local steps."""
    if mode == "uncompressed":
        return [a - b for a, b in zip(theta, target, strict=True)]
    local = theta
    for _ in range(local_steps(mode)):
        local = [a - lr * (a - b) for a, b in zip(local, target, strict=True)]
    return [a - b for a, b in zip(theta, local, strict=True)]


def trajectory(preset: str, mode: str) -> Rows:
    """The library's way."""
    defense = build(
        "sparsefed", k=K, clip_norm=CLIP_NORM, rho=RHO, mode=mode, preset=preset, local_steps=local_steps(mode)
    )
    state = defense.init(D)

    def server(rows: Rows, t: int, lr: float) -> list[float]:
        nonlocal state
        step = defense.step(state, as_blocks(torch.tensor(rows), 4), Context(t, lr))
        state = step.state
        return [float(value) for value in step.delta]

    return run(mode, server)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the golden trajectories, or write them anew")
    parser.add_argument("--write", action="store_true", help=f"overwrite {FILE.name}")
    fresh = {preset: {mode: trajectory(preset, mode) for mode in MODES} for preset in PRESETS}
    if parser.parse_args().write:
        FILE.write_text(json.dumps(fresh, indent=1) + "\n")
        print(f"wrote {FILE.name}")
    else:
        print("same" if fresh == json.loads(FILE.read_text()) else "different")


if __name__ == "__main__":
    main()
