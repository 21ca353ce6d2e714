"""Lipschitz constants of a device's gradient: exact for one softmax layer, estimated for anything else.

The paper's Example 1 is one softmax layer, whose Hessian for an example (x, y) with probabilities p is

    H[(i, j), (k, l)]  =  (p_i [i = k] - p_i p_k) x_j x_l,        that is   H = (diag p - p p^T) (x) x x^T.

*Departures*: the paper prints x_j p_k (1 - p_k) x_l for every i, which is right for i = k alone; elsewhere it is
-p_i p_k x_j x_l. Its bound stands all the same: p_i p_k <= 1/4 too, so c = 1/4 for inputs in [0, 1]. It is
approached as p -> (1/2, 1/2) and x_j -> 1. Real inputs are normalised, not in [0, 1], and a bias is an input of 1;
so every constant here comes from the inputs as the model gets them.

A mean over devices is never worse than its worst device, so the largest constant of a device holds for every cohort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed.core.errors import require
from sparsefed.core.federation import Federation, none
from sparsefed.core.rng import rng
from sparsefed.core.task import Task, differentiator
from sparsefed.core.types import Batch, IndexArray, IntArray
from sparsefed.theory import threat_schedule as protocol

CHUNK = 4096  # examples processed together: 26 MB of float64 for 28x28 pixels
DEVICES, STARTS, CLIMBS = 2, 2, 2  # of the search for c on devices

Prepare = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SoftmaxLayer:
    """Constants of one softmax layer on its devices' data: the most that one device's gradient changes.

    They hold whatever the weights, and are computed in float64; the rounding of a run in float32 is not in them.
    """

    c: float  # change of a coordinate per unit of l1 change in the weights: the largest |H_ij|
    column_l1: float  # change of the gradient in l1 per unit of l1: the largest l1 norm of a column of H
    column_l2: float  # change of the gradient in l2 per unit of l1
    smooth: float  # change of the gradient in l2 per unit of l2: the largest eigenvalue
    longest: float  # the largest |x|_2 of the inputs, the bias's 1 included


def softmax_layer(
    x: Tensor,
    offsets: IntArray,
    *,
    examples: IntArray | IndexArray | None = None,
    prepare: Prepare | None = None,
    bias: bool = True,
) -> SoftmaxLayer:
    """Return the constants for devices that own `examples[offsets[i]:offsets[i + 1]]` of x (by default, of x itself).

    With means over a device's examples, maxima over devices and over inputs j:
    c = mean x_j^2 / 4, because |p_i [i = k] - p_i p_k| <= 1/4 and mean |x_j x_l| is largest at some l = j;
    column_l1 = mean |x|_1 |x_j| / 2, because a column of diag p - p p^T is 2 p_k (1 - p_k) <= 1/2 long in l1;
    column_l2 = sqrt(2)/4 mean |x|_2 |x_j|, because it is at most sqrt(2) p_k (1 - p_k) long in l2;
    smooth = lambda_max(mean x x^T) / 2, because lambda_max(diag p - p p^T) <= 1/2.
    """
    squares = l1 = l2 = top = longest = 0.0
    for device in _looks(x, offsets, examples, prepare or (lambda raw: raw), bias):
        squares = max(squares, float(device.squares.max()))
        l1 = max(l1, float(device.l1.max()))
        l2 = max(l2, float(device.l2.max()))
        longest = max(longest, device.longest)
        top = max(top, _largest_eigenvalue(device.gram, top))
    return SoftmaxLayer(squares / 4, l1 / 2, l2 * math.sqrt(2) / 4, top / 2, longest)


def softmax_growth(layer: SoftmaxLayer, d: int, k: int | None, clipped: bool) -> float:
    """Return a line's `growth`: the smallest that holds for the l1 change on w = min(d, 2k) coordinates.

    A bound in l2 survives clipping, which is a projection; a bound per coordinate or in l1 does not.

    >>> layer = SoftmaxLayer(c=0.25, column_l1=8.0, column_l2=2.0, smooth=5.0, longest=4.0)
    >>> softmax_growth(layer, d=100, k=8, clipped=False), softmax_growth(layer, d=100, k=8, clipped=True)
    (4.0, 8.0)
    """
    w = math.sqrt(protocol.ThreatSchedule(d, k, ()).w)
    cut = min(w * layer.column_l2, w * layer.smooth, protocol.growth(d, k, layer.c, clipped=True))
    return cut if clipped else min(cut, layer.column_l1, protocol.growth(d, k, layer.c, clipped=False))


def clip_free(layer: SoftmaxLayer) -> float:
    """Return a clip norm that cuts no honest gradient: |p - y|_2 |x|_2 <= sqrt(2) |x|_2 (without weight decay)."""
    return math.sqrt(2) * layer.longest


def is_softmax_layer(module: nn.Module) -> bool:
    """Return whether the module is one `nn.Linear`, alone or in `nn.Sequential`s with nothing but Flatten and Identity.

    A user's own class is never taken for one: its `forward` could do anything.

    >>> is_softmax_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), is_softmax_layer(nn.ReLU())
    (True, False)
    """
    kinds = [type(part) for part in module.modules()]
    return kinds.count(nn.Linear) == 1 and set(kinds) <= {nn.Linear, nn.Flatten, nn.Identity, nn.Sequential}


def is_softmax_task(task: Task) -> bool:
    """Return whether a task is one softmax layer on cross-entropy, none of it frozen: these are the formulas' terms."""
    learned = len(task.slots) == len(list(task.template.parameters()))
    plain = task.loss is None and task.target.kind in ("classes", "tokens")
    return is_softmax_layer(task.template) and plain and learned


