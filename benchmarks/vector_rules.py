"""What the server does with one vector: top-k, the memory step, and the count sketch, against plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.outcome import Bar, Row
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, timed
from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.kernels.sketch import draw_hashes, heavy_hitters, sketch
from sparsefed.kernels.topk import topk_indices

RESNET9 = 6_568_640
QUICK = 4096
TOPK = (1_000, 5_000, 50_000)
ROWS, COLUMNS, K = 5, 500_000, 50_000


def run(d: int, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """The rows of the table, and everything behind them for the record."""
    vector, other = (torch.from_numpy(rng(i, "benchmark-vector").standard_normal(d, dtype="float32")) for i in (0, 1))
    taking_part = {
        "torch.add": Contestant(timed(lambda: torch.add(vector, other))),
        "topk_memory": Contestant(timed(memory_step(vector, other, min(5_000, d)))),
        "sketch": Contestant(timed(our_sketch(vector, min(K, d)))),
        "torch sketch": Contestant(timed(torch_sketch(vector, min(K, d)))),
    }
    for k in [k for k in TOPK if k <= d]:
        taking_part[f"top {k}"] = Contestant(timed(partial(topk_indices, vector, k)))
        taking_part[f"torch.topk {k}"] = Contestant(timed(partial(_torch_topk, vector, k)))
    samples = interleaved(taking_part, repeats)
    details = {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}
    return list(_rows(d, samples)), details


def _rows(d: int, samples: Sequence[Sample]) -> Iterator[Row]:
    group, barred = f"vector of {d}", d == RESNET9
    for k in [k for k in TOPK if k <= d]:
        found = ratio(samples, f"torch.topk {k}", f"top {k}")
        yield Row(group, "torch.topk of abs / ours", f"k = {k}", found, Bar("at least", 4) if barred else None)
    found = ratio(samples, "torch sketch", "sketch")
    shape = f"{ROWS} x {COLUMNS}, k = {min(K, d)}"
    yield Row(group, "sketch and recovery: torch / ours", shape, found, Bar("at least", 4) if barred else None)
    found = ratio(samples, "topk_memory", "torch.add")
    yield Row(group, "topk_memory / torch.add", f"k = {min(5_000, d)}", found, Bar("at most", 8) if barred else None)


def _torch_topk(vector: Tensor, k: int) -> object:
    return torch.topk(vector.abs(), k)


def memory_step(vector: Tensor, other: Tensor, k: int) -> Callable[[], object]:
    """The server's whole step: momentum, memory, top-k, masking."""
    transform = topk_memory(k, 0.9)
    state = {**transform.init(len(vector)), "momentum": other, "memory": vector - other}
    return lambda: transform.step(state, vector, Context(0, 0.1))


def our_sketch(vector: Tensor, k: int) -> Callable[[], object]:
    hashes = draw_hashes(0, len(vector), ROWS, COLUMNS)

    def sketch_and_recover() -> Tensor:
        found = heavy_hitters(hashes, sketch(hashes, vector), k)
        return torch.zeros_like(vector).index_copy_(0, found.indices, found.values)

    return sketch_and_recover


def torch_sketch(vector: Tensor, k: int) -> Callable[[], object]:
    """The same work in plain operations, with hashes and signs drawn beforehand."""
    generator = rng(0, "benchmark-hashes")
    places = torch.from_numpy(generator.integers(0, COLUMNS, (ROWS, len(vector))))
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], (ROWS, len(vector)))).float()

    def sketch_and_recover() -> Tensor:
        table = torch.zeros(ROWS, COLUMNS)
        for row in range(ROWS):
            table[row].index_add_(0, places[row], signs[row] * vector)
        estimates = torch.stack([table[row][places[row]] * signs[row] for row in range(ROWS)]).median(dim=0).values
        chosen = torch.topk(estimates.abs(), k).indices
        return torch.zeros_like(vector).index_copy_(0, chosen, estimates[chosen])

    return sketch_and_recover
