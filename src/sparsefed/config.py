"""TOML to validated records to a protocol that can run: the only place where a string becomes a function.

A key nobody knows, a value of the wrong type or an impossible one is one sentence before anything starts: `parse`
refuses all that can be refused without data, `build` the rest (k > d, more auxiliary than test points) before a run
folder is made. Wherever a name is taken, `"my_package.my_module:my_function"` is taken too. `base` names a config to
start from (`bases.py`).
"""

from __future__ import annotations

import functools
import importlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import Tensor, nn

from sparsefed import bases, data
from sparsefed.attacks import ATTACKS, NEEDS, Attack, Attacker, Goal, Need, Scene, equip
from sparsefed.attacks.goals import labels
from sparsefed.attacks.named import check_parameters
from sparsefed.client import ENGINES, MEMORY_BUDGET, Plan
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partition import PARTITIONS, Partition
from sparsefed.defenses import DEFENSES, assemble
from sparsefed.errors import ConfigError, unknown
from sparsefed.federation import SAMPLING, WHO, Federation, ThreatModel, federate, malicious_ids, rounds_per_epoch
from sparsefed.metrics import class_accuracies
from sparsefed.models import MODELS, TEXT_MODELS
from sparsefed.parameters import check_arguments, parameters
from sparsefed.privacy import Guarantee, of_run
from sparsefed.rng import integer_seed, rng
from sparsefed.schedule import SCHEDULES, Schedule, epochs_in_rounds, peak_share
from sparsefed.simulate import Metrics, Protocol, RoundReport, ServerState, simulate, start
from sparsefed.task import Task, differentiator, evaluator, image_normaliser, make_task
from sparsefed.types import Arrays, Batch, Defense

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROOT = 100  # examples of a server that needs some, where a config does not say (as in FLTrust's experiments)
SCORES = 2**24  # that a model may give at once in an evaluation: 64 MB of float32
DEVICES = 10_000  # the population where a config does not say

