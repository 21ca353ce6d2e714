"""A defense tuned against attackers who are tuned in return, on a seed that is not reported.

1. *Opening.* Rules at several clipping norms (`dials.opening`) meet the config's own attack and nobody; the best go on.
2. *Defender's move.* The best, and what lies next to it, meet every attack of the pool, which begins with each attack
   as given. Repeated until nothing near it is better.
3. *Attackers' move.* New variants of every attack against the best defense, spread over the ranges and choices that
   `tune` searches; at first also the attacks that an audit leaves out. Those that do more harm than any in the pool, by
   more than `GAIN`, join it, and the defender moves again.

Best is the least *loss*: the harm by the worst attack of the pool, 0 where the defense held against all of it, plus
what it costs without attackers beyond the tolerance, a point for a point; of equals the least harm, then the cheapest.

It ends when neither side gains, or when the budget of runs is used up. What comes out is measured like every other
defense afterwards, at the reported seeds; no run of this search is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sparsefed.commands.audit import dials
from sparsefed.commands.audit.attack_specs import GIVEN, AttackSpec, answers
from sparsefed.commands.audit.defense_specs import BASELINE, UNDEFENDED, DefenseSpec, Facts
from sparsefed.commands.audit.findings import harm, load
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.audit.plan import ATTACK, DEFENSE, baseline, cell_group, unattacked_group
from sparsefed.commands.audit.tuned_defense import Move, TunedDefense
from sparsefed.results.groups import grouped
from sparsefed.results.matrix import NO_ATTACK, Entry, Matrix, judged
from sparsefed.results.summary import summary
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import CellGroup, SweepPlan

NAME = "tuning"
GAIN = 0.01  # of harm: less counts as none
KEPT = 6  # defenses of the opening that meet every attack, and that meet a new one
ANSWER = "answer"  # a variant that the attackers found in return
TRIED = 3  # new variants of each attack in an attackers' move

Params = Mapping[str, Any]
Pair = tuple[str, str]  # defense, attack
Run = Callable[[SweepPlan], Sequence[Row]]  # runs what is missing of a plan, and returns its rows


@dataclass
class _Game:
    """The state of a search: what has been measured, of which defenses under which attacks."""

    options: AuditOptions
    facts: Facts
    attacks: Sequence[AttackSpec]
    spare: Sequence[AttackSpec]  # that an audit leaves out
    run: Run
    out: Path
    pool: dict[str, Params]  # [attack] tables by name
    groups: dict[Pair, CellGroup] = field(default_factory=dict)
    entries: dict[Pair, Entry] = field(default_factory=dict)
    specs: dict[str, DefenseSpec] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    spent: bool = False  # whether something was left out for lack of budget

    @property
    def seed(self) -> int:
        return self.options.tuning_seed

    @property
    def matrix(self) -> Matrix:
        defenses, attacks = (tuple(dict.fromkeys(pair[i] for pair in self.entries)) for i in range(2))
        own = {(d, a): self.entries.get((d, baseline(_attack(a)))) for d, a in self.entries}
        baselines = {pair: entry for pair, entry in own.items() if entry is not None}
        return Matrix("", defenses, attacks, self.entries, baselines)

    def affords(self, runs: int) -> bool:
        """Return whether the budget allows so many more runs; remember if it does not."""
        enough = len(self.groups) + runs <= self.options.budget
        self.spent |= not enough
        return enough

    def measure(self, specs: Iterable[DefenseSpec], attacks: Iterable[str]) -> None:
        """Run these defenses, without attackers and under these attacks of the pool, as far as that is not known."""
        for spec in specs:
            self.specs[spec.name] = spec
            for attack in (NO_ATTACK, *self._baselines(attacks), *attacks):
                if (spec.name, attack) not in self.groups:
                    self.groups[spec.name, attack] = self._group(spec, attack)
        for row in self.run(SweepPlan(NAME, tuple(self.groups.values()))):
            pair = row["cell"][DEFENSE], row["cell"][ATTACK]
            if pair not in self.entries and row["status"] == "done":
                self.entries[pair] = Entry(tuple(summary([load(row, self.out)])))

    def _group(self, spec: DefenseSpec, attack: str) -> CellGroup:
        if attack not in self.pool:
            goal = next((each for each in self.attacks if baseline(each.name) == attack), None)
            return unattacked_group(spec.name, self.options, spec.table, [self.seed], goal)
        return cell_group(spec.name, attack, self.options, spec.table, self.pool[attack], [self.seed])

    def _baselines(self, attacks: Iterable[str]) -> list[str]:
        """Return the runs without attackers that attacks with goals of their own are compared with."""
        named = {_attack(attack) for attack in attacks}
        return [baseline(each.name) for each in self.attacks if each.other_goal and each.name in named]

    def ranked(self, specs: Iterable[DefenseSpec], pool: Iterable[str] | None = None) -> list[DefenseSpec]:
        """Return the defenses that met the whole pool, the one with the least loss first."""
        matrix, attacks, allowed = self.matrix, list(self.pool if pool is None else pool), self.options.tolerance / 100
        stands = {spec.name: (spec, standing(matrix, spec.name, attacks)) for spec in specs}
        known = [(spec, stand.order(allowed)) for spec, stand in stands.values() if stand is not None]
        return [spec for spec, _ in sorted(known, key=lambda each: each[1])]

    def note(self, who: str, best: DefenseSpec) -> None:
        stand = standing(self.matrix, best.name, list(self.pool))
        assert stand is not None  # it was ranked
        self.moves.append(Move(who, best.name, stand.attack, stand.harm, stand.cost, len(self.groups)))


class Standing(NamedTuple):
    """How a defense fares against a pool of attacks."""

    held: bool
    attack: str  # that does it most harm
    harm: float
    cost: float  # test accuracy without attackers, against no defense

    def order(self, allowed: float) -> tuple[float, float, float]:
        """Return what defenses are sorted by, the best first: the loss, then harm, then cost."""
        return (0.0 if self.held else self.harm) + max(0.0, self.cost - allowed), self.harm, self.cost


def standing(matrix: Matrix, defense: str, attacks: Sequence[str]) -> Standing | None:
    """Return how a defense fares; None if it did not learn, or was not measured against every attack."""
    clean, bare = (matrix.entries.get((name, NO_ATTACK)) for name in (defense, UNDEFENDED))
    harms = {attack: harm(matrix, defense, attack) for attack in attacks}
    known = {attack: value for attack, value in harms.items() if value is not None}
    if clean is None or bare is None or not clean.converged or not known or len(known) < len(harms):
        return None
    worst = max(known, key=known.__getitem__)
    held = all(judged(matrix, defense, attack) == "held" for attack in known)
    return Standing(held, worst, known[worst], (bare.test or 0.0) - (clean.test or 0.0))


def _attack(name: str) -> str:
    """Return the attack that a member of the pool is a variant of."""
    return name.partition(", ")[0]


def tuned(
    options: AuditOptions,
    facts: Facts,
    attacks: Sequence[AttackSpec],
    spare: Sequence[AttackSpec],
    specs: Sequence[DefenseSpec],
    run: Run,
    out: Path,
) -> TunedDefense | None:
    """Search for a defense, within the budget; None if nothing could be measured."""
    pool: dict[str, Params] = {f"{attack.name}, {GIVEN}": dict(attack.table) for attack in attacks}
    search = _Game(options, facts, attacks, spare, run, out, pool)
    met = _opening(search, specs)
    if not met:
        return None
    gained: bool | None = True
    turn = 0
    while gained:
        met, turn = _defenders_move(search, met), turn + 1
        met, gained = _attackers_move(search, met, turn)
    spec = met[0]
    final = replace(spec, name=f"{spec.table['name']}, tuned", why="tuned against attackers who were tuned in return")
    found = _answers(search.pool, [each.name for each in attacks])
    return TunedDefense(final, found, tuple(search.moves), not search.spent, search.seed, options.budget)


def _answers(pool: Mapping[str, Params], listed: Sequence[str]) -> dict[str, dict[str, Params]]:
    """Return the variants that joined the pool, by attack and name; of the listed attacks, all but the given one."""
    found: dict[str, dict[str, Params]] = {}
    for name, table in pool.items():
        attack, _, variant = name.partition(", ")
        if variant != GIVEN or attack not in listed:
            found.setdefault(attack, {})[variant] = {key: value for key, value in table.items() if key != "name"}
    return found


def _opening(search: _Game, specs: Sequence[DefenseSpec]) -> list[DefenseSpec]:
    """Measure the opening under the first attack, and its best under all; return these, the best first."""
    first = next(iter(search.pool))
    starters = dials.opening(specs, search.options.config, search.facts)
    while starters and not search.affords(2 * (len(starters) + 1) + KEPT * len(search.pool)):
        starters.pop()
    search.measure([BASELINE, *starters], [first])
    kept = search.ranked(starters, [first])[:KEPT]
    search.measure(kept, search.pool)
    return _noted(search, "opening", kept)


def _noted(search: _Game, who: str, met: Sequence[DefenseSpec]) -> list[DefenseSpec]:
    """Return the defenses, the best first, after it has been noted as the outcome of a move."""
    ranked = search.ranked(met)
    if ranked:
        search.note(who, ranked[0])
    return ranked


def _defenders_move(search: _Game, met: list[DefenseSpec]) -> list[DefenseSpec]:
    """Walk from the best defense to a better neighbour until there is none; return all that is met, the best first."""
    while True:
        best = met[0]
        near = dials.neighbours(best, search.options.config, search.facts.d)
        near = [spec for spec in near if spec.name not in search.specs]
        while near and not search.affords(len(near) * (1 + len(search.pool))):
            near.pop()
        if not near:
            return met
        search.measure(near, search.pool)
        met = search.ranked([*met, *near])
        if met[0] is best:
            return met
        _noted(search, "defender", met)


def _attackers_move(search: _Game, met: list[DefenseSpec], turn: int) -> tuple[list[DefenseSpec], bool | None]:
    """Add to the pool what does the best defense more harm than all that is in it, and let other defenses meet it.

    Returns the defenses, the best first, and whether the attackers gained; None if there was no budget to try.
    """
    best, known, fresh = met[0], dict(search.pool), _fresh(search, turn)
    if not search.affords(len(fresh)):
        return met, None
    search.pool |= fresh
    search.measure([best], fresh)
    harms = {name: harm(search.matrix, best.name, name) or 0.0 for name in search.pool}
    worst = max(harms[name] for name in known)
    stronger = {name: harms[name] for name in fresh if harms[name] > worst + GAIN}
    joining = _strongest_of_each(stronger)
    search.pool = known | {name: fresh[name] for name in joining}
    meeting = met[:KEPT]
    while len(meeting) > 1 and not search.affords((len(meeting) - 1) * len(joining)):
        meeting.pop()
    if joining:
        search.measure(meeting, joining)
    return _noted(search, "attackers", meeting) or met, bool(joining)


def _fresh(search: _Game, turn: int) -> dict[str, Params]:
    """Return new variants of every attack, other ones in every turn; in the first also the attacks left out."""
    several: dict[str, Params] = {}
    for attack in search.attacks:
        parts = answers(search.options.config, attack.table, TRIED, search.seed + turn)
        for i, part in enumerate(parts, start=1 + TRIED * (turn - 1)):
            several[f"{attack.name}, {ANSWER} {i}"] = {**attack.table, **part}
    left_out = {f"{attack.name}, {GIVEN}": attack.table for attack in search.spare if attack.targeted}
    return several | (left_out if turn == 1 else {})


def _strongest_of_each(gained: Mapping[str, float]) -> list[str]:
    """Return the strongest variant of each attack.

    >>> _strongest_of_each({"pgd, answer 1": 0.2, "pgd, answer 2": 0.4, "ipm, answer 1": 0.3})
    ['pgd, answer 2', 'ipm, answer 1']
    """
    groups = grouped(map(_attack, gained), gained)
    return [max(names, key=gained.__getitem__) for names in groups.values()]
