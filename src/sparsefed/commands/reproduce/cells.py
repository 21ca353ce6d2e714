"""One cell: a config becomes a run folder, and a finished run folder numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.core.errors import RunError
from sparsefed.core.round import RoundReport
from sparsefed.core.types import Arrays, RunRecord
from sparsefed.results.numbers import curve, finite, picked, significant
from sparsefed.results.summary import summary
from sparsefed.results.twins import compare

DIGITS = 6  # of a number in the results: no more can be read from some seeds, and the files stay small
MOST_POINTS = 50  # of a curve

Load = Callable[[data.DataSet], Arrays]

logger = logging.getLogger(__name__)


def run(folder: Path, table: Mapping[str, Any], load: Load, watch: Callable[[RoundReport], None]) -> None:
    """Do what is still to be done of a cell: nothing, what is left since a checkpoint, or all of it."""
    config = configs.parse(table)
    todo = runs.unfinished({folder: table})
    if folder not in todo:
        return
    experiment = configs.build(config, load)
    if todo[folder]:
        runs.create(folder, table)
    runs.note(folder, task=dict(experiment.facts))
    runs.execute(folder, experiment.begin(), experiment.reports, config.checkpoint_every, watch)


def finished(folder: Path) -> RunRecord | None:
    """The run in a folder, if it has come to its end; None also where it is damaged, so that it is done again."""
    if not runs.is_run(folder):
        return None
    try:
        record = runs.load_run(folder)
    except RunError as error:
        logger.warning("%s", error)
        return None
    return record if record.manifest.get("status") == "finished" else None


def metrics(record: RunRecord) -> dict[str, Any]:
    """What was measured in a run, by the names in `measures.py`."""
    (row,) = summary([record])
    last: Mapping[str, Any] = next((each for each in reversed(record.rows) if "test_accuracy" in each), {})
    tests = [value for _, value in curve(record.rows, "test_accuracy")]
    return _rounded(
        {
            "test_accuracy": row.test_accuracy,
            "test_error": None if row.test_accuracy is None else 1 - row.test_accuracy,
            "test_max": max(tests, default=None),
            "test_mean": fmean(tests) if tests else None,
            "test_loss": finite(last.get("test_loss")),
            "test_perplexity": row.test_perplexity,
            "attack_accuracy": row.attack_accuracy,
            "attack_mean": row.attack_mean,
            "attack_max": row.attack_max,
            "converged": row.converged,
            "oif": row.impact,
            "honest_norm": _median(record, "honest_norm"),
            "attacker_norm": _median(record, "attacker_norm"),
            "norm_ratio": row.norm_ratio,
            "landed": row.landed,
            "upload_bytes": _median(record, "upload_bytes"),
            "download_bytes": _median(record, "download_bytes"),
        }
    )


def versus(record: RunRecord, twins: Mapping[str, RunRecord]) -> dict[str, Any]:
    """What the attack changed: the run beside its twins, `unattacked` and `plain`."""
    if not twins:
        return {}
    (found, *_) = compare([record, *twins.values()])
    near, far = found.to_unattacked, found.to_plain
    return _rounded(
        {
            "lost": found.drop,
            "unattacked": summary([twins["unattacked"]])[0].test_accuracy if "unattacked" in twins else None,
            "class_lost_most": max(found.class_drops.values(), default=None),
            "attack_anyway": found.learned_anyway,
            "l1": near.l1 if near and "unattacked" in twins else None,
            "l2": near.l2 if near and "unattacked" in twins else None,
            "l1_plain": far.l1 if far and "plain" in twins else None,
            "l2_plain": far.l2 if far and "plain" in twins else None,
        }
    )


def curves(record: RunRecord, names: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """The way of some metrics through the rounds, thinned."""
    thin = {name: picked(curve(record.rows, name), MOST_POINTS) for name in names}
    return {name: [(t, significant(value, DIGITS)) for t, value in points] for name, points in thin.items()}


def _median(record: RunRecord, key: str) -> float | None:
    values = [value for _, value in curve(record.rows, key)]
    return median(values) if values else None


def _rounded(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in found.items() if value is not None}
    return {n: v if isinstance(v, bool) else significant(float(v), DIGITS) for n, v in kept.items()}
