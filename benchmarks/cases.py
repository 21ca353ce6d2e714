"""What is timed: models and cohorts of the sizes that the paper's cross-device experiments have.

The images are random bytes: what they show does not change how long a step takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from benchmarks.outcome import Bar
from sparsefed.core.engine import Cohort
from sparsefed.core.federation import Federation, federate, uniform
from sparsefed.core.rng import integer_seed, rng
from sparsefed.core.task import Task, image_normaliser, make_task
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import IntArray
from sparsefed.data.partitions.partition import iid
from sparsefed.models import MODELS

CLASSES = 10
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MEAN, STD = 0.5, 0.25  # of every channel


@dataclass(frozen=True)
class Case:
    """One model with one cohort, how often it is timed, and what is asked of it."""

    name: str
    model: str
    shape: tuple[int, int, int]  # [C, H, W]
    examples: int  # of each client
    repeats: int
    slow_every: int  # the loop and the peer take part in every so-manieth repeat
    bars: Mapping[str, float | None]  # by dtype: ours (clip and mean) / plain batch step
    peer_bar: float | None = None  # peer / ours in bfloat16
    clients: int = 100
    params: Mapping[str, int] = field(default_factory=dict)


_BARS = {"float32": 1.15, "bfloat16": 1.25}
ROWS_MORE = 0.4  # by how much the bar is higher where the rows are written out

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("cnn", "cnn", (1, 28, 28), 6, 41, 1, _BARS, 5.0),
        Case("resnet9-16", "resnet9", (3, 32, 32), 5, 21, 2, _BARS, 3.0, params={"width": 16}),
        Case("resnet9-64", "resnet9", (3, 32, 32), 5, 5, 4, _BARS, params={"width": 64}),
    )
}


def quick(case: Case) -> Case:
    """The same, so small that it only shows that everything runs: nothing is asked of it."""
    return replace(case, clients=4, repeats=2, slow_every=1, bars=dict.fromkeys(case.bars), peer_bar=None)


def our_bars(case: Case, dtype: str) -> tuple[Bar | None, Bar | None]:
    """What is asked of clip and mean, and of the rows, against a plain batch step."""
    limit = case.bars[dtype]
    return (None, None) if limit is None else (Bar("at most", limit), Bar("at most", round(limit + ROWS_MORE, 3)))


def peer_bar(case: Case, dtype: str) -> Bar | None:
    """The peer is asked about in bfloat16 only; float32 is reported."""
    return Bar("at least", case.peer_bar) if dtype == "bfloat16" and case.peer_bar is not None else None


def make_case_task(case: Case) -> Task:
    """The case's model, always from the same first weights."""
    channels = case.shape[0]
    with torch.random.fork_rng(devices=[]):  # layers draw their first weights from torch's own generator
        torch.default_generator.manual_seed(integer_seed(0, "benchmark model"))
        module = MODELS[case.model](case.shape, CLASSES, **case.params)
    return make_task(module, image_normaliser((MEAN,) * channels, (STD,) * channels))


def make_federation(case: Case) -> Federation:
    """Ten times as many devices as take part in a round, so that gathering a cohort jumps about in memory."""
    generator = rng(0, "benchmark images")
    channels, height, width = case.shape
    devices = 10 * case.clients
    count = devices * case.examples
    x = torch.from_numpy(generator.integers(256, size=(count, height, width, channels), dtype=np.uint8))
    y = torch.from_numpy(generator.integers(CLASSES, size=count))
    partition = iid(y.numpy(), None, devices, case.examples, seed=0)
    return federate(x, y, partition, uniform, case.clients, ThreatModel(), seed=0)


def make_cohort(federation: Federation) -> Cohort:
    """The first round's."""
    ids: IntArray = federation.cohort(1)
    return Cohort(ids, federation.sizes(ids), federation.gather)
