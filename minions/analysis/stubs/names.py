"""Python names and texts made of words that anybody may have written."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from typing import Final

_LONGEST: Final = 60
"""Characters of a name that is made."""
_LONGEST_DOC: Final = 300
_WORD: Final = re.compile(r"[A-Za-z0-9]+")


def class_name(words: str) -> str:
    """The words as the name of a class: `order-lines` is `OrderLines`."""
    parts = [each[:1].upper() + each[1:] for each in _WORD.findall(words)]
    name = "".join(parts)[:_LONGEST]
    return name if name[:1].isalpha() and not keyword.iskeyword(name) else f"Item{name}"


def field_name(words: str) -> str:
    """The words as the name of an argument: `order-lines` is `order_lines`, `class` is `class_`."""
    name = "_".join(_WORD.findall(words))[:_LONGEST]
    name = name if name[:1].isalpha() else f"item_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def is_field_name(name: str) -> bool:
    """Whether a class may have a field of that name, which Python leaves as it is."""
    is_plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return is_plain and not name.startswith("_")


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    number, made = 2, name
    while made in taken:
        number, made = number + 1, f"{name}{number}"
    return made


def doc_text(text: str) -> str:
    """The text on one line, for the inside of a docstring: it cannot end it or escape anything."""
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST_DOC else f"{line[: _LONGEST_DOC - 1]}…"
    shown = "".join(each if each.isprintable() else "�" for each in line)
    return shown.replace("\\", "\\\\").replace('"', "'")
