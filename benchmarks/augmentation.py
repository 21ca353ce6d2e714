"""How much of a round augmentation takes.

    python -m benchmarks.augmentation --json FILE [--repeats N] [--quick]

In one process, interleaved: a whole round's updates (clip and mean, the fused engine) on images as they are; the same
with the images augmented as they are gathered; and augmenting the cohort's images alone, keys included. Ratios within a
repeat; the bar is for the share of the augmented round, with the `cnn` on 28x28 and with ResNet9 width 16 on 32x32x3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from torch import Tensor

from benchmarks.arguments import usual
from benchmarks.cases import CASES, DTYPES, Case, make_case_task, make_cohort, make_federation, quick
from benchmarks.contestants import Round, clip_and_mean
from benchmarks.machine import others_meter
from benchmarks.outcome import Bar, Row, show, warn_if_busy, write
from benchmarks.timing import Contestant, excess, interleaved, ratio, seconds, timed
from sparsefed.core.federation import Federation
from sparsefed.core.malloc import keep_freed_memory
from sparsefed.data.augment import AUGMENTATIONS, Augmentation, example_keys, moved
from sparsefed.engines import fused

MOST = 0.10  # of a round
CAPTION = """\
plain: a round's updates, clipped, and their mean. augmented: the same with augmented images. A row with a bar: the time
to augment a cohort's images, over that of an augmented round. crop: a crop of the image padded by 4. Random images. A
ratio is taken within each interleaved repeat; its bar is for the median.""".replace("\n", " ")

AUGMENTED: dict[str, dict[str, Augmentation]] = {
    "cnn": {"crop": partial(moved, crop=4), "femnist": AUGMENTATIONS["femnist"]},
    "resnet9-16": {"cifar": AUGMENTATIONS["cifar"]},
}


def augmenting(federation: Federation, augment: Augmentation) -> Callable[[], Tensor]:
    """Augmenting the first cohort's images, which are gathered already."""
    ids = federation.cohort(1)
    batch = federation.gather(ids)

    def step() -> Tensor:
        return augment(batch.x, example_keys(federation.seed, 1, ids, batch.sizes))

    return step


def run_case(case: Case, barred: bool) -> tuple[list[Row], dict[str, Any]]:
    """The rows for the table, and everything behind them for the record."""
    task, federation = make_case_task(case), make_federation(case)
    plain = Round(task, task.initial(), make_cohort(federation))
    engines = {name: fused(task, dtype) for name, dtype in DTYPES.items()}
    taking_part = {
        f"plain {dtype}": Contestant(timed(clip_and_mean(plain, engine))) for dtype, engine in engines.items()
    }
    for name, augment in AUGMENTED[case.name].items():
        these = replace(federation, augment=augment)
        given = plain._replace(cohort=plain.cohort._replace(gather=partial(these.training, round=1)))
        taking_part[name] = Contestant(timed(augmenting(federation, augment)))
        for dtype, engine in engines.items():
            taking_part[f"{name} {dtype}"] = Contestant(timed(clip_and_mean(given, engine)))
    samples = interleaved(taking_part, case.repeats)
    bar = Bar("at most", MOST) if barred else None
    rows = []
    for name in AUGMENTED[case.name]:
        for dtype in DTYPES:
            whole, less = f"{name} {dtype}", f"plain {dtype}"
            rows.append(Row(case.name, f"{name} / augmented round", dtype, ratio(samples, name, whole), bar))
            more = excess(samples, whole, less, less)
            rows.append(Row(case.name, f"(augmented - plain) / plain: {name}", dtype, more))
    return rows, {"seconds": {name: seconds(samples, name)._asdict() for name in taking_part}, "samples": samples}


def main(arguments: Sequence[str] | None = None) -> None:
    options = usual("augmentation", __doc__).parse_args(arguments)
    console, others = Console(), others_meter()
    details: dict[str, Any] = {"images": "random bytes", "freed_memory_kept": keep_freed_memory(), "models": {}}
    rows: list[Row] = []
    for name in AUGMENTED:
        case = quick(CASES[name]) if options.quick else CASES[name]
        case = replace(case, repeats=options.repeats) if options.repeats else case
        found, details["models"][name] = run_case(case, barred=not options.quick)
        rows += found
        write(options.json, "augmentation", rows, details, others())
    title = "Augmentation" + (" (quick: sizes too small to mean anything)" if options.quick else "")
    show(console, title, CAPTION, rows)
    warn_if_busy(console, others())


if __name__ == "__main__":
    main()
