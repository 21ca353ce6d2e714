"""The commands that analyse a config, or the paper: `demo`, `audit`, `tune`, `choose-k`, `certify`, `reproduce`."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sparsefed.cli.app import (
    AsJson,
    ConfigFile,
    OnCluster,
    Overrides,
    Trust,
    argument,
    console,
    errors,
    option,
    progress_shown,
    say,
    show_and_save,
    wrote,
)
from sparsefed.cli.runs import train_unfinished

if TYPE_CHECKING:
    from sparsefed.commands.audit import AuditResult
    from sparsefed.config import Config
    from sparsefed.reports.result import Report

Objective = StrEnum("Objective", ["both", "attack", "damage"])
ScaleOption = StrEnum("ScaleOption", ["smoke", "laptop", "dense", "schedule", "paper"])
Required = StrEnum("Required", {"held": "held", "in_part": "in-part"})
ACCEPTED = {Required.held: ("held",), Required.in_part: ("held", "in part")}
NOT_AS_REQUIRED = 1
LONG = 86400.0  # seconds that nobody starts by mistake
DemoOverrides = Annotated[
    list[str] | None, option("Change a value of the demo's config, e.g. --set rounds=60.", "KEY=VALUE", "--set")
]


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


def audit(
    config: ConfigFile,
    defenses: Annotated[str | None, option("Which to compare, or 'all'; by default ten.", "NAME,NAME")] = None,
    attacks: Annotated[str | None, option("Beside CONFIG's own; by default those that fit.", "NAME,NAME")] = None,
    suite: Annotated[
        str | None, option("A standard suite of attacks instead of CONFIG's; attackers know everything.", "v1")
    ] = None,
    trials: Annotated[int, option("Variants of each attack that each defense meets.", "N")] = 3,
    seeds: Annotated[int, option("Seeds that the strongest of them is reported with.", "N")] = 2,
    tolerance: Annotated[
        float, option("Points of test accuracy that a defense may cost without attackers.", "X")
    ] = 2.0,
    sensitivity: Annotated[bool, option("Also vary k and clip_norm.")] = True,
    require: Annotated[
        Required | None, option("Exit with 1 unless the recommended defense held, or held at least in part.")
    ] = None,
    time_budget: Annotated[str | None, option("Leave out what does not fit into this time, e.g. 30m.", "TIME")] = None,
    dry_run: Annotated[bool, option("Say what would be run and how long it takes, and end.", name="--dry-run")] = False,
    budget: Annotated[
        int, option("Runs in which a defense is tuned if none holds by rule; 0: none is tuned.", "N")
    ] = 300,
    jobs: Annotated[int | None, option("Runs at a time; by default one a core.", "N")] = None,
    on: OnCluster = None,
    out: Annotated[Path | None, option("Where all of it goes; by default runs/NAME-audit.")] = None,
    set_: Overrides = None,
    _trust: Trust = False,
) -> None:
    """Find the defense that holds for CONFIG's model and data, against the strongest attacks its threat model allows.

    Every defense meets CONFIG's attack and others with the same goal or none, N variants of each; the strongest is run
    again with other seeds. If none holds with the parameters that follow from the task, a defense is tuned against
    attackers who are tuned in return. Ends with a matrix of all pairs, a recommendation with its reasons and limits, a
    page, audit.json and, if a defense held, recommended.toml, which `sparsefed run` takes. Names may be your own
    (module:function), in a file beside CONFIG.

    Interrupted or killed, the same command goes on; finished runs are never repeated. A run that fails does not stop
    the others; then the exit code is 2, and the same command tries it again.
    """
    from sparsefed import config as configs
    from sparsefed import trust
    from sparsefed.commands import audit as audits
    from sparsefed.commands.audit.time_budget import estimate, fitted

    if ":" in f"{defenses}{attacks}" and not trust.is_written_by_command(config):
        trust.import_from(config.absolute().parent)
    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-audit"
    options = audits.AuditOptions(
        chosen, defenses or "", attacks or "", trials, seeds, tolerance, sensitivity, budget, suite or ""
    )
    at_a_time = audits.checked_jobs(jobs, on)
    if time_budget is not None:
        options, words = fitted(options, at_a_time, time_budget, folder)
        say(escape(words), errors)
    if dry_run or not folder.exists():
        expected = estimate(options, at_a_time)
        say(escape(expected.sentence), console if dry_run else errors)
    if dry_run:
        say(f"Defenses: {escape(', '.join(expected.defenses))}.\nAttacks: {escape(', '.join(expected.attacks))}.")
        return
    with progress_shown() as show:
        result = audits.run_audit(options, folder, at_a_time, show, on)
    _finish(result, folder, require)


def _finish(result: AuditResult, folder: Path, require: Required | None = None) -> None:
    show_and_save(result, folder)
    if result.problem is not None:
        raise result.problem
    judgement = result.recommendation.judgement if result.recommendation else None
    if require is not None and judgement not in ACCEPTED[require]:
        say(f"Required: {require.value}. No defense did; exit code {NOT_AS_REQUIRED}.", errors)
        raise typer.Exit(NOT_AS_REQUIRED)


def tune(
    config: ConfigFile,
    trials: Annotated[
        int | None,
        option("Trials in all, those of earlier calls included; with --defense, variants of each attack.", "N"),
    ] = None,
    defense: Annotated[
        bool, option("Instead, tune a defense against attackers who are tuned in return.", name="--defense")
    ] = False,
    budget: Annotated[int, option("Runs of --defense.", "N")] = 300,
    objective: Annotated[
        Objective | None,
        option(
            "Attack accuracy up and test accuracy kept (both), the first alone (attack), or test accuracy down "
            "(damage). By default both, or damage where the attackers want no particular labels."
        ),
    ] = None,
    space: Annotated[
        list[str] | None,
        option(
            "Where to search a parameter, e.g. --space attack.step=0.01:1; KEY=A,B for choices, KEY=A to fix it.",
            "KEY=LOW:HIGH",
        ),
    ] = None,
    stealth: Annotated[
        float | None,
        option(
            "Test accuracy that the strongest attack may cost, as a share; by default 0.02, or what it costs with "
            "the parameters as given.",
            "X",
        ),
    ] = None,
    seed: Annotated[int | None, option("Of the search; by default the config's.", "S")] = None,
    storage: Annotated[
        str | None,
        option(
            "A database that several machines share, e.g. postgresql://user@host/name; by default study.db in the "
            "folder.",
            "URL",
        ),
    ] = None,
    on: OnCluster = None,
    out: Annotated[Path | None, option("The search's folder; by default runs/NAME-tune.")] = None,
    set_: Overrides = None,
    _trust: Trust = False,
) -> None:
    """Search for the strongest attack on CONFIG's defense; or, with --defense, for a defense that holds.

    Every trial is a run with other attack parameters. The first takes those of CONFIG, Optuna chooses the others, and
    hopeless trials are cut short. The attackers' goal, number and knowledge stay as in CONFIG.

    Ends with the trials that no other beats, strongest.toml, which `sparsefed run` takes, and a page with a chart of
    all trials. Interrupted or killed, the same command goes on; a larger --trials adds to what is there, and a smaller
    one shows it.

    With --defense, rules and their parameters (k, clip_norm, f) and the attackers' variants are searched in turn until
    neither side gains, within --budget runs; what is found is measured at other seeds, as `sparsefed audit` does.
    """
    from sparsefed import config as configs
    from sparsefed.commands import tune as tuning
    from sparsefed.core.errors import ConfigError

    if defense:
        if objective or space or stealth is not None or seed is not None or storage:
            raise ConfigError(
                "--objective, --space, --stealth, --seed and --storage are about an attack, not --defense"
            )
        _tune_defense(configs.read(config, set_ or []), trials, budget, out)
        return
    if trials is None:
        raise ConfigError("say how many trials: --trials 50; or --defense, to tune a defense instead")

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-tune"
    with progress_shown("Interrupted; every finished trial is kept. Go on with the same command.") as show:
        result = tuning.tune(
            chosen,
            trials=trials,
            folder=folder,
            objective=objective,
            space=space or [],
            stealth=stealth,
            seed=seed,
            storage=storage,
            on=on,
            on_progress=show,
        )
    show_and_save(result, folder)


def _tune_defense(config: Config, trials: int | None, budget: int, out: Path | None) -> None:
    from sparsefed.commands import audit as audits

    folder = out or Path("runs") / f"{config.name}-defense"
    options = audits.AuditOptions(config, trials=trials or 3, sensitivity=False, budget=budget, tune_only=True)
    with progress_shown() as show:
        result = audits.run_audit(options, folder, None, show)
    _finish(result, folder)


def choose_k(
    config: ConfigFile,
    omega: Annotated[float | None, option("The share of the l1 mass that top-k may lose; by default 0.5.", "X")] = None,
    samples: Annotated[int, option("Cohorts to sample at each model.", "N")] = 10,
    rounds_in: Annotated[
        str | None,
        option(
            "Sample the model after so many rounds without top-k; by default 0 and a tenth of the rounds, 50 at most.",
            "R,R",
        ),
    ] = None,
    absolute: Annotated[
        bool, option("--omega is a mass, as the paper's algorithm prints it, not a share.", name="--absolute")
    ] = False,
    paper: Annotated[
        bool, option("Also the paper's algorithm as printed: new samples in every turn.", name="--paper")
    ] = False,
    probe: Annotated[
        str | None, option("Also short runs with N k's from d/1000 to d, or with these k's.", "N|K,K,...")
    ] = None,
    probe_rounds: Annotated[int | None, option("Rounds of a probe run; by default the config's.", "N")] = None,
    trials: Annotated[
        int | None, option("Tune the attack anew at each probed k, as `sparsefed tune` does.", "TRIALS", "--tune")
    ] = None,
    out: Annotated[Path | None, option("Where all of it goes; by default runs/NAME-choose-k.")] = None,
    set_: Overrides = None,
    _trust: Trust = False,
) -> None:
    """Choose k for CONFIG's model and data: the smallest with which top-k loses at most OMEGA of the l1 mass.

    The updates of N cohorts are averaged as the server would, at the first model and after some rounds of training; one
    sort of each says what every k would lose. With --probe, accuracy against k too, with CONFIG's attack (for instance
    the strongest.toml of `sparsefed tune`) and without, and the knee.

    Ends with tables, a page with charts and a JSON. Interrupted or killed, the same command goes on.
    """
    from sparsefed.commands import choose_k as choosing

    chosen = choosing.load(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-choose-k"
    with progress_shown() as show:
        result = choosing.choose_k(
            chosen,
            omega=omega,
            samples=samples,
            rounds_in=rounds_in,
            absolute=absolute,
            paper=paper,
            probe=probe,
            probe_rounds=probe_rounds,
            tune_trials=trials,
            folder=folder,
            on_progress=show,
        )
    show_and_save(result, folder)


def certify(
    source: Annotated[Path, argument("SOURCE", "A config in TOML, or a run folder.")],
    share: Annotated[float | None, option("Attackers' share of each round's updates.")] = None,
    attackers: Annotated[int | None, option("Attackers in each round.")] = None,
    c: Annotated[float | None, option("How fast a coordinate of a device's gradient can change.")] = None,
    estimate_c: Annotated[bool, option("Search c; then nothing is a certificate.", name="--estimate-c")] = False,
    omega: Annotated[str, option("What top-k leaves of l1 mass: worst, measured (runs) or X.")] = "worst",
    train: Annotated[bool, option("Train a config without attackers, for its accuracy.", name="--train")] = False,
    groups: Annotated[
        int | None, option("Instead, train a model for each of N groups of devices, and certify their vote.", "N")
    ] = None,
    spread: Annotated[int, option("Groups that each device is in, with --groups.", "N")] = 1,
    subset: Annotated[int | None, option("Devices of each group, drawn at random for each group anew.", "K")] = None,
    confidence: Annotated[float, option("Of the certificates by --subset, all together.", "X")] = 0.999,
    distill: Annotated[
        bool, option("Also train one model on the vote's labels; it has no certificate.", name="--distill")
    ] = False,
    convergence: Annotated[
        bool, option("Instead, train and compare with the convergence theorem.", name="--convergence")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[Path | None, option("Also as a page with charts.", "PAGE.html")] = None,
    set_: Overrides = None,
    _trust: Trust = False,
) -> None:
    """Bound what attackers can do: how far they move the model (its radius), or what they change in a vote of groups.

    With --groups, devices are put into groups before training, each group trains a model, and every prediction of their
    vote is certified against as many compromised devices as it bears, whatever these send, for any model. Interrupted
    or killed, the same command goes on. All certificates are shown side by side, with their costs.

    Without --share or --attackers, for as many attackers as SOURCE has. c is exact for one softmax layer, whose
    certified accuracy is shown too if there is a trained model (a run, or --train); for other models give c, or it is
    only estimated and the result is not a certificate.
    """
    from sparsefed.commands import certify as certifying
    from sparsefed.reports.progress_view import ProgressView

    if convergence:
        with ProgressView(errors) as view:
            measured = certifying.measure_convergence(source, overrides=set_ or [], on_progress=view.show)
        _present(measured, out)
        return
    with progress_shown() if groups is not None else nullcontext() as show:
        result = certifying.certify(  # type: ignore[misc, call-overload]  # one model or groups
            source,
            groups=groups,
            spread=spread,
            subset=subset,
            confidence=confidence,
            distill=distill,
            share=share,
            attackers=attackers,
            c=c,
            estimate_c=estimate_c,
            omega=omega,
            overrides=set_ or [],
            train=train,
            folder=Path("runs"),
            on_progress=show,
            runner=train_unfinished if show is None else None,
        )
    _present(result, out, as_json)


def _present(result: Report, page: Path | None, as_json: bool = False) -> None:
    """Print a result, for people or for programs, and write its page if one is wanted."""
    from sparsefed.reports.pictures import write
    from sparsefed.reports.to_terminal import show

    if as_json:
        print(result.to_json(), end="")
    else:
        show(result.document(), console)
    if page is not None:
        wrote(write(page, result.to_html().encode()), errors if as_json else console)


def reproduce(
    name: Annotated[list[str] | None, argument("NAME", "As --list names them, or the paper: table-2.")] = None,
    scale: Annotated[
        ScaleOption,
        option("Seconds; few rounds; the paper's rounds with a dense or a narrow model; or all as printed."),
    ] = ScaleOption.laptop,
    out: Annotated[Path, option("Where results, pages and the cells' runs go.")] = Path("results"),
    jobs: Annotated[int | None, option("Cells at a time; by default one a core.", "N")] = None,
    on: OnCluster = None,
    all_: Annotated[bool, option("Every table and figure.", name="--all")] = False,
    list_only: Annotated[bool, option("What there is, and nothing else.", name="--list")] = False,
    dry_run: Annotated[bool, option("Say how many runs are missing and how long they take.", name="--dry-run")] = False,
    yes: Annotated[bool, option("Start, though it takes more than a day.", name="--yes")] = False,
) -> None:
    """Run tables and figures of the paper, set our numbers beside the paper's, and judge its claims.

    Each is a grid of cells, that is, of runs. Cells run in parallel and are kept in OUT/cells: interrupted or killed,
    the same command goes on, and what is finished is never run again; a changed config is another cell. Results are in
    OUT/NAME.SCALE.jsonl, with a page and pictures beside them. A cell that fails does not stop the others; then the
    exit code is 2, and the same command tries it again.
    """
    from sparsefed.commands.audit import checked_jobs
    from sparsefed.commands.reproduce import load as reading
    from sparsefed.commands.reproduce.document import listing, rules
    from sparsefed.commands.reproduce.estimate import estimate
    from sparsefed.commands.reproduce.run import reproduce as reproduced
    from sparsefed.core.errors import ConfigError
    from sparsefed.reports.to_terminal import rich_table

    if list_only or not (name or all_):
        console.print(rich_table(listing()))
        return
    chosen = reading.names() if all_ else reading.chosen(name or [])
    expected = estimate(chosen, scale.value, out, checked_jobs(jobs))
    if expected.runs or dry_run:
        say(escape(expected.sentence), console if dry_run else errors)
    if dry_run:
        return
    if expected.seconds > LONG and not yes:
        raise ConfigError(f"{expected.sentence[:-1]}; --yes starts it, --scale laptop takes an hour each")
    with progress_shown() as show:
        results = reproduced(chosen, scale=scale.value, folder=out, jobs=jobs, on=on, on_progress=show)
    for result in results:
        show_and_save(result, out)
    for rule in dict.fromkeys(rule for result in results for rule in rules(result)):
        say(f"[dim]{escape(rule)}[/dim]")
    for result in results:
        if result.problem is not None:
            raise result.problem
