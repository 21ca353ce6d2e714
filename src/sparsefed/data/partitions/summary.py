"""A partition in a few numbers: sizes, classes, and what a sample of the devices own; plain values that JSON can keep.

A run writes it into its manifest, so that a report can draw the partition without loading the data again. Nothing here
knows how it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsefed.core.types import IntArray, Partition

MOST_DEVICES = 200  # in a chart; more would be indistinguishable
MOST_BARS = 40
MOST_FLAGS = 2**26  # bytes of flags to count classes with; beyond that, by sorting, which is slower
WIDE = 50.0  # ratio of the largest device to the smallest from which bars are logarithmic

Spread = tuple[int, float, int]  # min, median, max
Bar = tuple[float, float, int]  # from, to, devices


@dataclass(frozen=True)
class Portrait:
    """The numbers that a report prints and draws of a partition."""

    devices: int
    dealt: int  # examples, counted once for each device that owns them
    different: int  # distinct examples among them
    total: int  # examples in the training set
    sizes: Spread
    bars: tuple[Bar, ...]  # how many devices own how many examples
    classes: Spread | None  # classes per device; None where an example has no single class
    chosen: tuple[int, ...] = ()  # some devices, sorted by their commonest class
    owned: tuple[tuple[int, ...], ...] = ()  # for each of these, its examples of each class


def portrait(partition: Partition, labels: IntArray, classes: int, most: int = MOST_DEVICES) -> Portrait:
    """Return the portrait of a partition of examples with these labels, at most `most` devices in the sample."""
    sizes = np.diff(partition.offsets)
    seen = np.zeros(len(labels), bool)
    seen[partition.examples] = True
    single = labels.ndim == 1 and labels.dtype.kind != "f"
    chosen, owned = mixtures(partition, labels, classes, most) if single else ((), ())
    return Portrait(
        devices=partition.devices,
        dealt=int(sizes.sum()),
        different=int(seen.sum()),
        total=len(labels),
        sizes=_spread(sizes),
        bars=tuple(bars(sizes)),
        classes=_spread(classes_per_device(partition, labels, classes)) if single else None,
        chosen=tuple(map(int, chosen)),
        owned=tuple(tuple(map(int, row)) for row in owned),
    )


def packed(of: Portrait) -> dict[str, Any]:
    """Return a portrait as JSON keeps it: lists of numbers as text, because a manifest has one number per line."""
    rows = {"chosen": _text(of.chosen), "owned": [_text(row) for row in of.owned]}
    spreads = {"sizes": _text(of.sizes), "classes": _text(of.classes) if of.classes else ""}
    counts = {key: getattr(of, key) for key in ("devices", "dealt", "different", "total")}
    return counts | spreads | {"bars": [_text(bar) for bar in of.bars]} | rows


def unpacked(of: Any, classes: int) -> Portrait | None:
    """Return the portrait that was packed, with `classes` classes; None for anything else."""
    try:
        found = _unpacked(of)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    whole = len(found.chosen) == len(found.owned) and all(len(row) == classes and sum(row) for row in found.owned)
    return found if whole and found.bars and found.sizes[0] > 0 else None


def _unpacked(of: Mapping[str, Any]) -> Portrait:
    return Portrait(
        devices=int(of["devices"]),
        dealt=int(of["dealt"]),
        different=int(of["different"]),
        total=int(of["total"]),
        sizes=_three(of["sizes"]),
        bars=tuple((low, high, int(count)) for low, high, count in map(_numbers, of["bars"])),
        classes=_three(of["classes"]) if of["classes"] else None,
        chosen=tuple(map(int, _numbers(of["chosen"]))),
        owned=tuple(tuple(map(int, _numbers(row))) for row in of["owned"]),
    )


def mixtures(partition: Partition, labels: IntArray, classes: int, most: int) -> tuple[IntArray, IntArray]:
    """Return an even sample of the devices, sorted by commonest class, and their examples of each class."""
    devices, offsets = partition.devices, partition.offsets
    chosen = np.unique(np.linspace(0, devices - 1, min(devices, most)).round().astype(np.int64))
    owned = [labels[partition.examples[offsets[i] : offsets[i + 1]]] for i in chosen]
    counts = np.stack([np.bincount(each, minlength=classes) for each in owned])
    shares = counts / counts.sum(1, keepdims=True)
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    return chosen[order], counts[order]


def classes_per_device(partition: Partition, labels: IntArray, classes: int) -> IntArray:
    """Return how many different classes each device owns."""
    owners = np.repeat(np.arange(partition.devices), np.diff(partition.offsets))
    pairs = owners * classes + labels[partition.examples]
    if partition.devices * classes <= MOST_FLAGS:
        flags = np.zeros((partition.devices, classes), bool)
        flags.ravel()[pairs] = True
        ticked: IntArray = np.count_nonzero(flags, axis=1)
        return ticked
    return np.bincount(np.unique(pairs) // classes, minlength=partition.devices)


def bars(sizes: IntArray) -> list[Bar]:
    """Return a bar for each size where these are few, else bins, logarithmic ones for a wide range."""
    low, high = int(sizes.min()), int(sizes.max())
    if high - low < MOST_BARS:
        edges = np.arange(low, high + 2) - 0.5
    elif high / low > WIDE:
        edges = np.unique(np.geomspace(low, high + 1, MOST_BARS // 2 + 1).round()) - 0.5
    else:
        edges = np.arange(low, high + 1 + (width := -(-(high + 1 - low) // MOST_BARS)), width) - 0.5
    devices = np.histogram(sizes, edges)[0]
    return [(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], devices, strict=True)]


def _spread(values: IntArray) -> Spread:
    return int(values.min()), float(np.median(values)), int(values.max())


def _text(values: Sequence[float]) -> str:
    return " ".join(f"{value:.12g}" for value in values)


def _three(text: str) -> Spread:
    low, middle, high = _numbers(text)
    return int(low), middle, int(high)


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]
