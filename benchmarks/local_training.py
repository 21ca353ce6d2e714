"""How long several local epochs take: ours against the two ways it chooses from, `torch.func.vmap`, the plain loop and
pfl-research.

    python -m benchmarks.local_training --json FILE [--models cnn,resnet9-16] [--epochs 1,2,5] [--repeats N] [--quick]

Every device trains on all of its examples at once, so many times; float32; the updates are clipped and averaged, as
SparseFed asks. Interleaved, ratios taken within a repeat. `rule` compares the way that the rule takes with the other
one, on models of growing size: this is where `STACK_LIMIT` comes from, and what to run to fit it to another machine.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.arguments import positive, usual
from benchmarks.cases import CASES, Case, make_case_task, make_cohort, make_federation, quick
from benchmarks.contestants import CLIP_NORM, LOCAL_LR, WEIGHT_DECAY, Round
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.peers import VENV, Peer, pfl_research, python_of
from benchmarks.timing import Contestant, Sample, interleaved, ratio, seconds, timed
from sparsefed.core.engine import Cohort, Engine, LocalPlan, LocalStep
from sparsefed.core.errors import unknown
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.engines import ENGINES
from sparsefed.engines.several_steps import STACK_LIMIT, operations
from sparsefed.kernels.blocks import RowsBlock

CAPTION = """\
ours: the engine as a config takes it. loop: client by client, plain autograd SGD. vmap: torch.func.vmap of
functional_call and grad over all clients. by client, stacked: ours, made to take that way. pfl: pfl-research as it
comes. The setting is the number of local epochs; 100 devices, each on all of its examples at once, float32.""".replace(
    "\n", " "
)

BARRED = ("cnn", "resnet9-16")
FITTED = {  # models of growing size for the rule: the operations of a client's forward pass are in the record
    case.name: case
    for case in (
        replace(CASES["cnn"], name="softmax", model="softmax"),
        replace(CASES["cnn"], name="cnn, 1 example", examples=1),
        CASES["cnn"],
        replace(CASES["resnet9-16"], name="resnet9-8", params={"width": 8}),
        replace(CASES["cnn"], name="cnn, 24 examples", examples=24),
        CASES["resnet9-16"],
    )
}


# --- contestants -----------------------------------------------------------------------------------------------------


def clipped_round(given: Round, engine: Engine, epochs: int) -> Callable[[], Tensor]:
    """A FedAvg round: every client's update, clipped to the same norm, averaged and applied."""
    defense = build("clipping", clip_norm=CLIP_NORM, rho=0.0, mode="fedavg")
    state, step = defense.init(given.task.d), LocalStep(LOCAL_LR, WEIGHT_DECAY, 0, LocalPlan(epochs))

    def run() -> Tensor:
        return given.theta - defense.step(state, engine(given.theta, given.cohort, step), Context(1, LOCAL_LR)).delta

    return run


def plain_vmap(given: Round) -> Engine:
    """What one writes with torch.func: gradients of stacked weights, all clients (of equal size) at once."""
    task, module = given.task, copy.deepcopy(given.task.template)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(functional_call(module, weights, (x,)), y).mean()

    gradients = vmap(grad(loss))

    def compute(theta: Tensor, cohort: Cohort, step: LocalStep) -> Iterator[RowsBlock]:
        batch, m = cohort.gather(cohort.ids), len(cohort.ids)
        x = task.prepare(batch.x).contiguous()
        x, y = x.view(m, -1, *x.shape[1:]), batch.y.view(m, -1)
        start = {slot.name: theta[slot.start : slot.stop].view(slot.shape) for slot in task.slots}
        local = {name: part.expand(m, *part.shape).clone() for name, part in start.items()}
        for _ in range(step.plan.epochs):
            for name, gradient in gradients(local, x, y).items():
                local[name].mul_(1 - step.scale * step.weight_decay).sub_(gradient, alpha=step.scale)
        yield RowsBlock(torch.cat([(start[s.name] - local[s.name]).flatten(1) for s in task.slots], 1), cohort.ids)

    return compute


def make_round(case: Case) -> Round:
    task = make_case_task(case)
    return Round(task, task.initial(), make_cohort(make_federation(case)))


# --- one case --------------------------------------------------------------------------------------------------------


