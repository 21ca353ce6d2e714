"""The search: trial after trial, the config's own parameters first.

The sampler is seeded before each trial from the seed and the number of trials behind it, and looks at finished trials
only. So a study that one process works on is deterministic, killed and continued or not. Where several share a study,
what is tried depends on which finishes first; the result of a trial never does.
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
from sparsefed.commands.common import Subject
from sparsefed.commands.tune import study as studies
from sparsefed.commands.tune.space import Categories, Searched, Space, own_params, search_space, with_params
from sparsefed.commands.tune.trials import (
    AIMS,
    WARMUP,
    Objective,
    Trial,
    TuneResult,
    front,
    nondominated,
    outdone,
    progress,
    strongest,
    values,
)
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.rng import integer_seed
from sparsefed.results.summary import summarise
from sparsefed.sweeps.runner import working_folder

if TYPE_CHECKING:
    import optuna

CHECKED_AT = (1 / 3, 1 / 2)  # of the rounds from the attack's start: where a trial may be pruned
SETTLED = ("COMPLETE", "PRUNED")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Search:
    """The parts of a search that do not change between trials."""

    config: Config
    space: Space
    objective: Objective
    stealth: float | None
    seed: int
    facts: Mapping[str, Any]  # of the task, the same in every trial
    load: Callable[[data.DataSet], Any]
    place: str  # the owner of its trials: the folder on this machine, used by one process at a time

    @property
    def own(self) -> dict[str, Any]:
        return own_params(self.config, self.space)

    @property
    def checked(self) -> frozenset[int]:
        """Return the rounds at which a trial may be pruned: the first evaluations from `CHECKED_AT` of the way on."""
        rounds, every = self.config.rounds, self.config.evaluate_every
        start = self.config.threat.start - 1
        wanted = (start + share * (rounds - start) for share in CHECKED_AT)
        return frozenset(at for at in (math.ceil(goal / every) * every for goal in wanted) if 0 < at < rounds)


def tune(
    subject: Subject,
    *,
    trials: int,
    folder: Path | str | None = None,
    objective: str | None = None,
    space: Sequence[str] = (),
    stealth: float | None = None,
    seed: int | None = None,
    storage: str | None = None,
    on_progress: OnProgress | None = None,
) -> TuneResult:
    """Search for the strongest attack on a config's defense; every trial is a run with other attack parameters.

    Args:
        subject: A config, its table, or the path of its file.
        trials: Trials in all, those of earlier calls in the same folder included.
        folder: Where the search is kept, so that it can be continued; by default nowhere.
        objective: 'both', 'attack' or 'damage'; by default 'both', or 'damage' where the attackers have no goal.
        space: Where to search, for instance `["attack.step=0.01:1", "attack.to_budget=true,false"]`.
        stealth: The test accuracy, as a share, that the strongest attack may cost.
        seed: The seed of the search; by default the config's.
        storage: The URL of a database, for several machines that share a study, each in a folder of its own.
        on_progress: Called before the first trial, after every round and after every trial.

    Returns:
        All trials, those that no other beats, and the strongest. Ctrl-C keeps all that are finished in the folder.

    Raises:
        ConfigError: The config has no attack that can be tuned, or an option is impossible.
        RunError: The folder holds another search, or its database fails.
    """
    studies.library()
    _check(trials, stealth, objective)
    config = configs.as_config(subject)
    searched = search_space(config, space)
    load = functools.cache(data.load)
    experiment = configs.build(config, load)
    aim = _aim(objective, experiment)
    with working_folder(folder) as kept:
        kept.mkdir(parents=True, exist_ok=True)
        place = f"{socket.gethostname()}:{kept.resolve()}"
        drawn_from = config.seed if seed is None else seed
        search = _Search(config, searched, aim, stealth, drawn_from, experiment.facts, load, place)
        with runs.locked(kept), studies.patiently() as check:

            def show(reached: Progress) -> None:
                check()
                if on_progress is not None:
                    on_progress(reached)

            name = studies.study_name(kept, config, searched, aim)
            with studies.opened(name, kept, storage, aim) as study:
                studies.bury(study, place, alone=storage is None)
                _go_on(study, search, trials, show)
                return _result(study, search)


def _check(trials: int, stealth: float | None, objective: str | None) -> None:
    if trials < 1:
        raise ConfigError(f"--trials is {trials}; at least 1 is needed")
    if stealth is not None and not 0 <= stealth <= 1:
        raise ConfigError(f"--stealth is {stealth}, but is a share of test accuracy; use 0 to 1, for instance 0.02")
    if objective is not None and objective not in AIMS:
        raise ConfigError(unknown("objective", objective, AIMS))


def _aim(wanted: str | None, experiment: BuiltSimulation) -> Objective:
    """Return the requested objective if the attack has a goal; otherwise there is only one."""
    if "attack_points" in experiment.facts:
        return next((aim for aim in AIMS if aim == wanted), "both")
    if wanted in ("both", "attack"):
        attack = experiment.config.attack
        raise ConfigError(
            f"attack {attack.name if attack else ''} wants no particular labels, so there is no attack accuracy; "
            "use --objective damage"
        )
    return "damage"


def _go_on(study: optuna.Study, search: _Search, wanted: int, show: OnProgress) -> None:
    """Run trial after trial until there are as many as wanted."""
    optuna = studies.library()
    ended: list[Trial] = []
    while True:
        done, best = len(studies.in_state(study, *SETTLED)), _best(study, search)
        show(progress(done, wanted, best, ended[-1] if ended else None))
        if done >= wanted and best is not None:
            return
        # If only the first trial is missing, run it here: the machine that began it may be dead.
        if best is None and (done >= wanted or not _is_coming(study, search.own)):
            study.enqueue_trial(search.own, user_attrs={"as given": search.own, "place": search.place})
        running = len(studies.in_state(study, "RUNNING"))  # processes that share a study must not draw the same
        drawn = integer_seed(search.seed, "tune", done, running) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=True)
        study.optimize(
            functools.partial(_try, search, _within_a_trial(show, progress(done, wanted, best))),
            n_trials=1,
            callbacks=[lambda study, trial: ended.append(studies.read(trial))],  # noqa: ARG005
        )


def _within_a_trial(show: OnProgress, before: Progress) -> Callable[[float], None]:
    return lambda share: show(replace(before, done=before.done + share))


def _is_coming(study: optuna.Study, own: Mapping[str, Any]) -> bool:
    """Return whether the config's own parameters are about to be tried, or are being tried elsewhere."""
    return any(trial.user_attrs.get("as given") == own for trial in studies.in_state(study, "WAITING", "RUNNING"))


