"""The combinatorial bound on the compromised devices that an ensemble tolerates, the paper's comparison (Section 2).

Ensembles (Cao et al. 2021, Provably Secure Federated Learning against Malicious Clients, Eq. 4; Jia et al. 2021) train
a model on every k of the n devices and let them vote. With m devices compromised, the share of models that saw none is
C(n-m, k) / C(n, k); a guarantee needs more than half of them to be clean, whatever the vote:

    C(n, k)  <  2 C(n-m, k).

The share is about (1 - m/n)^k, so the largest m is about n ln 2 / k: the *share* of the devices that may be compromised
is about ln 2 / k, whatever n. It depends on how many devices a model is trained on, not on how many there are. The
paper says that for n of about 10^4 or more no guarantee is left for m > 0.5 % of n, with k "generally 1 % of n":

- k = 1 % of n: 68 devices, however many there are; 0.68 % of 10^4, and less than 0.5 % from n = 13 750 on. Read so,
  the sentence is right, but for n just above 10^4.
- k a number of devices, which one chooses: the sentence is right for k of 139 or more (ln 2 / 0.5 %) and wrong below.
  With k = 20 there is a guarantee up to 3.4 % of the devices, for 10^4 of them as for 10^6. A model of fewer devices
  learns less, which is the price; see `theory.votes` for what such votes certify on real data.
"""

from __future__ import annotations

import math
from typing import Any

from sparsefed.core.errors import require

DOUBT = 1e-6  # in the logarithm: where the two sides are closer, exact integers decide
SIZES = (*(digit * 10**power for power in (2, 3, 4, 5) for digit in (1, 2, 5)), 10**6)
SHARES = {"0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05}  # shares of the devices that one model is trained on
DEVICES = {f"{k} devices": k for k in (20, 139)}  # numbers of devices, likewise


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


def clean_share(n: int, m: int, k: int) -> float:
    """Return the share of all sets of k of n devices that hold none of m compromised ones: C(n-m, k) / C(n, k).

    >>> clean_share(n=10, m=1, k=2), clean_share(n=10, m=9, k=2)
    (0.8, 0.0)
    """
    require(1 <= k <= n and 0 <= m <= n, f"n = {n}, m = {m}, k = {k}, but an ensemble needs 1 <= k <= n, 0 <= m <= n")
    fewer, more = sorted((k, m))  # C(n-m, k) / C(n, k) is the same with k and m exchanged
    return math.prod((n - more - i) / (n - i) for i in range(fewer)) if n - m >= k else 0.0


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
    """Return the largest m over n, as an exhibit's rows: for models of a share of the devices, and of a number of them.

    There is no row for a model of more than half of the devices.
    """
    shares = [_row(n, name, max(1, round(share * n))) for name, share in SHARES.items() for n in SIZES]
    return shares + [_row(n, name, k) for name, k in DEVICES.items() for n in SIZES if 2 * k <= n]


def _row(n: int, ensemble: str, k: int) -> dict[str, Any]:
    most = largest(n, k)
    return {
        "cell": {"ensemble": ensemble, "n": str(n)},
        "metrics": {"k": k, "largest_m": most, "largest_share": most / n},
    }


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
