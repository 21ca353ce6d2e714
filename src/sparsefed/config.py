"""TOML to validated records to a protocol that can run: the only place where a string becomes a function.

A key nobody knows, a value of the wrong type or an impossible one is one sentence before anything starts. Wherever a
name is taken, `"my_package.my_module:my_function"` is taken too.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from sparsefed import data
from sparsefed.attacks import ATTACKS, Attack, AuxiliarySet, auxiliary_set
from sparsefed.client import ENGINES, MEMORY_BUDGET
from sparsefed.data.partition import PARTITIONS
from sparsefed.defenses import DEFENSES
from sparsefed.errors import ConfigError, unknown
from sparsefed.federation import SAMPLING, Federation, ThreatModel, federate
from sparsefed.models import MODELS
from sparsefed.parameters import check_arguments, parameters
from sparsefed.rng import integer_seed
from sparsefed.schedule import SCHEDULES
from sparsefed.simulate import Metrics, Protocol
from sparsefed.task import Task, differentiator, evaluator, image_normaliser, make_task
from sparsefed.types import Arrays, Defense

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A choice by name, with the parameters of what was chosen beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataTable(_Table):
    """Which examples, and who owns them."""

    name: str = "fmnist"
    partition: str = "one_class"
    devices: int | None = Field(10_000, ge=1)
    per_device: int | None = Field(None, ge=1)


class TrainTable(_Table):
    """How a round is run."""

    mode: Literal["uncompressed", "fedavg"] = "uncompressed"
    preset: Literal["paper", "authors-2021-05", "authors-2021-08"] = "paper"
    cohort: int = Field(100, ge=1)
    sampling: str = "epoch"
    lr: float = Field(0.2, gt=0)
    schedule: str = "triangular"
    peak_at: float = 5 / 24
    weight_decay: float = Field(5e-4, ge=0)  # of the round's sum; each of the cohort's devices applies its share
    dtype: Literal["float32", "bfloat16"] = "float32"
    engine: str = "fused"
    memory_mb: int = Field(MEMORY_BUDGET // 2**20, ge=1)


class ThreatTable(_Table):
    """Who is compromised and when they act; nobody by default."""

    share: float | None = None
    count: int | None = None
    ids: tuple[int, ...] | None = None
    start: int = 1
    stop: int | None = None
    every: int = 1


class AttackTable(Named):
    """What the compromised devices do."""

    auxiliary: int = Field(500, ge=1)


class Config(_Table):
    """A whole run."""

    name: str = ""
    seed: int = Field(0, ge=0)
    rounds: int = Field(2400, ge=1)
    evaluate_every: int = Field(25, ge=1)
    checkpoint_every: int = Field(50, ge=1)
    data: DataTable = DataTable()
    model: Named = Named(name="cnn")
    train: TrainTable = TrainTable()
    defense: Named = Named(name="undefended")
    threat: ThreatTable = ThreatTable()
    attack: AttackTable | None = None


# --- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A config file, with `key=value` overrides on top."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; `sparsefed list` shows what a config can name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    return parse(table, overrides)


def parse(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A validated config from a table, or one ConfigError that names every problem."""
    merged: dict[str, Any] = _copied(table)
    for override in overrides:
        _set(merged, override)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(problem) for problem in error.errors())) from None
    _check_names(config)
    return config


def demo(overrides: Sequence[str] = ()) -> list[Config]:
    """The demo's configs: one for each of its defenses, alike in everything else."""
    table = tomllib.loads(resources.files("sparsefed").joinpath("configs/demo.toml").read_text())
    defenses = table.pop("defenses")
    return [parse({**table, "name": name, "defense": defense}, overrides) for name, defense in defenses.items()]


def dump(config: Config) -> dict[str, Any]:
    """The config as a table again, every default written out."""
    return _without_none(config.model_dump(mode="json"))


