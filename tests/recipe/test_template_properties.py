"""Whatever stands in braces: a template error, an evaluation error, or JSON; and soon."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minions.data.json_values import JsonValue, dumps
from minions.recipe.expressions.filters import FILTERS, TESTS
from minions.recipe.expressions.template import compile_condition, compile_template
from minions.recipe.expressions.values import EvaluationError, MissingValueError, TemplateError

SCOPE: dict[str, JsonValue] = {
    "a": [1, "x", None, 1.5, True, {"k": "v"}],
    "b": {"c": "text", "d": [[1, 2], [3]], "e": {}},
    "s": "x" * 1_000,
    "n": 10**15,
    "steps": {"one": {"status": "completed", "output": 1}},
}

atoms = st.sampled_from(
    [
        *("a", "b", "b.c", "b.d[0]", "a[0]", "a[5].k", "s", "n", "steps.one.output", "missing.x"),
        *("0", "1", "7", "99999999999999999999", "1.5", "1e308", "''", "'x'", "'{{'", "true"),
        *("null", "[]", "{}", "[1, 'x', null]", "{'k': 1}", "-1", "b['e']"),
    ]
)
operators = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in"]
)
filters = st.sampled_from([*FILTERS, "default", "no_such_filter"])
tests = st.sampled_from([*TESTS, "defined", "undefined"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(inner, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, filters).map(" | ".join),
        st.tuples(inner, filters, arguments).map(lambda p: f"{p[0]} | {p[1]}({p[2]})"),
        st.tuples(inner, tests).map(" is ".join),
        st.tuples(inner, tests, arguments).map(lambda p: f"{p[0]} is not {p[1]}({p[2]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(inner, inner).map(lambda p: f"[{p[0]}, {p[1]}]"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]})[{p[1]}]"),
        inner.map("not {}".format),
        inner.map("-{}".format),
    )


expressions = st.recursive(atoms, _larger, max_leaves=12)


@settings(deadline=10_000)
@given(expressions)
def test_every_expression_is_refused_or_gives_json_soon(expression: str) -> None:
    for source in (f"{{{{ {expression} }}}}", f"<{{{{ {expression} }}}}>"):
        try:
            value = compile_template(source).render(SCOPE)
        except (TemplateError, EvaluationError, MissingValueError):
            continue
        dumps(value)
        assert source[0] == "{" or isinstance(value, str)


@settings(deadline=10_000)
@given(expressions)
def test_every_condition_is_refused_or_says_yes_or_no(expression: str) -> None:
    try:
        answer = compile_condition(expression).holds(SCOPE)
    except (TemplateError, EvaluationError, MissingValueError):
        return
    assert answer in (True, False)


@settings(deadline=10_000)
@given(st.lists(st.sampled_from(["~ s", "* 9", "+ a"]), min_size=20, max_size=120), filters)
def test_what_grows_is_stopped(parts: list[str], name: str) -> None:
    growing = "|replace('x', 'xxxxxxxxxx')" * 20
    for expression in (
        f"s {' '.join(parts)}",
        f"s{growing}",
        f"s{growing}|{name}",
        f"[s{growing}]",
    ):
        try:
            dumps(compile_template(f"{{{{ {expression} }}}}").render(SCOPE))
        except (TemplateError, EvaluationError, MissingValueError):
            continue


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=10_000)
@given(value=json_values, path=st.lists(st.integers(0, 3) | st.text(max_size=5), max_size=4))
def test_any_path_gives_the_native_value(value: JsonValue, path: list[int | str]) -> None:
    scope: JsonValue = value
    for part in reversed(path):
        scope = [None] * part + [scope] if isinstance(part, int) else {part: scope}
    text = "".join(f"[{part}]" if isinstance(part, int) else f"[{_quoted(part)}]" for part in path)
    assert compile_template(f"{{{{ root{text} }}}}").render({"root": scope}) is value


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@settings(deadline=10_000)
@given(json_values)
def test_what_was_rendered_is_not_rendered_again(value: JsonValue) -> None:
    nested: JsonValue = {"x": value, "evil": "{{ secret }}"}
    rendered = compile_template({"a": ["{{ v }}", "-{{ v.evil }}-"]}).render({"v": nested})
    assert rendered == {"a": [nested, "-{{ secret }}-"]}
