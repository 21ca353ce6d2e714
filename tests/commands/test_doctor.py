"""`sparsefed doctor`: what it checks, and that it notices what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sparsefed import data
from sparsefed.cli import app
from sparsefed.commands import doctor as doctors
from sparsefed.commands.doctor import Check, Health, doctor
from sparsefed.data import Status
from sparsefed.simulation import Simulation

VERDICTS = {"ok", "note", "wrong"}


def only(name: str, health: Health) -> Check:
    (check,) = [check for check in health.checks if check.name == name]
    return check


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the run, for tests of the other checks."""
    monkeypatch.setattr(doctors, "_self_test", lambda device: Check(f"self-test {device}", "ok", "left out"))


def test_a_healthy_machine_passes_with_the_known_results_and_keeps_its_threads() -> None:
    threads = torch.get_num_threads()
    shown: list[Check] = []
    health = doctor(shown.append)
    assert health.ok and tuple(shown) == health.checks
    assert [check.name for check in health.checks] == ["versions", "devices", "bfloat16", "data", "self-test"]
    assert only("self-test", health).verdict in ("ok", "note")
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("quick")
def test_the_command_prints_a_line_a_check_or_json() -> None:
    plain, machine = (CliRunner().invoke(app, ["doctor", *more]) for more in ([], ["--json"]))
    assert plain.exit_code == machine.exit_code == 0
    table = json.loads(machine.output)
    assert table["ok"] is True and {check["verdict"] for check in table["checks"]} <= VERDICTS
    lines = plain.output.splitlines()
    assert len(lines) == len(table["checks"])
    assert f"torch {torch.__version__.split('+')[0]}" in lines[0]


@pytest.mark.usefixtures("quick")
def test_what_is_wrong_is_named_and_the_exit_code_is_two(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Status("mnist", "digits", "damaged", "/somewhere", 3, "fetch it again")
    monkeypatch.setattr(data, "listing", lambda: [broken])
    monkeypatch.setattr(doctors, "PACKAGES", ("torch", "no_such_package"))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(done.output)["checks"]}
    assert done.exit_code == 2
    assert checks["versions"]["verdict"] == "wrong" and "no_such_package" in checks["versions"]["text"]
    assert checks["data"]["verdict"] == "wrong" and "sparsefed data check mnist" in checks["data"]["text"]


def test_other_results_are_wrong_and_other_bits_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors, "KNOWN_BITS", "")
    assert doctors._self_test("cpu").verdict == "note"
    monkeypatch.setattr(doctors, "KNOWN_LENGTH", 5.4)
    check = doctors._self_test("cpu")
    assert check.verdict == "wrong" and "5.34" in check.text and "5.4" in check.text


def test_a_run_that_does_not_continue_as_it_was_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(_: Mapping[str, Any], __: Path) -> Simulation:
        return Simulation.from_config({**doctors.SELF_TEST, "seed": 1})

    monkeypatch.setattr(doctors, "_interrupted", forgetful)
    assert "continued" in doctors._self_test("cpu").text


def test_every_device_is_tested_and_one_that_fails_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors, "available", lambda: {"cuda:7": "a model"})
    health = doctor()
    assert "cuda:7 (a model)" in only("devices", health).text
    assert only("self-test", health).verdict != "wrong"
    assert only("self-test on cuda:7", health).verdict == "wrong" and not health.ok  # this machine has no such device


def test_a_run_that_fails_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctors.SELF_TEST, "rounds", 0)
    check = doctors._self_test("cpu")
    assert check.verdict == "wrong" and "rounds" in check.text
