"""The exhibits: every config of every scale can be built, every name in claims and in the paper's numbers stands for
something that is run, and the numbers are the paper's."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources

import pytest
from benchmarks.exhibit_minutes import costs, estimate, round_seconds

from sparsefed import config as configs
from sparsefed.commands.reproduce import grid
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.exhibit import BOUNDS, COMPARING, PRINTED, SCALES, Claim, Exhibit
from sparsefed.commands.reproduce.grid import matches, plan
from sparsefed.config import Config, resolve
from sparsefed.secure import costs as proof_costs
from sparsefed.sweeps.cells import Combination, twin

NAMES = reading.names()


@functools.cache
def combinations(name: str, scale: str) -> list[Combination]:
    return grid.combinations(reading.load(name), scale)


EXTERNAL = [name for name in NAMES if reading.load(name).external]  # others' settings and numbers
RUNS = [name for name in NAMES if reading.load(name).kind == "runs" and name not in EXTERNAL]
SCHEDULE = [  # those that are run with the paper's own number of rounds
    "accuracy-impact",
    "adaptive-clipping",
    "attack-accuracy",
    "k-cross-device",
    "k-uncompressed",
    "number-of-attackers",
    "smaller-steps",
    "stealth",
    "uncompressed",
]

DENSE = [
    name
    for name in RUNS
    if name not in ("cifar100-single-image", "model-replacement", "natural-users", "semantic-backdoor")
]

# The paper's tables and figures with results in them, by the label in its source.
LABELS = {
    "table:eval",
    "table:table-byzantine-failure",
    "table:table-defense-impact",
    "table:table-defense-impact-2",
    "table:table-uncompressed",
    "table:table-momentum",
    "tab:adaclip",
    "table:table-byzantine-clipping",
    "table:table-fedavg",
    "table:table-ncd-effective",
    "table:table-stealth",
    "table:table-femnist-backdoor",
    "fig:crosssilokconvergence",
    "fig:crosssilokrobustness",
    "fig:crossdevicekconvergence",
    "fig:crossdevicekrobustness",
    "fig:ktradeofffull",
    "fig:convergence",
    "fig:clipablationsparse",
    "fig:noiseclip5",
    "fig:noisevssparsefed",
    "fig:3vs5",
    "fig:newdistpoison",
    "fig:pgdnew",
    "fig:auxbaseline",
    "fig:femnist",
    "fig:cifar100baseline",
    "fig:numattackers",
    "fig:sparsevsadaptive",
}


def test_every_table_and_figure_is_there() -> None:
    """Whatever of the paper has numbers or a picture, and the three claims of its text."""
    found = {label for name in NAMES for label in reading.load(name).label.split(", ")}
    assert found >= LABELS
    assert {"model-replacement", "adaptive-attack", "combinatorial-bounds"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_papers_numbers_or_says_why_not(name: str) -> None:
    paper = reading.load_paper(reading.load(name))
    assert paper.where
    assert paper.rows or paper.notes


@pytest.mark.parametrize("name", RUNS)
def test_all_scales_are_there_and_say_what_was_scaled(name: str) -> None:
    scales = reading.load(name).scales
    longer = [scale for scale, those in (("dense", DENSE), ("schedule", SCHEDULE)) if name in those]
    assert list(scales) == ["paper", "laptop", *longer, "smoke"]
    assert scales["laptop"].note
    assert scales["smoke"].note
    assert len(scales["paper"].seeds) >= 3
    assert len(scales["laptop"].seeds) >= 2, "no claim may hold on one seed"


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_config(name: str, scale: str) -> None:
    """`combinations` parses each config, every variant of the attack among them."""
    if name not in {"dense": DENSE, "schedule": SCHEDULE}.get(scale, RUNS):
        return
    assert combinations(name, scale)


@pytest.mark.parametrize("name", RUNS)
def test_laptop_keeps_the_mechanisms(name: str) -> None:
    """As many devices as in the paper's setting, real data, and more than an epoch of them."""
    for each in combinations(name, "laptop"):
        config = each.result(0, next(iter(each.variants), None)).config
        assert config.data.name in ("fmnist", "cifar10", "cifar100", "mnist_by_writer", "reddit")
        assert (config.data.devices or 0) >= (1000 if config.data.partition == "iid" else 5390)
        assert config.rounds >= 200


@pytest.mark.parametrize("name", RUNS)
def test_laptop_takes_an_hour_at_most(name: str) -> None:
    """By the costs of `benchmarks.exhibit_minutes`, which the file repeats."""
    exhibit = reading.load(name)
    assert exhibit.scales["laptop"].est_minutes == estimate(exhibit) <= 60


