"""Run folders of somebody else, or of a bad disk: none runs code, leads out of itself, or goes on from damage."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefed import Simulation, runs, trust
from sparsefed import config as configs
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.runs.disk import line, record_of
from sparsefed.runs.folder import PREVIOUS
from tests.support.damage import FILES, TABLE, flipped, make, same, unharmed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# --- code ------------------------------------------------------------------------------------------------------------


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Write another config as an attacker would: with all fingerprints right."""
    from sparsefed.core import toml

    table = configs.dump(configs.parse(TABLE)) | changes
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / runs.CONFIG).write_text(toml.dumps(table))
    (folder / runs.MANIFEST).write_text(json.dumps({"status": "interrupted", "round": 0, "rounds": 6}))


HOSTILE: dict[str, dict[str, Any]] = {
    "defense": {"defense": {"name": "os:system", "command": "touch harm"}},
    "attack": {"attack": {"name": "os:system"}},
    "goal": {"attack": {"name": "pgd", "goal": "os:system"}},
    "model": {"model": {"name": "subprocess:run"}},
    "data": {"data": {"name": "evil_module:data"}},
    "loss": {"train": {"loss": "builtins:eval"}},
    "schedule": {"train": {"schedule": "os.path:join"}},
    "nested": {"defense": {"name": "krum", "pre": [{"name": "os:system"}]}},
}