@dataclass(frozen=True)
class Smoothness:
    """The smoothness of every device's gradient, weight decay included."""

    c: float  # coordinatewise: |g(theta) - g(theta')|_inf <= c |theta - theta'|_1 for every device and all models
    layer: SoftmaxLayer | None = None  # of one softmax layer, where more is known than c
    uncut: float = math.inf  # a clip norm that never cuts an honest gradient; inf: there is none

    def growth(self, d: int, k: int | None, scale: float, budget: float) -> float:
        """Return the growth of the mean of `scale` times the gradients, each then clipped to `budget`."""
        cut = scale * self.uncut > budget
        if self.layer is None:
            return scale * protocol.growth(d, k, self.c, clipped=cut)
        return scale * softmax_growth(self.layer, d, k, clipped=cut)


def exact(task: Task, federation: Federation, decay: float) -> Smoothness:
    """Return the constants of one softmax layer on its devices' data; augmentation may turn these into any bytes."""
    part, x = federation.partition, federation.x
    offsets, examples = part.offsets, part.examples
    if federation.augment is not none:
        x, offsets, examples = _brightest(x[:1], task.prepare), np.array([0, 1]), np.array([0])
    bare = softmax_layer(x, offsets, examples=examples, prepare=task.prepare, bias=len(task.slots) > 1)
    layer = replace(
        bare,
        c=bare.c + decay,
        column_l1=bare.column_l1 + decay,
        column_l2=bare.column_l2 + decay,
        smooth=bare.smooth + decay,
    )
    return Smoothness(layer.c, layer, math.inf if decay else clip_free(bare))


def _brightest(x: Tensor, prepare: Prepare) -> Tensor:
    """Return the example of bytes that is largest everywhere once normalised: every constant grows with |x_j|."""
    dark, light = torch.zeros_like(x), torch.full_like(x, 255)
    # [1, C, H, W] as the model gets it, [1, H, W, C] as it is stored.
    return torch.where((prepare(light).abs() > prepare(dark).abs()).permute(0, 2, 3, 1), light, dark)


# --- the data, some devices at a time --------------------------------------------------------------------------------


class _Look(NamedTuple):
    """The means of some devices over their examples, one row per device."""

    squares: Tensor  # [g, m], mean x_j^2
    l1: Tensor  # [g, m], mean |x|_1 |x_j|
    l2: Tensor  # [g, m], mean |x|_2 |x_j|
    gram: Tensor  # [g, ., .], matrices with the largest eigenvalue of mean x x^T
    longest: float  # the largest |x|_2


