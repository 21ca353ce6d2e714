"""What `--set` can do: keys without their table, another name that drops parameters, several values; and folders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sparsefed import config as configs
from sparsefed import runs, trust
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.runs.disk import require_writable
from tests.support.damage import make

TABLE: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "devices": 60},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"cohort": 10},
    "defense": {"name": "sparsefed", "k": 100, "clip_norm": 3.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20, "step": 0.1},
}


def test_another_name_drops_what_it_does_not_take_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = configs.parse(TABLE, ["defense.name=clipping"])
    assert config.defense.params == {"clip_norm": 3.0}
    assert "left out k" in caplog.text and "kept clip_norm = 3.0" in caplog.text
    assert configs.parse(TABLE, ["defense.k=7", "defense.name=fetchsgd"]).defense.params["k"] == 7
    assert configs.parse(TABLE, ["model.name=softmax"]).model.params == {}
    assert configs.parse(TABLE, ["attack.name=sign_flip"]).attack.params == {}  # type: ignore[union-attr]
    assert configs.parse(TABLE, ["attack.name=boosted"]).attack.params == {"auxiliary": 20}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="krum needs f"):
        configs.parse(TABLE, ["defense.name=krum"])


def test_the_same_name_keeps_everything(caplog: pytest.LogCaptureFixture) -> None:
    assert configs.parse(TABLE, ["defense.name=sparsefed"]).defense.params == {"k": 100, "clip_norm": 3.0}
    assert caplog.text == ""


def test_a_key_without_its_table() -> None:
    config = configs.parse(TABLE, ["k=5", "lr=0.5", "cohort=6", "share=0.2", "auxiliary=9", "hidden=[4]"])
    assert (config.defense.params["k"], config.train.lr, config.train.cohort) == (5, 0.5, 6)
    assert config.threat.share == 0.2 and config.model.params == {"hidden": [4]}
    with pytest.raises(ConfigError, match=r"train\.weights and model\.weights"):
        configs.parse(TABLE, ["weights=examples"])
    with pytest.raises(ConfigError, match="unknown key 'kk'"):
        configs.parse(TABLE, ["kk=5"])


def test_several_values_are_several_configs() -> None:
    assert configs.several(["k=10,100", "seed=1"]) == [["k=10", "seed=1"], ["k=100", "seed=1"]]
    assert configs.several(["k=1,2", "seed=3,4"]) == [[f"k={k}", f"seed={seed}"] for k in (1, 2) for seed in (3, 4)]
    for single in ("ids=[1,2]", 'name="a,b"', "defense={name='clipping', clip_norm=1.0}", "seed=1"):
        assert configs.several([single]) == [[single]]
    assert configs.several(["hidden=[4],[8,8]"]) == [["hidden=[4]"], ["hidden=[8,8]"]]
    assert configs.several([]) == [[]]


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_named_after_what_was_changed() -> None:
    assert runs.named_after("my", []) == "my"
    assert runs.named_after("my", ["seed=1", "defense.k=5"]) == "my-seed=1-k=5"
    assert runs.named_after("my", ["name=my", "attack.name='a b/c'"]) == "my-a_b_c"
    assert len(runs.named_after("my", ["k=" + "9" * 500])) <= 100


def test_a_folder_of_another_config_is_never_taken(tmp_path: Path) -> None:
    own = make(tmp_path / "run")
    table = runs.load_config(own)
    assert runs.free_folder(own, table) == own and runs.free_folder(tmp_path / "new", table) == tmp_path / "new"
    other = {**table, "seed": 7}
    free = runs.free_folder(own, other)
    assert free.parent == tmp_path and free.name.startswith("run-") and len(free.name) == 12
    assert runs.free_folder(own, other) == free, "the same config goes on where it was"


def test_a_folder_that_cannot_be_written_to_is_known_before(tmp_path: Path) -> None:
    require_writable(tmp_path / "a/b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="move away the file"):
        require_writable(tmp_path / "file/below")
    with pytest.raises(RunError, match="--out"):
        require_writable(Path("/proc/nowhere/x"))


def test_a_run_that_fails_in_its_first_round_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configs.parse(TABLE)
    built = configs.build(config)

    def fails(*_: object) -> Any:
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(type(built), "reports", fails)
    with pytest.raises(ZeroDivisionError):
        runs.run(tmp_path / "run", configs.dump(config), lambda: built, checkpoint_every=2)
    assert list(tmp_path.iterdir()) == []


def test_code_beside_a_config_is_found_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_folders", [])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/beside_20.py").write_text(
        "from sparsefed.defenses import clipping\nrule = clipping.info.builder\n"
    )
    file = tmp_path / "mine/task.toml"
    file.write_text('rounds = 2\n[data]\nname = "digits"\n[defense]\nname = "beside_20:rule"\n')
    config = configs.read(file)
    assert config.defense.name == "beside_20:rule" and trust.code_folders() == [str(tmp_path / "mine")]
    trust.remember(configs.dump(config))
    monkeypatch.setattr(trust, "_folders", [])
    trust.require(configs.dump(config), tmp_path / "run/config.toml")
    assert trust.code_folders() == [str(tmp_path / "mine")], "a run of it finds the code again"
    monkeypatch.setattr(trust, "_folders", [])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("{}")
    (foreign / "task.toml").write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(ConfigError, match="--trust"):
        configs.read(foreign / "task.toml")
    assert trust.code_folders() == [], "nothing beside a folder's config is importable"
