"""Loops whose items are runs of their own, executed by workers."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.executions import RunState
from minions.contracts.journal.child_run_links import OPEN_STATES
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter, Spender
from minions.contracts.journal.start_note import Offer
from minions.contracts.messages import TokenUsage, assistant
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue, dumps
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.sessions.cancellation import cancel_run
from minions.engine.views.lookup import find_run
from minions.engine.views.run_detail import show_run
from patience import HANG_S
from workers.distribution import Site, double

LOOP = """
id: parts
inputs: {numbers: {type: array, items: {type: integer}}, plus: {type: integer, default: 1}}
steps:
  - {id: base, set: {value: "{{ inputs.plus }}"}}
  - id: each
    loop: "{{ inputs.numbers }}"
    distribute: true
    tool: work
    params: {n: "{{ loop.item + base.value }}"}
  - {id: sum, set: {all: "{{ each.results }}", count: "{{ each.successful }}"}}
output: {all: "{{ sum.all }}", count: "{{ sum.count }}"}
"""


async def test_items_are_runs_of_their_own_and_their_results_are_in_order() -> None:
    site = Site(LOOP)
    ended = await site.run({"numbers": [3, 1, 2]})
    assert ended.row.status == RunState.COMPLETED, ended.row
    assert ended.output == {"all": [8, 4, 6], "count": 3}
    children = await site.children(ended.row.run_id)
    assert [each.status for each in children] == [RunState.COMPLETED] * 3
    assert set(site.calls.values()) == {1}


async def test_child_runs_are_offered_what_their_run_was_and_no_more() -> None:
    """A-148."""
    site, offer = Site(LOOP), Offer(way="http", folders=("/srv/offered",))
    run_id = await site.queued({"numbers": [3, 1]}, note=offer.to_note())
    await site.worked()
    children = await site.children(run_id)
    assert len(children) == 2
    for each in children:
        recorded = await load_recorded_run(site.journal, each.run_id)
        assert Offer.of_note(recorded.note) == offer


async def test_the_same_recipe_gives_the_same_in_one_process() -> None:
    site = Site(LOOP)
    alone = await site.alone({"numbers": [3, 1, 2]})
    assert alone.output == {"all": [8, 4, 6], "count": 3}
    assert await site.children(alone.row.run_id) == []


COUNTING = """
id: counting
inputs: {numbers: {type: array, items: {type: integer}}}
steps:
  - {id: each, loop: "{{ inputs.numbers }}", distribute: true, aggregate: true, tool: work,
     params: {n: "{{ loop.item }}"}}
output: "{{ each | length }} doubled"
"""


async def test_an_output_that_reads_the_list_of_results_is_that_of_the_whole_run_alone() -> None:
    site = Site(COUNTING)
    ended = await site.run({"numbers": [3, 1, 2]})
    assert ended.row.status == RunState.COMPLETED, ended.row
    assert ended.output == (await site.alone({"numbers": [3, 1, 2]})).output == "3 doubled"
    children = await site.children(ended.row.run_id)
    assert [(await site.ended(each.run_id)).output for each in children] == [6, 2, 4]


async def test_one_worker_with_one_slot_is_enough() -> None:
    site = Site(LOOP)
    ended = await site.run({"numbers": list(range(20))}, slots=1)
    assert ended.row.status == RunState.COMPLETED
    assert ended.output == {"all": [2 * (n + 1) for n in range(20)], "count": 20}


NESTED = """
id: parts
inputs: {numbers: {type: array, items: {type: integer}}}
steps:
  - {id: one, recipe: double.yaml, with: {n: 21}, distribute: true}
  - {id: each, loop: "{{ inputs.numbers }}", recipe: double.yaml, with: {n: "{{ loop.item }}"},
     distribute: true, aggregate: true}
output: {one: "{{ one }}", each: "{{ each }}"}
"""
DOUBLE = """
id: double
inputs: {n: integer}
steps:
  - {id: twice, tool: work, params: {n: "{{ inputs.n }}"}}