@pytest.mark.parametrize("name", SCHEDULE)
def test_schedule_is_the_papers_but_for_the_model(name: str) -> None:
    """Its rounds, devices and learning rate, k as its share of d, and evaluation under 5 % of the training."""
    exhibit = reading.load(name)
    scale = exhibit.scales["schedule"]
    assert scale.note
    assert scale.est_minutes == estimate(exhibit, "schedule")
    for each in combinations(name, "schedule"):
        assert len(scale.seeds_at(each.values)) >= 2, "no claim may hold on one seed"
        config = each.result(0, next(iter(each.variants), None)).config
        paper = configs.parse({"base": f"{config.data.name}/cross-device"})
        assert (config.rounds, config.data) == (paper.rounds, paper.data)
        kept = {"dtype", "mode", *(("lr",) if name == "smaller-steps" else ())}
        assert config.train.model_dump(exclude=kept) == paper.train.model_dump(exclude=kept)
        searched = name != "smaller-steps"  # its attack is what its searches at scale dense chose
        assert config.attack is None or not config.threat.share or not searched or len(each.variants) >= 3
        assert "k" not in config.defense.params or config.defense.params["k"] in _shares(config)
        assert config.rounds // config.evaluate_every * costs(config)[2] < 0.05 * config.rounds * round_seconds(config)


@pytest.mark.parametrize("name", DENSE)
def test_dense_is_the_papers_but_for_the_model(name: str) -> None:
    """Its rounds, devices and learning rate, in float32, with k as its share of d, or of what scale laptop has."""
    exhibit = reading.load(name)
    scale = exhibit.scales["dense"]
    assert scale.note and len(scale.seeds) >= 3
    assert scale.est_minutes == estimate(exhibit, "dense")
    for each in combinations(name, "dense"):
        config = each.result(0, next(iter(each.variants), None)).config
        kind = "cross-silo" if name == "k-cross-silo" else "cross-device"
        paper = configs.parse({"base": f"fmnist/{kind}"})
        assert config.data == paper.data
        assert config.rounds == paper.rounds or name == "training-length"
        kept = {
            "mode",
            "local_epochs",
            "local_decay",
            *(("lr",) if name == "smaller-steps" else ()),
        }  # what some are about
        assert config.train.model_dump(exclude=kept) == paper.train.model_dump(exclude=kept)
        assert config.train.dtype == "float32"
        assert config.defense.params.get("k", 152) in _shares(config) or name == "norm-and-top-k"


def _shares(config: Config) -> set[int]:
    """The k of the paper, and all of it, as a share of the parameters."""
    d = {"cnn": 95_366, "resnet9": 411_824, "mlp": 199_210}[config.model.name]
    assert config.model.params == ({"width": 16} if config.model.name == "resnet9" else {})
    return {round(k / 6_568_640 * d) for k in (1e3, 5e3, 1e4, 5e4, 1e5, 2e5, 4e5, 6_568_640)}


def test_attack_accuracy_has_three_seeds_on_fmnist() -> None:
    """Runs on CIFAR-10 cost six times as much, and have two."""
    scale = reading.load("attack-accuracy").scales["schedule"]
    assert [len(scale.seeds_at({"data": data, "defense": "Bulyan"})) for data in ("FMNIST", "CIFAR10")] == [3, 2]


@pytest.mark.parametrize("name", EXTERNAL)
def test_external_exhibits_are_run_as_their_authors_did(name: str) -> None:
    """At scale laptop fewer settings and seeds, and the same configs for those that are run."""
    exhibit = reading.load(name)
    dense = ["dense"] if name == "sparsefed-elsewhere" else []
    assert list(exhibit.scales) == ["paper", "laptop", *dense, "smoke"] and exhibit.scales["laptop"].note
    assert "commit" in exhibit.where or "README" in exhibit.where or not reading.load_paper(exhibit).rows
    full, ours = ({tuple(c.values.values()): c.table for c in combinations(name, scale)} for scale in SHORTER)
    assert ours.items() <= full.items() and combinations(name, "smoke")
    assert len(exhibit.scales["laptop"].seeds) >= 2, "no claim may hold on one seed"


SHORTER = ("paper", "laptop")


@pytest.mark.parametrize("name", [*RUNS, *EXTERNAL])
def test_smoke_is_tiny(name: str) -> None:
    planned = plan(reading.load(name), "smoke")
    assert sum(len(group.trials) + group.coming for group in planned.sweep.groups) <= 24
    for each in combinations(name, "smoke"):
        config = each.result(0, next(iter(each.variants), None)).config
        assert config.rounds <= 6
        assert config.data.name.startswith("sparsefed.commands.reproduce.tiny:")


@pytest.mark.parametrize("name", [*RUNS, *EXTERNAL])
def test_every_claim_is_about_something_that_is_run(name: str) -> None:
    """At the paper's scale each claim finds at least one combination, and a comparison both of its sides."""
    exhibit = reading.load(name)
    cells = [each.values for each in combinations(name, "paper")]
    for claim in exhibit.claims:
        assert _sides(claim, [cell for cell in cells if matches(cell, claim.at)]), claim.text


