"""Sealing of a few bytes to the holder of an X25519 key, and a secret that two key holders share.

Sealed bytes are an ephemeral public key, then AES-128-GCM under a key derived from the exchange and from both public
keys (HKDF-SHA256), bound to the given context: opened with any other context, they are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefed.secure.field import RejectedReport
from sparsefed.secure.xof import require_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY = 32  # bytes of a key, public or private
OVERHEAD = KEY + 16  # bytes that sealing adds
SEAL, VERIFY = b"sparsefed seal 1", b"sparsefed verify 1"


def new_key() -> bytes:
    """Return a fresh private key."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return _loaded(private).public_key().public_bytes_raw()


def seal(message: bytes, public: bytes, context: bytes) -> bytes:
    """Return a message that only the owner of the public key can open, and only with the same context."""
    require_cryptography()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    ephemeral = new_key()
    sender = public_key(ephemeral)
    key, nonce = _derived(_exchanged(ephemeral, public), sender + public, SEAL)
    return sender + AESGCM(key).encrypt(nonce, message, context)


def unseal(sealed: bytes, private: bytes, context: bytes) -> bytes:
    """Return the message of sealed bytes; raise RejectedReport if they were not sealed to this key and context."""
    require_cryptography()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(sealed) < OVERHEAD:
        raise RejectedReport(f"a sealed share has {len(sealed)} bytes, which is too short")
    sender = sealed[:KEY]
    try:
        key, nonce = _derived(_exchanged(private, sender), sender + public_key(private), SEAL)
        return AESGCM(key).decrypt(nonce, sealed[KEY:], context)
    except (InvalidTag, ValueError):  # ValueError: a point of low order
        raise RejectedReport(
            "the sealed share cannot be opened: it was made for another key, round or sender"
        ) from None


def shared_secret(private: bytes, public: bytes, context: bytes) -> bytes:
    """Return 32 bytes that the owners of two keys share, different in every context."""
    own = public_key(private)
    first, second = sorted((own, public))
    key, nonce = _derived(_exchanged(private, public), first + second + context, VERIFY, 32)
    return key + nonce


def _loaded(private: bytes) -> X25519PrivateKey:
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def _exchanged(private: bytes, public: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return _loaded(private).exchange(X25519PublicKey.from_public_bytes(public))


def _derived(secret: bytes, info: bytes, purpose: bytes, length: int = 28) -> tuple[bytes, bytes]:
    """Return a key of 16 bytes and the rest, 12 for a nonce; the key is used once, so the nonce may be derived."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    made = HKDF(SHA256(), length, salt=None, info=purpose + info).derive(secret)
    return made[:16], made[16:]
