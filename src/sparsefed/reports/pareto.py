"""The Pareto front of defenses: test accuracy against attack accuracy; dominated defenses are pale.

Names are in the legend, not beside the points: defenses that hold stand close together, where names would overlap.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import altair as alt

from sparsefed.reports.document import Table, TableCell, table
from sparsefed.reports.lines import GREY, MARKS, PALETTE, dressed, share_axis, stairs
from sparsefed.results.matrix import Matrix
from sparsefed.results.numbers import percent, significant, tenths

TEST, ATTACK, DEFENSE = "Test accuracy", "Attack accuracy", "Defense"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
SAID = (
    "Down and to the right is better. Each defense stands at the worst of the attacks that all of them met: the "
    "highest attack accuracy and the lowest test accuracy. Pale: another is no worse in both, and better in one."
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
    top = min(1.0, tenths([p.attack for p in points])[1])
    x, y = alt.X(**share_axis(TEST, low, high)), alt.Y(**share_axis(ATTACK, 0, significant(top)))
    along = stairs([_datum(p, best) for p in best], GREY, "step-after").encode(order=alt.Order(f"{TEST}:Q"))
    layers = [each.encode(x=x, y=y) for each in (along, _dots(points, best))]
    shares = (f"{p.name} with {percent(p.test)} test accuracy and {percent(p.attack)} attack accuracy" for p in best)
    subtitle = textwrap.wrap(f"Not beaten: {'; '.join(shares)}.", 100)
    names = [point.name for point in points]
    return dressed(alt.LayerChart(layer=layers), alt.Title(title, subtitle=subtitle), names, MARKS)


def _dots(points: Sequence[Point], best: Sequence[Point]) -> alt.Chart:
    """Draw each defense with a colour and a shape of its own; those not on the front are pale."""
    names = [point.name for point in points]
    shapes = [SHAPES[(i + i // len(PALETTE)) % len(SHAPES)] for i in range(len(names))]
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(names))]
    pale = alt.when("datum.kind == 'not beaten'").then(alt.value(1)).otherwise(alt.value(0.45))
    data = alt.Chart(alt.InlineData(values=[_datum(point, best) for point in points]))
    drawn: alt.Chart = data.mark_point(filled=True, size=110, tooltip=alt.TooltipContent("data")).encode(
        color=alt.Color(f"{DEFENSE}:N", scale=alt.Scale(domain=names, range=colours)),
        shape=alt.Shape(f"{DEFENSE}:N", scale=alt.Scale(domain=names, range=shapes)),
        opacity=pale,
    )
    return drawn


def numbers_table(points: Sequence[Point]) -> Table:
    """Return the points as a table, for readers who cannot see the chart."""
    best = front(points)
    rows = (
        (p.name, TableCell(percent(p.test), p.test), TableCell(percent(p.attack), p.attack), _kind(p, best))
        for p in points
    )
    return table("Defenses at their worst", (DEFENSE, TEST, ATTACK, ""), rows)


def _datum(point: Point, best: Sequence[Point]) -> dict[str, str | float]:
    shares = {TEST: significant(point.test), ATTACK: significant(point.attack)}
    return {DEFENSE: point.name, **shares, "kind": _kind(point, best)}


def _kind(point: Point, best: Sequence[Point]) -> str:
    return "not beaten" if point in best else "beaten in both"
