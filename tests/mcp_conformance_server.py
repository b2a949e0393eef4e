"""Our server for the conformance suite, which sends no token: one is added to each request.

Started with a folder of recipes; prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvicorn

from minions import tool
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import make_runtime
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.services.run_services import NullLog
from minions.interfaces.http.http_answers import (
    AsgiApp,
    Incidents,
    Receive,
    Scope,
    Send,
    StandardLog,
)
from minions.interfaces.server.mcp_endpoint import http_app
from minions.interfaces.server.process import bound_socket
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.recipe_tools import RecipeTools
from minions.interfaces.server.server_options import ServerOptions
from minions.interfaces.server.server_runtime import ServerRuntime

TOKEN = "token-of-the-conformance-suite"


@tool(effect="pure")
async def moment() -> None:
    """Waits for a moment."""
    await asyncio.sleep(0.05)


def with_token(app: AsgiApp) -> AsgiApp:
    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        header = (b"authorization", f"Bearer {TOKEN}".encode())
        await app({**scope, "headers": [*scope["headers"], header]}, receive, send)

    return passed


async def main(folder: Path) -> None:
    settings = Settings(no_store=True)
    runtime = make_runtime(
        settings,
        Extensions(tools=Toolbox([moment])),
        environ={},
        folder_of=lambda _: folder,
        log=NullLog(),
    )
    served = ServerRuntime(settings, runtime, note={"cwd": str(folder)})
    store = RecipeStore([folder], served.catalog, served.bounded, NullLog())
    tools = RecipeTools(store, served, max_runs=20)
    incidents = Incidents(StandardLog(), lambda prefix: prefix, TOKEN)
    sock = bound_socket("127.0.0.1", 0)
    options = ServerOptions(token=TOKEN)
    async with http_app(tools, "1", options, incidents.report, SystemClock().now) as app:
        sys.stdout.write(f"{sock.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(with_token(app), log_config=None, lifespan="off", ws="none")
        await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
