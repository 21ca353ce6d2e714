"""The result of an exhibit: our numbers next to the paper's in rows and columns, verdicts, rules in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sparsefed.commands.reproduce.claims import HOLDS, NOT, PART, RULE, UNTESTED, Judged, MetricEntry, entries, judge
from sparsefed.commands.reproduce.exhibit import Exhibit, Paper, PaperRow
from sparsefed.commands.reproduce.grid import ExhibitPlan, matches, scaled
from sparsefed.commands.reproduce.load import load_paper
from sparsefed.core.errors import RunError
from sparsefed.reports.result import Report
from sparsefed.results.measures import measure
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import FIXED, STRONGEST

DNC = "DNC"
OURS = (
    "Ours: mean ± standard deviation over the seeds. DNC: did not converge in at least half of the runs, that is, the "
    "test loss is not finite at the end, or the accuracy at most 1.2 times that of always naming the most frequent "
    "class. Paper: as printed there."
)
OF_OTHERS = ("converged", "unattacked", "attack_anyway")  # known, whether or not the run itself converged
FIXED_ATTACK = "Fixed attack: its parameters are as given, not tuned for each defense."


@dataclass(frozen=True)
class ExhibitResult(Report, described_by="sparsefed.commands.reproduce.document"):
    """An exhibit at a scale: its results, the paper's numbers and the verdicts on the paper's claims."""

    exhibit: Exhibit
    scale: str
    rows: tuple[Row, ...]
    paper: Paper
    judged: tuple[Judged, ...]
    seconds: float | None  # of all its runs, where they were timed
    problem: RunError | None = None  # a sentence about runs that failed, of this exhibit or of others run with it

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per reported run: the values of the axes, attack, seed, and its measures by name."""
        reported = (row for row in self.rows if row["role"] == "result")
        return [
            {**row["cell"], "variant": row["attack"], "seed": row["seed"], "status": row["status"], **row["metrics"]}
            for row in reported
        ]

    @property
    def exact(self) -> bool:
        return self.exhibit.kind == "formula"

    @property
    def name(self) -> str:
        return f"{self.exhibit.name}.{self.scale}"


def outcome(plan: ExhibitPlan, out: Path, folder: Traversable | None = None) -> ExhibitResult:
    """Return the result of an exhibit from the results file of its plan."""
    exhibit, rows = plan.exhibit, results.read(results.path(out, plan.sweep))
    judged = judge(exhibit, rows, [group.values for group in plan.sweep.groups])
    seconds = results.seconds(out, {row["key"] for row in rows})
    paper = load_paper(exhibit, folder)
    return ExhibitResult(exhibit, plan.sweep.scale, tuple(rows), paper, tuple(judged), seconds)


# --- rows and columns ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """The head of a column; `ours` distinguishes the two numbers of a metric."""

    title: str
    ours: bool | None = None  # None: neither, a name


def columns(outcome: ExhibitResult) -> list[Column]:
    """Return the columns: the axes, the attack if there is one, and for each metric ours and the paper's if any."""
    axes = list(dict.fromkeys(axis for row in outcome.rows for axis in row["cell"]))
    heads = [Column(axis) for axis in axes]
    heads += [Column("variant" if "attack" in axes else "attack")] if _attacked(outcome.rows) else []
    for metric in outcome.exhibit.metrics:
        heads.append(Column(measure(metric).title, ours=True))
        if _printed(outcome.paper, metric):
            heads.append(Column(f"{measure(metric).title}, paper", ours=False))
    return heads


def body(outcome: ExhibitResult) -> list[list[str]]:
    """Return the cells under the columns, one row per combination."""
    by_metric = {metric: entries(outcome.rows, metric, outcome.exact) for metric in outcome.exhibit.metrics}
    lost = _lost(outcome.rows)
    return [_line(outcome, {m: found[i] for m, found in by_metric.items()}, lost[i]) for i in range(len(lost))]


def _line(outcome: ExhibitResult, found: Mapping[str, MetricEntry], lost: tuple[int, int]) -> list[str]:
    first = next(iter(found.values()))
    line = [*first.values.values(), *([first.attack or "none"] if _attacked(outcome.rows) else [])]
    for metric in outcome.exhibit.metrics:
        line.append(_ours(metric, found[metric], *lost))
        if printed := _printed(outcome.paper, metric):
            line.append(next((row.as_printed for row in printed if _stands_at(row, first.values)), "–"))
    return line


