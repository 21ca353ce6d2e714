"""The run of an audit: three plans, one after the other, with one pool of workers and one progress view.

Runs are cells in OUT/cells: after an interruption the same command resumes, and finished runs are never repeated. A
cell that fails leaves a gap in the matrix, which the recommendation respects, and does not stop the others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit import aftermath, benign, findings
from sparsefed.commands.audit.attack_specs import attack_specs, spare_specs
from sparsefed.commands.audit.defense_specs import BASELINE, UNDEFENDED, DefenseSpecs, Facts, by_rule, defense_specs
from sparsefed.commands.audit.document import CONFIG, NUMBERS, PAGE
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.commands.audit.options import ALL, AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, DIALS, matrix_plan, sensitivity_plan
from sparsefed.commands.audit.recommend import recommend
from sparsefed.commands.audit.suite import TRIALS, with_suite
from sparsefed.commands.audit.tuning import NAME as TUNING
from sparsefed.commands.audit.tuning import tuned
from sparsefed.commands.choose_k import choose_k
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.types import RunRecord
from sparsefed.defenses import DEFENSES
from sparsefed.results.matrix import NO_ATTACK
from sparsefed.results.numbers import curve, percent
from sparsefed.results.summary import last_loss, summary
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps import runner
from sparsefed.sweeps.cells import cell
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.pool import pool

CALIBRATION, MATRIX, SENSITIVITY = "calibration", "audit", "sensitivity"
PLANS = (CALIBRATION, MATRIX, SENSITIVITY, TUNING, aftermath.NAME, benign.NAME)
CHOICES = "choose-k"  # the folder of the models that k is chosen by
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
    budget: int = AuditOptions.budget,
    tune_only: bool = False,
    suite: str = "",
    jobs: int | None = None,
    on: str | None = None,
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
        budget: Runs in which a defense is tuned, against attackers who are tuned in return, if none holds by rule; 0:
            none is tuned.
        tune_only: Whether no defenses are compared by rule: only none, the subject's own and the tuned one.
        jobs: How many runs at a time; by default one per core.
        on: "ray" to run them on the machines of a Ray cluster, with the same results.
        on_progress: Called with a `Progress` whenever something has changed.
        suite: A standard suite of attacks ("v1") in the place of the subject's own; the attackers know everything.

    Returns:
        The matrix of all pairs, the recommendation and what it rests on; `problem` describes runs that failed.

    Raises:
        ConfigError: If the config is wrong, has no attackers, or its task is not learned even without them.
        RunError: If the folder cannot be used.
    """
    config = with_suite(configs.as_config(subject), suite) if suite else configs.as_config(subject)
    trials = TRIALS if suite else trials
    options = AuditOptions(config, defenses, attacks, trials, seeds, tolerance, sensitivity, budget, suite, tune_only)
    with runner.working_folder(folder) as out:
        result = run_audit(options, out, jobs, on_progress, on)
        return findings.detached(result) if folder is None else result


def run_audit(
    options: AuditOptions,
    out: Path,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
    on: str | None = None,
) -> AuditResult:
    """Run what is missing of an audit in its folder, and return its result."""
    jobs = checked_jobs(jobs, on)
    with pool(jobs, configs.is_live(options.config), on) as workers:  # for all three plans

        def run(plan: SweepPlan, before: int, after: int) -> tuple[list[Row], RunError | None]:
            def shown(progress: Progress) -> None:
                on_progress(whole(progress, before, after))

            _forget_what_is_gone(plan, out)
            ledger = runner.run_plans([plan], out, jobs, shown, workers)
            return results.rows(plan, ledger), runner.failures(ledger, out)

        result = _measured(options, out, run, on_progress)
    keys = {row["key"] for name in PLANS for row in results.read(out / f"{name}.jsonl")}
    return replace(result, certificates=findings.certificates(result), seconds=results.seconds(out, keys))


