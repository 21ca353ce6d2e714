"""How long the missing runs of exhibits will take, before they start.

Exhibits state the minutes of some scales, measured. For the others they are multiplied by the ratio of the work: rounds
times devices times parameters of the model. That is right to a factor of a few, enough to tell hours from weeks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.load import load
from sparsefed.config import Config
from sparsefed.config.lookup import function
from sparsefed.models import MODELS, model_info
from sparsefed.models.outline import outline
from sparsefed.results.numbers import duration
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.plan import CellGroup, CellSlot, SweepPlan

STATED = 2  # cores that the exhibits' own minutes are for


class MissingRuns(NamedTuple):
    """The runs of some exhibits that have no result yet."""

    runs: int
    rounds: int
    seconds: float  # with so many at a time; 0: unknown

    @property
    def sentence(self) -> str:
        took = f"about {duration(self.seconds)}, very roughly" if self.seconds else "how long is not known"
        return f"{self.runs} runs are missing, {self.rounds:,} rounds in all: {took}."


def estimate(names: Sequence[str], scale: str, out: Path, jobs: int) -> MissingRuns:
    """Return which runs of the exhibits are missing at a scale, and how long they will take."""
    keys: set[str] = set()
    rounds, seconds = 0, 0.0
    for exhibit in map(load, names):
        if exhibit.kind == "runs":
            sweep = plan(exhibit, scale).sweep
            missing = [slot.cell for slot in _missing(sweep, out) if slot.cell.key not in keys]
            keys |= {cell.key for cell in missing}
            rounds += sum(cell.config.rounds for cell in missing)
            seconds += STATED / jobs * _seconds_of_work(exhibit) * sum(_work(cell.config) for cell in missing)
    return MissingRuns(len(keys), rounds, seconds)


def _missing(sweep: SweepPlan, out: Path) -> Iterator[CellSlot]:
    rows = [row for row in results.read(results.path(out, sweep)) if row["status"] == "done"]
    done = {_line(row["cell"], row["role"], row["attack"], row["seed"]) for row in rows}
    for slot in _slots(sweep):
        if _line(slot.values, slot.role, slot.attack, slot.seed) not in done:
            yield slot


def _slots(sweep: SweepPlan) -> Iterator[CellSlot]:
    """Yield the runs of a sweep, as if the first variant of every attack were the strongest."""
    for group in sweep.groups:
        yield from group.trials
        yield from group.outcomes(_first(group))


def _first(group: CellGroup) -> str | None:
    return group.trials[0].attack if group.trials else None


def _line(values: Mapping[str, str], role: str, attack: str | None, seed: int) -> tuple[object, ...]:
    """Return what identifies a line of results, whichever variant a search settled on."""
    return (*values.items(), role, attack if role == "search" else None, seed)


def _seconds_of_work(exhibit: Exhibit) -> float:
    """Return the seconds of a unit of work, by the first scale whose minutes are stated; 0 if none are."""
    for scale, each in exhibit.scales.items():
        if each.est_minutes is not None:
            cells = {slot.cell.key: slot.cell for slot in _slots(plan(exhibit, scale).sweep)}
            return 60 * each.est_minutes / sum(_work(cell.config) for cell in cells.values())
    return 0.0


def _work(config: Config) -> float:
    return config.rounds * config.train.cohort * _parameters(config.model.name, json.dumps(config.model.params))


@functools.cache
def _parameters(name: str, params: str) -> float:
    """Return the number of parameters of a model for its usual examples."""
    builder = function("model", name, MODELS)
    info = model_info(builder)
    module = outline(lambda: builder(info.shape, info.classes, **json.loads(params)))
    return float(sum(parameter.numel() for parameter in module.parameters()))
