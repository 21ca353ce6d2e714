"""Compilation ahead of time: kernels are made ready before the first round, with a word, and never inside one."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


@functools.cache
def warm_up(rehearsal: Callable[[], object]) -> float:
    """Call what calls kernels, so that they are compiled or loaded from the cache; the seconds it took, once."""
    logger.info("preparing the CPU kernels of %s (compiled once, then cached)", rehearsal.__module__)
    begin = time.perf_counter()
    rehearsal()
    seconds = time.perf_counter() - begin
    logger.info("CPU kernels ready after %.1f s", seconds)
    return seconds
