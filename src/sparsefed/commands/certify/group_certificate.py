"""The certificates of a config side by side: one model with its radius, and votes of groups of devices.

`sparsefed certify CONFIG --groups N`. A vote is a certificate for every model. What it rests on: the groups are fixed
before training, each is trained by its own devices alone, and the labels of test points are used for counting alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed.commands.certify.certificate import certify_radius
from sparsefed.commands.certify.group_plan import GroupPlan, plan_groups
from sparsefed.commands.certify.group_prices import vote_prices
from sparsefed.commands.certify.group_training import GroupModels, label_ranks, train_groups, training_key
from sparsefed.commands.common import RunAll, Subject, run_all
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.dtypes import computed_in
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress
from sparsefed.core.round import simulate, start
from sparsefed.core.types import Arrays
from sparsefed.reports.result import Report
from sparsefed.sweeps.runner import working_folder
from sparsefed.theory import linear, spread_votes, subset_votes, votes
from sparsefed.theory.linear import Points, Radii
from sparsefed.theory.votes import IntArray, certified_curve

Floats = npt.NDArray[np.float64]
Promise = Literal["exact", "bound", "confidence", "none"]

VOTE, RUN_OFF, INSIDE = "vote", "run-off", "vote, defense inside"
SPREAD, SUBSETS, KNOWN = "spread vote", "random subsets", "random subsets, draw known"
ALONE, RECURSION, L2_ROUTE = "one model, no certificate", "one model, recursion", "one model, l2 route"
CLOSE = 0.005  # certified accuracy: of certificates this close the one with fewer models is recommended
ENOUGH = 0.01  # certified accuracy that keeping fewer groups may cost


@dataclass(frozen=True, eq=False)
class CertificateCurve:
    """One certificate: the accuracy that is certain with any m compromised devices, and what it takes to deploy."""

    name: str
    promise: Promise
    accuracy: float  # without attackers
    certified: Floats  # [m], certified accuracy for m = 0, 1, ... compromised devices; 0 beyond
    models: int  # at inference
    hidden: int  # devices of the smallest set that secure aggregation hides an update in

    def at(self, m: int) -> float:
        """Return certified accuracy with m compromised devices."""
        return float(self.certified[m]) if m < len(self.certified) else 0.0

    def largest(self, floor: float) -> int | None:
        """Return the largest number of compromised devices with more than `floor` certified; None: there is none."""
        above = np.flatnonzero(self.certified > floor)
        return int(above[-1]) if len(above) else None


class KeptGroups(NamedTuple):
    """The number of groups that a deployment needs to keep for the wanted m."""

    groups: int
    accuracy: float  # certified at the wanted m with these groups alone


class GroupCosts(NamedTuple):
    """The cost of a vote beside that of one model."""

    parameters: int  # of one model
    gradients: float  # examples whose gradient is computed, over all groups and rounds
    gradients_alone: float  # of one federated run of the config


@dataclass(frozen=True)
class VoteCertificate(Report, described_by="sparsefed.commands.certify.group_document"):
    """The certificates of a config side by side, what each costs, and which one to deploy."""

    config: Config
    label: str
    plan: GroupPlan
    points: int
    chance: float  # the share of the most frequent label
    curves: tuple[CertificateCurve, ...]
    absent: tuple[tuple[str, str], ...]  # certificates that do not apply, and why
    wanted: int  # compromised devices that the recommendation is for
    kept: KeptGroups | None
    costs: GroupCosts
    confidence: float
    distilled: float | None = None  # test accuracy of one model trained on the vote's labels, which has no certificate

    @property
    def recommended(self) -> CertificateCurve | None:
        """Return the certificate to deploy for the wanted m; None if none says more than a constant prediction."""
        sure = [each for each in self.curves if each.promise != "none" and each.at(self.wanted) > self.chance]
        if not sure:
            return None
        best = max(each.at(self.wanted) for each in sure)
        return min((each for each in sure if each.at(self.wanted) >= best - CLOSE), key=lambda each: each.models)

    def curve(self, name: str) -> CertificateCurve:
        """Return the certificate of this name."""
        for each in self.curves:
            if each.name == name:
                return each
        raise ConfigError(f"there is no certificate '{name}' here; choose from {[each.name for each in self.curves]}")

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each certificate and number of compromised devices."""
        return [
            {"certificate": each.name, "promise": each.promise, "m": m, "certified_accuracy": float(value)}
            for each in self.curves
            for m, value in enumerate(each.certified)
        ]


