"""The count sketch against its twin and its theory; FetchSGD and local top-k against theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import Context, State
from sparsefed.defenses import Combine, CommonOptions, RuleParts, assemble
from sparsefed.defenses.fetchsgd import fetchsgd, sketched_memory
from sparsefed.defenses.local_topk import local_topk
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.kernels import RowsBlock, as_blocks, sketch_kernels
from sparsefed.kernels.sketch import (
    Hashes,
    Sparse,
    cells,
    draw_hashes,
    estimates,
    estimates_torch,
    hash_values,
    heavy_hitters,
    heavy_hitters_torch,
    rehearse,
    sketch,
    sketch_sparse,
    sketch_torch,
    touched,
)
from sparsefed.kernels.topk import topk_indices_torch
from tests.support.reference import (
    FetchSgdTwin,
    LocalTopkTwin,
    SketchTwin,
    hashed_column,
    hashed_sign,
    tabulated_hash,
)

SIGMAS = 5  # of a normal number: a test that is right fails once in 1.7 million


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def twin_of(hashes: Hashes) -> SketchTwin:
    """The same functions as lists, from the tables alone."""
    tables = zip(hashes.high.tolist(), hashes.low.tolist(), hashes.both.tolist(), strict=True)
    values = [[tabulated_hash(i, *row) for i in range(hashes.d)] for row in tables]
    columns = [[hashed_column(value, hashes.columns) for value in row] for row in values]
    return SketchTwin(columns, [[hashed_sign(value) for value in row] for row in values], hashes.columns)


WHOLE = st.integers(-4, 4).map(float)  # sums and halves of them are exact in float32: ties, zeros, no rounding
SIZES = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 5, 7]), st.integers(1, 12), st.integers(0, 10**6))


@settings(deadline=None)
@given(SIZES, st.data())
def test_both_paths_are_the_twin(size: tuple[int, int, int, int], data: st.DataObject) -> None:
    d, rows, columns, seed = size
    values = data.draw(st.lists(WHOLE, min_size=d, max_size=d))
    k = data.draw(st.integers(1, d))
    hashes = draw_hashes(seed, d, rows, columns)
    twin, x = twin_of(hashes), torch.tensor(values)
    table = sketch(hashes, x)
    expected = twin.sketch(values)
    assert table.tolist() == sketch_torch(hashes, x).tolist() == expected
    found = [twin.estimate(expected, i) for i in range(d)]
    assert estimates(hashes, table).tolist() == estimates_torch(hashes, table).tolist() == found
    heavy = dict(sorted(twin.heavy(expected, k).items()))
    for ours in (heavy_hitters(hashes, table, k), heavy_hitters_torch(hashes, table, k)):
        assert (ours.indices.tolist(), ours.values.tolist()) == (list(heavy), list(heavy.values()))


@pytest.mark.usefixtures("two_threads")
def test_threads_and_paths_do_not_change_a_bit() -> None:
    d, k = sketch_kernels.FILTER_FROM + 17, 500
    assert (len(sketch_kernels.row_spans(5, d)), len(sketch_kernels.tile_spans(d))) == (2, 2)
    hashes = draw_hashes(1, d, 5, 999)
    x = torch.from_numpy(rng(1, "threads").normal(size=d).astype(np.float32) ** 5)
    table = sketch(hashes, x)
    threaded = (table, estimates(hashes, table), *heavy_hitters(hashes, table, k))
    torch.set_num_threads(1)
    alone = (sketch(hashes, x), estimates(hashes, table), *heavy_hitters(hashes, table, k))
    plain = (sketch_torch(hashes, x), estimates_torch(hashes, table), *heavy_hitters_torch(hashes, table, k))
    for other in (alone, plain):
        assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(threaded, other, strict=True))


LARGE = sketch_kernels.FILTER_FROM + 500


def large_vectors() -> dict[str, Tensor]:
    """What may mislead the sample of tiles from which the filter guesses the size of the k-th estimate."""
    generator = rng(8, "large")
    normal = torch.from_numpy(generator.normal(size=LARGE)).float()
    tile = torch.arange(LARGE) // 1024 % sketch_kernels.SAMPLE
    return {
        "normal": normal,
        "whole": torch.from_numpy(generator.integers(-2, 3, size=LARGE)).float(),  # ties everywhere
        "zero": torch.zeros(LARGE),
        "few": torch.where(normal > 4.2, normal, 0.0),
        "sampled": torch.where(tile == 0, 100 * normal, normal),
        "unsampled": torch.where(tile == 1, 100 * normal, normal),
    }


@pytest.mark.parametrize("kind", large_vectors())
@pytest.mark.parametrize(("rows", "columns"), [(1, 100_000), (5, 100_000), (3, 7), (15, 2000), (17, 2000)])
def test_the_filter_changes_no_choice(kind: str, rows: int, columns: int) -> None:
    hashes = draw_hashes(9, LARGE, rows, columns)
    table = sketch(hashes, large_vectors()[kind])
    every = estimates(hashes, table)
    for k in (1, 1000, LARGE // 9):
        found = heavy_hitters(hashes, table, k)
        assert torch.equal(found.indices, topk_indices_torch(every, k))
        assert torch.equal(found.values, every[found.indices])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("rows", [1, 3, 15])
def test_the_filter_finds_exactly_the_estimates_that_are_as_large(rows: int) -> None:
    hashes = draw_hashes(9, LARGE, rows, 5000)
    table = sketch(hashes, large_vectors()["whole"])
    every = estimates(hashes, table)
    for size in (1.0, 4.0, 11.0, 1e6):
        found = sketch_kernels.at_least(table.numpy(), hashes.tables, LARGE, np.float32(size).view(np.uint32))
        assert found.tolist() == torch.nonzero(every.abs() >= size).squeeze(1).tolist()


def test_a_rehearsal_compiles_all_that_a_round_needs() -> None:
    names = ("add_rows", "estimate", "classify", "collect", "estimate_some")  # those that Python calls
    compiled: list[Any] = [getattr(sketch_kernels, name) for name in names]
    rehearse()
    before = [list(kernel.signatures) for kernel in compiled]
    assert all(before)
    for d in (LARGE, 30):
        transform = sketched_memory(3, 5, 1000, 0.9, "zero")
        transform.step(transform.init(d), torch.arange(float(d)), Context(0, 0.1))
    assert [list(kernel.signatures) for kernel in compiled] == before


@pytest.mark.parametrize("d", [1, 1023, 1024, 1025, 5000])
def test_hashes_are_the_twins_across_tiles(d: int) -> None:
    hashes = draw_hashes(7, d, 3, 97)
    twin, everything = twin_of(hashes), torch.arange(d)
    for j in range(3):
        columns, signs = cells(hashes, j, everything)
        assert (columns.tolist(), signs.tolist()) == (twin.h[j], twin.s[j])
    mask = touched(hashes, everything[: d // 2])
    assert mask.tolist() == [[b in row[: d // 2] for b in range(97)] for row in twin.h]


def test_any_five_coordinates_are_hashed_independently() -> None:
    """Where each character has a bit of its own, hashes are independent if and only if no few of them cancel."""
    high, low, both = (np.zeros((1, size), np.uint32) for size in (4, 1024, 4 + 1023))
    high[0, :4] = 1 << np.arange(4)
    low[0, :4] = 1 << np.arange(4, 8)
    both[0, :7] = 1 << np.arange(8, 15)
    keys = torch.tensor([1024 * a + b for a in range(4) for b in range(4)])
    values = hash_values(Hashes(4096, 1, high, low, both), 0, keys).tolist()
    for some in range(1, 6):
        for chosen in combinations(values, some):
            assert np.bitwise_xor.reduce(chosen) != 0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(-8, 8), st.integers(-8, 8))
def test_a_sketch_is_linear(seed: int, alpha: int, beta: int) -> None:
    hashes = draw_hashes(seed, 3000, 3, 50)
    x, y = torch.from_numpy(rng(seed, "linear").integers(-50, 50, size=(2, 3000)).astype(np.float32))
    assert torch.equal(sketch(hashes, alpha * x + beta * y), alpha * sketch(hashes, x) + beta * sketch(hashes, y))
    few = torch.from_numpy(np.flatnonzero(rng(seed, "few").random(3000) < 0.01))
    dense = torch.zeros(3000).index_copy_(0, few, x[few])
    assert torch.equal(sketch_sparse(hashes, Sparse(few, x[few])), sketch(hashes, dense))


@pytest.mark.slow
def test_a_rows_estimate_is_unbiased_and_has_the_variance_of_theory() -> None:
    """E = x_i, Var = V = (|x|^2 - x_i^2) / c, and the fourth moment that independence of 5 implies, over 3000 draws."""
    d, c, draws = 2100, 20, 3000
    x = torch.from_numpy(rng(5, "moments").normal(size=d)).float()
    watched = [0, 1023, 1024, 2099]
    errors = np.array(
        [
            [float(sign * table[column]) - float(x[i]) for i, column, sign in zip(watched, *at, strict=True)]
            for hashes in (draw_hashes(seed, d, 1, c) for seed in range(draws))
            for table in sketch(hashes, x)
            for at in [[part.tolist() for part in cells(hashes, 0, torch.tensor(watched))]]
        ]
    )
    squares = x.double().numpy() ** 2
    for i, error in zip(watched, errors.T, strict=True):
        others = np.delete(squares, i)
        variance = others.sum() / c
        fourth = (others**2).sum() / c + 3 * (others.sum() ** 2 - (others**2).sum()) / c**2
        assert abs(error.mean()) <= SIGMAS * math.sqrt(variance / draws)
        assert abs((error**2).mean() - variance) <= SIGMAS * math.sqrt((fourth - variance**2) / draws)


def binomial_tail(r: int, q: float) -> float:
    """P[more than half of r independent rows fail], each with probability q."""
    return sum(math.comb(r, m) * q**m * (1 - q) ** (r - m) for m in range(r // 2 + 1, r + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "q"), [(1, 0.25), (3, 0.125), (5, 0.25)])
def test_an_estimate_fails_no_more_often_than_theory_allows(rows: int, q: float) -> None:
    """P[|estimate - x_i| >= t] <= P[Bin(r, q) > r / 2] with q = |x|^2 / (c t^2), over 3000 draws of the hashes."""
    d, c, draws, watched = 500, 10, 3000, 77
    x = torch.from_numpy(rng(6, "tail").normal(size=d)).float()
    t = math.sqrt(float((x.double() ** 2).sum()) / (c * q))
    misses = 0
    for seed in range(draws):
        hashes = draw_hashes(seed, d, rows, c)
        misses += abs(float(estimates(hashes, sketch(hashes, x))[watched]) - float(x[watched])) >= t
    promise = binomial_tail(rows, q)
    assert misses / draws <= promise + SIGMAS * math.sqrt(promise * (1 - promise) / draws)


def test_heavy_hitters_are_found_as_theory_promises() -> None:
    """Twenty draws; by a union bound over coordinates, one that misses a heavy hitter has probability below 1e-3."""
    d, k, rows, columns, draws = 20_000, 10, 11, 4000, 20
    generator = rng(7, "heavy")
    x = generator.normal(size=d) * 0.005
    heavy = np.sort(generator.choice(d, k, replace=False))
    light = float(np.abs(np.delete(x, heavy)).max())
    x[heavy] = generator.choice([-1.0, 1.0], k)
    t = (1 - light) / 2  # if no estimate is off by t, every heavy one is above every light one
    miss = binomial_tail(rows, float((x**2).sum()) / (columns * t**2))
    assert draws * d * miss < 1e-3
    vector = torch.from_numpy(x).float()
    for seed in range(draws):
        hashes = draw_hashes(seed, d, rows, columns)
        found = heavy_hitters(hashes, sketch(hashes, vector), k)
        assert found.indices.tolist() == heavy.tolist()
        assert float((found.values - vector[found.indices]).abs().max()) < t


def test_inputs_stay_and_views_are_taken() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6).T
    copy, hashes = base.clone(), draw_hashes(0, 4, 3, 2)
    table = sketch(hashes, base[1])
    assert torch.equal(table, sketch(hashes, copy[1].contiguous()))
    wide = torch.stack([table, table], dim=2)[..., 0]
    assert torch.equal(estimates(hashes, wide), estimates(hashes, table))
    assert torch.equal(base, copy)


@pytest.mark.parametrize(
    ("rows", "columns", "sentence"),
    [(0, 9, "rows is 0.*odd"), (4, 9, "rows is 4.*odd"), (5, 0, "columns is 0"), (5, 1 << 25, "columns is 33554432")],
)
def test_a_silly_table_is_a_sentence(rows: int, columns: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fetchsgd.__wrapped__(1, rows, columns)
    with pytest.raises(ConfigError, match=sentence):
        draw_hashes(0, 10, rows, columns)


def test_hashes_for_another_length_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the vector has 3 coordinates.*for 4"):
        sketch(draw_hashes(0, 4, 1, 2), torch.ones(3))


# FetchSGD


@settings(deadline=None, max_examples=60)
@given(SIZES, st.sampled_from(["zero", "subtract"]), st.sampled_from([0.0, 0.5]), st.data())
def test_fetchsgd_is_its_twin(size: tuple[int, int, int, int], masking: Any, rho: float, data: st.DataObject) -> None:
    d, rows, columns, seed = size
    k = data.draw(st.integers(1, d))
    updates = data.draw(st.lists(st.lists(WHOLE, min_size=d, max_size=d), min_size=1, max_size=5))
    twin = FetchSgdTwin(twin_of(draw_hashes(seed, d, rows, columns)), k, rho, masking)
    transform = sketched_memory(k, rows, columns, rho, masking)
    state = transform.init(d)
    for t, update in enumerate(updates):
        before = {name: tensor.clone() for name, tensor in state.items()}
        flow = transform.step(state, torch.tensor(update), Context(t, 0.1, seed))
        assert all(torch.equal(before[name], state[name]) for name in before)
        state = flow.state
        assert flow.vector.tolist() == twin.step(update)
        assert (state["momentum"].tolist(), state["memory"].tolist()) == (twin.momentum, twin.memory)


@pytest.mark.parametrize("preset", ["paper", "authors-2021-05"])
def test_the_whole_sentence_with_clipping_and_learning_rate(preset: str) -> None:
    """Clip to 5, mean, sketch; lr after the buffers (paper), or inside them (the authors' first code)."""
    d, k, lr = 30, 4, [0.5, 0.25, 1.0]
    params = {"k": k, "rows": 3, "columns": 8, "rho": 0.5, "clip_norm": 5.0, "preset": preset}
    defense = assemble("fetchsgd", fetchsgd, params)
    twin = FetchSgdTwin(twin_of(draw_hashes(11, d, 3, 8)), k, 0.5, "zero")
    state = defense.init(d)
    for t in range(3):
        rows = torch.zeros(4, d)
        rows[torch.arange(4), torch.from_numpy(rng(t, "at").integers(d, size=4))] = torch.tensor([1.0, -4.0, 3.0, 80.0])
        step = defense.step(state, as_blocks(rows, 3), Context(t, lr[t], 11))
        state = step.state
        mean = (rows.clamp(max=5.0).double().sum(0) / 4).tolist()
        inside = lr[t] if preset != "paper" else 1.0
        served = twin.step([inside * u for u in mean])
        assert step.delta.tolist() == [(lr[t] / inside) * u for u in served]
        assert (step.stats["upload_bytes"], step.stats["download_bytes"]) == (4 * 3 * 8, 8 * k)


def test_without_collisions_fetchsgd_is_sparsefed() -> None:
    d, k, columns = 40, 5, 1 << 20
    hashes = draw_hashes(3, d, 1, columns)
    assert len(set(cells(hashes, 0, torch.arange(d))[0].tolist())) == d
    sketched, plain = sketched_memory(k, 1, columns, 0.9, "zero"), topk_memory(k, 0.9)
    one, other = sketched.init(d), plain.init(d)
    for t in range(4):
        update = torch.from_numpy(rng(t, "same").normal(size=d)).float()
        a, b = sketched.step(one, update, Context(t, 0.1, 3)), plain.step(other, update, Context(t, 0.1, 3))
        one, other = a.state, b.state
        assert torch.equal(a.vector, b.vector)


def test_the_hashes_are_the_seeds_and_not_the_rounds() -> None:
    transform = sketched_memory(1, 3, 16, 0.0, "subtract")
    x = torch.arange(100.0)
    tables = [transform.step(transform.init(100), x, Context(t, 0.1, seed)) for t, seed in [(0, 1), (9, 1), (0, 2)]]
    assert torch.equal(tables[0].state["memory"], tables[1].state["memory"])
    assert not torch.equal(tables[0].state["memory"], tables[2].state["memory"])


def test_an_estimate_of_zero_empties_no_cell() -> None:
    """k = d takes every coordinate, but one that is estimated as 0 is not applied: its cells keep what they hold."""
    transform = sketched_memory(64, 3, 200, 0.5, "zero")
    update = torch.zeros(64)
    update[5] = 1.0
    flow = transform.step(transform.init(64), update, Context(0, 1.0))
    assert flow.vector.tolist() == update.tolist()
    # A cell that is full in one row only: the median of whoever lies there is 0, unless it is coordinate 5.
    other = int(cells(draw_hashes(0, 64, 3, 200), 0, torch.tensor([6]))[0])
    state = transform.init(64)
    memory = state["memory"].clone()
    memory[0, other] = 7.0
    after = transform.step({**state, "memory": memory}, update, Context(0, 1.0))
    assert after.vector.tolist() == update.tolist()
    assert float(after.state["memory"][0, other]) == 7.0


@pytest.mark.parametrize(("given", "sentence"), [({"k": 0}, "k is 0"), ({"k": 11}, "k is 11.*only d = 10")])
def test_fetchsgd_refuses_an_impossible_k(given: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        assemble("fetchsgd", fetchsgd, given).init(10)
    with pytest.raises(ConfigError, match=sentence):
        assemble("local_topk", local_topk, given).init(10)


def test_an_unknown_masking_is_a_sentence() -> None:
    masking: Any = "zeros"
    with pytest.raises(ConfigError, match=r"unknown masking 'zeros'.*'zero'"):
        fetchsgd.__wrapped__(1, masking=masking)


# Local top-k


def one_round(rule: Combine, state: State, rows: Tensor, senders: list[int], block_size: int, t: int) -> Any:
    named = np.array(senders)
    blocks = [RowsBlock(rows[a : a + block_size], named[a : a + block_size]) for a in range(0, len(rows), block_size)]
    return rule.step(state, blocks, Context(t, 0.1))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(0, 4), st.sampled_from([math.inf, 2.0]), st.integers(1, 3), st.data())
def test_local_topk_is_its_twin(d: int, remember: int, longest: float, block_size: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, d))
    rule = local_topk.__wrapped__(k, remember, None if math.isinf(longest) else longest)
    twin, state = LocalTopkTwin(k, remember, longest), rule.init(d)
    for t in range(data.draw(st.integers(1, 5))):
        senders = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
        rows = torch.tensor([data.draw(st.lists(WHOLE, min_size=d, max_size=d)) for _ in senders])
        copies = {name: tensor.clone() for name, tensor in state.items()}
        flow = one_round(rule, state, rows, senders, block_size, t)
        assert all(torch.equal(copies[name], state[name]) for name in copies)
        state = flow.state
        np.testing.assert_allclose(flow.vector, twin.step(rows.tolist(), senders), rtol=1e-5, atol=1e-5)
        assert state["seen"].tolist() == list(twin.memories)
        assert set(state) == {"seen", *(f"error.{sender}" for sender in twin.memories)}
        for sender, memory in twin.memories.items():
            np.testing.assert_allclose(state[f"error.{sender}"], memory, rtol=1e-5, atol=1e-5)
        assert flow.stats == {"upload_bytes": 8.0 * k, "remembered": float(len(twin.memories))}


