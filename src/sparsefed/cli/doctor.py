"""The command that checks this machine: `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import AsJson, say
from sparsefed.core.errors import SparseFedError

if TYPE_CHECKING:
    from sparsefed.commands.doctor import Check

WRONG = 2
Device = Annotated[str | None, typer.Option(help="Run on this device alone: cpu, cuda, cuda:1, mps.", metavar="NAME")]
COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


def doctor(device: Device = None, as_json: AsJson = False) -> None:
    """Check this machine: versions, devices, bfloat16, data sets, and a small run whose results are known.

    The run is made on the CPU and on every GPU, or on one --device alone. A line for each check: ok, note (works, with
    a difference that is named) or wrong. It takes some ten seconds. If something is wrong, the exit code is 2.
    """
    try:
        from sparsefed.commands.doctor import doctor as examine
    except ImportError as error:
        raise SparseFedError(f"{error}; install sparsefed again with pip, for a package it needs is missing") from error

    health = examine((lambda check: None) if as_json else _show, device)  # noqa: ARG005
    if as_json:
        print(json.dumps(health.to_json(), indent=2))
    if not health.ok:
        raise typer.Exit(WRONG)


def _show(check: Check) -> None:
    verdict = f"[{COLOURS[check.verdict]}]{check.verdict:5}[/]"
    say(f"{verdict} [bold]{escape(check.name)}[/bold]: {escape(check.text)}")
