"""Transition graphs before a run: edges, choices, and what has run where a step is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import GraphPaths
from minions.recipe.model import DecisionToolSpec, StepSpec
from minions.recipe.reading.load import recipe_from_document
from recipe.sample_catalog import check, load, shown

LIMITS = "limits: {allow_repeated_steps: true, max_steps: 9}"


def faults(text: str) -> list[str]:
    return [f"{fault.line}:{fault.code}" for fault in check(text).faults]


def only_fault(text: str) -> str:
    (fault,) = check(text).faults
    return shown(fault)


# --- what the recipe becomes ----------------------------------------------------------------------


def test_edges_come_out_as_they_stand_with_every_step() -> None:
    recipe = load(
        f"""
graph: {{draft: review, review: [draft, publish]}}
{LIMITS}
steps:
  - {{id: draft, set: {{text: x}}}}
  - {{id: review, set: {{next: publish}}, route: "{{{{ review.next }}}}"}}
  - {{id: publish, set: {{x: "{{{{ draft.text }}}}"}}}}
"""
    )
    assert recipe.graph == {"draft": ("review",), "review": ("draft", "publish"), "publish": ()}
    assert [getattr(step, "route", None) for step in recipe.steps] == [
        None,
        "{{ review.next }}",
        None,
    ]


def test_a_decision_tool_is_a_name_or_a_call() -> None:
    text = """
tools: [add]
graph: {a: [b, c], b: [c, d]}
steps:
  - {id: a, set: {n: 1}, decision_tool: {tool: add, params: {a: "{{ a.n }}", b: 2}}}
  - {id: b, set: {n: 1}, decision_tool: pick}
  - {id: c, set: {n: 1}}
  - {id: d, set: {n: 1}}
"""
    assert [fault.code for fault in check(text).faults] == ["unknown-tool"]
    recipe = load(text.replace("pick", "{tool: add, params: {a: 1, b: 1}}"))
    first = recipe.steps[0]
    assert isinstance(first, StepSpec)
    assert first.decision_tool == DecisionToolSpec(tool="add", params={"a": "{{ a.n }}", "b": 2})


def test_steps_of_a_graph_depend_on_nothing() -> None:
    recipe = load("graph: {a: b}\nsteps: [{id: a, set: {x: 1}}, {id: b, set: {y: '{{ a.x }}'}}]")
    assert [getattr(step, "depends_on", None) for step in recipe.steps] == [(), ()]


# --- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["parallel", "planned"])
def test_a_graph_has_an_order_of_its_own(mode: str) -> None:
    text = f"execution_mode: {mode}\ngraph: {{a: []}}\nsteps: [{{id: a, set: {{x: 1}}}}]"
    assert faults(text) == ["1:kind-conflict"]
    assert faults(text.replace(mode, "sequential")) == []


def test_where_to_go_without_a_graph_is_nothing_to_say() -> None:
    text = "steps: [{id: a, set: {x: 1}, route: Where?}]"
    assert [fault.code for fault in check(text).faults] == ["no-choice"]


def test_a_faulty_graph_is_reported_alone() -> None:
    """What follows from a name that means nothing is no fault of its own."""
    text = """
graph: {a: [bb]}
steps:
  - {id: a, set: {x: "{{ b.x }}"}}
  - {id: b, set: {x: 1}}
"""
    assert faults(text) == ["2:unknown-step"]
    assert faults(text.replace("{a: [bb]}", "[a, b]")) == ["2:wrong-type"]
    assert faults(text.replace("[bb]", "1")) == ["2:wrong-type"]
    assert faults(text.replace("[bb]", "[1]")) == ["2:wrong-type"]


def test_steps_without_a_name_of_their_own_are_reported_as_such() -> None:
    text = "graph: {a: b}\nsteps:\n- {set: {x: 1}}\n- {id: a, set: {x: 1}}\n- {id: b, set: {x: 1}}"
    assert faults(text) == ["3:missing-key"]
    twice = "graph: {a: b}\nsteps:\n- {id: a, goal: A}\n- {id: b, goal: B}\n- {id: b, goal: B}"
    assert faults(twice) == ["5:duplicate-id"]


CIRCLE = """
graph: {a: b, b: [a, c]}
LIMITS
steps:
  - {id: a, set: {x: 1}}
  - {id: b, set: {x: 1}, route: Which one?}
  - {id: c, set: {x: 1}}
