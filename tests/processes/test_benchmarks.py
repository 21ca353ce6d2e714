"""The benchmarks run at tiny size and write what they say; and the arithmetic of their ratios is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import engine, overhead, population
from benchmarks.attacks import TIMED
from benchmarks.cases import CASES, Case, make_case_task, make_cohort, make_federation, our_bars, peer_bar, quick
from benchmarks.contestants import CLIP_NORM, LR, Round, all_rows, clip_and_mean
from benchmarks.local_training import clipped_round
from benchmarks.machine import Clock, others_share, read_clock
from benchmarks.outcome import Bar, Row
from benchmarks.peers import VENV, pfl_research, python_of
from benchmarks.recording import silent_memory
from benchmarks.round_process import CLEAR, STATUS, forget_peak, resident
from benchmarks.timing import Contestant, excess, interleaved, ratio, spread
from benchmarks.workers import ROOT, WorkerError, worker

from sparsefed import data
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.run import run_exhibits
from sparsefed.core.rng import rng
from sparsefed.core.types import Context
from sparsefed.defenses.topk_memory import topk_memory
from sparsefed.engines import fused, local, loop
from tests.support.exhibits_tiny import TINY
from tests.support.processes import Nursery, Server

needs_linux = pytest.mark.skipif(not CLEAR.exists(), reason="memory is read from Linux's /proc")


def tiny_round(case: Case) -> Round:
    task = make_case_task(case)
    return Round(task, task.initial(), make_cohort(make_federation(case)))


# --- ratios ----------------------------------------------------------------------------------------------------------


def test_a_ratio_does_not_see_a_machine_that_becomes_slower() -> None:
    samples = [{"ours": 1.2 * slow, "plain": 1.0 * slow} for slow in (1, 1, 2, 8, 64)]
    assert ratio(samples, "ours", "plain").median == pytest.approx(1.2)
    assert ratio(samples, "ours", "plain").high == pytest.approx(1.2)


def test_ratios_use_the_repeats_that_have_both() -> None:
    samples = [{"a": 3.0, "b": 1.0, "c": 2.0}, {"b": 1.0}, {"a": 5.0, "b": 1.0}]
    assert ratio(samples, "a", "b") == spread([3.0, 5.0])
    assert excess(samples, "a", "c", "b") == spread([1.0])


def test_every_contestant_runs_once_a_repeat_and_none_always_goes_first() -> None:
    order: list[str] = []

    def runner(name: str) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return float(len(order))

        return run

    contestants = {"a": Contestant(runner("a")), "b": Contestant(runner("b")), "slow": Contestant(runner("slow"), 2)}
    samples = interleaved(contestants, repeats=4, warm_up=1)
    assert order[:3] == ["a", "b", "slow"]
    assert [sorted(sample) for sample in samples] == [["a", "b", "slow"], ["a", "b"]] * 2
    repeats = [order[3:6], order[6:8], order[8:11], order[11:]]
    assert len({names[0] for names in repeats}) == 3


def test_bars_are_met_at_their_limit_and_missed_beyond() -> None:
    assert Bar("at most", 1.3).met(1.3) and not Bar("at most", 1.3).met(1.31)
    assert Bar("at least", 5).met(5.0) and not Bar("at least", 5).met(4.99)
    assert Row("", "", "", spread([9.0])).met is None
    assert Row("", "", "", spread([1.0, 1.2, 9.0]), Bar("at most", 1.2)).met  # a bar is for the median


def test_the_bars_are_those_that_were_set() -> None:
    for name in ("cnn", "resnet9-16", "resnet9-64"):
        assert our_bars(CASES[name], "float32") == (Bar("at most", 1.15), Bar("at most", 1.55))
        assert our_bars(CASES[name], "bfloat16") == (Bar("at most", 1.25), Bar("at most", 1.65))
    assert [peer_bar(CASES[name], "bfloat16") for name in ("cnn", "resnet9-16")] == [
        Bar("at least", 5.0),
        Bar("at least", 3.0),
    ]


# --- what is timed is what it says -----------------------------------------------------------------------------------


def test_ours_is_the_mean_of_clipped_rows() -> None:
    given = tiny_round(quick(CASES["cnn"]))
    rows = torch.cat(all_rows(given, loop(given.task))())
    expected = torch.zeros_like(given.theta)
    for row in rows:
        expected += row * min(1.0, CLIP_NORM / float(row.norm())) / len(rows)
    after = clip_and_mean(given, fused(given.task))()
    torch.testing.assert_close(given.theta - after, LR * expected, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(torch.cat(all_rows(given, fused(given.task))()), rows, rtol=1e-4, atol=1e-6)


def test_widths_and_cohorts_are_the_papers() -> None:
    assert make_case_task(CASES["resnet9-64"]).d == 6_568_640
    for case, examples in ((CASES["cnn"], 6), (CASES["resnet9-16"], 5), (CASES["resnet9-64"], 5)):
        cohort = make_cohort(make_federation(case))
        assert cohort.sizes.tolist() == [examples] * 100


@pytest.mark.skipif(python_of(VENV) is None, reason="the peers' environment is not there; `make peers` makes it")
def test_pfl_research_computes_what_ours_computes() -> None:
    case = quick(CASES["cnn"])
    given, python = tiny_round(case), python_of(VENV)
    assert python is not None
    ours = clip_and_mean(given, fused(given.task))()
    with pfl_research(python, case, given) as peer:
        assert peer.run() > 0
    assert float((peer.theta - ours).norm() / (ours - given.theta).norm()) < 1e-3


@pytest.mark.skipif(python_of(VENV) is None, reason="the peers' environment is not there; `make peers` makes it")
def test_pfl_research_trains_locally_as_ours_does() -> None:
    case = quick(CASES["cnn"])
    given, python = tiny_round(case), python_of(VENV)
    assert python is not None
    ours = clipped_round(given, local(given.task), 3)()
    with pfl_research(python, case, given, local_epochs=3) as peer:
        assert float((peer.theta - ours).norm() / (ours - given.theta).norm()) < 1e-3


def test_the_peers_run_the_same_torch_and_everything_is_pinned() -> None:
    lines = [line for line in (ROOT / "benchmarks/peers.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("torch==")] == [c for c in constraints if c.startswith("torch==")]


# --- processes and memory --------------------------------------------------------------------------------------------


@needs_linux
def test_the_peak_of_a_process_is_seen_and_can_be_forgotten() -> None:
    before = resident(STATUS.read_text())
    held = np.ones(2**25)  # 256 MB
    during = resident(STATUS.read_text())
    del held
    assert during["now"] - before["now"] == pytest.approx(256, abs=16)
    assert resident(STATUS.read_text())["peak"] >= during["now"] - 1
    forget_peak()
    assert resident(STATUS.read_text())["peak"] < during["now"] - 200


def test_what_others_took_is_what_was_busy_and_not_ours() -> None:
    assert others_share(Clock(10, 4, 3), Clock(20, 12, 6)) == pytest.approx(0.5)
    assert others_share(Clock(10, 4, 3), Clock(20, 9, 8.1)) == 0  # clocks differ by a tick


@needs_linux
def test_the_time_of_an_ended_child_is_ours() -> None:
    began = read_clock()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    now = read_clock()
    assert began is not None and now is not None
    # Three clocks of different grain; without the child each would stand nearly still.
    assert now.ours - began.ours > 0.3 and now.busy - began.busy > 0.2 and now.all > began.all


def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    with (
        pytest.raises(WorkerError, match="ended with code 1 before it answered"),
        worker(sys.executable, "nowhere", []),
    ):
        pass


# --- the commands ----------------------------------------------------------------------------------------------------


Run = Callable[..., str]


@pytest.fixture
def run(process_server: Server, tmp_path: Path) -> Run:
    """`python -m MODULE ARGUMENTS` in the project's folder, forked from a process that has imported torch."""

    def run(module: str, *arguments: str) -> str:
        done = Nursery(process_server, tmp_path, COLUMNS="100").run(*arguments, module=module, cwd=ROOT, seconds=300)
        assert done.code == 0, done.err
        return done.out

    return run


