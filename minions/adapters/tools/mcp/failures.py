"""How servers fail, as errors that say what happened and what to do."""

from __future__ import annotations

from typing import Final

from minions.data.errors import ToolServerError

FAILED: Final = "mcp-server-failed"
"""Code of a call whose server cannot be started or reached, or does not speak the protocol."""
ENDED: Final = "mcp-server-ended"
"""Code of a call during which the connection to the server ended."""
FLOODED: Final = "mcp-server-flooded"
"""Code of a call whose server sent more than is taken."""
CHANGED: Final = "mcp-tools-changed"
"""Code of a call of a tool that is not as it was when somebody looked at it."""
NOT_LOCKED: Final = "mcp-not-locked"
"""Code of a run with a server whose tools nobody has looked at."""
BAD_RESULT: Final = "mcp-bad-result"
"""Code of a call whose result is none, or does not fit what the tool declares."""
REFUSED: Final = "mcp-refused"
"""Code of a call that the server refused: a wrong key, no right, an unknown method."""
NEEDS_HANDSHAKE: Final = "mcp-needs-handshake"
"""Code of a call whose server asks a person, which it cannot without `initialize`."""
REPLACED: Final = "mcp-program-replaced"
"""Code of a call whose server's program is not the one that somebody looked at."""
LOGIN: Final = "mcp-login-needed"
"""Code of a call whose server asks for a login that nobody did, or that is over."""
NO_EXTRA: Final = "missing-extra"


def failed(name: str, what: str, *, code: str = FAILED, transient: bool = False) -> ToolServerError:
    """The failure of the server of that name.

    Args:
        what: What happened, without a full stop.
        transient: Whether the same call may succeed later.
    """
    return ToolServerError(f"The MCP server '{name}' {what}.", code=code, is_transient=transient)