"""


@pytest.mark.parametrize(
    ("limits", "help_text"),
    [
        ("{}", "allow_repeated_steps: true, max_steps: 20"),
        ("{max_steps: 3}", "allow_repeated_steps: true"),
        ("{allow_repeated_steps: true}", "max_steps: 20"),
        ("{allowRepeatedSteps: true, maxSteps: 3}", None),
    ],
)
def test_a_circle_needs_leave_and_a_bound(limits: str, help_text: str | None) -> None:
    loaded = check(CIRCLE.replace("LIMITS", f"limits: {limits}"))
    if help_text is None:
        assert loaded.faults == ()
        return
    (fault,) = loaded.faults
    assert (fault.code, fault.line) == ("cycle", 2)
    assert fault.message == "these steps form a cycle: a → b → a"
    assert fault.help == f"where that is meant, set limits: {{{help_text}}}"


def test_a_circle_without_a_way_out_is_worth_a_warning() -> None:
    text = f"graph: {{a: [a]}}\n{LIMITS}\nsteps: [{{id: a, set: {{x: 1}}}}]"
    (fault,) = check(text).faults
    assert (fault.code, fault.is_warning) == ("no-end", True)


def test_a_branch_that_nothing_decides_is_worth_a_warning() -> None:
    text = "graph: {a: [b, c]}\nsteps:\n- {id: a, goal: A}\n- {id: b, goal: B}\n- {id: c, goal: C}"
    (fault,) = check(text).faults
    assert (fault.code, fault.is_warning, fault.line) == ("undecided-branch", True, 3)
    assert faults(text.replace("goal: A", "goal: A, completion: signal")) == []


def test_a_route_whose_values_are_known_is_looked_at_beforehand() -> None:
    text = """
graph: {a: [b, c]}
steps:
  - {id: a, goal: A, output: {next: {enum: [b, cc]}, n: integer}, route: "{{ a.next }}"}
  - {id: b, set: {x: 1}}
  - {id: c, set: {x: 1}}
"""
    assert "'a.next' may be 'cc', which does not come after 'a'" in only_fault(text)
    assert faults(text.replace("cc]", "c]")) == []
    assert "'a.n' is a whole number" in only_fault(text.replace("a.next", "a.n"))
    assert "'b' is the id of a step" in only_fault(text.replace("{{ a.next }}", "b"))


# --- who reads whom -------------------------------------------------------------------------------

DIAMOND = """
graph: {a: [b, c], b: d, c: d}
steps:
  - {id: a, set: {next: b}, route: "{{ a.next }}"}
  - {id: b, set: {x: 1}, save_as: it}
  - {id: c, set: {x: 2}, save_as: it}
  - {id: d, set: {x: "READ"}}
