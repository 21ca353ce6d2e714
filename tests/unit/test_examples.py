"""The examples and the README's Python run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Nursery, Server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nursery(process_server: Server, tmp_path: Path) -> Nursery:
    """Scripts forked from a process that has imported torch."""
    return Nursery(process_server, tmp_path)


def started(code: str, cwd: Path) -> str:
    """What a script prints that is started as a person does it."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_the_quick_start_is_short_and_shows_a_defense_that_helps(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "quick_start.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 15
    out = started(f"import torch; torch.default_generator.manual_seed(0)\n{text}", tmp_path)
    undefended, sparsefed = (float(line.split()[-1].rstrip("%")) for line in out.splitlines())
    assert undefended > sparsefed + 30


@pytest.mark.slow
@pytest.mark.process
def test_adapters_are_all_that_is_trained_and_the_defense_keeps_them_useful(nursery: Nursery) -> None:
    text = (ROOT / "examples" / "adapters.py").read_text(encoding="utf-8")
    lines = nursery.script(text).splitlines()
    assert [line.split()[0] for line in lines] == ["undefended", "sparsefed"]
    for line in lines:
        trained, everything = map(int, re.findall(r"(\d+) of (\d+) parameters", line)[0])
        assert trained < everything / 5
    (start, undefended), (same, defended) = (
        [float(share) for share in re.findall(r"accuracy ([\d.]+)% -> ([\d.]+)%", line)[0]] for line in lines
    )
    assert start == same
    assert defended > start + 5 and defended > undefended + 20


@pytest.mark.slow
@pytest.mark.process
def test_the_sweep_ends_in_a_table_and_a_figure(nursery: Nursery, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "sweep.py").read_text(encoding="utf-8").replace("rounds=60", "rounds=4")
    out = nursery.script(text.replace("[0, 1, 2]", "[0]"))
    assert "attack_accuracy" in out and (tmp_path / "runs" / "sweep.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.process
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    first, second = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    small = first.replace("rounds=20", "rounds=2")
    server = second.split("# The commands")[0]
    d = "sum(p.numel() for p in model.parameters())"
    out = started(f"{small}\nupdates = torch.randn(20, {d})\n{server}\nprint(len(step.delta))", tmp_path)
    assert "attack_accuracy" in out and (tmp_path / "server.safetensors").exists()


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SMALLER = (("rounds=60", "rounds=16"), ("rounds=80", "rounds=16"), ("evaluate_every=20", "evaluate_every=2"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    """The cells with code."""
    every = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in every if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_executed_and_still_compiles(notebook: Path) -> None:
    code = cells(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    for cell in code:
        compile("".join(cell["source"]), notebook.name, "exec")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(nursery: Nursery, notebook: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in cells(notebook))
    for usual, smaller in SMALLER:
        code = code.replace(usual, smaller)
    nursery.script(f"import torch; torch.default_generator.manual_seed(0)\n{code}")  # not every draw of weights learns
