"""How much of a long tool result a conversation holds, and how the model reads the rest."""

from __future__ import annotations

from typing import Final

READ_RESULT: Final = "result__read"
"""Name of the engine's own tool that reads a long result in pieces."""


def shown_text(content: str, characters: int, call_id: str) -> str:
    """The beginning of a tool result, and how to read on.

    Args:
        characters: How many of the content's characters are shown.
        call_id: The id of the tool call, by which the model refers to its result.
    """
    total = len(content)
    return (
        f"{content[:characters]}\n[The first {characters} of {total} characters. To read on, call "
        f'{READ_RESULT} with call "{call_id}" and start {characters}.]'
    )


def piece_of(content: str, start: int, characters: int) -> str:
    """A piece of a tool result, with the place from which to read on."""
    end = min(len(content), start + characters)
    rest = "the end" if end == len(content) else f"read on from start {end}"
    return f"{content[start:end]}\n[Characters {start} to {end} of {len(content)}: {rest}.]"
