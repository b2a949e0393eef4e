"""The documents of the designs that this one continues, as their authors wrote them, in blocks.

A block is whatever a reader may take over: what stands within a fence, and the numbered list of an
example.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

FOLDER: Final = Path(__file__).parent / "documents"
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})\s*(\w*)\s*$")
_HEADING: Final = re.compile(r"(#+) (.+?)\s*$")
_ITEM: Final = re.compile(r"\d+\. \S")


@frozen(kw_only=True)
class DesignBlock:
    """A block of a document."""

    number: int
    """From 1, in the order of the document."""
    heading: str
    """The nearest heading above it."""
    kind: str
    """The language of the fence, `text` where it names none, or `example` for a list."""
    text: str

    @property
    def key(self) -> str:
        """The number and the heading: a changed document has other keys."""
        return f"{self.number} {self.heading}"


def documents() -> Sequence[str]:
    """The names of all documents."""
    return sorted(each.stem for each in FOLDER.glob("*.md"))


@cache
def design_blocks(name: str) -> Mapping[str, DesignBlock]:
    """All blocks of a document, by their keys."""
    found: dict[str, DesignBlock] = {}
    fence, kind, heading, section = "", "", "", ""
    lines: list[str] = []
    items: list[str] = []

    def keep(kind: str, text: Sequence[str]) -> None:
        block = DesignBlock(
            number=len(found) + 1, heading=heading, kind=kind, text="\n".join(text) + "\n"
        )
        found[block.key] = block

    for line in [*(FOLDER / f"{name}.md").read_text("utf-8").splitlines(), "# End"]:
        mark = _FENCE.match(line)
        if fence:
            if mark is not None and mark[1].startswith(fence):
                keep(kind, lines)
                fence, lines = "", []
            else:
                lines.append(line)
            continue
        if "Example" in section and _ITEM.match(line):
            items.append(line)
            continue
        if items:
            keep("example", items)
            items = []
        if mark is not None:
            fence, kind = mark[1], mark[2] or "text"
        elif (found_heading := _HEADING.match(line)) is not None:
            heading = found_heading[2]
            section = heading if len(found_heading[1]) <= 2 else section
    assert not fence, f"{name}: a fence is not closed"
    return found


def design_text(name: str, heading: str) -> str:
    """The text of the only block under a heading."""
    [block] = [each for each in design_blocks(name).values() if each.heading == heading]
    return block.text
