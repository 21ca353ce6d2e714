"""The command that chooses k: what it samples, that it loses nothing, that its knee is its rule, and what it shows."""

from __future__ import annotations

import io
import json
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sparsefed import config as configs
from sparsefed import reports as report
from sparsefed import runs
from sparsefed.commands import choose_k as choosing
from sparsefed.commands.choose_k import ChooseKResult, Probe
from sparsefed.commands.choose_k.document import curve_chart, probe_chart
from sparsefed.commands.choose_k.sampling import grid, without_topk
from sparsefed.config import Config
from sparsefed.core import toml
from sparsefed.core.engine import Cohort, LocalStep
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import Progress
from sparsefed.core.types import Defense
from sparsefed.reports.progress_view import ProgressView
from tests.support import reference
from tests.support.pages import BROWSER, browser
from tests.support.processes import Done, Nursery, Server

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 5,
    "rounds": 40,
    "evaluate_every": 5,
    "checkpoint_every": 3,
    "data": {"name": "digits", "partition": "one_class", "devices": 100},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.5},
    "defense": {"name": "sparsefed", "k": 50, "clip_norm": 1.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20, "batch": 10, "step": 0.05, "boost": 5.0},
}
D = 650  # parameters of the softmax layer on digits


def small(**more: Any) -> Config:
    return configs.parse({**SMALL, **more})


def measured(folder: Path, config: Config | None = None, **asked: Any) -> ChooseKResult:
    return choosing.choose_k(config or small(), folder=folder, **asked)


pytestmark = pytest.mark.usefixtures("as_many_threads_as_the_commands")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChooseKResult, Path]:
    """Measured at the start and after a tenth of the rounds, as by default."""
    folder = tmp_path_factory.mktemp("plain")
    return measured(folder, samples=4, paper=True), folder


# --- what is sampled -------------------------------------------------------------------------------------------------


def rows_of(config: Config, theta: torch.Tensor, round: int, ids: Sequence[int] | None = None) -> list[list[float]]:
    """What the devices of a round send at this model, by the slow engine."""
    built = configs.build(config.model_copy(update={"train": config.train.model_copy(update={"engine": "loop"})}))
    federation = built.setup.federation
    asked = federation.cohort(round) if ids is None else np.array(ids)
    cohort = Cohort(asked, federation.sizes(asked), federation.gather)
    step = LocalStep(1.0, config.train.weight_decay / config.train.cohort)
    return [row for block in built.setup.engine(theta, cohort, step) for row in block.rows().tolist()]


def test_a_sample_is_the_mean_of_a_cohorts_clipped_updates(plain: tuple[ChooseKResult, Path]) -> None:
    """At the first model and at the trained one, cohort after cohort."""
    outcome, folder = plain
    state = runs.load_state(folder / "trained-4")
    assert state is not None and [stage.rounds for stage in outcome.stages] == [0, 4]
    for stage, theta in zip(outcome.stages, (configs.build(small()).theta, state.theta), strict=True):
        assert stage.samples.shape == (4, len(grid(D))) and stage.grid == grid(D)
        for j in (0, 3):
            rows = rows_of(small(), theta, stage.rounds + 1 + j)
            assert max(map(reference.norm, rows)) > 1.0  # or clipping shows nothing
            gradient = reference.mean_of_clipped(rows, 1.0)
            assert gradient is not None
            wanted = [reference.average_lost([gradient], k, as_share=True) for k in (1, 50)]
            found = [stage.samples[j, stage.grid.index(k)] for k in (1, 50)]
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_it_trains_as_the_config_does_but_for_topk_and_attackers(plain: tuple[ChooseKResult, Path]) -> None:
    """Sparsefed with k = d is the same."""
    dense = configs.build(small(defense={"name": "sparsefed", "k": D, "clip_norm": 1.0, "rho": 0.0}, attack=False))
    config = small(defense={"name": "sparsefed", "k": 7, "clip_norm": 1.0, "rho": 0.0})
    trained = configs.build(without_topk(config))
    ends = []
    for built in (dense, trained):
        *_, last = (report for report, _ in zip(built.reports(built.begin()), range(4), strict=False))
        ends.append(last.state.theta)
    torch.testing.assert_close(*ends)
    outcome, folder = plain
    (built, state) = configs.build(without_topk(outcome.config)), runs.load_state(folder / "trained-4")
    *_, last = (report for report, _ in zip(built.reports(built.begin()), range(4), strict=False))
    assert state is not None and torch.equal(last.state.theta, state.theta)
    assert without_topk(outcome.config).defense.params == {"clip_norm": 1.0}


