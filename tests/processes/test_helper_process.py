"""A leader and a helper as two processes on loopback; the helper answers, is killed, and comes back."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure aggregation is the extra sparsefed[secure]")

from sparsefed.secure.circuit import circuit_for
from sparsefed.secure.field import FIELD32
from sparsefed.secure.sealing import new_key, public_key
from sparsefed.secure.two_servers import Leader, RoundTask, encode_task, upload
from tests.support.processes import ENVIRONMENT

SCRIPT = """
import json, pathlib, socket, struct, sys
from sparsefed.secure.two_servers import Helper, decode_task
memory, key, dies = pathlib.Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3] == "dies"
helper = Helper.load(key, json.loads(memory.read_text())) if memory.exists() else Helper(key)
def read(peer, size):
    data = b""
    while len(data) < size:
        data += peer.recv(min(size - len(data), 1 << 16)) or sys.exit("cut off")
    return data
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        peer, _ = server.accept()
        task, request = (read(peer, struct.unpack("<I", read(peer, 4))[0]) for _ in range(2))
        if dies:
            sys.exit(1)
        answer = helper.answer(decode_task(task), request)
        memory.write_text(json.dumps(helper.save()))
        peer.sendall(struct.pack("<I", len(answer)) + answer)
        peer.close()
"""


@contextmanager
def helper_process(memory: Path, key: bytes, mood: str = "lives") -> Iterator[int]:
    command = [sys.executable, "-c", SCRIPT, str(memory), key.hex(), mood]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def ask(port: int, task: RoundTask, request: bytes) -> bytes | None:
    """The helper's answer, or None if it is gone."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=240) as peer:
            for part in (encode_task(task), request):
                peer.sendall(struct.pack("<I", len(part)) + part)
            file = peer.makefile("rb")
            head = file.read(4)
            return file.read(struct.unpack("<I", head)[0]) if len(head) == 4 else None
    except OSError:
        return None


def test_rounds_with_a_helper_in_another_process(tmp_path: Path) -> None:
    mine, theirs = new_key(), new_key()
    values = np.random.default_rng(0).integers(-50, 51, (4, 30))
    nonces: set[bytes] = set()

    def leader_of(round: int) -> Leader:
        circuit = circuit_for(FIELD32, 30, 1000)
        leader = Leader(RoundTask(circuit, bytes(16), round, public_key(mine), public_key(theirs)), mine, nonces)
        for sender, vector in enumerate(values[:3]):
            assert leader.receive(sender, upload(leader.task, sender, vector)) is None
        assert leader.receive(3, upload(leader.task, 3, values[3])[:-1]) is not None  # one that is cut off
        return leader

    with helper_process(tmp_path / "memory.json", theirs) as port:
        first = leader_of(1)
        outcome = first.finish(ask(port, first.task, first.request()))
        assert outcome.total is not None and outcome.total.tolist() == values[:3].sum(0).tolist()
        assert outcome.accepted == (0, 1, 2) and list(outcome.rejected) == [3]
    with helper_process(tmp_path / "other.json", theirs, "dies") as port:
        second = leader_of(2)
        assert "did not answer" in second.finish(ask(port, second.task, second.request())).problem
    with helper_process(tmp_path / "memory.json", theirs) as port:  # restarted, with its memory
        assert "summed up already" in first.finish(ask(port, first.task, first.request())).problem
        third = leader_of(3)
        assert third.finish(ask(port, third.task, third.request())).accepted == (0, 1, 2)
