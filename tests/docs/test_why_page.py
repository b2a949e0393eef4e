"""The comparison with others: each cell can be run again, and says what was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from docs.markdown_blocks import blocks_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "why.md"
_CELL: Final = re.compile(r"\[([^\]]+)\]\(([^)#]+)(?:#([^)]+))?\)")


def _rows() -> list[list[str]]:
    section = PAGE.read_text("utf-8").partition("## Beside others")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    is_head = [following.startswith("|--") for following in (*lines[1:], "")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")[1:]]
        for line, head in zip(lines, is_head, strict=True)
        if not head and not line.startswith("|--")
    ]


CELLS: Final = [cell for row in _rows() for cell in row if cell]


def _section(page: Path, anchor: str | None) -> tuple[int, int, str]:
    """The first and last line of the part with that heading, and its text."""
    lines = page.read_text("utf-8").splitlines()
    names = [re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines]
    heads = [at for at, line in enumerate(lines) if re.match(r"#+ ", line)]
    start = next((at for at in heads if names[at] == anchor), 0)
    depth = len(lines[start].partition(" ")[0])
    after = (at for at in heads if at > start and len(lines[at].partition(" ")[0]) <= depth)
    end = len(lines) if anchor is None else next(after, len(lines))
    return start, end, "\n".join(lines[start:end])


@pytest.mark.parametrize("cell", CELLS)
def test_each_cell_leads_to_a_case_that_can_be_run(cell: str) -> None:
    links = _CELL.findall(cell)
    assert links, cell
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for _, target, anchor in links:
        page = (PAGE.parent / target).resolve()
        start, end, text = _section(page, anchor or None)
        is_run = any(
            block.is_run and block.language in ("console", "python") and start < block.line <= end
            for block in blocks_of(page)
        )
        commands = re.findall(r"`make ([\w-]+)", text)
        assert is_run or (commands and set(commands) <= set(targets)), cell


@pytest.mark.parametrize("cell", [cell for cell in CELLS if re.match(r"\[[\d,]+( µs|%)?\]", cell)])
def test_each_figure_stands_on_the_page_that_measures_it(cell: str) -> None:
    """If this fails: something was measured again; write what it gave."""
    for figure, target, anchor in _CELL.findall(cell):
        _, _, text = _section((PAGE.parent / target).resolve(), anchor or None)
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,])", text), cell


def test_nothing_is_said_of_what_cannot_be_run_here() -> None:
    others = "LangGraph|conductor|CrewAI"
    assert [cell for cell in CELLS if re.search(others, cell)] == []
    assert len(CELLS) > 25
