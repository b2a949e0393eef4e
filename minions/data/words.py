"""Text search in lists, and words of commands that people copy."""

from __future__ import annotations

from minions.data.texts import one_line


def has_words(text: str | None, *places: str | None) -> bool:
    """Whether each word of `text` occurs in one of `places`, in
    any case; None matches everything.
    """
    where = "\n".join(place for place in places if place is not None).casefold()
    return all(word in where for word in (text or "").casefold().split())


def shell_word(text: str) -> str:
    """The text as one word of a command that is printed to be copied: what a stranger wrote into
    it, such as `run_1; touch x #`, a shell takes as a name.
    """
    import shlex  # here: most commands print no other one

    return shlex.quote(one_line(text))
