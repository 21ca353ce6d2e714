"""The findings of an audit: the matrix, the cost of each defense, the recommendation; from run folders, by rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit.attack_specs import AttackSpec
from sparsefed.commands.audit.defense_specs import UNDEFENDED, Candidates, DefenseSpec, Facts
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, Grid, variant_of, with_variant
from sparsefed.commands.audit.recommend import Candidate, Recommendation
from sparsefed.config import Config
from sparsefed.core.types import RunRecord
from sparsefed.defenses import DEFENSES, rule_info
from sparsefed.reports.result import Report
from sparsefed.results.matrix import NO_ATTACK, Entry, Matrix, judged, judgements
from sparsefed.results.numbers import curve
from sparsefed.results.summary import summary
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Row

SIGHT = ("rows", "all rows", "history", "root", "layers", "model")  # beyond norms and sums, in increasing order
Pair = tuple[str, str]  # defense, attack


@dataclass(frozen=True)
class Cost:
    """The cost of a defense without attackers."""

    seconds: float | None  # a round without its evaluation, see `_seconds`
    times: float | None  # over that of no defense
    up: float | None  # bytes of a device in a round
    down: float | None


@dataclass(frozen=True)
class Measured:
    """The runs of the matrix: what was reported, and what the search tried."""

    matrix: Matrix
    records: Mapping[Pair, tuple[RunRecord, ...]]  # a seed each
    variants: Mapping[Pair, str]  # the strongest
    tried: Mapping[Pair, Mapping[str, Mapping[str, float]]]  # the result of each variant at the search's seed


@dataclass(frozen=True)
class AuditResult(Report, described_by="sparsefed.commands.audit.document"):
    """The result of an audit: what was measured, and the recommendation that follows."""

    grid: Grid
    facts: Facts
    panel: Candidates
    measured: Measured
    costs: Mapping[str, Cost]
    recommendation: Recommendation | None
    varied: tuple[RunRecord, ...]  # with other k and L, and with its own
    certificates: Mapping[str, str]  # by defense: its certificate, or why there is none
    problem: Exception | None = None  # a sentence about runs that failed
    seconds: float | None = None  # of all runs

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per pair of defense and attack: accuracies, harm, and whether the defense held."""
        return [self._record(*pair) for pair in self.matrix.entries]

    def _record(self, defense: str, attack: str) -> dict[str, Any]:
        matrix, entry = self.matrix, self.matrix.entries[defense, attack]
        record: dict[str, Any] = {"defense": defense, "attack": attack, "seeds": entry.seeds}
        record |= {"converged": entry.converged, "test_accuracy": entry.test, "attack_accuracy": entry.attack}
        if attack == NO_ATTACK:
            return record
        worse = {"lost": matrix.lost(defense, attack), "gained": matrix.gained(defense, attack)}
        record |= {**worse, "harm": harm(matrix, defense, attack), "judgement": judged(matrix, defense, attack)}
        return {**record, "variant": self.measured.variants[defense, attack]}

    @property
    def config(self) -> Config:
        return self.grid.asked.config

    @property
    def matrix(self) -> Matrix:
        return self.measured.matrix

    def member(self, name: str) -> DefenseSpec:
        return next(each for each in self.panel.members if each.name == name)

    def foe(self, name: str) -> AttackSpec:
        return next(each for each in self.grid.foes.chosen if each.name == name)


def measured(rows: Sequence[Row], out: Path) -> Measured:
    """Return the reported runs as a matrix, in the order of the plan; failed runs are missing."""
    done = [row for row in rows if row["status"] == "done"]
    reported = [row for row in done if row["role"] == "result"]
    records: dict[Pair, tuple[RunRecord, ...]] = {}
    for row in reported:
        records[_pair(row)] = (*records.get(_pair(row), ()), _record(row, out))
    matrix = Matrix(
        "",
        tuple(dict.fromkeys(defense for defense, _ in records)),
        tuple(sorted(dict.fromkeys(attack for _, attack in records), key=lambda attack: attack != NO_ATTACK)),
        {pair: Entry(tuple(summary(several))) for pair, several in records.items()},
    )
    variants = {_pair(row): variant_of(row["attack"]) for row in reported if _pair(row)[1] != NO_ATTACK}
    tried: dict[Pair, dict[str, Mapping[str, float]]] = {}
    for row in done:
        if row["role"] == "search":
            tried.setdefault(_pair(row), {})[variant_of(row["attack"])] = row["metrics"]
    return Measured(matrix, records, variants, tried)


def _pair(row: Row) -> Pair:
    return row["cell"][DEFENSE], row["cell"][ATTACK]


def _record(row: Row, out: Path) -> RunRecord:
    """Load a run, named after its defense and attack."""
    defense, attack = _pair(row)
    name = f"{defense}, {attack}" if attack == NO_ATTACK else f"{defense} under {attack}"
    return replace(runs.load_run(results.folder(out, row["key"])), name=name)


