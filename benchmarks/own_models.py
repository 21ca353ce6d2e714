"""How long one step of models of one's own takes: ours against `torch.func.vmap` and the loop.

    python -m benchmarks.own_models --json FILE [--models vit,gru,u-net,hidden] [--repeats N] [--quick]

A small ViT (attention and parameters outside of layers), a GRU, a U-Net-like module (transposed convolutions), a model
whose weights are used behind a layer's back, which the fused pass does not know, and an LSTM, which `vmap` does not
know either. 100 devices, float32; all updates are clipped and averaged. Interleaved, ratios taken within a repeat.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from benchmarks.arguments import usual
from benchmarks.contestants import CLIP_NORM, LR, WEIGHT_DECAY, Round
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, timed
from sparsefed.core.engine import Cohort, Engine, LocalStep
from sparsefed.core.errors import unknown
from sparsefed.core.federation import federate, uniform
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.rng import integer_seed, rng
from sparsefed.core.task import make_task
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import Context
from sparsefed.data.partitions.partition import iid
from sparsefed.defenses import build
from sparsefed.engines import ENGINES
from sparsefed.engines.unfused import gradients
from sparsefed.kernels.blocks import RowsBlock

CAPTION = (
    "ours: the engine as a config takes it. loop: client by client. vmap: torch.func.vmap of grad over all clients."
)
BAR, EXAMPLES, CLIENTS, REPEATS = 1.1, 6, 100, 15


class Vit(nn.Module):
    """Patches by a convolution, a token and places as parameters, two of torch's encoder layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.token, self.places = (nn.Parameter(0.02 * torch.randn(1, n, width)) for n in (1, 17))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.places
        return self.out(self.encoder(h)[:, 0])  # type: ignore[no-any-return]


class Rows(nn.Module):
    """An image read row by row by a recurrent layer."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.inner, self.out = kind(28, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x[:, 0])[0][:, -1])  # type: ignore[no-any-return]


class Unet(nn.Module):
    """Two steps down, two steps up by transposed convolutions, with a skip each, then class scores."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([_convolutions(1, width), _convolutions(width, 2 * width)])
        self.bottom = _convolutions(2 * width, 4 * width)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (2 * width, width))
        self.after = nn.ModuleList(_convolutions(2 * c, c) for c in (2 * width, width))
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, after in zip(self.up, self.after, strict=True):
            x = after(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x.mean((2, 3)))  # type: ignore[no-any-return]


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU())


class Hidden(nn.Module):
    """A layer and its transpose: the second use of the weight goes past the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.out = nn.Linear(784, 64), nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        decoded = F.linear(torch.tanh(self.code(x.flatten(1))), self.code.weight.t())
        return self.out(decoded)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": Vit,
    "gru": lambda: Rows(nn.GRU),
    "u-net": Unet,
    "hidden": Hidden,
    "lstm": lambda: Rows(nn.LSTM),
}


class Timed(NamedTuple):
    """What was measured for one model."""

    rows: list[Row]
    details: dict[str, Any]


def make_round(name: str, clients: int) -> Round:
    """The model from its first weights, and a cohort of devices with images of noise."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer_seed(0, "benchmark model"))
        task = make_task(MODELS[name]())
    generator, count = rng(0, "benchmark images"), clients * EXAMPLES
    x = torch.from_numpy(generator.standard_normal((count, 1, 28, 28), dtype="float32"))
    y = torch.from_numpy(generator.integers(10, size=count))
    federation = federate(x, y, iid(y.numpy(), None, clients, EXAMPLES, 0), uniform, clients, ThreatModel(), 0)
    ids = federation.cohort(1)
    return Round(task, task.initial(), Cohort(ids, federation.sizes(ids), federation.gather))


def vmap_engine(given: Round) -> Engine:
    """`torch.func.vmap` over all clients at once, as one writes it by hand."""
    module = given.task.template

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[RowsBlock]:
        rows = gradients(given.task, module, theta, cohort.gather(cohort.ids))
        yield RowsBlock(rows.add_(theta, alpha=step.weight_decay).mul_(step.scale), cohort.ids)

    return compute


def clipped_round(given: Round, engine: Engine) -> Callable[[], Tensor]:
    defense = build("clipping", clip_norm=CLIP_NORM, rho=0.0)
    state = defense.init(given.task.d)

    def run() -> Tensor:
        blocks = engine(given.theta, given.cohort, LocalStep(1.0, WEIGHT_DECAY))
        return given.theta - defense.step(state, blocks, Context(1, LR)).delta

    return run


def run_model(name: str, clients: int, repeats: int, barred: bool) -> Timed:
    """Ours against the loop, and against vmap where that works."""
    given = make_round(name, clients)
    engines = {"ours": ENGINES["fused"](given.task), "loop": ENGINES["loop"](given.task), "vmap": vmap_engine(given)}
    rounds = {which: clipped_round(given, engine) for which, engine in engines.items()}
    after: dict[str, Tensor] = {}
    for which, run in list(rounds.items()):
        try:
            after[which] = run()
        except RuntimeError:  # an operation without a batching rule
            del rounds[which]
    samples: list[Sample] = interleaved({which: Contestant(timed(run)) for which, run in rounds.items()}, repeats)
    others = [which for which in rounds if which != "ours"]
    better = min(others, key=lambda which: seconds(samples, which).median)
    rows = [Row(name, f"{which} / ours", "", ratio(samples, which, "ours")) for which in others]
    bar = Bar("at most", BAR) if barred else None
    rows.insert(0, Row(name, f"ours / better of both ({better})", "", ratio(samples, "ours", better), bar))
    change = float((after["loop"] - given.theta).norm())
    difference = {which: float((theta - after["loop"]).norm()) / change for which, theta in after.items()}
    return Timed(rows, {"parameters": given.task.d, "difference": difference, "samples": samples})


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, others = Console(), others_meter()
    details: dict[str, Any] = {"freed_memory_kept": keep_freed_memory(), "models": {}}
    rows: list[Row] = []
    clients, repeats = (4, 2) if options.quick else (CLIENTS, options.repeats or REPEATS)
    for name in options.models:
        console.print(f"{name}: {repeats} interleaved repeats")
        found, details["models"][name] = run_model(name, clients, repeats, not options.quick)
        rows += found
        write(options.json, "own_models", rows, details, others())
    show(console, "Models of one's own" + (" (quick: measures nothing)" if options.quick else ""), CAPTION, rows)
    warn_if_busy(console, others())


def _parser() -> argparse.ArgumentParser:
    parser = usual("own_models", __doc__)
    parser.add_argument("--models", type=_models, default=list(MODELS), help="some of " + ",".join(MODELS))
    return parser


def _models(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(unknown("model", name, MODELS))
    return names


if __name__ == "__main__":
    main()
