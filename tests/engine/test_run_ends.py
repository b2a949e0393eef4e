"""What is told of the end of an execution, after it is recorded."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services, run_of
from minions.contracts.executions import RunStatus
from minions.contracts.journal.chain import HeadKeeper
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.journal import Journal
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document


class Keeper(HeadKeeper):
    """Keeps the heads that it finds."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.heads: list[tuple[str, str | None]] = []

    async def run_ended(self, session_id: str, run_id: str) -> None:
        self.heads.append((run_id, (await self.journal.verify(session_id)).head))


@pytest.mark.parametrize(
    ("condition", "status"), [("true", RunStatus.COMPLETED), ("false", RunStatus.FAILED)]
)
async def test_the_head_that_a_keeper_finds_is_that_of_the_end(
    condition: str, status: RunStatus
) -> None:
    """A-171: it covers how the run ended, also one that failed."""
    services = deterministic_services()
    keeper = Keeper(services.journal)
    steps = [{"id": "a", "assert": condition}]
    recipe = recipe_from_document({"id": "r", "steps": steps}, Catalog())
    ended = await run_of(recipe, services=evolve(services, heads=keeper))
    assert ended.result.status is status
    report = await services.journal.verify(ended.result.session_id)
    assert keeper.heads == [(ended.result.run_id, report.head)]


async def test_a_run_that_failed_records_no_output_though_its_last_step_has_results() -> None:
    """The results of a loop that may fail are readable, and are not those of the run."""
    services = deterministic_services()
    loop: JsonValue = {"id": "b", "loop": [1, 0], "assert": "loop.item", "optional": True}
    steps: list[JsonValue] = [{"id": "a", "assert": "false"}, loop]
    recipe: dict[str, JsonValue] = {"id": "r", "on_failure": "continue", "steps": steps}
    ended = await run_of(recipe_from_document(recipe, Catalog()), services=services)
    assert ended.result.status is RunStatus.FAILED
    (finished,) = [
        each.fact
        for each in await services.journal.entries(run_id=ended.result.run_id, kinds={"run"})
        if isinstance(each.fact, RunFinished)
    ]
    assert finished.output is None
