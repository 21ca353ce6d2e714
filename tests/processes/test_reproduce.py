"""`sparsefed reproduce` as a person calls it: a process, every exhibit at scale smoke, a machine without data sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsefed.commands.reproduce import grid
from sparsefed.commands.reproduce import load as reading

MINUTES = 5
EXHIBITS = reading.names()
HERE = [sys.executable, "-m", "sparsefed.cli", "reproduce"]

needs_exhibits = pytest.mark.skipif(not EXHIBITS, reason="the package holds no exhibits")


def called(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in an empty folder, on a machine without data sets."""
    away = {"SPARSEFED_DATA": str(folder / "none"), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
    environment = {**os.environ, **away, "PYTHONWARNINGS": ""}
    return subprocess.run([*HERE, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


@needs_exhibits
def test_every_exhibit_runs_at_scale_smoke_in_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    done = called("--all", "--scale", "smoke", folder=tmp_path)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for name in EXHIBITS:
        exhibit = reading.load(name)
        rows = [json.loads(line) for line in (tmp_path / "results" / f"{name}.smoke.jsonl").read_text().splitlines()]
        assert {row["status"] for row in rows} == {"done"}, name
        if exhibit.kind == "runs":
            told = {tuple(row["cell"].values()) for row in rows if row["role"] == "result"}
            assert told == {tuple(each.values.values()) for each in grid.combinations(exhibit, "smoke")}, name
        assert (tmp_path / "results" / f"{name}.smoke.html").stat().st_size > 100_000, name
        assert (exhibit.chart is None) or (tmp_path / "results" / f"{name}.smoke.png").exists(), name
        assert all(claim.text in done.stdout for claim in exhibit.claims), name
    assert took < MINUTES * 60


def test_a_name_nobody_knows_is_one_sentence(tmp_path: Path) -> None:
    done = called("tabel-2", folder=tmp_path)
    assert done.returncode == 2 and "unknown exhibit 'tabel-2'" in done.stderr and "--list" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "results").exists()


@needs_exhibits
def test_the_list_names_every_exhibit(tmp_path: Path) -> None:
    done = called("--list", folder=tmp_path)
    assert done.returncode == 0 and all(name in done.stdout for name in EXHIBITS)
    assert done.stdout == called(folder=tmp_path).stdout  # without a name: what there is
