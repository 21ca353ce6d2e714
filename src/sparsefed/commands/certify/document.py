"""A certificate for a reader: the verdict in plain sentences, the radii, what it rests on; and all of it as JSON.

In the JSON radii are natural logarithms, null where a radius is 0 and has none.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sparsefed import config as configs
from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.assumptions import TITLES
from sparsefed.commands.certify.certificate import ALIKE, Bounds, Certificate, power, times, written
from sparsefed.commands.certify.radius_charts import charts
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.results.numbers import percent
from sparsefed.theory.linear import Certified
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

MOST_ROWS = 8  # of the table of certified accuracies
HARDLY = 1.1  # a factor that is not worth its digits
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
SAID = {
    "accuracy": "Higher is better: the share of test points that are right, and that no attack can make wrong.",
    "radius": "Lower is better: how far attackers can drive the model. Dotted: what clipping promises by itself.",
    "theorem": "The recursion alone. Where it is above the dotted line, it says less than clipping does by itself.",
}


def document(found: Certificate) -> doc.Document:
    """Return everything there is to read about a certificate."""
    drawn = [doc.Figure(name, chart, SAID[name]) for name, chart in charts(found).items()]
    kind = "run folder" if found.source.run else "config"
    parts = (
        doc.section("Summary", _summary(found), terminal=True),
        doc.section("Radii" if found.accuracy is None else "Certified accuracy and radii", drawn),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(found.source.config))))),
        doc.section(
            "How to run it again",
            doc.paragraph(f"With the same {kind}, the same numbers come out:"),
            doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]])),
        ),
    )
    source = found.source
    what = f"The {'run' if source.run else 'config'} {source.path}"
    lead = f"{what}: {len(source.rounds):,} rounds, {source.d:,} parameters."
    return doc.Document(f"SparseFed: {title(found)}", lead, parts)


def _summary(found: Certificate) -> Iterator[doc.Block]:
    _, first, *others = verdict(found)
    if found.status == "estimate":
        told = "Estimate, not a certificate: c was only estimated from below, so what needs it is not a bound."
        yield doc.paragraph(told, kind="warning")
    if not found.source.finished:
        yield doc.paragraph("Preliminary: the run is not finished.", kind="warning")
    yield doc.paragraph(first, kind="verdict")
    for sentence in others:
        yield doc.paragraph(sentence, kind="warning" if sentence.startswith("Warning") else "")
    yield _radius_table(found)
    yield doc.note(LEGEND, page_only=False)
    if found.accuracy is not None:
        head = ("attackers' share", "certified accuracy", "l1 radius", "l2 radius")
        yield doc.table("Certified accuracy", head, _accuracy_rows(found.accuracy))
    assumed = ((each.about, each.says, each.mark) for each in found.assumptions)
    yield doc.table("What it rests on", ("About", "What", "Known how"), assumed, "prose")


def title(found: Certificate) -> str:
    """Return what it may be called."""
    return f"{TITLES[found.status]}: {found.source.name}"


def verdict(found: Certificate) -> list[str]:
    """Return what it comes to, the most important first."""
    return [
        f"{title(found)}.",
        _headline(found),
        *_worth(found),
        *_gain(found),
        *_predictions(found),
        *_warnings(found),
    ]


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
    """Say what the number is worth beside the trivial bound, and beside what training did."""
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
        by = "hardly" if factor < math.log(HARDLY) else f"{times(factor)} times"
        yield f"That is {by} smaller than what clipping promises by itself."
    if found.travelled is not None:
        apart = own.best.log - math.log(found.travelled) if found.travelled > 0 else math.inf
        moved = f"Training itself moved this run's model by {found.travelled:,.4g} in l1"
        vacuous = "a radius no smaller than that leaves room for an attack that undoes all of it (vacuous)"
        yield f"{moved}: {vacuous if apart >= 0 else 'the radius is smaller, so no attack can undo it all'}."


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
    """Say what is certified of test points."""
    accuracy = found.accuracy
    if accuracy is None:
        if found.source.exceeds(found.protocols.own):
            yield "Certified accuracy is left out: this run had more attackers in some round than were asked about."
        return
    of = f"{_down(accuracy.asked.accuracy)} of {accuracy.points:,} test points"
    if accuracy.attacked:
        yield (
            f"Certified accuracy: on {of} this model is right, and so is the one that the same devices would have "
            "trained without attackers, whatever these sent (the bound holds in both directions)."
        )
    else:
        plain = f"{percent(accuracy.plain)} without attackers, {percent(accuracy.chance)} by chance"
        yield f"Certified accuracy: {of} are right and stay right, however they attack ({plain})."
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
    """Return a share that is certified, rounded down.

    >>> _down(0.8999), _down(0.9)
    ('89.9%', '90.0%')
    """
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def _share(share: float) -> str:
    """Return a share rounded down, for what is certified at it is so below it.

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


