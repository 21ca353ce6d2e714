"""The command line: parse -> config -> build -> loop. Holds no logic; errors a user can mend are one sentence.

Exit codes: 0 done; 2 a command, config, run folder or data set that must be mended first; 130 interrupted (Ctrl-C, or a
polite kill) after saving.
"""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from sparsefed.errors import DataError, SparseFedError
from sparsefed.memory import keep_freed_memory

if TYPE_CHECKING:
    from sparsefed.choosing import Outcome
    from sparsefed.config import Config, Experiment
    from sparsefed.data import Status
    from sparsefed.progress import RunView
    from sparsefed.tune import Outcome as TuneOutcome
    from sparsefed.types import RunRecord

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Can a handful of compromised devices poison a federated model, and what stops them?

Start with `sparsefed demo`: the same model trained three times under attack, undefended, with clipping, with
SparseFed. Then write a config (TOML) and `sparsefed run` it; `sparsefed list` shows every name a config can
use, `sparsefed list bases` the paper's settings to start from (`base = "fmnist/cross-device"`).

Exit codes: 0 done, 2 something to mend first (one sentence says what), 130 interrupted after saving.""",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what there is, where it is, how to get it.")
app.add_typer(data_app, name="data")

INTERRUPTED = 130  # what shells call "ended by Ctrl-C"

console = Console()
errors = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A config file in TOML.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the config, e.g. --set defense.k=500."),
]

DemoOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value in all three runs, e.g. --set rounds=100, or in one: --set defenses.sparsefed.k=500.",
    ),
]


class Objective(StrEnum):
    both = "both"
    attack = "attack"
    damage = "damage"


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class Format(StrEnum):
    html = "html"
    png = "png"
    svg = "svg"
    pdf = "pdf"


def main() -> None:
    """Entry point: a `SparseFedError` is a sentence on stderr and exit code 2, never a traceback."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)]
    )
    _say_what_is_compiled()
    keep_freed_memory()
    try:
        app()
    except SparseFedError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}; check that the path is right and may be used")


def _say_what_is_compiled() -> None:
    """A wait that happens once is news, not a warning."""
    logger = logging.getLogger("sparsefed.vectors.warm")
    logger.addHandler(RichHandler(console=console, show_path=False, show_level=False, show_time=False))
    logger.propagate = False


def _fail(sentence: str) -> NoReturn:
    errors.print(f"[bold red]error:[/bold red] {escape(sentence)}", soft_wrap=True, highlight=False)
    sys.exit(2)


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


# --- runs ------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One run to be done."""

    config: Config
    folder: Path
    create: bool  # otherwise it goes on from where its folder stands
    overwrite: bool = False

    @property
    def title(self) -> str:
        return self.config.name or self.folder.absolute().name


@app.command()
def run(
    config: ConfigFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default runs/NAME.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew where there is a run already.")] = False,
    twins: Annotated[
        bool, typer.Option("--twins", help="Also without attackers, and without a defense as well; then compare.")
    ] = False,
) -> None:
    """Train once as CONFIG says, into a run folder that can be resumed and reported.

    With --twins also what the attack is measured against: the same run without attackers (NAME-unattacked), and without
    attackers and defense (NAME-plain), in folders beside it; those that are finished are not trained again.

    Ctrl-C saves the state and says how to go on (exit code 130).
    """
    from sparsefed import config as configs
    from sparsefed import runs

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / chosen.name
    if twins:
        _run_with_twins(chosen, folder, overwrite)
        return
    runs.refuse_overwriting(folder, configs.dump(chosen), overwrite)
    _train([Plan(chosen, folder, create=True, overwrite=overwrite)])
    _show_results([folder])


