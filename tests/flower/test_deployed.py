"""What `sparsefed deploy` writes runs in Flower as it is, with the numbers of the simulation."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

from flwr.app import Context, RecordDict

from sparsefed import Simulation, runs
from sparsefed.commands.deploy import DeployedApp, deploy
from sparsefed.commands.watch import watch
from sparsefed.flower.app_files import PACKAGE
from tests.flower.grid import LocalGrid
from tests.flower.test_same_numbers import same, table

NODES = 12


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeployedApp]:
    """A deployed app whose modules can be imported, as Flower imports them."""
    written = deploy(table("sparsefed"), tmp_path / "app", run_folder=tmp_path / "run")
    monkeypatch.syspath_prepend(str(written.folder))
    yield written
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def component(side: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{side}").app


def test_a_deployed_app_runs_as_it_is_and_can_be_watched(app: DeployedApp, tmp_path: Path) -> None:
    grid = LocalGrid([10**15 + 7 * i for i in range(NODES)], component("client"))
    context = Context(1, 0, {}, RecordDict(), {"folder": str(tmp_path / "run")})
    component("server")(grid, context)
    state = runs.load_state(tmp_path / "run")
    assert state is not None and same(state, Simulation.from_config(app.config).run().state)
    watched = watch(tmp_path / "run", most_refused=0)
    assert (watched.status, watched.round, watched.alerts) == ("finished", 3, {})
    assert "Round 3 of 3" in watched.to_html()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(
    "SPARSEFED_FLOWER_SOAK" not in os.environ, reason="half a minute of processes; `make flower-soak` runs it"
)
def test_flwr_run_takes_a_deployed_app(tmp_path: Path) -> None:
    from sparsefed.flower.local import LocalFederation

    small = {**table("sparsefed"), "rounds": 2}
    app = deploy(small, tmp_path / "app", nodes=3, run_folder=tmp_path / "run")
    with LocalFederation(tmp_path / "federation", 3) as federation:
        assert federation.run(app.folder, 400).startswith("finished:completed")
    state = runs.load_state(tmp_path / "run")
    assert state is not None and same(state, Simulation.from_config(app.config).run().state)
    assert watch(tmp_path / "run").status == "finished"
