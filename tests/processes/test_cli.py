"""The command line, as a person or a script meets it: real processes, exit codes, what is printed where.

Most commands are children of a `Nursery`. What depends on the start itself (the terminal, PYTHONPATH) runs the
installed command.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparsefed import data
from sparsefed.attacks import ATTACKS
from sparsefed.config import templates as bases
from sparsefed.core.federation import SAMPLING
from sparsefed.core.schedule import SCHEDULES
from sparsefed.core.signatures import parameters
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partitions.partition import PARTITIONS
from sparsefed.defenses import DEFENSES, PRE, PRESETS, CommonOptions
from sparsefed.engines import ENGINES
from sparsefed.models import MODELS
from tests.support.processes import (
    COMMAND,
    CONFIG,
    ENVIRONMENT,
    Nursery,
    Server,
    installed,
    on_a_terminal,
    without_seconds,
)


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    return Nursery(process_server, tmp_path_factory.mktemp("nursery"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(CONFIG)
    return path


# --- one run ---------------------------------------------------------------------------------------------------------


def test_a_run_on_a_pipe_is_plain_lines_a_table_and_a_folder(sparsefed: Nursery, config: Path) -> None:
    done = sparsefed.run("run", config, cwd=config.parent)
    out = done.fine()
    assert re.search(r"^mine: round 4/12, test \d+\.\d%, attack \d+\.\d%; \d.* left$", done.err, re.M)
    assert "round" not in out.splitlines()[0]
    assert "\x1b" not in out
    assert "What each run came to" in out
    folder = config.parent / "runs/mine"
    manifest = json.loads((folder / "manifest.json").read_text())
    facts = {"status": "finished", "round": 12, "rounds": 12, "seed": 3, "parameters": 650}
    assert {key: manifest[key] for key in facts} == facts
    assert manifest["command"] == f"sparsefed run {config}"
    assert {"python", "torch", "sparsefed"} <= manifest["versions"].keys()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 13))
    assert [row["round"] for row in rows if "test_accuracy" in row] == [4, 8, 12]
    assert not list(folder.glob("*.partial"))


def test_a_run_is_not_written_over_unless_asked(sparsefed: Nursery, config: Path) -> None:
    here = config.parent
    sparsefed.run("run", config, cwd=here).fine()
    before = (here / "runs/mine/metrics.jsonl").read_bytes()
    sentence = sparsefed.run("run", config, cwd=here).refused()
    assert all(word in sentence for word in ("runs/mine", "sparsefed resume", "--out", "--overwrite"))
    assert (here / "runs/mine/metrics.jsonl").read_bytes() == before
    sparsefed.run("run", config, "--set", "seed=4", "--out", here / "deep/er", cwd=here).fine()
    other = (here / "deep/er/metrics.jsonl").read_bytes()
    config.write_text(CONFIG.replace("seed = 3", "seed = 4"))
    sparsefed.run("run", config, "--overwrite", cwd=here).fine()
    assert (here / "runs/mine/metrics.jsonl").read_bytes() != before
    assert without_seconds(here / "runs/mine") == without_seconds(here / "deep/er")
    assert (here / "deep/er/metrics.jsonl").read_bytes() == other


def test_runs_of_other_configs_go_into_other_folders(sparsefed: Nursery, config: Path) -> None:
    here = config.parent
    sparsefed.run("run", config, "--set", "rounds=2", cwd=here).fine()
    sparsefed.run("run", config, "--set", "rounds=2", "--set", "k=10,20", "--seeds", "2", cwd=here).fine()
    made = {path.name for path in (here / "runs").iterdir()}
    several = {f"mine-rounds=2-k={k}-seed={seed}" for k in (10, 20) for seed in (3, 4)}
    assert made == {"mine-rounds=2", *several, "mine-runs.html"}
    config.write_text(CONFIG.replace("share = 0.1", "share = 0.2"))
    again = sparsefed.run("run", config, "--set", "rounds=2", cwd=here)
    again.fine()
    (new,) = {path.name for path in (here / "runs").iterdir()} - made
    assert new.startswith("mine-rounds=2-") and new in again.err and "another config" in again.err
    assert "already holds a run" in sparsefed.run("run", config, "--set", "rounds=2", cwd=here).refused()


def test_a_config_that_is_no_runs_is_never_written_over(sparsefed: Nursery, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    for more in ([], ["--overwrite"]):
        assert "belongs to no run" in sparsefed.run("run", config, "--out", tmp_path, *more).refused()
    assert config.read_text() == CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_refused_config_leaves_nothing_behind(sparsefed: Nursery, config: Path) -> None:
    for override, words in [
        ("train.lrr=1", "unknown key in [train] 'lrr'"),  # brackets are no markup
        ("defense.k=651", "650"),
        ("attack.auxiliary=297", "297 test points"),
    ]:
        assert words in sparsefed.run("run", config, "--set", override, cwd=config.parent).refused()
    assert "no config file" in sparsefed.run("run", "none.toml", cwd=config.parent).refused()
    assert [path.name for path in config.parent.iterdir()] == ["mine.toml"]


def test_a_folder_that_cannot_be_made_is_one_sentence(sparsefed: Nursery, config: Path) -> None:
    for out in (config, config / "below", config.parent / ("x" * 300)):
        assert str(out) in sparsefed.run("run", config, "--out", out).refused()
    assert config.read_text() == CONFIG


def test_resume_takes_relative_and_absolute_folders_and_finished_runs(sparsefed: Nursery, config: Path) -> None:
    here = config.parent
    sparsefed.run("run", config, cwd=here).fine()
    before = (here / "runs/mine/checkpoint.safetensors").read_bytes()
    for folder, cwd in (("runs/mine", here), (here / "runs/mine", Path("/")), (".", here / "runs/mine")):
        assert "mine" in sparsefed.run("resume", folder, cwd=cwd).fine()
    assert (here / "runs/mine/checkpoint.safetensors").read_bytes() == before


# --- help, lists, data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["run", "resume", "demo", "report", "list", "data", "130"]),
        ("run", ["CONFIG", "--set", "--out", "--overwrite", "runs/NAME", "Ctrl-C", "130"]),
        ("resume", ["RUN", "bit for bit"]),
        ("demo", ["--out", "--set", "--fresh", "goes on where it was"]),
        ("audit", ["CONFIG", "--defenses", "--attacks", "--trials", "--seeds", "--tolerance", "recommended.toml"]),
        ("report", ["RUN", "--out", "--format", "html", "png", "svg", "pdf", "offline"]),
        ("list", ["--json"]),
        ("data", ["list", "fetch", "check"]),
        ("data list", ["--json"]),
        ("data fetch", ["NAME", "verified"]),
        ("data check", ["checksums"]),
    ],
)
def test_every_command_explains_itself(sparsefed: Nursery, command: str, words: list[str]) -> None:
    out = " ".join(re.sub("[│╭╮╰╯─]", " ", sparsefed.run(*command.split(), "--help").fine()).split())
    assert [word for word in words if word not in out] == []


def test_commands_that_make_no_sense_are_refused(sparsefed: Nursery) -> None:
    for args in (["runn"], ["run"], ["run", "a.toml", "--sett", "x=1"], ["report"], ["report", ".", "--format", "gif"]):
        done = sparsefed.run(*args)
        assert done.code == 2
        assert "Traceback" not in done.err
        assert "Usage" in done.err


DERIVED = ("mode", "preset", "local_lr")  # they follow from [train]
LISTED: dict[str, Mapping[str, Any]] = {
    "defenses": DEFENSES,
    "beside every defense": {p.name: p for p in parameters(CommonOptions) if p.name not in DERIVED},
    "pre-aggregations": PRE,
    "attacks": ATTACKS,
    "models": MODELS,
    "data sets": data.DATASETS,
    "partitions": PARTITIONS,
    "augmentations": AUGMENTATIONS,
    "sampling": SAMPLING,
    "schedules": SCHEDULES,
    "engines": ENGINES,
    "presets": PRESETS,
    "bases": dict.fromkeys(bases.names()),
}


def test_list_has_every_entry_of_every_dict_and_every_key(sparsefed: Nursery) -> None:
    text, found = sparsefed.run("list").fine(), json.loads(sparsefed.run("list", "--json").fine())
    assert found.keys() == {*LISTED, "config keys"}
    for kind, known in LISTED.items():
        assert [entry["name"] for entry in found[kind]] == list(known)
        assert all(entry["summary"] for entry in found[kind])
        assert all(re.search(rf"^  {re.escape(name)} +\S", text, re.M) for name in known)
    keys = {entry["name"]: entry for entry in found["config keys"]}
    assert keys["train.lr"] == {
        "name": "train.lr",
        "type": "float",
        "default": 0.2,
        "summary": "learning rate at its peak",
    }
    assert keys["data.devices"]["default"] == 10_000
    assert {"rounds", "threat.share", "attack.name", "threat.knowledge", "model.name", "defense.name"} <= keys.keys()


def test_list_can_be_asked_for_a_kind_or_a_name(sparsefed: Nursery) -> None:
    assert json.loads(sparsefed.run("list", "models", "--json").fine()).keys() == {"models"}
    assert json.loads(sparsefed.run("list", "presets", "--json").fine()).keys() == {"presets", "bases"}
    assert "cross-device" in sparsefed.run("list", "bases").fine()
    assert "43 124 350" in sparsefed.run("list", "resnet101_ln").fine()
    found = json.loads(sparsefed.run("list", "sparsefed", "--json").fine())
    assert [entry["name"] for entry in found["defenses"]] == ["sparsefed"]
    text = sparsefed.run("list", "sparsefed").fine()
    assert "Panda et al." in text and "all rows: every update" in " ".join(text.split())
    assert "did you mean 'sparsefed'" in sparsefed.run("list", "sparsfed").refused()


def test_list_has_the_parameters(sparsefed: Nursery) -> None:
    found = json.loads(sparsefed.run("list", "--json").fine())
    rules = {entry["name"]: {p["name"]: p for p in entry["parameters"]} for entry in found["defenses"]}
    assert rules["sparsefed"]["k"]["required"]
    assert rules["sparsefed"]["clip_norm"]["default"] == 5.0
    assert "l2 norm" in rules["clipping"]["clip_norm"]["doc"]
    beside = {entry["name"]: entry for entry in found["beside every defense"]}
    assert (beside["clip_norm"]["default"], beside["rho"]["default"]) == (None, 0.9)
    assert "mode" not in rules["sparsefed"]  # it follows from train.mode
    assert {p["name"] for p in found["attacks"][0]["parameters"]} >= {"epochs", "batch", "step", "boost"}
    models = {entry["name"]: entry for entry in found["models"]}
    assert [p["name"] for p in models["cnn"]["parameters"]] == ["width", "hidden"]
    assert models["resnet101_ln"]["size"] == "43 124 350 (FEMNIST)"
    assert models["resnet101_ln"]["engine"] == "fused"
    schedules = {entry["name"]: [p["name"] for p in entry["parameters"]] for entry in found["schedules"]}
    assert schedules["constant"] == [] and schedules["cosine"] == ["peak_at"]


def test_list_says_what_an_attack_is_after_and_what_it_must_know(sparsefed: Nursery) -> None:
    found = {entry["name"]: entry for entry in json.loads(sparsefed.run("list", "attacks", "--json").fine())["attacks"]}
    assert found["badnets"]["goal"]["name"] == "patch" and found["badnets"]["needs"] == ["own data"]
    belongs = {p["name"]: p["of"] for p in found["badnets"]["parameters"]}
    assert (belongs["size"], belongs["boost"]) == ("goal", "method")
    assert found["fang_krum"]["otherwise"] == {"when": 'knowledge = "partial"', "needs": ["own data"]}
    text = " ".join(re.sub("[│┃]", " ", sparsefed.run("list", "dba").fine()).split())
    assert text.index("goal: bars") < text.index("gap = 1") < text.index("method:") < text.index("pieces = 4")
    assert "Xie et al." in text and "stand side by side in [attack]" in text


def test_data_commands(sparsefed: Nursery) -> None:
    assert "digits" in sparsefed.run("data", "list").fine()
    states = {entry["name"]: entry["state"] for entry in json.loads(sparsefed.run("data", "list", "--json").fine())}
    assert states["digits"] == "built in"
    assert states.keys() == data.DATASETS.keys()
    assert "digits: built in" in sparsefed.run("data", "check", "digits").fine()
    assert "nothing to fetch" in sparsefed.run("data", "fetch", "digits").fine()
    for command in ("check", "fetch"):
        sentence = sparsefed.run("data", command, "digit").refused()
        assert "did you mean 'digits'" in sentence
        assert "fmnist" in sentence


def test_a_run_with_noise_says_what_it_guarantees(sparsefed: Nursery, config: Path) -> None:
    here, noise = config.parent, ("--set", "defense={name='dp_noise', sigma=0.5}")
    out = sparsefed.run("run", config, *noise, cwd=here).fine()
    assert re.search(r"mine: epsilon = [\d.]+ at delta = 1e-05", out)
    out = sparsefed.run(
        "run", config, *noise, "--set", "defense.placement=update", "--set", "name=late", cwd=here
    ).fine()
    assert "late: no guarantee: the noise is added after momentum" in out
    sparsefed.run("report", "runs", cwd=here).fine()
    page = (here / "runs/report.html").read_text()
    assert "Differential privacy of mine: epsilon =" in page
    assert "Differential privacy of late: no guarantee" in page


# --- reports ---------------------------------------------------------------------------------------------------------


def test_report_on_a_folder_of_runs_as_a_page_and_as_pictures(sparsefed: Nursery, config: Path) -> None:
    here = config.parent
    for name in ("one", "two"):
        sparsefed.run("run", config, "--set", f"name={name}", cwd=here).fine()
    assert "wrote runs/report.html" in sparsefed.run("report", "runs", cwd=here).fine()
    page = (here / "runs/report.html").read_text()
    assert "one, two" in page
    out = sparsefed.run("report", "runs/one", "runs/two", "--format", "png", "--out", "pictures/x.png", cwd=here).fine()
    pictures = sorted((here / "pictures").iterdir())
    assert len(pictures) == out.count("wrote") >= 3
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert any("attack" in picture.name for picture in pictures)


def test_report_without_a_run_is_one_sentence(sparsefed: Nursery, config: Path) -> None:
    here = config.parent
    (here / "empty").mkdir()
    (here / "other").mkdir()
    (here / "other/config.toml").write_text("")
    assert "no run in empty" in sparsefed.run("report", "empty", cwd=here).refused()
    assert "no run in other" in sparsefed.run("report", "other", cwd=here).refused()
    assert "no folder nowhere" in sparsefed.run("report", "nowhere", cwd=here).refused()
    assert "no folder mine.toml" in sparsefed.run("report", "mine.toml", cwd=here).refused()


def test_report_where_nothing_may_be_written_is_one_sentence(sparsefed: Nursery, config: Path) -> None:
    sparsefed.run("run", config, cwd=config.parent).fine()
    sentence = sparsefed.run("report", "runs", "--out", config / "report.html", cwd=config.parent).refused()
    assert str(config) in sentence


# --- the installed command -------------------------------------------------------------------------------------------

MEASURED = r"test +\d+\.\d% attack +\d+\.\d%"
LIVE = re.compile(rf"mine +[━╸╺]+ +(?!40)\d+/40 +({MEASURED} +)?\d:\d\d:\d\d +\d.* left$")


@pytest.mark.slow
def test_on_a_terminal_each_run_is_one_live_line(config: Path) -> None:
    args: list[str | Path] = ["run", config, "--twins", "--set", "rounds=40"]
    code, text = on_a_terminal(args, config.parent, columns=80)
    assert code == 0, text
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    live = [line for line in lines if "━" in line and "/40 " in line]
    assert {line.split()[0] for line in live} == {"mine", "mine-unattacked", "mine-plain"}
    assert all(len(line) <= 80 for line in lines if "━" in line or "│" in line)  # sentences are the terminal's to wrap
    assert any(LIVE.match(line) for line in live)
    assert any(re.match(rf"mine +━+ +40/40 +{MEASURED} +0:00:\d\d +0\.0 s left$", line) for line in live)
    assert len(live) > 6  # it moved
    heads = " ".join(lines[lines.index("What each run came to") :][2:6])
    assert all(word in heads for word in ("Test", "Attack", "mean", "max", "norm", "epoch"))
    assert "wrote runs/mine-rounds=40/report.html" in text


OWN = '''
"""A model, a defense and an attack of a user's own."""
from __future__ import annotations

