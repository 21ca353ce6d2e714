"""`sparsefed certify`: the numbers are those of `certify`, what they rest on is said, and what has none is refused."""

from __future__ import annotations

import json
import math
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.attacks import Attack, Goal, Knowledge
from sparsefed.commands import certify as certificate
from sparsefed.commands.certify import Certificate
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.round import simulate
from sparsefed.core.schedule import triangular
from sparsefed.reports.pictures import write
from sparsefed.results.twins import distances
from sparsefed.theory import radius
from sparsefed.theory.lipschitz import clip_free, softmax_growth, softmax_layer
from sparsefed.theory.rounding import power, written
from sparsefed.theory.threat_schedule import Line, ThreatSchedule, growth
from tests.support.pages import BROWSER, browser
from tests.support.processes import Nursery, Server

SMALL: dict[str, Any] = {
    "seed": 3,
    "rounds": 12,
    "evaluate_every": 6,
    "data": {"name": "digits", "devices": 300},
    "model": {"name": "softmax"},
    "train": {"cohort": 20, "weight_decay": 0.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 50},
    "defense": {"name": "sparsefed", "k": 100, "rho": 0.0},
}
LINEAR: dict[str, Any] = {  # a setting in which something is certified
    "seed": 1,
    "rounds": 40,
    "evaluate_every": 20,
    "data": {"name": "digits", "partition": "iid", "devices": 100},
    "model": {"name": "softmax", "zero": True},
    "train": {"cohort": 50, "lr": 0.05, "schedule": "constant", "weight_decay": 0.0},
    "defense": {"name": "clipping", "clip_norm": 14.0, "rho": 0.0},
}


def written_to(folder: Path, table: dict[str, Any], name: str = "mine") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(toml.dumps(table))
    return path


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    """Commands in a folder with small.toml, its run and that of linear.toml."""
    folder = tmp_path_factory.mktemp("certificates")
    written_to(folder, SMALL, "small")
    written_to(folder, LINEAR, "linear")
    commands = Nursery(process_server, folder)
    commands.run("run", "small.toml").fine()
    commands.run("run", "linear.toml").fine()
    return commands


@pytest.fixture
def folder(sparsefed: Nursery) -> Path:
    return sparsefed._folder


def asked(sparsefed: Nursery, *args: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sparsefed.run("certify", *args, "--json").fine())
    return found


# --- the numbers -----------------------------------------------------------------------------------------------------


def by_hand(table: dict[str, Any], share: float, k: int | None, omega: float) -> ThreatSchedule:
    """The protocol of a config, built from its numbers with nothing of the package under test."""
    config = configs.parse(table)
    experiment = configs.build(config)
    federation, d = experiment.setup.federation, len(experiment.theta)
    layer = softmax_layer(
        federation.x,
        federation.partition.offsets,
        examples=federation.partition.examples,
        prepare=experiment.task.prepare,
    )
    defense, train = {"clip_norm": 5.0, "rho": 0.9, **table["defense"]}, table["train"]
    L, fedavg = defense["clip_norm"], train.get("mode") == "fedavg"
    inside = train.get("preset") == "authors-2021-05" and not fedavg
    lines = []
    for t in range(1, table["rounds"] + 1):
        lr = triangular(0.2, table["rounds"])(t)
        clip = (
            L * lr if defense.get("clip") == "adaptive" or (fedavg and train.get("preset", "paper") != "paper") else L
        )
        scale = lr if fedavg else 1.0
        h = scale * softmax_growth(layer, d, k, clipped=scale * clip_free(layer) > clip)
        if inside:
            lines.append(Line(1.0, lr * clip, share, lr * h, omega))
        else:
            lines.append(Line(1.0 if fedavg else lr, clip, share, h, omega))
    return ThreatSchedule(d, k, tuple(lines), 0.0 if defense.get("feedback") == "update" else defense["rho"])


