"""Hypothesis without a clock: how long an example takes says something about the machine, not about the code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="module")
def as_many_threads_as_the_commands() -> Iterator[None]:
    """Another number of threads sums in another order, and some tests compare with a command that has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
