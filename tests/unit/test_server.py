"""The server of one's own loop: the same bits as a simulation, whatever updates come as, and a memory that lasts."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import config, defenses
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.round import simulate, start
from sparsefed.core.types import Block, Context, Defense, State, Step
from sparsefed.defenses.pipeline import no_state
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.server import Server

D = 6


def updates(n: int, seed: int = 0, d: int = D) -> Tensor:
    """Eighths of whole numbers: sums of them are exact in float32, in any order."""
    drawn = np.random.default_rng(seed).integers(-80, 80, (n, d)) / 8
    return torch.from_numpy(drawn.astype(np.float32))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1), nn.Linear(1, 1, bias=False))


# --- the same numbers as a simulation ---


def as_defense(server: Server) -> Defense:
    """A server in the place of a simulation's defense."""

    def step(state: State, blocks: Iterable[Block], context: Context) -> Step:
        done = server.step(iter(blocks), lr=context.lr, root=context.root)
        return Step(state, done.delta, done.stats)

    return Defense(lambda d: {}, step, lambda state, context: server._defense.budget(server._memory, context))  # noqa: ARG005


@pytest.mark.parametrize(
    ("rule", "mode"),
    [
        ({"name": "sparsefed", "k": 30, "clip_norm": 1.0}, "uncompressed"),
        ({"name": "sparsefed", "k": 30, "clip_norm": 1.0}, "fedavg"),
        ({"name": "krum", "f": 1}, "uncompressed"),
        ({"name": "fetchsgd", "k": 5, "columns": 50}, "uncompressed"),
        ({"name": "dp_noise", "sigma": 0.01}, "uncompressed"),
        ({"name": "lasa"}, "uncompressed"),
        ({"name": "foolsgold"}, "fedavg"),
        ({"name": "fltrust"}, "uncompressed"),
    ],
)
def test_a_simulation_gives_the_same_bits(rule: dict[str, Any], mode: str) -> None:
    built = config.build(
        config.parse(
            {
                "seed": 3,
                "rounds": 3,
                "data": {"name": "digits", "devices": 60},
                "model": {"name": "softmax"},
                "train": {"cohort": 12, "mode": mode, "memory_mb": 1},
                "defense": rule,
                "threat": {"per_round": 2},
                "attack": {"name": "pgd", "auxiliary": 20},
            }
        )
    )
    setup = getattr(built, "setup", None) or getattr(built, "protocol")  # noqa: B009
    params = {key: value for key, value in rule.items() if key != "name"}
    server = Server(rule["name"], like=built.theta, mode=mode, seed=3, layers=setup.layers, **params)  # type: ignore[arg-type]
    if "history" in defenses.rule_info(server.rule.function).needs:
        server._check = lambda weights, named: None  # type: ignore[method-assign]  # noqa: ARG005 - blocks have names
    ours = simulate(replace(setup, defense=as_defense(server)), start(setup, built.theta), 3)
    for mine, theirs in zip(ours, simulate(setup, start(setup, built.theta), 3), strict=True):
        assert torch.equal(mine.state.theta, theirs.state.theta) and torch.equal(server.theta, theirs.state.theta)
        assert mine.metrics["dropped"] == theirs.metrics["dropped"]
    assert server.round == 3


# --- what updates may come as ---


@settings(deadline=None, max_examples=30)
@given(n=st.integers(3, 12), cuts=st.lists(st.integers(1, 11), max_size=3), rule=st.sampled_from(["mean", "krum"]))
def test_splitting_changes_nothing(n: int, cuts: list[int], rule: str) -> None:
    rows = updates(n)
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    params = {"f": 0} if rule == "krum" else {"clip_norm": 1e9}
    whole, parts = (Server(rule, like=D, **params) for _ in range(2))
    for _ in range(2):
        one = whole.step(rows, lr=0.5)
        other = parts.step((rows[a:b] for a, b in pairwise(edges)), lr=0.5)
        assert torch.equal(one.theta, other.theta) and one.received == other.received == n


def test_arrays_state_dicts_and_iterators_are_the_same() -> None:
    # Every row has norm 12, and clipped to 3 it is a quarter: sums stay exact, however a processor orders them.
    net, rows = (
        model(),
        torch.tensor([[8, 8, 4, 0, 0, 0], [0, 4, -8, 8, 0, 0], [-8, 0, 0, 4, 8, 0], [0, 0, 8, 0, 4, 8]]) * 1.0,
    )
    names = [(name, p.shape, p.numel()) for name, p in net.named_parameters()]

    def parts(row: Tensor) -> dict[str, Tensor]:
        cut = torch.split(row, [size for _, _, size in names])
        return {name: part.view(shape) for (name, shape, _), part in zip(names, cut, strict=True)}

    dicts = [parts(row) for row in rows]
    ways: list[Any] = [
        rows,
        rows.numpy(),
        rows.double().numpy(),
        dicts,
        iter(dicts),
        iter(rows),
        iter([dicts[:3], rows[3:]]),
    ]
    steps = [Server(defenses.sparsefed(k=2, clip_norm=3.0), like=net).step(way, lr=0.1) for way in ways]
    assert all(torch.equal(step.theta, steps[0].theta) and step.clipped == (0, 1, 2, 3) for step in steps)
    assert int(steps[0].applied) == 2


