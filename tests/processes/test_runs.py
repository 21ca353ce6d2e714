"""Run folders under fire: killed, interrupted, out of disk, damaged, contended for; what comes out is the same run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.errors import RunError
from sparsefed.core.rng import rng
from sparsefed.core.round import RoundReport, ServerState
from tests.support.processes import CONFIG, Command, Done, Nursery, Server, without_seconds
from tests.support.shared import Shared

ROUNDS = 400  # more than a fast machine does between the kills
EVERY = 3  # rounds between checkpoints
KILLS = 28
KILL_SEED = 20  # all moments of killing are drawn from it
PARTIAL = f"{runs.CHECKPOINT}.partial"  # a checkpoint being written
OLD = Path(__file__).parents[1] / "golden/run_folder"  # as commit 0872fa4 wrote it: interrupted in round 4 of 6
LONG = ["--set", "rounds=100000", "--set", "checkpoint_every=90000"]


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    return Nursery(process_server, tmp_path_factory.mktemp("nursery"))


@pytest.fixture(scope="module")
def config(shared: Shared) -> Path:
    def make(folder: Path) -> None:
        (folder / "mine.toml").write_text(CONFIG.replace("rounds = 12", f"rounds = {ROUNDS}"))

    return shared.folder("config", make)[0] / "mine.toml"


@pytest.fixture(scope="module")
def whole(sparsefed: Nursery, config: Path, shared: Shared) -> Path:
    """The run, uninterrupted."""

    def make(folder: Path) -> None:
        sparsefed.run("run", config, "--out", folder / "run").fine()

    return shared.folder("whole-run", make)[0] / "run"


@pytest.fixture(scope="module")
def begun(sparsefed: Nursery, config: Path, shared: Shared) -> Path:
    """The same run, ended politely in its first rounds: something to copy and to damage."""

    def make(folder: Path) -> None:
        process = sparsefed.start("run", config, "--out", folder / "run")
        until(lambda: lines(folder / "run") >= 7, process)
        process.signal(signal.SIGTERM)
        assert process.wait().code == 130
        assert 7 <= lines(folder / "run") < ROUNDS

    return shared.folder("begun-run", make)[0] / "run"


@pytest.fixture
def copied(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


def lines(folder: Path) -> int:
    """Whole lines of metrics on the disk."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved_round(folder: Path) -> int:
    state = runs.load_state(folder)
    return state.round if state else 0


