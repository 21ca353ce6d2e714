"""Pages at two widths, light and dark, in a real browser: no text is cut off, hard to read or on top of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefed import audit, certify, choose_k, tune
from sparsefed.commands.audit.findings import Detection, Durability, WorstDevices
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.load import load
from sparsefed.commands.reproduce.run import outcome
from sparsefed.core.types import RunRecord
from sparsefed.data.partitions.partition import one_class
from sparsefed.data.partitions.summary import portrait
from sparsefed.reports import html
from sparsefed.reports.partitions import Dealt
from sparsefed.reports.partitions import html as partition_page
from tests.support.pages import BOXES, BROWSER, Page, browser
from tests.support.records import demo, plausible

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.skipif(BROWSER is None, reason="no browser on PATH"), pytest.mark.slow]


def five_seeds() -> list[RunRecord]:
    """Three defenses that end close together, at five seeds each."""
    runs = []
    for i, seed in product(range(3), range(5)):
        run = plausible(f"rule{i}", 0.8 + 0.01 * i + 0.002 * seed, 0.05 + 0.01 * i, 3.0, 60)
        defense = {"name": ("clipping", "sparsefed", "multi_krum")[i]}
        runs.append(replace(run, config={**run.config, "seed": seed, "defense": defense}))
    return runs


def exhibit(name: str) -> str:
    return outcome(plan(load(name), "laptop"), ROOT / "results").to_html()


def partition() -> str:
    labels = np.arange(120) % 3
    return partition_page(
        Dealt("pets", portrait(one_class(labels, None, 12, None, 0), labels, 3), ("cat", "dog", "owl"))
    )


EXHIBITS = ("byzantine", "attack-accuracy", "k-cross-device", "norm-and-top-k")
SMALL: dict[str, Any] = {
    "rounds": 16,
    "evaluate_every": 8,
    "data": {"name": "sparsefed.commands.reproduce.tiny:IMAGES", "devices": 40},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.5},
    "defense": {"name": "sparsefed", "k": 20, "clip_norm": 1.0},
    "threat": {"share": 0.2},
    "attack": {"name": "pgd", "auxiliary": 10, "boost": 5.0},
}


def audited() -> str:
    """A small audit, with what a suite measures beside the matrix made up, as if all of it had been run."""
    wanted: dict[str, Any] = {"defenses": "clipping", "attacks": "sign_flip", "trials": 1, "seeds": 2, "budget": 0}
    result = audit(SMALL, jobs=1, **wanted)
    harmful = [(row, attack) for row, attack in result.matrix.attacked if attack == result.worst[row]]
    named = {(f"{row} with lr = 0.25", attack): result.matrix.entries[row, attack] for row, attack in harmful}
    settings = replace(result.matrix, defenses=tuple(row for row, _ in named), entries=named)
    pairs = result.runs
    return replace(
        result,
        settings=settings,
        detection={pair: Detection(0.981, 0.0123) for pair in pairs},
        devices={pair: WorstDevices(0.25, 0.3333) for pair in pairs},
        durability={pair: Durability(8, 1.0, 0.4) for pair in pairs},
    ).to_html()


PAGES: Mapping[str, Callable[[], str]] = {
    "audit": audited,
    "tune": lambda: tune(SMALL, trials=3).to_html(),
    "choose-k": lambda: choose_k(SMALL, samples=2, probe=[5, 50], probe_rounds=8).to_html(),
    "certify": lambda: certify(SMALL).to_html(),
    "votes": lambda: certify(SMALL, groups=4).to_html(),
    "report": lambda: html(demo()),
    "five seeds": lambda: html(five_seeds()),
    "partition": partition,
    **{name: partial(exhibit, name) for name in EXHIBITS},
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.mark.parametrize("name", PAGES)
def test_texts_are_whole_apart_and_readable(tab: Page, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    found = {}
    for width, scheme in product((1200, 420), ("light", "dark")):
        tab.open(path, width, scheme)
        tab.value("document.querySelectorAll('details.fold').forEach(fold => { fold.open = true; })")
        if problems := tab.value(BOXES):
            found[width, scheme] = problems
    assert found == {}
