"""Standard attack suites: fixed ensembles without parameters, so that "held against suite v1 at 2 %" means one thing.

A suite says everything about the attackers but who they are: their goals and methods, what they know (everything), how
many variants each defense meets. Who and how many they are stays with the config's [threat]. A published suite never
changes; a better one gets another number.

Suite v1, each attack as given and in two more variants:

    targeted     pgd             wrong labels for 100 test points, or for a tenth of the test set if that is less
    targeted     adaptive_push   the same, foreseeing what the server applies (adaptive to the defense)
    backdoor     neurotoxin      images that carry a trigger; other data with classes: `semantic`, class 1 called 0
    untargeted   sign_flip       the honest direction reversed, as long as the server allows
    untargeted   ipm_searched    its strength searched against the defense in every round (adaptive to the defense)
    untargeted   alie_searched   likewise

Attacks without a meaning for the task's targets are left out, and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefed import config as configs
from sparsefed import data
from sparsefed.attacks import ATTACKS, NEEDS, attack_info
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.types import Arrays

SUITES = ("v1",)
TRIALS = 3  # variants of each attack
POINTS = 100  # of a targeted attack

Table = Mapping[str, Any]


def suite_attacks(suite: str, config: Config) -> tuple[list[Table], dict[str, str]]:
    """Return the attacks of a suite that fit the config's task, and those left out with the reason.

    Raises:
        ConfigError: there is no such suite.
    """
    if suite not in SUITES:
        raise ConfigError(f"--suite: {unknown('suite', suite, SUITES)}")
    arrays = data.load(configs.dataset(config))
    kind, fitting, left_out = arrays.target_kind, [], {}
    for table in _v1(arrays):
        name = str(table["name"])
        if attack_info(ATTACKS[name]).fits(kind):
            fitting.append(table)
        else:
            left_out[name] = f"has no meaning for targets of kind '{kind}'"
    return fitting, left_out


def _v1(arrays: Arrays) -> list[Table]:
    points = max(1, min(POINTS, len(arrays.y_test) // 10))
    backdoor = {"name": "neurotoxin"} if arrays.is_image else {"name": "semantic", "source": 1, "target": 0}
    return [
        {"name": "pgd", "auxiliary": points},
        {"name": "adaptive_push", "auxiliary": points},
        backdoor,
        {"name": "sign_flip"},
        {"name": "ipm_searched"},
        {"name": "alie_searched"},
    ]


def with_suite(config: Config, suite: str) -> Config:
    """Return the config with the first attack of a suite, and attackers who know everything there is to know."""
    attacks, _ = suite_attacks(suite, config)
    table = configs.dump(config)
    threat = {**table["threat"], "knowledge": list(NEEDS)}
    return configs.parse({**table, "threat": threat, "attack": dict(attacks[0])})
