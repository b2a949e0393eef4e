"""The head of a GGUF file: what kind of model it holds. Reads no weights.

Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from attrs import frozen

from minions.data.errors import UsageError

BAD_WEIGHTS: Final = "bad-weights"
"""Code of weights that are no readable GGUF file, or not the ones that they should be."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_VALUES: Final = 100_000
_MOST_TEXT: Final = 1024 * 1024
"""Bytes of one text of the head."""
_END: Final = "tokenizer."
"""Keys of the vocabulary, which stand last and hold a million texts."""
_NUMBERS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_TEXT: Final = 8
_LIST: Final = 9
_MOST_ITEMS: Final = 10_000
"""Items of a list of the head; longer ones belong to the vocabulary."""

_Value: TypeAlias = str | int | float


@frozen(kw_only=True)
class GgufHead:
    """What the head of the file says; None: it does not say it."""

    architecture: str | None = None
    licence: str | None = None
    """As its author wrote it: `apache-2.0`."""
    context_tokens: int | None = None
    """The longest context that the model was trained for."""
    bytes_per_token: int = 0
    """Memory that the context takes for each token, with 16 bits a number; 0: unknown."""


def read_gguf_head(path: Path) -> GgufHead:
    """The head of that file.

    Raises:
        UsageError: `bad-weights`: it cannot be read, or is no GGUF file.
    """
    try:
        with path.open("rb") as file:
            return _head_of(dict(_HeadReader(file).values()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.", code=BAD_WEIGHTS) from error
    except (ValueError, struct.error) as error:
        raise UsageError(
            f"{path} is no GGUF file that can be read: {error}. A model for `local/` is one file "
            "in the format GGUF, as llama.cpp takes it.",
            code=BAD_WEIGHTS,
        ) from error


def _head_of(values: dict[str, _Value]) -> GgufHead:
    architecture = values.get("general.architecture")
    licence = values.get("general.license")
    context = _number(values, f"{architecture}.context_length")
    return GgufHead(
        architecture=architecture if isinstance(architecture, str) else None,
        licence=licence if isinstance(licence, str) else None,
        context_tokens=context if context > 0 else None,
        bytes_per_token=_bytes_per_token(values, str(architecture)),
    )


def _bytes_per_token(values: dict[str, _Value], architecture: str) -> int:
    """Keys and values of all layers, as 16 bits each."""
    layers, width, heads, own_heads = (
        _number(values, f"{architecture}.{key}")
        for key in ("block_count", "embedding_length", "attention.head_count",
                    "attention.head_count_kv")
    )  # fmt: skip
    if not heads:
        return 0
    return layers * (width // heads) * (own_heads or heads) * 2 * 2


def _number(values: dict[str, _Value], key: str) -> int:
    value = values.get(key, 0)
    return value if isinstance(value, int) else 0


class _HeadReader:
    """Reads the values of a head, as many as an honest one has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MOST_VALUES

    def values(self) -> Iterator[tuple[str, _Value]]:
        """Keys with a single value, up to the vocabulary.

        Raises:
            ValueError: It is another kind of file, or a damaged one.
        """
        if self._file.read(4) != _MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        version, _tensors, keys = self._number("<I"), self._number("<Q"), self._number("<Q")
        if version not in _VERSIONS:
            raise ValueError(f"its version {version} is not 2 or 3")
        for _ in range(int(keys)):
            key, kind = self._text(), int(self._number("<I"))
            if key.startswith(_END):
                return
            if kind != _LIST:
                yield key, self._value(kind)
            elif not self._skip_list():
                return

    def _skip_list(self) -> bool:
        """Whether the list is short enough to be skipped."""
        kind, size = int(self._number("<I")), int(self._number("<Q"))
        if size > _MOST_ITEMS or kind == _LIST:
            return False
        for _ in range(size):
            self._value(kind)
        return True

    def _value(self, kind: int) -> _Value:
        if kind == _TEXT:
            return self._text()
        if kind not in _NUMBERS:
            raise ValueError(f"its head has a value of the unknown kind {kind}")
        return self._number(_NUMBERS[kind])

    def _number(self, form: str) -> int | float:
        value: int | float = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return value

    def _text(self) -> str:
        size = int(self._number("<Q"))
        if size > _MOST_TEXT:
            raise ValueError(f"a text of its head has {size} bytes")
        return self._bytes(size).decode("utf-8", "replace")

    def _bytes(self, size: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"its head has more than {_MOST_VALUES} values")
        content = self._file.read(size)
        if len(content) < size:
            raise ValueError("it ends within its head")
        return content
