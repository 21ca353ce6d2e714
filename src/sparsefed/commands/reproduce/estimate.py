"""How long the missing runs of exhibits will take, before they start.

Exhibits state the minutes of some scales, measured. For the others those of scale laptop are multiplied by the ratio of
the work: rounds times devices times parameters of the model. That is right to a factor of a few, enough to tell hours
from weeks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefed.commands.reproduce.exhibit import Exhibit, ScaleName
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.load import load
from sparsefed.config import Config
from sparsefed.config.lookup import function
from sparsefed.core.dtypes import has_bfloat16
from sparsefed.models import MODELS, model_info
from sparsefed.models.outline import outline
from sparsefed.results.numbers import duration
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.cells import SweepCell
from sparsefed.sweeps.plan import CellGroup, CellSlot, SweepPlan

STATED = 2  # cores that the exhibits' own minutes are for
# Cpu seconds of a round in float32 over those in bfloat16: cnn 2.4 to 3.2, ResNet9 of width 16 2.5 to 3.0.
IN_FLOAT32 = 2.8


class MissingRuns(NamedTuple):
    """The runs of some exhibits that have no result yet."""

    runs: int
    rounds: int
    seconds: float  # with so many at a time; 0: unknown

    @property
    def sentence(self) -> str:
        if not self.runs:
            return "No run is missing."
        took = f"about {duration(self.seconds)}, very roughly" if self.seconds else "how long is not known"
        return f"{self.runs} runs are missing, {self.rounds:,} rounds in all: {took}."


def stated_minutes(exhibit: Exhibit, scale: ScaleName) -> float | None:
    """Return the minutes that a scale states, on this processor: stated are those of one that has bfloat16."""
    here, minutes = exhibit.scales[scale], exhibit.scales[scale].est_minutes
    dtype = {**exhibit.common.get("train", {}), **here.set.get("train", {})}.get("dtype")
    return minutes and minutes * (IN_FLOAT32 if dtype == "bfloat16" and not has_bfloat16() else 1.0)


def estimate(names: Sequence[str], scale: str, out: Path, jobs: int) -> MissingRuns:
    """Return which runs of the exhibits are missing at a scale, and how long they will take."""
    keys: set[str] = set()
    rounds, seconds = 0, 0.0
    for exhibit in map(load, names):
        if exhibit.kind == "runs":
            cells = _missing(plan(exhibit, scale).sweep, out)
            missing = {cell.key: cell.config for cell in cells if cell.key not in keys}
            keys |= missing.keys()
            rounds += sum(config.rounds for config in missing.values())
            seconds += STATED / jobs * _seconds_of_work(exhibit, scale) * sum(map(_work, missing.values()))
    return MissingRuns(len(keys), rounds, seconds)


def _missing(sweep: SweepPlan, out: Path) -> Iterator[SweepCell]:
    """Yield the cells that neither a run folder nor any results file of this scale has; one may come twice."""
    ledger = results.Ledger(out, [sweep])
    known = results.slots(sweep, ledger)
    reported = {tuple(slot.values.items()) for slot in known if slot.role != "search"}
    unknown = (group for group in sweep.groups if tuple(group.values.items()) not in reported)
    for slot in (*known, *(slot for group in unknown for slot in _outcomes(group))):
        yield from ledger.wanting(sweep, slot)


def _slots(sweep: SweepPlan) -> Iterator[CellSlot]:
    for group in sweep.groups:
        yield from (*group.trials, *_outcomes(group))


def _outcomes(group: CellGroup) -> tuple[CellSlot, ...]:
    """Return the reported runs of a combination, as if the first variant of its attack were the strongest."""
    return group.outcomes(group.trials[0].attack if group.trials else None)


def _seconds_of_work(exhibit: Exhibit, scale: str) -> float:
    """Return the seconds of a unit of work, by this scale's minutes or the first that are stated; 0 if none are."""
    for name in sorted(exhibit.scales, key=lambda each: each != scale):
        if minutes := stated_minutes(exhibit, name):
            cells = {slot.cell.key: slot.cell for slot in _slots(plan(exhibit, name).sweep)}
            return 60 * minutes / sum(_work(cell.config) for cell in cells.values())
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
