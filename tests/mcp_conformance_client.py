"""Our client as the conformance suite starts it: with the address of a server, and a scenario."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

from attrs import evolve

from mcp_servers import called, scope
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.contracts.tool_questions import ToolQuestions
from minions.contracts.tool_servers import ToolServer

_CALLS: Mapping[str, tuple[str, Mapping[str, JsonValue]]] = {
    "tools_call": ("add_numbers", {"a": 5, "b": 3}),
    "elicitation-sep1034-client-defaults": ("test_client_elicitation_defaults", {}),
    "sse-retry": ("test_reconnection", {}),
}


class _AcceptsAll(ToolQuestions):
    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        return {}


async def main() -> None:
    server = ToolServer(name="suite", url=sys.argv[1])
    wanted = _CALLS.get(os.environ["MCP_CONFORMANCE_SCENARIO"])
    async with called(server, as_of=server) as call:
        if wanted is not None:
            name, arguments = wanted
            await call(name, evolve(scope(), questions=_AcceptsAll()), **arguments)


if __name__ == "__main__":
    asyncio.run(main())
