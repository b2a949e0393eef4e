"""What filters and operators take, and what may be missing or null where it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import fake_tool
from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.expressions.template import compile_template
from minions.recipe.expressions.values import EvaluationError, MissingValueError
from minions.recipe.reading.load import check_recipe_text

CATALOG = Catalog(
    tools={
        "take": fake_tool(
            "take", parameters={"type": "object", "properties": {"text": {"type": "string"}}}
        ).spec
    }
)
HEAD = """\
id: r
inputs: {limit: {type: integer, default: 3}, hint: {type: [string, 'null'], default: null}}
steps:
  - id: a
    goal: Sort
    output:
      kind: bug | feature
      score: 0..10
      tags: [string]
      note?: string
      extra: string | null
      where?: {path: string}
      rows: [{name: string, size: integer, owner?: string}]
  - {id: each, loop: '{{ a.tags }}', set: {name: '{{ loop.item }}'}, on_item_error: collect}
  - {id: holes, loop: '{{ a.tags }}', goal: 'Rate {{ loop.item }}', output: {n: integer},
     on_item_error: collect}
"""


def found(steps: str, head: str = HEAD) -> list[Fault]:
    return list(check_recipe_text(f"{head}{steps}", "r.yaml", CATALOG).faults)


def of(expression: str, keys: str = "") -> list[tuple[str, str]]:
    """Code and message of each fault of a step that reads the expression."""
    faults = found(f'  - {{id: x, {keys}set: {{v: "{{{{ {expression} }}}}"}}}}\n')
    return [(each.code, each.message) for each in faults]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a.tags | upper", "'upper' takes text, but 'a.tags' is a list of text"),
        ("a.score | join", "'join' takes a list or a mapping or text, but 'a.score' is a whole"),
        ("(a.kind | sum) | default(0, true)", "'sum' takes "),
        ("a.kind | round", "'round' takes a whole number or a number, but 'a.kind' is text"),
        ("a.kind | truncate('x')", "an argument of 'truncate' takes a whole number or null, but"),
        ("a.tags | keys", "'keys' takes a mapping, but 'a.tags' is a list of text"),
        ("a.rows | sum", "'sum' takes a whole number or a number as an item, but 'a.rows' is"),
        ("a.rows | sum(attribute='name')", "'sum' takes a whole number or a number as an item"),
        ("a.rows | sort", "as an item, but 'a.rows' is a list of {name, size, owner}"),
        ("a.rows | map('upper') | list", "'upper' takes text as an item, but 'a.rows'"),
        ("a.kind + 1", "'+' takes two numbers, two texts or two lists: 'a.kind' is text, but 1"),
        ("a.score - a.kind", "'-' takes numbers, but 'a.kind' is text"),
        ("-a.kind", "'-' takes a whole number or a number, but 'a.kind' is text"),
        ("a.score > 'x'", "'>' takes two numbers or two texts: 'a.score' is a whole number, but"),
        ("'x' in a.score", "'in' takes a list or a mapping or text, but 'a.score' is a whole"),
        ("a.score[0:2]", "a slice takes a list or text, but 'a.score' is a whole number"),
        ("a.kind is even", "'even' takes a whole number or a number, but 'a.kind' is text"),
        ("a.score == 'high'", "this is never equal: \"high\" is text, but 'a.score' is a whole"),
        ("a.rows[0].size + a.rows[0].name", "'a.rows[0].size' is a whole number, but"),
        ("(a.kind ~ 'x') - 1", "'-' takes numbers, but this value is text"),
        ("(a.rows | map(attribute='size') | first) + 'x'", "this value is a whole number, but"),
        ("a.score if a.kind | abs else 1", "'abs' takes a whole number or a number, but 'a.kind'"),
    ],
)
def test_what_a_filter_or_an_operator_cannot_take_is_refused(expression: str, message: str) -> None:
    """A-163."""
    ((code, told),) = of(expression)
    assert code == "type-mismatch"
    assert message in told


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a.note", "'a.note' may be missing: its type does not require it"),
        ("steps.a.output.note", "'steps.a.output.note' may be missing"),
        ("a.where.path", "'a.where' may be missing"),
        ("a.extra | upper", "'a.extra' may be null: 'upper' takes text"),
        ("inputs.hint ~ '' + (inputs.hint | trim)", "'inputs.hint' may be null"),
        ("a.extra < 'x'", "'a.extra' may be null: '<' takes two numbers or two texts"),
        ("a.note if a.extra is defined else ''", "'a.note' may be missing"),
        ("a.rows | map(attribute='owner') | list", "'an item.owner' may be missing"),
        ("(a.rows | first).owner", "'this value.owner' may be missing"),
        ("holes.results[0].n", "'holes.results[0]' may be null"),
        ("holes.results | map(attribute='n') | sum", "'an item' may be null"),
        ("(a.note | default(none)) | upper", "this value may be null: 'upper' takes text"),
        ("a.extra or a.note", "'a.note' may be missing"),
        ("a.extra | default('') | upper", "this value may be null"),
    ],
)
def test_what_may_be_missing_or_null_where_it_is_read_is_told(
    expression: str, message: str
) -> None:
    """A-163: with what to write."""
    ((code, told),) = of(expression)
    assert code == "may-be-missing"
    assert message in told


@pytest.mark.parametrize(
    "expression",
    [
        "a.note | default('')",
        "a.note | default('') | upper",
        "a.extra | default('', true) | upper",
        "a.extra or ''",
        "(a.extra or '') | upper",
        "a.extra | upper if a.extra else ''",
        "a.extra | upper if a.extra != none else ''",
        "'' if a.extra is none else a.extra | upper",
        "a.extra is string and a.extra | upper == 'X'",
        "a.note if a.note is defined else ''",
        "a.note is defined and a.note | upper == 'X'",
        "not (a.note is defined) or a.note == 'x'",
        "a.where is defined and a.where.path == 'x'",
        "a.where.path | default('')",
        "a.extra == none",
        "a.extra ~ ''",
        "a.rows[0].name",
        "a.rows | map(attribute='size') | sum + 1",
        "a.rows | sort(attribute='name') | map(attribute='name') | join(', ')",
        "a.tags + [a.kind]",
        "a.score * 2 + inputs.limit > 3",
        "a.kind == 'bug'",
        "a.score == 1.0",
        "holes.results | select | map(attribute='n') | sum",
        "(inputs.hint | default('x', true)) | length",
    ],
)
def test_a_condition_or_a_default_says_what_stands_there(expression: str) -> None:
    assert of(expression) == []


@pytest.mark.parametrize(
    "condition",
    [
        "a.note is defined",
        "a.note | default('') == 'x'",
        "(a.note | default('')) | length > 0",
        "a.note | default(false)",
        "a.score > 3 and a.note is defined",
        "not (a.score > 3 or a.note is not defined)",
    ],
)
def test_the_condition_of_a_step_narrows_what_it_reads(condition: str) -> None:
    assert of("a.note", f'when: "{{{{ {condition} }}}}", ') == []


@pytest.mark.parametrize(
    "condition",
    ["a.score > 3", "a.note is not defined", "a.note is defined or a.score > 3", "not a.extra"],
)
def test_a_condition_about_something_else_narrows_nothing(condition: str) -> None:
    codes = [code for code, _ in of("a.note", f'when: "{{{{ {condition} }}}}", ')]
    assert codes == ["may-be-missing"]


def test_a_step_that_needs_a_narrowed_one_knows_the_same() -> None:
    steps = (
        '  - {id: b, when: "{{ a.note is defined }}", set: {n: 1}}\n'
        '  - {id: c, depends_on: b, set: {v: "{{ a.note }} {{ b.n }}"}}\n'
    )
    assert found(steps) == []


def test_what_an_earlier_step_has_read_is_told_once() -> None:
    steps = (
        "  - {id: b, set: {n: '{{ a.note }}', m: '{{ a.note }}'}}\n"
        "  - {id: c, set: {v: '{{ a.note }} {{ b.n }}'}}\n"
    )
    ((_, line),) = [(each.code, each.line) for each in found(steps)]
    assert line == HEAD.count("\n") + 1


def test_an_assertion_before_it_makes_sure_of_a_value() -> None:
    steps = (
        '  - {id: sure, assert: ["{{ a.extra != none }}"]}\n'
        "  - {id: c, set: {v: '{{ a.extra | upper }}'}}\n"
    )
    assert found(steps) == []


def test_an_argument_that_takes_no_null_is_told_of_it() -> None:
    faults = found("  - {id: t, tool: take, params: {text: '{{ a.extra }}'}}\n")
    assert [(each.code, each.message) for each in faults if each.code != "write-not-allowed"] == [
        ("may-be-missing", "'a.extra' may be null: 'text' of the tool 'take' takes text")
    ]


def test_a_loop_over_what_may_be_null_is_told_of_it() -> None:
    head = "id: r\ninputs: {rows: {type: [array, 'null'], default: null}}\nsteps:\n"
    faults = found("  - {id: x, loop: '{{ inputs.rows }}', set: {v: 1}}\n", head)
    assert [each.message for each in faults] == [
        "'inputs.rows' may be null: 'loop' goes over a list"
    ]


def test_a_schema_that_requires_nothing_is_counted_not_told() -> None:
    head = """\
