"""Who asks the endpoint: the engine with a model of ours, and the bare SDK it is compared with."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from minions import AgentExecutor, AgentRecipe, OpenAIModel, Services, SqliteJournal, Tool
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SYSTEM = "You answer in one sentence."
GOAL = "Say how things are."
MESSAGES = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": GOAL})
"""What the SDK sends where a recipe has `SYSTEM` and `GOAL`."""


def recipe_of(text: str, tools: Iterable[Tool] = ()) -> AgentRecipe:
    """A recipe as it stands in a file."""
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    return load_recipe_text(text, "benchmark.yaml", catalog)


@asynccontextmanager
async def model_at(
    base_url: str,
    *,
    max_requests: int = 256,
    trace_headers: Callable[[], Mapping[str, str]] | None = None,
) -> AsyncIterator[OpenAIModel]:
    """A model of ours, closed at the end."""
    model = OpenAIModel(
        provider="fake",
        model="fake",
        base_url=base_url,
        api_key="none",
        max_requests=max_requests,
        trace_headers=trace_headers,
    )
    try:
        yield model
    finally:
        await model.aclose()


@asynccontextmanager
async def sdk_at(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    """The vendor's client as anyone would make it."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@asynccontextmanager
async def sqlite_services() -> AsyncIterator[Services]:
    """Services with a journal in a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.sqlite", SystemClock())
        try:
            yield Services(journal=journal)
        finally:
            await journal.aclose()


def executor_of(
    model: OpenAIModel, services: Services | None = None, tools: Iterable[Tool] = ()
) -> AgentExecutor:
    """An executor, by default with the journal in memory."""
    extensions = Extensions(tools=Toolbox(tuple(tools)))
    return AgentExecutor(model, services=services, extensions=extensions)