# --- one trial -------------------------------------------------------------------------------------------------------


def _try(search: _Search, shown: Callable[[float], None], trial: optuna.Trial) -> tuple[float, ...]:
    """Run one trial: a whole run, unless the attack refuses the parameters or it is pruned."""
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
    trial.set_user_attr("result", _measured(search, rows))
    if rows[-1]["round"] < search.config.rounds:
        raise pruned(f"without hope at round {rows[-1]['round']}")
    return values(Trial(trial.number, params, "finished", **_measured(search, rows)), search.objective)


def _rounds(search: _Search, params: Mapping[str, Any], shown: Callable[[float], None]) -> Iterator[Mapping[str, Any]]:
    experiment = configs.build(with_params(search.config, params), search.load)
    for done in experiment.reports(experiment.begin()):
        shown(done.state.round / search.config.rounds)
        yield done.metrics


def _suggested(trial: optuna.Trial, name: str, searched: Searched) -> Any:
    if isinstance(searched, Categories):
        return trial.suggest_categorical(name, searched.options)
    if searched.whole:
        return trial.suggest_int(name, int(searched.low), int(searched.high), log=searched.log)
    return trial.suggest_float(name, searched.low, searched.high, log=searched.log)


def _measured(search: _Search, rows: Rows) -> dict[str, Any]:
    """Return the numbers of a trial, equal to those of a report on such a run."""
    row = summarise(rows, search.facts)
    return {
        "rounds": row.rounds,
        "attack_accuracy": row.attack_mean,
        "test_accuracy": row.test_accuracy,
        "norm_ratio": row.norm_ratio,
        "converged": row.converged,
    }


def _is_hopeless(search: _Search, trial: optuna.Trial, params: Mapping[str, Any], rows: Rows) -> bool:
    """Return whether other trials were far better at this round, and record this trial's values for later ones."""
    reached = rows[-1]["round"]
    now = values(Trial(0, params, "pruned", **_measured(search, rows[-1:])), search.objective)
    trial.set_user_attr(f"at round {reached}", now)
    if len(now) == 1:
        trial.report(now[0], reached)
        return params != search.own and trial.should_prune()
    finished = studies.in_state(trial.study, "COMPLETE")
    if params == search.own or len(finished) < WARMUP:
        return False
    best = [finished[i] for i in nondominated([tuple(other.values) for other in finished])]
    return any(outdone(now, tuple(other.user_attrs[f"at round {reached}"])) for other in best)


# --- the result ------------------------------------------------------------------------------------------------------


def _first(study: optuna.Study, own: Mapping[str, Any]) -> Trial | None:
    """Return the trial of the config's own parameters, once it is finished."""
    finished = studies.in_state(study, "COMPLETE")
    same = (trial for trial in finished if own in (trial.user_attrs.get("as given"), trial.params))
    return next(map(studies.read, same), None)


def _best(study: optuna.Study, search: _Search) -> Trial | None:
    """Return the strongest so far; None until the config's own parameters have been tried."""
    first = _first(study, search.own)
    return first and strongest(studies.trials(study, "COMPLETE"), first, search.objective, search.stealth)


def _result(study: optuna.Study, search: _Search) -> TuneResult:
    first, best = _first(study, search.own), _best(study, search)
    assert first is not None and best is not None
    return TuneResult(
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
