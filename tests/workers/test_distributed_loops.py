"""Loops whose items are runs of their own, executed by workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from minions.contracts.executions import RunState
from minions.contracts.json_values import JsonValue
from workers.distribution import Site

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


async def test_the_same_recipe_gives_the_same_in_one_process() -> None:
    site = Site(LOOP)
    alone = await site.alone({"numbers": [3, 1, 2]})
    assert alone.output == {"all": [8, 4, 6], "count": 3}
    assert await site.children(alone.row.run_id) == []


async def test_one_worker_with_one_slot_is_enough() -> None:
    site = Site(LOOP)
    ended = await site.run({"numbers": list(range(20))}, slots=1)
    assert ended.row.status == RunState.COMPLETED
    assert ended.output == {"all": [2 * (n + 1) for n in range(20)], "count": 20}
