"""The driver of fuzzing targets: cases run in a child process with limits on time and memory, and are counted.

Case n of a group belongs to target n modulo their number and draws everything from the generator of (seed, n), so that
a finding is repeated by its number alone. Cases below 0 are the kept ones, which every run begins with.
"""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import numpy as np

from sparsefed.core.errors import SparseFedError

GROUPS: Mapping[str, str] = {name: f"fuzz.{name}" for name in ("readers", "configs", "folders", "aggregate")}

Call = Callable[[], object]
MakeCase = Callable[[np.random.Generator], tuple[str, Call]]
Verdict = Literal["accepted", "refused", "failed"]

MEMORY = 4 << 30  # bytes of a child's address space
SECONDS = 20.0  # for one case
LONGEST = 2000  # characters of a message meant for a person


class Case(NamedTuple):
    """One input: its number, the target that takes it, what was done to it, and the call that reads it."""

    number: int
    target: str
    description: str
    call: Call


class Outcome(NamedTuple):
    """How one case ended."""

    number: int
    target: str
    description: str
    verdict: Verdict
    detail: str = ""
    memory: int = 0  # the most bytes that the process has held so far
    seconds: float = 0.0


@dataclass
class Tally:
    """The counts of a whole run, and its findings."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)
    memory: int = 0
    slowest: float = 0.0
    slow: str = ""  # the case that took longest

    def add(self, outcome: Outcome) -> None:
        self.counts[outcome.target, outcome.verdict] += 1
        self.memory = max(self.memory, outcome.memory)
        if outcome.seconds > self.slowest:
            self.slowest, self.slow = outcome.seconds, f"case {outcome.number}, {outcome.target}"
        if outcome.verdict == "failed":
            self.findings.append(outcome)


class Group:
    """The targets of one module, and the case that belongs to a number."""

    def __init__(self, name: str) -> None:
        module: Any = importlib.import_module(GROUPS[name])
        self.targets: Mapping[str, MakeCase] = module.TARGETS
        self.kept: Sequence[tuple[str, str, Call]] = tuple(module.kept())

    def case(self, seed: int, number: int) -> Case:
        """Return the case of a number; the numbers below 0 are those of the kept cases."""
        if number < 0:
            return Case(number, *self.kept[-number - 1])
        target = list(self.targets)[number % len(self.targets)]
        return Case(number, target, *self.targets[target](np.random.default_rng([seed, number])))


def judged(case: Case) -> Outcome:
    """Run a case: an error of ours that can be shown to a person is a refusal, any other exception is a finding."""
    started = time.monotonic()
    verdict, detail = _verdict(case.call)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Outcome(*case[:3], verdict, detail, memory, time.monotonic() - started)


def _verdict(call: Call) -> tuple[Verdict, str]:
    try:
        call()
    except SparseFedError as error:
        wrong = _unfit(error)
        return ("failed", wrong) if wrong else ("refused", "")
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "failed", traceback.format_exc(limit=-6)
    return "accepted", ""


def _unfit(error: SparseFedError) -> str:
    """Return what is wrong with a refusal, or nothing."""
    text = str(error)
    if not all(line.isprintable() for line in text.split("\n")):
        return f"the message has characters that are not printable: {text!r}"
    if len(text) > LONGEST:
        return f"the message has {len(text)} characters: {text[:200]!r} ..."
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return f"refused only when the memory had run out: {text!r}"
        cause = cause.__cause__
    return ""


class Child:
    """A process that runs one case after the other."""

    def __init__(self, group: str, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, group, seed), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()  # its imports are done

    def run(self, number: int) -> Outcome | str:
        """Return how a case ended, or why the process had to end with it."""
        self._pipe.send(number)
        if not self._pipe.poll(SECONDS):
            self.end()
            return f"still running after {SECONDS:.0f} s"
        try:
            outcome: Outcome = self._pipe.recv()
        except EOFError:
            self.end()
            return f"the process ended with exit code {self._process.exitcode}"
        return outcome

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, name: str, seed: int) -> None:
    group = Group(name)
    pipe.send("ready")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(judged(group.case(seed, number)))


def run(name: str, seed: int, numbers: Iterable[int], on_finding: Callable[[Outcome], None]) -> Tally:
    """Run the cases with these numbers and return the counts; a process that hangs or crashes is replaced."""
    group, tally, child = Group(name), Tally(), Child(name, seed)
    for number in numbers:
        answer = child.run(number)
        if isinstance(answer, str):
            answer = Outcome(*group.case(seed, number)[:3], "failed", answer)
            child = Child(name, seed)
        tally.add(answer)
        if answer.verdict == "failed":
            on_finding(answer)
    child.end()
    return tally


def numbers(kept: int, cases: int | None, seconds: float | None) -> Iterator[int]:
    """Yield the kept cases' numbers, then 0, 1, ... until there are enough or the time is over."""
    end = None if seconds is None else time.monotonic() + seconds
    yield from range(-1, -kept - 1, -1)
    number = 0
    while (cases is None or number < cases) and (end is None or time.monotonic() < end):
        yield number
        number += 1