def test_the_model_comes_back_as_what_it_was() -> None:
    net = model()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    zeros = torch.zeros(1, D)
    for like in (net, net.state_dict()):
        made = Server("mean", like=like).step(zeros).model
        state = made.state_dict() if isinstance(made, nn.Module) else made
        assert state.keys() == before.keys() and all(torch.equal(state[name], before[name]) for name in before)
    assert isinstance(Server("mean", like=np.ones(D)).step(zeros).model, np.ndarray)
    assert Server("mean", like=D).step(torch.ones(1, D)).model.tolist() == [-1.0] * D
    counted = {"w": torch.ones(2, dtype=torch.float16), "seen": torch.tensor(7)}
    after = Server("mean", like=counted).step([{"w": torch.ones(2)}]).model
    assert after["w"].dtype == torch.float16 and after["w"].tolist() == [0, 0] and int(after["seen"]) == 7
    moved = Server("mean", like=net).step(torch.ones(1, D), lr=0.5)
    assert torch.equal(nn.utils.parameters_to_vector(moved.model.parameters()), moved.theta)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())  # ours is as it was


def test_a_mean_holds_one_block_at_a_time() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def stream() -> Iterator[Tensor]:
        nonlocal most
        for seed in range(8):
            most = max(most, sum(ref() is not None for ref in alive))
            block = updates(2, seed)
            alive.append(weakref.ref(block))
            yield block
            del block

    done = Server("sparsefed", like=D, k=2).step(stream())
    assert done.received == 16 and most <= 1


# --- weights, senders, unusable updates ---


@pytest.mark.parametrize("rule", ["mean", "clipping", "sparsefed", "crfl"])
def test_weights_are_a_weighted_mean(rule: str) -> None:
    params: Any = {"sparsefed": {"k": D}, "crfl": {"model_norm": 1e9, "sigma": 0.0}}.get(rule, {})
    rows, weights = updates(5), [0.5, 0.0, 2.0, 1.0, 0.25]
    done = Server(rule, like=D, clip_norm=20.0, rho=0.0, **params).step(iter([rows[:2], rows[2:]]), weights=weights)
    expected = np.zeros(D)
    for row, weight in zip(rows.double().numpy(), weights, strict=True):  # the naive twin
        expected += weight * row * min(1, 20 / np.linalg.norm(row)) / sum(weights)
    np.testing.assert_allclose(done.delta.numpy(), expected, rtol=1e-5, atol=1e-5)
    even = Server(rule, like=D, **params).step(rows, weights=[1.0] * 5).theta
    assert torch.equal(even, Server(rule, like=D, **params).step(rows).theta)


def test_unusable_updates_are_dropped_by_name_and_weigh_nothing() -> None:
    rows = updates(4)
    rows[2, 1] = float("nan")
    done = Server("clipping", like=D, clip_norm=5.0).step(rows, senders=[11, 7, 5, 3], weights=[1, 1, 50, 1])
    kept = rows[[0, 1, 3]]
    assert done.dropped == (5,) and 5 not in done.clipped and done.received == 4 and done.stats["dropped"] == 1
    assert set(done.clipped) == {s for s, row in zip((11, 7, 3), kept, strict=True) if float(row.norm()) > 5}
    torch.testing.assert_close(done.theta, Server("clipping", like=D, clip_norm=5.0).step(kept).theta)


@pytest.mark.parametrize(
    ("rule", "given", "words"),
    [
        (defenses.krum(f=0), {"weights": [1.0] * 4}, "sparsefed"),
        (defenses.undefended(pre="bucketing"), {"weights": [1.0] * 4}, "pre-aggregation"),
        (defenses.undefended(), {"weights": [1.0, -1.0, 1.0, 1.0]}, "negative"),
        (defenses.undefended(), {"weights": [1.0, float("nan"), 1.0, 1.0]}, "finite"),
        (defenses.undefended(), {"weights": [0.0] * 4}, "all of them 0"),
        (defenses.undefended(), {"weights": [1.0] * 3}, "weights"),
        (defenses.undefended(), {"senders": [1, 2, 3, 4, 5]}, "5 senders for 4 updates"),
        (defenses.undefended(), {"senders": ["a"] * 4}, "whole numbers"),
        (defenses.undefended(), {"lr": -1.0}, "lr is -1"),
        (defenses.foolsgold(), {}, "give senders"),
        (defenses.fltrust(), {}, "root"),
        (defenses.undefended(), {"updates": torch.zeros(2, D + 1)}, f"[n, {D}]"),
        (defenses.undefended(), {"updates": [{"w": torch.zeros(D)}]}, "state dict"),
        (defenses.undefended(), {"updates": 7}, "updates is a int"),
        (defenses.undefended(), {"updates": torch.zeros(0, D)}, "no updates at all"),
    ],
)
def test_what_does_not_fit_is_a_sentence_and_changes_nothing(rule: Any, given: dict[str, Any], words: str) -> None:
    server = Server(rule, like=D)
    with pytest.raises(ConfigError, match=r".") as caught:
        server.step(**{"updates": updates(4), **given})
    assert words in str(caught.value)
    assert server.round == 0 and torch.equal(server.theta, torch.zeros(D))


