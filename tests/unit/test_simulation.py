"""`Simulation`: objects in, results out; the same bits as a config, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefed import attacks, runs
from sparsefed.attacks import Goal, goals
from sparsefed.core.choice import Chosen
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.round import RoundReport
from sparsefed.core.threat import ThreatModel
from sparsefed.core.types import Context, Defense, State, Step
from sparsefed.reports.run_report import report as compared
from sparsefed.simulation import Simulation

DIGITS: dict[str, Any] = {
    "rounds": 4,
    "evaluate_every": 2,
    "data": {"name": "digits", "partition": "iid", "devices": 40},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.1, "schedule": "constant"},
    "defense": {"name": "sparsefed", "k": 50, "clip_norm": 2.0},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20},
}

draw = np.random.default_rng(0)
TABLE = draw.standard_normal((400, 6)).astype(np.float32) * np.array([1e3, 1, 1, 1, 1, 1e-3], np.float32)
LABELS = (TABLE[:, 1] > 0).astype(np.int64) + (TABLE[:, 2] > 0)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def tabular(**changes: Any) -> Simulation:
    torch.default_generator.manual_seed(0)
    options: dict[str, Any] = {
        "defense": {"name": "clipping", "clip_norm": 1.0},
        "threat": 0.1,
        "attack": {"name": "pgd", "auxiliary": 10},
        "devices": 40,
        "cohort": 10,
        "rounds": 4,
        "schedule": 0.1,
        **changes,
    }
    return Simulation(options.pop("model", None) or net(), options.pop("data", (TABLE, LABELS)), **options)


def test_a_config_and_the_same_in_objects_give_the_same_bits() -> None:
    written = Simulation.from_config(DIGITS).run()
    spoken = Simulation(
        "softmax",
        "digits",
        defense=Chosen("defense", "sparsefed", len, {"k": 50, "clip_norm": 2.0}),
        attack={"name": "pgd", "auxiliary": 20},
        threat=ThreatModel(share=0.1),
        devices=40,
        cohort=10,
        rounds=4,
        schedule=0.1,
        evaluate_every=2,
    ).run()
    assert torch.equal(written.theta, spoken.theta)
    assert [row["update_norm"] for row in written.history] == [row["update_norm"] for row in spoken.history]
    assert Simulation.from_config(spoken.to_config()).config == spoken.config


def test_iterating_gives_reports_and_a_history() -> None:
    seen: list[RoundReport] = []
    simulation = Simulation.from_config(DIGITS, on_round=seen.append)
    assert [report.state.round for report in simulation] == [1, 2, 3, 4]
    assert [row["round"] for row in simulation.history] == [report.state.round for report in seen] == [1, 2, 3, 4]
    assert simulation.history[-1]["test_accuracy"] == simulation.evaluate()["test_accuracy"]
    assert list(simulation) == []  # nothing is left


def test_the_users_own_module_and_table_are_trained_without_disguise() -> None:
    module = net()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    simulation = tabular(model=module, rounds=3).run()
    assert all(torch.equal(module.state_dict()[name], weight) for name, weight in before.items())  # never written to
    assert simulation.state_dict().keys() == before.keys()
    flat = torch.cat([weight.reshape(-1) for weight in simulation.state_dict().values()])
    assert torch.equal(flat, simulation.theta)
    assert simulation.built.setup.federation.x.dtype == torch.float32
    outputs = simulation.model(torch.from_numpy(TABLE))
    assert outputs.shape == (400, 3)


def test_the_first_model_is_the_users_weights() -> None:
    module = net()
    flat = torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])
    assert torch.equal(tabular(model=module).theta, flat)


def test_a_loss_of_ones_own() -> None:
    def doubled(outputs: Tensor, y: Tensor) -> Tensor:
        return 2 * nn.functional.cross_entropy(outputs, y, reduction="none")

    plain, twice = (tabular(loss=loss, defense="mean", attack=None, threat=None, rounds=1) for loss in (None, doubled))
    moved = [each.run().theta - each.built.theta for each in (plain, twice)]
    decay = 5e-4 / 10 * plain.built.theta * 0.1
    torch.testing.assert_close(moved[1] + decay, 2 * (moved[0] + decay), rtol=1e-4, atol=1e-7)
    assert twice.evaluate()["test_loss"] == pytest.approx(doubled(*_tested(twice)).mean().item(), rel=1e-4)


def _tested(simulation: Simulation) -> tuple[Tensor, Tensor]:
    from sparsefed import config, data

    arrays = data.load(config.dataset(simulation.config))
    return simulation.model(torch.from_numpy(arrays.x_test)), torch.from_numpy(arrays.y_test)


def test_a_loss_that_returns_its_mean_is_refused() -> None:
    with pytest.raises(ConfigError, match="one for each example"):
        tabular(loss=nn.functional.cross_entropy).run()


def test_saved_and_restored_is_uninterrupted(tmp_path: Path) -> None:
    whole = tabular().run()
    half = tabular()
    for report in half:
        if report.state.round == 2:
            break
    half.save(tmp_path / "run")
    resumed = tabular().restore(tmp_path / "run").run()
    assert torch.equal(resumed.theta, whole.theta)
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4]
    assert runs.load_run(tmp_path / "run").manifest["status"] == "interrupted"
    with pytest.raises(RunError, match="another config"):
        tabular(cohort=9).restore(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model\.name.*restore"):
        Simulation.from_run(tmp_path / "run")


def test_a_run_folder_of_the_command_goes_on_in_python(tmp_path: Path) -> None:
    simulation = Simulation.from_config(DIGITS)
    for report in simulation:
        if report.state.round == 2:
            break
    simulation.save(tmp_path / "run")
    assert torch.equal(Simulation.from_run(tmp_path / "run").run().theta, Simulation.from_config(DIGITS).run().theta)


def test_saved_runs_are_reported_together(tmp_path: Path) -> None:
    for seed in (0, 1):
        Simulation.from_config({**DIGITS, "name": f"run-{seed}", "seed": seed}).run().save(tmp_path / str(seed))
    page = compared(tmp_path).to_html()
    assert "run-0" in page and "run-1" in page
    assert compared(runs.load_run(tmp_path / "0")).runs == compared(tmp_path / "0").runs


def test_objects_cannot_be_written_down_and_the_sentence_names_them() -> None:
    with pytest.raises(ConfigError, match=r"data\.name, model\.name cannot be written"):
        tabular().to_config()


def test_mistakes_are_the_sentences_of_configs() -> None:
    with pytest.raises(ConfigError, match="unknown model 'cn'"):
        Simulation("cn", "digits")
    with pytest.raises(ConfigError, match="nobody to carry it out"):
        tabular(threat=None)
    with pytest.raises(ConfigError, match=r"tuple of 3; give \(x, y\)"):
        tabular(data=(TABLE, LABELS, TABLE))
    with pytest.raises(ConfigError, match="unknown key"):
        tabular(rouns=3)


def test_a_defense_that_does_not_read_all_updates_is_an_error() -> None:
    def impatient() -> Defense:
        def step(state: State, blocks: Any, context: Context) -> Step:  # noqa: ARG001
            return Step(state, next(iter(blocks)).rows()[0], {})

        return Defense(lambda d: {}, step, lambda state, context: float("inf"))  # noqa: ARG005

    with pytest.raises(ConfigError, match="did not read all updates"):
        tabular(defense=impatient).run()


def test_goals_of_another_attack_and_of_ones_own() -> None:
    """An attack serves any goal: one that a function makes of the data, or points and labels that the user chose."""
    semantic = tabular(attack=attacks.pgd(goals.semantic(source=0, target=2), step=0.1)).run()
    assert semantic.built.facts["attack_points"] > 0
    x, y = torch.from_numpy(TABLE[:5]), torch.full((5,), 2)
    own = tabular(attack=attacks.pgd(Goal(x, y, x, y, torch.arange(0)), step=0.1)).run()
    assert own.built.facts["attack_points"] == 5 and "attack_accuracy" in own.evaluate()
    with pytest.raises(ConfigError, match=r"attack\.name"):
        own.to_config()


class Notes:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def start(self, config: Any) -> None:
        self.lines.append(config["rounds"])

    def log(self, round: int, metrics: Any) -> None:
        assert all(isinstance(value, float) for value in metrics.values())
        self.lines.append(round)

    def finish(self, status: str) -> None:
        self.lines.append(status)


def test_trackers_see_every_round_and_the_end() -> None:
    notes = Notes()
    Simulation.from_config(DIGITS, trackers=[notes]).run()
    assert notes.lines == [4, 1, 2, 3, 4, "finished"]
