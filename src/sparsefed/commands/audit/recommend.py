"""The recommendation: a rule, numbers in and a name out.

1. *Eligible* is a defense that learned without attackers, met every attack, and without attackers costs at most
   `tolerance` of test accuracy against no defense.
2. Of the eligible, those come first that held against all attacks, then those that held in part, then those that fell
   (`results.matrix.judged`); among these, the one whose worst attack does least harm (`findings.harm`).
3. A defense as good as that one, within the spread of its seeds but at least `TIE` and at most `WIDEST`, ties with it.
   Of those that tie, the ones that keep most test accuracy without attackers, within `TIE`; of these the simplest: its
   server must see least, then its devices send and receive least, then it comes first in the list.

Times are not used: they differ from run to run, and a recommendation must not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparsefed.results.matrix import Judgement
from sparsefed.results.numbers import percent, points

TIE, WIDEST = 0.01, 0.05
ORDER: tuple[Judgement, ...] = ("held", "in part", "fell")


@dataclass(frozen=True)
class Candidate:
    """A defense and what was measured of it."""

    name: str
    clean: float | None  # test accuracy without attackers; None: not measured, or it did not learn
    harms: Mapping[str, float | None]  # by attack; None: not measured
    judgement: Judgement | None  # against the worst attack
    spread: float = 0.0  # of the seeds, under the worst attack
    sees: int = 0  # how much the server must see of updates, see `findings.SIGHT`
    traffic: float = 0.0  # bytes up and down per device and round

    @property
    def worst(self) -> tuple[str, float] | None:
        """Return the attack that does most harm, and how much; the first of equals."""
        known = [(attack, harm) for attack, harm in self.harms.items() if harm is not None]
        return max(known, key=lambda each: each[1], default=None)

    @property
    def harm(self) -> float:
        return self.worst[1] if self.worst else 1.0


@dataclass(frozen=True)
class Recommendation:
    """A recommended defense, and why not the others."""

    name: str
    judgement: Judgement | None
    attack: str  # that does it most harm
    harm: float
    tied: tuple[str, ...] = ()  # as good, but less simple
    passed_over: Mapping[str, str] = field(default_factory=dict)
    holds_but_costs_more: Mapping[str, float] = field(default_factory=dict)  # defenses, and the accuracy each costs

    @property
    def holds(self) -> bool:
        return self.judgement == "held"


def recommend(candidates: Sequence[Candidate], tolerance: float, baseline: str) -> Recommendation | None:
    """Return the recommendation by the rule above; None if nothing is eligible because something was not measured."""
    plain = next((each.clean for each in candidates if each.name == baseline), None)
    passed_over = {each.name: why for each in candidates if (why := _ineligible(each, plain, tolerance))}
    eligible = [each for each in candidates if each.name not in passed_over]
    if not eligible:
        return None
    best = min(eligible, key=_rank)
    within = min(max(TIE, best.spread), WIDEST) + 1e-9
    level = [each for each in eligible if _rank(each)[0] == _rank(best)[0] and each.harm - best.harm <= within]
    top = max(each.clean or 0.0 for each in level)
    keeping = [each for each in level if top - (each.clean or 0.0) <= TIE + 1e-9]
    chosen = min(keeping, key=lambda each: (each.sees, each.traffic, candidates.index(each)))
    passed_over |= {each.name: _worse(each) for each in eligible if each not in level}
    for each in level:
        if each not in keeping:
            less = f"its test accuracy without attackers is {percent(each.clean)}"
            passed_over[each.name] = f"takes as little harm, but {less}"
    tied = tuple(each.name for each in keeping if each is not chosen)
    costlier = {} if chosen.judgement == "held" else _holds_but_costs_more(candidates, plain, tolerance)
    attack, harm = chosen.worst or ("", 1.0)
    return Recommendation(chosen.name, chosen.judgement, attack, harm, tied, passed_over, costlier)


def _holds_but_costs_more(candidates: Sequence[Candidate], plain: float | None, tolerance: float) -> dict[str, float]:
    """Return the defenses that would be recommended at a larger tolerance, the cheapest first."""
    able = [each for each in candidates if each.judgement == "held" and not _ineligible(each, plain, 1.0)]
    costs = sorted(((plain or 0.0) - (each.clean or 0.0), candidates.index(each), each.name) for each in able)
    return {name: cost for cost, _, name in costs if round(cost, 4) > tolerance}


def _rank(candidate: Candidate) -> tuple[int, float]:
    return ORDER.index(candidate.judgement or "fell"), candidate.harm


def _ineligible(candidate: Candidate, plain: float | None, tolerance: float) -> str:
    """Return why a defense is not eligible; '' if it is."""
    if candidate.clean is None:
        return "does not learn the task without attackers, or that was not measured"
    missing = [attack for attack, harm in candidate.harms.items() if harm is None]
    if missing or not candidate.harms:
        return f"was not measured against {', '.join(missing) or 'any attack'}"
    cost = (candidate.clean if plain is None else plain) - candidate.clean
    if round(cost, 4) > tolerance:
        return f"costs {points(cost)} points of test accuracy without any attacker ({percent(candidate.clean)})"
    return ""


def _worse(candidate: Candidate) -> str:
    attack, harm = candidate.worst or ("", 1.0)
    how = {"held": "holds, but", "in part": "holds in part:", "fell": "falls:"}[candidate.judgement or "fell"]
    return f"{how} {attack} does {points(harm)} points of harm"
