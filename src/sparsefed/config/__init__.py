"""Configs: TOML to validated records to a simulation; the only place where a string becomes a function.

An unknown key, a value of the wrong type or an impossible one is one sentence before anything starts: `parse` refuses
all that can be refused without data, `build` the rest (k > d, more auxiliary than test points) before a run folder is
made. Wherever a name is accepted, `"my_package.my_module:my_function"` is too. `base` names a config to start from
(`templates.py`).
"""

from __future__ import annotations

from sparsefed.config.build import BuiltSimulation, build, build_all, deal
from sparsefed.config.load import as_config, dump, is_live, load_without_k, of_run, parse, read, twins
from sparsefed.config.lookup import attacker, dataset, resolve, rule, score_title, takes_k, takes_weights
from sparsefed.config.overrides import several, value_of
from sparsefed.config.schema import Config, DataTable, Named

__all__ = [
    "BuiltSimulation",
    "Config",
    "DataTable",
    "Named",
    "as_config",
    "attacker",
    "build",
    "build_all",
    "dataset",
    "deal",
    "dump",
    "is_live",
    "load_without_k",
    "of_run",
    "parse",
    "read",
    "resolve",
    "rule",
    "score_title",
    "several",
    "takes_k",
    "takes_weights",
    "twins",
    "value_of",
]
