"""A certificate for a person: the verdict in plain sentences, the table of radii, the list of assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.assumptions import TITLES
from sparsefed.commands.certify.certificate import ALIKE, Bounds, Certificate, power, times, written
from sparsefed.results.numbers import percent
from sparsefed.theory.radius import Radius

MOST_ROWS = 8  # of the table of certified accuracies
HARDLY = 1.1  # a factor that is not worth its digits

ASSUMED = "What it rests on"
PARTS = "additive + propagation"
NAMES = {  # of a field of `Bounds`
    "softmax": "softmax layer, by l2",
    "capped": "capped recursion",
    "recursion": "recursion",
    "recursion_sqrt_d": "recursion, sqrt(d)",
    "movement": "clipping alone",
    "closed_form": "closed form, sound",
    "paper": "closed form, paper",
}
LEGEND = (
    "Of the l1 distance between the attacked model and the one without attackers, rounded up; in brackets the number "
    "itself. Additive: what the rounds add up to; propagation: the factor by which early differences grow. A bound?: "
    "'if' means under the assumptions that were given or measured. sqrt(d): the additive term over all "
    "coordinates, as the paper has it, instead of the w = min(d, 2k) that count. Clipping alone: no two runs of "
    "updates of this length end further apart, whoever sends them. Capped: the recursion, where no round adds more "
    "than that. By l2: sqrt(d) times the l2 radius of a convex model, which needs no exponential."
)


def title(found: Certificate) -> str:
    """What it may be called."""
    return f"{TITLES[found.status]}: {found.source.name}"


def verdict(found: Certificate) -> list[str]:
    """What it comes to, the most important first."""
    return [
        f"{title(found)}.",
        _headline(found),
        *_worth(found),
        *_gain(found),
        *_predictions(found),
        *_warnings(found),
    ]


def in_short(found: Certificate) -> list[str]:
    """Return the radius, what it is worth and what is certified of test points, a sentence each."""
    return [_headline(found), next(_worth(found)), *list(_predictions(found))[:1]]


def _headline(found: Certificate) -> str:
    sure, distance = {
        "certificate": ("However they attack,", "is at most"),
        "conditional": ("If what was given or measured holds under every attack, then", "is at most"),
        "estimate": ("No promise, for c is only estimated:", "would be at most"),
    }[found.status]
    done = "" if found.source.finished else " (of an unfinished run: the rounds done)"
    return (
        f"{sure} after {len(found.source.rounds):,} rounds{done} the model {distance} {written(found.own.best.log)} in "
        "l1 from the one that the same devices would have trained without attackers."
    )


def _worth(found: Certificate) -> Iterator[str]:
    """What the number is worth beside the trivial bound, and beside what training did."""
    own = found.own
    if own.only_clipping:
        yield (
            "The theorem says nothing here that clipping does not say by itself: no two runs of updates of this length "
            "end further apart."
        )
        if found.status == "estimate" and found.status_of("movement") == "certificate":
            yield "That part does not need c, so this one number is a bound."
    else:
        factor = own.movement.log - own.best.log
        little = factor < math.log(HARDLY)
        by = "hardly" if little else f"{times(factor)} times"
        yield f"That is {by} smaller than what clipping promises by itself."
    if found.travelled is not None:
        yield _travelled(found, found.travelled)


def _travelled(found: Certificate, travelled: float) -> str:
    own = found.own.best.log
    apart = own - math.log(travelled) if travelled > 0 else math.inf
    moved = f"Training itself moved this run's model by {travelled:,.4g} in l1"
    if apart >= 0:
        return f"{moved}: a radius no smaller than that leaves room for an attack that undoes all of it (vacuous)."
    return f"{moved}: the radius is smaller, so no attack can undo it all."


def _gain(found: Certificate) -> Iterator[str]:
    if found.sparse is None:
        return
    apart = found.dense.best.log - found.sparse.best.log
    if abs(apart) <= ALIKE:
        yield "Without top-k the radius would be the same."
    else:
        how = f"{times(abs(apart))} times {'larger' if apart > 0 else 'smaller'}"
        yield f"Without top-k (dense) it would be {how}: {written(found.dense.best.log)}."


def _predictions(found: Certificate) -> Iterator[str]:
    """What is certified of test points."""
    accuracy = found.accuracy
    if accuracy is None:
        if found.source.exceeds(found.protocols.own):
            yield "Certified accuracy is left out: this run had more attackers in some round than were asked about."
        return
    asked = accuracy.asked
    of = f"{_down(asked.accuracy)} of {accuracy.points:,} test points"
    if accuracy.attacked:
        yield (
            f"Certified accuracy: on {of} this model is right, and so is the one that the same devices would have "
            "trained without attackers, whatever these sent (the bound holds in both directions)."
        )
    else:
        yield f"Certified accuracy: {of} are right and stay right, however they attack ({_plain(accuracy)})."
    if accuracy.vacuous:
        yield "That is no more than always naming the most frequent class would get: vacuous."
    if accuracy.attacked:
        yield (
            "For a curve against the share of attackers certify the run without them (`sparsefed run --twins`), or the "
            "config with --train."
        )
    elif accuracy.largest:
        yield f"More than chance is certified up to a share of {_share(accuracy.largest)} of each round's updates."
    else:
        yield "More than chance is certified at no share of attackers."


def _down(share: float) -> str:
    """A share that is certified, rounded down.

    >>> _down(0.8999), _down(0.9)
    ('89.9%', '90.0%')
    """
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def _plain(accuracy: Accuracy) -> str:
    return f"{percent(accuracy.plain)} without attackers, {percent(accuracy.chance)} by chance"


def _share(share: float) -> str:
    """Rounded down, for what is certified at a share is so below it.

    >>> _share(0.012345), _share(1.0)
    ('1.23%', '100%')
    """
    decimals = 2 - math.floor(math.log10(100 * share)) if share > 0 else 0
    return f"{math.floor(100 * share * 10.0**decimals + 1e-9) / 10.0**decimals:.3g}%"


def _warnings(found: Certificate) -> Iterator[str]:
    if not found.own.paper_is_bound:
        yield (
            "Warning: the paper's closed form is NOT a bound here, because its last step needs every learning rate to "
            "be at least 1 and no momentum; it is shown for comparison only."
        )


# --- tables ----------------------------------------------------------------------------------------------------------


def rows(found: Certificate) -> Iterator[tuple[str, ...]]:
    """The cells of the table of radii: name, whether it is a bound, and for each protocol the radius and its parts."""
    for field in fields(found):
        name, radii = NAMES[field], [getattr(each, field) for each in sides(found).values()]
        yield name, bound(found, field), *(cell for each in radii for cell in _cells(field, each))


def fields(found: Certificate) -> list[str]:
    """The bounds that this certificate has."""
    return [field for field in NAMES if any(getattr(each, field) is not None for each in sides(found).values())]


def _cells(field: str, radius: Radius | None) -> tuple[str, str]:
    if radius is None:
        return "–", "–"
    number = f" ({written(radius.log)})" if radius.log < math.log(1e6) else ""
    parts = "–" if field == "movement" else f"{power(radius.additive)} + {power(radius.propagation)}"
    return power(radius.log) + number, parts


def bound(found: Certificate, field: str) -> str:
    """Whether the number is one."""
    if field == "paper" and not found.own.paper_is_bound:
        return "NO"
    return {"certificate": "yes", "conditional": "if", "estimate": "estimate"}[found.status_of(field)]


def sides(found: Certificate) -> dict[str, Bounds]:
    """The source's own protocol, and the dense one where it is another."""
    return {**({} if found.sparse is None else {"sparse": found.sparse}), "dense": found.dense}


