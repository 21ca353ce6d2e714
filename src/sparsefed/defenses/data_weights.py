"""Data weights: an update counts by the examples its device claims to have, up to a cap.

    w_i = min(n_i, cap * median of all n_j)

FedAvg weighs devices by their examples (McMahan et al. 2017), but the number is the device's own claim. The median of a
cohort's claims stays within the honest ones as long as fewer than half of the cohort lie, so no liar weighs more than
`cap` times a typical device. Attackers are taken to claim as many as they can.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DEFAULT_CAP = 3.0

Floats = npt.NDArray[np.float64]


def data_weights(claims: Floats, cap: float) -> Floats:
    """Return the weight of each device of a round; a claim may be infinite, and without a finite median all are equal.

    >>> data_weights(np.array([1.0, 2.0, 2.0, 9.0, np.inf]), cap=3.0).tolist()
    [1.0, 2.0, 2.0, 6.0, 6.0]
    """
    median = np.sort(claims)[(len(claims) - 1) // 2]  # the lower one
    return np.minimum(claims, cap * median) if np.isfinite(median) else np.ones(len(claims))
