"""The parameters that several rules share, each defined once, with its one-line description."""

from __future__ import annotations

from typing import Annotated

from sparsefed.defenses.pipeline import require

MOST_ITERATIONS = 100_000

Attackers = Annotated[int, "how many attackers a round may have"]
TopK = Annotated[int | str, 'coordinates of the model that a round may change, or their share, as "1%"']
Sigma = Annotated[float, "standard deviation of the Gaussian noise on each coordinate"]


def require_iterations(iterations: int, why: str) -> None:
    """Raise ConfigError unless a rule takes at least one iteration, and no more than anybody would wait for."""
    require(
        1 <= iterations <= MOST_ITERATIONS,
        f"iterations is {iterations}, but {why}: choose iterations >= 1, and {MOST_ITERATIONS} at most",
    )
