"""The samples: what the server would average, at the first model and after some rounds without top-k."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.choose_k.choice import Asked, Outcome, Stage
from sparsefed.commands.choose_k.probes import probe_ks
from sparsefed.config import Config, Experiment
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.round import RoundSetup, ServerState, run_round, simulate
from sparsefed.core.signatures import parameters
from sparsefed.core.types import Block, Context, Defense, State, Step
from sparsefed.defenses import DEFENSES, CommonOptions
from sparsefed.results.numbers import log_ticks
from sparsefed.theory import choice_of_k as choice
from sparsefed.theory.choice_of_k import Choice, Curve, Draw, Gradient

DRAWN = 61  # points of a curve on a chart
BY_DEVICE = ("local_topk",)  # rules whose top-k sees one device's update, not the mean


@dataclass(frozen=True)
class Standing:
    """How far the measuring is, in rounds computed."""

    done: int
    wanted: int
    doing: str


Watch = Callable[[Standing], None]


def measure(
    config: Config,
    asked: Asked,
    folder: Path,
    watch: Watch = lambda standing: None,  # noqa: ARG005
) -> Outcome:
    """Train as far as asked, sample, and choose; what was trained stays in the folder and is not trained again."""
    training, sampled = (configs.build(each) for each in (without_topk(config), without_topk(config, rho=0.0)))
    d, epoch = len(training.theta), int(training.facts["epoch"])
    ks = probe_ks(asked.probe, d) if asked.probe else ()
    tally = _Tally(watch, sum(asked.rounds_in) + asked.samples * len(asked.rounds_in))
    stages = []
    for rounds in asked.rounds_in:
        state = _trained(training, rounds, folder / f"trained-{rounds}", tally)
        protocol = _looking(sampled.protocol, rounds, config.defense.name)
        stages.append(_stage(protocol, state, asked, epoch, tally))
    return Outcome(config, asked, d, epoch, tuple(stages), ks)


def without_topk(config: Config, rho: float | None = None) -> Config:
    """The same server with k = d and nobody who attacks: its clip, pre-aggregation and, unless given, momentum."""
    rule, frame = DEFENSES.get(config.defense.name), {parameter.name for parameter in parameters(CommonOptions)}
    kept = {**(rule.usual if rule else {}), **config.defense.params}
    kept = {key: value for key, value in kept.items() if key in frame} | ({} if rho is None else {"rho": rho})
    table = {key: value for key, value in configs.dump(config).items() if key not in ("attack", "threat")}
    return configs.parse({**table, "name": "trained", "defense": {"name": "undefended", **kept}})


def grid(d: int) -> tuple[int, ...]:
    """The k's of the table (`table_ks`) and of the chart, evenly spaced on a logarithmic scale."""
    spaced = np.rint(np.geomspace(1, d, DRAWN)).astype(int)
    return tuple(sorted({*spaced.tolist(), *table_ks(d)}))


def table_ks(d: int) -> tuple[int, ...]:
    """1, 2 and 5 of each decade, and d.

    >>> table_ks(30)
    (1, 2, 5, 10, 20, 30)
    """
    decades = (tick for low in range(len(str(d))) for tick in log_ticks(10**low, min(d, 10 ** (low + 1) - 1)))
    return tuple(sorted({*map(round, decades), d}))


class _Tally:
    """Counts rounds, and tells whoever watches."""

    def __init__(self, watch: Watch, wanted: int) -> None:
        self._watch, self._done, self._wanted = watch, 0, wanted

    def expect(self, more: int) -> None:
        """So many rounds were not foreseen."""
        self._wanted += more

    def tick(self, doing: str) -> None:
        """One more is done."""
        self._done += 1
        self._watch(Standing(self._done, max(self._done, self._wanted), doing))


def _trained(experiment: Experiment, rounds: int, folder: Path, tally: _Tally) -> ServerState:
    """The state after so many rounds of the config's schedule, from the folder if it is there."""
    if rounds == 0:
        return experiment.begin()
    table = configs.dump(experiment.config)
    for path, create in runs.unfinished({folder: table}).items():
        if create:
            runs.create(path, table)
        runs.note(path, task=dict(experiment.facts))
        reports = partial(simulate, experiment.protocol, rounds=rounds)
        every = experiment.config.checkpoint_every
        runs.execute(path, experiment.begin(), reports, every, lambda _: tally.tick(f"training to round {rounds}"))
    state = runs.load_state(folder)
    if state is None or state.round != rounds:
        raise RunError(f"{folder} does not hold a model of {rounds} rounds; delete it, and it is trained again")
    return state


# --- looking at what the server averages -----------------------------------------------------------------------------


def _looking(protocol: RoundSetup, rounds: int, defense: str) -> RoundSetup:
    """The protocol at the rate of the round that would follow, in every round; of one device where top-k is its own."""
    rate = protocol.schedule(rounds + 1)
    if not rate > 0:
        raise ConfigError(f"the learning rate of round {rounds + 1} is {rate}, so there is nothing to sample there")
    federation = replace(protocol.federation, n=1) if defense in BY_DEVICE else protocol.federation
    return replace(protocol, federation=federation, schedule=lambda round: rate)  # noqa: ARG005


def _gradients(protocol: RoundSetup, state: ServerState, rounds: Iterator[int], n: int) -> Iterator[Gradient]:
    """What the server averages of the next n cohorts, all at the same model; without the learning rate, where it is
    the server's."""
    for _ in range(n):
        seen: list[Gradient] = []
        watched = replace(protocol, defense=_watched(protocol.defense, seen.append, protocol.device_lr))
        report = run_round(watched, replace(state, round=next(rounds) - 1))
        if report.metrics["dropped"] >= report.metrics["cohort"]:
            raise ConfigError(
                f"after {state.round} rounds no update is finite: the model has diverged; lower train.lr, or sample "
                "earlier with --rounds-in"
            )
        yield seen[0]


def _watched(defense: Defense, keep: Callable[[Gradient], None], device_lr: bool) -> Defense:
    """The same defense; what it applies is kept too."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Step:
        done = defense.step(state, blocks, context)
        keep((done.delta if device_lr else done.delta / context.lr).numpy())
        return done

    return replace(defense, step=step)


def _stage(protocol: RoundSetup, state: ServerState, asked: Asked, r: int, tally: _Tally) -> Stage:
    rounds = count(state.round + 1)

    def draw() -> Iterator[Gradient]:
        for gradient in _gradients(protocol, state, rounds, asked.samples):
            tally.tick(f"sampling after {state.round} rounds")
            yield gradient

    d = len(state.theta)
    curve = (choice.mass_curve if asked.absolute else choice.share_curve)(draw(), grid(d))
    if curve.mean[0] == 0:
        raise ConfigError(f"after {state.round} rounds every update is 0, so there is nothing to choose k by")
    chosen, stepped = choice.smallest_k(curve, asked.omega), choice.stepped_k(curve, asked.omega, r)
    tally.expect(stepped.selections if asked.paper else 0)
    return Stage(state.round, curve.grid, curve.samples, chosen, stepped, _printed(draw, curve, asked, r))


def _printed(draw: Draw, curve: Curve, asked: Asked, r: int) -> Choice | None:
    if not asked.paper:
        return None
    return (choice.paper_choice if asked.absolute else choice.paper_choice_of_share)(draw, asked.omega, curve.d, r)