def test_what_is_sent_and_what_waits_is_all_that_came() -> None:
    rule = local_topk.__wrapped__(2, message_norm=3.0)
    state, sent, came = rule.init(50), torch.zeros(50), torch.zeros(50)
    for t in range(20):
        row = torch.from_numpy(rng(t, "came").integers(-9, 9, size=50)).float()
        flow = one_round(rule, state, row[None], [4], 1, t)
        assert float(flow.vector.norm()) <= 3.0 * (1 + 1e-6)
        state, sent, came = flow.state, sent + flow.vector, came + row
    torch.testing.assert_close(sent + state["error.4"], came, rtol=1e-5, atol=1e-4)


def test_memory_and_message_stay_within_the_stated_bound() -> None:
    """The worst rows there are: the same one again and again, flat, clipped to L."""
    d, k, clip_norm = 50, 2, 3.0
    q = math.sqrt(1 - k / d)
    rule = local_topk.__wrapped__(k)
    state, longest = rule.init(d), 0.0
    for t in range(200):
        flow = one_round(rule, state, torch.full((1, d), clip_norm / math.sqrt(d)), [0], 1, t)
        state, longest = flow.state, max(longest, float(flow.vector.norm()))
        assert float(state["error.0"].norm()) <= clip_norm * q / (1 - q)
        assert float(flow.vector.norm()) <= clip_norm / (1 - q)
    assert longest > clip_norm  # and the clip norm alone would be a wrong promise