def _sides(claim: Claim, cells: Sequence[Mapping[str, str]]) -> bool:
    if claim.form in (*BOUNDS, *PRINTED):
        return bool(cells)
    if claim.form not in COMPARING:
        return len({cell[claim.rises or claim.falls or ""] for cell in cells}) > 1
    subject = getattr(claim, claim.form)
    (axis,) = subject
    own = [cell for cell in cells if matches(cell, subject)]
    others = [cell for cell in cells if not matches(cell, subject) and matches(cell, claim.than or {})]
    return any(_but(axis, one) == _but(axis, other) for one in own for other in others)


def _but(axis: str, cell: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in cell.items() if name != axis}


@pytest.mark.parametrize("name", [*RUNS, *EXTERNAL])
def test_every_number_of_the_paper_has_its_cell(name: str) -> None:
    exhibit = reading.load(name)
    cells = [each.values for each in combinations(name, "paper")]
    for row in reading.load_paper(exhibit).rows:
        picked: dict[str, tuple[str, ...]] = {axis: (value,) for axis, value in row.cell.items()}
        assert any(matches(cell, picked) for cell in cells), row
        assert row.metric in exhibit.metrics or row.metric == "test_accuracy", row


@pytest.mark.parametrize("name", NAMES)
def test_the_values_are_what_is_printed(name: str) -> None:
    """Percent as a fraction, thousands as such, '66.0 + 34.0' as the sum, and the spread on the same scale."""
    for row in reading.load_paper(reading.load(name)).rows:
        if isinstance(row.value, str):
            assert row.value == row.as_printed == "DNC"
            continue
        printed = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", row.as_printed.partition(" (App")[0])]
        value = sum(printed) if "+" in row.as_printed else printed[0]
        scale = 1000.0 if "thousands" in row.as_printed else 1.0 if _as_it_is(name, row.metric) else 0.01
        assert row.value is not None
        assert math.isclose(row.value, value * scale, rel_tol=1e-9)
        if row.spread is not None:
            assert math.isclose(row.spread, printed[1] * scale, rel_tol=1e-9)


def _as_it_is(name: str, metric: str) -> bool:
    """One table prints fractions, an OIF is none, and costs are in seconds and megabytes."""
    return name in ("clipping-parameter", "proof-costs") or metric == "oif"


def test_the_formula_is_there() -> None:
    exhibit = reading.load("combinatorial-bounds")
    rows = resolve("formula", exhibit.formula, {})()
    cells = [row["cell"] for row in rows]
    assert all(metric in rows[0]["metrics"] for metric in exhibit.metrics)
    for claim in exhibit.claims:
        assert any(matches(cell, claim.at) for cell in cells), claim.text
    for row in reading.load_paper(exhibit).rows:
        assert row.cell in cells


def test_the_costs_of_proofs_are_measured_for_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography", reason="secure aggregation is the extra sparsefed[secure]")
    monkeypatch.setattr(proof_costs, "SIZES", {"CNN, 95 366": 200, "ResNet9, 6 567 488": 300})
    exhibit, rows = reading.load("proof-costs"), proof_costs.rows()
    assert exhibit.formula == "sparsefed.secure.costs:rows"
    assert all(set(row["metrics"]) == set(exhibit.metrics) and row["metrics"]["verify_ms"] > 0 for row in rows)
    for row in reading.load_paper(exhibit).rows:
        assert row.cell in [each["cell"] for each in rows]


def test_one_attack_for_all_defenses_unless_it_is_searched() -> None:
    """Within an exhibit the attack may not depend on the defense, or one of them would be flattered."""
    for name in RUNS:
        exhibit = reading.load(name)
        if "defense" in exhibit.axes and exhibit.search is None:
            assert not _parts_with(exhibit, "attack"), name


def _parts_with(exhibit: Exhibit, table: str) -> list[str]:
    own = (exhibit.axes["defense"], *(scale.axes.get("defense", {}) for scale in exhibit.scales.values()))
    return [value for parts in own for value, part in parts.items() if table in part]


def test_variants_of_an_attack_share_a_twin() -> None:
    """And it is the run that `accuracy-impact` has: nobody attacks, the same points are left out."""
    each = next(
        c for c in combinations("attack-accuracy", "paper") if c.values == {"data": "CIFAR10", "defense": "Clipping"}
    )
    twins = {twin(each.result(0, variant), "unattacked") for variant in each.variants}
    calm = next(c for c in combinations("accuracy-impact", "paper") if c.values == {"defense": "Clipping"})
    assert {found.key for found in twins if found} == {calm.result(0).key}


def test_files_and_names_match() -> None:
    folder = resources.files("sparsefed.commands.reproduce")
    papers = {file.name.removesuffix(".json") for file in (folder / "paper").iterdir() if file.name.endswith(".json")}
    assert papers == set(NAMES)
    for name in NAMES:
        text = (folder / "paper" / f"{name}.json").read_text(encoding="utf-8")
        told = json.loads(text)
        assert told["label"] == reading.load(name).label or name == "combinatorial-bounds"
