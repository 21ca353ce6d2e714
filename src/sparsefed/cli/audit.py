"""The commands `audit`, which finds the defense that holds for a config's model and data, and `demo`, a small audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sparsefed.cli.app import ConfigFile, Overrides, app, console, option, progress_shown, show_and_save

if TYPE_CHECKING:
    from sparsefed.commands.audit.findings import AuditResult

DemoOverrides = Annotated[
    list[str] | None, option("Change a value of the demo's config, e.g. --set rounds=60.", "KEY=VALUE", "--set")
]


@app.command()
def demo(
    out: Annotated[Path, option("Where the runs and the page go.")] = Path("runs/demo"),
    set_: DemoOverrides = None,
    fresh: Annotated[bool, option("Delete what is there, and start anew.", name="--fresh")] = False,
) -> None:
    """Run a small audit: Fashion-MNIST on 10 000 devices, 2 % of them compromised; four defenses, two attacks.

    Interrupted or killed, the same command goes on where it was; finished, it shows the result again. With other
    settings, other runs are added beside those that are there.
    """
    from sparsefed.commands import audit as audits

    options = audits.demo(set_ or [])
    if fresh:
        audits.forget(out)
    console.print(audits.introduction(options), highlight=False)
    with progress_shown() as show:
        result = audits.run_audit(options, out, None, show)
    _finish(result, out)


@app.command()
def audit(
    config: ConfigFile,
    defenses: Annotated[str | None, option("Which to compare, or 'all'; by default ten.", "NAME,NAME")] = None,
    attacks: Annotated[str | None, option("Beside CONFIG's own; by default those that fit.", "NAME,NAME")] = None,
    trials: Annotated[int, option("Variants of each attack that each defense meets.", "N")] = 3,
    seeds: Annotated[int, option("Seeds that the strongest of them is reported with.", "N")] = 2,
    tolerance: Annotated[
        float, option("Points of test accuracy that a defense may cost without attackers.", "X")
    ] = 2.0,
    sensitivity: Annotated[bool, option("Also vary k and L.")] = True,
    jobs: Annotated[int | None, option("Runs at a time; by default one a core.", "N")] = None,
    out: Annotated[Path | None, option("Where all of it goes; by default runs/NAME-audit.")] = None,
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
    folder = out or Path("runs") / f"{chosen.name}-audit"
    with progress_shown() as show:
        result = audits.audit(
            chosen,
            folder=folder,
            defenses=defenses or "",
            attacks=attacks or "",
            trials=trials,
            seeds=seeds,
            tolerance=tolerance,
            sensitivity=sensitivity,
            jobs=jobs,
            on_progress=show,
        )
    _finish(result, folder)


def _finish(result: AuditResult, folder: Path) -> None:
    show_and_save(result, folder)
    if result.problem is not None:
        raise result.problem
