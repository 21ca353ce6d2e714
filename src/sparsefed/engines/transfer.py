"""Moving a cohort's examples to the device that computes: one block at a time, while the last one is computed.

Examples stay in host memory. On an accelerator the next block is gathered and copied by a thread while the last one is
computed; on the CPU there is nothing to move, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sparsefed.core.device import examples_on, home
from sparsefed.core.engine import Cohort, Engine, LocalStep
from sparsefed.core.inputs import each_part
from sparsefed.core.types import Batch, Block, IntArray
from sparsefed.kernels.blocks import RowsBlock


def at_home(engine: Engine, device: torch.device) -> Engine:
    """Return an engine whose updates are where the server works, which is not always the device that computes them."""
    if home(device) == device:
        return engine

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[Block]:
        for block in engine(theta.to(device), cohort, step):
            yield RowsBlock(block.rows().to(home(device)), block.senders)
            del block  # its memory must be free while the next one is computed

    return compute


def batch_on(batch: Batch, device: torch.device) -> Batch:
    """Return a batch whose examples are on a device."""
    return batch._replace(x=examples_on(batch.x, device), y=examples_on(batch.y, device))


def batches_on(
    gather: Callable[[IntArray], Batch], blocks: Sequence[IntArray], device: torch.device
) -> Iterator[tuple[IntArray, Batch]]:
    """Yield the ids and the examples of each block on a device; the next block is fetched while one is computed."""
    if device.type == "cpu":
        for ids in blocks:
            yield ids, gather(ids)
        return
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(_fetched, gather, ids, device) for ids in blocks[:1]]
        for number, ids in enumerate(blocks):
            batch = coming.pop().result()
            if number + 1 < len(blocks):
                coming.append(pool.submit(_fetched, gather, blocks[number + 1], device))
            yield ids, _received(batch, device)


def _fetched(gather: Callable[[IntArray], Batch], ids: IntArray, device: torch.device) -> Batch:
    """Gather a block; for CUDA, copy it from pinned memory on a stream of its own, and wait for that copy alone."""
    batch = gather(ids)
    if device.type != "cuda" or batch.y.device.type != "cpu":
        return batch
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        x, y = (each_part(part, lambda each: each.pin_memory().to(device, non_blocking=True)) for part in batch[:2])
    stream.synchronize()
    return batch._replace(x=x, y=y)


def _received(batch: Batch, device: torch.device) -> Batch:
    """Let the computing stream own a fetched block, so that its memory is not reused too early."""

    def owned(part: Tensor) -> Tensor:
        if device.type == "cuda":
            part.record_stream(torch.cuda.current_stream(device))
        return part

    moved = batch_on(batch, device)
    return moved._replace(x=each_part(moved.x, owned), y=owned(moved.y))
