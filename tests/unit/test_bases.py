"""Base configs: each one parses and has the paper's numbers; what is written on top of one wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.config import templates as bases
from sparsefed.config.schema import ThreatTable
from sparsefed.core.errors import ConfigError
from sparsefed.data import DATASETS
from sparsefed.models import MODELS

DATA = ("cifar10", "cifar100", "fmnist", "mnist_by_writer", "femnist", "reddit", "shakespeare")


def stood_in(name: str) -> configs.Config:
    """A base with what this version lacks replaced: all its other keys are checked as they are."""
    table = bases.load(name)
    given: dict[str, Any] = {"base": name}
    if table["data"]["name"] not in DATASETS:
        given["data"] = {"name": "digits"}
    if table["model"]["name"] not in MODELS:
        given["model"] = {"name": "softmax"}
    return configs.parse(given)


def on(base: str, *overrides: str, **table: Any) -> configs.Config:
    return configs.parse({"base": base, **table}, overrides)


def test_every_data_set_has_both_settings() -> None:
    assert bases.names() == sorted(f"{name}/{setting}" for name in DATA for setting in ("cross-silo", "cross-device"))


@pytest.mark.parametrize("name", bases.names())
def test_every_base_parses_and_says_what_it_is(name: str) -> None:
    config, table = stood_in(name), bases.load(name)
    assert table["data"]["name"] == name.partition("/")[0]
    assert 20 < len(bases.summary(name)) < 120 and bases.summary(name).endswith(".")
    dumped = configs.dump(config)
    assert "base" not in dumped  # a run's config stands for itself, whatever a later version's base says
    assert configs.parse(dumped) == config


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fmnist"])
def test_the_papers_table(name: str) -> None:
    device, silo = stood_in(f"{name}/cross-device"), stood_in(f"{name}/cross-silo")
    for config in (device, silo):
        assert (config.rounds, config.train.lr, config.train.schedule) == (2400, 0.2, "triangular")
        assert config.train.peak_at == 5 / 24 and config.train.weight_decay == 5e-4
        assert config.model.name == "resnet9" and config.train.mode == "uncompressed"
        assert config.defense.params == {"k": 1000, "clip_norm": 5.0, "rho": 0.9}
        assert config.attack is not None and config.attack.name == "pgd"
    assert (device.data.partition, device.data.devices, device.train.cohort) == ("one_class", 10_000, 100)
    assert (silo.data.partition, silo.data.devices, silo.train.cohort) == ("iid", 1000, 10)
    assert (device.threat.share, silo.threat.share) == (0.02, 0.01)
    assert device.attack is not None and device.attack.params == {"auxiliary": 500}
    assert silo.attack is not None and silo.attack.params == {"auxiliary": 50}


def test_the_papers_femnist() -> None:
    config = stood_in("femnist/cross-device")
    assert (config.rounds, config.train.cohort, config.data.devices) == (1000, 35, 35_000)
    assert (config.train.lr, config.train.peak_at) == (0.01, 0.2)
    assert (config.model.name, config.defense.params["k"]) == ("resnet101_ln", 40_000)
    assert config.threat.count == 1000 and config.attack is not None
    assert config.attack.params == {"source": 7, "target": 1}


# --- on top ----------------------------------------------------------------------------------------------------------

DEVICE = "fmnist/cross-device"


def test_what_is_written_wins_and_the_rest_stays() -> None:
    config = on(DEVICE, "defense.k=9", seed=3, train={"lr": 0.1})
    assert (config.seed, config.train.lr, config.train.cohort) == (3, 0.1, 100)
    assert config.defense.name == "sparsefed" and config.defense.params == {"k": 9, "clip_norm": 5.0, "rho": 0.9}


def test_another_name_comes_without_the_parameters_of_the_first() -> None:
    assert on(DEVICE, defense={"name": "undefended"}).defense.params == {}
    assert on(DEVICE, defense={"name": "sparsefed", "k": 9}).defense.params["clip_norm"] == 5.0
    assert on(DEVICE, "attack.name=sign_flip").attack == configs.Named(name="sign_flip")
    assert on(DEVICE, "model.name=cnn").model.params == {}


def test_the_same_thing_in_other_words_replaces_the_bases() -> None:
    config = on(DEVICE, rounds=50)
    assert (config.rounds, config.epochs, config.train.peak_at) == (50, None, 5 / 24)
    assert on(DEVICE, epochs=2).rounds == 200
    assert on(DEVICE, threat={"count": 7}).threat.share is None
    assert on(DEVICE, "threat.per_round=2").threat.count is None
    assert on(DEVICE, train={"peak_epoch": 3}).train.peak_at is None


def test_another_schedule_comes_without_the_bases_peak() -> None:
    assert on(DEVICE, "train.schedule=constant").train.peak_at is None
    assert on(DEVICE, "train.schedule=cosine").train.peak_at == 0.0
    assert on(DEVICE, "train.schedule=triangular", train={"lr": 0.1}).train.peak_at == 5 / 24
    assert on("femnist/cross-device", "train.schedule=triangular", data={"name": "digits"}).train.peak_at == 0.2


@pytest.mark.parametrize("way", [{"overrides": ["attack=false"]}, {"table": {"attack": False}}])
def test_without_attackers(way: dict[str, Any]) -> None:
    config = on(DEVICE, *way.get("overrides", []), **way.get("table", {}))
    assert config.attack is None and config.threat == ThreatTable()
    assert configs.parse(configs.dump(config)) == config
    attacked = {"threat": {"count": 3}, "attack": {"name": "pgd"}}
    assert configs.parse(attacked, ["attack=false"]).attack is None  # with or without a base


def test_bases_that_are_none_are_one_sentence() -> None:
    for base, says in (
        ("fmnist/cross-silos", "did you mean 'fmnist/cross-silo'"),
        (3, "base is 3"),
        ("paper", "valid"),
    ):
        with pytest.raises(ConfigError, match=says):
            configs.parse({"base": base})
    with pytest.raises(ConfigError, match=r"unknown key 'bases' \(did you mean 'base'"):
        configs.parse({"bases": DEVICE})
    assert configs.parse({"base": ""}) == configs.parse({})


def test_what_is_wrong_on_top_of_a_base_is_still_one_sentence() -> None:
    for table, says in (({"train": 3}, "must be a table"), ({"attack": True}, "attack is True"), ({"x": {}}, "'x'")):
        with pytest.raises(ConfigError, match=says):
            configs.parse({"base": DEVICE, **table})


VALUES = st.integers() | st.dictionaries(st.sampled_from(["name", "a", "b"]), st.integers(0, 2), max_size=3)
TABLES = st.dictionaries(st.sampled_from(["model", "train", "x", "y"]), VALUES, max_size=4)


@settings(deadline=None)
@given(TABLES, TABLES)
def test_laws_of_writing_on_top(base: dict[str, Any], given: dict[str, Any]) -> None:
    copies = repr(base), repr(given)
    merged = bases.over(base, given)
    assert (repr(base), repr(given)) == copies  # arguments stay as they were
    assert bases.over(base, {}) == base and bases.over({}, given) == given
    assert bases.over(merged, given) == merged
    for key, item in given.items():
        if isinstance(item, dict):
            assert item.items() <= merged[key].items()
        else:
            assert merged[key] == item
    assert merged.keys() == base.keys() | given.keys()
