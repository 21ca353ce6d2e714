"""The commands as Python functions: objects in, results out, and no file left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from sparsefed import config as configs
from sparsefed.commands.audit import audit
from sparsefed.commands.audit.findings import detached
from sparsefed.commands.certify import Certificate, certify, measure_convergence
from sparsefed.commands.choose_k import choose_k
from sparsefed.commands.tune import tune
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import Progress
from sparsefed.core.rng import rng
from sparsefed.data.own import from_arrays
from sparsefed.simulation import Simulation
from sparsefed.sweeps.ledger import Ledger
from sparsefed.sweeps.runner import failures

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 6,
    "evaluate_every": 2,
    "data": {"name": "digits", "partition": "iid", "devices": 40},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.5, "weight_decay": 0.0},
    "defense": {"name": "sparsefed", "k": 50, "clip_norm": 1.0, "rho": 0.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 10, "batch": 5},
}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the functions are called, and where temporary files go, nothing stays."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    yield
    assert not list((tmp_path / "here").iterdir()) and not list((tmp_path / "temporary").iterdir())


def own_simulation(**more: Any) -> Simulation:
    """A model and a table of one's own."""
    draw = rng(0, "table")
    x, y = draw.normal(size=(200, 12)).astype(np.float32), draw.integers(0, 3, 200)
    settings: dict[str, Any] = {
        "defense": {"name": "sparsefed", "k": 9, "clip_norm": 1.0, "rho": 0.0},
        "attack": {"name": "pgd", "auxiliary": 10, "batch": 5},
        "threat": 0.2,
        "schedule": 0.1,
        "rounds": 4,
        "cohort": 5,
        "devices": 20,
        "train": {"weight_decay": 0.0},
    }
    return Simulation(nn.Linear(12, 3), (x, y), **{**settings, **more})


def test_tune_takes_a_table_and_gives_records() -> None:
    seen: list[Progress] = []
    result = tune(TINY, trials=2, space=["step=0.01:1"], on_progress=seen.append)
    assert [trial.number for trial in result.trials] == [0, 1] and seen[-1].done == seen[-1].total == 2
    first, second = result.records()
    assert first["as_given"] and not second["as_given"]
    assert second["attack.step"] == result.trials[1].params["step"]
    assert sum(row["strongest"] for row in (first, second)) == 1
    assert result.tuned.name == "tiny-tuned"


def test_choose_k_finds_a_k_that_the_config_leaves_open() -> None:
    seen: list[Progress] = []
    table = {**TINY, "defense": {"name": "sparsefed", "clip_norm": 1.0}}
    result = choose_k(table, samples=2, rounds_in=[0], probe=[5, 100], probe_rounds=4, on_progress=seen.append)
    assert result.own_k is None and 1 <= result.k <= result.d == 650
    assert {row["k"] for row in result.records()} == set(result.stages[0].grid)
    assert [row["k"] for row in result.probe_records()] == [5, 100]
    assert {progress.title for progress in seen} == {"sampling after 0 rounds", "rounds"}
    assert {run.title for progress in seen for run in progress.running} == {
        *("k-5", "k-5-attacked", "k-100", "k-100-attacked")
    }
    assert all(0 < progress.done <= progress.total for progress in seen)


def test_choose_k_tunes_the_attack_at_every_k() -> None:
    seen: list[Progress] = []
    options: dict[str, Any] = {"samples": 1, "rounds_in": [0], "probe": [5], "probe_rounds": 3, "tune_trials": 1}
    result = choose_k(configs.parse(TINY), **options, on_progress=seen.append)
    assert result.probes[0].attack is not None
    assert any(each.title == "tuning the attack at k = 5" and each.unit == "trial" for each in seen)


@pytest.mark.process
def test_audit_without_a_folder_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    options: dict[str, Any] = {"defenses": ["clipping"], "attacks": ["sign_flip"], "trials": 1, "seeds": 1}
    result = audit({**TINY, "defense": {"name": "undefended"}}, **options, budget=0, jobs=1)
    runs = [*(run for several in result.runs.values() for run in several), *result.varied]
    assert result.problem is None and len(result.runs) == 6 and len(result.varied) == 2 + 8
    assert result.folder is None and {run.folder for run in runs} == {None}
    page = result.to_html()  # drawn although the runs are gone
    assert "temporary folder and not kept" in page and "Test accuracy by class" in page
    assert not any(str(tmp_path) in text for text in (page, result.to_json(), repr(result)))
    broken = Ledger(tmp_path, [])
    broken.failed["key"] = "RuntimeError: a rule with a bug"
    problem = detached(replace(result, folder=tmp_path, problem=failures(broken, tmp_path))).problem
    assert "1 cells failed: RuntimeError: a rule with a bug" in str(problem) and str(tmp_path) not in str(problem)


def test_certify_takes_a_config_and_names_its_sentences() -> None:
    certificate = certify(configs.parse(TINY), share=0.05)
    title, headline, worth, *_ = certificate.verdict
    assert (title, headline) == (f"{certificate.title}.", certificate.headline) and worth == certificate.worth[0]
    assert certificate.title == "Certificate: tiny" and certificate.certified_accuracy_sentence is None
    rows = certificate.records()
    assert {row["protocol"] for row in rows} == {"sparse", "dense"}
    (capped,) = (row for row in rows if (row["protocol"], row["bound"]) == ("sparse", "capped"))
    assert capped["log"] == certificate.own.radii["capped"].log and capped["is_bound"] == "yes"