def test_where_devices_choose_one_devices_update_is_sampled(tmp_path: Path) -> None:
    outcome = measured(tmp_path, small(defense={"name": "local_topk", "k": 9}), samples=3, rounds_in="0")
    built = configs.build(small())
    federation = replace(built.setup.federation, n=1)
    for j, sample in enumerate(outcome.stages[0].samples):
        (row,) = rows_of(small(), built.theta, 1, federation.cohort(j + 1).tolist())
        at = outcome.stages[0].grid.index(20)
        assert sample[at] == pytest.approx(reference.average_lost([row], 20, as_share=True), abs=1e-5)


def test_in_fedavg_mode_shares_are_the_same_and_masses_hold_the_rate(tmp_path: Path) -> None:
    """One local step: the update is the gradient times the rate, if nothing is clipped."""
    loose = {"name": "sparsefed", "k": 7, "clip_norm": 1e6}
    modes = {mode: small(train={**SMALL["train"], "mode": mode}, defense=loose) for mode in ("uncompressed", "fedavg")}
    for absolute in (False, True):
        gradient, update = (
            measured(tmp_path, config, rounds_in="0", samples=2, omega=0.3, absolute=absolute).stages[0].samples
            for config in modes.values()
        )
        rate = configs.build(small()).setup.schedule(1) if absolute else 1.0
        np.testing.assert_allclose(update, gradient * rate, rtol=1e-4, atol=1e-7)


def test_the_choice_keeps_its_promise_at_every_model(plain: tuple[ChooseKResult, Path]) -> None:
    outcome, _ = plain
    assert outcome.k == max(stage.chosen.k for stage in outcome.stages) and outcome.epoch == 10 and outcome.d == D
    for stage in outcome.stages:
        below, above = (
            max(k for k in stage.grid if k < stage.chosen.k),
            min(k for k in stage.grid if k > stage.chosen.k),
        )
        mean = {point.k: point.mean for point in stage.curve}
        assert mean[below] > 0.5 >= mean[above]
        assert stage.chosen.lost <= 0.5 and stage.chosen.selections == 4
        assert stage.chosen.k <= stage.stepped.k < stage.chosen.k + 65 and stage.stepped.k % 65 == 0
        assert stage.printed is not None and stage.printed.selections == 4 * stage.printed.k / 65
        assert stage.printed.lost <= 0.5 and stage.printed.lost != stage.stepped.lost  # other samples


# --- nothing is lost, and it is the same again -----------------------------------------------------------------------


def test_interrupted_while_training_it_goes_on_and_comes_to_the_same(
    plain: tuple[ChooseKResult, Path], tmp_path: Path
) -> None:
    trained: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        trained.extend([progress] if progress.title == "training to round 4" else [])
        if len(trained) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, samples=4, paper=True, on_progress=interrupt)
    seen: list[Progress] = []
    outcome = measured(tmp_path, samples=4, paper=True, on_progress=seen.append)
    assert [each.title for each in seen].count("training to round 4") == 2  # of 4
    assert outcome.to_json() == plain[0].to_json()
    seen.clear()
    measured(tmp_path, samples=4, paper=True, on_progress=seen.append)
    assert not any("training" in each.title for each in seen)
    assert all(each.done <= each.total for each in seen)


def test_a_folder_of_another_config_is_refused(plain: tuple[ChooseKResult, Path]) -> None:
    _, folder = plain
    with pytest.raises(RunError, match=r"trained-4 holds a run of another config; .* --out"):
        measured(folder, small(train={**SMALL["train"], "lr": 0.25}))
    measured(folder, small(name="renamed", defense={**SMALL["defense"], "k": 3}), samples=1)  # k is what is asked


def test_a_model_that_was_trained_further_by_hand_is_refused(tmp_path: Path) -> None:
    measured(tmp_path, samples=1, rounds_in="2")
    built = configs.build(without_topk(small()))
    runs.execute(tmp_path / "trained-2", built.begin(), built.reports, 50)
    with pytest.raises(RunError, match="does not hold a model of 2 rounds; delete it"):
        measured(tmp_path, samples=1, rounds_in="2")


