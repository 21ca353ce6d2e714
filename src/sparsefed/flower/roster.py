"""The roster: which node is which device, and who takes part in a round.

A node's identity is the one under which the SuperLink knows it; its device number is given by the server, in the order
of node ids among those that join together, and is never changed: rules that remember devices from round to round, and
the random choices of a run, depend on it. Cohorts are drawn from (seed, round) among the nodes that are connected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from sparsefed.core.errors import RunError
from sparsefed.core.federation import Sampling
from sparsefed.runs.disk import disk, read_bytes, write_atomically

ROSTER = "roster.json"


class Roster:
    """The nodes that have ever joined, each with its device number."""

    def __init__(self, numbers: Mapping[int, int] | None = None) -> None:
        self._numbers = dict(numbers or {})

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, node: int) -> int:
        """Return the device number of a node that has joined."""
        return self._numbers[node]

    def join(self, nodes: Iterable[int]) -> bool:
        """Give numbers to nodes that have none, in the order of their ids; return whether there were any."""
        new = sorted(set(nodes) - self._numbers.keys())
        self._numbers |= {node: number for number, node in enumerate(new, len(self._numbers))}
        return bool(new)

    def cohort(self, online: Iterable[int], n: int, sample: Sampling, seed: int, round: int) -> list[int]:
        """Return the nodes of a round in the order of the draw: n of those online, or all if they are fewer."""
        present = sorted(set(online), key=self.number)
        places = sample(len(present), min(n, len(present)), seed, round)
        return [present[int(place)] for place in np.asarray(places)]

    def save(self, folder: Path) -> None:
        """Write the roster into a run folder, completely or not at all."""
        content = {"nodes": [str(node) for node, _ in sorted(self._numbers.items(), key=lambda pair: pair[1])]}
        with disk(folder):
            write_atomically(folder / ROSTER, (json.dumps(content, indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Roster:
        """Return the roster of a run folder; an empty one if none was saved.

        Raises:
            RunError: The file is damaged.
        """
        path = folder / ROSTER
        if not path.exists():
            return cls()
        try:
            nodes = [int(node) for node in json.loads(read_bytes(path))["nodes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} is damaged ({error}); put back what it was: it says which node is which device"
            ) from error
        return cls({node: number for number, node in enumerate(nodes)})