def _ours(metric: str, entry: MetricEntry, lost: int, runs: int) -> str:
    """Format one of our numbers with its spread.

    >>> _ours("attack_mean", MetricEntry({}, (0.5, 0.7), True), 0, 2)
    '60.0% ± 14.1'
    >>> _ours("attack_mean", MetricEntry({}, (0.1, 0.1), False), 2, 2)
    'DNC'
    """
    if not entry.numbers:
        return "–"
    if metric in OF_OTHERS:
        lost = 0
    if lost and not entry.converged:
        return DNC
    write = measure(metric).write
    mean, spread = write(entry.mean), entry.spread
    around = "" if spread is None or entry.exact else f" ± {write(spread).rstrip('%×')}"
    return f"{mean}{around}" + (f" ({lost} of {runs} DNC)" if lost else "")


def _lost(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return, for each combination, how many of its runs did not converge, and how many there are."""
    counts: dict[tuple[str, ...], list[bool]] = {}
    for row in rows:
        if row["role"] == "result":
            done = counts.setdefault(tuple(row["cell"].values()), [])
            done += [bool(row["metrics"].get("converged", True))] if row["status"] == "done" else []
    return [(done.count(False), len(done)) for done in counts.values()]


def _attacked(rows: Sequence[Row]) -> bool:
    return any(row["attack"] is not None for row in rows if row["role"] == "result")


def _printed(paper: Paper, metric: str) -> list[PaperRow]:
    return [row for row in paper.rows if row.metric == metric]


def _stands_at(row: PaperRow, values: Mapping[str, str]) -> bool:
    return matches(values, {axis: (value,) for axis, value in row.cell.items()})


# --- sentences -------------------------------------------------------------------------------------------------------


ONE = {HOLDS: "holds", PART: "holds in part", NOT: "does not hold here", UNTESTED: "was not tested"}
MANY = {HOLDS: "hold", PART: "hold in part", NOT: "do not hold here", UNTESTED: "were not tested"}


def summary(outcome: ExhibitResult) -> str:
    """Return how the claims fared, in a sentence."""
    return fared(each.verdict for each in outcome.judged)


def fared(verdicts: Iterable[str], where: str = "") -> str:
    """Return how several claims fared, in a sentence.

    >>> fared([HOLDS, NOT, NOT], " in two tables"), fared([PART])
    ('Of 3 claims in two tables, 1 holds, 2 do not hold here.', 'Of 1 claim, 1 holds in part.')
    """
    count = Counter(verdicts)
    if not count:
        return "No claim is attached to this exhibit."
    said = (f"{count[each]} {ONE[each] if count[each] == 1 else MANY[each]}" for each in ONE if count[each])
    return f"Of {count.total()} claim{'s' if count.total() > 1 else ''}{where}, {', '.join(said)}."


def grounds(judged: Judged, most: int) -> list[str]:
    """Return the comparisons behind a verdict, one line each, failures first."""
    marks = {True: "✓", False: "✗", None: "?"}
    ordered = sorted(judged.comparisons, key=lambda each: bool(each.holds))
    shown = [f"{marks[each.holds]} {each.told}" for each in ordered[:most]]
    return [*shown, f"and {len(ordered) - most} more"] if len(ordered) > most else shown


def rules(outcome: ExhibitResult) -> Iterator[str]:
    """Yield the rules behind the numbers and verdicts."""
    if not outcome.exact:
        yield OURS
        found = {row["attack"] for row in outcome.rows if row["role"] == "result"} - {None}
        if FIXED in found:
            yield FIXED_ATTACK
        if found - {FIXED}:
            yield STRONGEST
    if outcome.judged:
        yield RULE


def what_was_scaled(outcome: ExhibitResult) -> list[str]:
    """Return what this scale changes, in the exhibit's words and as the configs differ."""
    if outcome.exact:
        return []
    note = next((scale.note for name, scale in outcome.exhibit.scales.items() if name == outcome.scale), "")
    return ([note] if note else []) + scaled(outcome.exhibit, outcome.scale)
