"""What holds for all tests: hypothesis without a clock, one thread a process, one server of processes a worker.

How long an example takes says something about the machine, not about the code. As many threads as cores in each of
several workers get into each other's way, and another number of threads sums in another order; tests of what threads
do set their number themselves.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded; also for the processes that tests start
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the bits that tests compare with are a CPU's
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="sparsefed-state-")  # what a machine remembers about trust

import pytest
import torch
from hypothesis import HealthCheck, settings

from sparsefed.core import dtypes
from tests.support.processes import Server, server
from tests.support.shared import Shared

torch.set_num_threads(1)
# Where products in bfloat16 would end the process (see `dtypes`), tests of bfloat16 do without matrix tiles.
if torch.cpu._is_amx_tile_supported() and not dtypes._amx_works():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # before oneDNN is first used; for started processes, too
    dtypes._amx_works.cache_clear()
# A shell that starts the tests in the background makes them ignore Ctrl-C, and whatever they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("no clock"), max_examples=30)  # `make test` draws all
settings.load_profile("no clock")

BY_FIXTURE = {"process_server": "process", "tab": "browser"}
BY_FOLDER = {"processes": "process", "browser": "browser"}
SLOW = ("certificate", "choosing", "exhibits", "experiments", "results", "tune", "twins")  # up to half a minute each
BY_FILE = {f"test_{name}": "slow" for name in SLOW}  # of commands/: many tests, or whole trainings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes or a browser by its fixtures and its folder, and files that are slow as a whole."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        marks = {mark for name, mark in BY_FIXTURE.items() if name in used}
        marks |= {mark for folder, mark in BY_FOLDER.items() if folder == item.path.parent.name}
        marks |= {mark for file, mark in BY_FILE.items() if file == item.path.stem}
        for mark in sorted(marks):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:  # noqa: ARG001
    """Give every test the handlers of signals that the first one had, whatever a test or a library left behind."""
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return (yield)
    finally:
        if threading.current_thread() is threading.main_thread():
            for sig, handler in before.items():
                if handler is not None and signal.getsignal(sig) is not handler:
                    signal.signal(sig, handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking over torch and thousands of tests again and again: they stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def process_server() -> Iterator[Server]:
    """The process from which commands are forked; see `tests.support.processes`."""
    with server() as started:
        yield started


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Folders that are expensive to make: made once, by whichever worker needs them first."""
    base = tmp_path_factory.getbasetemp()
    return Shared(Path(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared")


@pytest.fixture(scope="module")
def as_many_threads_as_the_commands() -> Iterator[None]:
    """Another number of threads sums in another order, and some tests compare with a command that has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
