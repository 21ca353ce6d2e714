"""The floating-point types that models are computed in: float32, or bfloat16 where the processor supports it.

Where bfloat16 would be emulated, slower than float32 is (docs/benchmarks.md), float32 is used, and recorded.
"""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

import torch

from sparsefed.core.device import CPU

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRODUCT = "import torch; rows = torch.ones(64, 64, dtype=torch.bfloat16); rows @ rows"

log = logging.getLogger(__name__)


def has_bfloat16(device: torch.device = CPU) -> bool:
    """Return whether a device has instructions for bfloat16; where there is AVX-512, oneDNN would emulate them."""
    if device.type != "cpu":
        return device.type == "cuda" and bool(torch.cuda.is_bf16_supported(including_emulation=False))
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    promised = built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    emulated = torch.cpu._is_avx512_supported() and not torch.cpu._is_avx512_bf16_supported()
    return promised and not emulated and (not torch.cpu._is_amx_tile_supported() or _amx_works())


@functools.cache
def _amx_works() -> bool:
    """Return whether a process survives a product: on some virtual machines AMX is an illegal instruction."""
    return subprocess.run([sys.executable, "-P", "-c", PRODUCT], capture_output=True).returncode == 0


def computed_in(wanted: str, device: torch.device = CPU) -> torch.dtype:
    """Return the dtype that the config value `train.dtype` stands for on a device of this machine."""
    if wanted == "bfloat16" and not has_bfloat16(device):
        _say_so("processor" if device.type == "cpu" else f"device ({device})")
        return torch.float32
    return DTYPES[wanted]


@functools.cache
def _say_so(what: str) -> None:
    """Warn about the missing bfloat16 support, once per process."""
    log.warning("this %s has no bfloat16: computing in float32 in its place", what)