def test_absent_devices_are_shared_and_the_order_survives_a_checkpoint(tmp_path: Path) -> None:
    rule = local_topk.__wrapped__(1, remember=2)
    rows = torch.tensor([[3.0, 1.0], [5.0, 2.0]])
    first = one_round(rule, rule.init(2), rows, [10**12, 7], 2, 0).state  # numbers that float32 cannot hold
    assert first["seen"].tolist() == [7, 10**12]
    second = one_round(rule, first, rows[:1], [7], 1, 1).state
    assert second[f"error.{10**12}"] is first[f"error.{10**12}"]
    save_file({name: tensor.contiguous() for name, tensor in second.items()}, tmp_path / "state.safetensors")
    third = one_round(rule, load_file(tmp_path / "state.safetensors"), rows[1:], [8], 1, 2).state
    assert third["seen"].tolist() == [7, 8]


def test_who_is_twice_in_a_round_sends_twice() -> None:
    flow = one_round(
        local_topk.__wrapped__(1),
        local_topk.__wrapped__(1).init(3),
        torch.tensor([[3.0, 2.0, 0.0], [0.0, 2.0, 1.0]]),
        [1, 1],
        1,
        0,
    )
    assert flow.vector.tolist() == [1.5, 2.0, 0.0]
    assert flow.state["error.1"].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["fetchsgd", "local_topk"])
