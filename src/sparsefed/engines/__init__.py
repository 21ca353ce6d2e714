"""Engines that compute a cohort's updates: `fused` is one batched pass, `loop` the slow reference, `local` chooses."""

from __future__ import annotations

from collections.abc import Callable

from sparsefed.core.engine import Engine
from sparsefed.engines.auto import by_client, local, stacked
from sparsefed.engines.fused import fused
from sparsefed.engines.loop import loop

ENGINES: dict[str, Callable[..., Engine]] = {"fused": local, "loop": loop, "by_client": by_client, "stacked": stacked}

__all__ = ["ENGINES", "fused", "local", "loop"]
