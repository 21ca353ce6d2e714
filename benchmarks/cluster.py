"""What a round on a Ray cluster costs beyond its arithmetic, and what several workers save.

    python -m benchmarks.cluster --json FILE [--repeats N] [--quick]

One round (updates, clip, mean, top-k) of 16 devices in parts of 4, one thread a worker: in this process, by 1 worker,
by 2 and by 4 on one machine, and by 2 on two raylets of this machine (`ray.cluster_utils.Cluster`), interleaved in one
run. *Beyond compute* is a round's time without the seconds of its busiest worker and of the server's step, which one
process would need as well; the step is timed by itself, with one update. So is a sum's way: a worker's vector of d
numbers, fetched and added here. Ratios within a repeat.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.cluster_driver import ENVIRONMENT
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, spread, timed
from benchmarks.workers import worker
from sparsefed import Simulation
from sparsefed.cluster.connect import connect, library
from sparsefed.cluster.engine import RayEngine
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.round import run_round
from sparsefed.core.types import Context
from sparsefed.kernels.blocks import RowsBlock

DEVICES, PART = 16, 4
CAPTION = """\
1 worker / 2 workers: the same round by one and by two. Beyond compute: a round without the seconds of its busiest
worker and of the server's step; beyond the busiest worker: with that step.""".replace("\n", " ")


def table(quick: bool) -> dict[str, Any]:
    """ResNet9 of the paper (6 568 640 parameters) on CIFAR-10; quick: a softmax layer on digits."""
    return {
        "rounds": 10**6,
        "evaluate_every": 10**6,
        "data": {"name": "digits" if quick else "cifar10", "partition": "iid", "devices": 300 if quick else 10_000},
        "model": {"name": "softmax"} if quick else {"name": "resnet9", "width": 64},
        "train": {"cohort": 8 if quick else DEVICES, "block": 2 if quick else PART, "lr": 0.01},
        "defense": {"name": "sparsefed", "k": 100 if quick else 5000, "clip_norm": 1.0},
    }


def wide(quick: bool) -> dict[str, Any]:
    """One hidden layer with 6 568 510 parameters, on digits: little arithmetic, many parts, large sums."""
    return {
        **table(quick=True),
        "model": {"name": "mlp", "hidden": [64 if quick else 87_580]},
        "train": {"cohort": 32, "block": 2, "lr": 0.01},
        "defense": {"name": "sparsefed", "k": 100 if quick else 5000, "clip_norm": 1.0},
    }


def rounds(simulation: Simulation) -> Callable[[], float]:
    """One round from the first model, as a contestant; always the same one."""
    built, state = simulation.built, simulation.state
    return lambda: run_round(built.setup, state).seconds


class Beyond:
    """A contestant that also notes the seconds beyond those of its busiest worker."""

    def __init__(self, simulation: Simulation) -> None:
        self._run, self._engine = rounds(simulation), simulation.built.setup.engine
        self.beyond, self.busiest = list[float](), list[float]()

    def __call__(self) -> float:
        took = self._run()
        assert isinstance(self._engine, RayEngine)
        self.busiest.append(max(self._engine.spent.values()))
        self.beyond.append(took - self.busiest[-1])
        return took


def a_sum(ray: Any, d: int, repeats: int, node: str | None = None) -> list[float]:
    """Seconds to fetch and add one vector that a worker holds, on this machine or on another raylet."""
    import ray.util.scheduling_strategies as ways

    place = {} if node is None else {"scheduling_strategy": ways.NodeAffinitySchedulingStrategy(node, soft=False)}
    produce = ray.remote(num_cpus=0, **place)(np.ones)  # the processors are the workers', who are still there
    total, took = torch.zeros(d), []
    for _ in range(repeats):
        ref = produce.remote(d, np.float32)
        ray.wait([ref], fetch_local=False)
        began = time.perf_counter()
        total.add_(torch.from_numpy(np.array(ray.get(ref))))
        took.append(time.perf_counter() - began)
    return took


def server_step(simulation: Simulation, repeats: int) -> list[float]:
    """Seconds of the server's own arithmetic: one update of norm 1, clipped, added, and the rule's step."""
    setup, state = simulation.built.setup, simulation.state
    rows = torch.nn.functional.normalize(torch.ones(1, len(state.theta)))
    context = Context(round=1, lr=0.01)
    step = timed(lambda: setup.defense.step(state.defense, [RowsBlock(rows)], context))
    return [step() for _ in range(repeats)]


