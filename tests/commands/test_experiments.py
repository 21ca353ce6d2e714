"""Exhibits: what their files may say, which cells they make, what is claimed and whether it holds, what is drawn."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.commands.reproduce import document, grid
from sparsefed.commands.reproduce import estimate as estimating
from sparsefed.commands.reproduce import load as reading
from sparsefed.commands.reproduce.claims import HOLDS, NOT, PART, TOO_SHORT, UNTESTED, ClaimComparison, Judged, judge
from sparsefed.commands.reproduce.document import body, columns, verdict_text
from sparsefed.commands.reproduce.estimate import estimate
from sparsefed.commands.reproduce.exhibit import Exhibit
from sparsefed.commands.reproduce.exhibit_charts import charts, together
from sparsefed.commands.reproduce.grid import plan
from sparsefed.commands.reproduce.load import chosen
from sparsefed.commands.reproduce.run import ExhibitResult, outcome, run_exhibits
from sparsefed.commands.reproduce.training import FAR, REACHED, TrainingLength, Values, trainings
from sparsefed.core.errors import ConfigError
from sparsefed.reports.pictures import picture
from sparsefed.sweeps.cells import cell as cell_of
from sparsefed.sweeps.cells import twin
from sparsefed.sweeps.plan import strongest
from sparsefed.theory import ensembles
from tests.support.exhibits_tiny import BOUNDS, PAPER, TINY, row


def tiny(old: str = "", new: str = "") -> Exhibit:
    assert old in TINY
    return reading.parse("tiny", TINY.replace(old, new, 1) if old else TINY)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('title = "Attack', 'titel = "Attack', "there is no key titel"),
        ('title = "Attack', "title = Attack", "not valid TOML"),
        ('"lost", "l1"]', '"lots", "l1"]', "unknown metric 'lots'.*did you mean 'lost'"),
        ('data = "Two"', 'data = "Three"', "unknown value of axis 'data' in skip 'Three'.*One, Two"),
        ('data = "Two"', 'date = "Two"', "unknown axis in skip 'date'.*did you mean 'data'"),
        ("axes.defense.Nobody", "axes.defense.Nodoby", "unknown value of axis 'defense' in scales.smoke.axes"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "differ from each other"),
        ("seeds = [0, 1]", "seeds = []", "scales.smoke.seeds must be"),
        ('lower = { defense = "SparseFed" }', "", "a claim with one of lower"),
        (
            'lower = { defense = "SparseFed" }',
            'lower = { defense = ["Clipping", "SparseFed"] }',
            "one value of one axis",
        ),
        ('lower = { defense = "SparseFed" }', 'alike = { defense = "SparseFed" }', "both `alike` and `within`"),
        ('lower = { defense = "SparseFed" }', "below = 0.1\nby = 0.1", "`by` is for comparisons"),
        ('lower = { defense = "SparseFed" }', "below = 0.1\nfactor = 2", "`factor` is for"),
        ('lower = { defense = "SparseFed" }', 'rises = "defence"', "unknown axis 'defence'"),
        ('x = "defense"', 'x = "round"', "unknown axis 'round'"),
        ('kind = "bars"', 'kind = "heat"', "needs `colour`"),
        ('kind = "bars"', 'kind = "pie"', "chart.kind must be"),
        ("[scales.smoke]", "[scales.tiny]", "scales.tiny"),
    ],
)
def test_a_mistake_in_an_exhibit_is_one_sentence(old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)^exhibit tiny.*{told}") as error:
        tiny(old, new)
    assert "\n" not in str(error.value).replace(new, "") or "TOML" in str(error.value)


def test_an_unknown_exhibit_is_told_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "exhibits").mkdir()
    (tmp_path / "exhibits" / "tiny.toml").write_text(TINY)
    assert reading.names(tmp_path) == ["tiny"]
    with pytest.raises(ConfigError, match=r"unknown exhibit 'tny' .did you mean 'tiny'"):
        reading.load("tny", tmp_path)
    assert reading.load("tiny", tmp_path) == tiny()
    assert reading.load_paper(tiny(), tmp_path).rows == ()


def test_a_scale_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="has no scale 'laptop'; it has paper, smoke"):
        grid.combinations(tiny(), "laptop")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"defense": "Clipping"', '"defense": "Cliping"', "row 1: unknown value of axis 'defense' in cell 'Cliping'"),
        ('"metric": "attack_mean"', '"metric": "attack"', "row 1: unknown metric"),
        ('"notes"', "notes", "not valid JSON"),
        ('"notes"', '"note"', "no key note"),
    ],
)
def test_a_mistake_in_the_papers_numbers_is_one_sentence(old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^the paper's numbers for tiny.*{told}"):
        reading.parse_paper(tiny(), PAPER.replace(old, new, 1))


def test_a_config_that_cannot_be_is_refused_with_its_combination() -> None:
    with pytest.raises(ConfigError, match=r"exhibit tiny at scale paper, One, Clipping: .*'clip_nrom'"):
        grid.combinations(tiny("clip_norm", "clip_nrom"), "paper")


# --- the grid --------------------------------------------------------------------------------------------------------


def test_parts_are_merged_in_the_stated_order() -> None:
    text = TINY.replace(
        'base = "fmnist/cross-device"', 'base = "cifar10/cross-device"\nrounds = 1\ntrain = { lr = 0.1 }'
    )
    text = text.replace("One = {}", 'One = { base = "fmnist/cross-device", rounds = 2 }')
    text = text.replace("axes.defense.SparseFed = {", "axes.defense.SparseFed = { rounds = 4,")
    exhibit = reading.parse("tiny", text)
    paper, small = (grid.combinations(exhibit, scale) for scale in ("paper", "smoke"))
    own = paper[0].result(5).config
    assert (own.data.name, own.rounds, own.train.lr, own.seed, own.epochs) == ("fmnist", 2, 0.1, 5, None)
    assert own.model.name == "resnet9"  # the base lies below everything
    rounds = {each.values["defense"]: each.result(0).config.rounds for each in small}
    assert rounds == {"Clipping": 24, "SparseFed": 4, "Nobody": 24}
    strong = small[1].result(0, "strong").config
    assert strong.attack is not None and strong.attack.params == {"auxiliary": 10, "epochs": 10, "step": 0.3}
    assert strong.defense.params["k"] == 50


def test_nobody_attacks_where_the_axis_says_so() -> None:
    nobody = grid.combinations(tiny(), "smoke")[-1]
    assert nobody.values["defense"] == "Nobody" and not nobody.variants
    cell = nobody.result(0)
    assert not cell.config.is_attacked and cell.config.attack is None and twin(cell, "unattacked") is None


def test_skip_and_only_choose_combinations() -> None:
    exhibit = tiny("[scales.paper]", '[scales.laptop]\nseeds = [0]\nonly = { defense = "SparseFed" }\n[scales.paper]')
    assert [list(each.values.values()) for each in grid.combinations(exhibit, "laptop")] == [["One", "SparseFed"]]
    with pytest.raises(ConfigError, match="nothing is left at scale 'paper'"):
        grid.combinations(tiny('data = "Two"', 'data = ["One", "Two"]'), "paper")


def test_some_values_may_have_fewer_seeds() -> None:
    fewer = tiny(
        "[scales.smoke]\nseeds = [0, 1]", "[scales.smoke]\nseeds = [0, 1]\nfewer_seeds = { defense = { Clipping = 1 } }"
    )
    seeds = [
        [slot.seed for slot in each.outcomes(None if not each.trials else "weak")]
        for each in plan(fewer, "smoke").sweep.groups
    ]
    assert [set(each) for each in seeds] == [{0}, {0, 1}, {0, 1}]
    with pytest.raises(ConfigError, match=r"unknown value of axis 'defense' in scales.smoke.fewer_seeds 'Cliping'"):
        tiny("seeds = [0, 1]\nnote", "seeds = [0, 1]\nfewer_seeds = { defense = { Cliping = 1 } }\nnote")


@given(
    changed=st.sampled_from(["rounds", "seed", "evaluate_every", "name", "data.devices", "train.lr", "defense.k"]),
    value=st.integers(1, 5),
)
def test_a_key_is_the_config_and_nothing_else(changed: str, value: int) -> None:
    table: dict[str, Any] = grid.combinations(tiny(), "smoke")[1].result(0).table
    override = f"{changed}={'x' * value if changed == 'name' else value * 10}"
    one, other = cell_of(configs.parse(table)), cell_of(configs.parse(table, [override]))
    assert (one.key == other.key) == (one.table == other.table)
    assert (one.key == other.key) == (changed == "name" or one.table == configs.dump(configs.parse(table, [override])))
    shuffled = dict(reversed(list(table.items())))
    assert cell_of(configs.parse(shuffled)).key == one.key


def test_what_was_scaled_is_told_key_by_key() -> None:
    told = grid.scaled(tiny(), "smoke")
    assert "rounds: 24 instead of 2400" in told and "seeds: 2 instead of 3" in told
    assert "defense.k: 50 instead of 1000" in told and grid.scaled(tiny(), "paper") == []


# --- the search ------------------------------------------------------------------------------------------------------

measured = st.fixed_dictionaries(
    {"attack_mean": st.sampled_from([0.0, 0.5, 1.0]), "converged": st.booleans(), "test_accuracy": st.just(0.5)}
)


@given(st.dictionaries(st.sampled_from("abcd"), measured, min_size=1))
def test_the_strongest_is_the_first_best_that_converged(trials: dict[str, dict[str, Any]]) -> None:
    best = ""
    for name, found in trials.items():
        better = not best or (found["converged"], found["attack_mean"]) > (
            trials[best]["converged"],
            trials[best]["attack_mean"],
        )
        best = name if better else best
    assert strongest(trials) == best


def test_without_wanted_labels_the_strongest_does_most_damage() -> None:
    trials = {"a": {"test_accuracy": 0.4}, "b": {"test_accuracy": 0.2}, "c": {"test_accuracy": 0.2}}
    assert strongest(trials) == "b" and strongest({}) is None


# --- claims ----------------------------------------------------------------------------------------------------------


def verdict(claim: str, rows: Sequence[dict[str, Any]], expected: Sequence[dict[str, str]] = ()) -> str:
    exhibit = tiny('lower = { defense = "SparseFed" }\nat = { defense = ["SparseFed", "Clipping"] }', claim)
    (judged,) = judge(exhibit, rows, expected)
    return judged.verdict


LOWER = 'lower = { defense = "SparseFed" }'
numbers = st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=1, max_size=4)


def results(**groups: Sequence[float]) -> list[dict[str, Any]]:
    return [row(defense, seed, attack_mean=x) for defense, found in groups.items() for seed, x in enumerate(found)]


@given(numbers, numbers, st.sampled_from([0.0, 0.2]), st.sampled_from([1.0, 2.0]))
def test_a_comparison_follows_the_stated_rule(own: list[float], other: list[float], by: float, factor: float) -> None:
    found = verdict(f"{LOWER}\nby = {by}\nfactor = {factor}", results(SparseFed=own, Clipping=other))
    if len(own) < 2 or len(other) < 2:
        assert found == UNTESTED
        return
    errors = [statistics.stdev(x) / math.sqrt(len(x)) for x in (own, other)]
    gap = statistics.mean(other) - factor * statistics.mean(own)
    noise = math.sqrt((factor * errors[0]) ** 2 + errors[1] ** 2)
    if min(abs(gap - by), abs(gap - noise)) > 1e-9:
        assert found == (HOLDS if gap > by and gap > noise else NOT)


def test_a_comparison_that_hangs_on_the_spread_of_few_seeds_says_so() -> None:
    def text(own: list[float], other: list[float]) -> str:
        rows = results(SparseFed=own, Clipping=other)
        (judged,) = judge(tiny(), rows)
        return judged.comparisons[0].text

    assert text([0.1, 0.3], [0.9, 0.9]).endswith("(Clipping)")
    assert text([0.1, 0.3], [0.35, 0.35]).endswith("by the spread of 2 seeds")
    assert text([0.1, 0.3], [0.25, 0.25, 0.25]).endswith("within the spread of 2 seeds")
    assert text([0.1, 0.3] * 3, [0.25] * 6).endswith("(Clipping)")


def test_one_seed_never_holds() -> None:
    assert verdict(LOWER, results(SparseFed=[0.0], Clipping=[1.0])) == UNTESTED
    assert verdict(LOWER, results(SparseFed=[0.0, 0.0], Clipping=[1.0])) == UNTESTED
    assert verdict(LOWER, results(SparseFed=[0.0, 0.0], Clipping=[1.0, 1.0])) == HOLDS
    for claim in ("below = 0.5", 'falls = "defense"', 'alike = { defense = "SparseFed" }\nwithin = 1.0'):
        assert verdict(claim, results(Clipping=[0.4], SparseFed=[0.3])) == UNTESTED, claim


def test_some_combinations_are_a_part() -> None:
    rows = results(SparseFed=[0.1, 0.1], Clipping=[0.5, 0.5], Nobody=[0.0, 0.0])
    assert verdict(LOWER, rows) == PART
    assert verdict(f'{LOWER}\nthan = {{ defense = "Clipping" }}', rows) == HOLDS
    assert verdict(f'{LOWER}\nthan = {{ defense = "Nobody" }}', rows) == NOT


def test_a_missing_run_is_not_a_success() -> None:
    rows = results(SparseFed=[0.1, 0.1], Clipping=[0.5, 0.5])
    expected = [{"data": "One", "defense": name} for name in ("Clipping", "SparseFed", "Nobody")]
    assert verdict(LOWER, rows) == HOLDS and verdict(LOWER, rows, expected) == PART
    failed = [{**each, "status": "failed", "metrics": {}} for each in rows]
    assert verdict(LOWER, failed) == UNTESTED


def test_models_that_did_not_converge_neither_win_nor_lose_about_attacks() -> None:
    lost = [row("Clipping", seed, attack_mean=0.0) for seed in (0, 1)]
    for each in lost:
        each["metrics"]["converged"] = False
    rows = [*results(SparseFed=[0.2, 0.2], Nobody=[0.9, 0.9]), *lost]
    assert verdict(LOWER, rows) == HOLDS
    assert verdict('lower = { defense = "Clipping" }', rows) == NOT


def test_trends_bounds_and_likeness() -> None:
    rising = results(Clipping=[0.1, 0.1], SparseFed=[0.5, 0.5], Nobody=[0.9, 0.9])
    back = results(Clipping=[0.1, 0.1], SparseFed=[0.95, 0.95], Nobody=[0.9, 0.9])
    noisy = results(Clipping=[0.0, 0.4], SparseFed=[0.1, 0.5], Nobody=[0.1, 0.5])
    rises, falls = 'rises = "defense"', 'falls = "defense"'
    assert [verdict(rises, rows) for rows in (rising, back, noisy)] == [HOLDS, NOT, NOT]
    assert [verdict(falls, rows) for rows in (rising, back, noisy)] == [NOT, NOT, NOT]
    assert verdict(f"{rises}\nby = 0.9", rising) == NOT
    assert verdict("below = 0.95", rising) == HOLDS and verdict("below = 0.6", rising) == PART
    assert verdict("above = 0.05", rising) == HOLDS and verdict("above = 0.05", noisy) == PART
    assert verdict("above = 0.15", noisy) == NOT  # all means are, by less than their standard error of 0.2
    likeness = 'alike = { defense = "SparseFed" }\nwithin = '
    assert verdict(likeness + "0.41", rising) == HOLDS and verdict(likeness + "0.39", rising) == NOT
    assert verdict(likeness + "0.11", noisy) == NOT  # the means are close, the seeds are not


def at(rounds: int, full: int, undertrained: bool = False) -> dict[Values, TrainingLength]:
    names = ("Clipping", "SparseFed", "Nobody")
    return {(("data", "One"), ("defense", name)): TrainingLength(undertrained, 2 * rounds < full) for name in names}


@pytest.mark.parametrize(
    ("claim", "own", "other", "rounds", "undertrained", "expected"),
    [
        (LOWER, 0.01, 0.05, 300, False, TOO_SHORT),  # no attack got anywhere, and they had an eighth of the rounds
        (LOWER, 0.01, 0.05, 1200, False, HOLDS),  # in half of them it counts
        (LOWER, 0.01, 0.5, 300, False, HOLDS),  # one did get somewhere, so the other was resisted
        (LOWER, 0.01, 0.5, 300, True, TOO_SHORT),
        (LOWER, 0.01, 0.5, 2400, True, TOO_SHORT),
        ("above = 0.5", 0.01, 0.05, 300, False, TOO_SHORT),
        ("below = 0.5", 0.01, 0.05, 300, False, TOO_SHORT),
        ("below = 0.5", 0.2, 0.3, 300, False, HOLDS),
        ('rises = "defense"', 0.05, 0.01, 300, False, TOO_SHORT),
        ('rises = "defense"', 0.3, 0.01, 300, False, HOLDS),
    ],
)
def test_undertrained_is_too_short_to_tell(
    claim: str, own: float, other: float, rounds: int, undertrained: bool, expected: str
) -> None:
    exhibit = tiny('lower = { defense = "SparseFed" }\nat = { defense = ["SparseFed", "Clipping"] }', claim)
    rows = results(Clipping=[other, other], SparseFed=[own, own])
    (judged,) = judge(exhibit, rows, (), at(rounds, 2400, undertrained))
    assert judged.verdict == expected
    one_seed = [each for each in rows if each["seed"] == 0]
    (judged,) = judge(exhibit, one_seed, (), at(rounds, 2400, undertrained))
    assert judged.verdict == UNTESTED


def test_claims_about_other_metrics_need_a_trained_model_only() -> None:
    exhibit = tiny('metric = "attack_mean"\nlower', 'metric = "l1"\nlower')
    rows = [row(name, seed, l1=x) for name, x in (("SparseFed", 0.01), ("Clipping", 0.02)) for seed in (0, 1)]
    assert [judge(exhibit, rows, (), at(300, 2400, bad))[0].verdict for bad in (False, True)] == [HOLDS, TOO_SHORT]


@pytest.mark.parametrize(
    ("accuracies", "rounds", "expected"),
    [
        ({"unattacked": 0.42, "test_max": 0.3}, 400, TrainingLength(True, True)),
        ({"unattacked": 0.70, "test_max": 0.3}, 400, TrainingLength(False, True)),
        ({"test_max": 0.70}, 1200, TrainingLength(False, False)),  # attacked later, but it was well trained
        ({"test_max": 0.60}, 2300, TrainingLength(True, False)),
        ({"test_max": 0.60}, 2400, TrainingLength(False, False)),  # its schedule is over
        ({}, 2400, TrainingLength(False, False)),
    ],
)
def test_how_far_a_training_got(accuracies: dict[str, float], rounds: int, expected: TrainingLength) -> None:
    text = TINY.replace('base = "fmnist/cross-device"', 'base = "cifar10/cross-device"')
    text = text.replace("set.rounds = 24", f"set.rounds = {rounds}")
    text = text.replace('set.data = { name = "sparsefed.commands.reproduce.tiny:IMAGES", devices = 40 }', "")
    one = plan(reading.parse("tiny", text), "smoke")
    found = trainings(one, [row("Clipping", 0, **accuracies)])
    assert set(found.values()) == {expected} and REACHED["cifar10"] - FAR > 0.65


ORDER = 'order = "defense"\nby = 0.05'
THEIRS = """
{"rows": [
  {"cell": {"defense": "Clipping"}, "metric": "attack_mean", "value": 0.6, "spread": 0.05, "as_printed": "60 ± 5"},
  {"cell": {"defense": "SparseFed"}, "metric": "attack_mean", "value": 0.2, "as_printed": "20"},
  {"cell": {"defense": "Nobody"}, "metric": "attack_mean", "value": 0.21, "as_printed": "21"}]}
