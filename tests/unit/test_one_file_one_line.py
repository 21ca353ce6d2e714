"""A toy rule, attack, model and data set, a line each in the four dicts, are found wherever the listed ones are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from sparsefed import attacks, config, data, defenses, models
from sparsefed.cli.catalogue import catalogue
from sparsefed.commands.audit.attack_specs import attack_specs
from sparsefed.commands.audit.defense_specs import Facts, defense_specs
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.commands.certify.subject import server_of
from sparsefed.commands.tune.space import Range, search_space
from sparsefed.config import Config, parse
from sparsefed.core.errors import ConfigError
from sparsefed.data.own import from_arrays
from sparsefed.defenses.combine import stacked

FACTS = Facts(d=130, norm=1.0, in_rates=1.0)


@defenses.rule(paper="A toy", needs=("all rows",), largest_f=lambda n: n // 5, audit=True)
def toy_rule(f: int, **_: Any) -> defenses.Combine:
    """The first update that comes."""
    assert f >= 0
    return stacked(lambda rows: rows[0])


@attacks.attack(paper="A toy", needs={"own data"}, place=0, search={"length": "1:8"})
def toy_attack(knowledge: attacks.Knowledge, *, length: float = 2.0) -> Tensor:
    """The model itself."""
    return length * knowledge.theta


def toy_model(shape: tuple[int, ...], classes: int, *, width: int = 4) -> nn.Module:
    """A small perceptron."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.Linear(width, classes))


def plain(share: float = 1.0) -> defenses.Combine:
    """The mean, some of it; neither decorated nor annotated."""
    return stacked(lambda rows: share * rows.mean(0))


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    toy_data = from_arrays(draw.integers(0, 255, (200, 4, 4), np.uint8), draw.integers(0, 2, 200), classes=["a", "b"])
    monkeypatch.setitem(defenses.DEFENSES, "toy_rule", toy_rule)
    monkeypatch.setitem(attacks.ATTACKS, "toy_attack", toy_attack)
    monkeypatch.setitem(models.MODELS, "toy_model", toy_model)
    monkeypatch.setitem(data.DATASETS, "toy_data", toy_data)


def toy(**tables: Any) -> Config:
    usual: dict[str, Any] = {
        "rounds": 2,
        "evaluate_every": 1,
        "data": {"name": "toy_data", "devices": 20, "partition": "iid"},
        "model": {"name": "toy_model", "width": 3},
        "train": {"cohort": 10},
        "defense": {"name": "toy_rule", "f": 1},
        "threat": {"share": 0.2},
        "attack": {"name": "toy_attack"},
    }
    return parse({**usual, **tables})


def test_list_shows_them() -> None:
    listed = {kind: {entry["name"]: entry for entry in entries} for kind, entries in catalogue().items() if entries}
    assert listed["defenses"]["toy_rule"]["paper"] == "A toy"
    assert [p["name"] for p in listed["attacks"]["toy_attack"]["parameters"]] == ["length"]
    assert listed["models"]["toy_model"]["size"].startswith("3 190")
    assert "toy_data" in listed["data sets"]


def test_they_run() -> None:
    built = config.build(toy())
    *_, last = built.reports(built.begin())
    assert last.state.round == 2 and "test_accuracy" in last.metrics


def test_an_audit_has_them_with_parameters_that_follow_from_the_task() -> None:
    options = AuditOptions(toy(defense={"name": "undefended"}, attack={"name": "sign_flip"}))
    tables = {spec.name: spec.table for spec in defense_specs(options, FACTS).chosen}
    assert tables["toy_rule"] == {"name": "toy_rule", "f": 2}
    assert "toy_attack" in {spec.name for spec in attack_specs(options).chosen}
    crowd = AuditOptions(toy(defense={"name": "undefended"}, threat={"per_round": 9}))
    tables = {spec.name: spec.table for spec in defense_specs(crowd, FACTS).chosen}
    assert tables["toy_rule"]["f"] == 2  # all that it is defined for


def test_tune_searches_what_the_attack_says() -> None:
    space = search_space(toy())
    assert space == {"length": Range(1.0, 8.0, False, False)}


def test_certify_refuses_the_rule_by_name_and_covers_the_rest() -> None:
    with pytest.raises(ConfigError, match="defense toy_rule has no certificate: "):
        server_of(toy())
    server_of(toy(defense={"name": "clipping"}))


def test_an_undecorated_function_is_a_rule_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(defenses.DEFENSES, "plain", plain)
    built = config.build(toy(defense={"name": "plain", "share": 0.5, "clip_norm": 1.0}))
    assert next(iter(built.reports(built.begin()))).metrics["clipped"] > 0
    entry = next(entry for entry in catalogue()["defenses"] if entry["name"] == "plain")
    assert entry["needs"] == ["all rows"] and entry["summary"].startswith("The mean, some of it")