@pytest.mark.parametrize(
    ("train", "defense"),
    [
        ({}, {}),
        ({}, {"rho": 0.9}),
        ({}, {"rho": 0.9, "feedback": "update", "masking": "subtract"}),
        ({}, {"clip_norm": 20.0}),
        ({}, {"clip": "adaptive"}),
        ({"preset": "authors-2021-05"}, {}),
        ({"mode": "fedavg"}, {}),
        ({"mode": "fedavg", "preset": "authors-2021-05"}, {"rho": 0.5}),
        ({"mode": "fedavg", "preset": "authors-2021-08"}, {}),
    ],
)
def test_numbers_are_those_of_certify(tmp_path: Path, train: dict[str, Any], defense: dict[str, Any]) -> None:
    table = {**SMALL, "train": {**SMALL["train"], **train}, "defense": {**SMALL["defense"], **defense}}
    found = certificate.certify(written_to(tmp_path, table), share=0.05)
    sparse, dense = by_hand(table, 0.05, 100, 1 - 100 / 650), by_hand(table, 0.05, None, 0.0)
    assert found.sparse is not None
    for protocol, own in ((sparse, found.sparse), (dense, found.dense)):
        assert own is not None
        assert own.radii["recursion"].log == pytest.approx(radius.recursion(protocol).log, rel=1e-12)
        assert own.radii["recursion_sqrt_d"].log == pytest.approx(radius.recursion(protocol, protocol.d).log, rel=1e-12)
        assert own.radii["capped"].log == pytest.approx(radius.capped(protocol).log, rel=1e-12)
        assert own.radii["movement"].log == pytest.approx(radius.movement(protocol), rel=1e-12)
        assert own.radii["closed_form"].log == pytest.approx(radius.closed_form(protocol).log, rel=1e-12)
        assert own.radii["paper"].log == pytest.approx(radius.paper_closed_form(protocol).log, rel=1e-12)
        assert own.paper_is_bound == radius.paper_is_bound(protocol)


def test_a_given_c_is_spread_by_clipping_and_lifted_by_weight_decay(tmp_path: Path) -> None:
    table = {**SMALL, "train": {"cohort": 20, "weight_decay": 0.2}}
    found = certificate.certify(written_to(tmp_path, table), share=0.05, c=0.5)
    assert found.c == pytest.approx(0.51) and found.status_of(found.own.best_name) == "conditional"
    assert found.own.schedule.lines[0].growth == pytest.approx(growth(650, 100, 0.51, clipped=True))
    assert found.sparse is not None and "softmax" not in found.sparse.radii  # what is only given has no l2 route


def test_attackers_are_a_share_a_number_or_those_that_there_are(tmp_path: Path) -> None:
    path = written_to(tmp_path, {**SMALL, "data": {"name": "digits", "devices": 310}, "rounds": 20})
    shares = [line.share for line in certificate.certify(path, attackers=2).own.schedule.lines]
    assert shares[:15] == [2 / 20] * 15 and shares[15] == 2 / 10  # the last cohort of an epoch is smaller
    found = certificate.certify(path)
    federation = found.source.experiment.setup.federation
    counted = [int(federation.attackers(federation.cohort(t), t).sum()) for t in range(1, 21)]
    sizes = [len(federation.cohort(t)) for t in range(1, 21)]
    assert [line.share for line in found.own.schedule.lines] == [a / n for a, n in zip(counted, sizes, strict=True)]
    assert "the config's seed deals them" in found.assumptions[0].says


def test_a_run_and_its_config_have_the_same_certificate(sparsefed: Nursery, folder: Path) -> None:
    of_run, of_config = asked(sparsefed, "runs/small"), asked(sparsefed, "runs/small/config.toml")
    for side in ("sparse", "dense"):
        radii, others = of_run[side]["radii"], of_config[side]["radii"]
        assert {name: pytest.approx(each["log"], rel=1e-12) for name, each in radii.items()} == {
            name: each["log"] for name, each in others.items()
        }
    assert of_run["kind"] == "run" and of_config["kind"] == "config"
    assert of_config["travelled_l1"] is None
    begin = certificate.certify(folder / "runs/small").source.experiment.theta
    state = runs.load_state(folder / "runs/small")
    assert state is not None
    assert of_run["travelled_l1"] == pytest.approx(distances(begin, state.theta).l1)


@given(st.floats(-20, 40))
def test_what_is_written_is_never_below_what_is_bounded(log: float) -> None:
    text = written(log)
    assert (10 ** float(text[3:]) if text.startswith("10^") else float(text.replace(",", ""))) >= math.exp(log) * (
        1 - 1e-8
    )
    assert float(power(log)) >= log / math.log(10) - 1e-8


