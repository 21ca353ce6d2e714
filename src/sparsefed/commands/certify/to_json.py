"""A certificate as JSON for programs. Radii are natural logarithms, null where a radius is 0 and has none."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from sparsefed.commands.certify.accuracy import Accuracy
from sparsefed.commands.certify.assumptions import TITLES
from sparsefed.commands.certify.bounds import Bounds
from sparsefed.commands.certify.certificate import Certificate
from sparsefed.commands.certify.text import fields
from sparsefed.theory.linear import Certified
from sparsefed.theory.radius import Radius
from sparsefed.theory.threat_schedule import ThreatSchedule


def as_json(found: Certificate) -> dict[str, Any]:
    """Everything that the table and the page say, unrounded."""
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
