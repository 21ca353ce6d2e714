"""Worker momentum: every device sends an average of its own past updates, not the last one.

Karimireddy, He, Jaggi 2021, Learning from History for Byzantine Robust Optimization, Algorithm 2:

    m_i  <-  (1 - beta) u_i + beta m_i            the device sends m_i

Averages of many rounds differ less from one honest device to the next than the updates of one round do, so that a rule
for outliers finds less room for an attacker who hides among them, and none to hide in for many rounds.

*Departures.* The paper has all workers in every round. Here a device updates its average when it takes part, from the
update of that round; the first time it sends that update itself. Compromised devices send what they like. An average
that is not finite is sent, and dropped by the server, but not kept: a device recovers from it.
"""

from __future__ import annotations

import torch

from sparsefed.core.types import Block, State
from sparsefed.kernels.blocks import RowsBlock


def averaged(block: Block, past: State, beta: float) -> tuple[RowsBlock, State]:
    """Return what the devices of a block send, and their averages by the device's number; `past` stays as it is."""
    rows = block.rows().clone()
    for row, device in zip(rows, block.senders.tolist(), strict=True):
        before = past.get(str(device))
        if before is not None:
            torch.lerp(row, before, beta, out=row)
    usable = torch.isfinite(rows).all(1).tolist()
    kept = {
        str(device): row.clone()
        for row, device, finite in zip(rows, block.senders.tolist(), usable, strict=True)
        if finite
    }
    return RowsBlock(rows, block.senders), kept
