"""Attackers in a test federation: any of our attacks as a client mod, to rehearse before going live.

It acts only where it was asked for twice: the node was started with `red-team=true` in its node config, and the server
announced a rehearsal (`Strategy(..., red_team=True)`). In any other federation it passes every message through.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor

from sparsefed.attacks import ATTACKS, Scene
from sparsefed.attacks.attack import ChosenAttack
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.core.task import Loss, Task, differentiator, make_task
from sparsefed.core.threat import Knowledge
from sparsefed.core.types import Batch
from sparsefed.defenses import Rule
from sparsefed.flower.client import CONFIG, Build, Data, Mod, record_of, theta_of
from sparsefed.kernels.blocks import RowsBlock

log = logging.getLogger("sparsefed.flower")
ON = "red-team"


def red_team(
    attack: ChosenAttack | str,
    model: Build,
    data: Data,
    *,
    defense: Rule | None = None,
    clip_norm: float = math.inf,
    attackers: int = 1,
    prepare: Callable[[Tensor], Tensor] | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    **params: Any,
) -> Mod:
    """Return a mod that replaces this client's update by an attacker's, in a rehearsal only.

    Of the honest updates it knows this client's own, which stands for the others'; of the server's state nothing.

    Args:
        attack: an attack such as `sparsefed.attacks.pgd()`, or the name of one.
        model: the module, or a function that builds it, as for `client`.
        data: returns (x, y, x_test, y_test): the examples of this node, and those that the attackers want to have
            mistaken; without test examples, those of the node.
        defense: the server's rule, for attacks that try it out.
        clip_norm: the norm to which the server clips, if it does.
        attackers: how many nodes attack together.
        prepare: maps raw examples to inputs, as for `client`.
        loss: the loss of each example, as for `client`.
        seed: of the attackers' own choices; the same on all of them.
        params: the parameters of an attack given by name.

    Raises:
        ConfigError: if the attack is unknown, or needs a defense that is not given.
    """
    chosen = _chosen(attack, params)

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        reply = call_next(message, context)
        if not rehearsing(message, context) or reply.has_error():
            return reply
        task = make_task(
            model() if callable(model) and not isinstance(model, torch.nn.Module) else model, prepare, loss
        )
        known = _knowledge(message, reply, task, data(context), (defense, clip_norm, attackers, seed))
        theta, update = known.theta, _crafted(chosen, known, data(context), seed)
        sends_model = message.content[CONFIG].get("sends") == "model"
        name = next(iter(reply.content.array_records))
        reply.content[name] = record_of(task, theta - update if sends_model else update)
        log.warning("red team: this client attacked with %s in round %d", chosen, known.round)
        return reply

    return mod


def _chosen(attack: ChosenAttack | str, params: dict[str, Any]) -> ChosenAttack:
    if isinstance(attack, ChosenAttack):
        if params:
            raise ConfigError(f"{attack} has its parameters already; put {', '.join(params)} between its parentheses")
        return attack
    if attack not in ATTACKS:
        raise ConfigError(unknown("attack", str(attack), ATTACKS))
    chosen: ChosenAttack = ATTACKS[attack](**params)
    return chosen


def rehearsing(message: Message, context: Context) -> bool:
    """Return whether both have asked for an attack: the server in its request, and the operator of this node."""
    asked = str(context.node_config.get(ON, "")).lower() == "true"
    training = message.metadata.message_type.split(".")[0] == "train"
    return training and asked and message.content[CONFIG].get(ON) is True


def _knowledge(
    message: Message, reply: Message, task: Task, data: tuple[Any, ...], own: tuple[Rule | None, float, int, int]
) -> Knowledge:
    (defense, clip_norm, attackers, seed), config = own, message.content[CONFIG]
    theta, sent = theta_of(message, task), _vector(reply, task)
    honest = theta - sent if config.get("sends") == "model" else sent
    x, y = (torch.as_tensor(np.asarray(part)) for part in data[:2])
    fedavg = config.get("mode") == "fedavg"
    return Knowledge(
        int(config["server-round"]),
        theta,
        clip_norm,
        differentiator(task, torch.float32),
        seed,
        attackers=attackers,
        scale=float(config["lr"]) if fedavg else 1.0,
        cohort=attackers + 1,
        own=Batch(x, y, np.array([len(y)])),
        honest=honest[None],
        serve=None
        if defense is None
        else _server(defense, "fedavg" if fedavg else "uncompressed", config, theta, seed),
        server=None if defense is None else defense.build().init(len(theta)),
    )


def _server(rule: Rule, mode: Any, config: Any, theta: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
    from sparsefed.core.types import Context as Facts

    defense = rule.build(mode)
    facts = Facts(int(config["server-round"]), float(config["lr"]), seed, theta)
    return lambda rows: defense.step(defense.init(len(theta)), [RowsBlock(rows)], facts).delta


def _crafted(chosen: ChosenAttack, known: Knowledge, data: tuple[Any, ...], seed: int) -> Tensor:
    x, y, *test = (torch.as_tensor(np.asarray(part)) for part in data)
    x_test, y_test = test or (x, y)
    _, attack = chosen.build(Scene(x, y, x_test, y_test, int(max(y.max(), y_test.max())) + 1, seed))
    if "defense" in attack.needs and known.serve is None:
        raise ConfigError(f"{chosen} tries out the server's rule: give red_team the defense")
    crafted = attack(known)
    return crafted if crafted.dim() == 1 else crafted[0]


def _vector(reply: Message, task: Task) -> Tensor:
    arrays = next(iter(reply.content.array_records.values()))
    parts = [np.array(arrays[slot.name].numpy(), np.float32).reshape(-1) for slot in task.slots]
    return torch.from_numpy(np.concatenate(parts))
