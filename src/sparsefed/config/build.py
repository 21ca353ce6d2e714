"""Building a simulation from a config: data, devices, model, defense and attack, checked to fit together."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed import data
from sparsefed.attacks import NEEDS, Attack, Goal, Scene, equip
from sparsefed.attacks.registry import require_meaning
from sparsefed.config import lookup as names
from sparsefed.config.foreign import located, users_frame
from sparsefed.config.probe import require_trainable
from sparsefed.config.schema import Config, TrainTable
from sparsefed.core.device import computed_on, describe, home, state_on
from sparsefed.core.dtypes import computed_in
from sparsefed.core.engine import Engine, LocalPlan, steps_taken
from sparsefed.core.errors import ConfigError, quoted
from sparsefed.core.federation import SAMPLING, Federation, federate, rounds_per_epoch
from sparsefed.core.inputs import Prepare, as_tensors, image_normaliser, preparation, shape_of
from sparsefed.core.rng import integer_seed, rng
from sparsefed.core.round import Metrics, RoundReport, RoundSetup, ServerState, simulate, start
from sparsefed.core.target import outputs_for, target_of
from sparsefed.core.task import Task, differentiator, draws, evaluator, make_task
from sparsefed.core.types import Arrays, Batch, Defense, Partition
from sparsefed.data.augment import AUGMENTATIONS
from sparsefed.data.partitions.summary import packed, portrait
from sparsefed.data.scores import Score, chance, class_share_loss, explained_perplexity, measures, score_of
from sparsefed.defenses.data_weights import DEFAULT_CAP, data_weights
from sparsefed.engines import ENGINES
from sparsefed.engines.parts import in_parts
from sparsefed.engines.transfer import at_home
from sparsefed.models import MODELS, model_info
from sparsefed.models.weights import with_weights
from sparsefed.theory.privacy import Guarantee, of_run

log = logging.getLogger(__name__)

ROOT = 100  # examples of a server that needs some, unless configured (as in FLTrust's experiments)
PORTRAYED = 60  # devices whose examples the manifest counts, for the figure in a report
MOST_PARAMETERS = 2**31  # of a model: 8 GB of float32
SCORES = 2**24  # outputs per evaluation batch at most: 64 MB of float32
MOST_REMEMBERED = 10**9  # numbers of all devices' momentum together: 4 GB


@dataclass(frozen=True)
class BuiltSimulation:
    """A simulation built from its config: everything a run needs that does not change while it runs."""

    config: Config
    setup: RoundSetup
    theta: Tensor  # the initial model
    evaluate: Callable[[Tensor], Metrics]
    facts: Metrics  # facts about the task, needed to interpret the run's numbers
    task: Task
    rounds: int

    def begin(self) -> ServerState:
        """Return the state before round 1."""
        return start(self.setup, self.theta)

    def privacy(self, dropped: int) -> Guarantee | None:
        """Return the privacy guarantee if a round drops at most `dropped` updates; None without noise."""
        if self.config.defense.name != "dp_noise":
            return None
        return of_run(
            "dp_noise",
            {
                **names.rule("dp_noise").usual,
                **names.regime(self.config),
                "local_steps": local_steps(self.config, self.setup.federation.partition),
                **self.config.defense.params,
            },
            cohort=self.config.train.cohort,
            population=self.setup.federation.device_count,
            sampling=self.config.train.sampling,
            lrs=[self.setup.schedule(t) for t in range(1, self.config.rounds + 1)],
            dropped=dropped,
        )

    def reports(self, state: ServerState) -> Iterator[RoundReport]:
        """Run the rounds that follow a state, of whichever device, and yield their reports."""
        return simulate(self.setup, self.placed(state), self.rounds, self.evaluate, self.config.evaluate_every)

    def placed(self, state: ServerState) -> ServerState:
        """Return a state, for instance one from a checkpoint, where this simulation works on it."""
        device = home(self.task.device)
        kept = (state_on(part, device) for part in (state.defense, state.devices))
        return ServerState(state.round, state.theta.to(device), *kept)


def build_all(configs: Sequence[Config]) -> list[BuiltSimulation]:
    """Build several configs, so that all are checked before the first starts; shared data sets are loaded once."""
    load = functools.cache(data.load)
    return [build(config, load) for config in configs]


def build(
    config: Config, load: Callable[[data.DataSet], Arrays] = data.load, computing: str | None = None
) -> BuiltSimulation:
    """Load the data, assign it to the devices, build the model, and check that everything fits together.

    `computing` is used in place of the config's `train.device`.
    """
    names.defense(config)  # raises on impossible values before anything is loaded
    _say_what_has_no_effect(config)
    device = computed_on(computing or config.train.device)
    arrays = load(names.dataset(config))
    dtype = computed_in(config.train.dtype, device)
    task = _task(config, arrays, device)
    engine = in_parts(whole_engine(config, task), config.train.block, draws(task.template))
    federation = _federation(config, arrays)
    defense = _defense(config, federation, task.d)
    goal, attack = _attack(config, arrays)
    setup = RoundSetup(
        federation=federation,
        engine=engine,
        defense=defense,
        schedule=names.schedule(config),
        device_lr=config.train.mode == "fedavg",
        weight_decay=config.train.weight_decay / config.train.cohort,
        seed=config.seed,
        attack=attack,
        gradient=differentiator(task, dtype),
        layers=tuple(slot.stop - slot.start for slot in task.slots),
        root=_root(config, arrays),
        plan=_plan(config.train),
        local_lr=config.train.local_lr,
        worker_momentum=config.train.worker_momentum,
        weigh=functools.partial(data_weights, cap=config.train.weight_cap or DEFAULT_CAP)
        if config.train.weights
        else None,
    )
    _require_memory(config, task, federation)
    score = score_of(task.target, *names.metric(config))
    require_trainable(config.model.name, task, arrays, dtype)
    evaluate = _evaluation(task, arrays, dtype, goal, score)
    facts = {**_facts(config, arrays, federation, goal, score), "device": describe(device)}
    return BuiltSimulation(config, setup, task.initial(), evaluate, facts, task, config.rounds)


def whole_engine(config: Config, task: Task) -> Engine:
    """Return the engine of a config, before cohorts are cut into parts of `train.block` devices."""
    dtype = computed_in(config.train.dtype, task.device)
    engine = names.resolve("engine", config.train.engine, ENGINES)(task, dtype, config.train.memory_mb * 2**20)
    return at_home(engine, task.device)


def _require_memory(config: Config, task: Task, federation: Federation) -> None:
    """Refuse worker momentum of more numbers than fit into memory: one vector for every device that takes part."""
    devices = min(federation.device_count, config.rounds * federation.n)
    if config.train.worker_momentum is not None and devices * task.d > MOST_REMEMBERED:
        raise ConfigError(
            f"train.worker_momentum keeps {task.d:,} numbers for each of {devices:,} devices; at most "
            f"{MOST_REMEMBERED:,} in all fit into memory, so use fewer devices or a smaller model"
        )


def _plan(train: TrainTable) -> LocalPlan:
    return LocalPlan(
        train.local_epochs,
        train.local_batch,
        train.local_decay,
        train.prox,
        train.local_steps,
        train.local_momentum or 0.0,
        train.local_optimizer == "adam",
    )


class DeviceSide(NamedTuple):
    """What the devices of a simulation compute with; nothing of the server."""

    task: Task
    federation: Federation
    plan: LocalPlan
    weight_decay: float  # of one device


def build_devices(config: Config, load: Callable[[data.DataSet], Arrays] = data.load) -> DeviceSide:
    """Build the devices' side of a config alone, for a process that plays one of them: no rule, no kernels."""
    arrays = load(names.dataset(config))
    task = _task(config, arrays, computed_on(config.train.device))
    decay = config.train.weight_decay / config.train.cohort
    return DeviceSide(task, _federation(config, arrays), _plan(config.train), decay)


