"""Runs whose calls wait for batches, at a server of each form, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from attrs import evolve, field, frozen

from minions.adapters.models.anthropic import AnthropicModel
from minions.adapters.models.gemini import GeminiModel
from minions.adapters.models.http_model import HttpModel
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.price_books import GenaiPriceBook, OwnPrice
from minions.adapters.stores.memory_stores import MemoryState
from minions.contracts.executions import AgentResult
from minions.contracts.journal.journal import Journal
from minions.contracts.patience import Patience
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.services.waves.wave_calls import WaveCalls
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from minions.testing.batch_endpoint import BatchEndpoint, BatchForm
from minions.testing.virtual_time import VirtualTime, counting_ids

__all__ = ["HOUR_S", "ITEMS", "PRICE", "BatchWorld", "model_at", "model_of", "recipe_text"]

HOUR_S: Final = 3_600.0
PRICE: Final = OwnPrice(input_per_mtok=1_000, output_per_mtok=2_000, batch_factor=0.5)
"""Of 100 tokens that are asked and 20 that are answered: 14 cents, in a batch 7."""

ITEMS: Final = ("Ada", "Bo", "Cy", "Di", "Ed")

recipe_text: Final = """
id: letters
inputs: {name: string}
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}"}
  - {id: end, goal: "Answer to: {{ greet }}"}
output: {text: "{{ end }}"}
"""


def model_at(server: BatchEndpoint) -> HttpModel:
    """A model of the server's form."""
    return model_of(server.form, server.base_url)


def model_of(form: BatchForm, base_url: str) -> HttpModel:
    """A model of that form."""
    match form:
        case BatchForm.OPENAI:
            return OpenAIModel("m", base_url=base_url, api_key="key-of-the-test")
        case BatchForm.ANTHROPIC:
            return AnthropicModel("m", base_url=base_url, api_key="key-of-the-test")
        case BatchForm.GEMINI:
            return GeminiModel("m", base_url=base_url, api_key="key-of-the-test")


@frozen(kw_only=True)
class BatchWorld:
    """What outlives a process: the time, the journal and the records of waves."""

    time: VirtualTime = field(factory=VirtualTime)
    journal: Journal = field(init=False)
    store: MemoryState = field(factory=MemoryState)
    told: list[str] = field(factory=list)
    """What people were told."""

    @journal.default
    def _new_journal(self) -> Journal:
        return MemoryJournal(self.time)

    def recipe(self, text: str = recipe_text, catalog: Catalog | None = None) -> AgentRecipe:
        """The recipe of that text."""
        return load_recipe_text(text, "letters.yaml", catalog or Catalog())

    def services(self, name: str, by_s: float = 24 * HOUR_S) -> Services:
        """Those of a process, whose calls may wait for so many seconds."""
        count = counting_ids()
        services = Services(
            clock=self.time,
            sleep=self.time.sleep,
            random=random.Random(1).random,
            ids=lambda prefix: f"{count(prefix)}-{name}",
            journal=self.journal,
            lease_ttl_s=4 * HOUR_S,  # each renewal is a moment of virtual time
            prices=GenaiPriceBook(
                {f"{form}/m": PRICE for form in ("openai", "anthropic", "gemini")}
            ),
        )
        calls = WaveCalls(services, self.store, tell=self.told.append)
        by = self.time.now() + timedelta(seconds=by_s)
        return evolve(services, patience=Patience(calls=calls, by=by))

    async def run_all(
        self,
        model: HttpModel,
        services: Services,
        count: int,
        recipe: AgentRecipe | None = None,
        *,
        extensions: Extensions | None = None,
    ) -> Sequence[AgentResult[object]]:
        """Run the recipe so often at the same time."""
        found = recipe or self.recipe()
        executor = AgentExecutor(model, services=services, extensions=extensions or Extensions())
        try:
            runs = (executor.execute(found, {"name": f"n{index}"}) for index in range(count))
            return await asyncio.gather(*runs)
        finally:
            if services.patience is not None:
                await services.patience.calls.aclose()
            await model.aclose()
