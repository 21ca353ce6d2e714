"""The pages on a defense, an attack and data of one's own, and their examples, do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image

from sparsefed import Simulation, attacks, config, data, defenses
from sparsefed.cli.catalogue import catalogue
from sparsefed.commands.tune.space import search_space
from tests.support.processes import Nursery, Server

ROOT = Path(__file__).parents[2]
EXAMPLES = ("own_defense", "own_attack", "server_loop")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


class Rows:
    """As much of datasets.Dataset as is used."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    listed = dict(defenses.DEFENSES), dict(attacks.ATTACKS)
    yield tmp_path
    for known, before in zip((defenses.DEFENSES, attacks.ATTACKS), listed, strict=True):
        for name in known.keys() - before.keys():
            del known[name]
    for module in ("my_rules", "my_attacks"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("page", "module", "kind", "name"),
    [
        ("own_defense.md", "my_rules", "defenses", "typical_length"),
        ("own_attack.md", "my_attacks", "attacks", "backwards"),
    ],
)
def test_a_page_leads_from_nothing_to_what_is_listed_run_and_tuned(
    here: Path, page: str, module: str, kind: str, name: str
) -> None:
    first, *others = blocks(page, "python")
    (here / f"{module}.py").write_text(first)
    (table,) = (tomllib.loads(text) for text in blocks(page, "toml"))
    built = config.build(config.parse({**table, "rounds": 2}))
    *_, last = built.reports(built.begin())
    assert last.state.round == 2 and last.metrics["attackers"] > 0
    assert search_space(config.parse(table))
    for block in others:
        exec(compile(block, page, "exec"), {"__name__": "page"})
    assert name in {entry["name"] for entry in catalogue()[kind]}


def test_the_page_on_data_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block in order, with arrays, a frame, rows, pictures and a file in place of the reader's own."""
    draw = np.random.default_rng(0)
    table, ill, people = draw.standard_normal((250, 4)), np.array(["no", "yes"] * 125), np.arange(250) % 20
    columns = {
        "age": table[:, 0].tolist(),
        "income": table[:, 1].tolist(),
        "ill": ill.tolist(),
        "clinic": people.tolist(),
    }
    monkeypatch.chdir(tmp_path)
    np.save("large.npy", table.astype(np.float32))
    for i in range(12):
        folder = Path("photos", "ab"[i % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / f"{i}.png")
    yours = {
        "table": table,
        "labels": (table[:, 0] > 0).astype(int),
        "people": people,
        "prices": 5 + table[:, 0],
        "tensor": torch.from_numpy(table),
        "targets": torch.from_numpy(people % 2),
        "frame": DataFrame(columns),
        "tokens": draw.integers(0, 50, (250, 6)),
        "rows": Rows(columns),
    }
    loaded: list[Any] = []
    for block in blocks("own_data.md", "python"):
        for line in block.replace("\nDATA = ", "\n\0DATA = ").split("\0"):
            exec(compile(line, "own_data.md", "exec"), yours)
            loaded += [data.load(yours["DATA"])] if line.startswith("DATA = ") else []
    assert [len(each.y_train) + len(each.y_test) for each in loaded] == [250, 250, 250, 250, 12, 250, 250, 250]
    assert isinstance(loaded[5].x_train, np.memmap) or not loaded[5].x_train.flags.owndata
    assert len(yours["tuned"].theta) == 2 * 16 + 16 * 2 + 2 and 0 <= yours["run"].evaluate()["attack_accuracy"] <= 1
    assert (
        "test_within_ten_percent"
        in Simulation(
            yours["model"], yours["DATA"], metric=yours["within_ten_percent"], devices=20, cohort=10, rounds=1
        ).evaluate()
    )


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_by_itself(process_server: Server, tmp_path: Path, example: str) -> None:
    out = Nursery(process_server, tmp_path).script(ROOT / "examples" / f"{example}.py")
    lines = out.splitlines()
    if example == "own_defense":
        assert "-19" in lines[0] and "+1.0" in lines[1]
    elif example == "own_attack":
        bad, good = (float(re.findall(r"([\d.]+)%", line)[0]) for line in lines)
        assert good > 80 > bad
    else:
        assert len(lines) == 3 and "dropped (0,)" in out


@pytest.mark.process
def test_the_package_imports_without_torch_and_completes() -> None:
    script = (
        "import sys, time; began = time.process_time(); import sparsefed; took = time.process_time() - began\n"
        "assert not {'torch', 'numpy', 'numba', 'pydantic'} & set(sys.modules), 'something heavy was imported'\n"
        "assert took < 0.3, took\n"
        "assert {'Server', 'aggregate', 'defenses', 'partitions'} <= set(dir(sparsefed)) and sparsefed.__version__\n"
        "for name in sparsefed.__all__: getattr(sparsefed, name)\n"
        "assert sparsefed.partitions.dirichlet(devices=9, alpha=0.1).to_config()['alpha'] == 0.1\n"
        "assert sparsefed.schedules.cosine(lr=0.1).parameters == {'lr': 0.1}\n"
        "assert sparsefed.attacks.pgd(sparsefed.attacks.goals.labels(auxiliary=9), epochs=2).to_config() == "
        "{'name': 'pgd', 'auxiliary': 9, 'epochs': 2}\n"
        "assert sparsefed.data.digits().name == 'digits'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