def varied_records(rows: Sequence[Row], out: Path) -> list[RunRecord]:
    """Load the finished runs of the sensitivity plan."""
    return [_record(row, out) for row in rows if row["status"] == "done"]


# --- what follows from it --------------------------------------------------------------------------------------------


def candidates(found: Measured, members: Sequence[DefenseSpec], attacks: Sequence[str]) -> list[Candidate]:
    """Return the defenses as candidates for the recommendation."""
    judgement = judgements(found.matrix)
    return [_candidate(found, member, attacks, judgement.get(member.name)) for member in members]


def _candidate(found: Measured, member: DefenseSpec, attacks: Sequence[str], judgement: str | None) -> Candidate:
    calm = found.matrix.entries.get((member.name, NO_ATTACK))
    harms = {attack: harm(found.matrix, member.name, attack) for attack in attacks}
    whole = Candidate(
        member.name,
        calm.test if calm is not None and calm.converged else None,
        harms,
        next((each for each in ("held", "in part", "fell") if each == judgement), None),
        sees=sight(str(member.table["name"])),
        traffic=sum(filter(None, _bytes(found, member.name))),
    )
    worst = whole.worst
    return replace(whole, spread=found.matrix.entries[member.name, worst[0]].spread if worst else 0.0)


def harm(matrix: Matrix, defense: str, attack: str) -> float | None:
    """Return the larger of what attackers gained and what was lost, from 0 to 1; None if it was not measured."""
    entry = matrix.entries.get((defense, attack))
    if entry is None or judged(matrix, defense, attack) is None:
        return None
    if not entry.converged:
        return 1.0
    known = [value for value in (matrix.gained(defense, attack), matrix.lost(defense, attack)) if value is not None]
    return min(1.0, max(0.0, *known))


def sight(rule: str) -> int:
    """Return how much a rule's server must see: 0 for norms and sums alone; a custom rule may see everything."""
    needs = rule_info(DEFENSES[rule]).needs if rule in DEFENSES else SIGHT
    return max((SIGHT.index(need) + 1 for need in needs), default=0)


def costs(found: Measured) -> dict[str, Cost]:
    """Return the cost of each defense that was run without attackers."""
    plain = _seconds(found, UNDEFENDED)
    return {name: _cost(found, name, plain) for name in found.matrix.defenses if (name, NO_ATTACK) in found.records}


def _cost(found: Measured, name: str, plain: float | None) -> Cost:
    own, (up, down) = _seconds(found, name), _bytes(found, name)
    return Cost(own, own / plain if own is not None and plain else None, up, down)


def _seconds(found: Measured, name: str) -> float | None:
    """Return a round's time, the median of the fastest tenth: other load on a machine can only slow it down."""
    timed = [value for record in found.records.get((name, NO_ATTACK), ()) for _, value in curve(record.rows, "seconds")]
    fastest = sorted(timed)[: max(1, len(timed) // 10)]
    return median(fastest) if fastest else None


def _bytes(found: Measured, name: str) -> tuple[float | None, float | None]:
    def usual(key: str) -> float | None:
        values = [value for record in found.records.get((name, NO_ATTACK), ()) for _, value in curve(record.rows, key)]
        return fmean(values) if values else None

    return usual("upload_bytes"), usual("download_bytes")


def worst_attack(found: Measured, defense: str) -> str | None:
    """Return the attack that does a defense most harm; the first of equals."""
    known = {attack: harm(found.matrix, defense, attack) for attack in found.matrix.hostile}
    there = {attack: value for attack, value in known.items() if value is not None}
    return max(there, key=lambda attack: there[attack], default=None)


def worst_foe(found: Measured, grid: Grid, defense: str) -> tuple[AttackSpec, str] | None:
    """Return the attack that does a defense most harm, with its strongest variant."""
    name = worst_attack(found, defense)
    return next(((foe, found.variants[defense, foe.name]) for foe in grid.foes.chosen if foe.name == name), None)


def recommended(outcome: AuditResult) -> Config | None:
    """Return the audited config with the recommended defense, under the attack that does it most harm."""
    chosen = outcome.recommendation
    return None if chosen is None else equipped(outcome.grid, outcome.measured, outcome.member(chosen.name))


def equipped(grid: Grid, found: Measured, member: DefenseSpec) -> Config:
    """Return the audited config with one of the defenses, under the strongest attack found against it."""
    config = grid.asked.config
    table = {**configs.dump(config), "name": f"{config.name or 'audit'}-recommended", "defense": dict(member.table)}
    worst = worst_foe(found, grid, member.name)
    return configs.parse(table if worst is None else {**table, "attack": with_variant(grid, *worst)})


def ends(found: Measured) -> Iterator[RunRecord]:
    """Yield, for each defense, the run at the first seed under the attack that does it most harm."""
    for defense in found.matrix.defenses:
        if (attack := worst_attack(found, defense)) is not None:
            yield found.records[defense, attack][0]
