"""The result of a search: its trials, the nondominated ones, and the strongest. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from sparsefed.commands.tune.space import Space, with_params
from sparsefed.config import Config
from sparsefed.core.progress import Progress
from sparsefed.reports.result import Report
from sparsefed.results.numbers import percent
from sparsefed.results.summary import NOT_LEARNED

Objective = Literal["both", "attack", "damage"]
AIMS: Mapping[Objective, str] = {
    "both": "attack accuracy up, test accuracy kept",
    "attack": "attack accuracy up, whatever it costs",
    "damage": "test accuracy down",
}
STEALTH = 0.02  # the default loss of test accuracy up to which an attack counts as unnoticed
WARMUP = 5  # finished trials before any is pruned
GAP, SLACK = 0.1, 0.02  # a trial ends another if it is GAP ahead in one objective and at most SLACK behind


@dataclass(frozen=True)
class Trial:
    """One run of the search; accuracies are fractions, None where nothing was measured."""

    number: int
    params: Mapping[str, Any]
    state: Literal["finished", "pruned", "refused"]  # refused: by the attack, which does not take these parameters
    rounds: int = 0
    attack_accuracy: float | None = None  # mean over the last epoch
    test_accuracy: float | None = None
    norm_ratio: float | None = None  # attackers over honest devices
    converged: bool = True


@dataclass(frozen=True)
class TuneResult(Report, described_by="sparsefed.commands.tune.document"):
    """A search for the strongest attack, as far as it has run."""

    config: Config  # the one that was given
    space: Space
    objective: Objective
    stealth: float | None
    trials: tuple[Trial, ...]
    first: Trial  # of the parameters as given
    failed: int  # trials that were killed or interrupted; they are not counted

    @cached_property
    def finished(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.state == "finished")

    @cached_property
    def front(self) -> tuple[Trial, ...]:
        """Return the nondominated of the finished trials, the strongest attack first."""
        kept = [self.finished[i] for i in nondominated([values(trial, self.objective) for trial in self.finished])]
        return tuple(sorted(kept, key=lambda trial: values(trial, self.objective), reverse=True))

    @cached_property
    def strongest(self) -> Trial:
        return strongest(self.finished, self.first, self.objective, self.stealth)

    @property
    def tuned(self) -> Config:
        """Return the config of the strongest attack."""
        name = f"{self.config.name}-tuned" if self.config.name else "tuned"
        return with_params(self.config, self.strongest.params).model_copy(update={"name": name})

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each trial, in the form that `pandas.DataFrame` takes."""
        return [
            {key: value for key, value in vars(trial).items() if key != "params"}
            | {f"attack.{name}": trial.params.get(name) for name in self.space}
            | {"as_given": trial == self.first, "front": trial in self.front, "strongest": trial == self.strongest}
            for trial in self.trials
        ]


def values(trial: Trial, objective: Objective) -> tuple[float, ...]:
    """Return the values that the search maximises."""
    attack, test = (trial.attack_accuracy or 0.0, trial.test_accuracy or 0.0) if trial.converged else (0.0, 0.0)
    return {"both": (attack, test), "attack": (attack,), "damage": (-test,)}[objective]


def nondominated(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the positions of the nondominated points: no other is at least as high in all and higher in some.

    >>> nondominated([(0.9, 0.5), (0.8, 0.7), (0.8, 0.6), (0.9, 0.5)])
    [0, 1, 3]
    """

    def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        return one != other and all(a >= b for a, b in zip(one, other, strict=True))

    return [i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)]


def strongest(finished: Sequence[Trial], first: Trial, objective: Objective, stealth: float | None) -> Trial:
    """Return the strongest finished trial by the package's rule; among equals the stealthier, then the earlier."""

    def order(trial: Trial) -> tuple[float, ...]:
        attack, test = values(trial, "both")
        return *((-test, attack) if objective == "damage" else (attack, test)), -trial.number

    if objective != "both":
        return max(finished, key=order)
    tests = {trial.number: values(trial, "both")[1] for trial in finished}
    best = max(tests.values())
    floor = min(best - STEALTH, tests[first.number]) if stealth is None else best - stealth
    return max((trial for trial in finished if tests[trial.number] >= floor), key=order)


def outdone(now: tuple[float, ...], then: tuple[float, ...]) -> bool:
    """Return whether a trial with values `then` at some round was so far ahead that one with `now` is hopeless.

    >>> outdone((0.1, 0.86), (0.9, 0.85)), outdone((0.1, 0.86), (0.9, 0.80))
    (True, False)
    """
    ahead = [b - a for a, b in zip(now, then, strict=True)]
    return max(ahead) >= GAP and min(ahead) >= -SLACK


def progress(done: float, total: int, best: Trial | None, ended: Trial | None = None) -> Progress:
    """Return how far a search is: trials done, the best so far, and the one that has just ended."""
    best_so_far, line = _brief(best) if best else "–", ""
    if ended is not None:
        line = f"{_brief(ended) if ended.state == 'finished' else ended.state}; best {best_so_far}"
    return Progress("trials", done, total, fields={"best": best_so_far}, line=line, unit="trial")


def _brief(trial: Trial) -> str:
    attack = "" if trial.attack_accuracy is None else f"attack {percent(trial.attack_accuracy)} "
    return attack + (f"test {percent(trial.test_accuracy)}" if trial.converged else NOT_LEARNED)
