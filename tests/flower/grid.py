"""A federation in this process: a grid whose nodes are functions, which can lie, fail and come late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Client = Callable[[Message, Context], Message]
Fault = Callable[[Message, Message], Any]  # the request and the honest reply -> what is sent; None: nothing


class LocalGrid(Grid):
    """A grid of nodes in this process; `faults` change what a node sends."""

    def __init__(self, nodes: Iterable[int], client: Client, faults: Mapping[int, Fault] | None = None) -> None:
        self.nodes, self.client, self.faults = list(nodes), client, dict(faults or {})
        self.asked: list[int] = []
        self.contexts = {node: Context(0, node, {"partition-id": i}, RecordDict(), {}) for i, node in enumerate(nodes)}
        self._sent: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            id = f"message-{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = id
            self._sent[id] = message
            self.asked.append(message.metadata.dst_node_id)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = (self._reply(self._sent[id], id) for id in message_ids if id in self._sent)
        return [reply for reply in replies if reply is not None]

    def _reply(self, message: Message, id: str) -> Message | None:
        node = message.metadata.dst_node_id
        reply = self.client(message, self.contexts[node])
        fault = self.faults.get(node)
        sent = reply if fault is None else fault(message, reply)
        if sent is not None:
            del self._sent[id]
        return sent

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))


@contextmanager
def identity() -> Iterator[None]:
    """Messages can be made only by a task that knows who it is; here, the server."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    try:
        yield
    finally:
        TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None