"""


@pytest.mark.parametrize(
    "read",
    [
        "{{ a.next }}",
        "{{ it.x }}",
        "{{ b.x | default(0) }}",
        "{{ b.x if b is defined else c.x }}",
        "{{ steps.b.status | default('never') }}",
        "{{ 'b ran' if steps.b is defined else '' }}",
    ],
)
def test_what_ran_on_every_way_may_be_read(read: str) -> None:
    assert faults(DIAMOND.replace("READ", read).replace(", save_as: it", SAVED[read == it_x])) == []


it_x = "{{ it.x }}"
SAVED = {True: ", save_as: it", False: ""}


@pytest.mark.parametrize("read", ["{{ b.x }}", "{{ steps.b.output.x }}", "{{ steps.b.status }}"])
def test_what_ran_on_one_way_only_needs_a_default(read: str) -> None:
    fault = only_fault(DIAMOND.replace("READ", read).replace(", save_as: it", ""))
    assert "may-not-have-run 'd' reads 'b', which may not have run" in fault
    assert "it does not on the path a → c → d" in fault


def test_what_comes_later_can_never_be_read() -> None:
    text = DIAMOND.replace(", save_as: it", "").replace("READ", "1")
    fault = only_fault(text.replace("set: {x: 2}", "set: {x: '{{ d.x }}'}"))
    assert "never-run 'c' reads 'd', which can never have run before it" in fault
    fault = only_fault(text.replace("set: {x: 2}", "set: {x: '{{ b.x | default(1) }}'}"))
    assert "never-run 'c' reads 'b'" in fault


def test_a_step_reads_its_own_output_where_it_comes_again() -> None:
    text = """
graph: {a: [a, b]}
LIMITS
steps:
  - {id: a, set: {n: "READ"}, route: "{{ 'b' if a.n > 2 else 'a' }}"}
  - {id: b, set: {x: "{{ a.n }}"}}
""".replace("LIMITS", LIMITS)
    assert faults(text.replace("READ", "{{ (a.n | default(0)) + 1 }}")) == []
    fault = only_fault(text.replace("READ", "{{ a.n + 1 }}"))
    assert "'a' reads its own output, which is not there the first time" in fault
    once = text.replace("[a, b]", "[b, c]").replace("READ", "{{ a.n | default(0) }}")
    once += "  - {id: c, set: {x: 1}}\n"
    assert "never-run 'a' reads its own output, and never runs a second time" in only_fault(once)


@pytest.mark.parametrize("key", ["when: a.go", "optional: true", "on_error: continue"])
def test_a_step_that_may_leave_nothing_needs_a_default(key: str) -> None:
    text = """
graph: {a: b, b: c}
steps:
  - {id: a, set: {go: true}}
  - {id: b, set: {x: 1}, KEY}
  - {id: c, set: {x: "{{ b.x }}", how: "{{ steps.b.status }}"}}
""".replace("KEY", key)
    assert "on the path a → b → c 'b' may" in only_fault(text)
    assert faults(text.replace("{{ b.x }}", "{{ b.x | default(0) }}")) == []


def test_the_output_reads_what_ran_on_every_way_to_an_end() -> None:
    text = """
graph: {a: [b, c]}
steps:
  - {id: a, set: {next: b}, route: "{{ a.next }}"}
  - {id: b, set: {x: 1}}
  - {id: c, set: {x: 1}}
output: "{{ a.next }} READ"
"""
    fault = only_fault(text.replace("READ", "{{ b.x }}"))
    assert "the output reads 'b', which may not have run | it does not on the path a → c" in fault
    assert faults(text.replace("READ", "{{ b.x | default('') }}")) == []


def test_a_failure_that_leads_back_is_one_more_way() -> None:
    """From `s` back to `t`, though the run came by `b`, not by `t`."""
    text = """
graph: {a: [t, b], t: s, b: s}
steps:
  - {id: a, set: {next: b}, route: "{{ a.next }}"}
  - {id: t, set: {x: "{{ b.x | default(0) }}"}}
  - {id: b, set: {x: 1}}
  - {id: s, set: {x: 1}BACK}
