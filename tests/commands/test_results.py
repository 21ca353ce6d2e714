"""What is committed under results/ belongs to the exhibits of today, and docs/RESULTS.md says what it says."""

from __future__ import annotations

import runpy
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.claims import HOLDS, judge
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import outcome, reproduce, run_exhibits
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps import runner
from sparsefed.sweeps.ledger import Ledger
from sparsefed.sweeps.plan import SweepPlan
from sparsefed.sweeps.pool import Pool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results"
PROMISED = {
    "accuracy-impact",
    "adaptive-clipping",
    "attack-accuracy",
    "byzantine",
    "fetchsgd",
    "k-cross-device",
    "natural-users",
    "no-momentum",
    "number-of-attackers",
    "semantic-backdoor",
    "sparsification-clipping",
    "stealth",
    "uncompressed",
}
FILES = sorted(path.name for path in FOLDER.glob("*.*.jsonl"))
NAMES = sorted(path.name.removesuffix(".laptop.jsonl") for path in FOLDER.glob("*.laptop.jsonl"))


def test_what_is_promised_is_there() -> None:
    assert set(NAMES) >= PROMISED


def planned(name: str) -> SweepPlan:
    return plan(reading.load(name), "laptop").sweep


def still_missing(file: str) -> int:
    name, scale, _ = file.split(".")
    return results.missing(plan(reading.load(name), scale).sweep, results.read(FOLDER / file))


@pytest.mark.parametrize("file", FILES)
def test_every_line_belongs_to_a_cell_of_today(file: str) -> None:
    """A config that was changed afterwards is a new cell, and its results are not here."""
    name, scale, _ = file.split(".")
    one = plan(reading.load(name), scale).sweep
    assert results.path(FOLDER, one) == FOLDER / file
    ledger = Ledger(FOLDER, [one])
    rows = results.read(FOLDER / file)
    assert results.rows(one, ledger) == rows
    slots = results.slots(one, ledger)
    wanted = {cell.key for slot in slots for cell in ledger.wanting(one, slot)}
    assert wanted.isdisjoint(row["key"] for row in rows)  # what is here is not run again
    if not still_missing(file):
        assert not wanted and results.coming(one, ledger) == 0
        assert [slot.cell.key for slot in slots] == [row["key"] for row in rows]


@pytest.mark.parametrize("file", FILES)
def test_partial_results_are_called_partial(file: str) -> None:
    page = (ROOT / "docs/RESULTS.md").read_text(encoding="utf-8")
    missing, done = still_missing(file), len(results.read(FOLDER / file))
    assert (f"Partial: {done} of {done + missing} runs" in page) or not missing


@pytest.mark.parametrize("file", [file for file in FILES if not still_missing(file)])
def test_they_are_found_without_running_anything(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files alone are enough: neither the cells' folders nor data sets are there."""
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(runner, "pool", no_workers)
    name, scale, _ = file.split(".")
    shutil.copy(FOLDER / file, tmp_path)
    ledger = run_exhibits([plan(reading.load(name), scale)], tmp_path, jobs=1)
    assert runner.failures(ledger, tmp_path) is None
    assert (tmp_path / file).read_bytes() == (FOLDER / file).read_bytes()


def no_workers(jobs: int, *_: object) -> None:
    raise AssertionError(f"{jobs} workers were asked for")


COMPLETE = [name for name in NAMES if not still_missing(f"{name}.laptop.jsonl")]


@pytest.mark.parametrize("name", COMPLETE)
def test_no_claim_holds_on_one_seed(name: str) -> None:
    rows = [row for row in results.read(results.path(FOLDER, planned(name))) if row["role"] == "result"]
    seeds = Counter(tuple(row["cell"].values()) for row in rows if row["status"] == "done")
    assert min(seeds.values()) >= 2
    one_seed = [row for row in rows if row["seed"] == 0]
    assert all(judged.verdict != HOLDS for judged in judge(reading.load(name), one_seed))


def test_the_document_says_what_the_results_say() -> None:
    script = runpy.run_path(str(ROOT / "docs/results.py"))
    assert (ROOT / "docs/RESULTS.md").read_text(encoding="utf-8") == script["write"]()


def test_the_function_finds_them_byte_for_byte_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "start", None)  # nothing is given to a worker
    names = ["no-momentum", "combinatorial-bounds"]
    before = (FOLDER / "no-momentum.laptop.jsonl").read_bytes()
    (tmp_path / "no-momentum.laptop.jsonl").write_bytes(before)
    noise, bounds = reproduce(names, folder=tmp_path)
    assert (tmp_path / "no-momentum.laptop.jsonl").read_bytes() == before and noise.problem is None
    reported = [row for row in noise.rows if row["role"] == "result"]
    assert [each["test_accuracy"] for each in noise.records()] == [row["metrics"]["test_accuracy"] for row in reported]
    assert bounds.records() and reproduce("combinatorial-bounds").records() == bounds.records()


def test_the_page_tells_of_runs_that_are_missing(tmp_path: Path) -> None:
    """A results file that was cut short is shown with what it has, and needs no reasons yet."""
    script = runpy.run_path(str(ROOT / "docs/results.py"))
    lines = (FOLDER / "attack-accuracy.laptop.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "attack-accuracy.laptop.jsonl").write_bytes(b"".join(lines[:20]))
    page = script["write"](tmp_path)
    assert f"**Partial: 20 of {len(lines)} runs are done, so the verdicts are not final.**" in page
    assert "| laptop, partial |" in page and "CIFAR10 | Bulyan" in page and "FMNIST | Bulyan" not in page


def test_a_file_that_is_partly_done_takes_the_lines_that_others_have(tmp_path: Path) -> None:
    """Exhibits share runs: what one has gained is not missing from another."""
    names = ("pgd-epochs.dense.jsonl", "attacker-batch.dense.jsonl")
    known, others = ((FOLDER / name).read_bytes().splitlines(keepends=True) for name in names)
    elsewhere = {row["key"] for row in results.read(FOLDER / names[1])}
    own = [
        line for line, row in zip(known, results.read(FOLDER / names[0]), strict=True) if row["key"] not in elsewhere
    ]
    assert 0 < len(own) < len(known)
    (tmp_path / names[0]).write_bytes(b"".join(own))
    (tmp_path / names[1]).write_bytes(b"".join(others))
    runpy.run_path(str(ROOT / "docs/results.py"))["share_lines"](tmp_path)
    assert (tmp_path / names[0]).read_bytes() == b"".join(known)


@pytest.mark.parametrize(
    ("name", "heading", "claims"),
    [
        ("uncompressed", "Appendix B.1, FedAvg: Uncompressed training against FedAvg", "What the paper says"),
        ("training-length", "How many rounds an attack needs", "The claims"),
    ],
)
def test_a_page_says_whose_claims_it_judges(name: str, heading: str, claims: str) -> None:
    shown = outcome(plan(reading.load(name), "dense"), FOLDER)
    assert shown.document().heading == heading
    assert f"\n{claims}\n\n| Claim |" in shown.to_markdown()


@pytest.mark.parametrize("name", COMPLETE)
def test_every_chart_is_there(name: str) -> None:
    assert (FOLDER / f"{name}.laptop.svg").stat().st_size > 5_000
    assert f"](../results/{name}.laptop.svg)" in (ROOT / "docs/RESULTS.md").read_text(encoding="utf-8")
