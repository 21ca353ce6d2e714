"""A measured convergence as a document: sentences, a table, and a chart with logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator
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
MOST_POINTS = 120  # of a line: evenly spaced on a logarithmic axis
RULES = (
    f"f is the mean over the devices of each one's mean loss. Least {GRADIENT} so far: among the models that were "
    "looked at, so no less than among all. Bounds are on the least of its expectations over the cohorts; a run is one "
    "draw. Measured: with each round's contraction δ, and with the largest E‖g‖² at the models that were looked at; it "
    "holds if neither is worse on the way. Nothing measured: δ = k/d and an E‖g‖² that no model exceeds. As printed: "
    "the paper's theorem with the least δ; its noise term is half of what its proof gives, and there are compressors "
    "for which it is exceeded."
)


def sentences(run: Convergence) -> list[str]:
    """Return the results in sentences, the most important first."""
    rounds, low, high = len(run.deltas), min(run.deltas), max(run.deltas)
    way, noise, memory = map(length, terms(run.measured, low, rounds))
    last = {name: length(curve[-1]) for name, curve in run.curves.items()}
    since = {name: run.says_something_from(name) for name in ("bound", "worst")}
    from_round = {name: "never" if first is None else f"from round {first:,} on" for name, first in since.items()}
    return [
        f"After {rounds:,} rounds the least {GRADIENT} is {last['least']}; the theorem says at most {last['bound']} "
        f"with what was measured, {last['worst']} with nothing measured.",
        f"A bound says something once it is below {GRADIENT} = {length(run.points[0].gradient)} at the start: "
        f"{from_round['bound']} with what was measured, {from_round['worst']} with nothing measured.",
        f"Known: smoothness ℓ = {length(run.proven.smoothness)}, f(θ₀) − f* ≤ {length(run.proven.gap)}, worst "
        f"contraction k/d = {length(worst_delta(run.d, run.k))}, E‖g‖² ≤ {length(run.proven.moment)} for every model. "
        f"Measured: δ from {length(low)} to {length(high)}, E‖g‖² ≤ {length(run.measured.moment)}.",
        f"Of the plain form of the bound, 2 (f(θ₀) − f*) / (γR) is {way}, the noise γℓσ² {noise}, and what the memory "
        f"holds back, 4 γ²ℓ²σ² (1 − δ) / δ² with the least δ, {memory}.",
    ]


def _rows(run: Convergence) -> Iterator[tuple[doc.TableCell, ...]]:
    """Yield the rows of the table under HEAD: at 1, 2, 5, 10, ... rounds, and at the last."""
    last = len(run.deltas)
    for done in dict.fromkeys([*map(int, log_ticks(1, last)), last]):
        values = (curve[done - 1] for curve in run.curves.values())
        yield doc.TableCell(f"{done:,}", done), *(doc.TableCell(length(value), value) for value in values)


def chart(run: Convergence) -> alt.LayerChart:
    """Draw the measured gradient and its bounds against the number of rounds."""
    last = len(run.deltas)
    even = sorted({round(last ** (i / MOST_POINTS)) for i in range(MOST_POINTS + 1)})
    looked = sorted({last, *(point.rounds + 1 for point in run.points[:-1])})
    values: list[dict[str, Any]] = [
        {"line": name, "rounds": r, "value": significant(curve[r - 1])}
        for name, curve in zip(HEAD[1:], run.curves.values(), strict=True)
        for r in (looked if name == HEAD[1] else even)
    ]
    low, high = (significant(f(v["value"] for v in values) * by) for f, by in ((min, 0.8), (max, 1.25)))
    x = alt.X("rounds:Q", title="Rounds (log)", **_log(1, max(last, 2)))
    y = alt.Y("value:Q", title=f"{GRADIENT} (log)", **_log(low, high))
    lines = alt.Chart(alt.InlineData(values=values)).mark_line(
        strokeWidth=2, clip=True, tooltip=alt.TooltipContent("data")
    )
    base = lines.encode(x=x, y=y, color=colours(STROKES), strokeDash=dashes(STROKES))
    ends = [length(run.curves[name][-1]) for name in ("least", "bound")]
    subtitle = f"Least {GRADIENT} measured {ends[0]}, bound {ends[1]} at the end."
    title = alt.Title("What the theorem promises, and what a run does", subtitle=subtitle)
    return dressed(alt.LayerChart(layer=[base, *_start(run, low, high)]), title, list(STROKES))


def _log(low: float, high: float) -> dict[str, Any]:
    return {
        "axis": alt.Axis(format="~s" if low >= 1 else "~g", values=log_ticks(low, high)),
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
    }


def _start(run: Convergence, low: float, high: float) -> list[alt.Chart]:
    """Draw a rule at the gradient of the first model; only below it is a bound informative."""
    value = significant(run.points[0].gradient)
    if not low < value < high:
        return []
    data = alt.Chart(alt.InlineData(values=[{"value": value, "label": "At the start", "rounds": 1}]))
    y = alt.Y("value:Q")
    rule = data.mark_rule(color="#7f7f7f", strokeWidth=1).encode(y=y)
    text = data.mark_text(align="left", dx=6, dy=-8, color=INK).encode(x="rounds:Q", y=y, text="label:N")
    return [rule, text]


def document(run: Convergence) -> doc.Document:
    """Return a measured convergence as a document."""
    news, *more = sentences(run)
    name = run.config.name or "a config"
    numbers = doc.table("The least gradient and its bounds", HEAD, _rows(run))
    notes = [*(doc.note(each, page_only=False) for each in more), doc.note(RULES)]
    caption = "Below the grey rule a bound says more than the first model does."
    again = doc.paragraph("Save the config and give it to ", doc.Code("sparsefed certify CONFIG --convergence"))
    looked = ((f"{p.rounds:,}", f"{p.loss:.4g}", length(p.gradient), length(p.moment)) for p in run.points)
    points = doc.table("The models that were looked at", ("After round", "f", GRADIENT, "E‖g‖²"), looked)
    parts = (
        doc.section("Summary", doc.paragraph(news, kind="verdict"), numbers, notes, terminal=True),
        doc.section("Curves", doc.Figure("convergence", chart(run), caption)),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(run.config))))),
        doc.section("How to run it again", again, doc.fold("The models that were looked at", points)),
    )
    rounds = f"{len(run.deltas):,} rounds of a softmax layer with top {run.k:,} of {run.d:,} in {name}."
    return doc.Document(f"SparseFed: convergence of {name}", rounds, parts, heading="SparseFed convergence")
