"""Configs: what is impossible is refused in one sentence before anything starts; what is valid comes back as it was."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.attacks import ATTACKS
from sparsefed.core import toml
from sparsefed.core.federation import SAMPLING
from sparsefed.core.schedule import SCHEDULES
from sparsefed.data import DATASETS
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partitions.partition import PARTITIONS
from sparsefed.defenses import DEFENSES
from sparsefed.engines import ENGINES
from sparsefed.models import MODELS
from tests.support.configs import refusal

BASE: dict[str, Any] = {
    "rounds": 10,
    "data": {"name": "digits", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 20},
    "defense": {"name": "sparsefed", "k": 50},
    "threat": {"count": 30},
    "attack": {"name": "pgd", "auxiliary": 50},
}


def refused(*overrides: str) -> str:
    return refusal(lambda: configs.parse(BASE, overrides))


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in BASE.items() if name != key}


# --- impossible configs, none of which loads data --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("round=5", ["unknown key 'round'", "did you mean 'rounds'", "evaluate_every"]),
        ("train.lrr=1", ["[train]", "'lrr'", "did you mean 'lr'", "weight_decay"]),
        ("data.device=3", ["[data]", "did you mean 'devices'", "per_device"]),
        ("threat.shared=0.1", ["[threat]", "did you mean 'share'"]),
        ("rounds=many", ["rounds is 'many'", "whole number"]),
        ("rounds=2.5", ["rounds is 2.5", "whole number"]),
        ("rounds=true", ["rounds is True", "whole number"]),
        ('rounds="5"', ["rounds is '5'", "whole number"]),
        ("rounds=0", ["rounds is 0", "greater than or equal to 1"]),
        ("seed=-1", ["seed is -1", "greater than or equal to 0"]),
        ("name=5", ["name is 5", "text"]),
        ("name=a/b", ["'a/b'", "--out"]),
        ("name=..", ["'..'", "--out"]),
        ('name="tab\\there"', ["name is", "control characters"]),
        ("train.lr=-0.1", ["train.lr is -0.1", "greater than 0"]),
        ("train.lr=0", ["train.lr is 0", "greater than 0"]),
        ("train.lr=nan", ["train.lr", "finite"]),
        ("train.lr=fast", ["train.lr is 'fast'", "a number"]),
        ("train.weight_decay=-1", ["train.weight_decay is -1"]),
        ("train.peak_at=0", ["peak_at is 0", "between 0 and 1"]),
        ("train.peak_at=1.5", ["peak_at is 1.5", "between 0 and 1"]),
        ("train.mode=fedavgg", ["train.mode", "did you mean 'fedavg'", "uncompressed"]),
        ("train.preset=papers", ["did you mean 'paper'", "authors-2021-05"]),
        ("train.dtype=float16", ["train.dtype", "bfloat16, float32"]),
        ("train.cohort=301", ["train.cohort is 301", "300 devices"]),
        ("train.memory_mb=0", ["train.memory_mb is 0"]),
        ("data.devices=0", ["data.devices is 0"]),
        ("model=softmax", ["model is 'softmax'", "table", '[model] name = "softmax"']),
        ("train=3", ["train is 3", "table", "[train]"]),
        ("model.width=3", ["softmax", "'width'", "zero"]),
        ("defense.kk=3", ["sparsefed", "'kk'", "clip_norm", "masking"]),
        ("defense.k=many", ["k is 'many'", "whole number", '"1%"']),
        ("defense.k=101%", ["k is '101%'", 'up to "100%"']),
        ("defense.k=0", ["k is 0"]),
        ("defense.clip_norm=-1", ["clip_norm is -1"]),
        ("defense.rho=1", ["rho is 1"]),
        ("defense.mode=fedavg", ["defense.mode", "train.mode"]),
        ("defense.feedback=sideways", ["feedback", "'momentum'", "'update'"]),
        ("attack.epoch=3", ["pgd", "did you mean 'epochs'"]),
        ("attack.to_budget=True", ["to_budget is 'True'", "bool"]),
        ("attack.auxiliary=0.5", ["auxiliary is 0.5", "must be int"]),
        ("threat.per_round=31", ["one of share, count, ids, per_round"]),
        ('threat.knowledge=["honest"]', ["threat.knowledge.0", "honest updates", "server state"]),
        ("threat.count=301", ["301 attackers", "300 devices"]),
        ("threat.count=-1", ["count of attackers is -1"]),
        ("threat.share=0.1", ["one of share, count, ids"]),
        ("threat.ids=[1, 2]", ["one of share, count, ids"]),
        ("threat.start=11", ["threat.start is 11", "round 10"]),
        ("threat.start=0", ["start = 0"]),
        ("threat.stop=0", ["stop at round 0"]),
    ],
)
def test_an_impossible_value_is_one_sentence_that_says_what_is_allowed(override: str, says: list[str]) -> None:
    sentence = refused(override)
    for words in says:
        assert words in sentence


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("data.name", DATASETS),
        ("data.partition", PARTITIONS),
        ("data.augment", AUGMENTATIONS),
        ("model.name", MODELS),
        ("train.sampling", SAMPLING),
        ("train.schedule", SCHEDULES),
        ("train.engine", ENGINES),
        ("defense.name", DEFENSES),
        ("attack.name", ATTACKS),
    ],
)
def test_an_unknown_name_lists_the_known_ones(key: str, known: Mapping[str, object]) -> None:
    near = next(iter(known)) + "x"
    sentence = refused(f"{key}={near}")
    assert f"'{near}'" in sentence
    assert f"did you mean '{near[:-1]}'" in sentence
    assert "module:function" in sentence
    assert all(name in sentence for name in known)


def test_an_infinite_norm_stays_infinite_when_a_config_is_written_down() -> None:
    """A worker and a run folder are given the table: what is left out of it becomes the rule's usual norm."""
    config = configs.parse({**BASE, "defense": {"name": "sparsefed", "k": 5, "clip_norm": math.inf}})
    assert configs.parse(tomllib.loads(toml.dumps(configs.dump(config)))).defense.params["clip_norm"] == math.inf


