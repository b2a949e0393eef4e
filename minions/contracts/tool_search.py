"""Tools that a model finds instead of being offered all of them: the name of the tool that finds
them, and what its results say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from minions.contracts.messages import Message, MessageRole

if TYPE_CHECKING:
    from minions.contracts.calls import Prompt

FIND_TOOLS: Final = "find_tools"
"""Name of the engine's own tool that finds tools of a step."""
FEWEST_TOOLS: Final = 4
"""Tools of a step from which on they may be searched unasked: finding one takes a call, which costs
more than the texts of a few.
"""
_NAME: Final = re.compile(r'"name":\s?"([A-Za-z0-9_-]{1,64})"')
"""A member of a result. Within a text of it the quotes are escaped, so that none looks like one."""


def found_names(message: Message) -> tuple[str, ...]:
    """The names of the tools that a message is the result of finding, best first, also where its
    text was cut; empty: it is no such result. They need not be tools of the step.
    """
    if message.role is not MessageRole.TOOL or message.name != FIND_TOOLS:
        return ()
    return tuple(dict.fromkeys(_NAME.findall(message.content or "")))


def found_tools(prompt: Prompt) -> frozenset[str]:
    """The names of the tools that results in the prompt say were found, and that it offers: a
    server that loads tools later reads them there.
    """
    if not prompt.searches_tools:
        return frozenset()
    offered = {tool.name for tool in prompt.tools}
    return frozenset(
        name for each in prompt.messages for name in found_names(each) if name in offered
    )
