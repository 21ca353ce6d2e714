"""How long crafting an attack takes, against the honest cohort's own step.

    python -m benchmarks.attacks --json FILE [--repeats N] [--quick]

In one process, interleaved: what the honest devices of a round compute (clip and mean, the fused engine), and what each
attack computes for 2 attackers among 100 devices, at its default settings. Honest updates that an attack is shown are
there already: writing them out is the simulation's cost and is timed by benchmarks.engine. Ratios within a repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

from benchmarks.arguments import usual
from benchmarks.cases import CASES, CLASSES, Case, make_case_task, make_cohort, make_federation, quick
from benchmarks.contestants import CLIP_NORM, LR, Round, all_rows, clip_and_mean
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, interleaved, ratio, seconds, timed
from sparsefed.attacks import ATTACKS, Attack, Knowledge, Scene, attack_info, equip
from sparsefed.attacks.continuation import continuation
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.core.task import differentiator
from sparsefed.core.types import Context
from sparsefed.defenses import build
from sparsefed.engines import fused
from sparsefed.kernels import RowsBlock

ATTACKERS, MOST = 2, 2.0
TIMED = [
    name for name, attack in ATTACKS.items() if attack_info(attack).goal is not continuation.__wrapped__
]  # that goal is for text
CAPTION = """\
honest: the cohort's updates, clipped, and their mean. The attack at its default settings, 2 attackers among 100
devices, against SparseFed. A ratio is taken within each interleaved repeat; its bar is for the median.""".replace(
    "\n", " "
)


def knowledge(given: Round, attack: Attack, rows: torch.Tensor) -> Knowledge:
    """All that this attack needs to know."""
    defense = build("sparsefed", k=max(1, given.task.d // 100), clip_norm=CLIP_NORM)
    state, context = defense.init(given.task.d), Context(1, LR)
    needs = attack.needs
    return Knowledge(
        1,
        given.theta,
        CLIP_NORM,
        differentiator(given.task, torch.float32),
        seed=0,
        attackers=ATTACKERS,
        cohort=len(rows) + ATTACKERS,
        own=given.cohort.gather(given.cohort.ids[:ATTACKERS]) if "own data" in needs else None,
        honest=rows if "honest updates" in needs else None,
        serve=(lambda sent: defense.step(state, [RowsBlock(sent)], context).delta) if "defense" in needs else None,
        server=state if "server state" in needs else None,
    )


def run_case(case: Case, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """The rows for the table, and everything behind them for the record."""
    task, federation = make_case_task(case), make_federation(case)
    given = Round(task, task.initial(), make_cohort(federation))
    scene = Scene(federation.x, federation.y, federation.x, federation.y, CLASSES, seed=0)
    rows = torch.cat(all_rows(given, fused(task))())[ATTACKERS:]
    taking_part = {"honest": Contestant(timed(clip_and_mean(given, fused(task))))}
    for name in TIMED:
        attacker = attack_info(ATTACKS[name])
        small = {"auxiliary": min(500, len(federation.y) // 2)} if attacker.goal.__name__ == "labels" else {}
        _, attack = equip(name, attacker, scene, small)
        taking_part[name] = Contestant(timed(partial(attack, knowledge(given, attack, rows))), every=case.slow_every)
    samples = interleaved(taking_part, case.repeats)
    bar = Bar("at most", MOST) if barred else None
    found = [Row(case.name, f"{name} / honest", "float32", ratio(samples, name, "honest"), bar) for name in TIMED]
    return found, {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("attacks", __doc__).parse_args(arguments)
    console, others = Console(), others_meter()
    kept = keep_freed_memory()
    case = quick(CASES["cnn"]) if options.quick else CASES["cnn"]
    case = replace(case, repeats=options.repeats) if options.repeats else case
    rows, details = run_case(case, barred=not options.quick)
    write(options.json, "attacks", rows, {"freed_memory_kept": kept, **details}, others())
    show(console, "Attacks" + (" (quick: sizes too small to mean anything)" if options.quick else ""), CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
