"""NumPy's .npz archives, read one array at a time and never with pickled objects."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from sparsefed.data import limits
from sparsefed.data.record import DamagedError

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextmanager
def opened(stream: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Open the .npz in a stream; raise DamagedError for whatever is wrong with it."""
    try:
        with limits.guarded(KeyError, zipfile.BadZipFile), zipfile.ZipFile(stream) as found:
            size = stream.seek(0, os.SEEK_END)
            for entry in found.infolist():
                limits.check(entry.file_size, min(entry.compress_size, size), entry.filename)
            yield found
    except KeyError as error:
        raise DamagedError(f"is not the file it should be: {error.args[0]}") from error
    except zipfile.BadZipFile as error:
        raise DamagedError(f"is damaged or cut short ({error})") from error


def array(npz: zipfile.ZipFile, name: str, kinds: str, shape: tuple[int, ...] | None = None) -> Any:
    """Read one whole array, whose type must be of one of these kinds (NumPy's letters) and whose shape may be known."""
    entry = npz.getinfo(f"{name}.npy")
    with npz.open(entry) as member:
        stated, kind = header(member)
        if kind.kind not in kinds or (shape is not None and stated != shape):
            raise DamagedError(f"is not the file it should be: its {name} is {kind} of the shape {list(stated)}")
        held, stating = entry.file_size - member.tell(), math.prod(stated) * kind.itemsize
        if held != stating or min(stated, default=0) < 0:
            raise DamagedError(f"is damaged: its {name} has {held} bytes, but its shape {list(stated)} takes {stating}")
    with npz.open(entry) as member:
        return np.lib.format.read_array(member)


def header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and the type of an array."""
    version = np.lib.format.read_magic(member)
    if version not in READ_HEADER:
        raise DamagedError(f"is of the .npy version {version}; it should be (1, 0)")
    shape, _, kind = READ_HEADER[version](member)
    return shape, kind
