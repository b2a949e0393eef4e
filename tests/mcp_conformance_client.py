"""Our client as the conformance suite starts it: with the address of a server, and a scenario."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx2
from attrs import evolve
from mcp.shared.auth import AuthorizationCodeResult

from mcp_servers import called, parts, scope
from minions.adapters.tools.mcp.connection import Logins
from minions.adapters.tools.mcp.login import Visitor
from minions.adapters.tools.mcp.started_server import ServerParts
from minions.contracts.tool_servers import Grant, ServerLogin, ToolServer
from minions.contracts.tools import ToolQuestions
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

_CALLS: Mapping[str, tuple[str, Mapping[str, JsonValue]]] = {
    "tools_call": ("add_numbers", {"a": 5, "b": 3}),
    "elicitation-sep1034-client-defaults": ("test_client_elicitation_defaults", {}),
    "sse-retry": ("test_reconnection", {}),
    "auth/scope-step-up": ("test-tool", {}),
    "auth/scope-retry-limit": ("test-tool", {}),
}


class _AcceptsAll(ToolQuestions):
    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        return {}


class _Browser:
    """Agrees to every login at once, as the suite's servers do."""

    def __init__(self) -> None:
        self._came_back: Mapping[str, str] = {}

    def visitor(self) -> Visitor:
        uri = "http://127.0.0.1:9/callback"
        return Visitor(redirect_uri=uri, show=self._visit, answer=self._answer)

    async def _visit(self, url: str) -> None:
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(url, follow_redirects=False)
        self._came_back = dict(parse_qsl(urlsplit(answer.headers["location"]).query))

    async def _answer(self) -> AuthorizationCodeResult:
        said = self._came_back
        return AuthorizationCodeResult(
            code=said["code"], state=said.get("state"), iss=said.get("iss")
        )


def _login(scenario: str) -> ServerLogin | None:
    """How one logs in to the suite's server."""
    if not scenario.startswith("auth/"):
        return None
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    if scenario == "auth/basic-cimd":
        return ServerLogin(client_id="https://conformance-test.local/client-metadata.json")
    grant = Grant.CLIENT_CREDENTIALS if "client-credentials" in scenario else Grant.BROWSER
    return ServerLogin(
        grant=grant,
        client_id=given.get("client_id"),
        client_secret=given.get("client_secret"),
        private_key=given.get("private_key_pem"),
        issuer=given.get("issuer"),
    )


async def main() -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    server = ToolServer(name="suite", url=sys.argv[1], login=_login(scenario))
    wanted = _CALLS.get(scenario)
    with tempfile.TemporaryDirectory() as folder:
        logins = Logins(folder=Path(folder), visitor=_Browser().visitor())
        await _call(server, wanted, evolve(parts(), logins=logins))


async def _call(
    server: ToolServer, wanted: tuple[str, Mapping[str, JsonValue]] | None, own: ServerParts
) -> None:
    async with called(server, as_of=server, own_parts=own) as call:
        if wanted is not None:
            name, arguments = wanted
            await call(name, evolve(scope(), questions=_AcceptsAll()), **arguments)


if __name__ == "__main__":
    asyncio.run(main())
