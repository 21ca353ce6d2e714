"""A choice of k as a document: sentences, tables and charts, and the numbers for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed.commands.choose_k.choice import KEPT, ChooseKResult, LossAtK, Probe, Stage
from sparsefed.commands.choose_k.probes import FOLDER
from sparsefed.commands.choose_k.sampling import table_ks
from sparsefed.core import toml
from sparsefed.kernels.topk import coordinates
from sparsefed.reports import document as doc
from sparsefed.reports.lines import GREY, PALETTE, Stroke, colours, dashes, dressed
from sparsefed.results.numbers import length, log_ticks, percent, significant
from sparsefed.results.summary import NOT_LEARNED
from sparsefed.theory.choice_of_k import ChosenK

PAGE, NUMBERS = "choose-k.html", "choose-k.json"
KNEE = (
    f"The knee is the smallest k of those whose test accuracy, unattacked, is within {100 * KEPT:g} point of the best "
    f"and which let the attack through by at most {100 * KEPT:g} point more than the best of those. One seed each: a "
    "difference of a few points can be chance."
)
CURVE = (
    "The lower, the more of a round's update is applied at once; the further left, the fewer coordinates attackers can "
    "move. The band is the range of the samples; the upright lines are the k chosen, the paper's and the config's own."
)
RUNS = "Where test accuracy is flat, a smaller k costs nothing; attack accuracy says what it buys."
# Upright lines at the k's of the charts:
CHOSEN, PAPER, OWN = Stroke("#d55e00", (1, 0)), Stroke("#b5609a", (8, 3)), Stroke(GREY, (3, 2))
AT_KNEE = Stroke("#d55e00", (8, 3))
LINES = {  # of the probe runs
    "test accuracy, no attack": ("test", Stroke("#0072b2", (1, 0))),
    "test accuracy, attacked": ("attacked_test", Stroke("#0072b2", (8, 3))),
    "attack accuracy": ("attack", Stroke("#c2357a", (1, 0))),
}
STAGES = (PALETTE[0], PALETTE[2], PALETTE[4], PALETTE[5])


def document(outcome: ChooseKResult) -> doc.Document:
    """Return a choice of k as a document."""
    config = outcome.config
    name = config.name or "a config"
    lead = (
        f"{name}: {config.model.name} with {outcome.d:,} parameters, {config.data.name}, defense {config.defense.name}."
    )
    verdict, *rest = sentences(outcome)
    texts = [doc.paragraph(verdict, kind="verdict"), *(doc.note(each, page_only=False) for each in rest)]
    others = doc.fold("Other ways to choose k", alternatives(outcome), *map(doc.note, details(outcome)))
    figures = [doc.Figure("lost", curve_chart(outcome), CURVE, _curve_table(outcome))]
    figures += [doc.Figure("probes", probe_chart(outcome), RUNS)] if outcome.probes else []
    parts = (
        doc.section("Summary", texts, others, terminal=True),
        doc.section("Curves", figures, terminal=True),
        doc.section("Probe runs", [_probe_table(outcome)] if outcome.probes else [], terminal=True),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(config))))),
        doc.section("How to run it again", _again(outcome)),
    )
    return doc.Document(f"SparseFed: k for {name}", lead, parts, heading="SparseFed: the choice of k")


def sentences(outcome: ChooseKResult) -> list[str]:
    """Return the answer and where it comes from, in one or two sentences."""
    use = f"Use k = {outcome.answer:,} ({percent(outcome.answer / outcome.d)} of d = {outcome.d:,})"
    if not outcome.probes:
        return [f"{use}: {promise(outcome)}."]
    knee = f"{use}, the knee of the probe runs" if outcome.knee else use
    return [f"{knee}.", _knee_sentence(outcome.knee), f"By mass alone k = {outcome.k:,}: {promise(outcome)}."]


def promise(outcome: ChooseKResult) -> str:
    """Return what k by mass promises, as the end of a sentence."""
    most, samples = _lost(outcome, outcome.options.omega), outcome.options.samples
    where = " and ".join(map(_when, outcome.stages))
    return (
        f"it is the smallest with which top-k loses at most {most} of the l1 mass of what it is given, on average over "
        f"{samples} samples, {where}"
    )


def alternatives(outcome: ChooseKResult) -> doc.Table:
    """Return the k's that other rules give, beside the answer."""
    ks = {
        "smallest by mass (the answer without probe runs)": outcome.k,
        "the paper's algorithm, in steps of d/r": outcome.paper_k,
        "knee of the probe runs": outcome.knee.k if outcome.knee else None,
        "the config's own": outcome.own_k,
        "1 % of d": coordinates("1%", outcome.d),
    }
    rows = ((rule, *_k_cells(outcome, k)) for rule, k in ks.items() if k is not None)
    return doc.table("k by other rules", ("Rule", "k", "Share of d"), rows)


