"""The peers, each in an environment of its own, started from here."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.cases import CLASSES, Case
from benchmarks.contestants import CLIP_NORM, LOCAL_LR, LR, WEIGHT_DECAY, Round
from benchmarks.workers import ROOT, Worker, worker

VENV = ROOT / ".venv-peers"


@dataclass(frozen=True)
class Peer:
    """A running pfl-research, and the model that its first round made."""

    worker: Worker
    theta: Tensor  # [d]

    def run(self) -> float:
        return float(self.worker.ask("round"))


def python_of(venv: Path) -> Path | None:
    """The interpreter of the peers' environment, if there is one."""
    python = venv / "bin" / "python"
    return python if python.exists() else None


@contextmanager
def pfl_research(
    python: Path,
    case: Case,
    given: Round,
    channels_last: bool = False,
    autocast: bool = False,
    local_epochs: int | None = None,
) -> Iterator[Peer]:
    """pfl-research with the cohort, the model and the hyperparameters that ours is given; with `local_epochs`, as
    FedAvg: the rate is the devices' and the server applies the mean as it is."""
    asked = {
        "model": case.model,
        "params": dict(case.params),
        "shape": case.shape,
        "classes": CLASSES,
        "lr": LR if local_epochs is None else 1.0,
        "local_lr": 1.0 if local_epochs is None else LOCAL_LR,
        "local_epochs": local_epochs or 1,
        "clip_norm": CLIP_NORM,
        "weight_decay": WEIGHT_DECAY,
        "threads": torch.get_num_threads(),
        "channels_last": channels_last,
        "autocast": autocast,
    }
    with tempfile.TemporaryDirectory() as folder:
        arrays, after = Path(folder, "cohort.npz"), Path(folder, "after.npy")
        _save(arrays, given)
        with worker(python, "benchmarks.pfl_round", [json.dumps(asked), str(arrays), str(after)]) as running:
            yield Peer(running, torch.from_numpy(np.load(after)))


def _save(path: Path, given: Round) -> None:
    batch = given.cohort.gather(given.cohort.ids)
    x = given.task.prepare(batch.x).contiguous().numpy()
    np.savez(path, x=x, y=batch.y.numpy(), sizes=batch.sizes, theta=given.theta.numpy())
