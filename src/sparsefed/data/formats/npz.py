"""NumPy's .npz archives, read one array at a time and never with pickled objects."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from sparsefed.data.record import DamagedError


@contextmanager
def opened(stream: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Open the .npz in a stream; raise DamagedError for whatever is wrong with it."""
    try:
        with zipfile.ZipFile(stream) as found:
            yield found
    except KeyError as error:
        raise DamagedError(f"is not the file it should be: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DamagedError(f"is damaged or cut short ({error})") from error


def array(npz: zipfile.ZipFile, name: str) -> Any:
    """Read one whole array; never one of objects."""
    with npz.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member)