def details(outcome: ChooseKResult) -> list[str]:
    """Return what stands behind the answer, in sentences."""
    omega = outcome.options.omega
    memory = (
        f"What is lost is not gone but waits in the memory, which at {percent(omega)} holds at most "
        f"{omega / (1 - omega):.3g} times the l1 mass that a round can bring (the paper's lemma, without momentum)."
        if not outcome.options.absolute and omega < 1
        else ""
    )
    stages = (_stage_sentence(outcome, stage) for stage in outcome.stages)
    return [sentence for sentence in (*stages, memory, KNEE if outcome.probes else "") if sentence]


def _stage_sentence(outcome: ChooseKResult, stage: Stage) -> str:
    def described(choice: ChosenK, what: str) -> str:
        return f"{choice.k:,} ({_lost(outcome, choice.lost)} lost, {choice.selections:,} {what})"

    when, printed = _when(stage), stage.printed
    anew = f"; as printed, with new samples in every turn, {described(printed, 'top-k')}" if printed else ""
    return (
        f"{when[0].upper()}{when[1:]}: the smallest k is {described(stage.chosen, 'sorts')}; by the paper's steps of "
        f"d/r, r = {outcome.epoch:,} rounds of an epoch, it is {described(stage.stepped, 'top-k')}{anew}."
    )


def _knee_sentence(best: Probe | None) -> str:
    if best is None:
        return "No probe run converged, so there is no knee."
    attacked = "" if best.attacked_test is None else f", attacked {percent(best.attacked_test)}"
    attack = "" if best.attack is None else f", attack accuracy {percent(best.attack)}"
    reached = f"k = {best.k:,}, test accuracy {percent(best.test)}{attacked}{attack}"
    return f"Knee of the probe runs ({best.rounds} rounds): {reached}."


def _when(stage: Stage) -> str:
    return f"after {stage.rounds} round{'s' if stage.rounds > 1 else ''}" if stage.rounds else "at the start"


def _lost(outcome: ChooseKResult, value: float) -> str:
    """Return what is lost as text, as a share or as a mass."""
    return length(value) if outcome.options.absolute else percent(value)


def _curve_table(outcome: ChooseKResult) -> doc.Table:
    """Return a row for 1, 2 and 5 of each decade: k, its share of d, and what is lost at each stage, mean and range."""
    points = zip(*(stage.curve for stage in outcome.stages), strict=True)
    shown = [at_k for at_k in points if at_k[0].k in table_ks(outcome.d)]
    rows = ((*_k_cells(outcome, at_k[0].k), *(_lost_cell(outcome, each) for each in at_k)) for at_k in shown)
    head = ("k", "Share of d", *(f"Lost {_when(stage)}" for stage in outcome.stages))
    return doc.table("What top-k loses of the l1 mass: mean (least–most) over the samples", head, rows)


def _k_cells(outcome: ChooseKResult, k: int, *badges: str) -> tuple[doc.TableCell, doc.TableCell]:
    share = k / outcome.d
    return doc.TableCell(f"{k:,}", k, badges=badges, strong=bool(badges)), doc.TableCell(f"{100 * share:.3g}%", share)


