"""The choice of k: the paper's Algorithm "Selecting k" (appendix), and the smallest k with the same guarantee.

Both guarantee that top-k loses, on average over n sample gradients, at most omega of the l1 mass:

    delta(k)  =  (1/n) sum_j |g_j - top_k(g_j)|_1   <=  omega                              a mass, as the box prints it
    delta(k)  =  (1/n) sum_j |g_j - top_k(g_j)|_1 / |g_j|_1   <=  omega                    a share, as Definition omega

The box prints a mass, but its omega is that of Definition "loss rate", a share of the mass, and so are all of the
theorems'. Both readings are here and named; those that end in `_share` are the definition's. A gradient that is 0 loses
nothing.

The paper steps through k = d/r, 2 d/r, ... and selects n top-k's at each step. But what is lost is a sum of the
smallest |g|, so one sort of a gradient gives it for *every* k: n sorts make a curve that falls from k = 0 to k = d, and
the smallest k is found on it by bisection, without another top-k.

Numbers in float64, summed from the smallest up; the curve never rises, not even by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError, require

FloatArray = npt.NDArray[np.float64]
Gradient = npt.NDArray[np.float32] | npt.NDArray[np.float64]  # [d]
Draw = Callable[[], Iterable[Gradient]]  # n sample gradients, fresh ones at every call
Lost = Callable[[Gradient, int], float]


class ChosenK(NamedTuple):
    """A chosen k, what it loses, and how many selections or sorts it took to find it."""

    k: int
    lost: float  # delta: a mass or a share
    selections: int  # top-k selections of a gradient, or sorts


# --- the paper's algorithm -------------------------------------------------------------------------------------------


def mass_lost(gradient: Gradient, k: int) -> float:
    """Return |g - top_k(g)|_1, by one selection.

    >>> mass_lost(np.array([3.0, -1.0, 0.5, 4.0]), 2)
    1.5
    """
    d = len(gradient)
    if k >= d:
        return 0.0
    return float(np.partition(np.abs(gradient), d - k - 1)[: d - k].sum(dtype=np.float64))


def share_lost(gradient: Gradient, k: int) -> float:
    """Return |g - top_k(g)|_1 / |g|_1; 0 for a gradient that is 0.

    >>> share_lost(np.array([3.0, -0.5, 0.5, 4.0]), 2)
    0.125
    """
    total = float(np.abs(gradient).sum(dtype=np.float64))
    return mass_lost(gradient, k) / total if total > 0 else 0.0


def steps(d: int, r: int) -> list[int]:
    """Return the paper's values of k: d/r, 2 d/r, ..., d; each rounded up where d/r is not whole, so never beyond d.

    >>> steps(10, 4), steps(2, 3)
    ([3, 5, 8, 10], [1, 2, 2])
    """
    require(d >= 1 and r >= 1, f"d is {d} and r is {r}, but a model has parameters and an epoch has rounds: use 1 up")
    return [-(-i * d // r) for i in range(1, r + 1)]


def paper_choice(draw: Draw, omega: float, d: int, r: int) -> ChosenK:
    """Run Algorithm "Selecting k" as printed: omega is a mass, and every turn draws n gradients anew.

    d parameters, r rounds in an epoch. The box keeps a running minimum of delta; as it goes on only while that is above
    omega, the minimum is that of the last turn whenever it stops.

    *Departures.* d/r is rounded as in `steps`, and k = d is the last: it loses nothing.
    """
    require(omega >= 0, f"omega is {omega}, but a mass that may be lost is not negative: use 0 up")
    return _stepped(draw, omega, d, r, mass_lost)


def paper_choice_of_share(draw: Draw, omega: float, d: int, r: int) -> ChosenK:
    """Run Algorithm "Selecting k" with omega a share of each gradient's mass, as Definition omega has it."""
    check_share(omega)
    return _stepped(draw, omega, d, r, share_lost)


