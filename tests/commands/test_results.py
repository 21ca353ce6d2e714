"""What is committed under results/ belongs to the exhibits of today, and docs/RESULTS.md says what it says."""

from __future__ import annotations

import runpy
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce import runner
from sparsefed.commands.reproduce.claims import HOLDS, judge
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import reproduce
from sparsefed.sweeps import ledger as results
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


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_left_to_run(file: str) -> None:
    """A config that was changed afterwards is a new cell, and its results are not here."""
    name, scale, _ = file.split(".")
    one = plan(reading.load(name), scale)
    assert results.path(FOLDER, one) == FOLDER / file
    ledger = Ledger(FOLDER, [one])
    slots = results.slots(one, ledger)
    assert [cell for slot in slots for cell in ledger.wanting(one, slot)] == []
    assert results.coming(one, ledger) == 0
    rows = results.read(FOLDER / file)
    assert [slot.cell.key for slot in slots] == [row["key"] for row in rows]
    assert results.rows(one, ledger) == rows


@pytest.mark.parametrize("file", FILES)
def test_they_are_found_without_running_anything(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files alone are enough: neither the cells' folders nor data sets are there."""
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(runner, "pool", no_workers)
    name, scale, _ = file.split(".")
    shutil.copy(FOLDER / file, tmp_path)
    ledger = runner.reproduce([plan(reading.load(name), scale)], tmp_path, jobs=1)
    assert runner.failures(ledger, tmp_path) is None
    assert (tmp_path / file).read_bytes() == (FOLDER / file).read_bytes()


def no_workers(jobs: int) -> None:
    raise AssertionError(f"{jobs} workers were asked for")


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_there(name: str) -> None:
    assert (FOLDER / f"{name}.laptop.svg").stat().st_size > 5_000
    assert f"](../results/{name}.laptop.svg)" in (ROOT / "docs/RESULTS.md").read_text(encoding="utf-8")
