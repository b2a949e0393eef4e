"""A call of an MCP tool over standard streams, against the same call on the bare SDK."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from mcp import Client, StdioServerParameters

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions.adapters.tools.mcp.listing import pinned_tools
from minions.adapters.tools.mcp.mcp_toolsets import LockedServer, McpToolsets
from minions.adapters.tools.mcp.started_server import McpServer, ServerParts
from minions.contracts.tool_servers import PinnedServer, Protocol, ToolServer
from minions.contracts.tools import ToolScope

_PROGRAM: Final = str(Path(__file__).with_name("echo_server.py"))
_SCOPE: Final = ToolScope(run_id="r", step_id="s", call_id="c", idempotency_key="k")


def _parts() -> ServerParts:
    return ServerParts(reveal=lambda values: values, client_version="1")


async def measure(effort: Effort, _endpoint: Endpoint) -> list[Row]:
    """One call after the other."""
    count = effort.count(500)
    command = (sys.executable, "-I", "-S", _PROGRAM)
    server = ToolServer(name="echo", command=command, protocol=Protocol.HANDSHAKE)
    toolsets = await _toolsets(server)
    tool = toolsets["mcp.echo"].open_under("echo", {})[0]
    bare = StdioServerParameters(command=command[0], args=list(command[1:]))

    async def ours() -> None:
        for _ in range(count):
            assert await tool.invoke({"text": "hello"}, _SCOPE) == "hello"

    async with Client(bare, mode="legacy") as client:

        async def sdk() -> None:
            for _ in range(count):
                result = await client.call_tool("echo", {"text": "hello"})
                assert result.content[0].type == "text"

        await ours()  # the server starts at the first call
        await sdk()  # likewise, the SDK lists the tools then
        taken = await least_cpu_s(effort, {"ours": ours, "sdk": sdk})
    await toolsets.aclose()
    return [
        ratio_row(
            "mcp-call",
            "a call of an MCP tool",
            ratio=taken["ours"] / taken["sdk"],
            most=1.3,
            of="the SDK's call",
            absolute=f"{taken['ours'] / count * 1e6:.0f} µs; "
            f"SDK {taken['sdk'] / count * 1e6:.0f} µs",
        )
    ]


async def _toolsets(server: ToolServer) -> McpToolsets:
    listed = await McpServer(server, PinnedServer(fingerprint=""), _parts()).list_tools()
    tools = pinned_tools(server, listed)
    pinned = PinnedServer(fingerprint=server.fingerprint, tools=tools)
    return McpToolsets({"echo": LockedServer(server=server, pinned=pinned)}, {}, _parts)
