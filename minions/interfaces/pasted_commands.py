"""Commands in messages, with the options that find the run again."""

from __future__ import annotations

import re

__all__ = ["with_options"]


def with_options(text: str, run_id: str, options: str) -> str:
    """The text, where commands about the run have these options, to be pasted as they stand.

    Args:
        options: As they are typed, with a blank before them; empty: none are needed.
    """
    if not options:
        return text
    name = re.escape(run_id)
    # Between backticks, or alone on a line, which may end with a remark in parentheses.
    command = rf"`minions \w+ {name}\b[^`]*|^ +minions \w+ {name}\b.*?(?=(?: +\([^()]*\))?$)"
    return re.sub(command, lambda found: found[0] + options, text, flags=re.MULTILINE)