"""


@pytest.mark.parametrize(
    ("claim", "groups", "expected"),
    [
        ("near = 2", {"Clipping": [0.52, 0.68]}, HOLDS),
        ("near = 2", {"Clipping": [0.45, 0.47]}, NOT),
        ("near = 2", {"Clipping": [0.6]}, UNTESTED),
        ("near = 2\nwithin = 0.03", {"Clipping": [0.6, 0.6], "SparseFed": [0.22, 0.22]}, HOLDS),
        ("near = 2\nwithin = 0.03", {"Clipping": [0.6, 0.6], "SparseFed": [0.24, 0.24]}, PART),
        (
            'order = "defense"\nby = 0.05',
            {"Clipping": [0.9, 0.9], "SparseFed": [0.8, 0.8], "Nobody": [0.1, 0.1]},
            HOLDS,
        ),
        (ORDER, {"Clipping": [0.5, 0.5], "SparseFed": [0.8, 0.8], "Nobody": [0.1, 0.1]}, PART),
        (ORDER, {"Clipping": [0.1, 0.9], "SparseFed": [0.4, 0.5]}, NOT),  # within the spread
        (ORDER, {"SparseFed": [0.8, 0.8], "Nobody": [0.1, 0.1]}, UNTESTED),  # theirs are level
    ],
)
def test_printed_numbers_are_met_by_interval_and_by_order(
    claim: str, groups: dict[str, list[float]], expected: str
) -> None:
    exhibit = tiny('lower = { defense = "SparseFed" }\nat = { defense = ["SparseFed", "Clipping"] }', claim)
    (judged,) = judge(exhibit, results(**groups), paper=reading.parse_paper(exhibit, THEIRS))
    assert judged.verdict == expected, judged


# --- ensembles -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.data())
def test_the_bound_for_ensembles_is_the_inequality(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    holds = [math.comb(n, k) < 2 * math.comb(n - m, k) for m in range(n + 1)]
    assert [ensembles.guaranteed(n, m, k) for m in range(n + 1)] == holds
    assert ensembles.largest(n, k) == max(m for m in range(n + 1) if holds[m])


def test_ties_are_decided_by_whole_numbers() -> None:
    for n in (10**5, 10**6):  # k = 1: C(n, 1) = n < 2 (n - m) is a tie at m = n / 2
        assert ensembles.largest(n, 1) == n // 2 - 1


def test_what_the_paper_says_of_ensembles_is_right_but_just_above_ten_thousand_devices() -> None:
    def left(n: int) -> bool:
        return ensembles.guaranteed(n, math.floor(0.005 * n) + 1, round(0.01 * n))

    assert left(10_000) and left(13_749) and not any(left(n) for n in range(13_750, 30_000, 7))
    assert not any(left(n) for n in (50_000, 100_000, 1_000_000))
    assert {ensembles.largest(n, n // 100) for n in (10**4, 10**5, 10**6)} == {68}


def test_what_the_paper_says_of_ensembles_depends_on_the_devices_of_a_model() -> None:
    for n in (10**4, 10**5, 10**6):
        assert ensembles.largest(n, 139) / n < 0.005 and ensembles.largest(n, 20) / n == pytest.approx(0.034, abs=2e-4)
    assert ensembles.largest(10**6, 138) / 10**6 > 0.005


@given(st.integers(1, 60), st.data())
def test_the_share_of_clean_models_is_a_ratio_of_binomials(n: int, data: st.DataObject) -> None:
    k, m = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    assert ensembles.clean_share(n, m, k) == pytest.approx(math.comb(n - m, k) / math.comb(n, k), rel=1e-12)


@pytest.mark.parametrize(("n", "m", "k"), [(0, 0, 1), (10, 11, 1), (10, 1, 11), (10, 1, 0)])
def test_impossible_ensembles_are_refused(n: int, m: int, k: int) -> None:
    with pytest.raises(ConfigError, match="an ensemble needs"):
        ensembles.guaranteed(n, m, k)


def test_a_formula_is_an_exhibit(tmp_path: Path) -> None:
    one = plan(reading.parse("bounds", BOUNDS), "paper")
    run_exhibits([one], tmp_path, jobs=1)
    found = outcome(one, tmp_path)
    assert {each["cell"]["ensemble"] for each in found.rows} == {*ensembles.SHARES, *ensembles.DEVICES}
    assert all(2 * each["metrics"]["k"] <= int(each["cell"]["n"]) for each in found.rows)
    assert found.judged[0].verdict == PART  # 68 of 10 000 are 0.68 %
    found.save(tmp_path)
    svg = (tmp_path / "bounds.paper.svg").read_text()
    assert all(f">ensemble {share}<" in svg for share in ensembles.SHARES) and "100k" in svg


# --- what is shown ---------------------------------------------------------------------------------------------------

ROWS = [
    {**row(defense, seed, attack_mean=attack + seed / 10, test_accuracy=0.9 - seed / 10, lost=0.1, l1=12.0 + seed)}
    | {"curves": {"attack_mean": [[8, 0.1], [24, attack]], "test_accuracy": [[8, 0.5], [24, 0.9]]}}
    for defense, attack in (("Clipping", 0.8), ("SparseFed", 0.1))
    for seed in (0, 1)
]


def shown(exhibit: Exhibit, tmp_path: Path) -> Any:
    one = plan(exhibit, "smoke")
    (tmp_path / "paper").mkdir(exist_ok=True)
    (tmp_path / "paper" / "tiny.json").write_text(PAPER)
    (tmp_path / "tiny.smoke.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return outcome(one, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("kind", "x", "colour", "pictures"),
    [
        ("bars", "defense", "", 2),
        ("bars", "data", "defense", 2),
        ("lines", "defense", "", 2),
        ("lines", "round", "defense", 2),
        ("heat", "data", "defense", 2),
        ("pareto", "test_accuracy", "defense", 2),
    ],
)
def test_every_kind_of_chart_is_drawn(kind: str, x: str, colour: str, pictures: int, tmp_path: Path) -> None:
    more = f'colour = "{colour}"\n' if colour else ""
    exhibit = tiny('kind = "bars"\nx = "defense"', f'kind = "{kind}"\nx = "{x}"\n{more}')
    found = shown(exhibit, tmp_path)
    drawn = charts(exhibit, found.rows, found.paper)
    assert len(drawn) == pictures
    whole = together(drawn)
    assert whole is not None
    svg = picture(whole, "svg").decode()
    assert all(f">{word}<" in svg for word in ("Clipping", "SparseFed", "Attack accuracy, mean; data: One"))


def test_a_heat_map_tells_what_the_paper_has_and_who_did_not_converge(tmp_path: Path) -> None:
    exhibit = tiny('kind = "bars"\nx = "defense"', 'kind = "heat"\nx = "data"\ncolour = "defense"')
    found = shown(exhibit, tmp_path)
    lost = {"defense": "SparseFed", "data": "One"}
    rows = [r | {"metrics": r["metrics"] | {"converged": r["cell"] != lost}} for r in found.rows]
    whole = together(charts(exhibit, rows, found.paper))
    assert whole is not None
    svg = picture(whole, "svg").decode()
    assert "85.0%" in svg and ">paper 100.0%<" in svg and "15.0% (not learned)" in svg


def test_shares_that_lie_close_together_have_an_axis_of_their_own(tmp_path: Path) -> None:
    exhibit = tiny('kind = "bars"\nx = "defense"', 'kind = "pareto"\nx = "test_accuracy"\ncolour = "defense"')
    found = shown(exhibit, tmp_path)
    for apart, close in ((0.03, True), (0.6, False)):
        accuracies = {"SparseFed": 0.9 - apart, "Clipping": 0.9}
        rows = [r | {"metrics": r["metrics"] | {"test_accuracy": accuracies[r["cell"]["defense"]]}} for r in found.rows]
        whole = together(charts(exhibit, rows, found.paper))
        assert whole is not None
        assert (">88%<" in picture(whole, "svg").decode()) == close


def test_numbers_of_generated_data_are_not_set_beside_the_papers(tmp_path: Path) -> None:
    found = replace(shown(tiny(), tmp_path), ran=0)
    text = found.to_html()
    assert (
        "generated data" in text
        and "Of 1 claim" not in text
        and "paper" not in " ".join(column.title for column in columns(found))
    )
    assert "Nothing was run" in text and "Nothing was run" not in replace(found, ran=3).to_html()


@pytest.fixture
def as_if_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated data count as the paper's."""
    monkeypatch.setattr(ExhibitResult, "generated", False)


