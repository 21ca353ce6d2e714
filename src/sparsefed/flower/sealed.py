"""The nodes' side of proven secure aggregation: a device's sealed report, and the helper, another operator's node.

A device is started with the helper's public key in its node config, `helper-key="HEX"`, so that the server cannot put
another in its place. The helper is started with `helper-key-file="PATH"`, the file of its private key; beside it stands
what it must not forget from one message to the next, as each is answered by a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from sparsefed.core.errors import ConfigError, RunError, quoted
from sparsefed.runs.disk import read_bytes, write_atomically
from sparsefed.secure.field import RejectedReport
from sparsefed.secure.rounding import Rounding, rounded
from sparsefed.secure.sealing import KEY, new_key, public_key
from sparsefed.secure.two_servers import Helper, RoundTask, decode_task, upload

SECURE, TASK, LIMIT, REQUEST, ANSWER = "secure", "task", "limit", "request", "answer"
METRICS = "metrics"


def bytes_record(data: bytes) -> ArrayRecord:
    """Return bytes as a record of one array, which Flower sends in pieces."""
    return ArrayRecord({"bytes": Array(np.frombuffer(data, np.uint8))})


# --- a device --------------------------------------------------------------------------------------------------------


def sealed_reply(message: Message, context: Context, update: Tensor, device: int) -> Message:
    """Return the reply of a device whose update nobody is to see: a report, sealed for two servers.

    Raises:
        ConfigError: if the server's helper is not the one that this node was started with.
    """
    task, rounding = rounding_of(message)
    pinned = str(context.node_config.get("helper-key", ""))
    if pinned.lower() != task.helper_key.hex():
        raise ConfigError(
            f"the server's helper has the key {task.helper_key.hex()[:16]}..., but this node was started with "
            f"helper-key={quoted(pinned, 16)}; ask the helper's operator for its public key"
        )
    values = rounded(update.numpy(), rounding)
    numbers = MetricRecord({"server-round": task.round})
    return Message(
        RecordDict({"report": bytes_record(upload(task, device, values)), METRICS: numbers}), reply_to=message
    )


def rounding_of(message: Message) -> tuple[RoundTask, Rounding]:
    """Return the task of a request and how updates are rounded in it."""
    record = message.content[SECURE]
    try:
        task = decode_task(bytes(record[TASK]))
    except RejectedReport as error:
        raise ConfigError(f"the server's request cannot be used: {error}") from None
    limit, circuit = float(record[LIMIT]), task.circuit
    return task, Rounding(circuit.field, circuit.d, limit, circuit.bound, limit / circuit.bound)


# --- the helper ------------------------------------------------------------------------------------------------------


def helper_reply(message: Message, context: Context) -> Message:
    """Return the helper's answer to the leader; what it must remember is on the disk before.

    Raises:
        ConfigError: if this node is no helper.
    """
    path = str(context.node_config.get("helper-key-file", ""))
    if not path:
        raise ConfigError("this node is no helper; start one with --node-config 'helper-key-file=\"PATH\"'")
    try:
        task = decode_task(bytes(message.content[SECURE][TASK]))
        request = message.content[REQUEST]["bytes"].numpy().tobytes()
    except (RejectedReport, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the leader's request cannot be used: {error}") from None
    answer = answered(Path(path), task, request, context.node_config)
    return Message(RecordDict({ANSWER: bytes_record(answer)}), reply_to=message)


def answered(key_file: Path, task: RoundTask, request: bytes, node_config: Mapping[str, Any]) -> bytes:
    """Return the answer of the helper whose key is in this file, with its memory beside it."""
    private, memory = key_of(key_file), key_file.with_suffix(".memory.json")
    known = str(node_config.get("leader-key", ""))
    with key_file.open("rb") as lock:  # one message at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        saved = json.loads(read_bytes(memory, limit=None)) if memory.exists() else {"nonces": [], "rounds": []}
        helper = Helper.load(private, saved, bytes.fromhex(known) if known else None)
        answer = helper.answer(task, request)
        write_atomically(memory, (json.dumps(helper.save()) + "\n").encode())
    return answer


# --- keys ------------------------------------------------------------------------------------------------------------


def key_of(path: Path) -> bytes:
    """Return the private key in a file; a new one if there is no file yet, readable by its owner alone.

    Raises:
        RunError: if the file holds something else.
    """
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_key().hex() + "\n")
    try:
        key = bytes.fromhex(path.read_text().strip())
    except ValueError:
        key = b""
    if len(key) != KEY:
        raise RunError(f"{path} holds no private key of {KEY} bytes in hexadecimal; give another file, or a new name")
    return key


def public_key_of(path: Path) -> str:
    """Return the public key, in hexadecimal, of the private one in a file, which is made if it is not there."""
    return public_key(key_of(path)).hex()
