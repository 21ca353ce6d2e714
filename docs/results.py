"""Writes docs/RESULTS.md from results/*.SCALE.jsonl and docs/results.toml: `python docs/results.py`.

The numbers and verdicts are the machine's, the reasons a person's. A claim that does not hold, or holds in part, must
have one; a reason for a claim that is gone is an error too. Results that are only partly done are shown as partial, and
need no reasons yet. Exhibits share runs: a file that is only partly done first takes over the lines that another has
gained. In results.toml, [NAME] is about scale laptop, [NAME.dense] and [NAME.schedule] about
the others.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.claims import HOLDS, NOT, PART, TOO_SHORT, UNTESTED, Judged
from sparsefed.commands.reproduce.document import (
    arithmetic,
    body,
    columns,
    fared,
    grounds,
    incomplete,
    rules,
    verdict_text,
)
from sparsefed.commands.reproduce.exhibit_charts import EXPLAINED
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import ExhibitResult, outcome
from sparsefed.sweeps import ledger

VERDICTS = (HOLDS, PART, NOT, TOO_SHORT, UNTESTED)
HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SCALES: Final = ("schedule", "dense", "laptop")
MOST_SHOWN = 4  # comparisons behind a verdict


def write(folder: Path = RESULTS) -> str:
    """The whole document."""
    notes = tomllib.loads((HERE / "results.toml").read_text(encoding="utf-8"))
    by_name = {name: list(_outcomes(name, folder)) for name in dict.fromkeys((*notes["order"], *reading.names()))}
    outcomes = [each for several in by_name.values() for each in several]
    parts = [notes["intro"].strip(), *_in_short(list(filter(_reported, outcomes))), *(_rules(outcomes))]
    for name, several in by_name.items():
        parts += _exhibit(several, notes.get(name, {}), folder) if several else []
    return "\n\n".join(parts) + "\n"


def _outcomes(name: str, folder: Path) -> Iterator[ExhibitResult]:
    for scale in SCALES:
        if (folder / f"{name}.{scale}.jsonl").exists():
            yield outcome(plan(reading.load(name), scale), folder)


def _reported(each: ExhibitResult) -> bool:
    """Whether there is anything to show: at first there are only trials of a search."""
    return any(row["role"] == "result" for row in each.rows) or each.exact


def _in_short(outcomes: Sequence[ExhibitResult]) -> Iterator[str]:
    yield "## In short"
    for scale in SCALES:
        if there := [each for each in outcomes if each.scale == scale and not each.exhibit.external]:
            verdicts = (judged.verdict for each in there for judged in each.judged)
            where = f" in {len(there)} tables and figures" if len(there) > 1 else " in one table"
            yield f"At scale `{scale}`: {fared(verdicts, where)}"
    yield _table(("exhibit", "in the paper", "scale", *VERDICTS), map(_fared, outcomes))


def _fared(each: ExhibitResult) -> tuple[str, ...]:
    count = Counter(judged.verdict for judged in each.judged)
    link = f"[{each.exhibit.title}](#{_anchor(each)})"
    scale = f"{each.scale}, partial" if each.missing else each.scale
    return link, each.exhibit.where, scale, *(str(count[verdict] or "") for verdict in VERDICTS)


def _rules(outcomes: Sequence[ExhibitResult]) -> Iterator[str]:
    yield "## How to read the tables"
    every = dict.fromkeys(rule for each in outcomes for rule in rules(each))
    yield "\n".join(f"- {rule}" for rule in (*every, f"In the charts: {' '.join(EXPLAINED.values())}"))


def _exhibit(outcomes: Sequence[ExhibitResult], notes: Mapping[str, Any], folder: Path) -> Iterator[str]:
    exhibit = outcomes[0].exhibit
    yield f"## {exhibit.title}"
    yield f"*{exhibit.where}; `sparsefed reproduce {exhibit.name}`.* {' '.join(exhibit.question.split())}"
    for each in outcomes:
        if len(outcomes) > 1 or each.scale != "laptop":
            yield f"### {exhibit.title}, at scale {each.scale}"
        yield from _scale(each, notes if each.scale == "laptop" else notes.get(each.scale, {}), folder)


def _scale(each: ExhibitResult, notes: Mapping[str, Any], folder: Path) -> Iterator[str]:
    exhibit, why = each.exhibit, dict(notes.get("why", {}))
    yield from (f"**{sentence}**" for sentence in incomplete(each))
    if "reading" in notes:
        yield str(notes["reading"]).strip()
    if not _reported(each):
        return
    if (folder / f"{each.name}.svg").exists():
        yield f"![{exhibit.title}](../results/{each.name}.svg)"
    yield _table([column.title for column in columns(each)], body(each))
    yield _table(("claim", "here", "what that rests on", "likely reason"), [_claim(j, why, each) for j in each.judged])
    if why:
        raise SystemExit(f"docs/results.toml, {each.name}: no claim begins with '{next(iter(why))}'")
    note = next(s.note for name, s in exhibit.scales.items() if name == each.scale)
    yield " ".join(["Scaled:", *note.split(), *arithmetic(each)])


def _claim(judged: Judged, why: dict[str, str], each: ExhibitResult) -> tuple[str, ...]:
    text = judged.claim.text
    key = next((begin for begin in why if text.startswith(begin)), "")
    reason = why.pop(key) if key else ""
    fails = judged.verdict == UNTESTED or any(comparison.holds is False for comparison in judged.comparisons)
    if fails and not reason and not each.missing:
        raise SystemExit(f"docs/results.toml, {each.name}: why does '{text}' not hold?")
    verdict = f"**{verdict_text(judged)}**"
    return f"{text} ({judged.claim.where})", verdict, "<br>".join(grounds(judged, MOST_SHOWN)), reason


def _anchor(each: ExhibitResult) -> str:
    kept = "".join(c for c in each.exhibit.title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _table(heads: Sequence[str], lines: Any) -> str:
    rows = [[cell.replace("|", "\\|") for cell in map(str, line)] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*heads], ["---"] * len(heads), *rows))


def share_lines(folder: Path = RESULTS) -> None:
    """Give the results files of every scale the lines that those of other exhibits have of the same runs."""
    for name, scale in itertools.product(reading.names(), SCALES):
        exhibit = reading.load(name)
        if exhibit.kind == "runs" and (folder / f"{name}.{scale}.jsonl").exists():
            sweep = plan(exhibit, scale).sweep
            known = ledger.rows(sweep, ledger.Ledger(folder, [sweep]))
            if known != ledger.read(ledger.path(folder, sweep)):
                ledger.write(folder, sweep, known)
                print(f"{name}, scale {scale}: {len(known)} lines")


if __name__ == "__main__":
    share_lines()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "RESULTS.md"
    target.write_text(write(), encoding="utf-8")
    print(f"wrote {target}")
