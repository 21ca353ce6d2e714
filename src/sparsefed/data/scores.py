"""The scores of a model on test examples: accuracy, those for rare classes, errors, and the one a run is judged by.

The *score* is the metric that reports and verdicts go by: larger is better, and 1 is a perfect model. For values it is
the share of the error that the model removes, 1 - error / error of the best constant (R^2 for the squared error), and 0
where the model is worse than that constant: a model that diverged would stretch every axis. For perplexity it is the
share of the logarithm that the model removes from that of the tokens' frequencies.
Knows outputs and targets (`core.target`), no models or runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefed.core.errors import ConfigError
from sparsefed.core.target import ERRORS, Target, accuracy, matched
from sparsefed.core.types import IGNORED

MetricFunction = Callable[[Tensor, Tensor], Any]  # outputs of the test examples, their targets -> a number
TITLES = {
    "accuracy": "test accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "rare_recall": "recall of the rarest class",
    "f1": "F1",
    "perplexity": "explained log-perplexity",
    "mean_squared_error": "explained variance",
    "mean_absolute_error": "explained deviation",
}


class Score(NamedTuple):
    """The metric by which a run is judged: the key in a run's rows, how it is called, and the function, if any."""

    key: str
    title: str
    name: str
    own: MetricFunction | None = None

    @property
    def needs_outputs(self) -> bool:
        """Whether predicted classes are not enough to compute it."""
        return self.own is not None or self.name == "auc"


def score_of(target: Target, name: str | None, own: MetricFunction | None = None) -> Score:
    """Return the score that a run is judged by: the default of its targets, a named metric, or one of the user's.

    Raises:
        ConfigError: if the named metric has no meaning for these targets.
    """
    if own is not None:
        called = getattr(own, "__name__", "metric").strip("<>").lstrip("_") or "metric"
        return Score(f"test_{called}", called.replace("_", " "), called, own)
    name = target.metric if name is None else name
    if name not in target.metrics:
        raise ConfigError(
            f"train.metric = '{name}' has no meaning for {target.title}; use one of {', '.join(target.metrics)}, or a "
            "function of your own (outputs, targets)"
        )
    return Score("test_explained" if name in (*ERRORS, "perplexity") else f"test_{name}", TITLES[name], name)


def measures(target: Target, score: Score, outputs: Tensor, y: Tensor, classes: int) -> dict[str, Any]:
    """Return the metrics of a model on test examples, under the names that a run's rows have.

    `outputs` are the model's own, or the predicted classes if the score does not need more.
    """
    found: dict[str, Any] = {}
    if target.kind == "values":
        error = (matched(outputs.double(), y) - y.double()).flatten()
        found = {
            "test_mean_absolute_error": float(error.abs().mean()),
            "test_mean_squared_error": float(error @ error / len(error)),
        }
        found["test_explained"] = _explained(score, found[f"test_{score.name}"], y) if score.own is None else None
    else:
        predictions = target.predict(outputs) if outputs.is_floating_point() else outputs
        found["test_accuracy"] = accuracy(predictions, y)
        if target.has_classes:
            found["class_accuracy"] = class_accuracies(predictions.reshape(y.shape), y, classes)
        if score.name == "balanced_accuracy" or target.kind in ("binary", "labels"):
            found["test_balanced_accuracy"] = balanced_accuracy(predictions.reshape(y.shape), y)
        if score.name == "auc" or target.kind in ("binary", "labels"):
            found["test_auc"] = area_under_curve(outputs, y)
        if score.name in BY_CLASS:
            found[score.key] = BY_CLASS[score.name](predictions.reshape(y.shape), y)
    if score.own is not None:
        found[score.key] = float(score.own(outputs, y))
    return {key: value for key, value in found.items() if value is not None}


def _explained(score: Score, error: float, y: Tensor) -> float:
    """Return the share of the error that a model removes, 0 where it is worse than a constant, NaN where it is NaN."""
    share = 1 - error / constant_error(score.name, y)
    return 0.0 if share < 0 else share


def explained_perplexity(loss: float, y: Tensor) -> float:
    """Return 1 - log-perplexity / that of a model that knows how frequent each token is and nothing else, at least 0.

    >>> round(explained_perplexity(math.log(2) / 4, torch.tensor([[0, 1], [1, 0]])), 4)
    0.75
    """
    counts = torch.bincount(y[y != IGNORED]).double()
    shares = counts[counts > 0] / counts.sum()
    share = 1 - loss / (float(-(shares * shares.log()).sum()) or 1.0)
    return 0.0 if share < 0 else share


def constant_error(metric: str, y: Tensor) -> float:
    """Return the error of the best constant prediction: of the mean, or for absolute errors the median."""
    values = y.double().reshape(len(y), -1)
    if metric == "mean_absolute_error":
        return float((values - values.median(0).values).abs().mean()) or 1.0
    return float(((values - values.mean(0)) ** 2).mean()) or 1.0


