"""The cost and benefit of one parameter of a defense, over runs that differ in it alone: k, and the clipping norm L."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

import altair as alt

from sparsefed.core.types import RunRecord
from sparsefed.reports.lines import HIGH, LOW, colours, dashes, dressed, log_scale, means, share_axis, stroke
from sparsefed.results.groups import facts, frozen, told_apart
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import finite, percent, significant
from sparsefed.results.summary import SummaryRow, attacked, summary

DIALS = {"k": "k, coordinates that a round changes", "clip_norm": "clip_norm, longest update"}
MEASURES: Mapping[str, Callable[[SummaryRow], float | None]] = {
    "Test accuracy": attrgetter("test_accuracy"),
    "Attack accuracy": attrgetter("attack_accuracy"),
}
MOST_CHARTS = 6  # per parameter
SHARE = "Share"


class Sweep(NamedTuple):
    """A group of runs that differ in one parameter (and the seed) alone."""

    dial: str  # its name, a key of DIALS
    name: str  # what is common to them
    rows: Mapping[float, Sequence[SummaryRow]]  # by its value, ascending; one row per seed


def sweeps(runs: Sequence[RunRecord], dial: str) -> list[Sweep]:
    """Return the groups of runs in which this parameter takes several values."""
    values = [finite((run.config.get("defense") or {}).get(dial)) for run in runs]
    fit = [i for i, value in enumerate(values) if value is not None and value > 0]
    others = {i: {key: v for key, v in facts(runs[i]).items() if key != f"defense.{dial}"} for i in fit}
    alike = [[i for i in fit if frozen(others[i]) == group] for group in dict.fromkeys(map(frozen, others.values()))]
    groups = [own for own in alike if len({values[i] for i in own}) > 1]
    rows = summary(runs)
    names = told_apart([(_pair(runs[own[0]]), others[own[0]]) for own in groups])
    return [
        Sweep(dial, name, {v: [rows[i] for i in own if values[i] == v] for v in sorted({values[i] or 0 for i in own})})
        for name, own in zip(names, groups, strict=True)
    ]


def tradeoffs(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """Draw a chart for each group of runs that differ in k, or in L, alone."""
    return {
        f"{dial.replace('_', '-')}-{i}": chart(sweep)
        for dial in DIALS
        for i, sweep in enumerate(sweeps(runs, dial)[:MOST_CHARTS], start=1)
    }


def chart(sweep: Sweep) -> alt.LayerChart:
    """Draw test and attack accuracy against the parameter: means over seeds, with bars from minimum to maximum."""
    points = list(_points(sweep))
    measured = {point["kind"] for point in points}
    looks = {kind: stroke(i) for i, kind in enumerate(MEASURES) if kind in measured}
    format = "~s" if max(sweep.rows) > 1000 else "~g"
    x = alt.X("at:Q", **log_scale(sweep.rows, f"{DIALS[sweep.dial]} (log)", format, grid=False))
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, color=colours(looks, "kind"))
    layers = means(base, alt.Y(**share_axis(SHARE)), strokeDash=dashes(looks, "kind"))
    shares = "; ".join(f"at {point['at']:g} {point['kind'].lower()} {percent(point[SHARE])}" for point in points)
    subtitle = textwrap.wrap(f"At the last evaluation, means over the seeds: {shares}.", 100)
    title = alt.Title(f"{DIALS[sweep.dial].split(',')[0]} for {sweep.name}", subtitle=subtitle)
    return dressed(alt.LayerChart(layer=layers), title, list(looks) or [SHARE])


def _points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for kind, accuracy in MEASURES.items():
        for value, rows in sweep.rows.items():
            if shares := [share for share in map(accuracy, rows) if share is not None]:
                numbers = {SHARE: fmean(shares), LOW: min(shares), HIGH: max(shares)}
                written = {key: significant(number) for key, number in numbers.items()}
                yield {"kind": kind, "at": value, **written, "seeds": len(shares)}


def _pair(run: RunRecord) -> str:
    kinds = {kind: (run.config.get(kind) or {}).get("name", "") for kind in ("defense", "attack")}
    return f"{kinds['defense']} under {kinds['attack']}" if attacked(run) else f"{kinds['defense']}, {NO_ATTACK}"
