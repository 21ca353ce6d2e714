"""A search whose study is in a real PostgreSQL: shared by folders, continued, and refused where it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsefed.commands import tune
from sparsefed.core.errors import ConfigError
from tests.commands.test_tune import small
from tests.support.databases import lacking, postgresql

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgresql() as started:
        yield started


def test_two_folders_share_a_study(url: str, tmp_path: Path) -> None:
    first = tune.tune(small(), trials=2, folder=tmp_path / "one", storage=url)
    assert len(first.trials) == 2
    both = tune.tune(small(), trials=4, folder=tmp_path / "two", storage=url)
    assert both.trials[:2] == first.trials
    assert len(both.trials) == 4


def test_a_study_in_postgresql_is_the_study_in_a_file(url: str, tmp_path: Path) -> None:
    config = small(seed=8)
    away = tune.tune(config, trials=3, folder=tmp_path / "away", storage=url)
    assert away.trials == tune.tune(config, trials=3, folder=tmp_path / "here").trials


def test_a_database_that_is_not_there_is_refused_by_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"database cannot be opened .* --storage takes a URL"):
        tune.tune(small(), trials=1, folder=tmp_path, storage="postgresql://tester@127.0.0.1:1/none")
