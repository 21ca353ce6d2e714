"""Data sets: never wrong data, never a partial file taken for a whole one, and errors that say what to do."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsefed import data
from sparsefed.core.errors import DataError
from sparsefed.core.types import UInt8Array
from sparsefed.data.formats import idx
from sparsefed.data.sources import content
from sparsefed.data.sources import paths as places
from sparsefed.data.sources.debian import debian_package
from sparsefed.data.sources.mirror import mirror
from tests.support.data_synthetic import (
    CLASSES,
    FILES,
    IMAGES,
    LABELS,
    PIXELS,
    apt_repository,
    put,
    serving,
    tiny,
    to_idx,
    zipped_pages,
)

GOOD = gzip.compress(FILES[IMAGES])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache; no $SPARSEFED_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSEFED_DATA", raising=False)
    return tmp_path / "cache/sparsefed"


def no_leftovers(cache: Path) -> bool:
    """Whether the cache holds nothing but whole files of the tiny data set."""
    return all(path.read_bytes() == FILES[path.name] for path in cache.rglob("*") if path.is_file()) and not list(
        cache.rglob(".fetch-*")
    )


def fetching_process(url: str) -> subprocess.Popen[bytes]:
    """Another process that fetches the tiny data set from a mirror."""
    code = (
        "import sparsefed.data as data; from sparsefed.data.sources.mirror import mirror; "
        f"from tests.support.data_synthetic import tiny; data.fetch(tiny(mirror({url!r})))"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])


# The data sets that are always there, or nearly.


def test_names_are_those_of_the_records() -> None:
    assert {name: record.name for name, record in data.DATASETS.items()} == {name: name for name in data.DATASETS}


def test_unknown_name_lists_the_valid_ones() -> None:
    for act in (data.load, data.status, data.check, data.fetch):
        with pytest.raises(
            DataError, match=r"did you mean 'fmnist'\?\); valid choices: cifar10, cifar100, digits, femnist, fmnist"
        ):
            act("fminst")


@pytest.mark.process
def test_importing_is_light() -> None:
    code = (
        "import sys, sparsefed; before = set(sys.modules); import sparsefed.data; sparsefed.data.listing();"
        "print(*sorted({'torch', 'sklearn', 'scipy', 'PIL'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_digits() -> None:
    a = data.load("digits")
    assert (a.x_train.shape, a.x_test.shape) == ((1500, 8, 8, 1), (297, 8, 8, 1))
    assert [str(v.dtype) for v in (a.x_train, a.y_train, a.x_test, a.y_test)] == ["uint8", "int64"] * 2
    # The first image as UCI's file has it: grey levels 0 0 5 13 9 1 0 0 in its first row, a zero.
    assert a.x_train[0, 0, :, 0].tolist() == [round(g * 255 / 16) for g in (0, 0, 5, 13, 9, 1, 0, 0)]
    assert a.y_train[:10].tolist() == list(range(10))
    assert min(np.bincount(a.y_train)) == 146 and min(np.bincount(a.y_test)) == 27 and len(a.classes) == 10
    assert a.mean[0] == pytest.approx(np.mean([p / 255 for p in a.x_train.ravel().tolist()]))
    assert a.std[0] == pytest.approx(np.std([p / 255 for p in a.x_train.ravel().tolist()]))
    assert data.check("digits").state == data.status("digits").state == "built in"


def test_digits_need_no_fetching(cache: Path) -> None:
    lines: list[str] = []
    assert data.fetch("digits", lines.append).state == "built in"
    assert lines == ["digits comes with scikit-learn; there is nothing to fetch."] and not cache.exists()


@pytest.mark.slow
def test_fmnist_is_the_real_one() -> None:
    if data.status("fmnist").state == "missing":
        pytest.skip("Fashion-MNIST is not on this machine: run `sparsefed data fetch fmnist`")
    a = data.load("fmnist")
    assert (a.x_train.shape, a.x_test.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert np.bincount(a.y_train).tolist() == [6000] * 10 and np.bincount(a.y_test).tolist() == [1000] * 10
    assert a.x_train.flags.writeable and a.x_train.flags.c_contiguous and a.x_train.dtype == np.uint8
    assert a.classes[a.y_train[0]] == "Ankle boot" and a.y_test[:4].tolist() == [9, 2, 1, 1]
    levels, counts = np.arange(256) / 255, np.bincount(a.x_train.ravel(), minlength=256)
    mean = np.average(levels, weights=counts)
    assert round(mean, 4) == a.mean[0]
    assert round(np.sqrt(np.average((levels - mean) ** 2, weights=counts)), 4) == a.std[0]
    assert data.check("fmnist").state == "found"


# Reading.


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)))
def test_idx_round_trip(array: UInt8Array) -> None:
    parsed = idx.parse(np.frombuffer(to_idx(array), dtype=np.uint8), array.shape, "x")
    assert parsed.shape == array.shape and (parsed == array).all()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], "no IDX file of unsigned bytes in 3 dimensions"),
        (lambda b: b"\x00\x00\x08\x01" + b[4:], "no IDX file of unsigned bytes in 3 dimensions"),
        (lambda b: b[:2], "no IDX file"),
        (lambda b: b[:7], r"its shape is \[\]; it should be \[6, 4, 4\]"),
        (lambda _: to_idx(PIXELS.reshape(4, 6, 4)), r"its shape is \[4, 6, 4\]; it should be \[6, 4, 4\]"),
        (lambda b: b[:-1], r"holds 95 bytes; its shape \[6, 4, 4\] needs 96"),
        (lambda b: b + b"\x00", "holds 97 bytes"),
    ],
)
def test_idx_refuses(damage: object, words: str) -> None:
    assert callable(damage)
    with pytest.raises(DataError, match=f"pictures .*{words}"):
        idx.parse(np.frombuffer(damage(FILES[IMAGES]), dtype=np.uint8), (6, 4, 4), "pictures")


@pytest.mark.parametrize("zipped", [False, True])
def test_load(cache: Path, zipped: bool) -> None:
    put(cache / "tiny-set", zipped)
    a = data.load(tiny())
    assert (np.concatenate([a.x_train, a.x_test])[..., 0] == PIXELS).all()
    assert np.concatenate([a.y_train, a.y_test]).tolist() == CLASSES.tolist()
    assert a.x_train.flags.writeable, "torch.from_numpy warns of arrays that are not"
    assert data.check(tiny()).state == data.status(tiny()).state == "found"


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGES = {
    "empty": b"",
    "plain, cut short": FILES[IMAGES][:-1],
    "plain, longer": FILES[IMAGES] + b"\x00",
    "plain, one bit": flipped(FILES[IMAGES], 50),
    "plain, wrong magic": b"\x00\x00\x0d\x03" + FILES[IMAGES][4:],
    "plain, other shape": to_idx(PIXELS.reshape(4, 6, 4)),
    "gzip, cut short": GOOD[:-20],
    "gzip, without its end": GOOD[:-8],
    "gzip, only a header": GOOD[:10],
    "gzip, one bit": flipped(GOOD, len(GOOD) // 2),
    "gzip, wrong checksum": flipped(GOOD, len(GOOD) - 8),
    "gzip, other content": gzip.compress(flipped(FILES[IMAGES], 50)),
    "gzip, longer": gzip.compress(FILES[IMAGES] + b"\x00"),
    "gzip, then rubbish": GOOD + b"rubbish",
    "a web page": b"<html>log in to the hotel's network</html>",
}


@pytest.mark.parametrize("raw", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("zipped", [False, True])
def test_damage_is_never_loaded(cache: Path, zipped: bool, raw: bytes) -> None:
    put(cache / "tiny-set", zipped, images=raw)
    path = cache / "tiny-set" / (IMAGES + ".gz" * zipped)
    with pytest.raises(DataError) as caught:
        data.load(tiny())
    assert str(path) in str(caught.value) and "`sparsefed data fetch tiny`" in str(caught.value)
    report = data.check(tiny())
    assert report.state == "damaged" and str(path) in report.problem and "fetch tiny" in report.problem
    assert LABELS not in report.problem


@given(at=st.integers(0, len(GOOD) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_caught_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    """The bits of a gzip header that mean nothing (time, system) may flip; content that differs never gets through."""
    path = tmp_path_factory.mktemp("bits") / IMAGES
    path.write_bytes(GOOD[:at] + bytes([GOOD[at] ^ (1 << bit)]) + GOOD[at + 1 :])
    try:
        assert content.read(path, tiny().files[0]).tobytes() == FILES[IMAGES]
    except DataError:
        assert at not in range(4, 10), "the time, the level and the system are not content"


@pytest.mark.parametrize("name", ["empty", "plain, cut short", "plain, longer", "gzip, cut short", "gzip, longer"])
def test_a_glance_sees_a_wrong_length(cache: Path, name: str) -> None:
    put(cache / "tiny-set", images=DAMAGES[name])
    assert data.status(tiny()).state == "damaged"


# Looking.


def test_missing_names_the_places_and_the_command(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError) as caught:
        data.load(tiny())
    for part in (str(tmp_path / "mine"), str(cache), "/usr/share/datasets", IMAGES, "`sparsefed data fetch tiny`"):
        assert part in str(caught.value)
    assert data.status(tiny()).state == "missing" and IMAGES in data.status(tiny()).problem


def test_incomplete_is_missing(cache: Path) -> None:
    put(cache / "tiny-set")
    (cache / "tiny-set" / LABELS).unlink()
    report = data.status(tiny())
    assert report.state == "missing" and LABELS in report.problem and IMAGES not in report.problem
    assert report.size == len(FILES[IMAGES]) and report.location == str(cache / "tiny-set")


def test_order_of_the_roots(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "mine"))
    assert places.roots() == (tmp_path / "mine", cache, Path("/usr/share/datasets"))
    monkeypatch.setenv("SPARSEFED_DATA", str(cache))
    assert places.roots() == (cache, Path("/usr/share/datasets"))
    monkeypatch.setenv("SPARSEFED_DATA", "~/d")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.roots()[0] == tmp_path / "d"


def test_order_of_the_candidates(tmp_path: Path) -> None:
    """Every place is filled, and the best is removed again and again."""
    roots = [tmp_path / "first", tmp_path / "second", tmp_path / "third"]
    file = tiny().files[0]
    folders = [root / folder for root in roots for folder in ("tiny-set", "tiny", ".")]
    expected = [folder / (IMAGES + suffix) for folder in folders for suffix in ("", ".gz")]
    for path in expected:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    for path in expected:
        assert places.find(tiny(), file, roots) == (path,)
        path.unlink()
    assert places.find(tiny(), file, roots) == ()


def test_own_folder_comes_before_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "mine"))
    put(cache / "tiny-set")
    assert data.status(tiny()).location == str(cache / "tiny-set")
    put(tmp_path / "mine", zipped=True)
    assert data.status(tiny()).location == str(tmp_path / "mine")
    assert data.load(tiny()).y_train.tolist() == [0, 1, 0, 1]


def test_a_damaged_file_is_not_passed_over(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good copy in the cache does not silence it, and fetching says why it would not help."""
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path / "mine"))
    put(cache / "tiny-set")
    put(tmp_path / "mine", images=DAMAGES["plain, one bit"])
    for act in (data.load, data.fetch):
        with pytest.raises(
            DataError, match="Move it away or delete it, then run `sparsefed data fetch tiny`"
        ) as caught:
            act(tiny())
        assert str(tmp_path / "mine" / IMAGES) in str(caught.value)