def _lost_cell(outcome: ChooseKResult, point: LossAtK) -> doc.TableCell:
    low, high = (_lost(outcome, end).removesuffix("%") for end in (point.min, point.max))
    return doc.TableCell(f"{_lost(outcome, point.mean)} ({low}–{high})", point.mean)


def _probe_table(outcome: ChooseKResult) -> doc.Table:
    head = ("k", "Share of d", "Test accuracy", "Test accuracy, attacked", "Attack accuracy")
    rows = (
        (
            *_k_cells(outcome, probe.k, *(["knee"] if probe == outcome.knee else [])),
            doc.TableCell(percent(probe.test) if probe.converged else NOT_LEARNED, probe.test),
            *(doc.TableCell(percent(value), value) for value in (probe.attacked_test, probe.attack)),
        )
        for probe in outcome.probes
    )
    return doc.table("Probe runs: accuracy against k", head, rows)


def _again(outcome: ChooseKResult) -> Iterator[doc.Paragraph]:
    yield doc.paragraph(f"{NUMBERS}, beside this page, has all of the numbers.")
    chosen = f"sparsefed run CONFIG.toml --set defense.k={outcome.answer}"
    yield doc.paragraph("A run with what was chosen: ", doc.Code(chosen), ".")
    if outcome.probes:
        yield doc.paragraph("The probe runs side by side: ", doc.Code(f"sparsefed report {FOLDER}"), ".")


# --- the charts ------------------------------------------------------------------------------------------------------


def curve_chart(outcome: ChooseKResult) -> alt.LayerChart:
    """Draw what top-k loses against k: one line per stage, the range of its samples, and the k's to compare."""
    omega, absolute, own = outcome.options.omega, outcome.options.absolute, outcome.own_k
    marks = {f"chosen: {outcome.k:,}": (outcome.k, CHOSEN), f"paper: {outcome.paper_k:,}": (outcome.paper_k, PAPER)}
    marks |= {f"config: {own:,}": (own, OWN)} if own is not None and own <= outcome.d else {}
    limit, at_most = f"omega = {_lost(outcome, omega)}", _lost(outcome, omega)
    stages = {_when(stage): Stroke(STAGES[i % len(STAGES)], (1, 0)) for i, stage in enumerate(outcome.stages)}
    strokes = {**stages, limit: Stroke(GREY, (1, 2)), **{name: stroke for name, (_, stroke) in marks.items()}}
    look: dict[str, Any] = {"color": colours(strokes), "strokeDash": dashes(strokes)}
    x = _x([1, outcome.d])
    y = _y("Mass lost" if absolute else "Share of the l1 mass lost", share=not absolute)
    points = [_reading(stage, point) for stage in outcome.stages for point in stage.curve]
    bands = [  # without a legend, which would be as pale as the bands
        _chart([point for point in points if point["line"] == name])
        .mark_area(opacity=0.15, color=stroke.color)
        .encode(x=x, y="least:Q", y2="most:Q")
        for name, stroke in stages.items()
    ]
    lines = _chart(points).mark_line(strokeWidth=2).encode(x=x, y=y, **look)
    level = _chart([{"line": limit, "value": omega}]).mark_rule(strokeWidth=1.5).encode(y=y, **look)
    readable = _chart(points).mark_point(opacity=0, size=60, tooltip=alt.TooltipContent("data")).encode(x=x, y=y)
    layers = [*bands, lines, level, _rules(marks).encode(x=x, **look), readable]
    subtitle = f"k = {outcome.k:,} loses at most {at_most} at every model that was sampled."
    return _dressed(layers, "What top-k loses", subtitle, strokes)


def _reading(stage: Stage, point: LossAtK) -> dict[str, Any]:
    k, *values = point
    return {"line": _when(stage), "k": k} | dict(zip(("value", "least", "most"), map(significant, values), strict=True))


