"""The picture of a partition: the numbers beside it, what is drawn, and the command."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefed import config as configs
from sparsefed.core.errors import ConfigError
from sparsefed.core.types import RunRecord
from sparsefed.data.partitions import summary as portraits
from sparsefed.data.partitions.partition import Partition, by_user, one_class
from sparsefed.data.partitions.skewed import c_class, dirichlet
from sparsefed.data.partitions.summary import MOST_BARS, MOST_DEVICES, bars, packed, portrait, unpacked
from sparsefed.reports import partitions
from sparsefed.reports.partitions import Dealt, chart, facts, save
from sparsefed.reports.to_html import blocks_html
from tests.support.processes import Nursery, Server

LABELS = np.arange(120) % 3
NAMES = ("cat", "dog", "<b>owl</b>")


def looked_at(title: str, partition: Partition, labels: Any, classes: tuple[str, ...]) -> Dealt:
    return Dealt(title, portrait(partition, labels, len(classes)), classes)


def dealt(devices: int = 10) -> Dealt:
    return looked_at("pets & co", c_class(LABELS, None, devices, None, 0), LABELS, NAMES)


def values(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What each part of the chart draws; Altair puts data that all parts share above them, and gives data names."""
    found = [part.get("data", spec.get("data")) for part in spec["vconcat"]]
    return [data.get("values") or spec["datasets"][data["name"]] for data in found]


def test_the_facts_by_hand() -> None:
    users = np.array([0] * 50 + [1] * 10 + [2] * 60)
    found = facts(looked_at("x", by_user(LABELS, users, 2, None, 0), LABELS, NAMES))
    sizes = sorted(int(size.replace(",", "")) for size in found["size: min / median / max"].split(" / ")[::2])
    assert sizes in ([10, 50], [10, 60], [50, 60])
    assert found["devices"] == "2" and found["different ones"] == f"{sum(sizes)} of 120"
    assert found["classes a device: min / median / max"] == "3 / 3 / 3"
    assert facts(dealt())["classes a device: min / median / max"] == "2 / 2 / 2"


@given(devices=st.integers(3, 600), seed=st.integers(0, 1000))
def test_what_is_drawn_of_the_devices_is_what_they_own(devices: int, seed: int) -> None:
    labels = np.arange(600) % 3
    partition = dirichlet(labels, None, devices, None, seed, 0.1)
    found = portrait(partition, labels, 3)
    assert len(found.chosen) == len(set(found.chosen)) == min(devices, MOST_DEVICES)
    for device, row in zip(found.chosen, found.owned, strict=True):
        own = labels[partition.examples[partition.offsets[device] : partition.offsets[device + 1]]].tolist()
        assert list(row) == [own.count(k) for k in range(3)]
    commonest = [row.index(max(row)) for row in found.owned]
    assert commonest == sorted(commonest), "sorted by the commonest class"
    assert unpacked(json.loads(json.dumps(packed(found))), 3) == found


@given(devices=st.integers(3, 40), seed=st.integers(0, 1000))
def test_classes_are_counted_alike_by_ticking_and_by_sorting(devices: int, seed: int) -> None:
    labels = np.arange(120) % 5
    partition = dirichlet(labels, None, devices, None, seed, 0.3)
    naive = [
        len(set(labels[partition.examples[a:b]].tolist())) for a, b in pairwise(map(int, partition.offsets.tolist()))
    ]
    with pytest.MonkeyPatch.context() as patch:
        for most in (2**26, 0):
            patch.setattr(portraits, "MOST_FLAGS", most)
            assert portraits.classes_per_device(partition, labels, 5).tolist() == naive


@pytest.mark.parametrize(
    "damage",
    [
        {"sizes": "1 2"},
        {"bars": ["1 2"]},
        {"bars": []},
        {"owned": ["1 2"]},
        {"owned": ["0 0 0"] * 10},
        {"chosen": "1"},
        {"devices": None},
        {"classes": 3},
        {"sizes": "0 1 2"},
    ],
)
def test_a_damaged_portrait_is_gone_without(damage: dict[str, Any]) -> None:
    whole = packed(dealt().portrait)
    assert unpacked(whole, 3) == dealt().portrait
    others: list[Any] = [{k: v for k, v in whole.items() if k not in damage}, None, [], "x"]
    for broken in ({**whole, **damage}, *others):
        assert unpacked(broken, 3) is None
        run = RunRecord("a", {}, {"task": {"classes": list(NAMES), "partition": broken}}, ())
        assert list(partitions.portraits([run])) == []