# --- what it may be called -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "status", "bounds"),
    [
        ({"share": 0.05}, "certificate", {"capped": "yes", "movement": "yes", "paper": "NO"}),
        ({"share": 0.05, "c": 0.3}, "conditional", {"capped": "if", "movement": "yes", "paper": "NO"}),
        ({"share": 0.05, "omega": "0.2"}, "conditional", {"capped": "if", "softmax": "yes", "movement": "if"}),
        ({"share": 0.05, "estimate_c": True}, "estimate", {"capped": "estimate", "movement": "yes", "paper": "NO"}),
    ],
)
def test_every_number_says_whether_it_is_a_bound(
    tmp_path: Path, question: dict[str, Any], status: str, bounds: dict[str, str]
) -> None:
    found = certificate.certify(written_to(tmp_path, SMALL), **question)
    if found.own.only_clipping and bounds["movement"] == "yes":  # the number to quote is clipping's, without c
        status = "certificate"
    assert found.status == status
    told = json.loads(found.to_json())
    assert {field: told["sparse"]["radii"][field]["is_bound"] for field in bounds} == bounds
    assert told["is_certificate"] == (status != "estimate")
    page, title = found.to_html(), told["title"]
    assert page.count(title) >= 3 and found.verdict[0] == f"{title}: mine."
    assert ("Estimate, not a certificate" in page) == (status == "estimate")
    assert "closed form is NOT a bound" in page


def test_a_deep_model_has_an_estimate_only(tmp_path: Path) -> None:
    path = written_to(tmp_path, {**SMALL, "model": {"name": "mlp", "hidden": [8]}} | {"rounds": 4})
    found = certificate.certify(path)
    assert found.status == "estimate" and found.c > 0
    [c] = [each for each in found.assumptions if each.about == "c"]
    assert c.mark == "estimate" and "nothing here that needs c is a bound" in c.says
    assert found.accuracy is None


def test_the_paper_is_a_bound_where_every_rate_is_at_least_one(tmp_path: Path) -> None:
    train = {"cohort": 20, "lr": 1.5, "schedule": "constant", "weight_decay": 0.0}
    found = certificate.certify(written_to(tmp_path, {**SMALL, "train": train}))
    assert found.own.paper_is_bound and not any("Warning" in each for each in found.verdict)
    assert found.own.radii["paper"].log >= found.own.radii["recursion"].log


def test_augmented_data_are_covered_by_the_range_of_bytes(tmp_path: Path) -> None:
    plain = certificate.certify(written_to(tmp_path, SMALL))
    data = {**SMALL["data"], "augment": f"{__name__}:inverted"}
    turned = certificate.certify(written_to(tmp_path, {**SMALL, "data": data}))
    assert turned.own.radii["recursion"].log > plain.own.radii["recursion"].log and turned.status == "certificate"
    arrays = turned.source.arrays
    extreme = max((1 - arrays.mean[0]) / arrays.std[0], arrays.mean[0] / arrays.std[0])
    assert turned.c == pytest.approx(max(extreme, 1) ** 2 / 4, rel=1e-6)


def inverted(x: torch.Tensor, keys: Any) -> torch.Tensor:  # noqa: ARG001 - an augmentation takes both
    """Images as negatives: nothing that was measured on the data holds."""
    return 255 - x


# --- refusals --------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"defense": {"name": "krum", "f": 2}}, "krum has no certificate: it is not the mean of clipped updates"),
    ({"defense": {"name": "median"}}, "it is not the mean of clipped updates"),
    ({"defense": {"name": "fetchsgd", "k": 50, "columns": 200}}, "which is not top-k"),
    (
        {"defense": {"name": "undefended"}},
        "without a clip norm has no certificate: one update can be as long as it likes",
    ),
    ({"defense": {"name": "dp_noise", "sigma": 0.1}}, "its noise is not bounded"),
    ({"defense": {"name": "clipping", "clip": "quantile"}}, "the clip norm depends on what attackers send"),
    ({"defense": {"name": "clipping", "pre": [{"name": "arc", "f": 2}]}}, "pre-aggregation"),
    ({"defense": {"name": "sparsefed", "k": 9, "masking": "subtract"}}, "masking = 'subtract' has no certificate"),
    ({"train": {"mode": "fedavg", "cohort": 20, "local_epochs": 2}}, "several local steps has no certificate"),
    ({"train": {"mode": "fedavg", "cohort": 20, "local_batch": 2}}, "several local steps has no certificate"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_what_is_not_covered_is_refused_and_what_is_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        certificate.certify(written_to(tmp_path, {**SMALL, **change}))
    assert why in str(refused.value) and "covered are sparsefed and clipping" in str(refused.value)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["small.toml", "--share", "0.1", "--attackers", "2"], "say the same thing twice"),
        (["small.toml", "--share", "1"], "choose 0 <= share < 1"),
        (["small.toml", "--share", "-0.1"], "choose 0 <= share < 1"),
        (["small.toml", "--attackers", "20"], "choose from 0 to 19"),
        (["small.toml", "--c", "0"], "choose a finite number above 0"),
        (["small.toml", "--c", "nan"], "choose a finite number above 0"),
        (["small.toml", "--c", "1", "--estimate-c"], "give one of them"),
        (["small.toml", "--omega", "0.99"], "leaves 0 to 1 - k/d"),
        (["small.toml", "--omega", "best"], "use worst, measured or a number"),
        (["small.toml", "--omega", "measured"], "is for run folders"),
        (["linear.toml", "--omega", "0.5", "--share", "0.1"], "applies every coordinate"),
        (["linear.toml"], "there are no attackers in linear.toml"),
        (["runs"], "runs is not a run folder"),
        (["nowhere.toml"], "there is no config file nowhere.toml"),
        (["runs/small", "--set", "rounds=3"], "--set is for configs"),
        (["runs/small", "--train"], "--train is for configs"),
        (["small.toml", "--train", "--set", "model.name=mlp", "--c", "1"], "one softmax layer"),
    ],
)
def test_bad_questions_get_one_sentence(sparsefed: Nursery, args: list[str], sentence: str) -> None:
    assert sentence in sparsefed.run("certify", *args).refused()


