"""A server in this process, over recipes that a test writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from attrs import evolve

from asgi_client import TOKEN, Client
from minions.adapters.models.script_items import Answer, AnswerFunction
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.app.settings.settings import Settings
from minions.contracts.calls import ChatModel
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import Clock, SystemClock
from minions.contracts.tools import Effect, Tool, Toolbox
from minions.contracts.waiting import OnWaiting
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.interfaces.server.app import App, create_app
from minions.interfaces.server.server_options import ServerOptions
from served import RECIPES, Door, MakeApp, echo


@pytest.fixture
def door() -> Door:
    """At which the recipe `waits` waits."""
    return Door()


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A folder with recipes."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name, text in RECIPES.items():
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder


@pytest_asyncio.fixture
async def make_app(recipes: Path, door: Door) -> AsyncIterator[MakeApp]:
    """Apps that are closed at the end."""
    made: list[App] = []

    def make(
        *,
        answers: Iterable[Answer] | AnswerFunction = (),
        model: ChatModel | None = None,
        journal: Path | Journal | None = None,
        resume: bool = False,
        settings: Settings | None = None,
        tools: Iterable[Tool] = (),
        on_waiting: OnWaiting | None = None,
        clock: Clock | None = None,
        **options: object,
    ) -> App:
        chosen = ServerOptions(token=TOKEN, grace_s=1.0)
        services = Services()
        if clock is not None:
            services = evolve(services, clock=clock, journal=MemoryJournal(clock))
        if isinstance(journal, Path):
            journal = SqliteJournal(journal, SystemClock())
        if journal is not None:
            services = evolve(services, journal=journal)
        own = (door.tool(), echo("look", Effect.PURE), echo("sign", Effect.ONCE), *tools)
        app = create_app(
            evolve(chosen, **options),  # type: ignore[arg-type]  # a test names fields that are there
            recipes=[recipes],
            settings=settings or Settings(no_store=True),
            models=model or ScriptedModel(answers),
            services=services,
            extensions=Extensions(tools=Toolbox(own)),
            resume=resume,
            on_waiting=on_waiting,
        )
        app.at_end(services.journal.aclose)
        made.append(app)
        return app

    yield make
    for app in made:
        await app.aclose()


@pytest.fixture
def client(make_app: MakeApp) -> Client:
    """Of a server with the usual recipes."""
    return Client(make_app())
