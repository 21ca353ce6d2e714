"""The findings of an audit: the matrix, the costs, the recommended config, certificates; from run folders, by rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sparsefed import config as configs
from sparsefed.commands.audit.attack_specs import GIVEN, AttackSpec, AttackSpecs
from sparsefed.commands.audit.defense_specs import UNDEFENDED, DefenseSpec, DefenseSpecs, Facts
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, baseline
from sparsefed.commands.audit.recommend import Candidate, Recommendation
from sparsefed.commands.audit.tuned_defense import TunedDefense
from sparsefed.commands.certify import certify
from sparsefed.config import Config
from sparsefed.core.errors import RunError, SparseFedError
from sparsefed.core.types import RunRecord
from sparsefed.defenses import DEFENSES, rule_info
from sparsefed.reports.result import Report
from sparsefed.results.matrix import NO_ATTACK, Entry, Matrix, judged, judgements, mean
from sparsefed.results.numbers import curve
from sparsefed.results.summary import summary
from sparsefed.runs import load_run
from sparsefed.sweeps import ledger
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import FIXED

SIGHT = ("rows", "all rows", "history", "root", "layers", "model")  # beyond norms and sums, in increasing order
CERTIFIED = "sparsefed"  # besides the recommended defense
Pair = tuple[str, str]  # defense, attack


class WorstDevices(NamedTuple):
    """The accuracy of the devices that a model serves worst, each on its own examples."""

    worst: float
    tenth: float  # mean over the worst tenth


class Durability(NamedTuple):
    """Attack accuracy when the attackers left, and when training ended."""

    left_at: int  # round
    then: float
    end: float


class Detection(NamedTuple):
    """The shares of attackers and of honest devices that a rule rejected, over all rounds and seeds."""

    true_positives: float | None  # None without attackers
    false_positives: float | None


@dataclass(frozen=True)
class AuditResult(Report, described_by="sparsefed.commands.audit.document"):
    """The result of an audit: what was measured, and the recommendation that follows."""

    options: AuditOptions
    attacks: AttackSpecs
    defenses: DefenseSpecs
    facts: Facts
    matrix: Matrix
    runs: Mapping[Pair, tuple[RunRecord, ...]]  # that are reported, one per seed
    variants: Mapping[Pair, str]  # the strongest
    tried: Mapping[Pair, Mapping[str, Mapping[str, float]]]  # the result of each variant at the search's seed
    folder: Path | None  # of the runs; None: they were not kept
    problem: Exception | None  # a sentence about runs that failed
    recommendation: Recommendation | None = None
    varied: tuple[RunRecord, ...] = ()  # with other k and L, and with its own
    certificates: Mapping[str, str] = field(default_factory=dict)  # by defense: its certificate, or why it has none
    seconds: float | None = None  # of all runs
    tuned: TunedDefense | None = None
    devices: Mapping[Pair, WorstDevices] = field(default_factory=dict)  # with a suite
    durability: Mapping[Pair, Durability] = field(default_factory=dict)  # with a suite
    detection: Mapping[Pair, Detection] = field(default_factory=dict)  # with a suite, of rules that select devices
    settings: Matrix | None = None  # with a suite: defenses with other honest settings

    @property
    def config(self) -> Config:
        return self.options.config

    @property
    def unattacked(self) -> dict[str, RunRecord]:
        """Return the run without attackers at the first seed, by defense."""
        return {defense: several[0] for (defense, attack), several in self.runs.items() if attack == NO_ATTACK}

    @cached_property
    def worst(self) -> dict[str, str]:
        """Return the attack that does most harm, by defense."""
        most = {each.name: each.worst for each in candidates(self)}
        return {defense: attack[0] for defense, attack in most.items() if attack is not None}


Runs = tuple[Matrix, dict[Pair, tuple[RunRecord, ...]], dict[Pair, str], dict[Pair, dict[str, Mapping[str, float]]]]


def measure(rows: Sequence[Row], out: Path) -> Runs:
    """Return `matrix`, `runs`, `variants` and `tried` of a result, in the order of the plan, without failed runs."""
    reported: dict[Pair, tuple[RunRecord, ...]] = {}
    variants: dict[Pair, str] = {}
    tried: dict[Pair, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        pair = (row["cell"][DEFENSE], row["cell"][ATTACK])
        variant = GIVEN if row["attack"] in (None, FIXED) else row["attack"]
        if row["status"] == "done" and row["role"] == "search":
            tried.setdefault(pair, {})[variant] = row["metrics"]
        elif row["status"] == "done":
            reported[pair] = (*reported.get(pair, ()), load(row, out))
            variants[pair] = variant
    every = {pair: Entry(tuple(summary(several))) for pair, several in reported.items()}
    baselines = {(d, a): every[d, baseline(a)] for d, a in every if (d, baseline(a)) in every}
    own = {baseline(attack) for _, attack in baselines}
    reported = {pair: several for pair, several in reported.items() if pair[1] not in own}
    defenses, attacks = (dict.fromkeys(pair[i] for pair in reported) for i in range(2))
    columns = sorted(attacks, key=lambda attack: attack != NO_ATTACK)
    entries = {pair: every[pair] for pair in reported}
    return Matrix("", tuple(defenses), tuple(columns), entries, baselines), reported, variants, tried


def load(row: Row, out: Path) -> RunRecord:
    """Load a run, named after its defense and attack."""
    defense, attack = row["cell"][DEFENSE], row["cell"][ATTACK]
    name = f"{defense}, {attack}" if attack == NO_ATTACK else f"{defense} under {attack}"
    return replace(load_run(ledger.folder(out, row["key"])), name=name)


def harm(matrix: Matrix, defense: str, attack: str) -> float | None:
    """Return the larger of what attackers gained and what was lost, 1 if the model did not learn; None if unknown."""
    entry = matrix.entries.get((defense, attack))
    if entry is None or judged(matrix, defense, attack) is None:
        return None
    known = [value for value in (matrix.gained(defense, attack), matrix.lost(defense, attack)) if value is not None]
    return min(1.0, max(0.0, *known)) if entry.converged else 1.0


def candidates(result: AuditResult) -> list[Candidate]:
    """Return the defenses as candidates for the recommendation."""
    matrix, judgement, cost = result.matrix, judgements(result.matrix), costs(result)
    several = []
    for name, table in ((spec.name, spec.table) for spec in result.defenses.chosen):
        unattacked = matrix.entries.get((name, NO_ATTACK))
        clean = unattacked.test if unattacked is not None and unattacked.converged else None
        harms = {attack.name: harm(matrix, name, attack.name) for attack in result.attacks.chosen}
        traffic = sum(cost.get(name, {}).get(way) or 0.0 for way in ("up", "down"))
        each = Candidate(name, clean, harms, judgement.get(name), sees=sight(str(table["name"])), traffic=traffic)
        spread = matrix.entries[name, each.worst[0]].spread if each.worst else 0.0
        several.append(replace(each, spread=spread))
    return several


def sight(rule: str) -> int:
    """Return how much a rule's server must see: 0 for norms and sums alone; a custom rule may see everything."""
    needs = rule_info(DEFENSES[rule]).needs if rule in DEFENSES else SIGHT
    return max((SIGHT.index(need) + 1 for need in needs), default=0)


