"""Flower's own simulation engine on the same federation and model, a round for each line that is asked.

Runs in the peers' environment, which has torch, NumPy, flwr and the Ray that it pins but nothing of ours: the model
file, which needs torch alone, is run as a file. A stock client and FedAvg, as in Flower's quick start: the client loads
the model that it is sent, takes its SGD step and sends the model back. Flower is given what suits it: two actors on two
cores, examples as float32 tensors that are normalised already, mapped once by each actor, no evaluation.

`run_simulation` is what `flwr run` calls for a simulation; a round is timed from the sampling of clients to the new
model.
"""

from __future__ import annotations

import functools
import os
import queue
import runpy
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.workers import ROOT, serve

FOLDER = "SPARSEFED_PEER_FOLDER"  # the variable that tells actors where x.npy and y.npy are
MODEL = ROOT / "src" / "sparsefed" / "models" / "cnn.py"
CLIENTS, ACTORS, LR, NEVER = 100, 2, 0.1, 10**6

app = ClientApp()


@functools.cache
def examples() -> tuple[Any, Any]:
    """All devices' examples [devices, 6, ...] and their classes, mapped."""
    folder = Path(os.environ[FOLDER])
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy")


@functools.cache
def builder() -> Any:
    return runpy.run_path(str(MODEL))["cnn"]


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    """One local step of a client."""
    torch.set_num_threads(1)
    x, y = examples()
    device = int(context.node_config["partition-id"])
    module = builder()((1, 28, 28), 10)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    mine, classes = torch.from_numpy(np.array(x[device])), torch.from_numpy(np.array(y[device]))
    F.cross_entropy(module(mine), classes).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    metrics = MetricRecord({"num-examples": len(classes)})
    reply = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


class Timed(FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg whose rounds begin when they are asked for, and which tells how long each took."""

    def __init__(self, asked: queue.SimpleQueue[None], told: queue.SimpleQueue[float], devices: int) -> None:
        share = CLIENTS / devices
        super().__init__(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=devices)
        self._asked, self._told = asked, told

    def configure_train(self, *given: Any, **named: Any) -> Any:
        self._asked.get()
        self._began = time.perf_counter()
        return super().configure_train(*given, **named)

    def aggregate_train(self, *given: Any, **named: Any) -> Any:
        arrays, metrics = super().aggregate_train(*given, **named)
        if arrays is None:
            os._exit(1)  # no client has answered: what is timed would be nothing
        self._told.put(time.perf_counter() - self._began)
        return arrays, metrics


def main() -> None:
    """Arguments: the folder of x.npy and y.npy."""
    os.environ[FOLDER] = sys.argv[1]
    from benchmarks.flower_round import app as importable  # this file is `__main__`, which actors cannot import

    devices = len(examples()[1])
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    told: queue.SimpleQueue[float] = queue.SimpleQueue()

    def one_round() -> float:
        asked.put(None)
        return told.get()

    def answer() -> None:
        serve({"flwr": metadata.version("flwr"), "ray": metadata.version("ray")}, {"round": one_round})
        os._exit(0)

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def run(grid: Grid, _: Context) -> None:
        threading.Thread(target=answer, daemon=True).start()
        first = ArrayRecord(builder()((1, 28, 28), 10).state_dict())
        Timed(asked, told, devices).start(grid, first, num_rounds=NEVER)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    init = {"init_args": {"address": "local", "num_cpus": ACTORS, "include_dashboard": False, "log_to_driver": False}}
    run_simulation(server, importable, devices, backend_config={**resources, **init})


if __name__ == "__main__":
    main()
