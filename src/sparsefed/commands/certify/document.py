"""A certificate as a document: the verdict in plain sentences, the radii, the assumptions, charts; and as JSON.

In the JSON radii are natural logarithms, null for a radius of 0.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed.commands.certify.assumptions import TITLES
from sparsefed.commands.certify.certificate import Certificate
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.reports.lines import PALETTE, Stroke, colours, dashes, dressed
from sparsefed.results.numbers import finite, percent, significant
from sparsefed.theory.bounds import Bounds, by_round
from sparsefed.theory.linear import Accuracy, Certified
from sparsefed.theory.radius import Radius
from sparsefed.theory.rounding import power, share_down, written

Points = Sequence[tuple[float, float]]
MOST_ROWS = 8  # of the table of certified accuracies
MOST_ROUNDS = 24  # at which a radius is drawn: each is the certificate of a run that long
NAMES = {  # of the radii of `Bounds`
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
CAPTIONS = {
    "accuracy": "Higher is better: the share of test points that are right, and that no attack can make wrong.",
    "radius": "Lower is better: how far attackers can drive the model. Dotted: what clipping promises by itself.",
    "theorem": "The recursion alone. Where it is above the dotted line, it says less than clipping does by itself.",
}
STROKES = {
    "sparse": Stroke(PALETTE[0], (1, 0)),
    "dense": Stroke(PALETTE[1], (8, 3)),
    "sparse, clipping alone": Stroke(PALETTE[0], (3, 2)),
    "dense, clipping alone": Stroke(PALETTE[1], (3, 2)),
    "certified accuracy": Stroke(PALETTE[0], (1, 0)),
    "chance": Stroke(PALETTE[1], (3, 2)),
}


def document(certificate: Certificate) -> doc.Document:
    """Return a certificate as a document."""
    source, accuracy = certificate.source, certificate.accuracy
    figures = [doc.Figure(name, chart, CAPTIONS[name]) for name, chart in charts(certificate).items()]
    kind = "run folder" if source.run else "config"
    parts = (
        doc.section("Summary", _summary(certificate), terminal=True),
        doc.section("Radii" if accuracy is None else "Certified accuracy and radii", figures),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(source.config))))),
        doc.section(
            "How to run it again",
            doc.paragraph(f"With the same {kind}, the same numbers come out:"),
            doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]])),
        ),
    )
    what = f"The {'run' if source.run else 'config'} {source.label}"
    lead = f"{what}: {len(source.rounds):,} rounds, {source.d:,} parameters."
    return doc.Document(f"SparseFed: {certificate.title}", lead, parts)


def _summary(certificate: Certificate) -> Iterator[doc.Block]:
    _, first, *others = certificate.verdict
    if certificate.status == "estimate":
        warning = "Estimate, not a certificate: c was only estimated from below, so what needs it is not a bound."
        yield doc.paragraph(warning, kind="warning")
    if not certificate.source.finished:
        yield doc.paragraph("Preliminary: the run is not finished.", kind="warning")
    yield doc.paragraph(first, kind="verdict")
    for sentence in others:
        yield doc.paragraph(sentence, kind="warning" if sentence.startswith("Warning") else "")
    heads: list[str | doc.Head] = ["log10 of", doc.Head("a bound?", left=True)]
    for kind, side in certificate.sides.items():
        k = side.schedule.k
        heads += [kind if k is None else f"{kind}, k = {k:,}", "additive + propagation"]
    yield doc.table(certificate.title, heads, (_radius_cells(certificate, name) for name in _names(certificate)))
    yield doc.note(LEGEND, page_only=False)
    if certificate.accuracy is not None:
        head = ("attackers' share", "certified accuracy", "l1 radius", "l2 radius")
        yield doc.table("Certified accuracy", head, _accuracy_rows(certificate.accuracy))
    assumed = ((each.about, each.says, each.mark) for each in certificate.assumptions)
    yield doc.table("What it rests on", ("About", "What", "Known how"), assumed, "prose")


def _names(certificate: Certificate) -> list[str]:
    """Return the radii that this certificate has, on either side."""
    return [name for name in NAMES if any(name in side.radii for side in certificate.sides.values())]


def _radius_cells(certificate: Certificate, name: str) -> Iterator[str | doc.TableCell]:
    bound = certificate.is_bound(name)
    badges = ("not a bound",) if bound == "NO" else ()
    yield doc.TableCell(NAMES[name], badges=badges, strong=name == certificate.own.best_name)
    yield bound
    for side in certificate.sides.values():
        if name not in side.radii:
            yield from ("–", "–")
            continue
        each = side.radii[name]
        number = f" ({written(each.log)})" if each.log < math.log(1e6) else ""
        yield doc.TableCell(power(each.log) + number, finite(each.log10))
        yield "–" if name == "movement" else f"{power(each.additive)} + {power(each.propagation)}"


def _accuracy_rows(accuracy: Accuracy) -> Iterator[tuple[doc.TableCell, ...]]:
    stride = max(1, len(accuracy.curve) // MOST_ROWS)
    for each in accuracy.curve[::stride] or (accuracy.certified,):
        logs = (doc.TableCell(written(log) if log < math.inf else "–") for log in each.radii)
        share = doc.TableCell(f"{100 * each.share:.3g}%", each.share)
        yield share, doc.TableCell(share_down(each.accuracy), each.accuracy), *logs


# --- charts ----------------------------------------------------------------------------------------------------------


def charts(certificate: Certificate) -> dict[str, alt.LayerChart]:
    """Return the charts that there are numbers for, by names that can be part of a file name."""
    accuracy = certificate.accuracy
    first = {"accuracy": _accuracy_chart(accuracy)} if accuracy is not None and accuracy.curve else {}
    curves = {name: by_round(side.schedule, MOST_ROUNDS) for name, side in certificate.sides.items()}
    estimate = " Estimate, not a certificate." if certificate.status == "estimate" else ""
    return first | {
        "radius": _radius_chart("The radius to quote", curves, "best", estimate),
        "theorem": _radius_chart("What the theorem says without the cap", curves, "recursion", estimate),
    }


def _radius_chart(what: str, curves: Mapping[str, Mapping[str, Points]], bound: str, estimate: str) -> alt.LayerChart:
    """Draw log10 of a radius against the round, sparse and dense, with the bound from clipping alone."""
    every = {side: each[bound] for side, each in curves.items()}
    every |= {f"{side}, clipping alone": each["movement"] for side, each in curves.items()}
    lines = {name: points for name, points in every.items() if points}
    ends = "; ".join(f"{name} ends at {_written10(points[-1][1])}" for name, points in lines.items())
    x = alt.X("x:Q", title="Round", axis=alt.Axis(format="d", grid=False, tickMinStep=1, tickCount=6))
    y = alt.Y("y:Q", title="log10 of the l1 radius", scale=alt.Scale(zero=False))
    return _lines(lines, x, y, alt.Title(what, subtitle=f"By round: {ends}.{estimate}"), "Round", "Radius", _written10)


def _written10(log10: float) -> str:
    return written(log10 * math.log(10))


def _accuracy_chart(accuracy: Accuracy) -> alt.LayerChart:
    lines = {
        "certified accuracy": [(each.share, each.accuracy) for each in accuracy.curve],
        "chance": [(accuracy.curve[end].share, accuracy.chance) for end in (0, -1)],
    }
    x = alt.X("x:Q", title="Attackers' share of each round's updates", axis=alt.Axis(format=".2~%", tickCount=6))
    y = alt.Y("y:Q", title="Certified accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    best = "at no share" if not accuracy.largest else f"up to a share of {100 * accuracy.largest:.3g}%"
    chance = f"more than chance ({percent(accuracy.chance)}) is certified {best}"
    subtitle = f"{percent(accuracy.plain)} without attackers; {chance}."
    title = alt.Title("Predictions that no attack can change", subtitle=subtitle)
    return _lines(lines, x, y, title, "Share", "Certified", percent)


def _lines(
    lines: Mapping[str, Points],
    x: alt.X,
    y: alt.Y,
    title: alt.Title,
    across: str,
    up: str,
    write: Callable[[float], str],
) -> alt.LayerChart:
    """Draw named curves with a dot and a tooltip at each point."""
    strokes = {name: STROKES[name] for name in lines}
    data: list[dict[str, Any]] = [
        {"line": name, "x": significant(at, 6), "y": significant(v, 6), across: f"{at:.4g}", up: write(v)}
        for name, points in lines.items()
        for at, v in points
    ]
    base = alt.Chart(alt.InlineData(values=data)).encode(x=x, y=y, color=colours(strokes))
    tips = [alt.Tooltip("line:N", title="Bound"), alt.Tooltip(f"{across}:N"), alt.Tooltip(f"{up}:N")]
    dots = base.mark_point(filled=True, size=40, opacity=0.9).encode(tooltip=tips)
    chart = alt.LayerChart(layer=[base.mark_line(strokeWidth=2).encode(strokeDash=dashes(strokes)), dots])
    return dressed(chart, title, list(lines))


# --- for programs ----------------------------------------------------------------------------------------------------


def numbers(certificate: Certificate) -> dict[str, Any]:
    """Return everything in the table and on the page, unrounded."""
    source, sparse, accuracy = certificate.source, certificate.sparse, certificate.accuracy
    return {
        "title": TITLES[certificate.status],
        "status": certificate.status,  # certificate, conditional or estimate
        "is_certificate": certificate.status != "estimate",
        "source": source.label,
        "kind": "config" if source.run is None else "run",
        "name": source.name,
        "finished": source.finished,
        "verdict": certificate.verdict,
        "c": certificate.c,
        "travelled_l1": certificate.travelled,
        "sparse": None if sparse is None else _side(certificate, sparse),
        "dense": _side(certificate, certificate.dense),
        "accuracy": None if accuracy is None else _accuracy(accuracy),
        "assumptions": [asdict(each) for each in certificate.assumptions],
    }


def _side(certificate: Certificate, side: Bounds) -> dict[str, Any]:
    schedule = side.schedule
    shares = [line.share for line in schedule.lines]
    return {
        "d": schedule.d,
        "k": schedule.k,
        "w": schedule.w,
        "rho": schedule.rho,
        "rounds": len(shares),
        "share": {"mean": sum(shares) / len(shares), "max": max(shares)},
        "radii": {
            name: {"is_bound": certificate.is_bound(name), **_radius(side.radii.get(name))}
            for name in _names(certificate)
        },
        "best": _radius(side.best),
        "only_clipping": side.only_clipping,
    }


def _radius(given: Radius | None) -> dict[str, float | None]:
    parts = dict.fromkeys(("log", "additive", "propagation", "log10")) if given is None else given.parts
    return {name: finite(value) for name, value in parts.items()}


def _accuracy(accuracy: Accuracy) -> dict[str, Any]:
    values = {name: value for name, value in vars(accuracy).items() if name != "largest"}
    certified, curve = _certified(accuracy.certified), [_certified(each) for each in accuracy.curve]
    more = {"vacuous": accuracy.vacuous, "largest_share": accuracy.largest}
    return values | {"certified": certified, "curve": curve} | more


def _certified(each: Certified) -> dict[str, float | None]:
    logs = {"log_l1": finite(each.radii.l1), "log_l2": finite(each.radii.l2)}
    return {"share": each.share, "accuracy": each.accuracy, **logs}
