"""The options of an audit, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefed.config import Config
from sparsefed.core.errors import ConfigError

SEARCH = 1000  # added to the config's seed for the runs of the search: no reported run is one that was selected
ALL, AUTO = "all", "auto"


@dataclass(frozen=True)
class AuditOptions:
    """The options of one audit; wrong ones raise a `ConfigError`."""

    config: Config  # the task, the threat model and the first attack
    defenses: str | Sequence[str] = ()  # names, or "all"; none: those registered for audits
    attacks: str | Sequence[str] = ()  # names, besides the config's own; none: those that fit
    trials: int = 3  # variants of each attack that each defense meets
    seeds: int = 2  # that the strongest of them is reported with
    tolerance: float = 2.0  # points of test accuracy that a defense may cost without attackers
    sensitivity: bool = True  # whether k and L are varied

    def __post_init__(self) -> None:
        if not self.config.is_attacked:
            raise ConfigError(
                "there are no attackers in this config, so there is nothing to audit; name the compromised devices and "
                'the attack, for instance [threat] share = 0.02 and [attack] name = "pgd"'
            )
        for option, given in (("--trials", self.trials), ("--seeds", self.seeds)):
            if given < 1:
                raise ConfigError(f"{option} is {given}; at least 1 is needed")
        if self.seeds > SEARCH:
            raise ConfigError(f"--seeds is {self.seeds}; use at most {SEARCH}")
        if not 0 <= self.tolerance <= 100:
            raise ConfigError(f"--tolerance is {self.tolerance:g}, but is in points of test accuracy; use 0 to 100")

    @property
    def defense_names(self) -> tuple[str, ...]:
        return _names("--defenses", self.defenses, ALL)

    @property
    def attack_names(self) -> tuple[str, ...]:
        return _names("--attacks", self.attacks, AUTO)

    @property
    def reported_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.config.seed, self.config.seed + self.seeds))

    @property
    def search_seed(self) -> int:
        return self.config.seed + SEARCH


def _names(option: str, given: str | Sequence[str], word: str) -> tuple[str, ...]:
    text = given if isinstance(given, str) else ",".join(given)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text.strip() else ()
    if not all(names):
        raise ConfigError(f"{option} is '{text}', but takes names between commas, or '{word}'")
    if word in names and len(names) > 1:
        raise ConfigError(f"{option} is '{text}': '{word}' stands alone, or leave it out and name some")
    return () if names == (AUTO,) else names
