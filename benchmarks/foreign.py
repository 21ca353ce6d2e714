"""Other libraries' aggregation functions, loaded into this process from the peers' environment.

Only what their functions are made of is imported, and after our own packages, so that both sides run on the same
NumPy and torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def site_packages(venv: Path) -> Path | None:
    """Where an environment keeps its packages, if it is there."""
    return next(iter(sorted(venv.glob("lib/python3*/site-packages"))), None)


def byzfl(venv: Path) -> Any | None:
    """ByzFL's aggregators and pre-aggregators, without the parts of it that want torchvision."""
    site = _on_path(venv)
    if site is None or not (site / "byzfl").is_dir():
        return None
    bare = ModuleType("byzfl")
    bare.__path__ = [str(site / "byzfl")]
    sys.modules.setdefault("byzfl", bare)
    return import_module("byzfl.aggregators")


def flower(venv: Path) -> Any | None:
    """The functions that Flower's robust strategies are made of."""
    site = _on_path(venv)
    if site is None or not (site / "flwr").is_dir():
        return None
    return import_module("flwr.server.strategy.aggregate")


def _on_path(venv: Path) -> Path | None:
    site = site_packages(venv)
    if site is not None and str(site) not in sys.path:
        sys.path.append(str(site))
    return site