def test_a_model_that_has_diverged_is_one_sentence(tmp_path: Path) -> None:
    wild = small(train={**SMALL["train"], "lr": 1e38}, defense={"name": "sparsefed", "k": 5, "clip_norm": 1e6})
    with pytest.raises(ConfigError, match="after 4 rounds no update is finite: the model has diverged; lower"):
        measured(tmp_path, wild, samples=1)


# --- what is asked ---------------------------------------------------------------------------------------------------


def test_a_config_may_leave_k_open(tmp_path: Path) -> None:
    path = tmp_path / "open.toml"
    path.write_text(toml.dumps({**SMALL, "defense": {"name": "sparsefed", "clip_norm": 2.0}}))
    config = choosing.load(path)
    assert config.defense.params == {"clip_norm": 2.0}
    assert choosing.load(path, ["defense.k=9"]).defense.params["k"] == 9
    assert choosing.with_k(config, 5).defense.params == {"clip_norm": 2.0, "k": 5}
    with pytest.raises(ConfigError, match="k is 0"):
        choosing.load(path, ["defense.k=0"])
    with pytest.raises(ConfigError, match="unknown key in"):
        choosing.load(path, ["train.lrr=1"])
    path.write_text(toml.dumps({**SMALL, "defense": {"name": "sparsefed", "clip": 2}}))
    with pytest.raises(ConfigError, match="needs k"):
        choosing.load(path)


def test_a_defense_without_k_is_refused_with_those_that_have_one(tmp_path: Path) -> None:
    path = tmp_path / "krum.toml"
    path.write_text(toml.dumps({**SMALL, "defense": {"name": "krum", "f": 1}}))
    with pytest.raises(
        ConfigError, match=r"krum has no k to choose; those that have one: sparsefed, fetchsgd, dp_noise, local_topk"
    ):
        choosing.load(path)
    path.write_text(toml.dumps({**SMALL, "defense": {"name": "tests.commands.test_choosing:own"}}))
    assert choosing.load(path).defense.params == {}


def own(k: int = 3) -> Defense:
    """A rule of one's own with a k."""
    return configs.build(small(defense={"name": "sparsefed", "k": k})).setup.defense


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"omega": 1.5}, "omega is 1.5, but is a share of the l1 mass: use 0 to 1"),
        ({"omega": float("nan")}, "omega is nan"),
        ({"absolute": True}, "--absolute makes --omega an l1 mass"),
        ({"absolute": True, "omega": -1.0}, "--omega is -1.0, but with --absolute"),
        ({"samples": 0}, "--samples is 0; at least 1 is needed"),
        ({"rounds_in": "0,x"}, "--rounds-in is '0,x', but takes whole numbers"),
        ({"rounds_in": "40"}, "the run has 40 rounds; use 0 to 39"),
        ({"rounds_in": "-1,3"}, "use 0 to 39"),
        ({"probe": "x"}, "--probe is 'x'; say how many k's to try"),
        ({"probe": ""}, "--probe is ''; say how many"),
        ({"probe": "1"}, "at least 2 k's are needed, or name one with a comma: --probe 1,"),
        ({"probe": "0,5"}, "k is 0, but top-k keeps at least one"),
        ({"probe": "3", "probe_rounds": 0}, "--probe-rounds is 0"),
        ({"probe": "3", "tune_trials": 0}, "--tune is 0"),
        ({"probe_rounds": 9}, "--probe-rounds is for probe runs; add --probe"),
        ({"tune_trials": 9}, "--tune is for probe runs; add --probe"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        choosing.choose_k(small(), **asked)


def test_what_only_the_model_tells_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="k is 651, but the model has only d = 650"):
        measured(tmp_path, probe="5,651")
    with pytest.raises(ConfigError, match="--tune is for an attack, but this config has none"):
        measured(tmp_path, small(attack=False), probe="3", tune_trials=3)
    with pytest.raises(ConfigError, match=r"threat.start is 9"):
        measured(tmp_path, small(threat={"share": 0.1, "start": 9}), probe="3", probe_rounds=5)
    assert not list(tmp_path.iterdir())


