"""Data that a user brings: arrays, tensors, a folder of images, a data set of Hugging Face's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sparsefed import data
from sparsefed.config import build, parse
from sparsefed.core.errors import DataError
from sparsefed.core.types import Arrays
from sparsefed.data.own import from_arrays, from_folder, from_huggingface
from tests.support.processes import Nursery, Server

draw = np.random.default_rng(11)
X = draw.integers(0, 256, (20, 6, 5, 3), np.uint8)
Y = np.arange(20) % 4
WHO = np.array([f"person {i % 7}" for i in range(20)])


def joined(a: Arrays) -> dict[bytes, int]:
    """Every image with its label, wherever it is."""
    return {x.tobytes(): int(y) for x, y in zip([*a.x_train, *a.x_test], [*a.y_train, *a.y_test], strict=True)}


# Arrays.


@pytest.mark.parametrize(
    "x",
    [X, torch.from_numpy(X), X.tolist(), X / 255, torch.from_numpy(X / 255).float(), X.transpose(0, 3, 1, 2), X[::1]],
    ids=["array", "tensor", "list", "floats", "float tensor", "channels first", "view"],
)
def test_images_in_any_container(x: Any) -> None:
    x = np.asarray(x, np.uint8) if isinstance(x, list) else x
    a = data.load(from_arrays(x, Y, WHO))
    assert a.x_train.dtype == np.uint8 and a.x_train.shape == (16, 6, 5, 3) and a.x_test.shape == (4, 6, 5, 3)
    assert joined(a) == {image.tobytes(): int(label) for image, label in zip(X, Y, strict=True)}
    assert a.x_train.flags.writeable and a.x_train.flags.c_contiguous and a.classes == ("0", "1", "2", "3")
    assert a.mean == pytest.approx((a.x_train / 255).mean((0, 1, 2)))


def test_floats_are_rounded() -> None:
    x = np.array([0.0, 0.001, 0.499, 0.999, 1.0] * 2).reshape(10, 1, 1)
    a = data.load(from_arrays(x, np.zeros(10, int), test=(x, np.zeros(10, int))))
    assert a.x_train[:5, 0, 0, 0].tolist() == [0, 0, 127, 255, 255]


def test_users_stay_with_their_images() -> None:
    a = data.load(from_arrays(X, Y, WHO))
    assert a.users is not None
    names = sorted(set(WHO.tolist()))
    owner = {image.tobytes(): who for image, who in zip(X, WHO.tolist(), strict=True)}
    assert [names[user] for user in a.users] == [owner[image.tobytes()] for image in a.x_train]


def test_own_test_set_and_names() -> None:
    named = np.array(["cat", "dog", "bee", "ant"])[Y]
    a = data.load(from_arrays(X[:15, ..., 0], named[:15], test=(X[15:, ..., 0], named[15:]), name="zoo"))
    assert a.name == "zoo" and a.classes == ("ant", "bee", "cat", "dog") and a.users is None
    assert (a.x_train == X[:15, ..., :1]).all() and (a.x_test == X[15:, ..., :1]).all()
    assert [a.classes[i] for i in a.y_train] == named[:15].tolist()
    fixed = data.load(from_arrays(X, named, classes=["dog", "cat", "bee", "ant", "emu"]))
    assert len(fixed.classes) == 5 and set(fixed.y_train.tolist()) <= {0, 1, 2, 3}


def test_the_same_draw_every_time() -> None:
    first, second = (data.load(from_arrays(X, Y)) for _ in range(2))
    assert (first.x_test == second.x_test).all()


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_any_share_is_a_split(n: int, share: float) -> None:
    x = np.arange(n, dtype=np.uint8).reshape(n, 1, 1)
    record = from_arrays(x, np.zeros(n, int), test_share=share)
    if not 0 < round(share * n) < n:
        with pytest.raises(DataError, match="leaves no test or no training set"):
            data.load(record)
        return
    a = data.load(record)
    assert len(a.x_test) == round(share * n)
    assert sorted([*a.x_train.ravel(), *a.x_test.ravel()]) == list(range(n))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (from_arrays(np.zeros((5, 7, 2, 2, 2)), [0] * 5), r"the shape is \[5, 7, 2, 2, 2\]; a table is"),
        (from_arrays(np.full((5, 7), np.nan), [0] * 5), "row 0, column 0 of the table is nan"),
        (from_arrays(np.full((5, 7), "a"), [0] * 5), "the table holds <U1, but must hold numbers"),
        (from_arrays(np.zeros((0, 7, 7)), []), "at least one"),
        (from_arrays(np.zeros((5, 7, 7, 9), np.uint8), [0] * 5), "1 to 4 channels"),
        (from_arrays(X.astype(np.float32), Y), r"image 0 has the value [\d.]+, but floats must lie from 0 to 1"),
        (from_arrays(np.full((5, 2, 2), np.nan), [0] * 5), "image 0 has the value nan, but floats must lie from 0"),
        (from_arrays(X.astype(np.int32), Y), "they are int32"),
        (from_arrays(X, Y[:19]), r"there are 20 examples, but the labels have the shape \[19\]"),
        (from_arrays(X, Y, WHO[:3]), r"the users have the shape \[3\]"),
        (from_arrays(X, Y - 1), "whole numbers from 0 to 2"),
        (from_arrays(X, Y / 2), "labels must be whole numbers"),
        (from_arrays(X, Y, classes=["a", "b"]), "whole numbers from 0 to 1"),
        (from_arrays(X, ["cat"] * 20, classes=["cow"]), "unknown label 'cat'; valid choices: cow"),
        (from_arrays(X, Y, test=(X[:, :4], Y)), r"training examples are \[6, 5, 3\], test examples \[4, 5, 3\]"),
        (from_arrays(X, Y, test=(X, Y[:2])), "test labels"),
        (from_arrays(X, Y, test_share=0.0), "leaves no test"),
        (from_arrays(X, Y, test_share=float("nan")), "test_share is nan"),
        (from_arrays(np.array([{}] * 20), Y), "row 0 of the table is {}, but must be a number"),
        (from_arrays(np.array(3), 3), r"the shape \[\]; give at least one row"),
        (from_arrays(np.zeros((5, 7), complex), [0] * 5), "the table holds complex128"),
        (from_arrays(np.zeros((5, 7), "M8[s]"), [0] * 5), "the table holds datetime64"),
        (from_arrays(np.zeros((5, 7), "i4,f4"), [0] * 5), "must hold numbers"),
        (from_arrays(np.full((5, 7), 1e300), [0] * 5), "row 0 of the table has a value beyond 3e38"),
        (from_arrays([[1], [1, 2]], [0, 1]), "own data is damaged or of another kind .*inhomogeneous"),
        (from_arrays(X, Y, users=["a", 1, None, 2] * 5), "row 1 has the user 1; give all numbers or all names"),
        (from_arrays(X, Y, users=[3.0, np.nan] * 10), "row 1 has the user nan"),
        (from_arrays(X, Y + 2**62), "there is a label 4611686018427387"),
        (from_arrays(X, [{}] * 20), "row 0 has the label {}; give whole numbers from 0 or names"),
        (from_arrays(X, Y, classes=["a", "a", "b"]), "different names"),
        (from_arrays(X, ["\x1b[31m"] * 20), "printable"),
        (from_arrays(X, ["a"] * 20, test=(X, Y)), "give the same kind"),
        (from_arrays(X, ["a\x1b[31m"] * 20, classes=["a"]), "printable"),
    ],
)
def test_mistakes_are_one_sentence(record: data.DataSet, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        data.load(record)
    assert "\n" not in str(caught.value)
    assert data.check(record).state == "damaged" and data.check(record).problem == str(caught.value)


# A folder.


def picture(path: Path, value: int, size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / f"train/cat/anna_{i}.png", i)
        picture(tmp_path / f"train/dog/bert_{i}.png", 100 + i)
    picture(tmp_path / "test/dog/x.PNG", 200)
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    a = data.load(from_folder(tmp_path, user=lambda path: path.stem.split("_")[0]))
    assert a.classes == ("cat", "dog") and a.x_train.shape == (8, 8, 6, 3) and a.y_test.tolist() == [1]
    assert (
        a.x_train[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103] and a.y_train.tolist() == [0] * 4 + [1] * 4
    )
    assert a.users is not None and a.users.tolist() == [0] * 4 + [1] * 4 and a.name == tmp_path.name


def test_a_folder_split_by_hash(tmp_path: Path) -> None:
    """More images move none of the others to the other side."""
    for i in range(60):
        picture(tmp_path / f"{'ab'[i % 2]}/{i}.png", i, (2, 2))
    first = data.load(from_folder(tmp_path, grey=True))
    assert 3 <= len(first.y_test) <= 25 and len(first.y_test) + len(first.y_train) == 60
    assert first.x_train.shape[1:] == (2, 2, 1)
    for i in range(60, 90):
        picture(tmp_path / f"{'ab'[i % 2]}/{i}.png", i, (2, 2))
    second = data.load(from_folder(tmp_path, grey=True))
    assert set(first.x_test[:, 0, 0, 0].tolist()) <= set(second.x_test[:, 0, 0, 0].tolist())
    assert set(first.x_train[:, 0, 0, 0].tolist()) <= set(second.x_train[:, 0, 0, 0].tolist())


def test_sizes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / f"{split}/a/0.png", 7, (8, 6))
        picture(tmp_path / f"{split}/a/1.png", 9, (6, 8))
    with pytest.raises(DataError, match=r"1\.png is \[6, 8, 3\], the others \[8, 6, 3\]; give a size"):
        data.load(from_folder(tmp_path))
    a = data.load(from_folder(tmp_path, size=(4, 5)))
    assert a.x_train.shape == (2, 4, 5, 3) and a.x_train[:, 0, 0, 0].tolist() == [7, 9]


def test_folders_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere; give one"):
        data.load(from_folder(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="holds no images"):
        data.load(from_folder(tmp_path))
    picture(tmp_path / "train/a/0.png", 7)
    picture(tmp_path / "test/a/0.png", 7)
    good = (tmp_path / "train/a/0.png").read_bytes()
    for raw, words in (
        (b"<html></html>", r"1\.png is no image"),
        (good[:-30], "cannot be read as an image"),
        (b"", "no image"),
    ):
        (tmp_path / "train/a/1.png").write_bytes(raw)
        with pytest.raises(DataError, match=words) as caught:
            data.load(from_folder(tmp_path))
        assert "\n" not in str(caught.value)


def test_numbers_of_any_byte_order_and_names_as_bytes() -> None:
    table = np.arange(40.0).reshape(20, 2)
    assert data.load(from_arrays(table.astype(">f8"), Y)).x_train.dtype == np.float32
    names = ["cat", "cow"] * 10
    given, plain = (data.load(from_arrays(table, each)) for each in (np.array(names, "S"), names))
    assert given.classes == plain.classes == ("cat", "cow") and given.y_train.tolist() == plain.y_train.tolist()


def test_folders_with_names_that_are_not_utf8(tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"\x1b[31m"):
        folder = tmp_path / name.hex()
        for part in (b"cat", name):
            picture(Path(os.fsdecode(os.path.join(os.fsencode(folder), part, b"0.png"))), 7)  # noqa: PTH118
        with pytest.raises(DataError, match="rename it") as caught:
            data.load(from_folder(folder))
        assert str(caught.value).isprintable()


def test_a_file_name_that_is_not_utf8_does_not_matter(tmp_path: Path) -> None:
    for i in range(12):
        picture(Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"cat", b"\xff%d.png" % i))), i)  # noqa: PTH118
    a = data.load(from_folder(tmp_path, test_share=0.5))
    assert len(a.x_train) + len(a.x_test) == 12


def test_a_picture_that_would_fill_the_memory(tmp_path: Path) -> None:
    from PIL import Image

    for part in ("train/a/0.png", "test/a/0.png"):
        (tmp_path / part).parent.mkdir(parents=True)
        Image.new("L", (9000, 9000)).save(tmp_path / part)
    with pytest.raises(DataError, match=r"0\.png cannot be read as an image: it is not to be unpacked"):
        data.load(from_folder(tmp_path))


# Hugging Face: a stand-in with the few things that are used of the real one, which is tried where it is installed.


class Names:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Rows:
    """As much of datasets.Dataset as is asked for."""

    def __init__(self, names: list[str] | None = None, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = {"label": Names(names)} if names else {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: rows[key] for name, rows in self.columns.items()}

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def test_a_data_set_of_hugging_faces() -> None:
    rows = Rows(["a", "b", "c", "d"], img=[Image.fromarray(x) for x in X], label=Y.tolist(), who=WHO.tolist())
    a = data.load(from_huggingface({"train": rows, "test": rows}, image="img", user="who"))
    assert (a.x_train == X).all() and (a.x_test == X).all() and a.classes == ("a", "b", "c", "d")
    assert a.users is not None and len(set(a.users.tolist())) == 7
    arrays = data.load(from_huggingface(Rows(image=X.tolist(), label=Y.tolist())))
    assert joined(arrays) == {x.tobytes(): int(y) for x, y in zip(X, Y, strict=True)}
    grey = data.load(from_huggingface(rows, rows, image="img", grey=True, size=(3, 3)))
    assert grey.x_train.shape == (20, 3, 3, 1)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            from_huggingface({"validation": Rows(image=[], label=[])}),
            "unknown split 'train'.*valid choices: validation",
        ),
        (from_huggingface(Rows(img=[1], label=[0])), "unknown column 'image' .*img, label"),
        (from_huggingface(Rows(image=[1], label=[0]), user="who"), "unknown column 'who'"),
        (from_huggingface(Rows(image=[], label=[])), "no rows"),
    ],
)
def test_mistakes_with_hugging_face(record: data.DataSet, words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.load(record)


def test_the_real_hugging_face_library() -> None:
    datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcd")), "who": datasets.Value("string")}
    )
    columns = {"image": [Image.fromarray(x) for x in X], "label": Y.tolist(), "who": WHO.tolist()}
    rows = datasets.Dataset.from_dict(columns, features=features)
    a = data.load(from_huggingface(datasets.DatasetDict({"train": rows, "test": rows}), user="who"))
    assert (a.x_train == X).all() and a.y_train.tolist() == Y.tolist() and a.classes == tuple("abcd")
    assert a.users is not None and len(set(a.users.tolist())) == 7


# In a config.


def test_a_config_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_users_data.py").write_text(
        "import numpy as np\nfrom sparsefed.data.own import from_arrays\n"
        "x = np.random.default_rng(0).integers(0, 256, (40, 4, 4), np.uint8)\n"
        "DATA = from_arrays(x, x[:, 0, 0] > 127, users=np.arange(40) % 8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {
        "rounds": 2,
        "data": {"name": "some_users_data:DATA", "partition": "by_user"},
        "model": {"name": "softmax"},
        "train": {"cohort": 3},
    }
    experiment = build(parse(table))
    assert experiment.setup.federation.device_count == 8
    *_, last = experiment.reports(experiment.begin())
    assert last.state.round == 2


@pytest.mark.slow
@pytest.mark.process
def test_the_example_learns(process_server: Server, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "own_data.py"
    printed = Nursery(process_server, tmp_path).script(script)
    assert float(printed.rsplit(" ", 1)[1].rstrip("%\n")) > 95
    assert len(script.read_text().splitlines()) < 50
