"""Borders around data in a prompt, which nothing in the data can open, close or imitate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import count
from typing import Final

from minions.data.json_values import JsonValue, dumps

# Chat templates of local models read these as the start or end of a message, also inside of one.
_MARKER: Final = re.compile(
    r"<(?=[|｜]|/?s>|(?:start|end)_of_turn>|[be]os>|</?SYS>>)|\[(?=/?INST\])"
)


_DIGITS: Final = 8
"""Digits of a name: three tokens, where letters between them would be eight. Where texts hold the
first few names, further ones are longer, so that no text can hold all of them."""
_SHORT_NAMES: Final = 4


def border_of(seed: str, texts: Iterable[str]) -> str:
    """The name of the tags around data: the first one of the seed that is in none of the texts.

    Args:
        seed: As `RunContext.border_seed`: equal in all prompts of a recipe, so that a server finds
            the start of a prompt in its cache, and known to nobody outside of the installation.
        texts: All that the prompt holds.
    """
    said = "\n".join(texts).lower()
    for number in count():
        digits = _DIGITS * (1 + number // _SHORT_NAMES)
        digest = blake2b(f"{seed}/{number}".encode("utf-8", "replace")).digest()
        token = f"{int.from_bytes(digest) % 10**digits:0{digits}}"
        if token not in said:
            return f"data-{token}"
    raise AssertionError("unreachable: a text is finite")


def border_of_run(run_id: str, texts: Iterable[str]) -> str:
    """As above, of one run, for questions that are found in the journal by all of their words."""
    said = "\n".join(texts).lower()
    for number in count():
        token = blake2b(f"{run_id}/{number}".encode("utf-8", "replace"), digest_size=4).hexdigest()
        if token not in said:
            return f"data-{token}"
    raise AssertionError("unreachable: a text is finite")


def as_data(value: JsonValue) -> str:
    """JSON text on one line, in which role markers of chat templates are escaped."""
    return without_markers(dumps(value))


def without_markers(json_text: str) -> str:
    """JSON text in which role markers of chat templates are escaped."""
    return _MARKER.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def as_text_data(value: JsonValue) -> str:
    """A text as it is, for its JSON escapes cost tokens; anything else as `as_data`.

    A blank text is shown as JSON, so that it can be seen, and so is one with a role marker.
    """
    is_plain = isinstance(value, str) and value.strip() and not _MARKER.search(value)
    return str(value) if is_plain else as_data(value)


def several_within(border: str, data: Mapping[str, str]) -> str:
    """The outputs of steps between one border: each on a line of its own, behind the step's id.

    Args:
        data: JSON on one line, so that no output can begin the line of another step.
    """
    if len(data) == 1:
        ((step_id, text),) = data.items()
        return within(border, text, step_id=step_id)
    return within(border, "\n".join(f"{step_id}: {text}" for step_id, text in data.items()))


def within(border: str, data: str, *, step_id: str | None = None) -> str:
    """The data between its border.

    Args:
        step_id: The step whose output it is; None: none.
    """
    source = f' step="{step_id}"' if step_id is not None else ""
    return f"<{border}{source}>\n{data}\n</{border}>"
