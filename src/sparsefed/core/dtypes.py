"""The floating-point types that models are computed in: float32, or bfloat16 where the processor supports it.

bfloat16 is requested for speed. A processor without it has to emulate it, and a round takes about twelve times as long
as in float32 (docs/benchmarks.md). There a run is computed in float32, which is at least as accurate; the log and the
run's manifest record the substitution.
"""

from __future__ import annotations

import functools
import logging

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


def has_bfloat16() -> bool:
    """Return whether oneDNN, the source of torch's fast kernels, supports bfloat16 on this processor."""
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computed_in(wanted: str) -> torch.dtype:
    """Return the dtype that the config value `train.dtype` stands for on this machine."""
    if wanted == "bfloat16" and not has_bfloat16():
        _say_so()
        return torch.float32
    return DTYPES[wanted]


@functools.cache
def _say_so() -> None:
    """Warn about the missing bfloat16 support, once per process."""
    log.warning("this processor has no bfloat16: computing in float32 in its place")
