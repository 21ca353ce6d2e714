"""The search: trial after trial, the config's own parameters first.

The sampler is seeded before each trial from the seed and the number of trials behind it, and looks at finished trials
only. So a study that one process works on is deterministic, killed and continued or not. Where several share a study,
what is tried depends on who is done first; what a trial comes to never does.
"""

from __future__ import annotations

import functools
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefed import config as configs
from sparsefed import data, runs
from sparsefed import reports as report
from sparsefed.commands.tune import study as studies
from sparsefed.commands.tune.options import study_name
from sparsefed.commands.tune.space import Choice, Searched, Space, own_params, search_space, with_params
from sparsefed.commands.tune.trials import (
    AIMS,
    WARMUP,
    Objective,
    Outcome,
    Trial,
    front,
    nondominated,
    outdone,
    strongest,
    values,
)
from sparsefed.config import Config, Experiment
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.rng import integer_seed
from sparsefed.core.types import RunRecord

if TYPE_CHECKING:
    import optuna

CHECKED_AT = (1 / 3, 1 / 2)  # of the rounds from the attack's start: where a trial may be pruned
SETTLED = ("COMPLETE", "PRUNED")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Standing:
    """How far a search is."""

    done: int
    wanted: int
    share: float  # of the trial under way
    best: Trial | None
    ended: Trial | None = None  # the trial that has just come to its end


Watch = Callable[[Standing], None]


@dataclass(frozen=True)
class _Search:
    """All that does not change from trial to trial."""

    config: Config
    space: Space
    objective: Objective
    stealth: float | None
    seed: int
    facts: Mapping[str, Any]  # of the task, the same in every trial
    load: Callable[[data.DataSet], Any]
    place: str  # whose trials these are: the folder on this machine, which one process at a time works on

    @property
    def own(self) -> dict[str, Any]:
        return own_params(self.config, self.space)

    @property
    def checked(self) -> frozenset[int]:
        """The rounds at which a trial may be pruned: the first evaluations at or after the shares of the way."""
        rounds, every = self.config.rounds, self.config.evaluate_every
        start = self.config.threat.start - 1
        wanted = (start + share * (rounds - start) for share in CHECKED_AT)
        return frozenset(at for at in (math.ceil(goal / every) * every for goal in wanted) if 0 < at < rounds)


def tune(
    config: Config,
    trials: int,
    folder: Path,
    *,
    seed: int | None = None,
    storage: str | None = None,
    objective: str | None = None,
    space: Sequence[str] = (),
    stealth: float | None = None,
    watch: Watch = lambda standing: None,  # noqa: ARG005
) -> Outcome:
    """Search until there are so many trials, those of earlier calls included; Ctrl-C keeps all that are finished.

    `storage` is the URL of a database, for several machines that share a study; each works in a folder of its own.
    """
    studies.library()
    _check(trials, stealth, objective)
    found = search_space(config, space)
    load = functools.cache(data.load)
    experiment = configs.build(config, load)
    aim = _aim(objective, experiment)
    place = f"{socket.gethostname()}:{folder.resolve()}"
    drawn_from = config.seed if seed is None else seed
    search = _Search(config, found, aim, stealth, drawn_from, experiment.facts, load, place)
    folder.mkdir(parents=True, exist_ok=True)
    with runs.locked(folder), studies.patiently() as check:

        def watched(standing: Standing) -> None:
            check()
            watch(standing)

        name = study_name(folder, config, found, aim)
        with studies.opened(name, folder, storage, aim) as study:
            studies.bury(study, place, alone=storage is None)
            _go_on(study, search, trials, watched)
            return _outcome(study, search)


def _check(trials: int, stealth: float | None, objective: str | None) -> None:
    if trials < 1:
        raise ConfigError(f"--trials is {trials}; at least 1 is needed")
    if stealth is not None and not 0 <= stealth <= 1:
        raise ConfigError(f"--stealth is {stealth}, but is a share of test accuracy; use 0 to 1, for instance 0.02")
    if objective is not None and objective not in AIMS:
        raise ConfigError(unknown("objective", objective, AIMS))


def _aim(asked: str | None, experiment: Experiment) -> Objective:
    """What was asked for, if the attack has a goal; otherwise there is but one thing to aim at."""
    if "attack_points" in experiment.facts:
        return next((aim for aim in AIMS if aim == asked), "both")
    if asked in ("both", "attack"):
        attack = experiment.config.attack
        raise ConfigError(
            f"attack {attack.name if attack else ''} wants no particular labels, so there is no attack accuracy; "
            "use --objective damage"
        )
    return "damage"


def _go_on(study: optuna.Study, search: _Search, wanted: int, watch: Watch) -> None:
    """Trial after trial until there are as many as wanted."""
    optuna = studies.library()
    ended: list[Trial] = []
    while True:
        done, best = len(studies.in_state(study, *SETTLED)), _best(study, search)
        standing = Standing(done, wanted, 0.0, best)
        watch(replace(standing, ended=ended[-1] if ended else None))
        if done >= wanted and best is not None:
            return
        # Where all but the first trial is done, it is not left to another machine, which may be dead.
        if best is None and (done >= wanted or not _is_coming(study, search.own)):
            study.enqueue_trial(search.own, user_attrs={"as given": search.own, "place": search.place})
        running = len(studies.in_state(study, "RUNNING"))  # those who share a study must not draw the same
        drawn = integer_seed(search.seed, "tune", done, running) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=True)
        study.optimize(
            functools.partial(_try, search, _shown(watch, standing)),
            n_trials=1,
            callbacks=[lambda study, trial: ended.append(studies.read(trial))],  # noqa: ARG005
        )