@pytest.mark.parametrize("where", HOSTILE)
def test_code_that_a_foreign_folder_names_is_not_run(where: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite_config(folder, **HOSTILE[where])
    imported: list[str] = []
    monkeypatch.setattr("sparsefed.config.lookup.importlib.import_module", imported.append)
    with pytest.raises(ConfigError, match="--trust") as caught:
        Simulation.from_run(folder)
    names = [part for part in str(HOSTILE[where]).split("'") if ":" in part and part.strip(": ,{[") == part]
    assert any(name in str(caught.value) for name in names)
    with pytest.raises(ConfigError, match="--trust"):
        configs.read(folder / runs.CONFIG)
    assert imported == []


def test_consent_and_what_this_machine_wrote_are_trusted(tmp_path: Path) -> None:
    own = make(tmp_path / "own", defense={"name": "sparsefed.defenses:median"})
    assert Simulation.from_run(own).round == 6
    (tmp_path / "state/sparsefed/trusted_configs").unlink()
    with pytest.raises(ConfigError, match=r"sparsefed\.defenses:median"):
        Simulation.from_run(own)
    assert Simulation.from_run(own, trust=True).round == 6
    with trust.consent():
        assert configs.read(own / runs.CONFIG).defense.name == "sparsefed.defenses:median"


def test_a_config_of_ones_own_may_name_code(tmp_path: Path) -> None:
    from sparsefed.core import toml

    (tmp_path / "mine.toml").write_text(toml.dumps(TABLE | {"defense": {"name": "sparsefed.defenses:median"}}))
    assert configs.read(tmp_path / "mine.toml").defense.name.endswith(":median")
    for written in ("strongest.toml", "recommended.toml"):
        shutil.copy(tmp_path / "mine.toml", tmp_path / written)
        with pytest.raises(ConfigError, match="--trust"):
            configs.read(tmp_path / written)


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".lock", *FILES, *(f"{name}.partial" for name in FILES)])
def test_a_link_in_a_run_folder_is_not_followed(name: str, folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    shorten(folder)
    try:
        again(folder)
    except RunError as error:
        assert name in str(error)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", [".lock", *FILES, *(f"{name}.partial" for name in FILES)])
def test_a_pipe_in_a_run_folder_does_not_stop_anything(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    shorten(folder)
    try:
        again(folder)
    except RunError as error:
        assert name in str(error)


def test_a_hard_link_in_the_place_of_a_partial_file_is_left_alone(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in (".lock", f"{runs.CHECKPOINT}.partial", f"{runs.MANIFEST}.partial"):
        (folder / name).unlink(missing_ok=True)
        os.link(precious, folder / name)
    shorten(folder)
    again(folder)
    assert precious.read_text() == "precious"


def shorten(folder: Path) -> None:
    """Let the run end before its last round, if its files can still be read."""
    try:
        (folder / runs.CHECKPOINT).unlink()
        (folder / PREVIOUS).replace(folder / runs.CHECKPOINT)
    except OSError:
        pass


def again(folder: Path) -> None:
    config = configs.of_run(runs.load_config(folder), folder)
    runs.run(folder, configs.dump(config), lambda: configs.build(config), checkpoint_every=2, create=False)


# --- damage ----------------------------------------------------------------------------------------------------------


def damages(content: bytes, count: int) -> Iterator[bytes]:
    """Yield a file cut at many places and with many single bits flipped."""
    draw = np.random.default_rng(len(content))
    for length in draw.choice(len(content), min(count, len(content)), replace=False):
        yield content[:length]
    for bit in draw.choice(8 * len(content), min(count, 8 * len(content)), replace=False):
        yield flipped(content, bit)


@pytest.mark.parametrize("name", FILES)
def test_damage_is_noticed_or_harmless(name: str, folder: Path, whole: Path) -> None:
    for content in damages((whole / name).read_bytes(), 60):
        (folder / name).write_bytes(content)
        assert unharmed(folder, whole), content


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(
    folder: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = bytearray((folder / runs.CHECKPOINT).read_bytes())
    content[-3] ^= 1
    (folder / runs.CHECKPOINT).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        state = runs.load_state(folder)
    assert state is not None and state.round == 4
    assert "checkpoint.safetensors is damaged" in caplog.text and "of round 4" in caplog.text
    again(folder)
    assert same(runs.load_state(folder), runs.load_state(whole))
    assert (folder / runs.CHECKPOINT).read_bytes() == (whole / runs.CHECKPOINT).read_bytes()
    for name in (runs.CHECKPOINT, PREVIOUS):
        (folder / name).write_bytes(b"garbage")
    with pytest.raises(RunError, match=r"checkpoint.safetensors is damaged.*previous.safetensors is damaged"):
        runs.load_state(folder)


def test_a_kill_between_the_two_renames_of_a_checkpoint_loses_nothing(folder: Path, whole: Path) -> None:
    (folder / PREVIOUS).unlink()
    (folder / runs.CHECKPOINT).rename(folder / PREVIOUS)
    assert same(runs.load_state(folder), runs.load_state(whole))


def test_a_line_with_a_checksum_is_whole_or_nothing() -> None:
    text = line({"round": 3, "lr": 0.25, "norm": float("nan")})
    assert record_of(text) == ({"round": 3, "lr": 0.25, "norm": None}, True)
    assert record_of(b'{"round": 3}\n') == ({"round": 3}, False)
    assert record_of(text[:-1]) is None and record_of(text.replace(b"0.25", b"0.35")) is None
    assert record_of(b"[" * 100_000 + b"\n") is None


@pytest.mark.parametrize(
    "manifest",
    [
        '{"round": 1e400}',
        '{"round": "six"}',
        '{"round": -1}',
        '{"status": {}, "round": 1}',
        "[" * 100_000,
        '{"round": ' + "9" * 5000 + "}",
        '{"task": [], "round": 6}',
    ],
)
def test_an_odd_manifest_is_one_sentence(manifest: str, folder: Path) -> None:
    (folder / runs.MANIFEST).write_text(manifest)
    with pytest.raises(RunError, match=r"manifest\.json is damaged") as caught:
        runs.load_run(folder)
    assert len(str(caught.value)) < 700


# --- results and studies ---------------------------------------------------------------------------------------------


def test_a_damaged_results_file_is_noticed(tmp_path: Path) -> None:
    from sparsefed.sweeps import ledger

    content = (Path(__file__).parents[2] / "results/byzantine.laptop.jsonl").read_bytes()
    file = tmp_path / "byzantine.laptop.jsonl"
    file.write_bytes(content)
    rows = ledger.read(file)
    assert len(rows) > 5 and "crc32" not in rows[0]
    lines = {len(b"".join(content.splitlines(keepends=True)[:n])) for n in range(len(rows) + 1)}
    for damaged in damages(content, 150):
        file.write_bytes(damaged)
        if len(damaged) in lines and content.startswith(damaged):
            continue  # cut between two lines: those that are missing are run, or read from their folders, again
        with pytest.raises(RunError, match="is damaged"):
            ledger.read(file)


def test_a_foreign_study_puts_nothing_into_a_config_but_searched_parameters(tmp_path: Path) -> None:
    import optuna

    from sparsefed import tune
    from sparsefed.commands.tune.space import search_space
    from sparsefed.commands.tune.study import opened, study_name

    config = configs.parse(TABLE)
    tune(config, trials=1, folder=tmp_path, space=["attack.step=0.01:1"])
    name = study_name(tmp_path, config, search_space(config, ["attack.step=0.01:1"]), "both")
    with opened(name, tmp_path, None, "both") as study:
        code = optuna.distributions.CategoricalDistribution(["os:system"])
        study.add_trial(
            optuna.trial.create_trial(
                params={"name": "os:system"},
                distributions={"name": code},
                values=[1.0, 1.0],
                user_attrs={"result": {"rounds": 6, "attack_accuracy": 1.0, "test_accuracy": 1.0}},
            )
        )
    with pytest.raises(RunError, match="was not made by it"):
        tune(config, trials=2, folder=tmp_path, space=["attack.step=0.01:1"])