def test_a_run_without_omega_cannot_be_asked_for_it(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "runs/small", tmp_path / "old")
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    measured = certificate.certify(copy, omega="measured")
    assert [line.omega for line in measured.own.schedule.lines] == [row["omega"] for row in rows]
    assert measured.status == "conditional" and measured.assumptions[-6].mark == "measured"
    (copy / "metrics.jsonl").write_text(
        "".join(json.dumps({key: row[key] for key in row if key not in ("omega", "crc32")}) + "\n" for row in rows)
    )
    with pytest.raises(RunError, match="no omega in round 1"):
        certificate.certify(copy, omega="measured")


def test_an_unfinished_run_is_certified_for_the_rounds_done(tmp_path: Path) -> None:
    config = configs.read(written_to(tmp_path, SMALL))
    experiment = configs.build(config)
    runs.create(tmp_path / "run", configs.dump(config))
    with pytest.raises(RunError, match="no finished round yet"):
        certificate.certify(tmp_path / "run")
    runs.execute(tmp_path / "run", experiment.begin(), lambda state: islice(experiment.reports(state), 5), 5)
    found = certificate.certify(tmp_path / "run")
    assert not found.source.finished and len(found.own.schedule.lines) == 5
    assert "the rounds done" in found.verdict[1] and "Preliminary" in found.to_html()
    whole = certificate.certify(tmp_path / "mine.toml")
    assert found.own.schedule.lines == whole.own.schedule.lines[:5]


# --- certified accuracy ----------------------------------------------------------------------------------------------


def hostile(knowledge: Knowledge) -> torch.Tensor:
    """Attackers who push as hard as they may against what the model has learned."""
    return knowledge.theta * (knowledge.budget / max(1e-9, float(torch.linalg.vector_norm(knowledge.theta))))


@pytest.mark.parametrize("defense", [LINEAR["defense"], {"name": "sparsefed", "k": 400, "clip_norm": 14.0, "rho": 0.0}])
def test_no_real_attack_goes_beyond_the_certificate(tmp_path: Path, defense: dict[str, Any]) -> None:
    table = {**LINEAR, "rounds": 25, "defense": defense, "threat": {"per_round": 1}}
    table["attack"] = {"name": f"{__name__}:hostile_attack", "auxiliary": 20}
    found = certificate.certify(written_to(tmp_path, table))
    calm = configs.build(configs.twins(found.source.config)["unattacked"])
    attacked = found.source.experiment
    *_, benign = simulate(calm.setup, calm.begin(), 25)
    *_, poisoned = simulate(attacked.setup, attacked.begin(), 25)
    apart = distances(benign.state.theta, poisoned.state.theta)
    assert apart.l1 > 0.01  # the attack does something
    assert math.log(apart.l1) <= found.own.best.log
    sizes = [len(attacked.setup.federation.cohort(t)) for t in range(1, 26)]
    assert [line.share for line in found.own.schedule.lines] == [1 / n for n in sizes]


def hostile_attack(goal: Goal) -> Attack:  # noqa: ARG001 - they want nothing but harm
    """A method of one's own, as a config names it."""
    return Attack(hostile, frozenset())


def test_certified_points_keep_their_labels_and_the_curve_falls(folder: Path) -> None:
    found = certificate.certify(folder / "runs/linear", share=0.001)
    accuracy = found.accuracy
    assert accuracy is not None and not accuracy.attacked and found.status == "certificate"
    values = [each.accuracy for each in accuracy.curve]
    assert values == sorted(values, reverse=True) and values[0] == accuracy.plain
    assert accuracy.largest is not None and 0.001 < accuracy.largest < 0.02
    assert accuracy.chance < accuracy.certified.accuracy < accuracy.plain and not accuracy.vacuous
    assert found.own.best is found.own.radii["softmax"] and not found.own.only_clipping
    assert np.interp(accuracy.largest, [each.share for each in accuracy.curve], values) == pytest.approx(
        accuracy.chance, abs=0.05
    )