def started(module: str, *arguments: str) -> str:
    """The same, as a person starts it."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    record = json.loads(path.read_text())
    assert record["machine"]["cores"] >= 1 and record["versions"]["torch"]
    assert all(row["met"] is None for row in record["results"]), "a quick run measures nothing"
    return {(row["what"], row["setting"]): row for row in record["results"]}


@pytest.mark.slow
def test_engine_runs_and_writes_its_numbers(tmp_path: Path) -> None:
    said = started(
        "benchmarks.engine", "--quick", "--models", "cnn", "--json", f"{tmp_path}/new/e.json", "--peers", "nowhere"
    )
    assert "make peers" in said
    found = results(tmp_path / "new/e.json")
    for dtype in ("float32", "bfloat16"):
        for what in ("ours / plain", "rows / plain", "loop / ours"):
            assert found[what, dtype]["median"] > 0 and found[what, dtype]["repeats"] == 2
    assert not any("pfl" in what for what, _ in found)


@pytest.mark.slow
@needs_linux
def test_population_runs_and_writes_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six fresh processes, on images that need no scikit-learn: loading it would be half of what each of them does."""
    sizes = population.quick(population.Sizes("fmnist"))
    assert sizes.data == "digits" and not sizes.bars
    monkeypatch.setattr(population, "quick", lambda _: replace(sizes, data="sparsefed.commands.reproduce.tiny:IMAGES"))
    population.main(["--quick", "--json", f"{tmp_path}/p.json"])
    assert "tiny:IMAGES: rounds with 200 and with 2 000 devices" in capsys.readouterr().out
    found = results(tmp_path / "p.json")
    assert found["round time", "2 000 / 200"]["median"] > 0
    for key in (("resident MB, held", "2 000 - 200"), ("peak MB, held", "2 000 - 200"), ("peak MB, held", "8 - 4")):
        assert abs(found[key]["median"]) < 64


