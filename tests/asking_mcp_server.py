"""A server made with the SDK as its pages say: its tools ask a person, a file has their calls."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel

RECORD = Path(sys.argv[1])
server = MCPServer("asking")


class Order(BaseModel):
    colour: str
    count: int = 1


def note(name: str) -> None:
    with RECORD.open("a") as file:
        file.write(f"{name}\n")


async def asked(name: str, context: Context) -> str:
    note(name)
    found = await context.elicit("Which colour?", Order)
    return f"{found.action} {found.data.colour if found.action == 'accept' else ''}".strip()


@server.tool()
async def order(context: Context) -> str:
    """Orders a lamp."""
    return await asked("order", context)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def price(context: Context) -> str:
    """The price of a lamp."""
    return await asked("price", context)


server.run(transport="stdio")
