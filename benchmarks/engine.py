"""How long a cohort's updates take, against what nothing can beat and against the alternatives.

    python -m benchmarks.engine --json FILE [--models cnn,resnet9-16,resnet9-64] [--repeats N] [--quick]

In one process, interleaved: a plain batch step on the same examples; ours, clip and mean as SparseFed asks for it, and
with every row written out; the loop over clients; and, where its environment is there, pfl-research on the same cohort
and model. Results are ratios taken within a repeat, with their quartiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from benchmarks.arguments import positive
from benchmarks.cases import (
    CASES,
    DTYPES,
    Case,
    make_case_task,
    make_cohort,
    make_federation,
    our_bars,
    peer_bar,
    quick,
)
from benchmarks.contestants import Round, all_rows, clip_and_mean, plain_step
from benchmarks.machine import others_meter
from benchmarks.outcome import Row, show, warn_if_busy, write
from benchmarks.peers import VENV, Peer, pfl_research, python_of
from benchmarks.timing import Contestant, Sample, excess, interleaved, ratio, seconds, timed
from sparsefed.core.errors import unknown
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.engines import fused, loop

CAPTION = """\
plain: one ordinary batch step on the cohort's examples, channels last, in the same dtype. ours: clip and mean, as
SparseFed asks for it. rows: every client's update written out. loop: client by client. pfl: pfl-research as it comes,
in float32; cl: its model and data channels last; amp: in bfloat16 by autocast. The setting is the dtype of ours. Random
images. A ratio is taken within each interleaved repeat; its bar is for the median.""".replace("\n", " ")


class Variant(NamedTuple):
    """A way to run pfl-research; the bars are about the way it comes."""

    name: str
    channels_last: bool
    autocast: bool
    against: tuple[str, ...]  # our dtypes that it is compared with


VARIANTS = (
    Variant("pfl", False, False, ("float32", "bfloat16")),
    Variant("pfl (cl)", True, False, ("float32", "bfloat16")),
    Variant("pfl (cl, amp)", True, True, ("bfloat16",)),
)


# --- one case --------------------------------------------------------------------------------------------------------


def our_contestants(case: Case, given: Round) -> dict[str, Contestant]:
    """All that runs in this process, by `what dtype`."""
    found: dict[str, Contestant] = {}
    for name, dtype in DTYPES.items():
        engine = fused(given.task, dtype)
        found[f"plain {name}"] = Contestant(timed(plain_step(given, dtype)))
        found[f"ours {name}"] = Contestant(timed(clip_and_mean(given, engine)))
        found[f"rows {name}"] = Contestant(timed(all_rows(given, engine)))
        found[f"loop {name}"] = Contestant(timed(clip_and_mean(given, loop(given.task, dtype))), case.slow_every)
    return found


def run_case(case: Case, python: Path | None, say: Callable[[str], None]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of one case for the table, and everything behind them for the record."""
    task = make_case_task(case)
    given = Round(task, task.initial(), make_cohort(make_federation(case)))
    contestants = our_contestants(case, given)
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for variant in VARIANTS if python else ():
            assert python is not None
            peers[variant.name] = stack.enter_context(
                pfl_research(python, case, given, variant.channels_last, variant.autocast)
            )
        contestants |= {name: Contestant(peer.run, case.slow_every) for name, peer in peers.items()}
        say(f"{case.name}: {case.repeats} interleaved repeats of {len(contestants)} contestants")
        samples = interleaved(contestants, case.repeats)
        details = _details(case, given, contestants, samples, peers)
    return list(_rows(case, samples, peers)), details


def _rows(case: Case, samples: Sequence[Sample], peers: Mapping[str, Peer]) -> Iterator[Row]:
    for dtype in DTYPES:
        plain, ours, rows, (bar, rows_bar) = f"plain {dtype}", f"ours {dtype}", f"rows {dtype}", our_bars(case, dtype)
        yield Row(case.name, "ours / plain", dtype, ratio(samples, ours, plain), bar)
        yield Row(case.name, "rows / plain", dtype, ratio(samples, rows, plain), rows_bar)
        yield Row(case.name, "(rows - ours) / plain", dtype, excess(samples, rows, ours, plain))
        yield Row(case.name, "loop / ours", dtype, ratio(samples, f"loop {dtype}", ours))
    for variant in VARIANTS if peers else ():
        for dtype in variant.against:
            bar = peer_bar(case, dtype) if variant is VARIANTS[0] else None
            yield Row(case.name, f"{variant.name} / ours", dtype, ratio(samples, variant.name, f"ours {dtype}"), bar)


def _details(
    case: Case,
    given: Round,
    contestants: Mapping[str, Contestant],
    samples: Sequence[Sample],
    peers: Mapping[str, Peer],
) -> dict[str, Any]:
    return {
        "parameters": given.task.d,
        "clients": case.clients,
        "examples_per_client": case.examples,
        "repeats": case.repeats,
        "seconds": {name: seconds(samples, name)._asdict() for name in contestants},
        "samples": samples,
        "peers": {name: {**peer.worker.ready, **_agreement(given, peer)} for name, peer in peers.items()},
    }


def _agreement(given: Round, peer: Peer) -> dict[str, float]:
    """How far the peer's model is from ours after one round, relative to what the round changed: the two must have
    computed the same thing. What is left in float32 is the rounding of the parameters themselves."""
    ours = clip_and_mean(given, fused(given.task))()
    change = torch.linalg.vector_norm(ours - given.theta)
    return {"difference_to_ours": float(torch.linalg.vector_norm(peer.theta - ours) / change)}


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console = Console()
    kept = keep_freed_memory()  # both sides of every ratio profit
    python, others = python_of(options.peers), others_meter()
    if python is None:
        console.print(
            f"Going on without pfl-research: {options.peers} is not there; `make peers` makes it.", soft_wrap=True
        )
    rows: list[Row] = []
    details: dict[str, Any] = {"images": "random bytes", "freed_memory_kept": kept, "models": {}}
    for case in options.models:
        case = quick(case) if options.quick else case
        case = replace(case, repeats=options.repeats) if options.repeats else case
        found, details["models"][case.name] = run_case(case, python, console.print)
        rows += found
        write(options.json, "engine", rows, details, others())
    show(console, "Engine" + (" (quick: sizes too small to mean anything)" if options.quick else ""), CAPTION, rows)
    warn_if_busy(console, others())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the numbers go")
    parser.add_argument("--models", type=_cases, default=list(CASES.values()), help="some of " + ",".join(CASES))
    parser.add_argument("--repeats", type=positive, metavar="N", help="by default enough for each model")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--peers", type=Path, default=VENV, metavar="VENV", help="the peers' environment")
    return parser


def _cases(text: str) -> list[Case]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(unknown("model", name, CASES))
    return [CASES[name] for name in names]


if __name__ == "__main__":
    main()