@pytest.mark.usefixtures("as_if_real")
def test_a_page_tells_verdicts_numbers_and_what_was_scaled(tmp_path: Path) -> None:
    found = shown(tiny(), tmp_path)
    text = found.to_html()
    for part in (
        "Of 1 claim, 1 holds.",
        "SparseFed has the lowest attack accuracy",
        "85.0% ± 7.1",
        "<td>DNC</td>",
        "Everything is tiny.",
        "rounds: 24 instead of 2400",
        "sparsefed reproduce tiny --scale smoke",
        "made up",
        "at least 2 seeds",
    ):
        assert part in text, part
    written = found.save(tmp_path)
    assert {path.suffix for path in written} == {".html", ".png", ".svg"}
    assert all(path.stat().st_size > 3000 for path in written)


def test_a_verdict_in_part_says_in_how_many() -> None:
    compared = [ClaimComparison(holds, "x") for holds in (True, False, False, None, False)]
    (claim,) = tiny().claims
    assert verdict_text(Judged(claim, PART, tuple(compared))) == "holds in 1 of 5"
    assert verdict_text(Judged(claim, HOLDS, tuple(compared))) == HOLDS


def test_places_in_the_paper_are_names() -> None:
    assert chosen(["table-2"]) == ["attack-accuracy"] and chosen(["Figure 2c"]) == ["k-cross-device"]
    assert chosen(["noise", "table-2", "noise"]) == ["noise", "attack-accuracy"] and chosen(["nothing"]) == ["nothing"]


