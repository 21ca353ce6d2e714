"""Small exhibits for tests: two defenses, a search, twins, seconds on generated data; and a formula."""

from __future__ import annotations

from typing import Any

from torch import nn

TINY = """
title = "Attack accuracy by defense"
where = "Table 0"
question = "Which defense keeps the attackers out?"
metrics = ["attack_mean", "test_accuracy", "lost", "l1"]
twins = ["unattacked", "plain"]

[common]
base = "fmnist/cross-device"

[axes.data]
One = {}
Two = { rounds = 10 }

[axes.defense]
Clipping = { defense = { name = "clipping", clip_norm = 5.0 } }
SparseFed = { defense = { name = "sparsefed", k = 1000, clip_norm = 5.0 } }
Nobody = { attack = false }

[search]
seed = 7
[search.attacks]
weak = { epochs = 1, step = 0.01 }
strong = { epochs = 10, step = 0.3 }

[[skip]]
data = "Two"

[scales.paper]
seeds = [0, 1, 2]

[scales.smoke]
seeds = [0, 1]
note = "Everything is tiny."
set.rounds = 24
set.evaluate_every = 8
set.checkpoint_every = 4
set.data = { name = "sparsefed.commands.reproduce.tiny:IMAGES", devices = 40 }
set.model = { name = "softmax" }
set.train = { cohort = 10, lr = 0.5 }
set.attack = { auxiliary = 10 }
set.threat = { share = 0.2 }
axes.defense.SparseFed = { defense = { k = 50 } }
axes.defense.Nobody = { defense = { k = 50 } }

[[claims]]
text = "SparseFed has the lowest attack accuracy"
where = "Section 0"
metric = "attack_mean"
lower = { defense = "SparseFed" }
at = { defense = ["SparseFed", "Clipping"] }

[chart]
kind = "bars"
x = "defense"
y = ["attack_mean", "test_accuracy"]
panel = "data"
"""

PAPER = """
{"where": "Table 0", "rows": [
  {"cell": {"defense": "Clipping"}, "metric": "attack_mean", "value": 1.0, "as_printed": "100"},
  {"cell": {"defense": "SparseFed", "data": "One"}, "metric": "attack_mean", "value": "DNC", "as_printed": "DNC"}],
 "notes": ["made up"]}
"""

BOUNDS = """
title = "Ensembles"
where = "Section 2"
question = "How many?"
kind = "formula"
formula = "sparsefed.theory.ensembles:rows"
metrics = ["largest_m", "largest_share"]
[[claims]]
text = "no guarantee above 0.5 % for 10 000 devices and more"
where = "Section 2"
metric = "largest_share"
below = 0.005
at = { ensemble = "1 %", n = ["10000", "20000", "50000", "100000", "1000000"] }
[chart]
kind = "lines"
x = "n"
y = ["largest_share"]
colour = "ensemble"
"""


def broken(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with a bug."""
    raise TypeError(f"a bug with {shape} and {classes}")


def deadly(shape: tuple[int, ...], classes: int) -> nn.Module:  # noqa: ARG001
    """A model that takes its process with it, as one that is too large for the memory does."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def row(defense: str, seed: int, **metrics: Any) -> dict[str, Any]:
    """A line of results."""
    where = {"exhibit": "tiny", "scale": "smoke", "cell": {"data": "One", "defense": defense}, "attack": "weak"}
    what = {"role": "result", "seed": seed, "key": f"{defense}{seed}", "twins": [], "status": "done"}
    return {**where, **what, "metrics": {"converged": True, **metrics}}
