"""The data sets on this machine: which are found, missing or damaged, and what to do about it.

For a data set with several layouts the first complete one counts, or else the most complete one. All of them give the
same arrays, so it does not matter which; a damaged file in it is an error all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sparsefed.core.errors import DataError, printable
from sparsefed.data import limits
from sparsefed.data.record import DamagedError, DataFile, DataSet, Layout, State, Status
from sparsefed.data.sources import content
from sparsefed.data.sources import paths as places

if TYPE_CHECKING:
    from sparsefed.core.types import Arrays, UInt8Array

Found = Mapping[DataFile, tuple[Path, ...]]  # empty where a file is missing


def load(dataset: DataSet) -> Arrays:
    """Load the arrays, every byte verified; raise DataError if something is missing or damaged."""
    layout, found = _chosen(dataset)
    absent = [file for file, paths in found.items() if not paths]
    if absent:
        raise DataError(_missing(dataset, absent))
    if not found:  # someone's code rather than files
        return layout.read(Reader(dataset, found))
    try:
        with limits.guarded():
            arrays = layout.read(Reader(dataset, found))
            _check_labels(arrays)
            return arrays
    except DamagedError as error:
        path = next(path for paths in found.values() for path in paths)
        raise DataError(_damaged(dataset, path if len(found) == 1 else path.parent, error)) from error


def _check_labels(arrays: Arrays) -> None:
    """Raise DamagedError for a label without a class: it would be noticed only far from here, or not at all."""
    from sparsefed.core.types import IGNORED

    for labels in (arrays.y_train, arrays.y_test):
        wrong = labels[((labels < 0) & (labels != IGNORED)) | (labels >= len(arrays.classes))]
        if wrong.size:
            raise DamagedError(f"holds the label {wrong[0]}, but has {len(arrays.classes)} classes")


def status(dataset: DataSet) -> Status:
    """Return the status of a data set, quickly: by presence and lengths only."""
    if not dataset.files:
        return _built_in(dataset, "built in")
    _, found = _chosen(dataset)
    return _report(dataset, found, [p for file in found for p in _problems(dataset, file, found[file], quick=True)])


def check(dataset: DataSet) -> Status:
    """Return the status by SHA-256 of every byte: of the files where it is known, else of the decoded arrays."""
    if not dataset.files:
        try:
            load(dataset)
        except DataError as error:
            return _built_in(dataset, "damaged", str(error))
        return _built_in(dataset, "built in")
    _, found = _chosen(dataset)
    problems = [p for file in found for p in _problems(dataset, file, found[file], quick=False)]
    if not problems and all(found.values()) and any(file.size is None for file in found):
        try:
            load(dataset)
        except DataError as error:
            problems = [str(error)]
    return _report(dataset, found, problems)


def wanted(dataset: DataSet) -> list[DataFile]:
    """Return the files to fetch: none if a layout is here and right; raise DataError where fetching cannot help."""
    _, found = _chosen(dataset)
    if tuple(found) != dataset.files and check(dataset).state == "found":
        return []
    found = _found(dataset, dataset.files)
    return [file for file, paths in found.items() if not paths or _must_be_replaced(dataset, file, paths)]


def files(dataset: DataSet) -> list[Path]:
    """Return the files that a load would read."""
    return [path for paths in _chosen(dataset)[1].values() for path in paths]


@dataclass(frozen=True)
class Reader:
    """The `Content` of a layout whose files were found."""

    dataset: DataSet
    found: Found

    def __call__(self, name: str) -> UInt8Array:
        file = self._file(name)
        path = self.found[file][0]
        try:
            return content.read(path, file)
        except DamagedError as error:
            raise DataError(_damaged(self.dataset, path, error)) from error

    def paths(self, name: str) -> tuple[Path, ...]:
        return self.found[self._file(name)]

    @contextmanager
    def open(self, path: Path) -> Iterator[IO[bytes]]:
        try:
            with content.opened(path) as stream, limits.guarded():
                yield stream
        except DamagedError as error:
            raise DataError(_damaged(self.dataset, path, error)) from error

    def _file(self, name: str) -> DataFile:
        return next(file for file in self.found if file.name == name)


def _found(dataset: DataSet, files: tuple[DataFile, ...]) -> Found:
    return {file: places.find(dataset, file, places.roots()) for file in files}


def _chosen(dataset: DataSet) -> tuple[Layout, Found]:
    """Return the most complete layout; the first of equals."""
    every = [(layout, _found(dataset, layout.files)) for layout in dataset.layouts]
    return max(every, key=lambda each: sum(map(bool, each[1].values())) / max(1, len(each[1])))


def _must_be_replaced(dataset: DataSet, file: DataFile, paths: tuple[Path, ...]) -> bool:
    problems = list(_problems(dataset, file, paths, quick=False))
    if problems and any(places.hides_home(dataset, path) for path in paths):
        raise DataError(problems[0])
    return bool(problems)


def _problems(dataset: DataSet, file: DataFile, paths: tuple[Path, ...], quick: bool) -> Iterator[str]:
    for path in paths:
        try:
            if quick or file.size is None:
                content.glance(path, file)
            else:
                content.verify(path, file)
        except DamagedError as error:
            yield _damaged(dataset, path, error)


def _report(dataset: DataSet, found: Found, problems: list[str]) -> Status:
    paths = [path for each in found.values() for path in each]
    absent = [file for file, each in found.items() if not each]
    state: State = "damaged" if problems else "missing" if absent else "found"
    return Status(
        name=dataset.name,
        description=dataset.description,
        state=state,
        location=", ".join(dict.fromkeys(str(path.parent) for path in paths)),
        size=sum(path.stat().st_size for path in paths),
        problem=" ".join([*problems, *([_missing(dataset, absent)] if absent else [])]),
    )


def _built_in(dataset: DataSet, state: State, problem: str = "") -> Status:
    return Status(dataset.name, dataset.description, state, f"comes with {dataset.carried_by}", 0, problem)


def _missing(dataset: DataSet, files: list[DataFile]) -> str:
    names = ", ".join(file.name for file in files)
    looked = ", ".join(str(root) for root in places.roots())
    where = "" if dataset.loose else f" (in a folder {' or '.join(dict.fromkeys((*dataset.folders, dataset.name)))})"
    others = [", ".join(file.name for file in layout.files) for layout in dataset.also]
    instead = f", or instead {' / '.join(others)}," if others and len(files) == len(dataset.files) else ""
    return (
        f"{dataset.name} is not complete on this machine: {names} (or .gz, .xz){instead} was looked for in {looked}"
        f"{where}. {dataset.by_hand or f'Run `sparsefed data fetch {dataset.name}`'}, or set {places.VARIABLE} to the "
        "folder that has it."
    )


def _damaged(dataset: DataSet, path: Path, error: DamagedError) -> str:
    """Return the error message; deleting is only needed where the file would hide a good copy in the cache."""
    if dataset.by_hand:
        todo = f"Replace it by a good copy. {dataset.by_hand}"
    else:
        first = "Move it away or delete it, then run" if places.hides_home(dataset, path) else "Run"
        todo = f"{first} `sparsefed data fetch {dataset.name}`"
    return f"{printable(path)}, looked at for {dataset.name}, {error}. {todo}."