def test_certify_trains_for_certified_accuracy() -> None:
    seen: list[Progress] = []
    certificate = certify(TINY, share=0.01, train=True, on_progress=seen.append)
    assert certificate.accuracy is not None and len(seen) == TINY["rounds"]
    assert certificate.certified_accuracy_sentence is not None
    assert certificate.certified_accuracy_sentence in certificate.verdict


def test_who_has_no_attackers_is_asked_for_some_by_name() -> None:
    with pytest.raises(ConfigError, match="there are no attackers in tiny"):
        certify({key: value for key, value in TINY.items() if key not in ("attack", "threat")})


def test_convergence_is_measured_without_a_file() -> None:
    train = {**TINY["train"], "schedule": "constant", "sampling": "uniform", "lr": 0.05}
    defense = {**TINY["defense"], "clip_norm": float("inf")}
    table = {**TINY, "train": train, "defense": defense, "attack": False}
    rows = measure_convergence(table).records()
    assert [row["rounds"] for row in rows] == [*range(1, 7)] and all(row["least"] <= row["bound"] for row in rows)


# --- objects of one's own --------------------------------------------------------------------------------------------


def test_objects_of_this_process_are_tuned_probed_and_certified() -> None:
    simulation = own_simulation()
    assert len(tune(simulation, trials=2, space=["step=0.01:1"]).trials) == 2
    assert len(choose_k(simulation, samples=1, rounds_in=[0], probe=[3, 30]).probes) == 2
    certificate: Certificate = certify(simulation)
    assert certificate.status == "certificate" and "softmax" in certificate.own.radii


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(targets, outputs.shape[1])).square().sum(1)


def test_a_loss_of_ones_own_has_no_exact_constants() -> None:
    """One linear layer with another loss than cross-entropy is not a softmax layer."""
    certificate = certify(own_simulation(loss=squared))
    assert "softmax" not in certificate.own.radii
    assert certificate.status_of(certificate.own.best_name) == "estimate"  # the bound that needs c
    assert certificate.status == ("certificate" if certificate.own.only_clipping else "estimate")


def test_what_is_proved_for_classes_is_refused_for_numbers_by_name() -> None:
    """A listed softmax layer with one output for a number is no softmax layer, and certifies no accuracy."""
    draw = rng(0, "numbers")
    x = draw.normal(size=(100, 4)).astype(np.float32)
    settings: dict[str, Any] = {
        "defense": {"name": "sparsefed", "k": 3, "clip_norm": 1.0, "rho": 0.0},
        "schedule": 0.1,
        "rounds": 2,
        "cohort": 5,
        "devices": 20,
        "train": {"weight_decay": 0.0, "sampling": "uniform"},
    }
    plain = Simulation("softmax", from_arrays(x, x[:, 0], target="values"), **settings)
    with pytest.raises(ConfigError, match="this task has numbers to predict; choose data with classes"):
        measure_convergence(plain)
    with pytest.raises(ConfigError, match="has numbers to predict and is judged by explained variance; leave it out"):
        certify(plain, share=0.1, train=True)
    assert certify(plain, share=0.1).status == "estimate"


@pytest.mark.parametrize("kind", ["binary", "values"])
def test_an_audit_goes_by_the_score_of_its_task_and_names_it(kind: str) -> None:
    """With 3 % positives every model is right in 97 %: what counts is the ranking, or for numbers the error."""
    draw = rng(0, "task")
    x = draw.normal(size=(600, 4)).astype(np.float32)
    y: Any = x[:, 0] > 1.85 if kind == "binary" else 10 * x[:, 0]
    aim: dict[str, Any] = {"auxiliary": 10} | ({} if kind == "binary" else {"value": 40.0, "tolerance": 20.0})
    simulation = Simulation(
        nn.Linear(4, 1),
        from_arrays(x, y, target=kind, normalise="train"),
        attack={"name": "boosted", **aim},
        threat=0.2,
        schedule=2.0 if kind == "binary" else 0.03,
        rounds=40,
        cohort=10,
        devices=20,
        evaluate_every=20,
    )
    options: dict[str, Any] = {"defenses": ["clipping"], "attacks": ["sign_flip"], "trials": 1, "seeds": 1}
    result = audit(simulation, **options, sensitivity=False, budget=0)
    (clean,) = [row for row in result.records() if (row["defense"], row["attack"]) == ("undefended", "no attack")]
    title = "AUC" if kind == "binary" else "Explained variance"
    assert result.problem is None and clean["converged"] and clean["test_accuracy"] > 0.9
    text = result.to_markdown()
    assert title in text and "est accuracy" not in text and "most frequent class" not in text
    assert "est accuracy" not in result.to_json()
    assert ("mean_absolute_error" in clean) == ("Mean absolute error" in text) == (kind == "values")
    if kind == "values":
        assert clean["mean_absolute_error"] < 3 and "off by" in text