def heads(found: Certificate) -> list[str]:
    """Of the table of radii."""
    described = {"sparse": f"sparse, k = {found.protocols.own.k:,}" if found.sparse else "", "dense": "dense"}
    return ["log10 of", "a bound?", *(cell for kind in sides(found) for cell in (described[kind], PARTS))]


def radius_table(found: Certificate) -> Table:
    """Every radius, of the source and of its dense twin."""
    table = Table(title=escape(title(found)), title_justify="left", caption=LEGEND, caption_justify="left")
    for i, heading in enumerate(heads(found)):
        table.add_column(heading, justify="left" if i < 2 else "right", overflow="fold")
    best = NAMES["capped" if found.own.best == found.own.capped else "softmax"]
    for cells in rows(found):
        table.add_row(*map(escape, cells), style="bold" if cells[0] == best else "")
    return table


def assumption_table(found: Certificate) -> Table:
    """What it rests on."""
    table = Table(title=ASSUMED, title_justify="left")
    for heading in ("about", "what", "known how"):
        table.add_column(heading, overflow="fold")
    for each in found.assumptions:
        table.add_row(escape(each.about), escape(each.says), each.mark)
    return table


def accuracy_heads() -> list[str]:
    """Of the table of certified accuracies."""
    return ["attackers' share", "certified accuracy", "l1 radius", "l2 radius"]


def accuracy_rows(found: Accuracy) -> Iterator[tuple[str, ...]]:
    """Some of the curve."""
    stride = max(1, len(found.curve) // MOST_ROWS)
    for each in found.curve[::stride] or (found.asked,):
        radii = (written(log) if log < math.inf else "–" for log in each.radii)
        yield f"{100 * each.share:.3g}%", _down(each.accuracy), *radii


def accuracy_table(found: Accuracy) -> Table:
    """Certified accuracy against the share of attackers."""
    table = Table(title="Certified accuracy", title_justify="left")
    for heading in accuracy_heads():
        table.add_column(heading, justify="right")
    for cells in accuracy_rows(found):
        table.add_row(*cells)
    return table


def tables(found: Certificate) -> list[Table]:
    """All of them."""
    predictions = [] if found.accuracy is None else [accuracy_table(found.accuracy)]
    return [radius_table(found), *predictions, assumption_table(found)]
