"""Suite v1: it never changes, fits its task, has a baseline for every goal; the worst devices; attacks that last."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparsefed import config as configs
from sparsefed.attacks import NEEDS
from sparsefed.commands import audit as audits
from sparsefed.commands.audit.aftermath import by_device, leaving
from sparsefed.commands.audit.attack_specs import attack_specs
from sparsefed.commands.audit.benign import settings
from sparsefed.commands.audit.findings import AuditResult
from sparsefed.commands.audit.suite import suite_attacks, with_suite
from sparsefed.core.errors import ConfigError
from sparsefed.data.own import from_arrays
from sparsefed.results.matrix import NO_ATTACK, Entry, Matrix
from sparsefed.results.summary import summary
from sparsefed.simulation import Simulation
from tests.commands.test_audit import CONFIG
from tests.support.records import evaluated, record

TASK = configs.parse(tomllib.loads(CONFIG))


def test_v1_never_changes() -> None:
    """Whoever changes this makes another suite: give it another number."""
    expected = [
        {"name": "pgd", "auxiliary": 20},  # a tenth of 200 test points
        {"name": "adaptive_push", "auxiliary": 20},
        {"name": "neurotoxin"},
        {"name": "sign_flip"},
        {"name": "ipm_searched"},
        {"name": "alie_searched"},
    ]
    assert suite_attacks("v1", TASK) == (expected, {})


def test_a_task_without_images_has_another_backdoor_and_one_without_classes_none() -> None:
    x = torch.randn(200, 4)
    common: dict[str, Any] = {
        "attack": {"name": "pgd", "auxiliary": 10},
        "threat": 0.2,
        "devices": 20,
        "cohort": 5,
        "rounds": 2,
    }
    table = Simulation(torch.nn.Linear(4, 3), (x, torch.arange(200) % 3), **common)
    names = [attack["name"] for attack in suite_attacks("v1", table.config)[0]]
    assert names == ["pgd", "adaptive_push", "semantic", "sign_flip", "ipm_searched", "alie_searched"]
    values = Simulation(torch.nn.Linear(4, 1), from_arrays(x.numpy(), x.sum(1).numpy(), target="values"), **common)
    fitting, left_out = suite_attacks("v1", values.config)
    assert "semantic" in left_out and "semantic" not in [attack["name"] for attack in fitting]


def test_a_suites_attackers_know_everything_and_stay_as_many() -> None:
    config = with_suite(TASK, "v1")
    assert set(config.threat.knowledge) == set(NEEDS) and config.threat.share == TASK.threat.share
    assert config.attack is not None and config.attack.name == "pgd"
    specs = attack_specs(audits.AuditOptions(config, suite="v1"))
    assert [spec.name for spec in specs.chosen if spec.other_goal] == ["neurotoxin"]
    for spec in specs.chosen:
        for variant in spec.variants:
            configs.parse({**configs.dump(config), "attack": spec.variant(variant)})
    with pytest.raises(ConfigError, match="v1"):
        suite_attacks("v2", TASK)


def entry(test: float, attack: float) -> Entry:
    return Entry(tuple(summary([record("a run", [evaluated(1, test, attack)])])))


def test_an_attack_with_a_goal_of_its_own_is_compared_with_its_own_baseline() -> None:
    entries = {("x", NO_ATTACK): entry(0.9, 0.0), ("x", "pgd"): entry(0.9, 0.5), ("x", "patch"): entry(0.8, 0.5)}
    matrix = Matrix("", ("x",), (NO_ATTACK, "pgd", "patch"), entries, {("x", "patch"): entry(0.85, 0.4)})
    assert matrix.gained("x", "pgd") == pytest.approx(0.5) and matrix.gained("x", "patch") == pytest.approx(0.1)
    assert matrix.lost("x", "patch") == pytest.approx(0.05)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=8), st.randoms())
def test_accuracy_by_device_is_the_naive_one(devices: list[list[bool]], order: Any) -> None:
    flat = [value for own in devices for value in own]
    places = list(range(len(flat)))
    order.shuffle(places)
    right = np.zeros(len(flat))
    right[places] = flat
    offsets = np.cumsum([0, *map(len, devices)])
    found = by_device(right, np.array(places, np.int32), offsets)
    assert found.tolist() == pytest.approx([sum(own) / len(own) for own in devices])


@pytest.mark.parametrize(("rounds", "every", "left"), [(16, 8, 8), (20, 8, 8), (100, 20, 40), (10, 8, 5), (1, 1, 1)])
def test_attackers_leave_at_an_evaluation_if_there_is_one(rounds: int, every: int, left: int) -> None:
    config = configs.parse({**tomllib.loads(CONFIG), "rounds": rounds, "evaluate_every": every})
    assert leaving(audits.AuditOptions(config)) == left


@pytest.fixture(scope="module")
def suited(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    folder = tmp_path_factory.mktemp("suite")
    wanted: dict[str, Any] = {
        "defenses": "clipping,multi_krum",
        "seeds": 1,
        "sensitivity": False,
        "budget": 0,
        "jobs": 1,
    }
    return audits.audit(TASK, suite="v1", folder=folder, **wanted)


@pytest.mark.slow
@pytest.mark.process
def test_a_suite_is_audited_with_all_its_columns(suited: AuditResult) -> None:
    assert suited.problem is None and suited.matrix.hostile == tuple(spec.name for spec in suited.attacks.chosen)
    assert len(suited.matrix.hostile) == 6 and ("clipping", "neurotoxin") in suited.matrix.baselines
    assert all(record["harm"] is not None for record in suited.records() if record["attack"] != NO_ATTACK)
    lines = suited.to_markdown()
    assert "against suite v1, 20 % of the devices compromised" in lines
    assert "The worst devices" in lines and "Whether attacks last" in lines
    assert "Who was rejected" in lines and "Other learning rates, batches and local epochs" in lines


@pytest.mark.slow
@pytest.mark.process
def test_a_rule_that_selects_has_rates_and_others_have_none(suited: AuditResult) -> None:
    assert {defense for defense, _ in suited.detection} == {"multi_krum"}
    assert suited.detection["multi_krum", NO_ATTACK].true_positives is None
    for pair, told in suited.detection.items():
        runs = [(row["attackers"], row["attackers_rejected"]) for run in suited.runs[pair] for row in run.rows]
        attackers, caught = (sum(column) for column in zip(*runs, strict=True))
        assert told.true_positives == (caught / attackers if attackers else None)
        assert told.false_positives is not None and 0 <= told.false_positives < 1


@pytest.mark.slow
@pytest.mark.process
def test_honest_settings_are_varied_under_the_worst_attack(suited: AuditResult) -> None:
    """Twice and half the rate, each beside what the config gives; what there is of it in audit.json is valid."""
    assert suited.recommendation is not None
    numbers = json.loads(suited.to_json())
    rows = numbers["suite"]["settings"]
    told = {(row["defense"], row["setting"]) for row in rows}
    names = {"undefended", suited.recommendation.name}
    lr = TASK.train.lr
    assert told >= {(name, label) for name in names for label in ("as given", f"lr = {lr / 2:g}", f"lr = {2 * lr:g}")}
    assert all(row["attack"] == suited.worst[row["defense"]] for row in rows)
    assert all(row["harm"] is not None and row["test_without"] is not None for row in rows)
    schema = resources.files("sparsefed.commands.audit").joinpath("audit.schema.json").read_text(encoding="utf-8")
    Draft202012Validator(json.loads(schema)).validate(numbers)


@pytest.mark.parametrize(
    ("train", "labels"),
    [
        ({"lr": 0.1}, ["lr = 0.05", "lr = 0.2"]),  # one gradient on all examples: no batch and no epochs
        ({"lr": 0.1, "mode": "fedavg"}, ["lr = 0.05", "lr = 0.2", "local_batch = 6", "local_epochs = 2"]),
        (
            {"lr": 1.0, "mode": "fedavg", "local_lr": 0.1, "local_steps": 3, "local_batch": 4},
            ["local_lr = 0.05", "local_lr = 0.2", "local_batch = 2", "local_steps = 6"],
        ),
    ],
)
def test_settings_are_those_that_the_mode_has(train: dict[str, Any], labels: list[str]) -> None:
    config = configs.parse({**tomllib.loads(CONFIG), "train": {"cohort": 10, **train}})
    others = settings(config, examples=13)
    assert list(others) == labels
    for label, other in others.items():
        key, value = label.split(" = ")
        changed = {**config.train.model_dump(), key: float(value)}
        assert other.train.model_dump() == changed


@pytest.mark.slow
@pytest.mark.process
def test_the_worst_devices_are_those_of_the_last_model(suited: AuditResult) -> None:
    assert ("clipping", NO_ATTACK) in suited.devices
    for devices in suited.devices.values():
        assert 0 <= devices.worst <= devices.tenth <= 1


@pytest.mark.slow
@pytest.mark.process
def test_attackers_who_leave_are_gone(suited: AuditResult) -> None:
    assert suited.folder is not None and suited.durability
    for pair, lasting in suited.durability.items():
        assert lasting.left_at == 8 and pair[1] in ("pgd", "adaptive_push", "neurotoxin")
