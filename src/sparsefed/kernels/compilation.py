"""Ahead-of-time compilation: kernels are compiled before the first round, with a log message, never inside one."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from importlib import import_module

logger = logging.getLogger(__name__)

SILENCE = 3.0  # seconds: loading kernels from the cache is faster and needs no message


@functools.cache
def warm_up(rehearsal: Callable[[], object]) -> float:
    """Call a rehearsal once, so that its kernels are compiled or loaded from the cache; return the seconds it took."""
    import_module("numba")  # takes time too, but is not compilation
    word = threading.Timer(SILENCE, _say_so, [rehearsal.__module__])
    word.daemon = True
    begin = time.perf_counter()
    word.start()
    try:
        rehearsal()
    finally:
        word.cancel()
    return time.perf_counter() - begin


def _say_so(module: str) -> None:
    logger.warning("preparing the CPU kernels of %s; the first time they are compiled, which takes a while", module)