def _set(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes key=value, for instance --set defense.k=1000, but was given '{override}'")
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: '{part}' is a value, not a table")
    try:
        table[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = text.strip()  # a bare word is a string


def _sentence(problem: Any) -> str:
    """One of pydantic's findings, for a person."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *path, key = [str(part) for part in problem["loc"]]
        return unknown("key" + (f" in [{'.'.join(path)}]" if path else ""), key, _valid_keys(path))
    if problem["type"] == "missing":
        return f"{where} is missing"
    given = problem.get("input")
    return f"{where} = {given!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _valid_keys(path: Sequence[str]) -> Sequence[str]:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(item) if isinstance(item, Mapping) else item for key, item in table.items()}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in table.items() if item is not None}
    return {key: _without_none(item) if isinstance(item, Mapping) else item for key, item in kept.items()}


# --- names to functions ----------------------------------------------------------------------------------------------


def resolve(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """The thing of that name: a listed one, or `module:attribute`."""
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(unknown(kind, name, known) + ', or one of your own as "module:function"')
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} '{name}' cannot be imported ({error}); is its folder on PYTHONPATH?") from error


def _check_names(config: Config) -> None:
    """Everything that can be refused without loading data."""
    if config.data.name not in data.DATASETS:
        raise ConfigError(unknown("data set", config.data.name, data.DATASETS))
    for kind, name, known in (
        ("partition", config.data.partition, PARTITIONS),
        ("sampling", config.train.sampling, SAMPLING),
        ("schedule", config.train.schedule, SCHEDULES),
        ("engine", config.train.engine, ENGINES),
    ):
        resolve(kind, name, known)
    check_arguments(config.model.name, _builder("model", config.model), config.model.params, skip=2)
    _defense(config)
    threat = _threat(config)
    if config.attack:
        check_arguments(config.attack.name, _builder("attack", config.attack), config.attack.params, skip=1)
        if not (threat.share or threat.count or threat.ids):
            raise ConfigError("there is an [attack] but nobody to carry it out; add [threat] with share, count or ids")
    elif threat.share or threat.count or threat.ids:
        raise ConfigError('there is a [threat] but no [attack]; add one, for instance [attack] name = "pgd"')
    if config.data.devices is not None and config.train.cohort > config.data.devices:
        raise ConfigError(
            f"train.cohort = {config.train.cohort} is more than the {config.data.devices} devices; use at most that"
        )


def _builder(kind: Literal["model", "attack"], choice: Named) -> Callable[..., Any]:
    builder: Callable[..., Any] = resolve(kind, choice.name, MODELS if kind == "model" else ATTACKS)
    return builder


def _defense(config: Config) -> Defense:
    builder = resolve("defense", config.defense.name, {name: rule.builder for name, rule in DEFENSES.items()})
    takes = {parameter.name for parameter in parameters(builder)}
    shared = {"mode": config.train.mode, "preset": config.train.preset}
    for name in shared:
        if name in config.defense.params:
            raise ConfigError(f"defense.{name} follows from train.{name}; set it there")
    given = {**{name: value for name, value in shared.items() if name in takes}, **config.defense.params}
    check_arguments(config.defense.name, builder, given)
    defense: Defense = builder(**given)
    return defense


def _threat(config: Config) -> ThreatModel:
    return ThreatModel(**config.threat.model_dump())


# --- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """All that a run needs, built from its config."""

    config: Config
    protocol: Protocol
    theta: Tensor  # the first model
    evaluate: Callable[[Tensor], Metrics]


def build(config: Config) -> Experiment:
    """Load the data, deal it to the devices, make the model, and check that all of it fits together."""
    arrays, defense = data.load(config.data.name), _defense(config)
    dtype = DTYPES[config.train.dtype]
    task = _task(config, arrays)
    defense.init(task.d)  # refuses what cannot work for a model of this size
    engine = resolve("engine", config.train.engine, ENGINES)(task, dtype, config.train.memory_mb * 2**20)
    federation = _federation(config, arrays)
    auxiliary, attack = _attack(config, arrays)
    protocol = Protocol(
        federation=federation,
        engine=engine,
        defense=defense,
        schedule=SCHEDULES[config.train.schedule](config.train.lr, config.rounds, config.train.peak_at),
        device_lr=config.train.mode == "fedavg",
        weight_decay=config.train.weight_decay / config.train.cohort,
        seed=config.seed,
        attack=attack,
        gradient=differentiator(task, dtype),
    )
    return Experiment(config, protocol, task.initial(), _evaluation(task, arrays, dtype, auxiliary))


def _task(config: Config, arrays: Arrays) -> Task:
    height, width, channels = arrays.x_train.shape[1:]
    builder = _builder("model", config.model)
    with torch.random.fork_rng(devices=[]):  # layers draw their first weights from torch's own generator
        torch.random.default_generator.manual_seed(integer_seed(config.seed, "model"))
        module: nn.Module = builder((channels, height, width), len(arrays.classes), **config.model.params)
    return make_task(module, image_normaliser(arrays.mean, arrays.std))


def _federation(config: Config, arrays: Arrays) -> Federation:
    partition = resolve("partition", config.data.partition, PARTITIONS)(
        arrays.y_train, arrays.users, config.data.devices, config.data.per_device, config.seed
    )
    sample = resolve("sampling", config.train.sampling, SAMPLING)
    x, y = torch.from_numpy(arrays.x_train), torch.from_numpy(arrays.y_train)
    return federate(x, y, partition, sample, config.train.cohort, _threat(config), config.seed)


def _attack(config: Config, arrays: Arrays) -> tuple[AuxiliarySet | None, Attack | None]:
    if config.attack is None:
        return None, None
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    auxiliary = auxiliary_set(x, y, config.attack.auxiliary, len(arrays.classes), config.seed)
    return auxiliary, _builder("attack", config.attack)(auxiliary, **config.attack.params)


def _evaluation(
    task: Task, arrays: Arrays, dtype: torch.dtype, auxiliary: AuxiliarySet | None
) -> Callable[[Tensor], Metrics]:
    """Test loss and accuracy without the auxiliary points, and attack accuracy on them."""
    evaluate = evaluator(task, dtype)
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    clean = torch.ones(len(y), dtype=torch.bool)
    if auxiliary is not None:
        clean[auxiliary.positions] = False
    x, y = x[clean], y[clean]

    def metrics(theta: Tensor) -> Metrics:
        test = evaluate(theta, x, y)
        found: dict[str, Any] = {"test_loss": test.loss, "test_accuracy": test.accuracy(y)}
        if auxiliary is not None:
            found["attack_accuracy"] = evaluate(theta, auxiliary.x, auxiliary.y).accuracy(auxiliary.y)
        return found

    return metrics
