"""Hostile input of `aggregate`, `Server.step` and of every option that is a number: a sentence, or finite numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.aggregate import case

from sparsefed import attacks, defenses, schedules
from sparsefed.core.errors import ConfigError
from sparsefed.data import partitions
from sparsefed.defenses import aggregate
from sparsefed.server import Server

D = 7
ROWS = np.random.default_rng(0).normal(size=(9, D)).astype(np.float32)
MEAN = ROWS.mean(0)


@pytest.mark.parametrize("seed", range(8))
def test_random_hostile_calls_end_in_a_sentence_or_in_finite_numbers(seed: int) -> None:
    for number in range(25):
        text, call = case(np.random.default_rng([seed, number]))
        try:
            call()
        except Exception as error:
            raise AssertionError(text) from error


# --- arrays that are unusual, and right ---


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[::-1],
        ROWS[:, ::-1][:, ::-1],
        np.asfortranarray(ROWS),
        ROWS.astype(">f4"),
        ROWS.astype(">f8"),
        ROWS.astype("g"),
        ROWS.view(np.matrix),
        np.frombuffer(ROWS.tobytes(), np.float32).reshape(9, D),
    ],
)
def test_strides_byte_orders_and_read_only_arrays_make_no_difference(rows: Any) -> None:
    np.testing.assert_allclose(aggregate("mean", rows), MEAN, rtol=1e-5, atol=1e-6)
    step = Server("mean", like=D, rho=0.0).step(rows)
    np.testing.assert_allclose(step.delta, MEAN, rtol=1e-5, atol=1e-6)


def test_one_row_seen_backwards_counts_as_contiguous_and_works() -> None:
    backwards = ROWS[:1][::-1]
    assert backwards.flags["C_CONTIGUOUS"] and backwards.strides[0] < 0
    np.testing.assert_array_equal(aggregate("mean", backwards), ROWS[0])
    np.testing.assert_array_equal(
        aggregate("fltrust", ROWS, root=MEAN[::-1]), aggregate("fltrust", ROWS, root=MEAN[::-1].copy())
    )


def test_float16_and_whole_numbers_are_real_numbers() -> None:
    np.testing.assert_allclose(aggregate("median", ROWS.astype(np.float16)), np.median(ROWS, 0), atol=2e-3)
    np.testing.assert_array_equal(aggregate("mean", np.full((3, 2), 200, np.uint8)), [200, 200])


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_weights_may_be_of_any_size(scale: float) -> None:
    weights = np.array([1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    step = Server("mean", like=D, rho=0.0).step(ROWS, weights=scale * weights)
    np.testing.assert_allclose(step.delta, weights @ ROWS / weights.sum(), rtol=1e-5, atol=1e-6)


# --- a sentence each ---

NOT_REAL: list[tuple[Any, str]] = [
    (ROWS.astype(object), "holds object, but must hold real numbers"),
    (ROWS.astype(complex), "holds complex128"),
    (ROWS > 0, "holds bool"),
    (np.full((2, 2), "a"), "must hold real numbers"),
    (np.ma.masked_less(ROWS, 0), "is a MaskedArray"),
    (torch.ones(2, 2).to_sparse(), "sparse"),
    (torch.ones(2, 2, device="meta"), "meta"),
    (np.float32(3), "is a float32"),
    (np.array(3.0), r"shape \[\]"),
    (torch.tensor(3.0), r"shape \[\]"),
    (np.zeros((0, 0)), "at least one client"),
    (None, "is a NoneType"),
]


@pytest.mark.parametrize(("rows", "sentence"), NOT_REAL)
def test_updates_that_are_no_numbers_are_one_sentence(rows: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        aggregate("mean", rows)
    with pytest.raises(ConfigError):
        Server("mean", like=2).step(rows)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        (3, {}, "a rule's name is a text such as 'krum', not 3"),
        (["krum"], {}, "a rule's name is a text"),
        ("x" * 5000, {}, "unknown defense 'xxx"),
        ("mean", {"pre": 3}, r"pre is 3, but must be str \| list of str \| table"),
        ("mean", {"pre": [3]}, r"pre is \[3\], but must be"),
        ("mean", {"pre": b"nnm"}, "pre is b'nnm'"),
        ("mean", {"pre": [{1: 2}]}, r"pre is \[\{1: 2\}\]"),
        ("mean", {"pre": ["bucketing"] * 9}, "9 pre-aggregations.*8 at most"),
        ("krum", {"f": math.inf}, "f is inf, but must be int"),
        ("krum", {"f": math.nan}, "f is nan, but must be int"),
        ("krum", {"f": 2**62}, f"needs at least n = {2**63 + 3} updates"),
        ("krum", {"f": 10**30}, "must be a whole number up to 9223372036854775807"),
        ("krum", {"f": 10**5000}, "f is a int, but must be a whole number up to"),
        ("dnc", {"f": 1, "filter_fraction": 1e300}, "needs more updates than there can be in a round"),
        ("mean", {"seed": -1}, "seed is -1, but must be a whole number from 0"),
        ("mean", {"seed": None}, "seed is None"),
        ("mean", {"seed": 1.5}, r"seed is 1\.5"),
        ("mean", {"layers": 7}, "layers is 7, but must be a list of whole numbers"),
        ("lasa", {"layers": [8, -1]}, "a layer has 0 coordinates or more"),
        ("fltrust", {"root": [1.0] * D}, "root is a list"),
        ("fltrust", {"root": np.ones(D, complex)}, "root holds complex128"),
        ("crfl", {"model_norm": 1.0, "sigma": 0.0, "theta": np.full(D, np.nan)}, "theta holds numbers that are not"),
        ("dp_noise", {"sigma": 1e300}, "beyond float32"),
        ("centered_clipping", {"radius": 1.0, "iterations": 2**62}, "iterations >= 1, and 100000 at most"),
        ("fetchsgd", {"k": 1, "rows": 2**40 + 1}, "cells at most"),
    ],
)
def test_wrong_arguments_are_one_short_sentence(name: Any, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        aggregate(name, ROWS, **given)
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lr": "0.1"}, "lr is '0.1', but a learning rate is a number"),
        ({"lr": None}, "lr is None"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": 10**400}, "a learning rate is a number"),
        ({"lr": 1e300}, "beyond float32"),
        ({"weights": ["a"] * 9}, "weights must be finite numbers"),
        ({"weights": [1j] * 9}, "weights must be finite numbers"),
        ({"weights": [[1.0]] * 9}, "one for each update"),
        ({"senders": [1] * 9}, "senders has 1 more than once"),
        ({"senders": [[0], [1, 2]]}, "senders must be whole numbers"),
        ({"root": np.ones((2, D))}, "root holds 2 updates"),
    ],
)
def test_a_server_refuses_what_it_cannot_use_and_stays_as_it_was(given: dict[str, Any], sentence: str) -> None:
    server = Server("mean", like=D)
    with pytest.raises(ConfigError, match=sentence):
        server.step(ROWS, **given)
    assert server.round == 0 and not server.theta.any()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"layers": "abc"}, "layers is 'abc'"),
        ({"like": 2**60}, "like must be"),
        ({"like": torch.full((D,), math.inf)}, "not finite"),
        ({"like": {"w": "x"}}, "holds no numbers"),
        ({"like": {"w": torch.ones(2, dtype=torch.complex64)}}, "real numbers"),
    ],
)
def test_a_server_of_nothing_usable_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Server("mean", **{"like": D, **given})


# --- numbers must be finite, wherever options are ---


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
@pytest.mark.parametrize(
    "chosen",
    [
        lambda value: attacks.badnets(boost=value),
        lambda value: attacks.badnets(attacks.goals.patch(), boost=value),
        lambda value: attacks.badnets(poisoned=value),
        lambda value: attacks.goals.edge(share=value),
        lambda value: defenses.centered_clipping(radius=value),
        lambda value: defenses.signguard(upper=value),
        lambda value: defenses.undefended(rho=value),
        lambda value: partitions.dirichlet(alpha=value),
        lambda value: schedules.cosine(lr=value),
        lambda value: schedules.triangular(peak_at=value),
    ],
)
def test_options_that_are_numbers_are_finite(chosen: Any, value: float) -> None:
    with pytest.raises(ConfigError, match="must be a finite number"):
        chosen(value)


def test_a_clip_norm_may_be_infinite_but_not_nan() -> None:
    assert aggregate("clipping", ROWS, clip_norm=math.inf).shape == (D,)
    with pytest.raises(ConfigError, match="clip_norm is nan, but must be a finite number"):
        aggregate("clipping", ROWS, clip_norm=math.nan)
