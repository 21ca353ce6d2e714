"""Data from frames, torch data sets and Hugging Face's tables: columns by name, and sentences that name the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sparsefed import Simulation, data
from sparsefed.core.errors import DataError
from sparsefed.data.own import from_arrays, from_dataset, from_frame, from_huggingface

draw = np.random.default_rng(4)
N = 30
COLUMNS: dict[str, Any] = {
    "age": draw.integers(20, 60, N),
    "income": draw.uniform(1e4, 1e6, N),
    "member": draw.random(N) < 0.5,
    "clinic": np.array([f"clinic {i % 3}" for i in range(N)]),
    "ill": np.array(["yes", "no", "no"])[np.arange(N) % 3],
}
NAMES = ["age", "income", "member"]


class Series:
    """As much of a polars Series as is used."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return self.values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


class Polars:
    """As much of a polars frame as is used; the real one is tried where it is installed."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Series:
        return Series(self._columns[name])


def polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars", reason="the library polars is not installed").DataFrame(columns)


@pytest.mark.parametrize("frame", [pandas.DataFrame, Polars, polars], ids=["pandas", "like polars", "polars"])
def test_a_frame_is_its_columns(frame: Callable[[Any], Any]) -> None:
    made = frame(COLUMNS)
    a = data.load(from_frame(made, "ill", user="clinic", test=made, normalise="train"))
    truth = np.stack([COLUMNS[name].astype(float) for name in NAMES], 1)
    assert a.classes == ("no", "yes") and a.x_train.dtype == np.float64 and np.array_equal(a.x_train, truth)
    assert a.users is not None and a.users.tolist() == [i % 3 for i in range(N)]
    assert a.y_test.tolist() == [int(word == "yes") for word in COLUMNS["ill"]]
    one = data.load(from_frame(made, "ill", columns=["income", "age"]))
    assert one.x_train.shape == (24, 2) and one.x_train.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        ({}, {"label": "sick"}, "unknown column 'sick'.*ill"),
        ({}, {"user": "hospital"}, "unknown column 'hospital'"),
        ({}, {"columns": ["age", "wealth"]}, "unknown column 'wealth'"),
        ({}, {"columns": ["age", "ill"]}, "column ill is both a feature and the label"),
        ({}, {}, "row 0 of column clinic is 'clinic 0', not a number; encode the column"),
        ({"income": np.where(np.arange(N) == 7, np.nan, 1.0)}, {"columns": NAMES}, "row 7 of column income is nan"),
        ({"income": np.where(np.arange(N) == 7, np.inf, 1.0)}, {"columns": NAMES}, "row 7 of column income is inf"),
        ({"age": [1, "two", 3] * 10}, {"columns": NAMES}, "row 1 of column age is 'two', not a number"),
        ({"age": [None] + [1.5] * 29}, {"columns": ["age"]}, "row 0 of column age is nan"),
        ({"ill": [0.0, None, 1.0] * 10}, {"columns": ["age"]}, "row 1 of column ill is empty"),
        ({"ill": [0, 1, -4] * 10}, {"columns": ["age"]}, "row 2 has the label -4; labels must be whole numbers from 0"),
        ({"ill": ["a", "b", 3] * 10}, {"columns": ["age"], "classes": ["a", "b"]}, "unknown label '3'"),
    ],
)
def test_a_wrong_frame_gets_one_sentence(change: dict[str, Any], given: dict[str, Any], words: str) -> None:
    record = from_frame(
        pandas.DataFrame({**COLUMNS, **change}), **{"label": "ill", "test_share": 0.01 + 1 / N, **given}
    )
    with pytest.raises(DataError, match=words) as caught:
        data.load(record)
    assert "\n" not in str(caught.value)


# torch


class Pairs(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


X = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3


@pytest.mark.parametrize(
    "made",
    [
        TensorDataset(X, Y),
        Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([(x.numpy(), y) for x, y in zip(X, Y, strict=True)]),
        Stream([[x, int(y)] for x, y in zip(X, Y, strict=True)]),
    ],
    ids=["tensors", "items", "arrays", "stream"],
)
def test_a_torch_data_set_is_its_items(made: Any) -> None:
    found, truth = (data.load(each) for each in (from_dataset(made, users=Y), from_arrays(X, Y, users=Y)))
    assert np.array_equal(found.x_train, truth.x_train) and np.array_equal(found.y_test, truth.y_test)
    assert found.users is not None and truth.users is not None and found.users.tolist() == truth.users.tolist()
    run = Simulation(nn.Linear(4, 3), made, devices=5, cohort=5, rounds=1).run()
    assert torch.equal(
        run.theta, Simulation(run.built.task.template, (X, Y), devices=5, cohort=5, rounds=1).run().theta
    )


def test_a_torch_data_set_of_images_and_of_several_inputs() -> None:
    pixels = draw.integers(0, 256, (N, 5, 4, 3), np.uint8)
    a = data.load(from_dataset(Pairs([(Image.fromarray(image), 1) for image in pixels]), classes=["a", "b"]))
    assert a.is_image and a.x_train.shape == (24, 5, 4, 3) and a.classes == ("a", "b")
    pair = data.load(from_dataset(Pairs([(x, x[:2], int(y)) for x, y in zip(X, Y, strict=True)])))
    assert isinstance(pair.x_train, tuple) and [part.shape for part in pair.x_train] == [(24, 4), (24, 2)]
    named = data.load(from_dataset(Pairs([({"one": x, "two": x[:1]}, int(y)) for x, y in zip(X, Y, strict=True)])))
    assert list(named.x_train) == ["one", "two"]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "item 0 of the data set is not"),
        ([1, 2, 3], "item 0 of the data set is not"),
        ([(X[0], 0), (X[1][:2], 0)], r"row 1 of part 0 of the items has the shape \[2\], the first \[4\]"),
    ],
)
def test_a_wrong_torch_data_set_gets_one_sentence(items: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.load(from_dataset(Pairs(items)))


# Hugging Face


class Rows:
    """As much of datasets.Dataset as is used."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def test_columns_of_a_hugging_face_table() -> None:
    tokens = draw.integers(0, 9, (N, 6)).tolist()
    rows = Rows(input_ids=tokens, label=Y.tolist(), age=COLUMNS["age"].tolist(), who=COLUMNS["clinic"].tolist())
    a = data.load(from_huggingface({"train": rows, "test": rows}, columns="input_ids", user="who"))
    assert a.x_train.dtype == np.int64 and a.x_train.tolist() == tokens and a.users is not None
    b = data.load(from_huggingface(rows, rows, columns=["age", "label"], label="who"))
    assert b.x_train.shape == (N, 2) and b.classes == ("clinic 0", "clinic 1", "clinic 2")
    with pytest.raises(DataError, match=r"row 1 of input_ids has the shape \[2\], the first \[6\]"):
        data.load(from_huggingface(Rows(input_ids=[tokens[0], [1, 2]], label=[0, 1]), columns="input_ids"))


def test_tokens_with_one_label_each_train_a_text_classifier() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, words: Tensor) -> Tensor:
            out: Tensor = self.last(self.embed(words).mean(1))
            return out

    words = draw.integers(0, 9, (200, 6))
    run = Simulation(
        Bag(), (words, (words == 3).any(1)), devices=10, cohort=10, rounds=60, schedule=1.0, evaluate_every=60
    ).run()
    assert run.evaluate()["test_accuracy"] > 0.8
