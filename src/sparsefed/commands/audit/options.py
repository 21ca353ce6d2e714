"""The options of an audit, checked before anything is computed; and those of the demo, short enough to watch."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from sparsefed import config as configs
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.results.verdict import listed

SEARCH = 1000  # added to the config's seed for the runs of the search: no reported run is one that was selected
LEAST_BUDGET = 40  # runs of tuning a defense: fewer end within the opening
ALL, AUTO = "all", "auto"
DEMO_DEFENSES = ("undefended", "clipping", "sparsefed", "multi_krum")


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
    budget: int = 300  # runs in which a defense is tuned, if none holds by rule; 0: none is tuned
    suite: str = ""  # a standard suite in the place of the config's attack
    tune_only: bool = False  # compare no defenses by rule: only none, the config's own and the tuned one

    def __post_init__(self) -> None:
        if not self.config.is_attacked:
            raise ConfigError(
                "there are no attackers in this config, so there is nothing to audit; name the compromised devices and "
                'the attack, for instance [threat] share = 0.02 and [attack] name = "pgd"'
            )
        for option, given in (("--trials", self.trials), ("--seeds", self.seeds)):
            if given < 1:
                raise ConfigError(f"{option} is {given}; at least 1 is needed")
        if self.suite and self.attacks:
            raise ConfigError("--suite says which attacks there are, so --attacks cannot; give one of them")
        if self.budget and self.budget < LEAST_BUDGET:
            raise ConfigError(f"--budget is {self.budget} runs; use at least {LEAST_BUDGET}, or 0 to tune no defense")
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

    @property
    def tuning_seed(self) -> int:
        return self.config.seed + 2 * SEARCH


def _names(option: str, given: str | Sequence[str], word: str) -> tuple[str, ...]:
    text = given if isinstance(given, str) else ",".join(given)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text.strip() else ()
    if not all(names):
        raise ConfigError(f"{option} is '{text}', but takes names between commas, or '{word}'")
    if word in names and len(names) > 1:
        raise ConfigError(f"{option} is '{text}': '{word}' stands alone, or leave it out and name some")
    return () if names == (AUTO,) else names


def threat_in_words(config: Config) -> str:
    """Describe the threat model of a config in a few words."""
    threat = config.threat
    if threat.per_round is not None:
        attackers = f"{threat.per_round} attackers in every round"
    elif threat.share is not None:
        attackers = f"{100 * threat.share:.3g} % of the devices compromised"
    else:
        attackers = f"{threat.count if threat.ids is None else len(threat.ids)} devices compromised"
    return f"{attackers}, knowing {' and '.join(threat.knowledge) or 'nothing but public facts'}"


def demo(overrides: Sequence[str] = ()) -> AuditOptions:
    """Return the demo's options: four defenses, the config's attack and an untargeted one, at one seed."""
    text = resources.files("sparsefed").joinpath("config/files/demo.toml").read_text(encoding="utf-8")
    config = configs.parse(tomllib.loads(text), overrides)
    return AuditOptions(config, DEMO_DEFENSES, ["sign_flip"], trials=1, seeds=1, sensitivity=False, budget=0)


def introduction(options: AuditOptions) -> str:
    """Return a text that explains the demo before it runs."""
    config = options.config
    points = config.attack.params.get("auxiliary", 0) if config.attack else 0
    return (
        f"{config.data.devices} devices share {config.data.name} ({config.data.partition}); {threat_in_words(config)}. "
        f"The first attack wants {points} test images labelled wrongly, the second a useless model. The same "
        f"{config.model.name}, {config.rounds} rounds of {config.train.cohort} devices, under each attack and without "
        f"one: {listed(options.defense_names)}.\n"
    )