id: r
steps:
  - {id: a, goal: Go, output: {type: object, properties: {note: {type: string}}}}
"""
    loaded = check_recipe_text(
        f"{head}  - {{id: x, set: {{v: '{{{{ a.note }}}}'}}}}\n", "r.yaml", CATALOG
    )
    assert loaded.faults == ()
    assert [each.code for each in loaded.unchecked] == ["may-be-missing"]


def test_an_artifact_that_its_step_declares_is_there() -> None:
    text = """\
id: r
steps:
  - {id: judge, goal: Judge it.}
  - {id: done, assert: "{{ steps.judge.artifacts.validation.passed }}"}
"""
    (fault,) = check_recipe_text(text, "r.yaml", CATALOG).faults
    assert "'steps.judge.artifacts.validation' may be null" in fault.message
    declared = text.replace("Judge it.", "Judge it., artifacts: [validation]")
    assert check_recipe_text(declared, "r.yaml", CATALOG).faults == ()


WHILE = """\
id: r
steps:
  - id: d
    while: '{{ CONDITION }}'
    max_iterations: 3
    goal: 'Better than {{ READ }}'
    output: {text: string, score: 0..10}
"""


@pytest.mark.parametrize(
    ("read", "condition", "message"),
    [
        ("loop.last.txt", "d.score < 8", "'loop.last' can never have 'txt': it has no 'txt'"),
        ("loop.attempts[0].sc", "d.score < 8", "'loop.attempts[0]' can never have 'sc'"),
        ("loop.attempts.score", "d.score < 8", "'loop.attempts' can never have 'score': it is a"),
        ("loop.last.text", "d.score < 8", "'loop.last' may be null"),
        ("loop.index | upper", "d.score < 8", "'upper' takes text, but 'loop.index' is a whole"),
        ("1", "loop.last.scor < 8", "'loop.last' can never have 'scor'"),
        ("1", "d.text < 8", "'<' takes two numbers or two texts: 'd.text' is text, but 8 is"),
    ],
)
def test_attempts_have_the_type_of_the_output(read: str, condition: str, message: str) -> None:
    text = WHILE.replace("READ", read).replace("CONDITION", condition)
    (fault,) = check_recipe_text(text, "r.yaml", CATALOG).faults
    assert message in fault.message


@pytest.mark.parametrize(
    "read",
    [
        "loop.last.text if loop.last else ''",
        "loop.last.text | default('')",
        "loop.attempts[0].text",
    ],
)
def test_the_last_attempt_is_there_after_the_first(read: str) -> None:
    text = WHILE.replace("READ", read.replace("''", '"x"')).replace(
        "CONDITION", "loop.last.score < 8"
    )
    assert check_recipe_text(text, "r.yaml", CATALOG).faults == ()


# --- what is told, and what happens --------------------------------------------------------------


TEXTS = st.sampled_from(["a.kind", "a.extra", "a.note", "a.where.path", "a.rows[0].name", "'x'"])
NUMBERS = st.sampled_from(["a.score", "a.rows[0].size", "inputs.limit", "2"])
LISTS = st.sampled_from(["a.tags", "a.rows", "(a.rows | map(attribute='owner') | list)"])
LEAVES = st.one_of(TEXTS, NUMBERS, LISTS)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    filters = st.sampled_from(
        [
            "upper",
            "trim",
            "length",
            "abs",
            "sum",
            "sort",
            "join",
            "first",
            "list",
            "unique",
            "reverse",
            "title",
            "keys",
            "lower",
        ]
    )
    operators = st.sampled_from(["+", "-", "*", "~", "<", ">=", "==", "and", "or", "in"])
    return st.one_of(
        st.builds("({} | {})".format, inner, filters),
        st.builds("({} {} {})".format, inner, operators, inner),
        st.builds("({} | default('', true))".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("({} is defined and {})".format, st.just("a.note"), inner),
    )


VALUES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["bug", "feature"]),
        "score": st.integers(0, 10),
        "tags": st.lists(st.text(max_size=3), min_size=1, max_size=3),
        "extra": st.sampled_from([None, "", "some"]),
        "rows": st.lists(
            st.fixed_dictionaries(
                {"name": st.text(max_size=3), "size": st.integers(0, 9)},
                optional={"owner": st.text(max_size=2)},
            ),
            min_size=1,
            max_size=3,
        ),
    },
    optional={
        "note": st.sampled_from(["", "n"]),
        "where": st.fixed_dictionaries({"path": st.text(max_size=3)}),
    },
)
OF_VALUES = ("is too large", "cannot be carried out", "'list.first' has no value")


def test_the_letters_of_a_text_are_texts() -> None:
    ((code, message),) = of("(a.kind | list) | sum")
    assert (code, "list of text" in message) == ("type-mismatch", True)
    assert of("(a.tags | list) | join") == []


@given(st.recursive(LEAVES, _grown, max_leaves=5), VALUES)
def test_an_expression_of_known_types_that_nothing_is_told_of_does_not_fail_for_a_type(
    expression: str, value: dict[str, JsonValue]
) -> None:
    told = of(expression)
    scope: dict[str, JsonValue] = {"a": value, "inputs": {"limit": 3, "hint": None}}
    failure = None
    try:
        compile_template(f"{{{{ {expression} }}}}").render(scope)
    except (EvaluationError, MissingValueError) as error:
        failure = str(error)
    if failure is not None and not any(each in failure for each in OF_VALUES):
        assert told, failure
