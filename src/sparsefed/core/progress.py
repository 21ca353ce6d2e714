"""Progress of a long-running task: the one record that every task reports and every view shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AtWork:
    """A unit of work in progress: a run, a cell, a trial."""

    title: str
    done: float
    total: float
    fields: Mapping[str, str] = field(default_factory=dict)  # such as 'test' -> '81.2%'


@dataclass(frozen=True)
class Progress:
    """The progress of a long-running task, and what it is working on."""

    title: str  # what is counted, or the current activity
    done: float  # fractional if work in progress counts
    total: float  # as far as known
    running: Sequence[AtWork] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    left: float | None = None  # seconds; None: estimated from the elapsed time
    line: str = ""  # the latest event, for outputs that are not terminals
    unit: str = ""  # if set, the line begins with it and the count: 'cell 4/18: ...'

    @property
    def numbered_line(self) -> str:
        """The latest event, preceded by the count if there is a unit."""
        return f"{self.unit} {int(self.done)}/{int(self.total)}: {self.line}" if self.unit and self.line else self.line


OnProgress = Callable[[Progress], None]
