"""The commands `audit`, which finds the defense that holds for a config's model and data, and `demo`, a small audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsefed.cli.app import ConfigFile, Overrides, app, console, saved_if_interrupted, show_and_save

if TYPE_CHECKING:
    from sparsefed.commands.audit import AuditOptions

DemoOverrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the demo's config, e.g. --set rounds=60."),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("runs/demo"),
    set_: DemoOverrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what is there, and start anew.")] = False,
) -> None:
    """Run a small audit: Fashion-MNIST on 10 000 devices, 2 % of them compromised; four defenses, two attacks.

    Interrupted or killed, the same command goes on where it was; finished, it shows the result again. With other
    settings, other runs are added beside those that are there.
    """
    from sparsefed.commands import audit as audits

    asked = audits.demo(set_ or [])
    if fresh:
        audits.forget(out)
    console.print(audits.introduction(asked), highlight=False)
    _audited(asked, out, None)


@app.command()
def audit(
    config: ConfigFile,
    defenses: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Which to compare, or 'all'; by default ten.", show_default=False)
    ] = "",
    attacks: Annotated[
        str,
        typer.Option(metavar="NAME,NAME", help="Beside CONFIG's own; by default those that fit.", show_default=False),
    ] = "",
    trials: Annotated[int, typer.Option(metavar="N", help="Variants of each attack that each defense meets.")] = 3,
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds that the strongest of them is reported with.")] = 2,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="Points of test accuracy that a defense may cost without attackers.")
    ] = 2.0,
    sensitivity: Annotated[bool, typer.Option(help="Also vary k and L.")] = True,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Runs at a time; by default one a core.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where all of it goes; by default runs/NAME-audit.")] = None,
    set_: Overrides = None,
) -> None:
    """Find the defense that holds for CONFIG's model and data, against the strongest attacks its threat model allows.

    Every defense meets CONFIG's attack and others with the same goal or none, N variants of each; the strongest is run
    again with other seeds. Ends with a matrix of all pairs, a recommendation with its reasons and limits, a page,
    audit.json and recommended.toml, which `sparsefed run` takes.

    Interrupted or killed, the same command goes on; finished runs are never repeated. A run that fails does not stop
    the others; then the exit code is 2, and the same command tries it again.
    """
    from sparsefed import config as configs
    from sparsefed.commands import audit as audits

    chosen = configs.read(config, set_ or [])
    asked = audits.AuditOptions(
        chosen,
        defenses=defenses,
        attacks=attacks,
        trials=trials,
        seeds=seeds,
        tolerance=tolerance,
        sensitivity=sensitivity,
    )
    _audited(asked, out or Path("runs") / f"{chosen.name}-audit", jobs)


def _audited(asked: AuditOptions, out: Path, jobs: int | None) -> None:
    from sparsefed.commands import audit as audits
    from sparsefed.reports.progress_view import ProgressView

    with saved_if_interrupted("Interrupted, saved. Go on with the same command."), ProgressView(console) as view:
        outcome = audits.run_audit(asked, out, jobs, view.show)
    show_and_save(outcome, out)
    if outcome.problem is not None:
        raise outcome.problem
