"""A watched run as a document: where it stands, alerts, curves, who was refused and why, and the latest rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import altair as alt

from sparsefed.commands.watch.snapshot import LATE, NodeAccount, WatchResult
from sparsefed.core.errors import printable
from sparsefed.flower.door import REASONS
from sparsefed.reports import document as doc
from sparsefed.reports.lines import GREY, PALETTE, Stroke, drawn
from sparsefed.reports.run_charts import charts
from sparsefed.reports.run_report import figures
from sparsefed.results.numbers import Curve, binned, duration, finite, length, percent, whole
from sparsefed.results.verdict import counted

Written = Callable[[Any], str]
MOST_NODES = 50  # rows of the table of nodes
LATEST = 10  # rounds in the table of the latest
MOST_ALERTS = 5  # alerts that are shown one by one
MOST_POINTS = 400
MOST_TICKS = 6
REFUSED_LINES = {"refused": Stroke(PALETTE[1], (1, 0)), "late": Stroke(GREY, (8, 3))}


def document(result: WatchResult) -> doc.Document:
    """Return the whole state of a watched run as a document."""
    of = "" if result.rounds is None else f" of {result.rounds:,}"
    title = f"Round {result.round:,}{of}, {result.status}: {result.run.name}"
    return doc.Document(title, _lead(result), tuple(_sections(result)), heading=f"SparseFed watch: {result.run.name}")


def numbers(result: WatchResult) -> dict[str, Any]:
    """Return the state for programs."""
    return {
        "run": result.run.name,
        "status": result.status,
        "round": result.round,
        "rounds": result.rounds,
        "latest": result.latest,
        "refused": {str(round): dict(reasons) for round, reasons in sorted(result.refused_in.items())},
        "nodes": records(result),
        "alerts": [*result.alerts.values()],
    }


def records(result: WatchResult) -> list[dict[str, Any]]:
    """Return a row for each node that was asked or refused."""
    return [
        {
            "node": None if account.node is None else str(account.node),
            "device": account.device,
            "asked": account.asked,
            "clipped": account.clipped,
            "refused": account.refused,
            "late": account.late,
            "reasons": dict(account.reasons),
            "last_round": account.last and account.last.round,
            "detail": account.last and account.last.detail,
        }
        for account in result.nodes
    ]


def _lead(result: WatchResult) -> str:
    of = "" if result.rounds is None else f" of {result.rounds:,}"
    seconds = [value for row in result.run.rows[-LATEST:] if (value := finite(row.get("seconds"))) is not None]
    pace = sum(seconds) / len(seconds) if seconds else None
    ahead = max(0, (result.rounds or 0) - result.round)
    left = f", about {duration(pace * ahead)} left" if pace and ahead and result.status == "running" else ""
    speed = f" {duration(pace) if pace >= 1 else f'{length(pace)} s'} a round{left}." if pace else ""
    return f"Round {result.round:,}{of}, {result.status}.{speed}"


def _sections(result: WatchResult) -> Iterator[doc.Section]:
    yield doc.section("Now", _now(result), terminal=True)
    if result.round:
        drawn = charts([result.run])
        yield doc.section("Accuracy", figures("Curves", drawn, [result.run]))
        yield doc.section("Norms", figures("Norms", drawn, [result.run]))
    yield doc.section("Refused, late and clipped", _refused(result), terminal=True)
    if result.round:
        yield doc.section("Latest rounds", _rounds(result))


def _now(result: WatchResult) -> Iterator[doc.Block]:
    alerts = [*result.alerts.values()]
    for sentence in alerts[: -MOST_ALERTS - 1 : -1]:
        yield doc.paragraph(f"Alert: {sentence}.", kind="warning")
    if len(alerts) > MOST_ALERTS:
        yield doc.paragraph(f"{len(alerts) - MOST_ALERTS} alerts of earlier rounds.", kind="warning")
    if not result.round:
        yield doc.paragraph("No round is complete yet.")
        return
    yield doc.table("Latest values", ("What", "Value"), _facts(result), style="facts")


def _facts(result: WatchResult) -> Iterator[tuple[str, doc.TableCell]]:
    names: dict[str, tuple[str, Written]] = {
        "test": ("Test accuracy", percent),
        "attack": ("Attack accuracy", percent),
        "clients": ("Accuracy by the clients' own evaluation", percent),
        "loss": ("Test loss", length),
        "cohort": ("Replies asked for", whole),
        "honest_norm": ("Median norm of an update", length),
        "honest_longest": ("Longest update", length),
        "budget": ("Norm that the server allows", length),
        "clipped": ("Updates clipped", percent),
        "update_norm": ("Norm of the model's step", length),
    }
    for name, (title, write) in names.items():
        if name in result.latest:
            yield title, doc.TableCell(write(result.latest[name]), result.latest[name])
    refused = sum(sum(reasons.values()) for reasons in result.refused_in.values())
    yield "Refused or late in all rounds", doc.TableCell(whole(refused), refused)


# --- refused replies -------------------------------------------------------------------------------------------------


def _refused(result: WatchResult) -> Iterator[doc.Block]:
    if not result.refused_in:
        yield doc.paragraph("Nothing was refused, and nothing came late.")
    elif result.round:
        yield _chart(result)
    if result.nodes:
        yield _nodes(result)
        if (more := len(result.nodes) - MOST_NODES) > 0:
            yield doc.paragraph(f"{counted(more, 'more node')} with fewer refusals.")
    known = sorted({reason for reasons in result.refused_in.values() for reason in reasons} & REASONS.keys())
    if known:
        rows = [(reason, REASONS[reason]) for reason in known]
        yield doc.Fold("What the reasons mean", (doc.table("Reasons", ("Reason", "Meaning"), rows, "prose"),))


def _nodes(result: WatchResult) -> doc.Table:
    """Return the table of nodes; a column of which nothing is recorded is left out."""
    clipped = any(account.clipped is not None for account in result.nodes)
    asked = any(account.asked for account in result.nodes)
    head = ("Node", "Device", *(["Asked"] if asked else []), *(["Clipped"] if clipped else []), "Refused", "Late")
    why, detail = doc.Head("Why, and how often", left=True), doc.Head("The last one", left=True, page_only=True)
    rows = []
    for account in result.nodes[:MOST_NODES]:
        counts = [*([account.asked] if asked else []), *([account.clipped or 0] if clipped else [])]
        numbers = [doc.TableCell(f"{count:,}", count) for count in (*counts, account.refused, account.late)]
        rows.append((*_named(account), *numbers, *_why(account)))
    return doc.table("Nodes, in rounds", (*head, why, detail), rows, style="prose")


def _named(account: NodeAccount) -> tuple[doc.TableCell, ...]:
    node = "unknown" if account.node is None else str(account.node)
    device = str(account.device) if account.device >= 0 else "never asked"
    return doc.TableCell(node), doc.TableCell(device, account.device)


def _why(account: NodeAccount) -> tuple[doc.TableCell, ...]:
    reasons = ", ".join(f"{printable(reason)} {count:,}" for reason, count in account.reasons.most_common())
    if account.last is None:
        return doc.TableCell(reasons), doc.TableCell("")
    detail = f": {printable(account.last.detail, 200)}" if account.last.detail else ""
    return doc.TableCell(reasons), doc.TableCell(f"round {account.last.round:,}{detail}")


def _chart(result: WatchResult) -> doc.Figure:
    """Draw the replies that were refused, and those that did not come, by round."""
    last = max(result.round, *result.refused_in)
    by_round = [result.refused_in.get(round, Counter()) for round in range(1, last + 1)]
    late = [float(sum(reasons.get(reason, 0) for reason in LATE)) for reasons in by_round]
    bad = [float(sum(reasons.values())) - missing for reasons, missing in zip(by_round, late, strict=True)]
    lines = {"refused": _thinned(bad), "late": _thinned(late)}
    top = int(max(1.0, *bad, *late))
    ticks = alt.Axis(format="~d", values=[*range(0, top + 1, math.ceil(top / MOST_TICKS))])
    y = alt.Y("value:Q", title="Replies", axis=ticks, scale=alt.Scale(domain=[0, top]))
    text = f"Replies by round: {sum(bad):,.0f} refused and {sum(late):,.0f} late in all."
    chart = drawn(lines, [*REFUSED_LINES.values()], y, "{:.3g}".format, alt.Title("Refused and late", subtitle=text))
    return doc.Figure("refused", chart, "Refused: a reply came and could not be used. Late: none came in time.")


def _thinned(values: Sequence[float]) -> Curve:
    return binned([(round, value) for round, value in enumerate(values, start=1)], MOST_POINTS)


# --- rounds ----------------------------------------------------------------------------------------------------------


def _rounds(result: WatchResult) -> Iterator[doc.Block]:
    columns: dict[str, tuple[str, Written]] = {
        "Test accuracy": ("test_accuracy", percent),
        "Attack accuracy": ("attack_accuracy", percent),
        "Replies": ("cohort", whole),
        "Clipped": ("clipped", percent),
        "Median norm": ("honest_norm", length),
        "Longest": ("honest_longest", length),
        "Allowed": ("budget", length),
        "Seconds": ("seconds", length),
    }
    rows = result.run.rows[: -LATEST - 1 : -1]
    shown = {
        title: pair for title, pair in columns.items() if any(finite(row.get(pair[0])) is not None for row in rows)
    }
    cells = []
    for row in rows:
        refused = sum(result.refused_in.get(int(row["round"]), {}).values())
        values = ((finite(row.get(key)), write) for key, write in shown.values())
        numbers = [doc.TableCell(write(value), value) for value, write in values]
        cells.append((doc.TableCell(f"{row['round']:,}"), doc.TableCell(f"{refused:,}", refused), *numbers))
    yield doc.table("The latest rounds, newest first", ("Round", "Refused", *shown), cells)
