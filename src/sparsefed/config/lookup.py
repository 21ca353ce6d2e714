"""Name lookup: the only place where a string becomes a function, with all checks that need no data."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from torch import nn

from sparsefed import data
from sparsefed.attacks import ATTACKS, Attacker, attack_info
from sparsefed.attacks.registry import check_parameters
from sparsefed.config import live
from sparsefed.config.foreign import located
from sparsefed.config.schema import Config, DataTable, ModelTable, Named, TrainTable
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.federation import SAMPLING
from sparsefed.core.schedule import SCHEDULES, Schedule, peak_share
from sparsefed.core.signatures import check_arguments, parameters
from sparsefed.core.target import TARGETS, target_of
from sparsefed.core.task import Loss
from sparsefed.core.threat import WHO, ThreatModel, malicious_ids
from sparsefed.core.types import Arrays, Defense, Partition
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partitions.partition import PARTITIONS
from sparsefed.data.scores import TITLES, MetricFunction, score_of
from sparsefed.defenses import DEFENSES, CommonOptions, RuleInfo, assemble, rule_info
from sparsefed.engines import ENGINES
from sparsefed.models import MODELS
from sparsefed.models.weights import StateDict, read_weights

MOST_DEALT = 10**9  # examples of all devices together


def resolve(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return the object of this name: a registered one, a live one, or `module:attribute`."""
    if name in known:
        return known[name]
    if name.startswith(live.PREFIX):
        return live.referred(name)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(unknown(kind, name, known) + ', or one of your own as "module:function"')
    try:
        found = importlib.import_module(module)
    except Exception as error:  # importing runs foreign code, which can raise anything
        missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "")
        cure = f"put {module}.py beside the config, or its folder on PYTHONPATH" if missing else "mend that module"
        raise ConfigError(f"{kind} '{name}' cannot be imported ({located(error)}); {cure}") from error
    if not hasattr(found, attribute):
        raise ConfigError(f"{kind} '{name}': {unknown('name in the module', attribute, vars(found))}")
    return getattr(found, attribute)


def function(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    found = resolve(kind, name, known)
    if not callable(found):
        raise ConfigError(f"{kind} '{name}' is of type {type(found).__name__}; name a function")
    function: Callable[..., Any] = found
    return function


def check(config: Config) -> None:
    """Raise ConfigError for everything that can be refused without loading data."""
    devices, cohort = config.data.devices, config.train.cohort
    if (devices or 1) * (config.data.per_device or 1) > MOST_DEALT:
        raise ConfigError(
            f"{devices} devices with {config.data.per_device} examples each do not fit into memory; use at most "
            f"{MOST_DEALT:,} examples in all"
        )
    dataset(config)
    partition(config)
    function("augmentation", config.data.augment, AUGMENTATIONS)
    function("sampling", config.train.sampling, SAMPLING)
    function("engine", config.train.engine, ENGINES)
    schedule(config)
    loss(config)
    metric(config)
    _check_local(config.train)
    _check_weights(config)
    check_arguments(f"model {config.model.name}", model(config), config.model.params, skip=2)
    defense(config)
    _check_secure(config)
    _check_threat(config)
    if devices is not None and cohort > devices:
        raise ConfigError(f"train.cohort is {cohort}, but there are only {devices} devices; use at most that")


def check_without_k(config: Config) -> None:
    """Check a config as `check` does, but allow a missing k if the defense takes one."""
    try:
        check(config)
    except ConfigError as error:
        given = config.defense
        if "k" in given.params or not takes_k(given.name):
            raise
        smallest = Named(name=given.name, k=1, **given.params)  # fits a model of any size
        try:
            check(config.model_copy(update={"defense": smallest}))
        except ConfigError:
            raise error from None


def takes(kind: str, name: str) -> set[str] | None:
    """Return the parameters of a model, defense or attack by name; None if it takes any, or is unknown."""
    try:
        if kind == "defense":
            builder, several = rule(name).builder, parameters(CommonOptions)
            return {p.name for p in (*parameters(builder), *several)}
        if kind == "attack":
            info = attacker(Named(name=name))
            return {p.name for part in (info.goal, info.method) for p in parameters(part, 1)}
        builder = function("model", name, MODELS)
        return {p.name for p in parameters(builder, 2)} | ModelTable.model_fields.keys()
    except ConfigError:
        return None


def takes_k(defense: str) -> bool:
    """Return whether a defense has a parameter k."""
    return any(parameter.name == "k" for parameter in parameters(rule(defense).builder))


def _check_local(train: TrainTable) -> None:
    """Refuse local-training settings that contradict each other, or the single gradient of uncompressed mode."""
    local = ["local_epochs", "local_batch", "local_lr", "local_decay", "prox", "local_momentum", "local_optimizer"]
    if train.local_steps == 1:
        local.remove("local_batch")  # one minibatch gradient
    given = [f"train.{key}" for key in local if getattr(train, key) != TrainTable.model_fields[key].default]
    given += ["train.local_steps"] if (train.local_steps or 1) > 1 else []
    if given and train.mode != "fedavg":
        raise ConfigError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for devices that train by themselves, but in "
            f"mode '{train.mode}' they send one gradient; set train.mode = \"fedavg\""
        )
    if train.local_optimizer == "adam" and train.local_momentum is not None:
        raise ConfigError('train.local_momentum is for local_optimizer = "sgd"; Adam has a momentum of its own')
    for key in ("local_epochs", "local_decay") if train.local_steps is not None else ():
        if getattr(train, key) != TrainTable.model_fields[key].default:
            raise ConfigError(f"train.{key} counts epochs, but train.local_steps takes their place; give one of them")


