"""A choice of k as a document: sentences, tables and charts, and the numbers for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.choose_k.choice import KEPT, ChooseKResult, Probe, Stage
from sparsefed.commands.choose_k.k_charts import curve_chart, lost, probe_chart, when
from sparsefed.commands.choose_k.probes import FOLDER
from sparsefed.commands.choose_k.sampling import table_ks
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.results.numbers import percent
from sparsefed.theory.choice_of_k import ChosenK

PAGE, NUMBERS = "choose-k.html", "choose-k.json"
KNEE = (
    f"The knee is the smallest k of those whose test accuracy, unattacked, is within {100 * KEPT:g} point of the best "
    f"and which let the attack through by at most {100 * KEPT:g} point more than the best of those. One seed each: a "
    "difference of a few points can be chance."
)
PROBED = ("k", "Share of d", "Test accuracy", "Test accuracy, attacked", "Attack accuracy")
CURVE = (
    "The lower, the more of a round's update is applied at once; the further left, the fewer coordinates attackers can "
    "move. The band is the range of the samples; the upright lines are the k chosen, the paper's and the config's own."
)
RUNS = "Where test accuracy is flat, a smaller k costs nothing; attack accuracy says what it buys."


def document(outcome: ChooseKResult) -> doc.Document:
    """Return a choice of k as a document."""
    config, first = outcome.config, 2 if outcome.probes else 1
    name = config.name or "a config"
    lead = (
        f"{name}: {config.model.name} with {outcome.d:,} parameters, {config.data.name}, defense {config.defense.name}."
    )
    said = [doc.Paragraph((each,), "verdict" if i < first else "note") for i, each in enumerate(sentences(outcome))]
    drawn = [doc.Figure("lost", curve_chart(outcome), CURVE, _curve_table(outcome))]
    drawn += [doc.Figure("probes", probe_chart(outcome), RUNS)] if outcome.probes else []
    parts = (
        doc.section("Summary", said, terminal=True),
        doc.section("Curves", drawn, terminal=True),
        doc.section("Probe runs", [_probe_table(outcome)] if outcome.probes else [], terminal=True),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(config))))),
        doc.section("How to run it again", _again(outcome)),
    )
    return doc.Document(f"SparseFed: k for {name}", lead, parts, heading="SparseFed: the choice of k")


def sentences(outcome: ChooseKResult) -> list[str]:
    """Return the outcome in a few sentences, the most important first."""
    options, times = outcome.options, [when(stage) for stage in outcome.stages]
    first = (
        f"k = {outcome.k:,} ({percent(outcome.k / outcome.d)} of d = {outcome.d:,}) is the smallest k with which top-k "
        f"loses at most {lost(outcome, options.omega)} of the l1 mass of what it is given, on average over "
        f"{options.samples} samples, {' and '.join(times)}."
    )
    memory = [_memory(options.omega)] if not options.absolute and options.omega < 1 else []
    return [
        *(first, *([_knee_sentence(outcome)] if outcome.probes else [])),
        *(_stage_sentence(outcome, stage) for stage in outcome.stages),
        *(*memory, *([KNEE] if outcome.probes else [])),
    ]


def _stage_sentence(outcome: ChooseKResult, stage: Stage) -> str:
    def described(choice: ChosenK, what: str) -> str:
        return f"{choice.k:,} ({lost(outcome, choice.lost)} lost, {choice.selections:,} {what})"

    said = when(stage)
    printed = stage.printed
    anew = f"; as printed, with new samples in every turn, {described(printed, 'top-k')}" if printed else ""
    return (
        f"{said[0].upper()}{said[1:]}: the smallest k is {described(stage.chosen, 'sorts')}; by the paper's steps of "
        f"d/r, r = {outcome.epoch:,} rounds of an epoch, it is {described(stage.stepped, 'top-k')}{anew}."
    )


def _memory(omega: float) -> str:
    return (
        f"What is lost is not gone but waits in the memory, which at {percent(omega)} holds at most "
        f"{omega / (1 - omega):.3g} times the l1 mass that a round can bring (the paper's lemma, without momentum)."
    )


def _knee_sentence(outcome: ChooseKResult) -> str:
    best = outcome.knee
    if best is None:
        return "No probe run converged, so there is no knee."
    under = "" if best.attacked_test is None else f", attacked {percent(best.attacked_test)}"
    attack = "" if best.attack is None else f", attack accuracy {percent(best.attack)}"
    reached = f"k = {best.k:,}, test accuracy {percent(best.test)}{under}{attack}"
    return f"Knee of the probe runs ({best.rounds} rounds): {reached}."


def _curve_table(outcome: ChooseKResult) -> doc.Table:
    """Return a row for 1, 2 and 5 of each decade: k, its share of d, and what is lost at each stage, mean and range."""
    shown = [(k, i) for i, k in enumerate(outcome.stages[0].grid) if k in table_ks(outcome.d)]
    rows = ((*_k(outcome, k), *(_lost_cell(outcome, stage, i) for stage in outcome.stages)) for k, i in shown)
    head = ("k", "Share of d", *(f"Lost {when(stage)}" for stage in outcome.stages))
    return doc.table("What top-k loses of the l1 mass: mean (least–most) over the samples", head, rows)


def _k(outcome: ChooseKResult, k: int, *badges: str) -> tuple[doc.TableCell, doc.TableCell]:
    return doc.TableCell(f"{k:,}", k, badges=badges, strong=bool(badges)), doc.TableCell(
        f"{100 * k / outcome.d:.3g}%", k / outcome.d
    )


def _lost_cell(outcome: ChooseKResult, stage: Stage, i: int) -> doc.TableCell:
    low, high = (lost(outcome, values[i]).removesuffix("%") for values in (stage.low, stage.high))
    return doc.TableCell(f"{lost(outcome, stage.mean[i])} ({low}–{high})", stage.mean[i])


def _probe_table(outcome: ChooseKResult) -> doc.Table:
    rows = (
        (*_k(outcome, probe.k, *(["knee"] if probe == outcome.knee else [])), *_probe_cells(probe))
        for probe in outcome.probes
    )
    return doc.table("Probe runs: accuracy against k", PROBED, rows)


def _probe_cells(probe: Probe) -> tuple[doc.TableCell, doc.TableCell, doc.TableCell]:
    test = doc.TableCell(percent(probe.test) if probe.converged else "DNC", probe.test)
    return (
        test,
        doc.TableCell(percent(probe.attacked_test), probe.attacked_test),
        doc.TableCell(percent(probe.attack), probe.attack),
    )


def _again(outcome: ChooseKResult) -> Iterator[doc.Paragraph]:
    yield doc.paragraph(f"{NUMBERS}, beside this page, has all of the numbers.")
    chosen = f"sparsefed run CONFIG.toml --set defense.k={(outcome.knee.k if outcome.knee else outcome.k)}"
    yield doc.paragraph("A run with what was chosen: ", doc.Code(chosen), ".")
    if outcome.probes:
        yield doc.paragraph("The probe runs side by side: ", doc.Code(f"sparsefed report {FOLDER}"), ".")


# --- for programs ----------------------------------------------------------------------------------------------------


def files(outcome: ChooseKResult) -> dict[str, str]:
    """Return the files of a choice, by name."""
    return {PAGE: outcome.to_html(), NUMBERS: outcome.to_json()}


def numbers(outcome: ChooseKResult) -> dict[str, Any]:
    """Return everything but the config; equal configs and options give equal numbers."""
    best = outcome.knee
    return {
        "k": outcome.k,
        "paper_k": outcome.paper_k,
        "config_k": outcome.own_k,
        "d": outcome.d,
        "epoch": outcome.epoch,
        "asked": asdict(outcome.options),
        "stages": [_stage_numbers(stage) for stage in outcome.stages],
        "probes": [asdict(probe) for probe in outcome.probes],
        "knee": best.k if best else None,
    }


def _stage_numbers(stage: Stage) -> dict[str, Any]:
    chosen = {"chosen": stage.chosen, "paper_steps": stage.stepped, "paper_printed": stage.printed}
    choices = {name: each._asdict() if each else None for name, each in chosen.items()}
    return {"rounds": stage.rounds, **choices, "curve": _points(stage)}


def _points(stage: Stage) -> list[dict[str, Any]]:
    points = zip(stage.grid, stage.mean, stage.low, stage.high, strict=True)
    return [{"k": k, "mean": mean, "min": low, "max": high} for k, mean, low, high in points]
