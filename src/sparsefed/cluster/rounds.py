"""The rounds of a whole run on another machine, one by one: what a search needs of a trial.

A run whose machine dies is run again by another one from its first round; what was seen of it already is skipped, for
it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparsefed import config as configs
from sparsefed.cluster import connect
from sparsefed.cluster.greeting import Greeting, load, run_greeting, run_refusal
from sparsefed.cluster.streams import Emit, StoppedError, Stream
from sparsefed.cluster.team import WorkerLostError
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.round import Metrics

RETRIES = 20  # of a run whose machine died


def report_rounds(emit: Emit, is_stopped: Callable[[], bool], table: Mapping[str, Any], expected: Greeting) -> None:
    """Run a config on this machine and emit the metrics of every round."""
    sentence = run_refusal(expected, table)
    if sentence is not None:
        raise ConfigError(sentence)
    built = configs.build(configs.parse(table), load)
    for report in built.reports(built.begin()):
        emit(dict(report.metrics))
        if is_stopped():
            raise StoppedError


def remote_rounds(config: Config, threads: int) -> Iterator[Metrics]:
    """Yield the metrics of a run's rounds, computed by whichever machine of the cluster has room.

    Raises:
        ConfigError: The run is refused, here or there.
        RunError: Every machine that was given the run has died.
    """
    ray, seen = connect.connect(), 0
    given = (configs.dump(config), run_greeting(config, threads))
    for _ in range(RETRIES):
        stream = Stream(ray, threads, report_rounds, *given)
        try:
            for metrics in stream:
                if metrics["round"] > seen:
                    seen = metrics["round"]
                    yield metrics
            return
        except WorkerLostError:
            continue
        except GeneratorExit:
            stream.stop()
            raise
    raise RunError(f"{RETRIES} machines or processes died while they ran a trial; look at the cluster's logs")