def _run_with_twins(config: Config, folder: Path, overwrite: bool) -> None:
    from sparsefed import config as configs
    from sparsefed import runs

    wanted = {folder: config}
    wanted |= {folder.with_name(f"{folder.name}-{twin}"): other for twin, other in configs.twins(config).items()}
    tables = {path: configs.dump(each) for path, each in wanted.items()}
    todo = dict.fromkeys(wanted, True) if overwrite else runs.unfinished(tables)
    _train([Plan(wanted[path], path, create, overwrite) for path, create in todo.items()])
    _show_results(list(wanted))
    _write_report(list(wanted), folder / "report.html", "html")


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was interrupted or killed: the result is the same, bit for bit."""
    from sparsefed import config as configs
    from sparsefed import runs

    config = configs.parse(runs.load_config(run), source=str(run / runs.CONFIG))
    _train([Plan(config, run, create=False)])
    _show_results([run])


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the three runs and the report go.")] = Path("runs/demo"),
    set_: DemoOverrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, whatever is there.")] = False,
) -> None:
    """Train the same model three times with 2 % of 10 000 devices colluding: undefended, clipping, SparseFed.

    Interrupted or killed, the same command goes on where it was; once all three runs are finished, it starts them anew
    (the numbers are the same again, bit for bit). Runs made with other settings are left alone unless --fresh is given.
    """
    from sparsefed import config as configs
    from sparsefed import runs
    from sparsefed.progress import introduction

    folders = {out / config.name: config for config in configs.demo(set_ or [])}
    anew = folders if fresh else runs.to_begin({folder: configs.dump(config) for folder, config in folders.items()})
    console.print(introduction(list(folders.values())), highlight=False)
    _train([Plan(config, folder, folder in anew, overwrite=True) for folder, config in folders.items()])
    _show_results(list(folders))
    _write_report(list(folders), out / "report.html", "html")


def _train(plans: list[Plan], shown: Console = console) -> None:
    """Run one after the other under one progress view, after all have been built: what cannot work fails at once."""
    from sparsefed import config as configs
    from sparsefed.progress import RunView

    if not plans:
        _say("Everything is there already.")
        return
    reached = plans[0].folder
    try:
        with _ended_politely():
            experiments = configs.build_all([plan.config for plan in plans])
            with RunView(shown, {plan.title: plan.config.rounds for plan in plans}) as view:
                for plan, experiment in zip(plans, experiments, strict=True):
                    reached = plan.folder
                    _run_one(plan, experiment, view)
    except KeyboardInterrupt:
        _say_how_to_go_on(reached, several=len(plans) > 1)
        raise typer.Exit(INTERRUPTED) from None


def _show_results(folders: list[Path]) -> None:
    from sparsefed import runs
    from sparsefed.progress import comparison_table, results_table

    records = [runs.load_run(folder) for folder in folders]
    console.print(results_table(records))
    if compared := comparison_table(records):
        console.print(compared)
    for record in records:
        if record.manifest.get("privacy"):
            _say(f"{escape(record.name)}: {escape(record.manifest['privacy'])}")


def _run_one(plan: Plan, experiment: Experiment, view: RunView) -> None:
    from sparsefed import config as configs
    from sparsefed import runs

    if plan.create:
        runs.create(plan.folder, configs.dump(plan.config), plan.overwrite)
    runs.note(plan.folder, task=dict(experiment.facts))
    reports = view.following(plan.title, experiment.reports)
    runs.execute(plan.folder, experiment.begin(), reports, plan.config.checkpoint_every, view.show)
    dropped = max((int(row.get("dropped", 0)) for row in runs.load_run(plan.folder).rows), default=0)
    guarantee = experiment.privacy(dropped)
    if guarantee:
        runs.note(plan.folder, privacy=guarantee.sentence)


def _say_how_to_go_on(folder: Path, several: bool) -> None:
    from sparsefed import runs

    if not runs.is_run(folder):
        _say("Interrupted before anything was computed.")
        return
    again = "Go on with the same command, or with this run alone" if several else "Go on with"
    _say(f"Interrupted, saved. {again}: [bold]sparsefed resume {escape(shlex.quote(str(folder)))}[/bold]")


@contextmanager
def _ended_politely() -> Iterator[None]:
    """A polite kill, and a terminal that goes away, are treated like Ctrl-C: the state is saved first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    polite = [sig for sig in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(sig) is not signal.SIG_IGN]  # nohup
    before = {sig: signal.signal(sig, interrupt) for sig in polite}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


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
    """Search the strongest attack against CONFIG's defense: every trial is a run with other parameters of its attack.

    The first trial takes the parameters as they are in CONFIG, Optuna chooses the others, and hopeless trials are cut
    short. What the attackers want, who they are and what they know stays as CONFIG says.

    Ends with the trials that no other beats, strongest.toml, which `sparsefed run` takes, and a page with a chart of
    all trials. Interrupted or killed, the same command goes on; a larger --trials adds to what is there, and a smaller
    one shows it.
    """
    from sparsefed import config as configs
    from sparsefed import tune as tuning

    chosen = configs.read(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-tune"
    options = {"objective": objective, "space": space or [], "stealth": stealth, "seed": seed, "storage": storage}
    outcome = _tuned(chosen, trials, folder, **options)
    written = tuning.save(outcome, folder)
    console.print(tuning.front_table(outcome))
    for sentence in tuning.sentences(outcome):
        _say(escape(sentence))
    for path in written:
        _say(f"wrote [bold]{escape(str(path))}[/bold]")


def _tuned(config: Config, trials: int, folder: Path, **options: Any) -> TuneOutcome:
    from sparsefed import tune as tuning

    try:
        with _ended_politely(), tuning.TuneView(console, trials) as view:
            return tuning.tune(config, trials, folder, **options, watch=view.show)
    except KeyboardInterrupt:
        _say("Interrupted; every finished trial is kept. Go on with the same command.")
        raise typer.Exit(INTERRUPTED) from None


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
    from sparsefed import choosing

    chosen = choosing.read(config, set_ or [])
    folder = out or Path("runs") / f"{chosen.name}-choose-k"
    asked = choosing.ask(
        chosen,
        omega=omega,
        samples=samples,
        rounds_in=rounds_in,
        absolute=absolute,
        paper=paper,
        probe=probe,
        probe_rounds=probe_rounds,
        trials=trials,
    )
    try:
        with _ended_politely(), choosing.ChoiceView(console) as view:
            outcome = choosing.measure(chosen, asked, folder, view.show)
    except KeyboardInterrupt:
        _say("Interrupted, saved. Go on with the same command.")
        raise typer.Exit(INTERRUPTED) from None
    console.print(choosing.curve_table(outcome))
    if outcome.ks:
        outcome = _probed(outcome, folder)
        console.print(choosing.probe_table(outcome))
    for sentence in choosing.sentences(outcome):
        _say(escape(sentence))
    for path in choosing.save(outcome, folder):
        _say(f"wrote [bold]{escape(str(path))}[/bold]")


def _probed(outcome: Outcome, folder: Path) -> Outcome:
    """The same with probe runs, those that are finished not run again."""
    from dataclasses import replace

    from sparsefed import choosing, runs
    from sparsefed import config as configs

    asked, attackers = outcome.asked, choosing.attacked(outcome.config)
    probed = {k: choosing.with_k(outcome.config, k, asked.probe_rounds) for k in outcome.ks}
    named = "attacked" if asked.trials is None else f"tuned-{asked.trials}"
    if asked.trials is not None:
        for k, each in probed.items():
            _say(f"tuning the attack at k = {k}")
            probed[k] = _tuned(each, asked.trials, folder / "tuned" / f"k-{k}").tuned
    wanted = {k: choosing.probes(each, folder, named, attackers) for k, each in probed.items()}
    every = {path: each for folders in wanted.values() for path, each in folders.items()}
    todo = runs.unfinished({path: configs.dump(each) for path, each in every.items()})
    _train([Plan(every[path], path, create) for path, create in todo.items()])
    return replace(outcome, probes=choosing.results(wanted))


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
    from sparsefed import certificate

    if convergence:
        _converge(source, set_ or [], out)
        return
    question = certificate.Question(share, attackers, c, estimate_c, omega)
    found = certificate.certify(source, question, set_ or [])
    if train:
        trained = _trained_once(certificate.to_train(found), errors if as_json else console)
        found = certificate.certify(source, question, set_ or [], trained)
    if as_json:
        print(json.dumps(certificate.as_json(found), indent=2))
    else:
        for sentence in certificate.verdict(found):
            _say(escape(sentence))
        console.print(*certificate.tables(found), sep="\n")
    if out is not None:
        (errors if as_json else console).print(f"wrote [bold]{escape(str(certificate.save(found, out)))}[/bold]")


def _converge(source: Path, overrides: list[str], out: Path | None) -> None:
    from sparsefed.certificate import following

    found = following.follow(source, overrides, console)
    for sentence in following.sentences(found):
        _say(escape(sentence))
    console.print(following.convergence_table(found))
    if out is not None:
        _say(f"wrote [bold]{escape(str(following.save_convergence(found, out)))}[/bold]")


def _trained_once(config: Config, shown: Console) -> Path:
    """The folder of the run of a config, which is trained there unless it has been."""
    from sparsefed import config as configs
    from sparsefed import runs

    folder = Path("runs") / config.name
    todo = runs.unfinished({folder: configs.dump(config)})
    if todo:
        _train([Plan(config, path, create) for path, create in todo.items()], shown)
    return folder


@app.command()
def reproduce(
    name: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Tables and figures: see --list.")] = None,
    scale: Annotated[
        Scale, typer.Option(help="Seconds, at most an hour each, or everything as printed.")
    ] = Scale.laptop,
    out: Annotated[Path, typer.Option(help="Where results, pages and the cells' runs go.")] = Path("results"),
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Cells at a time; by default one a core.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="What there is, and nothing else.")] = False,
) -> None:
    """Run tables and figures of the paper, set our numbers beside the paper's, and judge its claims.

    Each is a grid of cells, that is, of runs. Cells run in parallel and are kept in OUT/cells: interrupted or killed,
    the same command goes on, and what is finished is never run again; a changed config is another cell. Results are in
    OUT/NAME.SCALE.jsonl, with a page and pictures beside them. A cell that fails does not stop the others; then the
    exit code is 2, and the same command tries it again.
    """
    from sparsefed.experiments import reading, runner, view
    from sparsefed.experiments.plan import plan

    if list_only or not (name or all_):
        console.print(view.list_table())
        return
    chosen = reading.names() if all_ else list(dict.fromkeys(name or []))
    plans = [plan(reading.load(each), scale.value) for each in chosen]
    try:
        with _ended_politely(), view.ReproduceView(console) as shown:
            ledger = runner.reproduce(plans, out, runner.default_jobs() if jobs is None else jobs, shown.show)
    except KeyboardInterrupt:
        _say("Interrupted, saved. Go on with the same command.")
        raise typer.Exit(INTERRUPTED) from None
    for told in view.told(plans, out):
        console.print(told, highlight=False, soft_wrap=isinstance(told, str))
    if failed := runner.failures(ledger, out):
        raise failed


