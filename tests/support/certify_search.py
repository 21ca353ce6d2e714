"""Attackers who search: many small protocols at once, in float64, and what their attackers send improved by gradients.

Here is the server of SparseFed again, batched and differentiable, so that the distance between the poisoned and the
benign model can be climbed from the last round back to everything that was sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.rng import rng
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, growth

Oracle = Callable[[Tensor, int], Tensor]  # models [B, d], round -> every device's honest gradient [B, n, d]


@dataclass(frozen=True)
class Batch:
    """B protocols of one shape; the first `attackers` of the devices are not what they seem."""

    k: int | None
    attackers: int
    oracle: Oracle
    start: Tensor  # [B, d]
    rates: Tensor  # [B, T]
    clip_norm: Tensor  # [B]
    rho: Tensor  # [B]
    c: Tensor  # [B], the mean over the devices of their coordinatewise Lipschitz constants
    devices: int


class Run(NamedTuple):
    """One run of all protocols."""

    models: Tensor  # [B, d], the last ones
    omegas: Tensor  # [B, T], what top-k left of the l1 mass
    cut: Tensor  # bool [B], whether clipping ever shortened an update of a device that is honest in both runs


class Found(NamedTuple):
    """An attack, as a protocol in numbers and the distance that it reached."""

    distance: float
    unconditional: ThreatSchedule  # the largest omega that there can be
    conditional: ThreatSchedule  # the larger of the two runs' own omegas


def clipped(rows: Tensor, budget: Tensor) -> Tensor:
    norms: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows * (budget / norms.clamp_min(1e-300)).clamp_max(1)


def run(batch: Batch, sent: Tensor | None) -> Run:
    """All rounds; `sent` [B, T, attackers, d] or, in the benign run, nothing."""
    theta, budget = batch.start, batch.clip_norm[:, None, None]
    momentum = memory = torch.zeros_like(theta)
    cut = torch.zeros(len(theta), dtype=torch.bool)
    omegas = []
    for t in range(batch.rates.shape[1]):
        rows = batch.oracle(theta, t)
        cut = cut | (rows[:, batch.attackers :].norm(dim=-1) > budget[..., 0] * (1 + 1e-12)).any(dim=1)
        if sent is not None:
            rows = torch.cat([sent[:, t], rows[:, batch.attackers :]], dim=1)
        momentum = batch.rho[:, None] * momentum + clipped(rows, budget).mean(dim=1)
        if batch.k is None:
            applied, lost = momentum, torch.zeros(len(theta))
        else:
            memory = memory + momentum
            mask = torch.zeros_like(memory).scatter(1, memory.abs().topk(batch.k, dim=1).indices, 1.0)
            applied, mass = memory * mask, memory.abs().sum(dim=1)
            memory, momentum = memory * (1 - mask), momentum * (1 - mask)
            lost = memory.abs().sum(dim=1) / mass.clamp_min(1e-300)
        omegas.append(lost.detach())
        theta = theta - batch.rates[:, t, None] * applied
    return Run(theta, torch.stack(omegas, dim=1), cut)


def searched(batch: Batch, sent: Tensor, steps: int) -> list[Found]:
    """Climbs from `sent` by normalised gradients, shorter and shorter, and keeps the furthest that was seen."""
    with torch.no_grad():
        benign = run(batch, None)
    best, furthest = sent.clone(), torch.full((len(sent),), -1.0, dtype=torch.float64)
    sent = clipped(sent, batch.clip_norm[:, None, None, None])
    for step in range(steps):
        sent.requires_grad_()
        distance = (run(batch, sent).models - benign.models).abs().sum(dim=1)
        (slope,) = torch.autograd.grad(distance.sum(), sent)
        further = distance.detach() > furthest
        best[further], furthest[further] = sent.detach()[further], distance.detach()[further]
        length = slope.flatten(1).norm(dim=1).clamp_min(1e-300)
        stride = batch.clip_norm * 2 / (1 + step)
        sent = clipped(
            sent.detach() + (stride / length)[:, None, None, None] * slope, batch.clip_norm[:, None, None, None]
        )
    with torch.no_grad():
        return _certified(batch, benign, run(batch, best))


def _certified(batch: Batch, benign: Run, poisoned: Run) -> list[Found]:
    """Every protocol as the certificate sees it, and how far its attack came."""
    d, T = batch.start.shape[1], batch.rates.shape[1]
    distances = (poisoned.models - benign.models).abs().sum(dim=1).tolist()
    worst = [0.0 if batch.k is None else 1 - batch.k / d] * T
    own = torch.maximum(benign.omegas, poisoned.omegas).clamp_max(1 - 1e-12).tolist()
    cut = (benign.cut | poisoned.cut).tolist()
    rates, clips, rhos, cs = (x.tolist() for x in (batch.rates, batch.clip_norm, batch.rho, batch.c))
    share = batch.attackers / batch.devices

    def protocol(i: int, omegas: list[float]) -> ThreatSchedule:
        h = growth(d, batch.k, cs[i], clipped=cut[i])
        lines = (Line(rate, clips[i], share, h, omega) for rate, omega in zip(rates[i], omegas, strict=True))
        return ThreatSchedule(d, batch.k, tuple(lines), rhos[i])

    return [Found(distances[i], protocol(i, worst), protocol(i, own[i])) for i in range(len(distances))]


def starts(batch: Batch, attempts: int, generator: np.random.Generator) -> list[Tensor]:
    """Where to climb from: anywhere, all along one diagonal, along an axis, or against what would have been sent.

    Every protocol gets another of these in every attempt.
    """
    B, T, a, d = len(batch.start), batch.rates.shape[1], batch.attackers, batch.start.shape[1]
    anywhere = torch.from_numpy(generator.normal(size=(B, T, a, d)))
    diagonal = torch.from_numpy(generator.choice([-1.0, 1.0], size=(B, 1, 1, 1))).expand(B, T, a, d) / math.sqrt(d)
    axis = torch.nn.functional.one_hot(torch.from_numpy(generator.integers(d, size=(B, 1, a))), d).double()
    honest = batch.oracle(batch.start, 0)[:, None, :a]
    against = -honest / honest.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    kinds = torch.stack([anywhere, diagonal, axis.expand(B, T, a, d), against.expand(B, T, a, d)])
    first = torch.from_numpy(generator.integers(len(kinds), size=B))
    tilted = 0.01 * torch.from_numpy(generator.normal(size=(B, T, a, d)))  # symmetry has no slope
    return [
        batch.clip_norm[:, None, None, None] * (kinds[(first + attempt) % len(kinds), torch.arange(B)] + tilted)
        for attempt in range(attempts)
    ]


# --- protocols -------------------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    d: int
    k: int | None
    rounds: int
    devices: int
    attackers: int
    momentum: bool = False


def linear(shape: Shape, count: int, generator: np.random.Generator) -> Batch:
    """The worst-case oracle: every coordinate of device j's gradient is -c_j sum(theta), plus a vector of its own."""
    d, n, a = shape.d, shape.devices, shape.attackers
    slopes = torch.from_numpy(generator.exponential(size=(count, n)) * 10 ** generator.uniform(-2, 2, size=(count, 1)))
    spread = 10 ** generator.uniform(-2, 0.5, size=(count, 1, 1, 1))
    # Devices that agree with each other fill the clip norm, and coordinates that agree make top-k waver.
    common = generator.choice([0.0, 1.0], size=(count, 1, 1, 1))
    own = torch.from_numpy(spread * generator.normal(size=(count, shape.rounds, n, d)) + common)
    # The worst case: those whom the attackers replace push with all their might one way, and do not care for theta.
    worst = torch.from_numpy(generator.choice([False, True], size=count))
    slopes[worst, :a], own[worst, :, :a], own[worst, :, a:] = 0.0, 100.0, 0.0

    def oracle(theta: Tensor, t: int) -> Tensor:
        return -(slopes * theta.sum(dim=1, keepdim=True))[:, :, None] + own[:, t]

    return _batch(shape, count, oracle, slopes.mean(dim=1), generator)