def _shown(watch: Watch, standing: Standing) -> Callable[[float], None]:
    return lambda share: watch(replace(standing, share=share))


def _is_coming(study: optuna.Study, own: Mapping[str, Any]) -> bool:
    """Whether the config's own parameters are about to be tried, or are being tried elsewhere."""
    return any(trial.user_attrs.get("as given") == own for trial in studies.in_state(study, "WAITING", "RUNNING"))


# --- one trial -------------------------------------------------------------------------------------------------------


def _try(search: _Search, shown: Callable[[float], None], trial: optuna.Trial) -> tuple[float, ...]:
    """One trial: a whole run, unless the attack refuses the parameters or it is pruned."""
    pruned = studies.library().TrialPruned
    trial.set_user_attr("place", search.place)
    given = trial.user_attrs.get("as given", search.space)
    params = {name: _suggested(trial, name, searched) for name, searched in search.space.items() if name in given}
    rows: list[Mapping[str, Any]] = []
    try:
        for row in _rounds(search, params, shown):
            rows.append(row)
            if row["round"] in search.checked and _is_hopeless(search, trial, params, rows):
                break
    except ConfigError as error:
        if params == search.own:
            raise
        trial.set_user_attr("refused", str(error))
        raise pruned(str(error)) from error
    trial.set_user_attr("result", _result(search, rows))
    if rows[-1]["round"] < search.config.rounds:
        raise pruned(f"without hope at round {rows[-1]['round']}")
    return values(Trial(trial.number, params, "finished", **_result(search, rows)), search.objective)


def _rounds(search: _Search, params: Mapping[str, Any], shown: Callable[[float], None]) -> Iterator[Mapping[str, Any]]:
    experiment = configs.build(with_params(search.config, params), search.load)
    for done in experiment.reports(experiment.begin()):
        shown(done.state.round / search.config.rounds)
        yield done.metrics


def _suggested(trial: optuna.Trial, name: str, searched: Searched) -> Any:
    if isinstance(searched, Choice):
        return trial.suggest_categorical(name, searched.options)
    if searched.whole:
        return trial.suggest_int(name, int(searched.low), int(searched.high), log=searched.log)
    return trial.suggest_float(name, searched.low, searched.high, log=searched.log)


def _result(search: _Search, rows: Rows) -> dict[str, Any]:
    """The numbers of a trial, which are those of a report on the same run."""
    (row,) = report.summary([RunRecord("", {}, {"task": search.facts}, tuple(rows))])
    return {
        "rounds": row.rounds,
        "attack_accuracy": row.attack_mean,
        "test_accuracy": row.test_accuracy,
        "norm_ratio": row.norm_ratio,
        "converged": row.converged,
    }


def _is_hopeless(search: _Search, trial: optuna.Trial, params: Mapping[str, Any], rows: Rows) -> bool:
    """Compare with what the others had at the same round, after leaving word for those to come."""
    reached = rows[-1]["round"]
    now = values(Trial(0, params, "pruned", **_result(search, rows[-1:])), search.objective)
    trial.set_user_attr(f"at round {reached}", now)
    if len(now) == 1:
        trial.report(now[0], reached)
        return params != search.own and trial.should_prune()
    finished = studies.in_state(trial.study, "COMPLETE")
    if params == search.own or len(finished) < WARMUP:
        return False
    best = [finished[i] for i in nondominated([tuple(other.values) for other in finished])]
    return any(outdone(now, tuple(other.user_attrs[f"at round {reached}"])) for other in best)


# --- what it has come to ---------------------------------------------------------------------------------------------


def _first(study: optuna.Study, own: Mapping[str, Any]) -> Trial | None:
    """The trial of the config's own parameters, once it is finished."""
    finished = studies.in_state(study, "COMPLETE")
    same = (trial for trial in finished if own in (trial.user_attrs.get("as given"), trial.params))
    return next(map(studies.read, same), None)


def _best(study: optuna.Study, search: _Search) -> Trial | None:
    """The strongest so far; None until the config's own parameters have been tried."""
    first = _first(study, search.own)
    return first and strongest(studies.trials(study, "COMPLETE"), first, search.objective, search.stealth)


def _outcome(study: optuna.Study, search: _Search) -> Outcome:
    first, best = _first(study, search.own), _best(study, search)
    assert first is not None and best is not None
    return Outcome(
        search.config,
        search.space,
        search.objective,
        search.stealth,
        trials=tuple(studies.trials(study, *SETTLED)),
        front=front(studies.trials(study, "COMPLETE"), search.objective),
        first=first,
        strongest=best,
        failed=len(studies.in_state(study, "FAIL")),
    )
