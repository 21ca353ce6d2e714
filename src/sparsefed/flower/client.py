"""The client's side: a ClientApp that trains a module with our engines, and a mod that clips honest updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from sparsefed.core.dtypes import computed_in
from sparsefed.core.engine import Cohort, LocalPlan, LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import Loss, Task, evaluator, make_task
from sparsefed.core.types import Batch
from sparsefed.engines import ENGINES

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
Examples = tuple[Tensor, Tensor]
Data = Callable[[Context], tuple[Any, ...]]  # -> (x, y), or (x, y, x_test, y_test)
Build = nn.Module | Callable[[], nn.Module]


class Training(NamedTuple):
    """How a client trains in a round: the rates come with the request."""

    plan: LocalPlan = LocalPlan()
    weight_decay: float = 0.0
    local_lr: float | None = None  # None: the server's rate
    engine: str = "loop"
    dtype: str = "float32"


def client(
    model: Build,
    data: Data,
    *,
    loss: Loss | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    epochs: int = 1,
    batch: int | None = None,
    weight_decay: float = 0.0,
    local_lr: float | None = None,
    prox: float = 0.0,
    engine: str = "loop",
    dtype: str = "float32",
    mods: Iterable[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that trains a module on the node's own data and replies with what the server wants.

    Args:
        model: the module, or a function that builds it; its weights are replaced by the server's.
        data: returns the node's examples, (x, y) or (x, y, x_test, y_test), from Flower's context. A node starts a new
            process for every message, so keep what is slow to make on the disk.
        loss: (outputs, targets) -> the loss of each example; by default cross-entropy.
        prepare: maps raw examples to inputs; by default bytes become numbers from 0 to 1.
        epochs: passes over the data in a round; more than one needs mode "fedavg".
        batch: examples per step; by default all at once.
        weight_decay: added to the gradient, times the weights.
        local_lr: the rate of the local steps; by default the server's. Only in mode "fedavg".
        prox: FedProx's mu.
        engine: how updates are computed; "loop" gives the same bits whatever the cohort.
        dtype: "float32" or "bfloat16".
        mods: mods of Flower, for instance `clip(1.0)`.
    """
    training = Training(LocalPlan(epochs, batch, 1.0, prox), weight_decay, local_lr, engine, dtype)
    app = ClientApp(mods=list(mods))

    def task() -> Task:
        return make_task(model if isinstance(model, nn.Module) else model(), prepare, loss)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y, *_ = map(_tensor, data(context))
        return trained_reply(message, context, task(), Batch(x, y, np.array([len(y)])), training)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        *_, x, y = map(_tensor, data(context))
        return evaluated_reply(message, task(), x, y)

    helping(app)
    return app


def helping(app: ClientApp) -> None:
    """Let an app answer as the helper of secure aggregation, on the node that was started as one."""

    @app.query()
    def query(message: Message, context: Context) -> Message:
        from sparsefed.flower.sealed import helper_reply

        return helper_reply(message, context)


def trained_reply(message: Message, context: Context, task: Task, batch: Batch, training: Training) -> Message:
    """Return the reply to a request to train: the update, or the model, of this client; or a sealed report of it."""
    theta, config = theta_of(message, task), message.content[CONFIG]
    update = local_update(theta, task, batch, training, config)
    if "secure" in message.content:
        from sparsefed.flower.sealed import sealed_reply

        return sealed_reply(message, context, update, int(config["device"]))
    sent = theta - update if config.get("sends") == "model" else update
    numbers = MetricRecord({"num-examples": int(batch.sizes.sum()), "server-round": int(config["server-round"])})
    return Message(RecordDict({ARRAYS: record_of(task, sent), METRICS: numbers}), reply_to=message)


def local_update(theta: Tensor, task: Task, batch: Batch, training: Training, config: Mapping[str, Any]) -> Tensor:
    """Return `before - after` of one device's local training, by one of our engines."""
    fedavg = config.get("mode") == "fedavg"
    rate = (float(config["lr"]) if training.local_lr is None else training.local_lr) if fedavg else 1.0
    if training.engine not in ENGINES:
        raise ConfigError(f"engine is '{training.engine}', but must be one of {', '.join(sorted(ENGINES))}")
    if not fedavg and training.plan.epochs > 1:
        raise ConfigError("several local epochs need a server with mode = 'fedavg'; use one, or change the mode")
    engine = ENGINES[training.engine](task, computed_in(training.dtype))
    step = LocalStep(rate, training.weight_decay, int(config.get("round-seed", 0)), training.plan)
    ids = np.array([int(config.get("device", 0))])
    (block,) = engine(theta, Cohort(ids, batch.sizes, lambda _: batch), step)
    return block.rows()[0]


def evaluated_reply(message: Message, task: Task, x: Tensor, y: Tensor) -> Message:
    """Return the reply to a request to evaluate: loss and accuracy on this client's examples."""
    found = evaluator(task, torch.float32)(theta_of(message, task), x, y)
    numbers = MetricRecord({"loss": found.loss, "accuracy": found.accuracy(y), "num-examples": len(y)})
    return Message(RecordDict({METRICS: numbers}), reply_to=message)


def theta_of(message: Message, task: Task) -> Tensor:
    """Return the model of a request as a vector [d]."""
    arrays = message.content[ARRAYS]
    for slot in task.slots:
        if slot.name not in arrays or tuple(arrays[slot.name].shape) != tuple(slot.shape):
            raise ConfigError(f"the server's model has no '{slot.name}' {list(slot.shape)}; both must have one model")
    parts = [np.array(arrays[slot.name].numpy(), np.float32).reshape(-1) for slot in task.slots]
    return torch.from_numpy(np.concatenate(parts))


def record_of(task: Task, vector: Tensor) -> ArrayRecord:
    """Return a vector [d] as a record with the names and shapes of the module's parameters."""
    return ArrayRecord(
        {slot.name: Array(vector[slot.start : slot.stop].view(slot.shape).numpy()) for slot in task.slots}
    )


def clip(norm: float) -> Mod:
    """Return a mod that shortens this client's update to a norm, as an honest client does before it sends.

    It works on updates and on models; an update that is shorter already is left as it is, bit for bit.

    Args:
        norm: the l2 norm that the server allows.
    """
    if not norm > 0:
        raise ConfigError(f"clip was given {norm}, but an update must be allowed some length: choose a norm above 0")

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        reply = call_next(message, context)
        if reply.has_error() or message.metadata.message_type.split(".")[0] != "train":
            return reply
        sends_model = message.content[CONFIG].get("sends") == "model"
        before = next(iter(message.content.array_records.values())) if sends_model else None
        for arrays in reply.content.array_records.values():
            _shorten(arrays, before, norm)
        return reply

    return mod


def _shorten(arrays: ArrayRecord, before: ArrayRecord | None, norm: float) -> None:
    """Scale the floating-point arrays of a reply in place, so that together they are no longer than the norm."""
    sent = {name: array.numpy() for name, array in arrays.items()}
    base = {name: 0.0 if before is None else before[name].numpy() for name in sent}
    updates = {name: a - base[name] for name, a in sent.items() if np.issubdtype(a.dtype, np.floating)}
    length = float(np.sqrt(sum(float(np.square(u, dtype=np.float64).sum()) for u in updates.values())))
    if not length > norm:
        return
    for name, update in updates.items():
        arrays[name] = Array((base[name] + update * np.float32(norm / length)).astype(sent[name].dtype))


def _tensor(part: Any) -> Tensor:
    return part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
