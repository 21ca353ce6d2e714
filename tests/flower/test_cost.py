"""What aggregation costs the server: the memory of one reply for rules of sums, and a few milliseconds a reply."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from sparsefed.flower.strategy import Strategy
from tests.flower.grid import LocalGrid, identity

D = 6_570_000


def replying(d: int) -> Any:
    """A client that sends one of four updates; the bytes exist already, as they would in the SuperLink."""
    arrays = [
        ArrayRecord({"theta": Array(np.random.default_rng(i).normal(size=d).astype(np.float32))}) for i in range(4)
    ]

    def client(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": arrays[context.node_id % 4].copy()}), reply_to=message)

    return client


def strategy(nodes: int, d: int, **params: Any) -> tuple[Strategy, LocalGrid]:
    given = {"rule": "clipping", "clip_norm": 1.0, **params}
    made = Strategy(**{name: value for name, value in given.items() if value is not None})
    grid = LocalGrid(range(10, 10 + nodes), replying(d))
    made._open(ArrayRecord({"theta": Array(np.zeros(d, np.float32))}), 5.0)
    return made, grid


def test_a_hundred_replies_of_a_large_model_are_aggregated_in_three_seconds() -> None:
    made, grid = strategy(100, D)
    small, few = strategy(3, 1000)
    small.session._round(few)  # compiles the kernels
    began = time.process_time()
    made.session._round(grid)
    assert time.process_time() - began < 3.0
    assert made.session.server.round == 1


def peak(action: Any) -> float:
    """The bytes by which the memory of this process grew at most while something was done."""
    gc.collect()  # what an earlier round left in cycles would be freed meanwhile, and hide as much of this one's
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed counts as free
    Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status")

    def kilobytes(name: str) -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])

    before = kilobytes("VmRSS")
    action()
    return 1024.0 * (kilobytes("VmHWM") - before)


def grown(nodes: int, d: int, **params: Any) -> float:
    """The floats by which memory grew at most while the replies of a round were aggregated, in models."""
    made, grid = strategy(nodes, d, **params)
    ids = iter(list(grid.push_messages(made.configure_train(1, made.session.arrays(), ConfigRecord(), grid))))
    arriving = ((one, next(iter(grid.pull_messages([next(ids)])))) for one in made.session._asked)
    return peak(lambda: made.session._step(1, arriving, nodes)) / (4 * d)


def measured() -> None:
    """Print what grew with few and with many clients, and for a rule that keeps all updates."""
    d = 9_000_000  # vectors of more than 32 MB are given back to the system as soon as they are freed
    with identity():
        grown(3, d)  # whatever is allocated once
        print(json.dumps([grown(3, d), grown(12, d), grown(12, d, rule="median", clip_norm=None)]))


def test_the_memory_of_a_rule_of_sums_does_not_grow_with_the_clients() -> None:
    """In a fresh process: what one holds depends on all that it did before."""
    command = [sys.executable, "-c", "from tests.flower.test_cost import measured; measured()"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=True)
    few, many, rows = json.loads(done.stdout.splitlines()[-1])
    assert many <= few + 0.25
    assert many <= 3 + 1 + 0.5  # three vectors of the model's size and one reply; half of one for masks
    assert rows > 8  # the measurement would show it
