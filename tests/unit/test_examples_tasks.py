"""The examples of tasks of every kind run as they stand, only shorter, and a defense helps in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(example: str, **shorter: str) -> list[list[float]]:
    """Return the numbers of each printed line; `shorter` replaces what follows a key of its CONFIG."""
    text = (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")
    for key, value in shorter.items():
        text, count = re.subn(rf'"{key}": \d+', f'"{key}": {value}', text)
        assert count == 1
    folder = {"PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=500, env={**os.environ, **folder}
    )
    assert done.returncode == 0, done.stderr
    return [[float(number) for number in re.findall(r"[\d.]+", line)] for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("example", ["tabular", "regression", "multilabel", "text_classes", "vit"])
def test_an_example_shows_a_defense_that_helps(example: str) -> None:
    undefended, _, sparsefed = printed(example)
    assert undefended[-1] > sparsefed[-1] + 30, "attackers get their way without a defense"
    assert sparsefed[0] < undefended[0] / 2 if example == "regression" else sparsefed[0] > undefended[0] - 10
    assert len((EXAMPLES / f"{example}.py").read_text(encoding="utf-8").splitlines()) < 80
