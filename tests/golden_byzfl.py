"""What ByzFL's rules return on small inputs; `python -m tests.golden_byzfl --write` asks it anew (after `make peers`).

ByzFL 0.0.11 runs on float64 NumPy arrays here. Where its definition is another than ours, `CASES` says which of our
parameters amount to the same thing; docs/defenses.md says why they differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefed.rng import rng

FILE = Path(__file__).parent / "golden" / "byzfl.json"
N, D, F = 11, 6, 2


class Case(NamedTuple):
    """One of ByzFL's classes, what it is given, and the same as a rule of ours."""

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
    """Multi-Krum's m is written for N rows."""
    return kind != "even" or "m" not in case.ours


def main() -> None:
    from benchmarks.foreign import byzfl
    from benchmarks.peers import VENV

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    module = byzfl(VENV)
    if module is None:
        raise SystemExit(f"ByzFL is not in {VENV}; `make peers` puts it there")
    found: dict[str, list[Any]] = {}
    for kind in INPUTS:
        for number, case in enumerate(CASES):
            out = getattr(module, case.theirs)(**case.params)(inputs(kind).copy())
            found[f"{kind} {number} {case.theirs}"] = (out.mean(axis=0) if case.mean else out).tolist()
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
