"""SparseFed with FetchSGD in the place of true top-k (SparseFed, appendix, box "implemented with FetchSGD"; Rothchild
et al. 2020, FetchSGD: Communication-Efficient Federated Learning with Sketching, Algorithm 1).

    S      =  S(u)                       count sketch [r, c] of the mean of the clipped updates
    R     <-  rho R + S                  momentum, as a sketch
    W     <-  W + R                      error memory, as a sketch
    Delta  =  top_k(U(W))                the k largest estimates, ties by lowest index
    W     <-  W - S(Delta)               masking = 'subtract': the box, where R stays as it is
    W, R  <-  0 in the cells of Delta    masking = 'zero': the authors' code, "momentum factor masking"

*Departures.* A sketch is linear, so the mean is sketched once, and not every update: the numbers are the same up to
rounding, and the bytes that are reported are those of a real wire. The learning rate is where the frame's mode and
preset put it; the box multiplies W's input by it, after the momentum: the two differ only while lr changes. The
authors' code clips each device's sketch, whose norm differs from its gradient's by collisions, where the frame clips
the update itself; and in August 2021 applies no learning rate to what the sketch gives. Neither is a preset here. The
authors' code finds Delta's cells as those where S(Delta) is not 0; here they are those of its coordinates that are not
0, which differs if two of them cancel exactly.
"""

from __future__ import annotations

from typing import Annotated, Unpack, get_args

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Context, State
from sparsefed.defenses.combine import mean
from sparsefed.defenses.options import CommonKeywords, RuleParts
from sparsefed.defenses.parameter_types import TopK
from sparsefed.defenses.pipeline import Flow, Transform, require_rho
from sparsefed.defenses.rule import rule
from sparsefed.defenses.topk_memory import Masking
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.sketch import (
    Hashes,
    Sparse,
    check_size,
    draw_hashes,
    heavy_hitters,
    rehearse,
    sketch,
    sketch_sparse,
    touched,
)
from sparsefed.kernels.topk import coordinates, require_k


@rule(
    paper="Rothchild et al. 2020, FetchSGD: Communication-Efficient Federated Learning with Sketching",
    usual={"clip_norm": 5.0},
    weights=True,
)
def fetchsgd(
    k: TopK,
    rows: Annotated[int, "rows of the count sketch, an odd number"] = 5,
    columns: Annotated[int, "columns of the count sketch"] = 500_000,
    masking: Annotated[
        Masking | None, "how the sketches forget what was applied; by default as the preset says"
    ] = None,
    **_: Unpack[CommonKeywords],
) -> RuleParts:
    """Clip, mean, and only the k heaviest coordinates of a sketched error memory reach the model."""
    require_k(k, "FetchSGD must update at least one coordinate a round")
    check_size(rows, columns)
    if masking not in (None, *get_args(Masking)):
        raise ConfigError(unknown("masking", str(masking), get_args(Masking)))
    return RuleParts(
        mean(), lambda frame: sketched_memory(k, rows, columns, frame.rho, masking or frame.reading.masking)
    )


def sketched_memory(k: int | str, rows: int, columns: int, rho: float, masking: Masking) -> Transform:
    """Return a transform that applies the k heaviest coordinates of an error memory kept as a count sketch."""
    require_rho(rho)

    def init(d: int) -> State:
        coordinates(k, d)
        warm_up(rehearse)  # kernels are compiled here, never inside a round
        return {"momentum": torch.zeros(rows, columns), "memory": torch.zeros(rows, columns)}

    def step(state: State, vector: Tensor, context: Context) -> Flow:
        # The key leaves out the round: sketches of different rounds are added, so their hashes must agree.
        hashes = draw_hashes(context.seed, len(vector), rows, columns)
        momentum = state["momentum"].to(vector.device) * rho + sketch(hashes, vector)
        memory = state["memory"].to(vector.device) + momentum
        many = coordinates(k, len(vector))
        delta = _applied(heavy_hitters(hashes, memory, many))
        momentum, memory = (_zeroed if masking == "zero" else _subtracted)(hashes, momentum, memory, delta)
        dense = torch.zeros_like(vector).index_copy_(0, delta.indices, delta.values)
        stats = {"upload_bytes": 4.0 * rows * columns, "download_bytes": min(8.0 * many, 4.0 * len(vector))}
        return Flow({"momentum": momentum, "memory": memory}, dense, stats)

    return Transform(init, step)


def _applied(found: Sparse) -> Sparse:
    """Return the estimates that are not 0: the others change no coordinate, so the memory must keep them."""
    kept = found.values != 0
    return Sparse(found.indices[kept], found.values[kept])


def _subtracted(hashes: Hashes, momentum: Tensor, memory: Tensor, delta: Sparse) -> tuple[Tensor, Tensor]:
    return momentum, memory - sketch_sparse(hashes, delta)


def _zeroed(hashes: Hashes, momentum: Tensor, memory: Tensor, delta: Sparse) -> tuple[Tensor, Tensor]:
    cells = touched(hashes, delta.indices)
    return momentum.masked_fill(cells, 0), memory.masked_fill(cells, 0)