def _task(config: Config, arrays: Arrays, device: torch.device) -> Task:
    _check_kind(config, arrays)
    shape = shape_of(arrays.x_train)
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from torch's own generator
        torch.default_generator.manual_seed(integer_seed(config.seed, "model"))
        module = _built(config, (shape[2], *shape[:2]) if arrays.is_image else shape, outputs_for(arrays))
    if (weights := names.weights(config)) is not None:
        module = with_weights(module, weights)
    return make_task(module, _preparation(arrays), names.loss(config), target_of(arrays), device)


def _preparation(arrays: Arrays) -> Prepare | None:
    if arrays.is_image:
        return image_normaliser(arrays.mean, arrays.std)
    inputs = len(arrays.x_train) if isinstance(arrays.x_train, tuple | dict) else 1
    return preparation(arrays.scales or (None,) * inputs) if arrays.scales or inputs > 1 else None


def _check_kind(config: Config, arrays: Arrays) -> None:
    """Refuse a registered model that was made for the other kind of data."""
    name = config.model.name
    if name in MODELS and isinstance(arrays.x_train, tuple | dict):
        raise ConfigError(
            f"model {name} takes one input, but {arrays.name} has {len(arrays.x_train)}; give a module or a builder of "
            "your own that takes them all"
        )
    fitting = [model for model in MODELS if model_info(MODELS[model]).text == arrays.is_text]
    if name in MODELS and name not in fitting:
        kind, other = ("text", "images") if arrays.is_text else ("images", "text")
        raise ConfigError(
            f"model {name} is for {other}, but {arrays.name} is {kind}; use one of {', '.join(sorted(fitting))}"
        )


