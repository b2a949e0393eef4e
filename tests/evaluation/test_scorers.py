"""What scorers say of outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue, dumps
from minions.evaluation.cases import NOT_GIVEN, Case
from minions.evaluation.scorers import Exact, Fields, Near, Scorer, is_same, value_at
from minions.evaluation.suite_file import read_suite_text

values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def case(expected: JsonValue, *, is_text: bool = False, **inputs: JsonValue) -> Case:
    return Case(index=0, name="c", inputs=inputs, expected=expected, is_text=is_text)


def scorer(text: str) -> Scorer:
    suite = read_suite_text(f"scorers:\n  - {text}\n", "s.eval.yaml", Path())
    (found,) = suite.scorers
    assert isinstance(found, Scorer)
    return found


@given(values, values)
def test_values_are_the_same_where_their_json_is(one: JsonValue, other: JsonValue) -> None:
    assert is_same(one, one)
    assert is_same(one, other) == (dumps(one) == dumps(other))


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("true", True, True),
        ("yes", True, True),
        ("no", True, False),
        ("1", True, False),
        ("2.50", 2.5, True),
        ("2", "2", True),
        ("[1, 2]", [1, 2], True),
        ("", None, False),
        ("null", None, True),
    ],
)
def test_a_text_of_csv_stands_for_the_value_that_it_writes(
    text: str, value: JsonValue, *, expected: bool
) -> None:
    assert is_same(value, text, is_text=True) == expected


def test_numbers_are_equal_by_value_and_true_is_no_number() -> None:
    assert is_same(1, 1.0)
    assert not is_same(True, 1)
    assert not is_same(0, False)
    assert not is_same("1", 1)


def test_fields_give_the_share_that_is_right_and_say_what_is_not() -> None:
    wanted = case({"a": 1, "b": {"c": "x"}})
    found = Fields().score(wanted, {"a": 1, "b": {"c": "y"}, "more": 0})
    assert (found.value, found.is_passed) == (0.5, False)
    assert found.reason == 'b: {"c":"y"} is not {"c":"x"}'
    assert Fields(names=("b.c",)).score(wanted, {"b": {"c": "x"}}).is_passed
    assert Fields().score(case("x"), "x").is_passed
    assert not Fields().score(wanted, None).is_passed


def test_an_empty_object_expects_an_empty_object() -> None:
    found = Fields().score(case({}), {"a": 1})
    assert (found.is_passed, found.reason) == (False, '{"a":1} is not {}')
    assert Fields().score(case({}), {}).is_passed


def test_exact_is_the_whole_or_a_value_below_a_path() -> None:
    wanted = case({"items": [{"n": 1}, {"n": 2}]})
    assert Exact().score(wanted, {"items": [{"n": 1}, {"n": 2}]}).is_passed
    assert not Exact().score(wanted, {"items": [{"n": 1}, {"n": 2}], "x": 0}).is_passed
    assert Exact(of="items.1.n").score(wanted, {"items": [0, {"n": 2}]}).is_passed


def test_a_value_that_is_missing_is_not_null() -> None:
    """A-138."""
    assert value_at({"a": [1]}, "a.7") is NOT_GIVEN
    assert value_at({"a": None}, "a") is None
    assert value_at({"a": None}, "a.b") is NOT_GIVEN
    assert value_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert value_at({"x": {"a.b": 1}}, "x.a.b") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{exact: , of: nosuch}", "neither the output nor what is expected has 'nosuch'"),
        ("{exact: , of: total.deep}", "neither the output nor what is expected has 'total.deep'"),
        ("{exact: , of: order}", "the output has no 'order', and not \"A-1\""),
        ("{exact: , of: more}", "what is expected does not say 'more'"),
        ("{fields: [total, nosuch]}", "nosuch: neither the output nor what is expected has"),
        ("{fields: [order]}", "order: the output has no 'order'"),
        ("{regex: '.', of: nosuch}", "the output has no 'nosuch'"),
        ("{regex: '.', of: none}", "it is null, which is no text"),
        ("{number: 1, of: nosuch}", "the output has no 'nosuch'"),
        ("{number: 1, of: more}", "what is expected does not say 'more'"),
        ("{schema: {}, of: nosuch}", "the output has no 'nosuch'"),
    ],
)
def test_what_is_missing_passes_no_scorer(text: str, reason: str) -> None:
    """A-138."""
    output: JsonValue = {"total": 10, "more": 1, "none": None}
    found = scorer(text).score(case({"total": 10, "order": "A-1"}), output)
    assert (found.is_passed, reason in str(found.reason)) == (False, True), found.reason


def test_a_null_that_is_expected_may_be_missing() -> None:
    wanted = case({"a": None})
    assert Exact(of="a").score(wanted, {}).is_passed
    assert Fields().score(wanted, {"a": None}).is_passed
    assert not Fields().score(wanted, {"a": 0}).is_passed


@pytest.mark.parametrize(
    ("text", "output", "is_passed"),
    [
        ("{regex: '^A-\\d+$', of: order}", {"order": "A-17"}, True),
        ("{regex: '^A-\\d+$', of: order}", {"order": "B"}, False),
        ("{regex: '12'}", {"n": 123}, True),
        ("{number: 0.5, of: total}", {"total": 10.4}, True),
        ("{number: 0.5, of: total}", {"total": 10.6}, False),
        ("{number: 5%, of: total}", {"total": "10.5"}, True),
        ("{number: 5%, of: total}", {"total": 10.51}, False),
        ("{number: 5%, of: total}", {"total": "many"}, False),
        ("{schema: {type: object, required: [total]}}", {"total": 1}, True),
        ("{schema: {type: integer}, of: total}", {"total": "x"}, False),
        ("{schema: {total: integer}}", {"total": 1}, True),
        ("{schema: {total: integer, sum: integer}}", {"total": 1}, False),
        ("{number: 1, of: order}", {"order": "A-1"}, False),
        ("{holds: 'output.total > expected.total - inputs.slack'}", {"total": 9}, True),
        ("{holds: 'output.total > expected.total'}", {"total": 9}, False),
        ("{holds: 'output.missing > 1'}", {"total": 9}, False),
    ],
)
def test_scorers_of_a_file_score(text: str, output: JsonValue, *, is_passed: bool) -> None:
    found = scorer(text).score(case({"total": 10, "order": "A-1"}, slack=2), output)
    assert found.is_passed == is_passed
    assert (found.reason is None) == is_passed


def test_a_number_that_is_none_is_never_near() -> None:
    near = Near(within=float("1e300"))
    assert not near.score(case(True), 1).is_passed
    assert not near.score(case(1), None).is_passed


def test_texts_that_write_numbers_are_near() -> None:
    """As the recorded output of a recipe that gives a text is."""
    assert Near(within=1).score(case("5"), "5.5").is_passed


def test_scorers_of_one_kind_have_names_of_their_own() -> None:
    """A-137."""
    text = """scorers:
  - {regex: a, of: x}
  - {regex: b, of: x}
  - {regex: c, of: x}
  - {schema: {x: string}}
  - {schema: {type: object}}
  - {holds: '%s > 1'}
  - {holds: '%s > 2'}