def softmax(shape: Shape, count: int, generator: np.random.Generator) -> Batch:
    """One softmax layer of two classes, with real gradients of real cross-entropy; three examples a device."""
    n, features = shape.devices, shape.d // 2
    x = torch.from_numpy(generator.uniform(size=(count, n, 3, features)) ** generator.choice([0.1, 1.0, 3.0]))
    y = torch.nn.functional.one_hot(torch.from_numpy(generator.integers(2, size=(count, n, 3))), 2).double()

    def oracle(theta: Tensor, t: int) -> Tensor:  # noqa: ARG001
        logits = torch.einsum("bcf,bnmf->bnmc", theta.reshape(count, 2, features), x)
        return torch.einsum("bnmc,bnmf->bncf", logits.softmax(dim=-1) - y, x).flatten(2) / 3

    c = (x**2).mean(dim=2).amax(dim=-1).mean(dim=1) / 4  # the largest entry of mean(x x^T) / 4 lies on its diagonal
    return _batch(shape, count, oracle, c, generator)


def _batch(shape: Shape, count: int, oracle: Oracle, c: Tensor, generator: np.random.Generator) -> Batch:
    rates = 10 ** generator.uniform(-1.5, 0.7, size=(count, 1)) * generator.uniform(0.2, 1, size=(count, shape.rounds))
    rho = generator.uniform(0.1, 0.95, size=count) if shape.momentum else np.zeros(count)
    return Batch(
        shape.k,
        shape.attackers,
        oracle,
        torch.from_numpy(generator.normal(size=(count, shape.d)) * generator.choice([0.0, 1.0], size=(count, 1))),
        torch.from_numpy(rates),
        torch.from_numpy(10 ** generator.uniform(-1, 1, size=count)),
        torch.from_numpy(rho),
        c,
        shape.devices,
    )


SHAPES = (
    Shape(1, None, 3, 3, 1),
    Shape(4, None, 1, 2, 1),
    Shape(6, None, 4, 10, 1),
    Shape(2, None, 4, 200, 1),
    Shape(6, None, 4, 5, 2, momentum=True),
    Shape(3, None, 4, 50, 1, momentum=True),
    Shape(2, 1, 3, 8, 1),
    Shape(2, 1, 3, 8, 1, momentum=True),
    Shape(6, 1, 4, 6, 1),
    Shape(6, 2, 4, 6, 2, momentum=True),
    Shape(8, 6, 3, 4, 3),
    Shape(4, 4, 4, 60, 1, momentum=True),
    Shape(12, 3, 3, 5, 5),
)


def attacks(seed: int, count: int, attempts: int, steps: int) -> list[tuple[str, Found]]:
    """`count` protocols of each shape and oracle, each attacked several times."""
    found = []
    for number, shape in enumerate(SHAPES):
        for name, build in (("linear", linear), ("softmax", softmax)):
            if name == "softmax" and shape.d % 2:
                continue
            generator = rng(seed, f"certify {name}", number)
            batch = build(shape, count, generator)
            for start in starts(batch, attempts, generator):
                found += [(name, each) for each in searched(batch, start, steps)]
    return found
