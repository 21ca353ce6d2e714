"""What ByzFL and Flower return on small inputs.

`python -m tests.support.golden_peers --write` asks them anew, after `make peers`.

Both run on float64 NumPy arrays here. Where a definition is another than ours, `CASES` says which of our parameters
amount to the same thing; docs/defenses.md says why they differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.core.rng import rng

FILE = Path(__file__).parents[1] / "golden" / "peers.json"
N, D, F = 15, 6, 3


class Case(NamedTuple):
    """One of ByzFL's classes or Flower's functions, what it is given, and the same as a rule of ours."""

    theirs: str
    params: Mapping[str, Any]
    rule: str
    ours: Mapping[str, Any]
    mean: bool = False  # a pre-aggregation: the mean of what comes out


CASES = (
    Case("Average", {}, "mean", {}),
    Case("TrMean", {"f": F}, "trimmed_mean", {"f": F}),
    Case("TrMean", {"f": 0}, "trimmed_mean", {"f": 0}),
    Case("Median", {}, "median", {}),
    # Its score takes one neighbour more than Blanchard et al. do: n - f - 1, which is ours for one attacker fewer.
    Case("Krum", {"f": F}, "krum", {"f": F - 1}),
    Case("MultiKrum", {"f": F}, "multi_krum", {"f": F - 1, "m": N - F}),
    # It starts at zero and stops after T steps; let it converge.
    Case("GeometricMedian", {"nu": 1e-9, "T": 5000}, "geometric_median", {}),
    Case("CenteredClipping", {"L": 3, "tau": 1.5}, "centered_clipping", {"radius": 1.5, "iterations": 3}),
    Case("NNM", {"f": F}, "mean", {"pre": [{"name": "nnm", "f": F}]}, mean=True),
    Case("ARC", {"f": F}, "mean", {"pre": [{"name": "arc", "f": F}]}, mean=True),
    Case("Clipping", {"c": 2.0}, "clipping", {"clip_norm": 2.0}, mean=True),
    Case("aggregate_trimmed_avg", {"proportiontocut": 0.24}, "trimmed_mean", {"f": F}),
    Case("aggregate_median", {}, "median", {}),
    Case("aggregate_krum", {"num_malicious": F, "to_keep": 0}, "krum", {"f": F}),
    Case("aggregate_krum", {"num_malicious": F, "to_keep": 7}, "multi_krum", {"f": F, "m": 7}),
    Case("aggregate_bulyan", {"num_malicious": F}, "bulyan", {"f": F, "variant": "around_median"}),
)
INPUTS = ("spread", "outliers", "offset", "even")


def inputs(kind: str) -> npt.NDArray[np.float64]:
    """Float32 numbers, so that both sides are given the very same."""
    generator = rng(3, f"byzfl-{kind}")
    rows = generator.normal(size=(N, D)) * generator.uniform(0.3, 2, size=(N, 1))
    if kind == "outliers":
        rows[:F] = 40 * generator.normal(size=D)
    if kind == "offset":
        rows = 100 + rows
    if kind == "even":
        rows = rows[1:]
    return rows.astype(np.float32).astype(np.float64)


def usable(case: Case, kind: str) -> bool:
    """ByzFL's n - f is written for N rows, and Bulyan needs all of them.

    For f = 2 Bulyan's last pick is between two rows that are nearest to each other, a tie that Flower gives to the
    first and we to the smaller: hence f = 3.
    """
    return kind != "even" or (case.theirs, case.rule) not in {
        ("MultiKrum", "multi_krum"),
        ("aggregate_bulyan", "bulyan"),
    }


def key(kind: str, number: int) -> str:
    return f"{kind} {number} {CASES[number].theirs}"


def asked(case: Case, rows: npt.NDArray[np.float64], byzfl: Any, flower: Any) -> npt.NDArray[np.float64]:
    """What the other library says."""
    if not case.theirs.startswith("aggregate"):
        out = getattr(byzfl, case.theirs)(**case.params)(rows.copy())
        return np.asarray(out.mean(axis=0) if case.mean else out)
    more = {"aggregation_rule": flower.aggregate_krum, "to_keep": 0} if case.theirs == "aggregate_bulyan" else {}
    (out,) = getattr(flower, case.theirs)([([row], 1) for row in rows], **case.params, **more)
    return np.asarray(out)


def main() -> None:
    from benchmarks.foreign import byzfl, flower
    from benchmarks.peers import VENV

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    libraries = byzfl(VENV), flower(VENV)
    if None in libraries:
        raise SystemExit(f"ByzFL and Flower are not in {VENV}; `make peers` puts them there")
    found = {
        key(kind, number): asked(case, inputs(kind), *libraries).tolist()
        for kind in INPUTS
        for number, case in enumerate(CASES)
        if usable(case, kind)
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