def _stepped(draw: Draw, omega: float, d: int, r: int, lost: Lost) -> ChosenK:
    delta, selections = np.inf, 0
    for k in steps(d, r):
        losses = [lost(_checked(gradient, d), k) for gradient in draw()]
        require(bool(losses), "there are no sample gradients to choose k by; draw at least one")
        selections += len(losses)
        delta = min(delta, sum(losses) / len(losses))
        if delta <= omega:
            break
    return ChosenK(k, float(delta), selections)


# --- one sort serves all k -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The loss of top-k on some gradients, for every k."""

    mean: FloatArray  # [d + 1], everything is lost at k = 0; never rises
    grid: tuple[int, ...]  # some values of k
    samples: FloatArray  # [n, len(grid)], the loss of each gradient at the k of the grid

    @property
    def d(self) -> int:
        return len(self.mean) - 1

    @property
    def sorts(self) -> int:
        return len(self.samples)


def masses_lost(gradient: Gradient) -> FloatArray:
    """Return |g - top_k(g)|_1 for k = 0, ..., d, by one sort.

    >>> masses_lost(np.array([3.0, -1.0, 0.5, 4.0])).tolist()
    [8.5, 4.5, 1.5, 0.5, 0.0]
    """
    ascending = np.sort(np.abs(gradient))
    lost = np.zeros(len(ascending) + 1)
    np.cumsum(ascending, dtype=np.float64, out=lost[1:])
    return lost[::-1]


def shares_lost(gradient: Gradient) -> FloatArray:
    """Return |g - top_k(g)|_1 / |g|_1 for k = 0, ..., d; all 0 for a gradient that is 0."""
    lost = masses_lost(gradient)
    return lost / lost[0] if lost[0] > 0 else lost


def mass_curve(gradients: Iterable[Gradient], grid: Sequence[int] = ()) -> Curve:
    """Return the average mass lost, for every k, in 8 bytes per parameter for any number of gradients."""
    return _curve(gradients, grid, masses_lost)


def share_curve(gradients: Iterable[Gradient], grid: Sequence[int] = ()) -> Curve:
    """Return the average share of the mass lost, for every k."""
    return _curve(gradients, grid, shares_lost)


def _curve(gradients: Iterable[Gradient], grid: Sequence[int], lost: Callable[[Gradient], FloatArray]) -> Curve:
    total: FloatArray | None = None
    samples: list[FloatArray] = []
    for gradient in gradients:
        each = lost(_checked(gradient, len(gradient) if total is None else len(total) - 1))
        samples.append(each[list(grid)])
        total = np.array(each) if total is None else np.add(total, each, out=total)
    if total is None:
        raise ConfigError("there are no sample gradients to choose k by; draw at least one")
    return Curve(total / len(samples), tuple(grid), np.stack(samples))


def smallest_k(curve: Curve, omega: float) -> ChosenK:
    """Return the smallest k >= 1 that loses at most omega on average, by bisection on the curve."""
    require(omega >= 0, f"omega is {omega}, but what may be lost is not negative: use 0 up")
    enough = int(np.searchsorted(curve.mean[::-1], omega, side="right"))  # so many k lose no more; d is always one
    k = max(1, curve.d + 1 - enough)
    return ChosenK(k, float(curve.mean[k]), curve.sorts)


def stepped_k(curve: Curve, omega: float, r: int) -> ChosenK:
    """Return the paper's k if every turn draws the curve's gradients; less than d/r above the smallest.

    `selections` counts those that the paper's algorithm would have made.
    """
    least = smallest_k(curve, omega).k
    turn, k = next((turn, k) for turn, k in enumerate(steps(curve.d, r), start=1) if k >= least)
    return ChosenK(k, float(curve.mean[k]), turn * curve.sorts)


def check_share(omega: float) -> None:
    """Raise an error unless omega is a share."""
    require(0 <= omega <= 1, f"omega is {omega}, but is a share of the l1 mass: use 0 to 1, for instance 0.5")


def _checked(gradient: Gradient, d: int) -> Gradient:
    require(len(gradient) == d, f"a sample gradient has {len(gradient)} coordinates, but the model {d} parameters")
    require(
        bool(np.isfinite(gradient).all()),
        "a sample gradient is not finite: the model has diverged; lower the learning rate, or sample earlier",
    )
    return gradient
