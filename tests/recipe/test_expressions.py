"""Templates and conditions: native values, what is missing, what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue
from minions.recipe.expressions.template import compile_condition, compile_template
from minions.recipe.expressions.values import (
    EvaluationError,
    MissingValueError,
    Reference,
    TemplateError,
)

SCOPE: dict[str, JsonValue] = {
    "a": {"b": 1.0, "items": [1, 2], "x y": 3, "keys": "mine", "0": "zero"},
    "n": 3,
    "xs": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}],
    "t": "abc",
    "no": None,
    "empty": {"zero": 0, "false": False, "text": "", "list": [], "mapping": {}},
}


def value_of(expression: str) -> JsonValue:
    return compile_template(f"{{{{ {expression} }}}}").render(SCOPE)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a.b", 1.0),
        ("a.items", [1, 2]),
        ("a.keys", "mine"),
        ("a.0", "zero"),
        ("a['x y']", 3),
        ('a["b"]', 1.0),
        ("xs.0.n", 1),
        ("xs[0].n", 1),
        ("xs[-1]['n']", 2),
        ("xs[n - 3].t", "x"),
        ("no", None),
        ("empty.zero", 0),
        ("empty.false", False),
        ("empty.text", ""),
        ("empty.list", []),
        ("empty.mapping", {}),
    ],
)
def test_a_path_gives_the_native_value(expression: str, expected: JsonValue) -> None:
    value = value_of(expression)
    assert value == expected
    assert type(value) is type(expected)


def test_a_path_gives_the_very_object_also_with_blanks_around() -> None:
    assert compile_template("\n {{ xs }}\n").render(SCOPE) is SCOPE["xs"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("xs|length", 2),
        ("xs|map(attribute='n')|sum", 3),
        ("xs|map(attribute='t')|join('-')", "x-y"),
        ("xs|selectattr('n', 'gt', 1)|list", [{"n": 2, "t": "y"}]),
        ("[3, 1, 2]|sort(reverse=true)", [3, 2, 1]),
        ("[1, 1.0, 2]|unique|length", 3),
        ("[[1, 2], [[3]], 4, []]|flatten", [1, 2, [3], 4]),
        ("xs|tojson", '[{"n":1,"t":"x"},{"n":2,"t":"y"}]'),
        ("t|tojson", '"abc"'),
        ("'[1, 2.5]'|fromjson", [1, 2.5]),
        ("xs|tojson|fromjson == xs", True),
        (
            "[{'k': 'b', 'n': 1}, {'k': 'a', 'n': 2}, {'k': 'b', 'n': 3}]|groupby('k')",
            [
                {"grouper": "a", "list": [{"k": "a", "n": 2}]},
                {"grouper": "b", "list": [{"k": "b", "n": 1}, {"k": "b", "n": 3}]},
            ],
        ),
        ("[]|groupby('k')", []),
        ("t|upper|lower|title", "Abc"),
        ("t|replace('b', '--')", "a--c"),
        ("'a,b'|split(',')", ["a", "b"]),
        ("'1e2'|float", 100.0),
        ("' 7 '|int", 7),
        ("t|truncate(2)", "a…"),
        ("'x\ny'|indent(2)", "x\n  y"),
        ("a.none_there|default(4)", 4),
        ("a.none.of.these|default('x')", "x"),
        ("nowhere|d", ""),
        ("no|default(4)", None),
        ("no|default(4, true)", 4),
        ("[]|first|default('none')", "none"),
        ("1 + 1.0", 2.0),
        ("n * 2 + 1", 7),
        ("(n + 1) * 2", 8),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("7 / 2", 3.5),
        ("-n", -3),
        ("-n|abs", -3),
        ("t ~ 1.0 ~ no", "abc1.0null"),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", [1, 2]),
        ("1 < n <= 3", True),
        ("n == 3 and t == 'abc'", True),
        ("n == 4 or t", "abc"),
        ("not n == 4", True),
        ("true == 1", False),
        ("1 == 1.0", True),
        ("n in [1, 3]", True),
        ("'b' in t", True),
        ("'b' in a", True),
        ("n not in [3]", False),
        ("not n in [3]", False),
        ("t if n > 2 else nowhere", "abc"),
        ("nowhere if n > 5 else t", "abc"),
        ("a is defined", True),
        ("a.q is defined", False),
        ("a.q is not defined", True),
        ("a.q is undefined", True),
        ("no is none and n is number and t is string", True),
        ("n is divisibleby 3", True),
        ("n is not even", True),
        ("{'a': n, 'b': [1, true, null]}", {"a": 3, "b": [1, True, None]}),
        ("{'a': {'b': n}}", {"a": {"b": 3}}),
        ("t[0:2]", "ab"),
        ("[1, 2, 3][1:]", [2, 3]),
        ("'}}' ~ '{{'", "}}{{"),
        (r"'it\'s \u00e9\n'", "it's é\n"),
    ],
)
def test_expressions(expression: str, expected: JsonValue) -> None:
    value = value_of(expression)
    assert value == expected
    assert type(value) is type(expected)


def test_inside_text_a_value_is_its_string_form() -> None:
    text = "{{ t }}, {{ no }}, {{ empty.false }}, {{ a.b }}, {{ a.items }}, {{ empty.text }}."
    assert compile_template(text).render(SCOPE) == "abc, null, false, 1.0, [1,2], ."


def test_braces_can_be_written() -> None:
    assert compile_template("use {{ '{{' }} x {{ '}}' }}").render({}) == "use {{ x }}"


def test_what_was_rendered_is_not_rendered_again() -> None:
    scope: dict[str, JsonValue] = {"x": "{{ y }}", "y": "secret"}
    assert compile_template("{{ x }}").render(scope) == "{{ y }}"
    assert compile_template("<{{ x }}>").render(scope) == "<{{ y }}>"


def test_mappings_and_lists_are_rendered_through_and_keys_are_left() -> None:
    template = compile_template({"{{ k }}": ["{{ n }}", {"deep": "n={{ n }}"}, 7, None]})
    assert template.render(SCOPE) == {"{{ k }}": [3, {"deep": "n=3"}, 7, None]}
    assert not template.is_constant


def test_a_template_without_expressions_is_constant() -> None:
    value: JsonValue = {"a": ["plain", 1, None], "b": "{ single }"}
    template = compile_template(value)
    assert (template.is_constant, template.references, template.render({})) == (True, (), value)
    assert not compile_template("{{ 1 }}").is_constant


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("{{ a.b }} {{ c[0]['d e'].f }}", [("a", "b"), ("c", 0, "d e", "f")]),
        ("{{ a.0.1 }}", [("a", 0, 1)]),
        ("{{ a[b.c].d }}", [("a",), ("b", "c")]),
        ("{{ '{{ q }}' ~ r }}", [("r",)]),
        ("{{ [[a, [b]], {'k': c}] }}", [("a",), ("b",), ("c",)]),
        ("{{ x if y.z else w }}", [("x",), ("y", "z"), ("w",)]),
        ("{{ a|map(attribute='n')|join(s) }}", [("a",), ("s",)]),
        ("{{ a is in(b) }}", [("a",), ("b",)]),
    ],
)
def test_references_are_known_beforehand(text: str, paths: list[tuple[str | int, ...]]) -> None:
    assert [reference.path for reference in compile_template(text).references] == paths


def test_a_reference_knows_its_text_place_and_guard() -> None:
    references = compile_template("x {{ a['b'].c|default(d) }} {{ e is defined }}").references
    assert references == (
        Reference(path=("a", "b", "c"), text="a['b'].c", is_guarded=True, offset=5),
        Reference(path=("d",), text="d", is_guarded=True, offset=22),
        Reference(path=("e",), text="e", is_guarded=True, offset=31),
    )


@pytest.mark.parametrize(
    "expression",
    ["a is defined and a.x", "a is not defined or a.x", "steps.a.status == 'completed' and a.x"],
)
def test_a_test_for_a_step_guards_what_stands_behind_it(expression: str) -> None:
    *_, tested, other = compile_template(f"{{{{ {expression} and b }}}}").references
    assert (tested.path, tested.is_guarded, tested.is_conditional) == (("a", "x"), True, True)
    assert (other.path, other.is_guarded, other.is_conditional) == (("b",), False, True)


@pytest.mark.parametrize(
    ("expression", "path", "resolved", "nearest"),
    [
        ("a.itmes", "a.itmes", "a", "items"),
        ("a.items[5]", "a.items[5]", "a.items", None),
        ("nowhere.at.all", "nowhere.at.all", "", None),
        ("no.x", "no.x", "no", None),
        ("t.upper", "t.upper", "t", None),
        ("t[0]", "t[0]", "t", None),
        ("xs[1].m", "xs[1].m", "xs[1]", None),
        ("xs|map(attribute='m')", "item.m", "item", None),
        ("a[t]", "a.abc", "a", None),
    ],
)
def test_a_missing_leaf_says_how_far_it_went(
    expression: str, path: str, resolved: str, nearest: str | None
) -> None:
    with pytest.raises(MissingValueError) as caught:
        value_of(expression)
    error = caught.value
    assert (error.error_code, error.path, error.resolved) == ("missing-value", path, resolved)
    assert error.nearest == nearest
    assert path in error.message


@pytest.mark.parametrize(
    "expression",
    [
        "1 / 0",
        "7 % 0",
        "t + 1",
        "[1] * 100000000",
        "t * 1000000000",
        "n < t",
        "-t",
        "n|length",
        "n in 3",
        "t|int",
        "'1e999'|float",
        "1e308 * 10",
        "a[xs]",
        "t['a':'b']",
        "n is divisibleby 0",
        "[3, 'x']|sort",
        "n|round(99)",
        "'[1'|fromjson",
        "'NaN'|fromjson",
        "n|fromjson",
        "[{'k': [1]}]|groupby('k')",
        "[{'k': 1}, {'k': 'a'}]|groupby('k')",
    ],
)
def test_values_of_the_wrong_kind_are_evaluation_errors(expression: str) -> None:
    with pytest.raises(EvaluationError):
        value_of(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "big|replace('', big)",
        "big ~ big ~ big",
        "[big, big]|join(big)",
        "lines|indent(80)",
        "[big, big, big]|tojson",
    ],
)
def test_growth_is_stopped(expression: str) -> None:
    scope: dict[str, JsonValue] = {"big": "x" * 500_000, "lines": "x\n" * 100_000}
    with pytest.raises(EvaluationError, match="at most"):
        compile_template(f"{{{{ {expression} }}}}").render(scope)
    with pytest.raises(EvaluationError, match="at most"):
        compile_template("{{ big }}" * 3).render(scope)


def test_a_whole_number_grows_no_larger_than_a_float_can_be() -> None:
    largest = 2**1024 - 1
    scope: dict[str, JsonValue] = {"half": 2**1023, "rest": 2**1023 - 1}
    assert compile_template("{{ half + rest }}").render(scope) == largest
    for expression in ("half + rest + 1", "half * 2", "half * half", "-half - half"):
        with pytest.raises(EvaluationError, match="too large for a number"):
            compile_template(f"{{{{ {expression} }}}}").render(scope)


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("a {{ b", "'{{' is not closed", 2),
        ("a }} b", "'}}' closes nothing", 2),
        ("{% if x %}", "statements are not supported", 0),
        ("x {# y #}", "comments are not supported", 2),
        ("{{ range(1) }}", "calls are not supported", 8),
        ("{{ a.keys() }}", "calls are not supported", 9),
        ("{{ (a)(1) }}", "calls are not supported", 6),
        ("{{ t|format(1) }}", "there is no filter 'format'", 5),
        ("{{ t is odder }}", "there is no test 'odder'", 8),
        ("{{ t|join(1, 2, 3, 4) }}", "'join' cannot be used so", 5),
        ("{{ t|default(x=1) }}", "'default' cannot be used so", 5),
        ("{{ }}", "an expression is missing", 2),
        ("{{ 1 + }}", "expected a value", 7),
        ("{{ a b }}", "expected an operator", 5),
        ("{{ a = 1 }}", "'=' cannot assign", 5),
        ("{{ 2 ** 3 }}", "no operator '**'", 5),
        ("{{ a if b }}", "an 'if' needs its 'else'", 10),
        ("{{ 'abc }}", "is not closed", 3),
        ("{{ a; b }}", "has no meaning", 4),
        ("{{- a }}", "'{{-' is not supported", 0),
        ("{{ '\\q' }}", "the escape", 4),
        ("{{ " + "9" * 400 + " }}", "digits", 3),
        ("{{ a. 2.5 }}", "expected a name or an index after '.'", 6),
        ("{{ a[0]. 1e3 }}", "expected a name or an index after '.'", 9),
        ("{{ " + "(" * 100 + "1" + ")" * 100 + " }}", "nested deeper", 33),
        ("{{ " + "a + " * 300 + "a }}", "400 words", 2),
    ],
)
def test_what_cannot_be_read_is_placed(text: str, message: str, offset: int) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template(text)
    assert message in caught.value.message
    assert (caught.value.error_code, caught.value.offset) == ("bad-template", offset)


def test_the_longest_expressions_are_evaluated_without_exhausting_the_stack() -> None:
    assert value_of("+".join(["1"] * 200)) == 200
    assert value_of("t" + "|upper" * 190) == "ABC"
    assert value_of("not " * 399 + "n") is False


def test_a_condition_is_one_expression_with_or_without_braces() -> None:
    assert compile_condition("n > 2").holds(SCOPE)
    assert compile_condition("{{ n > 2 }}").holds(SCOPE)
    assert compile_condition("n in [3] and '{' not in t").holds(SCOPE)
    assert not compile_condition("empty.list").holds(SCOPE)
    assert compile_condition("{{ steps.a.status == 'ok' }}").references == (
        Reference(path=("steps", "a", "status"), text="steps.a.status", offset=3),
    )
    with pytest.raises(MissingValueError):
        compile_condition("a.q").holds(SCOPE)
    with pytest.raises(TemplateError, match="a condition is one expression"):
        compile_condition("{{ a }} and {{ n }}")
    with pytest.raises(TemplateError, match="missing"):
        compile_condition("")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_any_value_comes_through_a_path_as_it_is(value: JsonValue) -> None:
    assert compile_template("{{ x }}").render({"x": value}) is value
    assert compile_template("{{ x.y[0] }}").render({"x": {"y": [value]}}) is value


WORDS = st.sampled_from(
    """
    {{ }} {% {# #} a b.c [0] ( ) [ ] { } | is not in if else and or + - * / ~ == < . , : ' "
    default join length map defined 1 0.5 'x' true null \\ \n
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)


@given(
    st.text()
    | st.lists(WORDS, max_size=25).map(" ".join)
    | st.lists(WORDS, max_size=12).map("".join)
)
def test_any_text_compiles_or_is_a_template_error(text: str) -> None:
    for source in (text, "{{ " + text + " }}"):
        try:
            template = compile_template(source)
        except TemplateError as error:
            offset = error.offset
        else:
            offset = 0
            with contextlib.suppress(EvaluationError):
                template.render({"a": [1, "x", None], "b": {"c": "text"}})
        assert 0 <= offset <= len(source)