@dataclass(frozen=True)
class VoteOptions:
    """The options of a vote."""

    groups: int
    spread: int = 1
    subset: int | None = None
    confidence: float = subset_votes.CONFIDENCE
    distill: bool = False
    share: float | None = None
    attackers: int | None = None
    train: bool = False

    def wanted(self, devices: int) -> int:
        """Return the number of compromised devices that is asked about; by default 1 % of them, at least one."""
        m = self.attackers if self.attackers is not None else math.floor((self.share or 0.01) * devices + 1e-9)
        m = max(m, 1) if self.attackers is None and self.share is None else m
        if not 0 <= m <= devices:
            raise ConfigError(f"--attackers is {m}, but there are {devices} devices: choose from 0 to {devices}")
        return m


def certify_votes(
    subject: Subject,
    options: VoteOptions,
    *,
    overrides: Sequence[str] = (),
    folder: Path | str | None = None,
    on_progress: OnProgress | None = None,
    runner: RunAll | None = None,
) -> VoteCertificate:
    """Train a model for every group of devices, let them vote, and certify every prediction.

    Args:
        subject: A config, its table, or the path of its file.
        options: The groups, and what else is wanted.
        overrides: `key=value` on top of a config file.
        folder: Where the models are kept, so that the same call goes on; by default nowhere.
        on_progress: Called after every round.
        runner: How the run of the one model is carried out, instead.
    """
    label, config = _config(subject, overrides)
    arrays = data.load(configs.dataset(config))
    _check(config, arrays)
    built = configs.build(config, lambda _: arrays)
    devices = built.setup.federation.device_count
    wanted = options.wanted(devices)
    plan = plan_groups(devices, options.groups, config.seed, spread=options.spread, subset=options.subset)
    with working_folder(folder) as kept:
        place = kept / f"{config.name or 'votes'}-groups-{plan.groups}-{training_key(config, plan)[:8]}"
        models = train_groups(built, plan, place, on_progress)
        alone = _OneModel(config, options.train, kept, runner or partial(run_all, on_progress=on_progress))
        curves, absent, ballots = _all_curves(built, arrays, plan, models, options, alone)
    return VoteCertificate(
        config=config,
        label=label,
        plan=plan,
        points=len(arrays.y_test),
        chance=float(np.bincount(arrays.y_test).max() / len(arrays.y_test)),
        curves=curves,
        absent=absent,
        wanted=wanted,
        kept=kept_groups(ballots, arrays, wanted) if plan.kind == "disjoint" else None,
        costs=_costs(built, plan),
        confidence=options.confidence,
        distilled=_distilled(built, arrays, models) if options.distill else None,
    )


def _config(subject: Subject, overrides: Sequence[str]) -> tuple[str, Config]:
    """Return the name and the config of a subject, without its attackers."""
    if not isinstance(subject, str | Path):
        config = configs.as_config(subject)
        label = config.name or "this config"
    else:
        path, label = Path(subject), str(subject)
        if path.is_dir():
            raise ConfigError(
                f"{path} is a run, which has one model; --groups trains others: give {path / runs.CONFIG}"
            )
        config = configs.read(path, overrides)
    return label, configs.twins(config)["unattacked"] if config.is_attacked else config


def _check(config: Config, arrays: Arrays) -> None:
    if arrays.y_test.ndim != 1:
        raise ConfigError(f"a vote is for one label an example, but {config.data.name} has several, as text does")