def test_a_run_notes_who_owns_what_and_a_report_draws_it_without_the_data() -> None:
    table = {"data": {"name": "digits", "partition": "c_class", "devices": 90, "classes_per_device": 2}, "rounds": 1}
    config = configs.parse({**table, "train": {"cohort": 5}, "model": {"name": "softmax"}})
    noted = json.loads(json.dumps(configs.build(config).facts))
    assert len(json.dumps(noted["partition"], indent=2)) < 5000
    run = RunRecord("a", configs.dump(config), {"task": noted}, ())
    drawn = partitions.of_run(run)
    asked = partitions.deal(table)
    assert drawn is not None and drawn.title == asked.title == "digits dealt c_class (classes_per_device = 2)"
    assert facts(drawn) == facts(asked) and len(drawn.portrait.chosen) == 60
    page = blocks_html(partitions.portraits([run, run]))
    assert page.count("<figure>") == 2 and page.count("90 devices own") == 3  # once told, and in each text alternative
    other = RunRecord("b", {"data": {"name": "other", "partition": "iid"}}, run.manifest, ())
    both = blocks_html(partitions.portraits([run, other]))
    assert ", in a: " in both and ", in b: " in both


@given(st.lists(st.one_of(st.integers(1, 30), st.integers(1, 10**6)), min_size=1, max_size=60))
def test_bars_count_every_device_once(sizes: list[int]) -> None:
    found = bars(np.array(sizes))
    assert 1 <= len(found) <= MOST_BARS
    for low, high, count in found:
        assert low < high and count == sum(low < size < high for size in sizes)
    assert sum(count for _, _, count in found) == len(sizes)
    assert all(a[1] == b[0] for a, b in pairwise(found))


def test_the_chart_draws_cells_and_bars() -> None:
    cells, sizes = values(chart(dealt()).to_dict())
    assert len(cells) == 20 and {cell["Class"] for cell in cells} == set(NAMES)
    assert all(cell["share"] == pytest.approx(0.5, abs=0.05) for cell in cells)
    assert sum(row["Devices"] for row in sizes) == 10


def test_examples_without_a_single_class_are_shown_by_size() -> None:
    tokens = np.zeros((30, 7), np.int64)
    given_ = looked_at("words", by_user(tokens, np.arange(30) // 10, None, None, 0), tokens, ("a",) * 1000)
    (sizes,) = values(chart(given_).to_dict())
    assert [(row["Examples"], row["Devices"]) for row in sizes] == [("10", 3)]
    assert not any("classes" in name for name in facts(given_))


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<svg"), (".pdf", b"%PDF"), (".html", b"<!doctype html>")]
)
def test_every_format_is_a_real_file(tmp_path: Path, suffix: str, begins: bytes) -> None:
    assert save(dealt(), tmp_path / f"new/p{suffix}").read_bytes().startswith(begins)


def test_the_page_escapes_names_and_asks_for_nothing(tmp_path: Path) -> None:
    page = save(dealt(), tmp_path / "p.html").read_text()
    assert "<b>owl" not in page and "<title>pets &amp; co</title>" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"http", page)
    specs = re.findall(r'<script type="application/json" data-chart="partition-\w+">(.*?)</script>', page)
    assert [json.loads(spec)["mark"]["type"] for spec in specs] == ["rect", "rect"]


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown kind of picture '\.gif'.*\.html, \.pdf, \.png, \.svg"):
        save(dealt(), tmp_path / "p.gif")


def test_a_million_devices_can_be_looked_at() -> None:
    labels = np.arange(6000) % 10
    given_ = looked_at("many", one_class(labels, None, 1_000_000, 2, 0), labels, tuple("0123456789"))
    assert facts(given_)["devices"] == "1,000,000"
    assert len(given_.portrait.chosen) == MOST_DEVICES


@pytest.fixture
def sparsefed(process_server: Server, tmp_path: Path) -> Nursery:
    return Nursery(process_server, tmp_path)


def test_the_command_prints_the_numbers_and_writes_the_picture(sparsefed: Nursery, tmp_path: Path) -> None:
    done = sparsefed.run(
        "data",
        "show",
        "digits",
        "--partition",
        "c_class",
        "--devices",
        "30",
        "--param",
        "classes_per_device=3",
        "--out",
        f"{tmp_path}/p.svg",
    )
    assert done.code == 0, done.err
    assert "c_class (classes_per_device = 3)" in done.out and "3 / 3 / 3" in done.out
    assert (tmp_path / "p.svg").exists()


def test_a_wrong_parameter_is_a_sentence(sparsefed: Nursery) -> None:
    done = sparsefed.run("data", "show", "digits", "--partition", "iid", "--devices", "30", "--param", "alpha=0.3")
    assert "data.alpha belongs to the partition dirichlet, not to iid" in done.refused()
    for overrides, says in (
        (["data.alpa=0.3"], "did you mean 'alpha'"),
        (["data.alpha=much"], "alpha is 'much', but must be float"),
        (["data.alpha=0.0"], "above 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            partitions.deal({"data": {"name": "digits", "partition": "dirichlet", "devices": 20}}, overrides)
