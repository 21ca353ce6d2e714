"""The door never raises: ten thousand replies of every kind of nonsense."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here; `make flower-test` runs these in its own environment")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sparsefed.flower.door import REASONS, Admitted, Refusal, ReplyFormat, Request, admit
from sparsefed.flower.replies import AbsentBlock, ReplyBlock
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.models.layout import layout

MODEL: dict[str, np.ndarray[Any, Any]] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros(3, np.float64),
    "n": np.array(4),
}
EXPECTED = ReplyFormat.of(MODEL, layout({name: torch.from_numpy(a) for name, a in MODEL.items()}), cap=10.0)
NODE = 77


def request() -> Message:
    message = Message(RecordDict({"config": ConfigRecord({"server-round": 3})}), NODE, "train", group_id="3")
    message.metadata.__dict__["_message_id"] = "asked"
    return message


def reply(content: RecordDict) -> Message:
    return Message(content, reply_to=request())


def good() -> dict[str, Any]:
    return {
        "arrays": ArrayRecord({name: Array(array) for name, array in MODEL.items()}),
        "metrics": MetricRecord({"num-examples": 5, "server-round": 3}),
    }


def judged(message: Any) -> Admitted | Refusal:
    return admit(message, EXPECTED, Request(NODE, 3, "asked"))


def test_a_good_reply_is_the_vector_of_its_trained_parts() -> None:
    verdict = judged(reply(RecordDict(good())))
    assert isinstance(verdict, Admitted)
    assert verdict.row.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0]
    assert verdict.norm == pytest.approx(math.sqrt(55))
    assert verdict.examples == 5


@given(arrays.arrays(np.float32, (2, 3), elements=st.floats(width=32)), st.booleans())
def test_a_row_is_what_numpy_would_read(array: np.ndarray[Any, Any], fortran: bool) -> None:
    sent = np.asfortranarray(array) if fortran else array
    content = good() | {"arrays": ArrayRecord({**good()["arrays"], "w": Array(sent)})}
    verdict = judged(reply(RecordDict(content)))
    if not np.isfinite(array).all():
        assert isinstance(verdict, Refusal)
        assert verdict.reason == "not finite"
    elif isinstance(verdict, Refusal):
        assert verdict.reason == "too long"
        assert np.linalg.norm(array.astype(np.float64)) > 1e30
    else:
        assert verdict.row[:6].numpy().tobytes() == array.tobytes()


def test_a_model_becomes_the_update_that_leads_to_it() -> None:
    theta = torch.ones(9)
    verdict = admit(reply(RecordDict(good())), EXPECTED, Request(NODE, 3, "asked"), theta)
    assert isinstance(verdict, Admitted)
    assert verdict.row.equal(torch.ones(9) - torch.tensor([0.0, 1, 2, 3, 4, 5, 0, 0, 0]))


# --- nonsense --------------------------------------------------------------------------------------------------------


class Hostile:
    """A thing on which everything fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __len__(self) -> int:
        raise MemoryError


def some_array(draw: random.Random) -> Any:
    if draw.random() < 0.5:
        return Array("float32", (2, 3), "numpy.ndarray", some_file(draw))
    dtype = draw.choice(["float32", "float64", "int64", "complex64", "object", "<U4", "", "float16"])
    shape = tuple(draw.choice([-1, 0, 1, 2, 3, 1 << 40]) for _ in range(draw.randrange(4)))
    body = draw.choice([b"", b"garbage", draw.randbytes(draw.randrange(300)), some_file(draw)])
    return Array(dtype, draw.choice([shape, (2, 3), (3,), ()]), draw.choice(["numpy.ndarray", "pickle", ""]), body)


def some_file(draw: random.Random) -> bytes:
    """A NumPy file, with some of its bytes changed."""
    head = io.BytesIO()
    np.save(head, draw.choice([MODEL["w"], MODEL["b"], MODEL["w"].T, np.full((2, 3), np.nan, np.float32)]))
    data = bytearray(head.getvalue())
    for _ in range(draw.choice([0, 0, 1, 3, 50])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])


def changed(draw: random.Random) -> Any:
    content = good()
    for _ in range(draw.randrange(1, 4)):
        draw.choice(CHANGES)(draw, content)
    message = reply(RecordDict(content))
    if draw.random() < 0.1:
        break_array(draw, message.content["arrays"])
    for name in draw.sample(["_src_node_id", "_reply_to_message_id", "_group_id"], draw.choice([0, 0, 0, 1, 2])):
        message.metadata.__dict__[name] = draw.choice([0, -1, "", "x" * 10_000, None, 1 << 70, math.nan, Hostile()])
    return message


