"""The examples of tasks that are no classes run as they stand, and a defense helps in each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("example", ["tabular", "regression"])
def test_an_example_shows_a_defense_that_helps(example: str) -> None:
    script = EXAMPLES / f"{example}.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    undefended, _, sparsefed = done.stdout.splitlines()
    bad, good = ([float(number) for number in re.findall(r"[\d.]+", line)] for line in (undefended, sparsefed))
    assert bad[-1] > good[-1] + 30, "attackers get their way without a defense"
    assert good[0] < bad[0] / 2 if example == "regression" else good[0] > bad[0]
    assert len(script.read_text(encoding="utf-8").splitlines()) < 50
