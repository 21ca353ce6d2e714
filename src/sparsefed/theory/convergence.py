"""Bounds on the convergence of error-feedback SGD: the paper's theorem as numbers (appendix, theorem "Non-convex
convergence of EF-SGD", taken from Karimireddy et al. 2019, Error Feedback Fixes SignSGD and other Gradient Compression
Schemes, Theorem II), as printed and as it can be proved.

    p_t = gamma g_t + e_t,   Delta_t = C(p_t),   x_(t+1) = x_t - Delta_t,   e_(t+1) = p_t - Delta_t,   e_0 = 0
    |C(p) - p|_2^2 <= (1 - delta) |p|_2^2;   f is l-smooth;   E g_t = grad f(x_t);   E |g_t|_2^2 <= sigma^2

All bounds are on the mean of E |grad f(x_t)|_2^2 over t = 0, ..., R - 1, hence on the least of them, R being the number
of rounds (the print's T + 1).

**The proof.** y_t = x_t - e_t takes plain SGD steps, y_(t+1) = y_t - gamma g_t. Smoothness, at x_t given,

    E f(y_(t+1)) <= f(y_t) - gamma <grad f(y_t), grad f(x_t)> + gamma^2 l sigma^2 / 2
                 <= f(y_t) - gamma |grad f(x_t)|^2 + gamma l |e_t| |grad f(x_t)| + gamma^2 l sigma^2 / 2.

Summed, with U^2 the mean of E |grad f(x_t)|^2, V^2 that of l^2 E |e_t|^2 and a = (f_0 - f*) / (gamma R) + gamma l
sigma^2 / 2, Cauchy-Schwarz says U^2 <= a + U V. Either 2 U V <= U^2 + V^2, so **U^2 <= 2 a + V^2** (`derived`, with the
print's V^2 <= 4 gamma^2 l^2 sigma^2 (1 - delta) / delta^2), or the quadratic solved: U <= V / 2 + sqrt(V^2 / 4 + a)
(`sharp`, with the memory followed round by round, |e_(t+1)| <= sqrt(1 - delta_t) (gamma sigma + |e_t|) in the mean
square).

**The print's middle term is half of `derived`'s, and false.** The compressor C(p) = (1 + b) p has delta = 1 - b^2; with
f = l x^2 / 2 and noise such that E |g|^2 = sigma^2, the second moments settle exactly at

    E |grad f|^2 = (gamma l sigma^2 / 2) / (1 - gamma l b / (1 - b)),

above the print's gamma l sigma^2 / 2 + 4 (gamma l b)^2 sigma^2 / (1 - b^2)^2 for small b (gamma l = 1/2, b = 0.06). For
top-k itself no such case is known to us. With delta = 1 the print is true (a alone is a bound then).

**The server is EF-SGD.** Ours multiplies after top-k: W + u, Delta = top_k(W + u), theta - lambda Delta. As top_k
commutes with a factor above 0, e = lambda W turns one into the other, as long as lambda does not change; with a rate
that does, the old rates would be in e and are not in lambda W.

*Departures.* The paper's main theorem ("Asymptotic convergence") is `corollary`: it prints the norm without its square,
theta_0 - theta_* for f_0 - f*, and the rate 1 / sqrt(t + 1), where the theorem it follows from has a constant one,
1 / sqrt(T + 1). Clipping and momentum are in no version. Numbers in, numbers out; nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError


@dataclass(frozen=True)
class Descent:
    """The constants of an objective and of its descent that the theorem needs."""

    rate: float  # gamma, constant
    smoothness: float  # l
    moment: float  # sigma^2, a bound on E |g|^2
    gap: float  # a bound on f(x_0) - f*

    def __post_init__(self) -> None:
        if not (0 < self.rate < math.inf):
            raise ConfigError(f"the rate is {self.rate}, but a descent needs a finite one above 0")
        for name in ("smoothness", "moment", "gap"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"the {name} is {value}, but it must be a finite number from 0")


def printed(descent: Descent, delta: float, rounds: int) -> float:
    """Return the appendix' theorem as printed: 2 gap / (gamma R) + gamma l sigma^2 / 2 + memory. Not a bound."""
    return sum(terms(descent, delta, rounds)) - _noise(descent) / 2


def derived(descent: Descent, delta: float, rounds: int) -> float:
    """Return the proved bound: 2 gap / (gamma R) + gamma l sigma^2 + 4 (gamma l sigma)^2 (1 - delta) / delta^2."""
    return sum(terms(descent, delta, rounds))


def terms(descent: Descent, delta: float, rounds: int) -> tuple[float, float, float]:
    """Return the three terms of `derived`: the way to go, the noise, and what the memory holds back."""
    _check(delta, rounds)
    memory = 4 * (descent.rate * descent.smoothness) ** 2 * descent.moment * (1 - delta) / delta**2
    return 2 * descent.gap / (descent.rate * rounds), _noise(descent), memory


def sharp(descent: Descent, deltas: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the best bound that this proof gives, after 1, 2, ... rounds with these contractions.

    Never above `derived` with the smallest of them.

    >>> sharp(Descent(rate=0.5, smoothness=1.0, moment=1.0, gap=1.0), [1.0, 1.0]).round(9).tolist()  # a alone
    [2.25, 1.25]
    """
    for delta in deltas or [1.0]:
        _check(delta, len(deltas))
    rounds = np.arange(1, len(deltas) + 1)
    way = descent.gap / (descent.rate * rounds) + _noise(descent) / 2
    held = descent.rate * descent.smoothness * math.sqrt(descent.moment) * memories(deltas)
    half = np.sqrt(np.cumsum(held**2) / rounds) / 2
    bounds: npt.NDArray[np.float64] = (half + np.sqrt(half**2 + way)) ** 2
    return bounds


def memories(deltas: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return bounds on |e_t| before each round, over gamma sigma: m_0 = 0, m_(t+1) = sqrt(1 - delta_t) (1 + m_t).

    >>> memories([0.75, 0.75, 0.75]).tolist()  # towards q / (1 - q) = 1, q = 1/2
    [0.0, 0.5, 0.75]
    """
    held = [0.0]
    for delta in deltas[:-1]:
        held.append(math.sqrt(1 - delta) * (1 + held[-1]))
    return np.array(held)


def corollary(smoothness: float, moment: float, gap: float, delta: float, rounds: int) -> float:
    """Return the main text's theorem as printed.

    (4 gap + l sigma^2) / (2 sqrt(R)) + 4 l^2 sigma^2 (1 - delta) / (delta^2 R). It is `printed` at the constant rate
    1 / sqrt(R), and so concerns the *squared* norm; it is not a bound for the same reason.

    >>> round(corollary(2.0, 3.0, 1.0, 0.5, 25), 9), round(printed(Descent(0.2, 2.0, 3.0, 1.0), 0.5, 25), 9)
    (4.84, 4.84)
    """
    _check(delta, rounds)
    slow = (4 * gap + smoothness * moment) / (2 * math.sqrt(rounds))
    return slow + 4 * smoothness**2 * moment * (1 - delta) / (delta**2 * rounds)


def worst_delta(d: int, k: int) -> float:
    """Return the least contraction of top-k: k/d, where all coordinates are alike."""
    return k / d


def _noise(descent: Descent) -> float:
    return descent.rate * descent.smoothness * descent.moment


def _check(delta: float, rounds: int) -> None:
    if not 0 < delta <= 1:
        raise ConfigError(f"delta is {delta}, but a contraction takes some of what it sees: 0 < delta <= 1")
    if rounds < 1:
        raise ConfigError(f"the number of rounds is {rounds}, but there is nothing to bound before the first")