def run_case(case: Case, epochs: int, python: Path | None, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """Ours against the others, for one model and number of epochs."""
    given = make_round(case)
    engines = {"ours": ENGINES["fused"](given.task), "loop": ENGINES["loop"](given.task), "vmap": plain_vmap(given)}
    rounds = {name: clipped_round(given, engine, epochs) for name, engine in engines.items()}
    after = {name: run() for name, run in rounds.items()}
    contestants = {name: Contestant(timed(run)) for name, run in rounds.items()}
    with ExitStack() as stack:
        if python is not None:
            peer: Peer = stack.enter_context(pfl_research(python, case, given, local_epochs=epochs))
            after["pfl"], contestants["pfl"] = peer.theta, Contestant(peer.run)
        samples = interleaved(contestants, case.repeats)
    setting = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    rows = [
        Row(case.name, "ours / better of vmap, loop", setting, _against_better(samples), _bar(barred, "at most", 1.0)),
        Row(case.name, "loop / ours", setting, ratio(samples, "loop", "ours")),
        Row(case.name, "vmap / ours", setting, ratio(samples, "vmap", "ours")),
    ]
    if python is not None:
        rows.append(Row(case.name, "pfl / ours", setting, ratio(samples, "pfl", "ours"), _bar(barred, "at least", 1.5)))
    return rows, _details(case, given, samples, after)


def _bar(barred: bool, kind: Any, limit: float) -> Bar | None:
    return Bar(kind, limit) if barred else None


def _against_better(samples: Sequence[Sample]) -> Any:
    """Ours over whichever of the two has the lower median."""
    better = min(("loop", "vmap"), key=lambda name: seconds(samples, name).median)
    return ratio(samples, "ours", better)


def _details(case: Case, given: Round, samples: Sequence[Sample], after: dict[str, Tensor]) -> dict[str, Any]:
    """For the record; `difference` is how far each model is from the loop's, relative to what the round changed."""
    change = float(torch.linalg.vector_norm(after["loop"] - given.theta))
    return {
        "parameters": given.task.d,
        "clients": case.clients,
        "examples_per_client": case.examples,
        "repeats": case.repeats,
        "seconds": {name: seconds(samples, name)._asdict() for name in after},
        "difference": {name: float((theta - after["loop"]).norm()) / change for name, theta in after.items()},
        "samples": samples,
    }


# --- the rule --------------------------------------------------------------------------------------------------------


def run_rule(case: Case, epochs: int = 3) -> tuple[Row, dict[str, Any]]:
    """The way that the rule takes against the other one."""
    given = make_round(case)
    contestants = {
        name: Contestant(timed(clipped_round(given, ENGINES[name](given.task), epochs)))
        for name in ("by_client", "stacked")
    }
    samples = interleaved(contestants, case.repeats)
    each = operations(given.task, given.cohort.gather(given.cohort.ids[:1]))
    stacks = each * case.examples <= STACK_LIMIT
    names = ("by_client", "stacked") if stacks else ("stacked", "by_client")
    row = Row(case.name, f"rule: {names[0]} / {names[1]}".replace("_", " "), f"{epochs} epochs", ratio(samples, *names))
    return row, {"operations": each * case.examples, "stacked": stacks, "samples": samples}


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, others = Console(), others_meter()
    kept, python = keep_freed_memory(), python_of(options.peers)
    if python is None:
        console.print(
            f"Going on without pfl-research: {options.peers} is not there; `make peers` makes it.", soft_wrap=True
        )
    rows: list[Row] = []
    details: dict[str, Any] = {"freed_memory_kept": kept, "stack_limit": STACK_LIMIT, "models": {}, "rule": {}}

    def sized(case: Case) -> Case:
        case = quick(case) if options.quick else replace(case, repeats=max(5, case.repeats // 2))
        return replace(case, repeats=options.repeats) if options.repeats else case

    for case in (sized(CASES[name]) for name in options.models):
        for epochs in options.epochs:
            console.print(f"{case.name}, {epochs} local epochs: {case.repeats} interleaved repeats")
            found, details["models"][f"{case.name}, {epochs}"] = run_case(case, epochs, python, not options.quick)
            rows += found
            write(options.json, "local_training", rows, details, others())
    for case in map(sized, FITTED.values()) if options.rule else ():
        row, details["rule"][case.name] = run_rule(case)
        rows.append(row)
        write(options.json, "local_training", rows, details, others())
    title = "Local training" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


def _parser() -> argparse.ArgumentParser:
    parser = usual("local_training", __doc__)
    parser.add_argument("--models", type=_models, default=list(BARRED), help="some of " + ",".join(CASES))
    parser.add_argument("--epochs", type=_epochs, default=[1, 2, 5], help="local epochs, as 1,2,5")
    parser.add_argument("--rule", action=argparse.BooleanOptionalAction, default=True, help="also compare the two ways")
    parser.add_argument("--peers", type=Path, default=VENV, metavar="VENV", help="the peers' environment")
    return parser


def _epochs(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]


def _models(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(unknown("model", name, CASES))
    return names


if __name__ == "__main__":
    main()
