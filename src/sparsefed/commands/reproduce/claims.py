"""The paper's claims, judged: each is compared at every combination that it is about.

The rule, also shown with the results. With means a and b over the seeds and standard errors s_a, s_b (the sample's
standard deviation over the square root of the number of seeds), a claim that a is lower than b (by x)

    holds at a combination   if   b - a > x   and   b - a > sqrt(s_a^2 + s_b^2),   with at least 2 seeds on both sides
    (by a factor f: with f a and f s_a in the place of a and s_a);

`alike` within w holds if |a - b| + sqrt(s_a^2 + s_b^2) <= w, a bound if the mean is beyond it by more than its standard
error, `rises` if the last value is larger than the first in that sense and no step on the way goes back by more than
its standard error. A claim *holds* if it does at all its combinations, *holds in part* if at some, *does not hold here*
if at none. With one seed, or where runs are missing, it is *not tested*; where the runs were too short by the rules of
`training.py`, it is *too short to tell*. For attack accuracy, a model that did not converge is not compared with, and
its own claim does not hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from sparsefed.commands.reproduce import printed
from sparsefed.commands.reproduce.exhibit import BOUNDS, COMPARING, TRENDS, Claim, Exhibit, Paper, Pick
from sparsefed.commands.reproduce.grid import matches
from sparsefed.commands.reproduce.training import FAR, LITTLE, TrainingLength, Values
from sparsefed.results.measures import measure
from sparsefed.sweeps.ledger import Row

RULE = (
    "A claim holds at a combination if the difference of the means over seeds has the stated sign and size and exceeds "
    "the root of the sum of their squared standard errors, with at least 2 seeds on both sides; it holds if it does at "
    "every combination, in part if at some. One seed tests nothing. Where attack accuracies are compared, models that "
    "did not converge are left out. Where a comparison is decided within two standard errors by fewer than five seeds, "
    "whose spread is itself uncertain, it says so."
)
SHORT = (
    "Too short to tell: in fewer rounds than the paper's, the best model of that data set, without attackers or before "
    f"they had an effect, is more than {100 * FAR:.0f} points below what it reaches at the end of the paper's "
    f"schedule; or, of attack accuracies, none of those compared is {LITTLE:.0%} after less than half of the paper's "
    "rounds, and attacks grow round by round."
)

Verdict = Literal["holds", "holds in part", "does not hold here", "too short to tell", "not tested"]
HOLDS: Verdict = "holds"
PART: Verdict = "holds in part"
NOT: Verdict = "does not hold here"
TOO_SHORT: Verdict = "too short to tell"
UNTESTED: Verdict = "not tested"
MANY = 5  # seeds, whose spread can be relied on
LONG_ENOUGH = TrainingLength()
LONG: Mapping[Values, TrainingLength] = {}  # nothing is known to be too short


@dataclass(frozen=True)
class MetricEntry:
    """One metric at one combination, over the seeds."""

    values: Mapping[str, str]
    numbers: tuple[float, ...]  # one per seed
    runs: int = 0  # that are done
    lost: int = 0  # of these, how many did not converge
    exact: bool = False  # a formula's: one number is enough
    attack: str | None = None
    training: TrainingLength = LONG_ENOUGH

    @property
    def converged(self) -> bool:
        """Return whether more than half of the runs converged."""
        return 2 * self.lost < max(self.runs, 1)

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
    text: str
    too_short: bool = False


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and the comparisons behind it."""

    claim: Claim
    verdict: Verdict
    comparisons: tuple[ClaimComparison, ...]


def entries(
    rows: Sequence[Row],
    metric: str,
    exact: bool = False,
    expected: Sequence[Mapping[str, str]] = (),
    trained: Mapping[Values, TrainingLength] = LONG,
) -> list[MetricEntry]:
    """Return a metric by combination, in the order of the results; failed or missing runs have no number."""
    groups: dict[Values, list[Row]] = {tuple(values.items()): [] for values in expected}
    for row in rows:
        if row["role"] == "result":
            groups.setdefault(tuple(row["cell"].items()), []).append(row)
    every = (_entry(dict(values), group, metric, exact) for values, group in groups.items())
    return [replace(entry, training=trained.get(tuple(entry.values.items()), LONG_ENOUGH)) for entry in every]