# --- certificates ----------------------------------------------------------------------------------------------------


def _all_curves(
    built: BuiltSimulation, arrays: Arrays, plan: GroupPlan, models: GroupModels, options: VoteOptions, alone: _OneModel
) -> tuple[tuple[CertificateCurve, ...], tuple[tuple[str, str], ...], npt.NDArray[np.uint8]]:
    """Return every certificate that applies, why others do not, and the label that each group votes for."""
    x, dtype = torch.from_numpy(arrays.x_test), computed_in(built.config.train.dtype)
    ranks = label_ranks(built.task, models.thetas, x, dtype)
    ballots = ranks.argmin(2).astype(np.uint8)
    curves, absent = [*_votes(plan, ranks, ballots, arrays, options)], []

    def price() -> Iterator[CertificateCurve]:
        prices = vote_prices(built, arrays, plan, models)
        bears = votes.priced(ballots, prices, len(arrays.classes), plan.devices)
        yield _vote_curve(INSIDE, "exact", plan, ballots, arrays, bears)

    for name, found in ((INSIDE, price), ("one model", alone.curves)):
        try:
            for curve in found():  # one by one: some may come before it turns out that others do not apply
                curves.append(curve)
        except ConfigError as error:
            absent.append((name, str(error)))
    return tuple(curves), tuple(absent), ballots


def _votes(
    plan: GroupPlan, ranks: npt.NDArray[np.uint8], ballots: npt.NDArray[np.uint8], arrays: Arrays, options: VoteOptions
) -> Iterator[CertificateCurve]:
    classes = len(arrays.classes)
    curve = partial(_vote_curve, plan=plan, ballots=ballots, arrays=arrays)
    if plan.kind == "subsets":
        assert plan.subset is not None
        sampled = {"devices": plan.devices, "subset": plan.subset, "confidence": options.confidence}
        bears = subset_votes.random_subsets(ballots, classes, **sampled)  # type: ignore[arg-type]
        yield curve(SUBSETS, "confidence", bears=bears)
        yield curve(KNOWN, "bound", bears=spread_votes.spread(ballots, plan.touched, classes))
        return
    if plan.reach is None:
        yield curve(VOTE, "exact", bears=votes.disjoint(ballots, classes))
    else:
        yield curve(SPREAD, "bound", bears=spread_votes.spread(ballots, plan.reach, classes))
    elected, _ = spread_votes.run_off_winner(ranks)
    yield curve(RUN_OFF, "bound", bears=spread_votes.run_off(ranks, plan.reach), labels=elected)


def _vote_curve(
    name: str,
    promise: Promise,
    plan: GroupPlan,
    ballots: npt.NDArray[np.uint8],
    arrays: Arrays,
    bears: IntArray,
    labels: IntArray | None = None,
) -> CertificateCurve:
    """Return the curve of a vote, from the compromised devices that each prediction bears."""
    predicted = votes.tally(ballots, len(arrays.classes)).argmax(1) if labels is None else labels
    right = predicted == arrays.y_test
    certain = right & (bears >= 0)
    certified = certified_curve(bears, certain, np.arange(max(int(bears.max(initial=0)), 0) + 2))
    return CertificateCurve(name, promise, float(right.mean()), certified, plan.groups, plan.sizes[0])


