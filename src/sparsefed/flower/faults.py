"""Broken and lying clients for a rehearsal: each of the faults that the door must refuse, as a client mod.

Like `red_team`, it acts only where it was asked for twice: the node was started with `red-team=true fault="NAME"` in
its node config, and the server announced a rehearsal. Several names, `fault="nan, garbage"`, are taken in turn, one a
round.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from sparsefed.core.errors import ConfigError, unknown
from sparsefed.flower.client import Mod
from sparsefed.flower.red_team import rehearsing

STYPE = "numpy.ndarray"
Fault = Callable[[Message, Message], Message]  # the request and the honest reply -> what is sent
LONG = 3600.0  # seconds that a sleeping client sleeps


def fault() -> Mod:
    """Return a mod that breaks this client's replies as its node config says, in a rehearsal only."""

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        names = str(context.node_config.get("fault", "")).split(", ")
        if names == [""] or not rehearsing(message, context):
            return call_next(message, context)
        name = names[(int(message.content["config"]["server-round"]) - 1) % len(names)]
        if name not in FAULTS:
            raise ConfigError(unknown("fault", name, FAULTS))
        return FAULTS[name](message, call_next(message, context))

    return mod


def _arrays(reply: Message) -> tuple[str, ArrayRecord]:
    name, arrays = next(iter(reply.content.array_records.items()))
    return name, arrays


def _each(change: Callable[[Array], Array]) -> Fault:
    def broken(_: Message, reply: Message) -> Message:
        name, arrays = _arrays(reply)
        reply.content[name] = ArrayRecord({key: change(array) for key, array in arrays.items()})
        return reply

    return broken


def _counting(number: float) -> Fault:
    def broken(_: Message, reply: Message) -> Message:
        for record in reply.content.metric_records.values():
            record["num-examples"] = number
        return reply

    return broken


def _wrong_key(_: Message, reply: Message) -> Message:
    name, arrays = _arrays(reply)
    reply.content[name] = ArrayRecord({f"not.{key}": array for key, array in arrays.items()})
    return reply


def _extra_record(_: Message, reply: Message) -> Message:
    reply.content["more"] = _arrays(reply)[1].copy()
    return reply


def _many_keys(_: Message, reply: Message) -> Message:
    name, arrays = _arrays(reply)
    one = Array(np.zeros(1, np.float32))
    reply.content[name] = ArrayRecord({**dict(arrays), **{f"key.{i}": one for i in range(10_000)}})
    return reply


def _old_round(message: Message, reply: Message) -> Message:
    for record in reply.content.metric_records.values():
        record["server-round"] = int(message.content["config"]["server-round"]) - 1
    return reply


def _other_sender(_: Message, reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id ^ 1
    return reply


def _claim(array: Array) -> Array:
    """Return an array of the right shape whose file claims to hold a gigabyte."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 28,)})
    return Array(array.dtype, tuple(array.shape), STYPE, head.getvalue())


def _raise(_: Message, __: Message) -> Message:
    raise RuntimeError("this client was told to fail")


def _exit(_: Message, __: Message) -> Message:
    os._exit(1)


def _sleep(_: Message, reply: Message) -> Message:
    time.sleep(LONG)
    return reply


def _nan(array: Array) -> Array:
    return Array(array.numpy() * np.float32(math.nan))


def _cut(array: Array) -> Array:
    return Array(array.numpy()[:-1])


def _garbage(array: Array) -> Array:
    return Array(array.dtype, tuple(array.shape), STYPE, b"garbage")


def _forged(message: Message, reply: Message) -> Message:
    """Return, in place of a sealed report, one of a vector a hundred times too long that claims to have the bound."""
    if "secure" not in message.content:
        return reply
    from sparsefed.flower.sealed import bytes_record, rounding_of
    from sparsefed.secure.forgery import forged

    task, rounding = rounding_of(message)
    values = np.zeros(rounding.d, np.int64)
    values[0] = 100 * rounding.bound
    device = int(message.content["config"]["device"])
    reply.content["report"] = bytes_record(forged("norm", task, device, values, np.random.default_rng(device)))
    return reply


FAULTS: Mapping[str, Fault] = {
    "wrong key": _wrong_key,
    "extra record": _extra_record,
    "wrong shape": _each(_cut),
    "garbage": _each(_garbage),
    "nan": _each(_nan),
    "count 0": _counting(0),
    "count nan": _counting(math.nan),
    "count 1e9": _counting(10**9),
    "count -30": _counting(-30),
    "raise": _raise,
    "exit": _exit,
    "sleep": _sleep,
    "claims a gigabyte": _each(_claim),
    "10 000 keys": _many_keys,
    "old round": _old_round,
    "other sender": _other_sender,
    "forged report": _forged,
}
