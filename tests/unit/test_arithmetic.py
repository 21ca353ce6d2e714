"""What a run is computed in, on processors with and without bfloat16."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsefed.commands.reproduce import document
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import outcome, run_exhibits
from sparsefed.core import dtypes as arithmetic
from sparsefed.core.dtypes import computed_in, has_bfloat16
from sparsefed.core.types import RunRecord
from sparsefed.runs import dtype_of
from sparsefed.sweeps import ledger, pool
from tests.support.configs import BASE, experiment, run
from tests.support.exhibits_tiny import TINY
from tests.support.forked_workers import FORKING

SENTENCE = "this processor has no bfloat16: computing in float32"


@pytest.fixture(autouse=True)
def silence_broken() -> Iterator[None]:
    """What is said once a process may be said again."""
    arithmetic._say_so.cache_clear()
    yield
    arithmetic._say_so.cache_clear()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Here; that kernels are compiled is said elsewhere."""
    mine = [record for record in caplog.records if record.name == arithmetic.__name__]
    assert all(record.levelno == logging.WARNING for record in mine)
    return [record.message for record in mine]


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda _device: False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not list the processor's flags")
def test_the_answer_is_the_processors() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    if "avx512_bf16" in flags and "amx_tile" not in flags:
        assert has_bfloat16()
    if "avx2" in flags and not {"avx512_bf16", "amx_tile"} & set(flags):
        assert not has_bfloat16()


@pytest.mark.parametrize(("product", "works"), [("pass", True), ("import os; os.kill(os.getpid(), 4)", False)])
def test_amx_that_is_named_and_cannot_run_is_none(monkeypatch: pytest.MonkeyPatch, product: str, works: bool) -> None:
    """As on some virtual machines, where a product in bfloat16 is an illegal instruction (signal 4)."""
    monkeypatch.setattr(arithmetic, "PRODUCT", product)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    arithmetic._amx_works.cache_clear()
    assert has_bfloat16() is works
    arithmetic._amx_works.cache_clear()


@pytest.mark.parametrize("instructions", [True, False])
def test_bfloat16_that_onednn_would_emulate_is_none(monkeypatch: pytest.MonkeyPatch, instructions: bool) -> None:
    """As on processors with AVX-512 but without its instructions for bfloat16, where a product takes twice as long."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    assert has_bfloat16() is instructions


def test_where_there_is_bfloat16_it_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda _device: True)
    assert (computed_in("bfloat16"), computed_in("float32")) == (torch.bfloat16, torch.float32)
    assert not said(caplog)


@pytest.mark.slow
def test_where_there_is_none_it_is_float32_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch)
    calm: dict[str, Any] = {"threat": {}, "attack": None, "rounds": 3}
    thetas = [
        run(experiment(**calm, train={**BASE["train"], "dtype": dtype}), rounds=3)[-1].state.theta
        for dtype in ("bfloat16", "bfloat16", "float32")
    ]
    assert torch.equal(thetas[0], thetas[2]) and torch.equal(thetas[1], thetas[2])
    assert [sentence.startswith(SENTENCE) for sentence in said(caplog)] == [True]


@pytest.mark.slow
@pytest.mark.process
def test_the_runner_says_it_for_its_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    without(monkeypatch)
    monkeypatch.setattr(pool, "subprocess", FORKING)
    short = TINY.replace("set.rounds = 24", "set.rounds = 2")
    half = short.replace("set.train = { cohort = 10", 'set.train = { dtype = "bfloat16", cohort = 10')
    run_exhibits([plan(reading.parse("tiny", half), "smoke")], tmp_path, 1)
    assert [sentence.startswith(SENTENCE) for sentence in said(caplog)] == [True]
    caplog.clear()
    run_exhibits([plan(reading.parse("tiny", short), "smoke")], tmp_path, 1)
    assert not said(caplog)
    assert {row["dtype"] for row in ledger.read(tmp_path / "tiny.smoke.jsonl")} == {"float32"}


@pytest.mark.parametrize(
    ("train", "machine", "computed"),
    [
        ({"dtype": "bfloat16"}, {"bfloat16": "no, float32 in its place"}, "float32"),
        ({"dtype": "bfloat16"}, {"bfloat16": "yes"}, "bfloat16"),
        ({"dtype": "bfloat16", "device": "cuda"}, {"bfloat16": "no, float32 in its place"}, "bfloat16"),
        ({}, {}, "float32"),
    ],
)
def test_what_a_run_was_computed_in(train: dict[str, str], machine: dict[str, str], computed: str) -> None:
    assert dtype_of(RunRecord("run", {"train": train}, {"machine": machine}, ())) == computed


def test_a_page_tells_what_its_runs_were_computed_in(tmp_path: Path) -> None:
    lines = [{"status": "done", "dtype": "float32"}, {"status": "done", "dtype": "float32"}, {"status": "done"}]
    made = outcome(plan(reading.parse("tiny", TINY), "smoke"), tmp_path)
    said_of = [list(document.arithmetic(replace(made, rows=tuple(lines[i:j])))) for i, j in ((0, 2), (0, 3), (2, 3))]
    assert said_of == [["Computed in float32."], ["Of 3 runs, 2 in float32, 1 in a type that was not recorded."], []]


@pytest.mark.parametrize("there", [True, False])
def test_the_list_of_exhibits_says_whose_minutes_it_tells(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "has_bfloat16", lambda: there)
    assert (document.SLOWER in document.listing().caption) == (not there)