def until(condition: Callable[[], bool], process: Command, seconds: float = 60) -> None:
    """Wait for something that a running command does; looked at every millisecond or so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, process.err.read_text()
        time.sleep(0.001)


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text()))


def same_run(one: Path, other: Path) -> None:
    """The same bits in every tensor, and the same metrics but for the seconds."""
    ours, theirs = (load_file(folder / "checkpoint.safetensors") for folder in (one, other))
    assert ours.keys() == theirs.keys()
    assert "theta" in ours
    for name, tensor in ours.items():
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name
    assert without_seconds(one) == without_seconds(other)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# --- the same run, whatever happens ----------------------------------------------------------------------------------


def test_the_same_config_and_seed_give_the_same_bytes(
    sparsefed: Nursery, config: Path, whole: Path, tmp_path: Path
) -> None:
    sparsefed.run("run", config, "--out", tmp_path / "again").fine()
    same_run(tmp_path / "again", whole)
    one, two = (folder / "checkpoint.safetensors" for folder in (whole, tmp_path / "again"))
    assert one.read_bytes() == two.read_bytes()
    state = load_file(one)
    assert {name for name, tensor in state.items() if bool(tensor.any())} == {
        *("theta", "defense.server.0.momentum", "defense.server.0.memory")
    }
    assert any(row["attackers"] for row in without_seconds(whole))
    sparsefed.run("run", config, "--out", tmp_path / "other", "--set", "seed=4", "--set", "rounds=5").fine()
    assert without_seconds(tmp_path / "other") != without_seconds(whole)[:5]


def test_a_folder_of_an_earlier_version_goes_on(sparsefed: Nursery, tmp_path: Path) -> None:
    """To the end that a run of today reaches; to the bit only on the processor that wrote it."""
    resumed, today = Path(shutil.copytree(OLD, tmp_path / "resumed")), tmp_path / "today"
    assert (manifest(resumed)["round"], saved_round(resumed)) == (4, 4)
    sparsefed.run("run", OLD / "config.toml", "--out", today).fine()
    assert "small" in sparsefed.run("resume", resumed).fine()
    assert (resumed / "config.toml").read_bytes() == (OLD / "config.toml").read_bytes()
    assert runs.load_config(today) == runs.load_config(OLD)
    told = {folder: manifest(folder) for folder in (resumed, today)}
    assert [(each["status"], each["round"], each["rounds"]) for each in told.values()] == [("finished", 6, 6)] * 2
    assert (
        told[resumed]["task"]
        == told[today]["task"]
        == manifest(OLD)["task"]
        | {
            "device": "cpu",
            "chance_loss": told[today]["task"]["chance_loss"],
        }
    )
    ours, theirs = (runs.load_state(folder) for folder in (resumed, today))
    assert ours is not None and theirs is not None and ours.round == theirs.round == 6
    assert ours.defense.keys() == theirs.defense.keys() == {"server.0.momentum", "server.0.memory"}
    for mine, its in zip([ours.theta, *ours.defense.values()], [theirs.theta, *theirs.defense.values()], strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
    assert without_seconds(resumed)[:4] == without_seconds(OLD)
    for row, other in zip(without_seconds(resumed), without_seconds(today), strict=True):
        assert row.keys() == other.keys()
        numbers = {key for key, item in other.items() if item is not None}
        assert {key for key, item in row.items() if item is not None} == numbers
        assert all(row[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6) for key in numbers)


@pytest.mark.slow
def test_kill_9_at_random_moments_and_resume_end_in_the_same_bits(
    sparsefed: Nursery, config: Path, whole: Path, tmp_path: Path
) -> None:
    """Moments drawn from KILL_SEED: while it starts, after some rounds, while a checkpoint is being written."""
    folder, draw = tmp_path / "run", rng(KILL_SEED, "kills")
    landed: Counter[str] = Counter()
    for kill in range(KILLS):
        begin = ("resume", folder) if runs.is_run(folder) else ("run", config, "--out", folder)
        before, partial = saved_round(folder) if folder.exists() else 0, changed(folder, PARTIAL)
        process = sparsefed.start(*begin)
        moment = ("starting", "rounds", "rounds", "checkpoint")[kill % 4]
        wait_for(moment, folder, before, float(draw.random()), process)
        process.signal(signal.SIGKILL)
        assert process.wait().code == -signal.SIGKILL, "it ended before it was killed: give it more rounds"
        landed[moment] += 1
        landed["with unsaved rounds"] += check_what_a_kill_left(folder, before)
        landed["inside a checkpoint"] += changed(folder, PARTIAL) not in (0, partial)
    assert sum(landed[moment] for moment in ("starting", "rounds", "checkpoint")) == KILLS >= 20
    assert landed["with unsaved rounds"] >= 5
    assert landed["inside a checkpoint"] >= 1
    assert saved_round(folder) < ROUNDS
    sparsefed.run("resume", folder).fine()
    same_run(folder, whole)
    assert (folder / "checkpoint.safetensors").read_bytes() == (whole / "checkpoint.safetensors").read_bytes()
    resumed = manifest(folder)["resumed"]
    assert len(resumed) >= KILLS // 2
    assert all(now["round"] <= later["round"] for now, later in pairwise(resumed))
    assert manifest(folder)["status"] == "finished"


def wait_for(moment: str, folder: Path, before: int, share: float, process: Command) -> None:
    """Until a moment of that kind; `share`, from 0 to 1, says which."""
    if moment == "starting":
        pause(0.5 * share, folder, before)
        return
    wanted, old = before + 1 + int(5 * share), changed(folder, runs.METRICS)
    until(lambda: changed(folder, runs.METRICS) != old and lines(folder) >= wanted, process)
    if moment == "checkpoint":
        partial, end = folder / PARTIAL, time.monotonic() + 0.2
        while not partial.exists() and time.monotonic() < end:
            pass  # it is there for less than a millisecond
    else:
        pause(0.02 * share, folder, before)


def pause(seconds: float, folder: Path, before: int) -> None:
    """Wait that long, or until this kill's share of the rounds is done: a fast machine would do all of them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and lines(folder) - before < ROUNDS // KILLS:
        time.sleep(0.001)


