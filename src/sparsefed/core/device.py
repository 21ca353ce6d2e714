"""The device a run computes on: its name in a config, whether this machine has it, and moving data to it.

Examples stay in host memory and are moved one block at a time. On an accelerator the next block is gathered and copied
by a thread while the last one is computed; on the CPU there is nothing to move, and nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.types import Batch, Defense, IntArray, State

CPU = torch.device("cpu")
CHOICES = 'one of "auto", "cpu", "cuda", "cuda:1" (or another number), "mps"'
_NAME = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")


def is_device_name(name: str) -> bool:
    """Return whether a config may have this as `train.device`.

    >>> [is_device_name(name) for name in ("auto", "cuda", "cuda:1", "gpu", "meta")]
    [True, True, True, False, False]
    """
    return _NAME.fullmatch(name) is not None


def computed_on(name: str) -> torch.device:
    """Return the device that the config value `train.device` stands for on this machine.

    Raises:
        ConfigError: This machine does not have it, or it lacks float64.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    if not is_device_name(name):
        raise ConfigError(f"train.device is {quoted(name)}, but must be {CHOICES}")
    if name == "mps":
        raise ConfigError(
            "train.device is 'mps', which has no float64, in which norms and sums are taken here; use \"cpu\""
        )
    if name == "cpu":
        return CPU
    index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        here = f"only cuda:0 to cuda:{count - 1}" if count else "no CUDA device that torch can use"
        raise ConfigError(
            f'train.device is {quoted(name)}, but this machine has {here}; use "auto", which takes what there is'
        )
    return torch.device("cuda", index)


def describe(device: torch.device) -> str:
    """Return a device's name for the manifest, with the model of an accelerator."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def initial_state(defense: Defense, d: int, device: torch.device) -> State:
    """Return a defense's state before the first round, made on a device."""
    if device.type == "cpu":
        return defense.init(d)
    with device:
        return defense.init(d)


def state_on(state: State, device: torch.device) -> State:
    """Return a defense's state with every tensor on a device; those that are there already are not copied."""
    return {name: tensor.to(device) for name, tensor in state.items()}


def batch_on(batch: Batch, device: torch.device) -> Batch:
    """Return a batch whose examples are on a device."""
    return batch._replace(x=batch.x.to(device), y=batch.y.to(device))


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
    if device.type != "cuda":
        return batch
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        x, y = (part.pin_memory().to(device, non_blocking=True) for part in (batch.x, batch.y))
    stream.synchronize()
    return batch._replace(x=x, y=y)


def _received(batch: Batch, device: torch.device) -> Batch:
    """Let the computing stream own a fetched block, so that its memory is not reused too early."""

    def owned(part: Tensor) -> Tensor:
        part = part.to(device)
        if device.type == "cuda":
            part.record_stream(torch.cuda.current_stream(device))
        return part

    return batch._replace(x=owned(batch.x), y=owned(batch.y))
