"""Compilation ahead of time: kernels are made ready before the first round, with a word, and never inside one."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from importlib import import_module

logger = logging.getLogger(__name__)

SILENCE = 3.0  # seconds: kernels from the cache are loaded faster, and need no word


@functools.cache
def warm_up(rehearsal: Callable[[], object]) -> float:
    """Call what calls kernels, so that they are compiled or loaded from the cache; the seconds it took, once."""
    import_module("numba")  # a moment of its own, which is no compilation
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
    logger.warning("compiling the CPU kernels of %s: some seconds, the first time only", module)
