"""Loops some of whose items fail: the results are read, and a retry runs the failed items."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from attrs import field, frozen

from builders import FakeTool, Ran, deterministic_services, executor_of, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.data.errors import UNREACHABLE, ToolError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock

Document = dict[str, JsonValue]

COLLECT: Document = {
    "id": "each",
    "tool": "pick",
    "params": {"n": "{{ loop.item }}"},
    "loop": [1, 2, 3, 4, 5],
    "on_item_error": "collect",
}
ENVELOPE: Document = {
    "results": [10, None, 30, None, 50],
    "errors": [
        {"index": 1, "item": 2, "code": "tool-error", "message": "no even numbers"},
        {"index": 3, "item": 4, "code": "tool-error", "message": "no even numbers"},
    ],
    "total": 5,
    "successful": 3,
    "failed": 2,
}


@frozen
class Picky:
    """A tool that refuses even numbers until it is mended; it keeps what it was asked."""

    bad: set[int] = field(factory=lambda: {2, 4})
    asked: list[int] = field(factory=list)

    def tool(self) -> FakeTool:
        def pick(arguments: Mapping[str, JsonValue]) -> object:
            number = int(str(arguments["n"]))
            self.asked.append(number)
            if number in self.bad:
                raise ToolError("no even numbers")
            return number * 10

        return fake_tool("pick", pick)


def recipe_with(steps: Sequence[Document], tool: FakeTool, **recipes: Document) -> AgentRecipe:
    def find(name: str, directory: str | None) -> FoundRecipe:
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=recipes[name])

    catalog = Catalog(tools={"pick": tool.spec}, find_recipe=find)
    document: Document = {"id": "recipe", "tools": ["pick"], "steps": list(steps)}
    return recipe_from_document(document, catalog)


async def ran(*steps: Document, **recipes: Document) -> Ran:
    tool = Picky().tool()
    return await run_of(recipe_with(steps, tool, **recipes), tools=[tool])


# --- collect -------------------------------------------------------------------------------------


async def test_a_loop_that_collects_completes_with_aligned_results_and_named_errors() -> None:
    """A-113."""
    done = await ran(
        COLLECT,
        {"id": "read", "set": {"n": "{{ each.failed }}", "first": "{{ each.errors[0].item }}"}},
    )
    assert done.result.step("each").output == ENVELOPE
    assert done.result.output == {"n": 2, "first": 2}
    assert done.statuses == {"each": "completed", "read": "completed"}
    assert done.result.status is RunStatus.PARTIAL
    assert done.result.error is None
    assert done.result.step("each").is_partial


async def test_with_aggregate_the_list_is_aligned_with_the_items() -> None:
    done = await ran({**COLLECT, "aggregate": True})
    assert done.result.output == [10, None, 30, None, 50]
    assert done.result.status is RunStatus.PARTIAL


async def test_a_loop_that_collects_and_has_no_failure_is_complete() -> None:
    done = await ran({**COLLECT, "loop": [1, 3]})
    assert done.result.status is RunStatus.COMPLETED
    assert not done.result.step("each").is_partial


@pytest.mark.parametrize(("most", "status"), [(3, RunStatus.PARTIAL), (4, RunStatus.FAILED)])
async def test_fewer_successes_than_min_successful_fail_the_loop(
    most: int, status: RunStatus
) -> None:
    """A-114."""
    done = await ran({**COLLECT, "min_successful": most})
    assert done.result.status is status
    if status is RunStatus.FAILED:
        assert done.result.error is not None
        assert done.result.error.message.startswith(
            "3 of 5 items of step 'each' succeeded; min_successful is 4: item 1: no even numbers"
        )
        (ended,) = (e.body for e in done.entries if (e.key, e.state) == ("each/1/0", "failed"))
        assert ended["output"] == ENVELOPE


async def test_where_no_item_succeeds_a_loop_that_collects_fails() -> None:
    done = await ran({**COLLECT, "loop": [2, 4]})
    assert done.result.status is RunStatus.FAILED


async def test_an_empty_list_is_no_failure() -> None:
    done = await ran({**COLLECT, "loop": "{{ [] }}"})
    assert done.result.status is RunStatus.COMPLETED


# --- a failed loop whose failure the recipe allows -----------------------------------------------


@pytest.mark.parametrize("allowing", [{"optional": True}, {"on_error": "continue"}])
async def test_later_steps_read_the_results_of_a_loop_that_may_fail(allowing: Document) -> None:
    """A-113."""
    loop = {key: value for key, value in COLLECT.items() if key != "on_item_error"}
    done = await ran(
        {**loop, **allowing},
        {"id": "read", "set": {"n": "{{ each.successful }}", "bad": "{{ steps.each.status }}"}},
    )
    assert done.result.output == {"n": 3, "bad": "failed"}
    assert done.statuses == {"each": "failed", "read": "completed"}
    assert done.result.status is RunStatus.PARTIAL


async def test_a_loop_that_has_no_list_leaves_nothing_to_read() -> None:
    done = await ran(
        {"id": "one", "tool": "pick", "params": {"n": 1}},
        {**COLLECT, "loop": "{{ one }}", "optional": True},
        {"id": "read", "set": {"n": "{{ each.successful }}"}},
    )
    assert done.statuses == {"one": "completed", "each": "failed", "read": "skipped"}


# --- a server that is gone -----------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("policy", ["fail", "collect"])
async def test_no_further_item_starts_once_the_model_cannot_be_reached(
    most: int, policy: str
) -> None:
    """A-117."""
    asked: list[str] = []

    def answer(prompt: Prompt) -> Answer:
        asked.append(prompt.messages[-1].content or "")
        if len(asked) == 1:
            return "fine"
        return ModelFailure(code=UNREACHABLE, message="No answer.", is_retryable=True)

    step: Document = {
        "id": "each",
        "goal": "{{ loop.item }}",
        "loop": list(range(200)),
        "max_parallel": most,
        "on_item_error": policy,
        "retry": {"max_attempts": 3},
    }
    done = await run_of(recipe_with([step], Picky().tool()), answer, tools=[Picky().tool()])
    assert done.result.status is RunStatus.FAILED
    assert done.result.error is not None
    assert done.result.error.code == UNREACHABLE
    started = len(done.result.step("each").iterations)
    assert started <= most + 1
    assert done.result.error.message == (
        f"No answer. {200 - started} further items of step 'each' were not started; "
        "a retry executes them."
    )
    assert len(asked) <= 1 + 3 * most


@pytest.mark.parametrize("policy", ["fail", "collect"])
async def test_a_model_that_has_no_room_in_memory_is_told_once_and_not_for_each_item(
    policy: str,
) -> None:
    """A-117: the next item would be refused in the same words."""
    asked: list[str] = []

    def answer(prompt: Prompt) -> Answer:
        asked.append(prompt.messages[-1].content or "")
        return ModelFailure(code="resource-limit", message="It needs 9 MiB; 1 MiB are free.")

    step: Document = {
        "id": "each",
        "goal": "{{ loop.item }}",
        "loop": list(range(50)),
        "on_item_error": policy,
    }
    done = await run_of(recipe_with([step], Picky().tool()), answer, tools=[Picky().tool()])
    assert done.result.error is not None
    assert (done.result.error.code, len(asked)) == ("resource-limit", 1)
    assert "49 further items of step 'each' were not started" in done.result.error.message


async def test_of_items_that_found_no_server_the_first_of_the_list_is_told() -> None:
    """Whichever failed first: a run that is resumed reads the items in their order."""
    has_failed = asyncio.Event()

    async def answer(prompt: Prompt) -> Answer:
        item = prompt.messages[-1].content
        if item == "a":
            await has_failed.wait()
        has_failed.set()
        return ModelFailure(code=UNREACHABLE, message=f"No answer for {item}.")

    tool = Picky().tool()
    executor = executor_of(ScriptedModel(answer), tools=[tool], services=deterministic_services())
    step: Document = {
        "id": "each",
        "goal": "{{ loop.item }}",
        "loop": ["a", "b", "c", "d"],
        "max_parallel": 2,
        "optional": True,
    }
    first = await executor.execute(recipe_with([step], tool))
    error = first.step("each").error
    assert error is not None
    assert error.message.startswith("No answer for a. 2 further items")
    again = await executor.resume(first.run_id)
    assert again.step("each").error == error


# --- retry ---------------------------------------------------------------------------------------

INNER: Document = {
    "id": "inner",
    "inputs": {"n": {"type": "integer"}},
    "tools": ["pick"],
    "steps": [{**COLLECT, "loop": "{{ [inputs.n, inputs.n + 1] }}"}],
}
NESTED: Document = {
    "id": "sub",
    "recipe": "inner",
    "with": {"n": "{{ loop.item }}"},
    "loop": [1, 5],
}


@pytest.mark.parametrize(
    ("steps", "first", "again", "output"),
    [
        ([COLLECT], [1, 2, 3, 4, 5], [2, 4], [10, 20, 30, 40, 50]),
        ([{**NESTED, "loop": [1, 3]}], [1, 2, 3, 4], [2, 4], None),
    ],
    ids=["a loop", "a loop in a nested recipe"],
)
async def test_a_retry_calls_for_the_failed_items_alone(
    steps: list[Document], first: list[int], again: list[int], output: JsonValue
) -> None:
    """A-113."""
    picky, journal = Picky(), MemoryJournal(FakeClock())
    tool = picky.tool()
    executor = executor_of(
        ScriptedModel(()), tools=[tool], services=deterministic_services(journal)
    )
    result = await executor.execute(recipe_with(steps, tool, inner=INNER))
    assert (result.status, picky.asked) == (RunStatus.PARTIAL, first)
    picky.bad.clear()
    picky.asked.clear()
    retried: AgentResult[JsonValue] = await executor.retry(result.run_id)
    assert (retried.status, picky.asked) == (RunStatus.COMPLETED, again)
    if output is not None:
        assert isinstance(retried.output, dict)
        assert retried.output["results"] == output


async def test_a_run_whose_nested_recipe_is_partial_is_partial() -> None:
    done = await ran(NESTED, inner=INNER)
    assert done.result.status is RunStatus.PARTIAL
    assert done.result.step("sub").is_partial


async def test_a_resumed_partial_run_gives_its_output_again() -> None:
    picky, journal = Picky(), MemoryJournal(FakeClock())
    tool = picky.tool()
    executor = executor_of(
        ScriptedModel(()), tools=[tool], services=deterministic_services(journal)
    )
    first = await executor.execute(recipe_with([COLLECT], tool))
    again = await executor.resume(first.run_id)
    assert (again.status, again.output) == (RunStatus.PARTIAL, ENVELOPE)
    assert len(picky.asked) == 5


async def test_a_retry_executes_the_items_that_a_dead_server_kept_from_starting() -> None:
    """A-117."""
    answers: list[Answer] = ["one", ModelFailure(code=UNREACHABLE, message="No answer.")]
    asked: list[str] = []

    def answer(prompt: Prompt) -> Answer:
        asked.append(prompt.messages[-1].content or "")
        return answers.pop(0) if answers else "later"

    journal, tool = MemoryJournal(FakeClock()), Picky().tool()
    services = deterministic_services(journal)
    executor = executor_of(ScriptedModel(answer), tools=[tool], services=services)
    step: Document = {"id": "each", "goal": "{{ loop.item }}", "loop": ["a", "b", "c"]}
    first = await executor.execute(recipe_with([step], tool))
    assert (first.status, asked) == (RunStatus.FAILED, ["a", "b"])
    again = await executor.retry(first.run_id)
    assert again.status is RunStatus.COMPLETED
    assert asked[2:] == ["b", "c"]
    assert isinstance(again.output, dict)
    assert again.output["results"] == ["one", "later", "later"]
