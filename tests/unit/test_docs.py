"""The documentation is true: its configs start, its tables list what there is, its map points at code."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparsefed
from sparsefed import config as configs
from sparsefed.attacks import ATTACKS, NEEDS, Attacker, attack_info
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import simulate

ROOT = Path(__file__).parents[2]
SOURCE = Path(sparsefed.__file__).parent
PAGES = ("README.md", "docs/attacks.md", "docs/defenses.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def table(page: str, head: str) -> list[list[str]]:
    """The table whose first line begins so, a list of cells a line, without the marks of code."""
    lines = (ROOT / page).read_text(encoding="utf-8").replace("`", "").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(head))
    body = takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body]


@pytest.fixture
def own_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of an attack of one's own, as the module that its config names."""
    (code,) = blocks("docs/attacks.md", "python")
    module = ModuleType("my_attack")
    exec(compile(code, "docs/attacks.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "my_attack", module)


@pytest.mark.usefixtures("own_attack")
@pytest.mark.parametrize("text", [text for page in PAGES for text in blocks(page, "toml")])
def test_every_config_shown_is_valid(text: str) -> None:
    configs.parse(tomllib.loads(text))


@pytest.mark.usefixtures("own_attack")
@pytest.mark.parametrize("text", blocks("docs/attacks.md", "toml"))
def test_every_attack_shown_is_granted_what_it_needs(text: str) -> None:
    small: dict[str, Any] = {
        "rounds": 3000,
        "data": {"name": "digits", "partition": "one_class", "devices": 300},
        "model": {"name": "softmax"},
        "train": {"cohort": 30, "lr": 0.5, "mode": "fedavg"},
    }
    table = tomllib.loads(text)
    if table["attack"]["name"] in ("pgd", "adaptive_push"):
        table["attack"]["auxiliary"] = 20  # digits has fewer test points than the usual 500
    built = configs.build(configs.parse({**small, **table}))
    report = next(simulate(built.setup, built.begin(), 1))
    assert report.state.round == 1
    if table["attack"]["name"] == "adaptive_push":
        with pytest.raises(ConfigError, match="needs to know"):
            configs.build(configs.parse({**small, **table, "threat": {"share": 0.02}}))


INFO = {name: attack_info(attack) for name, attack in ATTACKS.items()}


def needed(attacker: Attacker) -> str:
    """As the table says it."""
    usual, unless = ", ".join(sorted(attacker.needs)), attacker.otherwise
    return f"{usual}; {', '.join(sorted(unless.needs)) or 'nothing'} if {unless.when}" if unless else usual


def test_the_table_of_attacks_is_the_dict() -> None:
    listed = {name: (goal, needs) for name, _, goal, needs, _ in table("docs/attacks.md", "| attack | paper |")}
    assert listed == {name: (attacker.goal.__name__, needed(attacker)) for name, attacker in INFO.items()}


def test_the_table_of_goals_is_what_attacks_are_after() -> None:
    described = [row[0] for row in table("docs/attacks.md", "| goal |")]
    assert sorted(described) == sorted({attacker.goal.__name__ for attacker in INFO.values()})


def test_the_table_of_knowledge_is_what_can_be_granted() -> None:
    assert {row[0] for row in table("docs/attacks.md", "| granted |")} == set(NEEDS)


def test_departures_name_every_attack_that_departs() -> None:
    """Each attack with *Departures* in its file; a searched one is told of with the attack that it searches for."""
    told = {name for row in table("docs/attacks.md", "| attack | what differs") for name in row[0].split(", ")}
    told |= {f"{name}_searched" for name in told}
    for attacker in INFO.values():
        if "*Departures.*" in (sys.modules[attacker.method.__module__].__doc__ or ""):
            assert attacker.method.__name__ in told


@pytest.mark.parametrize("place", re.findall(r"`([\w/]+\.py):(\w+)`", (ROOT / "docs/paper_map.md").read_text("utf-8")))
def test_the_map_of_the_paper_points_at_code(place: tuple[str, str]) -> None:
    path, name = place
    tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    named = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert name in named | assigned
