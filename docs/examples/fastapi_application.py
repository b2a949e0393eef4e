"""A web application that keeps one `Minions`: `uvicorn fastapi_application:site`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import StreamingResponse

import minions as m
from minions.events import event_to_json

SPAM = """\
id: spam
inputs: {text: string}
steps:
  - id: judge
    goal: "Is this spam? {{ inputs.text }}"
    output: {spam: boolean, reason: string}
"""


def minions_of(request: Request) -> m.Minions:
    """The one of the application."""
    return request.app.state.minions


App = Annotated[m.Minions, Depends(minions_of)]
Text = Annotated[str, Body(embed=True)]


def site_of(model: m.ChatModel | str | None = None, journal: str = "journal.sqlite") -> FastAPI:
    """The application.

    Args:
        model: None: the one that a key in the environment stands for.
    """

    @asynccontextmanager
    async def lifespan(site: FastAPI) -> AsyncIterator[None]:
        async with m.Minions(model=model, journal=journal) as app:
            site.state.minions = app
            yield

    site = FastAPI(lifespan=lifespan)

    @site.post("/judge", status_code=201)
    async def judge(text: Text, app: App) -> dict[str, bool | str]:
        return (await app.arun(SPAM, {"text": text}, output_class=dict[str, bool | str])).unwrap()

    @site.post("/judge/events", status_code=201)
    async def watch(text: Text, app: App) -> StreamingResponse:
        stream = app.astream(SPAM, {"text": text})
        lines = (f"data: {json.dumps(event_to_json(event))}\n\n" async for event in stream)
        return StreamingResponse(lines, media_type="text/event-stream")

    return site


site = site_of()
