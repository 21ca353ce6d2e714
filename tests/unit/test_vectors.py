"""Top-k, blocks and the memory step against their naive twins."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.defenses import aggregate
from sparsefed.kernels import RowsBlock, ScaledBlock, accumulate_topk, as_blocks, topk_indices, topk_mask
from sparsefed.kernels import vector_kernels as kernels
from sparsefed.kernels.error_feedback import accumulate_topk_torch
from sparsefed.kernels.topk import coordinates, require_k, topk_indices_torch
from tests.support import reference

FEW_VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0000001, 2.0, -2.0, 1e-45, -3e38, math.inf, -math.inf])
ANY_VALUE = st.floats(width=32, allow_nan=False)
VECTORS = st.lists(FEW_VALUES, min_size=1, max_size=40) | st.lists(ANY_VALUE, min_size=1, max_size=40)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@settings(deadline=None)
@given(VECTORS, st.data())
def test_topk_is_the_twin_on_both_paths(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)) | st.just(len(values)))
    x = torch.tensor(values)
    expected = reference.topk(x.tolist(), k)
    assert topk_indices(x, k).tolist() == expected
    assert topk_indices_torch(x, k).tolist() == expected
    assert torch.nonzero(topk_mask(x, k)).squeeze(1).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_topk_twice_is_topk(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    x = torch.tensor(values, dtype=torch.float32)
    once = x * topk_mask(x, k)
    assert torch.equal(once * topk_mask(once, k), once)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 999), max_size=4), st.sampled_from([1, 7, 300, 999, 1000]))
def test_chunks_do_not_change_the_choice(seed: int, cuts: list[int], k: int) -> None:
    x = rng(seed, "chunks").integers(-20, 20, size=1000).astype(np.float32)  # ties across every border
    edges = [0, *sorted(set(cuts)), 1000]
    chunks = list(pairwise(edges))
    bits = x.view(np.uint32)
    counts = np.zeros((len(chunks), kernels.HIGH_BINS), np.int64)
    kernels.over_chunks(lambda c, a, b: kernels.count_high(bits, a, b, counts[c]), chunks)
    assert np.array_equal(kernels.select(bits, k, chunks, counts), np.sort(np.lexsort((np.arange(1000), -abs(x)))[:k]))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-30])
def test_threads_do_not_change_a_bit(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    d = 3 * kernels.MIN_CHUNK + 17
    assert len(kernels.spans(d)) == 2
    u, r, w = (torch.from_numpy(scale * rng(i, "threads").normal(size=d).astype(np.float32)).float() for i in range(3))
    for through_momentum in (True, False):
        ours = accumulate_topk(u, r, w, 1000, 0.9, through_momentum)
        plain = accumulate_topk_torch(u, r, w, 1000, 0.9, through_momentum)
        assert all(torch.equal(a, b) for a, b in zip(ours[:3], plain[:3], strict=True))
        torch.testing.assert_close(ours.mass, plain.mass, rtol=1e-12, atol=0)
        monkeypatch.setattr(kernels, "spans", lambda d: [(0, d)])
        assert torch.equal(accumulate_topk(u, r, w, 1000, 0.9, through_momentum).mass, ours.mass)
        monkeypatch.undo()


def test_accumulate_leaves_its_inputs_alone_and_takes_views() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6).T
    copies = base.clone()
    ours = accumulate_topk(base[0], base[1], base[2], 2, 0.5, True)
    assert torch.equal(base, copies)
    assert ours.momentum.tolist() == [0.5 * r + u for u, r in zip(copies[0].tolist(), copies[1].tolist(), strict=True)]
    assert torch.equal(ours.memory, copies[2] + ours.momentum)
    assert ours.indices.tolist() == [2, 3]


def test_nan_counts_as_larger_than_infinity() -> None:
    x = torch.tensor([1.0, math.inf, math.nan, 2.0])
    assert topk_indices(x, 1).tolist() == topk_indices_torch(x, 1).tolist() == [2]


@pytest.mark.parametrize("k", [0, -1, 4])
def test_impossible_k_is_a_sentence(k: int) -> None:
    with pytest.raises(ConfigError, match=rf"k is {k}.*choose k from 1 to 3"):
        topk_indices(torch.ones(3), k)


@pytest.mark.process
def test_importing_the_defenses_imports_no_kernel() -> None:
    code = "import sys, sparsefed.defenses; sys.exit('sparsefed.kernels.vector_kernels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ROWS = st.integers(1, 6).flatmap(
    lambda d: st.lists(
        st.lists(st.floats(-(2.0**60), 2.0**60, width=32) | st.sampled_from([0.0, 3e-39, 2.0]), min_size=d, max_size=d),
        min_size=1,
        max_size=5,
    )
)


@given(ROWS)
def test_norms_are_the_twins(rows: list[list[float]]) -> None:
    block = RowsBlock(torch.tensor(rows))
    assert block.norms().dtype == torch.float64
    np.testing.assert_allclose(block.norms(), [reference.norm(row) for row in block.tensor.tolist()], rtol=1e-12)


def test_norms_of_large_rows_do_not_overflow() -> None:
    assert float(RowsBlock(torch.full((1, 4), 3e38)).norms()) == pytest.approx(6e38, rel=1e-6)


@given(ROWS, st.data())
def test_a_weight_of_zero_leaves_a_row_out(rows: list[list[float]], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.5, -2.0]), min_size=len(rows), max_size=len(rows)))
    expected = [sum(w * row[i] for w, row in zip(weights, rows, strict=True)) for i in range(len(rows[0]))]
    scale = sum(reference.norm(row) for row in rows)
    bad = [row if weight else [math.nan, *row[1:]] for row, weight in zip(rows, weights, strict=True)]
    total = RowsBlock(torch.tensor(bad)).weighted_sum(torch.tensor(weights, dtype=torch.float64))
    assert total.dtype == torch.float32
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6 * scale + 1e-37)


def test_a_scaled_block_agrees_with_itself() -> None:
    rows = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [0.0, 2.0]])
    kept = torch.tensor([True, False, True])
    base = RowsBlock(rows)
    block = ScaledBlock(base, kept, torch.tensor([0.5, 1.0], dtype=torch.float64), base.norms()[kept])
    assert block.size == 2
    assert block.rows().tolist() == [[1.5, 2.0], [0.0, 2.0]]
    assert block.norms().tolist() == [2.5, 2.0]
    assert block.weighted_sum(torch.tensor([2.0, 3.0], dtype=torch.float64)).tolist() == [3.0, 10.0]


@pytest.mark.parametrize("block_size", [1, 2, 3, 100])
def test_blocks_of_any_array_are_its_rows(block_size: int) -> None:
    base = np.arange(15, dtype=np.float64).reshape(5, 3)
    frozen = base.astype(np.float32)
    frozen.flags.writeable = False
    for array in (base, base[::-1], base.T.copy().T, base.astype(">f4"), base.astype(np.float16), frozen):
        copy = array.copy()
        rows = torch.cat([block.rows() for block in as_blocks(array, block_size)])
        assert rows.dtype == torch.float32
        assert np.array_equal(rows.numpy(), copy)
        assert np.array_equal(array, copy)
    tensor = torch.from_numpy(base).T.to(torch.bfloat16).requires_grad_()
    assert torch.equal(torch.cat([b.rows() for b in as_blocks(tensor, block_size)]), torch.from_numpy(base).T.float())


def test_what_float32_cannot_hold_becomes_infinite() -> None:
    (block,) = as_blocks(np.array([[1e300, 0.0], [1.0, 1.0]]), 2)
    assert block.norms().isfinite().tolist() == [False, True]


@given(st.integers(1, 10**7), st.integers(1, 1000))
def test_a_share_of_the_coordinates_is_rounded_up_and_fits(d: int, tenths: int) -> None:
    k = coordinates(f"{tenths / 10:g}%", d)
    assert k == -(-tenths * d // 1000) and 1 <= k <= d
    assert coordinates(k, d) == k


@pytest.mark.parametrize("text", ["1", "0%", "101%", "-1%", "1e1%", "one%", "%", "", "nan%", "1 per", "9" * 50 + "%"])
def test_a_text_that_is_no_share_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match='"1%"') as raised:
        require_k(text, "one is needed")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("name", ["sparsefed", "fetchsgd", "local_topk"])
def test_a_share_gives_the_bits_of_the_number(name: str) -> None:
    updates = torch.from_numpy(rng(0, "share").standard_normal((6, 250)).astype(np.float32))
    more: dict[str, Any] = {"rows": 3, "columns": 400} if name == "fetchsgd" else {}
    one, other = (aggregate(name, updates, k=k, clip_norm=1.0, **more) for k in ("2%", 5))
    assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
