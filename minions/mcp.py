"""MCP servers of a program: how they are reached, and the lock of their tools.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.app.settings.settings import McpSettings
    from minions.app.wiring.configured_servers import lock_servers
    from minions.contracts.tool_servers import Grant, Protocol


__all__ = ["Grant", "McpSettings", "Protocol", "lock_servers"]

_HOMES: Final = {
    "minions.contracts.tool_servers": ("Grant", "Protocol"),
    "minions.app.wiring.configured_servers": ("lock_servers",),
    "minions.app.settings.settings": ("McpSettings",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