def _looks(
    x: Tensor, offsets: IntArray, examples: IntArray | IndexArray | None, prepare: Prepare, bias: bool
) -> Iterator[_Look]:
    rows = np.arange(len(x)) if examples is None else examples.astype(np.int64)
    rising = offsets[0] == 0 and offsets[-1] == len(rows) and (np.diff(offsets) >= 0).all()
    require(bool(rising), f"the devices' offsets must rise from 0 to {len(rows)}, the number of their examples")

    def inputs(places: IntArray) -> Tensor:  # [M, m]
        flat = prepare(x[torch.from_numpy(rows[places])]).flatten(1).double()
        return torch.cat([flat, flat.new_ones(len(flat), 1)], 1) if bias else flat

    for devices in _groups(np.diff(offsets)):
        starts, sizes = offsets[devices], np.diff(offsets)[devices]
        if sizes[0] > CHUNK:
            yield _long_device(inputs, int(starts[0]), int(sizes[0]))
        else:
            yield _short_devices(inputs, starts, sizes)


def _groups(sizes: IntArray) -> Iterator[IntArray]:
    """Yield the devices that have examples in groups of like size, each as many as fill a chunk."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    while len(order):
        widths = np.arange(1, len(order[:CHUNK]) + 1) * sizes[order[:CHUNK]]  # padded size of the first i devices
        count = max(1, int(np.searchsorted(widths, CHUNK, side="right")))
        yield order[:count]
        order = order[count:]


def _short_devices(inputs: Callable[[IntArray], Tensor], starts: IntArray, sizes: IntArray) -> _Look:
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    examples = inputs(np.repeat(starts, sizes) + within)
    padded = examples.new_zeros(len(sizes), int(sizes.max()), examples.shape[1])
    padded[torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)), torch.from_numpy(within)] = examples
    counts = torch.from_numpy(sizes)[:, None]
    squares, l1, l2 = (total / counts for total in _totals(padded))
    wide = padded.shape[1] > padded.shape[2]
    gram = padded.mT @ padded if wide else padded @ padded.mT  # both have the same eigenvalues, apart from zeros
    return _Look(squares, l1, l2, gram / counts[:, :, None], _longest(padded))


def _long_device(inputs: Callable[[IntArray], Tensor], start: int, size: int) -> _Look:
    totals: list[Tensor] = []
    longest = 0.0
    for low in range(start, start + size, CHUNK):
        part = inputs(np.arange(low, min(low + CHUNK, start + size)))[None]
        sums = [*_totals(part), part.mT @ part]
        totals = [old + new for old, new in zip(totals, sums, strict=True)] if totals else sums
        longest = max(longest, _longest(part))
    squares, l1, l2, gram = (total / size for total in totals)
    return _Look(squares, l1, l2, gram, longest)


def _totals(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, over the examples of [g, n, m], the sums of x_j^2, |x|_1 |x_j| and |x|_2 |x_j|, each [g, m]."""
    size = x.abs()
    l1, l2 = size.sum(2, keepdim=True), torch.linalg.vector_norm(x, dim=2, keepdim=True)
    return x.square().sum(1), (l1.mT @ size)[:, 0], (l2.mT @ size)[:, 0]


def _longest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=2).max())


def _largest_eigenvalue(gram: Tensor, known: float) -> float:
    """Return the largest eigenvalue of symmetric matrices [g, n, n], if it is above `known`.

    Matrices whose bound |A^2|_F^(1/2) is not above it are skipped.
    """
    candidates = torch.linalg.matrix_norm(gram @ gram) > known**2
    return float(torch.linalg.eigvalsh(gram[candidates]).max()) if bool(candidates.any()) else 0.0


# --- any other model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """An estimate of c from below; c may be any larger number, so no certificate may rest on it."""

    c: float
    samples: int  # entries of the Hessian's columns that were evaluated
    devices: int = 1


