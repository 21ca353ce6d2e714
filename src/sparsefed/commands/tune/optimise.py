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
from sparsefed.commands.tune import trials as rules
from sparsefed.commands.tune.space import Categories, Searched, Space, own_params, search_space, with_params
from sparsefed.commands.tune.trials import AIMS, WARMUP, Objective, Trial, TuneResult, progress, values
from sparsefed.config import BuiltSimulation, Config
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.progress import OnProgress, Progress
from sparsefed.core.rng import integer_seed
from sparsefed.core.round import Metrics
from sparsefed.results.summary import summarise
from sparsefed.sweeps.runner import working_folder

if TYPE_CHECKING:
    import optuna

CHECKED_AT = (1 / 3, 1 / 2)  # of the rounds from the attack's start: where a trial may be pruned
SETTLED = ("COMPLETE", "PRUNED")
SLOTS = 1 << 20  # more than the trials that run at a time
Rows = Sequence[Mapping[str, Any]]


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
    on: str | None = None,
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
        on: "ray" to run as many trials at a time as a Ray cluster has room for; what is tried then depends on which
            finishes first.
        on_progress: Called before the first trial, after every round and after every trial.

    Returns:
        All trials, those that no other beats, and the strongest. Ctrl-C keeps all that are finished in the folder.

    Raises:
        ConfigError: The config has no attack that can be tuned, or an option is impossible.
        RunError: The folder holds another search, or its database fails.
    """
    studies.library()
    team = None if on is None else helpers(on)
    _check(trials, stealth, objective)
    config = configs.as_config(subject)
    searched = search_space(config, space)
    load = functools.cache(data.load)
    experiment = configs.build(config, load)
    aim = _aim(objective, experiment)
    with working_folder(folder) as kept:
        kept.mkdir(parents=True, exist_ok=True)
        with runs.locked(kept), studies.patiently() as check:

            def show(reached: Progress) -> None:
                check()
                if on_progress is not None:
                    on_progress(reached)

            name = studies.study_name(kept, config, searched, aim)
            place = f"{socket.gethostname()}:{kept.resolve()}"
            with studies.opened(name, kept, storage, aim) as study:
                studies.bury(study, place, alone=storage is None)
                drawn_from = config.seed if seed is None else seed
                search = TuneSearch(
                    study, config, searched, aim, stealth, drawn_from, experiment.facts, load, place, show
                )
                if team is not None:
                    team(search, trials, lambda: studies.opened(name, kept, storage, aim))
                return search.run(trials)


def helpers(on: str) -> Callable[..., None]:
    """Return the function that runs trials on a cluster; refuse what cannot be meant before anything is built."""
    from sparsefed.cluster.connect import library, workers_wanted
    from sparsefed.commands.tune.together import search_together

    workers_wanted(on)
    library()
    return functools.partial(search_together, on=on)


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


@dataclass(frozen=True)
class TuneSearch:
    """A search in an open study: trial after trial."""

    study: optuna.Study
    config: Config
    space: Space
    objective: Objective
    stealth: float | None
    seed: int
    facts: Mapping[str, Any]  # of the task, the same in every trial
    load: Callable[[data.DataSet], Any]
    place: str  # the owner of its trials: the folder on this machine, used by one process at a time
    show: OnProgress
    slot: int = 0  # its number among those that search at the same time: they must not draw the same
    rounds: Callable[[Config], Iterator[Metrics]] | None = None  # of a trial, on another machine; None: here

    @functools.cached_property
    def own(self) -> dict[str, Any]:
        return own_params(self.config, self.space)

    @functools.cached_property
    def checked(self) -> frozenset[int]:
        """Return the rounds at which a trial may be pruned: the first evaluations from `CHECKED_AT` of the way on."""
        rounds, every = self.config.rounds, self.config.evaluate_every
        start = self.config.threat.start - 1
        wanted = (start + share * (rounds - start) for share in CHECKED_AT)
        return frozenset(at for at in (math.ceil(goal / every) * every for goal in wanted) if 0 < at < rounds)

    def run(self, wanted: int) -> TuneResult:
        """Run trial after trial until there are as many as wanted."""
        ended: Trial | None = None
        while True:
            done, result = len(studies.in_state(self.study, *SETTLED)), self.result()
            best = result.strongest if result else None
            self.show(progress(done, wanted, best, ended))
            if done >= wanted and result is not None:
                return result
            # If only the first trial is missing, run it here: the machine that began it may be dead.
            if best is None and (done >= wanted or not self._is_coming()):
                self.enqueue()
            ended = self.one_more(progress(done, wanted, best))

    def enqueue(self) -> None:
        """Make the config's own parameters the next trial."""
        self.study.enqueue_trial(self.own, user_attrs={"as given": self.own, "place": self.place})

    def result(self) -> TuneResult | None:
        """Return the search as far as it has run; None until the config's own parameters have been tried."""
        finished = studies.in_state(self.study, "COMPLETE")
        same = (trial.number for trial in finished if self.own in (trial.user_attrs.get("as given"), trial.params))
        first = next(same, None)
        if first is None:
            return None
        settled = studies.in_state(self.study, *SETTLED)
        # Numbered without those that were interrupted, so that the same search has the same numbers.
        trials = tuple(replace(studies.read(trial, self.space), number=number) for number, trial in enumerate(settled))
        own = next(read for read, trial in zip(trials, settled, strict=True) if trial.number == first)
        failed = len(studies.in_state(self.study, "FAIL"))
        return TuneResult(self.config, self.space, self.objective, self.stealth, trials, own, failed)

    def one_more(self, reached: Progress) -> Trial:
        """Run one more trial and return it."""
        optuna, study = studies.library(), self.study
        running = len(studies.in_state(study, "RUNNING"))  # processes that share a study must not draw the same
        drawn = integer_seed(self.seed, "tune", int(reached.done), running + SLOTS * self.slot) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=True)
        ended: list[Trial] = []
        study.optimize(
            functools.partial(self._try, reached),
            n_trials=1,
            callbacks=[lambda study, trial: ended.append(studies.read(trial, self.space))],  # noqa: ARG005
        )
        return ended[-1]

    def _try(self, reached: Progress, trial: optuna.Trial) -> tuple[float, ...]:
        """Run one trial: a whole run, unless the attack refuses the parameters or it is pruned."""
        pruned = studies.library().TrialPruned
        trial.set_user_attr("place", self.place)
        given = trial.user_attrs.get("as given", self.space)
        params = {name: _suggested(trial, name, searched) for name, searched in self.space.items() if name in given}
        rows: list[Mapping[str, Any]] = []
        try:
            for metrics in self._rounds(with_params(self.config, params)):
                self.show(replace(reached, done=reached.done + metrics["round"] / self.config.rounds))
                rows.append(metrics)
                if metrics["round"] in self.checked and self._is_hopeless(trial, params, rows):
                    break
        except ConfigError as error:
            if params == self.own:
                raise
            trial.set_user_attr("refused", str(error))
            raise pruned(str(error)) from error
        trial.set_user_attr("result", self._measured(rows))
        if rows[-1]["round"] < self.config.rounds:
            raise pruned(f"without hope at round {rows[-1]['round']}")
        return values(Trial(trial.number, params, "finished", **self._measured(rows)), self.objective)

    def _rounds(self, config: Config) -> Iterator[Metrics]:
        """Yield the metrics of a trial's rounds."""
        if self.rounds is not None:
            yield from self.rounds(config)
            return
        experiment = configs.build(config, self.load)
        for report in experiment.reports(experiment.begin()):
            yield report.metrics

    def _measured(self, rows: Rows) -> dict[str, Any]:
        """Return the numbers of a trial, equal to those of a report on such a run."""
        row = summarise(rows, self.facts)
        return {
            "rounds": row.rounds,
            "attack_accuracy": row.attack_mean,
            "test_accuracy": row.test_accuracy,
            "norm_ratio": row.norm_ratio,
            "converged": row.converged,
        }

    def _is_hopeless(self, trial: optuna.Trial, params: Mapping[str, Any], rows: Rows) -> bool:
        """Return whether other trials were far better at this round, and record this trial's values for later ones."""
        round = rows[-1]["round"]
        now = values(Trial(0, params, "pruned", **self._measured(rows[-1:])), self.objective)
        trial.set_user_attr(f"at round {round}", now)
        if len(now) == 1:
            trial.report(now[0], round)
            return params != self.own and trial.should_prune()
        finished = studies.in_state(trial.study, "COMPLETE")
        if params == self.own or len(finished) < WARMUP:
            return False
        best = [finished[i] for i in rules.nondominated([tuple(other.values) for other in finished])]
        return any(rules.outdone(now, tuple(other.user_attrs[f"at round {round}"])) for other in best)

    def is_missing(self) -> bool:
        """Return whether nobody has tried the config's own parameters, or is about to."""
        return self.result() is None and not self._is_coming()

    def _is_coming(self) -> bool:
        """Return whether the config's own parameters are about to be tried, or are being tried elsewhere."""
        begun = studies.in_state(self.study, "WAITING", "RUNNING")
        return any(trial.user_attrs.get("as given") == self.own for trial in begun)


def _suggested(trial: optuna.Trial, name: str, searched: Searched) -> Any:
    if isinstance(searched, Categories):
        return trial.suggest_categorical(name, searched.options)
    if searched.whole:
        return trial.suggest_int(name, int(searched.low), int(searched.high), log=searched.log)
    return trial.suggest_float(name, searched.low, searched.high, log=searched.log)
