"""Fenced blocks of a Markdown page, and the comment that says how to treat the next one.

`<!-- not run: reason -->` leaves a block alone; `<!-- file: name -->` writes it to that file;
`<!-- wrong file: name -->` too, where it is a recipe with faults.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

_FENCE: Final = re.compile(r"\s*```(\w*)\s*$")
_COMMENT: Final = re.compile(r"<!-- (not run|file|wrong file): (.+) -->$")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"#+ (.+)$")


@frozen(kw_only=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    line: int
    """Of its first line, from 1."""
    file: str | None = None
    """The name it is written to."""
    is_run: bool = True
    is_right: bool = True
    """False: a recipe that has faults."""


def blocks_of(page: Path) -> Iterator[Block]:
    """In page order."""
    lines = page.read_text("utf-8").splitlines()
    wish: re.Match[str] | None = None
    start: int | None = None
    language = ""
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if start is not None:
            if fence:
                text = "\n".join(lines[start : number - 1]) + "\n"
                yield _block(language, text, start + 1, wish)
                start, wish = None, None
        elif fence:
            start, language = number, fence[1]
        elif line.strip():
            wish = _COMMENT.match(line.strip())


def _block(language: str, text: str, line: int, wish: re.Match[str] | None) -> Block:
    kind, value = (wish[1], wish[2]) if wish else ("", "")
    return Block(
        language=language,
        text=text,
        line=line,
        file=value if kind in ("file", "wrong file") else None,
        is_run=kind != "not run",
        is_right=kind != "wrong file",
    )


def links_of(page: Path) -> Iterator[str]:
    """Targets outside of fenced blocks."""
    for line in _text_lines(page):
        yield from _LINK.findall(line)


def anchors_of(page: Path) -> Iterator[str]:
    """The names by which links lead to the page's headings."""
    counts: Counter[str] = Counter()
    for line in _text_lines(page):
        if heading := _HEADING.match(line):
            name = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
            yield f"{name}-{counts[name]}" if counts[name] else name
            counts[name] += 1


def _text_lines(page: Path) -> Iterator[str]:
    """The lines outside of fenced blocks."""
    is_code = False
    for line in page.read_text("utf-8").splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            yield line
