"""`certify`: how far attackers can drive a model, at most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefed.cli.app import Overrides, app, console, errors, wrote
from sparsefed.cli.training import trained_once


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
    """How far attackers can drive the model, at most: the certified radius, with all that it rests on.

    Without --share or --attackers, for as many attackers as SOURCE has. c is exact for one softmax layer, whose
    certified accuracy is told too where there is a trained model (a run, or --train); for other models give c, or it is
    only estimated and the result is not a certificate.
    """
    from sparsefed.commands import certify as certificate
    from sparsefed.reports.pictures import write
    from sparsefed.reports.to_terminal import show

    if convergence:
        _converge(source, set_ or [], out)
        return
    question = certificate.Question(share, attackers, c, estimate_c, omega)
    found = certificate.certify(source, question, set_ or [])
    if train:
        trained = trained_once(certificate.to_train(found), errors if as_json else console)
        found = certificate.certify(source, question, set_ or [], trained)
    if as_json:
        print(found.to_json(), end="")
    else:
        show(found.document(), console)
    if out is not None:
        wrote(write(out, found.to_html().encode()), errors if as_json else console)


def _converge(source: Path, overrides: list[str], out: Path | None) -> None:
    from sparsefed.commands.certify.convergence_run import follow
    from sparsefed.reports.pictures import write
    from sparsefed.reports.progress_view import ProgressView
    from sparsefed.reports.to_terminal import show

    with ProgressView(console) as view:
        found = follow(source, overrides, view.show)
    show(found.document(), console)
    if out is not None:
        wrote(write(out, found.to_html().encode()))