""" % ((f"output.{'long' * 30}",) * 2)
    names = [each.name for each in read_suite_text(text, "s.eval.yaml", Path()).scorers]
    assert names[:5] == ["regex x", "regex x (2)", "regex x (3)", "schema", "schema (2)"]
    assert len(set(names)) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scorers: [exactly]", "there is no scorer 'exactly'"),
        ("scorers: [{fields: [a], exact: true}]", "several kinds: fields, exact"),
        ("scorers: [{of: a}]", "none of its kinds"),
        ("scorers: [{regex: '(a+'}]", "not a regular expression"),
        ("scorers: [{regex: '('}]", "not a regular expression"),
        ("scorers: [{number: -1}]", "a number from 0"),
        ("scorers: [{number: 5x}]", "a number from 0"),
        ("scorers: [{holds: 'output >'}]", "expression"),
        ("scorers: [{holds: 'outptu.a == 1'}]", "unknown name 'outptu'"),
        ("scorers: [{schema: {type: nothing}}]", "nothing"),
        ("scorers: [{graded: ' '}]", "rubric"),
        ("scorers: [exact, exact]", "the scorer 'exact' is there twice"),
        ("scorers: [{regex: a}, {regex: a}]", "the scorer 'regex' is there twice"),
        ("scorers: [{schema: {n: intger}}]", "intger"),
        ("scorers: [[]]", "a scorer is a word or a mapping"),
        ("cases: [{a: 1}]\ndata: x.jsonl", "stated twice"),
        ("cases: [3]", "a case is a mapping"),
        ("sampels: 3", "unknown key 'sampels'"),
        ("samples: 0", "1"),
        ("at_least: 90", "1"),
    ],
)
def test_a_fault_of_a_suite_is_told_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_suite_text(text, "s.eval.yaml", Path())
    (fault,) = caught.value.faults
    assert expected in f"{fault.message} {fault.label} {fault.help}"
    assert (fault.file, fault.line >= 1) == ("s.eval.yaml", True)
