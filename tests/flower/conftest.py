"""What holds for the tests of the deployment: the marker, and who makes messages here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("flower")


@pytest.fixture(autouse=True)
def _the_server_makes_messages() -> Iterator[None]:
    from tests.flower.grid import identity

    with identity():
        yield
