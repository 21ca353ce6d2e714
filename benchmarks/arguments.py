"""What the benchmarks' commands take alike."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A number of repeats, or argparse's refusal of what is none."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of repeats; use 1 or more")
    return int(text)