def test_what_is_missing_is_estimated_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimating, "has_bfloat16", lambda: True)
    there = estimate(["attack-accuracy"], "laptop", Path(__file__).parents[2] / "results", 2)
    assert (there.runs, there.rounds, there.sentence) == (0, 0, "No run is missing.")
    none, paper = (estimate(["attack-accuracy"], scale, tmp_path, 2) for scale in ("laptop", "paper"))
    assert none.runs > 40 and none.seconds == pytest.approx(49 * 60)
    assert paper.seconds > 7 * 86400, "weeks"
    assert estimate(["attack-accuracy"], "laptop", tmp_path, 4).seconds == pytest.approx(none.seconds / 2)


def test_runs_that_other_exhibits_have_are_not_missing(tmp_path: Path) -> None:
    """All of training-length's runs of 2400 rounds are uncompressed's."""
    before = estimate(["training-length"], "dense", tmp_path, 2)
    shutil.copy(Path(__file__).parents[2] / "results" / "uncompressed.dense.jsonl", tmp_path)
    after = estimate(["training-length"], "dense", tmp_path, 2)
    assert before.runs - after.runs == 12 and before.rounds - after.rounds == 12 * 2400


@pytest.mark.usefixtures("as_if_real")
def test_the_paper_stands_beside_ours(tmp_path: Path) -> None:
    found = shown(tiny(), tmp_path)
    heads = [column.title for column in columns(found)]
    assert heads[:5] == ["data", "defense", "attack", "Attack accuracy, mean", "Attack accuracy, mean, paper"]
    assert [line[3:5] for line in body(found)] == [["85.0% ± 7.1", "100"], ["15.0% ± 7.1", "DNC"]]


