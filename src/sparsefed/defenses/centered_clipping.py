"""Centered clipping: Learning from History for Byzantine Robust Optimization (Karimireddy, He, Jaggi 2021).

    v_{l+1}  =  v_l + (1/n) sum_i (x_i - v_l) min(1, tau / ||x_i - v_l||)        l = 0 .. L-1   (Section 4, AGG)

Updates are clipped around the last round's aggregate v_0, not around zero: an attacker moves it by tau f / n at most,
and honest updates are cut only where they differ from what was agreed on before. The first round starts from zero.

A step is an affine combination of the rows and v_l, so that one sweep gives v_{l+1} and every row's distance from it.

*Departures.* The paper feeds the rule with momentum that the workers keep (its Algorithm 2); here whatever they send is
aggregated, and the server's momentum, if any, comes after. The paper's tau is called `radius`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Unpack

import torch
from torch import Tensor

from sparsefed.core.types import Block, Context, State
from sparsefed.defenses.combine import stack
from sparsefed.defenses.options import CommonKeywords
from sparsefed.defenses.parameter_types import require_iterations
from sparsefed.defenses.pipeline import Combine, Flow, clip_factors, require
from sparsefed.defenses.rule import rule
from sparsefed.kernels.compilation import warm_up
from sparsefed.kernels.rows import row_norms


@rule(
    paper="Karimireddy et al. 2021, Learning from History for Byzantine Robust Optimization",
    needs=("all rows",),
    audit=True,
    weights=True,
)
def centered_clipping(
    radius: Annotated[float, "tau, how far from the last aggregate an update may pull"],
    iterations: Annotated[int, "L, how often the clipped mean becomes the new centre within a round"] = 1,
    **_: Unpack[CommonKeywords],
) -> Combine:
    """The last round's aggregate, moved by the mean of the updates' differences from it, each clipped to a radius.

    The authors' code takes one iteration; more help where the start is far away.
    """
    require(radius > 0, f"radius is {radius}, but an update must be allowed some pull: choose radius > 0")
    require_iterations(iterations, "the centre must move")

    def init(d: int) -> State:
        from sparsefed.kernels.centre_kernels import rehearse

        warm_up(rehearse)
        return {"centre": torch.zeros(d)}

    def step(state: State, blocks: Iterable[Block], context: Context) -> Flow:
        from sparsefed.kernels.centre_kernels import centre_of, recentre

        updates = stack(blocks, context)
        rows, shares = updates.rows, updates.shares
        if not len(rows):
            return Flow(state, rows.new_zeros(rows.shape[1]))
        base = state["centre"].to(rows.device).double()
        factors = clip_factors(_distances(rows, base), radius)

        def pulls(factors: Tensor) -> Tensor:
            return factors / len(rows) if shares is None else factors * shares

        for _ in range(iterations - 1):
            centre = recentre(rows, pulls(factors), base)
            base, factors = centre.vector, clip_factors(centre.squares.sqrt(), radius)
        vector = centre_of(rows, pulls(factors), base).float()
        return Flow({"centre": vector}, vector, {"outside": float((factors < 1).double().mean())})

    return Combine(init, step)


def _distances(rows: Tensor, centre: Tensor) -> Tensor:
    """Return ||x_i - v_0||; in the first round v_0 is zero, and these are the norms, which are faster to read."""
    from sparsefed.kernels.centre_kernels import recentre

    if not centre.any():
        return row_norms(rows)
    nobody = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    return recentre(rows, nobody, centre).squares.sqrt()
