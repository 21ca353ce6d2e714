"""The tuner: what it searches, that it loses nothing, that what it finds can be run again, and that it finds."""

from __future__ import annotations

import io
import json
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import sqlalchemy.event
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from sparsefed import config as configs
from sparsefed import reports as report
from sparsefed import runs
from sparsefed.attacks import ATTACKS, NEEDS, Attack, Attacker, Goal, Knowledge, attack_info
from sparsefed.commands import tune
from sparsefed.commands.tune import Trial, TuneResult
from sparsefed.commands.tune import trials as outcomes
from sparsefed.commands.tune.space import Categories, Range, holds, own_params, search_space, with_params
from sparsefed.config import Config
from sparsefed.core import toml
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.progress import Progress
from sparsefed.core.rng import rng
from sparsefed.reports.progress_view import ProgressView
from sparsefed.reports.to_terminal import tables
from tests.support.pages import BROWSER, browser
from tests.support.processes import Command, Nursery, Server

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 5,
    "rounds": 12,
    "evaluate_every": 1,
    "data": {"name": "digits", "partition": "one_class", "devices": 100},
    "model": {"name": "softmax"},
    "train": {"cohort": 10, "lr": 0.5, "mode": "fedavg"},
    "threat": {"share": 0.1},
    "attack": {"name": "pgd", "auxiliary": 20, "batch": 10, "step": 0.05, "boost": 5.0},
}
Pairs = Sequence[tuple[float, float]]


def small(attack: Mapping[str, Any] | None = None, **more: Any) -> Config:
    return configs.parse({**SMALL, "attack": attack or SMALL["attack"], **more})


def told(trial: Trial) -> tuple[Any, ...]:
    """All of a trial but its number, which also counts those that were killed."""
    return dict(trial.params), trial.state, trial.rounds, *values(trial), trial.norm_ratio


def values(trial: Trial) -> tuple[float | None, float | None]:
    return trial.attack_accuracy, trial.test_accuracy


pytestmark = pytest.mark.usefixtures("as_many_threads_as_the_commands")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneResult, Path]:
    """A search long enough for the sampler to have begun to learn (ten trials are drawn at random)."""
    folder = tmp_path_factory.mktemp("tuned")
    outcome = tune.tune(small(), trials=13, folder=folder)
    outcome.save(folder)
    return outcome, folder


# --- the rules -------------------------------------------------------------------------------------------------------


def naive_front(points: Pairs) -> list[int]:
    kept = []
    for i, (attack, test) in enumerate(points):
        beaten = False
        for other_attack, other_test in points:
            if other_attack >= attack and other_test >= test and (other_attack > attack or other_test > test):
                beaten = True
        if not beaten:
            kept.append(i)
    return kept


accuracies = st.integers(0, 5).map(lambda fifth: fifth / 5)


@given(st.lists(st.tuples(accuracies, accuracies), max_size=12))
def test_the_front_is_what_nothing_beats(points: Pairs) -> None:
    assert outcomes.nondominated(list(points)) == naive_front(points)


@given(st.lists(st.tuples(accuracies, accuracies), min_size=1, max_size=12), st.sampled_from([None, 0.0, 0.02, 0.3]))
def test_the_strongest_is_on_the_front_and_as_stealthy_as_asked(points: Pairs, stealth: float | None) -> None:
    trials = [Trial(i, {}, "finished", 1, attack, test) for i, (attack, test) in enumerate(points)]
    best = outcomes.strongest(trials, trials[0], "both", stealth)
    assert best.number in naive_front(points)
    attack, test = points[best.number]
    most = max(test for _, test in points)
    floor = min(points[0][1], most - 0.02) if stealth is None else most - stealth
    assert test >= floor
    assert attack == max(attack for attack, test in points if test >= floor)
    assert attack >= points[0][0] or stealth is not None