# Strict, because TOML has types: "5" is not a number and true is not 1.
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A choice by name, with the parameters of what was chosen beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataTable(BaseModel):
    """Which examples, and who owns them; parameters of the partition stand beside its name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "fmnist"
    partition: str = "one_class"
    devices: Count | None = None  # None: one a user, where the partition is by_user
    per_device: Count | None = None
    root: Count | None = None  # examples that the server itself holds; None: as many as the defense asks for
    augment: str = "none"  # what honest devices do to their images before they train on them
    vocabulary: Annotated[int, Field(strict=True, ge=5)] | None = None  # of text, special tokens too; None: its usual
    length: Count | None = None  # of a sequence of text, in tokens; None: its usual

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _some_devices(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("devices") is None and given.get("partition") != "by_user":
            return {**given, "devices": DEVICES}
        return given


class TrainTable(_Table):
    """How a round is run."""

    mode: Literal["uncompressed", "fedavg"] = "uncompressed"
    preset: Literal["paper", "authors-2021-05", "authors-2021-08"] = "paper"
    cohort: Count = 100
    sampling: str = "epoch"
    lr: Number = Field(0.2, gt=0)
    schedule: str = "triangular"
    peak_at: Number | None = None  # as a share of the rounds; None: the schedule's own, or peak_epoch
    peak_epoch: Number | None = Field(None, ge=0)  # the same in epochs
    weight_decay: Number = Field(5e-4, ge=0)  # of the round's sum; each of the cohort's devices applies its share
    local_epochs: Count = 1
    local_batch: Count | None = None  # None: all of a device's examples at once
    local_lr: Number | None = Field(None, gt=0)  # None: the schedule's lambda(t)
    local_decay: Number = Field(1.0, gt=0)  # the local rate's factor from an epoch to the next
    prox: Number = Field(0.0, ge=0)  # FedProx's mu
    dtype: Literal["float32", "bfloat16"] = "float32"
    engine: str = "fused"
    memory_mb: Count = MEMORY_BUDGET // 2**20


class ThreatTable(_Table):
    """Who is compromised and when they act; nobody by default."""

    share: Number | None = None
    count: Whole | None = None
    ids: tuple[Whole, ...] | None = None
    per_round: Whole | None = None
    start: Whole = 1
    stop: Whole | None = None
    every: Whole = 1
    knowledge: tuple[Need, ...] = ("own data",)


class Config(_Table):
    """A whole run."""

    name: str = ""
    seed: Whole = Field(0, ge=0)
    base: str = Field("", exclude=True)  # a config to start from; `parse` puts what it says in its place
    rounds: Count = 2400
    epochs: Number | None = Field(None, gt=0)  # instead of rounds: how often every device takes part
    evaluate_every: Count = 25
    checkpoint_every: Count = 50
    data: DataTable = DataTable()
    model: Named = Named(name="cnn")
    train: TrainTable = TrainTable()
    defense: Named = Named(name="undefended")
    threat: ThreatTable = ThreatTable()
    attack: Named | None = None

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if "/" in name or name in (".", "..") or not name.isprintable() or name != name.strip():
            raise ValueError("a plain name, for it names the run's folder; choose another place with --out")
        return name


# --- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A config file, with `key=value` overrides on top; without a name, it is called like the file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; `sparsefed list` shows what a config can name") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a config: it is not even text; give a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a config file in TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {_lowered(str(error))}") from None
    config = parse(table, overrides, str(path))
    return config if config.name else config.model_copy(update={"name": path.stem})


def parse(table: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "") -> Config:
    """A validated config from a table, or one ConfigError that names every problem, and the source it came from."""
    merged: dict[str, Any] = _copied(table)
    for override in overrides:
        _set(merged, override)
    try:
        config = _timed(Config.model_validate(_on_its_base(merged)))
        _check(config)
    except ValidationError as error:
        problems = "; ".join(_sentence(problem) for problem in error.errors())
        raise ConfigError(_from(source) + problems) from None
    except ConfigError as error:
        raise ConfigError(_from(source) + str(error)) from error
    return config


def _on_its_base(table: dict[str, Any]) -> dict[str, Any]:
    """What the config says together with its base; `attack = false`, and nobody attacks, whatever [threat] says."""
    base = table.get("base")
    if base and isinstance(base, str):
        table = bases.over(bases.load(base), {key: item for key, item in table.items() if key != "base"})
    bases.refuse_both(table)
    if table.get("attack") is False:
        table = {key: item for key, item in table.items() if key not in ("attack", "threat")}
    return table


def _timed(config: Config) -> Config:
    """Rounds where epochs are given, and the peak that a schedule has by itself."""
    train, devices, rounds = config.train, config.data.devices, config.rounds
    if config.epochs is not None:
        rounds = epochs_in_rounds(config.epochs, devices, train.cohort)
        if "rounds" in config.model_fields_set and config.rounds != rounds:
            raise ConfigError(
                f"rounds = {config.rounds} and epochs = {config.epochs:g} contradict each other: with {devices} "
                f"devices, {train.cohort} a round, these epochs are {rounds} rounds; give one of them"
            )
    if train.peak_at is None and train.peak_epoch is None:
        train = train.model_copy(update={"peak_at": _takes_peak(train.schedule)[1]})
    return config.model_copy(update={"rounds": rounds, "train": train})


def demo(overrides: Sequence[str] = ()) -> list[Config]:
    """The demo's configs: one for each of its defenses, alike in everything else."""
    table = tomllib.loads(resources.files("sparsefed").joinpath("configs/demo.toml").read_text(encoding="utf-8"))
    own = list(table["defenses"])
    for override in overrides:
        _set(table, override)
    if table.keys() & {"name", "defense"}:
        raise ConfigError(
            f"the demo has several runs, named after their defenses: {', '.join(own)}; set a parameter of one of them "
            f"as --set defenses.{own[-1]}.KEY=VALUE"
        )
    defenses = table.pop("defenses")
    for name, defense in defenses.items():
        if not isinstance(defense, dict) or "name" not in defense:
            raise ConfigError(unknown("run of the demo", name, own))
    return [parse({**table, "name": name, "defense": defense}) for name, defense in defenses.items()]


def twins(config: Config) -> dict[str, Config]:
    """What a run under attack is compared with: the same without attackers, and that without a defense as well.

    Nobody attacks, but the goal stays: test accuracy is measured on the same examples, and attack accuracy says what
    the attackers would get for nothing.
    """
    if config.attack is None or not any(getattr(config.threat, who) for who in WHO):
        raise ConfigError("nobody attacks in this config, so it has no twins; leave --twins away")
    nobody = config.threat.model_copy(update={**dict.fromkeys(WHO), "count": 0})
    calm = config.model_copy(update={"name": f"{config.name}-unattacked", "threat": nobody})
    plain = calm.model_copy(update={"name": f"{config.name}-plain", "defense": Named(name="undefended")})
    return {"unattacked": calm} if config.defense.name == "undefended" else {"unattacked": calm, "plain": plain}


