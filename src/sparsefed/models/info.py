"""Facts about a model besides its code: the examples it is usually given, and whether these are text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ModelInfo:
    """The typical examples of a model, for which `sparsefed list` counts its parameters."""

    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 10
    whose: str = "Fashion-MNIST"

    @property
    def text(self) -> bool:
        """Whether the model maps tokens [M, T] to scores [M, T, classes]."""
        return len(self.shape) == 1


def model(shape: tuple[int, ...], classes: int, whose: str) -> Callable[[F], F]:
    """Return a decorator that records which examples a model is usually given."""

    def decorate(builder: F) -> F:
        builder.__dict__["info"] = ModelInfo(shape, classes, whose)
        return builder

    return decorate


def model_info(builder: Callable[..., Any]) -> ModelInfo:
    """Return the facts of a model; one that states none is assumed to take small grey images."""
    info = getattr(builder, "info", None)
    return info if isinstance(info, ModelInfo) else ModelInfo()
