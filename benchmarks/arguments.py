"""What the benchmarks' commands take alike."""

from __future__ import annotations

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """A number of repeats, or argparse's refusal of what is none."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of repeats; use 1 or more")
    return int(text)


def usual(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every timed benchmark takes."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the numbers go")
    parser.add_argument("--repeats", type=positive, metavar="N", help="interleaved repeats; by default enough")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    return parser
