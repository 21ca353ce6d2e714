"""The certificates of a vote as a document: curves side by side, costs, a recommendation; and as JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np

from sparsefed import config as configs
from sparsefed.commands.certify.group_certificate import (
    ALONE,
    CLOSE,
    ENOUGH,
    INSIDE,
    KNOWN,
    L2_ROUTE,
    RECURSION,
    RUN_OFF,
    SPREAD,
    SUBSETS,
    VOTE,
    CertificateCurve,
    VoteCertificate,
)
from sparsefed.core import toml
from sparsefed.reports import document as doc
from sparsefed.reports.lines import GREY, Stroke, colours, dashes, dressed, stroke
from sparsefed.results.numbers import percent, significant
from sparsefed.theory.rounding import share_down

MOST_NUMBERS, MOST_ROWS = 60, 12
CHANCE = "chance"
MEANINGS = {
    VOTE: "The groups' models vote; a device reaches the vote of its own group alone (FLCert-D). The exact worst case.",
    SPREAD: "Each device is in several groups, which learn from more data; it reaches the votes of all of them (Finite "
    "Aggregation).",
    RUN_OFF: "The two labels with most votes go to a second round, in which each group votes for the one that its "
    "model scores higher (Run-Off Election).",
    INSIDE: "The vote, where changing a vote takes as many devices of a group as its own server (the config's, which "
    "clips) bears on that point, and one more: the cheapest set of votes to buy. The exact worst case at these prices.",
    SUBSETS: "Each group is drawn at random; certified is the vote over all subsets of that size (FLCert-P), by a "
    "sample of them, with the stated confidence for all test points together.",
    KNOWN: "The vote of the drawn groups themselves, for attackers who know the draw: no probability in it.",
    RECURSION: "One model that all devices train, by the paper's recursion made sound (l1).",
    L2_ROUTE: "One model that all devices train, by the l2 route for one softmax layer.",
    ALONE: "One model that all devices train. As far as anything is proven, a single device may change any prediction.",
}
PROMISES = {"exact": "certificate", "bound": "certificate", "confidence": "with confidence", "none": "none"}
RESTS_ON = (
    "The groups are a function of the seed, fixed before training; no device can choose its group or send to another.",
    "Each group is trained by its own devices alone: its own server, seed and state; all start from the config's first "
    "model. A group with a compromised device may vote as it likes, whatever was sent, in any round.",
    "The labels of test points are used to count what is right, not for training, voting or certifying.",
    "Of labels with equally many votes the one with the smaller number wins; attackers are given every tie that this "
    "rule gives them.",
    "Nothing is assumed of the model, the loss or the data, and no constant is estimated.",
)
INSIDE_RESTS = (
    "The prices rest on what the l2 route rests on: real numbers (float32's rounding is not counted), honest updates "
    "that are finite, and the longest of them as measured without attackers."
)


def document(result: VoteCertificate) -> doc.Document:
    """Return the certificates of a vote as a document."""
    plan = result.plan
    low, high = plan.sizes
    size = f"{low}" if low == high else f"{low} to {high}"
    caption = "Higher is better: the share of test points that are right, and stay right whatever m devices send."
    figure = doc.Figure("votes", chart(result), caption, _curve_table(result))
    parts = (
        doc.section("Summary", _summary(result), terminal=True),
        doc.section("Certified accuracy", figure),
        doc.section("What each certificate is", _meanings(result)),
        doc.section("What the vote rests on", doc.Bullets(_rests_on(result))),
        doc.section("Config", doc.fold("Config", doc.Listing(toml.dumps(configs.dump(result.config))))),
        doc.section(
            "How to run it again",
            doc.paragraph("With the same config, the same numbers come out:"),
            doc.Listing(shlex.join(["sparsefed", *sys.argv[1:]])),
        ),
    )
    lead = (
        f"The config {result.label}: {plan.devices:,} devices, {plan.groups:,} groups of {size}, "
        f"{result.config.rounds:,} rounds, model {result.config.model.name}, {result.points:,} test points."
    )
    return doc.Document(
        f"SparseFed: votes of {plan.groups:,} groups: {result.config.name or result.label}", lead, parts
    )


def _summary(result: VoteCertificate) -> Iterator[doc.Block]:
    yield doc.paragraph(verdict(result), kind="verdict")
    for sentence in _remarks(result):
        yield doc.paragraph(sentence)
    numbers = _columns(result)
    heads: list[str | doc.Head] = ["certificate", "no attacker", *(f"m = {m:,}" for m in numbers)]
    heads += ["largest m", "models", "hidden among"]
    yield doc.table(
        "Certified accuracy with m compromised devices", heads, (_row(result, each) for each in result.curves)
    )
    yield doc.note(
        "Largest m: up to which more than the most frequent label's share "
        f"({percent(result.chance)}) is certified. Models: that are kept and run at inference. Hidden among: devices "
        "of the smallest sum that secure aggregation shows to a server.",
        page_only=False,
    )
    yield doc.table("Costs", ("What", "The vote", "One model"), _cost_rows(result), "facts")
    if result.absent:
        yield doc.table("What does not apply", ("Certificate", "Why"), result.absent, "prose")


def verdict(result: VoteCertificate) -> str:
    """Return the recommendation in a sentence or two."""
    best, m = result.recommended, result.wanted
    devices = f"{m:,} of {result.plan.devices:,} devices"
    if best is None:
        return (
            f"No certificate here says more than always naming the most frequent label does with {devices} "
            "compromised: use other groups (more of them bear more, larger ones learn more), or a smaller m."
        )
    sure = f"with {share_down(result.confidence)} confidence " if best.promise == "confidence" else ""
    return (
        f"Deploy {best.name}: whatever {devices} send, {sure}{share_down(best.at(m))} of the test points are right and "
        f"stay right ({percent(best.accuracy)} without attackers)."
    )


def _remarks(result: VoteCertificate) -> Iterator[str]:
    m, kept = result.wanted, result.kept
    yield (
        f"The rule: most certified accuracy at m = {m:,} (--attackers or --share; by default 1 % of the devices), and "
        f"of those within {100 * CLOSE:g} points the one with fewest models."
    )
    if kept is not None and kept.groups < result.plan.groups:
        yield (
            f"For m = {m:,} the first {kept.groups:,} groups are enough: their vote alone certifies "
            f"{share_down(kept.accuracy)}, within {100 * ENOUGH:g} point of the best. The others need not be kept."
        )
    priced = [each for each in result.curves if each.name == INSIDE]
    if priced:
        yield _gain(priced[0], result.curve(VOTE))
    if result.distilled is not None:
        yield (
            f"Distilled into one model, trained on the vote's labels: {percent(result.distilled)} test accuracy. It "
            "has NO certificate: whoever takes part in that training can change it."
        )


def _gain(priced: CertificateCurve, vote: CertificateCurve) -> str:
    """Return a sentence on where the defense inside groups certifies more than the plain vote of the same groups."""
    numbers = range(max(len(priced.certified), len(vote.certified)))
    gains = [priced.at(m) - vote.at(m) for m in numbers]
    best = int(np.argmax(gains))
    if gains[best] <= 0:
        return (
            "The defense inside groups adds nothing to the vote here: no group's own certificate bears one of its "
            "devices on a point where that matters. It needs larger groups of similar devices, and a tight clip norm."
        )
    return (
        f"The defense inside groups adds most at m = {best:,}: {share_down(priced.at(best))} instead of "
        f"{share_down(vote.at(best))} by the plain vote of the same groups."
    )


def _columns(result: VoteCertificate) -> list[int]:
    """Return a few numbers of compromised devices for a table: small ones, the wanted one, and up to where all end."""
    last = max(_last(each) for each in result.curves)
    grid = {1, result.wanted, *(int(significant(last * share, 1)) for share in (0.1, 0.25, 0.5, 0.75))}
    return sorted(m for m in grid if 0 < m <= max(last, result.wanted))[:6]


def _last(curve: CertificateCurve) -> int:
    return curve.largest(0.0) or 0


def _row(result: VoteCertificate, curve: CertificateCurve) -> Iterator[str | doc.TableCell]:
    best = result.recommended
    yield doc.TableCell(curve.name, badges=("recommended",) if curve is best else (), strong=curve is best)
    yield doc.TableCell(percent(curve.accuracy), curve.accuracy)
    for m in _columns(result):
        yield doc.TableCell(share_down(curve.at(m)) if curve.promise != "none" else "–", curve.at(m))
    largest = curve.largest(result.chance)
    yield doc.TableCell("none" if largest is None or curve.promise == "none" else f"{largest:,}", largest)
    yield doc.TableCell(f"{curve.models:,}", curve.models)
    yield doc.TableCell(f"{curve.hidden:,}", curve.hidden)


def _cost_rows(result: VoteCertificate) -> Iterator[tuple[str, str, str]]:
    costs, groups = result.costs, result.plan.groups
    kept = groups if result.kept is None else result.kept.groups
    models = f"{groups:,}" if kept == groups else f"{groups:,}, of which {kept:,} are enough for m = {result.wanted:,}"
    yield "Models at inference", models, "1"
    yield "Parameters at inference", f"{kept * costs.parameters:,}", f"{costs.parameters:,}"
    factor = costs.gradients / costs.gradients_alone
    yield (
        "Gradients of examples in training",
        f"{costs.gradients:,.3g} ({factor:,.3g} times one model)",
        f"{costs.gradients_alone:,.3g}",
    )
    yield (
        "Devices that secure aggregation hides one among",
        f"{result.plan.sizes[0]:,}",
        f"{result.config.train.cohort:,}",
    )


def _meanings(result: VoteCertificate) -> doc.Table:
    rows = ((each.name, MEANINGS[each.name], PROMISES[each.promise]) for each in result.curves)
    return doc.table("Certificates", ("Name", "What it is", "Promise"), rows, "prose")


def _rests_on(result: VoteCertificate) -> tuple[str, ...]:
    names = {each.name for each in result.curves}
    more = [f"{SUBSETS}: with probability {result.confidence:g} over the draw, all certificates are right together."]
    return (*RESTS_ON, *([INSIDE_RESTS] if INSIDE in names else []), *(more if SUBSETS in names else []))


# --- the chart -------------------------------------------------------------------------------------------------------


def chart(result: VoteCertificate) -> alt.LayerChart:
    """Draw certified accuracy against the number of compromised devices, a line for each certificate."""
    curves = [each for each in result.curves if each.promise != "none"]
    last = max(1, *(_last(each) + 1 for each in curves))
    looks = {each.name: stroke(i) for i, each in enumerate(curves)} | {CHANCE: Stroke(GREY, (3, 2))}
    numbers = sorted({*range(min(6, last + 1)), *np.linspace(0, last, MOST_NUMBERS).astype(int).tolist()})
    rows: list[dict[str, Any]] = [
        {"line": each.name, "m": m, "y": significant(each.at(m), 6), "Certified": share_down(each.at(m))}
        for each in curves
        for m in numbers
        if m <= _last(each) + 1
    ]
    rows += [{"line": CHANCE, "m": m, "y": result.chance, "Certified": percent(result.chance)} for m in (0, last)]
    x = alt.X(
        "m:Q", title="Compromised devices, sending anything", axis=alt.Axis(format="d", grid=False, tickMinStep=1)
    )
    y = alt.Y("y:Q", title="Certified accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colours(looks))
    tips = [alt.Tooltip("line:N", title="Certificate"), alt.Tooltip("m:Q"), alt.Tooltip("Certified:N")]
    lines = base.mark_line(strokeWidth=2, interpolate="step-after").encode(strokeDash=dashes(looks))
    dots = base.mark_point(filled=True, size=24, opacity=0.8).encode(tooltip=tips)
    ends = "; ".join(f"{each.name}: {share_down(each.at(result.wanted))} at m = {result.wanted:,}" for each in curves)
    title = alt.Title("Predictions that m compromised devices cannot change", subtitle=f"{ends}.")
    return dressed(alt.LayerChart(layer=[lines, dots]), title, list(looks))


def _curve_table(result: VoteCertificate) -> doc.Table:
    curves = [each for each in result.curves if each.promise != "none"]
    last = max(1, *(_last(each) + 1 for each in curves))
    numbers = sorted({*range(min(4, last + 1)), *np.linspace(0, last, MOST_ROWS).astype(int).tolist()})
    rows = ((f"{m:,}", *(doc.TableCell(share_down(each.at(m)), each.at(m)) for each in curves)) for m in numbers)
    return doc.table("Certified accuracy", ("m", *(each.name for each in curves)), rows)


# --- for programs ----------------------------------------------------------------------------------------------------


def numbers(result: VoteCertificate) -> dict[str, Any]:
    """Return everything on the page, unrounded."""
    plan, best = result.plan, result.recommended
    return {
        "source": result.label,
        "name": result.config.name,
        "devices": plan.devices,
        "groups": plan.groups,
        "kind": plan.kind,
        "group_sizes": list(plan.sizes),
        "points": result.points,
        "chance": result.chance,
        "wanted": result.wanted,
        "recommended": None if best is None else best.name,
        "verdict": verdict(result),
        "certificates": [_curve_values(each, result.chance) for each in result.curves],
        "absent": [{"name": name, "why": why} for name, why in result.absent],
        "kept": None if result.kept is None else result.kept._asdict(),
        "costs": result.costs._asdict(),
        "confidence": result.confidence if plan.kind == "subsets" else None,
        "distilled_accuracy": result.distilled,
    }


def _curve_values(curve: CertificateCurve, chance: float) -> dict[str, Any]:
    return {
        "name": curve.name,
        "promise": curve.promise,
        "is_certificate": curve.promise != "none",
        "accuracy": curve.accuracy,
        "certified": curve.certified.tolist(),
        "largest": curve.largest(chance),
        "models": curve.models,
        "hidden_among": curve.hidden,
    }