@pytest.mark.slow
@needs_linux
def test_footprint_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.footprint", "--quick", "--models", "resnet9", "--rounds", "1", "--json", f"{tmp_path}/f.json")
    found = results(tmp_path / "f.json")
    assert {what for what, _ in found} == {"seconds a round", "peak MB"}
    assert all(row["median"] > 0 for row in found.values())


def test_aggregators_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    said = run(
        "benchmarks.aggregators", "--quick", "--repeats", "2", "--json", f"{tmp_path}/a.json", "--peers", "nowhere"
    )
    assert "Going on without byzfl" in said and "make peers" in said
    found = results(tmp_path / "a.json")
    assert found["ours / plain", "median"]["median"] > 0
    assert found["torch.sort / ours", "trimmed_mean f = 2"]["median"] > 0
    assert {"topk_memory / torch.add", "sketch and recovery: torch / ours"} <= {what for what, _ in found}


@pytest.mark.slow
def test_local_training_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    small = ("--models", "cnn", "--epochs", "2", "--no-rule", "--peers", "nowhere")
    assert "make peers" in run("benchmarks.local_training", "--quick", *small, "--json", f"{tmp_path}/l.json")
    found = results(tmp_path / "l.json")
    assert {what for what, _ in found} == {"ours / better of vmap, loop", "loop / ours", "vmap / ours"}
    differences = json.loads((tmp_path / "l.json").read_text())["details"]["models"]["cnn, 2"]["difference"]
    assert all(difference < 1e-3 for difference in differences.values())  # all contestants computed the same


@pytest.mark.slow
def test_own_models_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.own_models", "--quick", "--models", "vit,gru,hidden", "--json", f"{tmp_path}/o.json")
    found = results(tmp_path / "o.json")
    assert {"loop / ours", "vmap / ours"} <= {what for what, _ in found}
    for model in json.loads((tmp_path / "o.json").read_text())["details"]["models"].values():
        assert all(difference < 1e-3 for difference in model["difference"].values())


