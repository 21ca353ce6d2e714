"""The README, executed from top to bottom in a fresh folder: every command in its order, none with an error.

Commands are as printed, with two exceptions: what takes long is told to be brief (BRIEFLY), and what clones, installs
or runs tests is left to those who do. The config is the one that the README's own `sparsefed init` writes, with fewer
rounds.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Nursery, Server

README = (ROOT / "README.md").read_text(encoding="utf-8")
BRIEFLY = {
    "audit": ["--trials", "1", "--seeds", "1", "--no-sensitivity", "--defenses", "sparsefed", "--budget", "0"],
    "tune": ["--trials", "2"],
    "choose-k": ["--samples", "2", "--probe-rounds", "2"],
    "doctor": ["--help"],  # has tests of its own, and takes ten seconds
    "watch": ["--once"],  # it would follow the run until Ctrl-C
    "certify": ["--estimate-c"],
}
ELSEWHERE = ("--on", "--defense")  # needs a cluster; has tests of its own, and takes minutes
GRID = """
config = "my.toml"
seeds = 1
[grid]
"defense.k" = [50, 200]
"""
FALLEN = 0.2  # of test accuracy lost: a broken model, of which the README says that its numbers differ by points
MADE_BEFORE = ("sparsefed init my.toml",)  # shown twice: on the first screen, and in the list


def commands() -> Iterator[list[str]]:
    """Yield every command of sparsefed that the README shows on a line of its own, in order."""
    seen: set[str] = set()
    for line in re.findall(r"^    (sparsefed [^#\n]*)", README, re.M):
        line = line.strip()
        if (line not in seen or line not in MADE_BEFORE) and not any(word in line.split() for word in ELSEWHERE):
            yield shlex.split(line)
        seen.add(line)


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    return Nursery(process_server, tmp_path_factory.mktemp("nursery"))


@pytest.mark.slow
def test_every_command_of_the_readme_works_in_its_order(sparsefed: Nursery, tmp_path: Path) -> None:
    shown = list(commands())
    assert len(shown) >= 20 and ["sparsefed", "run", "my.toml", "--twins"] in shown
    (tmp_path / "mine.toml").write_text(GRID)
    for _, name, *rest in shown:
        done = sparsefed.run(name, *rest, *BRIEFLY.get(name, []), cwd=tmp_path, seconds=240)
        assert done.code == 0, (name, rest, done)
        assert "Traceback" not in done.err
        config = tmp_path / "my.toml"
        if name == "init":
            text = config.read_text()
            config.write_text(
                text.replace("rounds = 100 ", "rounds = 4 ").replace("evaluate_every = 20 ", "evaluate_every = 2 ")
            )
    assert {"my", "my-seed=1", "my-unattacked", "my-plain", "my-audit", "my-tune", "my-choose-k"} <= {
        path.name for path in (tmp_path / "runs").iterdir()
    }


def test_the_demo_table_is_what_the_demo_printed() -> None:
    """The README's table against `make demo` here, as near as it promises: another processor sums in another order."""
    file = ROOT / "runs/demo/audit.json"
    if not file.exists():
        pytest.skip("no demo was made here: make demo")
    numbers = json.loads(file.read_text(encoding="utf-8"))
    entries = {(each["defense"], each["attack"]): each for each in numbers["matrix"]}
    rules = {"undefended": "undefended", "clipping": "clipping", "SparseFed": "sparsefed", "Multi-Krum": "multi_krum"}
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \((\d+)\) \|$", README, re.M)
    assert [row[0] for row in rows] == list(rules)
    for name, *cells in rows:
        calm, pgd, flip = (entries[rules[name], attack] for attack in ("no attack", "pgd", "sign_flip"))
        for cell, each in zip(cells, (calm, pgd, flip), strict=False):
            broken = each["test_accuracy"] < calm["test_accuracy"] - FALLEN
            assert float(cell) == pytest.approx(100 * each["test_accuracy"], abs=10 if broken else 1), (name, cell)
        for cell, each in zip(cells[3:], (pgd, calm), strict=True):
            broken = each["test_accuracy"] < calm["test_accuracy"] - FALLEN
            assert float(cell) == pytest.approx(100 * each["attack_accuracy"], abs=15 if broken else 3), (name, cell)
    assert f"it recommends {numbers['recommendation']['defense']}" in README
