"""The convergence theorem compared with a run: one softmax layer trained with SparseFed, its full gradient measured.

Everything the theorem needs (`theory.convergence`) is known here or measured, as stated for each:

    f         mean over the devices of the mean loss of each, sum_j v_j loss(theta; x_j): what uniform cohorts estimate
              without a bias
    l         lambda_max(sum_j v_j x_j x_j^T) / 2, exact (x with a 1 for the bias): the Hessian of a softmax layer is
              (diag p - p p^T) (x) x x^T, and the first factor has no eigenvalue above 1/2, which is approached
    f*        at least 0
    sigma^2   E |g|^2 = phi mean_i |g_i|^2 + (1 - phi) |grad f|^2 over cohorts of n of N devices, with phi = (N - n) /
              (n (N - 1)). *Measured*: the largest at the measured models. *For every model*: |g_i| <= sqrt 2
              mean_j |x_j| and |grad f|^2 <= 2 lambda_max(sum_j v_j x_j x_j^T), as |p - y|_2 <= sqrt 2
    delta     of each round, *measured*; k/d in the *worst case*

So the bound with the worst case and the moment for every model assumes nothing; the other holds if contraction and
moment are on the way no worse than was seen. The theorem bounds an expectation over the cohorts; a run is one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.common import Subject
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.round import Metrics, run_round
from sparsefed.core.types import Batch
from sparsefed.reports.result import Report
from sparsefed.results.numbers import log_ticks
from sparsefed.theory.convergence import Descent, printed, sharp, worst_delta

CHUNK = 4096  # examples at a time


@dataclass(frozen=True)
class MeasuredModel:
    """The objective at the model after some rounds."""

    rounds: int
    loss: float  # f
    gradient: float  # |grad f|_2^2
    moment: float  # E |g|_2^2 over the cohorts


@dataclass(frozen=True)
class Convergence(Report, described_by="sparsefed.commands.certify.convergence_document"):
    """The measured convergence of a run, and the theorem's bounds on it.

    Curves are over the number of rounds R = 1, 2, ..., and show the least |grad f|^2 before round R: a bound continues
    to hold once it held, so none of them rises.
    """

    config: Config
    d: int
    k: int
    proven: Descent  # with the moment of every model
    measured: Descent  # with the largest moment that was seen
    deltas: tuple[float, ...]  # one per round
    points: tuple[MeasuredModel, ...]  # the first before round 1

    @cached_property
    def bound(self) -> list[float]:
        """Return the bound with contraction and moment as measured."""
        return _never_rising(sharp(self.measured, self.deltas))

    @cached_property
    def worst(self) -> list[float]:
        """Return the bound with nothing measured but f at the start."""
        return _never_rising(sharp(self.proven, [worst_delta(self.d, self.k)] * len(self.deltas)))

    @cached_property
    def as_printed(self) -> list[float]:
        """Return the bound of the appendix' theorem as printed, with the measured least contraction and moment."""
        least = min(self.deltas)
        return [printed(self.measured, least, rounds) for rounds in range(1, len(self.deltas) + 1)]

    @cached_property
    def least(self) -> list[float]:
        """Return the least gradient among the measured models, which is no less than among all."""
        at = {point.rounds: point.gradient for point in self.points}
        return _never_rising(at.get(done, math.inf) for done in range(len(self.deltas)))

    def says_something_from(self, bound: list[float]) -> int | None:
        """Return the first number of rounds at which a bound is below |grad f|^2 at the start, if any."""
        start = self.points[0].gradient
        return next((rounds for rounds, value in enumerate(bound, 1) if value < start), None)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each number of rounds, in the form that `pandas.DataFrame` takes."""
        lines = {"least": self.least, "bound": self.bound, "worst": self.worst, "as_printed": self.as_printed}
        return [
            {"rounds": done, **{name: line[done - 1] for name, line in lines.items()}}
            for done in range(1, len(self.deltas) + 1)
        ]


def _never_rising(values: Iterable[float]) -> list[float]:
    return [*accumulate(map(float, values), min)]


def measure_convergence(
    subject: Subject, *, overrides: Sequence[str] = (), on_progress: OnProgress | None = None
) -> Convergence:
    """Train a config and compare its gradients with the convergence theorem.

    The objective is measured before round 1, every `evaluate_every` rounds, and more often in the beginning.

    Args:
        subject: A config, its table, the path of its file, or a run folder, whose config is trained once more.
        overrides: `key=value` on top of a file or a run's config.
        on_progress: Called after every round.

    Raises:
        ConfigError: The theorem does not cover this config, or it cannot be measured exactly.
    """
    config = _config(subject, overrides)
    check(config)
    experiment = configs.build(config)
    look = _looker(experiment, experiment.task.prepare)
    state, deltas = experiment.begin(), []
    points = [look.at(state.theta, 0)]
    often = {*log_ticks(1, config.rounds), config.rounds}
    while state.round < config.rounds:
        report = run_round(experiment.setup, state)
        state = report.state
        deltas.append(_contraction(report.metrics))
        if state.round % config.evaluate_every == 0 or state.round in often:
            points.append(look.at(state.theta, state.round))
        if on_progress is not None:
            on_progress(Progress("training", state.round, config.rounds))
    moment = max(point.moment for point in points)
    measured, proven = (
        Descent(config.train.lr, look.smoothness, sigma_2, points[0].loss) for sigma_2 in (moment, look.moment)
    )
    d, k = len(experiment.theta), int(config.defense.params["k"])
    return Convergence(config, d, k, proven, measured, tuple(deltas), tuple(points))


def _config(subject: Subject, overrides: Sequence[str]) -> Config:
    if isinstance(subject, str | Path):
        path = Path(subject)
        return (
            configs.parse(runs.load_config(path), overrides, str(path))
            if path.is_dir()
            else configs.read(path, overrides)
        )
    return configs.as_config(subject)


def check(config: Config) -> None:
    """Raise an error if the theorem does not cover a config, or it cannot be measured exactly."""
    train, defense, params = config.train, config.defense.name, config.defense.params
    wanted: dict[str, tuple[Any, Any]] = {
        "model.name": (config.model.name, "softmax"),
        "defense.name": (defense, "sparsefed"),
        "defense.rho": (params.get("rho", 0.9), 0.0),
        "defense.pre": (list(params.get("pre", [])), []),
        "train.mode": (train.mode, "uncompressed"),
        "train.schedule": (train.schedule, "constant"),
        "train.sampling": (train.sampling, "uniform"),
        "train.weight_decay": (train.weight_decay, 0.0),
        "train.dtype": (train.dtype, "float32"),
        "train.loss": (train.loss, None),
        "data.augment": (config.data.augment, "none"),
    }
    for key, (given, needed) in wanted.items():
        if given != needed:
            raise ConfigError(f"{key} is {given!r}, but the convergence theorem is for {needed!r}; set it to that")
    if config.attack is not None:
        raise ConfigError("the convergence theorem is for a run without attackers; set attack = false")


def _contraction(metrics: Metrics) -> float:
    """Return a round's delta, if all updates went into the mean as they were."""
    if metrics["clipped"] or metrics["dropped"]:
        raise ConfigError(
            f"round {metrics['round']} clipped or dropped updates, of which the convergence theorem does not speak; "
            "set defense.clip_norm = inf, and a lower train.lr if updates are not finite"
        )
    return float(metrics["delta"])


