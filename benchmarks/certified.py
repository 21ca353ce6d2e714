"""Certified accuracy of one softmax layer, setting by setting: the table of docs/certified_accuracy.md.

    python -m benchmarks.certified [CONFIG.toml] [key=value ...]

without arguments runs every setting of SETTINGS on top of the packaged `certified.toml`; with a config (`-` for the
packaged one) or keys, that one setting alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from sparsefed import config as configs
from sparsefed import data
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.round import simulate, start
from sparsefed.core.task import image_normaliser
from sparsefed.core.types import Block
from sparsefed.theory.linear import Points, Radii, certified_accuracy, largest_share, points, radii_of_share
from sparsefed.theory.lipschitz import clip_free, softmax_growth, softmax_layer
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, worst_omega

SHARES = (0.001, 0.003, 0.01, 0.03)

SPARSE = ['defense={name="sparsefed", k=3925, clip_norm=5.5, rho=0.0}']
SETTINGS: dict[str, list[str]] = {
    "`certified.toml`": [],
    "rate 0.003, 10 rounds": ["rounds=10", "train.lr=0.003"],
    "rate 0.012, 40 rounds": ["rounds=40", "train.lr=0.0119"],
    "one round, L = 1, all cut": ["rounds=1", "defense.clip_norm=1.0"],
    "L = 65, never cut": ["defense.clip_norm=65.0"],
    "1000 devices, L = 8, rate 0.0045": [
        "data.devices=1000",
        "train.cohort=1000",
        "train.lr=0.0045",
        "defense.clip_norm=8.0",
    ],
    "one class a device, 1000 devices, L = 28, rate 0.0024, 10 rounds": [
        "data.partition=one_class",
        "data.devices=1000",
        "train.cohort=1000",
        "train.lr=0.0024",
        "defense.clip_norm=28.0",
        "rounds=10",
    ],
    "one class a device, 1000 devices, one round, L = 1, all cut": [
        "data.partition=one_class",
        "data.devices=1000",
        "train.cohort=1000",
        "rounds=1",
        "defense.clip_norm=1.0",
    ],
    "sparsefed, k = d/2": [*SPARSE],
    "sparsefed, k = d/2, rate 0.000018, 300 rounds": [*SPARSE, "rounds=300", "train.lr=0.000018", "evaluate_every=300"],
    "sparsefed, k = 100": [*SPARSE, "defense.k=100"],
    "digits, 20 devices, L = 1.85, rate 0.018, 8 rounds": [
        "data.name=digits",
        "data.devices=20",
        "train.cohort=20",
        "rounds=8",
        "train.lr=0.018",
        "defense.clip_norm=1.85",
    ],
}


@dataclass(frozen=True)
class Trained:
    """A run without attackers: its last model's points, and what the certificate needs of it."""

    points: Points
    protocol: ThreatSchedule


def trained(config: Config) -> Trained:
    """Train without attackers, and look at the test points."""
    experiment = configs.build(config)
    theta, norms = _run(experiment)
    arrays = data.load(configs.dataset(config))
    prepare = image_normaliser(arrays.mean, arrays.std)
    federation = experiment.setup.federation
    part = federation.partition
    layer = softmax_layer(federation.x, part.offsets, examples=part.examples, prepare=prepare)
    k, clip = config.defense.params.get("k"), float(config.defense.params["clip_norm"])
    growth = softmax_growth(layer, len(theta), k, clipped=clip < clip_free(layer))
    rates = [experiment.setup.schedule(t) for t in range(1, config.rounds + 1)]
    lines = tuple(
        Line(rate, clip, 0.0, growth, worst_omega(len(theta), k), layer.smooth, clip_free(layer), norm)
        for rate, norm in zip(rates, norms, strict=True)
    )
    classes = len(arrays.classes)
    weight, bias = theta[:-classes].view(classes, -1), theta[-classes:]
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    seen = points(weight, bias, x, y, prepare=prepare)
    return Trained(seen, ThreatSchedule(len(theta), k, lines))


def _run(experiment: BuiltSimulation) -> tuple[Tensor, tuple[float, ...]]:
    longest: list[float] = []
    engine = experiment.setup.engine

    def watched(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        longest.append(0.0)
        for block in engine(theta, cohort, step):
            longest[-1] = max(longest[-1], float(block.norms().max()))
            yield block

    protocol = replace(experiment.setup, engine=watched, attack=None)
    *_, last = simulate(protocol, start(protocol, experiment.theta), experiment.config.rounds)
    return last.state.theta, tuple(longest)


def row(name: str, run: Trained) -> str:
    """A line of the table: certified by the better route with measured norms, and the largest share of each route."""
    lines = tuple(replace(line, longest=math.inf) for line in run.protocol.lines)
    of_share, unmeasured = radii_of_share(run.protocol), radii_of_share(replace(run.protocol, lines=lines))
    certified = [certified_accuracy(run.points, of_share(share)) for share in SHARES]
    largest = [
        largest_share(run.points, of_share),
        largest_share(run.points, unmeasured),
        largest_share(run.points, lambda share: Radii(of_share(share).l1, math.inf)),
    ]
    numbers = [100 * float(run.points.right.mean()), *(100 * value for value in certified)]
    shares = ["none" if share is None or share < 1e-5 else f"{100 * share:.2g} %" for share in largest]
    return " | ".join(["", name, *(f"{number:.1f}" for number in numbers), *shares, ""]).strip()


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    shares = " | ".join(f"{100 * share:g} %" for share in SHARES)
    print(f"| setting | accuracy | {shares} | largest share | norms not measured | l1 alone |")
    print("| --- |" + " ---: |" * (4 + len(SHARES)))
    named = [argument for argument in arguments if "=" not in argument and argument != "-"]
    keys = [argument for argument in arguments if "=" in argument]
    settings = {named[0] if named else " ".join(keys) or "`certified.toml`": keys} if arguments else SETTINGS
    packaged = resources.files("sparsefed").joinpath("config/files/certified.toml")
    with resources.as_file(packaged) as usual:
        for name, changes in settings.items():
            print(row(name, trained(configs.read(Path(named[0]) if named else usual, changes))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
