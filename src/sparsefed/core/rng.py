"""Random number generators: every random choice in the project comes from here.

`rng(seed, purpose, round, client)` is a generator that depends on nothing else: not on what was drawn before, not on
the order of calls, not on a global state. So a resumed run draws what the uninterrupted one would have drawn, and two
purposes never share a stream.
"""

from __future__ import annotations

import zlib
from numbers import Integral

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import shown

Words = npt.NDArray[np.uint64]


def rng(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return the generator for one purpose, round and client.

    >>> rng(0, "cohort", 3).integers(100) == rng(0, "cohort", 3).integers(100)
    np.True_
    """
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, client]))
    )


def check_seed(seed: object) -> int:
    """Return a seed as an int; refuse what is not a whole number from 0 to 2^128 - 1, all that a generator takes in."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 1 << 128:
        raise ConfigError(f"seed is {shown(seed)}, but must be a whole number from 0 to 2^128 - 1")
    return int(seed)


def integer_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Return a 63-bit integer from the generator of this purpose, for libraries that take a seed (torch)."""
    return int(rng(seed, purpose, round, client).integers(2**63))


def mixed(words: Words) -> Words:
    """Apply the finaliser of SplitMix64: one to one, and every input bit changes about half of the output bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