output: {was: "{{ inputs.n }}", is: "{{ twice }}"}
"""


async def test_nested_recipes_are_runs_of_their_own_with_a_loop_and_without(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(DOUBLE, "utf-8")
    site = Site(NESTED, folder=tmp_path)
    ended = await site.run({"numbers": [4, 5]})
    expected = {"one": {"was": 21, "is": 42}, "each": [{"was": 4, "is": 8}, {"was": 5, "is": 10}]}
    assert ended.row.status == RunState.COMPLETED, ended.row
    assert ended.output == expected
    assert len(await site.children(ended.row.run_id)) == 3
    assert (await site.alone({"numbers": [4, 5]})).output == expected


async def _no_odd_ones(arguments: Mapping[str, JsonValue]) -> object:
    number = arguments["n"]
    assert isinstance(number, int)
    if number % 2:
        raise ToolError(f"{number} is odd.")
    return number


FAILING = LOOP.replace(
    "    distribute: true\n", "    distribute: true\n    on_item_error: {mode}\n"
)


@pytest.mark.parametrize("mode", ["fail", "collect"])
async def test_failed_items_mean_what_they_mean_in_one_process(mode: str) -> None:
    site = Site(FAILING.replace("{mode}", mode), work=_no_odd_ones)
    inputs: Mapping[str, JsonValue] = {"numbers": [1, 2, 3]}
    ended, alone = await site.run(inputs), await site.alone(inputs)
    assert ended.row.status == alone.row.status
    assert ended.row.error_code == alone.row.error_code
    assert ended.row.error_message == alone.row.error_message
    assert ended.output == alone.output


async def test_a_retry_runs_failed_items_again_and_no_others() -> None:
    site = Site(LOOP, work=_no_odd_ones)
    run_id = await site.queued({"numbers": [1, 2, 3]})
    await site.worked()
    assert (await site.row(run_id)).status == RunState.FAILED
    before = Counter(site.calls)
    site.work = double
    await site.retried(run_id)
    ended = await site.ended(run_id)
    assert ended.row.status == RunState.COMPLETED, ended.row
    assert ended.output == {"all": [2, 6, 4], "count": 3}
    assert {key for key, count in site.calls.items() if count > before[key]} == {"{'n': 3}"}


async def test_items_wait_in_windows_as_large_as_the_recipe_says() -> None:
    most = 0

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        nonlocal most
        rows = await site.journal.runs(RunFilter(statuses=OPEN_STATES))
        most = max(most, len(rows) - 1)  # without the run itself
        return await double(arguments)

    site = Site(LOOP.replace("    tool:", "    max_parallel: 3\n    tool:"), work=work)
    ended = await site.run({"numbers": list(range(11))})
    assert ended.output == {"all": [2 * (n + 1) for n in range(11)], "count": 11}
    assert most == 3


async def test_a_cancelled_run_cancels_its_child_runs_and_a_resume_continues_them() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        if arguments["n"] == 1:
            begun.set()
            await go.wait()
        return await double(arguments)

    site = Site(LOOP, work=work)
    run_id = await site.queued({"numbers": [9, 0, 5, 6]})
    worker = site.worker(slots=1, once=False)
    task = asyncio.ensure_future(worker.run())
    await asyncio.wait_for(begun.wait(), HANG_S)
    await cancel_run(site.runtime().services, run_id)
    go.set()
    worker.stop()
    await asyncio.wait_for(task, HANG_S)
    states = [each.status for each in await site.children(run_id)]
    assert states == [RunState.COMPLETED, *[RunState.CANCELLED] * 3]
    assert (await site.row(run_id)).status == RunState.CANCELLED
    await site.resumed(run_id)
    assert (await site.ended(run_id)).output == {"all": [20, 2, 12, 14], "count": 4}
    assert site.calls["{'n': 10}"] == 1


async def test_a_child_run_whose_run_was_cancelled_is_not_begun() -> None:
    site = Site(LOOP)
    run_id = await site.queued({"numbers": [1, 2]})
    await site.until_waiting(run_id)
    await site.cancelled_alone(run_id)
    await site.worked()
    assert [each.status for each in await site.children(run_id)] == [RunState.CANCELLED] * 2
    assert not site.calls


async def test_a_run_that_fails_takes_its_child_runs_along() -> None:
    text = LOOP.replace("  - {id: sum", "  - {id: bad, assert: [inputs.plus > 1]}\n  - {id: sum")
    site = Site(text)
    run_id = await site.queued({"numbers": [1, 2]})
    assert (await site.executed(run_id)).again is None
    assert (await site.row(run_id)).status == RunState.FAILED
    assert [each.status for each in await site.children(run_id)] == [RunState.CANCELLED] * 2


ASKING = """
id: asking
inputs: {words: {type: array, items: {type: string}}}
limits: {max_tokens: 100}
steps:
  - {id: each, loop: "{{ inputs.words }}", distribute: true, goal: "Say {{ loop.item }}"}
