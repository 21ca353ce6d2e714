"""Cohorts in parts and rows in slices: where something is computed changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsefed import Simulation, config
from sparsefed.core.types import Context
from sparsefed.defenses.bulyan import bulyan
from sparsefed.defenses.coordinate import median, trimmed_mean
from sparsefed.defenses.krum import krum, multi_krum
from sparsefed.kernels import distances
from sparsefed.kernels.blocks import RowsBlock, ScaledBlock
from sparsefed.kernels.sliced import SLICE, OfSlice, SlicedRows, row_of

TABLE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "devices": 60, "partition": "iid"},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.1},
    "defense": {"name": "sparsefed", "k": 100, "clip_norm": 1.0},
}


class SlicedHere(SlicedRows):
    """Whole rows that are handed out in slices only."""

    def __init__(self, rows: Tensor) -> None:
        self._rows, self.shape = rows, (len(rows), rows.shape[1])

    def slices(self, function: OfSlice) -> Iterator[Tensor]:
        for part in torch.split(self._rows, SLICE, dim=1):
            yield function(part.contiguous())

    def __getitem__(self, kept: Tensor) -> SlicedHere:
        return SlicedHere(self._rows[kept])


class Elsewhere(RowsBlock):
    """A block whose rows can be had in slices only."""

    @property
    def remote(self) -> Elsewhere:
        return self

    def join(self, blocks: list[ScaledBlock]) -> SlicedHere:
        return SlicedHere(torch.cat([block.rows() for block in blocks]))


def rows_of(n: int, d: int, seed: int) -> Tensor:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32))
    rows[1] = rows[0]  # colluders send equal rows
    return rows


RULES: list[Callable[[], Any]] = [
    lambda: krum(f=2),
    lambda: krum(f=2, variant="paper-box"),
    lambda: multi_krum(f=2),
    lambda: trimmed_mean(f=2),
    lambda: median(),
    lambda: bulyan(f=2),
    lambda: bulyan(f=1, variant="around_median"),
]


@pytest.mark.parametrize("made", RULES)
@pytest.mark.parametrize("d", [3, SLICE - 1, 2 * SLICE + 700])
def test_a_rule_on_slices_gives_the_bits_of_whole_rows(made: Callable[[], Any], d: int) -> None:
    rows = rows_of(13, d, seed=d)
    rows[5, 0] = torch.nan  # dropped
    defense = made().build()
    context = Context(1, 0.1)
    here = defense.step(defense.init(d), [RowsBlock(rows[:7]), RowsBlock(rows[7:])], context)
    away = defense.step(defense.init(d), [Elsewhere(rows[:7]), Elsewhere(rows[7:])], context)
    assert torch.equal(here.delta, away.delta)
    assert here.stats == away.stats


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_distances_do_not_depend_on_the_threads_or_on_slices(scale: float) -> None:
    rows = rows_of(9, 3 * SLICE + 17, seed=4) * scale  # squares that leave float32 are computed in float64
    before = torch.get_num_threads()
    results = [distances.squared_distances(SlicedHere(rows))]
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(distances.squared_distances(rows))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, results[0]) for each in results)
    wide = rows.double()
    truth = torch.stack([(wide - row).square().sum(1) for row in wide])
    torch.testing.assert_close(results[0], truth, rtol=1e-5, atol=0)


def test_one_row_is_found_in_the_slices() -> None:
    rows = rows_of(3, SLICE + 5, seed=1)
    assert torch.equal(row_of(SlicedHere(rows), 2), rows[2])


def digest(table: dict[str, Any]) -> bytes:
    return Simulation.from_config(table).run().theta.numpy().tobytes()


def over(**train: Any) -> dict[str, Any]:
    return {**TABLE, "train": {**TABLE["train"], **train}}


def test_a_part_as_large_as_the_cohort_changes_nothing() -> None:
    assert digest(over(block=10)) == digest(TABLE) == digest(over(block=1000))


@given(block=st.integers(1, 11))
def test_parts_change_rounding_alone(block: int) -> None:
    theta = Simulation.from_config(over(block=block)).run().theta
    torch.testing.assert_close(theta, Simulation.from_config(TABLE).run().theta, rtol=1e-3, atol=1e-4)


def test_a_config_without_parts_is_the_config_it_was() -> None:
    assert "block" not in config.dump(config.parse(TABLE))["train"]
    assert config.dump(config.parse(over(block=5)))["train"]["block"] == 5


def test_random_layers_draw_anew_in_every_part() -> None:
    table = {**over(block=3), "model": {"name": "tests.unit.test_parts:with_dropout"}}
    theta = Simulation.from_config(table).run().theta
    assert torch.equal(theta, Simulation.from_config(table).run().theta)
    assert bool(torch.isfinite(theta).all())


def with_dropout(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    size = int(np.prod(shape))
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(size, classes))
