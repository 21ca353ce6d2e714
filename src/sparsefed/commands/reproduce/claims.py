"""The paper's claims, judged: each is compared at every combination that it is about.

The rule, also shown with the results. With means a and b over the seeds and standard errors s_a, s_b (the sample's
standard deviation over the square root of the number of seeds), a claim that a is lower than b (by x)

    holds at a combination   if   b - a > x   and   b - a > sqrt(s_a^2 + s_b^2),   with at least 2 seeds on both sides
    (by a factor f: with f a and f s_a in the place of a and s_a);

`alike` within w holds if |a - b| + sqrt(s_a^2 + s_b^2) <= w, a bound if the mean is beyond it by more than its standard
error, `rises` if the last value is larger than the first in that sense and no step on the way goes back by more than
its standard error. A claim *holds* if it does at all its combinations, *holds in part* if at some, *does not hold here*
if at none. With one seed, or where runs are missing, it is *not tested*. For attack accuracy, a
model that did not converge is not compared with, and its own claim does not hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from sparsefed.commands.reproduce.exhibit import COMPARING, TRENDS, Claim, Exhibit, Pick
from sparsefed.commands.reproduce.grid import matches
from sparsefed.results.measures import measure
from sparsefed.sweeps.ledger import Row

RULE = (
    "A claim holds at a combination if the difference of the means over seeds has the stated sign and size and exceeds "
    "the root of the sum of their squared standard errors, with at least 2 seeds on both sides; it holds if it does at "
    "every combination, in part if at some. One seed tests nothing. Where attack accuracies are compared, models that "
    "did not converge are left out."
)

Verdict = Literal["holds", "holds in part", "does not hold here", "not tested"]
HOLDS: Verdict = "holds"
PART: Verdict = "holds in part"
NOT: Verdict = "does not hold here"
UNTESTED: Verdict = "not tested"


@dataclass(frozen=True)
class MetricEntry:
    """One metric at one combination, over the seeds."""

    values: Mapping[str, str]
    numbers: tuple[float, ...]  # one per seed
    converged: bool  # whether more than half of the runs did
    exact: bool = False  # a formula's: one number is enough
    attack: str | None = None

    @property
    def mean(self) -> float | None:
        return fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Return the sample's standard deviation; None with fewer than two seeds."""
        return stdev(self.numbers) if len(self.numbers) > 1 else None

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean; None if it cannot be known."""
        if self.exact:
            return 0.0
        return None if self.spread is None else self.spread / math.sqrt(len(self.numbers))


@dataclass(frozen=True)
class ClaimComparison:
    """A claim at one combination; `holds` is None if it was not tested."""

    holds: bool | None
    told: str


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and the comparisons behind it."""

    claim: Claim
    verdict: Verdict
    comparisons: tuple[ClaimComparison, ...]


def entries(
    rows: Sequence[Row], metric: str, exact: bool = False, expected: Sequence[Mapping[str, str]] = ()
) -> list[MetricEntry]:
    """Return a metric by combination, in the order of the results; failed or missing runs have no number."""
    groups: dict[tuple[str, ...], list[Row]] = {tuple(values.values()): [] for values in expected}
    named = {tuple(values.values()): values for values in expected}
    for row in rows:
        if row["role"] == "result":
            groups.setdefault(tuple(row["cell"].values()), []).append(row)
    return [_entry(group, metric, exact) if group else MetricEntry(named[n], (), False) for n, group in groups.items()]


def _entry(group: Sequence[Row], metric: str, exact: bool) -> MetricEntry:
    done = [row["metrics"] for row in group if row["status"] == "done"]
    numbers = tuple(float(found[metric]) for found in done if found.get(metric) is not None)
    lost = sum(not found.get("converged", True) for found in done)
    return MetricEntry(group[0]["cell"], numbers, 2 * lost < max(len(done), 1), exact, group[0]["attack"])


def judge(exhibit: Exhibit, rows: Sequence[Row], expected: Sequence[Mapping[str, str]] = ()) -> list[Judged]:
    """Judge every claim of an exhibit; missing expected combinations leave it untested there."""
    exact = exhibit.kind == "formula"
    return [_judged(claim, entries(rows, claim.metric, exact, expected)) for claim in exhibit.claims]


def _judged(claim: Claim, found: Sequence[MetricEntry]) -> Judged:
    there = [entry for entry in found if matches(entry.values, claim.at)]
    if claim.form in COMPARING:
        compared = list(_comparisons(claim, there))
    elif claim.form in TRENDS:
        compared = list(_trends(claim, there))
    else:
        compared = [_bounded(claim, entry) for entry in there]
    return Judged(claim, _verdict(compared), tuple(compared))


def _verdict(compared: Sequence[ClaimComparison]) -> Verdict:
    tested = [each.holds for each in compared if each.holds is not None]
    if not tested:
        return UNTESTED
    if not any(tested):
        return NOT
    return HOLDS if all(tested) and len(tested) == len(compared) else PART