def test_listing() -> None:
    rows = data.listing()
    assert [row.name for row in rows] == sorted(data.DATASETS)
    states = {row.name: row.state for row in rows}
    assert states.pop("digits") == "built in" and set(states.values()) <= {"found", "missing", "damaged"}
    assert all(row.description for row in rows)


# Fetching from a mirror.


def test_fetch_once(cache: Path) -> None:
    with serving(zipped_pages()) as server:
        lines: list[str] = []
        report = data.fetch(tiny(mirror(server.url)), lines.append)
        assert report.state == "found" and report.location == str(cache / "tiny-set")
        assert server.seen == [f"{IMAGES}.gz", f"{LABELS}.gz"] and "checksums verified" in lines[-1]
        assert sorted(path.name for path in cache.rglob("*")) == [IMAGES, LABELS, "tiny-set"]
        assert data.load(tiny()).x_test[..., 0].tolist() == PIXELS[4:].tolist()

        again: list[str] = []
        assert data.fetch(tiny(mirror(server.url)), again.append) == report
        assert len(server.seen) == 2 and "already here" in again[0] and len(again) == 1


def test_fetch_only_what_is_wanted(cache: Path) -> None:
    put(cache / "tiny-set", labels=b"damaged")
    with serving(zipped_pages()) as server:
        assert data.fetch(tiny(mirror(server.url))).state == "found"
        assert server.seen == [f"{LABELS}.gz"]
    assert data.check(tiny()).state == "found"