def test_a_rule_does_not_offer_what_follows_from_the_training() -> None:
    sentence = refused("defense.kk=3")
    assert "mode" not in sentence
    assert "preset" not in sentence


def test_ids_beyond_the_devices_and_a_share_of_nobody_are_refused() -> None:
    for threat, says in [
        ({"ids": [1, 300]}, "none of the 300 devices"),
        ({"ids": [1, 1]}, "given twice"),
        ({"ids": [1, "2"]}, "threat.ids.1 is '2'"),
        ({"ids": 1}, "list of whole numbers"),
        ({"share": 0.001}, "less than half a device"),
        ({"share": 1.0}, "share of attackers is 1.0"),
    ]:
        assert says in refusal(lambda threat=threat: configs.parse({**BASE, "threat": threat}))  # type: ignore[misc]


def test_an_attack_needs_a_threat_and_the_other_way_round() -> None:
    assert "nobody to carry it out" in refusal(lambda: configs.parse(without("threat")))
    assert "no [attack]" in refusal(lambda: configs.parse(without("attack")))
    assert configs.parse({key: BASE[key] for key in BASE if key not in ("attack", "threat")}).attack is None


def test_what_is_missing_is_named_with_the_choices() -> None:
    nameless = refusal(lambda: configs.parse({**BASE, "model": {"width": 3}}))
    assert nameless.startswith("model.name is missing")
    assert ", ".join(sorted(MODELS)) in nameless
    assert "k (int | str: coordinates" in refusal(lambda: configs.parse({**BASE, "defense": {"name": "sparsefed"}}))


def test_several_problems_are_named_at_once() -> None:
    sentence = refused("rounds=0", "train.lr=-1", "sede=3")
    assert all(words in sentence for words in ("rounds is 0", "train.lr is -1", "did you mean 'seed'"))


@pytest.mark.parametrize("override", ["rounds", "=3", "", "a..b=3", ".rounds=3", "train.=1"])
def test_a_set_without_key_or_value_is_explained(override: str) -> None:
    sentence = refused(override)
    assert "key=value" in sentence
    assert f"'{override}'" in sentence


def test_a_set_below_a_value_is_explained() -> None:
    assert "'rounds' is a value, not a table" in refused("rounds.x=3")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("rounds = = 3\n")
    assert all(words in refusal(lambda: configs.read(bad)) for words in (str(bad), "TOML", "line 1"))
    bad.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(lambda: configs.read(bad))
    assert "no config file" in refusal(lambda: configs.read(tmp_path / "none.toml"))
    assert "directory" in refusal(lambda: configs.read(tmp_path)).lower()
    bad.write_text("rouns = 3\n")
    assert refusal(lambda: configs.read(bad)).startswith(f"{bad}: unknown key 'rouns'")