def costs(result: AuditResult) -> dict[str, dict[str, float | None]]:
    """Return what a defense costs without attackers: a round's `seconds`, `times` the baseline's, bytes `up`, `down`.

    A round's time is the median of the fastest tenth, because other load on a machine can only slow it down.
    """
    table: dict[str, dict[str, float | None]] = {}
    for name in result.unattacked:
        rows = [row for run in result.runs[name, NO_ATTACK] for row in run.rows]
        timed = sorted(seconds for _, seconds in curve(rows, "seconds"))
        seconds = median(timed[: max(1, len(timed) // 10)]) if timed else None
        up, down = (mean([value for _, value in curve(rows, f"{way}_bytes")]) for way in ("upload", "download"))
        table[name] = {"seconds": seconds, "up": up, "down": down}
    plain = table.get(UNDEFENDED, {}).get("seconds")
    for cost in table.values():
        cost["times"] = cost["seconds"] / plain if cost["seconds"] is not None and plain else None
    return table


def strongest(result: AuditResult, defense: str) -> tuple[AttackSpec, str] | None:
    """Return the attack that does a defense most harm, with its strongest variant."""
    name = result.worst.get(defense)
    return next(((each, result.variants[defense, name]) for each in result.attacks.chosen if each.name == name), None)


def hardest(result: AuditResult, names: Sequence[str]) -> Iterator[tuple[DefenseSpec, AttackSpec, str]]:
    """Yield these defenses and the recommended one, each with the attack and variant that does it most harm."""
    wanted = {*names, *([result.recommendation.name] if result.recommendation else [])} & set(result.unattacked)
    for spec in result.defenses.chosen:
        if spec.name in wanted and (found := strongest(result, spec.name)):
            yield (spec, *found)


def recommended(result: AuditResult) -> Config | None:
    """Return the audited config with the defense that held, under the attack that does it most harm; else None."""
    best = result.recommendation
    return equipped(result, best.name) if best is not None and best.holds else None


def equipped(result: AuditResult, defense: str) -> Config:
    """Return the audited config with one of the defenses, under the strongest attack found against it."""
    table = {**configs.dump(result.config), "name": f"{result.config.name or 'audit'}-recommended"}
    table["defense"] = next(dict(spec.table) for spec in result.defenses.chosen if spec.name == defense)
    if hardest := strongest(result, defense):
        attack, variant = hardest
        table["attack"] = attack.variant(variant)
    return configs.parse(table)


def certificates(result: AuditResult) -> dict[str, str]:
    """Return the certificates of the recommended defense and of SparseFed, by name, or why there are none."""
    names = dict.fromkeys([*([result.recommendation.name] if result.recommendation else []), CERTIFIED])
    return {name: _certificate(result, name) for name in names if any(name == s.name for s in result.defenses.chosen)}


def _certificate(result: AuditResult, defense: str) -> str:
    """Certify the audited config with this defense, for the model trained without attackers if there is one."""
    trained = result.unattacked.get(defense)
    try:
        certificate = certify(equipped(result, defense), trained=trained.folder if trained else None)
    except SparseFedError as error:
        return f"None: {str(error).rstrip('.')}."
    accuracy = certificate.certified_accuracy_sentence
    return " ".join([certificate.headline, certificate.worth[0], *([accuracy] if accuracy else [])])


def detached(result: AuditResult) -> AuditResult:
    """Return the result without anything that points into its folder, which is about to be removed."""
    reported = {pair: tuple(replace(run, folder=None) for run in several) for pair, several in result.runs.items()}
    varied = tuple(replace(run, folder=None) for run in result.varied)
    problem = result.problem
    if problem is not None and result.folder is not None:
        reason = str(problem).partition(f"; {result.folder / ledger.FAILED}")[0]
        problem = RunError(f"{reason}; nothing was kept, so give a folder to see the log of each failure")
    return replace(result, runs=reported, varied=varied, problem=problem, folder=None)
