"""The audit: its rule against a naive twin, its defenses and attacks by hand, processes that are killed, a browser."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.attacks import ATTACKS
from sparsefed.commands import audit as audits
from sparsefed.commands.audit.attack_specs import GIVEN, attack_specs, variants, varied_ranges
from sparsefed.commands.audit.defense_specs import UNDEFENDED, Facts, defense_specs
from sparsefed.commands.audit.plan import turned
from sparsefed.commands.audit.recommend import ORDER, TIE, WIDEST, Candidate, Recommendation, recommend
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError
from sparsefed.defenses import DEFENSES
from sparsefed.results.matrix import Judgement
from sparsefed.results.numbers import percent
from sparsefed.simulation import Simulation
from sparsefed.sweeps import pool
from sparsefed.sweeps.pool import Pool
from tests.support.forked_workers import FORKING
from tests.support.pages import BROWSER, Page, Text, browser
from tests.support.processes import Nursery, Server
from tests.support.shared import Shared

TOOL = [sys.executable, "-m", "sparsefed.cli"]
CONFIG = """
rounds = 16
evaluate_every = 8
checkpoint_every = 4

[data]
name = "sparsefed.commands.reproduce.tiny:IMAGES"
devices = 40

[model]
name = "softmax"

[train]
cohort = 10
lr = 0.5

[threat]
share = 0.2

