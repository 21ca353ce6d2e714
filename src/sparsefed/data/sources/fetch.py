"""Getting a data set into the user's cache: one source after the other until every file is there and right.

A file appears under its name only when it is whole, verified and on disk; until then it is in a scratch folder that
goes away. So an interrupted fetch leaves nothing wrong, two at once do the same work twice and agree, and a fetch that
is run again goes on with the files that are still wanted.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsefed.core.errors import DataError
from sparsefed.data import limits
from sparsefed.data.record import DamagedError, DataFile, DataSet, Say, Source, SourceError, Status
from sparsefed.data.sources import content, inventory
from sparsefed.data.sources import paths as places

SCRATCH = ".fetch-"
STALE = 86_400.0  # seconds after which a scratch folder belongs to a fetch that was killed


def fetch(dataset: DataSet, say: Say) -> Status:
    """Fetch what is missing or damaged; if no source works, raise one DataError that lists what was tried."""
    if not dataset.files:
        say(f"{dataset.name} comes with {dataset.carried_by}; there is nothing to fetch.")
        return inventory.status(dataset)
    wanted = inventory.wanted(dataset)
    if not wanted:
        now = inventory.status(dataset)
        say(f"{dataset.name} is already here, checksums verified: {now.location}")
        return now
    # The download, what is unpacked from it, and the copy that stays.
    needed = 3 * sum(file.size or 0 for file in wanted)
    try:
        _make_sure_of_room(places.home(dataset), needed)
        _try_all(dataset, wanted, say)
    except OSError as error:  # sources report network errors as SourceError: the others are this machine's
        raise DataError(_local_trouble(dataset, needed, error)) from error
    now = _verified(dataset, wanted)
    how = "checksums verified" if all(file.sha256 for file in wanted) else "read to its end"
    say(f"{dataset.name} is ready, {how}: {now.location} ({now.size / 1e6:.1f} MB)")
    return now


def _verified(dataset: DataSet, fetched: list[DataFile]) -> Status:
    """Return the status; files that only their reader can judge are read, and deleted again if they are wrong."""
    if all(file.size is not None for file in fetched):
        return inventory.status(dataset)
    now = inventory.check(dataset)
    if now.state != "found":
        for file in fetched:
            (places.home(dataset) / file.name).unlink(missing_ok=True)
        raise DataError(f"what was fetched for {dataset.name} is wrong and was deleted again: {now.problem}")
    return now


def _make_sure_of_room(folder: Path, needed: int) -> None:
    """Raise an error if the disk has too little room: a full disk makes sources fail in misleading ways."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _try_all(dataset: DataSet, wanted: list[DataFile], say: Say) -> None:
    """Try the sources in turn until no file is missing; what one of them brought is kept when the next is tried."""
    left, failures = list(wanted), []
    for source in dataset.sources:
        say(f"{dataset.name}: trying {source.title}")
        try:
            for file in _install_from(source, tuple(left), places.home(dataset), say):
                left.remove(file)
            if left:
                raise SourceError(f"it did not have {_names(left)}")
            return
        except SourceError as error:
            failures.append(f"{source.title}: {error}")
            say(f"  {error}")
    raise DataError(_nothing_worked(dataset, left, failures))


def _install_from(source: Source, files: tuple[DataFile, ...], folder: Path, say: Say) -> Iterator[DataFile]:
    """Yield each file once it is in its place."""
    with _scratch(folder) as scratch:
        for file, path in _brought(source, files, scratch, say):
            try:
                content.install(path, file, folder)
            except DamagedError as error:
                raise SourceError(f"the {file.name} that it sent {error}") from error
            yield file


def _brought(source: Source, files: tuple[DataFile, ...], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
    """Yield what a source brings, and blame it for whatever is wrong with that; a full disk is not its fault."""
    try:
        with limits.guarded(OSError):
            yield from source.bring(files, scratch, say)
    except DamagedError as error:
        raise SourceError(f"what it sent {error}") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Make a temporary folder inside `folder`, and remove those of fetches that were killed long ago."""
    for old in folder.glob(f"{SCRATCH}*"):
        with suppress(OSError):  # a fetch that runs beside this one may be removing it too
            if time.time() - old.stat().st_mtime > STALE:
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _names(files: list[DataFile]) -> str:
    return ", ".join(file.name for file in files)


def _nothing_worked(dataset: DataSet, left: list[DataFile], failures: list[str]) -> str:
    if dataset.by_hand:
        return (
            f"{dataset.name} cannot be fetched. {dataset.by_hand}, and set {places.VARIABLE} to the folder that has it."
        )
    tried = "".join(f"\n  - {failure}" for failure in failures) or " nothing, for no source is known"
    return (
        f"{dataset.name} could not be fetched. Tried:{tried}\n"
        f"Check the network and run `sparsefed data fetch {dataset.name}` again; or bring {_names(left)} (or .gz) here "
        f"in some other way and set {places.VARIABLE} to their folder."
    )


def _local_trouble(dataset: DataSet, needed: int, error: OSError) -> str:
    folder = places.home(dataset)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        trouble = f"the disk that holds {folder} is too full: fetching {dataset.name} takes {needed / 1e6:.0f} MB"
    else:
        trouble = f"{dataset.name} cannot be written to {folder} ({error.strerror})"
    return f"{trouble}. Make room there, or set XDG_CACHE_HOME to a folder that has it, and fetch again."
