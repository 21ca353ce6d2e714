"""A measured convergence as a document: sentences, a table, and a chart with logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed.commands.certify.measured_convergence import Convergence
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.reports.lines import INK, Stroke, colours, dashes, dressed
from sparsefed.results.numbers import length, log_ticks, significant
from sparsefed.theory.convergence import terms, worst_delta

GRADIENT = "‖∇f‖²"
HEAD = ("Rounds", f"Least {GRADIENT} so far", "Bound, measured", "Bound, nothing measured", "As printed")
STROKES = {  # the columns of the table as lines
    HEAD[1]: Stroke("#009e73", (1, 0)),
    HEAD[2]: Stroke("#0072b2", (1, 0)),
    HEAD[3]: Stroke("#d55e00", (8, 3)),
    HEAD[4]: Stroke("#7f7f7f", (3, 2)),
}
START = "At the start"
MOST_POINTS = 120  # of a line: evenly spaced on a logarithmic axis
RULES = (
    f"f is the mean over the devices of each one's mean loss. Least {GRADIENT} so far: among the models that were "
    "looked at, so no less than among all. Bounds are on the least of its expectations over the cohorts; a run is one "
    "draw. Measured: with each round's contraction δ, and with the largest E‖g‖² at the models that were looked at; it "
    "holds if neither is worse on the way. Nothing measured: δ = k/d and an E‖g‖² that no model exceeds. As printed: "
    "the paper's theorem with the least δ; its noise term is half of what its proof gives, and there are compressors "
    "for which it is exceeded."
)


def sentences(found: Convergence) -> list[str]:
    """Return the results in sentences, the most important first."""
    rounds = len(found.deltas)
    way, noise, memory = terms(found.measured, min(found.deltas), rounds)
    return [
        f"After {rounds:,} rounds the least {GRADIENT} is {length(found.least[-1])}; the theorem says at most "
        f"{length(found.bound[-1])} with what was measured, {length(found.worst[-1])} with nothing measured.",
        _news(found),
        f"Known: smoothness ℓ = {length(found.proven.smoothness)}, f(θ₀) − f* ≤ {length(found.proven.gap)}, worst "
        f"contraction k/d = {length(worst_delta(found.d, found.k))}, E‖g‖² ≤ {length(found.proven.moment)} for every "
        f"model. Measured: δ from {length(min(found.deltas))} to {length(max(found.deltas))}, E‖g‖² ≤ "
        f"{length(found.measured.moment)}.",
        f"Of the plain form of the bound, 2 (f(θ₀) − f*) / (γR) is {length(way)}, the noise γℓσ² {length(noise)}, and "
        f"what the memory holds back, 4 γ²ℓ²σ² (1 − δ) / δ² with the least δ, {length(memory)}.",
    ]


def _news(found: Convergence) -> str:
    """Return the round from which each bound is below the gradient at the start, in a sentence."""
    start = f"{GRADIENT} = {length(found.points[0].gradient)} at the start"
    told = []
    for name, bound in (("with what was measured", found.bound), ("with nothing measured", found.worst)):
        first = found.says_something_from(bound)
        told.append(f"{'never' if first is None else f'from round {first:,} on'} {name}")
    return f"A bound says something once it is below {start}: {', '.join(told)}."


def curves(found: Convergence) -> Mapping[str, list[float]]:
    """Return the curves to draw, over the number of rounds 1, 2, ..."""
    return dict(zip(HEAD[1:], (found.least, found.bound, found.worst, found.as_printed), strict=True))


def _rows(found: Convergence) -> Iterator[tuple[doc.TableCell, ...]]:
    """Yield the rows of the table under HEAD: at 1, 2, 5, 10, ... rounds, and at the last."""
    last = len(found.deltas)
    for done in dict.fromkeys([*map(int, log_ticks(1, last)), last]):
        lines = (doc.TableCell(length(line[done - 1]), line[done - 1]) for line in curves(found).values())
        yield doc.TableCell(f"{done:,}", done), *lines


def chart(found: Convergence) -> alt.LayerChart:
    """Draw the measured gradient and its bounds against the number of rounds."""
    lines, last = curves(found), len(found.deltas)
    even = sorted({round(last ** (i / MOST_POINTS)) for i in range(MOST_POINTS + 1)})
    looked = sorted({last, *(point.rounds + 1 for point in found.points[:-1])})
    values: list[dict[str, Any]] = [
        {"line": name, "rounds": r, "value": significant(line[r - 1])}
        for name, line in lines.items()
        for r in (looked if name == HEAD[1] else even)
    ]
    low, high = (significant(f(v["value"] for v in values) * by) for f, by in ((min, 0.8), (max, 1.25)))
    x = alt.X("rounds:Q", title="Rounds (log)", **_log(1, max(last, 2)))
    y = alt.Y("value:Q", title=f"{GRADIENT} (log)", **_log(low, high))
    drawn = alt.Chart(alt.InlineData(values=values)).mark_line(
        strokeWidth=2, clip=True, tooltip=alt.TooltipContent("data")
    )
    base = drawn.encode(x=x, y=y, color=colours(STROKES), strokeDash=dashes(STROKES))
    return _dressed(alt.LayerChart(layer=[base, *_start(found, low, high)]), found)


def _log(low: float, high: float) -> dict[str, Any]:
    return {
        "axis": alt.Axis(format="~s" if low >= 1 else "~g", values=log_ticks(low, high)),
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
    }


def _start(found: Convergence, low: float, high: float) -> list[alt.Chart]:
    """Draw a rule at the gradient of the first model; only below it is a bound informative."""
    value = significant(found.points[0].gradient)
    if not low < value < high:
        return []
    data = alt.Chart(alt.InlineData(values=[{"value": value, "said": START, "rounds": 1}]))
    y = alt.Y("value:Q")
    rule = data.mark_rule(color="#7f7f7f", strokeWidth=1).encode(y=y)
    text = data.mark_text(align="left", dx=6, dy=-8, color=INK).encode(x="rounds:Q", y=y, text="said:N")
    return [rule, text]


def _dressed(drawn: alt.LayerChart, found: Convergence) -> alt.LayerChart:
    told = f"Least {GRADIENT} measured {length(found.least[-1])}, bound {length(found.bound[-1])} at the end."
    title = alt.Title("What the theorem promises, and what a run does", subtitle=told)
    return dressed(drawn, title, list(STROKES))


def document(found: Convergence) -> doc.Document:
    """Return a measured convergence as a document."""
    news, *more = sentences(found)
    name = found.config.name or "a config"
    numbers = doc.table("The least gradient and its bounds", HEAD, _rows(found))
    caption = "Below the grey rule a bound says more than the first model does."
    again = doc.paragraph("Save the config and give it to ", doc.Code("sparsefed certify CONFIG --convergence"))
    looked = ((f"{p.rounds:,}", f"{p.loss:.4g}", length(p.gradient), length(p.moment)) for p in found.points)
    points = doc.table("The models that were looked at", ("After round", "f", GRADIENT, "E‖g‖²"), looked)
    parts = (
        doc.section(
            "Summary",
            doc.paragraph(news, kind="verdict"),
            numbers,
            [doc.note(each, page_only=False) for each in more],
            doc.note(RULES),
            terminal=True,
        ),
        doc.section("Curves", doc.Figure("convergence", chart(found), caption)),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(found.config))))),
        doc.section("How to run it again", again, doc.fold("The models that were looked at", points)),
    )
    rounds = f"{len(found.deltas):,} rounds of a softmax layer with top {found.k:,} of {found.d:,} in {name}."
    return doc.Document(f"SparseFed: convergence of {name}", rounds, parts, heading="SparseFed convergence")
