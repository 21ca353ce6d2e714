"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

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
