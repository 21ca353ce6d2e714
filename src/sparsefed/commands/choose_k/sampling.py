"""Sampling for the choice of k: what the server would average, at the first model and after rounds without top-k."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.choose_k import options as checked
from sparsefed.commands.choose_k import probes
from sparsefed.commands.choose_k.choice import ChooseKResult, Stage
from sparsefed.commands.choose_k.options import SAMPLES, ChooseKOptions, check, load, probe_ks
from sparsefed.commands.common import Subject
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.round import RoundReport, RoundSetup, ServerState, run_round
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Block, Context, Defense, State, Step
from sparsefed.defenses import CommonOptions
from sparsefed.results.numbers import log_ticks
from sparsefed.sweeps.runner import working_folder
from sparsefed.theory import choice_of_k as choice
from sparsefed.theory.choice_of_k import Gradient

DRAWN = 61  # points of a curve on a chart
BY_DEVICE = ("local_topk",)  # rules whose top-k sees one device's update, not the mean


def choose_k(
    subject: Subject,
    *,
    omega: float | None = None,
    samples: int = SAMPLES,
    rounds_in: str | Sequence[int] | None = None,
    absolute: bool = False,
    paper: bool = False,
    probe: str | int | Sequence[int] | None = None,
    probe_rounds: int | None = None,
    tune_trials: int | None = None,
    folder: Path | str | None = None,
    on_progress: OnProgress | None = None,
) -> ChooseKResult:
    """Choose k for a config's model and data: the smallest with which top-k loses at most omega of the l1 mass.

    Args:
        subject: A config, its table, or the path of its file; its `defense.k` may be missing.
        omega: The share of the l1 mass that top-k may lose; by default one half.
        samples: Cohorts to sample at each model.
        rounds_in: After how many rounds without top-k the model is sampled; by default 0 and a tenth of the run.
        absolute: Whether `omega` is a mass, as the paper's algorithm prints it, not a share.
        paper: Whether to run the paper's algorithm as printed, too.
        probe: How many k's to try in short runs, or which.
        probe_rounds: Rounds of such a run; by default the config's.
        tune_trials: Trials of tuning the attack anew at each of these k's.
        folder: Where models and runs are kept, so that nothing is computed twice; by default nowhere.
        on_progress: Called after every round.

    Returns:
        The k with all that was measured for it.

    Raises:
        ConfigError: The config has no k to choose, or an option is impossible.
        RunError: The folder holds something else.
    """
    config = load(subject)
    options = ChooseKOptions(
        omega=checked.omega(omega, absolute),
        samples=samples,
        rounds_in=checked.rounds_in(config, rounds_in),
        absolute=absolute,
        paper=paper,
        probe=checked.probe(probe),
        probe_rounds=probe_rounds,
        trials=tune_trials,
    )
    check(config, options)
    show = on_progress or (lambda _: None)
    with working_folder(folder) as kept:
        result = measure(config, options, kept, show)
        return probes.probe(result, kept, show) if result.ks else result


def measure(config: Config, options: ChooseKOptions, folder: Path, on_progress: OnProgress) -> ChooseKResult:
    """Train as far as needed, sample, and choose; trained models stay in the folder and are not trained again."""
    training, sampled = (configs.build(each) for each in (without_topk(config), without_topk(config, rho=0.0)))
    d, epoch = len(training.theta), int(training.facts["epoch"])
    ks = probe_ks(options.probe, d) if options.probe else ()
    counter = _Counter(on_progress, sum(options.rounds_in) + options.samples * len(options.rounds_in))
    stages = []
    with _threads_of_workers():
        for rounds in options.rounds_in:
            state = _trained(training, rounds, folder / f"trained-{rounds}", counter)
            setup = _sampling_setup(sampled.setup, rounds, config.defense.name)
            stages.append(_stage(setup, state, options, epoch, counter))
    return ChooseKResult(config, options, d, epoch, tuple(stages), ks)


@contextmanager
def _threads_of_workers() -> Iterator[None]:
    """Compute with as many threads as a sweep's workers, so that every command and machine comes to the same k."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_topk(config: Config, rho: float | None = None) -> Config:
    """Return the config with k = d and without attackers: its clip, pre-aggregation and, unless given, momentum."""
    frame = {parameter.name for parameter in parameters(CommonOptions)}
    kept = {**configs.rule(config.defense.name).usual, **config.defense.params}
    kept = {key: value for key, value in kept.items() if key in frame} | ({} if rho is None else {"rho": rho})
    table = {key: value for key, value in configs.dump(config).items() if key not in ("attack", "threat")}
    return configs.parse({**table, "name": "trained", "defense": {"name": "undefended", **kept}})


