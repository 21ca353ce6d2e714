"""The options of an audit, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefed import config as configs
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError

TRIALS, SEEDS, TOLERANCE = 3, 2, 0.02
SEARCH = 1000  # added to the config's seed for the runs of the search: no reported run is one that was selected
ALL, AUTO = "all", "auto"


@dataclass(frozen=True)
class AuditOptions:
    """The options of one audit."""

    config: Config  # the task, the threat model and the first attack
    defenses: tuple[str, ...] = ()  # by name; none: the usual panel
    attacks: tuple[str, ...] = ()  # by name, besides the config's own; none: those that fit
    trials: int = TRIALS  # variants of each attack that each defense meets
    seeds: int = SEEDS  # that the strongest of them is reported with
    tolerance: float = TOLERANCE  # test accuracy that a defense may cost without attackers
    sensitivity: bool = True  # whether k and L are varied

    @property
    def reported(self) -> tuple[int, ...]:
        return tuple(range(self.config.seed, self.config.seed + self.seeds))

    @property
    def search_seed(self) -> int:
        return self.config.seed + SEARCH


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load a config and check that it has attackers."""
    return attacked(configs.read(path, overrides))


def attacked(config: Config) -> Config:
    """Return the config if it has attackers; raise a `ConfigError` otherwise."""
    if not config.is_attacked:
        raise ConfigError(
            "nobody attacks in this config, so there is nothing to audit; say who is compromised and what they want, "
            'for instance [threat] share = 0.02 and [attack] name = "pgd"'
        )
    return config


def ask(
    config: Config,
    *,
    defenses: str | Sequence[str] = "",
    attacks: str | Sequence[str] = "",
    trials: int = TRIALS,
    seeds: int = SEEDS,
    tolerance: float = 100 * TOLERANCE,
    sensitivity: bool = True,
) -> AuditOptions:
    """Return the command's options (the tolerance in points), or raise an error that explains what is wrong."""
    for option, given in (("--trials", trials), ("--seeds", seeds)):
        if given < 1:
            raise ConfigError(f"{option} is {given}; at least 1 is needed")
    if seeds > SEARCH:
        raise ConfigError(f"--seeds is {seeds}; use at most {SEARCH}")
    if not 0 <= tolerance <= 100:
        raise ConfigError(f"--tolerance is {tolerance:g}, but is in points of test accuracy; use 0 to 100")
    return AuditOptions(
        attacked(config),
        _names("--defenses", defenses, ALL),
        _names("--attacks", attacks, AUTO),
        trials,
        seeds,
        tolerance / 100,
        sensitivity,
    )


def _names(option: str, given: str | Sequence[str], word: str) -> tuple[str, ...]:
    text = given if isinstance(given, str) else ",".join(given)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text.strip() else ()
    if not all(names):
        raise ConfigError(f"{option} is '{text}', but takes names between commas, or '{word}'")
    if word in names and len(names) > 1:
        raise ConfigError(f"{option} is '{text}': '{word}' stands alone, or leave it out and name some")
    return () if names == (AUTO,) else names