# --- one value against others ----------------------------------------------------------------------------------------


def _comparisons(claim: Claim, found: Sequence[MetricEntry]) -> Iterator[ClaimComparison]:
    subject: Pick = getattr(claim, claim.form)
    (axis,) = subject
    for own in found:
        if matches(own.values, subject):
            rivals = [e for e in found if _beside(own, e, axis) and matches(e.values, claim.than or {})]
            if claim.metric.startswith("attack"):
                rivals = [rival for rival in rivals if rival.converged or not rival.numbers]
            yield from (_compared(claim, own, rival, axis) for rival in rivals)


def _beside(own: MetricEntry, other: MetricEntry, axis: str) -> bool:
    """Return whether two entries differ in that axis alone."""
    rest = [{a: v for a, v in entry.values.items() if a != axis} for entry in (own, other)]
    return rest[0] == rest[1] and own.values[axis] != other.values[axis]


def _compared(claim: Claim, own: MetricEntry, rival: MetricEntry, axis: str) -> ClaimComparison:
    told = f"{_named(own)}: {_written(claim, own)} against {_written(claim, rival)} ({rival.values[axis]})"
    if own.error is None or rival.error is None or own.mean is None or rival.mean is None:
        return ClaimComparison(None, f"{told}: {_why(own, rival)}")
    if not own.converged and claim.metric.startswith("attack"):
        return ClaimComparison(False, f"{told}: did not converge")
    if claim.form == "alike":
        gap, noise = rival.mean - own.mean, math.hypot(own.error, rival.error)
        return ClaimComparison(abs(gap) + noise <= (claim.within or 0.0), told)
    low, high = (own, rival) if claim.form == "lower" else (rival, own)
    noise = math.hypot(claim.factor * (low.error or 0.0), high.error or 0.0)
    return _beyond((high.mean or 0.0) - claim.factor * (low.mean or 0.0), claim.by, noise, told)


def _beyond(gap: float, by: float, noise: float, told: str) -> ClaimComparison:
    if by < gap <= noise:  # the sign and size are right, but may be chance
        return ClaimComparison(False, f"{told}: within the spread")
    return ClaimComparison(gap > by, told)


# --- along an axis, and against a bound ------------------------------------------------------------------------------


def _trends(claim: Claim, found: Sequence[MetricEntry]) -> Iterator[ClaimComparison]:
    axis = claim.rises or claim.falls or ""
    lines: dict[tuple[str, ...], list[MetricEntry]] = {}
    for entry in found:
        lines.setdefault(tuple(value for name, value in entry.values.items() if name != axis), []).append(entry)
    return (_trend(claim, axis, line) for line in lines.values() if len(line) > 1)


def _trend(claim: Claim, axis: str, line: Sequence[MetricEntry]) -> ClaimComparison:
    sign = 1 if claim.form == "rises" else -1
    first, last = line[0], line[-1]
    way = ", ".join(f"{entry.values[axis]}: {_written(claim, entry)}" for entry in line)
    told = f"{_named(first, axis)}: {way}" if len(first.values) > 1 else way
    if any(entry.error is None or entry.mean is None for entry in line):
        return ClaimComparison(None, f"{told}: {_why(*line)}")
    whole = _beyond(sign * _gap(first, last), claim.by, _noise(first, last), told)
    for one, other in itertools.pairwise(line):
        if sign * _gap(one, other) < -_noise(one, other):
            return ClaimComparison(False, f"{told}: goes back at {other.values[axis]}")
    return whole


def _gap(one: MetricEntry, other: MetricEntry) -> float:
    return (other.mean or 0.0) - (one.mean or 0.0)


def _noise(one: MetricEntry, other: MetricEntry) -> float:
    return math.hypot(one.error or 0.0, other.error or 0.0)


def _bounded(claim: Claim, entry: MetricEntry) -> ClaimComparison:
    told = f"{_named(entry)}: {_written(claim, entry)}"
    if entry.error is None or entry.mean is None:
        return ClaimComparison(None, f"{told}: {_why(entry)}")
    if claim.below is not None:
        return _beyond(claim.below - entry.mean, 0.0, entry.error, told)
    return _beyond(entry.mean - (claim.above or 0.0), 0.0, entry.error, told)


# --- words -----------------------------------------------------------------------------------------------------------


def _named(entry: MetricEntry, without: str = "") -> str:
    return ", ".join(value for axis, value in entry.values.items() if axis != without)


def _written(claim: Claim, entry: MetricEntry) -> str:
    return measure(claim.metric).write(entry.mean)


def _why(*found: MetricEntry) -> str:
    if any(not entry.numbers for entry in found):
        return "a run is missing, not tested"
    return "one seed, not tested"