def _entry(values: Mapping[str, str], group: Sequence[Row], metric: str, exact: bool) -> MetricEntry:
    done = [row["metrics"] for row in group if row["status"] == "done"]
    numbers = tuple(float(metrics[metric]) for metrics in done if metrics.get(metric) is not None)
    lost = sum(not metrics.get("converged", True) for metrics in done)
    return MetricEntry(values, numbers, len(done), lost, exact, group[0]["attack"] if group else None)


def judge(
    exhibit: Exhibit,
    rows: Sequence[Row],
    expected: Sequence[Mapping[str, str]] = (),
    trained: Mapping[Values, TrainingLength] = LONG,
    paper: Paper | None = None,
) -> list[Judged]:
    """Judge every claim of an exhibit; missing expected combinations leave it untested there."""
    exact, theirs = exhibit.kind == "formula", paper or Paper()
    return [_judged(claim, entries(rows, claim.metric, exact, expected, trained), theirs) for claim in exhibit.claims]


def _judged(claim: Claim, every: Sequence[MetricEntry], paper: Paper) -> Judged:
    there = [entry for entry in every if matches(entry.values, claim.at)]
    if claim.form in printed.FORMS:
        compared = printed.FORMS[claim.form](claim, there, paper.rows)
        beside = tuple(ClaimComparison(holds, text) for holds, text in compared)
        return Judged(claim, _verdict(beside), beside)
    forms = {COMPARING: _against_others, TRENDS: _along_axis, BOUNDS: _against_bound}
    compare = next(compare for names, compare in forms.items() if claim.form in names)
    comparisons = tuple(compare(claim, there))
    return Judged(claim, _verdict(comparisons), comparisons)


def _verdict(compared: Sequence[ClaimComparison]) -> Verdict:
    tested = [each.holds for each in compared if each.holds is not None]
    if not tested:
        return TOO_SHORT if any(each.too_short for each in compared) else UNTESTED
    if not any(tested):
        return NOT
    return HOLDS if all(tested) and len(tested) == len(compared) else PART


def _against_others(claim: Claim, there: Sequence[MetricEntry]) -> Iterator[ClaimComparison]:
    """Compare one value of an axis with the others, all else being equal."""
    subject: Pick = getattr(claim, claim.form)
    (axis,) = subject
    for own in there:
        if matches(own.values, subject):
            for rival in there:
                beside = _without(own, axis) == _without(rival, axis) and own.values[axis] != rival.values[axis]
                fit = rival.converged or not rival.numbers or not claim.metric.startswith("attack")
                if beside and fit and matches(rival.values, claim.than or {}):
                    yield _compared(claim, own, rival, axis)


def _compared(claim: Claim, own: MetricEntry, rival: MetricEntry, axis: str) -> ClaimComparison:
    write = measure(claim.metric).write
    text = f"{', '.join(own.values.values())}: {write(own.mean)} against {write(rival.mean)} ({rival.values[axis]})"
    if _too_short(claim, own, rival):
        return ClaimComparison(None, f"{text}: {TOO_SHORT}", too_short=True)
    if not own.converged and claim.metric.startswith("attack") and _tested(own, rival):
        return ClaimComparison(False, f"{text}: did not converge")
    if claim.form == "alike" and _tested(own, rival):
        gap, noise = _difference(own, rival)
        return ClaimComparison(abs(gap) + noise <= (claim.within or 0.0), text)
    return _ordered(claim, *((rival, own) if claim.form == "higher" else (own, rival)), text)


