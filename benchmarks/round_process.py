"""A federation in a process of its own: runs a round, or tells its memory, for each line that is asked.

Fresh processes, because what a process holds depends on all that it did before.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from benchmarks.workers import serve
from sparsefed import config
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.round import run_round, start

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(status: str) -> dict[str, float]:
    """Megabytes held now and at most, from the system's own account of a process.

    >>> resident("Name: python\\nVmHWM:\\t  20480 kB\\nVmRSS:\\t   1024 kB\\n")
    {'now': 1.0, 'peak': 20.0}
    """
    kilobytes = {name: int(number) for name, number in re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB", status, re.MULTILINE)}
    return {"now": kilobytes["VmRSS"] / 1024, "peak": kilobytes["VmHWM"] / 1024}


def forget_peak() -> None:
    """From here on the peak is that of what follows (Linux: 5 resets VmHWM)."""
    CLEAR.write_text("5")


def main() -> None:
    """Arguments: a run's config as JSON; 'kept' for the command line's setting of the allocator, 'exact' for none; on a
    cluster, its workers, such as ray:2."""
    if sys.argv[2] == "kept":
        keep_freed_memory()
    experiment = config.build(config.parse(json.loads(sys.argv[1])))
    if len(sys.argv) > 3:
        from sparsefed.cluster.engine import on_cluster

        experiment = on_cluster(experiment, sys.argv[3])
    state = start(experiment.setup, experiment.theta)
    built = resident(STATUS.read_text())
    forget_peak()

    def one_round() -> float:
        nonlocal state
        report = run_round(experiment.setup, state)
        state = report.state
        return report.seconds

    serve(
        {"parameters": len(state.theta), **built}, {"round": one_round, "memory": lambda: resident(STATUS.read_text())}
    )


if __name__ == "__main__":
    main()
