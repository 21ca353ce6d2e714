"""The run of an audit: three plans, one after the other, with one pool of workers and one progress view.

Runs are cells in OUT/cells: after an interruption the same command resumes, and finished runs are never repeated. A
cell that fails leaves a gap in the matrix, which the recommendation respects, and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit import findings as outcomes
from sparsefed.commands.audit.attack_specs import AttackSpec
from sparsefed.commands.audit.certificates import certificates
from sparsefed.commands.audit.defense_specs import UNDEFENDED, Candidates, DefenseSpec, Facts, panel, undefended
from sparsefed.commands.audit.findings import AuditResult, Measured
from sparsefed.commands.audit.options import SEEDS, TOLERANCE, TRIALS, AuditOptions, ask
from sparsefed.commands.audit.plan import ALWAYS_VARIED, DIALS, Grid, grid, pairs, sensitivity
from sparsefed.commands.audit.recommend import Recommendation, recommend
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.types import RunRecord
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import curve, percent
from sparsefed.results.summary import summary
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps import runner
from sparsefed.sweeps.ledger import Ledger, Row
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.pool import Workers, pool

CALIBRATION, MATRIX, SENSITIVITY = PLANS = ("calibration", "audit", "sensitivity")


@dataclass(frozen=True)
class _Place:
    """The folder, the workers and the progress view with which plans are run."""

    out: Path
    jobs: int
    on_progress: OnProgress
    workers: Workers


def audit(
    subject: Any,
    *,
    folder: str | Path | None = None,
    defenses: str | Sequence[str] = (),
    attacks: str | Sequence[str] = (),
    seeds: int = SEEDS,
    trials: int = TRIALS,
    tolerance: float = 100 * TOLERANCE,
    sensitivity: bool = True,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> AuditResult:
    """Compare defenses against the strongest attacks that a threat model allows, and recommend one.

    Args:
        subject: A config file, a table, a `Config` or a `Simulation`, with an attack and attackers.
        folder: Where runs go and finished ones are found; by default a temporary folder that is removed at the end.
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
    options = ask(
        configs.as_config(subject),
        defenses=defenses,
        attacks=attacks,
        trials=trials,
        seeds=seeds,
        tolerance=tolerance,
        sensitivity=sensitivity,
    )
    with runner.working_folder(folder) as out:
        return run_audit(options, out, jobs, on_progress)


def run_audit(
    asked: AuditOptions, out: Path, jobs: int | None = None, on_progress: OnProgress = lambda _: None
) -> AuditResult:
    """Run what is missing of an audit in its folder, and return its result."""
    jobs = runner.default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one run must be at work")
    with pool(
        jobs, configs.is_live(asked.config)
    ) as workers:  # started when there is work, and kept for all three plans
        measured = _measured(asked, _Place(out, jobs, on_progress, workers))
    return replace(measured, certificates=certificates(measured), seconds=results.seconds(out, _keys(out)))


def _measured(asked: AuditOptions, place: _Place) -> AuditResult:
    """Run everything that an audit measures, except the sensitivity to k and L."""
    experiment = configs.build(asked.config)  # raises what cannot work before anything starts
    found, d, out = grid(asked), len(experiment.theta), place.out
    first = pairs(found, CALIBRATION, [undefended()])
    guess = panel(asked, Facts(d, 1.0, 1.0))  # its size and its refusals do not depend on norms
    later = _cells(first) * (len(guess.members) - 1)
    rows, ledger = _run(first, place, 0, later)
    problem = runner.failures(ledger, out)
    facts = _facts(asked.config, _calm(rows, out), d, problem)
    chosen = panel(asked, facts)
    before = _cells(first)
    rows, ledger = _run(pairs(found, MATRIX, chosen.members), place, before, 0)
    problem = runner.failures(ledger, out)
    measured = outcomes.measured(rows, out)
    names = [foe.name for foe in found.foes.chosen]
    best = recommend(outcomes.candidates(measured, chosen.members, names), asked.tolerance, UNDEFENDED)
    whole = AuditResult(found, facts, chosen, measured, outcomes.costs(measured), best, (), {}, problem)
    return _with_sensitivity(whole, place) if asked.sensitivity else whole


