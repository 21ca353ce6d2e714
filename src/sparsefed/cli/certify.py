"""The command `certify`: how far attackers can move a model, at most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefed.cli.app import Overrides, app, console, errors, wrote
from sparsefed.cli.training import run_all


@app.command()
def certify(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A config in TOML, or a run folder.", show_default=False)
    ],
    share: Annotated[float | None, typer.Option(help="Attackers' share of each round's updates.")] = None,
    attackers: Annotated[int | None, typer.Option(help="Attackers in each round.")] = None,
    c: Annotated[float | None, typer.Option(help="How fast a coordinate of a device's gradient can change.")] = None,
    estimate_c: Annotated[bool, typer.Option("--estimate-c", help="Search c; then nothing is a certificate.")] = False,
    omega: Annotated[str, typer.Option(help="What top-k leaves of l1 mass: worst, measured (runs) or X.")] = "worst",
    train: Annotated[bool, typer.Option("--train", help="Train a config without attackers, for its accuracy.")] = False,
    convergence: Annotated[
        bool, typer.Option("--convergence", help="Instead, train and compare with the convergence theorem.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Also as a page with charts.")] = None,
    set_: Overrides = None,
) -> None:
    """Bound how far attackers can move the model: the certified radius, with all its assumptions.

    Without --share or --attackers, for as many attackers as SOURCE has. c is exact for one softmax layer, whose
    certified accuracy is shown too if there is a trained model (a run, or --train); for other models give c, or it is
    only estimated and the result is not a certificate.
    """
    from sparsefed.commands import certify as certificate
    from sparsefed.reports.pictures import write
    from sparsefed.reports.to_terminal import show

    if convergence:
        _converge(source, set_ or [], out)
        return
    shown = errors if as_json else console
    result = certificate.certify(
        source,
        share=share,
        attackers=attackers,
        c=c,
        estimate_c=estimate_c,
        omega=omega,
        overrides=set_ or [],
        train=train,
        folder=Path("runs"),
        runner=lambda wanted: run_all(wanted, shown),
    )
    if as_json:
        print(result.to_json(), end="")
    else:
        show(result.document(), console)
    if out is not None:
        wrote(write(out, result.to_html().encode()), shown)


def _converge(source: Path, overrides: list[str], out: Path | None) -> None:
    from sparsefed.commands.certify import measure_convergence
    from sparsefed.reports.pictures import write
    from sparsefed.reports.progress_view import ProgressView
    from sparsefed.reports.to_terminal import show

    with ProgressView(console) as view:
        result = measure_convergence(source, overrides=overrides, on_progress=view.show)
    show(result.document(), console)
    if out is not None:
        wrote(write(out, result.to_html().encode()))