def _built(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    model = config.model
    try:
        _require_buildable(config, shape, classes)
        module = names.model(config)(shape, classes, **model.params)
    except Exception as error:  # the builder may be the user's, and raise anything
        what = located(error) if users_frame(error) else str(error)
        raise ConfigError(f"model {model.name} cannot be built with {quoted(model.params)}: {what}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model '{model.name}' makes a thing of type {type(module).__name__}; it must return an nn.Module"
        )
    return module


def _require_buildable(config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a registered model of absurd size before memory is allocated for it."""
    if config.model.name in MODELS:
        with torch.device("meta"):
            shell = names.model(config)(shape, classes, **config.model.params)
        if (count := sum(parameter.numel() for parameter in shell.parameters())) > MOST_PARAMETERS:
            raise ConfigError(f"it has {count:,} parameters; at most {MOST_PARAMETERS:,} can be simulated")


def deal(config: Config, arrays: Arrays) -> Partition:
    """Return the partition: which device owns which of the training examples."""
    table = config.data
    return names.partition(config)(arrays.y_train, arrays.users, table.devices, table.per_device, config.seed)


def _federation(config: Config, arrays: Arrays) -> Federation:
    sample = names.resolve("sampling", config.train.sampling, SAMPLING)
    if not arrays.is_image and config.data.augment != "none":
        kind = "text" if arrays.is_text else "a table"
        raise ConfigError(
            f"data.augment = '{config.data.augment}' is for images, but {arrays.name} is {kind}; leave it out"
        )
    augment = names.resolve("augmentation", config.data.augment, AUGMENTATIONS)
    x, y = as_tensors(arrays.x_train), torch.from_numpy(arrays.y_train)
    return federate(
        x, y, deal(config, arrays), sample, config.train.cohort, names.threat_model(config), config.seed, augment
    )


def local_steps(config: Config, partition: Partition) -> float:
    """Return the local steps of the device with most examples, each counted with its share of the first one's rate."""
    return steps_taken(_plan(config.train), int(np.diff(partition.offsets).max(initial=1)))


def _say_what_has_no_effect(config: Config) -> None:
    """Warn if devices have a rate of their own and the config also sets the rate of the rounds."""
    train = config.train
    defaults = TrainTable.model_fields
    unused = [f"train.{key}" for key in ("lr", "schedule") if getattr(train, key) != defaults[key].default]
    if train.local_lr is not None and unused:
        has = "has" if len(unused) == 1 else "have"
        _warn_once(
            f"{' and '.join(unused)} {has} no effect, because train.local_lr = {train.local_lr:g} is the rate of every "
            "local step in every round; leave one or the other out"
        )


@functools.cache
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


def _defense(config: Config, federation: Federation, d: int) -> Defense:
    """Return the defense; refuse one that cannot work for a model of this size, or for cohorts of these sizes."""
    defense = _secured(config, names.defense(config, local_steps(config, federation.partition)))
    defense.init(d)
    # A full cohort, and the last of an epoch, which may be smaller.
    for round in {1, min(config.rounds, rounds_per_epoch(federation.device_count, federation.n))}:
        defense.check(len(federation.cohort(round)))
    return defense


def _secured(config: Config, defense: Defense) -> Defense:
    """Return the defense behind secure aggregation, if the config has it."""
    table = config.secure
    if table is None:
        return defense
    from sparsefed.secure import simulated
    from sparsefed.secure.field import field_named

    field = None if table.field == "auto" else field_named(table.field)
    protection = simulated.Protection(table.scheme, table.verify, field, table.bits)
    return simulated.secured(defense, protection, config.train.cohort)


def _root(config: Config, arrays: Arrays) -> Batch | None:
    """Return the server's own examples, drawn uniformly from the training set, or None if it needs none."""
    size = config.data.root or (ROOT if "root" in names.rule(config.defense.name).needs else 0)
    if not size:
        return None
    if size > len(arrays.y_train):
        raise ConfigError(f"data.root is {size}, but there are only {len(arrays.y_train)} training examples")
    chosen = np.sort(rng(config.seed, "root").choice(len(arrays.y_train), size, replace=False))
    x, y = as_tensors(arrays.x_train), torch.from_numpy(arrays.y_train)
    return Batch(x[torch.from_numpy(chosen)], y[torch.from_numpy(chosen)], np.array([size]))


def _attack(config: Config, arrays: Arrays) -> tuple[Goal | None, Attack | None]:
    table = config.attack
    if table is None:
        return None, None
    x, y, x_test, y_test = map(as_tensors, (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    words, target, attacker = arrays.classes if arrays.is_text else (), target_of(arrays), names.attacker(table)
    if target.kind in ("binary", "labels", "values"):  # goals refuse text and classes themselves, with more words
        require_meaning(f"attack {table.name}", attacker, target.kind, target.title)
    scene = Scene(x, y, x_test, y_test, len(arrays.classes), config.seed, words, target.kind)
    goal, attack = equip(f"attack {table.name}", attacker, scene, table.params)
    if goal is not None and target.kind == "values" and goal.tolerance is None:
        raise ConfigError(
            f"the goal of attack {table.name} has no tolerance; say how near to a value counts as success"
        )
    missing = [need for need in NEEDS if need in attack.needs and need not in config.threat.knowledge]
    if missing:
        raise ConfigError(
            f"attack {table.name} needs to know {' and '.join(map(repr, missing))}, which its attackers are not "
            "granted; add it to threat.knowledge, or choose an attack that does without"
        )
    return goal, attack


def _facts(config: Config, arrays: Arrays, federation: Federation, goal: Goal | None, score: Score) -> Metrics:
    """Return the facts of the task: examples, rounds per epoch, classes, chance level, score, partition summary.

    Under attack, also the number of points attacked and the share of the devices that are compromised.
    """
    target, y = target_of(arrays), torch.from_numpy(arrays.y_test)
    threat = config.threat
    share = len(federation.malicious) / federation.device_count
    epoch = rounds_per_epoch(federation.device_count, federation.n)
    facts: dict[str, Any] = {"examples": int(federation.partition.offsets[-1]), "epoch": epoch}
    if target.has_classes:
        facts["classes"] = list(arrays.classes)
    if (level := chance(target, score, y)) is not None:
        facts["chance"] = level
    if config.train.loss is None and (loss := class_share_loss(target, y)) is not None:
        facts["chance_loss"] = loss
    if score.key != "test_accuracy":
        facts |= {"score": score.key, "score_title": score.title}
    dealt = portrait(federation.partition, arrays.y_train, len(arrays.classes), PORTRAYED)
    facts |= {"partition": packed(dealt)}
    if config.attack is not None:
        facts["influence"] = share if threat.per_round is None else threat.per_round / config.train.cohort
    return facts if goal is None else {**facts, "attack_points": len(goal.test_y)}


def _evaluation(
    task: Task, arrays: Arrays, dtype: torch.dtype, goal: Goal | None, score: Score
) -> Callable[[Tensor], Metrics]:
    """Return a function from a model to test loss, metrics off the attacked points, and attack accuracy."""
    # Limit a batch by its outputs: text has a score for each word at each position.
    scores = max(1, len(arrays.classes)) * arrays.y_test[0].size
    evaluate = evaluator(task, dtype, min(1000, max(1, SCORES // scores)), score.needs_outputs)
    x, y = as_tensors(arrays.x_test), torch.from_numpy(arrays.y_test)
    clean = torch.ones(len(y), dtype=torch.bool)
    if goal is not None:
        clean[goal.positions] = False
    x, y = x[clean], y[clean]

    def metrics(theta: Tensor) -> Metrics:
        test = evaluate(theta, x, y)
        found = {"test_loss": test.loss, **measures(task.target, score, test.predictions, y, len(arrays.classes))}
        if arrays.is_text:
            found["test_perplexity"] = float(torch.tensor(test.loss, dtype=torch.float64).exp())
        if score.name == "perplexity":
            found[score.key] = explained_perplexity(test.loss, y)
        if goal is not None:
            outputs = evaluate(theta, goal.test_x, goal.test_y).predictions
            reached = task.target.predict(outputs) if outputs.is_floating_point() else outputs
            found["attack_accuracy"] = task.target.success(reached, goal.test_y, goal.tolerance)
        return found

    return metrics
