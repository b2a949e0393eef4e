"""A process that runs a batch whose calls wait, and kills itself at its n-th write.

python tests/batch_program.py FORM BASE_URL DATABASE N; N 0: it lives. It prints one JSON line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from attrs import evolve

from batch_worlds import ITEMS, PRICE, model_of, recipe_text
from minions.adapters.models.price_books import GenaiPriceBook
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.patience import Patience
from minions.contracts.runtime import SystemClock
from minions.engine.batches.batch import Batch, BatchPlan
from minions.engine.batches.lines import BatchLine
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.engine.services.waves.wave_calls import WaveCalls
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text
from minions.testing.batch_endpoint import BatchForm

_FASTER: Final = 200
"""How much faster time passes for whoever sleeps."""


class _QuickClock(SystemClock):
    """Waves are sent soon after the last call, while leases still outlast a busy machine."""

    def monotonic(self) -> float:
        return 10 * super().monotonic()


class _Life:
    """Ends with the process at the n-th write, before or after it was made."""

    def __init__(self, writes: int) -> None:
        self._left = writes

    def count(self) -> None:
        """A moment at which it may die."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _Journal(SqliteJournal):
    groups_appends = False
    life: _Life

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        self.life.count()
        entry = await super().append(lease, draft)
        self.life.count()
        return entry


class _State(SqliteState):
    life: _Life

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        self.life.count()
        done = await super().replace(key, known, text)
        self.life.count()
        return done


async def _main(form: BatchForm, base_url: str, database: Path, writes: int) -> None:
    clock = _QuickClock()
    journal, store = _Journal(database, clock), _State(database)
    journal.life = store.life = _Life(writes)
    services = Services(
        clock=clock,
        sleep=lambda seconds: asyncio.sleep(seconds / _FASTER),
        random=random.Random(1).random,
        journal=journal,
        prices=GenaiPriceBook({f"{form}/m": PRICE}),
    )
    calls = WaveCalls(services, store)
    patience = Patience(calls=calls, by=clock.now() + timedelta(days=2))
    model = model_of(form, base_url)
    recipe = load_recipe_text(recipe_text, "letters.yaml", Catalog())
    batch = Batch(
        AgentExecutor(model, services=evolve(services, patience=patience)),
        recipe,
        [
            BatchLine(index=index, inputs={"name": name}, place=name)
            for index, name in enumerate(ITEMS)
        ],
        BatchPlan(name="letters", concurrency=len(ITEMS)),
    )
    async for result in batch:
        sys.stdout.write(f"{json.dumps(result.to_json())}\n")
    await calls.aclose()
    await model.aclose()
    await journal.aclose()
    await store.aclose()


if __name__ == "__main__":
    _form, _url, _database, _writes = sys.argv[1:]
    asyncio.run(_main(BatchForm(_form), _url, Path(_database), int(_writes)))
