"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

_VERSIONED = ("sparsefed", "torch", "numpy", "numba")
_MATRIX_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")  # what decides how fast bfloat16 is


def facts() -> dict[str, Any]:
    """When, where, with what, and how busy the machine was."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONED}},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            **_processor(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
    }


class Clock(NamedTuple):
    """Seconds of all cores together."""

    all: float
    busy: float  # of these, in which a core worked for anybody
    ours: float  # of these, for this process or for a child that has ended


def others_share(began: Clock, now: Clock) -> float:
    """Which share of the machine's time other programs took in between.

    >>> others_share(Clock(100.0, 50.0, 40.0), Clock(120.0, 65.0, 50.0))
    0.25
    """
    others = (now.busy - began.busy) - (now.ours - began.ours)
    return max(0.0, others / (now.all - began.all))


def read_clock() -> Clock | None:
    """The machine's account of its time up to now; None where it keeps none."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return None
    user, nice, system, idle, wait, *interrupts_and_stolen = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(interrupts_and_stolen)
    tick = os.sysconf("SC_CLK_TCK")
    return Clock((busy + idle + wait) / tick, busy / tick, sum(os.times()[:4]))


def others_meter() -> Callable[[], float | None]:
    """A function that tells the others' share since now; to be asked when all workers have ended."""
    began = read_clock()

    def share() -> float | None:
        now = read_clock()
        return None if began is None or now is None or now.all <= began.all else others_share(began, now)

    return share


def _processor() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = fields.get("flags", "").split()
    return {
        "processor": fields.get("model name") or platform.processor() or platform.machine(),
        "instructions": [flag for flag in _MATRIX_FLAGS if flag in flags],
    }


def _commit() -> str | None:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip()
