"""Certificates and keys for a rehearsal: an authority of our own, the SuperLink's certificate by it, keys of nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


def write_certificates(folder: Path) -> None:
    """Write an authority of our own and the SuperLink's certificate by it, unless they are there."""
    if (folder / "link.pem").exists():
        return
    authority, link = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    _write_secret(folder / "link.key", link, forms.PrivateFormat.PKCS8)
    own = _certificate("sparsefed rehearsal", authority, "sparsefed rehearsal", authority, is_authority=True)
    issued = _certificate(HOST, link, "sparsefed rehearsal", authority, is_authority=False)
    (folder / "ca.pem").write_bytes(own.public_bytes(forms.Encoding.PEM))
    (folder / "link.pem").write_bytes(issued.public_bytes(forms.Encoding.PEM))


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.Certificate:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now = datetime.datetime.now(datetime.UTC)
    hosts: Sequence[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(by, hashes.SHA384())
    )


def write_key(path: Path) -> None:
    """Write a node's key pair, unless it is there."""
    if path.with_suffix(".pub").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path.with_suffix(".key"), key, forms.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: forms.PrivateFormat) -> None:
    content = key.private_bytes(forms.Encoding.PEM, form, forms.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