def test_a_round_without_a_usable_update_did_not_happen(name: str) -> None:
    builder = fetchsgd if name == "fetchsgd" else local_topk
    params = {"k": 2, "rows": 3, "columns": 7} if name == "fetchsgd" else {"k": 2}
    defense = assemble(name, builder, params)
    state = defense.step(defense.init(5), as_blocks(torch.ones(3, 5), 2), Context(0, 0.1)).state
    step = defense.step(state, as_blocks(torch.full((3, 5), math.nan), 2), Context(1, 0.1))
    assert not step.delta.any()
    assert step.state.keys() == state.keys()
    assert all(torch.equal(step.state[key], state[key]) for key in state)


def test_huge_and_unusable_rows_beside_honest_ones() -> None:
    """A device that sends NaN leaves no memory; one of norm 1e6 is clipped before its memory sees it."""
    rows = torch.tensor([[1.0, 2.0, 0.5], [math.nan, 0.0, 0.0], [1e6, 0.0, 0.0]])
    defense = assemble("local_topk", local_topk, {"k": 1, "clip_norm": 5.0, "rho": 0.0})
    step = defense.step(defense.init(3), as_blocks(rows, 2), Context(0, 1.0))
    assert step.delta.tolist() == [2.5, 1.0, 0.0]
    assert step.state["combine.seen"].tolist() == [0, 2]
    assert step.stats["remembered"] == 2
    assert not step.state["combine.error.2"].any()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"remember": -1}, "remember is -1"), ({"message_norm": 0.0}, "message_norm is 0.0.*> 0")],
)
def test_local_topk_refuses_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        local_topk.__wrapped__(1, **given)


@pytest.mark.parametrize("words", [fetchsgd.__wrapped__(1, 3, 4), local_topk.__wrapped__(1)])
def test_both_rules_take_the_frame(words: Any) -> None:
    rule = CommonOptions(clip_norm=2.0, rho=0.0).around(RuleParts(words) if isinstance(words, Combine) else words)
    step = rule.step(rule.init(3), as_blocks(torch.tensor([[8.0, 0.0, 0.0]]), 1), Context(0, 0.5))
    assert step.delta.tolist() == [1.0, 0.0, 0.0]
