"""How callers come in, for messages that say what the operator can offer them."""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen(kw_only=True)
class CallerWay:
    """A way in."""

    name: str
    """`http` or `mcp`."""
    words: str
    """For the middle of a sentence."""
    command: str
    """The operator's command, whose options `--allow-folder` and `--allow-secret` offer more."""


OVER_HTTP: Final = CallerWay(name="http", words="over HTTP", command="minions serve")
OVER_MCP: Final = CallerWay(name="mcp", words="over MCP", command="minions mcp serve")
