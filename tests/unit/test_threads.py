"""A run computes with the threads it began with, because torch's sums depend on their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.round import RoundReport
from tests.support.damage import TABLE, make


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(folder: Path, stop: int = 10**9) -> list[int]:
    """Run or resume, up to a round; return how many threads each round was computed with."""
    config, seen = configs.parse(TABLE), list[int]()

    def look(report: RoundReport) -> None:
        seen.append(torch.get_num_threads())
        if report.state.round == stop:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        runs.run(folder, configs.dump(config), lambda: configs.build(config), checkpoint_every=2, on_round=look)
    return seen


def test_a_resumed_run_keeps_its_threads_and_its_bits(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    whole = make(tmp_path / "whole")
    assert run(tmp_path / "run", stop=3) == [2, 2, 2]
    torch.set_num_threads(1)
    assert run(tmp_path / "run") == [2, 2, 2]
    assert torch.get_num_threads() == 1
    assert (tmp_path / "run" / runs.CHECKPOINT).read_bytes() == (whole / runs.CHECKPOINT).read_bytes()


@pytest.mark.parametrize("claim", [None, "many", 0, -3, 10**9])
def test_a_manifest_without_a_sensible_number_changes_nothing(tmp_path: Path, claim: object) -> None:
    torch.set_num_threads(2)
    run(tmp_path / "run", stop=3)
    torch.set_num_threads(1)
    machine = dict(runs.load_run(tmp_path / "run").manifest["machine"]) | {"threads": claim}
    runs.note(tmp_path / "run", machine=machine)
    assert run(tmp_path / "run") == [1, 1, 1]