# --- the whole objective ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Looker:
    """The objective of a softmax layer on all devices' examples, in float64."""

    experiment: BuiltSimulation
    prepare: Callable[[Tensor], Tensor]
    batch: Batch  # all devices' examples, device after device
    weights: Tensor  # float64 [M], the v_j: a device weighs 1/N, its examples share that
    smoothness: float
    moment: float  # upper bound of E |g|^2 for every model

    def at(self, theta: Tensor, rounds: int) -> MeasuredModel:
        """Return f, |grad f|^2 and E |g|^2 at a model."""
        loss, gradient = objective(theta, _inputs(self.batch, self.prepare), self.batch.y, self.weights)
        square = float((gradient**2).sum())
        return MeasuredModel(rounds, loss, square, _moment(self.experiment, self._mean_square(theta), square))

    def _mean_square(self, theta: Tensor) -> float:
        """Return mean_i |g_i|^2 over all devices, by the engine that trains."""
        setup = self.experiment.setup
        federation = setup.federation
        ids = np.arange(federation.device_count)
        cohort = Cohort(ids, federation.sizes(ids), federation.gather)
        blocks = setup.engine(theta, cohort, LocalStep(1.0, 0.0))
        return sum(float((block.norms() ** 2).sum()) for block in blocks) / len(ids)


