"""What nodes and server report when they evaluate the model: medians over the nodes, names that reports know."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from flwr.app import MetricRecord

from sparsefed.core.errors import printable
from sparsefed.flower.door import MOST_METRICS, Refusal

log = logging.getLogger("sparsefed.flower")


def medians(replies: Iterable[Any]) -> dict[str, float]:
    """Return the median over the nodes of each metric that they report; what is no finite number is left out."""
    values: dict[str, list[float]] = {}
    for reply in replies:
        for name, value in _reported(reply):
            values.setdefault(name, []).append(value)
    enough = max(map(len, values.values()), default=0) // 2  # a name that few report is theirs alone
    return {name: median(all) for name, all in sorted(values.items()) if len(all) > enough}


def _reported(reply: Any) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers that a reply to an evaluation reports."""
    try:
        if isinstance(reply, Refusal) or reply.has_error():
            return
        for record in list(reply.content.metric_records.values())[:1]:
            for name, value in list(record.items())[:MOST_METRICS]:
                if name != "num-examples" and isinstance(value, (int, float)) and math.isfinite(value):
                    yield printable(name, 60), float(value)
    except Exception as error:
        log.warning("an evaluation could not be read: %s", printable(error, 200))


def usual_names(record: MetricRecord) -> dict[str, Any]:
    """Return the metrics of the server's evaluation under the names that reports know."""
    usual = {"accuracy": "test_accuracy", "loss": "test_loss"}
    return {
        usual.get(name, name): value
        for name, value in record.items()
        if isinstance(value, (int, float)) or name == "class_accuracy"
    }
