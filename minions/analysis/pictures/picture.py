"""The content of a picture of a recipe: its steps, the edges between them, and their layout."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from minions.data.json_values import JsonValue, dumps
from minions.recipe.model import AgentRecipe, OnError, StepSpec

if TYPE_CHECKING:
    from minions.contracts.steps import Step
    from minions.contracts.tools import ToolSpec


@frozen(kw_only=True)
class Node:
    """One step in a picture."""

    id: str
    kind: str
    """The name of a `StepKind`; for a step made by Python `code`, or `goal` if it calls a model."""
    label: str = ""
    """What it does, on one line: a tool's name, or the start of a description or goal."""
    notes: tuple[str, ...] = ()
    """`writes`, `optional`, `when …`, `for each …`, `while …`."""
    status: str | None = None
    """The step's status in a run: `completed`, `failed`, `waits` and so
    on; None: the picture shows no run.
    """


@frozen(kw_only=True)
class Edge:
    """An edge between two steps, as indices into `Picture.nodes`."""

    start: int
    end: int
    is_dashed: bool = False
    """Whether the first step only has to end, in whatever way."""
    back: str | None = None
    """The kind of a back edge: `while`, from a step to itself, or `goto`, taken when the
    step fails. None: a forward edge.
    """


@frozen(kw_only=True)
class Picture:
    """A graph of steps. Step n of the recipe is `nodes[n - 1]` and is shown with its number."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    """Each pair once, in the order of the steps they lead to; then the back edges.
    Transitions may form a cycle.
    """


def picture_of(recipe: AgentRecipe, tools: Mapping[str, ToolSpec]) -> Picture:
    """The recipe's dependencies, or the transitions between its Python steps.

    Args:
        tools: The recipe's tools by full name, to mark steps that write.
    """
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if not specs:
        return _transitions(recipe)
    if isinstance(recipe.graph, Mapping):
        return _transitions_of_specs(recipe, recipe.graph, specs, tools)
    places = {spec.id: place for place, spec in enumerate(specs)}
    edges = [
        Edge(start=places[other], end=place, is_dashed=is_dashed)
        for place, spec in enumerate(specs)
        for other, is_dashed in _waits(spec)
        if other in places
    ]
    return Picture(
        title=recipe.id,
        nodes=tuple(_node(spec, tools) for spec in specs),
        edges=(*sorted(edges, key=lambda edge: (edge.end, edge.start)), *_back(specs)),
    )


def with_statuses(picture: Picture, statuses: Mapping[str, str]) -> Picture:
    """The picture with the status of steps in a run.

    Args:
        statuses: By step id; steps that are missing have not run.
    """
    nodes = tuple(evolve(node, status=statuses.get(node.id, "not run")) for node in picture.nodes)
    return evolve(picture, nodes=nodes)


def status_class(status: str) -> str:
    """The CSS class of a status; similar statuses share one."""
    return _STATUS_CLASSES.get(status, "is-open")


_STATUS_CLASSES: Final = {
    **dict.fromkeys(("completed", "cached", "pinned"), "has-completed"),
    "failed": "has-failed",
    "waits": "is-waiting",
    **dict.fromkeys(("skipped", "not run"), "has-not-run"),
}


def cut(text: str, length: int, mark: str = "…") -> str:
    """The text on one line of at most `length` characters; `mark` replaces what was cut."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= length else line[: length - len(mark)].rstrip() + mark


def _transitions_of_specs(
    recipe: AgentRecipe,
    graph: Mapping[str, Sequence[str]],
    specs: Sequence[StepSpec],
    tools: Mapping[str, ToolSpec],
) -> Picture:
    places = {spec.id: place for place, spec in enumerate(specs)}
    pairs = {
        (places[other], places[step_id]) for step_id, others in graph.items() for other in others
    }
    return Picture(
        title=recipe.id,
        nodes=tuple(_node(spec, tools) for spec in specs),
        edges=(*(Edge(start=start, end=end) for end, start in sorted(pairs)), *_back(specs)),
    )


def _back(specs: Sequence[StepSpec]) -> Iterator[Edge]:
    """The back edges of the recipe."""
    places = {spec.id: place for place, spec in enumerate(specs)}
    for place, spec in enumerate(specs):
        if spec.repeat is not None:
            yield Edge(start=place, end=place, back="while")
    for place, spec in enumerate(specs):
        if spec.on_error.goto in places:
            yield Edge(start=place, end=places[spec.on_error.goto], back="goto")


def _waits(spec: StepSpec) -> Iterator[tuple[str, bool]]:
    waits = dict.fromkeys(spec.after, True) | dict.fromkeys(spec.depends_on, False)
    for other in dict.fromkeys((*spec.depends_on, *spec.after)):
        yield other, waits[other]


def _node(spec: StepSpec, tools: Mapping[str, ToolSpec]) -> Node:
    return Node(
        id=spec.id,
        kind=spec.kind,
        label=cut(spec.label, _MOST_OF_A_LABEL),
        notes=tuple(_notes(spec, tools)),
    )