@pytest.mark.slow
def test_vote_training_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.vote_training", "--quick", "--json", f"{tmp_path}/v.json")
    found = results(tmp_path / "v.json")
    assert {what for what, _ in found} == {"vote / federated"}
    assert all(row["median"] > 0 for row in found.values())


@pytest.mark.slow
@needs_linux
def test_a_tree_is_compared_with_an_earlier_one(run: Run, tmp_path: Path) -> None:
    """Both sides are this tree here, each in a process of its own."""
    run("benchmarks.earlier", str(ROOT), "--quick", "--repeats", "3", "--json", f"{tmp_path}/e.json")
    row = results(tmp_path / "e.json")["now / earlier", "round time"]
    assert row["repeats"] == 3 and 0.1 < row["median"] < 10


@pytest.mark.slow
@needs_linux
def test_loading_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.loading", "--quick", "--json", f"{tmp_path}/l.json")
    found = results(tmp_path / "l.json")
    if any(status.state == "found" for status in data.listing()):
        assert found["seconds", "load"]["median"] > 0 and 0.5 < found["peak / arrays", "memory"]["median"] < 20


@pytest.mark.slow
def test_attacks_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.attacks", "--quick", "--json", f"{tmp_path}/k.json")
    found = results(tmp_path / "k.json")
    assert {what for what, _ in found} == {f"{name} / honest" for name in TIMED}
    assert all(row["median"] > 0 for row in found.values())


def test_recording_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.recording", "--quick", "--repeats", "2", "--json", f"{tmp_path}/r.json")
    found = results(tmp_path / "r.json")
    assert {"recording / without", "recording / torch.add", "without / torch.add"} <= {what for what, _ in found}


def test_without_recording_the_same_is_computed() -> None:
    vectors = [torch.from_numpy(rng(i, "recording").normal(size=5000).astype(np.float32)) for i in range(3)]
    state = {"momentum": vectors[0], "memory": vectors[1]}
    ours, bare = (make(40, 0.9).step(state, vectors[2], Context(1, 0.1)) for make in (topk_memory, silent_memory))
    assert torch.equal(ours.vector, bare.vector)
    assert all(torch.equal(ours.state[key], bare.state[key]) for key in state)
    assert ours.stats and not bare.stats


def test_augmentation_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.augmentation", "--quick", "--json", f"{tmp_path}/u.json")
    found = results(tmp_path / "u.json")
    for name in ("crop", "femnist", "cifar"):
        for dtype in ("float32", "bfloat16"):
            assert found[f"{name} / augmented round", dtype]["median"] > 0
            assert (f"(augmented - plain) / plain: {name}", dtype) in found


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "cn"], r"did you mean 'cnn'.*resnet9-16"),
        (["--repeats", "0"], "use 1 or more"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        engine.main(["--json", str(tmp_path / "e.json"), *arguments])
    assert re.search(sentence, capsys.readouterr().err)
    assert not (tmp_path / "e.json").exists()


def test_overhead_runs_and_writes_its_numbers(run: Run, tmp_path: Path) -> None:
    run("benchmarks.overhead", "--quick", "--json", f"{tmp_path}/o.json")
    found = results(tmp_path / "o.json")
    assert found["in a cell", "4 cells"]["median"] > 0 and found["starting", "once"]["median"] > 0


def test_overhead_of_cells_that_are_finished(tmp_path: Path) -> None:
    run_exhibits([plan(reading.parse("tiny", TINY), "smoke")], tmp_path, 1)
    row, details = overhead.finished(tmp_path, overhead.LONG)
    assert details["seconds"].keys() == details["training"].keys() and row.value.median > 0
    with pytest.raises(SystemExit, match="no such cell"):
        overhead.finished(tmp_path / "elsewhere", overhead.LONG)
