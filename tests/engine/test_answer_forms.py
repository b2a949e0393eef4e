"""Forms of questions: what is typed for their fields, and the examples that are shown."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.engine.calls.answer_forms import example_of, fields_of, typed_fields
from minions.engine.calls.resume_decisions import read_answer

FORM: JsonSchema = {
    "type": "object",
    "properties": {
        "town": {"type": "string"},
        "count": {"type": "integer", "default": 2},
        "gift": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"anyOf": [{"const": "s"}, {"const": "l"}]}},
        "mood": {"type": "string", "enum": ["a", "b"], "enumNames": ["glad", "sad"]},
    },
    "required": ["town", "count"],
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("town=Oslo", {"town": "Oslo", "count": 2}),
        ("town='New York' count=5", {"town": "New York", "count": 5}),
        ("town=New York", {"town": "New York", "count": 2}),  # a shell has taken the quotes
        ("town=5 gift=no", {"town": "5", "gift": False, "count": 2}),
        ("town=O sizes=s,l mood=sad", {"town": "O", "sizes": ["s", "l"], "mood": "b", "count": 2}),
        ('{"town": "Oslo"}', {"town": "Oslo", "count": 2}),
        ('{"town": "Oslo", "count": 1}', {"town": "Oslo", "count": 1}),
    ],
)
def test_an_answer_to_a_form_is_json_or_fields(text: str, value: JsonValue) -> None:
    """A-135."""
    assert read_answer(text, FORM) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("count=5", "'town' is a required property"),
        ("town=Oslo count=many", "$.count: 'many' is not of type 'integer'"),
        ("town=Oslo mood=c", "$.mood: 'c' is not one of a, b"),
        ("town=Oslo cuont=9", "there is no field 'cuont'. Did you mean 'count'? Fields are town,"),
        ("town=a=b c=d", "A value that has a = itself is given in JSON."),
        ("town=New York count=5", "is not of type 'object'"),  # whose words are they?
        ("village=Oslo", "It takes JSON, or fields as in `town=TEXT count=2`: town (text), count"),
    ],
)
def test_what_does_not_fit_a_form_is_told_with_its_fields(text: str, words: str) -> None:
    """A-135."""
    with pytest.raises(UsageError) as raised:
        read_answer(text, FORM)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "form",
    [
        None,
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {f"a{n}": {"type": "string"} for n in range(51)}},
    ],
)
def test_only_an_object_of_simple_values_has_fields(form: JsonSchema | None) -> None:
    """A-135."""
    assert (fields_of(form), typed_fields("a=b", form)) == ((), None)


_NAMES = st.from_regex(r"[a-z][a-z_ ]{0,8}", fullmatch=True).map(lambda name: name.replace(" ", ""))
_FIELDS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number", "default": 0.5},
        {"type": "boolean"},
        {"type": "string", "enum": ["it's", "a b"]},
        {"type": "string", "default": "x y"},
        {"type": "array", "items": {"enum": ["one", "two"]}},
    ]
)


@given(st.dictionaries(_NAMES, _FIELDS, min_size=1, max_size=5), st.booleans())
def test_the_example_of_a_form_is_an_answer_to_it(
    properties: dict[str, JsonValue], is_required: bool
) -> None:
    """A-135: whoever pastes the printed command into a shell gives an answer."""
    required: list[JsonValue] = [*properties] if is_required else []
    form: JsonSchema = {"type": "object", "properties": properties, "required": required}
    words = shlex.split(example_of(form))
    text = words[0] if len(words) == 1 else shlex.join(words)
    found = read_answer(text, form)
    assert isinstance(found, dict)
    assert set(found) <= set(properties)


@pytest.mark.parametrize("kind", ["integer", "number", "boolean"])
def test_the_example_of_a_single_value_is_an_answer(kind: str) -> None:
    """A-135."""
    form: JsonSchema = {"type": kind}
    read_answer(example_of(form), form)
