"""Encrypts what stores hold of runs with an operator's keys: AES-256-GCM, by `cryptography`.

A sealed text is a JSON string, `"sealed:1:KEY:BASE64"`, and no body is one: rows that are read
without a key are told apart by what reads them, and rows in plain text cost nothing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from minions.data.bounded_files import open_regular
from minions.data.errors import EnvironmentRefusedError, JournalError, UsageError
from minions.data.field_repr import FieldsRepr

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENCRYPTED: Final = "(encrypted)"
"""What a list shows in place of words that it cannot decrypt."""

_PREFIX: Final = b"sealed:1:"
_PACKED: Final = b"sealed:1z:"
_START: Final = b"sealed:"
_QUOTED_START: Final = b'"sealed:'
_PACKED_FROM: Final = 1_024
"""Bytes from which a text is compressed before it is encrypted."""
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_MOST_BYTES: Final = 100_000
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_NEW_KEY: Final = '(umask 077; echo "$(date +%F) $(openssl rand -base64 32)" > KEYFILE)'
_INSTALL: Final = "pip install 'minions-engine[encrypt]'"


class SealedText(str):
    """Words of a list that were not decrypted: they read `(encrypted)`."""

    __slots__ = ("column", "stored")
    stored: str
    """As the row holds them."""
    column: str | None
    """What the column by which they are looked up holds; None: there is none."""

    def __new__(cls, stored: str, column: str | None = None) -> SealedText:
        """Words that are stored so."""
        made = super().__new__(cls, ENCRYPTED)
        made.stored, made.column = stored, column
        return made


@frozen
class JournalKey(FieldsRepr):
    """A key of an operator."""

    id: str
    """Stands in clear with all that the key encrypts."""
    secret: bytes = field(repr=False)
    """32 random bytes."""


class BodyCipher:
    """Encrypts under the first of some keys and decrypts under each of them.

    What is encrypted is bound to its place: `open` is given the same names as `seal` was, such as
    the session, run, key, kind and state of a journal entry. Nonces are random: one key is good
    for four billion texts.
    """

    def __init__(
        self,
        keys: Sequence[JournalKey],
        *,
        place: str | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Derives two keys from each: one to encrypt, one for names of blobs and sessions.

        Args:
            keys: The first one is for what is stored from now on.
            place: The file with the keys, for messages.
            random_bytes: Makes nonces.
        Raises:
            EnvironmentRefusedError: `missing-extra`; `cryptography` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise EnvironmentRefusedError(
                "An encrypted journal needs the package 'cryptography', which is not installed: "
                f"{_INSTALL}",
                code="missing-extra",
                suggestions=[_INSTALL],
            ) from error
        self._ciphers: dict[str, AESGCM] = {}
        self._name_keys: dict[str, bytes] = {}
        for key in keys:
            body_key = hmac.digest(key.secret, b"minions journal: bodies", "sha256")
            self._ciphers[key.id] = AESGCM(body_key)
            self._name_keys[key.id] = hmac.digest(key.secret, b"minions journal: names", "sha256")
        self.first = keys[0].id
        """The id of the key under which is encrypted."""
        self._place = place
        self._random_bytes = random_bytes

    def seal(self, text: str, *names: str) -> str:
        """The text encrypted, as a JSON string."""
        data = text.encode("utf-8", "surrogatepass")
        sealed = self._sealed(data, names, base64.b64encode)
        return f'"{sealed.decode()}"'

    def open(self, stored: bytes, *names: str) -> bytes:
        """The text that was sealed under these names; what is not sealed is given as it is.

        Raises:
            JournalError: `journal-key-missing` or `journal-key-wrong`.
        """
        if not stored.startswith(_QUOTED_START):
            return stored
        return self._opened(stored[1:-1], names, _decoded)

    def seal_blob(self, data: bytes, name: str) -> bytes:
        """The bytes encrypted, as a blob of that name holds them."""
        return self._sealed(data, ("blob", name), bytes)

    def open_blob(self, stored: bytes, name: str) -> bytes:
        """The bytes of a blob that `is_sealed_blob`.

        Raises:
            JournalError: As `open`.
        """
        return self._opened(stored, ("blob", name), bytes)

    def name_of(self, text: str) -> str:
        """What stands for a digest or a name where it is looked up: nobody without the key can
        tell whether two journals have the same.
        """
        return self._name(self.first, text)

    def names_of(self, text: str) -> tuple[str, ...]:
        """The same under each key, the first one first."""
        return tuple(self._name(each, text) for each in self._name_keys)

    def is_current(self, stored: bytes) -> bool:
        """Whether it is encrypted under the first key."""
        start = stored.removeprefix(b'"')
        own = f"{self.first}:".encode()
        return start.startswith((_PREFIX + own, _PACKED + own))

    def _name(self, key_id: str, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return hmac.digest(self._name_keys[key_id], data, "sha256").hex()

    def _sealed(self, data: bytes, names: Sequence[str], encode: Callable[[bytes], bytes]) -> bytes:
        prefix = _PREFIX
        if len(data) >= _PACKED_FROM:
            prefix, data = _PACKED, zlib.compress(data, 1)
        header = prefix + self.first.encode() + b":"
        nonce = self._random_bytes(_NONCE_BYTES)
        cipher = self._ciphers[self.first]
        return header + encode(nonce + cipher.encrypt(nonce, data, _bound(header, names)))

    def _opened(
        self, stored: bytes, names: Sequence[str], decode: Callable[[bytes], bytes]
    ) -> bytes:
        from cryptography.exceptions import InvalidTag

        start, version, key, body = _split(stored)
        key_id = key.decode("ascii", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise key_missing(stored, f"{self._place or 'The configured keys'} has {known}")
        header = b":".join((start, version, key, b""))
        try:
            data = decode(body)
            found = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(header, names))
            return zlib.decompress(found) if version == b"1z" else found
        except (InvalidTag, ValueError, zlib.error) as error:
            raise JournalError(
                f"The key '{key_id}'{f' of {self._place}' if self._place else ''} does not "
                f"decrypt {_words(names)}: it is another key under the same id, or what is stored "
                "was changed or moved. Put the key with which it was written into the file; "
                "`minions sessions verify` says whether a row was changed.",
                code="journal-key-wrong",
                where=self._place,
            ) from error


def entry_names(
    session_id: str, run_id: str, generation: int, key: str, kind: str, state: str
) -> tuple[str, ...]:
    """What an encrypted body is bound to: no two entries have the same."""
    return ("entry", session_id, run_id, str(generation), key, kind, state)


def is_sealed(stored: str | bytes) -> bool:
    """Whether it is a sealed text."""
    start = stored[: len(_QUOTED_START)]
    return start in (_QUOTED_START, _QUOTED_START.decode())


def is_sealed_blob(stored: bytes) -> bool:
    """Whether the bytes of a blob are encrypted; those of others begin as zlib packs them."""
    return stored.startswith(_START)


def key_missing(stored: str | bytes, keys: str = "No key is configured") -> JournalError:
    """The error for a sealed text whose key is not at hand.

    Args:
        keys: Which ones are.
    """
    data = stored.encode() if isinstance(stored, str) else stored
    key_id = _split(data.removeprefix(b'"'))[2].decode("ascii", "replace")
    return JournalError(
        f"The journal holds what is encrypted with the key '{key_id}', which is missing: {keys}. "
        "Name the file with that key as `encryption_key_file` of `[journal]`. Without it nothing "
        "but lists can be read.",
        code="journal-key-missing",
    )


def with_names(digests: Collection[str], cipher: BodyCipher) -> set[str]:
    """The digests, and the names under each key of what they are digests of."""
    return {*digests, *(name for digest in digests for name in cipher.names_of(digest))}


@contextlib.contextmanager
def suppress_lost_keys() -> Iterator[None]:
    """End the block where a key is missing, or is another one."""
    try:
        yield
    except JournalError as error:
        if error.error_code not in ("journal-key-missing", "journal-key-wrong"):
            raise


def read_keys(file: Path) -> list[JournalKey]:
    """The keys of a file: one on each line, an id and 32 bytes in base64, the one to use first.

    Raises:
        UsageError, EnvironmentRefusedError: It cannot be read, others may read it, or it holds
            something else.
    """
    try:
        with open_regular(file) as known:
            if os.fstat(known.fileno()).st_mode & 0o077:
                raise EnvironmentRefusedError(
                    f"Others may read the keys of the journal in {file}. chmod 600 {file}",
                    code="open-key-file",
                )
            lines = known.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"The keys of the journal in {file} cannot be read: {error.strerror}.",
            code="no-file",
            where=f"{file}",
        ) from error
    keys = dict[str, JournalKey]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, secret = line.strip().partition(" ")
        try:
            found = base64.b64decode(secret.strip(), validate=True)
        except (ValueError, binascii.Error):
            found = b""
        if not _KEY_ID.fullmatch(key_id) or len(found) != _KEY_BYTES or key_id in keys:
            raise _no_keys(file, f"Line {number} is none, or its id is there twice")
        keys[key_id] = JournalKey(key_id, found)
    if not keys:
        raise _no_keys(file, "It has none")
    return list(keys.values())


def _no_keys(file: Path, why: str) -> UsageError:
    return UsageError(
        f"{file} holds no keys of a journal: each line is an id and 32 bytes in base64, the key "
        f"for new entries first. {why}. Make one: {_NEW_KEY}",
        code="bad-journal-key-file",
        where=f"{file}",
    )


def _bound(header: bytes, names: Sequence[str]) -> bytes:
    """What is authenticated beside the text: in one list, so that no name borrows from another."""
    return header + json.dumps(names).encode()


def _split(stored: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    start, version, key, body = (*stored.split(b":", 3), b"", b"", b"")[:4]
    return start, version, key, body


def _decoded(text: bytes) -> bytes:
    return base64.b64decode(text, validate=True)


def _words(names: Sequence[str]) -> str:
    return " ".join(repr(each) for each in names)


def cipher_of(file: Path) -> BodyCipher:
    """The cipher with the keys of a file.

    Raises:
        UsageError, EnvironmentRefusedError: As `read_keys`, or `cryptography` is missing.
    """
    return BodyCipher(read_keys(file), place=f"{file}")
