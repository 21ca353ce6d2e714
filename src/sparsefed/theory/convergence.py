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

**Measured.** Of one softmax layer everything that the theorem needs is known or can be measured (`SoftmaxObjective`):

    f         mean over the devices of the mean loss of each, sum_j v_j loss(theta; x_j): what uniform cohorts estimate
              without a bias
    l         lambda_max(sum_j v_j x_j x_j^T) / 2, exact (x with a 1 for the bias): the Hessian of a softmax layer is
              (diag p - p p^T) (x) x x^T, and the first factor has no eigenvalue above 1/2, which is approached
    f*        at least 0
    sigma^2   E |g|^2 = phi mean_i |g_i|^2 + (1 - phi) |grad f|^2 over cohorts of n of N devices, with phi = (N - n) /
              (n (N - 1)). *Measured*: the largest at the measured models. *For every model*: |g_i| <= sqrt 2
              mean_j |x_j| and |grad f|^2 <= 2 lambda_max(sum_j v_j x_j x_j^T), as |p - y|_2 <= sqrt 2
    delta     of each round, *measured*; k/d in the *worst case*

So the bound with the worst case and the moment for every model assumes nothing; the other holds if contraction and
moment are on the way no worse than was seen. The theorem bounds an expectation over the cohorts; a run is one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import require
from sparsefed.core.round import RoundSetup
from sparsefed.core.types import Batch

CHUNK = 4096  # examples at a time


@dataclass(frozen=True)
class Descent:
    """The constants of an objective and of its descent that the theorem needs."""

    rate: float  # gamma, constant
    smoothness: float  # l
    moment: float  # sigma^2, a bound on E |g|^2
    gap: float  # a bound on f(x_0) - f*

    def __post_init__(self) -> None:
        require(0 < self.rate < math.inf, f"the rate is {self.rate}, but a descent needs a finite one above 0")
        for name in ("smoothness", "moment", "gap"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"the {name} is {value}, but it must be a finite number from 0")


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
    require(0 < delta <= 1, f"delta is {delta}, but a contraction takes some of what it sees: 0 < delta <= 1")
    require(rounds >= 1, f"the number of rounds is {rounds}, but there is nothing to bound before the first")


# --- the whole objective of one softmax layer ------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredModel:
    """The objective at the model after some rounds."""

    rounds: int
    loss: float  # f
    gradient: float  # |grad f|_2^2
    moment: float  # E |g|_2^2 over the cohorts


@dataclass(frozen=True)
class MeasuredDescent:
    """The measured descent of a run, and the theorem's bounds on it.

    Curves are over the number of rounds R = 1, 2, ..., and show the least |grad f|^2 before round R: a bound continues
    to hold once it held, so none of them rises.
    """

    d: int
    k: int
    proven: Descent  # with the moment of every model
    measured: Descent  # with the largest moment that was seen
    deltas: tuple[float, ...]  # one per round
    points: tuple[MeasuredModel, ...]  # the first before round 1

    @cached_property
    def curves(self) -> dict[str, list[float]]:
        """Return the curves by name.

        `least`: the least gradient among the measured models, which is no less than among all.
        `bound`: with contraction and moment as measured; `worst`: with nothing measured but f at the start.
        `as_printed`: the appendix' theorem as printed, with the measured least contraction and moment.
        """
        at = {point.rounds: point.gradient for point in self.points}
        rounds, least = len(self.deltas), min(self.deltas)
        curves: dict[str, Iterable[float]] = {
            "least": [at.get(done, math.inf) for done in range(rounds)],
            "bound": sharp(self.measured, self.deltas),
            "worst": sharp(self.proven, [worst_delta(self.d, self.k)] * rounds),
            "as_printed": [printed(self.measured, least, done) for done in range(1, rounds + 1)],
        }
        return {name: [*accumulate(map(float, values), min)] for name, values in curves.items()}

    def says_something_from(self, curve: str) -> int | None:
        """Return the first number of rounds at which a bound is below |grad f|^2 at the start, if any."""
        start = self.points[0].gradient
        return next((rounds for rounds, value in enumerate(self.curves[curve], 1) if value < start), None)


