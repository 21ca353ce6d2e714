"""The commands that search: `tune` for the strongest attack, `choose-k` for k."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsefed.cli.app import ConfigFile, Overrides, app, console, saved_if_interrupted, say, show_and_save
from sparsefed.cli.training import run_all

if TYPE_CHECKING:
    from sparsefed.commands.tune import TuneResult
    from sparsefed.config import Config


class Objective(StrEnum):
    both = "both"
    attack = "attack"
    damage = "damage"


@app.command()
def tune(
    config: ConfigFile,
    trials: Annotated[
        int, typer.Option(metavar="N", help="Trials in all, those of earlier calls included.", show_default=False)
    ],
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="Attack accuracy up and test accuracy kept (both), the first alone (attack), or test accuracy down "
            "(damage). By default both, or damage where the attackers want no particular labels."
        ),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH",
            help="Where to search a parameter, e.g. --space attack.step=0.01:1; KEY=A,B for choices, KEY=A to fix it.",
        ),
    ] = None,
    stealth: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Test accuracy that the strongest attack may cost, as a share; by default 0.02, or what it costs with "
            "the parameters as given.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="Of the search; by default the config's.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A database that several machines share, e.g. postgresql://user@host/name; by default study.db in the "
            "folder.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The search's folder; by default runs/NAME-tune.")] = None,
    set_: Overrides = None,
) -> None:
    """Search for the strongest attack on CONFIG's defense: every trial is a run with other attack parameters.

    The first trial takes the parameters as they are in CONFIG, Optuna chooses the others, and hopeless trials are cut
    short. The attackers' goal, number and knowledge stay as in CONFIG.

    Ends with the trials that no other beats, strongest.toml, which `sparsefed run` takes, and a page with a chart of
    all trials. Interrupted or killed, the same command goes on; a larger --trials adds to what is there, and a smaller
    one shows it.
    """
    from sparsefed import config as configs

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-tune"
    options = {"objective": objective, "space": space or [], "stealth": stealth, "seed": seed, "storage": storage}
    show_and_save(_tuned(chosen, trials, folder, **options), folder)


def _tuned(config: Config, trials: int, folder: Path, **options: Any) -> TuneResult:
    from sparsefed.commands import tune as tuning
    from sparsefed.reports.progress_view import ProgressView

    kept = "Interrupted; every finished trial is kept. Go on with the same command."
    with saved_if_interrupted(kept), ProgressView(console) as view:
        return tuning.tune(config, trials=trials, folder=folder, **options, on_progress=view.show)


@app.command("choose-k")
def choose_k(
    config: ConfigFile,
    omega: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="The share of the l1 mass that top-k may lose; by default 0.5.", show_default=False
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Cohorts to sample at each model.")] = 10,
    rounds_in: Annotated[
        str | None,
        typer.Option(
            metavar="R,R",
            help="Sample the model after so many rounds without top-k; by default 0 and a tenth of the rounds, 50 at "
            "most.",
        ),
    ] = None,
    absolute: Annotated[
        bool, typer.Option("--absolute", help="--omega is a mass, as the paper's algorithm prints it, not a share.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="Also the paper's algorithm as printed: new samples in every turn.")
    ] = False,
    probe: Annotated[
        str | None,
        typer.Option(metavar="N|K,K,...", help="Also short runs with N k's from d/1000 to d, or with these k's."),
    ] = None,
    probe_rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds of a probe run; by default the config's.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--tune", metavar="TRIALS", help="Tune the attack anew at each probed k, as `sparsefed tune` does."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where all of it goes; by default runs/NAME-choose-k.")] = None,
    set_: Overrides = None,
) -> None:
    """Choose k for CONFIG's model and data: the smallest with which top-k loses at most OMEGA of the l1 mass.

    The updates of N cohorts are averaged as the server would, at the first model and after some rounds of training; one
    sort of each says what every k would lose. With --probe, accuracy against k too, with CONFIG's attack (for instance
    the strongest.toml of `sparsefed tune`) and without, and the knee.

    Ends with tables, a page with charts and a JSON. Interrupted or killed, the same command goes on.
    """
    from sparsefed.commands import choose_k as choosing
    from sparsefed.reports.progress_view import ProgressView

    chosen = choosing.load(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-choose-k"
    options = choosing.checked(
        chosen,
        omega=omega,
        samples=samples,
        rounds_in=rounds_in,
        absolute=absolute,
        paper=paper,
        probe=probe,
        probe_rounds=probe_rounds,
        tune_trials=trials,
    )
    with saved_if_interrupted("Interrupted, saved. Go on with the same command."), ProgressView(console) as view:
        result = choosing.measure(chosen, options, folder, view.show)
    show_and_save(choosing.probe(result, folder, _tuned_at_k, run_all) if result.ks else result, folder)


def _tuned_at_k(config: Config, trials: int, folder: Path) -> Config:
    say(f"tuning the attack at k = {config.defense.params['k']}")
    return _tuned(config, trials, folder).tuned
