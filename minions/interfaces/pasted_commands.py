"""Commands in messages, with the options that find the run again."""

from __future__ import annotations

import re
from typing import Final

_QUOTED: Final = re.compile(r"`minions \w+ (\w+)[^`]*")


def with_options(text: str, run_id: str, options: str) -> str:
    """The text, where commands about the run have these options, to be pasted as they stand: those
    between backticks, and those that are a line of their own.

    Args:
        options: As they are typed, with a blank before them; empty: none are needed.
    """
    if not options:
        return text

    def longer(found: re.Match[str]) -> str:
        return found[0] + options if found[1] == run_id else found[0]

    lines = (_longer_line(line, run_id, options) for line in text.split("\n"))
    return _QUOTED.sub(longer, "\n".join(lines))


def _longer_line(line: str, run_id: str, options: str) -> str:
    words = line.split(None, 3)
    if not line.startswith(" ") or words[:1] != ["minions"] or words[2:3] != [run_id]:
        return line
    command, blanks, remark = line.rpartition("  (")  # what it does, for people
    if blanks and remark.endswith(")"):
        return f"{command}{options}{blanks}{remark}"
    return f"{line}{options}"
