"""A search as a document: sentences, the trials as tables and as a chart, and the config of the strongest attack."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed import trust
from sparsefed.commands.tune.trials import AIMS, STEALTH, Trial, TuneResult, values
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.reports.lines import MARKS, dressed, marks, share_axis, stairs
from sparsefed.results.numbers import percent, tenths, times
from sparsefed.results.summary import NOT_LEARNED

STRONGEST, PAGE = "strongest.toml", "tune.html"
TRIAL, ATTACK, TEST, NORMS = "Trial", "Attack accuracy", "Test accuracy", "Attacker norm\u00a0/ honest norm"
KINDS = {  # how a trial is drawn: colour, shape
    "strongest": ("#d55e00", "M0,-1.7L1.3,0L0,1.7L-1.3,0Z"),  # a diamond larger than Vega's own
    "front": ("#d55e00", "circle"),
    "as given": ("#009e73", "square"),
    "finished": ("#0072b2", "circle"),
    "pruned": ("#7f7f7f", "cross"),
}


def document(outcome: TuneResult) -> doc.Document:
    """Return a search as a document."""
    first, *rules = sentences(outcome)
    name, attack = outcome.config.name or "a config", outcome.config.attack
    lead = f"{len(outcome.trials)} trials of attack {attack.name if attack else ''} in {name}."
    again = doc.paragraph(
        f"{STRONGEST}, beside this page, is the config above: ",
        doc.Code(f"sparsefed run {STRONGEST}"),
        " comes to the numbers of its trial.",
    )
    front = _table("The trials that no other beats", outcome, outcome.front)
    more = doc.note(" ".join(rules), page_only=False)
    parts = (
        doc.section("Summary", doc.paragraph(first, kind="verdict"), front, more, terminal=True),
        doc.section("Trials", doc.Figure("trials", scatter(outcome), _read_for(outcome))),
        doc.section("All trials", doc.fold("All trials", _table("All trials", outcome, outcome.trials))),
        doc.section("Config", doc.fold("Config of the strongest attack", doc.Listing(config_text(outcome)))),
        doc.section("How to run it again", again),
    )
    return doc.Document(f"SparseFed: tuning {name}", lead, parts, heading="SparseFed tuning")


def sentences(outcome: TuneResult) -> list[str]:
    """Return the outcome in a few sentences, the most important first."""
    best, first = outcome.strongest, outcome.first
    count = Counter(trial.state for trial in outcome.trials)
    ended = [f"{count[state]} {state}" for state in ("finished", "pruned", "refused") if count[state]]
    ended += [f"{outcome.failed} interrupted, not counted"] if outcome.failed else []
    if best == first:
        result = "The search found nothing stronger than the parameters as given"
    else:
        result = f"Strongest: trial {best.number}, {_came_to(best)} (as given: {_came_to(first)})"
    params = ", ".join(f"{name} = {_short(value)}" for name, value in best.params.items())
    return [f"{result}: {params}.", f"Trials ({AIMS[outcome.objective]}): {', '.join(ended)}.", _rule(outcome)]


def _rule(outcome: TuneResult) -> str:
    below = f"at most {100 * (STEALTH if outcome.stealth is None else outcome.stealth):g} points below the best of all"
    below += ", or no lower than with the parameters as given" if outcome.stealth is None else ""
    return {
        "both": f"Strongest is the highest attack accuracy among finished trials whose test accuracy is {below}.",
        "attack": "Strongest is the highest attack accuracy.",
        "damage": "Strongest is the lowest test accuracy; a model that learned nothing counts as 0.",
    }[outcome.objective] + " Attack accuracy is the mean over the last epoch."


def _came_to(trial: Trial) -> str:
    attack = "" if trial.attack_accuracy is None else f"attack accuracy {percent(trial.attack_accuracy)}, "
    return attack + (f"test accuracy {percent(trial.test_accuracy)}" if trial.converged else NOT_LEARNED)


def _short(value: Any) -> str:
    """Return a value with the digits that matter."""
    return f"{value:.3g}" if isinstance(value, float) else toml.value(value)


def config_text(outcome: TuneResult) -> str:
    """Return the config of the strongest attack, ready to run, with comments on its results at the top."""
    undisturbed = replace(outcome, failed=0)  # the file is the same, whether the search was interrupted or not
    head = (line for sentence in sentences(undisturbed) for line in textwrap.wrap(sentence, 100))
    return "".join(f"# {line}\n" for line in head) + f"\n{toml.dumps(configs.dump(outcome.tuned))}\n"


def _table(caption: str, outcome: TuneResult, trials: Sequence[Trial]) -> doc.Table:
    """Return trials in rows, with a column for each parameter that was searched."""
    rows = (_cells(outcome, trial) for trial in trials)
    searched = (doc.Head(name, page_only=True) for name in outcome.space)
    ended, params = doc.Head("Ended", page_only=True), doc.Head("Parameters", left=True, terminal_only=True)
    return doc.table(caption, (TRIAL, ATTACK, TEST, NORMS, *searched, ended, params), rows)


def _cells(outcome: TuneResult, trial: Trial) -> list[doc.TableCell]:
    marked = {"strongest": outcome.strongest, "as given": outcome.first}
    badges = tuple(badge for badge, which in marked.items() if trial == which)
    ended = f"pruned at round {trial.rounds}" if trial.state == "pruned" else trial.state
    return [
        doc.TableCell(str(trial.number), trial.number, strong=trial == outcome.strongest),
        doc.TableCell(percent(trial.attack_accuracy), trial.attack_accuracy),
        doc.TableCell(percent(trial.test_accuracy) if trial.converged else NOT_LEARNED, trial.test_accuracy),
        doc.TableCell(times(trial.norm_ratio), trial.norm_ratio),
        *(doc.TableCell(_short(trial.params[name]) if name in trial.params else "–") for name in outcome.space),
        doc.TableCell(ended, badges=badges),
        doc.TableCell(" ".join(f"{name}={_short(value)}" for name, value in trial.params.items())),
    ]


def files(outcome: TuneResult) -> dict[str, str]:
    """Return the files of a search: a config that can be run, and the page."""
    trust.remember(configs.dump(outcome.tuned))
    return {STRONGEST: config_text(outcome), PAGE: outcome.to_html()}


# --- the chart -------------------------------------------------------------------------------------------------------


def _read_for(outcome: TuneResult) -> str:
    better = "Lower" if outcome.objective == "damage" else "Up and to the right"
    lost = " Trials that learned nothing stand at 0." if not all(trial.converged for trial in outcome.trials) else ""
    return f"{better} is better for the attackers. Pruned trials stand where they were stopped.{lost}"


def scatter(outcome: TuneResult) -> alt.LayerChart:
    """Draw all trials: attack accuracy over test accuracy, or, for damage, test accuracy over their numbers."""
    points = [_point(outcome, trial) for trial in outcome.trials if trial.test_accuracy is not None]
    points.sort(key=lambda point: -list(KINDS).index(point["kind"]))  # what matters is drawn last, on top
    if outcome.objective == "damage":
        axis = alt.Axis(format="d", tickMinStep=1, tickCount=6)
        x, y = alt.X(f"{TRIAL}:Q", title=TRIAL, axis=axis), alt.Y(**share_axis(TEST))
    else:
        x = alt.X(**share_axis(TEST, *tenths([point[TEST] for point in points])))
        y = alt.Y(**share_axis(ATTACK))
    layers = [marks(points, KINDS, size=80, opacity=0.85).encode(x=x, y=y)]
    if outcome.objective == "both":
        front = [_point(outcome, trial) for trial in outcome.front]
        layers.insert(0, stairs(front, KINDS["front"][0], "step-before").encode(x=x, y=y))
    title = alt.Title("What the search found", subtitle=f"{len(points)} trials: {AIMS[outcome.objective]}.")
    return dressed(alt.LayerChart(layer=layers), title, list(KINDS), MARKS)


def _point(outcome: TuneResult, trial: Trial) -> dict[str, Any]:
    """Return a trial as the data of the chart and its tooltip."""
    attack, test = values(trial, "both")
    measured = {TRIAL: trial.number} | ({} if trial.attack_accuracy is None else {ATTACK: attack}) | {TEST: test}
    kinds = {"strongest": [outcome.strongest], "as given": [outcome.first], "front": outcome.front}
    kind = next((kind for kind, trials in kinds.items() if trial in trials), trial.state)
    return measured | {name: _short(value) for name, value in trial.params.items()} | {"kind": kind}
