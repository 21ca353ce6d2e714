"""Numbers prepared for a reader: non-finite values become None, long curves are thinned, values are formatted.

>>> percent(0.8125), points(0.0312), points(-0.5), percent(None)
('81.2%', '3.1', '-50.0', '–')
>>> length(41234.5), length(1.234), perplexity(523.26), perplexity(4.567), times(12.34), times(0.5)
('41,200', '1.23', '523', '4.57', '12.3×', '0.50×')
>>> duration(7.25), duration(72), duration(7260), traffic(381464.0), traffic(None)
('7.2 s', '1 min 12 s', '2 h 1 min', '381 kB', '–')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Curve = Sequence[tuple[int, float]]  # (round, value), rounds ascending
MOST_DECADES = 8  # at most so many ticks where a logarithmic axis shows powers of ten alone


def finite(value: Any) -> float | None:
    """Return the value as a float if it is a finite number, else None (JSON has no NaN).

    >>> finite(2), finite(float("nan")), finite(None)
    (2.0, None, None)
    """
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def curve(rows: Iterable[Mapping[str, Any]], key: str) -> Curve:
    """Return the rounds in which `key` was measured and is finite, with its values."""
    points = ((int(row["round"]), finite(row.get(key))) for row in rows)
    return [(round, value) for round, value in points if value is not None]


def middle(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Return the median over the rounds in which `key` was measured; None if it was in none."""
    values = [value for _, value in curve(rows, key)]
    return median(values) if values else None


def binned(points: Curve, most: int) -> Curve:
    """Return at most `most` points, each the median of equally many neighbours; for curves that jitter."""
    width = max(1, math.ceil(len(points) / most))
    groups = (points[i : i + width] for i in range(0, len(points), width))
    return [(group[len(group) // 2][0], median(value for _, value in group)) for group in groups]


def picked(points: Curve, most: int) -> Curve:
    """Return at most `most` of the points themselves, evenly spaced, always including the last.

    >>> picked([(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)], most=3)
    [(1, 0.1), (3, 0.3), (5, 0.5)]
    """
    stride = math.ceil(len(points) / most) if points else 1
    return list(points[(len(points) - 1) % stride :: stride])


def significant(value: float, digits: int = 4) -> float:
    """Return the value rounded to some significant digits, so that a page carries no more than it shows."""
    return float(f"{value:.{digits}g}")


def tenths(shares: Sequence[float]) -> tuple[float, float]:
    """Return the tenths that enclose the shares, none of which is on an edge other than 0 or 1.

    >>> tenths([0.61, 0.7]), tenths([1.0])
    ((0.6, 0.8), (0.9, 1))
    """
    return max(0, math.floor(10 * min(shares) - 0.01) / 10), min(1, math.ceil(10 * max(shares) + 0.01) / 10)


def log_ticks(low: float, high: float) -> list[float]:
    """Return ticks at 1, 2 and 5 of each decade; over many decades only powers of ten, and then not all of them.

    >>> log_ticks(0.6, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    >>> log_ticks(0.5, 2e16)
    [1.0, 1000.0, 1000000.0, 1000000000.0, 1000000000000.0, 1000000000000000.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    apart = math.ceil(len(decades) / MOST_DECADES)
    decades = range(math.ceil(decades[0] / apart) * apart, decades[-1] + 1, apart)
    ticks = (significant(step * 10.0**decade) for decade in decades for step in steps)
    return [tick for tick in ticks if low <= tick <= high]


def shown(value: float | None, write: Callable[[float], str]) -> str:
    """Return the formatted value, or a dash for None."""
    return "–" if value is None else write(value)


@dataclass(frozen=True)
class NumberFormat:
    """A format of numbers, called with one: a dash for None, and a shorter format for large numbers."""

    small: str
    large: str = ""
    limit: float = math.inf  # from where on numbers are large
    scale: float = 1

    def __call__(self, value: float | None) -> str:
        form = self.large if self.large and value is not None and value >= self.limit else self.small
        return "–" if value is None else form.format(self.scale * value)


percent = NumberFormat("{:z.1f}%", scale=100)  # a share; z: no minus before a zero
points = NumberFormat("{:z.1f}", scale=100)  # a difference of two shares, in percentage points
perplexity = NumberFormat("{:.3g}", "{:,.0f}", limit=100)
times = NumberFormat("{:.2f}×", "{:,.1f}×", limit=10)  # a ratio
whole, digits = NumberFormat("{:,.0f}"), NumberFormat("{:.3g}")
_seconds, _bytes = NumberFormat("{:.1f} s"), NumberFormat("{:.0f} B")


def plain(value: float | None) -> str:
    """Format a number of which nothing is known: a whole one as a count, another to three digits."""
    return whole(value) if value is not None and float(value).is_integer() else digits(value)


def length(value: float | None) -> str:
    """Format a norm or a distance, which may be of any size."""
    return digits(value) if value is None or value < 1000 else whole(significant(value, 3))


def duration(value: float | None) -> str:
    """Format a time in seconds."""
    if value is None or value < 59.95:
        return _seconds(value)
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def traffic(value: float | None) -> str:
    """Format a number of bytes."""
    if value is None or value < 1000:
        return _bytes(value)
    return f"{value / 1e3:.3g} kB" if value < 1e6 else f"{length(value / 1e6)} MB"
