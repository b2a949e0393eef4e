"""What a case expects is checked against what is known of the output, before anything is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.evaluation.cases import Case
from minions.evaluation.scorer_checks import why_never, why_unreadable
from minions.evaluation.scorers import Exact, Fields, Holds, Matches, Near, Schema, Scorer
from minions.recipe.expressions.template import compile_condition

OUTPUT: JsonSchema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "label": {"enum": ["bug", "question"]},
        "count": {"type": ["integer"]},
        "share": {"type": "number"},
        "open": {"type": "object", "properties": {}},
        "near": {
            "type": "object",
            "properties": {"id": {"type": "string"}},
            "additionalProperties": False,
        },
        "rest": {},
    },
}


def holds(text: str) -> Holds:
    return Holds(text=text, condition=compile_condition(text))


def never(
    expected: JsonValue,
    scorer: Scorer | None = None,
    *,
    is_text: bool = False,
    schema: JsonSchema = OUTPUT,
) -> str | None:
    case = Case(index=0, name="case 1", inputs={}, expected=expected, is_text=is_text)
    return why_never(schema, case, scorer or Fields())


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (
            {"labl": "bug"},
            (
                "it expects 'labl', and the output has only 'label', 'count', 'share', 'open', "
                "'near', 'rest'. Did you mean 'label'?"
            ),
        ),
        (
            {"label": "buug"},
            (
                'it expects "buug" of \'label\', which can only be one of ["bug","question"]. Did '
                "you mean 'bug'?"
            ),
        ),
        ({"labl": None}, "it expects 'labl', and the output has only 'label'"),
        ({"count": "3"}, "it expects \"3\" of 'count', which is of type string and can only be"),
        ({"count": 2.5}, "it expects 2.5 of 'count'"),
        ({"count": True}, "it expects true of 'count'"),
        ("bug", 'it expects "bug", which is of type string and can only be object.'),
        (None, "it expects null, which is of type null and can only be object."),
    ],
)
def test_what_no_output_can_have_is_named(expected: JsonValue, reason: str) -> None:
    """A-138."""
    said = never(expected)
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    "expected",
    [
        {"label": "bug", "count": 3},
        {"count": 3.0, "share": 1},
        {"label": None, "near": None},
        {"open": {"anything": 1}, "rest": "x"},
        {},
    ],
)
def test_what_an_output_may_have_is_asked(expected: JsonValue) -> None:
    assert never(expected) is None


def test_texts_of_a_table_stand_for_other_values() -> None:
    schema: JsonSchema = {
        "properties": {"level": {"enum": [1, 2]}, "open": {"type": "boolean"}},
        "additionalProperties": False,
    }
    assert never({"level": "2", "open": "yes"}, is_text=True, schema=schema) is None
    assert never({"level": "3"}, is_text=True, schema=schema) is not None
    assert never({"levl": "2"}, is_text=True, schema=schema) is not None
    assert never({"open": "perhaps"}, is_text=True, schema=schema) is not None
    assert never("bug", is_text=True) is not None
    assert never('{"label": "bug"}', is_text=True) is None
    assert never({"count": "3", "share": "2.5"}, is_text=True) is None
    assert never({"count": "2.5"}, is_text=True) is not None


@pytest.mark.parametrize(
    ("scorer", "told"),
    [
        (
            Exact(of="labl"),
            (
                "the scorer 'exact labl' reads 'labl', and the output has only 'label', 'count', "
                "'share', 'open', 'near', 'rest'. Did you mean 'label'?"
            ),
        ),
        (Fields(names=("label", "near.name")), "reads 'near.name', and 'near' has only 'id'."),
        (
            Fields(names=("label.deep",)),
            "'label' never has 'deep': it is text, which has no members.",
        ),
        (Matches(pattern=".", of="labl"), "the scorer 'regex labl' reads 'labl'"),
        (Near(within=1, of="shore"), "Did you mean 'share'?"),
        (Schema.of_schema({}, "cont"), "Did you mean 'count'?"),
        (holds("inputs.a and output.labl == 1"), "reads 'labl', and the output has only"),
        (holds("output.near['name'] | default('x') == 1"), "'near' has only 'id'."),
    ],
)
def test_a_scorer_of_a_path_that_no_output_has_is_named(scorer: Scorer, told: str) -> None:
    """A-138."""
    assert told in str(why_unreadable(OUTPUT, scorer))
    assert why_unreadable({}, scorer) is None
    assert why_unreadable({"anyOf": [OUTPUT, {"type": "object"}]}, scorer) is None
    assert (
        why_unreadable({**OUTPUT, "properties": {}, "additionalProperties": True}, scorer) is None
    )


@pytest.mark.parametrize(
    "scorer",
    [
        Exact(),
        Fields(),
        Fields(names=("near.id", "open.any.0")),
        Matches(pattern=".", of="rest.0.deep"),
        Near(within=1, of="share"),
        holds("output and output.label != expected.labl and inputs.labl"),
    ],
)
def test_a_scorer_of_what_an_output_may_have_is_no_fault(scorer: Scorer) -> None:
    assert why_unreadable(OUTPUT, scorer) is None


def test_only_a_number_is_near_a_number() -> None:
    assert "\"many\" of 'count', which is no number" in str(
        never({"count": "many"}, Near(within=1, of="count"))
    )
    assert "expects a number of 'near', which can only be object" in str(
        never({"near": 3}, Near(within=1, of="near"))
    )
    assert never({"count": 2.5}, Near(within=1, of="count")) is None
    assert never({"count": "2.5"}, Near(within=1, of="count"), is_text=True) is None
    assert never({"label": 3}, Near(within=1, of="label")) is None  # a text may write a number


def test_paths_follow_references_and_lists() -> None:
    schema: JsonSchema = {
        "$defs": {
            "item": {"type": "object", "properties": {"n": {}}, "additionalProperties": False}
        },
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
    }
    assert why_unreadable(schema, Exact(of="items.0.n")) is None
    assert "'items.0' has only 'n'." in str(why_unreadable(schema, Exact(of="items.0.m")))
    assert "whose items have numbers" in str(why_unreadable(schema, Exact(of="items.first")))


@pytest.mark.parametrize("path", ["a.b", "c.d.e", "c.f"])
def test_a_key_may_have_dots(path: str) -> None:
    """A-137."""
    plain: JsonSchema = {"type": "integer"}
    inner: JsonSchema = {
        "type": "object",
        "properties": {"d.e": plain, "f": plain},
        "additionalProperties": False,
    }
    schema: JsonSchema = {
        "type": "object",
        "properties": {"a.b": plain, "c": inner},
        "additionalProperties": False,
    }
    for scorer in (Exact(of=path), Fields(names=(path,)), Matches(pattern=".", of=path)):
        assert why_unreadable(schema, scorer) is None
    wanted: JsonValue = {"a.b": "x", "c": {"d.e": "x", "f": "x"}}
    assert "can only be integer" in str(never(wanted, Exact(of=path), schema=schema))


def test_paths_lead_into_the_output_as_far_as_it_is_known() -> None:
    inner: JsonValue = {"near": {"id": 7, "name": 1}}
    assert "'near.id'" in str(never(inner, Fields(names=("near.id",))))
    assert "'near.name'" in str(never(inner, Fields(names=("near.name",))))
    assert "'near.id'" in str(never(inner, Exact(of="near.id")))
    assert never({"open": {"deep": 1}}, Fields(names=("open.deep",))) is None
    assert never(inner, Schema.of_schema({}, "")) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["bug", "3", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["label", "count", "share", "open", "rest"]), inner)
    ),
    max_leaves=5,
)
VALID = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(["bug", "question"]),
        "count": st.integers(-9, 9),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "open": st.dictionaries(st.text(max_size=3), JSON, max_size=2),
        "near": st.fixed_dictionaries({"id": st.text(max_size=3)}),
        "rest": JSON,
    },
)


@given(output=VALID)
def test_an_output_that_fits_the_schema_is_always_possible(output: JsonValue) -> None:
    assert never(output) is None
    assert never(output, Exact()) is None
