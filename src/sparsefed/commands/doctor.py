"""`sparsefed doctor`: whether this machine computes what SparseFed promises, one line per check.

The last check of each device is a run: a small federation under attack, defended by SparseFed, saved half way and
continued. Its model is compared with the one that this run gave on the machine where the numbers below were recorded.
Two processors may sum in another order, so other bits are noted, and only other results are wrong.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from sparsefed import data
from sparsefed.core.device import available, computed_on
from sparsefed.core.dtypes import has_bfloat16
from sparsefed.core.errors import SparseFedError
from sparsefed.simulation import Simulation

Verdict = Literal["ok", "note", "wrong"]

PACKAGES = ("torch", "numpy", "numba", "safetensors", "pydantic", "sklearn", "altair", "vl_convert", "PIL")
DISTRIBUTIONS = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "PIL": "pillow"}

SELF_TEST: dict[str, Any] = {
    "rounds": 10,
    "evaluate_every": 10,
    "data": {"name": "digits", "partition": "iid", "devices": 60},
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"cohort": 20, "lr": 0.5, "schedule": "constant"},
    "defense": {"name": "sparsefed", "k": 200, "clip_norm": 1.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20},
}
# Of the model after the last round: torch 2.13 on one thread of an x86 processor.
KNOWN_BITS = "2a0852548d9c9c090b64497b096db6b399d4f7db42367091cf4450195f51bdfd"
KNOWN_LENGTH, KNOWN_LOSS = 5.3402745, 0.9049142
TOLERANCE = 1e-3  # of both numbers: a coordinate more or less among the top k changes them by a tenth of it


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Health:
    """The result of every check; `ok` unless one of them is wrong."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.verdict != "wrong" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the checks as a table for programs."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}


def doctor(on_check: Callable[[Check], None] = lambda check: None, device: str | None = None) -> Health:  # noqa: ARG005
    """Check versions, devices, bfloat16, data sets, and the results of a small run on every device.

    Args:
        on_check: Called with each check as soon as it is done.
        device: The only device to run on, one that `train.device` can name; by default all of this machine.

    Returns:
        All checks; nothing is raised for what is wrong.
    """
    done = []
    for check in _checks(device):
        on_check(check)
        done.append(check)
    return Health(tuple(done))


def _checks(device: str | None) -> Iterator[Check]:
    yield _versions()
    yield _devices()
    yield _bfloat16()
    yield _data()
    for each in ("cpu", *available()) if device is None else (device,):
        yield _self_test(each)


def _versions() -> Check:
    versions, missing = [f"python {platform.python_version()}", f"sparsefed {metadata.version('sparsefed')}"], []
    for package in PACKAGES:
        try:
            import_module(package)
            name = DISTRIBUTIONS.get(package, package)
            versions.append(f"{name} {metadata.version(name)}")
        except Exception as error:  # importing runs foreign code, which can raise anything
            missing.append(f"{package} cannot be imported ({error})")
    if missing:
        return Check("versions", "wrong", f"{'; '.join(missing)}; install sparsefed again with pip")
    return Check("versions", "ok", ", ".join(versions))


def _devices() -> Check:
    listed = [f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} of them used by torch)"]
    listed += [f"{name} ({about})" for name, about in available().items()]
    return Check("devices", "ok", f'{", ".join(listed)}; train.device = "auto" takes {computed_on("auto")}')


def _bfloat16() -> Check:
    others = [f"; {device} {'has' if has_bfloat16(torch.device(device)) else 'lacks'} it" for device in available()]
    if has_bfloat16():
        return Check("bfloat16", "ok", f"the processor has it{''.join(others)}")
    lacks = "the processor lacks it, or cannot run what it has; train.dtype = 'bfloat16' is computed in float32"
    return Check("bfloat16", "note", f"{lacks}{''.join(others)}")


def _data() -> Check:
    by_state: dict[str, list[str]] = {}
    for status in data.listing():
        by_state.setdefault(status.state, []).append(status.name)
    listed = "; ".join(f"{state}: {', '.join(names)}" for state, names in sorted(by_state.items()))
    if damaged := by_state.get("damaged"):
        return Check("data", "wrong", f"{listed}; `sparsefed data check {damaged[0]}` says what to do")
    return Check("data", "ok", listed)


def _self_test(device: str) -> Check:
    name, began = "self-test" if device == "cpu" else f"self-test on {device}", time.perf_counter()
    table = {**SELF_TEST, "train": {**SELF_TEST["train"], "device": device}}
    try:
        with _one_thread(), tempfile.TemporaryDirectory() as folder:
            whole = Simulation.from_config(table).run()
            continued = _interrupted(table, Path(folder) / "run").run()
            ends = [(_length(each.theta), each.evaluate()["test_loss"]) for each in (whole, continued)]
    except (SparseFedError, OSError, RuntimeError, TypeError) as error:  # what torch raises for a device's faults
        return Check(name, "wrong", f"the run did not come to its end: {error}")
    took = f"{time.perf_counter() - began:.0f} s"
    repeats = torch.equal(whole.theta.cpu(), continued.theta.cpu())
    if not repeats and (device == "cpu" or not _near(ends[1], ends[0])):
        return Check(name, "wrong", "a run that was saved and continued ended in another model than one without a stop")
    if not _near(ends[0], (KNOWN_LENGTH, KNOWN_LOSS)):
        (length, loss), known = ends[0], f"known are {KNOWN_LENGTH} and {KNOWN_LOSS}"
        return Check(name, "wrong", f"the model has length {length:.6f} and test loss {loss:.6f}; {known}")
    if hashlib.sha256(whole.theta.cpu().numpy().tobytes()).hexdigest() == KNOWN_BITS:
        return Check(name, "ok", f"an attacked and defended run gave the known bits ({took})")
    bits = "other bits" if repeats else "other bits in every run (docs/devices.md)"
    return Check(name, "note", f"the known results, but {bits}: sums are taken in another order here ({took})")


def _length(theta: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(theta.cpu().double()))


def _near(ours: tuple[float, float], known: tuple[float, float]) -> bool:
    return all(abs(one / other - 1) <= TOLERANCE for one, other in zip(ours, known, strict=True))


def _interrupted(table: Mapping[str, Any], folder: Path) -> Simulation:
    """Return the self-test's simulation as it is after half of its rounds, a checkpoint and a restart."""
    first = Simulation.from_config(table)
    for _ in islice(first, table["rounds"] // 2):
        pass
    first.save(folder)
    return Simulation.from_run(folder)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread inside the context: sums over several may be taken in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
