"""The findings of an audit: the matrix, the costs, the recommended config, certificates; from run folders, by rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit.attack_specs import GIVEN, AttackSpec, AttackSpecs
from sparsefed.commands.audit.defense_specs import DefenseSpec, DefenseSpecs, Facts
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE
from sparsefed.commands.audit.recommend import Candidate, Recommendation, worst
from sparsefed.commands.certify import certify
from sparsefed.config import Config
from sparsefed.core.errors import SparseFedError
from sparsefed.core.types import RunRecord
from sparsefed.defenses import DEFENSES, rule_info
from sparsefed.reports.result import Report
from sparsefed.results.matrix import NO_ATTACK, Entry, Judgement, Matrix, judged, judgements
from sparsefed.results.numbers import curve
from sparsefed.results.summary import summary
from sparsefed.sweeps import ledger
from sparsefed.sweeps.ledger import Row

SIGHT = ("rows", "all rows", "history", "root", "layers", "model")  # beyond norms and sums, in increasing order
CERTIFIED = "sparsefed"  # besides the recommended defense
Pair = tuple[str, str]  # defense, attack


@dataclass(frozen=True)
class Measured:
    """The runs of the matrix: what was reported, and what the search tried."""

    matrix: Matrix
    records: Mapping[Pair, tuple[RunRecord, ...]]  # one per seed
    variants: Mapping[Pair, str]  # the strongest
    tried: Mapping[Pair, Mapping[str, Mapping[str, float]]]  # the result of each variant at the search's seed

    @property
    def unattacked(self) -> dict[str, tuple[RunRecord, ...]]:
        """Return the runs without attackers, by defense."""
        return {defense: several for (defense, attack), several in self.records.items() if attack == NO_ATTACK}

    @property
    def worst(self) -> dict[str, str]:
        """Return the attack that does most harm, by defense; the first of equals."""
        harms = {name: worst(harms_of(self.matrix, name, self.matrix.hostile)) for name in self.matrix.defenses}
        return {defense: most[0] for defense, most in harms.items() if most is not None}

    @property
    def worst_records(self) -> list[RunRecord]:
        """Return, for each defense, the run at the first seed under the attack that does it most harm."""
        return [self.records[pair][0] for pair in self.worst.items()]


@dataclass(frozen=True)
class AuditResult(Report, described_by="sparsefed.commands.audit.document"):
    """The result of an audit: what was measured, and the recommendation that follows."""

    options: AuditOptions
    attacks: AttackSpecs
    defenses: DefenseSpecs
    facts: Facts
    measured: Measured
    recommendation: Recommendation | None
    folder: Path | None  # of the runs; None: they were not kept
    problem: Exception | None = None  # a sentence about runs that failed
    varied: tuple[RunRecord, ...] = ()  # with other k and L, and with its own
    certificates: Mapping[str, str] = field(default_factory=dict)  # by defense: its certificate, or why it has none
    seconds: float | None = None  # of all runs

    @property
    def config(self) -> Config:
        return self.options.config

    @property
    def matrix(self) -> Matrix:
        return self.measured.matrix


# --- from runs to numbers --------------------------------------------------------------------------------------------


def measure(rows: Sequence[Row], out: Path) -> Measured:
    """Return the reported runs as a matrix, in the order of the plan; failed runs are missing."""
    records: dict[Pair, tuple[RunRecord, ...]] = {}
    variants: dict[Pair, str] = {}
    tried: dict[Pair, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        pair = (row["cell"][DEFENSE], row["cell"][ATTACK])
        variant = row["attack"] if str(row["attack"]).startswith("variant") else GIVEN
        if row["status"] == "done" and row["role"] == "search":
            tried.setdefault(pair, {})[variant] = row["metrics"]
        elif row["status"] == "done":
            records[pair] = (*records.get(pair, ()), load(row, out))
            variants[pair] = variant
    defenses, attacks = (tuple(dict.fromkeys(pair[i] for pair in records)) for i in range(2))
    entries = {pair: Entry(tuple(summary(several))) for pair, several in records.items()}
    unattacked_first = tuple(sorted(attacks, key=lambda attack: attack != NO_ATTACK))
    return Measured(Matrix("", defenses, unattacked_first, entries), records, variants, tried)


def load(row: Row, out: Path) -> RunRecord:
    """Load a run, named after its defense and attack."""
    defense, attack = row["cell"][DEFENSE], row["cell"][ATTACK]
    name = f"{defense}, {attack}" if attack == NO_ATTACK else f"{defense} under {attack}"
    return replace(runs.load_run(ledger.folder(out, row["key"])), name=name)


def harm(matrix: Matrix, defense: str, attack: str) -> float | None:
    """Return the larger of what attackers gained and what was lost, from 0 to 1; None if it was not measured."""
    entry = matrix.entries.get((defense, attack))
    if entry is None or judged(matrix, defense, attack) is None:
        return None
    if not entry.converged:
        return 1.0
    known = [value for value in (matrix.gained(defense, attack), matrix.lost(defense, attack)) if value is not None]
    return min(1.0, max(0.0, *known))


def harms_of(matrix: Matrix, defense: str, attacks: Iterable[str]) -> dict[str, float | None]:
    """Return the harm that each of these attacks does to a defense."""
    return {attack: harm(matrix, defense, attack) for attack in attacks}


def candidates(measured: Measured, defenses: Sequence[DefenseSpec], attacks: Sequence[AttackSpec]) -> list[Candidate]:
    """Return the defenses as candidates for the recommendation."""
    judgement = judgements(measured.matrix)
    names = [attack.name for attack in attacks]
    return [_candidate(measured, defense, names, judgement.get(defense.name)) for defense in defenses]


def _candidate(
    measured: Measured, defense: DefenseSpec, attacks: Sequence[str], judgement: Judgement | None
) -> Candidate:
    name, entries = defense.name, measured.matrix.entries
    unattacked, most = entries.get((name, NO_ATTACK)), measured.worst.get(name)
    return Candidate(
        name,
        unattacked.test if unattacked is not None and unattacked.converged else None,
        harms_of(measured.matrix, name, attacks),
        judgement,
        spread=entries[name, most].spread if most else 0.0,
        sees=sight(str(defense.table["name"])),
        traffic=sum(bytes_of(measured, name, way) or 0.0 for way in ("upload", "download")),
    )


def sight(rule: str) -> int:
    """Return how much a rule's server must see: 0 for norms and sums alone; a custom rule may see everything."""
    needs = rule_info(DEFENSES[rule]).needs if rule in DEFENSES else SIGHT
    return max((SIGHT.index(need) + 1 for need in needs), default=0)