def _check_weights(config: Config) -> None:
    """Refuse data weights for a rule that has no weighted form."""
    train, name = config.train, config.defense.name
    if train.weight_cap is not None and train.weights is None:
        raise ConfigError('train.weight_cap limits weights, but there are none; set train.weights = "examples"')
    if train.weights is None:
        return
    if not takes_weights(name) or config.defense.params.get("pre"):
        why = "guarantees privacy for updates of equal weight" if name == "dp_noise" else "has no weighted form"
        raise ConfigError(
            f"train.weights is '{train.weights}', but {name} with these options {why}; leave it out or use a rule that "
            f"takes weights, without pre-aggregation: {', '.join(known for known in DEFENSES if takes_weights(known))}"
        )


def takes_weights(defense: str) -> bool:
    """Return whether a defense has a form in which updates weigh by their examples."""
    return rule(defense).weights and defense != "dp_noise"


def _check_secure(config: Config) -> None:
    """Refuse rules that need more than sums, and clip norms that depend on what secure aggregation hides."""
    secure, name = config.secure, config.defense.name
    if secure is None:
        return
    info = rule(name)
    if not info.weights:
        sums = [other for other in DEFENSES if rule(other).weights]
        raise ConfigError(
            f"defense {name} needs single updates, but under [secure] the server sees their sum alone; "
            f"rules that need no more: {', '.join(sums)}"
        )
    given = {**info.usual, **config.defense.params}
    if given.get("pre"):
        raise ConfigError("defense.pre transforms single updates, which [secure] hides; leave it out")
    if given.get("clip") == "quantile":
        raise ConfigError("defense.clip = 'quantile' needs the norms of updates, which [secure] hides; use 'fixed'")
    if not math.isfinite(given.get("clip_norm") or math.inf):
        raise ConfigError("[secure] needs a norm that devices clip to and prove; set defense.clip_norm")
    if secure.verify and secure.scheme != "pine":
        raise ConfigError(f"secure.scheme = '{secure.scheme}' proves nothing that could be verified; use 'pine'")


def _check_threat(config: Config) -> None:
    threat, devices = threat_model(config), config.data.devices
    anybody = any(getattr(threat, who) for who in WHO)
    if config.attack:
        check_parameters(f"attack {config.attack.name}", attacker(config.attack), config.attack.params)
    if config.attack and all(getattr(threat, who) is None for who in WHO):
        raise ConfigError(f"there is an [attack] but nobody to carry it out; add [threat] with one of {', '.join(WHO)}")
    if anybody and not config.attack:
        raise ConfigError(f"there is a [threat] but no [attack]; {example('attack')}")
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
        malicious_ids(threat, devices, config.seed)  # raises if there are more attackers than devices


def example(table: str) -> str:
    known = {"model": MODELS, "defense": DEFENSES, "attack": ATTACKS}.get(table)
    if known is None:
        return f"write [{table}] above its keys"
    return f'write for instance [{table}] name = "{next(iter(known))}"; valid choices: {", ".join(sorted(known))}'


def dataset(config: Config) -> data.DataSet:
    """Return the record of the config's data set, for text with the configured vocabulary and length."""
    found = resolve("data set", data.canonical(config.data.name), data.DATASETS)
    if isinstance(found, Arrays):
        arrays = found
        return data.DataSet(arrays.name, f"{arrays.name}, in memory", lambda _: arrays, carried_by="Python")
    if not isinstance(found, data.DataSet):
        raise ConfigError(f"data set '{config.data.name}' is of type {type(found).__name__}; name a DataSet record")
    vocabulary, length = config.data.vocabulary, config.data.length
    if vocabulary is None and length is None:
        return found
    if found.resized is None:
        raise ConfigError(f"data.vocabulary and data.length are for text, but {found.name} is none; leave them out")
    return found.resized(vocabulary, length)


