"""Signs what a session file holds, and checks such signatures: Ed25519, by `cryptography`.

Keys are PEM files, as `openssl genpkey -algorithm ed25519` writes them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.data.bounded_files import open_regular
from minions.data.errors import EnvironmentRefusedError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_MOST_BYTES: Final = 10_000
_INSTALL: Final = "pip install 'minions-engine[sign]'"


def sign(data: bytes, key_file: Path) -> tuple[str, str]:
    """The public key and the signature of the data, in hex.

    Args:
        key_file: A private key in PEM, without a password, that nobody else may read.
    Raises:
        UsageError, EnvironmentRefusedError: It is no such key, or `cryptography` is missing.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read(key_file, is_private=True)
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError):  # their words may quote it
        raise _no_key(key_file, "private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(key_file, "private key of Ed25519")
    return key.public_key().public_bytes_raw().hex(), key.sign(data).hex()


def public_key_of(key_file: Path) -> str:
    """The public key of a private one, in hex.

    Raises:
        UsageError, EnvironmentRefusedError: As of `sign`.
    """
    return sign(b"", key_file)[0]


def is_signed(data: bytes, public_key: str, signature: str) -> bool:
    """Whether the signature is one of the data by that key; both in hex.

    Raises:
        EnvironmentRefusedError: `cryptography` is missing.
    """
    _require_cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        _key_of(public_key).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public_key(file: Path) -> str:
    """The public key of a PEM file, in hex.

    Raises:
        UsageError, EnvironmentRefusedError: It is no such key, or `cryptography` is missing.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(file, is_private=False))
    except ValueError:
        raise _no_key(file, "public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(file, "public key of Ed25519")
    return key.public_bytes_raw().hex()


def fingerprint_of(public_key: str) -> str:
    """How people compare it: as `openssl pkey -pubin -in FILE -outform DER | sha256sum` says."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = _key_of(public_key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _key_of(public_key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))


def _read(file: Path, *, is_private: bool) -> bytes:
    try:
        with open_regular(file) as known:
            if is_private and os.fstat(known.fileno()).st_mode & 0o077:
                raise EnvironmentRefusedError(
                    f"Others may read the key {file}. chmod 600 {file}", code="open-key-file"
                )
            return known.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"The key {file} cannot be read: {error.strerror}.", code="no-file", where=f"{file}"
        ) from error


def _no_key(file: Path, expected: str) -> UsageError:
    return UsageError(
        f"{file} is no {expected}. Make one: openssl genpkey -algorithm ed25519 -out KEYFILE; its "
        "public key: openssl pkey -in KEYFILE -pubout -out PUBLICFILE",
        code="bad-key-file",
        where=f"{file}",
    )


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401  # whether it can be
    except ImportError as error:
        raise EnvironmentRefusedError(
            f"Signatures need the package 'cryptography', which is not installed: {_INSTALL}",
            code="missing-extra",
            suggestions=[_INSTALL],
        ) from error
