"""What it costs that every round of SparseFed records omega and delta.

    python -m benchmarks.recording --json FILE [--repeats N] [--quick]

In one process, interleaved: a whole round (updates, clip, mean, momentum, memory, top-k) as it is, and the same round
without recording, for `cnn` and ResNet9 width 16; and the server's step alone on a vector of a ResNet9, with and
without, beside `torch.add` of two such vectors. *Without* is the same kernel compiled from the same source with the
sums left out. Ratios within a repeat; the bar says what "no measurable cost" is: 1 % of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numba
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.arguments import usual
from benchmarks.cases import CASES, Case, make_case_task, make_cohort, make_federation, quick
from benchmarks.contestants import CLIP_NORM, LR, WEIGHT_DECAY, Round
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, excess, interleaved, ratio, seconds, timed
from benchmarks.vector_rules import QUICK, RESNET9
from sparsefed.core.engine import LocalStep
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.rng import rng
from sparsefed.core.types import Context, State
from sparsefed.defenses.clip import clip_l2
from sparsefed.defenses.combine import mean
from sparsefed.defenses.pipeline import Flow, Transform, pipeline
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.engines import fused
from sparsefed.kernels import vector_kernels as kernels

MOST = 1.01  # of a round without recording
RHO, K = 0.9, 5_000
CONTEXT = Context(round=1, lr=LR)
CAPTION = """\
recording / without: the same round, or server's step, with and without the sums for omega and delta. A ratio is taken
within each interleaved repeat; its bar is for the median.""".replace("\n", " ")


def _nothing(part: Any, mass: Any) -> None:
    """In the place of the sums."""


def without_sums() -> Callable[..., Any]:
    """`kernels.accumulate_topk` from its own source, its kernel compiled without the sums."""
    silent = numba.njit(_nothing, nogil=True)
    names = {**vars(kernels), "tile_mass": silent}
    kernel = FunctionType(kernels.accumulate_count.py_func.__code__, names)  # type: ignore[attr-defined]
    bare = numba.njit(kernel, nogil=True, error_model="numpy")
    return FunctionType(kernels.accumulate_topk.__code__, {**vars(kernels), "accumulate_count": bare})


def silent_memory(k: int, rho: float) -> Transform:
    """`topk_memory` as it would be without recording."""
    accumulate = without_sums()
    recorded = topk_memory(k, rho)

    def step(state: State, vector: Tensor, context: Context) -> Flow:  # noqa: ARG001
        old = (vector.numpy(), state["momentum"].numpy(), state["memory"].numpy())
        momentum, memory, indices = map(torch.from_numpy, accumulate(*old, k, rho, True)[:3])
        delta = torch.zeros_like(vector).index_copy_(0, indices, memory[indices])
        memory[indices] = 0
        momentum[indices] = 0
        return Flow({"momentum": momentum, "memory": memory}, delta)

    return Transform(recorded.init, step)


def a_round(given: Round, dtype: torch.dtype, server: Transform) -> Callable[[], Tensor]:
    """Updates, clip, mean, and what the server does with it."""
    engine, defense = fused(given.task, dtype), pipeline(clip_l2(CLIP_NORM), mean(), server)
    state, local = defense.init(given.task.d), LocalStep(1.0, WEIGHT_DECAY)

    def step() -> Tensor:
        return given.theta - defense.step(state, engine(given.theta, given.cohort, local), CONTEXT).delta

    return step


def server_step(server: Transform, vector: Tensor, other: Tensor) -> Callable[[], Flow]:
    state = {"momentum": other, "memory": vector - other}
    server.init(len(vector))
    return lambda: server.step(state, vector, CONTEXT)


def run_case(case: Case, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """A round of a model with and without."""
    task = make_case_task(case)
    given, k = Round(task, task.initial(), make_cohort(make_federation(case))), min(K, task.d)
    servers = {"recording": topk_memory(k, RHO), "without": silent_memory(k, RHO)}
    taking_part = {name: Contestant(timed(a_round(given, torch.float32, server))) for name, server in servers.items()}
    samples = interleaved(taking_part, case.repeats)
    found = ratio(samples, "recording", "without")
    rows = [Row(case.name, "recording / without", "a round, float32", found, Bar("at most", MOST) if barred else None)]
    return rows, {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}


def run_vector(d: int, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """The server's step on one vector with and without, in units of torch.add."""
    vector, other = (torch.from_numpy(rng(i, "benchmark-vector").standard_normal(d, dtype="float32")) for i in (0, 1))
    k = min(K, d)
    taking_part = {
        "torch.add": Contestant(timed(lambda: torch.add(vector, other))),
        "recording": Contestant(timed(server_step(topk_memory(k, RHO), vector, other))),
        "without": Contestant(timed(server_step(silent_memory(k, RHO), vector, other))),
    }
    samples = interleaved(taking_part, repeats)
    group, setting = f"vector of {d}", f"topk_memory, k = {k}"
    rows = [
        Row(group, "recording / without", setting, ratio(samples, "recording", "without")),
        Row(group, "recording / torch.add", setting, ratio(samples, "recording", "torch.add")),
        Row(group, "without / torch.add", setting, ratio(samples, "without", "torch.add")),
        Row(group, "(recording - without) / torch.add", setting, excess(samples, "recording", "without", "torch.add")),
    ]
    return rows, {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("recording", __doc__).parse_args(arguments)
    console, others = Console(), others_meter()
    details: dict[str, Any] = {"images": "random bytes", "freed_memory_kept": keep_freed_memory()}
    rows: list[Row] = []
    for name in ("cnn", "resnet9-16"):
        case = quick(CASES[name]) if options.quick else CASES[name]
        case = replace(case, repeats=options.repeats) if options.repeats else case
        found, details[name] = run_case(case, barred=not options.quick)
        rows += found
        write(options.json, "recording", rows, details, others())
    found, details["vector"] = run_vector(QUICK if options.quick else RESNET9, options.repeats or 31)
    rows += found
    write(options.json, "recording", rows, details, others())
    title = "Recording" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
