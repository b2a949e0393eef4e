"""Dependency graphs of any shape: order, fates, bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from builders import Ran, fake_tool, recipe_of, run_of
from minions.contracts.executions import RunStatus
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import ExecutionMode, OnFailure, StepSpec


@frozen(kw_only=True)
class Node:
    """A step of a random graph."""

    depends_on: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    fails: bool = False
    optional: bool = False
    when: bool = True
    pauses: int = 0
    """How often it lets the others go on while it runs."""


@st.composite
def graphs(draw: st.DrawFn, forward: bool = False) -> list[Node]:
    """Up to eight steps; `forward`: a step may depend on one that is written later."""
    size = draw(st.integers(1, 8))
    order = draw(st.permutations(range(size))) if forward else list(range(size))
    nodes: dict[int, Node] = {}
    for place, position in enumerate(order):
        others = st.lists(st.sampled_from(order[:place]), unique=True) if place else st.just([])
        nodes[position] = Node(
            depends_on=tuple(draw(others)),
            after=tuple(draw(others)),
            fails=draw(st.sampled_from([False, False, True])),
            optional=draw(st.booleans()),
            when=draw(st.sampled_from([True, True, True, False])),
            pauses=draw(st.integers(0, 3)),
        )
    return [nodes[position] for position in range(size)]


def spec_of(position: int, node: Node) -> StepSpec:
    return ToolSpecStep(
        id=f"s{position}",
        tool="work",
        params={"n": position},
        depends_on=tuple(f"s{other}" for other in node.depends_on),
        after=tuple(f"s{other}" for other in node.after),
        when=None if node.when else "false",
        optional=node.optional,
    )


@frozen
class Story:
    """What happened while a graph ran."""

    begun: list[int] = field(factory=list)
    ended: list[int] = field(factory=list)
    before: dict[int, frozenset[int]] = field(factory=dict)
    """For each step what had ended when it began."""
    widths: list[int] = field(factory=list)


async def run_graph(
    nodes: Sequence[Node],
    *,
    mode: ExecutionMode = ExecutionMode.PLANNED,
    on_failure: OnFailure = OnFailure.STOP,
    max_parallel: int = 16,
    limits: Mapping[str, JsonValue] | None = None,
) -> tuple[Ran, Story]:
    story = Story()

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        position = arguments["n"]
        assert isinstance(position, int)
        story.begun.append(position)
        story.before[position] = frozenset(story.ended)
        story.widths.append(len(story.begun) - len(story.ended))
        for _ in range(nodes[position].pauses):
            await asyncio.sleep(0)
        story.ended.append(position)
        if nodes[position].fails:
            raise TypeError("as planned")
        return position

    recipe = recipe_of(
        [spec_of(position, node) for position, node in enumerate(nodes)],
        execution_mode=mode,
        on_failure=on_failure,
        max_parallel=max_parallel,
        limits=limits,
    )
    tools = [fake_tool("work", work, effect=Effect.PURE)]
    return await run_of(recipe, tools=tools), story


@frozen
class Expected:
    """Fates by the rules, one step after the other."""

    order: list[int] = field(factory=list)
    fates: dict[int, str] = field(factory=dict)
    is_stopped: bool = False


def expected_of(nodes: Sequence[Node], on_failure: OnFailure) -> Expected:
    """The lowest step that is ready goes next; its fate follows from those of its dependencies."""
    order: list[int] = []
    fates: dict[int, str] = {}
    spoilt: set[int] = set()
    stopped = False
    while len(order) < len(nodes):
        position = next(
            at
            for at, node in enumerate(nodes)
            if at not in fates and all(other in fates for other in (*node.depends_on, *node.after))
        )
        node = nodes[position]
        needed = [fates[other] for other in node.depends_on]
        if any(other in spoilt for other in node.depends_on):
            spoilt.add(position)
            fate = "skipped"
        elif (needed and all(each == "skipped" for each in needed)) or stopped or not node.when:
            fate = "skipped"
        else:
            fate = "failed" if node.fails else "completed"
        if fate == "failed":
            spoilt.add(position)
            stopped = stopped or (not node.optional and on_failure is OnFailure.STOP)
        fates[position] = fate
        order.append(position)
    return Expected(order, fates, stopped)


def status_of(nodes: Sequence[Node], fates: Mapping[int, str]) -> RunStatus:
    failed = [nodes[at] for at, fate in fates.items() if fate == "failed"]
    if any(not node.optional for node in failed):
        return RunStatus.FAILED
    return RunStatus.PARTIAL if failed else RunStatus.COMPLETED


def fates_of(ran: Ran) -> dict[int, str]:
    return {int(step_id[1:]): status for step_id, status in ran.statuses.items()}


# --- one at a time -----------------------------------------------------------------------------


@given(nodes=graphs(), on_failure=st.sampled_from(OnFailure))
async def test_sequential_steps_run_in_list_order_with_the_fates_the_rules_say(
    nodes: list[Node], on_failure: OnFailure
) -> None:
    expected = expected_of(nodes, on_failure)
    ran, story = await run_graph(nodes, mode=ExecutionMode.SEQUENTIAL, on_failure=on_failure)
    assert expected.order == list(range(len(nodes)))
    assert ran.ids == [f"s{position}" for position in expected.order]
    assert fates_of(ran) == expected.fates
    assert story.begun == [at for at in expected.order if expected.fates[at] != "skipped"]
    assert ran.result.status is status_of(nodes, expected.fates)


@given(nodes=graphs(forward=True), on_failure=st.sampled_from(OnFailure))
async def test_planned_steps_run_in_a_stable_topological_order(
    nodes: list[Node], on_failure: OnFailure
) -> None:
    expected = expected_of(nodes, on_failure)
    ran, story = await run_graph(nodes, on_failure=on_failure)
    assert ran.ids == [f"s{position}" for position in expected.order]
    assert fates_of(ran) == expected.fates
    assert max(story.widths, default=1) == 1
    assert ran.result.status is status_of(nodes, expected.fates)


# --- together ----------------------------------------------------------------------------------


@given(nodes=graphs(forward=True), max_parallel=st.integers(1, 4))
async def test_parallel_steps_keep_to_their_dependencies_and_to_the_bound(
    nodes: list[Node], max_parallel: int
) -> None:
    """Each once; with the fates they would have had one at a time."""
    expected = expected_of(nodes, OnFailure.CONTINUE)
    ran, story = await run_graph(
        nodes,
        mode=ExecutionMode.PARALLEL,
        on_failure=OnFailure.CONTINUE,
        max_parallel=max_parallel,
    )
    assert fates_of(ran) == expected.fates
    assert max(story.widths, default=0) <= max_parallel
    assert Counter(ran.ids) == Counter(f"s{position}" for position in range(len(nodes)))
    assert_dependencies_ended_first(nodes, ran, story)
    assert ran.result.status is status_of(nodes, expected.fates)


@given(nodes=graphs(forward=True), max_parallel=st.integers(2, 4))
async def test_after_a_required_failure_parallel_siblings_end_and_nothing_new_starts(
    nodes: list[Node], max_parallel: int
) -> None:
    ran, story = await run_graph(nodes, mode=ExecutionMode.PARALLEL, max_parallel=max_parallel)
    fates = fates_of(ran)
    assert len(fates) == len(nodes)
    assert sorted(story.begun) == sorted(story.ended)
    assert {at for at, fate in fates.items() if fate != "skipped"} == set(story.begun)
    assert_dependencies_ended_first(nodes, ran, story)
    assert ran.result.status is status_of(nodes, fates)
    stops = [at for at in story.ended if nodes[at].fails and not nodes[at].optional]
    if stops:
        first = stops[0]
        later = [at for at in story.begun if first in story.before[at]]
        # Only those that were on their way already: at most the others of one batch.
        assert len(later) < max_parallel


def assert_dependencies_ended_first(nodes: Sequence[Node], ran: Ran, story: Story) -> None:
    ran_at_all = set(story.begun)
    for position in story.begun:
        waits = {*nodes[position].depends_on, *nodes[position].after} & ran_at_all
        assert waits <= story.before[position]


async def test_independent_steps_run_at_the_same_time() -> None:
    nodes = [Node(pauses=3) for _ in range(5)]
    _, story = await run_graph(nodes, mode=ExecutionMode.PARALLEL)
    assert max(story.widths) == 5
    _, story = await run_graph(nodes, mode=ExecutionMode.PARALLEL, max_parallel=2)
    assert max(story.widths) == 2


async def test_a_diamond_runs_its_sides_together_and_its_end_once() -> None:
    nodes = [
        Node(),
        Node(depends_on=(0,), pauses=2),
        Node(depends_on=(0,), pauses=1),
        Node(depends_on=(1, 2)),
    ]
    ran, story = await run_graph(nodes, mode=ExecutionMode.PARALLEL)
    assert story.widths == [1, 1, 2, 1]
    assert ran.result.status is RunStatus.COMPLETED
    assert story.begun == [0, 1, 2, 3]


async def test_a_failure_spares_what_does_not_depend_on_it() -> None:
    """And says of every step that was passed over why."""
    nodes = [Node(fails=True, optional=True), Node(depends_on=(0,)), Node(depends_on=(1,)), Node()]
    ran, _ = await run_graph(nodes)
    reasons = [each.reason for each in ran.result.executions]
    assert reasons == [
        "The tool 'work' failed: TypeError: as planned",
        "its dependency 's0' failed",
        "its dependency 's1' was skipped",
        None,
    ]
    assert ran.result.status is RunStatus.PARTIAL


async def test_a_stopped_run_names_the_step_that_stopped_it() -> None:
    ran, _ = await run_graph([Node(fails=True), Node()])
    assert ran.result.step("s1").reason == "the run stopped: step 's0' failed"
    assert ran.result.error is not None
    assert (ran.result.error.code, ran.result.error.where) == ("tool-failed", "s0")


async def test_a_step_that_only_comes_after_runs_whatever_became_of_the_other() -> None:
    nodes = [Node(fails=True, optional=True), Node(when=False), Node(after=(0, 1))]
    ran, _ = await run_graph(nodes)
    assert fates_of(ran) == {0: "failed", 1: "skipped", 2: "completed"}


async def test_a_join_goes_on_with_the_branch_that_was_taken() -> None:
    nodes = [Node(), Node(when=False), Node(depends_on=(0, 1)), Node(depends_on=(1,))]
    ran, _ = await run_graph(nodes)
    assert fates_of(ran) == {0: "completed", 1: "skipped", 2: "completed", 3: "skipped"}
    assert ran.result.step("s3").reason == "its dependency 's1' was skipped"


async def test_a_condition_that_cannot_be_read_fails_its_step() -> None:
    steps = [
        SetSpec(id="a", set={"x": 1}),
        SetSpec(id="b", set={}, when="{{ a.y > 1 }}", depends_on=("a",)),
        SetSpec(id="c", set={}, depends_on=("b",)),
    ]
    ran = await run_of(recipe_of(steps))
    assert ran.statuses == {"a": "completed", "b": "failed", "c": "skipped"}
    assert ran.result.status is RunStatus.FAILED
    assert "a.y" in (ran.result.step("b").reason or "")


@given(nodes=graphs(), most=st.integers(1, 8), mode=st.sampled_from(ExecutionMode))
async def test_no_more_steps_run_than_the_run_may(
    nodes: list[Node], most: int, mode: ExecutionMode
) -> None:
    """Steps that were passed over do not count; a run that needed no more is not limited."""
    sound = [Node(depends_on=node.depends_on, when=node.when, pauses=1) for node in nodes]
    wanted = expected_of(sound, OnFailure.STOP).fates
    needed = sum(fate == "completed" for fate in wanted.values())
    ran, story = await run_graph(sound, mode=mode, limits={"max_steps": most})
    assert len(story.begun) == min(needed, most)
    assert (ran.result.status is RunStatus.LIMIT_REACHED) == (needed > most)
    assert len(ran.ids) == len(nodes)


@pytest.mark.parametrize("count", [2_000])
async def test_two_thousand_steps_are_no_burden(count: int) -> None:
    """The cost of a step does not grow with the run, and nothing recurses."""
    nodes = [Node(depends_on=(at - 1,) if at else ()) for at in range(count)]
    nodes[0] = Node(fails=True)
    ran, story = await run_graph(nodes)
    assert (len(ran.ids), story.begun) == (count, [0])


def test_no_room_for_any_step_is_refused_where_it_is_said() -> None:
    """Or the walk would wait for ever."""
    with pytest.raises(ValueError, match="'max_parallel' must be >= 1"):
        recipe_of([SetSpec(id="a", set={})], max_parallel=0)
