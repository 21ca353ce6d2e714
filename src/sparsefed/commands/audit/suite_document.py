"""What a suite measures beside the matrix, for the page and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsefed.commands.audit.benign import WITH
from sparsefed.commands.audit.findings import AuditResult, harm
from sparsefed.reports import document as doc
from sparsefed.results.matrix import Matrix
from sparsefed.results.numbers import percent

DEVICES = (
    "Accuracy of the last model on each device's own training examples, at the first seed: the worst device, and the "
    "mean of the worst tenth. Devices with few examples can easily have none right."
)
LASTING = (
    "The attackers leave half way and training goes on: attack accuracy when they left, and at the end; first seed."
)


REJECTED = (
    "Of rules that select or weigh devices, over all rounds and seeds: how many attackers were rejected, and how many "
    "honest devices with them. Rejected is an update with less than half of an equal share of the weights."
)
SETTINGS = (
    "First seed; as given, the mean over the seeds. Each under the attack that does the defense most harm, and without "
    "attackers; the defense keeps its parameters. Where the rows of one defense differ more than two defenses do, the "
    "setting matters more than the rule."
)


def beside_the_matrix(result: AuditResult) -> Iterator[doc.Block]:
    """Yield what a suite measures beside the matrix; nothing without a suite."""
    if result.detection:
        rates = [(*pair, *map(_share, each)) for pair, each in result.detection.items()]
        yield doc.table("Who was rejected", ("Defense", "Attack", "Attackers rejected", "Honest ones rejected"), rates)
        yield doc.note(REJECTED)
    if result.devices:
        rows = [(*pair, _share(each.worst), _share(each.tenth)) for pair, each in result.devices.items()]
        yield doc.table("The worst devices", ("Defense", "Attack", "Worst device", "Worst tenth, mean"), rows)
        yield doc.note(DEVICES)
    if result.durability:
        lines = [
            (*pair, str(each.left_at), _share(each.then), _share(each.end)) for pair, each in result.durability.items()
        ]
        head = ("Defense", "Attack", "Attackers left after round", "Attack accuracy then", "At the end")
        yield doc.table("Whether attacks last", head, lines)
        yield doc.note(LASTING)
    if result.settings:
        varied = [(*each[:3], *map(_share, each[3:])) for each in (tuple(row.values()) for row in _settings(result))]
        columns = (f"{result.score} without attackers", "Under attack", "Attack accuracy", "Harm")
        heading = "Other learning rates, batches and local epochs"
        yield doc.table(heading, ("Defense", "Attack", "Setting", *columns), varied)
        yield doc.note(SETTINGS)


def _settings(result: AuditResult) -> Iterator[dict[str, Any]]:
    """Yield what each setting did, that of the config first, by defense."""
    matrix, seen = result.settings or result.matrix, set[str]()
    for named, attack in matrix.attacked if result.settings else ():
        defense, _, setting = named.rpartition(WITH)
        if defense not in seen:
            seen.add(defense)
            yield _setting(result.matrix, defense, attack, defense, "as given")
        yield _setting(matrix, named, attack, defense, setting)


def _setting(matrix: Matrix, row: str, attack: str, defense: str, setting: str) -> dict[str, Any]:
    entry, lost = matrix.entries[row, attack], matrix.lost(row, attack)
    calm = None if entry.test is None or lost is None else entry.test + lost
    numbers = {"test_without": calm, "test_under": entry.test, "attack_accuracy": entry.attack}
    return {"defense": defense, "attack": attack, "setting": setting, **numbers, "harm": harm(matrix, row, attack)}


def _share(value: float | None) -> doc.TableCell:
    return doc.TableCell(percent(value), value)


def suite_numbers(result: AuditResult) -> dict[str, Any] | None:
    """Return the suite and what it measures beside the matrix, as numbers; None without a suite."""
    if not result.options.suite:
        return None
    measured: dict[str, Mapping[tuple[str, str], Any]]
    measured = {"detection": result.detection, "devices": result.devices, "durability": result.durability}
    return {
        "name": result.options.suite,
        **{
            name: [{"defense": d, "attack": a, **each._asdict()} for (d, a), each in pairs.items()]
            for name, pairs in measured.items()
        },
        "settings": list(_settings(result)),
    }
