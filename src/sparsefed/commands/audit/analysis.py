"""The run of an audit: three plans, one after the other, with one pool of workers and one progress view.

Runs are cells in OUT/cells: after an interruption the same command resumes, and finished runs are never repeated. A
cell that fails leaves a gap in the matrix, which the recommendation respects, and does not stop the others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit import findings
from sparsefed.commands.audit.attack_specs import AttackSpec, attack_specs
from sparsefed.commands.audit.defense_specs import BASELINE, UNDEFENDED, DefenseSpec, Facts, defense_specs
from sparsefed.commands.audit.document import CONFIG, NUMBERS, PAGE
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, DIALS, matrix_plan, sensitivity_plan
from sparsefed.commands.audit.recommend import recommend
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.types import RunRecord
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import curve, percent
from sparsefed.results.summary import summary
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps import runner
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.pool import pool

CALIBRATION, MATRIX, SENSITIVITY = PLANS = ("calibration", "audit", "sensitivity")
ALWAYS_VARIED = ("sparsefed", "clipping")

# A plan, and the cells of the plans before and after it; its finished rows, and an error about those that failed.
RunPlan = Callable[[SweepPlan, int, int], tuple[list[Row], RunError | None]]


def audit(
    subject: Any,
    *,
    folder: str | Path | None = None,
    defenses: str | Sequence[str] = (),
    attacks: str | Sequence[str] = (),
    seeds: int = AuditOptions.seeds,
    trials: int = AuditOptions.trials,
    tolerance: float = AuditOptions.tolerance,
    sensitivity: bool = True,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> AuditResult:
    """Compare defenses against the strongest attacks that a threat model allows, and recommend one.

    Args:
        subject: A config file, a table, a `Config` or a `Simulation`, with an attack and attackers.
        folder: Where runs go and finished ones are found; by default a temporary folder that is removed at the end,
            and the result's `folder` and those of its runs are None.
        defenses: The names of those to compare, or "all"; by default those registered for audits.
        attacks: The names of attacks besides the subject's own; by default those that fit.
        seeds: How many seeds the strongest variant of each attack is reported with.
        trials: How many variants of each attack each defense meets.
        tolerance: Points of test accuracy that a defense may cost without attackers.
        sensitivity: Whether k and L of some defenses are varied too.
        jobs: How many runs at a time; by default one per core.
        on_progress: Called with a `Progress` whenever something has changed.

    Returns:
        The matrix of all pairs, the recommendation and what it rests on; `problem` describes runs that failed.

    Raises:
        ConfigError: If the config is wrong, has no attackers, or its task is not learned even without them.
        RunError: If the folder cannot be used.
    """
    options = AuditOptions(configs.as_config(subject), defenses, attacks, trials, seeds, tolerance, sensitivity)
    with runner.working_folder(folder) as out:
        result = run_audit(options, out, jobs, on_progress)
        return findings.detached(result) if folder is None else result


def run_audit(
    options: AuditOptions, out: Path, jobs: int | None = None, on_progress: OnProgress = lambda _: None
) -> AuditResult:
    """Run what is missing of an audit in its folder, and return its result."""
    jobs = runner.default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one run must be at work")
    with pool(jobs, configs.is_live(options.config)) as workers:  # started when there is work, for all three plans

        def run(plan: SweepPlan, before: int, after: int) -> tuple[list[Row], RunError | None]:
            def shown(progress: Progress) -> None:
                on_progress(whole(progress, before, after))

            _forget_what_is_gone(plan, out)
            ledger = runner.run_plans([plan], out, jobs, shown, workers)
            return results.rows(plan, ledger), runner.failures(ledger, out)

        result = _measured(options, out, run)
    keys = {row["key"] for name in PLANS for row in results.read(out / f"{name}.jsonl")}
    return replace(result, certificates=findings.certificates(result), seconds=results.seconds(out, keys))


def _measured(options: AuditOptions, out: Path, run: RunPlan) -> AuditResult:
    """Run everything that an audit measures."""
    d, attacks = len(configs.build(options.config).theta), attack_specs(options)  # refuses before anything starts
    calibration = matrix_plan(CALIBRATION, options, [BASELINE], attacks.chosen)
    compared = len(defense_specs(options, Facts(d, 1.0, 1.0)).chosen)  # does not depend on norms
    rows, problem = run(calibration, 0, _cells(calibration) * (compared - 1))
    facts = _facts(options.config, _unattacked(rows, out), d, problem)
    defenses = defense_specs(options, facts)
    plan = matrix_plan(MATRIX, options, defenses.chosen, attacks.chosen)
    rows, problem = run(plan, _cells(calibration), 0)
    result = AuditResult(options, attacks, defenses, facts, *findings.measure(rows, out), out, problem)
    best = recommend(findings.candidates(result), options.tolerance / 100, UNDEFENDED)
    result = replace(result, recommendation=best)
    return _with_sensitivity(result, out, run, _cells(plan)) if options.sensitivity else result


def forget(out: Path) -> None:
    """Delete what an audit left in a folder, and nothing else."""
    if not out.is_dir():
        return
    with runs.locked(out), results.disk(out):
        for folder in (results.CELLS, results.FAILED):
            shutil.rmtree(out / folder, ignore_errors=True)
        for name in (*(f"{plan}.jsonl" for plan in PLANS), results.TIMINGS, PAGE, NUMBERS, CONFIG):
            (out / name).unlink(missing_ok=True)


def whole(progress: Progress, before: int, after: int) -> Progress:
    """Return the progress of an audit, from the progress of one of its plans.

    >>> progress = whole(Progress("cells", 5, 10, left=20.0), before=10, after=5)
    >>> progress.done, progress.total, progress.left
    (15, 25, 40.0)
    """
    still = max(1, progress.total - progress.done)
    left = None if progress.left is None else progress.left * (still + after) / still
    return replace(progress, done=progress.done + before, total=progress.total + before + after, left=left)


def _forget_what_is_gone(plan: SweepPlan, out: Path) -> None:
    """Delete a plan's results if run folders are gone: an audit shows curves, for which the lines are not enough."""
    file = results.path(out, plan)
    rows = results.read(file)
    if any(row["status"] == "done" and not runs.is_run(results.folder(out, row["key"])) for row in rows):
        file.unlink()