def test_a_model_that_answers_nothing_is_no_success_but_it_is_damage() -> None:
    gone = Trial(1, {}, "finished", 9, 1.0, 0.1, converged=False)
    poor = Trial(0, {}, "finished", 9, 0.3, 0.2)
    assert outcomes.values(gone, "both") == (0.0, 0.0)
    assert outcomes.strongest([poor, gone], poor, "attack", 0.02) is poor
    assert outcomes.strongest([poor, gone], poor, "damage", 0.02) is gone


# --- a search --------------------------------------------------------------------------------------------------------


def test_it_begins_with_the_config_and_ends_no_worse(tuned: tuple[TuneResult, Path]) -> None:
    outcome, _ = tuned
    first, best = outcome.trials[0], outcome.strongest
    assert first.params == {"epochs": 5, "batch": 10, "step": 0.05, "boost": 5.0, "to_budget": True}
    assert first.state == "finished" and len(outcome.trials) == 13 and outcome.failed == 0
    assert best in outcome.front
    assert best.attack_accuracy is not None and first.attack_accuracy is not None
    assert best.attack_accuracy > first.attack_accuracy  # here it does find something
    finished = [trial for trial in outcome.trials if trial.state == "finished"]
    front = naive_front([(trial.attack_accuracy or 0, trial.test_accuracy or 0) for trial in finished])
    assert {trial.number for trial in outcome.front} == {finished[i].number for i in front}
    shown = [trial.attack_accuracy or 0 for trial in outcome.front]
    assert shown == sorted(shown, reverse=True)


def test_what_is_tried_stays_in_the_space(tuned: tuple[TuneResult, Path]) -> None:
    outcome, _ = tuned
    assert outcome.space["batch"] == Range(1, 20, log=True, whole=True)  # no more than there are points
    for trial in outcome.trials:
        assert trial.params.keys() == outcome.space.keys()
        assert all(holds(outcome.space[name], value) for name, value in trial.params.items())
        assert isinstance(trial.params["epochs"], int) and isinstance(trial.params["step"], float)
    assert len({trial.params["step"] for trial in outcome.trials}) == 13


def test_interrupted_and_continued_it_is_the_same_search(tuned: tuple[TuneResult, Path], tmp_path: Path) -> None:
    """Ctrl-C in the eleventh trial, when the sampler learns already, and go on."""

    def interrupt(reached: Progress) -> None:
        if 10.4 < reached.done < 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune.tune(small(), trials=13, folder=tmp_path, on_progress=interrupt)
    outcome = tune.tune(small(), trials=13, folder=tmp_path)
    assert outcome.failed == 1
    assert list(map(told, outcome.trials)) == list(map(told, tuned[0].trials))