def changed(folder: Path, name: str) -> int:
    """When a file was last written; 0 where there is none."""
    path = folder / name
    return path.stat().st_mtime_ns if path.exists() else 0


def check_what_a_kill_left(folder: Path, before: int) -> bool:
    """Whether rounds were lost; never more than those since the last checkpoint, and the folder can be read."""
    if not runs.is_run(folder):
        return False
    now, reported = saved_round(folder), lines(folder)
    assert now >= before
    assert now % EVERY == 0
    assert 0 <= reported - now <= EVERY
    end = time.monotonic() + 10  # a child that was just being started has the lock until it runs its own program
    while (status := runs.load_run(folder).manifest["status"]) == "running" and time.monotonic() < end:
        time.sleep(0.01)
    assert status in ("created", "interrupted")  # a dead process is not running
    return reported > now


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_saved_says_how_to_go_on_and_goes_on(
    sparsefed: Nursery, config: Path, whole: Path, tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "run with a space"
    process = sparsefed.start("run", config, "--out", folder, "--set", "checkpoint_every=90000")
    until(lambda: lines(folder) >= 10, process)
    process.signal(number)
    done = process.wait()
    assert done.code == 130
    assert done.out == ""
    assert f"sparsefed resume '{folder}'" in done.err
    assert manifest(folder)["status"] == "interrupted"
    assert manifest(folder)["round"] == saved_round(folder) >= 10  # though no checkpoint was due
    assert saved_round(folder) >= lines(folder) - 1
    sparsefed.run("resume", folder).fine()
    same_run(folder, whole)


def test_an_impatient_person_loses_nothing_that_was_saved(
    sparsefed: Nursery, config: Path, whole: Path, tmp_path: Path
) -> None:
    folder, draw = tmp_path / "run", rng(KILL_SEED, "impatience")
    for attempt in range(3):
        begin = ("resume", folder) if attempt else ("run", config, "--out", folder)
        process, before = sparsefed.start(*begin), saved_round(folder) if attempt else 0
        until(lambda before=before: lines(folder) >= before + 5, process)  # type: ignore[misc]
        for _ in range(3):
            process.signal(signal.SIGINT)
            time.sleep(0.01 * float(draw.random()))
        assert process.wait().code != 0
        assert saved_round(folder) >= before
    sparsefed.run("resume", folder).fine()
    same_run(folder, whole)


SLOW = """
import pathlib, time

def deal(*_):
    pathlib.Path("dealing").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_before_it_began_nothing_is_left(
    sparsefed: Nursery, config: Path, tmp_path: Path, number: int
) -> None:
    (tmp_path / "slow_dealing.py").write_text(SLOW)
    slow = ["--set", "data.partition=slow_dealing:deal"]
    process = sparsefed.start("run", config, "--out", tmp_path / "run", *slow, cwd=tmp_path)
    until((tmp_path / "dealing").exists, process)
    process.signal(number)
    done = process.wait()
    assert done == Done(130, "", "Interrupted before anything was computed.\n")
    assert not (tmp_path / "run").exists()


def test_interrupted_twins_go_on_by_the_same_command(sparsefed: Nursery, config: Path, tmp_path: Path) -> None:
    args: list[str | Path] = ["run", config, "--twins", "--out", tmp_path / "run", "--set", "rounds=60"]
    process = sparsefed.start(*args)
    until(lambda: lines(tmp_path / "run-unattacked") >= 5, process)
    process.signal(signal.SIGINT)
    done = process.wait()
    assert done.code == 130
    assert "same command" in done.err
    assert f"sparsefed resume {tmp_path}/run-unattacked" in done.err
    finished = contents(tmp_path / "run")["metrics.jsonl"]
    saved = saved_round(tmp_path / "run-unattacked")
    sparsefed.run(*args).fine()
    assert contents(tmp_path / "run")["metrics.jsonl"] == finished
    assert [again["round"] for again in manifest(tmp_path / "run-unattacked")["resumed"]] == [saved]
    assert len(without_seconds(tmp_path / "run-plain")) == 60


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [6000, 9000])
def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(
    sparsefed: Nursery, whole: Path, copied: Path, largest: int
) -> None:
    """6000 bytes are too few for a checkpoint, 9000 for the metrics of all rounds."""
    before = saved_round(copied)
    sentence = sparsefed.run("resume", copied, largest=largest).refused()
    assert all(word in sentence for word in (str(copied), "File too large", "free some space", "sparsefed resume"))
    assert saved_round(copied) == before if largest == 6000 else saved_round(copied) > before
    assert not list(copied.glob("*.partial"))
    assert runs.load_run(copied).manifest["status"] == "interrupted"
    sparsefed.run("resume", copied).fine()
    same_run(copied, whole)


def test_a_full_disk_at_the_start_is_one_sentence(sparsefed: Nursery, config: Path, tmp_path: Path) -> None:
    sentence = sparsefed.run("run", config, "--out", tmp_path / "run", largest=400).refused()
    assert "--out" in sentence
    sparsefed.run("run", config, "--out", tmp_path / "run", "--set", "rounds=3").fine()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_sentence(sparsefed: Nursery, copied: Path) -> None:
    before = contents(copied)
    copied.chmod(0o555)
    (copied / ".lock").chmod(0o444)
    try:
        assert "make it writable" in sparsefed.run("resume", copied).refused()
        assert contents(copied) == before
    finally:
        copied.chmod(0o755)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    runs.write_atomically(path, b"old")
    (tmp_path / "file.partial").mkdir()
    with pytest.raises(OSError, match="directory"):
        runs.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


# --- damage ----------------------------------------------------------------------------------------------------------


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * 2 // 3])

    return damage


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def checkpoint(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "checkpoint.safetensors"
        tensors = load(path.read_bytes())
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["sparsefed"])
        change(tensors, header)
        del header["sha256"]  # as early versions wrote them; with it, any change would be damage
        save_file(tensors, path, {"sparsefed": json.dumps(header)})

    return damage


def other_size(tensors: dict[str, Any], _: dict[str, Any]) -> None:
    tensors.update({name: torch.zeros(1300) for name in tensors})


def other_defense(tensors: dict[str, Any], _: dict[str, Any]) -> None:
    del tensors["defense.server.0.memory"]


def roundless(_: dict[str, Any], header: dict[str, Any]) -> None:
    del header["round"]


def third_line(content: bytes) -> bytes:
    parts = content.splitlines(keepends=True)
    return b"".join([*parts[:2], b'{"round": 3, "lr"\n', *parts[3:]])


def two_and_a_half(content: bytes) -> bytes:
    parts = content.splitlines(keepends=True)
    return b"".join([*parts[:2], parts[2][:90]])


DAMAGES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "checkpoint cut": (cut(runs.CHECKPOINT), ["checkpoint.safetensors is damaged", "delete it and resume"]),
    "checkpoint empty": (rewritten(runs.CHECKPOINT, lambda _: b""), ["is damaged"]),
    "checkpoint garbage": (rewritten(runs.CHECKPOINT, lambda _: b"garbage" * 99), ["is damaged"]),
    "checkpoint without round": (checkpoint(roundless), ["is damaged"]),
    "checkpoint of another model": (checkpoint(other_size), ["1,300 parameters", "650 parameters"]),
    "checkpoint of another defense": (checkpoint(other_defense), ["server.0.memory", "not of this run"]),
    "metrics damaged inside": (rewritten(runs.METRICS, third_line), ["metrics.jsonl is damaged", "line 3"]),
    "metrics cut": (rewritten(runs.METRICS, two_and_a_half), ["metrics.jsonl is damaged", "line 3"]),
    "metrics not rounds": (rewritten(runs.METRICS, lambda _: b"5\n"), ["metrics.jsonl is damaged", "line 1"]),
    "metrics gone": (lambda folder: (folder / runs.METRICS).unlink(), ["metrics.jsonl is damaged"]),
    "manifest cut": (cut(runs.MANIFEST), ["manifest.json is damaged", "delete it", "sparsefed resume"]),
    "manifest not an object": (rewritten(runs.MANIFEST, lambda _: b"[1]"), ["manifest.json is damaged"]),
    "config gone": (lambda folder: (folder / runs.CONFIG).unlink(), ["not a run folder", "no config.toml"]),
    "config cut": (rewritten(runs.CONFIG, lambda text: text[:30]), ["config.toml", "damaged"]),
    "config not text": (rewritten(runs.CONFIG, lambda _: b"\xff\xff"), ["config.toml is damaged"]),
    "config unknown key": (rewritten(runs.CONFIG, lambda text: b"sede = 1\n" + text), ["config.toml was changed"]),
    "config changed": (rewritten(runs.CONFIG, lambda text: text.replace(b"lr = 0.2", b"lr = 0.1")), ["was changed"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_sentence_and_nothing_is_deleted(sparsefed: Nursery, copied: Path, damage: str) -> None:
    act, says = DAMAGES[damage]
    act(copied)
    (copied / "previous.safetensors").unlink()
    before = contents(copied)
    sentence = sparsefed.run("resume", copied).refused()
    assert [words for words in says if words not in sentence] == []
    assert str(copied) in sentence
    assert contents(copied) == before


def test_folders_that_are_no_run(sparsefed: Nursery, config: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere", config):
        assert "not a run folder" in sparsefed.run("resume", folder).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())


def test_what_a_killed_process_left_behind_the_last_checkpoint_is_forgotten(
    sparsefed: Nursery, whole: Path, copied: Path
) -> None:
    saved = b"".join((copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)[: saved_round(copied)])
    (copied / "checkpoint.safetensors.partial").write_bytes(b"half")
    for tail in (b"[1]\n", b'{"lr": 3}\n', b"\x00" * 50 + b"\n", b'{"round": 8, "lr', b"nonsense\n{}\n{"):
        (copied / "metrics.jsonl").write_bytes(saved + tail)
        assert len(runs.load_run(copied).rows) == saved_round(copied)
    sparsefed.run("resume", copied).fine()
    same_run(copied, whole)


def test_a_lost_manifest_is_begun_anew(sparsefed: Nursery, config: Path, whole: Path, copied: Path) -> None:
    (copied / "manifest.json").unlink()
    assert "already holds a run" in sparsefed.run("run", config, "--out", copied).refused()
    sparsefed.run("resume", copied).fine()
    same_run(copied, whole)
    assert manifest(copied)["parameters"] == 650
    assert manifest(copied)["status"] == "finished"


def test_deleting_a_damaged_checkpoint_starts_over_to_the_same_run(
    sparsefed: Nursery, whole: Path, copied: Path
) -> None:
    (copied / "checkpoint.safetensors").unlink()
    sparsefed.run("resume", copied).fine()
    same_run(copied, whole)


def test_what_was_noted_stays_noted(sparsefed: Nursery, copied: Path) -> None:
    noted = {**manifest(copied), "remark": "the one with the broken fan"}
    (copied / "manifest.json").write_text(json.dumps(noted))
    sparsefed.run("resume", copied).fine()
    after = manifest(copied)
    assert {key: after[key] for key in noted if key not in ("status", "round", "sha256")} == {
        key: value for key, value in noted.items() if key not in ("status", "round", "sha256")
    }
    assert (after["status"], after["round"]) == ("finished", ROUNDS)


# --- two at once -----------------------------------------------------------------------------------------------------


def test_a_second_process_on_a_run_is_refused(sparsefed: Nursery, config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = sparsefed.start("run", config, "--out", folder, *LONG)
    until(lambda: lines(folder) >= 3, first)
    try:
        assert "another process is working on" in sparsefed.run("resume", folder).refused()
        anew = sparsefed.run("run", config, "--out", folder, "--overwrite")
        assert "another process is working on" in anew.refused()
        assert runs.load_run(folder).manifest["status"] == "running"
        then = lines(folder)
        until(lambda: lines(folder) > then, first)  # it goes on, undisturbed
    finally:
        first.signal(signal.SIGKILL)
        first.wait()
    assert [row["round"] for row in without_seconds(folder)][:3] == [1, 2, 3]
    assert runs.load_run(folder).manifest["status"] == "interrupted"


# --- driving a run from Python ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experiment(config: Path) -> configs.BuiltSimulation:
    return configs.build(configs.read(config, ["rounds=6", "evaluate_every=6"]))


def make(folder: Path, experiment: configs.BuiltSimulation) -> None:
    runs.create(folder, configs.dump(experiment.config))


def test_an_error_in_a_round_is_raised_after_the_rounds_before_it_were_saved(
    tmp_path: Path, experiment: configs.BuiltSimulation
) -> None:
    make(tmp_path / "run", experiment)

    def failing(state: ServerState) -> Iterator[RoundReport]:
        for report in experiment.reports(state):
            if report.state.round == 5:
                raise ZeroDivisionError
            yield report

    with pytest.raises(ZeroDivisionError):
        runs.execute(tmp_path / "run", experiment.begin(), failing, checkpoint_every=100)
    assert saved_round(tmp_path / "run") == 4
    assert runs.load_run(tmp_path / "run").manifest["status"] == "interrupted"
    runs.execute(tmp_path / "run", experiment.begin(), experiment.reports, checkpoint_every=100)
    make(tmp_path / "whole", experiment)
    runs.execute(tmp_path / "whole", experiment.begin(), experiment.reports, checkpoint_every=1)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_a_reader_that_went_away_is_no_trouble_with_the_disk(
    tmp_path: Path, experiment: configs.BuiltSimulation
) -> None:
    make(tmp_path / "run", experiment)

    def closed(_: RoundReport) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        runs.execute(tmp_path / "run", experiment.begin(), experiment.reports, 100, closed)
    assert saved_round(tmp_path / "run") == 1


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path, experiment: configs.BuiltSimulation) -> None:
    make(tmp_path / "run", experiment)

    def diverged(state: ServerState) -> Iterator[RoundReport]:
        for report in experiment.reports(state):
            yield replace(report, metrics={**report.metrics, "test_loss": float("nan"), "update_norm": float("inf")})

    runs.execute(tmp_path / "run", experiment.begin(), diverged, 2)
    rows = runs.load_run(tmp_path / "run").rows
    assert {(row["test_loss"], row["update_norm"]) for row in rows} == {(None, None)}


def test_of_runs_that_belong_together_the_unfinished_are_done(tmp_path: Path) -> None:
    wanted = {tmp_path / name: {"name": name, "rounds": 3} for name in "abc"}
    assert runs.unfinished(wanted) == dict.fromkeys(wanted, True)
    for folder in list(wanted)[:2]:
        runs.create(folder, wanted[folder])
    runs.note(tmp_path / "a", status="finished")
    assert runs.unfinished(wanted) == {tmp_path / "b": False, tmp_path / "c": True}
    with pytest.raises(RunError, match="another config"):
        runs.unfinished({**wanted, tmp_path / "b": {"name": "b", "rounds": 4}})


def test_runs_are_found_in_the_order_they_were_made(tmp_path: Path) -> None:
    for name, created in (("z", "2030-01-01"), ("m", "2031-01-01"), ("a", "2032-01-01")):
        runs.create(tmp_path / name, {"name": name})
        runs.note(tmp_path / name, created=created)
    assert [path.name for path in runs.find([tmp_path])] == ["z", "m", "a"]
    assert runs.find([tmp_path / "a", tmp_path / "z"]) == [tmp_path / "a", tmp_path / "z"]