@app.command()
def report(
    run: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or folders of run folders.", show_default=False),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; by default beside the runs.")] = None,
    format: Annotated[Format, typer.Option(help="One HTML page, or a picture of each chart.")] = Format.html,
) -> None:
    """Compare runs: curves, norms and a table in one HTML file that works offline, or as pictures."""
    from sparsefed import runs

    folders = runs.find(run)
    common = run[0] if len(run) == 1 else folders[0].parent
    _write_report(folders, out or common / f"report.{format.value}", format.value)


def _write_report(folders: list[Path], out: Path, format: str) -> None:
    from sparsefed import report as reports
    from sparsefed import runs

    records: list[RunRecord] = [runs.load_run(folder) for folder in folders]
    for path in reports.save(records, out, format):
        _say(f"wrote [bold]{escape(str(path))}[/bold]")


# --- what there is ---------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(help="A kind (defenses, attacks, models, ...) or a name (krum, cnn, ...)."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Every name a config can use, with its parameters: what it is, whose it is, what it needs."""
    from sparsefed.catalogue import catalogue, catalogue_tables, narrowed

    entries = narrowed(catalogue(), what)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    for table in catalogue_tables(entries):
        console.print(table)


@data_app.command("list")
def data_list(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """The data sets, and whether they are on this machine."""
    from dataclasses import asdict

    from sparsefed import data
    from sparsefed.progress import data_table

    found = data.listing()
    if as_json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    else:
        console.print(data_table(found))


@data_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.", show_default=False)],
    partition: Annotated[str, typer.Option(help="How it is dealt to devices.")] = "one_class",
    devices: Annotated[int | None, typer.Option(help="How many devices; by default as in a config.")] = None,
    per_device: Annotated[int | None, typer.Option(help="How many examples each owns.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A parameter of the partition, e.g. --param alpha=0.1."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the deal.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A picture: FILE.html, .png, .svg or .pdf.")] = None,
) -> None:
    """Who would own what: the numbers of a partition, and a picture of devices against classes and of sizes."""
    from sparsefed.progress import facts_table
    from sparsefed.report import partitions

    asked = {"name": name, "partition": partition, "devices": devices, "per_device": per_device}
    dealt = partitions.deal({"data": asked, "seed": seed}, [f"data.{each}" for each in param or []])
    console.print(facts_table(dealt.title, partitions.facts(dealt)))
    if out is not None:
        _say(f"wrote [bold]{escape(str(partitions.save(dealt, out)))}[/bold]")


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.", show_default=False)]) -> None:
    """Bring a data set into the user's cache, verified; does nothing where it is there already."""
    from sparsefed import data

    _say_statuses([data.fetch(name, lambda line: _say(escape(line)))])


@data_app.command()
def check(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The data set; by default all here.")] = None,
) -> None:
    """Compare every byte of the data sets on this machine with their checksums."""
    from sparsefed import data

    names = [name] if name else [status.name for status in data.listing() if status.state != "missing"]
    _say_statuses([data.check(each) for each in names])


def _say_statuses(statuses: list[Status]) -> None:
    for status in statuses:
        where = f" ({status.location})" if status.location else ""
        _say(f"[bold]{status.name}[/bold]: {status.state}{escape(where)}")
    if problems := [status.problem for status in statuses if status.problem]:
        raise DataError(" ".join(problems))


if __name__ == "__main__":
    main()
