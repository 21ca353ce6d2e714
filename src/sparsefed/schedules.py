"""Learning-rate schedules as Python functions: `cosine(lr=0.1)` chooses one, built once the rounds are known."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from sparsefed.core import schedule
from sparsefed.core.choice import Chosen, named, positional
from sparsefed.core.schedule import Schedule
from sparsefed.core.signatures import check_arguments

__all__ = ["choosing", "constant", "cosine", "inverse_sqrt", "triangular"]

P = ParamSpec("P")


class ScheduleFunction(Protocol[P]):
    """A public schedule function, which returns a choice rather than a built schedule."""

    def __call__(self, lr: float = 0.2, *args: P.args, **kwargs: P.kwargs) -> Chosen: ...


def choosing(builder: Callable[Concatenate[float, int, P], Schedule]) -> ScheduleFunction[P]:
    """Return a function that chooses a schedule by its highest rate and its own parameters."""
    lr, _, *own = inspect.signature(builder).parameters.values()
    shown = [lr.replace(default=0.2), *own]

    @functools.wraps(builder)
    def chosen(*args: Any, **given: Any) -> Chosen:
        name = named(builder, "sparsefed.core.schedule")
        params = {"lr": 0.2, **positional(name or builder.__name__, [p.name for p in shown], args, given)}
        check_arguments(f"schedule {name or builder.__name__}", builder, {"rounds": 1, **params})
        return Chosen("schedule", name, builder, params)

    chosen.__dict__["__signature__"] = inspect.Signature(shown, return_annotation="Chosen")
    return cast("ScheduleFunction[P]", chosen)


constant = choosing(schedule.constant)
triangular = choosing(schedule.triangular)
cosine = choosing(schedule.cosine)
inverse_sqrt = choosing(schedule.inverse_sqrt)
