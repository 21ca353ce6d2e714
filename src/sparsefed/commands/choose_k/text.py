"""An outcome for a person and for a program: sentences, tables, and a JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from sparsefed.commands.choose_k.choice import KEPT, ChooseKResult, Probe, Stage
from sparsefed.commands.choose_k.sampling import table_ks
from sparsefed.results.numbers import length, percent
from sparsefed.theory.choice_of_k import ChosenK

KNEE = (
    f"The knee is the smallest k of those whose test accuracy, unattacked, is within {100 * KEPT:g} point of the best "
    f"and which let the attack through by at most {100 * KEPT:g} point more than the best of those. One seed each: a "
    "difference of a few points can be chance."
)
PROBED = ("k", "Share of d", "Test accuracy", "Test accuracy, attacked", "Attack accuracy")


def sentences(outcome: ChooseKResult) -> list[str]:
    """The outcome in a few sentences, the most important first."""
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


def when(stage: Stage) -> str:
    """Which model was sampled."""
    return f"after {stage.rounds} round{'s' if stage.rounds > 1 else ''}" if stage.rounds else "at the start"


def lost(outcome: ChooseKResult, value: float) -> str:
    """What is lost, as a share or as a mass."""
    return length(value) if outcome.options.absolute else percent(value)


def _stage_sentence(outcome: ChooseKResult, stage: Stage) -> str:
    def told(choice: ChosenK, what: str) -> str:
        return f"{choice.k:,} ({lost(outcome, choice.lost)} lost, {choice.selections:,} {what})"

    said = when(stage)
    printed = f"; as printed, with new samples in every turn, {told(stage.printed, 'top-k')}" if stage.printed else ""
    return (
        f"{said[0].upper()}{said[1:]}: the smallest k is {told(stage.chosen, 'sorts')}; by the paper's steps of d/r, "
        f"r = {outcome.epoch:,} rounds of an epoch, it is {told(stage.stepped, 'top-k')}{printed}."
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
    return (
        f"Knee of the probe runs ({best.rounds} rounds): k = {best.k:,}, test accuracy {percent(best.test)}{under}"
        f"{attack}."
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def curve_rows(outcome: ChooseKResult) -> list[tuple[str, ...]]:
    """A row for 1, 2 and 5 of each decade: k, its share of d, and what is lost at each stage, mean and range."""
    shown = [(k, i) for i, k in enumerate(outcome.stages[0].grid) if k in table_ks(outcome.d)]
    return [
        (f"{k:,}", share_of(k, outcome.d), *(_cell(outcome, stage, i) for stage in outcome.stages)) for k, i in shown
    ]


def share_of(k: int, d: int) -> str:
    """A k as a share of all parameters."""
    return f"{100 * k / d:.3g}%"


def _cell(outcome: ChooseKResult, stage: Stage, i: int) -> str:
    low, high = (lost(outcome, values[i]).removesuffix("%") for values in (stage.low, stage.high))
    return f"{lost(outcome, stage.mean[i])} ({low}–{high})"


def curve_head(outcome: ChooseKResult) -> tuple[str, ...]:
    return ("k", "Share of d", *(f"Lost {when(stage)}" for stage in outcome.stages))


def curve_table(outcome: ChooseKResult) -> Table:
    """k against what is lost."""
    title = "What top-k loses of the l1 mass: mean (least–most) over the samples"
    return _table(title, curve_head(outcome), curve_rows(outcome))


def probe_rows(outcome: ChooseKResult) -> list[tuple[str, ...]]:
    return [
        (
            f"{probe.k:,}",
            share_of(probe.k, outcome.d),
            _test(probe),
            percent(probe.attacked_test),
            percent(probe.attack),
        )
        for probe in outcome.probes
    ]


def _test(probe: Probe) -> str:
    return percent(probe.test) if probe.converged else "DNC"


def probe_table(outcome: ChooseKResult) -> Table:
    """k against what probe runs came to, the knee marked."""
    marked = ("knee" if probe == outcome.knee else "" for probe in outcome.probes)
    rows = [(*row, mark) for row, mark in zip(probe_rows(outcome), marked, strict=True)]
    return _table("Probe runs", (*PROBED, ""), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in head:
        table.add_column(heading.lower(), justify="right")
    for row in rows:
        table.add_row(*row, style="bold" if row[-1] == "knee" else "")
    return table


# --- for programs ----------------------------------------------------------------------------------------------------


def as_json(outcome: ChooseKResult) -> str:
    """Everything but what is in the config; the same for the same question."""
    best = outcome.knee
    told = {
        "k": outcome.k,
        "paper_k": outcome.paper_k,
        "config_k": outcome.own_k,
        "d": outcome.d,
        "epoch": outcome.epoch,
        "asked": asdict(outcome.options),
        "stages": [_stage_json(stage) for stage in outcome.stages],
        "probes": [asdict(probe) for probe in outcome.probes],
        "knee": best.k if best else None,
    }
    return json.dumps(told, indent=2, allow_nan=False) + "\n"


def _stage_json(stage: Stage) -> dict[str, Any]:
    points = zip(stage.grid, stage.mean, stage.low, stage.high, strict=True)
    chosen = {"chosen": stage.chosen, "paper_steps": stage.stepped, "paper_printed": stage.printed}
    return {
        "rounds": stage.rounds,
        **{name: each._asdict() if each else None for name, each in chosen.items()},
        "curve": [{"k": k, "mean": mean, "min": low, "max": high} for k, mean, low, high in points],
    }