def _cells(plan: SweepPlan) -> int:
    return sum(len(group.trials) + group.coming for group in plan.groups)


def _unattacked(rows: Sequence[Row], out: Path) -> list[RunRecord]:
    done = [row for row in rows if row["cell"][ATTACK] == NO_ATTACK and row["status"] == "done"]
    return [findings.load(row, out) for row in done]


def _facts(config: Config, unattacked: Sequence[RunRecord], d: int, problem: RunError | None) -> Facts:
    """Return the facts from which the defenses' parameters follow; raise if the task is not learned."""
    if not unattacked:
        raise problem or ConfigError("nothing was run without attackers")
    for row in summary(unattacked):
        if not row.converged:
            raise ConfigError(
                f"without attackers and without a defense this config does not learn ({row.scored_by} "
                f"{percent(row.test_accuracy)} after {row.rounds} rounds), so there is nothing to defend; change "
                "train.lr, rounds or the model first"
            )
    fedavg, local_lr = config.train.mode == "fedavg", config.train.local_lr
    norms = [each for record in unattacked for each in curve(record.rows, "honest_norm")]
    rates = {int(row["round"]): float(row["lr"]) for row in unattacked[0].rows}
    in_rates = [norm / ((local_lr or rates[t]) if fedavg else 1.0) for t, norm in norms]
    return Facts(d, median(norm for _, norm in norms), median(in_rates))


def _with_sensitivity(result: AuditResult, out: Path, run: RunPlan, before: int) -> AuditResult:
    """Add runs of the recommended defense, SparseFed and clipping with other k and L."""
    plan = sensitivity_plan(SENSITIVITY, result.options, result.facts.d, _varied(result))
    if not plan.groups:
        return result
    rows, problem = run(plan, before, 0)
    pairs = {(row["cell"][DEFENSE], attack) for row in rows for attack in (NO_ATTACK, row["cell"][ATTACK])}
    own = [several[0] for pair, several in result.runs.items() if pair in pairs]
    varied = [findings.load(row, out) for row in rows if row["status"] == "done"]
    return replace(result, varied=(*own, *varied), problem=result.problem or problem)


def _varied(result: AuditResult) -> Iterator[tuple[DefenseSpec, AttackSpec, str]]:
    """Yield the defenses to vary, each with the attack and variant that does most harm."""
    names = [*ALWAYS_VARIED, *([result.recommendation.name] if result.recommendation else [])]
    for spec in result.defenses.chosen:
        strongest = findings.strongest(result, spec.name)
        varies = spec.name in names and any(spec.table.get(dial) is not None for dial in DIALS)
        if varies and strongest and spec.name in result.unattacked:
            yield (spec, *strongest)