def checked_jobs(jobs: int | None, on: str | None = None) -> int:
    """Return how many runs are at work at a time, by default one per core, here or of the cluster."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one run must be at work")
    return runner.default_jobs(on) if jobs is None else jobs


def _measured(options: AuditOptions, out: Path, run: RunPlan, on_progress: OnProgress) -> AuditResult:
    """Run everything that an audit measures."""
    d, attacks = len(configs.build(options.config).theta), attack_specs(options)  # refuses before anything starts
    calibration = matrix_plan(CALIBRATION, options, [BASELINE], attacks.chosen)
    compared = len(by_rule(options, defense_specs(options, Facts(d, 1.0, 1.0))).chosen)  # does not depend on norms
    rows, problem = run(calibration, 0, _cells(calibration) * (compared - 1))
    facts = _with_choices(options, _facts(options.config, _unattacked(rows, out), d, problem), out, on_progress)
    defenses = defense_specs(options, facts)
    shown = by_rule(options, defenses)
    plan = matrix_plan(MATRIX, options, shown.chosen, attacks.chosen)
    rows, problem = run(plan, _cells(calibration), 0)
    result = AuditResult(options, attacks, shown, facts, *findings.measure(rows, out), out, problem)
    result = _recommended(result)
    if options.budget and not (result.recommendation and result.recommendation.holds):
        result = _with_tuned(result, plan, _all_rules(options, facts), out, run)
    result = _with_sensitivity(result, out, run, _cells(plan)) if options.sensitivity else result
    return _with_aftermath(result, out, run, _cells(plan)) if options.suite else result


def _with_aftermath(result: AuditResult, out: Path, run: RunPlan, before: int) -> AuditResult:
    """Add what a suite measures beside the matrix: who was rejected, worst devices, how long attacks last, settings."""
    left, problem = run(aftermath.durability_plan(result), before, 0)
    varied, failed = run(benign.settings_plan(result), before, 0)
    return replace(
        result,
        detection=aftermath.detection(result),
        devices=aftermath.worst_devices(result),
        durability=aftermath.durability(left, out, result.options),
        settings=findings.measure(varied, out)[0],
        problem=result.problem or problem or failed,
    )


def _all_rules(options: AuditOptions, facts: Facts) -> DefenseSpecs:
    """Return the rules that a search may choose from: the named ones, or all whose parameters follow from the task."""
    return defense_specs(options if options.defense_names else replace(options, defenses=ALL), facts)


def _recommended(result: AuditResult) -> AuditResult:
    tolerance = result.options.tolerance / 100
    return replace(result, recommendation=recommend(findings.candidates(result), tolerance, UNDEFENDED))


def _with_tuned(result: AuditResult, plan: SweepPlan, rules: DefenseSpecs, out: Path, run: RunPlan) -> AuditResult:
    """Add a defense that is tuned against attackers who are tuned in return, measured like the others."""
    options, before = result.options, _cells(plan)
    spare = spare_specs(options, result.attacks)
    found = tuned(
        options, result.facts, result.attacks.chosen, spare, rules.chosen, lambda each: run(each, before, 0)[0], out
    )
    if found is None:
        return result
    joined = tuple(attack for attack in spare if attack.name in found.answers)  # everybody meets these
    own = tuple(
        replace(attack, variants={**attack.variants, **found.answers.get(attack.name, {})})
        for attack in (*result.attacks.chosen, *joined)
    )
    whole = matrix_plan(MATRIX, options, result.defenses.chosen, (*result.attacks.chosen, *joined))
    more = matrix_plan(MATRIX, options, [found.spec], own)
    rows, problem = run(SweepPlan(MATRIX, (*whole.groups, *more.groups)), 0, 0)
    matrix, reported, variants, tried = findings.measure(rows, out)
    return _recommended(
        replace(
            result,
            attacks=replace(result.attacks, chosen=own),
            defenses=replace(result.defenses, chosen=(*result.defenses.chosen, found.spec)),
            matrix=matrix,
            runs=reported,
            variants=variants,
            tried=tried,
            problem=result.problem or problem,
            tuned=found,
        )
    )


def forget(out: Path) -> None:
    """Delete what an audit left in a folder, and nothing else."""
    if not out.is_dir():
        return
    with runs.locked(out), results.disk(out):
        for folder in (results.CELLS, results.FAILED, CHOICES):
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
    for row, record in zip(summary(unattacked), unattacked, strict=True):
        if not row.converged:
            raise ConfigError(
                f"without attackers and without a defense this config does not learn ({row.scored_by} "
                f"{percent(row.test_accuracy)}{_losses(record)} after {row.rounds} rounds), so there is nothing to "
                "defend; change train.lr, rounds or the model first"
            )
    fedavg, local_lr = config.train.mode == "fedavg", config.train.local_lr
    norms = [each for record in unattacked for each in curve(record.rows, "honest_norm")]
    rates = {int(row["round"]): float(row["lr"]) for row in unattacked[0].rows}
    in_rates = [norm / ((local_lr or rates[t]) if fedavg else 1.0) for t, norm in norms]
    return Facts(d, median(norm for _, norm in norms), median(in_rates))


def _losses(record: RunRecord) -> str:
    """Return a run's test loss beside that of the class shares alone, for a sentence; '' if either is unknown."""
    loss, of_shares = last_loss(record.rows), record.manifest.get("task", {}).get("chance_loss")
    if loss is None or of_shares is None:
        return ""
    return f" and test loss {loss:.3g}, where the class shares alone give {of_shares:.3g},"


def _with_choices(options: AuditOptions, facts: Facts, out: Path, on_progress: OnProgress) -> Facts:
    """Add a choice of k for every rule whose k the audit derives."""
    config, choices = configs.dump(options.config), {}
    for spec in defense_specs(options, facts).chosen:
        if "k" in spec.table and spec.name in DEFENSES:
            chosen = cell(configs.parse({**config, "defense": dict(spec.table)}))
            with suppress(ConfigError):  # nothing to choose by: then k is 1 % of the coordinates, and says so
                choices[spec.name] = choose_k(chosen.config, folder=out / CHOICES / chosen.key, on_progress=on_progress)
    return replace(facts, choices=choices)


def _with_sensitivity(result: AuditResult, out: Path, run: RunPlan, before: int) -> AuditResult:
    """Add runs of the recommended defense, SparseFed and clipping with other k and L."""
    varied = findings.hardest(result, ALWAYS_VARIED)
    dialled = [each for each in varied if any(each[0].table.get(dial) is not None for dial in DIALS)]
    plan = sensitivity_plan(SENSITIVITY, result.options, result.facts.d, dialled)
    if not plan.groups:
        return result
    rows, problem = run(plan, before, 0)
    pairs = {(row["cell"][DEFENSE], attack) for row in rows for attack in (NO_ATTACK, row["cell"][ATTACK])}
    own = [several[0] for pair, several in result.runs.items() if pair in pairs]
    others = [findings.load(row, out) for row in rows if row["status"] == "done"]
    return replace(result, varied=(*own, *others), problem=result.problem or problem)
