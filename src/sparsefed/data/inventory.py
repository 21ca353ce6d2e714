"""What is on this machine: found, missing, damaged, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefed.data import content, places
from sparsefed.data.record import Content, DamagedError, DataFile, DataSet, State, Status
from sparsefed.errors import DataError

if TYPE_CHECKING:
    from sparsefed.types import UInt8Array

Test = Callable[[Path, DataFile], None]  # raises DamagedError


def status(dataset: DataSet) -> Status:
    """Presence and lengths only: quick."""
    return _inspect(dataset, content.glance)


def check(dataset: DataSet) -> Status:
    """Every byte, by SHA-256; a built-in set is loaded and compared with what is known of it."""
    if dataset.files:
        return _inspect(dataset, content.verify)
    try:
        dataset.read(reader(dataset))
    except DataError as error:
        return _built_in(dataset, "damaged", str(error))
    return _built_in(dataset, "built in")


def wanted(dataset: DataSet) -> list[DataFile]:
    """The files that are missing or damaged; raises DataError where fetching them would not help."""
    found = [(file, places.find(dataset, file, places.roots())) for file in dataset.files]
    return [file for file, path in found if path is None or _must_be_replaced(dataset, file, path)]


def reader(dataset: DataSet) -> Content:
    """The function from a file's name to its verified content; raises DataError if it is missing or damaged."""
    files = {file.name: file for file in dataset.files}

    def read(name: str) -> UInt8Array:
        path = places.find(dataset, files[name], places.roots())
        if path is None:
            raise DataError(_missing(dataset, [files[name]]))
        try:
            return content.read(path, files[name])
        except DamagedError as error:
            raise DataError(_damaged(dataset, files[name], path, error)) from error

    return read


def _must_be_replaced(dataset: DataSet, file: DataFile, path: Path) -> bool:
    try:
        content.verify(path, file)
    except DamagedError as error:
        if places.hides_home(dataset, file, path):
            raise DataError(_damaged(dataset, file, path, error)) from error
        return True
    return False


def _inspect(dataset: DataSet, test: Test) -> Status:
    if not dataset.files:
        return _built_in(dataset, "built in")
    found = {file: places.find(dataset, file, places.roots()) for file in dataset.files}
    paths = [path for path in found.values() if path is not None]
    absent = [file for file, path in found.items() if path is None]
    problems = [
        problem for file, path in found.items() if path is not None and (problem := _problem(dataset, file, path, test))
    ]
    state: State = "damaged" if problems else "missing" if absent else "found"
    return Status(
        name=dataset.name,
        description=dataset.description,
        state=state,
        location=", ".join(dict.fromkeys(str(path.parent) for path in paths)),
        size=sum(path.stat().st_size for path in paths),
        problem=" ".join([*problems, *([_missing(dataset, absent)] if absent else [])]),
    )


def _problem(dataset: DataSet, file: DataFile, path: Path, test: Test) -> str:
    try:
        test(path, file)
    except DamagedError as error:
        return _damaged(dataset, file, path, error)
    return ""


def _built_in(dataset: DataSet, state: State, problem: str = "") -> Status:
    return Status(dataset.name, dataset.description, state, f"comes with {dataset.carried_by}", 0, problem)


def _missing(dataset: DataSet, files: list[DataFile]) -> str:
    names = ", ".join(file.name for file in files)
    looked = ", ".join(str(root) for root in places.roots())
    return (
        f"{dataset.name} is not complete on this machine: {names} (or .gz) was looked for in {looked}. "
        f"Run `sparsefed data fetch {dataset.name}`, or set {places.VARIABLE} to the folder that has it."
    )


def _damaged(dataset: DataSet, file: DataFile, path: Path, error: DamagedError) -> str:
    """Deleting is only needed where the file would hide a good copy in the cache."""
    first = "Move it away or delete it, then run" if places.hides_home(dataset, file, path) else "Run"
    return f"{path}, looked at for {dataset.name}, {error}. {first} `sparsefed data fetch {dataset.name}`."
