"""An outcome for a person: sentences, the cells of a table, and the config of the strongest attack."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

from rich.markup import escape
from rich.table import Table

from sparsefed import config as configs
from sparsefed.commands.tune.trials import AIMS, STEALTH, Trial, TuneResult
from sparsefed.core import toml
from sparsefed.results.numbers import percent, times


def sentences(outcome: TuneResult) -> list[str]:
    """The outcome in a few sentences, the most important first."""
    best, first = outcome.strongest, outcome.first
    count = Counter(trial.state for trial in outcome.trials)
    told = [f"{count[state]} {state}" for state in ("finished", "pruned", "refused") if count[state]]
    told += [f"{outcome.failed} interrupted, not counted"] if outcome.failed else []
    if best == first:
        found = "The search found nothing stronger than the parameters as given"
    else:
        found = f"Strongest: trial {best.number}, {_came_to(best)} (as given: {_came_to(first)})"
    params = ", ".join(f"{name} = {short(value)}" for name, value in best.params.items())
    return [
        f"{found}: {params}.",
        f"Trials ({AIMS[outcome.objective]}): {', '.join(told)}.",
        _rule(outcome),
    ]


def _rule(outcome: TuneResult) -> str:
    below = f"at most {100 * (STEALTH if outcome.stealth is None else outcome.stealth):g} points below the best of all"
    below += ", or no lower than with the parameters as given" if outcome.stealth is None else ""
    return {
        "both": f"Strongest is the highest attack accuracy among finished trials whose test accuracy is {below}.",
        "attack": "Strongest is the highest attack accuracy.",
        "damage": "Strongest is the lowest test accuracy; a model that did not converge counts as 0.",
    }[outcome.objective] + " Attack accuracy is the mean over the last epoch."


def _came_to(trial: Trial) -> str:
    """How a trial ended."""
    attack = "" if trial.attack_accuracy is None else f"attack accuracy {percent(trial.attack_accuracy)}, "
    return attack + (f"test accuracy {percent(trial.test_accuracy)}" if trial.converged else "did not converge")


def short(value: Any) -> str:
    """A value with the digits that matter."""
    return f"{value:.3g}" if isinstance(value, float) else toml.value(value)


def measured(trial: Trial) -> tuple[str, str, str]:
    """Attack accuracy, test accuracy, and the attackers' norm over the honest one, as cells of a table."""
    test = percent(trial.test_accuracy) if trial.converged else "DNC"
    return percent(trial.attack_accuracy), test, times(trial.norm_ratio)


def front_table(outcome: TuneResult) -> Table:
    """The trials that no other beats, the strongest attack first."""
    table = Table(title="Pareto front" if outcome.objective == "both" else "Best trials", title_justify="left")
    for heading in ("trial", "attack\naccuracy", "test\naccuracy", "attacker /\nhonest norm"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("parameters", overflow="fold")
    for trial in outcome.front:
        params = escape(" ".join(f"{name}={short(value)}" for name, value in trial.params.items()))
        style = "bold" if trial == outcome.strongest else ""
        table.add_row(str(trial.number), *measured(trial), params, style=style)
    return table


def config_text(outcome: TuneResult) -> str:
    """The config of the strongest attack, ready to be run, with what is known of it on top."""
    head = (line for sentence in sentences(outcome) for line in textwrap.wrap(sentence, 100))
    return "".join(f"# {line}\n" for line in head) + f"\n{toml.dumps(configs.dump(outcome.tuned))}\n"
