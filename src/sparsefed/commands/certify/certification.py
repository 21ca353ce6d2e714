"""The one function of `sparsefed certify`: a radius for one model, or votes of groups of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from sparsefed.commands.certify.assumptions import WORST
from sparsefed.commands.certify.certificate import Certificate, certify_radius, check_attackers
from sparsefed.commands.certify.group_certificate import VoteCertificate, VoteOptions, certify_votes
from sparsefed.commands.common import RunAll, Subject
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress
from sparsefed.theory.subset_votes import CONFIDENCE


@overload
def certify(
    subject: Subject,
    *,
    groups: None = None,
    share: float | None = ...,
    attackers: int | None = ...,
    c: float | None = ...,
    estimate_c: bool = ...,
    omega: str | float = ...,
    overrides: Sequence[str] = ...,
    trained: Path | str | None = ...,
    train: bool = ...,
    folder: Path | str | None = ...,
    on_progress: OnProgress | None = ...,
    runner: RunAll | None = ...,
) -> Certificate: ...


@overload
def certify(
    subject: Subject,
    *,
    groups: int,
    spread: int = ...,
    subset: int | None = ...,
    confidence: float = ...,
    distill: bool = ...,
    share: float | None = ...,
    attackers: int | None = ...,
    overrides: Sequence[str] = ...,
    train: bool = ...,
    folder: Path | str | None = ...,
    on_progress: OnProgress | None = ...,
    runner: RunAll | None = ...,
) -> VoteCertificate: ...


def certify(
    subject: Subject,
    *,
    groups: int | None = None,
    spread: int = 1,
    subset: int | None = None,
    confidence: float = CONFIDENCE,
    distill: bool = False,
    share: float | None = None,
    attackers: int | None = None,
    c: float | None = None,
    estimate_c: bool = False,
    omega: str | float = WORST,
    overrides: Sequence[str] = (),
    trained: Path | str | None = None,
    train: bool = False,
    folder: Path | str | None = None,
    on_progress: OnProgress | None = None,
    runner: RunAll | None = None,
) -> Certificate | VoteCertificate:
    """Certify what attackers cannot do to the model of a config or a run, or to the votes of groups of its devices.

    Args:
        subject: A config, its table, the path of its file, or a run folder.
        groups: The number of groups of devices, each of which trains a model; the vote of all is certified. None: one
            model, and how far attackers can move it.
        spread: The groups that each device is in (Finite Aggregation); 1: disjoint groups.
        subset: The devices of each group, drawn at random for each group anew, instead of `spread`.
        confidence: The probability with which the certificates of random subsets are right, all together.
        distill: Whether to train one model on the labels of the vote, too; it has no certificate.
        share: The attackers' share of each round's updates, or of all devices for groups; by default as many attackers
            as the subject has, or 1 % of the devices.
        attackers: The attackers in each round, or among all devices for groups, instead of `share`.
        c: How fast a coordinate of a device's gradient can change; by default exact for one softmax layer, and
            estimated for any other model, which then has no certificate.
        estimate_c: Whether to estimate c also where it is known.
        omega: What top-k leaves of l1 mass: 'worst', 'measured' (of a run), or a share.
        overrides: `key=value` on top of a config file.
        trained: The folder of a config's run without attackers, for certified accuracy.
        train: Whether to train a config without attackers for that; with groups, also if it has no certificate.
        folder: Where runs and the models of groups are kept, under their names; by default nowhere.
        on_progress: Called after every round.
        runner: How the run of one model is carried out, instead.

    Returns:
        The radii, what they rest on, and the verdict in sentences; or all certificates of the groups side by side.

    Raises:
        ConfigError: The theory does not cover the subject, or an option is impossible.
        RunError: A run is not finished, or damaged.
    """
    check_attackers(share, attackers)
    if groups is None:
        if spread != 1 or subset is not None or distill:
            raise ConfigError("--spread, --subset and --distill are about groups; give --groups, too")
        return certify_radius(
            subject,
            share=share,
            attackers=attackers,
            c=c,
            estimate_c=estimate_c,
            omega=omega,
            overrides=overrides,
            trained=trained,
            train=train,
            folder=folder,
            on_progress=on_progress,
            runner=runner,
        )
    if c is not None or estimate_c or omega != WORST or trained is not None:
        raise ConfigError("--c, --estimate-c, --omega and a trained run are about one model; leave them out for groups")
    options = VoteOptions(groups, spread, subset, confidence, distill, share, attackers, train)
    return certify_votes(subject, options, overrides=overrides, folder=folder, on_progress=on_progress, runner=runner)