def grid(d: int) -> tuple[int, ...]:
    """Return the k's of the table (`table_ks`) and of the chart, evenly spaced on a logarithmic scale."""
    spaced = np.rint(np.geomspace(1, d, DRAWN)).astype(int)
    return tuple(sorted({*spaced.tolist(), *table_ks(d)}))


def table_ks(d: int) -> tuple[int, ...]:
    """Return 1, 2 and 5 of each decade, and d.

    >>> table_ks(30)
    (1, 2, 5, 10, 20, 30)
    """
    decades = (tick for low in range(len(str(d))) for tick in log_ticks(10**low, min(d, 10 ** (low + 1) - 1)))
    return tuple(sorted({*map(round, decades), d}))


@dataclass
class _Counter:
    """A counter of rounds that reports its progress."""

    on_progress: OnProgress
    total: int
    done: int = 0

    def tick(self, title: str) -> None:
        """Count one more round as done."""
        self.done += 1
        self.on_progress(Progress(title, self.done, max(self.done, self.total), line=f"{title} ..."))


def _trained(experiment: BuiltSimulation, rounds: int, folder: Path, counter: _Counter) -> ServerState:
    """Return the state after that many rounds of the config's schedule, from the folder if it is there."""
    if rounds == 0:
        return experiment.begin()

    def tick(_: RoundReport) -> None:
        counter.tick(f"training to round {rounds}")

    config, part = experiment.config, replace(experiment, rounds=rounds, evaluate=lambda theta: {})  # noqa: ARG005
    runs.run(folder, configs.dump(config), lambda: part, checkpoint_every=config.checkpoint_every, on_round=tick)
    state = runs.load_state(folder)
    if state is None or state.round != rounds:
        raise RunError(f"{folder} does not hold a model of {rounds} rounds; delete it, and it is trained again")
    return experiment.placed(state)


# --- what the server averages ----------------------------------------------------------------------------------------


def _sampling_setup(setup: RoundSetup, rounds: int, defense: str) -> RoundSetup:
    """Return the setup at the rate of the round that would follow, in every round; of one device where it has top-k."""
    rate = setup.schedule(rounds + 1)
    if not rate > 0:
        raise ConfigError(f"the learning rate of round {rounds + 1} is {rate}, so there is nothing to sample there")
    federation = replace(setup.federation, n=1) if defense in BY_DEVICE else setup.federation
    return replace(setup, federation=federation, schedule=lambda round: rate)  # noqa: ARG005


def _gradients(
    setup: RoundSetup, state: ServerState, rounds: Iterator[int], n: int, counter: _Counter
) -> Iterator[Gradient]:
    """Yield the mean update of the next n cohorts, all at one model; without the learning rate, if the server's."""
    for _ in range(n):
        seen: list[Gradient] = []
        watched = replace(setup, defense=_watched(setup.defense, seen.append, setup.device_lr))
        report = run_round(watched, replace(state, round=next(rounds) - 1))
        if report.metrics["dropped"] >= report.metrics["cohort"]:
            raise ConfigError(
                f"after {state.round} rounds no update is finite: the model has diverged; lower train.lr, or sample "
                "earlier with --rounds-in"
            )
        counter.tick(f"sampling after {state.round} rounds")
        yield seen[0]


def _watched(defense: Defense, keep: Callable[[Gradient], None], device_lr: bool) -> Defense:
    """Wrap a defense so that the updates it applies are also kept."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Step:
        done = defense.step(state, blocks, context)
        keep((done.delta if device_lr else done.delta / context.lr).cpu().numpy())
        return done

    return replace(defense, step=step)


def _stage(setup: RoundSetup, state: ServerState, options: ChooseKOptions, r: int, counter: _Counter) -> Stage:
    rounds = count(state.round + 1)

    def draw() -> Iterator[Gradient]:
        return _gradients(setup, state, rounds, options.samples, counter)

    d = len(state.theta)
    curve = (choice.mass_curve if options.absolute else choice.share_curve)(draw(), grid(d))
    if curve.mean[0] == 0:
        raise ConfigError(f"after {state.round} rounds every update is 0, so there is nothing to choose k by")
    chosen, stepped = choice.smallest_k(curve, options.omega), choice.stepped_k(curve, options.omega, r)
    printed = None
    if options.paper:
        counter.total += stepped.selections
        paper_choice = choice.paper_choice if options.absolute else choice.paper_choice_of_share
        printed = paper_choice(draw, options.omega, d, r)
    return Stage(state.round, curve.grid, curve.samples, chosen, stepped, printed)