[attack]
name = "pgd"
auxiliary = 10
boost = 5.0
"""
COMPARED, BESIDE = "clipping,sparsefed", "sign_flip"
SHORT = ("--defenses", COMPARED, "--attacks", BESIDE, "--trials", "2", "--seeds", "2", "--budget", "0")


def parsed(**tables: Any) -> Config:
    return configs.parse({**tomllib.loads(CONFIG), **tables})


def options_of(config: Config | None = None, **options: Any) -> audits.AuditOptions:
    return audits.AuditOptions(config or parsed(), **options)


def away(folder: Path) -> dict[str, str]:
    """A machine without data sets."""
    return {"SPARSEFED_DATA": str(folder / "none"), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "160"}


def called(*arguments: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, on a machine without data sets."""
    environment = {**os.environ, **away(folder), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([*TOOL, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    *progress, sentence = done.stderr.splitlines()
    assert sentence.startswith("error: ") and not [line for line in progress if line.startswith("error")]
    return sentence


# --- the rule --------------------------------------------------------------------------------------------------------


def defense(name: str, clean: float, harm: float, **more: Any) -> Candidate:
    judgement: Judgement = "held" if harm <= 0.05 else "fell" if harm >= 0.5 else "in part"
    return Candidate(name, clean, {"pgd": harm, "flip": 0.0}, more.pop("judgement", judgement), **more)


def chosen(*candidates: Candidate, tolerance: float = 0.02) -> Recommendation:
    found = recommend([defense(UNDEFENDED, 0.9, 1.0), *candidates], tolerance, UNDEFENDED)
    assert found is not None
    return found


def test_the_least_harm_by_the_worst_attack_wins() -> None:
    one = Candidate("one", 0.9, {"pgd": 0.04, "flip": 0.01}, "held")
    other = Candidate("other", 0.9, {"pgd": 0.0, "flip": 0.2}, "in part")
    found = chosen(one, other)
    assert (found.name, found.attack, found.harm, found.holds) == ("one", "pgd", 0.04, True)
    assert "flip does 20.0 points" in found.passed_over["other"]


def test_who_costs_too_much_unattacked_is_out_and_named_where_nobody_else_holds() -> None:
    found = chosen(defense("dear", 0.85, 0.0), defense("leaky", 0.9, 0.3))
    assert found.name == "leaky" and not found.holds
    assert "costs 5.0 points" in found.passed_over["dear"]
    assert found.holds_but_costs_more == pytest.approx({"dear": 0.05})
    assert chosen(defense("dear", 0.85, 0.0), tolerance=0.05).name == "dear"  # on the edge it is let in
    assert chosen(defense("dear", 0.85, 0.0), defense("good", 0.9, 0.01)).holds_but_costs_more == {}


def test_of_equals_the_one_that_sees_least_wins_then_the_quietest_then_the_first() -> None:
    nosy = defense("nosy", 0.9, 0.010, sees=2, traffic=1.0)
    loud = defense("loud", 0.9, 0.015, sees=1, traffic=9.0)
    quiet = defense("quiet", 0.9, 0.018, sees=1, traffic=3.0)
    found = chosen(nosy, loud, quiet)
    assert found.name == "quiet" and set(found.tied) == {"nosy", "loud"}
    assert chosen(nosy, replace(quiet, name="later"), quiet).name == "later"  # it stands first


def test_of_those_that_tie_the_one_that_keeps_more_accuracy_wins() -> None:
    sharp, dull = defense("sharp", 0.93, 0.015, sees=2), defense("dull", 0.91, 0.010)
    found = chosen(dull, sharp)
    assert found.name == "sharp" and "91.0%" in found.passed_over["dull"] and found.tied == ()
    assert chosen(replace(dull, clean=0.925), sharp).name == "dull"  # within a point the simpler one


def test_a_spread_widens_a_tie_but_not_without_end_and_never_across_judgements() -> None:
    def simpler(harm: float, spread: float) -> str:
        return chosen(defense("best", 0.9, 0.1, sees=2, spread=spread), defense("simple", 0.9, harm)).name

    assert simpler(0.13, spread=0.0) == "best" and simpler(0.13, spread=0.03) == "simple"
    assert simpler(0.16, spread=0.3) == "best"  # WIDEST
    held, leaky = defense("held", 0.9, 0.05, sees=2, spread=0.05), defense("leaky", 0.9, 0.06)
    assert chosen(held, leaky).name == "held"


def test_holes_in_the_matrix_are_no_merit() -> None:
    hole = Candidate("hole", 0.9, {"pgd": 0.0, "flip": None}, "held")
    lost = Candidate("lost", None, {"pgd": 0.0, "flip": 0.0}, "held")
    found = chosen(hole, lost, defense("whole", 0.9, 0.3))
    assert (
        found.name == "whole" and "flip" in found.passed_over["hole"] and "does not learn" in found.passed_over["lost"]
    )
    assert recommend([hole], 0.02, UNDEFENDED) is None


def test_where_nothing_holds_the_least_bad_is_named_and_does_not_hold() -> None:
    found = chosen(defense("bad", 0.9, 0.7), defense("worse", 0.9, 0.9))
    assert found.name == "bad" and found.judgement == "fell" and not found.holds


def naive(candidates: Sequence[Candidate], tolerance: float) -> str | None:
    """The rule with loops."""
    plain = candidates[0].clean
    able = []
    for each in candidates:
        cheap = each.clean is not None and (plain is None or round(plain - each.clean, 4) <= tolerance)
        if cheap and all(harm is not None for harm in each.harms.values()):
            able.append(
                (ORDER.index(each.judgement or "fell"), max(h for h in each.harms.values() if h is not None), each)
            )
    best = None
    for level, harm, each in able:
        if best is None or (level, harm) < best[:2]:
            best = (level, harm, each)
    if best is None:
        return None
    width = min(max(0.01, best[2].spread), 0.05) + 1e-9
    near = [each for level, harm, each in able if level == best[0] and harm - best[1] <= width]
    top = max(each.clean or 0.0 for each in near)
    near = [each for each in near if (each.clean or 0.0) >= top - 0.01 - 1e-9]
    simplest = near[0]
    for each in near[1:]:
        if (each.sees, each.traffic) < (simplest.sees, simplest.traffic):
            simplest = each
    return simplest.name


shares = st.integers(0, 20).map(lambda n: n / 20)
some = st.lists(
    st.builds(
        Candidate,
        name=st.just(""),
        clean=st.none() | shares,
        harms=st.fixed_dictionaries({"pgd": st.none() | shares, "flip": shares}),
        judgement=st.sampled_from(ORDER),
        spread=shares,
        sees=st.integers(0, 2),
        traffic=st.sampled_from([1.0, 2.0]),
    ),
    min_size=1,
    max_size=6,
).map(lambda several: [replace(each, name=str(i)) for i, each in enumerate(several)])


@given(some, st.sampled_from([0.0, 0.05, 0.5]))
def test_the_rule_is_its_naive_twin(candidates: list[Candidate], tolerance: float) -> None:
    found = recommend(candidates, tolerance, "0")
    assert (found.name if found else None) == naive(candidates, tolerance)
    if found is None:
        return
    named = {found.name, *found.tied, *found.passed_over}
    assert named == {each.name for each in candidates}  # everybody is accounted for
    level = [each for each in candidates if each.name in (found.name, *found.tied)]
    assert max(each.harm for each in level) - min(each.harm for each in level) <= max(TIE, WIDEST) + 1e-6


@given(some)
def test_more_tolerance_never_makes_it_hold_less(candidates: list[Candidate]) -> None:
    ranks = [recommend(candidates, tolerance, "0") for tolerance in (0.0, 0.1, 1.0)]
    levels = [ORDER.index(each.judgement or "fell") if each else len(ORDER) for each in ranks]
    assert levels == sorted(levels, reverse=True)


# --- the defenses ----------------------------------------------------------------------------------------------------

CHOICE: Any = SimpleNamespace(answer=50)  # what `choose_k` came to
FACTS = Facts(d=5000, norm=2.0, in_rates=3.5, choices={"sparsefed": CHOICE})


def tables(config: Config, **options: Any) -> dict[str, Mapping[str, Any]]:
    return {spec.name: spec.table for spec in defense_specs(options_of(config, **options), FACTS).chosen}


def test_parameters_follow_from_the_task() -> None:
    found = tables(parsed(data={"name": "digits", "devices": 1000}, train={"cohort": 60}, threat={"share": 0.05}))
    assert " ".join(found) == (
        "undefended clipping sparsefed trimmed_mean median multi_krum bulyan geometric_median centered_clipping flame"
    )
    assert found["sparsefed"] == {"name": "sparsefed", "k": 50, "clip_norm": 7.0}
    assert found["trimmed_mean"]["f"] == found["multi_krum"]["f"] == 3
    assert found["centered_clipping"]["radius"] == 2.0
    fedavg = tables(parsed(train={"cohort": 10, "mode": "fedavg"}))
    assert fedavg["clipping"] == {"name": "clipping", "clip_norm": 7.0, "clip": "adaptive"}


def test_f_is_what_a_rule_can_take_or_the_rule_is_left_out() -> None:
    crowded = defense_specs(options_of(parsed(threat={"per_round": 5})), FACTS)
    found = {member.name: member for member in crowded.chosen}
    assert found["trimmed_mean"].table["f"] == 4 and "(5), cut" in found["trimmed_mean"].why
    assert found["multi_krum"].table["f"] == 3 and found["bulyan"].table["f"] == 1
    tiny = defense_specs(options_of(parsed(train={"cohort": 4})), FACTS)
    assert "4 updates" in tiny.left_out["bulyan"] and "bulyan" not in {member.name for member in tiny.chosen}
    ragged = parsed(data={"name": "digits", "devices": 45}, train={"cohort": 20})  # the last cohort of an epoch: 5
    assert tables(ragged)["multi_krum"]["f"] == 1


def test_every_member_of_every_panel_can_be_built() -> None:
    everybody = defense_specs(options_of(defenses="all"), FACTS)
    for member in everybody.chosen:
        configs.parse({**configs.dump(parsed()), "defense": dict(member.table)})
    assert {*(m.name for m in everybody.chosen), *everybody.left_out, "mean"} == {*DEFENSES}
    assert {"dp_noise", "crfl", "rlr", "fltrust"} <= everybody.left_out.keys()
    rooted = parsed(data={**tomllib.loads(CONFIG)["data"], "root": 50})
    assert "fltrust" in tables(rooted) and "fltrust" in tables(parsed(), defenses="fltrust")


def test_the_configs_own_defense_is_in_the_panel_once() -> None:
    own = {"name": "sparsefed", "k": 9, "clip_norm": 1.0}
    found = tables(parsed(defense=own), defenses="sparsefed")
    assert list(found) == [UNDEFENDED, "sparsefed", "sparsefed, yours"] and found["sparsefed, yours"] == own
    assert list(tables(parsed(defense=dict(found["sparsefed"])), defenses="sparsefed")) == [UNDEFENDED, "sparsefed"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"defenses": "krun"}, "did you mean 'krum'"),
        ({"defenses": "crfl"}, "no rule derives its model_norm and sigma"),
        ({"defenses": "all,krum"}, "'all' stands alone"),
        ({"defenses": "krum,,median"}, "names between commas"),
        ({"attacks": "pdg"}, "did you mean 'pgd'"),
        ({"attacks": "badnets"}, "after something else"),
        ({"attacks": "min_max"}, "must know 'honest updates'"),
        ({"trials": 0}, "--trials is 0"),
        ({"budget": 3}, "--budget is 3 runs; use at least 40"),
        ({"suite": "v1", "attacks": "boosted"}, "give one of them"),
        ({"suite": "v9"}, "'v9'"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"tolerance": -1.0}, "--tolerance is -1"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        question = options_of(**options)
        defense_specs(question, FACTS)
        attack_specs(question)


# --- the attacks -----------------------------------------------------------------------------------------------------


def test_attacks_are_what_the_threat_model_allows() -> None:
    found = attack_specs(options_of())
    assert [attack.name for attack in found.chosen] == ["pgd", "boosted", "sign_flip"]
    assert found.chosen[1].table == {"name": "boosted", "auxiliary": 10}  # the goal stays, the method's are its own
    assert found.left_out["adaptive_push"] == "must know 'defense' and 'honest updates' and 'server state'"
    assert "lone_pgd" in found.spare
    knowing = parsed(threat={"share": 0.2, "knowledge": ["own data", "defense", "honest updates", "server state"]})
    assert [attack.name for attack in attack_specs(options_of(knowing)).chosen] == [
        "pgd",
        "adaptive_push",
        "adaptive_topk",
        "min_max",
    ]
    assert attack_specs(options_of(knowing)).left_out == {}
    spoiling = attack_specs(options_of(parsed(attack={"name": "gaussian"}))).chosen
    assert [attack.name for attack in spoiling] == ["gaussian", "sign_flip", "drift", "label_flip"]
    assert not any(attack.targeted for attack in spoiling)


def test_every_listed_attack_can_begin_an_audit() -> None:
    everything = {"share": 0.2, "knowledge": ["own data", "defense", "honest updates", "server state"]}
    for name in ATTACKS:
        question = options_of(parsed(attack={"name": name}, threat=everything), trials=3)
        for attack in attack_specs(question).chosen:
            assert attack.variant(GIVEN) == attack.table
            for variant in attack.variants:
                configs.parse({**configs.dump(question.config), "attack": attack.variant(variant)})


def test_variants_are_spread_within_their_ranges_and_the_same_every_time() -> None:
    question = options_of()
    table = attack_specs(question).chosen[0].table
    ranges, found = varied_ranges(question.config, table), variants(question.config, table, 9, seed=3)
    assert next(iter(found)) == GIVEN and found[GIVEN] == {} and len(found) == 9
    assert found == variants(question.config, table, 9, seed=3) != variants(question.config, table, 9, seed=4)
    assert list(variants(question.config, table, 4, seed=3).items()) == list(found.items())[:4]  # more trials only add
    for params in list(found.values())[1:]:
        assert all(ranges[name].low <= value <= ranges[name].high for name, value in params.items())
        assert "to_budget" not in params
    steps = sorted(math.log(params["step"]) for params in list(found.values())[1:])
    whole = math.log(ranges["step"].high / ranges["step"].low)
    assert max(b - a for a, b in pairwise(steps)) < 0.4 * whole  # nowhere is nothing


def test_dials_are_turned_and_stay_in_their_range() -> None:
    assert [table["k"] for _, table in turned({"name": "x", "k": 100}, d=300)] == [25, 50, 200, 300]
    assert [told for told, _ in turned({"name": "x", "k": 1}, d=2)] == ["k = 2"]
    assert list(turned({"name": "median"}, d=9)) == []
    assert [table["k"] for _, table in turned({"name": "x", "k": "10%"}, d=300)] == [8, 15, 60, 120]


# --- real processes --------------------------------------------------------------------------------------------------


def no_workers(*_: object) -> None:
    raise AssertionError("workers were asked for")


def steady(out: Path) -> dict[str, Any]:
    """All of the numbers but the times."""
    return {key: item for key, item in json.loads((out / "audit.json").read_text()).items() if key != "timing"}


@pytest.fixture(scope="module")
def done(shared: Shared, process_server: Server) -> tuple[Path, str]:
    """A small audit, undisturbed: where it was called, and what it printed."""

    def make(home: Path) -> str:
        (home / "mine.toml").write_text(CONFIG)
        return Nursery(process_server, home, **away(home)).run("audit", "mine.toml", *SHORT, seconds=300).fine()

    return shared.folder("audit", make)


@pytest.fixture(scope="module")
def finished(done: tuple[Path, str]) -> Path:
    """Its folder."""
    return done[0] / "runs/mine-audit"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the config."""
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def commands(process_server: Server, home: Path) -> Nursery:
    """Commands in that folder, on a machine without data sets."""
    return Nursery(process_server, home, **away(home))


def printed(stdout: str, caption: str) -> dict[str, list[str]]:
    """The rows of a table on the terminal, by their first cell."""
    below = stdout[stdout.index(f"\n{caption} ") :].splitlines()[2:]
    lines = takewhile(lambda line: not line.startswith("└"), below)
    rows = ([cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines)
    return {first: rest for first, *rest in filter(None, rows) if first}


@pytest.mark.slow
@pytest.mark.process
def test_an_audit_ends_in_tables_a_verdict_and_three_files(done: tuple[Path, str], finished: Path) -> None:
    out = finished
    found, stdout = steady(out), done[1]
    assert found["verdict"][0] in stdout
    for caption, key in (("Attack accuracy", "attack_accuracy"), ("Test accuracy", "test_accuracy")):
        table = printed(stdout, caption)  # every defense under every attack
        assert list(table) == ["Defense", UNDEFENDED, "clipping", "sparsefed"]
        measured = [entry for entry in found["matrix"] if entry[key] is not None]
        assert table["Defense"] == list(dict.fromkeys(entry["attack"] for entry in measured))
        for entry in measured:
            shown = table[entry["defense"]][table["Defense"].index(entry["attack"])]
            assert shown.removesuffix(" not learned") == percent(entry[key])
            assert key == "attack_accuracy" or shown.endswith(" not learned") == (not entry["converged"])
    assert all(f"wrote runs/mine-audit/{name}" in stdout for name in ("audit.html", "audit.json"))
    assert ("recommended.toml" in stdout) == (found["recommendation"]["holds"] == "held")
    assert list(found["defenses"]) == [UNDEFENDED, "clipping", "sparsefed"]
    assert list(found["attacks"]) == ["pgd", "sign_flip"]
    assert len(found["matrix"]) == 3 * 3 and {entry["seeds"] for entry in found["matrix"]} == {2}
    assert found["calibration"]["parameters"] == 650
    assert found["defenses"]["sparsefed"]["k"] == found["calibration"]["k"]["sparsefed"]["k"]
    assert found["certificates"]["sparsefed"]  # a softmax layer has one
    assert found["recommendation"]["defense"] in found["defenses"]


@pytest.mark.process
def test_numbers_are_those_of_the_runs(finished: Path) -> None:
    out = finished
    rows = [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]
    found = steady(out)
    for entry in found["matrix"]:
        own = [row for row in rows if row["cell"] == {"defense": entry["defense"], "attack": entry["attack"]}]
        ended = [runs.load_run(out / "cells" / row["key"]) for row in own if row["role"] == "result"]
        tests = [record.rows[-1]["test_accuracy"] for record in ended]
        assert entry["test_accuracy"] == pytest.approx(sum(tests) / 2, abs=1e-5)
        assert sorted(record.config["seed"] for record in ended) == [0, 1]
        if entry["attack"] == "no attack":
            assert not any(row.get("attackers") for record in ended for row in record.rows)
            continue
        tried = {row["attack"]: row["metrics"] for row in own if row["role"] == "search"}
        key = "test_accuracy" if entry["attack"] == "sign_flip" else "attack_mean"
        best = (min if key == "test_accuracy" else max)(metrics[key] for metrics in tried.values())
        assert len(tried) == 2 and tried[entry["variant"]][key] == best
        calm = next(e for e in found["matrix"] if e["defense"] == entry["defense"] and e["attack"] == "no attack")
        assert entry["lost"] == pytest.approx(calm["test_accuracy"] - entry["test_accuracy"], abs=1e-5)


@pytest.mark.process
def test_lengths_are_those_of_honest_devices_without_an_attack(finished: Path) -> None:
    out = finished
    rows = [json.loads(line) for line in (out / "calibration.jsonl").read_text().splitlines()]
    calm = [runs.load_run(out / "cells" / row["key"]) for row in rows if row["cell"]["attack"] == "no attack"]
    norms = sorted(row["honest_norm"] for record in calm for row in record.rows)
    middle = (norms[len(norms) // 2 - 1] + norms[len(norms) // 2]) / 2
    assert len(norms) == 32 and steady(out)["calibration"]["in_rates"] == pytest.approx(middle)


@pytest.mark.process
def test_the_recommended_config_is_one_if_it_held(
    finished: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(finished, tmp_path / "out"))
    monkeypatch.setattr(Pool, "start", no_workers)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = audits.audit(
        home / "mine.toml", folder=copied, defenses=COMPARED.split(","), attacks=[BESIDE], trials=2, seeds=2, budget=0
    )
    best = result.recommendation
    assert best is not None
    replace(result, recommendation=replace(best, judgement="held")).save(tmp_path)
    config = configs.read(tmp_path / "recommended.toml")
    assert config.defense.name == best.name.removesuffix(", yours")
    assert config.attack is not None and config.attack.name == best.attack
    assert config.name == "mine-recommended" and (tmp_path / "recommended.toml").read_text().startswith("# ")
    replace(result, recommendation=replace(best, judgement="in part")).save(tmp_path)
    assert not (tmp_path / "recommended.toml").exists(), "one that is no longer true is removed"


@pytest.mark.process
def test_the_same_command_runs_nothing_again(
    finished: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(finished, tmp_path / "out"))
    monkeypatch.setattr(Pool, "start", no_workers)
    question = options_of(
        configs.read(home / "mine.toml"), defenses=COMPARED, attacks=BESIDE, trials=2, seeds=2, budget=0
    )
    outcome = audits.run_audit(question, copied, 1)
    assert {k: v for k, v in json.loads(outcome.to_json()).items() if k != "timing"} == steady(copied)
    shutil.rmtree(next((copied / "cells").iterdir()))
    with pytest.raises(AssertionError, match="workers were asked for"):
        audits.run_audit(question, copied, 1)  # what was deleted is run again, although its results are there


def test_the_function_gives_what_the_command_gives(
    finished: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(finished, tmp_path / "out"))
    monkeypatch.setattr(Pool, "start", no_workers)
    compared = COMPARED.split(",")
    result = audits.audit(
        home / "mine.toml", folder=copied, defenses=compared, attacks=[BESIDE], trials=2, seeds=2, budget=0
    )
    written = steady(copied)["matrix"]
    assert [each["defense"] for each in result.records()] == [each["defense"] for each in written]
    for own, other in zip(result.records(), written, strict=True):
        assert {key: other[key] for key in own} == pytest.approx(own, abs=1e-5)


@pytest.mark.slow
@pytest.mark.process
def test_killed_and_called_again_it_is_the_same(finished: Path, home: Path, commands: Nursery) -> None:
    command = ("audit", "mine.toml", *SHORT, "--out", "killed")
    process = commands.start(*command)
    until = time.monotonic() + 120
    while len(list((home / "killed/cells").glob("*/manifest.json"))) < 12 and time.monotonic() < until:
        time.sleep(0.01)
    process.signal(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL, "it ended before it was killed"
    commands.run(*command, seconds=300).fine()
    assert steady(home / "killed") == steady(finished)
    for name in ("audit.jsonl", "sensitivity.jsonl"):
        assert (home / "killed" / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.slow
@pytest.mark.process
def test_a_run_that_fails_leaves_a_hole_and_says_so(home: Path) -> None:
    """A defense that cannot be run with attackers in the round: the others are told all the same."""
    (home / "own_rule.py").write_text(
        "def broken():\n"
        "    from sparsefed.defenses import build\n"
        "    from dataclasses import replace\n"
        "    def step(state, blocks, context):\n"
        "        raise RuntimeError('a rule with a bug')\n"
        "    return replace(build('undefended'), step=step)\n"
    )
    (home / "broken.toml").write_text(CONFIG + '\n[defense]\nname = "own_rule:broken"\n')
    path = os.pathsep.join([str(home), *sys.path])
    options = (
        "--defenses",
        "clipping",
        "--attacks",
        "pgd",
        "--trials",
        "1",
        "--seeds",
        "1",
        "--no-sensitivity",
        "--jobs",
        "1",
    )
    failed = called("audit", "broken.toml", *options, folder=home, PYTHONPATH=path)
    assert "2 cells failed: RuntimeError: a rule with a bug" in refused(failed)
    found = steady(home / "runs/broken-audit")
    assert {entry["defense"] for entry in found["matrix"]} == {UNDEFENDED, "clipping"}
    assert any("own_rule:broken, yours" in reason for reason in found["recommendation"]["reasons"])


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (CONFIG.split("[threat]")[0], (), "there are no attackers in this config"),
        (CONFIG, ("--set", "threat.share=0.0"), "there are no attackers in this config"),
        (CONFIG, ("--set", "attack.auxiliary=200"), "cannot be drawn"),
        (CONFIG, ("--set", "attack.name=ipm", "--set", "attack.boost=1"), "ipm"),
        (CONFIG, ("--defenses", "krun"), "did you mean 'krum'"),
        (CONFIG, ("--jobs", "0"), "at least one"),
    ],
)
def test_a_refused_audit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: tuple[str, ...], says: str
) -> None:
    from typer.testing import CliRunner

    from sparsefed.cli import app

    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["audit", "mine.toml", *arguments])
    assert isinstance(result.exception, ConfigError) and says in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.process
def test_a_task_that_is_not_learned_is_none_to_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "subprocess", FORKING)
    config = parsed(train={"cohort": 10, "lr": 1e-9}, rounds=2)
    with pytest.raises(ConfigError, match=r"does not learn .* nothing to defend"):
        audits.run_audit(options_of(config, defenses="clipping", trials=1, seeds=1, budget=0), tmp_path, 1)


# --- the demo --------------------------------------------------------------------------------------------------------

SMALL = [
    *("--set", "data.name=sparsefed.commands.reproduce.tiny:IMAGES", "--set", "data.devices=40"),
    *("--set", "train.cohort=10", "--set", "rounds=16", "--set", "evaluate_every=8"),
    *("--set", "attack.auxiliary=10", "--set", "threat.share=0.1"),
    *("--set", 'model={name="softmax"}', "--set", "train.dtype=float32", "--set", "train.lr=0.5"),
]


@pytest.mark.slow
@pytest.mark.process
def test_the_demo_is_a_small_audit_that_goes_on_and_starts_anew(
    tmp_path: Path, process_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Nursery(process_server, tmp_path, **away(tmp_path)).run("demo", *SMALL, seconds=300).fine()
    out = tmp_path / "runs/demo"
    assert "10 % of the devices compromised" in " ".join(printed.split())
    found = steady(out)
    assert list(found["defenses"]) == [UNDEFENDED, "clipping", "sparsefed", "multi_krum"]
    assert list(found["attacks"]) == ["pgd", "sign_flip"] and "wrote runs/demo/audit.html" in printed
    cells = {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(cells) == 12
    (out / "mine.txt").write_text("not the audit's")
    monkeypatch.setattr(Pool, "start", no_workers)
    assert audits.run_audit(audits.demo(SMALL[1::2]), out, 2).problem is None  # called again, it shows what there is
    with pytest.raises(AssertionError, match="workers were asked for"):
        audits.run_audit(audits.demo([*SMALL[1::2], "seed=1"]), out, 2)  # other settings are other runs, beside these
    assert {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells
    audits.forget(out)
    assert sorted(path.name for path in out.iterdir()) == [".lock", "mine.txt"]
    audits.forget(tmp_path / "nowhere")


def test_the_demo_is_short_and_as_the_readme_says() -> None:
    question = audits.demo(["rounds=7"])
    assert question.config.rounds == 7 and question.config.data.name == "fmnist"
    assert (question.trials, question.seeds, question.sensitivity) == (1, 1, False)
    assert "100 test images" in audits.introduction(question)


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if BROWSER is None:
        pytest.skip("no browser on PATH")
    with browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.mark.process
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_page_is_drawn_without_a_complaint_or_a_request(finished: Path, tab: Page, width: int, scheme: str) -> None:
    tab.events.clear()
    tab.open(finished / "audit.html", width, scheme)
    assert tab.value("document.documentElement.scrollWidth") == width
    charts = tab.value(
        "[...document.querySelectorAll('.chart')].map(c => c.id + c.querySelectorAll('svg.marks').length)"
    )
    assert {"chart-pareto-11", "chart-test-accuracy1", "chart-attack-accuracy1", "chart-k-11"} <= set(charts)
    assert all(chart.endswith("1") for chart in charts)
    assert tab.complaints() == []


@pytest.mark.process
def test_the_page_tells_the_verdict_first_and_everything_else(finished: Path, tab: Page) -> None:
    tab.open(finished / "audit.html", 1280, "light")
    text, found = " ".join(str(tab.value("document.body.textContent")).split()), steady(finished)
    heads = ["Summary", "Recommendation", "Pareto front", "Class by class", "Norms", "Attacks", "Certificate"]
    heads += ["How to run it again"]
    shown = tab.value("[...document.querySelectorAll('h2')].map(h => h.textContent)")
    assert shown[:3] == heads[:3] and set(heads) <= set(shown) and found["verdict"][0] in text
    assert text.index(found["verdict"][0]) < text.index("Attack accuracy")
    assert [limit for limit in found["limits"] if " ".join(limit.split()) not in text] == []
    assert "sparsefed audit mine.toml" in text
    assert Text.of((finished / "audit.html").read_text(encoding="utf-8")).cells


# --- for a build pipeline --------------------------------------------------------------------------------------------


def test_audit_json_is_as_its_schema_says(finished: Path) -> None:
    from importlib import resources

    from jsonschema import Draft202012Validator

    text = resources.files("sparsefed.commands.audit").joinpath("audit.schema.json").read_text(encoding="utf-8")
    validator = Draft202012Validator(json.loads(text))
    found = json.loads((finished / "audit.json").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(found)] == []
    assert list(validator.iter_errors({**found, "matrix": 3})) != []


def test_only_a_defense_that_held_is_written_down(finished: Path) -> None:
    found = steady(finished)["recommendation"]
    assert (finished / "recommended.toml").exists() == (found["holds"] == "held")


def test_an_audit_is_cut_to_fit_a_time_budget_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsefed.commands.audit import time_budget

    monkeypatch.setattr(time_budget, "seconds_a_round", lambda _: 0.1)
    options = options_of(parsed())
    whole = time_budget.estimate(options, 2)
    assert whole.runs > 50 and whole.seconds == pytest.approx(whole.runs * options.config.rounds * 0.1 / 2)
    same, words = time_budget.fitted(options, 2, f"{whole.seconds + 60:.0f}s", tmp_path / "a")
    assert same == options and "All of it fits" in words
    less, words = time_budget.fitted(options, 2, f"{whole.seconds / 4:.0f}s", tmp_path / "b")
    assert not less.sensitivity and less.seeds == 1 and "one seed" in words
    assert time_budget.estimate(less, 2).seconds <= whole.seconds / 4
    monkeypatch.setattr(time_budget, "seconds_a_round", lambda _: 99.0)
    again, _ = time_budget.fitted(options, 2, f"{whole.seconds / 4:.0f}s", tmp_path / "b")
    assert time_budget.estimate(again, 2).runs == time_budget.estimate(less, 2).runs, "a slower moment changes nothing"
    with pytest.raises(ConfigError, match="smallest audit"):
        time_budget.fitted(options, 2, "1s", tmp_path / "c")
    with pytest.raises(ConfigError, match="30m"):
        time_budget.seconds_of("half an hour")


def failing(_: Any) -> Any:
    raise ZeroDivisionError("the rule of my own divides by nothing")


def test_an_audit_whose_round_fails_is_not_announced_as_taking_no_time(tmp_path: Path) -> None:
    from sparsefed.commands.audit import time_budget
    from sparsefed.defenses.combine import stacked

    def own() -> Any:
        return stacked(failing)

    attacked: dict[str, Any] = {"attack": {"name": "pgd", "auxiliary": 10}, "threat": 0.2}
    simulation = Simulation("softmax", "digits", devices=40, cohort=10, rounds=5, defense=own, **attacked)
    options = options_of(simulation.config)
    expected = time_budget.estimate(options, 2)
    assert expected.seconds == math.inf and expected.runs > 50
    assert "not known" in expected.sentence and "divides by nothing" in expected.sentence
    with pytest.raises(ConfigError, match=r"30m.*not known.*divides by nothing"):
        time_budget.fitted(options, 2, "30m", tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.process
def test_what_is_required_decides_the_exit_code(done: tuple[Path, str], commands: Nursery) -> None:
    held = steady(done[0] / "runs/mine-audit")["recommendation"]["holds"] == "held"
    again = commands.run("audit", "mine.toml", *SHORT, "--require", "held", cwd=done[0], seconds=300)
    assert again.code == (0 if held else 1), again
    dry = commands.run("audit", "mine.toml", *SHORT, "--dry-run", "--out", "nothing", cwd=done[0])
    assert "runs of" in dry.fine() and "clipping" in dry.out and not (done[0] / "nothing").exists()
