"""The floating-point types that models are computed in: float32, or bfloat16 where the processor supports it.

bfloat16 is requested for speed. A processor without it emulates it, two to twelve times slower than float32 is
(docs/benchmarks.md): there a run is computed in float32, at least as accurate, and log and manifest record it.
"""

from __future__ import annotations

import functools
import logging
import platform
import subprocess
import sys

import torch

from sparsefed.core.device import CPU

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRODUCT = "import torch; rows = torch.ones(64, 64, dtype=torch.bfloat16); rows @ rows"

log = logging.getLogger(__name__)


def has_bfloat16(device: torch.device = CPU) -> bool:
    """Return whether a device computes in bfloat16; on the CPU, whether the processor has instructions for it."""
    if device.type != "cpu":
        return device.type == "cuda" and bool(torch.cuda.is_bf16_supported(including_emulation=False))
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and _has_instructions()


def _has_instructions() -> bool:
    """Return whether products in bfloat16 are not emulated: oneDNN supports them on every processor with AVX-512."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    return _amx_works() if torch.cpu._is_amx_tile_supported() else torch.cpu._is_avx512_bf16_supported()


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
