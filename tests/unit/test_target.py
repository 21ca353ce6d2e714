"""Tasks that are no classes: yes or no, several labels, numbers, tokens; their losses, metrics and scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as truth
from torch import Tensor, nn

from sparsefed import Simulation, data
from sparsefed.config import dump, parse
from sparsefed.core.errors import ConfigError, DataError
from sparsefed.core.target import TARGETS
from sparsefed.core.types import IGNORED
from sparsefed.data.own import from_arrays, from_frame
from sparsefed.data.scores import (
    area_under_curve,
    balanced_accuracy,
    chance,
    class_share_loss,
    f1,
    measures,
    rare_recall,
    score_of,
)
from sparsefed.reports.run_report import report
from sparsefed.results.measures import metrics
from sparsefed.results.summary import summarise

draw = np.random.default_rng(8)
N = 400
X = draw.standard_normal((N, 4))
RARE = (X[:, 0] + 0.3 * X[:, 1] > 1.6).astype(np.int64)  # about 6 % of the examples
LABELS = (X[:, :3] > [0.0, 0.8, -0.5]).astype(np.int64)
VALUES = 100 + 30 * X[:, 0] - 10 * X[:, 1]


def trained(y: Any, outputs: int, target: str, lr: float = 0.5, **more: Any) -> Simulation:
    torch.default_generator.manual_seed(1)
    given: dict[str, Any] = {"rounds": 80, "cohort": 10, "devices": 20, "evaluate_every": 80, **more}
    record = from_arrays(X, y, target=target, normalise="train")
    return Simulation(nn.Linear(4, outputs), record, schedule=lr, **given).run()


def test_yes_or_no_is_judged_by_its_ranking() -> None:
    run = trained(RARE, 1, "binary")
    found = run.evaluate()
    assert (
        found["test_auc"] > 0.95 and 0.5 <= found["test_balanced_accuracy"] <= 1 and len(found["class_accuracy"]) == 2
    )
    assert run.built.facts["score"] == "test_auc" and run.built.facts["chance"] == 0.5
    row = summarise(run.history, run.built.facts, status="finished")
    assert row.test_accuracy == found["test_auc"] and row.converged and row.scored_by == "AUC"


def test_several_labels() -> None:
    found = trained(LABELS, 3, "labels").evaluate()
    assert found["test_auc"] > 0.95 and found["test_accuracy"] > 0.85 and "class_accuracy" not in found


@pytest.mark.parametrize("shape", [(), (1,)])
def test_numbers_are_judged_by_what_is_explained(shape: tuple[int, ...]) -> None:
    run = trained((VALUES / 100).reshape(N, *shape), 1, "values", lr=0.05)
    found = run.evaluate()
    assert found["test_explained"] > 0.9 and found["test_mean_absolute_error"] < 0.1 and "test_accuracy" not in found
    row = summarise(run.history, run.built.facts, status="finished")
    assert row.test_accuracy == found["test_explained"] and row.converged and row.scored_by == "explained variance"
    nothing = summarise([{**run.history[-1], "test_explained": -0.2}], run.built.facts, status="finished")
    assert not nothing.converged


def test_numbers_are_the_same_as_in_plain_pytorch() -> None:
    y, model = (VALUES / 100).astype(np.float32), nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    run = Simulation(
        model,
        from_arrays(X, y, test=(X, y), target="values"),
        defense={"name": "undefended", "rho": 0.0},
        schedule=0.05,
        rounds=50,
        cohort=10,
        devices=10,
        train={"weight_decay": 0.0},
    ).run()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(50):
        optimiser.zero_grad()
        F.mse_loss(model(torch.from_numpy(X).float())[:, 0], torch.from_numpy(y)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert float((run.theta - flat).abs().max()) < 1e-5


@pytest.mark.parametrize(("target", "outputs"), [("binary", 1), ("labels", 3), ("values", 1)])
@pytest.mark.parametrize("more", [{}, {"mode": "fedavg", "local_epochs": 2, "local_batch": 5}], ids=["one", "several"])
def test_every_engine_agrees(target: str, outputs: int, more: dict[str, Any]) -> None:
    y = {"binary": RARE, "labels": LABELS, "values": VALUES / 100}[target]
    settings = [{"engine": engine, **more} for engine in ("fused", "loop")]
    one, two = (trained(y, outputs, target, 0.05, rounds=3, train=train).theta for train in settings)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_tokens_of_ones_own() -> None:
    words = draw.integers(0, 5, (60, 6))
    after = np.concatenate([words[:, 1:], np.full((60, 1), IGNORED)], 1)
    a = data.load(from_arrays(words, after, target="tokens"))
    assert a.is_text and a.classes == tuple("01234")
    run = Simulation("transformer", from_arrays(words, after, target="tokens"), devices=5, cohort=5, rounds=1).run()
    assert run.evaluate()["test_perplexity"] > 1


# Metrics.


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.integers(0, 1)), min_size=2, max_size=30))
def test_auc_and_balanced_accuracy_against_scikit_learn(pairs: list[tuple[float, int]]) -> None:
    scores, y = torch.tensor([score for score, _ in pairs]), torch.tensor([label for _, label in pairs])
    if len(set(y.tolist())) == 2:
        assert area_under_curve(scores, y) == pytest.approx(truth.roc_auc_score(y, scores), abs=1e-12)
        guess = (scores > 0).long()
        assert balanced_accuracy(guess, y) == pytest.approx(truth.balanced_accuracy_score(y, guess), abs=1e-12)
    else:
        assert math.isnan(area_under_curve(scores, y))


def test_auc_of_several_classes_and_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(50, 3, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    expected = truth.roc_auc_score(y, outputs.double().softmax(1), multi_class="ovr")
    assert area_under_curve(outputs, y) == pytest.approx(expected, abs=1e-9)
    several = torch.randint(0, 2, (50, 3), generator=generator)
    assert area_under_curve(outputs, several) == pytest.approx(truth.roc_auc_score(several, outputs), abs=1e-9)
    hidden = several.clone()
    hidden[:, 2] = IGNORED
    assert area_under_curve(outputs, hidden) == pytest.approx(truth.roc_auc_score(several[:, :2], outputs[:, :2]))


def test_unknown_labels_teach_nothing() -> None:
    outputs, y = torch.zeros(2, 3, requires_grad=True), torch.tensor([[1, IGNORED, 0], [IGNORED] * 3])
    TARGETS["labels"].losses(outputs, y).sum().backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None and outputs.grad[y == IGNORED].eq(0).all() and outputs.grad[0, 0] == -0.25


def largest_output(outputs: Tensor, y: Tensor) -> float:
    assert outputs.shape == (len(y), 2) and outputs.is_floating_point()
    return float(outputs.max())


def test_a_metric_of_ones_own_and_a_chosen_one() -> None:
    own = trained(RARE, 2, "classes", metric=largest_output)
    assert own.built.facts["score"] == "test_largest_output" and "chance" not in own.built.facts
    assert own.history[-1]["test_largest_output"] == own.evaluate()["test_largest_output"]
    chosen = trained(RARE, 2, "classes", metric="balanced_accuracy")
    assert chosen.built.facts["score"] == "test_balanced_accuracy" and chosen.built.facts["chance"] == 0.5
    absolute = trained(VALUES / 100, 1, "values", 0.05, metric="mean_absolute_error")
    assert absolute.built.facts["score_title"] == "explained deviation" and absolute.evaluate()["test_explained"] > 0.7
    plain = trained(RARE, 2, "classes")
    assert "score" not in plain.built.facts and list(plain.evaluate()) == [
        "test_loss",
        "test_accuracy",
        "class_accuracy",
    ]


@pytest.mark.parametrize(
    ("target", "metric", "words"),
    [
        ("values", "auc", "'auc' has no meaning for numbers to predict; use one of mean_squared_error"),
        ("classes", "mean_absolute_error", "no meaning for one class .* accuracy, balanced_accuracy, auc"),
        ("binary", "f2", "unknown metric 'f2'.*balanced_accuracy"),
    ],
)
def test_a_metric_without_meaning_is_refused(target: str, metric: str, words: str) -> None:
    y = VALUES if target == "values" else RARE
    with pytest.raises(ConfigError, match=words):
        trained(y, 2, target, metric=metric)


def test_chance_is_what_a_blind_model_gets() -> None:
    classes = TARGETS["classes"]
    y = torch.tensor([0, 0, 0, 1])
    assert chance(classes, score_of(classes, None), y) == 0.75
    assert chance(classes, score_of(classes, "balanced_accuracy"), y) == 0.5
    row = summarise([{"round": 1, "test_accuracy": 0.99, "test_loss": 0.1}], {"chance": 0.97}, status="finished")
    assert row.converged, "where a class is frequent, half way to perfect counts"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_f1_and_recall_of_the_rarest_class_against_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    guess, y = (torch.tensor([pair[i] for pair in pairs]) for i in range(2))
    labels, counts = np.unique(y, return_counts=True)
    rarest = [label for label, count in zip(labels, counts, strict=True) if count == counts.min()][-1]
    recall = truth.recall_score(y, guess, labels=[rarest], average="macro", zero_division=0)
    assert rare_recall(guess, y) == pytest.approx(recall, abs=1e-12)
    named = [1] if set(labels) <= {0, 1} else labels
    expected = truth.f1_score(y, guess, labels=named, average="macro", zero_division=0)
    assert f1(guess, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "rare_recall", "f1", "auc"])
def test_a_metric_for_rare_classes_is_what_runs_are_judged_by(metric: str) -> None:
    run = trained(RARE, 2, "classes", metric=metric)
    row = summarise(run.history, run.built.facts, status="finished")
    assert row.test_accuracy == run.evaluate()[f"test_{metric}"] and row.converged
    assert run.built.facts["score"] == f"test_{metric}"


MAJORITIES = (0.5, 0.8, 0.95, 0.995)


@pytest.mark.parametrize("share", MAJORITIES)
@pytest.mark.parametrize("target", ["classes", "binary"])
def test_learning_is_seen_however_frequent_a_class_is(share: float, target: str) -> None:
    """A model that finds most of the rare class has learned; one that predicts the shares of the classes has not."""
    y = np.zeros(4000, dtype=np.int64)
    y[: round(4000 * (1 - share))] = 1
    near = draw.standard_normal((4000, 2)) + 3.0 * y[:, None]
    torch.default_generator.manual_seed(1)
    outputs = 2 if target == "classes" else 1
    record = from_arrays(near, y, target=target, normalise="train")
    settings: dict[str, Any] = {"devices": 40, "cohort": 40, "evaluate_every": 60}
    learned = Simulation(nn.Linear(2, outputs), record, rounds=60, schedule=1.0, **settings).run()
    row = summarise(learned.history, learned.built.facts, status="finished")
    assert row.converged, (row, learned.built.facts)
    blind = from_arrays(np.zeros_like(near), y, target=target)
    ignorant = Simulation(nn.Linear(2, outputs), blind, rounds=60, schedule=1.0, **settings).run()
    row = summarise(ignorant.history, ignorant.built.facts, status="finished")
    assert not row.converged and row.by_chance, (row, ignorant.built.facts)
    worst = [{**learned.history[-1], "test_loss": 9.0, "test_accuracy": share, "test_auc": 0.5}]
    assert not summarise(worst, learned.built.facts, status="finished").converged


def test_the_loss_of_the_class_shares_is_their_entropy() -> None:
    y = torch.tensor([0, 0, 0, 1])
    best = min(float(F.cross_entropy(torch.tensor([[0.0, b / 100]]).expand(4, 2), y)) for b in range(-300, 300))
    assert class_share_loss(TARGETS["classes"], y) == pytest.approx(best, abs=1e-4)
    assert class_share_loss(TARGETS["labels"], torch.tensor([[0, 1], [1, IGNORED]])) == pytest.approx(math.log(2) / 2)
    assert class_share_loss(TARGETS["values"], torch.ones(3)) is None


def test_a_config_without_a_metric_is_written_as_before() -> None:
    table = dump(parse({"data": {"name": "digits"}, "model": {"name": "mlp"}, "defense": {"name": "undefended"}}))
    assert "metric" not in table["train"] and "loss" not in table["train"]


def test_a_report_names_the_score_and_the_error_in_its_unit(tmp_path: Path) -> None:
    run = trained(VALUES / 100, 1, "values", 0.05)
    run.save(tmp_path / "run")
    made = report(tmp_path / "run")
    text, measured = made.to_markdown(), metrics(made.runs[0])
    assert "Explained variance" in text and "Mean absolute error" in text and "est accuracy" not in text
    assert "Explained variance" in made.to_html() and made.score == "explained variance"
    assert measured["test_accuracy"] == pytest.approx(run.evaluate()["test_explained"], rel=1e-5)
    assert measured["test_mean_absolute_error"] == pytest.approx(run.evaluate()["test_mean_absolute_error"], rel=1e-5)
    plain = trained(RARE, 2, "classes", rounds=2, evaluate_every=1)
    plain.save(tmp_path / "plain")
    both = report(tmp_path / "plain", tmp_path / "run")
    assert both.score == "score" and report(tmp_path / "plain").score == "test accuracy"
    assert "Test accuracy" in report(tmp_path / "plain").to_markdown() and "est accuracy" not in both.to_markdown()


# Wrong targets.


@pytest.mark.parametrize(
    ("y", "target", "words"),
    [
        (VALUES, None, "labels must be whole numbers.*values"),
        (RARE, "yes/no", "unknown target 'yes/no'; valid choices: binary, classes"),
        (np.arange(N) % 3, "binary", '3 classes, but target="binary" means two'),
        (LABELS[:, 0], "labels", r"whole numbers of the shape \[N, labels\], but these are int64 \[400\]"),
        (np.where(np.arange(N) == 9, 2, LABELS.T).T, "labels", "target 0 of row 9 is 2; use 0 to 1"),
        (np.where(np.arange(N) == 5, np.nan, VALUES), "values", "the target of row 5 is nan"),
        (VALUES[:7], "values", r"there are 400 examples, but the labels have the shape \[7\]"),
        (np.array(["a"] * N), "values", "values to predict are numbers"),
        (np.full((N, 2), -3), "tokens", "target 0 of row 0 is -3"),
        (LABELS, None, r"labels have the shape \[400, 3\]"),
    ],
)
def test_wrong_targets_get_one_sentence(y: Any, target: str | None, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        data.load(from_arrays(X, y, target=target))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("output", "score"), [(0.0, 0.0), (1e20, 0.0), (float("nan"), math.nan)])
def test_a_model_worse_than_a_constant_explains_nothing(output: float, score: float) -> None:
    values, y = TARGETS["values"], torch.tensor([-1.0, 0.0, 1.0])
    found = measures(values, score_of(values, None), torch.full((3, 1), output), y, 0)
    assert found["test_explained"] == pytest.approx(score, nan_ok=True)
    assert found["test_mean_absolute_error"] == pytest.approx(2 / 3 if output == 0 else output, nan_ok=True)


def test_a_model_with_other_outputs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"outputs have the shape \[3\] .* targets have \[\]; give the model one"):
        trained(VALUES, 3, "values")


@pytest.mark.parametrize("partition", ["one_class", "dirichlet"])
def test_a_partition_by_class_needs_classes(partition: str) -> None:
    with pytest.raises(ConfigError, match="numbers to predict; use iid"):
        Simulation("mlp", from_arrays(X, VALUES, target="values"), devices=10, cohort=5, partition=partition)


def test_columns_of_a_frame_as_targets() -> None:
    import pandas

    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "one": LABELS[:, 0], "two": LABELS[:, 1]})
    a = data.load(from_frame(frame, ["one", "two"], target="labels", classes=["red", "blue"]))
    assert a.y_train.shape == (320, 2) and a.x_train.shape == (320, 2) and a.classes == ("red", "blue")
    b = data.load(from_frame(frame, "b", columns=["a"], target="values"))
    assert b.y_train.dtype == np.float32 and b.classes == ()


@pytest.mark.parametrize(("target", "outputs"), [("binary", 1), ("labels", 3), ("values", 1)])
def test_a_listed_model_has_the_outputs_that_the_targets_need(target: str, outputs: int) -> None:
    y = {"binary": RARE, "labels": LABELS, "values": VALUES}[target]
    run = Simulation("mlp", from_arrays(X, y, target=target), devices=10, cohort=5, rounds=1)
    assert run.built.task.template(torch.zeros(1, 4)).shape == (1, outputs)
