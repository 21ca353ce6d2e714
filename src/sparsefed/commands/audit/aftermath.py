"""What the matrix of a suite does not show: the worst devices, who was rejected, and whether an attack lasts.

*Worst devices.* The last model's accuracy on each device's own examples; reported are the worst device and the mean of
the worst tenth. A defense can keep test accuracy and lose the devices that are unlike the others.

*Detection.* Of a rule that selects or weighs devices (`defenses.combine.accepted`): the share of attackers that it
rejected, and the share of honest devices that it rejected with them.

*Durability.* The attackers leave half way, and training goes on without them: attack accuracy when they left, and at
the end. A defense that lets an attack in may also let it fade.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit.defense_specs import UNDEFENDED
from sparsefed.commands.audit.findings import AuditResult, Detection, Durability, WorstDevices, load
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, cell_group
from sparsefed.config import BuiltSimulation
from sparsefed.core.dtypes import computed_in
from sparsefed.core.task import evaluator
from sparsefed.core.types import IndexArray, IntArray, RunRecord
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import curve
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import CellGroup, SweepPlan

NAME = "durability"
TENTH = 10


Doubles = npt.NDArray[np.float64]


def worst_devices(result: AuditResult) -> dict[tuple[str, str], WorstDevices]:
    """Return the worst devices' accuracy of every defense, without attackers and under its worst attack."""
    built = configs.build(result.config)
    if not built.task.target.has_classes:
        return {}
    pairs = [pair for pair in result.runs if pair[1] in (NO_ATTACK, result.worst.get(pair[0]))]
    measured = {pair: _devices(built, result.runs[pair][0]) for pair in pairs}
    return {pair: devices for pair, devices in measured.items() if devices is not None}


def _devices(built: BuiltSimulation, run: RunRecord) -> WorstDevices | None:
    state = None if run.folder is None else runs.load_state(run.folder)
    if state is None:
        return None
    federation = built.setup.federation
    evaluate = evaluator(built.task, computed_in(built.config.train.dtype, built.task.device))
    right = (evaluate(state.theta, federation.x, federation.y).predictions == federation.y).numpy()
    shares = by_device(right.astype(np.float64), federation.partition.examples, federation.partition.offsets)
    ranked = np.sort(shares)
    return WorstDevices(float(ranked[0]), float(ranked[: max(1, len(ranked) // TENTH)].mean()))


def by_device(right: Doubles, examples: IndexArray, offsets: IntArray) -> Doubles:
    """Return the share of each device's examples that are right.

    >>> by_device(np.array([1.0, 0.0, 1.0]), np.array([0, 1, 2]), np.array([0, 2, 3]))
    array([0.5, 1. ])
    """
    totals: Doubles = np.add.reduceat(right[examples], offsets[:-1])
    shares: Doubles = totals / np.diff(offsets)
    return shares


def detection(result: AuditResult) -> dict[tuple[str, str], Detection]:
    """Return how well every rule that selects devices told attackers from the others, by defense and attack."""
    every = {pair: rates([row for run in several for row in run.rows]) for pair, several in result.runs.items()}
    return {pair: each for pair, each in every.items() if each is not None}


def rates(rows: Sequence[Mapping[str, Any]]) -> Detection | None:
    """Return the shares of attackers and of honest devices that were rejected; None if the rule rejects nobody.

    >>> rates([{"cohort": 9, "attackers": 1, "attackers_rejected": 1, "honest_rejected": 2}])
    Detection(true_positives=1.0, false_positives=0.25)
    """
    told = [row for row in rows if "honest_rejected" in row]
    attackers, cohort = (sum(row[key] for row in told) for key in ("attackers", "cohort"))
    caught, wronged = (sum(row[f"{who}_rejected"] for row in told) for who in ("attackers", "honest"))
    honest = cohort - attackers
    return Detection(caught / attackers if attackers else None, wronged / honest if honest else None) if told else None


def durability_plan(result: AuditResult) -> SweepPlan:
    """Return the runs in which attackers leave half way: none and the recommended defense, targeted attacks."""
    return SweepPlan(NAME, tuple(_groups(result)))


def _groups(result: AuditResult) -> Iterator[CellGroup]:
    left = leaving(result.options)
    best = result.recommendation.name if result.recommendation else ""
    table = configs.dump(result.config)
    options = replace(result.options, config=configs.parse({**table, "threat": {**table["threat"], "stop": left}}))
    for spec in result.defenses.chosen:
        for attack in result.attacks.chosen if spec.name in (UNDEFENDED, best) else ():
            if attack.targeted and (spec.name, attack.name) in result.variants:
                own = attack.variant(result.variants[spec.name, attack.name])
                yield cell_group(spec.name, attack.name, options, spec.table, own, options.reported_seeds[:1])


def durability(rows: Sequence[Row], out: Path, options: AuditOptions) -> dict[tuple[str, str], Durability]:
    """Return attack accuracy when the attackers left and at the end, by defense and attack."""
    lasting = {}
    for row in rows:
        if row["status"] == "done":
            measured = dict(curve(load(row, out).rows, "attack_accuracy"))
            before = [value for t, value in measured.items() if t <= leaving(options)]
            if before:
                pair = row["cell"][DEFENSE], row["cell"][ATTACK]
                lasting[pair] = Durability(leaving(options), before[-1], measured[max(measured)])
    return lasting


def leaving(options: AuditOptions) -> int:
    """Return the last round of attackers who leave half way, at an evaluation if there is one before."""
    every, half = options.config.evaluate_every, max(1, options.config.rounds // 2)
    return max(half // every * every, min(half, every))
