"""Messages to nodes and back, through the SuperLink: pushed, and pulled one at a time until a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from sparsefed.core.errors import RunError, printable
from sparsefed.flower.door import Refusal
from sparsefed.flower.replies import Asked

TRANSPORT = ("httpx", "httpcore", "grpc")  # modules of the exceptions that say that the SuperLink cannot be reached
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before another try
Answer = TypeVar("Answer")

log = logging.getLogger("sparsefed.flower")


def _patiently(call: Callable[[], Answer]) -> Answer:
    """Return what a call to the SuperLink returns; an error of the transport is given some time to go away.

    A SuperLink under load answers that its database is locked; Flower itself waits for one that does not answer at all.

    Raises:
        RunError: if it does not go away.
    """
    for pause in PAUSES:
        try:
            return call()
        except Exception as error:
            if type(error).__module__.split(".")[0] not in TRANSPORT:
                raise
            last = error
        log.warning("the SuperLink had an error, trying again in %g s: %s", pause, printable(last, 200))
        time.sleep(pause)
    raise RunError(
        f"the SuperLink cannot be reached ({printable(last, 200)}); start it and run this again: it continues from the "
        "last checkpoint"
    ) from last


def online_nodes(grid: Grid) -> list[int]:
    """Return the ids of the nodes that are connected."""
    return _patiently(lambda: list(grid.get_node_ids()))


def pushed(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Hand messages to the SuperLink and return their ids; "" for each that it did not take."""
    ids = _patiently(lambda: [id or "" for id in grid.push_messages(messages)])
    return ids + [""] * (len(messages) - len(ids))


def pulled(grid: Grid, id: str) -> Any:
    """Return the reply to a message, a Refusal if it cannot be decoded, or None if there is none yet."""
    try:
        replies = _patiently(lambda: list(grid.pull_messages([id])))
    except RunError:
        raise
    except Exception as error:
        return Refusal("unreadable", printable(f"{type(error).__name__}: {error}", 200))
    return replies[0] if replies else None


def collector_of(grid: Grid, seconds: float, every: float) -> Collector:
    """Return a collector of replies from a grid, which waits for at most so many seconds from now on."""
    until = time.monotonic() + seconds
    return Collector(lambda id: pulled(grid, id), time.monotonic, time.sleep, until, every)


class Collector:
    """Reads the replies of a round from a transport, until all are in or the deadline has passed."""

    def __init__(
        self,
        pull: Callable[[str], Any],
        now: Callable[[], float],
        sleep: Callable[[float], None],
        until: float,
        every: float,
    ) -> None:
        """Prepare to collect replies.

        Args:
            pull: returns the reply to the message with this id, a Refusal, or None if there is none yet.
            now: a clock, in seconds.
            sleep: waits for this many seconds.
            until: the deadline, on that clock.
            every: seconds between two tries.
        """
        self._pull, self._now, self._sleep, self._until, self._every = pull, now, sleep, until, every

    def in_order(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, Any]]:
        """Yield the reply of each node in turn; the transport keeps the others meanwhile, so memory holds one."""
        for one in asked:
            yield one, self._await(one)

    def as_they_come(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, Any]]:
        """Yield replies in the order of their arrival."""
        waiting, last = list(asked), False
        while waiting and not last:
            last = self._now() >= self._until
            for one in list(waiting):
                if (reply := self._pulled(one)) is not None:
                    waiting.remove(one)
                    yield one, reply
                    del reply
            if waiting and not last:
                self._sleep(self._every)
        yield from ((one, Refusal("late")) for one in waiting)

    def _await(self, one: Asked) -> Any:
        while True:
            last = self._now() >= self._until
            reply = self._pulled(one)
            if reply is not None:
                return reply
            if last:
                return Refusal("late")
            self._sleep(min(self._every, max(0.0, self._until - self._now())))

    def _pulled(self, one: Asked) -> Any:
        return self._pull(one.request.message_id) if one.request.message_id else Refusal("unsent")
