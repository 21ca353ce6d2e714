"""Mistakes of a first hour, a line each: every one is one sentence on what is wrong, and leaves nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import CONFIG, Nursery, Server

OWN = """
import torch
from torch import nn
from sparsefed.data.own import from_arrays
import numpy as np

x = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
DATA = from_arrays(x, y)
HOLED = from_arrays(np.where(x > 2, np.nan, x), y)
number = 7


def narrow(shape, classes):
    return nn.Linear(64, 3)


def small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(9, classes))


def raising(shape, classes):
    raise RuntimeError("no network today")


class Failing(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1)) / self.missing


class Infinite(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1)) * float("nan")


def text(shape, classes):
    return "a model"


def rule(f):
    raise KeyError("f")


def bad_loss(outputs, targets):
    return outputs.nonsense
"""


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    return Nursery(process_server, tmp_path_factory.mktemp("nursery"))


# What is set in a valid config, and words that the sentence must have: the value, what is allowed, what to do.
SET: list[tuple[str, list[str]]] = [
    # names
    ("defense.name=sparsfed", ["sparsfed", "did you mean 'sparsefed'", "krum"]),
    ("attack.name=pdg", ["pdg", "did you mean 'pgd'", "sign_flip"]),
    ("model.name=cn", ["'cn'", "cnn", "module:function"]),
    ("data.name=fmnst", ["fmnst", "did you mean 'fmnist'"]),
    ("data.partition=onclass", ["onclass", "one_class", "dirichlet"]),
    ("data.augment=flip", ["flip", "none"]),
    ("train.sampling=random", ["random", "epoch"]),
    ("train.schedule=cosin", ["cosin", "cosine"]),
    ("train.engine=fast", ["fast", "fused"]),
    ("train.mode=fedsgd", ["fedsgd", "fedavg", "uncompressed"]),
    ("train.preset=authors", ["authors", "paper"]),
    ("train.dtype=float16", ["float16", "float32", "bfloat16"]),
    ("train.metric=acuracy", ["acuracy", "accuracy"]),
    ("train.metric=mean_squared_error", ["mean_squared_error", "accuracy", "auc"]),
    ("train.device=gpu", ["gpu", "cuda"]),
    ("train.local_optimizer=rmsprop", ["rmsprop", "adam"]),
    ("train.weights=size", ["size", "examples"]),
    ("secure.scheme=paillier", ["paillier", "pine"]),
    ("secure.field=field16", ["field16", "field32"]),
    ("base=fmnist/crossdevice", ["fmnist/crossdevice", "fmnist/cross-device"]),
    ("threat.knowledge=['everything']", ["everything", "own data"]),
    # keys
    ("train.lrr=1", ["'lrr'", "did you mean 'lr'"]),
    ("trian.lr=1", ["'trian'", "train"]),
    ("sed=1", ["'sed'", "seed"]),
    ("defense.kk=5", ["'kk'", "'k'"]),
    ("attack.auxilary=5", ["auxilary", "auxiliary"]),
    ("model.widht=8", ["widht"]),
    ("data.alpha=0.1", ["alpha", "dirichlet", "one_class"]),
    ("threat.shares=0.1", ["shares", "share"]),
    ("secure.on=true", ["'on'", "scheme"]),
    ("train=3", ["train", "table"]),
    ("train.lr.peak=1", ["train.lr", "peak", "number"]),
    # types
    ("rounds=ten", ["rounds", "'ten'", "whole number"]),
    ("rounds=1e20", ["rounds", "whole number"]),
    ("rounds=10.5", ["rounds", "10.5", "whole number"]),
    ("rounds=true", ["rounds", "True", "whole number"]),
    ("seed=1.0", ["seed", "1.0", "whole number"]),
    ("train.lr='0.1'", ["train.lr", "'0.1'", "number"]),
    ("train.lr=fast", ["train.lr", "'fast'", "number"]),
    ("train.cohort=20.0", ["cohort", "20.0", "whole number"]),
    ("defense.k=0.01", ["k", "0.01"]),
    ("defense.k=many", ["k", "'many'"]),
    ("defense.clip_norm=big", ["clip_norm", "'big'", "float"]),
    ("attack.auxiliary=half", ["auxiliary", "'half'", "int"]),
    ("threat.ids=3", ["threat.ids", "3", "list"]),
    ("threat.knowledge=own", ["knowledge", "own"]),
    ("name=3", ["name", "3", "text"]),
    ("model.name=3", ["model.name", "3", "text"]),
    ("secure.verify=1", ["secure.verify", "1"]),
    # values
    ("rounds=0", ["rounds", "0", "greater than or equal to 1"]),
    ("rounds=-5", ["rounds", "-5"]),
    ("rounds=1000000000000", ["rounds", "100000000"]),
    ("epochs=-1", ["epochs", "-1"]),
    ("evaluate_every=0", ["evaluate_every", "0"]),
    ("checkpoint_every=0", ["checkpoint_every", "0"]),
    ("seed=-1", ["seed", "-1"]),
    ("train.lr=0", ["train.lr", "0", "greater than 0"]),
    ("train.lr=-0.1", ["train.lr", "-0.1"]),
    ("train.lr=inf", ["train.lr", "inf", "finite"]),
    ("train.lr=nan", ["train.lr", "nan", "finite"]),
    ("train.lr=1e39", ["train.lr", "1e38"]),
    ("train.cohort=0", ["cohort", "0"]),
    ("train.cohort=301", ["301", "300", "at most"]),
    ("train.weight_decay=-1", ["weight_decay", "-1"]),
    ("train.local_momentum=1.5", ["local_momentum", "1.5"]),
    ("train.prox=-1", ["prox", "-1"]),
    ("train.memory_mb=0", ["memory_mb", "0"]),
    ("train.peak_epoch=-1", ["peak_epoch", "-1"]),
    ("data.devices=0", ["devices", "0"]),
    ("data.devices=100000000", ["devices", "10000000"]),
    ("data.per_device=0", ["per_device", "0"]),
    ("data.vocabulary=3", ["vocabulary", "3"]),
    ("defense.k=0", ["k", "0"]),
    ("defense.k=-1", ["k", "-1"]),
    ("defense.k=651", ["651", "650"]),
    ("defense.clip_norm=-1.0", ["clip_norm", "-1"]),
    ("defense.rho=1.0", ["rho", "1"]),
    ("defense.clip_norm=nan", ["clip_norm", "nan", "finite"]),
    ("threat.share=1.5", ["1.5", "share"]),
    ("threat.share=-0.1", ["-0.1", "share"]),
    ("attack.auxiliary=297", ["297"]),
    ("attack.auxiliary=0", ["auxiliary", "0"]),
    ("attack.step=-1.0", ["step", "-1"]),
    ("attack.epochs=0", ["epochs", "0"]),
    ("threat.start=13", ["13", "12"]),
    ("threat.every=0", ["every", "0"]),
    ("name=a/b", ["a/b", "plain name"]),
    ("name=..", ["..", "plain name"]),
    # what does not go together
    ("train.local_epochs=3", ["local_epochs", "fedavg"]),
    ("train.local_lr=0.1", ["local_lr", "fedavg"]),
    ("train.local_steps=4", ["local_steps", "fedavg"]),
    ("train.weight_cap=3.0", ["weight_cap", "weights"]),
    ("defense.mode=fedavg", ["mode", "train.mode"]),
    ("defense.pre=nmm", ["nmm", "nnm"]),
    ("train.peak_at=0.1 train.schedule=constant", ["peak_at", "constant", "no peak"]),
    ("defense.name=krum", ["f", "needs"]),
    ("defense.name=krum defense.f=10", ["10", "20"]),
    ("defense.name=bulyan defense.f=6", ["6", "20"]),
    ("defense.name=trimmed_mean defense.f=10", ["10"]),
    ("defense.name=dp_noise", ["sigma", "needs"]),
    ("attack.name=adaptive_push", ["'defense'", "threat.knowledge"]),
    ("attack.name=alie", ["honest updates", "threat.knowledge"]),
    ("attack.name=replacement_text", ["continuation", "text"]),
    ("threat={per_round=21}", ["21", "20"]),
    ("threat={count=301}", ["301", "300"]),
    ("threat={ids=[300]}", ["300"]),
    ("threat.count=3", ["share", "count"]),
    ("model.name=lstm", ["lstm", "text", "softmax"]),
    ("data.augment=flip_and_crop train.lr=0.1", ["flip_and_crop"]),
    ("data.length=5", ["length", "text", "digits"]),
    ("data.root=5000", ["5000", "training examples"]),
    ("secure.scheme=pine defense.name=krum defense.f=1", ["krum", "sum alone"]),
    ("secure.scheme=secagg secure.verify=true", ["secagg", "pine"]),
    ("train.weights=examples defense.name=krum defense.f=1", ["krum", "weighted"]),
    ("model.weights=none.safetensors", ["none.safetensors"]),
    # code of one's own
    ("model.name=my_thing:Net", ["my_thing", "beside the config", "PYTHONPATH"]),
    ("model.name=things:Nett", ["things:Nett", "Nett", "Net"]),
    ("model.name=things:number", ["int", "function"]),
    ("model.name=things:text", ["str", "nn.Module"]),
    ("model.name=things:small", ["[4]", "10"]),
    ("model.name=things:wide", ["(8, 8, 1)", "mat1 and mat2"]),
    ("model.name=things:raising", ["no network today", "things.py", "line"]),
    ("model.name=things:Failing", ["missing", "things.py", "line"]),
    ("model.name=things:Infinite", ["nan", "before any training"]),
    ("model.name=broken:Net", ["broken", "SyntaxError"]),
    ("model.name=half:Net", ["half", "nowhere_at_all", "half.py", "mend"]),
    ("data.name=things:number", ["int", "DataSet"]),
    ("data.name=things:HOLED model.name=softmax", ["nan"]),
    ("defense.name=things:rule", ["f", "needs"]),
    ("train.loss=things:bad_loss", ["nonsense", "things.py", "line"]),
    ("train.loss=things:number", ["int", "function"]),
    # how it is written
    ("rounds", ["key=value", "rounds"]),
    ("=3", ["key=value"]),
    ("train..lr=3", ["key=value"]),
    ("clip=fixed,adaptive,", ["clip"]),
]

COMMANDS: list[tuple[str, list[str]]] = [
    ("run none.toml", ["none.toml", "no config file"]),
    ("run .", ["Is a directory", "config file"]),
    ("run latin.toml", ["latin.toml", "UTF-8"]),
    ("run torn.toml", ["torn.toml", "not valid TOML", "line 1"]),
    ("run mine.toml --seeds 0", ["--seeds", "0", "1"]),
    ("run mine.toml --out mine.toml", ["mine.toml", "move away the file"]),
    ("run mine.toml --out /proc/nowhere/x", ["/proc/nowhere/x", "--out"]),
    ("run peace.toml --twins", ["nobody attacks", "--twins"]),
    ("audit peace.toml", ["no attackers", "[threat]"]),
    ("audit mine.toml --trials 0", ["--trials", "0", "at least 1"]),
    ("audit mine.toml --seeds 0", ["--seeds", "0"]),
    ("audit mine.toml --tolerance 200", ["--tolerance", "200", "0 to 100"]),
    ("audit mine.toml --jobs 0", ["--jobs", "0"]),
    ("audit mine.toml --defenses krumm", ["krumm", "krum", "module:function"]),
    ("audit mine.toml --defenses krum,,median", ["krum,,median", "names between commas"]),
    ("audit mine.toml --defenses all,krum", ["all", "alone"]),
    ("audit mine.toml --defenses things:nothing", ["things:nothing"]),
    ("audit mine.toml --attacks sing_flip", ["sing_flip", "sign_flip"]),
    ("audit mine.toml --attacks badnets", ["badnets", "another audit"]),
    ("audit mine.toml --attacks alie", ["alie", "threat.knowledge"]),
    ("audit mine.toml --time-budget soon", ["soon", "30m"]),
    ("audit mine.toml --time-budget 1s --set rounds=2000", ["1s", "smallest audit"]),
    ("tune mine.toml --trials 0", ["0"]),
    ("tune peace.toml --trials 3", ["attack"]),
    ("tune mine.toml --trials 3 --space attack.stepp=0.1:1", ["stepp", "step"]),
    ("tune mine.toml --trials 3 --space attack.step=1:0.1", ["1:0.1"]),
    ("choose-k mine.toml --omega 2", ["2", "omega"]),
    ("choose-k mine.toml --samples 0", ["0", "samples"]),
    ("choose-k mine.toml --probe x", ["x", "probe"]),
    ("certify mine.toml --share 2", ["--share", "2"]),
    ("certify mine.toml --share 0.1 --attackers 2", ["twice", "one of them"]),
    ("certify mine.toml --c -1", ["--c", "-1"]),
    ("certify mine.toml --spread 2", ["--groups"]),
    ("certify nowhere", ["nowhere"]),
    ("resume nowhere", ["nowhere", "not a run folder"]),
    ("resume .", ["not a run folder"]),
    ("report nowhere", ["no folder nowhere"]),
    ("report .", ["no run in"]),
    ("watch nowhere", ["nowhere"]),
    ("reproduce table-9", ["table-9", "--list", "table-2"]),
    ("list sparsfed", ["sparsfed", "did you mean 'sparsefed'"]),
    ("list things:nothing", ["nothing"]),
    ("data show digits --partition x", ["x", "one_class"]),
    ("data show digits --param alpha=1", ["alpha", "dirichlet"]),
    ("data fetch digit", ["digit", "did you mean 'digits'"]),
    ("data check digit", ["digit", "digits"]),
    ("init mine.toml", ["mine.toml", "there already"]),
    ("deploy none.toml --out app", ["none.toml"]),
    ("demo --set rounds=0", ["rounds", "0"]),
]
FILES = {
    "mine.toml": CONFIG,
    "peace.toml": CONFIG[: CONFIG.index("[threat]")] + CONFIG[CONFIG.index("[defense]") :],
    "torn.toml": "rounds = = 3",
    "things.py": OWN,
    "broken.py": "def f(:\n",
    "half.py": "import nowhere_at_all\n",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.toml").write_bytes('name = "café"'.encode("latin-1"))
    return tmp_path


def test_there_are_150() -> None:
    assert len(SET) + len(COMMANDS) >= 150


def refused(sparsefed: Nursery, here: Path, args: list[str], words: list[str]) -> None:
    before = sorted(path.name for path in here.iterdir())
    sentence = sparsefed.run(*args, cwd=here).refused()
    lacking = [word for word in words if word not in sentence]
    assert lacking == [], f"{lacking} not in: {sentence}"
    assert len(sentence) < 1500 and not re.search(r"pydantic|Errno", sentence), sentence
    after = sorted(path.name for path in here.iterdir() if path.name != "__pycache__")
    assert after == before, "a mistake leaves nothing behind"


@pytest.mark.parametrize(("override", "words"), SET, ids=[override for override, _ in SET])
def test_a_wrong_value_is_one_sentence(sparsefed: Nursery, here: Path, override: str, words: list[str]) -> None:
    parts = [part for each in re.split(r" (?=[\w.]+=)", override) for part in ("--set", each)]
    refused(sparsefed, here, ["run", "mine.toml", *parts], words)


@pytest.mark.parametrize(("command", "words"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_wrong_command_is_one_sentence(sparsefed: Nursery, here: Path, command: str, words: list[str]) -> None:
    refused(sparsefed, here, command.split(), words)