def put_array(draw: random.Random, content: dict[str, Any]) -> None:
    content["arrays"] = ArrayRecord({**content["arrays"], draw.choice(["w", "b", "n", "x", ""]): some_array(draw)})


def drop_array(draw: random.Random, content: dict[str, Any]) -> None:
    kept = dict(content["arrays"])
    kept.pop(draw.choice(["w", "b", "n"]), None)
    content["arrays"] = ArrayRecord(kept)


def put_record(draw: random.Random, content: dict[str, Any]) -> None:
    kind = draw.choice([ArrayRecord, MetricRecord, ConfigRecord])
    content[draw.choice(["arrays", "metrics", "more", *"abcdefgh"])] = kind()


def put_metric(draw: random.Random, content: dict[str, Any]) -> None:
    value = draw.choice([math.nan, math.inf, -1, 0, 10**9, 1 << 62, [1.0], [], 3, 2.5, -0.0])
    name = draw.choice(["num-examples", "server-round", *map(str, range(150))])
    content["metrics"] = MetricRecord({name: value})


def break_array(draw: random.Random, arrays: Any) -> None:
    """Put in an array what Flower would not: the reply was inflated from foreign bytes."""
    field = draw.choice(["dtype", "shape", "stype", "data"])
    for array in arrays.values():
        array.__dict__[field] = draw.choice([None, 7, "x", Hostile(), [[2], 3]])


CHANGES: list[Callable[[random.Random, dict[str, Any]], None]] = [
    put_array,
    put_array,
    drop_array,
    put_record,
    put_metric,
]


def test_ten_thousand_fuzzed_replies_raise_nothing() -> None:
    draw = random.Random(18)
    outcomes: dict[str, int] = {}
    for _ in range(10_000):
        verdict = judged(changed(draw))
        reason = "admitted" if isinstance(verdict, Admitted) else verdict.reason
        outcomes[reason] = outcomes.get(reason, 0) + 1
        assert reason == "admitted" or reason in REASONS
        if isinstance(verdict, Admitted):
            assert bool(torch.isfinite(verdict.row).all())
            assert 0 < verdict.examples <= 10
    assert outcomes.pop("admitted") > 50  # some changes do no harm
    wanted = {"identity", "round", "records", "keys", "dtype", "shape", "body", "count", "not finite", "unreadable"}
    assert outcomes.keys() >= wanted, wanted - outcomes.keys()


def test_a_thing_that_is_no_reply_is_unreadable() -> None:
    for message in (None, Hostile(), 7, object()):
        verdict = judged(message)
        assert isinstance(verdict, Refusal)
        assert verdict.reason == "unreadable"


def test_an_error_in_place_of_a_reply_is_named() -> None:
    verdict = judged(Message(Error(code=2, reason="boom\x1b[31m"), reply_to=request()))
    assert verdict == Refusal("error", "code 2: boom?[31m")


# --- blocks ----------------------------------------------------------------------------------------------------------


@given(
    arrays.arrays(np.float32, (1, 5), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.floats(0, 2),
)
def test_the_block_of_a_reply_sums_as_any_block_of_rows(rows: np.ndarray[Any, Any], weight: float) -> None:
    weights = torch.tensor([weight], dtype=torch.float64)
    tensor = torch.from_numpy(rows)
    with np.errstate(over="ignore"):
        ours, plain = (kind(tensor).weighted_sum(weights) for kind in (ReplyBlock, RowsBlock))
    assert ours.numpy().tobytes() == plain.numpy().tobytes()


@given(arrays.arrays(np.float32, 4, elements=st.sampled_from([0.0, -0.0, 1.0, -1e-40])))
def test_absent_updates_change_no_bit_of_a_sum(total: np.ndarray[Any, Any]) -> None:
    absent = AbsentBlock(np.array([3, 4]), 4)
    added = torch.from_numpy(total) + absent.weighted_sum(torch.zeros(2, dtype=torch.float64))
    assert added.numpy().tobytes() == total.tobytes()
    assert not bool((absent.norms() <= math.inf).any())
    assert absent.rows()[torch.tensor([False, False])].shape == (0, 4)
