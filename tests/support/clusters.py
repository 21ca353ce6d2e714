"""Real Ray clusters on loopback for tests: started once, with two machines (raylets), and processes to kill."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CPUS = 2  # of each machine: four workers in all, whatever the machine under them has


class TwoMachines:
    """A cluster of two raylets on this machine; the second one may die, and another takes its place."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        small = {"num_cpus": CPUS, "object_store_memory": 200 * 2**20, "include_dashboard": False}
        self._node = {key: value for key, value in small.items() if key != "include_dashboard"}
        self.cluster = Cluster(initialize_head=True, head_node_args=small, shutdown_at_exit=False)
        self.second = self.cluster.add_node(**self._node)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def workers(self, doing: str = "Worker") -> list[int]:
        """The ids of the processes of this cluster that run this class or function."""
        raylets = {
            info.process.pid for node in self.cluster.list_all_nodes() for info in node.all_processes.get("raylet", [])
        }
        return [pid for pid, parent, title in _processes() if parent in raylets and title.startswith(f"ray::{doing}")]

    def kill_worker(self, doing: str = "Worker") -> bool:
        """Kill one of them, the first that is found."""
        found = self.workers(doing)
        for pid in found[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(found)

    def kill_machine(self) -> None:
        """Kill the second raylet with everything that it started, and start another."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.cluster.add_node(**self._node)

    def close(self) -> None:
        self.cluster.shutdown()


def _processes() -> Iterator[tuple[int, int, str]]:
    """Every process: its id, its parent's, and its title."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            yield int(folder.name), int(stat[1]), title


@contextmanager
def two_machines() -> Iterator[TwoMachines]:
    """A cluster that ends with the block; tokens and addresses are its own."""
    before = {name: os.environ.get(name) for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        token = Path(folder) / "token"
        token.write_text("0123456789abcdef" * 4)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        os.environ["RAY_TMPDIR"] = folder
        from sparsefed.cluster.connect import library

        ray = library()
        started = TwoMachines()
        os.environ["RAY_ADDRESS"] = started.address
        try:
            yield started
        finally:
            ray.shutdown()
            started.close()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