# --- impossible once the data is known -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("defense.k=651", ["k is 651", "650"]),
        ("attack.auxiliary=0", ["auxiliary = 0", "1 to 296"]),
        ("attack.auxiliary=297", ["auxiliary = 297", "297 test points", "1 to 296"]),
        ("attack.epochs=0", ["epochs = 0", "positive"]),
        ("data.devices=2000", ["1500 examples", "2000 devices"]),
        ("data.devices=20000", ["per_device"]),
        ("data.partition=by_user", ["by_user", "one_class"]),
        ("data.per_device=500", ["per_device = 500"]),
    ],
)
def test_what_does_not_fit_the_data_is_refused_by_build(override: str, says: list[str]) -> None:
    config = configs.parse(BASE, [override])
    sentence = refusal(lambda: configs.build(config))
    assert all(words in sentence for words in says)


def test_a_model_that_cannot_be_built_says_so() -> None:
    config = configs.parse(BASE, ["model.name=cnn", "model.width=-1"])
    assert "model cnn cannot be built with {'width': -1}" in refusal(lambda: configs.build(config))


def test_every_config_is_checked_before_the_first_can_start() -> None:
    good, bad = configs.parse(BASE), configs.parse(BASE, ["defense.k=651"])
    assert "k is 651" in refusal(lambda: configs.build_all([good, bad]))
    first, second = configs.build_all([good, good])
    assert first.setup.federation.x.data_ptr() == second.setup.federation.x.data_ptr()


# --- valid configs ---------------------------------------------------------------------------------------------------

SHARES = st.floats(min_value=0.02, max_value=0.98)
POSITIVE = st.floats(min_value=0, exclude_min=True, max_value=1e38)


def tables(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    """A config such as a person might write: any keys left out, numbers of any size."""
    top = draw(
        tables(
            name=st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), max_size=20).filter(
                lambda text: text not in (".", "..")
            ),
            seed=st.integers(0, 2**80),
            evaluate_every=st.integers(1, 10**6),
            checkpoint_every=st.integers(1, 10**6),
        )
    )
    top |= draw(st.fixed_dictionaries({"rounds": st.integers(20, 10**6)}))
    data = tables(
        name=st.sampled_from(sorted(DATASETS)),
        partition=st.sampled_from(sorted(PARTITIONS)),
        devices=st.integers(50, 5000),
        per_device=st.integers(1, 100),
    )
    train = tables(
        mode=st.sampled_from(["uncompressed", "fedavg"]),
        preset=st.sampled_from(["paper", "authors-2021-05", "authors-2021-08"]),
        cohort=st.integers(1, 50),
        sampling=st.sampled_from(sorted(SAMPLING)),
        lr=POSITIVE | st.integers(1, 5),
        schedule=st.sampled_from(sorted(SCHEDULES)),
        peak_at=SHARES,
        weight_decay=POSITIVE,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        engine=st.sampled_from(sorted(ENGINES)),
        memory_mb=st.integers(1, 10**6),
    )
    model = st.sampled_from([{"name": "softmax"}, {"name": "cnn", "width": 3}, {"name": "resnet9", "width": 8}])
    rules = st.sampled_from([{"name": "mean", "rho": 0.5}, {"name": "sparsefed", "k": 7, "masking": "subtract"}])
    chosen = draw(st.fixed_dictionaries({"train": train}, optional={"data": data, "model": model, "defense": rules}))
    top |= {"train": {"cohort": 10}, **chosen}
    if top["train"].get("schedule") == "constant":
        top["train"].pop("peak_at", None)
    top["train"].setdefault("cohort", 10)
    if draw(st.booleans()):
        who: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{"share": 0.25}, {"count": 7}, {"ids": [0, 3, 49]}])
        when = tables(start=st.integers(1, 10), stop=st.integers(10, 99), every=st.integers(1, 9))
        top["threat"] = {**draw(who), **draw(when)}
        top["attack"] = {
            "name": "pgd",
            **draw(tables(auxiliary=st.integers(1, 500), boost=POSITIVE, epochs=st.just(2))),
        }
    return top


@settings(deadline=None, max_examples=80)
@given(valid())
def test_a_config_is_what_it_was_after_a_round_trip(table: dict[str, Any]) -> None:
    config = configs.parse(table)
    again = tomllib.loads(toml.dumps(configs.dump(config)))
    assert configs.parse(again) == config
    assert configs.dump(configs.parse(again)) == configs.dump(config)


def test_every_default_is_written_out() -> None:
    dumped = configs.dump(configs.parse({}))
    assert dumped["data"] == {"name": "fmnist", "partition": "one_class", "devices": 10_000, "augment": "none"}
    assert dumped["train"]["lr"] == 0.2
    assert dumped["defense"] == {"name": "undefended"}
    assert "attack" not in dumped


