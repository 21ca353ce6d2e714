"""A config as a Flower app: the files are complete, the config is what was given, and what cannot run is refused."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

import sparsefed
from sparsefed import config as configs
from sparsefed.commands.deploy import deploy
from sparsefed.core.errors import ConfigError, RunError

TABLE: dict[str, Any] = {
    "name": "small",
    "rounds": 3,
    "seed": 5,
    "evaluate_every": 3,
    "data": {"name": "digits", "partition": "iid", "devices": 12, "per_device": 20},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "sampling": "uniform", "lr": 0.1, "engine": "loop"},
    "defense": {"name": "sparsefed", "k": 100, "clip_norm": 0.5},
}
ATTACK: dict[str, Any] = {"attack": {"name": "pgd"}, "threat": {"count": 2}}


def changed(**tables: Any) -> dict[str, Any]:
    return {key: {**TABLE.get(key, {}), **value} if isinstance(value, dict) else value for key, value in tables.items()}


def test_the_app_is_complete_and_its_config_is_the_one_given(tmp_path: Path) -> None:
    app = sparsefed.deploy(TABLE, tmp_path / "app", deadline=60.0, quorum=6)
    assert {str(path.relative_to(tmp_path / "app")) for path in app.files} == {
        "README.md",
        "pyproject.toml",
        *(f"sparsefed_app/{name}" for name in ("__init__.py", "config.toml", "server.py", "client.py")),
    }
    assert configs.read(app.folder / "sparsefed_app" / "config.toml") == app.config == configs.parse(TABLE)
    project = tomllib.loads((app.folder / "pyproject.toml").read_text())
    components = project["tool"]["flwr"]["app"]["components"]
    for side, spec in components.items():
        module, name = spec.split(":")
        tree = ast.parse((app.folder / f"{module.replace('.', '/')}.py").read_text())
        assigned = {t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets}  # type: ignore[attr-defined]
        assert name in assigned, side
    assert Path(project["tool"]["flwr"]["app"]["config"]["folder"]).is_absolute()
    assert "deadline=60.0, quorum=6" in (app.folder / "sparsefed_app" / "server.py").read_text()


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    deploy(TABLE, tmp_path / "app")
    mine = tmp_path / "app" / "sparsefed_app" / "client.py"
    mine.write_text("my own")
    with pytest.raises(RunError, match="--overwrite"):
        deploy(TABLE, tmp_path / "app")
    assert mine.read_text() == "my own"
    deploy(TABLE, tmp_path / "app", overwrite=True)
    assert "client_app" in mine.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is there already"):
        deploy(TABLE, tmp_path / "file")


def test_an_audits_recommendation_becomes_an_app(tmp_path: Path) -> None:
    """Such a config has attackers and thousands of devices; both are the operator's to decide on."""
    table = TABLE | ATTACK | changed(data={"devices": 1500, "per_device": 1})
    with pytest.raises(ConfigError, match=r"attackers \(attack.name = 'pgd'\).*--without-attack"):
        deploy(table, tmp_path / "app", nodes=6)
    with pytest.raises(ConfigError, match=r"1,500 devices.*--nodes"):
        deploy(table, tmp_path / "app", without_attack=True)
    app = deploy(table, tmp_path / "app", nodes=6, without_attack=True, least_nodes=5)
    assert (app.config.attack, app.config.is_attacked) == (None, False)
    assert (app.config.data.devices, app.config.train.cohort) == (6, 6)
    assert "nodes=5" in (app.folder / "sparsefed_app" / "server.py").read_text()


@pytest.mark.parametrize(
    ("change", "settings", "says"),
    [
        ({"data": {**TABLE["data"], "partition": "by_user", "devices": None}}, {}, "one device for each user.*--nodes"),
        ({"train": {**TABLE["train"], "sampling": "my_sampling:draw"}}, {}, "draws its cohorts by epoch or uniform"),
        ({"defense": {"name": "krum", "f": 4}}, {"nodes": 5}, "krum"),
        ({}, {"nodes": 0}, "at least one"),
        ({}, {"deadline": -1}, "deadline is -1"),
    ],
)
def test_what_a_deployment_cannot_run_is_one_sentence(
    tmp_path: Path, change: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    config = configs.parse({**TABLE, **{key: value for key, value in change.items() if key == "defense"}})
    for key in change.keys() - {"defense"}:
        table = getattr(config, key).model_copy(update=change[key])
        config = config.model_copy(update={key: table})
    with pytest.raises(ConfigError, match=says) as error:
        deploy(config, tmp_path / "app", **settings)
    assert "\n" not in str(error.value) and not (tmp_path / "app").exists()


def test_objects_and_weights_of_this_machine_are_refused(tmp_path: Path) -> None:
    config = configs.parse(TABLE)
    weights = config.model_copy(update={"model": config.model.model_copy(update={"weights": "mine.safetensors"})})
    with pytest.raises(ConfigError, match="a file that the nodes do not have"):
        deploy(weights, tmp_path / "app")
    live = config.model_copy(update={"model": config.model.model_copy(update={"name": "live:3"})})
    with pytest.raises(ConfigError, match="objects of this process"):
        deploy(live, tmp_path / "app")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = '"]\nx = """; import os #{title}'.replace("\n", " ")
    app = deploy({**TABLE, "name": name}, tmp_path / "app", run_folder=tmp_path / 'a"b\\c')
    project = tomllib.loads((app.folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["folder"] == str(tmp_path / 'a"b\\c')
    assert project["project"]["name"] == "x-import-os-title"
    for path in (app.folder / "sparsefed_app").glob("*.py"):
        assert "import os" not in path.read_text()
    assert configs.read(app.folder / "sparsefed_app" / "config.toml").name == name
