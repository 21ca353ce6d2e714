"""A run beside its twins: who they are, what is compared, and what `run --twins` leaves behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.cli import app
from sparsefed.core.errors import ConfigError
from sparsefed.core.types import RunRecord
from sparsefed.reports import html
from sparsefed.results.summary import summary
from sparsefed.results.twins import class_accuracies, compare

CONFIG = """
seed = 5
rounds = 8
evaluate_every = 4
checkpoint_every = 3
[data]
name = "digits"
devices = 100
[model]
name = "softmax"
[train]
cohort = 20
lr = 0.5
mode = "fedavg"
[defense]
name = "sparsefed"
k = 200
clip_norm = 5.0
[threat]
share = 0.2
[attack]
name = "pgd"
auxiliary = 30
"""


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An attacked run and its twins, as the command makes them."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "a.toml").write_text(CONFIG)
    code, told = invoke("run", str(folder / "a.toml"), "--twins", "--out", str(folder / "a"))
    assert code == 0 and "Runs under attack" in told
    return [folder / name for name in ("a", "a-unattacked", "a-plain")]


@pytest.fixture(scope="module")
def records(folders: list[Path]) -> list[RunRecord]:
    return [runs.load_run(folder) for folder in folders]


def test_twins_differ_in_nothing_but_attackers_and_defense(records: list[RunRecord]) -> None:
    attacked, calm, plain = (dict(record.config) for record in records)
    assert calm["threat"]["count"] == 0 and "share" not in calm["threat"]
    for twin in (calm, plain):
        assert twin["attack"] == attacked["attack"]  # so that the same points are left out of the test set
        assert {k for k in twin if twin[k] != attacked[k]} - {"defense"} == {"name", "threat"}
    assert calm["defense"] == attacked["defense"] and plain["defense"] == {"name": "undefended"}
    assert all(not row["attackers"] for record in records[1:] for row in record.rows)


def test_the_comparison_is_what_one_would_work_out_by_hand(records: list[RunRecord], folders: list[Path]) -> None:
    (found,) = compare(records)
    last = [record.rows[-1] for record in records]
    assert (found.name, found.unattacked) == ("a", "a-unattacked")
    assert found.drop == last[1]["test_accuracy"] - last[0]["test_accuracy"]
    assert found.learned_anyway == last[1]["attack_accuracy"]
    models = [runs.load_state(folder).theta.double() for folder in folders]  # type: ignore[union-attr]
    for apart, other in ((found.to_unattacked, models[1]), (found.to_plain, models[2])):
        assert apart is not None
        assert apart.l1 == pytest.approx(float((models[0] - other).abs().sum()), rel=1e-12)
        assert apart.l2 == pytest.approx(float((models[0] - other).square().sum().sqrt()), rel=1e-12)
    for name, drop in found.class_drops.items():
        digit = int(name)
        assert drop == last[1]["class_accuracy"][digit] - last[0]["class_accuracy"][digit]
    assert len(found.class_drops) == 10


def test_accuracies_of_classes_add_up_to_the_whole(records: list[RunRecord]) -> None:
    experiment = configs.build(configs.parse(records[0].config))
    state = runs.load_state(records[0].folder or Path())
    assert state is not None
    measured = experiment.evaluate(state.theta)
    assert measured["test_accuracy"] == records[0].rows[-1]["test_accuracy"]
    by_class = list(class_accuracies(records[0]).values())
    assert min(by_class) <= measured["test_accuracy"] <= max(by_class)


def test_the_outsized_impact_is_the_papers(records: list[RunRecord]) -> None:
    row = summary(records)[0]
    assert row.attack_accuracy is not None
    assert row.impact == pytest.approx(row.attack_accuracy * 30 / (0.2 * 1500))
    assert [each.impact for each in summary(records)[1:]] == [None, None]


def test_without_a_twin_there_is_nothing_to_compare(records: list[RunRecord]) -> None:
    assert compare(records[:1]) == [] and compare(records[1:]) == []
    other = replace(records[1], config={**records[1].config, "seed": 6})
    assert compare([records[0], other]) == []
    (only_plain,) = compare([records[0], records[2]])
    assert only_plain.unattacked is None and only_plain.drop is None and only_plain.to_unattacked is None
    assert only_plain.to_plain is not None


def test_models_of_different_rounds_are_not_compared(records: list[RunRecord], tmp_path: Path) -> None:
    config = configs.parse(records[1].config)
    experiment = configs.build(config)
    runs.create(tmp_path / "early", configs.dump(config))

    def stopped(report: Any) -> None:
        if report.state.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.execute(tmp_path / "early", experiment.begin(), experiment.reports, 3, stopped)
    (found,) = compare([records[0], runs.load_run(tmp_path / "early")])
    assert found.to_unattacked is None and found.unattacked == "a-unattacked"


def test_again_nothing_is_trained_and_a_lost_twin_alone_is_made_again(folders: list[Path]) -> None:
    before = {path: path.read_bytes() for folder in folders for path in folder.glob("*.safetensors")}
    again = ("run", str(folders[0].parent / "a.toml"), "--twins", "--out", str(folders[0]))
    assert "already" in invoke(*again)[1]
    (folders[1] / runs.CHECKPOINT).unlink()
    (folders[1] / "previous.safetensors").unlink(missing_ok=True)
    runs.note(folders[1], status="running", round=0)
    code, told = invoke(*again)
    assert code == 0 and "a-unattacked: round 8/8" in told and "a-plain: round" not in told
    assert {path: path.read_bytes() for path in before} == before


def test_the_page_tells_what_the_attack_did(records: list[RunRecord]) -> None:
    page = html(records)
    assert "What the attack did" in page and " pt lost</span>" in page and "CONFIG.toml --twins" not in page
    alone = html(records[:1])
    assert "What the attack did" in alone and "CONFIG.toml --twins" in alone and "l2 to plain" not in alone
    assert "What the attack did" not in html(records[1:])


def test_a_finished_run_at_chance_did_not_converge(records: list[RunRecord]) -> None:
    chance = records[0].manifest["task"]["chance"]
    rows = ({"round": 1, "test_loss": 2.3, "test_accuracy": 1.1 * chance},)  # the loss of the class shares
    flat = replace(records[1], rows=rows)
    assert not summary([flat])[0].converged
    assert summary([replace(flat, rows=({**rows[0], "test_accuracy": 1.5 * chance},))])[0].converged
    assert summary([replace(flat, manifest={**flat.manifest, "status": "running"})])[0].converged


def test_a_config_without_attackers_has_no_twins() -> None:
    calm = configs.parse({"data": {"name": "digits", "devices": 100}})
    with pytest.raises(ConfigError, match="nobody attacks"):
        configs.twins(calm)
    attacked = configs.parse(
        {
            "data": calm.data.model_dump(),
            "threat": {"count": 3},
            "attack": {"name": "pgd"},
            "defense": {"name": "undefended"},
        }
    )
    assert list(configs.twins(attacked)) == ["unattacked"]


def test_nobody_attacks_is_a_config_too() -> None:
    """The goal is measured, nothing is sent."""
    table = {"data": {"name": "digits", "devices": 50}, "model": {"name": "softmax"}, "rounds": 1}
    config = configs.parse(
        {**table, "train": {"cohort": 10}, "threat": {"count": 0}, "attack": {"name": "pgd", "auxiliary": 10}}
    )
    experiment = configs.build(config)
    (report,) = experiment.reports(experiment.begin())
    assert report.metrics["attackers"] == 0 and "attack_accuracy" in report.metrics
    assert torch.isfinite(report.state.theta).all()
