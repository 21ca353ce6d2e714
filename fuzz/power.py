"""What a power cut or a bad disk can do to a run folder: every damage must be noticed or harmless.

    python -m fuzz.power

Every file of a small run folder is cut at every byte; every bit of the checkpoint's first kilobyte and 1000 random
bits of every file are flipped, one at a time. After each damage the folder must read as before, be refused by one
sentence, or go on from the previous checkpoint. Takes some minutes.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.support.damage import FILES, flipped, make, unharmed

from sparsefed import runs
from sparsefed.runs.folder import PREVIOUS

FLIPS = 1000
FIRST_BITS = 8 * 1024  # of the checkpoint, all of which are flipped


def damages(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what happened to a file, and what is left of it."""
    for length in range(len(content)):
        yield f"{name} cut after {length} bytes", content[:length]
    bits: list[int] = np.random.default_rng(1).integers(0, 8 * len(content), FLIPS).tolist() if content else []
    if name == runs.CHECKPOINT:
        bits += range(min(FIRST_BITS, 8 * len(content)))
    for bit in bits:
        yield f"bit {bit} of {name} flipped", flipped(content, bit)


def main() -> int:
    """Damage every file of a run folder in every way; return 1 if any damage went unnoticed."""
    logging.disable(logging.WARNING)
    count, unnoticed = 0, 0
    with tempfile.TemporaryDirectory(prefix="sparsefed-power-") as place:
        os.environ["XDG_STATE_HOME"] = str(Path(place) / "state")
        whole = make(Path(place) / "whole")
        for name in (*FILES, PREVIOUS, ".lock"):
            folder = Path(shutil.copytree(whole, Path(place) / f"copy-{name}"))
            for what, content in damages(name, (whole / name).read_bytes()):
                (folder / name).write_bytes(content)
                count += 1
                if not unharmed(folder, whole):
                    unnoticed += 1
                    print(f"{what}: not noticed", flush=True)
            print(f"{name}: {count} cases so far, {unnoticed} unnoticed", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