import torch
from torch import nn

from sparsefed.core.types import Defense, Step


class Net(nn.Module):
    def __init__(self, shape: tuple[int, int, int], classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)


def lazy(factor: float = 0.5) -> Defense:
    """The mean, times a factor."""

    def step(state, blocks, context):
        total, count = 0, 0
        for block in blocks:
            total = total + block.weighted_sum(torch.ones(block.size, dtype=torch.float64))
            count += block.size
        return Step({"seen": state["seen"] + count}, factor * context.lr * total / count, {})

    return Defense(lambda d: {"seen": torch.zeros(1)}, step, lambda state, context: float("inf"))


def noise(auxiliary, *, size: float = 3.0):
    """All ones."""
    return lambda knowledge: torch.full_like(knowledge.theta, size)
'''


@pytest.mark.slow
def test_things_of_ones_own_are_named_by_module_and_function(config: Path) -> None:
    here = config.parent
    (here / "own").mkdir()
    (here / "own/my_things.py").write_text(OWN)
    own = ["model.name=my_things:Net", "model.hidden=5", "attack.name=my_things:noise", "attack.size=2.5"]
    sets = [part for override in own for part in ("--set", override)]
    config.write_text(CONFIG[: CONFIG.index("[defense]")] + '[defense]\nname = "my_things:lazy"\nfactor = 0.25\n')
    assert (
        "put my_things.py beside the config, or its folder on PYTHONPATH"
        in installed("run", config, *sets, cwd=here).refused()
    )
    done = installed("run", config, *sets, cwd=here, env={"PYTHONPATH": str(here / "own")})
    done.fine()
    assert "round 12/12" in done.err
    (folder,) = (here / "runs").iterdir()
    rows = without_seconds(folder)
    assert {round(row["attacker_norm"], 3) for row in rows if row["attackers"]} == {round(2.5 * 385**0.5, 3)}
    assert json.loads((folder / "manifest.json").read_text())["parameters"] == 385


@pytest.mark.slow
def test_ctrl_c_ends_the_installed_command_cleanly(config: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", str(config), "--set", "rounds=100000", "--set", "checkpoint_every=90000"],
        cwd=config.parent,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    name = "mine-rounds=100000-checkpoint_every=90000"
    metrics = config.parent / "runs" / name / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (metrics.exists() and metrics.read_text().count("\n") > 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith(f"Go on with: sparsefed resume runs/{name}\n")
    assert (metrics.parent / "checkpoint.safetensors").exists()
