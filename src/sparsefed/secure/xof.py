"""The extendable output function of PINE's vectors: XofHmacSha256Aes128 (draft-chen-cfrg-vdaf-pine).

key || iv = HMAC-SHA256(seed, len(dst) || dst || binder),   output = AES-128-CTR(key, iv) of zeros
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefed.core.errors import ConfigError
from sparsefed.secure.field import Elements, Field, kernels

SEED = 32  # bytes of a seed
BLOCK = 16  # bytes of a block of AES
CACHED = 1 << 18  # bytes of a vector that are made at a time, so that they stay in the processor's cache
PIECE = 1 << 24  # bytes that are made at a time where a stream is read piece by piece


def _ciphers() -> Any:
    try:
        from cryptography.hazmat.primitives import ciphers
    except ImportError:
        raise ConfigError(
            "secure aggregation needs the package cryptography; install it with pip install 'sparsefed[secure]'"
        ) from None
    return ciphers


def require_cryptography() -> None:
    """Raise ConfigError unless the extra `secure` is installed."""
    _ciphers()


class Xof:
    """A stream of pseudorandom bytes and field elements."""

    def __init__(self, seed: bytes, dst: bytes, *binder: Any) -> None:
        ciphers = _ciphers()
        mac = hmac.new(seed, digestmod=hashlib.sha256)
        mac.update(bytes([len(dst)]) + dst)
        for part in binder:
            mac.update(part)
        digest = mac.digest()
        algorithm, mode = ciphers.algorithms.AES(digest[:BLOCK]), ciphers.modes.CTR(digest[BLOCK:])
        self._stream = ciphers.Cipher(algorithm, mode).encryptor()

    def bytes(self, count: int) -> bytes:
        """Return the next bytes of the stream."""
        made: bytes = self._stream.update(bytes(count))
        return made

    def vector(self, field: Field, count: int) -> Elements:
        """Return the next field elements: words below the modulus, in order; others are skipped."""
        out, filled = np.empty(count, field.dtype), np.zeros(1, np.int64)
        zeros = bytes(min(count * field.size, CACHED))
        buffer = np.empty(len(zeros) + BLOCK, np.uint8)
        while (missing := count - int(filled[0])) > 0:
            size = min(missing * field.size, len(zeros))
            self._stream.update_into(memoryview(zeros)[:size], buffer.data)
            words = buffer[:size].view(f"<u{field.size}").astype(field.dtype, copy=False)
            kernels().usable_words(words, np.uint64(field.modulus), out, filled)
        return out

    def rows(self, rows: int, width: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the next `rows` rows of `width` bytes, several at a time, in memory that is used again."""
        group = max(1, min(rows, PIECE // max(width, 1)))
        zeros, buffer = bytes(group * width), np.empty(group * width + BLOCK, np.uint8)
        for start in range(0, rows, group):
            count = min(group, rows - start)
            self._stream.update_into(memoryview(zeros)[: count * width], buffer.data)
            yield buffer[: count * width].reshape(count, width)