def test_only_by_user_leaves_the_number_of_devices_to_the_data() -> None:
    assert configs.parse({"data": {"partition": "by_user"}}).data.devices is None
    assert configs.parse({"data": {"partition": "iid"}}).data.devices == 10_000


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 2**80),
    st.floats(min_value=1e-300, max_value=1e38),
    st.booleans(),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_ .:+-]{0,10}[a-z]", fullmatch=True).filter(
        lambda word: word not in ("true", "false", "inf", "nan")
    ),
)
def test_set_reads_values_as_toml_and_bare_words_as_text(seed: int, lr: float, flag: bool, word: str) -> None:
    overrides = [f"seed={seed}", f"train.lr = {lr!r}", f"attack.to_budget={str(flag).lower()}", f"name={word}"]
    config = configs.parse(BASE, overrides)
    assert (config.seed, config.train.lr, config.name) == (seed, lr, word)
    assert config.attack is not None
    assert config.attack.params == {"auxiliary": 50, "to_budget": flag}


def test_set_reads_lists_and_quoted_text_and_makes_tables() -> None:
    table = {key: BASE[key] for key in BASE if key not in ("threat", "attack")}
    config = configs.parse(table, ["threat.ids=[3, 4]", "attack.name=pgd", 'name="7"', "seed=1", "seed=2"])
    assert config.threat.ids == (3, 4)
    assert config.attack is not None
    assert config.name == "7"
    assert config.seed == 2  # the last one counts
    assert "attack" not in table  # and the table that was given stays as it was


def test_a_config_without_a_name_is_called_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for text, name in [("seed = 1\n", "mine"), ('name = ""\n', "mine"), ('name = "yours"\n', "yours")]:
        path.write_text(text, encoding="utf-8-sig")  # as editors on Windows save it
        assert configs.read(path).name == name
    assert configs.read(path, ["name="]).name == "mine"


# --- things of one's own ---------------------------------------------------------------------------------------------

OWN = '''
"""Things of a user's own."""
from __future__ import annotations
from typing import TYPE_CHECKING
from torch import nn
from sparsefed.defenses import DEFENSES
if TYPE_CHECKING:
    from nowhere import Shape

class Net(nn.Module):
    def __init__(self, shape, classes, *, hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, classes))
    def forward(self, x):
        return self.layers(x)

def normed(shape: Shape, classes: int):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))

def anything(shape, classes, **parameters):
    return Net(shape, classes, **parameters)

def careless(shape):
    return Net(shape, 10)

def ready():
    return Net((64,), 10, hidden=5)

made = ready()

def nothing(*_, **__):
    return None

number = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_things.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.name=own_things:nobody", ["own_things:nobody", "unknown name in the module 'nobody'"]),
        ("model.name=own_nowhere:Net", ["cannot be imported", "own_nowhere"]),
        ("model.name=own_broken:f", ["cannot be imported", "line 1"]),
        ("model.name=:f", ["cannot be imported"]),
        ("model.name=own_things:number", ["of type int", "function"]),
        ("model.name=own_things:careless", ["takes 1 positional", "handed 2"]),
        ("data.name=own_things:number", ["of type int", "DataSet"]),
    ],
)
def test_what_is_wrong_with_a_thing_of_ones_own(override: str, says: list[str]) -> None:
    sentence = refused(override)
    assert all(words in sentence for words in says)


@pytest.mark.usefixtures("own")
def test_a_class_of_ones_own_is_a_model_with_checked_parameters() -> None:
    assert "'hiden'" in refused("model.name=own_things:Net", "model.hiden=3")
    assert "hidden is 'x'" in refused("model.name=own_things:Net", "model.hidden=x")
    built = configs.build(configs.parse(BASE, ["model.name=own_things:Net", "model.hidden=5", "defense.k=9"]))
    assert len(built.theta) == 64 * 5 + 5 + 5 * 10 + 10
    loose = configs.build(configs.parse(BASE, ["model.name=own_things:anything", "model.hidden=5", "defense.k=9"]))
    assert loose.theta.equal(built.theta)
    for name in ("ready", "made"):  # a function without parameters, and a module
        assert len(configs.build(configs.parse(BASE, [f"model.name=own_things:{name}"])).theta) == len(built.theta)


@pytest.mark.usefixtures("own")
def test_a_model_of_ones_own_that_cannot_work_is_refused() -> None:
    normed = configs.parse(BASE, ["model.name=own_things:normed"])
    assert "BatchNorm1d" in refusal(lambda: configs.build(normed))
    nothing = configs.parse(BASE, ["model.name=own_things:nothing"])
    assert "must return an nn.Module" in refusal(lambda: configs.build(nothing))
    assert "must return a Defense" in refusal(
        lambda: configs.parse({**BASE, "defense": {"name": "own_things:nothing"}})
    )
