"""What a search leaves behind: the config of the strongest attack, and a page with a chart of all trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefed import runs
from sparsefed.commands.tune.text import config_text, measured, sentences, short
from sparsefed.commands.tune.trials import AIMS, Trial, TuneResult, values
from sparsefed.reports.lines import MARKS, dressed, share_axis
from sparsefed.reports.markup import Html, code, element, folded, joined, note, table
from sparsefed.reports.shell import figure, figures, page, section
from sparsefed.results.numbers import tenths

if TYPE_CHECKING:
    import altair as alt

STRONGEST, PAGE = "strongest.toml", "tune.html"
TRIAL, ATTACK, TEST, NORMS = "Trial", "Attack accuracy", "Test accuracy", "Attacker norm\u00a0/ honest norm"
KINDS = {  # how a trial is drawn: colour, shape
    "strongest": ("#d55e00", "M0,-1.7L1.3,0L0,1.7L-1.3,0Z"),  # a diamond larger than Vega's own
    "front": ("#d55e00", "circle"),
    "as given": ("#009e73", "square"),
    "finished": ("#0072b2", "circle"),
    "pruned": ("#7f7f7f", "cross"),
}


def save(outcome: TuneResult, folder: Path) -> list[Path]:
    """Write the strongest attack as a config that can be run, and the page; say where."""
    return runs.write_all({folder / STRONGEST: config_text(outcome), folder / PAGE: html(outcome)})


def html(outcome: TuneResult) -> str:
    """The outcome as one page that works offline, in the looks of a report."""
    found, *rules = sentences(outcome)
    name, attack = outcome.config.name or "a config", outcome.config.attack
    front = _table("The trials that no other beats", outcome, outcome.front)
    lead = f"{len(outcome.trials)} trials of attack {attack.name if attack else ''} in {name}."
    again = element(
        "p",
        f"{STRONGEST}, beside this page, is the config above: ",
        element("code", f"sparsefed run {STRONGEST}"),
        " comes to the numbers of its trial.",
    )
    parts = [
        section("Summary", element("p", found, class_="verdict"), front, note(" ".join(rules))),
        section("Trials", figures([figure("trials", scatter(outcome), _read_for(outcome))])),
        section("All trials", folded("All trials", _table("All trials", outcome, outcome.trials))),
        section("Config", folded("Config of the strongest attack", code(config_text(outcome)))),
        section("How to run it again", again),
    ]
    return page(f"SparseFed: tuning {name}", lead, parts, heading="SparseFed tuning")


def _table(caption: str, outcome: TuneResult, trials: Sequence[Trial]) -> Html:
    """Trials in rows, a column for each parameter that was searched."""
    rows = ((_named(outcome, trial), *measured(trial), *_params(outcome, trial), _ended(trial)) for trial in trials)
    return table(caption, (TRIAL, ATTACK, TEST, NORMS, *outcome.space, "Ended"), rows, class_="numbers")


def _ended(trial: Trial) -> str:
    return f"pruned at round {trial.rounds}" if trial.state == "pruned" else trial.state


def _named(outcome: TuneResult, trial: Trial) -> Html:
    said = {"strongest": trial == outcome.strongest, "as given": trial == outcome.first}
    badges = (element("span", word, class_="badge") for word, holds in said.items() if holds)
    return joined([str(trial.number), *badges], "\u00a0")


def _params(outcome: TuneResult, trial: Trial) -> Iterator[str]:
    return (short(trial.params[name]) if name in trial.params else "–" for name in outcome.space)


def _read_for(outcome: TuneResult) -> str:
    better = "Lower" if outcome.objective == "damage" else "Up and to the right"
    lost = " Trials that did not converge stand at 0." if not all(trial.converged for trial in outcome.trials) else ""
    return f"{better} is better for the attackers. Pruned trials stand where they were stopped.{lost}"


def scatter(outcome: TuneResult) -> alt.LayerChart:
    """All trials: attack accuracy over test accuracy, or, where there is only the latter, over the trial's number."""
    import altair as alt

    points = [_point(outcome, trial) for trial in outcome.trials if trial.test_accuracy is not None]
    points.sort(key=lambda point: -list(KINDS).index(point["kind"]))  # what matters is drawn last, on top
    if outcome.objective == "damage":
        axis = alt.Axis(format="d", tickMinStep=1, tickCount=6)
        x, y = alt.X(f"{TRIAL}:Q", title=TRIAL, axis=axis), alt.Y(**share_axis(TEST))
    else:
        x = alt.X(**share_axis(TEST, *tenths([point[TEST] for point in points])))
        y = alt.Y(**share_axis(ATTACK))
    layers = [_marks(points).encode(x=x, y=y)]
    if outcome.objective == "both":
        front = [_point(outcome, trial) for trial in outcome.front]
        stairs = alt.Chart(alt.InlineData(values=front)).mark_line(
            color=KINDS["front"][0], strokeWidth=1, opacity=0.5, interpolate="step-before"
        )
        layers.insert(0, stairs.encode(x=x, y=y))
    title = alt.Title("What the search found", subtitle=f"{len(points)} trials: {AIMS[outcome.objective]}.")
    return dressed(alt.LayerChart(layer=layers), title, list(KINDS), MARKS)


def _marks(points: list[dict[str, Any]]) -> alt.Chart:
    import altair as alt

    kinds = [kind for kind in KINDS if any(point["kind"] == kind for point in points)]
    colors, shapes = (alt.Scale(domain=kinds, range=[KINDS[kind][i] for kind in kinds]) for i in range(2))
    marks = alt.Chart(alt.InlineData(values=points)).mark_point(
        filled=True, size=80, opacity=0.85, tooltip=alt.TooltipContent("data")
    )
    drawn: alt.Chart = marks.encode(color=alt.Color("kind:N", scale=colors), shape=alt.Shape("kind:N", scale=shapes))
    return drawn


def _point(outcome: TuneResult, trial: Trial) -> dict[str, Any]:
    """A trial as the chart and its tooltip know it."""
    kinds = {
        "strongest": trial == outcome.strongest,
        "as given": trial == outcome.first,
        "front": trial in outcome.front,
    }
    attack, test = values(trial, "both")
    told = {TRIAL: trial.number} | ({} if trial.attack_accuracy is None else {ATTACK: attack}) | {TEST: test}
    kind = next((kind for kind, holds in kinds.items() if holds), trial.state)
    return told | {name: short(value) for name, value in trial.params.items()} | {"kind": kind}
