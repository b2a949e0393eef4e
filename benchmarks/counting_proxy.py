"""Passes requests on to a server of models, and counts them: what is sent is the same for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import msgspec
from aiohttp import ClientSession, web
from attrs import define

__all__ = ["Counted", "counting_proxy"]


@define
class Counted:
    """What passed since it was set to nothing."""

    base_url: str
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of the input: the server had read them before."""
    output_tokens: int = 0
    cut: int = 0
    """Answers that ended at the limit of their tokens."""

    def reset(self) -> None:
        """Begin to count anew."""
        self.requests = self.input_tokens = self.cached_tokens = self.output_tokens = self.cut = 0

    def add(self, body: bytes) -> None:
        """Count one answer."""
        self.requests += 1
        answer = msgspec.json.decode(body)
        usage = cast("dict[str, object]", answer.get("usage") or {})
        details = cast("dict[str, int]", usage.get("prompt_tokens_details") or {})
        self.input_tokens += cast("int", usage.get("prompt_tokens", 0))
        self.output_tokens += cast("int", usage.get("completion_tokens", 0))
        self.cached_tokens += details.get("cached_tokens", 0)
        self.cut += any(each.get("finish_reason") == "length" for each in answer.get("choices", ()))


@asynccontextmanager
async def counting_proxy(target: str, api_key: str | None = None) -> AsyncIterator[Counted]:
    """A server on the loopback that passes on to `target`, a base URL, as long as the block runs.

    Args:
        api_key: The key of the server; callers of the proxy need none.
    """
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    async with ClientSession(headers=headers) as session:
        counted = Counted("")

        async def pass_on(request: web.Request) -> web.Response:
            path = request.path.removeprefix("/v1")
            sent = await request.read()
            async with session.post(f"{target}{path}", data=sent) as answer:
                body = await answer.read()
            if answer.status == 200:
                counted.add(body)
            return web.Response(body=body, status=answer.status, content_type="application/json")

        app = web.Application()
        app.router.add_post("/v1/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            counted.base_url = f"http://127.0.0.1:{port}/v1"
            yield counted
        finally:
            await runner.cleanup()
