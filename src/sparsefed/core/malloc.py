"""Allocator setting of the process: keep freed memory for the next round.

A round allocates and frees the same hundreds of megabytes every time. By default the C library returns such blocks to
the system at once, and getting them back costs a page fault for every 4 kB: a good part of a round. The setting affects
the whole process, so programs choose it (the command line and the benchmarks do); libraries should not.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt


def keep_freed_memory() -> bool:
    """Keep freed blocks of up to 1 GB in the process; return False if the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, 2**30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
