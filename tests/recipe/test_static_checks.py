"""Recipes that the checks of skips, shapes and types must leave alone, and why they can be trusted.

What they find fault with stands in tests/bad_recipes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Shape, find_dead_end
from minions.recipe.checks.skips import facts_of
from minions.recipe.expressions.template import compile_condition
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.text.schemas import schema_of_example
from recipe.sample_catalog import check, shown

HEAD = "inputs: {deep: {type: boolean}, mode: {type: string}, n: 1}\nexecution_mode: planned\n"


def faults(steps: str, output: str = "done") -> list[str]:
    return [shown(fault) for fault in check(f"{HEAD}steps:\n{steps}output: '{output}'\n").faults]


# --- skips -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reader",
    [
        "{when: inputs.deep, set: {x: '{{ a.x }}'}}",
        "{depends_on: a, set: {x: '{{ a.x }}'}}",
        "{optional: true, set: {x: '{{ a.x }}'}}",
        "{set: {x: '{{ a.x | default(1) }}'}}",
        "{set: {x: '{{ a.x if a is defined else 1 }}'}}",
        "{set: {x: '{{ a is defined and a.x > 0 }}'}}",
        "{set: {x: '{{ a.x if steps.a.status == \"completed\" else 1 }}'}}",
        "{set: {x: '{{ a.x | default(b.x) }}'}}",
        "{depends_on: same, set: {x: '{{ a.x }}'}}",
        "{depends_on: behind, set: {x: '{{ a.x }} {{ behind.x }}'}}",
        "{depends_on: further, set: {x: '{{ a.x }}'}}",
    ],
)
def test_a_reader_that_says_what_a_skip_means_for_it_is_left_alone(reader: str) -> None:
    steps = (
        "  - {id: a, when: inputs.deep, set: {x: 1}}\n"
        "  - {id: b, when: not inputs.deep, set: {x: 2}}\n"
        "  - {id: same, when: '{{ inputs.deep and inputs.n > 0 }}', set: {x: 2}}\n"
        "  - {id: behind, depends_on: a, set: {x: '{{ a.x }}'}}\n"
        "  - {id: further, depends_on: behind, set: {x: 3}}\n"
        f"  - {{id: reader, {reader[1:]}\n"
    )
    assert faults(steps) == []


@pytest.mark.parametrize(
    "output",
    [
        "{{ a.x | default(0) }}",
        "{{ a.x | default(b.x) }}",
        "{{ a.x if inputs.deep else b.x }}",
        "{{ a is defined and a.x }}",
        "{{ steps.a.status }}",
        "{{ join.x }} {{ sure.x }}",
        "{{ guarded.x }}",
    ],
)
def test_an_output_that_is_always_there_is_left_alone(output: str) -> None:
    steps = (
        "  - {id: a, when: inputs.deep, set: {x: 1}}\n"
        "  - {id: b, when: not inputs.deep, set: {x: 2}}\n"
        "  - {id: join, depends_on: [a, b], set: {x: 1}}\n"
        "  - {id: sure, when: true, set: {x: 1}}\n"
        "  - {id: must, assert: 'inputs.n > 0 and inputs.mode'}\n"
        "  - {id: guarded, when: inputs.n > 0, set: {x: 1}}\n"
    )
    assert faults(steps, output) == []


def test_a_name_that_several_steps_save_is_none_of_theirs_alone() -> None:
    text = (
        "inputs: {deep: {type: boolean}}\n"
        "steps:\n"
        "  - {id: a, when: inputs.deep, set: {x: 1}, save_as: found}\n"
        "  - {id: b, when: not inputs.deep, set: {x: 2}, save_as: found}\n"
        "  - {id: reader, set: {x: '{{ found.x }}'}}\n"
        "output: '{{ found.x }}'\n"
    )
    assert check(text).faults == ()


def test_a_hundred_warnings_do_not_refuse_a_recipe() -> None:
    steps = "".join(f"  - {{id: s{at}, set: {{x: 1}}, save_as: n{at}}}\n" for at in range(150))
    loaded = check(f"steps:\n{steps}")
    assert loaded.recipe is not None
    assert {fault.code for fault in loaded.faults} == {"unused-save-as"}
    assert len(loaded.faults) == 100


ATOMS = (
    "a",
    "b",
    "a == 1",
    "a != 1",
    "a == 2",
    "1 == a",
    "a > b",
    "a <= b",
    "a in [1, 2]",
    "b == 1",
)
conditions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        inner.map(lambda one: f"not ({one})"),
        st.tuples(inner, st.sampled_from(("and", "or")), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
    ),
    max_leaves=5,
)
WORLDS: list[dict[str, JsonValue]] = [
    {"a": a, "b": b} for a, b in itertools.product((0, 1, 2, 1.0), repeat=2)
]


@given(conditions, conditions)
@example(one="not a", other="not a and a")
def test_facts_that_differ_never_hold_together_and_facts_that_follow_always_do(
    one: str, other: str
) -> None:
    first, second = compile_condition(one), compile_condition(other)
    known, wanted = facts_of(first.term), facts_of(second.term)
    both = known.keys() & wanted.keys()
    for world in WORLDS:
        if any(known[key] != wanted[key] for key in both):
            assert not (first.holds(world) and second.holds(world))
        if wanted.items() <= known.items() and first.holds(world):
            assert second.holds(world)


# --- shapes and types ------------------------------------------------------------------------

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from((0.5, "", "x"))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(("a", "b", "c")), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(values)
def test_what_a_value_has_is_no_dead_end_of_its_shape(value: JsonValue) -> None:
    shape = Shape.of(schema_of_example(value))
    pending: list[tuple[tuple[str | int, ...], JsonValue]] = [((), value)]
    while pending:
        path, here = pending.pop()
        if isinstance(here, Mapping):
            pending.extend(((*path, key), item) for key, item in here.items())
        elif isinstance(here, list):
            pending.extend(((*path, at), item) for at, item in enumerate(here[:1]))
        assert find_dead_end(shape, path) is None


@given(values, values)
def test_what_is_called_a_misfit_never_fits(value: JsonValue, other: JsonValue) -> None:
    given_, wanted = schema_of_example(value), schema_of_example(other)
    if Shape.of(given_).mismatch(Shape.of(wanted)) is not None:
        assert SchemaValidator(wanted).errors(value) != ()


SEARCH = ToolSpec(
    name="search",
    parameters={
        "type": "object",
        "properties": {
            "query": {
                "type": "object",
                "properties": {"words": {"type": "array"}, "most": {"type": "integer"}},
            },
            "by": {"$ref": "#/$defs/person"},
            "any": {},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
        "$defs": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
            }
        },
    },
)
PERSON = (
    "steps:\n"
    "  - id: who\n"
    "    goal: Who?\n"
    "    output: {name: string, age: string, years: number, tags: [string]}\n"
)


def misfits(params: str) -> list[str]:
    text = f"{PERSON}  - {{id: s, tool: search, params: {{{params}}}}}\n"
    loaded = check_recipe_text(text, "sample.yaml", Catalog(tools={"search": SEARCH}))
    return [f"{fault.code}: {fault.message}" for fault in loaded.faults]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            "query: {most: '{{ who.name }}'}",
            "'query.most' of the tool 'search' takes a whole number, but 'who.name' is text",
        ),
        (
            "query: {most: many, words: ['{{ who.name }}']}",
            "'query.most' of the tool 'search' takes a whole number, but this is text",
        ),
        (
            "by: '{{ who }}'",
            "'by.age' of the tool 'search' takes a number, but 'who.age' is text",
        ),
        (
            "query: {words: '{{ who.tags | join }}'}",
            "'query.words' of the tool 'search' takes a list, but this template is text",
        ),
        (
            "query: '{{ who.tags }}'",
            "'query' of the tool 'search' takes a mapping, but 'who.tags' is a list",
        ),
        (
            "either: '{{ who.tags }}'",
            "'either' of the tool 'search' takes text or a whole number, but 'who.tags' is a list",
        ),
        (
            "query: {most: \"{{ who.name | default('') }}\"}",
            "'query.most' of the tool 'search' takes a whole number, but this template is text",
        ),
    ],
)
def test_a_parameter_is_compared_down_to_its_members(params: str, message: str) -> None:
    assert misfits(params) == [f"type-mismatch: {message}"]


@pytest.mark.parametrize(
    "params",
    [
        "query: {most: '{{ who.years }}', words: '{{ who.tags }}'}",
        "query: {most: '{{ who.tags | length }}', words: ['{{ who.age }}']}",
        "query: {most: '{{ who.years + 1 }}'}",
        "any: '{{ who }}', either: '{{ who.age }}'",
        "query: {most: '{{ run.id | first }}'}",
        "query: {most: '{{ who.name if who.tags else 1 }}'}",
        "query: {most: \"{{ 'three' }}\"}",
        "by: {name: '{{ who.name }}', age: '{{ who.years }}'}",
    ],
)
def test_what_may_fit_is_left_alone(params: str) -> None:
    assert misfits(params) == []


def test_what_set_copies_has_the_shape_of_what_was_copied() -> None:
    text = (
        f"{PERSON}"
        "  - {id: kept, set: {person: '{{ who }}', all: ['{{ who.tags }}']}}\n"
        "  - {id: again, set: {first: '{{ kept.person.tags }}'}, save_as: firsts}\n"
        "  - {id: bad, set: {x: '{{ firsts.first.name }}', y: '{{ kept.all[0][0].z }}'}}\n"
    )
    assert [fault.message for fault in check(text).faults] == [
        "'firsts.first' can never have 'name': it is a list of text, whose items have numbers",
        "'kept.all[0][0]' can never have 'z': it is text, which has no members",
    ]
