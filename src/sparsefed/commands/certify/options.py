"""From a path and the options of the command to a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefed.commands.certify.accuracy import accuracy
from sparsefed.commands.certify.assumptions import Assumption
from sparsefed.commands.certify.attackers import shares
from sparsefed.commands.certify.certificate import Certificate, certificate
from sparsefed.commands.certify.l2_bound import l2_route, longest
from sparsefed.commands.certify.smoothness import Smoothness, is_linear, smoothness
from sparsefed.commands.certify.subject import Source, of_config, read, unattacked
from sparsefed.commands.certify.supported import Server, server_of
from sparsefed.commands.certify.threat_schedules import WORST, omegas, protocols
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError


@dataclass(frozen=True)
class Question:
    """The options."""

    share: float | None = None
    attackers: int | None = None
    c: float | None = None
    estimate_c: bool = False
    omega: str = WORST


NOTHING_ASKED = Question()


def certify(
    path: Path, question: Question = NOTHING_ASKED, overrides: Sequence[str] = (), trained: Path | None = None
) -> Certificate:
    """The certificate of a config or a run folder, or one sentence that says why there is none; `trained` is the run
    of a config without attackers."""
    check(question)
    return of_source(read(path, overrides, trained), question)


def certify_config(config: Config, trained: Path | None = None) -> Certificate:
    """Return the certificate of a config.

    Args:
        config: What is certified.
        trained: The folder of its run without attackers, whose model certified accuracy is about.

    Raises:
        SparseFedError: If there is no certificate; the message says why.
    """
    return of_source(of_config(config, Path(config.name or "the config"), trained), NOTHING_ASKED)


def of_source(source: Source, question: Question) -> Certificate:
    """The same for what has been read."""
    server = server_of(source.config)
    attacking, threat = shares(source, question.share, question.attackers)
    lost, losing = omegas(source, server, question.omega)
    smooth, smoothing = smoothness(source, question.c, question.estimate_c)
    found = protocols(source, server, attacking, smooth, lost)
    route = l2_route(source, server, smooth)
    predictions = accuracy(source, smooth, route, found.own)
    rests_on = [threat, *smoothing, *([losing] if losing else []), *_lengths(source, smooth), *_always(source, server)]
    return certificate(source, found, route, rests_on, smooth.c, predictions)


def to_train(found: Certificate) -> Config:
    """The config whose run gives a config's certificate the model that certified accuracy is about."""
    source = found.source
    if source.run is not None:
        raise ConfigError(f"{source.path} is a run and has been trained; --train is for configs")
    if not is_linear(source):
        raise ConfigError(
            f"--train is for certified accuracy, which one softmax layer has and model {source.config.model.name} has "
            'not; leave it out, or use [model] name = "softmax"'
        )
    return unattacked(source)


def check(question: Question) -> None:
    """What can be refused before anything is loaded."""
    if question.share is not None and question.attackers is not None:
        raise ConfigError("--share and --attackers say the same thing twice; give one of them")
    if question.c is not None and question.estimate_c:
        raise ConfigError("--c gives c and --estimate-c searches for it; give one of them")
    if question.c is not None and not 0 < question.c < float("inf"):
        raise ConfigError(
            f"--c is {question.c:g}, but it bounds how fast a gradient changes: choose a finite number above 0"
        )
    if question.share is not None and not 0 <= question.share < 1:
        raise ConfigError(
            f"--share is {question.share:g}, but it is a share of each round's updates: choose 0 <= share < 1"
        )


def _lengths(source: Source, smooth: Smoothness) -> Iterator[Assumption]:
    if smooth.layer is not None and longest(source) is not None:
        said = (
            "How long honest updates were before clipping was measured; the l2 route uses that clipping cut none of "
            "them where they were short enough for every attack within reach."
        )
        yield Assumption("honest lengths", said, "measured")


def _always(source: Source, server: Server) -> Iterator[Assumption]:
    """What every certificate rests on."""
    rounds = source.rounds
    rates, norms = [each.lr for each in rounds], [each.budget for each in rounds]
    where = "as the run recorded them" if source.run else "from the config's schedule"
    done = (
        "" if source.finished else f" The run is unfinished: only these of its {source.config.rounds:,} rounds count."
    )
    yield Assumption(
        "rounds",
        f"{len(rounds):,}, {where}; the learning rates add up to {sum(rates):.4g} and are from {min(rates):.3g} to "
        f"{max(rates):.3g}.{done}",
        "by construction",
    )
    yield Assumption(
        "clip norm",
        f"The server cuts every update to {_between(norms)} in l2, whoever sent it, and drops what is not finite.",
        "by construction",
    )
    if server.rho:
        said = f"Server momentum {server.rho:g}: the recursion extended to it, as derived in docs/certificate.md."
        yield Assumption("momentum", said, "by construction")
    yield Assumption(
        "same draws",
        "Both runs have the same first model, cohorts, examples and random draws: these depend on the seed, the round "
        "and the device alone.",
        "by construction",
    )
    yield Assumption("honest updates", "Every honest update is finite, so that none of them is dropped.", "assumed")
    dtype = source.config.train.dtype
    yield Assumption("arithmetic", f"Real numbers: the rounding of {dtype} is not counted.", "assumed")


def _between(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{high:.4g}" if low == high else f"{low:.3g} to {high:.3g}"