output: "{{ each.results }}"
"""


def answer(prompt: Prompt) -> ModelCallResponse:
    return ModelCallResponse(
        message=assistant(str(prompt.messages[-1].content).removeprefix("Say ").upper()),
        usage=TokenUsage(input_tokens=6, output_tokens=4),
    )


async def test_what_child_runs_used_counts_once() -> None:
    site = Site(ASKING, model=ScriptedModel(answer))
    ended = await site.run({"words": ["a", "b", "c"]})
    assert ended.row.status == RunState.COMPLETED, ended.row
    assert ended.output == ["A", "B", "C"]
    assert ended.usage["total_tokens"] == 30
    spent = await site.journal.spent(Spender(day=ended.row.day))
    assert spent.tokens == 30


async def test_child_runs_share_the_limits_of_their_run() -> None:
    site = Site(ASKING, model=ScriptedModel(answer))
    words: list[JsonValue] = [f"w{n}" for n in range(20)]
    ended = await site.run({"words": words})
    assert ended.row.status == RunState.LIMIT_REACHED, ended.row
    assert ended.usage["total_tokens"] == 100
    done = list(await site.children(ended.row.run_id))
    assert sum(each.spent.tokens for each in done) == 100


SHARING = """
id: sharing
inputs: {sizes: {type: array, items: {type: integer}}}
limits: {max_tokens: LIMIT}
steps:
  - {id: each, loop: "{{ inputs.sizes }}", recipe: calls.yaml, with: {size: "{{ loop.item }}"},
     distribute: true, aggregate: true}
output: "{{ each }}"
"""
CALLS = """
id: calls
inputs: {size: integer}
steps:
  - {id: a, goal: Say a}
  - {id: b, goal: Say b, when: inputs.size > 1}
  - {id: c, goal: Say c, when: inputs.size > 2}
  - {id: d, goal: Say d, when: inputs.size > 3}