def dump(config: Config) -> dict[str, Any]:
    """The config as a table again, every default written out."""
    return _without_none(config.model_dump(mode="json"))


def _set(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *path, last = (part.strip() for part in key.split("."))
    if not equals or not all((*path, last)):
        raise ConfigError(f"--set takes key=value, for instance --set defense.k=1000, but was given '{override}'")
    bases.replace(table, ".".join((*path, last)))
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: '{part}' is a value, not a table")
    table[last] = value_of(text)


def value_of(text: str) -> Any:
    """A value as TOML writes it; what is none is a bare word, that is, a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return table["value"] if len(table) == 1 else text.strip()


_MUST_BE = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "tuple_type": "a list of whole numbers",
}


def _sentence(problem: Any) -> str:
    """One of pydantic's findings, for a person."""
    path, kind, given = [str(part) for part in problem["loc"]], problem["type"], problem.get("input")
    where = ".".join(path)
    if kind == "extra_forbidden":
        *above, key = path
        return unknown("key" + (f" in [{'.'.join(above)}]" if above else ""), key, _valid_keys(above))
    if kind == "missing":
        return f"{where} is missing; {_example(path[0])}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{where} is {given!r}, but must be a table; {_example(where)}"
    if kind == "literal_error" and isinstance(given, str):
        return unknown(where, given, re.findall(r"'([^']+)'", problem["ctx"]["expected"]))
    allowed = _MUST_BE.get(kind) or re.sub(r"^(Input should be|Value error,) ", "", problem["msg"])
    return f"{where} is {given!r}, but must be {allowed}"


def _example(table: str) -> str:
    known = {"model": MODELS, "defense": DEFENSES, "attack": ATTACKS}.get(table)
    if known is None:
        return f"write [{table}] above its keys"
    return f'write for instance [{table}] name = "{next(iter(known))}"; valid choices: {", ".join(sorted(known))}'


def _valid_keys(path: Sequence[str]) -> Sequence[str]:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _from(source: str) -> str:
    return f"{source}: " if source else ""


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


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
    except Exception as error:  # importing runs code that is not ours: anything can come out
        raise ConfigError(f"{kind} '{name}' cannot be imported ({error}); is its folder on PYTHONPATH?") from error


def _function(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    found = resolve(kind, name, known)
    if not callable(found):
        raise ConfigError(f"{kind} '{name}' is of type {type(found).__name__}; name a function")
    function: Callable[..., Any] = found
    return function


def _check(config: Config) -> None:
    """Everything that can be refused without loading data."""
    dataset(config)
    _partition(config)
    _function("augmentation", config.data.augment, AUGMENTATIONS)
    _function("sampling", config.train.sampling, SAMPLING)
    _function("engine", config.train.engine, ENGINES)
    _schedule(config)
    _check_local(config.train)
    check_arguments(f"model {config.model.name}", _model(config), config.model.params, skip=2)
    _defense(config)
    _check_threat(config)
    devices, cohort = config.data.devices, config.train.cohort
    if devices is not None and cohort > devices:
        raise ConfigError(f"train.cohort is {cohort}, but there are only {devices} devices; use at most that")


def _check_local(train: TrainTable) -> None:
    """In uncompressed mode a device sends one gradient and the server owns the rate."""
    local = ("local_epochs", "local_batch", "local_lr", "local_decay", "prox")
    given = [f"train.{key}" for key in local if getattr(train, key) != TrainTable.model_fields[key].default]
    if given and train.mode != "fedavg":
        raise ConfigError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for devices that train by themselves, but in "
            f"mode '{train.mode}' they send one gradient; set train.mode = \"fedavg\""
        )


def _check_threat(config: Config) -> None:
    threat, devices = _threat(config), config.data.devices
    anybody = bool(threat.share or threat.count or threat.ids or threat.per_round)
    if config.attack:
        check_parameters(f"attack {config.attack.name}", attacker(config.attack), config.attack.params)
    if config.attack and all(getattr(threat, who) is None for who in WHO):
        raise ConfigError(f"there is an [attack] but nobody to carry it out; add [threat] with one of {', '.join(WHO)}")
    if anybody and not config.attack:
        raise ConfigError(f"there is a [threat] but no [attack]; {_example('attack')}")
    if anybody and threat.start > config.rounds:
        raise ConfigError(
            f"threat.start is {threat.start}, but the run ends at round {config.rounds}, so nobody would attack; "
            f"use at most {config.rounds}"
        )
    if threat.per_round is not None and threat.per_round > config.train.cohort:
        raise ConfigError(
            f"threat.per_round is {threat.per_round}, but a round has only {config.train.cohort} devices; "
            "use at most that"
        )
    if devices is not None:
        malicious_ids(threat, devices, config.seed)  # refuses more attackers than devices


def dataset(config: Config) -> data.DataSet:
    """The record of the config's data set, text in the size that it asks for."""
    found = resolve("data set", data.canonical(config.data.name), data.DATASETS)
    if not isinstance(found, data.DataSet):
        raise ConfigError(f"data set '{config.data.name}' is of type {type(found).__name__}; name a DataSet record")
    vocabulary, length = config.data.vocabulary, config.data.length
    if vocabulary is None and length is None:
        return found
    if found.resized is None:
        raise ConfigError(f"data.vocabulary and data.length are for text, but {found.name} is none; leave them out")
    return found.resized(vocabulary, length)


def _partition(config: Config) -> Callable[..., Partition]:
    """The rule of the name, with the parameters that are its own and no others."""
    rule, given = _function("partition", config.data.partition, PARTITIONS), config.data.params
    takes = [p.name for p in parameters(rule, skip=5)]
    for key in [key for key in given if key not in takes]:
        owners = [name for name, other in PARTITIONS.items() if key in {p.name for p in parameters(other, skip=5)}]
        if owners:
            raise ConfigError(f"data.{key} belongs to the partition {owners[0]}, not to {config.data.partition}")
        raise ConfigError(unknown("key in [data]", key, [*DataTable.model_fields, *takes]))
    check_arguments(f"partition {config.data.partition}", rule, given, skip=5)
    return functools.partial(rule, **given)


def _model(config: Config) -> Callable[..., Any]:
    return _function("model", config.model.name, MODELS)


def attacker(table: Named) -> Attacker:
    """A listed attack, or a method of the user's own, which serves the paper's goal: test points with wrong labels."""
    found = resolve("attack", table.name, ATTACKS)
    if isinstance(found, Attacker):
        return found
    return Attacker(_function("attack", table.name, {}), "", labels)


def _schedule(config: Config) -> Schedule:
    train, peak = config.train, config.train.peak_at
    if train.peak_epoch is not None:
        peak = peak_share(train.peak_epoch, config.rounds, config.data.devices, train.cohort)
    if peak is not None and not _takes_peak(train.schedule)[0]:
        key = "peak_at" if train.peak_epoch is None else "peak_epoch"
        peaked = [name for name in SCHEDULES if _takes_peak(name)[0]]
        raise ConfigError(
            f"train.{key} is {getattr(train, key):g}, but schedule {train.schedule} has no peak; leave it out, or "
            f"choose a schedule that has one: {', '.join(peaked)}"
        )
    builder, given = _function("schedule", train.schedule, SCHEDULES), {} if peak is None else {"peak_at": peak}
    check_arguments(f"schedule {train.schedule}", builder, given, skip=2)
    schedule: Schedule = builder(train.lr, config.rounds, **given)
    return schedule


def _takes_peak(schedule: str) -> tuple[bool, float | None]:
    """Whether a schedule can be told where its peak is, and where it is if nobody says."""
    found = [p.default for p in parameters(_function("schedule", schedule, SCHEDULES), 2) if p.name == "peak_at"]
    return bool(found), found[0] if found else None


def _defense(config: Config) -> Defense:
    name, given = config.defense.name, config.defense.params
    builder = _function("defense", name, {name: rule.builder for name, rule in DEFENSES.items()})
    shared = _regime(config)
    for key in shared.keys() & given:
        raise ConfigError(f"defense.{key} follows from train.{key}; set it there")
    usual = DEFENSES[name].usual if name in DEFENSES else {}
    return assemble(f"defense {name}", builder, {**usual, **shared, **given}, hidden=shared)


def _regime(config: Config) -> dict[str, str]:
    return {"mode": config.train.mode, "preset": config.train.preset}


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
    facts: Metrics  # what a reader of the run's numbers must know of its task

    def begin(self) -> ServerState:
        """The state before round 1."""
        return start(self.protocol, self.theta)

    def privacy(self, dropped: int) -> Guarantee | None:
        """What the noise guarantees, should a round lose at most so many unusable updates; None without noise."""
        if self.config.defense.name != "dp_noise":
            return None
        return of_run(
            "dp_noise",
            {**DEFENSES["dp_noise"].usual, **_regime(self.config), **self.config.defense.params},
            cohort=self.config.train.cohort,
            population=self.protocol.federation.device_count,
            sampling=self.config.train.sampling,
            lrs=[self.protocol.schedule(t) for t in range(1, self.config.rounds + 1)],
            dropped=dropped,
        )

    def reports(self, state: ServerState) -> Iterator[RoundReport]:
        """The rounds that follow a state."""
        return simulate(self.protocol, state, self.config.rounds, self.evaluate, self.config.evaluate_every)


def build_all(configs: Sequence[Config]) -> list[Experiment]:
    """Several configs, all of them checked before the first can start; a data set that they share is loaded once."""
    load = functools.cache(data.load)
    return [build(config, load) for config in configs]


def build(config: Config, load: Callable[[data.DataSet], Arrays] = data.load) -> Experiment:
    """Load the data, deal it to the devices, make the model, and check that all of it fits together."""
    arrays, defense = load(dataset(config)), _defense(config)
    dtype = DTYPES[config.train.dtype]
    task = _task(config, arrays)
    defense.init(task.d)  # refuses what cannot work for a model of this size
    engine = resolve("engine", config.train.engine, ENGINES)(task, dtype, config.train.memory_mb * 2**20)
    federation = _federation(config, arrays)
    goal, attack = _attack(config, arrays)
    protocol = Protocol(
        federation=federation,
        engine=engine,
        defense=defense,
        schedule=_schedule(config),
        device_lr=config.train.mode == "fedavg",
        weight_decay=config.train.weight_decay / config.train.cohort,
        seed=config.seed,
        attack=attack,
        gradient=differentiator(task, dtype),
        layers=tuple(slot.stop - slot.start for slot in task.slots),
        root=_root(config, arrays),
        plan=Plan(config.train.local_epochs, config.train.local_batch, config.train.local_decay, config.train.prox),
        local_lr=config.train.local_lr,
    )
    evaluate = _evaluation(task, arrays, dtype, goal)
    return Experiment(config, protocol, task.initial(), evaluate, _facts(config, arrays, federation, goal))


def _task(config: Config, arrays: Arrays) -> Task:
    _check_kind(config, arrays)
    shape = arrays.x_train.shape[1:]
    with torch.random.fork_rng(devices=[]):  # layers draw their first weights from torch's own generator
        torch.default_generator.manual_seed(integer_seed(config.seed, "model"))
        module = _built(config, shape if arrays.is_text else (shape[2], *shape[:2]), len(arrays.classes))
    if arrays.is_text:
        return make_task(module)
    return make_task(module, image_normaliser(arrays.mean, arrays.std))


def _check_kind(config: Config, arrays: Arrays) -> None:
    """Refuse a listed model that was made for the other kind of data."""
    name = config.model.name
    fitting = [model for model in MODELS if (model in TEXT_MODELS) == arrays.is_text]
    if name in MODELS and name not in fitting:
        kind, other = ("text", "images") if arrays.is_text else ("images", "text")
        raise ConfigError(
            f"model {name} is for {other}, but {arrays.name} is {kind}; use one of {', '.join(sorted(fitting))}"
        )


def _built(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    model = config.model
    try:
        module = _model(config)(shape, classes, **model.params)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"model {model.name} cannot be built with {model.params}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model '{model.name}' makes a thing of type {type(module).__name__}; it must return an nn.Module"
        )
    return module


def deal(config: Config, arrays: Arrays) -> Partition:
    """Who owns which of the training examples."""
    table = config.data
    return _partition(config)(arrays.y_train, arrays.users, table.devices, table.per_device, config.seed)


def _federation(config: Config, arrays: Arrays) -> Federation:
    sample = resolve("sampling", config.train.sampling, SAMPLING)
    if arrays.is_text and config.data.augment != "none":
        raise ConfigError(
            f"data.augment = '{config.data.augment}' is for images, but {arrays.name} is text; leave it out"
        )
    augment = resolve("augmentation", config.data.augment, AUGMENTATIONS)
    x, y = torch.from_numpy(arrays.x_train), torch.from_numpy(arrays.y_train)
    return federate(x, y, deal(config, arrays), sample, config.train.cohort, _threat(config), config.seed, augment)


def _root(config: Config, arrays: Arrays) -> Batch | None:
    """The server's own examples, drawn evenly from the training set, where the config or the defense wants any."""
    rule = DEFENSES.get(config.defense.name)
    size = config.data.root or (ROOT if rule and "root" in rule.needs else 0)
    if not size:
        return None
    if size > len(arrays.y_train):
        raise ConfigError(f"data.root is {size}, but there are only {len(arrays.y_train)} training examples")
    chosen = np.sort(rng(config.seed, "root").choice(len(arrays.y_train), size, replace=False))
    x, y = torch.from_numpy(arrays.x_train[chosen]), torch.from_numpy(arrays.y_train[chosen])
    return Batch(x, y, np.array([size]))


def _attack(config: Config, arrays: Arrays) -> tuple[Goal | None, Attack | None]:
    table = config.attack
    if table is None:
        return None, None
    x, y, x_test, y_test = map(torch.from_numpy, (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    scene = Scene(x, y, x_test, y_test, len(arrays.classes), config.seed, arrays.classes if arrays.is_text else ())
    goal, attack = equip(f"attack {table.name}", attacker(table), scene, table.params)
    missing = [need for need in NEEDS if need in attack.needs and need not in config.threat.knowledge]
    if missing:
        raise ConfigError(
            f"attack {table.name} needs to know {' and '.join(map(repr, missing))}, which its attackers are not "
            "granted; add it to threat.knowledge, or choose an attack that does without"
        )
    return goal, attack


def _facts(config: Config, arrays: Arrays, federation: Federation, goal: Goal | None) -> Metrics:
    """All examples that devices own, the rounds of an epoch, the classes and what always naming the most frequent one
    would get; and of an attack, how many points it is after and the share of the devices that are compromised."""
    threat = config.threat
    share = len(federation.malicious) / federation.device_count
    epoch = rounds_per_epoch(federation.device_count, federation.n)
    facts: dict[str, Any] = {"examples": int(federation.partition.offsets[-1]), "epoch": epoch}
    if arrays.y_test.ndim == 1:
        frequent = np.bincount(arrays.y_test).max() / len(arrays.y_test)
        facts |= {"classes": list(arrays.classes), "chance": float(frequent)}
    if config.attack is not None:
        facts["influence"] = share if threat.per_round is None else threat.per_round / config.train.cohort
    return facts if goal is None else {**facts, "attack_points": len(goal.test_y)}


def _evaluation(task: Task, arrays: Arrays, dtype: torch.dtype, goal: Goal | None) -> Callable[[Tensor], Metrics]:
    """Test loss and accuracy without the points that the attackers are after, and attack accuracy on these."""
    # A batch whose outputs fit into the cache's neighbourhood: text has a score for each word at each position.
    scores = len(arrays.classes) * arrays.y_test[0].size
    evaluate = evaluator(task, dtype, min(1000, max(1, SCORES // scores)))
    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)
    clean = torch.ones(len(y), dtype=torch.bool)
    if goal is not None:
        clean[goal.positions] = False
    x, y = x[clean], y[clean]

    def metrics(theta: Tensor) -> Metrics:
        test = evaluate(theta, x, y)
        found: dict[str, Any] = {"test_loss": test.loss, "test_accuracy": test.accuracy(y)}
        if y.dim() == 1:
            found["class_accuracy"] = class_accuracies(test.predictions, y, len(arrays.classes))
        if arrays.is_text:
            found["test_perplexity"] = float(torch.tensor(test.loss, dtype=torch.float64).exp())
        if goal is not None:
            found["attack_accuracy"] = evaluate(theta, goal.test_x, goal.test_y).accuracy(goal.test_y)
        return found

    return metrics
