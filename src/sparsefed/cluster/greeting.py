"""A worker's greeting: everything that must be equal for its bits to be the driver's.

Data, code, libraries, processor and threads are compared one by one, so that a difference can be named. Whoever
computes parts of rounds also proves it by a probe: a few devices' updates at the current model, as a digest. Whoever
computes whole runs is compared before the first round of each.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import sparsefed
from sparsefed import config as configs
from sparsefed import data
from sparsefed.config import Config
from sparsefed.core.errors import SparseFedError
from sparsefed.core.federation import Federation
from sparsefed.core.inputs import as_tensors, each_part
from sparsefed.core.types import Arrays
from sparsefed.runs.provenance import versions

WHOLE = 2**30  # bytes of data up to which every byte counts; of more, evenly spaced samples
SAMPLES, SAMPLE = 4096, 1 << 12  # of larger arrays: how many, and their bytes


class Greeting(NamedTuple):
    """Where a worker is, and what it computes with."""

    machine: str
    data: str
    code: str
    versions: str
    processor: str
    threads: int
    probe: str  # of its bits


TITLES = {
    "data": "other data",
    "code": "another version of sparsefed's code",
    "versions": "other versions of libraries",
    "processor": "another processor",
    "threads": "another number of threads",
    "probe": "other bits in a probe of the same work",
}
CURES = {
    "data": "copy the same files there (`sparsefed data list` says where they are)",
    "code": "install the same version there",
    "versions": "install the same constraints.txt there",
    "processor": "use machines of one kind in a cluster",
    "threads": "set OMP_NUM_THREADS to the same number everywhere",
    "probe": "use machines of one kind, with the same libraries",
}


def greet(federation: Federation, threads: int, probe: str) -> Greeting:
    """Return this process's greeting."""
    return machine_greeting(threads)._replace(data=data_digest(federation), probe=probe)


load = functools.lru_cache(maxsize=4)(data.load)  # of this process: a machine loads a data set once for all its runs


def run_greeting(config: Config, threads: int) -> Greeting:
    """Return the greeting of a process that asks others to run a config, or runs it."""
    return machine_greeting(threads)._replace(data=_data_set_digest(configs.dataset(config)))


def run_refusal(expected: Greeting, table: Mapping[str, Any]) -> str | None:
    """Return the sentence that refuses this process as one that runs a config; None if there is none.

    Call it in the thread that runs the config: the number of threads belongs to the thread that asks.
    """
    try:
        return refusal(expected, run_greeting(configs.parse(table), torch.get_num_threads()))
    except SparseFedError as error:
        return f"the worker on {socket.gethostname()} cannot start: {error}"


def machine_greeting(threads: int) -> Greeting:
    """Return the greeting of a process that has loaded no data yet."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    return Greeting(socket.gethostname(), "", code_digest(), known, processor(), threads, "")


def refusal(ours: Greeting, theirs: Greeting) -> str | None:
    """Return the sentence that refuses a worker, about the first difference that matters; None if there is none."""
    for name, title in TITLES.items():
        mine, its = getattr(ours, name), getattr(theirs, name)
        if mine != its:
            return (
                f"the worker on {theirs.machine} has {title} ({its}, here {mine}), so its bits would not be those of "
                f"this machine; {CURES[name]}"
            )
    return None


def data_digest(federation: Federation) -> str:
    """Return a checksum of the examples, their targets and who owns them."""
    partition = federation.partition
    return _digest(federation.x, federation.y.numpy(), partition.offsets, partition.examples)


@functools.lru_cache(maxsize=64)
def _data_set_digest(dataset: data.DataSet) -> str:
    """Return a checksum of a data set; its partition follows from it, the config and the code."""
    return arrays_digest(load(dataset))


def arrays_digest(arrays: Arrays) -> str:
    """Return a checksum of the examples of a data set, their targets and authors."""
    known = [] if arrays.users is None else [arrays.users]
    test = _digest(as_tensors(arrays.x_test), arrays.y_test)
    return _digest(as_tensors(arrays.x_train), arrays.y_train, *known, np.frombuffer(test.encode(), np.uint8))


def _digest(inputs: Any, *arrays: Any) -> str:
    """Return a checksum of tensors of examples, one or several, and of arrays that belong to them."""
    digest = hashlib.sha256()

    def add(array: Any) -> None:
        digest.update(f"{array.dtype} {array.shape}".encode())
        for piece in _pieces(array):
            digest.update(piece)

    def seen(part: Tensor) -> Tensor:
        add(part.numpy())
        return part

    each_part(inputs, seen)
    for array in arrays:
        add(array)
    return digest.hexdigest()[:16]


def _pieces(array: Any) -> Iterable[Any]:
    if array.nbytes <= WHOLE:
        return [np.ascontiguousarray(array).reshape(-1).view(np.uint8)]
    rows = max(1, SAMPLE * len(array) // array.nbytes)
    places = np.linspace(0, len(array) - rows, SAMPLES).astype(int)
    return (np.ascontiguousarray(array[place : place + rows]).tobytes() for place in places)


@functools.cache
def code_digest() -> str:
    """Return a checksum of the package's own source."""
    root, digest = Path(sparsefed.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return f"{versions()['sparsefed']}+{digest.hexdigest()[:12]}"


@functools.cache
def processor() -> str:
    """Return the kind of processor: its model, and the instructions that torch uses."""
    return f"{_model()}, {torch.backends.cpu.get_cpu_capability()}"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def bits(arrays: Iterable[Any]) -> str:
    """Return a digest of arrays, bit by bit."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