def _along_axis(claim: Claim, there: Sequence[MetricEntry]) -> Iterator[ClaimComparison]:
    """Follow the metric along an axis, all else being equal."""
    axis = claim.rises or claim.falls or ""
    lines: dict[tuple[str, ...], list[MetricEntry]] = {}
    for entry in there:
        lines.setdefault(tuple(_without(entry, axis).values()), []).append(entry)
    return (_trend(claim, axis, line) for line in lines.values() if len(line) > 1)


def _trend(claim: Claim, axis: str, line: Sequence[MetricEntry]) -> ClaimComparison:
    others = ", ".join(_without(line[0], axis).values())
    way = ", ".join(f"{entry.values[axis]}: {measure(claim.metric).write(entry.mean)}" for entry in line)
    text = f"{others}: {way}" if others else way
    rising = line if claim.form == "rises" else line[::-1]
    if _too_short(claim, *line):
        return ClaimComparison(None, f"{text}: {TOO_SHORT}", too_short=True)
    if _tested(*line):
        for one, other in itertools.pairwise(line):
            gap, noise = _difference(one, other)
            if (gap if claim.form == "rises" else -gap) < -noise:
                return ClaimComparison(False, f"{text}: goes back at {other.values[axis]}")
    return _ordered(claim, rising[0], rising[-1], text, line)


def _against_bound(claim: Claim, there: Sequence[MetricEntry]) -> Iterator[ClaimComparison]:
    """Compare every entry with a number."""
    limit = (claim.above or 0.0) if claim.below is None else claim.below
    bound = MetricEntry({}, (limit,), exact=True)
    for entry in there:
        text = f"{', '.join(entry.values.values())}: {measure(claim.metric).write(entry.mean)}"
        if _too_short(claim, entry):
            yield ClaimComparison(None, f"{text}: {TOO_SHORT}", too_short=True)
        else:
            yield _ordered(claim, *((bound, entry) if claim.below is None else (entry, bound)), text)


def _ordered(
    claim: Claim, low: MetricEntry, high: MetricEntry, text: str, line: Sequence[MetricEntry] = ()
) -> ClaimComparison:
    """Judge whether one entry is lower than another by as much as claimed; not tested if any of the line is not."""
    if not _tested(low, high, *line):
        missing = not all(entry.numbers for entry in (low, high, *line))
        return ClaimComparison(None, f"{text}: {'a run is missing' if missing else 'one seed'}, not tested")
    gap, noise = _difference(low, high, claim.factor)
    seeds = min((len(entry.numbers) for entry in (low, high) if not entry.exact), default=MANY)
    if claim.by < gap <= noise:  # the sign and size are right, but may be chance
        return ClaimComparison(False, f"{text}: within the spread of {seeds} seeds")
    if abs(gap - claim.by) < 2 * noise and seeds < MANY:
        text = f"{text}: by the spread of {seeds} seeds"
    return ClaimComparison(gap > claim.by, text)


def _too_short(claim: Claim, *several: MetricEntry) -> bool:
    """Return whether these entries were measured, but in runs that are too short to tell (see `training.py`)."""
    if not _tested(*several):
        return False
    if any(entry.training.undertrained for entry in several):
        return True
    early = all(entry.training.early and (entry.mean or 0.0) < LITTLE for entry in several)
    return early and claim.metric.startswith("attack")


def _tested(*several: MetricEntry) -> bool:
    return all(entry.mean is not None and entry.error is not None for entry in several)


def _difference(low: MetricEntry, high: MetricEntry, factor: float = 1.0) -> tuple[float, float]:
    """Return by how much one entry exceeds a multiple of the other, and the standard error of that."""
    gap = (high.mean or 0.0) - factor * (low.mean or 0.0)
    return gap, math.hypot(factor * (low.error or 0.0), high.error or 0.0)


def _without(entry: MetricEntry, axis: str) -> dict[str, str]:
    return {name: value for name, value in entry.values.items() if name != axis}
