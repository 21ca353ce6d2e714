"""A certificate as a document: the verdict in plain sentences, the radii, the assumptions; and everything as JSON.

In the JSON radii are natural logarithms, null for a radius of 0.
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
from sparsefed.commands.certify.bounds import Bounds, power, written
from sparsefed.commands.certify.certificate import Certificate, share_down
from sparsefed.commands.certify.radius_charts import charts
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.theory.linear import Certified
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule

MOST_ROWS = 8  # of the table of certified accuracies
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
    """Return a certificate as a document."""
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
    what = f"The {'run' if source.run else 'config'} {source.label}"
    lead = f"{what}: {len(source.rounds):,} rounds, {source.d:,} parameters."
    return doc.Document(f"SparseFed: {found.title}", lead, parts)


def _summary(found: Certificate) -> Iterator[doc.Block]:
    _, first, *others = found.verdict
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


# --- tables ----------------------------------------------------------------------------------------------------------


def _radius_table(found: Certificate) -> doc.Table:
    """Return every radius, of the source and of its dense twin."""
    described = {"sparse": f"sparse, k = {found.protocols.own.k:,}" if found.sparse else "", "dense": "dense"}
    heads: list[str | doc.Head] = ["log10 of", doc.Head("a bound?", left=True)]
    heads += [cell for kind in found.sides for cell in (described[kind], PARTS)]
    return doc.table(found.title, heads, (_radius_cells(found, field) for field in fields(found)))


def _radius_cells(found: Certificate, field: str) -> Iterator[str | doc.TableCell]:
    best = "capped" if found.own.best == found.own.capped else "softmax"
    bounds = found.is_bound(field)
    badges = ("not a bound",) if field == "paper" and bounds == "NO" else ()
    yield doc.TableCell(NAMES[field], badges=badges, strong=field == best)
    yield bounds
    for side in found.sides.values():
        radius = getattr(side, field)
        if radius is None:
            yield from ("–", "–")
        else:
            number = f" ({written(radius.log)})" if radius.log < math.log(1e6) else ""
            yield doc.TableCell(power(radius.log) + number, radius.log10 if math.isfinite(radius.log) else None)
            yield "–" if field == "movement" else f"{power(radius.additive)} + {power(radius.propagation)}"


def fields(found: Certificate) -> list[str]:
    """Return the bounds that this certificate has."""
    return [field for field in NAMES if any(getattr(each, field) is not None for each in found.sides.values())]


def _accuracy_rows(found: Accuracy) -> Iterator[tuple[doc.TableCell, ...]]:
    stride = max(1, len(found.curve) // MOST_ROWS)
    for each in found.curve[::stride] or (found.certified,):
        radii = (doc.TableCell(written(log) if log < math.inf else "–") for log in each.radii)
        share = doc.TableCell(f"{100 * each.share:.3g}%", each.share)
        yield share, doc.TableCell(share_down(each.accuracy), each.accuracy), *radii


# --- for programs ----------------------------------------------------------------------------------------------------


def numbers(found: Certificate) -> dict[str, Any]:
    """Return everything in the table and on the page, unrounded."""
    source = found.source
    return {
        "title": TITLES[found.status],
        "status": found.status,  # certificate, conditional or estimate
        "is_certificate": found.status != "estimate",
        "source": source.label,
        "kind": "config" if source.run is None else "run",
        "name": source.name,
        "finished": source.finished,
        "verdict": found.verdict,
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
            field: {"is_bound": found.is_bound(field), **_radius(getattr(bounds, field))} for field in fields(found)
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
        "certified": _certified(found.certified),
        "vacuous": found.vacuous,
        "attacked": found.attacked,
        "largest_share": found.largest,
        "curve": [_certified(each) for each in found.curve],
    }


def _certified(each: Certified) -> dict[str, float | None]:
    radii = {"log_l1": each.radii.l1, "log_l2": each.radii.l2}
    known = {name: value if math.isfinite(value) else None for name, value in radii.items()}
    return {"share": each.share, "accuracy": each.accuracy, **known}