def _unattacked_values(measured: Measured, defense: str, key: str) -> list[float]:
    return [value for record in measured.unattacked.get(defense, ()) for _, value in curve(record.rows, key)]


def bytes_of(measured: Measured, defense: str, way: str) -> float | None:
    """Return the mean number of bytes of a device's upload or download in a round without attackers."""
    values = _unattacked_values(measured, defense, f"{way}_bytes")
    return fmean(values) if values else None


def round_seconds(measured: Measured, defense: str) -> float | None:
    """Return a round's time, the median of the fastest tenth: other load on a machine can only slow it down."""
    timed = sorted(_unattacked_values(measured, defense, "seconds"))
    return median(timed[: max(1, len(timed) // 10)]) if timed else None


# --- what follows from them ------------------------------------------------------------------------------------------


def strongest(result: AuditResult, defense: str) -> tuple[AttackSpec, str] | None:
    """Return the attack that does a defense most harm, with its strongest variant."""
    name, variants = result.measured.worst.get(defense), result.measured.variants
    return next(((attack, variants[defense, name]) for attack in result.attacks.chosen if attack.name == name), None)


def recommended(result: AuditResult) -> Config | None:
    """Return the audited config with the recommended defense, under the attack that does it most harm."""
    return None if result.recommendation is None else equipped(result, result.recommendation.name)


def equipped(result: AuditResult, defense: str) -> Config:
    """Return the audited config with one of the defenses, under the strongest attack found against it."""
    own = next(spec.table for spec in result.defenses.chosen if spec.name == defense)
    table = {
        **configs.dump(result.config),
        "name": f"{result.config.name or 'audit'}-recommended",
        "defense": dict(own),
    }
    if hardest := strongest(result, defense):
        attack, variant = hardest
        table["attack"] = attack.variant(variant)
    return configs.parse(table)


def certificates(result: AuditResult) -> dict[str, str]:
    """Return the certificates of the recommended defense and of SparseFed, by name, or why there are none."""
    best, compared = result.recommendation, [spec.name for spec in result.defenses.chosen]
    names = dict.fromkeys([*([best.name] if best else []), CERTIFIED])
    return {name: _certificate(result, name) for name in names if name in compared}


def _certificate(result: AuditResult, defense: str) -> str:
    """Certify the audited config with this defense, for the model trained without attackers if there is one."""
    trained = result.measured.unattacked.get(defense)
    try:
        certificate = certify(equipped(result, defense), trained=trained[0].folder if trained else None)
    except SparseFedError as error:
        return f"None: {str(error).rstrip('.')}."
    accuracy = certificate.certified_accuracy_sentence
    return " ".join([certificate.headline, certificate.worth[0], *([accuracy] if accuracy else [])])


def detached(result: AuditResult) -> AuditResult:
    """Return the result without anything that points into its folder, which is about to be removed."""

    def moved(records: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
        return tuple(replace(record, folder=None) for record in records)

    records = {pair: moved(several) for pair, several in result.measured.records.items()}
    measured = replace(result.measured, records=records)
    return replace(result, measured=measured, varied=moved(result.varied), folder=None)