def _run(plan: SweepPlan, place: _Place, before: int, after: int) -> tuple[list[Row], Ledger]:
    """Run a plan and return its lines; the view also counts the cells of earlier and later plans."""
    _forget_what_is_gone(plan, place.out)

    def on_progress(progress: Progress) -> None:
        place.on_progress(whole(progress, before, after))

    ledger = runner.run_plans([plan], place.out, place.jobs, on_progress, place.workers)
    return results.rows(plan, ledger), ledger


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


def _keys(out: Path) -> set[str]:
    rows = (row for name in PLANS for row in results.read(out / f"{name}.jsonl"))
    return {row["key"] for row in rows}


# --- calibration -----------------------------------------------------------------------------------------------------


def _calm(rows: Sequence[Row], out: Path) -> list[RunRecord]:
    done = [row for row in rows if row["cell"]["attack"] == NO_ATTACK and row["status"] == "done"]
    return [runs.load_run(results.folder(out, row["key"])) for row in done]


def _facts(config: Config, calm: Sequence[RunRecord], d: int, problem: Exception | None) -> Facts:
    """Return the facts from which the defenses' parameters follow; raise if the task is not learned."""
    if not calm:
        raise problem or ConfigError("nothing was run without attackers")
    for row in summary(calm):
        if not row.converged:
            raise ConfigError(
                "without attackers and without a defense this config does not learn (test accuracy "
                f"{percent(row.test_accuracy)} after {row.rounds} rounds), so there is nothing to defend; change "
                "train.lr, rounds or the model first"
            )
    fedavg, local_lr = config.train.mode == "fedavg", config.train.local_lr
    norms = [each for record in calm for each in curve(record.rows, "honest_norm")]
    rates: Mapping[int, float] = {int(row["round"]): float(row["lr"]) for row in calm[0].rows}
    in_rates = [norm / ((local_lr or rates[t]) if fedavg else 1.0) for t, norm in norms]
    return Facts(d, median(norm for _, norm in norms), median(in_rates))


# --- sensitivity -----------------------------------------------------------------------------------------------------


def _with_sensitivity(whole: AuditResult, place: _Place) -> AuditResult:
    """Add runs of the recommended defense, SparseFed and clipping with other k and L."""
    grid, found = whole.grid, whole.measured
    plan = sensitivity(grid, SENSITIVITY, whole.facts.d, list(_varied(whole.panel, grid, found, whole.recommendation)))
    if not plan.groups:
        return whole
    before = sum(_cells(pairs(grid, MATRIX, [member])) for member in whole.panel.members)
    rows, ledger = _run(plan, place, before, 0)
    varied = {row["cell"]["defense"]: (NO_ATTACK, row["cell"]["attack"]) for row in rows}
    beside = [found.records[name, attack][0] for name, attacks in varied.items() for attack in attacks]
    problem = whole.problem or runner.failures(ledger, place.out)
    return replace(whole, varied=(*beside, *outcomes.varied_records(rows, place.out)), problem=problem)


def _varied(
    panel: Candidates, grid: Grid, found: Measured, best: Recommendation | None
) -> Iterator[tuple[DefenseSpec, AttackSpec, str]]:
    """Yield the defenses to vary, each with the attack and variant that does most harm."""
    wanted = ([best.name] if best else []) + list(ALWAYS_VARIED)
    for member in panel.members:
        worst = outcomes.worst_foe(found, grid, member.name)
        calm = (member.name, NO_ATTACK) in found.records
        if member.name in wanted and worst and calm and any(member.table.get(dial) is not None for dial in DIALS):
            yield (member, *worst)