def _radius_table(found: Certificate) -> doc.Table:
    """Return every radius, of the source and of its dense twin."""
    described = {"sparse": f"sparse, k = {found.protocols.own.k:,}" if found.sparse else "", "dense": "dense"}
    heads: list[str | doc.Head] = ["log10 of", doc.Head("a bound?", left=True)]
    heads += [cell for kind in sides(found) for cell in (described[kind], PARTS)]
    return doc.table(title(found), heads, (_radius_cells(found, field) for field in fields(found)))


def _radius_cells(found: Certificate, field: str) -> Iterator[str | doc.TableCell]:
    best = "capped" if found.own.best == found.own.capped else "softmax"
    bounds = bound(found, field)
    badges = ("not a bound",) if field == "paper" and bounds == "NO" else ()
    yield doc.TableCell(NAMES[field], badges=badges, strong=field == best)
    yield bounds
    for side in sides(found).values():
        radius = getattr(side, field)
        if radius is None:
            yield from ("–", "–")
        else:
            number = f" ({written(radius.log)})" if radius.log < math.log(1e6) else ""
            yield doc.TableCell(power(radius.log) + number, radius.log10 if math.isfinite(radius.log) else None)
            yield "–" if field == "movement" else f"{power(radius.additive)} + {power(radius.propagation)}"


def fields(found: Certificate) -> list[str]:
    """Return the bounds that this certificate has."""
    return [field for field in NAMES if any(getattr(each, field) is not None for each in sides(found).values())]


def bound(found: Certificate, field: str) -> str:
    """Return whether the number is a bound."""
    if field == "paper" and not found.own.paper_is_bound:
        return "NO"
    return {"certificate": "yes", "conditional": "if", "estimate": "estimate"}[found.status_of(field)]


def sides(found: Certificate) -> dict[str, Bounds]:
    """Return the bounds of the source's own protocol, and of the dense one where it is another."""
    return {**({} if found.sparse is None else {"sparse": found.sparse}), "dense": found.dense}


def _accuracy_rows(found: Accuracy) -> Iterator[tuple[doc.TableCell, ...]]:
    stride = max(1, len(found.curve) // MOST_ROWS)
    for each in found.curve[::stride] or (found.asked,):
        radii = (doc.TableCell(written(log) if log < math.inf else "–") for log in each.radii)
        share = doc.TableCell(f"{100 * each.share:.3g}%", each.share)
        yield share, doc.TableCell(_down(each.accuracy), each.accuracy), *radii


# --- for programs ----------------------------------------------------------------------------------------------------


def records(found: Certificate) -> list[dict[str, Any]]:
    """Return the radii, a row for each bound of each protocol."""
    return [
        {"protocol": kind, "bound": field, "is_bound": bound(found, field), **_radius(getattr(side, field))}
        for kind, side in sides(found).items()
        for field in fields(found)
    ]


def numbers(found: Certificate) -> dict[str, Any]:
    """Return everything that the table and the page say, unrounded."""
    source = found.source
    return {
        "title": TITLES[found.status],
        "status": found.status,  # certificate, conditional or estimate
        "is_certificate": found.status != "estimate",
        "source": str(source.path),
        "kind": "config" if source.run is None else "run",
        "name": source.name,
        "finished": source.finished,
        "verdict": verdict(found),
        "c": found.c,
        "travelled_l1": found.travelled,
        "sparse": None if found.sparse is None else _side(found, found.protocols.own, found.sparse),
        "dense": _side(found, found.protocols.dense, found.dense),
        "accuracy": None if found.accuracy is None else _accuracy(found.accuracy),
        "assumptions": [asdict(each) for each in found.assumptions],
    }


def _side(found: Certificate, protocol: ThreatSchedule, bounds: Bounds) -> dict[str, Any]:
    shares = [line.share for line in protocol.lines]
    return {
        "d": protocol.d,
        "k": protocol.k,
        "w": protocol.w,
        "rho": protocol.rho,
        "rounds": len(protocol.lines),
        "share": {"mean": sum(shares) / len(shares), "max": max(shares)},
        "radii": {
            field: {"is_bound": bound(found, field), **_radius(getattr(bounds, field))} for field in fields(found)
        },
        "best": _radius(bounds.best),
        "only_clipping": bounds.only_clipping,
    }


def _radius(radius: Radius | None) -> dict[str, float | None]:
    if radius is None:
        return dict.fromkeys(("log", "additive", "propagation", "log10"))
    parts = {"log": radius.log, "additive": radius.additive, "propagation": radius.propagation, "log10": radius.log10}
    return {name: value if math.isfinite(value) else None for name, value in parts.items()}


def _accuracy(found: Accuracy) -> dict[str, Any]:
    return {
        "points": found.points,
        "plain": found.plain,
        "chance": found.chance,
        "certified": _certified(found.asked),
        "vacuous": found.vacuous,
        "attacked": found.attacked,
        "largest_share": found.largest,
        "curve": [_certified(each) for each in found.curve],
    }


def _certified(each: Certified) -> dict[str, float | None]:
    radii = {"log_l1": each.radii.l1, "log_l2": each.radii.l2}
    known = {name: value if math.isfinite(value) else None for name, value in radii.items()}
    return {"share": each.share, "accuracy": each.accuracy, **known}
