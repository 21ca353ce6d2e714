"""Checkpoints: tensors and a header as the bytes of a safetensors file that carries its own checksum."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sparsefed.core.errors import printable

_SUM, _UNKNOWN = "sha256", "0" * 64  # the checksum, and what is in its place while it is computed


def dumps(tensors: Mapping[str, Tensor], header: Mapping[str, Any], entry: str) -> bytes:
    """Return tensors and a header as a safetensors file with a checksum of all its bytes.

    The header is a single entry of the metadata: several would be written in any order, making the files of equal runs
    differ.
    """
    metadata = {entry: json.dumps({**header, _SUM: _UNKNOWN})}
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    return content.replace(_UNKNOWN.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


def loads(content: bytes, entry: str, keys: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a checkpoint; files of early versions have no checksum.

    Args:
        content: the bytes of the file.
        entry: the name of the header in the metadata.
        keys: what the header must hold, beside the checksum.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        header = _header(content, entry)
        checksum = header.pop(_SUM, None)
        if set(header) != set(keys):
            raise ValueError("its header has other entries than a checkpoint's")
        zeroed = content.replace(str(checksum).encode(), _UNKNOWN.encode(), 1)
        if checksum is not None and hashlib.sha256(zeroed).hexdigest() != checksum:
            raise ValueError("its checksum does not match")
        return dict(sorted(load(content).items())), header  # whatever order the file was read in
    except (SafetensorError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(printable(error)) from error


def _header(content: bytes, entry: str) -> dict[str, Any]:
    """Return the header among a safetensors file's metadata."""
    if len(content) < 8:
        raise ValueError("it is cut off")
    (length,) = struct.unpack("<Q", content[:8])
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    return dict(json.loads(metadata[entry]))
