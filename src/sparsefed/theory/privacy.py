"""The guarantee of `dp_noise`: a real (epsilon, delta), or no guarantee and why. Nothing is trained or drawn.

**The claim.** User-level differential privacy (Dwork et al. 2006) of the sequence of models: one *device* has all its
data replaced by any other data (the number N of devices is public), and no one who sees every model can tell, but for
epsilon and delta. In round t the server releases the mean of n updates clipped to L_t, with noise sigma. One device
replaced moves a mean over n by at most 2 L_t / n, in units of the noise

    mu_t  =  2 L_t / (n sigma)             (the noise multiplier is 1 / mu_t)

Momentum, top-k and the learning rate come after the noise, and post-processing costs nothing.

**The sum over rounds.** Gaussian releases of mu_1, mu_2, ... are together exactly as revealing as one of
sqrt(sum mu_t^2) (Dong, Roth, Su 2022), also where a round depends on the ones before; the epsilon of one is known
exactly (Balle and Wang 2018). What is left is in which rounds a device can take part:

- `epoch`: once an epoch. The sum is over epochs, of the largest mu_t in each (a smaller last cohort included). Random
  order hides nothing here: no amplification is claimed.
- `uniform`: n of N afresh each round. The smaller of two bounds: amplification by sampling without replacement, in
  Renyi differential privacy (Wang, Balle, Kasiviswanathan 2019, Theorem 27), good for strong noise; and, good for weak
  noise, the most rounds a device takes part in but for a probability that is taken from delta (a binomial tail), in
  the worst of all rounds.

The numbers come from Google's `dp-accounting` (the extra `privacy`). Its two accountants differ on REPLACE_ONE: the one
for privacy loss distributions doubles the sensitivity by itself, the Renyi one does not. Here the 2 is in mu.

**Unusable updates.** A mean leaves out NaN and infinities and divides by what is left. With m updates in the mean, one
of them made unusable changes it by |mean of the others - u| / m, so by 2 L / m again: the claim stands if n is the
number that is kept. `dropped` is how many a round may lose; the claim is for data that lose no more.

**What the claim rests on.** The seed is secret: anyone who knows it can redraw the noise and the cohorts. Arithmetic is
of real numbers: floating-point noise leaks in its last bits (Mironov 2012), and Philox is not a cipher. A device's
update does not depend on another device's data but through the models: an attacker who is shown honest updates breaks
that. The claim is for the models, not for what is written beside them: norms, shares of clipped updates, accuracies.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING
from decimal import Context as Digits
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from sparsefed.core.errors import ConfigError, require
from sparsefed.core.federation import rounds_per_epoch
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Context
from sparsefed.defenses.dp_noise import dp_noise
from sparsefed.defenses.options import CommonOptions
from sparsefed.defenses.rule import assemble

LARGEST_DELTA = 1e-5
WEAK = 10.0  # at a larger epsilon one device may change a probability by a factor of 22 000 or more

# Rounds whose mu differs a little are accounted together, each at the larger mu: the Renyi curve of one mu takes 0.2 s.
_STEPS, _PER_OCTAVE = 12, 4
_LEAST_MU = 1e-5  # below, the curve's formulas lose all digits to cancellation


@dataclass(frozen=True)
class Guarantee:
    """The (epsilon, delta)-differential privacy of a device in the models of a run, and a sentence that states it."""

    epsilon: float | None  # None: no guarantee
    delta: float | None
    sentence: str


def no_guarantee(reason: str) -> Guarantee:
    return Guarantee(None, None, f"no guarantee: {reason}")


def usual_delta(population: int) -> float:
    """Return the default delta, N^-1.1 (McMahan et al. 2018), which is below 1/N; at most 1e-5."""
    return min(LARGEST_DELTA, math.pow(population, -1.1))


def guarantee(
    sigma: float,
    clip_norms: Sequence[float],
    *,
    cohort: int,
    population: int,
    sampling: str,
    dropped: int = 0,
    delta: float | None = None,
) -> Guarantee:
    """Return the guarantee of noise sigma on the mean of clipped updates, with the clip norm of each round.

    >>> guarantee(1.0, [5.0] * 2400, cohort=100, population=10_000, sampling="epoch").sentence[:33]
    'epsilon = 1.95 at delta = 1e-05: '
    >>> guarantee(0.0, [5.0] * 2400, cohort=100, population=10_000, sampling="epoch").sentence
    'no guarantee: sigma is 0, so there is no noise'
    """
    _check(sigma, clip_norms, cohort, population, delta)
    sizes = _sizes(sampling, len(clip_norms), cohort, population)
    reason = _without_noise(sigma, clip_norms) or _without_cohorts(sampling, sizes, dropped)
    if reason:
        return no_guarantee(reason)
    delta = usual_delta(population) if delta is None else delta
    mus = [2 * norm / ((n - dropped) * sigma) for norm, n in zip(clip_norms, sizes, strict=True)]
    epsilon = _EPSILONS[sampling](mus, cohort, population, delta)
    return Guarantee(epsilon, delta, _sentence(epsilon, delta))


def of_run(
    rule: str,
    params: Mapping[str, Any],
    *,
    cohort: int,
    population: int,
    sampling: str,
    lrs: Sequence[float],
    dropped: int = 0,
    delta: float | None = None,
) -> Guarantee:
    """Return the guarantee of a run, from its rule with all parameters (the defaults too) and lr(t) by round.

    >>> of_run("krum", {"f": 2}, cohort=100, population=10_000, sampling="epoch", lrs=[0.1]).sentence
    "no guarantee: only the rule dp_noise is accounted for, and this is 'krum'"
    """
    if rule != "dp_noise":
        return no_guarantee(f"only the rule dp_noise is accounted for, and this is '{rule}'")
    defense = assemble(rule, dp_noise, params)
    own = {parameter.name for parameter in parameters(dp_noise.__wrapped__)}
    frame = CommonOptions(**{name: value for name, value in params.items() if name not in own})
    on_update = params.get("placement") == "update"
    reason = _unaccounted(frame, on_update, params.get("k") is not None)
    if reason:
        return no_guarantee(reason)
    # Noise that is added after the learning rate covers an update already scaled by it.
    shortened = on_update and frame.mode == "uncompressed"
    norms = [defense.budget({}, Context(t, lr)) * (lr if shortened else 1.0) for t, lr in enumerate(lrs, start=1)]
    cohorts = {"cohort": cohort, "population": population, "dropped": dropped}
    return guarantee(params["sigma"], norms, sampling=sampling, delta=delta, **cohorts)


# --- when there is none ----------------------------------------------------------------------------------------------


def _without_noise(sigma: float, clip_norms: Sequence[float]) -> str | None:
    if sigma == 0:
        return "sigma is 0, so there is no noise"
    if any(math.isinf(norm) for norm in clip_norms):
        return "updates are not clipped, so that one device can move the mean as far as it likes"
    return None


def _without_cohorts(sampling: str, sizes: Sequence[int], dropped: int) -> str | None:
    if sampling not in _EPSILONS:
        return f"devices are sampled by '{sampling}', and only {' and '.join(sorted(_EPSILONS))} are accounted for"
    if min(sizes, default=1) <= dropped:
        return f"a round of {min(sizes)} devices may lose {dropped} unusable updates, and then no mean is left"
    return None


def _unaccounted(frame: CommonOptions, on_update: bool, topk: bool) -> str | None:
    """Return why a mean with noise in this frame is not the release that `guarantee` accounts for."""
    if frame.pre:
        return "pre-aggregation lets one device change the rows of others before the mean"
    if frame.clip == "quantile":
        return "the clip norm follows a quantile of the devices' norms, and that has no noise"
    if on_update and (topk or frame.rho > 0):
        remembers = "top-k's memory" if topk else "momentum"
        return (
            f"the noise is added after {remembers}, which carries updates without noise from round to round; "
            "placement = 'mean' has a guarantee"
        )
    return None


# --- epsilon, from mu of each round ----------------------------------------------------------------------------------


def _sizes(sampling: str, rounds: int, cohort: int, population: int) -> list[int]:
    """Return how many devices take part in each round; the last cohort of an epoch may be smaller."""
    if sampling != "epoch":
        return [cohort] * rounds
    turns = rounds_per_epoch(population, cohort)
    return [min(cohort, population - t % turns * cohort) for t in range(rounds)]


def _once_an_epoch(mus: Sequence[float], cohort: int, population: int, delta: float) -> float:
    turns = rounds_per_epoch(population, cohort)
    return _gaussian([max(mus[t : t + turns]) for t in range(0, len(mus), turns)], delta)


def _uniform(mus: Sequence[float], cohort: int, population: int, delta: float) -> float:
    return min(_amplified(mus, cohort, population, delta), _in_few_rounds(mus, cohort / population, delta))


def _gaussian(mus: Sequence[float], delta: float) -> float:
    """Return the exact epsilon of Gaussian releases that all include the device."""
    mu = math.hypot(*mus)
    if mu == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # where a probability rounds to 0, its logarithm is -inf, as intended
        return float(_library("dp_accounting").get_epsilon_gaussian(1 / mu, delta))


def _in_few_rounds(mus: Sequence[float], share: float, delta: float) -> float:
    """Return the epsilon of the m worst rounds; more include the device with a probability of at most delta / 2."""
    binomial = _library("scipy.stats").binom(len(mus), share)
    m = int(binomial.isf(delta / 2))
    return _gaussian(heapq.nlargest(m, mus), delta - float(binomial.sf(m)))


def _amplified(mus: Sequence[float], cohort: int, population: int, delta: float) -> float:
    """Return the epsilon of rounds that each draw their cohort without replacement, by Renyi differential privacy."""
    dp = _library("dp_accounting")
    accountant = _library("dp_accounting.rdp").RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for mu, count in Counter(_rounded_up(mus)).items():
        release = dp.GaussianDpEvent(1 / mu)
        accountant.compose(dp.SampledWithoutReplacementDpEvent(population, cohort, release), count)
    return float(accountant.get_epsilon(delta))


def _rounded_up(mus: Sequence[float]) -> list[float]:
    """Round each to the next of `_STEPS` values below the largest, or to the least of them."""
    most = max(mus, default=0.0)
    steps = [max(_LEAST_MU, most * 2 ** (-i / _PER_OCTAVE)) for i in range(_STEPS + 1)]
    return [min(step for step in steps if step >= mu) for mu in mus]


_EPSILONS: Mapping[str, Callable[[Sequence[float], int, int, float], float]] = {
    "epoch": _once_an_epoch,
    "uniform": _uniform,
}


# --- words -----------------------------------------------------------------------------------------------------------


def _sentence(epsilon: float, delta: float) -> str:
    shown = float(Digits(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(epsilon))  # rounded up
    weak = f"; above {WEAK:g}, that promises a device very little" if epsilon > WEAK else ""
    return (
        f"epsilon = {shown:g} at delta = {delta:.3g}: differential privacy of every model of the run, "
        f"should all data of one device be replaced, as long as the run's seed is secret{weak}"
    )


def _check(sigma: float, clip_norms: Sequence[float], cohort: int, population: int, delta: float | None) -> None:
    require(0 <= sigma < math.inf, f"sigma is {sigma}, but must be a number, 0 or larger")
    require(all(norm >= 0 for norm in clip_norms), "a clip norm is negative or NaN, but it is a length")
    require(1 <= cohort <= population, f"cohort is {cohort}, but must be between 1 and the population, {population}")
    require(delta is None or 0 < delta < 1, f"delta is {delta}, but it is a probability: choose 0 < delta < 1")


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError("the privacy accountant is not installed; run: pip install 'sparsefed[privacy]'") from error