# --- data for scale smoke --------------------------------------------------------------------------------------------


TEXT_MODEL = {"name": "lstm", "width": 16, "hidden": 32, "layers": 1, "tied": False}


@pytest.mark.parametrize(
    ("data", "model", "lr", "least"),
    [
        ({"name": "sparsefed.commands.reproduce.tiny:IMAGES", "devices": 40}, {"name": "softmax"}, 0.5, 0.9),
        ({"name": "sparsefed.commands.reproduce.tiny:COLOUR", "partition": "by_user"}, {"name": "mlp"}, 0.2, 0.5),
        ({"name": "sparsefed.commands.reproduce.tiny:TEXT", "partition": "by_user"}, TEXT_MODEL, 2.0, 0.5),
    ],
)
def test_tiny_data_can_be_learned(data: dict[str, Any], model: dict[str, Any], lr: float, least: float) -> None:
    train = {"cohort": 20, "lr": lr, "schedule": "constant"}
    experiment = configs.build(configs.parse({"rounds": 12, "data": data, "model": model, "train": train}))
    *_, last = experiment.reports(experiment.begin())
    assert last.metrics["test_accuracy"] >= least


# --- the list --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [True, False])
def test_the_list_tells_what_this_processor_needs(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without bfloat16 takes longer by a measured factor, but not where float32 is asked for."""
    for module in (document, estimating):
        monkeypatch.setattr(module, "has_bfloat16", lambda: fast)
    monkeypatch.setattr(document, "names", lambda: ["stealth", "external-e5", "combinatorial-bounds"])
    table = document.listing()
    lines = {line[0].text: [cell.text for cell in line[1:]] for line in table.rows}
    laptop, dense = (reading.load("stealth").scales[scale].est_minutes or 0 for scale in ("laptop", "dense"))
    times = [laptop * (1 if fast else estimating.IN_FLOAT32), dense]
    assert lines["stealth"][:2] == [f"{minutes:.0f} min" for minutes in times]
    assert lines["external-e5"] == ["5 min", "–", "–"]
    assert lines["combinatorial-bounds"] == ["a formula"] * 3
    assert ("no bfloat16" in table.caption) == (not fast)