@pytest.mark.parametrize(
    ("pages", "cut", "words"),
    [
        (zipped_pages(), True, "broke off after"),
        ({f"{IMAGES}.gz": GOOD[:-10]}, False, "cut short"),
        ({f"{IMAGES}.gz": GOOD[: len(GOOD) // 2]}, False, "cut short"),
        (zipped_pages(images=flipped(FILES[IMAGES], 50)), False, "SHA-256 differs"),
        (zipped_pages(images=FILES[IMAGES] + b"\x00"), False, "is longer"),
        ({f"{IMAGES}.gz": bytes(1 << 20)}, False, "is longer than it can be"),
        ({f"{IMAGES}.gz": b"<html>log in first</html>"}, False, "cut short"),
        ({}, False, "Not Found"),
    ],
)
def test_bad_mirror(cache: Path, pages: dict[str, bytes], cut: bool, words: str) -> None:
    with serving(pages, cut) as server, pytest.raises(DataError, match=words) as caught:
        data.fetch(tiny(mirror(server.url)))
    assert server.url in str(caught.value) and "SPARSEFED_DATA" in str(caught.value)
    assert no_leftovers(cache) and not list(cache.rglob(IMAGES))


@pytest.mark.usefixtures("cache")
def test_next_source_takes_over() -> None:
    """The first mirror is gone, the second has half, the third is asked only for the rest."""
    with serving({f"{IMAGES}.gz": GOOD}) as half, serving(zipped_pages()) as whole:
        lines: list[str] = []
        sources = (mirror("http://127.0.0.1:9"), mirror(half.url), mirror(whole.url))
        assert data.fetch(tiny(*sources), lines.append).state == "found"
        assert whole.seen == [f"{LABELS}.gz"]
    assert any("refused" in line for line in lines)


def test_one_error_tells_of_every_source(cache: Path) -> None:
    with serving({}) as empty, serving(zipped_pages(images=b"other")) as wrong, pytest.raises(DataError) as caught:
        data.fetch(tiny(mirror(empty.url), mirror(wrong.url), mirror("http://127.0.0.1:9")))
    for part in (empty.url, "Not Found", wrong.url, "cut short: 5 of 112 bytes", "127.0.0.1:9", "refused", IMAGES):
        assert part in str(caught.value)
    assert no_leftovers(cache)


def test_no_source(cache: Path) -> None:
    with pytest.raises(DataError, match="no source is known"):
        data.fetch(tiny())
    assert no_leftovers(cache)


def test_a_silent_mirror_is_given_up(cache: Path) -> None:
    with serving(zipped_pages(), hang=True) as server, pytest.raises(DataError, match="timed out"):
        data.fetch(tiny(mirror(server.url, timeout=0.2)))
    assert no_leftovers(cache)


@pytest.mark.process
def test_killed_fetch_leaves_nothing_wrong(cache: Path) -> None:
    """kill -9 in the middle of a download: no file has its final name, and the next fetch starts afresh."""
    with serving(zipped_pages(), hang=True) as server:
        victim = fetching_process(server.url)
        assert server.halfway.wait(30)
        deadline = time.monotonic() + 10
        while not (partial := [p for p in cache.rglob(f"{IMAGES}*") if p.is_file()]) and time.monotonic() < deadline:
            time.sleep(0.02)
        victim.kill()
        victim.wait()
    assert partial and data.status(tiny()).state == "missing"
    with serving(zipped_pages()) as server:
        assert data.fetch(tiny(mirror(server.url))).state == "found"
    assert data.check(tiny()).state == "found"


def test_old_scratch_is_swept(cache: Path) -> None:
    old, new = cache / "tiny-set/.fetch-old", cache / "tiny-set/.fetch-new"
    for folder in (old, new):
        (folder / "deep").mkdir(parents=True)
    os.utime(old, (time.time() - 100_000,) * 2)
    with serving(zipped_pages()) as server:
        data.fetch(tiny(mirror(server.url)))
    assert not old.exists() and new.exists(), "the new one may belong to a fetch that still runs"


@pytest.mark.slow
@pytest.mark.process
def test_concurrent_fetches_agree(cache: Path) -> None:
    with serving(zipped_pages(), hang=True) as server:
        both = [fetching_process(server.url) for _ in range(2)]
        deadline = time.monotonic() + 30
        while len(server.seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.seen == [f"{IMAGES}.gz"] * 2, "both are in the middle of the same file"
        server.go_on.set()
        assert [process.wait(30) for process in both] == [0, 0]
    assert data.check(tiny()).state == "found" and no_leftovers(cache)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk that holds .* is too full"), (errno.EIO, "cannot be written to")],
)
def test_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    """The operating system refuses at the last moment, when the data must reach the disk."""

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with serving(zipped_pages()) as server, pytest.raises(DataError, match=words) as caught:
        data.fetch(tiny(mirror(server.url), mirror(server.url)))
    assert "\n" not in str(caught.value) and len(server.seen) == 1, "another source would not help"
    monkeypatch.undo()
    assert no_leftovers(cache) and not list(cache.rglob(IMAGES))


def test_too_little_room_is_known_beforehand(cache: Path) -> None:
    huge = replace(tiny().files[0], size=10**18)
    with serving(zipped_pages()) as server, pytest.raises(DataError, match=r"is too full: .* 3000000000000 MB"):
        data.fetch(replace(tiny(mirror(server.url)), files=(huge,)))
    assert server.seen == [] and no_leftovers(cache)


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("SPARSEFED_DATA", raising=False)
    with serving(zipped_pages()) as server, pytest.raises(DataError, match=r"cannot be written to .*XDG_CACHE_HOME"):
        data.fetch(tiny(mirror(server.url)))


# Fetching from a Debian package.

needs_apt = pytest.mark.skipif(
    shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None,
    reason="this machine has no apt-get and dpkg-deb",
)


@needs_apt
def test_package_without_lists(cache: Path, tmp_path: Path) -> None:
    """The system's lists are empty, so private ones are made; nothing of them stays, and the system's are as before."""
    settings = apt_repository(tmp_path / "repository", "dataset-tiny")
    lines: list[str] = []
    report = data.fetch(tiny(debian_package("dataset-tiny", settings)), lines.append)
    assert report.state == "found" and "private new ones" in "".join(lines)
    assert data.check(tiny()).state == "found"
    assert sorted(path.name for path in cache.rglob("*")) == [IMAGES, LABELS, "tiny-set"]
    assert [path.name for path in (tmp_path / "repository/system/lists").rglob("*")] == ["partial"]


@pytest.mark.process
@needs_apt
@pytest.mark.usefixtures("cache")
def test_package_with_lists(tmp_path: Path) -> None:
    """Lists that are there are used."""
    settings = apt_repository(tmp_path / "repository", "dataset-tiny")
    command = ["apt-get", "-o", f"Dir::Cache={tmp_path}", "-o", "APT::Sandbox::User=root"]
    command += [part for setting in settings for part in ("-o", setting)]
    subprocess.run([*command, "update"], check=True, capture_output=True)
    lines: list[str] = []
    assert data.fetch(tiny(debian_package("dataset-tiny", settings)), lines.append).state == "found"
    assert "private new ones" not in "".join(lines)


@needs_apt
def test_package_that_is_not_there(cache: Path, tmp_path: Path) -> None:
    settings = apt_repository(tmp_path / "repository", "dataset-tiny")
    with pytest.raises(DataError, match="package dataset-other: apt-get: Unable to locate package dataset-other"):
        data.fetch(tiny(debian_package("dataset-other", settings)))
    assert no_leftovers(cache)


@needs_apt
@pytest.mark.usefixtures("cache")
def test_package_without_the_file(tmp_path: Path) -> None:
    settings = apt_repository(tmp_path / "repository", "dataset-tiny")
    other = replace(tiny().files[0], name="something-else")
    with pytest.raises(DataError, match=r"dataset-tiny_1_all\.deb holds no something-else"):
        data.fetch(replace(tiny(debian_package("dataset-tiny", settings)), files=(other,)))


@pytest.mark.usefixtures("cache")
def test_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with serving(zipped_pages()) as server:
        lines: list[str] = []
        report = data.fetch(tiny(debian_package("dataset-tiny"), mirror(server.url)), lines.append)
    assert report.state == "found" and "  this machine has no apt-get" in lines
