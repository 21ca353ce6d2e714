"""Hostile calls of `aggregate` and `Server.step`: odd arrays, values, options, weights, senders and seeds.

A case passes if the call raises a SparseFedError of one short line, or returns finite numbers of the right shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefed.core.errors import SparseFedError
from sparsefed.core.signatures import parameters, shown
from sparsefed.defenses import DEFENSES, PRE, CommonOptions, aggregate, rule_info
from sparsefed.server import Server

Draw = np.random.Generator

LONGEST = 600  # characters of an error message
REQUIRED: Mapping[str, Any] = {"k": 1, "f": 1, "sigma": 0.01, "radius": 1.0, "model_norm": 2.0, "threshold": 1}
USUAL: Mapping[str, Mapping[str, Any]] = {"fetchsgd": {"columns": 40}}
NAMES = (*DEFENSES, *DEFENSES, "", "krmu", "nnm", "x" * 5000, "\x00", None, 3, ["krum"], {"name": "krum"}, b"krum")
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, -1, 7, 2**31, 2**62, 2**63, -(2**63), 10**30, 10**5000, 0.0, 0.5, 1.0, -0.5, 1e-320, 1e-30, 1e30,
    1e300, -1e300, math.inf, -math.inf, math.nan, True, False, np.float32(0.5), np.float64("nan"), np.int64(2),
    np.uint8(1), Fraction(1, 3), 1j, np.float16("inf"),
)  # fmt: skip
THINGS: tuple[Any, ...] = (
    None, "", "nan", "adaptive", "per_step", "quantile", "fixed", "fedavg", "authors-2021-05", "mean", "update",
    "zero", "subtract", "momentum", "paper-box", "around_median", "updates", b"fixed", [], (), {}, [1, 2], [None],
    {"a": 1}, object, np.zeros(2), torch.ones(2), {1, 2}, "x" * 10_000, "\x1b[31m", [[[]]], range(3),
)  # fmt: skip
PRES: tuple[Any, ...] = (
    *PRE, "nmm", 3, None, math.nan, [3], [["nnm"]], [None], b"nnm", {"name": "nnm", "f": 1}, [{"name": "nnm", "f":
    -1}], [{"name": "nnm", "f": 2}], [{"name": "bucketing", "size": 0}], [{"name": "bucketing", "size": 2**62}],
    ["arc", "nnm"], [{"name": "arc", "f": math.inf}], [{"name": "arc", "f": 10**30}], [{"nom": "arc"}], [{}], [{1:
    2}], {"name": ["nnm"]}, [{"name": "nnm", 3: 4}], ["bucketing"] * 3, ["nnm"] * 10**4, "nnm\x00", object(),
    [{"name": "nnm", "g": 1}], {"nnm"}, ("nnm", "arc"),
)  # fmt: skip
SEEDS: tuple[Any, ...] = (
    0,
    1,
    7,
    -1,
    None,
    1.5,
    math.nan,
    "0",
    2**64,
    2**127,
    2**128,
    10**5000,
    True,
    np.int64(3),
    [1],
)
DTYPES = (
    "f4", "f4", "f4", "f8", "f2", ">f4", ">f8", "<f2", "g", "i1", "i8", ">i4", "u2", "u8", "?", "c8", "O", "S3",
    "M8[s]", "V4", "U2",
)  # fmt: skip
TENSORS = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8, torch.bool,
    torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip
HOSTILE = (math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e30, -1e29, 1e-45, -0.0, 1e38)


def case(rng: Draw) -> tuple[str, Callable[[], None]]:
    """Return a random call, as text for a report and as a function that also checks the result."""
    name = _one(rng, NAMES) if rng.random() < 0.2 else _one(rng, tuple(DEFENSES))
    updates = _updates(rng)
    params = _params(rng, name)
    if rng.random() < 0.3:
        return _server(rng, name, updates, params)
    more = _facts(rng, updates)
    text = f"aggregate({shown(name)}, {_described(updates)}, {_shown(params | more)})"

    def call() -> None:
        result = _answered(lambda: aggregate(name, updates, **params, **more))
        if result is not None:
            _check_result(result, updates)

    return text, call


def _server(rng: Draw, name: Any, updates: Any, params: dict[str, Any]) -> tuple[str, Callable[[], None]]:
    like = updates.shape[1] if getattr(updates, "ndim", 0) == 2 and rng.random() < 0.9 else _one(rng, LIKES)
    n = len(updates) if getattr(updates, "ndim", 0) else 3
    given: dict[str, Any] = {"senders": range(n)} if rng.random() < 0.7 else {}
    for key, pool in (("lr", NUMBERS + THINGS), ("weights", WEIGHTS), ("senders", SENDERS), ("root", ROOTS)):
        if rng.random() < 0.15:
            given[key] = _one(rng, pool)
    if rng.random() < 0.3:
        given["weights"] = rng.choice([0.0, 1.0, 1e-300, 1e300, 5.0, math.nan], n, p=[0.1, 0.3, 0.1, 0.2, 0.29, 0.01])
    init = {key: _one(rng, pool) for key, pool in (("seed", SEEDS), ("layers", LAYERS)) if rng.random() < 0.1}
    made = f"Server({shown(name)}, like={shown(like)}, {_shown(params | init)})"
    text = f"{made}.step({_described(updates)}, {_shown(given)})"

    def call() -> None:
        server = _answered(lambda: Server(name, like=like, **params, **init))
        for _ in range(3 if server is not None else 0):
            step = _answered(lambda: server.step(updates, **given))
            assert bool(torch.isfinite(server.theta).all()), "a model that is not finite"
            assert step is None or bool(torch.isfinite(step.delta).all()), "a step that is not finite"

    return text, call


# --- what is given ---

LIKES: tuple[Any, ...] = (
    0, -1, 1, 7, 2**40, 10**30, True, 1.5, "7", None, [1, 2], torch.full((3,), math.nan), np.zeros(7),
    np.ones(4)[::-1], torch.zeros(2, 2), {}, {"w": "x"}, {"w": torch.ones(7)}, {"w": np.ones(3)[::-1]}, {"w":
    torch.ones(2, dtype=torch.complex64)},
)  # fmt: skip
WEIGHTS: tuple[Any, ...] = (
    None, [], [1.0], ["a"], [math.nan] * 3, [1e308] * 9, [1j] * 3, [[1.0] * 3] * 3, 5, "abc", [None] * 3, [[1], [1,
    2]], torch.ones(3, requires_grad=True), np.ones(9)[::-1], [True] * 3,
)  # fmt: skip
SENDERS: tuple[Any, ...] = (
    None, [], [1, 1, 1], ["a"], [0.5] * 3, [10**30] * 3, [[0], [1, 2]], range(9), range(3), -np.arange(5),
    np.arange(9)[::-1], 3, "abc", [2**63, 1, 2], torch.arange(3), [None] * 3,
)  # fmt: skip
LAYERS: tuple[Any, ...] = (
    (), [7], [3, 4], [1, -1], [8, -1], 7, None, "34", [math.nan], [7.0], ["7"], np.array([3, 4]), [2**70],
    torch.tensor([3, 4]), [True] * 7, [0] * 100 + [7], {7: 1},
)  # fmt: skip
ROOTS: tuple[Any, ...] = (
    None, np.ones(7), np.ones(7)[::-1], torch.ones(7), np.full(7, math.nan), np.full(7, 3e38), np.ones(3),
    np.zeros(7), [1.0] * 7, "root", 3, np.ones((1, 7)), np.ones((2, 7)), np.ones(7, ">f8"), np.float32(1),
    torch.ones(7, dtype=torch.complex64), np.ones(7, object), np.full(7, 1e-45), np.full(7, 1e300),
)  # fmt: skip


def _one(rng: Draw, pool: tuple[Any, ...]) -> Any:
    return pool[int(rng.integers(len(pool)))]


def _updates(rng: Draw) -> Any:
    """Return an array or tensor, now and then something else: odd shapes, strides, dtypes and values."""
    if rng.random() < 0.04:
        return _one(
            rng, (None, 3, "abc", [[1.0, 2.0]], {"w": torch.ones(7)}, object(), np.ma.ones((3, 7)), range(5), [])
        )
    shape = tuple(rng.choice([1, 2, 3, 5, 9, 12], 1)) + tuple(rng.choice([1, 2, 7, 7, 7, 30], 1))
    if rng.random() < 0.06:
        shape = _one(rng, ((), (3,), (0, 7), (3, 0), (0, 0), (2, 3, 4), (1, 1, 1), (0,)))
    rows = np.asarray(rng.normal(size=shape) * rng.choice([1e-30, 1.0, 1.0, 1e3, 1e28]))
    if rng.random() < 0.5 and rows.size and rows.ndim:
        chosen = rng.random(shape[0]) < rng.choice([0.2, 0.5, 1.0])
        rows[chosen] = rng.choice(HOSTILE)
    if rng.random() < 0.15 and rows.size:
        rows[...] = rows.flat[0]
    return _tensor(rng, rows) if rng.random() < 0.35 else _strided(rng, _cast(rng, rows))


def _cast(rng: Draw, rows: Any) -> Any:
    dtype = "f4" if rng.random() < 0.4 else _one(rng, DTYPES)
    with np.errstate(all="ignore"):
        return rows.astype("f4").view("V4") if dtype == "V4" and rows.ndim else _converted(rows, dtype)


def _converted(rows: Any, dtype: str) -> Any:
    if dtype == "M8[s]":
        return np.nan_to_num(rows, posinf=0, neginf=0).clip(-1e9, 1e9).astype("i8").astype(dtype)
    return rows.astype(dtype if dtype != "V4" else "f4")


def _strided(rng: Draw, rows: Any) -> Any:
    if rows.ndim != 2 or rng.random() < 0.5:
        return rows
    ways: tuple[Callable[[], Any], ...] = (
        lambda: rows[::-1],
        lambda: rows[:, ::-1],
        lambda: np.asfortranarray(rows),
        lambda: np.repeat(rows, 2, axis=1)[:, ::2],
        lambda: np.broadcast_to(rows[:1], rows.shape),
        lambda: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape) if rows.dtype.kind != "O" else rows,
        lambda: rows.view(np.matrix),
        lambda: rows[:1][::-1],
        lambda: np.lib.stride_tricks.as_strided(rows, rows.shape, (0, rows.strides[1])),
    )
    return _one(rng, ways)()


def _tensor(rng: Draw, rows: Any) -> Tensor:
    dtype = torch.float32 if rng.random() < 0.4 else _one(rng, TENSORS)
    integral = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    numbers = np.nan_to_num(rows, posinf=1, neginf=0).clip(-100, 100) if integral else rows
    tensor = torch.from_numpy(np.ascontiguousarray(numbers)).reshape(rows.shape).to(dtype)
    if tensor.ndim != 2 or rng.random() < 0.5:
        return tensor
    ways: tuple[Callable[[], Tensor], ...] = (
        lambda: tensor.t().contiguous().t(),
        lambda: tensor[:1].expand(tensor.shape),
        lambda: tensor.repeat(1, 2)[:, ::2],
        lambda: tensor.to_sparse() if dtype is torch.float32 else tensor,
        lambda: tensor.to("meta"),
        lambda: tensor.clone().requires_grad_() if dtype.is_floating_point else tensor,
        lambda: torch.complex(tensor, tensor).conj().imag if dtype is torch.float32 else tensor,
    )
    made: Tensor = _one(rng, ways)()
    return made


def _params(rng: Draw, name: Any) -> dict[str, Any]:
    """Return what the rule needs, a few options changed to hostile values, and now and then one it does not have."""
    rule = DEFENSES.get(name) if isinstance(name, str) else None
    own = parameters(rule_info(rule).builder) if rule else ()
    given = {p.name: REQUIRED[p.name] for p in own if p.required} | dict(USUAL.get(name, {}) if rule else {})
    options = [p.name for p in (*own, *parameters(CommonOptions)) if p.name != "pre"]
    for _ in range(int(rng.choice([0, 0, 0, 1, 1, 2]))):
        given[_one(rng, tuple(options))] = _one(rng, NUMBERS if rng.random() < 0.7 else THINGS)
    if rng.random() < 0.4:
        given["pre"] = _one(rng, tuple(PRE)) if rng.random() < 0.5 else _one(rng, PRES)
    if rng.random() < 0.03:
        given[_one(rng, ("clipnorm", "F", "é", "name_", "k ", "\x1b[31m", "x" * 999))] = 1
    return given


def _facts(rng: Draw, updates: Any) -> dict[str, Any]:
    d = updates.shape[1] if getattr(updates, "ndim", 0) == 2 else 7
    facts: dict[str, Any] = {"root": np.linspace(-1, 1, d), "theta": np.ones(d)} if rng.random() < 0.7 else {}
    for key, pool in (("seed", SEEDS), ("layers", LAYERS), ("root", ROOTS), ("theta", ROOTS)):
        if rng.random() < 0.12:
            facts[key] = _one(rng, pool)
    return facts


# --- what comes back ---


def _answered(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or None if it raised an error of ours, which must be one short line."""
    try:
        return call()
    except SparseFedError as error:
        text = str(error)
        assert text and len(text) <= LONGEST and text.isprintable(), (
            f"a message of {len(text)} characters: {text[:200]!r}"
        )
        return None


def _check_result(result: Any, updates: Any) -> None:
    assert isinstance(result, Tensor) == isinstance(updates, Tensor), type(result)
    vector = result.detach().numpy() if isinstance(result, Tensor) else result
    assert vector.dtype == np.float32 and vector.shape == (updates.shape[1],), (vector.dtype, vector.shape)
    assert np.isfinite(vector).all(), "a result that is not finite"


def _described(updates: Any) -> str:
    if isinstance(updates, (np.ndarray, Tensor)):
        return f"{type(updates).__name__} {updates.dtype} {list(updates.shape)}"
    return shown(updates)


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in given.items())


TARGETS = {"aggregate and Server.step": case}


def kept() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield no case: what once went wrong is in the tests."""
    yield from ()
