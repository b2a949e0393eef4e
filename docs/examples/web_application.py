"""A web application that keeps one `Minions`: `uvicorn web_application:site`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import frozen
from litestar import Litestar, Request, post
from litestar.datastructures import State
from litestar.response import ServerSentEvent

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


@frozen
class Judgement:
    """What a caller gets."""

    spam: bool
    reason: str


@post("/judge")
async def judge(request: Request[object, object, State]) -> dict[str, bool | str]:
    """The judgement, once the run is over."""
    app, text = await _asked(request)
    judged = (await app.arun(SPAM, {"text": text}, output_class=Judgement)).unwrap()
    return {"spam": judged.spam, "reason": judged.reason}


@post("/judge/events")
async def watch(request: Request[object, object, State]) -> ServerSentEvent:
    """Every event while the run goes on."""
    app, text = await _asked(request)

    async def events() -> AsyncIterator[str]:
        async for event in app.astream(SPAM, {"text": text}):
            yield json.dumps(event_to_json(event))

    return ServerSentEvent(events())


async def _asked(request: Request[object, object, State]) -> tuple[m.Minions, str]:
    """The application's object, and what the body says."""
    app: m.Minions = request.app.state.minions
    return app, (await request.json())["text"]


def site_of(model: m.ChatModel | str | None = None, journal: str = "journal.sqlite") -> Litestar:
    """The application.

    Args:
        model: None: the one that a key in the environment stands for.
    """

    @asynccontextmanager
    async def lifespan(site: Litestar) -> AsyncIterator[None]:
        async with m.Minions(model=model, journal=journal) as app:
            site.state.minions = app
            yield

    return Litestar([judge, watch], lifespan=[lifespan])


site = site_of()
