"""What is shown of the child runs of a distributed step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from minions.contracts.executions import RunState
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.engine.sessions.cancellation import cancel_run
from minions.engine.views.lookup import find_run
from minions.engine.views.run_detail import RunDetail, show_run
from minions.interfaces.cli.commands.session_commands import child_run_lines
from patience import HANG_S
from workers.distribution import Site, double

LOOP = """
id: parts
inputs: {numbers: {type: array, items: {type: integer}}}
steps:
  - id: each
    loop: "{{ inputs.numbers }}"
    distribute: true
    tool: work
    params: {n: "{{ loop.item }}"}
output: "{{ each.results }}"
"""
COLLECTING = LOOP.replace("    tool:", "    on_item_error: collect\n    tool:")
ASKING = """
id: asking
steps:
  - {id: each, loop: [a], distribute: true, ask: "Is {{ loop.item }} right?", form: {type: boolean}}
output: "{{ each.results }}"
"""
NESTED = """
id: parts
inputs: {numbers: {type: array, items: {type: integer}}}
steps:
  - {id: one, recipe: double.yaml, with: {n: 21}, distribute: true, optional: true}
  - {id: each, loop: "{{ inputs.numbers }}", recipe: double.yaml, with: {n: "{{ loop.item }}"},
     distribute: true, aggregate: true, optional: true}
"""
DOUBLE = """
id: double
inputs: {n: integer}
steps:
  - {id: twice, tool: work, params: {n: "{{ inputs.n }}"}}
output: "{{ twice }}"
"""


async def _no_odd_ones(arguments: Mapping[str, JsonValue]) -> object:
    number = arguments["n"]
    assert isinstance(number, int)
    if number % 2:
        raise ToolError(f"{number} is odd.")
    return number


async def _shown(site: Site, run_id: str) -> RunDetail:
    return await show_run(site.journal, await find_run(site.journal, run_id))


async def test_child_runs_are_counted_by_state_and_failed_ones_are_named() -> None:
    site = Site(COLLECTING, work=_no_odd_ones)
    ended = await site.run({"numbers": [1, 2, 3, 4]})
    children = await site.children(ended.row.run_id)
    shown = (await _shown(site, ended.row.run_id)).child_runs["each"]
    assert (shown.total, shown.counts) == (4, {"completed": 2, "failed": 2})
    named = [(each.address, each.run_id, each.status) for each in shown.listed]
    expected = [(f"each[{n}]", children[n].run_id, "failed") for n in (0, 2)]
    assert named == expected
    assert "1 is odd." in str(shown.listed[0].reason)
    assert next(iter(child_run_lines(shown))) == "4 child runs: 2 completed, 2 failed"


async def test_a_run_that_waits_shows_its_child_runs_as_far_as_they_are_queued() -> None:
    site = Site(LOOP.replace("    tool:", "    max_parallel: 2\n    tool:"))
    run_id = await site.queued({"numbers": [1, 2, 3]})
    await site.until_waiting(run_id)
    detail = await _shown(site, run_id)
    shown = detail.child_runs["each"]
    assert (shown.total, shown.counts, shown.listed) == (3, {"queued": 2}, ())
    assert list(child_run_lines(shown)) == ["2 child runs of 3 items: 2 queued"]
    (step,) = [each for each in detail.steps if each.step_id == "each"]
    assert step.waits_for_runs


async def test_a_child_run_that_is_executed_counts_as_running() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        begun.set()
        await go.wait()
        return await double(arguments)

    site = Site(LOOP, work=work)
    run_id = await site.queued({"numbers": [1, 2]})
    task = asyncio.ensure_future(site.worked(slots=1))
    await asyncio.wait_for(begun.wait(), HANG_S)
    assert (await _shown(site, run_id)).child_runs["each"].counts == {"queued": 1, "running": 1}
    go.set()
    await task


async def test_at_most_ten_child_runs_are_named_and_the_others_counted() -> None:
    site = Site(COLLECTING, work=_no_odd_ones)
    ended = await site.run({"numbers": [0, *[1] * 12]})
    shown = (await _shown(site, ended.row.run_id)).child_runs["each"]
    assert [each.address for each in shown.listed] == [f"each[{n}]" for n in range(1, 11)]
    assert shown.unlisted == 2
    assert list(child_run_lines(shown))[-1] == "and 2 more"


async def test_a_child_run_that_waits_for_a_person_is_named() -> None:
    site = Site(ASKING)
    run_id = await site.queued()
    await site.worked()
    shown = (await _shown(site, run_id)).child_runs["each"]
    (child,) = await site.children(run_id)
    assert shown.counts == {"needs_decision": 1}
    assert [(e.address, e.run_id) for e in shown.listed] == [("each[0]", child.run_id)]


async def test_a_step_without_a_loop_is_named_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(DOUBLE, "utf-8")
    site = Site(NESTED, folder=tmp_path, work=_no_odd_ones)
    ended = await site.run({"numbers": [1]})
    shown = (await _shown(site, ended.row.run_id)).child_runs
    (one,) = shown["one"].listed
    assert (one.address, one.status) == ("one", "partial")  # for the step is optional
    assert "21 is odd." in str(one.reason)
    assert [each.address for each in shown["each"].listed] == ["each[0]"]


async def test_an_item_that_a_retry_changed_counts_once() -> None:
    site = Site(LOOP, work=_no_odd_ones)
    run_id = await site.queued({"numbers": [2, 1, 6]})
    await site.worked()
    await site.retried(run_id, inputs={"numbers": [2, 4]})
    assert (await site.row(run_id)).status == RunState.COMPLETED
    assert len(await site.children(run_id)) == 4
    shown = (await _shown(site, run_id)).child_runs["each"]
    assert (shown.total, shown.counts) == (2, {"completed": 2})


async def test_child_runs_of_a_step_that_was_run_again_as_a_whole_are_those_of_the_newest() -> None:
    is_second_pass = False

    async def fails_from_then_on(arguments: Mapping[str, JsonValue]) -> object:
        if is_second_pass and arguments["n"] == 2:
            raise ToolError("2 is too many.")
        return arguments["n"]

    site = Site(COLLECTING, work=fails_from_then_on)
    ended = await site.run({"numbers": [1, 2]})
    first = {each.run_id for each in await site.children(ended.row.run_id)}
    is_second_pass = True
    await site.retried(ended.row.run_id, from_step="each")
    newest = {each.run_id for each in await site.children(ended.row.run_id)} - first
    assert len(newest) == 2
    shown = (await _shown(site, ended.row.run_id)).child_runs["each"]
    assert shown.counts == {"completed": 1, "failed": 1}
    assert {each.run_id for each in shown.listed} < newest


async def test_a_run_within_one_process_has_no_child_runs_to_show() -> None:
    site = Site(LOOP)
    alone = await site.alone({"numbers": [1, 2]})
    assert (await _shown(site, alone.row.run_id)).child_runs == {}


async def test_a_distributed_step_of_a_cancelled_run_waits_for_nothing() -> None:
    site = Site(LOOP)
    run_id = await site.queued({"numbers": [1, 2]})
    await site.until_waiting(run_id)
    await cancel_run(site.runtime().services, run_id)
    detail = await _shown(site, run_id)
    (step,) = [each for each in detail.steps if each.step_id == "each"]
    assert (step.status, step.reason, step.waits_for_runs) == ("interrupted", None, False)
    assert detail.child_runs["each"].counts == {"cancelled": 2}