@dataclass(frozen=True)
class SoftmaxObjective:
    """The objective of a softmax layer on all devices' examples, in float64."""

    setup: RoundSetup
    prepare: Callable[[Tensor], Tensor]
    batch: Batch  # all devices' examples, device after device
    weights: Tensor  # float64 [M], the v_j: a device weighs 1/N, its examples share that
    smoothness: float
    moment: float  # upper bound of E |g|^2 for every model

    def at(self, theta: Tensor, rounds: int) -> MeasuredModel:
        """Return f, |grad f|^2 and E |g|^2 at a model."""
        loss, gradient = _loss(theta, _inputs(self.batch, self.prepare), self.batch.y, self.weights)
        square = float((gradient**2).sum())
        return MeasuredModel(rounds, loss, square, _moment(self.setup, self._mean_square(theta), square))

    def _mean_square(self, theta: Tensor) -> float:
        """Return mean_i |g_i|^2 over all devices, by the engine that trains."""
        federation = self.setup.federation
        ids = np.arange(federation.device_count)
        cohort = Cohort(ids, federation.sizes(ids), federation.gather)
        blocks = self.setup.engine(theta, cohort, LocalStep(1.0, 0.0))
        return sum(float((block.norms() ** 2).sum()) for block in blocks) / len(ids)


def objective(setup: RoundSetup, prepare: Callable[[Tensor], Tensor]) -> SoftmaxObjective:
    """Return the objective of a setup whose model is one softmax layer."""
    batch = setup.federation.gather(np.arange(setup.federation.device_count))
    sizes = torch.from_numpy(batch.sizes)
    weights = torch.repeat_interleave(1.0 / (len(sizes) * sizes.double()), sizes)
    largest, lengths = _spectrum(_inputs(batch, prepare), weights)
    per_device = torch.zeros(len(sizes), dtype=torch.float64).index_add_(
        0, torch.repeat_interleave(torch.arange(len(sizes)), sizes), lengths * weights * len(sizes)
    )
    device_squares = 2 * float((per_device**2).mean())
    moment = _moment(setup, device_squares, min(device_squares, 2 * largest))
    return SoftmaxObjective(setup, prepare, batch, weights, largest / 2, moment)


def _moment(setup: RoundSetup, device_squares: float, square: float) -> float:
    """Return E |g|^2 of the mean of n of N devices without replacement, from mean_i |g_i|^2 and |grad f|^2."""
    population, n = setup.federation.device_count, setup.federation.n
    phi = (population - n) / (n * (population - 1)) if population > 1 else 0.0
    return phi * device_squares + (1 - phi) * square


def _inputs(batch: Batch, prepare: Callable[[Tensor], Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield prepared examples with a 1 for the bias, float64 [m, p + 1], a chunk at a time, with where it begins."""
    for low in range(0, len(batch.x), CHUNK):
        x = prepare(batch.x[low : low + CHUNK]).flatten(1).double()
        yield low, torch.cat([x, x.new_ones(len(x), 1)], 1)


def _spectrum(chunks: Iterator[tuple[int, Tensor]], weights: Tensor) -> tuple[float, Tensor]:
    """Return lambda_max(sum_j v_j x_j x_j^T), and every |x_j|_2 [M]."""
    total, lengths = torch.zeros(()), []
    for low, x in chunks:
        total = total + (x * weights[low : low + len(x), None]).T @ x
        lengths.append(torch.linalg.vector_norm(x, dim=1))
    return float(torch.linalg.eigvalsh(total)[-1]), torch.cat(lengths)


def _loss(theta: Tensor, chunks: Iterator[tuple[int, Tensor]], y: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Return sum_j v_j loss_j of a softmax layer and its gradient [classes, p + 1]; theta: weights, then biases."""
    loss, gradient = 0.0, torch.zeros(())
    for low, x in chunks:
        classes, label, v = len(theta) // x.shape[1], y[low : low + len(x), None], weights[low : low + len(x), None]
        layer = torch.cat([theta[:-classes].view(classes, -1), theta[-classes:, None]], 1).double()
        logs = torch.log_softmax(x @ layer.T, 1)
        loss -= float((v * logs.gather(1, label)).sum())
        residual = logs.exp().scatter_add(1, label, -torch.ones_like(v))
        gradient = gradient + (v * residual).T @ x
    return loss, gradient
