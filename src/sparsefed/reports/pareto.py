"""The Pareto front of defenses: test accuracy against attack accuracy; dominated defenses are grey."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt

from sparsefed.reports.document import Table, TableCell, table
from sparsefed.reports.lines import GREY, MARKS, PALETTE, dressed, marks, share_axis, stairs
from sparsefed.results.matrix import Matrix
from sparsefed.results.numbers import percent, significant, tenths

TEST, ATTACK, DEFENSE = "Test accuracy", "Attack accuracy", "Defense"
KINDS = {"not beaten": (PALETTE[0], "circle"), "beaten in both": (GREY, "square")}
MOST_LABELS = 12  # names beside points; more would overlap
NEAR = (0.18, 0.05)  # of the axes: what a name takes, along and across
SAID = (
    "Down and to the right is better. Each defense stands at the worst of the attacks that all of them met: the "
    "highest attack accuracy and the lowest test accuracy. Grey: another is no worse in both, and better in one."
)


class Point(NamedTuple):
    """A defense by its test accuracy and the attack accuracy it lets through."""

    name: str
    test: float
    attack: float


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other dominates, by ascending test accuracy.

    >>> [p.name for p in front([Point("a", 0.9, 0.5), Point("b", 0.8, 0.1), Point("c", 0.8, 0.6)])]
    ['b', 'a']
    """
    kept = [p for p in points if not any(_beats(other, p) for other in points)]
    return sorted(kept, key=lambda p: (p.test, p.attack))


def _beats(one: Point, other: Point) -> bool:
    no_worse = one.test >= other.test and one.attack <= other.attack
    return no_worse and (one.test, one.attack) != (other.test, other.attack)


def worst_cases(matrix: Matrix) -> list[Point]:
    """Return each defense at the worst of the attacks that all of them met; empty if there is nothing to compare.

    A defense that met fewer attacks than another would look better for it, so attacks that not all met are left out.
    """
    met = {pair for pair, entry in matrix.attacked.items() if entry.test is not None}
    fit = [d for d in matrix.defenses if any((d, attack) in met for attack in matrix.hostile)]
    shared = [attack for attack in matrix.hostile if all((d, attack) in met for d in fit)]
    points = [point for defense in fit if (point := _worst(matrix, defense, shared)) is not None]
    return points if len(points) > 1 else []


def _worst(matrix: Matrix, defense: str, attacks: Sequence[str]) -> Point | None:
    entries = [matrix.entries[defense, attack] for attack in attacks]
    test = [entry.test for entry in entries if entry.test is not None]
    attack = [entry.attack for entry in entries if entry.attack is not None]
    return Point(defense, min(test), max(attack)) if test and attack else None


def fronts(matrices: Sequence[Matrix]) -> Iterator[alt.LayerChart]:
    """Yield a chart for each matrix that has defenses to choose from."""
    for matrix in matrices:
        if points := worst_cases(matrix):
            yield chart(points, f"What can be had{f' on {matrix.setting}' if matrix.setting else ''}")


def chart(points: Sequence[Point], title: str) -> alt.LayerChart:
    """Draw defenses by test and attack accuracy, with the front as stairs."""
    best = front(points)
    low, high = tenths([p.test for p in points])
    top = min(1.0, tenths([p.attack for p in points])[1] + 0.1)  # a name has room above its point
    x, y = alt.X(**share_axis(TEST, low, high)), alt.Y(**share_axis(ATTACK, 0, significant(top)))
    along = stairs([_datum(p, best) for p in best], PALETTE[0], "step-after").encode(order=alt.Order(f"{TEST}:Q"))
    dots = marks([_datum(p, best) for p in points], KINDS, size=90, opacity=1)
    names = _labels(points if len(points) <= MOST_LABELS else best[:MOST_LABELS], best, low, high)
    layers = [each.encode(x=x, y=y) for each in (along, dots, *names)]
    shares = (f"{p.name} with {percent(p.test)} test accuracy and {percent(p.attack)} attack accuracy" for p in best)
    subtitle = textwrap.wrap(f"Not beaten: {'; '.join(shares)}.", 100)
    return dressed(alt.LayerChart(layer=layers), alt.Title(title, subtitle=subtitle), list(KINDS), MARKS)


def numbers_table(points: Sequence[Point]) -> Table:
    """Return the points as a table, for readers who cannot see the chart."""
    best = front(points)
    rows = (
        (p.name, TableCell(percent(p.test), p.test), TableCell(percent(p.attack), p.attack), _kind(p, best))
        for p in points
    )
    return table("Defenses at their worst", (DEFENSE, TEST, ATTACK, ""), rows)


def groups(points: Sequence[Point], width: float) -> list[list[Point]]:
    """Group points whose names would overlap, each group from left to right; `width` is the axis's.

    >>> near = groups([Point("b", 0.82, 0.9), Point("c", 0.8, 0.2), Point("a", 0.8, 0.9)], 0.5)
    >>> [[point.name for point in group] for group in near]
    [['c'], ['a', 'b']]
    """
    grouped: list[list[Point]] = []
    for point in sorted(points, key=lambda p: p.test):
        for group in grouped:
            if any(
                abs(point.test - p.test) < NEAR[0] * width and abs(point.attack - p.attack) < NEAR[1] for p in group
            ):
                group.append(point)
                break
        else:
            grouped.append([point])
    return grouped


def _labels(points: Sequence[Point], best: Sequence[Point], low: float, high: float) -> Iterator[alt.Chart]:
    """Yield names beside the points, on the side that has room; names that would overlap are merged."""
    for group in groups(points, high - low):
        left = group[-1].test < (low + high) / 2
        named = (group[-1] if left else group[0])._replace(name=", ".join(point.name for point in group))
        data = alt.Chart(alt.InlineData(values=[_datum(named, best)])).encode(text=alt.Text(f"{DEFENSE}:N"))
        # To avoid overlaps, names to the left of their points are lower, but not on the axis.
        place: dict[str, Any] = {"align": "left", "dx": 8, "dy": -8} if left else {"align": "right", "dx": -8, "dy": 3}
        yield data.mark_text(baseline="bottom", fontSize=12, limit=400, **place)


def _datum(point: Point, best: Sequence[Point]) -> dict[str, str | float]:
    shares = {TEST: significant(point.test), ATTACK: significant(point.attack)}
    return {DEFENSE: point.name, **shares, "kind": _kind(point, best)}


def _kind(point: Point, best: Sequence[Point]) -> str:
    return "not beaten" if point in best else "beaten in both"
