"""Odd configs: whatever a config holds, it is refused by one short sentence before anything is allocated."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsefed import config as configs
from sparsefed.core.errors import ConfigError, quoted
from tests.support.configs import BASE

MEMORY = 4 * 2**30  # bytes more than now: a mistake raises MemoryError here in place of filling the machine


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"a": table}
    return table


ODD: dict[str, dict[str, Any]] = {
    "deep": {"attack": nested(5000)},
    "deep in a list": {"defense": {"name": "krum", "pre": [[[[[[[[[[[1]]]]]]]]]]]}},
    "thousands of digits": {"seed": 10**5000},
    "a seed of 129 bits": {"seed": 2**128},
    "a huge population": {"data": {"name": "digits", "devices": 10**18, "per_device": 1}},
    "the largest population": {"data": {"name": "digits", "devices": 2**63 - 1, "per_device": 1}},
    "a population that does not fit": {"data": {"name": "digits", "devices": 10**7, "per_device": 10**6}},
    "many rounds": {"rounds": 10**12},
    "many epochs": {"epochs": 1e308},
    "epochs that are many rounds": {"epochs": 1e6, "train": {"cohort": 1}, "rounds": 12},
    "a number as a pre-aggregation": {"defense": {"name": "krum", "f": 1, "pre": 3}},
    "a zero byte": {"model": {"name": "cnn\0"}},
    "escape codes": {"defense": {"name": "\x1b[31mkrum"}},
    "escape codes in a key": {"\x1b[2J": 1},
    "a long name": {"attack": {"name": "x" * 3000}},
    "an endless name": {"name": "x" * 100_000},
    "an endless list": {"threat": {"ids": list(range(20_000))}},
    "an infinite step": {"train": {"lr": float("inf")}},
    "a wide model": {"model": {"name": "mlp", "hidden": [10**9, 10**9]}},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_config_is_one_short_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.build(configs.parse(BASE | ODD[name]))
    sentence = str(caught.value)
    assert len(sentence) < 1500 and sentence.isprintable(), sentence


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 20_000, "a = " + "9" * 9000, "[" + "a." * 5000 + "b]\nc = 1", "a\0 = 1"]
)
def test_an_odd_file_is_one_short_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        configs.read(tmp_path / "odd.toml")
    assert str(tmp_path) in str(caught.value) and len(str(caught.value)) < 600


def test_an_odd_override_is_one_short_sentence() -> None:
    for override in ("=", "a=" + "[" * 20_000, "seed=" + "9" * 9000, "\x1b[2J=1"):
        with pytest.raises(ConfigError) as caught:
            configs.parse(BASE, [override])
        assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_a_quoted_value_is_short_and_printable() -> None:
    assert quoted("\x1b[31m") == "'\\x1b[31m'"
    assert quoted(10**6000) == "a value too large to be shown"
    assert len(quoted("x" * 1000)) <= 80
