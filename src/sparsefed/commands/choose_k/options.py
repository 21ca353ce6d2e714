"""The options of choosing k, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsefed import config as configs
from sparsefed.commands.common import Subject
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.core.schedule import peak_share
from sparsefed.defenses import DEFENSES
from sparsefed.kernels.topk import check_k
from sparsefed.theory.choice_of_k import check_share

OMEGA, SAMPLES = 0.5, 10
LATER = 50  # rounds of training before the second model that is sampled, at most; else a tenth of the run
SPAN = 1000  # a grid of k's goes from d / SPAN to d
EVALUATIONS = 10  # of a probe whose rounds are not the config's, at least


@dataclass(frozen=True)
class ChooseKOptions:
    """The options of choosing k."""

    omega: float = OMEGA
    samples: int = SAMPLES
    rounds_in: tuple[int, ...] = (0,)  # ascending: after how many rounds the model is sampled
    absolute: bool = False  # omega is a mass, as the paper's box prints it, and not a share
    paper: bool = False  # also the paper's box, with new samples in every iteration
    probe: str = ""  # k's, or how many
    probe_rounds: int | None = None  # None: the config's
    trials: int | None = None  # of tuning the attack at each probed k; None: the attack as the config has it


def load(subject: Subject, overrides: Sequence[str] = ()) -> Config:
    """Load a config whose defense has a k, which the config may leave open; raise any other error."""
    if isinstance(subject, str | Path | Mapping):
        config = configs.load_without_k(subject if isinstance(subject, Mapping) else Path(subject), overrides)
    else:
        config = configs.as_config(subject)
    if not configs.takes_k(config.defense.name):
        having = ", ".join(name for name in DEFENSES if configs.takes_k(name))
        raise ConfigError(f"defense {config.defense.name} has no k to choose; those that have one: {having}")
    return config


def omega(given: float | None, absolute: bool) -> float:
    """Return the loss that is allowed: a share of the l1 mass, or, if `absolute`, a mass."""
    if not absolute:
        share = OMEGA if given is None else given
        check_share(share)
        return share
    if given is None:
        raise ConfigError("--absolute makes --omega an l1 mass, which no default fits; say --omega X")
    if not 0 <= given < float("inf"):
        raise ConfigError(f"--omega is {given}, but with --absolute is an l1 mass that may be lost: use 0 up")
    return given


def rounds_in(config: Config, given: str | Sequence[int] | None) -> tuple[int, ...]:
    """Return after how many rounds the model is sampled, ascending."""
    if given is None:
        return tuple(sorted({0, min(LATER, config.rounds // 10)}))
    text = given if isinstance(given, str) else ",".join(map(str, given))
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--rounds-in is '{text}', but takes whole numbers, for instance 0,50") from None
    if rounds[0] < 0 or rounds[-1] >= config.rounds:
        raise ConfigError(
            f"--rounds-in is {text}, but the run has {config.rounds} rounds; use 0 to {config.rounds - 1}"
        )
    return tuple(rounds)


def probe(given: str | int | Sequence[int] | None) -> str:
    """Return the k's to probe, or how many, as the command line has them; an empty text if there are none.

    >>> probe(None), probe(5), probe([5]), probe([5, 10])
    ('', '5', '5,', '5,10')
    """
    if given is None:
        return ""
    text = str(given) if isinstance(given, str | int) else ",".join(map(str, given)) + "," * (len(given) == 1)
    probe_ks(text, 2**62)  # raises if these are no k's; the model's size is checked once it is known
    return text


def probe_ks(text: str, d: int) -> tuple[int, ...]:
    """Return the k's that a text lists, or the given number of them, log-spaced from d / 1000 to d.

    >>> probe_ks("300,100", 1000), probe_ks("4", 1000)
    ((100, 300), (1, 10, 100, 1000))
    """
    try:
        given = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = []
    if not given:
        raise ConfigError(f"--probe is '{text}'; say how many k's to try, for instance 5, or which: 100,1000,10000")
    if "," in text:
        for k in given:
            check_k(k, d)
        return tuple(sorted(set(given)))
    if given[0] < 2:
        raise ConfigError(f"--probe is {text}; at least 2 k's are needed, or name one with a comma: --probe {text},")
    spaced = np.rint(np.geomspace(max(1, d / SPAN), d, given[0])).astype(int)
    return tuple(sorted(set(spaced.tolist())))


def with_k(config: Config, k: int, rounds: int | None = None) -> Config:
    """Return the config with this k and that many rounds: its schedule compressed, and evaluated often enough."""
    table = configs.dump(config)
    table["defense"]["k"] = k
    if rounds is not None and rounds != config.rounds:
        table.pop("epochs", None)
        table |= {"rounds": rounds, "evaluate_every": min(config.evaluate_every, max(1, rounds // EVALUATIONS))}
        peak_epoch = table["train"].pop("peak_epoch", None)
        if peak_epoch is not None:
            peak = peak_share(peak_epoch, config.rounds, config.data.devices, config.train.cohort)
            table["train"]["peak_at"] = peak
    return configs.parse(table)


def check(config: Config, options: ChooseKOptions) -> None:
    """Raise an error that explains what is wrong with the options, if anything is."""
    counts = {"--samples": options.samples, "--probe-rounds": options.probe_rounds, "--tune": options.trials}
    for option, count in counts.items():
        if count is not None and option != "--samples" and not options.probe:
            raise ConfigError(f"{option} is for probe runs; add --probe N, or --probe K,K,...")
        if count is not None and count < 1:
            raise ConfigError(f"{option} is {count}; at least 1 is needed")
    if options.trials is not None and not config.is_attacked:
        raise ConfigError("--tune is for an attack, but this config has none; add [threat] and [attack]")
    if options.probe:
        with_k(config, 1, options.probe_rounds)
