"""A short run of the fuzzing targets of `fuzz.readers`: every reader refuses damage with a sentence of ours, or copes.

`python -m fuzz readers` runs many more cases, in a process with limits on time and memory.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings

import numpy as np
import pytest
from fuzz import driver, mutate, readers

from sparsefed.core.errors import DataError

GROUP = driver.Group("readers")
CASES = 20  # of each target


def judged(case: driver.Case) -> driver.Outcome:
    with warnings.catch_warnings():  # a user sees warnings of the libraries; they stop nothing
        warnings.simplefilter("ignore")
        return driver.judged(case)


@pytest.mark.parametrize("target", GROUP.targets)
def test_damaged_data_is_refused_or_harmless(target: str) -> None:
    place = list(GROUP.targets).index(target)
    for number in range(place, CASES * len(GROUP.targets), len(GROUP.targets)):
        outcome = judged(GROUP.case(1, number))
        assert outcome.target == target
        assert outcome.verdict != "failed", f"python -m fuzz readers --seed 1 --case {number}\n{outcome.detail}"


def test_what_once_ended_badly_is_refused_and_good_files_are_read() -> None:
    for number in range(-1, -len(GROUP.kept) - 1, -1):
        case = GROUP.case(0, number)
        expected = "accepted" if case.description == "nothing changed" else "refused"
        outcome = judged(case)
        assert outcome.verdict == expected, f"{case.target}, {case.description}: {outcome.verdict} {outcome.detail}"


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in readers.CORPUS.rglob("*") if path.is_file()) <= 100_000


def test_a_case_depends_on_its_number_and_the_seed_alone() -> None:
    def described(seed: int) -> list[str]:
        return [GROUP.case(seed, number).description for number in range(60)]

    assert described(3) == described(3) != described(4)


def test_every_mutation_changes_something() -> None:
    random, raw = np.random.default_rng(0), b'{"x": [1, 2, 3], "y": []}' * 40
    for mutation in mutate.MUTATIONS:
        assert any(mutation(random, raw)[1] != raw for _ in range(5)), mutation.__name__
        mutation(random, b"")


# The driver finds what it should find.


def escapes() -> None:
    raise DataError("\x1b[31mred")


def runs_out() -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise DataError("too large") from error


def refuses() -> None:
    raise DataError("is no data set")


@pytest.mark.parametrize(
    ("call", "verdict", "words"),
    [
        (lambda: 1 / 0, "failed", "ZeroDivisionError"),
        (escapes, "failed", "not printable"),
        (runs_out, "failed", "memory had run out"),
        (lambda: refuses(), "refused", ""),
        (lambda: None, "accepted", ""),
        (lambda: exec("raise SystemExit(3)"), "failed", "SystemExit"),
    ],
)
def test_verdicts(call: driver.Call, verdict: str, words: str) -> None:
    outcome = driver.judged(driver.Case(7, "x", "y", call))
    assert outcome.verdict == verdict and words in outcome.detail and outcome.number == 7


TARGETS = {
    "hangs": lambda random: ("for a minute", lambda: time.sleep(60)),  # noqa: ARG005
    "fills": lambda random: ("with 8 GB", lambda: bytes(8 << 30)),  # noqa: ARG005
    "works": lambda random: ("at once", lambda: random.random()),
}


def kept() -> list[tuple[str, str, driver.Call]]:
    return []


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(driver.GROUPS, "here", __name__)
    monkeypatch.setattr(driver, "SECONDS", 1.0)
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    findings: list[driver.Outcome] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tally = driver.run("here", 0, driver.numbers(0, 6, None), findings.append)
    assert tally.counts == {("hangs", "failed"): 2, ("fills", "failed"): 2, ("works", "accepted"): 2}
    assert "still running" in findings[0].detail and "MemoryError" in findings[1].detail