def estimate_c(
    gradient: Gradient,
    thetas: Sequence[Tensor],
    *,
    seed: int = 0,
    starts: int = 4,
    climbs: int = 20,
    step: float = 0.05,
) -> Estimate:
    """Estimate c from below: the steepest change of a gradient's coordinate that a search finds near some models.

    From some coordinates j at each theta: the i with the largest |H_ij|, then the j with the largest |H_ji|, until it
    stays; then theta climbs along the gradient of that |H_ij|, `climbs` times. H_ij is the quotient
    (g_i(theta + step e_j) - g_i(theta - step e_j)) / (2 step): by its definition c is never below such a quotient, for
    any step, so that only float32's rounding (about 1e-6 of the largest gradient, over the step) can make it too
    large. A network with ReLU or max-pooling has no c: its gradient jumps where a unit switches, and the estimate
    grows without end as the step shrinks.
    """
    possible = len(thetas) > 0 and starts >= 1 and step > 0
    require(possible, "c is estimated at one model at least, from one start at least, with a step above 0")
    steepest, samples = 0.0, 0
    for number, theta in enumerate(thetas):
        draw = rng(seed, "curvature", number)
        first = int(gradient(theta).abs().argmax())
        others = draw.choice(len(theta), min(starts - 1, len(theta)), replace=False).tolist()
        for j in [first, *others]:
            value, columns = _searched(gradient, theta, j, climbs, step)
            steepest, samples = max(steepest, value), samples + columns * len(theta)
    return Estimate(steepest, samples)


def estimate_on_devices(task: Task, federation: Federation, models: Sequence[Tensor], seed: int) -> Estimate:
    """Estimate c of a task on some devices that have examples: half a minute for a ResNet9, a second if small."""
    gradient = differentiator(task, torch.float32)
    sized = np.flatnonzero(np.diff(federation.partition.offsets))
    chosen = rng(seed, "devices to estimate c on").choice(sized, min(DEVICES, len(sized)), replace=False)

    def of_device(batch: Batch) -> Estimate:
        return estimate_c(
            lambda theta: gradient(theta, batch.x, batch.y), models, seed=seed, starts=STARTS, climbs=CLIMBS
        )

    estimates = [of_device(federation.gather(chosen[i : i + 1])) for i in range(len(chosen))]
    return Estimate(max(each.c for each in estimates), sum(each.samples for each in estimates), len(chosen))


def _searched(gradient: Gradient, theta: Tensor, j: int, climbs: int, step: float) -> tuple[float, int]:
    """Return the largest |H_ij| that a climb from here reaches, and how many columns that took."""
    i, best, columns = _alternated(gradient, theta, j, step)
    length = 1.0
    for _ in range(climbs):
        uphill = _slope(gradient, theta, i[0], i[1], step)
        norm = torch.linalg.vector_norm(uphill)
        if not float(norm) > 0:
            break
        ahead = theta + uphill * (length / norm)
        pair, value, looked = _alternated(gradient, ahead, i[1], step)
        columns += looked
        if value > best:
            theta, i, best, length = ahead, pair, value, length * 1.5
        else:
            length /= 3
    return best, columns


def _alternated(gradient: Gradient, theta: Tensor, j: int, step: float) -> tuple[tuple[int, int], float, int]:
    """Climb from column j of the Hessian to the column of its largest entry, as long as entries grow."""
    pair, best, columns = (j, j), -1.0, 0
    while True:
        column = _column(gradient, theta, j, step)
        i = int(column.abs().argmax())
        columns += 1
        if not float(column[i].abs()) > best * (1 + 1e-6):
            return pair, max(best, 0.0), columns
        pair, best, j = (i, j), float(column[i].abs()), i


def _column(gradient: Gradient, theta: Tensor, j: int, step: float) -> Tensor:
    up, down = _moved(theta, (j, step)), _moved(theta, (j, -step))
    # The step actually taken, not the nominal one: theta + step rounds.
    return (gradient(up) - gradient(down)).double() / float(up[j].double() - down[j].double())


def _slope(gradient: Gradient, theta: Tensor, i: int, j: int, step: float) -> Tensor:
    """Return the direction in theta in which |H_ij| grows: differences of columns, as third derivatives commute."""

    def corner(a: int, b: int) -> Tensor:
        return gradient(_moved(_moved(theta, (i, a * step)), (j, b * step)))

    entry = _column(gradient, theta, j, step)[i]
    return torch.sign(entry).to(theta.dtype) * (corner(1, 1) - corner(1, -1) - corner(-1, 1) + corner(-1, -1))


def _moved(theta: Tensor, move: tuple[int, float]) -> Tensor:
    moved = theta.clone()
    moved[move[0]] += move[1]
    return moved