def probe_chart(outcome: ChooseKResult) -> alt.LayerChart:
    """Draw the results of the probe runs against k."""
    points = [
        {"line": name, "k": probe.k, "value": significant(value), name: percent(value)}
        for name, (key, _) in LINES.items()
        for probe in outcome.probes
        if (value := getattr(probe, key)) is not None
    ]
    ks, best = [probe.k for probe in outcome.probes], outcome.knee
    marks = {f"knee: {best.k:,}": (best.k, AT_KNEE)} if best else {}
    if min(ks) <= outcome.k <= max(ks):
        marks[f"chosen by mass: {outcome.k:,}"] = (outcome.k, CHOSEN)
    strokes = {name: stroke for name, (_, stroke) in LINES.items() if any(point["line"] == name for point in points)}
    strokes |= {name: stroke for name, (_, stroke) in marks.items()}
    x, y, color, dash = _x(ks), _y("Accuracy", share=True), colours(strokes), dashes(strokes)
    base = _chart(points).encode(x=x, y=y, color=color)
    dots = base.mark_point(filled=True, size=60, opacity=1, tooltip=alt.TooltipContent("data"))
    rules = _rules(marks).encode(x=x, color=color, strokeDash=dash)
    layers = [base.mark_line(strokeWidth=2).encode(strokeDash=dash), rules, dots]
    subtitle = f"The knee is at k = {best.k:,}." if best else "No run converged."
    return _dressed(layers, "What probe runs came to", subtitle, strokes)


def _chart(values: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=values))


def _rules(marks: Mapping[str, tuple[int, Stroke]]) -> alt.Chart:
    """Draw an upright line at each k that has a name."""
    rows = _chart([{"line": name, "k": k} for name, (k, _) in marks.items()])
    drawn: alt.Chart = rows.mark_rule(strokeWidth=1.5, tooltip=alt.TooltipContent("data"))
    return drawn


def _x(ks: Sequence[int]) -> alt.X:
    low, high = min(ks), max(ks)
    if low == high:  # a domain must not be empty
        low, high = max(1, low // 2), 2 * high
    axis = alt.Axis(format="~s", values=log_ticks(low, high), grid=False, labelFlush=False, labelOverlap=True)
    return alt.X("k:Q", title="k (log)", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False))


def _y(title: str, share: bool) -> alt.Y:
    if share:
        return alt.Y("value:Q", title=title, axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    return alt.Y("value:Q", title=title, axis=alt.Axis(format="~g"))


def _dressed(layers: Sequence[alt.Chart], title: str, subtitle: str, strokes: Mapping[str, Stroke]) -> alt.LayerChart:
    heading = alt.Title(title, subtitle=textwrap.wrap(subtitle, 100))
    return dressed(alt.LayerChart(layer=list(layers)), heading, list(strokes))


# --- for programs ----------------------------------------------------------------------------------------------------


def files(outcome: ChooseKResult) -> dict[str, str]:
    """Return the files of a choice, by name."""
    return {PAGE: outcome.to_html(), NUMBERS: outcome.to_json()}


def numbers(outcome: ChooseKResult) -> dict[str, Any]:
    """Return everything but the config; equal configs and options give equal numbers."""
    return {
        "answer": outcome.answer,
        "k": outcome.k,
        "paper_k": outcome.paper_k,
        "config_k": outcome.own_k,
        "d": outcome.d,
        "epoch": outcome.epoch,
        "asked": asdict(outcome.options),
        "stages": [_stage_numbers(stage) for stage in outcome.stages],
        "probes": [asdict(probe) for probe in outcome.probes],
        "knee": outcome.knee.k if outcome.knee else None,
    }


def _stage_numbers(stage: Stage) -> dict[str, Any]:
    chosen = {"chosen": stage.chosen, "paper_steps": stage.stepped, "paper_printed": stage.printed}
    choices = {name: each._asdict() if each else None for name, each in chosen.items()}
    return {"rounds": stage.rounds, **choices, "curve": [point._asdict() for point in stage.curve]}