class _OneModel(NamedTuple):
    """The certificates of one model that all devices train, by the routes of `theory.linear`."""

    config: Config
    train: bool  # also if it has no certificate, for its accuracy
    folder: Path
    runner: RunAll

    def curves(self) -> Iterator[CertificateCurve]:
        """Yield the curve by each route; train the model first, into its own folder.

        Raises:
            ConfigError: The theory does not cover the model or the server.
        """
        try:
            certificate = certify_radius(
                self.config, share=1 / self.config.train.cohort, train=True, folder=self.folder, runner=self.runner
            )
        except ConfigError:
            if self.train:
                yield self._plain()
            raise
        source = certificate.source
        assert source.final is not None
        x, y = torch.from_numpy(source.arrays.x_test), torch.from_numpy(source.arrays.y_test)
        seen = linear.task_points(source.experiment.task, source.final, x, y)
        of_share = linear.radii_of_share(certificate.own.schedule)
        for name in (RECURSION, L2_ROUTE):
            yield self._curve(name, partial(_route, seen, of_share, name), float(seen.right.mean()))

    def _curve(self, name: str, certified: Callable[[float], float], accuracy: float) -> CertificateCurve:
        """Return a curve over m: all of the compromised devices may be in the same cohort."""
        cohort, values = self.config.train.cohort, [accuracy]
        while values[-1] > 0 and len(values) <= cohort:
            values.append(certified(len(values) / cohort))
        return CertificateCurve(name, "exact", accuracy, np.array(values), 1, cohort)

    def _plain(self) -> CertificateCurve:
        """Return the one model's accuracy alone."""
        place = runs.free_folder(self.folder / (self.config.name or "trained"), configs.dump(self.config))
        self.runner({place: self.config})
        accuracy = float(runs.load_run(place).rows[-1]["test_accuracy"])
        return CertificateCurve(ALONE, "none", accuracy, np.zeros(0), 1, self.config.train.cohort)


def _route(seen: Points, of_share: Callable[[float], Radii], name: str, share: float) -> float:
    """Return certified accuracy at a share of attackers by one of the two routes."""
    both = of_share(share)
    return linear.certified_accuracy(seen, both._replace(**{"l2" if name == RECURSION else "l1": math.inf}))


# --- costs -----------------------------------------------------------------------------------------------------------


def kept_groups(ballots: npt.NDArray[np.integer], arrays: Arrays, wanted: int) -> KeptGroups | None:
    """Return the fewest groups whose vote alone certifies nearly as much at the wanted m as that of all.

    The groups are kept in their order, which the seed fixes; devices of the others no longer matter.
    """
    groups, least = len(ballots), 2 * wanted + 1
    if least > groups:
        return None
    sizes = sorted({*np.unique(np.geomspace(least, groups, 24).astype(int)).tolist(), groups})
    certified = {}
    for size in sizes:
        own = ballots[:size]
        right = votes.tally(own, len(arrays.classes)).argmax(1) == arrays.y_test
        bears = votes.disjoint(own, len(arrays.classes))
        certified[size] = float((right & (bears >= wanted)).mean())
    best = max(certified.values())
    size = next(size for size in sizes if certified[size] >= best - ENOUGH)
    return KeptGroups(size, certified[size])


def _costs(built: BuiltSimulation, plan: GroupPlan) -> GroupCosts:
    setup, train = built.setup, built.config.train
    sizes = np.diff(setup.federation.partition.offsets)

    def gradients(ids: npt.NDArray[np.int64] | slice, cohort: int) -> float:
        """Return the examples of an average cohort of these devices, times rounds and local epochs."""
        return float(sizes[ids].mean() * min(cohort, len(sizes[ids])) * built.rounds * train.local_epochs)

    together = sum(gradients(ids, train.cohort) for ids in plan.members)
    return GroupCosts(len(built.theta), together, gradients(slice(None), train.cohort))


def _distilled(built: BuiltSimulation, arrays: Arrays, models: GroupModels) -> float:
    """Train one model as the config says on the labels that the vote gives to the training examples.

    Attackers of that training are not bounded by anything: its accuracy has no certificate.
    """
    x = torch.from_numpy(arrays.x_train)
    ranks = label_ranks(built.task, models.thetas, x, computed_in(built.config.train.dtype))
    labels = torch.from_numpy(votes.tally(ranks.argmin(2), len(arrays.classes)).argmax(1))
    setup = replace(built.setup, federation=replace(built.setup.federation, y=labels), attack=None)
    state = start(setup, built.theta)
    for report in simulate(setup, state, built.rounds):
        state = report.state
    return float(built.evaluate(state.theta)["test_accuracy"])
