"""How a cohort's updates are computed: `local` (one batched pass, then each client alone), `loop` (the slow truth)."""

from __future__ import annotations

from collections.abc import Callable

from sparsefed.client.base import MEMORY_BUDGET, ONE_STEP, Cohort, Engine, LocalStep, Plan
from sparsefed.client.fused import fused
from sparsefed.client.local import by_client, local, stacked
from sparsefed.client.loop import loop

ENGINES: dict[str, Callable[..., Engine]] = {"fused": local, "loop": loop, "by_client": by_client, "stacked": stacked}

__all__ = ["ENGINES", "MEMORY_BUDGET", "ONE_STEP", "Cohort", "Engine", "LocalStep", "Plan", "fused", "local", "loop"]
