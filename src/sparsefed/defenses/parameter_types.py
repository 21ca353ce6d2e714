"""The parameters that several rules share, each defined once, with its one-line description."""

from __future__ import annotations

from typing import Annotated

Attackers = Annotated[int, "how many attackers a round may have"]
TopK = Annotated[int, "coordinates of the model that a round may change"]
Sigma = Annotated[float, "standard deviation of the Gaussian noise on each coordinate"]
