"""What honest settings do under attack, with a suite: learning rate, batch and local epochs can do more than a rule.

No defense and the recommended one, at the first seed, each without attackers and under the attack that does it most
harm: with half and twice the learning rate; in FedAvg mode also with half the batch and twice the local epochs. The
defense keeps its parameters. "clipping with lr = 0.1" is clipping in the config with that change.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from sparsefed import config as configs
from sparsefed.commands.audit.defense_specs import UNDEFENDED
from sparsefed.commands.audit.findings import AuditResult, hardest
from sparsefed.commands.audit.plan import cell_group, unattacked_group
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.results.numbers import significant
from sparsefed.sweeps.plan import CellGroup, SweepPlan

NAME = "settings"
WITH = " with "


def settings(config: Config, examples: int) -> dict[str, Config]:
    """Return the config with each of the other settings, by what is changed; a usual device has so many examples."""
    train, table = config.train, configs.dump(config)
    rate = "lr" if train.local_lr is None else "local_lr"
    passes = "local_epochs" if train.local_steps is None else "local_steps"
    changes = [(rate, significant(getattr(train, rate) * factor)) for factor in (0.5, 2.0)]
    changes += [("local_batch", max(1, (train.local_batch or examples) // 2)), (passes, 2 * getattr(train, passes))]
    changed: dict[str, Config] = {}
    for key, value in changes:
        with suppress(ConfigError):  # refused where it has no meaning, as in uncompressed mode
            changed[f"{key} = {value:g}"] = configs.parse({**table, "train": {**table["train"], key: value}})
    return changed


def settings_plan(result: AuditResult) -> SweepPlan:
    """Return the runs with other settings."""
    partition = configs.build(result.config).setup.federation.partition
    others = settings(result.config, int(np.median(np.diff(partition.offsets))))
    seeds, groups = result.options.reported_seeds[:1], list[CellGroup]()
    for spec, attack, variant in hardest(result, [UNDEFENDED]):
        for setting, config in others.items():
            options, name = replace(result.options, config=config), f"{spec.name}{WITH}{setting}"
            goal = attack if attack.other_goal else None
            groups.append(unattacked_group(name, options, spec.table, seeds, goal))
            groups.append(cell_group(name, attack.name, options, spec.table, attack.variant(variant), seeds))
    return SweepPlan(NAME, tuple(groups))
