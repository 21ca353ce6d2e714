"""The combinatorial bound on the compromised devices that an ensemble tolerates, the paper's comparison (Section 2).

Ensembles (Cao et al. 2021, Provably Secure Federated Learning against Malicious Clients, Eq. 4; Jia et al. 2021) train
a model on every k of the n devices and let them vote. With m devices compromised, the share of models that saw none is
C(n-m, k) / C(n, k); a guarantee needs more than half of them to be clean, whatever the vote:

    C(n, k)  <  2 C(n-m, k).

The share is about (1 - m/n)^k, so the largest m is about n ln 2 / k: for k = 1 % of n it is 68 devices, however many
there are. The paper says that for n of about 10^4 or more no guarantee is left for m > 0.5 % of n; 68 devices are
0.68 % of 10^4, and less than 0.5 % from n = 13 750 on. So the sentence is right, but for n just above 10^4.
"""

from __future__ import annotations

import math
from typing import Any

from sparsefed.core.errors import require

DOUBT = 1e-6  # in the logarithm: where the two sides are closer, exact integers decide
SIZES = (*(digit * 10**power for power in (2, 3, 4, 5) for digit in (1, 2, 5)), 10**6)
SHARES = {"0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05}  # shares of the devices that one model is trained on


def guaranteed(n: int, m: int, k: int) -> bool:
    """Return whether C(n, k) < 2 C(n-m, k): more than half of the models saw no compromised device.

    >>> guaranteed(n=10, m=4, k=1), guaranteed(n=10, m=5, k=1)
    (True, False)
    """
    require(1 <= k <= n and 0 <= m <= n, f"n = {n}, m = {m}, k = {k}, but an ensemble needs 1 <= k <= n, 0 <= m <= n")
    if n - m < k:
        return False
    margin = math.log(2) + _log_choose(n - m, k) - _log_choose(n, k)
    if abs(margin) > DOUBT:
        return margin > 0
    return math.comb(n, k) < 2 * math.comb(n - m, k)


def largest(n: int, k: int) -> int:
    """Return the largest number of compromised devices with a guarantee; every further one spoils more models.

    >>> largest(n=10_000, k=100)
    68
    """
    low, high = 0, n - k + 1  # guaranteed, not guaranteed
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if guaranteed(n, middle, k) else (low, middle)
    return low


def rows() -> list[dict[str, Any]]:
    """Return the largest m over n for ensembles of some shares of the devices, as an exhibit's rows."""
    return [_row(n, name, max(1, round(share * n))) for name, share in SHARES.items() for n in SIZES]


def _row(n: int, ensemble: str, k: int) -> dict[str, Any]:
    most = largest(n, k)
    return {
        "cell": {"ensemble": ensemble, "n": str(n)},
        "metrics": {"k": k, "largest_m": most, "largest_share": most / n},
    }


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
