"""Without Flower, the names of the deployment end in one sentence; the door needs no Flower."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsefed
from sparsefed import flower
from sparsefed.core.errors import ConfigError
from sparsefed.flower.door import REASONS


@pytest.mark.parametrize("name", ["Strategy", "client", "client_app", "clip", "fault", "red_team", "server_app"])
def test_a_name_that_needs_flower_says_which_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "find_spec", lambda module: None)  # noqa: ARG005
    with pytest.raises(
        ConfigError, match=rf"flower\.{name} needs Flower.*constraints-flower.txt 'sparsefed\[flower\]'"
    ):
        getattr(flower, name)


def test_the_door_needs_no_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "find_spec", lambda module: None)  # noqa: ARG005
    assert flower.admit is sparsefed.flower.admit
    with pytest.raises(AttributeError, match="no attribute 'Stratgy'"):
        flower.Stratgy  # noqa: B018
    assert set(dir(flower)) == set(flower.__all__)


def test_importing_the_package_imports_nothing_of_flower() -> None:
    code = "import sys, sparsefed.flower; assert not {'flwr', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_page_explains_every_reason_for_a_refusal() -> None:
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
    explained = page.partition("| reason | what it means |")[2].partition("\n\n")[0]
    named = {word for line in explained.splitlines() for word in re.findall(r"`([^`]+)`", line.partition(" | ")[0])}
    assert named == set(REASONS)
