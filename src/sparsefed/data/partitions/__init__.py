"""Partitions of the examples: `dirichlet(devices=100, alpha=0.1)` chooses one, and a simulation then deals it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.signatures import check_arguments
from sparsefed.core.types import IntArray, Partition
from sparsefed.data.partitions import partition, skewed

__all__ = ["by_user", "by_user_evenly", "c_class", "choosing", "dirichlet", "iid", "one_class", "power_law"]

P = ParamSpec("P")
GIVEN = 5  # arguments of every rule when it deals: labels, users, devices, per_device, seed


class PartitionFunction(Protocol[P]):
    """A partition as a function: calling it returns the choice."""

    def __call__(
        self, devices: int | None = None, per_device: int | None = None, *args: P.args, **kwargs: P.kwargs
    ) -> Chosen: ...


def choosing(
    rule: Callable[Concatenate[IntArray, IntArray | None, int | None, int | None, int, P], Partition],
) -> PartitionFunction[P]:
    """Return the function that chooses a partition rule by devices, examples per device, and its own parameters."""
    taken = list(inspect.signature(rule).parameters.values())
    shown = [p.replace(default=None) for p in taken if p.name in ("devices", "per_device")] + taken[GIVEN:]

    @functools.wraps(rule)
    def chosen(*args: Any, **given: Any) -> Chosen:
        name = named(rule, "sparsefed.data.partitions.")
        params = positional(name or rule.__name__, [p.name for p in shown], args, given)
        own = {key: value for key, value in params.items() if key not in ("devices", "per_device")}
        check_arguments(f"partition {name or rule.__name__}", rule, own, skip=GIVEN)
        return Chosen("partition", name, rule, {key: value for key, value in params.items() if value is not None})

    chosen.__dict__["__signature__"] = inspect.Signature(shown, return_annotation="Chosen")
    return cast("PartitionFunction[P]", chosen)


iid = choosing(partition.iid)
one_class = choosing(partition.one_class)
c_class = choosing(skewed.c_class)
dirichlet = choosing(skewed.dirichlet)
by_user = choosing(partition.by_user)
by_user_evenly = choosing(partition.by_user_evenly)
power_law = choosing(skewed.power_law)
