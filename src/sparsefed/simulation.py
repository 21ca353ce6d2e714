"""`Simulation`: a model, data, a defense and an attack become rounds that can be iterated over.

    simulation = Simulation(model, (x, y), defense=defenses.sparsefed(k=100, clip_norm=1.0), threat=0.1,
                            attack=attacks.pgd(), devices=500, cohort=50, rounds=200, schedule=schedules.constant(0.1))
    for report in simulation:
        print(report.metrics)

All arguments, whether they can be written down (names, numbers) or not (a module, arrays, functions), are held in one
`Config`, in which objects have names valid in this process. So a simulation in Python and one from TOML are checked and
built by the same code, raise the same errors, and give the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.attacks.attack import ChosenAttack, attack_info
from sparsefed.cluster.engine import on_cluster
from sparsefed.config import Config, live
from sparsefed.core.choice import Chosen, importable_name
from sparsefed.core.errors import ConfigError
from sparsefed.core.round import Metrics, RoundReport, ServerState
from sparsefed.core.task import Loss, load_flat
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import Arrays, Defense, Partition
from sparsefed.data import DataSet
from sparsefed.data.own import from_arrays, from_dataset
from sparsefed.data.scores import MetricFunction
from sparsefed.models.weights import StateDict
from sparsefed.trackers import Tracker, scalars
from sparsefed.trust import consent

Watcher = Callable[[RoundReport], None]


class Simulation:
    """A federated training run under attack, to be iterated over, saved, resumed and evaluated.

    Args:
        model: A module (its weights are the initial ones), a name such as "cnn", or a builder (shape, classes).
        data: A name such as "fmnist", an `Arrays` or `DataSet` record (`sparsefed.data.own` makes them of frames,
            folders, mapped files), a torch `Dataset`, or (x, y) or (x, y, x_test, y_test) as arrays or
            tensors of any dtype and shape; without a test set a fifth of the examples becomes one. A tuple or dict as x
            stands for several inputs of the model.
        defense: A rule (`defenses.krum(f=2)`), a name, your own function, or a complete `Defense`.
        attack: An attack (`attacks.pgd()`), a name, or your own function; None: no attack.
        threat: The compromised devices: a share of all devices, or a `ThreatModel`.
        partition: The owners of the examples (`partitions.dirichlet(alpha=0.1)`), a name, or a `Partition`.
        schedule: The learning rate: a number, a schedule (`schedules.cosine(lr=0.1)`), or a function of the round.
        loss: (outputs, targets) -> the loss of each example; by default that of the data's targets: cross-entropy, for
            yes or no the logistic loss, for values the squared error.
        metric: The metric to judge by, such as "balanced_accuracy", "auc" or "mean_absolute_error", or a function
            (outputs, targets) -> a number, larger is better and 1 perfect; by default that of the targets.
        weights: The initial weights, to train on from a pretrained model: the path of a safetensors file, or a state
            dict; by default the module's own. Parameters that require no gradient are never changed.
        rounds: Number of rounds.
        cohort: Number of devices that take part in a round.
        devices: Number of devices; by default 10 000, or one per user of the data.
        seed: The seed of every random choice.
        on_round: Called with the report of every round.
        trackers: Further destinations of the metrics beside `history` (`sparsefed.trackers`).
        on: "ray", or "ray:4" for four workers, to compute updates on a Ray cluster, bit for bit as here.
        settings: Any other key of a config, by table: `train={"mode": "fedavg"}`, `data_options={"root": 100}`,
            `evaluate_every=10`; `sparsefed list` shows them all.

    Raises:
        ConfigError: Something does not fit; the message says what, and what is allowed.
    """

    def __init__(
        self,
        model: nn.Module | str | Callable[..., nn.Module] | Chosen,
        data: str | Arrays | DataSet | Dataset[Any] | tuple[Any, ...],
        *,
        defense: Chosen | Defense | str | Mapping[str, Any] | Callable[..., Any] = "undefended",
        attack: Chosen | str | Mapping[str, Any] | Callable[..., Any] | None = None,
        threat: float | ThreatModel | Mapping[str, Any] | None = None,
        partition: Chosen | Partition | str | Callable[..., Partition] = "iid",
        schedule: float | Chosen | Callable[[int], float] | str | None = None,
        loss: Loss | None = None,
        metric: str | MetricFunction | None = None,
        weights: str | Path | Mapping[str, Tensor] | None = None,
        rounds: int = 100,
        cohort: int = 100,
        devices: int | None = None,
        seed: int = 0,
        on_round: Watcher | Iterable[Watcher] = (),
        trackers: Iterable[Tracker] = (),
        on: str | None = None,
        train: Mapping[str, Any] | None = None,
        data_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._kept: list[Any] = []  # live names are weak references: keep the objects alive
        described: dict[str, Any] = {
            "seed": seed,
            "rounds": rounds,
            "data": {**self._data(data), **self._partition(partition, devices), **(data_options or {})},
            "model": {**self._named(model), **self._weights(weights)},
            "train": {"cohort": cohort, **self._schedule(schedule), **self._functions(loss, metric), **(train or {})},
            "defense": self._named(defense),
            **settings,
        }
        if attack is not None:
            described["attack"] = self._named(attack)
        if threat is not None:
            described["threat"] = _threat(threat)
        self._begin(configs.parse(described), on_round, trackers, on)

    @classmethod
    def from_config(
        cls,
        config: str | Path | Mapping[str, Any] | Config,
        *,
        on_round: Watcher | Iterable[Watcher] = (),
        trackers: Iterable[Tracker] = (),
        on: str | None = None,
    ) -> Simulation:
        """Return the simulation that a TOML file, a table or a `Config` describes."""
        simulation = cls.__new__(cls)
        simulation._kept = []
        simulation._begin(configs.as_config(config), on_round, trackers, on)
        return simulation

    @classmethod
    def from_run(cls, folder: str | Path, trust: bool = False) -> Simulation:
        """Return the simulation of a run folder at its last checkpoint; resumed runs are identical to the bit.

        Args:
            folder: A folder that a run was saved to.
            trust: Whether to import the functions that its config names (`module:function`), if the folder was written
                on another machine.

        Raises:
            RunError: The folder holds no run, or a damaged one.
            ConfigError: The run used objects of another process (rebuild that simulation and call `restore`), or its
                config names code of a folder that is not trusted.
        """
        table = runs.load_config(Path(folder))
        if names := live.live_names(table):
            raise ConfigError(
                f"{folder} was saved by a simulation with objects ({', '.join(names)}); build it in Python as it was "
                "built then, and call restore on it"
            )
        with consent(trust):
            config = configs.of_run(table, Path(folder))
        return cls.from_config(config).restore(folder)

    def _begin(
        self, config: Config, on_round: Watcher | Iterable[Watcher], trackers: Iterable[Tracker], on: str | None
    ) -> None:
        self.config = config
        self.built = on_cluster(configs.build(config), on)
        self.state: ServerState = self.built.begin()
        self.history: list[dict[str, Any]] = []  # one record per round, as `pandas.DataFrame` takes them
        self._watchers = [on_round] if callable(on_round) else list(on_round)
        self._trackers, self._tracked = list(trackers), False

    # --- running -----------------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The number of rounds done."""
        return self.state.round

    @property
    def rounds(self) -> int:
        """The total number of rounds."""
        return self.config.rounds

    def __iter__(self) -> Iterator[RoundReport]:
        """Run the remaining rounds and yield the report of each."""
        status = "interrupted"
        try:
            for report in self.built.reports(self.state):
                self._note(report)
                yield report
            status = "finished"
        finally:
            if self._tracked:
                self._tracked = False
                for tracker in self._trackers:
                    tracker.finish(status)

    def run(self) -> Simulation:
        """Run all remaining rounds and return the simulation itself."""
        for _ in self:
            pass
        return self

    def _note(self, report: RoundReport) -> None:
        self.state = report.state
        self.history.append({**report.metrics, "seconds": round(report.seconds, 4)})
        for watcher in self._watchers:
            watcher(report)
        if not self._tracked:
            self._tracked = True
            for tracker in self._trackers:
                tracker.start(configs.dump(self.config))
        for tracker in self._trackers:
            tracker.log(report.state.round, scalars(report.metrics))

    # --- results -----------------------------------------------------------------------------------------------------

    def evaluate(self) -> Metrics:
        """Return the current model's test loss, test accuracy and, under attack, attack accuracy."""
        return self.built.evaluate(self.state.theta)

    @property
    def theta(self) -> Tensor:
        """The current model as a flat vector [d]."""
        return self.state.theta

    @property
    def model(self) -> nn.Module:
        """A copy of the user's module with the current weights."""
        module = copy.deepcopy(self.built.task.template)
        load_flat(self.built.task, module, self.state.theta)
        return module

    def state_dict(self) -> dict[str, Tensor]:
        """Return the current weights under the names of the user's module."""
        weights: dict[str, Tensor] = self.model.state_dict()
        return weights

    def to_dataframe(self) -> Any:
        """Return `history` as a pandas DataFrame, one row per round."""
        import pandas

        return pandas.DataFrame(self.history)

    def to_config(self) -> dict[str, Any]:
        """Return the config as a table that TOML can express and `from_config` accepts.

        Raises:
            ConfigError: The simulation holds objects that cannot be written down; the message names them.
        """
        table = configs.dump(self.config)
        if names := live.live_names(table):
            raise ConfigError(
                f"{', '.join(names)} cannot be written into a config: objects of this process stand there; give names, "
                "or functions that can be imported"
            )
        return table

    # --- folders -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write a run folder with config, history and state, and return its path; `restore` continues from it.

        Raises:
            RunError: The folder holds another run and `overwrite` is not set, or it cannot be written.
        """
        path = Path(folder)
        runs.save(path, self._table(), self.built.facts, self.state, self.history, self.rounds, overwrite)
        return path

    def restore(self, folder: str | Path) -> Simulation:
        """Continue from a run folder of this same simulation, and return the simulation itself.

        Raises:
            RunError: The folder is damaged, or holds a run of another config.
        """
        state, rows = runs.restore(Path(folder), self._table(), self.built.begin())
        self.state, self.history = self.built.placed(state), [dict(row) for row in rows]
        return self

    def _table(self) -> dict[str, Any]:
        return live.numberless(configs.dump(self.config))

    # --- objects as names --------------------------------------------------------------------------------------------

    def _refer(self, thing: Any) -> str:
        self._kept.append(thing)
        return live.refer(thing)

    def _named(self, given: Any) -> dict[str, Any]:
        """Return the table of a model, defense or attack: its name and the parameters beside it."""
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, ChosenAttack) and self._has_own_goal(given):
            return self._with_goal(given)
        if isinstance(given, Chosen):
            return given.to_config() if given.name else {"name": self._refer(given.function), **given.parameters}
        if isinstance(given, nn.Module) or not callable(given):
            return {"name": self._refer(given)}
        return {"name": importable_name(given) or self._refer(given)}

    @staticmethod
    def _has_own_goal(given: ChosenAttack) -> bool:
        return given.goal is not None and getattr(given.goal, "function", None) is not attack_info(given.function).goal

    def _with_goal(self, given: ChosenAttack) -> dict[str, Any]:
        """Return the table of an attack with another goal than its default, for instance the user's own."""
        goal = given.goal
        wanted = {**goal.parameters} if isinstance(goal, Chosen) else {}
        after = goal.function if isinstance(goal, Chosen) else lambda scene: goal  # noqa: ARG005
        return {"name": self._refer(replace(attack_info(given.function), goal=after)), **wanted, **given.parameters}

    def _data(self, given: Any) -> dict[str, Any]:
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, tuple):
            if len(given) not in (2, 4):
                raise ConfigError(f"data is a tuple of {len(given)}; give (x, y), or (x, y, x_test, y_test)")
            x, y, *test = given
            given = from_arrays(x, y, test=(test[0], test[1]) if test else None)
        elif isinstance(given, Dataset):
            given = from_dataset(given)
        return {"name": self._refer(given)}

    def _partition(self, given: Any, devices: int | None) -> dict[str, Any]:
        counted = {} if devices is None else {"devices": devices}
        if isinstance(given, Partition):
            partition = given
            given, counted = lambda *_: partition, {"devices": partition.devices}
        if isinstance(given, str):
            return {"partition": given, **counted}
        if isinstance(given, Chosen):
            return {"partition": given.name or self._refer(given.function), **counted, **given.parameters}
        return {"partition": importable_name(given) or self._refer(given), **counted}

    def _schedule(self, given: Any) -> dict[str, Any]:
        if given is None:
            return {}
        if isinstance(given, str):
            return {"schedule": given}
        if isinstance(given, Chosen):
            return {"schedule": given.name or self._refer(given.function), **given.parameters}
        if callable(given):
            rate = given
            return {"schedule": self._refer(lambda lr, rounds: rate)}  # noqa: ARG005
        return {"schedule": "constant", "lr": float(given)}

    def _weights(self, given: str | Path | Mapping[str, Tensor] | None) -> dict[str, Any]:
        if given is None:
            return {}
        return {"weights": str(given) if isinstance(given, str | Path) else self._refer(StateDict(given))}

    def _functions(self, loss: Loss | None, metric: str | MetricFunction | None) -> dict[str, Any]:
        given = {key: each for key, each in (("loss", loss), ("metric", metric)) if each is not None}
        return {
            key: each if isinstance(each, str) else importable_name(each) or self._refer(each)
            for key, each in given.items()
        }


def _threat(given: float | ThreatModel | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, ThreatModel):
        return {key: value for key, value in asdict(given).items() if value is not None}
    return dict(given) if isinstance(given, Mapping) else {"share": float(given)}