"""
    assert faults(text.replace("BACK", "")) == ["5:never-run"]
    assert faults(text.replace("BACK", ", on_error: {goto: t}")) == []
    assert faults(text.replace("BACK", ", on_error: {goto: a}")) == []


def test_a_long_graph_is_checked_in_no_time() -> None:
    count = 200
    steps: list[JsonValue] = [
        {"id": f"s{n}", "set": {"x": f"{{{{ s{max(n - 1, 0)}.x | default(0) }}}}" if n else 1}}
        for n in range(count)
    ]
    document: dict[str, JsonValue] = {
        "graph": {f"s{n}": f"s{n + 1}" for n in range(count - 1)},
        "steps": steps,
    }
    assert len(recipe_from_document(document, Catalog()).steps) == count


# --- against an oracle ----------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(1, 6))
    step = st.integers(0, count - 1)
    return [draw(st.lists(step, max_size=3, unique=True)) for _ in range(count)]


def simple_ways(following: Sequence[Sequence[int]], way: tuple[int, ...]) -> Iterator[list[int]]:
    """Every way from the first step that comes to no step twice."""
    yield list(way)
    for other in following[way[-1]]:
        if other not in way:
            yield from simple_ways(following, (*way, other))


@given(graphs(), st.sets(st.integers(0, 5)))
def test_a_way_around_steps_is_found_just_where_there_is_one(
    following: list[list[int]], around: set[int]
) -> None:
    ways = GraphPaths(following)
    for step in range(len(following)):
        all_ways = [way for way in simple_ways(following, (0,)) if way[-1] == step]
        free = [way for way in all_ways if not around & set(way[:-1])]
        found = ways.way([step], around)
        assert (found is None) == (not free)
        if found is not None:
            assert list(found) in free
            assert len(found) == min(map(len, free))
        assert (step in ways.reached) == bool(all_ways)


@given(graphs())
def test_a_circle_is_found_just_where_a_step_can_come_again(following: list[list[int]]) -> None:
    ways = GraphPaths(following)
    comes_again = [step for step in ways.reached if step in ways.after(step)]
    circle = ways.circle
    assert (circle is None) == (not comes_again)
    if circle is not None:
        assert circle[0] == circle[-1]
        assert set(circle) <= set(comes_again)
        assert all(after in following[before] for before, after in itertools.pairwise(circle))


def most_visits(following: Sequence[Sequence[int]], step: int, most_steps: int) -> int:
    """By walking every way of that many steps."""
    best: dict[int, int] = {0: int(step == 0)}
    top = best[0]
    for _ in range(most_steps - 1):
        after: dict[int, int] = {}
        for at, count in best.items():
            for other in following[at]:
                after[other] = max(after.get(other, 0), count + (other == step))
        best = after
        top = max([top, *best.values()])
    return top


@given(graphs(), st.integers(1, 12))
def test_no_run_comes_to_a_step_more_often_than_is_said(
    following: list[list[int]], most_steps: int
) -> None:
    ways = GraphPaths(following)
    for step in range(len(following)):
        assert ways.most_visits(step, most_steps) == most_visits(following, step, most_steps)


@given(graphs(), st.data())
def test_a_reading_is_refused_just_where_some_way_avoids_the_step(
    following: list[list[int]], data: st.DataObject
) -> None:
    """Through the whole loader, with one reader and one step that is read."""
    count = len(following)
    reader = data.draw(st.integers(0, count - 1))
    read = data.draw(st.integers(0, count - 1))
    steps: list[JsonValue] = [{"id": f"s{n}", "set": {"x": n}} for n in range(count)]
    steps[reader] = {"id": f"s{reader}", "set": {"x": f"{{{{ s{read}.x }}}}"}}
    document: dict[str, JsonValue] = {
        "graph": {f"s{n}": [f"s{o}" for o in others] for n, others in enumerate(following)},
        "limits": {"allow_repeated_steps": True, "max_steps": 9},
        "steps": steps,
    }
    found = error_codes(document)
    ways = [way for way in simple_ways(following, (0,)) if way[-1] == reader]
    is_read = bool(ways) and any(way[-1] == read for way in simple_ways(following, (0,)))
    can_be = reader in GraphPaths(following).after(read)
    avoids = any(read not in way[:-1] for way in ways)
    assert ("never-run" in found) == (is_read and not can_be)
    assert ("may-not-have-run" in found) == (is_read and can_be and avoids)


def error_codes(document: dict[str, JsonValue]) -> set[str]:
    try:
        recipe_from_document(document, Catalog())
    except RecipeError as error:
        return {fault.code for fault in error.faults}
    return set()
