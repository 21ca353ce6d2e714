"""The show: a federation of real processes in which some lie and one is killed, and a page that says what happened.

    python -m sparsefed.flower.show FOLDER

A SuperLink and ten SuperNodes with TLS and keys run on the loopback interface. Two nodes send lies, one is killed after
the first round. The page names who was refused and why, and compares the model with that of the same updates without
the liars, computed in this process.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.core.engine import Cohort
from sparsefed.core.errors import SparseFedError
from sparsefed.core.round import ServerState
from sparsefed.core.types import Context
from sparsefed.flower.app_files import write_app
from sparsefed.flower.apps import local_step
from sparsefed.flower.door import REASONS
from sparsefed.flower.journal import cohorts, refusals
from sparsefed.flower.local import LocalFederation
from sparsefed.reports import document as doc
from sparsefed.reports import to_html
from sparsefed.results.numbers import percent

NODES, ROUNDS, DEADLINE = 10, 5, 120.0
LIES = {3: "nan", 6: "wrong shape"}  # by node, in the order of starting
DYING = 8
LONGEST = 900.0  # seconds
CONFIG: dict[str, Any] = {
    "name": "flower",
    "seed": 18,
    "rounds": ROUNDS,
    "evaluate_every": 1,
    "checkpoint_every": 1,
    "data": {"name": "digits", "partition": "iid", "devices": NODES, "per_device": 100},
    "model": {"name": "softmax"},
    "train": {"cohort": NODES, "sampling": "uniform", "lr": 0.5, "schedule": "constant", "engine": "loop"},
    "defense": {"name": "sparsefed", "k": 200, "clip_norm": 1.0},
}


def show(folder: Path) -> Path:
    """Run the show in a folder, which is emptied, and return the page."""
    shutil.rmtree(folder, ignore_errors=True)
    config = configs.parse(CONFIG)
    settings = {"deadline": DEADLINE, "nodes": NODES // 2 + 1}
    write_app(folder / "app", configs.dump(config), settings=settings, rehearsal=True)
    lies = {i: f'red-team="true" fault="{name}"' for i, name in LIES.items()}
    began = time.monotonic()
    with LocalFederation(folder / "federation", NODES, node_config=lies) as federation:
        print(
            f"A SuperLink and {NODES} SuperNodes are up, with TLS and keys; {len(LIES)} of them will lie.", flush=True
        )
        run = federation.submit(folder / "app", folder=str((folder / "run").resolve()))
        status = federation.wait(run, LONGEST, _narrator(folder / "run", federation))
    print(f"Flower says: {status}, after {time.monotonic() - began:.0f} s.", flush=True)
    path = folder / "flower.html"
    document = page(folder / "run", status)
    runs.write_all({path: to_html.page(document)})
    for paragraph in document.parts[0].blocks:
        if isinstance(paragraph, doc.Paragraph):
            print(paragraph.text)
    print(f"The page: {path}")
    return path


def _narrator(folder: Path, federation: LocalFederation) -> Callable[[], None]:
    """Return a function that tells of the rounds done since it was last called, and kills a node after the first."""
    seen: list[Mapping[str, Any]] = []

    def narrate() -> None:
        rows = runs.load_run(folder).rows if (folder / runs.METRICS).exists() else ()
        for row in rows[len(seen) :]:
            print(
                f"Round {row['round']} of {ROUNDS}: {row['cohort']} nodes asked, {row['refused']} refused, "
                f"test accuracy {percent(row.get('test_accuracy'))}.",
                flush=True,
            )
            if not seen:
                federation.kill_node(DYING)
                print(f"Node {DYING} was killed (SIGKILL).", flush=True)
            seen.append(row)

    return narrate


# --- what it should have been ----------------------------------------------------------------------------------------


def expected(config: configs.Config, folder: Path) -> ServerState:
    """Return the state that a deployment's folder should hold: the config's rounds with the updates that were used."""
    built = configs.build(config)
    setup, state = built.setup, built.begin()
    for round, devices in sorted(cohorts(folder).items()):
        ids = np.array(devices["used"])
        cohort = Cohort(ids, setup.federation.sizes(ids), partial(setup.federation.training, round=round))
        blocks = setup.engine(state.theta, cohort, local_step(built, round))
        facts = Context(round, setup.schedule(round), setup.seed, state.theta, setup.layers)
        step = setup.defense.step(state.defense, blocks, facts)
        state = ServerState(round, state.theta - step.delta, step.state)
    return state


def digest(state: ServerState) -> str:
    """Return a digest of a model and all state of the rule."""
    tensors = {"theta": state.theta, **{f"defense.{name}": tensor for name, tensor in state.defense.items()}}
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


# --- the page --------------------------------------------------------------------------------------------------------


def page(folder: Path, status: str) -> doc.Document:
    """Return the page on a deployment: whether its model is the one it should be, and who was refused and why."""
    record, state = runs.load_run(folder), runs.load_state(folder)
    assert state is not None
    torch.set_num_threads(1)
    ours, wanted = digest(state), digest(expected(configs.parse(CONFIG), folder))
    return doc.Document(
        "A deployment with liars",
        f"A SuperLink and {NODES} SuperNodes with TLS and keys on this machine: {len(LIES)} sent lies, one was killed.",
        (
            doc.section("Verdict", *_verdict(ours, wanted, status, len(record.rows)), terminal=True),
            doc.section("Who was refused, and why", _refused_table(folder)),
            doc.section("Rounds", _rounds_table(record.rows)),
        ),
    )


def _verdict(ours: str, wanted: str, status: str, rounds: int) -> Iterator[doc.Block]:
    same = "is the model" if ours == wanted else "IS NOT the model"
    yield doc.paragraph(
        f"After {rounds} of {ROUNDS} rounds the deployed model ",
        doc.Strong(same),
        " that the same updates give without the refused ones: digest ",
        doc.Code(ours),
        ", expected ",
        doc.Code(wanted),
        ".",
        kind="verdict",
    )
    yield doc.note(f"Digests cover every parameter and all state of the rule, bit for bit. Flower's status: {status}.")


def _refused_table(folder: Path) -> doc.Table:
    counts = Counter((line["node"], int(line["device"]), line["reason"]) for line in refusals(folder))
    details = {(line["node"], line["reason"]): line["detail"] for line in refusals(folder)}
    rows = [
        (node, str(device), reason, str(count), details[node, reason] or REASONS[reason])
        for (node, device, reason), count in sorted(counts.items())
    ]
    heads = ("Node", "Device", "Reason", "Replies", doc.Head("What was wrong", left=True))
    return doc.table("Refused replies by node", heads, rows, style="facts")


def _rounds_table(rows: tuple[Mapping[str, Any], ...]) -> doc.Table:
    lines = [
        (
            str(r["round"]),
            str(r["cohort"]),
            str(r["refused"]),
            percent(r.get("clipped")),
            percent(r.get("test_accuracy")),
        )
        for r in rows
    ]
    return doc.table("Rounds", ("Round", "Nodes asked", "Refused", "Clipped", "Test accuracy"), lines)


if __name__ == "__main__":
    try:
        show(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/flower"))
    except SparseFedError as error:
        sys.exit(f"error: {error}")
