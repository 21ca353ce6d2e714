"""Writes docs/RESULTS.md from results/*.laptop.jsonl and docs/results.toml: `python docs/results.py`.

The numbers and verdicts are the machine's, the reasons a person's. A claim that does not hold, or holds in part, must
have one; a reason for a claim that is gone is an error too.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.claims import HOLDS, NOT, PART, UNTESTED, Judged
from sparsefed.commands.reproduce.document import body, columns, fared, grounds, rules
from sparsefed.commands.reproduce.exhibit_charts import CAPTION
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import ExhibitResult, outcome

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SCALE: Final = "laptop"
MOST_SHOWN = 4  # comparisons behind a verdict


def write(folder: Path = RESULTS) -> str:
    """The whole document."""
    notes = tomllib.loads((HERE / "results.toml").read_text(encoding="utf-8"))
    there = [name for name in notes["order"] if (folder / f"{name}.{SCALE}.jsonl").exists()]
    outcomes = [outcome(plan(reading.load(name), SCALE), folder) for name in there]
    parts = [notes["intro"].strip(), *_in_short(outcomes), *(_rules(outcomes))]
    for each in outcomes:
        parts += _exhibit(each, notes.get(each.exhibit.name, {}))
    return "\n\n".join(parts) + "\n"


def _in_short(outcomes: Sequence[ExhibitResult]) -> Iterator[str]:
    yield "## In short"
    verdicts = (judged.verdict for each in outcomes for judged in each.judged)
    yield fared(verdicts, f" in {len(outcomes)} tables and figures")
    yield _table(("exhibit", "in the paper", HOLDS, PART, NOT, UNTESTED), map(_fared, outcomes))


def _fared(each: ExhibitResult) -> tuple[str, ...]:
    count = Counter(judged.verdict for judged in each.judged)
    link = f"[{each.exhibit.title}](#{_anchor(each)})"
    return link, each.exhibit.where, *(str(count[verdict] or "") for verdict in (HOLDS, PART, NOT, UNTESTED))


def _rules(outcomes: Sequence[ExhibitResult]) -> Iterator[str]:
    yield "## How to read the tables"
    every = dict.fromkeys(rule for each in outcomes for rule in rules(each))
    yield "\n".join(f"- {rule}" for rule in (*every, f"In the charts, {CAPTION[0].lower()}{CAPTION[1:]}"))


def _exhibit(each: ExhibitResult, notes: Mapping[str, Any]) -> Iterator[str]:
    exhibit = each.exhibit
    yield f"## {exhibit.title}"
    yield f"*{exhibit.where}; `sparsefed reproduce {exhibit.name}`.* {' '.join(exhibit.question.split())}"
    if "reading" in notes:
        yield str(notes["reading"]).strip()
    if (RESULTS / f"{each.name}.svg").exists():
        yield f"![{exhibit.title}](../results/{each.name}.svg)"
    yield _table([column.title for column in columns(each)], body(each))
    why = dict(notes.get("why", {}))
    yield _table(("claim", "here", "what that rests on", "likely reason"), [_claim(j, why, each) for j in each.judged])
    if why:
        raise SystemExit(f"docs/results.toml, {exhibit.name}: no claim begins with '{next(iter(why))}'")
    note = exhibit.scales[SCALE].note
    yield f"Scaled: {' '.join(note.split())}"


def _claim(judged: Judged, why: dict[str, str], each: ExhibitResult) -> tuple[str, ...]:
    text = judged.claim.text
    key = next((begin for begin in why if text.startswith(begin)), "")
    reason = why.pop(key) if key else ""
    if judged.verdict != HOLDS and not reason:
        raise SystemExit(f"docs/results.toml, {each.exhibit.name}: why does '{text}' not hold?")
    return f"{text} ({judged.claim.where})", f"**{judged.verdict}**", "<br>".join(grounds(judged, MOST_SHOWN)), reason


def _anchor(each: ExhibitResult) -> str:
    kept = "".join(c for c in each.exhibit.title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _table(heads: Sequence[str], lines: Any) -> str:
    rows = [[cell.replace("|", "\\|") for cell in map(str, line)] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*heads], ["---"] * len(heads), *rows))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "RESULTS.md"
    target.write_text(write(), encoding="utf-8")
    print(f"wrote {target}")