def test_a_shorter_probe_keeps_the_shape_of_the_schedule() -> None:
    config = small(epochs=4, rounds=40, train={**SMALL["train"], "peak_epoch": 1})
    shorter = choosing.with_k(config, 7, 20)
    assert (shorter.rounds, shorter.evaluate_every, shorter.epochs) == (20, 2, None)
    assert (shorter.train.peak_epoch, shorter.train.peak_at) == (None, 0.25)
    assert choosing.with_k(config, 7) == choosing.with_k(config, 7, 40)
    assert choosing.with_k(config, 7).train.peak_epoch == 1


# --- the knee --------------------------------------------------------------------------------------------------------

shares = st.integers(140, 150).map(lambda part: part / 300)  # within a few points of each other
probes_ = st.builds(Probe, st.integers(1, 20), shares, st.booleans(), shares, st.none() | shares)


def naive_knee(probes: Sequence[Probe]) -> int | None:
    """By whole numbers of three hundredths: three are a point."""
    found: list[tuple[int, int, int]] = []  # k, test accuracy, what gets through
    for probe in probes:
        if probe.converged and probe.test is not None and probe.attacked_test is not None:
            through = probe.test - probe.attacked_test if probe.attack is None else probe.attack
            found.append((probe.k, round(300 * probe.test), round(300 * through)))
    best = max((test for _, test, _ in found), default=0)
    found = [each for each in found if each[1] >= best - 3]
    least = min((through for _, _, through in found), default=0)
    return min((k for k, _, through in found if through <= least + 3), default=None)


@given(st.lists(probes_, max_size=6))
def test_the_knee_is_its_rule(probes: list[Probe]) -> None:
    found = choosing.knee(probes)
    assert (found and found.k) == naive_knee(probes)


def test_without_attackers_the_knee_is_the_smallest_that_is_accurate() -> None:
    assert choosing.knee([Probe(9, 0.9, True), Probe(3, 0.89, True), Probe(1, 0.889, True)]) == Probe(3, 0.89, True)
    assert choosing.knee([Probe(9, 0.9, False)]) is None


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    folder = tmp_path_factory.mktemp("command")
    (folder / "small.toml").write_text(toml.dumps(SMALL))
    return Nursery(process_server, folder)


PROBE = ("choose-k", "small.toml", "--samples", "3", "--probe", "5,50,500", "--probe-rounds", "20")


