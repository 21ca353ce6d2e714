"""The options of choosing k, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparsefed import config as configs
from sparsefed.commands.choose_k.choice import OMEGA, SAMPLES, ChooseKOptions
from sparsefed.commands.choose_k.probes import probe_ks, with_k
from sparsefed.commands.common import Subject
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.defenses import DEFENSES
from sparsefed.theory.choice_of_k import check_share

LATER = 50  # rounds of training before the second model that is sampled, at most; else a tenth of the run


def load(subject: Subject, overrides: Sequence[str] = ()) -> Config:
    """Load a config whose defense has a k, which the config may leave open.

    Raises:
        ConfigError: The defense has no k, or anything but the k is wrong with the config.
    """
    if isinstance(subject, str | Path | Mapping):
        config = configs.load_without_k(subject if isinstance(subject, Mapping) else Path(subject), overrides)
    else:
        config = configs.as_config(subject)
    if not configs.takes_k(config.defense.name):
        having = ", ".join(name for name in DEFENSES if configs.takes_k(name))
        raise ConfigError(f"defense {config.defense.name} has no k to choose; those that have one: {having}")
    return config


def checked(
    config: Config,
    *,
    omega: float | None = None,
    samples: int = SAMPLES,
    rounds_in: str | Sequence[int] | None = None,
    absolute: bool = False,
    paper: bool = False,
    probe: str | int | Sequence[int] | None = None,
    probe_rounds: int | None = None,
    tune_trials: int | None = None,
) -> ChooseKOptions:
    """Return the options of `choose_k`, or raise an error that explains what is wrong with them."""
    if absolute and omega is None:
        raise ConfigError("--absolute makes --omega an l1 mass, which no default fits; say --omega X")
    share = OMEGA if omega is None else omega
    if not absolute:
        check_share(share)
    elif not 0 <= share < float("inf"):
        raise ConfigError(f"--omega is {share}, but with --absolute is an l1 mass that may be lost: use 0 up")
    if samples < 1:
        raise ConfigError(f"--samples is {samples}; at least 1 is needed")
    ks = probe if isinstance(probe, str) or probe is None else _as_text(probe)
    _check_probes(config, ks, probe_rounds, tune_trials)
    wanted = rounds_in if isinstance(rounds_in, str) or rounds_in is None else ",".join(map(str, rounds_in))
    return ChooseKOptions(
        share, samples, _rounds_in(config, wanted), absolute, paper, ks or "", probe_rounds, tune_trials
    )


def _as_text(numbers: int | Sequence[int]) -> str:
    """Write a number, or a list of them, as the command line does.

    >>> _as_text(5), _as_text([5]), _as_text([5, 10])
    ('5', '5,', '5,10')
    """
    if isinstance(numbers, int):
        return str(numbers)
    return ",".join(map(str, numbers)) + ("," if len(numbers) == 1 else "")


def _rounds_in(config: Config, text: str | None) -> tuple[int, ...]:
    if text is None:
        return tuple(sorted({0, min(LATER, config.rounds // 10)}))
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--rounds-in is '{text}', but takes whole numbers, for instance 0,50") from None
    if rounds[0] < 0 or rounds[-1] >= config.rounds:
        raise ConfigError(
            f"--rounds-in is {text}, but the run has {config.rounds} rounds; use 0 to {config.rounds - 1}"
        )
    return tuple(rounds)


def _check_probes(config: Config, probe: str | None, rounds: int | None, trials: int | None) -> None:
    if probe is None:
        for option, value in (("--probe-rounds", rounds), ("--tune", trials)):
            if value is not None:
                raise ConfigError(f"{option} is for probe runs; add --probe N, or --probe K,K,...")
        return
    if rounds is not None and rounds < 1:
        raise ConfigError(f"--probe-rounds is {rounds}; at least 1 is needed")
    if trials is not None and trials < 1:
        raise ConfigError(f"--tune is {trials}; at least 1 trial is needed")
    if trials is not None and not config.is_attacked:
        raise ConfigError("--tune is for an attack, but nobody attacks in this config; add [threat] and [attack]")
    probe_ks(probe, 2**62)  # raises if these are no k's; the model's size is checked once it is known
    with_k(config, 1, rounds)