def chance(target: Target, score: Score, y: Tensor) -> float | None:
    """Return the score of a model that ignores its inputs; None where it is unknown."""
    if score.own is not None or target.kind == "tokens":
        return 0.0 if score.name == "perplexity" else None
    if score.name == "accuracy":
        shares = [torch.bincount(column[column != IGNORED]).double() for column in y.reshape(len(y), -1).T]
        return sum(float(counts.max() / counts.sum()) for counts in shares) / len(shares)
    if score.name == "balanced_accuracy" and target.has_classes:
        return 1 / max(1, len(torch.unique(y)))
    if score.name in BY_CLASS:  # of a model that predicts the most frequent class; others pay for it elsewhere
        most = [torch.full_like(column, int(torch.mode(column[column != IGNORED]).values)) for column in _columns(y)]
        return BY_CLASS[score.name](torch.stack(most, 1).reshape(y.shape), y)
    return 0.0 if target.kind == "values" else 0.5


def class_share_loss(target: Target, y: Tensor) -> float | None:
    """Return the default loss of the best model that ignores its inputs and predicts the shares of the classes.

    That is the entropy of the shares, for several labels the mean over them; None where targets have no classes.

    >>> from sparsefed.core.target import TARGETS
    >>> round(class_share_loss(TARGETS["classes"], torch.tensor([0, 1, 1, 0])), 4)  # log 2
    0.6931
    """
    if target.kind not in ("classes", "binary", "labels"):
        return None
    counts = [torch.bincount(column[column != IGNORED]).double() for column in _columns(y)]
    shares = [each[each > 0] / each.sum() for each in counts]
    return sum(float(-(share * share.log()).sum()) for share in shares) / len(shares)


# --- by class and by rank --------------------------------------------------------------------------------------------


def class_accuracies(predicted: Tensor, y: Tensor, classes: int) -> list[float | None]:
    """Return the accuracy on the examples of each class; None for a class without examples.

    >>> class_accuracies(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    [0.5, 1.0, None]
    """
    right = torch.bincount(y[predicted == y], minlength=classes).double()
    of_all = torch.bincount(y, minlength=classes).double()
    return [float(r / n) if n else None for r, n in zip(right, of_all, strict=True)]


def balanced_accuracy(predicted: Tensor, y: Tensor) -> float:
    """Return the mean over the classes of each one's accuracy; where an example has several labels, also over these.

    >>> balanced_accuracy(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    0.5
    """
    shares = []
    for guess, truth in zip(_columns(predicted), _columns(y), strict=True):
        right = [
            float((guess[truth == label] == label).double().mean()) for label in torch.unique(truth[truth != IGNORED])
        ]
        shares += [sum(right) / len(right)] if right else []
    return sum(shares) / len(shares) if shares else math.nan


def rare_recall(predicted: Tensor, y: Tensor) -> float:
    """Return the share of the rarest class's examples that are found; of several labels the mean.

    Of classes that are equally rare, the last counts: among yes and no, yes.

    >>> rare_recall(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    shares = []
    for guess, truth in zip(_columns(predicted), _columns(y), strict=True):
        labels, counts = torch.unique(truth[truth != IGNORED], return_counts=True)
        rarest = labels[len(labels) - 1 - int(counts.flip(0).argmin())]
        shares.append(float((guess[truth == rarest] == rarest).double().mean()))
    return sum(shares) / len(shares)


def f1(predicted: Tensor, y: Tensor) -> float:
    """Return F1, the harmonic mean of precision and recall: of class 1 among two, else the mean over the classes.

    >>> f1(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0]))
    0.6666666666666666
    """
    shares = []
    for guess, truth in zip(_columns(predicted), _columns(y), strict=True):
        known = truth != IGNORED
        labels = torch.unique(truth[known]).tolist()
        for label in [1] if set(labels) <= {0, 1} else labels:
            ours, theirs = (guess == label) & known, truth == label
            shares.append(2 * int((ours & theirs).sum()) / max(1, int(ours.sum()) + int(theirs.sum())))
    return sum(shares) / len(shares) if shares else math.nan


BY_CLASS: dict[str, Callable[[Tensor, Tensor], float]] = {"rare_recall": rare_recall, "f1": f1}


def area_under_curve(outputs: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve: how likely an example of a class ranks above one that is not of it.

    Outputs are the log-odds of 1 (ties count half), for several labels the mean over those that occur and do not, or
    scores by class [M, C], for which it is the mean over the classes, each against the rest.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    if y.dim() == 1 and outputs.dim() == 2 and outputs.shape[1] > 1:
        shares = outputs.double().softmax(1)
        labels = range(1, 2) if outputs.shape[1] == 2 else range(outputs.shape[1])
        pairs = [(shares[:, label], y == label) for label in labels]
    else:
        columns = zip(_columns(outputs.double().reshape(y.shape)), _columns(y), strict=True)
        pairs = [(scores[truth != IGNORED], truth[truth != IGNORED] == 1) for scores, truth in columns]
    areas = [_area(scores, ours) for scores, ours in pairs if bool(ours.any()) and not bool(ours.all())]
    return sum(areas) / len(areas) if areas else math.nan


def _area(scores: Tensor, ours: Tensor) -> float:
    """Return the Mann-Whitney statistic over its maximum, from mean ranks."""
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[place]
    n, m = int(ours.sum()), int((~ours).sum())
    return float((ranks[ours].sum() - n * (n + 1) / 2) / (n * m)) if bool(scores.isfinite().all()) else math.nan


def _columns(y: Tensor) -> list[Tensor]:
    return list(y.reshape(len(y), -1).T)
