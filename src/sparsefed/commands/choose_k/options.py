"""What is asked for, checked before anything is computed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from sparsefed import config as configs
from sparsefed.commands.choose_k.choice import OMEGA, SAMPLES, Asked
from sparsefed.commands.choose_k.probes import probe_ks, with_k
from sparsefed.config import Config, Named
from sparsefed.core.errors import ConfigError
from sparsefed.core.signatures import parameters
from sparsefed.defenses import DEFENSES
from sparsefed.theory.choice_of_k import check_share

LATER = 50  # rounds of training before the second model that is sampled, at most; else a tenth of the run


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A config file whose defense has a k; whether it says which is left to it."""
    try:
        config = configs.read(path, overrides)
    except ConfigError:
        config = _without_k(path, overrides)
    if not _takes_k(config.defense.name):
        having = ", ".join(name for name in DEFENSES if _takes_k(name))
        raise ConfigError(f"defense {config.defense.name} has no k to choose; those that have one: {having}")
    return config


def _without_k(path: Path, overrides: Sequence[str]) -> Config:
    """Of a config that lacks nothing but its k; any other is refused as it would be by itself."""
    said = any(override.split("=")[0].strip() == "defense.k" for override in overrides)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("defense")
        if said or not isinstance(table, dict) or "k" in table:
            raise ConfigError("k is not what is missing")
        config = configs.read(path, [*overrides, "defense.k=1"])
    except (ConfigError, OSError, ValueError):
        return configs.read(path, overrides)
    left = {key: value for key, value in config.defense.params.items() if key != "k"}
    return config.model_copy(update={"defense": Named(name=config.defense.name, **left)})


def _takes_k(defense: str) -> bool:
    return any(parameter.name == "k" for parameter in parameters(configs.rule(defense).builder))


def ask(
    config: Config,
    *,
    omega: float | None = None,
    samples: int = SAMPLES,
    rounds_in: str | None = None,
    absolute: bool = False,
    paper: bool = False,
    probe: str | None = None,
    probe_rounds: int | None = None,
    trials: int | None = None,
) -> Asked:
    """The options of the command, or one sentence that says what is wrong with them."""
    if absolute and omega is None:
        raise ConfigError("--absolute makes --omega an l1 mass, which no default fits; say --omega X")
    share = OMEGA if omega is None else omega
    if not absolute:
        check_share(share)
    elif not 0 <= share < float("inf"):
        raise ConfigError(f"--omega is {share}, but with --absolute is an l1 mass that may be lost: use 0 up")
    if samples < 1:
        raise ConfigError(f"--samples is {samples}; at least 1 is needed")
    _check_probes(config, probe, probe_rounds, trials)
    return Asked(share, samples, _rounds_in(config, rounds_in), absolute, paper, probe or "", probe_rounds, trials)


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
        for option, given in (("--probe-rounds", rounds), ("--tune", trials)):
            if given is not None:
                raise ConfigError(f"{option} is for probe runs; add --probe N, or --probe K,K,...")
        return
    if rounds is not None and rounds < 1:
        raise ConfigError(f"--probe-rounds is {rounds}; at least 1 is needed")
    if trials is not None and trials < 1:
        raise ConfigError(f"--tune is {trials}; at least 1 trial is needed")
    if trials is not None and not config.is_attacked:
        raise ConfigError("--tune is for an attack, but nobody attacks in this config; add [threat] and [attack]")
    probe_ks(probe, 2**62)  # refuses what are no k's; those beyond the model's size are refused once it is known
    with_k(config, 1, rounds)