@pytest.fixture(scope="module")
def probed(sparsefed: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """How a whole command ended, and its folder."""
    folder = tmp_path_factory.mktemp("probed")
    return sparsefed.run(*PROBE, "--out", folder), folder


def test_the_command_measures_probes_and_says_so(probed: tuple[Done, Path]) -> None:
    done, folder = probed
    out = done.fine()
    told = json.loads((folder / "choose-k.json").read_text())
    assert out.endswith(f"wrote {folder}/choose-k.html\nwrote {folder}/choose-k.json\n")
    assert (
        f"Use k = {told['answer']:,} ({100 * told['answer'] / D:.1f}% of d = 650), the knee of the probe runs." in out
    )
    assert told["answer"] == told["knee"] and f"By mass alone k = {told['k']:,}: it is the smallest with which" in out
    assert re.search(r"^k-5: round 2/20, test \S+, attack \S+; \S+ s left$", done.err, re.M)
    assert (told["d"], told["epoch"], told["config_k"]) == (D, 10, 50)
    assert sorted(path.name for path in (folder / "probes").iterdir()) == sorted(
        f"k-{k}{more}" for k in (5, 50, 500) for more in ("", "-attacked")
    )
    assert told["knee"] == naive_knee([Probe(**each) for each in told["probes"]])
    assert re.search(rf"^│ {told['knee']} .*knee", out, re.M)
    assert f"Knee of the probe runs (20 rounds): k = {told['knee']}, test accuracy" in out
    curve = told["stages"][1]["curve"]
    assert [point["k"] for point in curve] == list(grid(D)) and curve[-1]["mean"] == 0
    assert all(point["min"] <= point["mean"] <= point["max"] for point in curve)


def test_a_probe_is_a_run_that_anybody_can_do(probed: tuple[Done, Path], sparsefed: Nursery, tmp_path: Path) -> None:
    """The attacked one is the config with that k; the other has nobody who attacks."""
    _, folder = probed
    more = ("--set", "defense.k=50", "--set", "rounds=20", "--set", "evaluate_every=2", "--out", tmp_path)
    sparsefed.run("run", "small.toml", *more).fine()
    probes = {each["k"]: each for each in json.loads((folder / "choose-k.json").read_text())["probes"]}
    (row,) = report.summary([runs.load_run(tmp_path)])
    assert (row.attack_mean, row.test_accuracy) == (probes[50]["attack"], probes[50]["attacked_test"])
    calm, hostile = (runs.load_run(folder / "probes" / name) for name in ("k-50", "k-50-attacked"))
    assert sum(row["attackers"] for row in calm.rows) == 0 < sum(row["attackers"] for row in hostile.rows)
    assert probes[50]["test"] == calm.rows[-1]["test_accuracy"]


def test_killed_the_same_command_goes_on_and_comes_to_the_same(
    probed: tuple[Done, Path], sparsefed: Nursery, tmp_path: Path
) -> None:
    first = sparsefed.start(*PROBE, "--out", tmp_path)
    until(lambda: (tmp_path / "probes/k-50/metrics.jsonl").exists())
    first.signal(signal.SIGKILL)
    assert first.wait().code == -signal.SIGKILL
    finished = tmp_path / "probes/k-5/metrics.jsonl"
    before = finished.stat().st_mtime_ns
    done = sparsefed.run(*PROBE, "--out", tmp_path)
    done.fine()
    assert "training" not in done.err and "k-5:" not in done.err and "k-50-attacked: round 20/20" in done.err
    assert finished.stat().st_mtime_ns == before
    for name in ("choose-k.json", "choose-k.html"):
        assert (tmp_path / name).read_bytes() == (probed[1] / name).read_bytes()
    assert "Everything is there already." in sparsefed.run(*PROBE, "--out", tmp_path).err


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


def test_interrupted_it_says_how_to_go_on(sparsefed: Nursery, tmp_path: Path) -> None:
    long = ("--set", "rounds=5000", "--rounds-in", "4000")
    command = sparsefed.start("choose-k", "small.toml", *long, "--out", tmp_path)
    until(lambda: (tmp_path / "trained-4000/metrics.jsonl").exists())
    command.signal(signal.SIGINT)
    done = command.wait()
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("Interrupted, saved. Go on with the same command.\n")


def test_the_attack_can_be_tuned_at_every_k(sparsefed: Nursery, tmp_path: Path) -> None:
    options = ("--samples", "1", "--rounds-in", "0", "--probe", "5,500", "--probe-rounds", "4", "--tune", "2")
    done = sparsefed.run("choose-k", "small.toml", *options, "--out", tmp_path)
    done.fine()
    assert "tuning the attack at k = 5\n" in done.err and "trial 2/2" in done.err
    probes = json.loads((tmp_path / "choose-k.json").read_text())["probes"]
    for k, probe in zip((5, 500), probes, strict=True):
        record = runs.load_run(tmp_path / f"probes/k-{k}-tuned-2")
        assert record.config["defense"]["k"] == k == probe["k"] and record.config["rounds"] == 4
        assert record.config["attack"].keys() >= {"epochs", "to_budget"}  # written out by the search
        asked = json.loads((tmp_path / f"tuned/k-{k}/study.json").read_text())
        assert asked["config"]["defense"]["k"] == k


def test_without_an_attack_probes_are_calm(sparsefed: Nursery, tmp_path: Path) -> None:
    options = ("--set", "attack=false", "--samples", "1", "--rounds-in", "0", "--probe", "2", "--probe-rounds", "3")
    out = sparsefed.run("choose-k", "small.toml", *options, "--out", tmp_path).fine()
    assert sorted(path.name for path in (tmp_path / "probes").iterdir()) == ["k-1", "k-650"]
    assert all(each["attack"] is None for each in json.loads((tmp_path / "choose-k.json").read_text())["probes"])
    assert "Knee of the probe runs (3 rounds)" in out or "No probe run converged" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("none.toml",), "there is no config file none.toml"),
        (("small.toml", "--set", "defense.name=krum"), "krum"),
        (("small.toml", "--omega", "2"), "omega is 2.0, but is a share"),
        (("small.toml", "--probe", "651,"), "k is 651, but the model has only d = 650"),
    ],
)
def test_what_cannot_be_chosen_leaves_nothing_behind(
    sparsefed: Nursery, tmp_path: Path, args: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "small.toml").write_text(toml.dumps(SMALL))
    assert sentence in sparsefed.run("choose-k", *args, cwd=tmp_path).refused()
    assert not (tmp_path / "runs").exists()


