"""The result of a sweep: one record per run, as a data frame, a page, JSON, or a chart with the spread of the seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sparsefed.core.errors import ConfigError, RunError, unknown
from sparsefed.reports import document as doc
from sparsefed.reports.lines import dressed, share_axis, stroke
from sparsefed.reports.result import Report
from sparsefed.results.measures import MEASURES, measure
from sparsefed.results.numbers import significant
from sparsefed.sweeps.ledger import Row

if TYPE_CHECKING:
    import altair as alt

NAME, SEED = "name", "seed"
SHOWN = ("test_accuracy", "attack_accuracy", "converged")  # on a page; records have every measure
ALL = "all runs"  # the line of a chart without colours


@dataclass(frozen=True)
class SweepResult(Report, described_by=__name__):
    """The runs of a sweep: the settings that distinguish them, and what was measured of each."""

    axes: tuple[str, ...]  # the keys of the grid, or "name"
    rows: tuple[Row, ...]  # as the results file has them
    problem: RunError | None = None  # a sentence about runs that failed

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per run: its settings, its seed, whether it is done, and its measures by name."""
        return [{**row["cell"], SEED: row[SEED], "status": row["status"], **row["metrics"]} for row in self.rows]

    def chart(self, x: str | None = None, y: str = "test_accuracy", colour: str | None = None) -> alt.LayerChart:
        """Draw a measure against a setting: the mean over the seeds, and their range as a band.

        Args:
            x: A setting of the sweep; by default the first.
            y: What was measured, by a name of `results.measures.MEASURES`.
            colour: Another setting, a line for each of its values.

        Returns:
            An Altair chart, which notebooks show and which can be saved.

        Raises:
            ConfigError: If a setting or measure has no such name, or was not measured.
        """
        import altair as alt

        x = x or self.axes[0]
        for key in (x, *([colour] if colour else [])):
            if key not in self.axes:
                raise ConfigError(unknown("setting of the sweep", key, self.axes))
        if y not in MEASURES:
            raise ConfigError(unknown("measure", y, MEASURES))
        points = list(self._points(x, y, colour))
        if not points:
            raise ConfigError(f"{y} was not measured in any run of this sweep")
        names = list(dict.fromkeys(point["line"] for point in points))
        scale = alt.Scale(domain=names, range=[stroke(i).color for i in range(len(names))])
        numeric = all(isinstance(point["x"], int | float) for point in points)
        across = alt.X(
            "x:Q" if numeric else "x:N", title=x, sort=None, scale=alt.Scale(zero=False) if numeric else None
        )
        title = measure(y).title
        up = share_axis("mean") | {"title": title} if measure(y).share else {"shorthand": "mean:Q", "title": title}
        base = alt.Chart(alt.InlineData(values=points)).encode(across, color=alt.Color("line:N", scale=scale))
        band = base.mark_area(opacity=0.2).encode(y="least:Q", y2="most:Q")
        line = base.mark_line(point=True, tooltip=alt.TooltipContent("data")).encode(y=alt.Y(**up))
        subtitle = "Mean over the seeds; the band is from the lowest to the highest."
        return dressed(alt.LayerChart(layer=[band, line]), alt.Title(f"{title} by {x}", subtitle=subtitle), names)

    def _points(self, x: str, y: str, colour: str | None) -> Iterator[dict[str, Any]]:
        """Yield a point per setting, averaged over its seeds and over whatever else was varied."""
        measured: dict[tuple[Any, str], list[float]] = {}
        for record in self.records():
            if record.get(y) is not None:
                line = f"{colour} = {record[colour]}" if colour else ALL
                measured.setdefault((record[x], line), []).append(float(record[y]))
        for (at, line), values in measured.items():
            low, mean, high = (significant(f(values)) for f in (min, fmean, max))
            yield {"x": at, "line": line, "mean": mean, "least": low, "most": high}


def document(result: SweepResult) -> doc.Document:
    """Return the table of all runs."""
    records = result.records()
    shown = [name for name in SHOWN if any(name in record for record in records)]
    head = [*result.axes, SEED, *(measure(name).title for name in shown)]
    lines = (
        [*(str(record[key]) for key in (*result.axes, SEED)), *(measure(n).write(record.get(n)) for n in shown)]
        for record in records
    )
    runs = doc.section("Runs", doc.table("Runs of the sweep", head, lines), terminal=True)
    return doc.Document("SparseFed sweep", f"{len(records)} runs.", (runs,))


def numbers(result: SweepResult) -> list[dict[str, Any]]:
    """Return the records, for programs."""
    return result.records()
