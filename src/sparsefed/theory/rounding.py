"""Bounds as text, rounded to the safe side: a bound that is rounded down is none."""

from __future__ import annotations

import math


def written(log: float) -> str:
    """Write a radius from its natural logarithm, rounded up: plain below a million, else a power of ten.

    >>> written(math.log(12345.6)), written(math.log(0.5)), written(1000.0), written(-math.inf)
    ('12,400', '0.5', '10^434.3', '0')
    """
    if log == -math.inf:
        return "0"
    if log >= math.log(1e6):
        return f"10^{_up(log / math.log(10), 1):,.1f}"
    value = _up(math.exp(log), 2 - math.floor(log / math.log(10)))
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def power(log: float) -> str:
    """Write a natural logarithm as one to the base 10, rounded up.

    >>> power(math.log(1000)), power(-math.inf)
    ('3.00', '-inf')
    """
    if not math.isfinite(log):
        return "-inf"
    log10 = log / math.log(10)
    return f"{_up(log10, 0):,.0f}" if log10 >= 10_000 else f"{_up(log10, 2):,.2f}"


def share_down(share: float) -> str:
    """Write a share that is certified, rounded down.

    >>> share_down(0.8999), share_down(0.9)
    ('89.9%', '90.0%')
    """
    return f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def factor_text(log: float) -> str:
    """Write a factor from its natural logarithm.

    >>> factor_text(math.log(1.4444)), factor_text(1000.0)
    ('1.44', '10^434')
    """
    return f"{math.exp(log):,.3g}" if log < math.log(1000) else f"10^{log / math.log(10):,.0f}"


def attackers_text(share: float) -> str:
    """Write a share of attackers rounded down: what is certified at a share is certified below it.

    >>> attackers_text(0.012345), attackers_text(1.0)
    ('1.23%', '100%')
    """
    decimals = 2 - math.floor(math.log10(100 * share)) if share > 0 else 0
    return f"{math.floor(100 * share * 10.0**decimals + 1e-9) / 10.0**decimals:.3g}%"


def _up(value: float, decimals: int) -> float:
    """Round up, ignoring floating-point error."""
    scaled = value * 10.0**decimals
    return math.ceil(scaled - 1e-9 * max(1.0, abs(scaled))) / 10.0**decimals
