"""Adaptive robust clipping (ARC), a pre-aggregation for any rule.

Adaptive Gradient Clipping for Robust Federated Learning (Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, ICLR 2025,
Algorithm 2): with the norms in descending order, ||x_(1)|| >= ||x_(2)|| >= ...,

    k  =  floor(2 (f/n) (n - f)),    C  =  ||x_(k+1)||,    x_i  <-  x_i min(1, C / ||x_i||)

so that the threshold follows the updates of the round, and no attacker sets it.

*Departures.* k is computed in whole numbers; the floor of a float64 quotient can be one too small.
"""

from __future__ import annotations

import torch

from sparsefed.core.types import Context
from sparsefed.defenses.combine import Pre, Stack, Tolerance
from sparsefed.defenses.parameter_types import Attackers
from sparsefed.defenses.pipeline import clip_factors
from sparsefed.kernels.rows import row_norms


def arc(f: Attackers) -> Pre:
    """Clip the longest k = floor(2 f (n - f) / n) updates to the length of the next one; f = 0 clips nothing."""
    tolerance = Tolerance("arc", f, _most)

    def clip(stack: Stack, context: Context) -> Stack:  # noqa: ARG001
        n, attackers = len(stack.rows), tolerance.among(stack)
        stack = stack._replace(stats={**stack.stats, **tolerance.stats(attackers)})
        norms = row_norms(stack.rows)
        limit = norms.sort(descending=True).values[2 * attackers * (n - attackers) // n]
        factors = clip_factors(norms, float(limit))
        cut = torch.nonzero(factors < 1).flatten().tolist()
        if not cut:
            return stack
        rows = stack.rows.clone()
        for i in cut:  # in float64, because float32 cannot hold a factor below 1e-38
            rows[i] = rows[i].double() * factors[i]
        return stack._replace(rows=rows)

    return Pre(clip, tolerance.same_size)


def _most(n: int) -> int:
    """Return the largest f that the paper allows among n updates: f < n / 2."""
    return (n - 1) // 2
