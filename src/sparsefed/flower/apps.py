"""A config as a Flower app: the server's side and the clients' side of the federation that the config describes.

    app = server_app("my.toml")        # a ServerApp
    app = client_app("my.toml")        # a ClientApp: the server names the device that this node plays

Both build the config as a simulation does, so a deployment gives the numbers of the simulation; with a node's own data,
use `Strategy` and `client`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from sparsefed import config as configs
from sparsefed.config import BuiltSimulation, Config
from sparsefed.config import lookup as names
from sparsefed.config.build import DeviceSide, build_devices, local_steps
from sparsefed.config.schema import SecureTable
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import integer_seed
from sparsefed.defenses import as_rule
from sparsefed.flower.client import CONFIG, Mod, Training, evaluated_reply, helping, record_of, trained_reply
from sparsefed.flower.leader import Secure
from sparsefed.flower.strategy import Strategy

Given = str | Path | Mapping[str, Any] | Config


def server_app(config: Given, *, folder: str | Path | None = None, **settings: Any) -> ServerApp:
    """Return a ServerApp that runs a config; Flower's run config may name another `folder`.

    Args:
        config: a TOML file, a table or a `Config`.
        folder: the run folder; a run in it is continued.
        settings: further arguments of `Strategy`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)  # another number of threads adds in another order
        parsed, given = configs.as_config(config), context.run_config
        place = given.get("folder") or folder
        secure = {} if parsed.secure is None else {"secure": _secure(parsed.secure, given)}
        run(parsed, grid, **{"folder": str(place) if place else None, **secure, **settings})

    return app


def run(config: Config, grid: Grid, **settings: Any) -> Strategy:
    """Run a config over a grid and return the strategy, with the server's final state in its session."""
    built = configs.build(config)
    strategy = strategy_of(built, **settings)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:  # noqa: ARG001
        if round % config.evaluate_every and round != config.rounds:
            return None
        metrics = built.evaluate(strategy.session.server.theta)
        return MetricRecord({key: value for key, value in metrics.items() if _recordable(value)})

    strategy.start(grid, record_of(built.task, built.theta), config.rounds, evaluate_fn=evaluate)
    return strategy


def strategy_of(built: BuiltSimulation, **settings: Any) -> Strategy:
    """Return the strategy of a config: its rule, cohort, schedule, seed and block size."""
    config = built.config
    _check_deployable(config)
    if config.secure is not None and settings.get("secure") is None:
        raise ConfigError(
            "the config has [secure]: give secure, a sparsefed.flower.Secure with the helper's node and key"
        )
    steps = local_steps(config, built.setup.federation.partition)
    named = as_rule(config.defense.name, **config.defense.params)
    rule = named if config.train.local_lr is None else as_rule(names.defense(config, steps))
    usual: dict[str, Any] = {
        "lr": built.setup.schedule,
        "mode": config.train.mode,
        "preset": config.train.preset,
        "local_steps": steps,
        "seed": config.seed,
        "cohort": config.train.cohort,
        "nodes": built.setup.federation.device_count,
        "sampling": config.train.sampling,
        "block_mb": config.train.memory_mb,
        "checkpoint_every": config.checkpoint_every,
        "root": None if built.setup.root is None else _root(built),
        "table": configs.dump(config),
        "facts": built.facts,
    }
    return Strategy(rule, **{**usual, **settings})


def _secure(table: SecureTable, given: Mapping[str, Any]) -> Secure:
    """Return the settings of a config's secure aggregation; who the helper is stands in Flower's run config."""
    try:
        return Secure(int(str(given["helper"])), str(given["helper-key"]), field=table.field, bits=table.bits)
    except (KeyError, ValueError):
        raise ConfigError(
            "the config has [secure], so the server must know its helper: flwr run APP --run-config "
            '\'helper="NODE ID" helper-key="PUBLIC KEY"\''
        ) from None


def _check_deployable(config: Config) -> None:
    """Refuse what only a simulation has."""
    train, secure = config.train, config.secure
    if secure is not None and secure.scheme != "pine":
        raise ConfigError(f"secure.scheme is '{secure.scheme}', which only a simulation has; a deployment has 'pine'")
    for name, value in (("weights", train.weights), ("worker_momentum", train.worker_momentum)):
        if value is not None:
            raise ConfigError(f"train.{name} is {value!r}, which only a simulation has; leave it out")


def client_app(config: Given, *, mods: Iterable[Mod] = ()) -> ClientApp:
    """Return a ClientApp that plays, in each round, the device of the config's federation that the server names."""
    app = ClientApp(mods=list(mods))

    @functools.cache
    def devices() -> tuple[Config, DeviceSide]:
        parsed = configs.as_config(config)
        return parsed, build_devices(parsed)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # another number of threads adds in another order
        (parsed, side), instructions = devices(), message.content[CONFIG]
        ids = np.array([int(instructions["device"])])
        batch = side.federation.training(ids, int(instructions["server-round"]))
        how = parsed.train
        training = Training(side.plan, side.weight_decay, how.local_lr, how.engine, how.dtype)
        return trained_reply(message, context, side.task, batch, training)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:  # noqa: ARG001
        side = devices()[1]
        batch = side.federation.gather(np.array([int(message.content[CONFIG].get("device", 0))]))
        return evaluated_reply(message, side.task, batch.x, batch.y)

    helping(app)
    return app


def local_step(built: BuiltSimulation, round: int) -> LocalStep:
    """Return the numbers of a device's local training in a round of a config."""
    setup = built.setup
    own = setup.schedule(round) if setup.local_lr is None else setup.local_lr
    seed = integer_seed(setup.seed, "layers", round)
    return LocalStep(own if setup.device_lr else 1.0, setup.weight_decay, seed, setup.plan)


def _root(built: BuiltSimulation) -> Callable[[Tensor, int], Tensor]:
    """Return the function that computes the server's own update, as a simulation does."""
    engine, root = built.setup.engine, built.setup.root
    assert root is not None

    def update(theta: Tensor, round: int) -> Tensor:
        (block,) = engine(theta, Cohort(np.zeros(1, np.int64), root.sizes, lambda _: root), local_step(built, round))
        return block.rows()[0]

    return update


def _recordable(value: Any) -> bool:
    """Return whether Flower's metrics can hold a value: a number, or a list of numbers."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, float) for each in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
