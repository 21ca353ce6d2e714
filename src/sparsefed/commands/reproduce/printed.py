"""Claims about printed numbers: ours against theirs by interval, and by the order of what is compared.

With our mean a over the seeds and their number b with its standard deviation s,

    `near` = m   holds at a combination   if   |a - b| <= m s,   or <= `within` where they print no deviation;
    `order` = axis   holds for two values of the axis   if   ours are in their order by more than our standard error,
                     wherever theirs differ by more than `by` and by more than the root of the sum of their s^2.

Both need two seeds of ours. A combination for which nothing is printed is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sparsefed.commands.reproduce.exhibit import Claim, PaperRow
from sparsefed.commands.reproduce.grid import matches
from sparsefed.results.measures import measure

if TYPE_CHECKING:
    from sparsefed.commands.reproduce.claims import MetricEntry

Compared = tuple[bool | None, str]  # whether it holds (None: not tested), and the comparison in words


def near(claim: Claim, there: Sequence[MetricEntry], printed: Sequence[PaperRow]) -> Iterator[Compared]:
    """Compare every entry with the number that was printed for it."""
    for entry in there:
        for row in _rows(claim, entry.values, printed):
            allowed = claim.within if row.spread is None else (claim.near or 0.0) * row.spread
            write = measure(claim.metric).write
            text = f"{_name(entry.values)}: {write(entry.mean)} against {row.as_printed}, ± {write(allowed)}"
            if entry.mean is None or entry.error is None:
                yield None, f"{text}: {'one seed' if entry.numbers else 'a run is missing'}, not tested"
            else:
                yield abs(entry.mean - float(row.value or 0)) <= (allowed or 0.0), text


def in_order(claim: Claim, there: Sequence[MetricEntry], printed: Sequence[PaperRow]) -> Iterator[Compared]:
    """Compare the order of every two values of an axis, all else being equal."""
    axis, write = claim.order or "", measure(claim.metric).write
    known = [(entry, row) for entry in there for row in _rows(claim, entry.values, printed)]
    for (one, first), (other, second) in itertools.combinations(known, 2):
        gap = float(second.value or 0) - float(first.value or 0)
        clear = abs(gap) > max(claim.by, math.hypot(first.spread or 0.0, second.spread or 0.0))
        if _but(axis, one.values) != _but(axis, other.values) or not clear:
            continue
        text = f"{_name(one.values)}: {write(one.mean)} against {write(other.mean)} ({other.values[axis]})"
        text += f", theirs {first.as_printed} against {second.as_printed}"
        if one.mean is None or other.mean is None or one.error is None or other.error is None:
            yield None, f"{text}: not tested"
        else:
            yield math.copysign(1, gap) * (other.mean - one.mean) > math.hypot(one.error, other.error), text


FORMS: Mapping[str, Callable[[Claim, Sequence[MetricEntry], Sequence[PaperRow]], Iterator[Compared]]] = {
    "near": near,
    "order": in_order,
}


def _rows(claim: Claim, values: Mapping[str, str], printed: Sequence[PaperRow]) -> list[PaperRow]:
    """Return the number printed for a combination, if there is one; the last of several."""
    rows = [row for row in printed if row.metric == claim.metric and matches(values, row.pick)]
    return [row for row in rows[-1:] if isinstance(row.value, float | int)]


def _but(axis: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name != axis}


def _name(values: Mapping[str, str]) -> str:
    return ", ".join(values.values())