def test_ctrl_c_while_a_trial_is_written_down_is_still_ctrl_c(tuned: tuple[TuneResult, Path], tmp_path: Path) -> None:
    """There Optuna would make an error of its own of it."""
    seen: list[str] = []

    def watch(connection: object, cursor: object, statement: str, *rest: object) -> None:  # noqa: ARG001
        seen.append(statement)

    def interrupt(connection: object) -> None:  # noqa: ARG001
        if any(each.startswith("INSERT INTO trial_values") for each in seen):
            seen.clear()
            signal.raise_signal(signal.SIGINT)

    hooks: dict[str, Callable[..., None]] = {"before_cursor_execute": watch, "commit": interrupt}
    for event, hook in hooks.items():
        sqlalchemy.event.listen(sqlalchemy.Engine, event, hook)
    try:
        with pytest.raises(KeyboardInterrupt):
            tune.tune(small(), trials=13, folder=tmp_path)
    finally:
        for event, hook in hooks.items():
            sqlalchemy.event.remove(sqlalchemy.Engine, event, hook)
    assert states(tmp_path / "study.db") == ["COMPLETE"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    outcome = tune.tune(small(), trials=2, folder=tmp_path)
    assert list(map(told, outcome.trials)) == list(map(told, tuned[0].trials[:2]))


def test_another_seed_is_another_search(tuned: tuple[TuneResult, Path], tmp_path: Path) -> None:
    outcome = tune.tune(small(), trials=2, folder=tmp_path, seed=6)
    assert told(outcome.trials[0]) == told(tuned[0].trials[0])
    assert outcome.trials[1].params != tuned[0].trials[1].params


def test_a_folder_is_one_process_at_a_time(tmp_path: Path) -> None:
    def meddle(reached: Progress) -> None:
        if reached.done > 0:
            tune.tune(small(), trials=1, folder=tmp_path)

    with pytest.raises(RunError, match="another process is working on"):
        tune.tune(small(), trials=1, folder=tmp_path, on_progress=meddle)
    assert states(tmp_path / "study.db") == ["FAIL"]
    assert tune.tune(small(), trials=1, folder=tmp_path).first.params["step"] == 0.05  # the first trial is tried again


def states(database: Path) -> list[str]:
    connection = sqlite3.connect(database, timeout=0)
    try:
        return [str(state) for (state,) in connection.execute("select state from trials order by number")]
    finally:
        connection.close()


def test_a_database_that_is_damaged_or_fails_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database" * 500)
    with pytest.raises(
        RunError, match=r"study.db cannot be opened \(.*not a database\); mend that, or delete the file"
    ):
        tune.tune(small(), trials=1, folder=tmp_path)
    (tmp_path / "study.db").unlink()

    def destroy(reached: Progress) -> None:
        if reached.done > 0.4:
            with sqlite3.connect(tmp_path / "study.db") as connection:
                connection.execute("drop table if exists trial_user_attributes")
            connection.close()

    with pytest.raises(RunError, match=r"failed \(.*no such table.*\); mend that, then go on with the same command"):
        tune.tune(small(), trials=1, folder=tmp_path, on_progress=destroy)


def test_of_machines_that_share_a_study_the_dead_are_told_from_the_living(tmp_path: Path) -> None:
    """Two trials under way elsewhere: one heard of just now, one not for an hour."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    tune.tune(small(), trials=1, folder=tmp_path / "one", storage=url)
    with sqlite3.connect(tmp_path / "shared.db") as connection:
        for number, last in ((1, "now"), (2, "-1 hour")):
            made = "insert into trials (number, study_id, state, datetime_start) values (?, 1, 'RUNNING', datetime())"
            trial = connection.execute(made, (number,)).lastrowid
            heard = "insert into trial_heartbeats (trial_id, heartbeat) values (?, datetime('now', ?))"
            connection.execute(heard, (trial, "0 seconds" if last == "now" else last))
    connection.close()
    outcome = tune.tune(small(), trials=2, folder=tmp_path / "two", storage=url)
    assert states(tmp_path / "shared.db") == ["COMPLETE", "RUNNING", "FAIL", "COMPLETE"]
    assert len(outcome.trials) == 2 and outcome.failed == 1
    assert not (tmp_path / "two" / "study.db").exists()


def test_more_trials_are_added_and_fewer_only_shown(tmp_path: Path) -> None:
    two = tune.tune(small(), trials=2, folder=tmp_path)
    three = tune.tune(small(name="renamed", checkpoint_every=7), trials=3, folder=tmp_path)
    assert three.trials[:2] == two.trials and len(three.trials) == 3
    assert tune.tune(small(), trials=1, folder=tmp_path).trials == three.trials


def test_another_beginning_is_the_same_search_another_config_is_not(tmp_path: Path) -> None:
    before = tune.tune(small(), trials=2, folder=tmp_path)
    step = small({**SMALL["attack"], "step": 0.5})
    after = tune.tune(step, trials=2, folder=tmp_path)
    assert after.trials[:2] == before.trials
    assert [trial.params["step"] for trial in after.trials[2:]] == [0.5]  # so it cannot end worse than that either
    with pytest.raises(RunError, match=r"another search: train.lr was 0.5 and is 0.25; .* --out"):
        tune.tune(small(train={**SMALL["train"], "lr": 0.25}), trials=3, folder=tmp_path)
    with pytest.raises(RunError, match=r"another search: objective was both and is attack"):
        tune.tune(small(), trials=3, folder=tmp_path, objective="attack")
    with pytest.raises(RunError, match=r"another search: space.step.high was 1.0 and is 0.1"):
        tune.tune(small(), trials=3, folder=tmp_path, space=["attack.step=0.01:0.1"])


# --- attacks of our own ----------------------------------------------------------------------------------------------


def spoil(
    goal: Goal | None,  # noqa: ARG001
    *,
    size: Annotated[float, "norm of what is sent"] = 1.0,
    seen: Annotated[float | None, "given"] = None,
) -> Attack:
    """Noise of a given norm; refuses to be small."""
    if size < 0.5:
        raise ConfigError(f"spoil: size is {size}; at least 0.5")

    def craft(knowledge: Knowledge) -> Tensor:
        drawn = rng(knowledge.seed, "spoil", knowledge.round).standard_normal(len(knowledge.theta))
        noise = knowledge.theta.new_tensor(drawn)
        return noise * float(size * (seen or 1.0) / noise.norm())

    return Attack(craft)


def shapes(
    goal: Goal,  # noqa: ARG001
    *,
    whole: int = 6,
    way: Literal["up", "down"] = "up",
    zero: float = 0.0,
    least: int | None = None,
    rate: float = 3,
    classes: int = 10,
) -> Attack:
    """Sends nothing; for its signature."""
    assert min(whole, rate, classes) > 0 and way in ("up", "down") and zero >= 0 and (least or 1) > 0
    return Attack(lambda knowledge: knowledge.theta * 0)


def nothing(goal: Goal) -> Attack:  # noqa: ARG001
    """Takes no parameter."""
    return Attack(lambda knowledge: knowledge.theta * 0)


SPOILER = Attacker(spoil, "")


def test_an_attack_without_a_goal_is_tuned_for_damage(tmp_path: Path) -> None:
    """What it refuses counts as a trial, what it leaves open is first left open, and hopeless trials are cut short."""
    config = small({"name": "tests.commands.test_tune:SPOILER", "size": 1.0})
    with pytest.raises(ConfigError, match="no attack accuracy; use --objective damage"):
        tune.tune(config, trials=1, folder=tmp_path, objective="both")
    outcome = tune.tune(config, trials=16, folder=tmp_path, space=["size=0.1:100", "seen=1:2"])
    assert outcome.objective == "damage" and len(outcome.trials) == 16
    assert outcome.trials[0].params == {"size": 1.0}
    assert all("seen" in trial.params for trial in outcome.trials[1:])
    for trial in outcome.trials:
        assert (trial.state == "refused") == (trial.params["size"] < 0.5)
        assert trial.rounds == {"refused": 0, "finished": 12}.get(trial.state, trial.rounds)
    pruned = [trial for trial in outcome.trials if trial.state == "pruned"]
    assert pruned and {trial.rounds for trial in pruned} <= {4, 6}  # a third and half of 12
    assert outcome.strongest.test_accuracy == min(
        trial.test_accuracy for trial in outcome.trials if trial.test_accuracy is not None and trial.state == "finished"
    )
    assert outcome.trials[0].test_accuracy is not None and outcome.strongest.test_accuracy is not None
    assert outcome.strongest.test_accuracy < outcome.trials[0].test_accuracy - 0.2
    paths = outcome.save(tmp_path)
    assert configs.read(paths[0]).attack == outcome.tuned.attack
    assert "Strongest is the lowest test accuracy" in paths[0].read_text()


def test_of_two_objectives_what_the_front_outdid_is_pruned(tuned: tuple[TuneResult, Path]) -> None:
    """By running what was pruned, and the front, to the same round."""
    outcome, _ = tuned
    pruned = [trial for trial in outcome.trials if trial.state == "pruned"]
    assert pruned  # or this shows nothing
    for trial in pruned:
        before = [other for other in outcome.trials if other.number < trial.number and other.state == "finished"]
        assert len(before) >= outcomes.WARMUP and trial.rounds in (4, 6)
        here = reached(outcome.config, trial)
        there = [reached(outcome.config, other, trial.rounds) for other in before]
        ahead = [(attack - here[0], test - here[1]) for attack, test in there]
        assert any(max(each) >= outcomes.GAP and min(each) >= -outcomes.SLACK for each in ahead)


def reached(config: Config, trial: Trial, rounds: int | None = None) -> tuple[float, float]:
    experiment = configs.build(with_params(config, trial.params))
    for done in experiment.reports(experiment.begin()):
        if done.state.round == (rounds or trial.rounds):
            return done.metrics["attack_accuracy"], done.metrics["test_accuracy"]
    raise AssertionError("the trial is said to have come further than its run")


# --- the space -------------------------------------------------------------------------------------------------------


def test_the_space_follows_from_types_and_defaults() -> None:
    space = search_space(small({"name": "tests.commands.test_tune:shapes", "whole": 500}), ["attack.least=1:3"])
    assert space == {
        "whole": Range(1, 500, log=True, whole=True),  # 6 / 30 to 6 * 30, with the config's own in it
        "way": Categories(("up", "down")),
        "least": Range(1, 3, log=False, whole=True),
        "rate": Range(0.1, 90, log=True, whole=False),
    }  # neither a zero, which has no scale, nor what is a fact of the data set
    assert own_params(small({"name": "tests.commands.test_tune:shapes"}), space) == {"whole": 6, "way": "up", "rate": 3}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_takes_the_ends_of_its_space(name: str) -> None:
    """Those that search for themselves, or have nothing to search, say so."""
    everything = {"share": 0.1, "knowledge": NEEDS}
    config = small({"name": name}, threat=everything)
    if name in ("alie_searched", "ipm_searched", "mimic"):
        with pytest.raises(ConfigError, match="no parameter that can be searched; say what to search as --space"):
            search_space(config)
        return
    x, y = torch.zeros(8, 6, 6, 1, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    goal = Goal(x, y, x, y, y, stamp=lambda raw: torch.full_like(raw, 9), target=0)
    for end in (0, -1):
        params = {key: ends(searched)[end] for key, searched in search_space(config).items()}
        assert isinstance(attack_info(ATTACKS[name]).method(goal, **params), Attack)


def ends(searched: Range | Categories) -> tuple[Any, ...]:
    if isinstance(searched, Categories):
        return searched.options
    return tuple(int(end) if searched.whole else end for end in (searched.low, searched.high))


def test_the_space_can_be_said() -> None:
    space = search_space(small(), ["attack.step=0.01:1", "boost=5:9", "attack.to_budget=true", "epochs=1,5,9"])
    assert space["step"] == Range(0.01, 1, log=True, whole=False)
    assert space["boost"] == Range(5, 9, log=False, whole=False)
    assert space["to_budget"] == Categories((True,)) and space["epochs"] == Categories((1, 5, 9))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("step", r"--space was given 'step'; say what to search as --space attack.KEY=LOW:HIGH"),
        ("attack.stpe=1:2", r"unknown parameter of attack pgd 'stpe' \(did you mean 'step'\?\)"),
        ("attack.auxiliary=1:2", r"auxiliary says what the attackers want"),
        ("step=a:b", r"attack.step=a:b: 'a' and 'b' should be numbers"),
        ("step=1:0.1", r"1:0.1 is empty or endless"),
        ("step=0.001:inf", r"endless"),
        ("epochs=0.5:9", r"should be whole numbers"),
        ("to_budget=0:1", r"to_budget is 0.0, but must be bool"),
        ("step=big,small", r"step is 'big', but must be float"),
        ("step=0.2:1", r"leaves out 0.05, which the config has .* --set attack.step=VALUE"),
    ],
)
def test_a_space_that_cannot_be_is_refused_in_a_sentence(said: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        search_space(small(), [said])


def test_a_config_that_cannot_be_tuned_is_refused_in_a_sentence(tmp_path: Path) -> None:
    peace = configs.parse({key: item for key, item in SMALL.items() if key not in ("attack", "threat")})
    with pytest.raises(ConfigError, match=r"no \[attack\] to tune; add"):
        tune.tune(peace, trials=3, folder=tmp_path)
    with pytest.raises(ConfigError, match="nothing has no parameter that can be searched"):
        tune.tune(small({"name": "tests.commands.test_tune:nothing"}), trials=3, folder=tmp_path)
    with pytest.raises(ConfigError, match="--trials is 0"):
        tune.tune(small(), trials=0, folder=tmp_path)
    with pytest.raises(ConfigError, match="--stealth is 2, but is a share of test accuracy"):
        tune.tune(small(), trials=1, folder=tmp_path, stealth=2)
    with pytest.raises(ConfigError, match="unknown objective 'fame'"):
        tune.tune(small(), trials=1, folder=tmp_path, objective="fame")
    with pytest.raises(ConfigError, match=r"database cannot be opened .* --storage takes a URL"):
        tune.tune(small(), trials=1, folder=tmp_path, storage="nonsense")
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(RunError, match=r"study.json is damaged"):
        tune.tune(small(), trials=1, folder=tmp_path)


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparsefed\[tune\]'"):
        tune.tune(small(), trials=1, folder=tmp_path)


# --- what is left behind and shown -----------------------------------------------------------------------------------


def printed(thing: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_the_front(tuned: tuple[TuneResult, Path]) -> None:
    outcome, _ = tuned
    text = printed(next(tables(outcome.document())))
    rows = [line for line in text.splitlines() if line.startswith("│") and line.split("│")[1].strip()]
    assert [int(row.split("│")[1]) for row in rows] == [trial.number for trial in outcome.front]
    assert f"{100 * (outcome.front[0].attack_accuracy or 0):.1f}%" in rows[0] and "×" in rows[0]


def test_the_config_says_what_it_is(tuned: tuple[TuneResult, Path]) -> None:
    outcome, folder = tuned
    written = configs.read(folder / "strongest.toml")
    assert written == outcome.tuned
    assert written.attack is not None and written.attack.params == {"auxiliary": 20, **outcome.strongest.params}
    head = [line for line in (folder / "strongest.toml").read_text().splitlines() if line.startswith("#")]
    said = " ".join(line.removeprefix("# ") for line in head)
    assert "at most 2 points below the best of all, or no lower than with the parameters as given" in said
    assert "(as given: attack accuracy" in said and max(map(len, head)) <= 102


def test_the_page_and_its_chart_hold_every_trial(tuned: tuple[TuneResult, Path]) -> None:
    outcome, folder = tuned
    front, points = tune.scatter(outcome).to_dict()["datasets"].values()
    assert [point["Trial"] for point in front] == [trial.number for trial in outcome.front]
    assert sorted(point["Trial"] for point in points) == [trial.number for trial in outcome.trials]
    assert [point["Trial"] for point in points if point["kind"] == "strongest"] == [outcome.strongest.number]
    page = (folder / "tune.html").read_text()
    assert page.count('scope="row"') == len(outcome.front) + len(outcome.trials)
    assert "sparsefed run strongest.toml" in page and page.count(">as given<") == 1 + (outcome.first in outcome.front)


@pytest.mark.skipif(BROWSER is None, reason="no browser on PATH")
def test_the_page_is_drawn_offline_without_a_complaint(tuned: tuple[TuneResult, Path], tmp_path: Path) -> None:
    outcome, folder = tuned
    with browser(tmp_path / "profile") as tab:
        tab.open(folder / "tune.html", width=390)
        marks = tab.value("document.querySelectorAll('.chart svg .mark-symbol.role-mark path').length")
        assert marks == len(outcome.trials)
        assert tab.complaints() == []
        assert set(tab.requests()) == {(folder / "tune.html").resolve().as_uri()}


def test_the_view_says_how_far_it_is_and_what_is_best() -> None:
    best = Trial(0, {}, "finished", 12, 0.5, 0.75)
    lost = Trial(1, {}, "pruned", 4, 0.1, 0.2)
    output = io.StringIO()
    with ProgressView(Console(file=output, width=100)) as view:
        view.show(tune.progress(0, 4, None))
        view.show(tune.progress(0.5, 4, None))
        view.show(tune.progress(1, 4, best, best))
        view.show(tune.progress(2, 4, best, lost))
    first, second = output.getvalue().splitlines()
    assert first.startswith("trial 1/4: attack 50.0% test 75.0%; best attack 50.0% test 75.0%; ")
    assert second.startswith("trial 2/4: pruned; best attack 50.0% test 75.0%; ") and second.endswith(" left")
    terminal = io.StringIO()
    with ProgressView(Console(file=terminal, width=100, force_terminal=True)) as view:
        view.show(tune.progress(1.5, 4, best))
    assert "1/4" in terminal.getvalue() and "best attack 50.0%" in terminal.getvalue()


def test_the_study_says_what_it_is_of(tuned: tuple[TuneResult, Path]) -> None:
    asked = json.loads((tuned[1] / "study.json").read_text())
    assert asked["objective"] == "both" and asked["config"]["attack"] == {"name": "pgd", "auxiliary": 20}


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparsefed(process_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    """Commands in a folder with `small.toml`."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "small.toml").write_text(toml.dumps(SMALL))
    return Nursery(process_server, folder)


def within_a_trial(command: Command, database: Path, done: int, number: int) -> None:
    """Send a signal to the command while it is at a trial, with so many behind it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        command.signal(signal.SIGSTOP)
        with suppress(sqlite3.OperationalError):  # stopped while it writes, or before there is anything
            if database.exists() and states(database) == ["COMPLETE"] * done + ["RUNNING"]:
                command.signal(number)
                command.signal(signal.SIGCONT)
                return
        command.signal(signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("it was never seen at that trial")


def test_killed_the_same_command_goes_on_and_comes_to_the_same(
    tuned: tuple[TuneResult, Path], sparsefed: Nursery, tmp_path: Path
) -> None:
    command = ("tune", "small.toml", "--trials", "3", "--out", tmp_path)
    first = sparsefed.start(*command)
    within_a_trial(first, tmp_path / "study.db", 1, signal.SIGKILL)
    assert first.wait().code == -signal.SIGKILL
    done = sparsefed.run(*command)
    out = done.fine()
    assert re.findall(r"^trial (\d)/3: ", done.err, re.M) == ["2", "3"]
    assert "The trials that no other beats" in out and "1 interrupted, not counted" in " ".join(out.split())
    assert out.endswith(f"wrote {tmp_path}/strongest.toml\nwrote {tmp_path}/tune.html\n")
    outcome = tune.tune(small(), trials=3, folder=tmp_path)
    assert list(map(told, outcome.trials)) == list(map(told, tuned[0].trials[:3]))
    assert configs.read(tmp_path / "strongest.toml") == outcome.tuned
    tune.tune(small(), trials=3, folder=tmp_path / "undisturbed").save(tmp_path / "undisturbed")
    assert (tmp_path / "strongest.toml").read_bytes() == (tmp_path / "undisturbed/strongest.toml").read_bytes()
    assert "RUNNING" not in states(tmp_path / "study.db")


def test_interrupted_it_says_how_to_go_on(sparsefed: Nursery, tmp_path: Path) -> None:
    command = sparsefed.start("tune", "small.toml", "--trials", "9", "--out", tmp_path)
    within_a_trial(command, tmp_path / "study.db", 1, signal.SIGINT)
    done = command.wait()
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("Interrupted; every finished trial is kept. Go on with the same command.\n")
    assert states(tmp_path / "study.db")[:2] == ["COMPLETE", "FAIL"]


def test_the_strongest_can_be_run_and_comes_to_the_same_numbers(
    tuned: tuple[TuneResult, Path], sparsefed: Nursery, tmp_path: Path
) -> None:
    outcome, folder = tuned
    sparsefed.run("run", folder / "strongest.toml", "--out", tmp_path).fine()
    (row,) = report.summary([runs.load_run(tmp_path)])
    best = outcome.strongest
    assert (row.attack_mean, row.test_accuracy, row.norm_ratio) == (*values(best), best.norm_ratio)
    assert row.name == "small-tuned" and row.rounds == 12


def test_what_is_asked_reaches_the_search(sparsefed: Nursery, tmp_path: Path) -> None:
    """Without --out it works in runs/NAME-tune; a database may be elsewhere."""
    (tmp_path / "small.toml").write_text(toml.dumps(SMALL))
    options = ("--objective", "attack", "--space", "attack.step=0.01:0.1", "--space", "epochs=5", "--seed", "8")
    more = ("--storage", f"sqlite:///{tmp_path}/shared.db", "--set", "name=other", "--set", "rounds=4")
    done = sparsefed.run("tune", "small.toml", "--trials", "2", *options, *more, cwd=tmp_path)
    out = done.fine()
    assert "The trials that no other beats" in out and "Strongest is the highest attack accuracy." in out
    asked = json.loads((tmp_path / "runs/other-tune/study.json").read_text())
    assert (asked["objective"], asked["config"]["rounds"]) == ("attack", 4)
    assert asked["space"]["step"] == {"low": 0.01, "high": 0.1, "log": True, "whole": False}
    assert states(tmp_path / "shared.db") == ["COMPLETE"] * 2
    outcome = tune.tune(
        small(rounds=4), trials=2, folder=tmp_path / "again", objective="attack", space=options[3:6:2], seed=8
    )
    shown = re.search(r"trial 2/2: attack (\S+)%", done.err)
    assert shown and f"{100 * (outcome.trials[1].attack_accuracy or 0):.1f}" == shown[1]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("none.toml", "--trials", "3"), "there is no config file none.toml"),
        (("small.toml", "--trials", "0"), "--trials is 0; at least 1 is needed"),
        (("small.toml", "--trials", "3", "--space", "attack.stpe=1:2"), "unknown parameter of attack pgd 'stpe'"),
        (("small.toml", "--trials", "3", "--set", "attack.stpe=1"), "attack pgd: unknown parameter 'stpe'"),
        (("peace.toml", "--trials", "3"), "there is no [attack] to tune; add [threat] and [attack] to the config"),
    ],
)
def test_what_cannot_be_tuned_leaves_nothing_behind(
    sparsefed: Nursery, tmp_path: Path, args: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "small.toml").write_text(toml.dumps(SMALL))
    peace = {key: item for key, item in SMALL.items() if key not in ("attack", "threat")}
    (tmp_path / "peace.toml").write_text(toml.dumps(peace))
    assert sentence in sparsefed.run("tune", *args, cwd=tmp_path).refused()
    assert not (tmp_path / "runs").exists()


def test_the_help_teaches(sparsefed: Nursery) -> None:
    out = " ".join(re.sub("[│╭╮╰╯─]", " ", sparsefed.run("tune", "--help").fine()).split())
    for words in ("--space attack.step=0.01:1", "the same command goes on", "strongest.toml", "both|attack|damage"):
        assert words in out
    assert "tune" in sparsefed.run("--help").fine()
