"""How far something long is: the one record that everything long reports, and that every view shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AtWork:
    """Something that is at work: a run, a cell, a trial."""

    title: str
    done: float
    total: float
    fields: Mapping[str, str] = field(default_factory=dict)  # such as 'test' -> '81.2%'


@dataclass(frozen=True)
class Progress:
    """How far something long is, and what is at work."""

    title: str  # what is counted, or what is being done
    done: float  # a fraction where something counts that is under way
    total: float  # as far as it is known
    running: Sequence[AtWork] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    left: float | None = None  # seconds; None: estimated from the time that has passed
    line: str = ""  # what has just happened, for an output that is no terminal
    unit: str = ""  # with one, that line begins with it and the count: 'cell 4/18: ...'

    @property
    def numbered_line(self) -> str:
        """What has just happened, with the count where there is a unit."""
        return f"{self.unit} {int(self.done)}/{int(self.total)}: {self.line}" if self.unit and self.line else self.line


OnProgress = Callable[[Progress], None]
