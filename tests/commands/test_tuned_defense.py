"""A defense tuned against attackers who are tuned in return: its moves, its budget, its seeds, and a whole search."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sparsefed import config as configs
from sparsefed.commands import audit as audits
from sparsefed.commands.audit.analysis import MATRIX
from sparsefed.commands.audit.defense_specs import UNDEFENDED, Facts, defense_specs
from sparsefed.commands.audit.dials import OPENING, named, neighbours, opening
from sparsefed.commands.audit.findings import AuditResult, candidates
from sparsefed.commands.audit.recommend import recommend
from sparsefed.commands.audit.tuning import NAME, Standing, standing
from sparsefed.results.matrix import NO_ATTACK, Entry, Matrix
from sparsefed.results.summary import summary
from sparsefed.sweeps import ledger
from sparsefed.sweeps.pool import LocalPool, Pool
from tests.commands.test_audit import CONFIG
from tests.support.records import evaluated, record

FACTS = Facts(d=650, norm=2.0, in_rates=4.0)


def options_of(**options: Any) -> audits.AuditOptions:
    return audits.AuditOptions(configs.parse(tomllib.loads(CONFIG)), **options)


def test_the_opening_has_every_rule_at_every_norm_and_each_can_be_built() -> None:
    options = options_of()
    specs = defense_specs(options, FACTS).chosen
    found = opening(specs, options.config, FACTS)
    assert len({each.name for each in found}) == len(found)
    for spec in specs[1:]:
        own = [each.table for each in found if each.table["name"] == spec.name and each.table.get("clip") != "quantile"]
        assert {table["clip_norm"] for table in own} == {8.0 * factor for factor in OPENING}
        others = {table.get("f", table.get("k")) for table in own}
        assert len(own) == len(OPENING) * len(others), "with a larger f or k, too, where the rule has one"
    quantiles = [each.table for each in found if each.table.get("clip") == "quantile"]
    assert {(table["name"], table["quantile"]) for table in quantiles} == {
        *((name, share) for name in ("clipping", "sparsefed") for share in (0.1, 0.5))
    }
    for each in found:
        configs.parse({**configs.dump(options.config), "defense": dict(each.table)})
    fedavg = options.config.model_copy(update={"train": options.config.train.model_copy(update={"mode": "fedavg"})})
    times_lr = [each for each in opening(specs, fedavg, FACTS) if each.table.get("clip") != "quantile"]
    assert {each.table["clip"] for each in times_lr} == {"adaptive"}


@pytest.mark.parametrize(
    ("table", "moves"),
    [
        ({"name": "clipping", "clip_norm": 2.0}, [{"clip_norm": 1.0}, {"clip_norm": 4.0}]),
        (
            {"name": "sparsefed", "k": 100, "clip_norm": 2.0},
            [{"clip_norm": 1.0}, {"clip_norm": 4.0}, {"k": 25}, {"k": 400}],
        ),
        ({"name": "multi_krum", "f": 2}, [{"f": 3}]),  # of ten updates it takes no more
        (
            {"name": "clipping", "clip": "quantile", "clip_norm": 2.0, "quantile": 0.5},
            [{"quantile": 0.25}, {"quantile": 0.95}],
        ),
        ({"name": "centered_clipping", "radius": 2.0}, [{"radius": 1.0}, {"radius": 4.0}]),
    ],
)
def test_a_neighbour_differs_in_one_parameter(table: dict[str, Any], moves: list[dict[str, Any]]) -> None:
    found = neighbours(named(table), options_of().config, 650)
    unique = {each.name: each.table for each in found}
    assert [dict(each) for each in unique.values()] == [{**table, **move} for move in moves]


def entry(test: float, attack: float | None = 0.0) -> Entry:
    return Entry(tuple(summary([record("a run", [evaluated(1, test, attack)])])))


def test_a_defense_stands_by_the_pool_and_not_by_what_was_dropped_from_it() -> None:
    found = {("x", NO_ATTACK): entry(0.9), ("x", "a"): entry(0.88), ("x", "b"): entry(0.9, 0.9)}
    matrix = Matrix("", (UNDEFENDED, "x"), (NO_ATTACK, "a", "b"), {**found, (UNDEFENDED, NO_ATTACK): entry(0.95)})
    near, far = standing(matrix, "x", ["a"]), standing(matrix, "x", ["a", "b"])
    assert near is not None and far is not None
    assert (near.held, near.attack) == (True, "a") and near[2:] == pytest.approx((0.02, 0.05))
    assert (far.held, far.attack) == (False, "b") and far[2:] == pytest.approx((0.9, 0.05))
    assert standing(matrix, "x", ["a", "c"]) is None, "it was not measured against c"
    assert standing(matrix, "y", ["a"]) is None


def test_what_holds_for_a_price_comes_before_what_falls_for_nothing() -> None:
    held, dear = Standing(True, "a", 0.04, 0.01), Standing(True, "a", 0.01, 0.06)
    leaky, fallen = Standing(False, "a", 0.15, 0.0), Standing(False, "a", 0.9, 0.0)
    ranked = sorted([fallen, leaky, dear, held], key=lambda each: each.order(0.02))
    assert ranked == [held, dear, leaky, fallen]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """A whole search in processes of its own."""
    out = tmp_path_factory.mktemp("tuned")
    options = options_of(
        defenses="clipping,sparsefed", attacks="sign_flip", trials=2, sensitivity=False, budget=70, tune_only=True
    )
    return audits.run_audit(options, out, 1)


@pytest.mark.slow
@pytest.mark.process
def test_a_search_keeps_its_budget_and_its_seeds_apart(tuned: AuditResult) -> None:
    assert tuned.tuned is not None and tuned.folder is not None and tuned.problem is None
    rows = ledger.read(tuned.folder / f"{NAME}.jsonl")
    assert 40 < len(rows) <= 70 and {row["seed"] for row in rows} == {2000} == {tuned.tuned.seed}
    reported = ledger.read(tuned.folder / f"{MATRIX}.jsonl")
    assert {row["seed"] for row in reported if row["role"] == "result"} == {0, 1}
    assert {row["key"] for row in rows}.isdisjoint({row["key"] for row in reported})
    assert tuned.tuned.moves[0].who == "opening"
    assert [move.runs for move in tuned.tuned.moves] == sorted(move.runs for move in tuned.tuned.moves)


@pytest.mark.slow
@pytest.mark.process
def test_what_was_tuned_is_measured_like_the_others_and_shown(tuned: AuditResult) -> None:
    found = tuned.tuned
    assert found is not None
    assert set(tuned.matrix.defenses) == {UNDEFENDED, found.spec.name} and "tuned" in found.spec.name
    for attack in tuned.attacks.chosen:
        assert (found.spec.name, attack.name) in tuned.matrix.entries
        assert set(tuned.tried[found.spec.name, attack.name]) == set(attack.variants) or len(attack.variants) == 1
    best = recommend(candidates(tuned), 0.02, UNDEFENDED)
    assert best == tuned.recommendation
    page = tuned.to_html()
    assert "The moves of the search" in page and "Its price without attackers" in page


@pytest.mark.slow
@pytest.mark.process
def test_a_search_that_is_there_is_not_run_again(tuned: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned.folder is not None
    for kind in (Pool, LocalPool):
        monkeypatch.setattr(kind, "start", None)
    again = audits.run_audit(tuned.options, tuned.folder)
    assert again.tuned == tuned.tuned and again.matrix == tuned.matrix


def test_attack_options_do_not_go_with_a_defense(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from sparsefed.cli import app
    from sparsefed.core.errors import ConfigError

    (tmp_path / "mine.toml").write_text(CONFIG)
    for more in (["--defense", "--stealth", "0.1"], []):
        ended = CliRunner().invoke(app, ["tune", str(tmp_path / "mine.toml"), *more])
        assert isinstance(ended.exception, ConfigError)
