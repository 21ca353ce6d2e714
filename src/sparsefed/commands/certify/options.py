"""The options of a certificate, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefed.core.errors import ConfigError


@dataclass(frozen=True)
class CertificateOptions:
    """The options of a certificate; impossible ones are refused."""

    share: float | None = None
    attackers: int | None = None
    c: float | None = None
    estimate_c: bool = False
    omega: str | float = "worst"

    def __post_init__(self) -> None:
        if self.share is not None and self.attackers is not None:
            raise ConfigError("--share and --attackers say the same thing twice; give one of them")
        if self.c is not None and self.estimate_c:
            raise ConfigError("--c gives c and --estimate-c searches for it; give one of them")
        if self.c is not None and not 0 < self.c < float("inf"):
            raise ConfigError(
                f"--c is {self.c:g}, but it bounds how fast a gradient changes: choose a finite number above 0"
            )
        if self.share is not None and not 0 <= self.share < 1:
            raise ConfigError(
                f"--share is {self.share:g}, but it is a share of each round's updates: choose 0 <= share < 1"
            )
