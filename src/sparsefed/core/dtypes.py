"""What models are computed in: float32, or bfloat16 where the processor has it.

bfloat16 is asked for because it is fast. A processor without it has to imitate it, and a round takes about twelve times
as long as in float32 (docs/benchmarks.md). There a run is computed in float32, which is at least as accurate; one line
says so, and the run's manifest.
"""

from __future__ import annotations

import functools
import logging

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


def has_bfloat16() -> bool:
    """Whether oneDNN, which torch's fast kernels come from, takes bfloat16 on this processor."""
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computed_in(asked: str) -> torch.dtype:
    """The type that a config's `train.dtype` means on this machine."""
    if asked == "bfloat16" and not has_bfloat16():
        _say_so()
        return torch.float32
    return DTYPES[asked]


@functools.cache
def _say_so() -> None:
    """Once, however many runs there are."""
    log.warning("this processor has no bfloat16: computing in float32 in its place")