def test_wrong_models_are_sentences() -> None:
    for like, words in (
        (nn.ReLU(), "no trainable"),
        ("x", "like must be"),
        (0, "like must be"),
        (torch.zeros(2, 2), "like"),
    ):
        with pytest.raises(ConfigError, match=words):
            Server("mean", like=like)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lacks"):
        Server("mean", like=model()).step([{"0.weight": torch.zeros(1, 2)}])
    with pytest.raises(ConfigError, match="a part 'other'"):
        Server("mean", like=model()).step([{"other": torch.zeros(1, 2)}])


# --- checkpoints ---


@pytest.mark.parametrize("rule", [defenses.sparsefed(k=2), defenses.foolsgold(), defenses.clipping(clip="quantile")])
def test_a_saved_server_goes_on_bit_for_bit(rule: defenses.Rule, tmp_path: Path) -> None:
    straight, broken = Server(rule, like=D), Server(rule, like=D)
    ids = [4, 9, 2]
    for t in range(3):
        straight.step(updates(3, t), lr=0.3, senders=ids)
        broken.step(updates(3, t), lr=0.3, senders=ids)
    broken.save(tmp_path / "server.safetensors")
    again = Server.load(tmp_path / "server.safetensors", rule, D)
    copy = Server(rule, like=D)
    copy.load_state_dict(broken.state_dict())
    for server in (straight, again, copy):
        server.step(updates(3, 9), lr=0.1, senders=ids)
    assert straight.round == again.round == copy.round == 4
    assert torch.equal(straight.theta, again.theta) and torch.equal(straight.theta, copy.theta)


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    path, server = tmp_path / "server.safetensors", Server("sparsefed", like=D, k=2)
    server.save(path)
    with pytest.raises(ConfigError, match="not of this server"):
        Server.load(path, "mean", D, rho=0.0)
    with pytest.raises(ConfigError, match="not of this server"):
        Server.load(path, "sparsefed", D + 1, k=2)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(RunError, match="damaged"):
        Server.load(path, "sparsefed", D, k=2)
    with pytest.raises(RunError, match="no saved server"):
        Server.load(tmp_path / "nowhere", "sparsefed", D, k=2)
    with pytest.raises(RunError, match="cannot write"):
        server.save(tmp_path / "nowhere" / "server.safetensors")


# --- rules by import ---

KRUM: Any = defenses.krum


def test_rules_are_functions_with_real_signatures() -> None:
    import inspect

    for name, rule in defenses.DEFENSES.items():
        shown = inspect.signature(rule).parameters
        assert {"clip_norm", "clip", "quantile", "clip_rate", "pre", "rho"} <= shown.keys() and "mode" not in shown
        assert rule.__doc__ and (name == "mean" or getattr(defenses, name) is rule)
    assert inspect.signature(defenses.sparsefed).parameters["clip_norm"].default == 5.0
    assert repr(defenses.krum(2, clip_norm=3.0)) == "krum(f=2, clip_norm=3.0)"
    assert defenses.krum(f=2).to_config() == {"name": "krum", "f": 2}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: KRUM(), "krum needs f"),
        (lambda: KRUM(f="2"), "f is '2', but must be int"),
        (lambda: KRUM(1, "blanchard", 3), "by position"),
        (lambda: KRUM(1, f=1), "twice"),
        (lambda: KRUM(f=1, clip_nrom=3.0), "did you mean 'clip_norm'"),
        (lambda: KRUM(f=1, mode="fedavg"), "how devices train"),
        (lambda: defenses.sparsefed(k=0), "k"),
        (lambda: defenses.undefended(clip_norm=-1.0), "clip_norm > 0"),
        (lambda: defenses.as_rule(defenses.krum(f=1), f=2), "already"),
        (lambda: defenses.as_rule("krmu"), "did you mean 'krum'"),
        (lambda: defenses.as_rule(None), "a name or a function"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused_where_they_are_written(wrong: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wrong()
    assert words in str(caught.value)


def test_a_rule_of_ones_own_is_a_function() -> None:
    def first(share: float = 1.0) -> defenses.Combine:
        """Whoever came first."""

        def step(state: State, blocks: Iterable[Block], context: Context) -> defenses.Flow:  # noqa: ARG001
            rows = torch.cat([block.rows() for block in blocks])
            return defenses.Flow(state, share * rows[0])

        return defenses.Combine(no_state, step)

    server = Server(first, like=D, share=0.5, clip_norm=1.0)
    row = updates(3)[0]
    torch.testing.assert_close(server.step(updates(3)).delta, 0.5 * row / row.norm())
    finished = defenses.build("mean", rho=0.0)
    assert torch.equal(Server(finished, like=D).step([row]).delta, row)
    assert defenses.assemble("own", first, {"rho": 0.0}).step({}, [RowsBlock(row[None])], Context(1, 1.0)).delta.shape