def _looker(experiment: BuiltSimulation, prepare: Callable[[Tensor], Tensor]) -> _Looker:
    federation = experiment.setup.federation
    batch = federation.gather(np.arange(federation.device_count))
    sizes = torch.from_numpy(batch.sizes)
    each = torch.repeat_interleave(1.0 / (len(sizes) * sizes.double()), sizes)
    largest, lengths = _spectrum(_inputs(batch, prepare), each)
    per_device = torch.zeros(len(sizes), dtype=torch.float64).index_add_(
        0, torch.repeat_interleave(torch.arange(len(sizes)), sizes), lengths * each * len(sizes)
    )
    device_squares = 2 * float((per_device**2).mean())
    moment = _moment(experiment, device_squares, min(device_squares, 2 * largest))
    return _Looker(experiment, prepare, batch, each, largest / 2, moment)


def _moment(experiment: BuiltSimulation, device_squares: float, square: float) -> float:
    """Return E |g|^2 of the mean of n of N devices without replacement, from mean_i |g_i|^2 and |grad f|^2."""
    population, n = experiment.setup.federation.device_count, experiment.config.train.cohort
    phi = (population - n) / (n * (population - 1)) if population > 1 else 0.0
    return phi * device_squares + (1 - phi) * square


def _inputs(batch: Batch, prepare: Callable[[Tensor], Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield prepared examples with a 1 for the bias, float64 [m, p + 1], a chunk at a time, with where it begins."""
    for low in range(0, len(batch.x), CHUNK):
        x = prepare(batch.x[low : low + CHUNK]).flatten(1).double()
        yield low, torch.cat([x, x.new_ones(len(x), 1)], 1)


def _spectrum(chunks: Iterator[tuple[int, Tensor]], weights: Tensor) -> tuple[float, Tensor]:
    """Return lambda_max(sum_j v_j x_j x_j^T), and every |x_j|_2 [M]."""
    total: Tensor | None = None
    lengths = []
    for low, x in chunks:
        part = (x * weights[low : low + len(x), None]).T @ x
        total = part if total is None else total + part
        lengths.append(torch.linalg.vector_norm(x, dim=1))
    assert total is not None
    return float(torch.linalg.eigvalsh(total)[-1]), torch.cat(lengths)


def objective(theta: Tensor, chunks: Iterator[tuple[int, Tensor]], y: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Return sum_j v_j loss_j of a softmax layer and its gradient [classes, p + 1]; theta: weights, then biases."""
    loss, gradient = 0.0, torch.zeros(0)
    for low, x in chunks:
        classes, label, v = len(theta) // x.shape[1], y[low : low + len(x), None], weights[low : low + len(x), None]
        layer = torch.cat([theta[:-classes].view(classes, -1), theta[-classes:, None]], 1).double()
        logs = torch.log_softmax(x @ layer.T, 1)
        loss -= float((v * logs.gather(1, label)).sum())
        residual = logs.exp().scatter_add(1, label, -torch.ones_like(v))
        part = (v * residual).T @ x
        gradient = part if low == 0 else gradient + part
    return loss, gradient