_MOST_OF_A_LABEL: Final = 200
"""Characters of a label; writers cut further to the space they have."""


def _notes(spec: StepSpec, tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    if any(name in tools and tools[name].is_write for name in spec.called_tools):
        yield "writes"
    elif any(name in tools and tools[name].is_write for name in spec.offered_tools):
        yield "may write"
    if spec.optional or spec.on_error.action is OnError.CONTINUE:
        yield "optional"
    if spec.when is not None:
        yield cut(f"when {_bare(spec.when)}", _MOST_OF_A_LABEL)
    if spec.loop is not None:
        yield cut(f"for each {_bare(spec.loop.over)}", _MOST_OF_A_LABEL)
    if spec.repeat is not None:
        most = _up_to(spec.repeat.max_iterations)
        yield cut(f"{most} while {_bare(spec.repeat.condition)}", _MOST_OF_A_LABEL)
    if spec.on_error.goto is not None:
        most = _up_to(spec.on_error.max_times)
        yield cut(f"{most} back to {spec.on_error.goto} if it fails", _MOST_OF_A_LABEL)
    if spec.route is not None:
        yield cut(f"then by {_bare(spec.route)}", _MOST_OF_A_LABEL)
    if spec.decision_tool is not None:
        yield f"then by {spec.decision_tool.tool}"


def _up_to(count: int) -> str:
    """The greatest count in words; notes start with it because they are cut at the end."""
    return "once" if count == 1 else f"up to {count} times"


def _bare(value: JsonValue) -> str:
    """An expression without the braces around it."""
    text = value if isinstance(value, str) else dumps(value)
    inner = text.strip()
    is_one = inner.startswith("{{") and inner.endswith("}}") and inner.count("{{") == 1
    return inner[2:-2].strip() if is_one else inner


# --- Python steps -----------------------------------------------------------------------------


def _transitions(recipe: AgentRecipe) -> Picture:
    from minions.contracts.steps import Step, StepGraph

    graph = recipe.graph
    steps = [step for step in recipe.steps if isinstance(step, Step)]
    if isinstance(graph, StepGraph):
        steps = list(graph.steps)
        following = {step.id: _ids(graph.possible_next_steps(step)) for step in steps}
    elif graph is None:
        following = {before.id: [after.id] for before, after in itertools.pairwise(steps)}
    else:
        following = {step_id: list(targets) for step_id, targets in graph.items()}
    places = {step.id: place for place, step in enumerate(steps)}
    pairs = [
        (places[start], places[end])
        for start, ends in following.items()
        for end in dict.fromkeys(ends)
        if start in places and end in places
    ]
    pairs.sort(key=lambda pair: (pair[1], pair[0]))
    return Picture(
        title=recipe.id,
        nodes=tuple(_code_node(step) for step in steps),
        edges=tuple(Edge(start=start, end=end) for start, end in pairs),
    )


def _ids(steps: Sequence[Step[object]]) -> list[str]:
    return [step.id for step in steps]


def _code_node(step: Step[object]) -> Node:
    from minions.contracts.steps import PythonStep

    return Node(
        id=step.id,
        kind="code" if isinstance(step, PythonStep) else "goal",
        label=cut(step.description or type(step).__name__, _MOST_OF_A_LABEL),
        notes=("optional",) if step.is_optional else (),
    )


# --- the layout of a picture ---------------------------------------------------------------------


MOST_IN_A_ROW: Final = 6
"""Steps in one row; further ones move one row down, so that a picture stays readable."""
_MOST_BENDS: Final = 5_000
"""Bends of all edges together. With more, edges are drawn straight:
nobody could follow them anyway.
"""
_SWEEPS: Final = 6


@frozen(kw_only=True)
class Layout:
    """Rows of items: the steps with their indices in the picture, followed
    by the bends of long edges.
    """

    rows: tuple[tuple[int, ...], ...]
    """Items from top to bottom, each row from left to right."""
    paths: tuple[tuple[int, ...], ...]
    """For each edge the items that it passes, including its ends."""
    steps: int
    """Number of items that are steps."""

    def is_step(self, item: int) -> bool:
        """Whether the item is a step, not a bend."""
        return item < self.steps


def laid_out(picture: Picture) -> Layout:
    """Compute rows, bends and order."""
    depths = _depths(picture)
    paths = _paths(picture, depths)
    rows: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for item, depth in enumerate(depths):
        rows[depth].append(item)
    return Layout(
        rows=_order(rows, Neighbours(paths, depths)),
        paths=tuple(paths),
        steps=len(picture.nodes),
    )


def rows_of(picture: Picture) -> tuple[tuple[int, ...], ...]:
    """The steps by row; steps in one row do not depend on each other."""
    layout = laid_out(picture)
    return tuple(tuple(filter(layout.is_step, row)) for row in layout.rows)


class Neighbours:
    """The items in the rows right above and right below that an item is connected to."""

    def __init__(self, paths: Sequence[Sequence[int]], depths: Sequence[int]) -> None:
        self.above: dict[int, list[int]] = {}
        self.below: dict[int, list[int]] = {}
        for path in paths:
            for one, other in itertools.pairwise(path):
                upper, lower = sorted((one, other), key=depths.__getitem__)
                if depths[lower] - depths[upper] == 1:
                    self.above.setdefault(lower, []).append(upper)
                    self.below.setdefault(upper, []).append(lower)
        self.both = {
            item: [*self.above.get(item, ()), *self.below.get(item, ())]
            for item in (*self.above, *self.below)
        }


# --- rows -------------------------------------------------------------------------------------


def _depths(picture: Picture) -> list[int]:
    """The row of each step: below all steps that it depends on, where there is room."""
    count = len(picture.nodes)
    forward = _without_cycles(count, picture)
    waits = [0] * count
    following: list[list[int]] = [[] for _ in range(count)]
    for start, end in forward:
        waits[end] += 1
        following[start].append(end)
    depths, taken = [0] * count, dict[int, int]()
    ready = [(0, step) for step in range(count) if waits[step] == 0]
    while ready:
        depth, step = heapq.heappop(ready)
        while taken.get(depth, 0) >= MOST_IN_A_ROW:
            depth += 1
        depths[step], taken[depth] = depth, taken.get(depth, 0) + 1
        for other in following[step]:
            waits[other] -= 1
            depths[other] = max(depths[other], depth + 1)
            if waits[other] == 0:
                heapq.heappush(ready, (depths[other], other))
    return depths


def _without_cycles(count: int, picture: Picture) -> list[tuple[int, int]]:
    """The edges without back edges and without those that close a cycle of transitions."""
    following: list[list[int]] = [[] for _ in range(count)]
    for edge in picture.edges:
        if edge.back is None:
            following[edge.start].append(edge.end)
    forward: list[tuple[int, int]] = []
    state = [0] * count  # 0 not seen, 1 on the way, 2 done
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        way = [(root, iter(following[root]))]
        while way:
            step, rest = way[-1]
            other = next(rest, None)
            if other is None:
                state[step] = 2
                way.pop()
            elif state[other] != 1:
                forward.append((step, other))
                if state[other] == 0:
                    state[other] = 1
                    way.append((other, iter(following[other])))
    return forward


def _paths(picture: Picture, depths: list[int]) -> list[tuple[int, ...]]:
    """The paths of all edges, with one bend in each row that an edge crosses;
    appends the bends to `depths`.
    """
    crossed = sum(abs(depths[edge.end] - depths[edge.start]) - 1 for edge in picture.edges)
    paths: list[tuple[int, ...]] = []
    for edge in picture.edges:
        above, below = depths[edge.start], depths[edge.end]
        step = 1 if above < below else -1
        between = range(above + step, below, step) if crossed <= _MOST_BENDS else ()
        bends = range(len(depths), len(depths) + len(between))
        depths.extend(between)
        paths.append((edge.start, *bends, edge.end))
    return paths


# --- order ------------------------------------------------------------------------------------


def _order(rows: list[list[int]], joined: Neighbours) -> tuple[tuple[int, ...], ...]:
    best, fewest = [list(row) for row in rows], _crossings(rows, joined)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        if sweep % 2 == 0:
            for upper, row in itertools.pairwise(rows):
                _sort(row, upper, joined.above)
        else:
            for lower, row in itertools.pairwise(reversed(rows)):
                _sort(row, lower, joined.below)
        crossings = _crossings(rows, joined)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return tuple(tuple(row) for row in best)


def _sort(row: list[int], other: Sequence[int], joined: Mapping[int, Sequence[int]]) -> None:
    """Sort a row by the median of the neighbours in the other row; items without
    neighbours keep about their place.
    """
    places = {item: (at + 0.5) / len(other) for at, item in enumerate(other)}
    own = {item: (at + 0.5) / len(row) for at, item in enumerate(row)}

    def middle(item: int) -> float:
        neighbours = joined.get(item, ())
        if not neighbours:
            return own[item]
        return sum(places[neighbour] for neighbour in neighbours) / len(neighbours)

    row.sort(key=middle)


def _crossings(rows: Sequence[Sequence[int]], joined: Neighbours) -> int:
    """Number of crossings between the edges of two neighbouring rows."""
    count = 0
    for upper, lower in itertools.pairwise(rows):
        places = {item: at for at, item in enumerate(lower)}
        seen: list[int] = []  # where earlier lines end, sorted
        for item in upper:
            ends = [places[other] for other in joined.below.get(item, ())]
            count += sum(len(seen) - bisect.bisect_right(seen, end) for end in ends)
            for end in ends:
                bisect.insort(seen, end)
    return count