def measure(quick: bool, repeats: int, raylets: int) -> tuple[list[Sample], dict[str, Beyond], dict[str, Any]]:
    """Time rounds here and by workers of a cluster that runs already."""
    ray = connect()
    by = {"2 workers, 2 raylets": "ray:2"} if raylets == 2 else {"1 worker": "ray:1", "2 workers": "ray:2"}
    by |= {} if raylets == 2 or quick else {"4 workers": "ray:4"}
    crews = {name: Beyond(Simulation.from_config(table(quick), on=on)) for name, on in by.items()}
    here = Simulation.from_config(table(quick))
    contestants = {name: Contestant(crew) for name, crew in crews.items()}
    samples = interleaved({"in process": Contestant(rounds(here)), **contestants}, repeats)
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and not _has_driver(ray, node)]
    away = a_sum(ray, len(here.theta), max(5, repeats), others[0] if raylets == 2 else None)
    details = {
        "d": len(here.theta),
        "a sum, seconds": spread(away[1:])._asdict(),
        "server's step, seconds": spread(server_step(here, max(5, repeats))[1:])._asdict(),
    }
    return samples, crews, details


def _has_driver(ray: Any, node: Any) -> bool:
    return bool(node["NodeID"] == ray.get_runtime_context().get_node_id())


def run(quick: bool, repeats: int, raylets: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows and details of rounds on one raylet, or on two."""
    from ray.cluster_utils import Cluster

    room = {"num_cpus": 8 if raylets == 1 else 1, "object_store_memory": 2**30}
    cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
    if raylets == 2:
        cluster.add_node(**room)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        samples, crews, details = measure(quick, repeats, raylets)
    finally:
        library().shutdown()
        cluster.shutdown()
        del os.environ["RAY_ADDRESS"]
    group, rows = f"{details['d']:,} parameters", []
    if raylets == 1:
        rows.append(
            Row(group, "1 worker / 2 workers", "", ratio(samples, "1 worker", "2 workers"), Bar("at least", 1.6))
        )
        rows.append(Row(group, "in process / 1 worker", "", ratio(samples, "in process", "1 worker")))
    step = details["server's step, seconds"]["median"]
    for name, crew in crews.items():
        bar = {"2 workers": 0.1, "2 workers, 2 raylets": 0.6}.get(name)
        apart = spread([each - step for each in crew.beyond[1:]])
        rows.append(Row(group, "seconds beyond compute", name, apart, Bar("at most", bar) if bar else None))
        rows.append(Row(group, "seconds beyond the busiest worker", name, spread(crew.beyond[1:])))
    took = {name: seconds(samples, name)._asdict() for name in samples[0]}
    spent = {name: spread(crew.busiest[1:])._asdict() for name, crew in crews.items()}
    beyond = {name: crew.beyond[1:] for name, crew in crews.items()}
    return rows, {**details, "seconds": took, "busiest worker": spent, "samples": samples, "beyond": beyond}


def held(quick: bool, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows and details of what a driver of 1 and of 2 workers holds, each in a fresh process with its own cluster."""
    facts: dict[str, Any] = {}
    for workers in (1, 2):
        given = [json.dumps(wide(quick)), f"ray:{workers}"]
        with worker(sys.executable, "benchmarks.cluster_driver", given, ENVIRONMENT) as driver:
            told = [driver.ask("round") for _ in range(repeats)]
            facts[f"{workers} workers"] = {**driver.ready, "rounds": told}
    one, two = facts["1 workers"], facts["2 workers"]
    group, a_vector, usual = f"{two['d']:,} parameters", 4 * two["d"], min(each["seconds"] for each in two["rounds"])
    grown = {name: spread([each["grown"] / a_vector for each in fact["rounds"]]) for name, fact in facts.items()}
    a_worker = spread([grown["2 workers"].median - grown["1 workers"].median])
    store = spread([each["store"] / 2**30 for each in two["rounds"]])
    spilled = spread([each["spilled"] / 2**30 for each in (*one["rounds"], *two["rounds"])])
    started = spread([two["connected"] + two["first round"] - usual])
    return [
        Row(group, "start, seconds", "2 workers", started, Bar("at most", 10)),
        Row(group, "driver's memory, vectors", "1 worker", grown["1 workers"]),
        Row(group, "driver's memory, vectors", "2 workers", grown["2 workers"]),
        Row(group, "driver's memory, vectors", "a further worker", a_worker, Bar("at most", 2)),
        Row(group, "object store, GB", "2 workers", store, Bar("at most", 1)),
        Row(group, "spilled, GB", "all", spilled, Bar("at most", 0)),
    ], facts


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("cluster", __doc__).parse_args(arguments)
    torch.set_num_threads(1)
    library()
    console, others = Console(), others_meter()
    details: dict[str, Any] = {"freed_memory_kept": keep_freed_memory()}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "token").write_text("0123456789abcdef" * 4)
        os.environ |= {"RAY_AUTH_TOKEN_PATH": f"{folder}/token", "RAY_TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        repeats = options.repeats or 9
        parts: dict[str, Callable[[], tuple[list[Row], dict[str, Any]]]] = {
            "held": lambda: held(options.quick, repeats),
            "1 raylets": lambda: run(options.quick, repeats, 1),
            "2 raylets": lambda: run(options.quick, repeats, 2),
        }
        for name, part in parts.items():
            console.print(f"{name} ...", style="dim")
            found, details[name] = part()
            rows += found
            write(options.json, "cluster", rows, details, others())
    show(console, "Rounds on a cluster" + " (quick: too small to mean anything)" * options.quick, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