def test_the_help_teaches(sparsefed: Nursery) -> None:
    out = " ".join(re.sub("[│╭╮╰╯─]", " ", sparsefed.run("choose-k", "--help").fine()).split())
    for words in ("--omega", "the same command goes on", "strongest.toml", "N|K,K,...", "--rounds-in"):
        assert words in out


# --- what it shows ---------------------------------------------------------------------------------------------------


def with_probes(outcome: ChooseKResult) -> ChooseKResult:
    probes = (Probe(5, 0.5, True, 0.4, 0.1), Probe(50, 0.8, True, 0.7, 0.2), Probe(500, 0.8, True, 0.6, 0.3))
    return replace(outcome, probes=probes)


def test_the_charts_hold_the_curve_and_the_probes(plain: tuple[ChooseKResult, Path]) -> None:
    outcome = with_probes(plain[0])
    sets = list(curve_chart(outcome).to_dict()["datasets"].values())
    curve = max(sets, key=len)
    assert len(curve) == 2 * len(grid(D)) and {row["line"] for row in curve} == {"at the start", "after 4 rounds"}
    marks = {row["line"]: row["k"] for rows in sets for row in rows if "value" not in row}
    assert marks == {
        f"chosen: {outcome.k}": outcome.k,
        f"paper: {outcome.paper_k}": outcome.paper_k,
        "config: 50": 50,
    }
    probes = max(probe_chart(outcome).to_dict()["datasets"].values(), key=len)
    assert [(row["k"], row["value"]) for row in probes if row["line"] == "attack accuracy"] == [
        *((5, 0.1), (50, 0.2), (500, 0.3))
    ]


def test_the_page_tells_all_of_it(plain: tuple[ChooseKResult, Path]) -> None:
    outcome = with_probes(plain[0])
    page = outcome.to_html()
    assert page.count('scope="row"') == 10 + 3 + 5  # 1, 2, 5, ..., 500 and d; the probes; other rules
    assert page.count(">knee<") == 1 and "--set defense.k=50" in page
    assert f'class="verdict">Use k = {outcome.answer}' in page and "Knee of the probe runs" in page
    assert "Other ways to choose k" in page and "the paper&#x27;s algorithm" in page
    assert plain[0].to_html().count("data-chart=") == 1 < page.count("data-chart=") == 2


def test_masses_are_told_as_masses(tmp_path: Path) -> None:
    outcome = measured(tmp_path, rounds_in="0", samples=2, absolute=True, omega=0.25)
    said = " ".join(choosing.sentences(outcome))
    assert "loses at most 0.25 of the l1 mass" in said and "memory" not in said
    assert outcome.stages[0].chosen.lost <= 0.25
    assert outcome.to_html().count("data-chart=") == 1


@pytest.mark.skipif(BROWSER is None, reason="no browser on PATH")
def test_the_page_is_drawn_offline_without_a_complaint(probed: tuple[Done, Path], tmp_path: Path) -> None:
    _, folder = probed
    with browser(tmp_path / "profile") as tab:
        tab.open(folder / "choose-k.html", width=390)
        assert tab.value("document.querySelectorAll('.chart svg.marks').length") == 2
        assert tab.value("document.querySelectorAll('.chart svg .role-legend-symbol path').length") >= 6 + 5
        dots = "[...document.querySelectorAll('#chart-probes svg .mark-symbol.role-mark path')].length"
        assert tab.value(dots) == 9
        assert tab.value("document.documentElement.scrollWidth") <= 390
        assert tab.complaints() == []
        assert set(tab.requests()) == {(folder / "choose-k.html").resolve().as_uri()}


def test_the_view_says_what_is_done() -> None:
    output = io.StringIO()
    with ProgressView(Console(file=output, width=100)) as view:
        for doing in ("sampling after 0 rounds", "sampling after 0 rounds", "training to round 4"):
            view.show(Progress(doing, 1, 9, line=f"{doing} ..."))
    assert output.getvalue() == "sampling after 0 rounds ...\ntraining to round 4 ...\n"
    terminal = io.StringIO()
    with ProgressView(Console(file=terminal, width=100, force_terminal=True)) as view:
        view.show(Progress("sampling after 0 rounds", 3, 9))
    assert "3/9" in terminal.getvalue() and "sampling after 0 rounds" in terminal.getvalue()
    assert "left" in terminal.getvalue()
