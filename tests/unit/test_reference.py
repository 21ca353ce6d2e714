"""The reference of config keys: a line for every key, the same in the schema, the page and what `init` writes."""

from __future__ import annotations

import tomllib
from pathlib import Path

from sparsefed import config as configs
from sparsefed.config.reference import STARTED, commented, keys, page

DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_has_a_line() -> None:
    every = list(keys())
    assert [key.name for key in every if not key.about] == []
    assert {"seed", "train.lr", "data.devices", "attack.name", "secure.bits", "threat.knowledge"} <= {
        key.name for key in every
    }


def test_the_page_is_the_schema() -> None:
    assert (DOCS / "config.md").read_text(encoding="utf-8") == page()


def test_what_init_writes_can_be_run_and_names_every_key() -> None:
    text = commented("my.toml")
    config = configs.parse(tomllib.loads(text))
    assert config.is_attacked and configs.build(config).theta.numel() >= config.defense.params["k"]
    for name in STARTED:
        assert f"\n{name.rpartition('.')[2]} = " in text
    for key in keys():
        assert f"{key.name.rpartition('.')[2]} =" in text
    uncommented = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    assert len(uncommented) == len(STARTED)
