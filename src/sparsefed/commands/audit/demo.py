"""The demo: a small audit of a config that ships with the package, short enough to watch."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.audit.analysis import PLANS
from sparsefed.commands.audit.document import CONFIG, NUMBERS, PAGE, who
from sparsefed.commands.audit.options import AuditOptions
from sparsefed.results.verdict import listed
from sparsefed.sweeps import ledger

COMPARED, BESIDE = ("undefended", "clipping", "sparsefed", "multi_krum"), ("sign_flip",)


def demo(overrides: Sequence[str] = ()) -> AuditOptions:
    """Return the demo's options: four defenses, the config's attack and an untargeted one, at one seed."""
    text = resources.files("sparsefed").joinpath("config/files/demo.toml").read_text(encoding="utf-8")
    config = configs.parse(tomllib.loads(text), overrides)
    return AuditOptions(config, COMPARED, BESIDE, trials=1, seeds=1, sensitivity=False)


def introduction(options: AuditOptions) -> str:
    """Return a text that explains the demo before it runs."""
    config = options.config
    points = config.attack.params.get("auxiliary", 0) if config.attack else 0
    return (
        f"{config.data.devices} devices share {config.data.name} ({config.data.partition}); {who(config)}. The first "
        f"attack wants {points} test images labelled wrongly, the second a model that is useless. The same "
        f"{config.model.name}, {config.rounds} rounds of {config.train.cohort} devices, under each attack and without "
        f"one: {listed(options.defense_names)}.\n"
    )


def forget(out: Path) -> None:
    """Delete what an audit left in a folder, and nothing else."""
    if not out.is_dir():
        return
    with runs.locked(out), ledger.disk(out):
        for folder in (ledger.CELLS, ledger.FAILED):
            shutil.rmtree(out / folder, ignore_errors=True)
        for name in (*(f"{plan}.jsonl" for plan in PLANS), ledger.TIMINGS, PAGE, NUMBERS, CONFIG):
            (out / name).unlink(missing_ok=True)
