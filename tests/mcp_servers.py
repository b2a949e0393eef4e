"""Servers for tests of MCP: the fake one as a child process, looked at and ready to be called."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from minions.adapters.tools.mcp.listing import pinned_tools
from minions.adapters.tools.mcp.mcp_toolsets import ResultReader
from minions.adapters.tools.mcp.started_server import McpServer, ServerParts
from minions.contracts.tool_servers import PinnedServer, PinnedTool, Protocol, ToolServer
from minions.contracts.tools import ToolScope
from minions.data.json_values import JsonValue
from patience import HANG_S

__all__ = ["PROGRAM", "Called", "called", "fake_command", "fake_server", "parts", "pinned", "scope"]

PROGRAM: Final = str(Path(__file__).with_name("fake_mcp_server.py"))


def fake_command(*options: object) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", PROGRAM, *map(str, options))


def fake_server(*options: object, name: str = "fake") -> ToolServer:
    command = fake_command(*options)
    return ToolServer(
        name=name, command=command, start_timeout_s=HANG_S, protocol=Protocol.HANDSHAKE
    )


def _as_written(values: Mapping[str, str]) -> Mapping[str, str]:
    return values


def parts() -> ServerParts:
    return ServerParts(reveal=_as_written, client_version="1")


def scope() -> ToolScope:
    return ToolScope(run_id="r", step_id="s", call_id="c", idempotency_key="k")


async def pinned(server: ToolServer, own_parts: ServerParts | None = None) -> PinnedServer:
    """The server as it is now."""
    asked = McpServer(server, PinnedServer(fingerprint=""), own_parts or parts())
    listed = await asked.list_tools()
    return PinnedServer(fingerprint=server.fingerprint, tools=pinned_tools(server, listed))


@frozen
class Called:
    """A server whose tools are called as runs do it."""

    server: McpServer
    tools: Mapping[str, PinnedTool]

    async def __call__(
        self, tool: str, scope_: ToolScope | None = None, /, **arguments: JsonValue
    ) -> JsonValue:
        found = self.tools[tool]
        within = scope_ or scope()
        result = await self.server.call(found, arguments, within)
        return await ResultReader(self.server.server.name, found).value_of(result, within)


@asynccontextmanager
async def called(
    server: ToolServer, as_of: ToolServer | None = None, own_parts: ServerParts | None = None
) -> AsyncIterator[Called]:
    """The server, pinned as another one is."""
    seen = await pinned(as_of or evolve(server, command=fake_command()), own_parts)
    running = McpServer(server, seen, own_parts or parts())
    try:
        yield Called(running, {tool.shown_as: tool for tool in seen.tools})
    finally:
        await running.aclose()
