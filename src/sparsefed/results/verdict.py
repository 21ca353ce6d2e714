"""The verdict: two sentences made from the numbers, including their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparsefed.core.types import RunRecord
from sparsefed.results.groups import grouped
from sparsefed.results.matrix import Entry, Judgement, Matrix, judgements, matrices
from sparsefed.results.numbers import percent, points
from sparsefed.results.summary import SummaryRow, progress

Pair = tuple[str, str]  # a defense under an attack
Case = tuple[float, str, str]  # its accuracy, and the pair

MOST_NAMED = 4  # pairs of a defense and an attack that one sentence can name
MOST_SETTINGS = 4
WORDS: Mapping[Judgement, str] = {"held": "held", "in part": "held in part", "fell": "fell"}


def verdict(runs: Sequence[RunRecord]) -> list[str]:
    """Return the results and which defense held, in two sentences per setting."""
    return verdicts(matrices(runs))


def verdicts(settings: Sequence[Matrix]) -> list[str]:
    """Return two sentences for each of the first matrices."""
    several = [sentence for matrix in settings[:MOST_SETTINGS] for sentence in sentences(matrix)]
    rest = len(settings) - MOST_SETTINGS
    return [*several, f"{rest} more settings are in the tables below."] if rest > 0 else several


def sentences(matrix: Matrix) -> list[str]:
    """Describe a matrix in two sentences: the numbers, and what they mean."""
    where = f"On {matrix.setting}: " if matrix.setting else ""
    if not matrix.attacked:
        return [
            f"{where}{_unattacked(matrix)}.",
            f"Without an attack it is unknown whether a defense holds; {_seeds(matrix)}.",
        ]
    few = len(matrix.attacked) <= MOST_NAMED
    return [f"{where}{_each(matrix) if few else _extremes(matrix)}.", f"{_who_held(matrix)}."]


def preliminary(rows: Sequence[SummaryRow]) -> str:
    """Return a sentence that lists the unfinished runs; '' if all are finished."""
    still = [f"{row.name} ({progress(row)}, {row.status})" for row in rows if not row.finished]
    return f"Preliminary: not every run is finished: {', '.join(still)}." if still else ""


def listed(words: Sequence[str]) -> str:
    """Join words as an English list.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _unattacked(matrix: Matrix) -> str:
    ends = sorted((entry.test, defense) for (defense, _), entry in matrix.entries.items() if entry.test is not None)
    if not ends:
        return "Nothing has been evaluated yet"
    (low, worst), (high, best) = ends[0], ends[-1]
    if percent(low) == percent(high):
        return f"Without an attack, test accuracy ends at {percent(low)}{' in every run' * (len(ends) > 1)}"
    return f"Without an attack, test accuracy ends between {percent(low)} ({worst}) and {percent(high)} ({best})"


def _each(matrix: Matrix) -> str:
    """Describe every attacked pair."""
    one = len(matrix.hostile) == 1
    each = [
        f"{defense if one else f'{defense} under {attack}'} {_outcome(entry)}"
        for (defense, attack), entry in matrix.attacked.items()
    ]
    joint = ", and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))  # each already contains an `and`
    return f"Under the attack {matrix.hostile[0]}, {joint}" if one else f"Under attack, {joint}"


def _outcome(entry: Entry) -> str:
    if not entry.converged:
        return "learns nothing"
    parts = {"attack accuracy": entry.attack, "test accuracy": entry.test}
    known = [f"{percent(value)} {what}" for what, value in parts.items() if value is not None]
    return f"ends at {listed(known)}" if known else "is not evaluated yet"


def _extremes(matrix: Matrix) -> str:
    """Describe the defenses that fared worst and best, each under its most harmful attack."""
    met = f"{counted(len(judgements(matrix)), 'defense')} met {counted(len(matrix.hostile), 'attack')}"
    ended = {pair: entry for pair, entry in matrix.attacked.items() if entry.converged}
    gains = _worst({pair: entry.attack for pair, entry in ended.items()}, max)
    if len(gains) > 1:
        return f"{met}: the attackers get most against {_against(gains[-1])}, and least against {_against(gains[0])}"
    worst = gains or _worst({pair: entry.test for pair, entry in ended.items()}, min)
    if not worst:
        return met
    value, defense, attack = worst[0]
    what = "the attackers get at most" if gains else "test accuracy ends as low as"
    return f"{met}, and {what} {percent(value)} ({defense} under {attack})"


def _against(case: Case) -> str:
    value, defense, attack = case
    return f"{defense} ({percent(value)} attack accuracy, by {attack})"


def _worst(measured: Mapping[Pair, float | None], choose: Callable[[list[Case]], Case]) -> list[Case]:
    """Return the worst attack against each defense, by ascending accuracy."""
    cases = [(value, *pair) for pair, value in measured.items() if value is not None]
    return sorted(map(choose, grouped((defense for _, defense, _ in cases), cases).values()))


def _who_held(matrix: Matrix) -> str:
    known = judgements(matrix)
    if not known:
        return f"Nothing has been measured that tells who held; {_seeds(matrix)}"
    groups = grouped(known.values(), known)
    parts = [f"{listed(groups[j])} {words}" for j, words in WORDS.items() if j in groups]
    several = " against all of them" if len(matrix.hostile) > 1 else ""
    parts[0] = f"{parts[0]}{several}" if "held" in groups else f"no defense held: {parts[0]}"
    return f"By the rule below, {', '.join(parts)}; {_seeds(matrix)}"


def _seeds(matrix: Matrix) -> str:
    """Describe how far the numbers can be trusted, given the number of seeds."""
    counts = [entry.seeds for entry in matrix.entries.values()]
    if max(counts) == 1:
        return "this is one seed, and a difference of a few points can be chance"
    if min(counts) == 1:
        return "some of it is one seed, where a difference of a few points can be chance"
    spread = points(max(entry.spread for entry in matrix.entries.values()))
    return f"means over {min(counts)} seeds or more, which differ by up to {spread} points"


def counted(n: int, what: str) -> str:
    """Return a number of things.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n} {what}{'s' * (n != 1)}"