def test_a_run_under_attack_says_what_its_model_shares_with_the_other(folder: Path) -> None:
    found = certificate.certify(folder / "runs/small")
    assert found.accuracy is not None and found.accuracy.attacked and found.accuracy.curve == ()
    assert any("the bound holds in both directions" in each for each in found.verdict)
    fewer = certificate.certify(folder / "runs/small", share=0.001)
    assert fewer.accuracy is None and any("more attackers" in each for each in fewer.verdict)


# --- the command -----------------------------------------------------------------------------------------------------

RADII = {"softmax", "capped", "recursion", "recursion_sqrt_d", "movement", "closed_form", "paper"}


def test_the_json_has_everything(sparsefed: Nursery) -> None:
    found = asked(sparsefed, "small.toml", "--share", "0.05")
    assert set(found) == {
        *("title", "status", "is_certificate", "source", "kind", "name", "finished", "verdict", "c", "travelled_l1"),
        *("sparse", "dense", "accuracy", "assumptions"),
    }
    for side in (found["sparse"], found["dense"]):
        assert set(side["radii"]) == RADII
        assert {"d", "k", "w", "rho", "rounds", "share", "radii", "best", "only_clipping"} == set(side)
        for each in side["radii"].values():
            assert each["log"] == pytest.approx(each["additive"] + each["propagation"])
            assert each["log10"] == pytest.approx(each["log"] / math.log(10))
    assert found["sparse"]["w"] == 200 and found["dense"]["w"] == 650
    assert {each["mark"] for each in found["assumptions"]} == {"by construction", "assumed"}


def test_trained_first_in_a_folder_and_the_json_stays_json(sparsefed: Nursery, folder: Path) -> None:
    command = ("certify", "small.toml", "--train", "--json")
    first = sparsefed.run(*command)
    assert first.code == 0 and "round 12/12" in first.err
    told = json.loads(first.out)
    assert told["accuracy"]["points"] == 297 and (folder / "runs/small-unattacked/checkpoint.safetensors").exists()
    assert json.loads(sparsefed.run(*command).fine()) == told  # it is there already


def test_a_person_reads_title_verdict_table_and_assumptions(sparsefed: Nursery, tmp_path: Path) -> None:
    out = sparsefed.run("certify", "runs/linear", "--share", "0.001", "--out", tmp_path / "page.html").fine()
    for words in (
        "Certificate: linear",
        "However they attack",
        "Certified accuracy",
        "What it rests on",
        "NOT a bound",
    ):
        assert words in out
    assert "wrote" in out and (tmp_path / "page.html").stat().st_size > 10_000


def test_the_convergence_theorem_is_drawn_beside_a_run(sparsefed: Nursery, tmp_path: Path) -> None:
    defense = {"name": "sparsefed", "k": 300, "rho": 0.0, "clip_norm": math.inf}
    train = {**LINEAR["train"], "sampling": "uniform"}
    path = written_to(tmp_path, {**LINEAR, "train": train, "defense": defense, "rounds": 10})
    out = sparsefed.run("certify", path, "--convergence", "--out", tmp_path / "convergence.html").fine()
    assert "After 10 rounds" in out and "convergence" in out and (tmp_path / "convergence.html").exists()
    assert "is for a run without attackers" in sparsefed.run("certify", path, "--convergence", *ATTACKED).refused()


ATTACKED = ("--set", "attack.name=pgd", "--set", "attack.auxiliary=20", "--set", "threat.share=0.1")


@pytest.mark.skipif(BROWSER is None, reason="no browser on PATH")
def test_the_page_is_drawn_offline_without_a_complaint(folder: Path, tmp_path: Path) -> None:
    found: Certificate = certificate.certify(folder / "runs/linear", share=0.001)
    page = write(tmp_path / "page.html", found.to_html().encode())
    with browser(tmp_path / "profile") as tab:
        for width, scheme in ((1280, "light"), (390, "dark")):
            tab.open(page, width=width, scheme=scheme)
            assert tab.value("document.querySelectorAll('.chart svg.marks').length") == 3
            assert tab.value("document.documentElement.scrollWidth <= innerWidth")
        assert tab.value("document.querySelectorAll('tbody th').length") == 7 + 9 + len(found.assumptions)
        assert tab.complaints() == []
        assert set(tab.requests()) == {page.resolve().as_uri()}