output: "{{ inputs.size }}"
"""


async def test_a_child_run_whose_part_was_too_small_gets_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "calls.yaml").write_text(CALLS, "utf-8")
    text = SHARING.replace("LIMIT", "75")
    site = Site(text, folder=tmp_path, model=ScriptedModel(answer))
    ended = await site.run({"sizes": [1, 4, 1, 1]})
    assert ended.output == [1, 4, 1, 1], ended.row
    assert ended.usage["total_tokens"] == 70


async def test_child_runs_exceed_the_limit_by_a_call_each_at_most(tmp_path: Path) -> None:
    (tmp_path / "calls.yaml").write_text(CALLS, "utf-8")
    text = SHARING.replace("LIMIT", "50")
    site = Site(text, folder=tmp_path, model=ScriptedModel(answer))
    ended = await site.run({"sizes": [1, 4, 4, 4]})
    assert ended.row.status == RunState.LIMIT_REACHED, ended.row
    assert 50 <= int(str(ended.usage["total_tokens"])) <= 50 + 3 * 10


async def test_a_raised_limit_continues_where_the_run_stopped() -> None:
    site = Site(ASKING, model=ScriptedModel(answer))
    words: list[JsonValue] = [f"w{n}" for n in range(20)]
    run_id = (await site.run({"words": words})).row.run_id
    site.recipe_text = ASKING.replace("100", "300")
    await site.resumed(run_id)
    ended = await site.ended(run_id)
    assert ended.output == [f"W{n}" for n in range(20)], ended.row
    assert ended.usage["total_tokens"] == 200


async def test_a_changed_item_is_another_run_and_the_others_are_not_run_again() -> None:
    site = Site(LOOP, work=_no_odd_ones)
    run_id = await site.queued({"numbers": [1, 2, 3]})
    await site.worked()
    before = Counter(site.calls)
    await site.retried(run_id, inputs={"numbers": [1, 5, 3]})
    ended = await site.ended(run_id)
    assert ended.output == {"all": [2, 6, 4], "count": 3}
    assert {key for key, count in site.calls.items() if count > before[key]} == {"{'n': 6}"}


async def test_a_retry_from_the_step_runs_all_its_items_again() -> None:
    site = Site(LOOP)
    run_id = (await site.run({"numbers": [1, 2]})).row.run_id
    await site.retried(run_id, from_step="each")
    assert (await site.ended(run_id)).output == {"all": [4, 6], "count": 2}
    assert site.calls == {"{'n': 2}": 2, "{'n': 3}": 2}


async def test_a_retry_from_a_later_step_runs_no_item_again() -> None:
    site = Site(LOOP)
    run_id = (await site.run({"numbers": [1, 2]})).row.run_id
    await site.retried(run_id, from_step="sum")
    assert (await site.ended(run_id)).output == {"all": [4, 6], "count": 2}
    assert site.calls == {"{'n': 2}": 1, "{'n': 3}": 1}


async def test_long_inputs_are_stored_once() -> None:
    text = LOOP.replace("plus:", "text: string, plus:")
    site = Site(text.replace("    tool:", "    max_parallel: 2\n    tool:"))
    inputs: Mapping[str, JsonValue] = {"numbers": [1, 2, 3, 4, 5], "plus": 0, "text": "x" * 5_000}
    ended = await site.run(inputs)
    run_id = ended.row.run_id
    entries = await site.journal.entries(ended.row.session_id, kinds={"run"})
    starts = [each.fact for each in entries if isinstance(each.fact, RunBeginning)]
    assert len(starts) > 5
    assert [each.inputs is not None for each in starts] == [True] + [False] * (len(starts) - 1)
    assert (await load_recorded_run(site.journal, run_id)).inputs == inputs
    shown = await show_run(site.journal, await find_run(site.journal, run_id))
    assert shown.inputs == inputs
    for child in await site.children(run_id):
        assert set((await load_recorded_run(site.journal, child.run_id)).inputs) == set()


async def test_a_process_without_a_queue_does_not_continue_a_distributed_step() -> None:
    site = Site(LOOP)
    run_id = await site.queued({"numbers": [1, 2]})
    await site.until_waiting(run_id)
    result = await site.runtime().executor(site.recipe).resume(run_id)
    assert result.error is not None
    assert result.error.code == "needs-workers"
    await site.retried(run_id)
    assert (await site.ended(run_id)).output == {"all": [4, 6], "count": 2}


async def test_what_began_within_its_run_stays_there() -> None:
    site = Site(LOOP, work=_no_odd_ones)
    ended = await site.alone({"numbers": [1, 2, 3]})
    assert ended.row.status == RunState.FAILED
    site.work = double
    await site.retried(ended.row.run_id)
    assert (await site.ended(ended.row.run_id)).output == {"all": [2, 6, 4], "count": 3}
    assert site.calls["{'n': 2}"] == 1
    assert not await site.children(ended.row.run_id)


async def test_an_item_that_waits_for_a_person_keeps_the_others_going() -> None:
    site = Site(
        """
id: asks
steps:
  - {id: each, loop: [a, b], distribute: true, aggregate: true, ask: "Is {{ loop.item }} right?",
     form: {type: boolean}}
output: "{{ each }}"
"""
    )
    run_id = await site.queued()
    await site.worked()
    states = [each.status for each in await site.children(run_id)]
    assert states == [RunState.NEEDS_DECISION] * 2
    assert (await site.row(run_id)).status == RunState.QUEUED
    for at, child in enumerate(await site.children(run_id)):
        await site.answered(child.run_id, dumps(at == 0))
    await site.worked()
    assert (await site.ended(run_id)).output == [True, False]


async def test_a_run_holds_next_to_nothing_for_an_item_that_waits() -> None:
    """Of ten times as many items, with the same window, memory does not grow as much."""
    peaks = [await _peak_while_queueing(count) for count in (200, 2_000)]
    assert peaks[1] < 3 * peaks[0], peaks


async def _peak_while_queueing(count: int) -> int:
    """Bytes that a worker takes for the execution that queues the first items of a loop."""
    site = Site(LOOP.replace("    tool:", "    max_parallel: 20\n    tool:"))
    run_id = await site.queued({"numbers": list(range(count))})
    tracemalloc.start()
    try:
        await site.until_waiting(run_id)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
