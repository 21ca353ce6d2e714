"""How a cohort's updates are computed: `fused` (one batched pass) or `loop` (the slow truth)."""

from __future__ import annotations

from collections.abc import Callable

from sparsefed.client.base import MEMORY_BUDGET, Cohort, Engine, LocalStep
from sparsefed.client.fused import fused
from sparsefed.client.loop import loop

ENGINES: dict[str, Callable[..., Engine]] = {"fused": fused, "loop": loop}

__all__ = ["ENGINES", "MEMORY_BUDGET", "Cohort", "Engine", "LocalStep", "fused", "loop"]
