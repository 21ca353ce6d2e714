"""The search path for files: `$SPARSEFED_DATA`, then the user's cache, then Debian's /usr/share/datasets.

Each root may hold a data set's files in a sub-folder of one of its usual names or directly, plain, gzipped or as xz.
The first file with the right name wins, whatever it holds: a damaged file is an error, never a reason to look elsewhere
silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

from sparsefed.data.record import DataFile, DataSet

VARIABLE = "SPARSEFED_DATA"
DEBIAN = Path("/usr/share/datasets")


def cache() -> Path:
    """Return the user's cache, the only place that `fetch` writes to."""
    return Path(platformdirs.user_cache_dir("sparsefed"))


def roots() -> tuple[Path, ...]:
    """Return the roots, in the order in which they are searched."""
    given = os.environ.get(VARIABLE)
    first = (Path(given).expanduser().absolute(),) if given else ()
    return tuple(dict.fromkeys((*first, cache(), DEBIAN)))


def home(dataset: DataSet) -> Path:
    """Return the folder that `fetch` fills."""
    return cache() / (dataset.folders[0] if dataset.folders else dataset.name)


def candidates(dataset: DataSet, name: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield every path at which a file may be, best first."""
    # Sub-folders before the root itself: MNIST and Fashion-MNIST have the same file names.
    for root in roots:
        for folder in (*dataset.folders, dataset.name, *(["."] if dataset.loose else [])):
            for suffix in ("", ".gz", ".xz"):
                yield root / folder / (name + suffix)


def find(dataset: DataSet, file: DataFile, roots: Sequence[Path]) -> tuple[Path, ...]:
    """Return the first candidate that exists; for a name with a `*`, all matches in the first folder that has any."""
    return next((found for path in candidates(dataset, file.name, roots) if (found := _existing(path))), ())


def hides_home(dataset: DataSet, path: Path) -> bool:
    """Return whether a file at this path hides a freshly fetched one, as it lies in a root before the cache."""
    every = roots()
    before = every[: every.index(cache())]
    return any(path.is_relative_to(root) for root in before) and not path.is_relative_to(home(dataset))


def _existing(path: Path) -> tuple[Path, ...]:
    try:
        if "*" in path.name:
            return tuple(sorted(match for match in path.parent.glob(path.name) if match.is_file()))
        return (path,) if path.is_file() else ()
    except OSError:  # an unreadable folder counts as empty
        return ()
