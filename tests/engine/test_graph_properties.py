"""Random graphs: what has an order is walked in it, what has none is refused with a cycle."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import text_step
from minions.contracts.executions import StepStatus
from minions.contracts.steps import Step
from minions.data.errors import GraphError
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.selection import DependencyStepGraph
from minions.engine.run.scheduler import BackEdges, DependencyWalk, Skip
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text

Edges = Mapping[str, Sequence[str]]


class NoWayBack(BackEdges):
    """Failures are final."""

    def target(self, step: Step[object]) -> str | None:
        """None."""
        return None

    def is_passable(self, step: Step[object]) -> bool:
        """Never."""
        return False

    def leaves_results(self, step: Step[object]) -> bool:
        """Never."""
        return False

    async def withdraw(self, step: Step[object]) -> None:
        """Never asked for."""

    async def follow(self, step: Step[object]) -> None:
        """Never asked for."""


@st.composite
def edges_of(draw: st.DrawFn, *, acyclic: bool) -> Edges:
    """Consumer to producers, among up to eight steps."""
    count = draw(st.integers(1, 8))
    names = [f"s{n}" for n in range(count)]
    order = draw(st.permutations(names))
    return {
        name: draw(
            st.lists(st.sampled_from(order[: order.index(name)] if acyclic else names), unique=True)
            if not acyclic or order.index(name)
            else st.just([])
        )
        for name in names
    }


def has_cycle(edges: Edges) -> bool:
    """Taken away bit by bit, what is left waits for itself."""
    left = dict(edges)
    while free := [name for name in left if not any(other in left for other in left[name])]:
        for name in free:
            del left[name]
    return bool(left)


def is_cycle(names: Sequence[str], edges: Edges) -> bool:
    pairs = list(itertools.pairwise(names))
    is_closed = len(names) > 1 and names[0] == names[-1] and len(set(names)) == len(names) - 1
    return is_closed and all(producer in edges[consumer] for consumer, producer in pairs)


@settings(deadline=10_000)
@given(edges_of(acyclic=False))
def test_a_graph_is_built_unless_it_has_a_cycle_which_is_then_named(edges: Edges) -> None:
    """A-08."""
    try:
        DependencyStepGraph([text_step(name) for name in edges], edges)
    except GraphError as error:
        message = error.message
    else:
        assert not has_cycle(edges)
        return
    assert has_cycle(edges)
    assert is_cycle(message.removesuffix(".").partition("in a cycle: ")[2].split(" → "), edges)


@settings(deadline=10_000)
@given(edges_of(acyclic=False))
def test_a_recipe_loads_unless_it_has_a_cycle_which_is_then_named(edges: Edges) -> None:
    steps: list[JsonValue] = [
        {"id": name, "depends_on": list(of), "set": {"n": 1}} for name, of in edges.items()
    ]
    text = dumps({"execution_mode": "planned", "steps": steps})
    faults = check_recipe_text(text, "r.yaml", Catalog()).errors
    assert bool(faults) == has_cycle(edges)
    for fault in faults:
        assert fault.code == "cycle"
        own = re.fullmatch(r"the step '(\w+)' depends on itself", fault.message)
        names = [own[1]] * 2 if own else fault.message.partition(": ")[2].split(" → ")
        assert is_cycle(names, edges)


@settings(deadline=10_000)
@given(edges=edges_of(acyclic=True), most=st.integers(1, 4), data=st.data())
async def test_a_walk_ends_each_step_once_and_after_what_it_waits_for(
    edges: Edges, most: int, data: st.DataObject
) -> None:
    pauses = {name: data.draw(st.integers(0, 3)) for name in edges}
    fates = {
        name: data.draw(st.sampled_from([StepStatus.COMPLETED, StepStatus.FAILED]))
        for name in edges
    }
    ended: list[str] = []
    running: set[str] = set()

    async def run(step: Step[object]) -> StepStatus:
        running.add(step.id)
        assert len(running) <= most
        assert set(edges[step.id]) <= set(ended)
        for _ in range(pauses[step.id]):
            await asyncio.sleep(0)
        running.remove(step.id)
        ended.append(step.id)
        return fates[step.id]

    async def skip(step: Step[object], reason: Skip) -> None:
        assert set(edges[step.id]) <= set(ended)
        ended.append(step.id)

    graph = DependencyStepGraph([text_step(name) for name in edges], edges)
    await DependencyWalk(
        graph,
        run=run,
        skip=skip,
        stop_reason=lambda _: None,
        back_edges=NoWayBack(),
        is_brief=lambda _: False,
        max_parallel=most,
    ).walk()
    assert sorted(ended) == sorted(edges)