def partition(config: Config) -> Callable[..., Partition]:
    """Return the config's partition rule with its own parameters bound; refuse any others."""
    rule, given = function("partition", config.data.partition, PARTITIONS), config.data.params
    takes = [p.name for p in parameters(rule, skip=5)]
    for key in [key for key in given if key not in takes]:
        owners = [name for name, other in PARTITIONS.items() if key in {p.name for p in parameters(other, skip=5)}]
        if owners:
            raise ConfigError(f"data.{key} belongs to the partition {owners[0]}, not to {config.data.partition}")
        raise ConfigError(unknown("key in [data]", key, [*DataTable.model_fields, *takes]))
    check_arguments(f"partition {config.data.partition}", rule, given, skip=5)
    return functools.partial(rule, **given)


def model(config: Config) -> Callable[..., Any]:
    """Return the model's builder, (shape, classes, **parameters) -> nn.Module; a module or () -> nn.Module will do."""
    found = resolve("model", config.model.name, MODELS)
    if isinstance(found, nn.Module):
        return lambda shape, classes: found  # noqa: ARG005
    builder = function("model", config.model.name, MODELS)
    return builder if signature(builder).parameters else lambda shape, classes: builder()  # noqa: ARG005


def weights(config: Config) -> StateDict | None:
    """Return the initial weights that the config names, or None."""
    given = config.model.weights
    if given is None:
        return None
    if not given.startswith(live.PREFIX):
        return read_weights(given)
    found = live.referred(given)
    if not isinstance(found, StateDict):
        raise ConfigError(f"model.weights is of type {type(found).__name__}; give a state dict or the path of a file")
    return found


def loss(config: Config) -> Loss | None:
    """Return the user's loss function, or None for the default of the targets."""
    return None if config.train.loss is None else function("loss", config.train.loss, {})


def metric(config: Config) -> tuple[str | None, MetricFunction | None]:
    """Return the name of a listed metric, or the user's own function; neither for the default of the targets."""
    name = config.train.metric
    known = {metric: None for target in TARGETS.values() for metric in target.metrics}
    return (name, None) if name is None or name in known else (None, function("metric", name, known))  # type: ignore[arg-type]


def score_title(config: Config) -> str:
    """Return the name of the metric that a config's runs are judged by; data of the user's own are loaded for it."""
    if ":" not in config.data.name and config.train.metric is None:
        return TITLES["accuracy"]
    return score_of(target_of(data.load(dataset(config))), *metric(config)).title


def attacker(table: Named) -> Attacker:
    """Return a registered attack, or the user's own method with the paper's goal: test points with wrong labels."""
    found = resolve("attack", table.name, ATTACKS)
    return attack_info(found if isinstance(found, Attacker) else function("attack", table.name, ATTACKS))


def schedule(config: Config) -> Schedule:
    train, peak = config.train, config.train.peak_at
    if train.peak_epoch is not None:
        peak = peak_share(train.peak_epoch, config.rounds, config.data.devices, train.cohort)
    if peak is not None and not takes_peak(train.schedule)[0]:
        key = "peak_at" if train.peak_epoch is None else "peak_epoch"
        peaked = [name for name in SCHEDULES if takes_peak(name)[0]]
        raise ConfigError(
            f"train.{key} is {getattr(train, key):g}, but schedule {train.schedule} has no peak; leave it out, or "
            f"choose a schedule that has one: {', '.join(peaked)}"
        )
    builder, given = function("schedule", train.schedule, SCHEDULES), {} if peak is None else {"peak_at": peak}
    check_arguments(f"schedule {train.schedule}", builder, given, skip=2)
    schedule: Schedule = builder(train.lr, config.rounds, **given)
    return schedule


def takes_peak(schedule: str) -> tuple[bool, float | None]:
    """Return whether a schedule takes `peak_at`, and its default."""
    found = [p.default for p in parameters(function("schedule", schedule, SCHEDULES), 2) if p.name == "peak_at"]
    return bool(found), found[0] if found else None


def defense(config: Config, local_steps: float = 1) -> Defense:
    """Return the config's defense for devices that take this many local steps, counted in units of the first."""
    name, given = config.defense.name, config.defense.params
    shared = regime(config)
    for key in shared.keys() & given:
        raise ConfigError(f"defense.{key} follows from train.{key}; set it there")
    info, derived = rule(name), {"local_steps": local_steps}
    params = {**info.usual, **shared, **derived, **given}
    return assemble(f"defense {name}", info.builder, params, hidden={*shared, *derived})


def rule(name: str) -> RuleInfo:
    """Return the facts of a rule, registered or the user's own."""
    return rule_info(function("defense", name, DEFENSES))


def regime(config: Config) -> dict[str, Any]:
    """Return the options of a defense that follow from how devices train."""
    train = config.train
    return {"mode": train.mode, "preset": train.preset, "local_lr": train.local_lr}


def threat_model(config: Config) -> ThreatModel:
    return ThreatModel(**config.threat.model_dump())
