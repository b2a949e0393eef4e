"""The server within an application of your own: `uvicorn mounted_application:site`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from minions.server import App, ServerOptions, create_app

HOSTS = ("localhost", "board.example")
"""The names under which the site is asked, without ports."""


def minions_of(token: str, recipes: Path, hosts: Collection[str] = HOSTS) -> App:
    """The server: recipes, runs, sessions and the page.

    It looks at the `Host` header itself, so it has to know the site's names, too; another name is
    refused with 421 (`wrong-host`).
    """
    options = ServerOptions(
        token=token,
        hosts=frozenset(hosts),
        origins=frozenset(f"https://{host}" for host in hosts),
        public_url="https://board.example/minions/",
    )
    return create_app(options, recipes=[recipes])


def site_of(minions: App, hosts: Collection[str] = HOSTS) -> FastAPI:
    """A site with the server under /minions."""

    @asynccontextmanager
    async def life(_site: FastAPI) -> AsyncIterator[None]:
        await minions.start()  # a mounted app is not told when the site starts and ends
        try:
            yield
        finally:
            await minions.aclose()

    site = FastAPI(lifespan=life)
    site.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    site.mount("/minions", minions)

    @site.get("/")
    async def home() -> dict[str, str]:
        return {"minions": "/minions/"}

    return site


if token := os.environ.get("BOARD_TOKEN"):
    site = site_of(minions_of(token, Path("recipes")))
