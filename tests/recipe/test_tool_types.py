"""What recipes know of the results of tools, before anything is called."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import fake_tool
from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.tools.default_tools import state_tools
from minions.app.wiring.built_in_extensions import built_in_toolsets
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text

FOUND: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "size": {"type": "integer"}},
                "required": ["path", "size"],
                "additionalProperties": False,
            },
        },
        "owner": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
    },
    "required": ["amount", "rows", "owner"],
    "additionalProperties": False,
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
CATALOG = Catalog(
    toolsets=built_in_toolsets(),
    tools={
        "look": fake_tool("look", returns=FOUND).spec,
        "unknown": fake_tool("unknown").spec,
        "take": fake_tool(
            "take",
            parameters={"type": "object", "properties": {"text": {"type": "string"}}},
        ).spec,
        **{each.spec.name: each.spec for each in state_tools(MemoryState())},
    },
)
HEAD = """\
id: r
tools: [{files: {root: .}}]
steps:
  - {id: all, tool: files__glob, params: {pattern: '**/*.md'}}
  - {id: a, tool: files__read, params: {path: a.md}}
  - {id: found, tool: look}
  - {id: free, tool: unknown}
  - {id: texts, loop: '{{ all.files }}', tool: files__read, params: {path: '{{ loop.item }}'},
     aggregate: true}
  - {id: holes, loop: '{{ found.rows }}', tool: look, on_item_error: collect}
  - {id: kept, set: {row: '{{ found.rows[0] }}', whole: '{{ found }}'}}
"""


def faults(step: str) -> list[tuple[str, str, str | None]]:
    """Code, message and suggestion of each."""
    loaded = check_recipe_text(f"{HEAD}  - {step}\n", "r.yaml", CATALOG)
    return [(each.code, each.message, each.label) for each in loaded.errors]


@pytest.mark.parametrize(
    ("read", "message", "label"),
    [
        ("all.filez", "'all' can never have 'filez': it has no 'filez'", "did you mean 'files'?"),
        ("a.content", "'a' can never have 'content': it has no 'content'", None),
        ("found.amout", "it has no 'amout'", "did you mean 'amount'?"),
        (
            "found.rows.path",
            "'found.rows' can never have 'path': it is a list of {path, size}, whose items",
            "did you mean 'found.rows[0].path'?",
        ),
        ("found.path", "it has no 'path'", "did you mean 'found.rows[0].path'?"),
        ("found.rows[0].sice", "it has no 'sice'", "did you mean 'size'?"),
        ("found.owner.nam", "it has no 'nam'", "did you mean 'name'?"),
        ("texts[0].tekst", "it has no 'tekst'", "did you mean 'text'?"),
        ("texts.text", "it is a list of {path, text, lines, truncated}", "did you mean 'texts[0]"),
        ("holes.results[0].amuont", "it has no 'amuont'", "did you mean 'amount'?"),
        ("kept.row.pat", "it has no 'pat'", "did you mean 'path'?"),
        ("steps.found.output.amout", "it has no 'amout'", "did you mean 'amount'?"),
    ],
)
def test_a_field_that_no_result_has_is_refused(read: str, message: str, label: str | None) -> None:
    """A-164."""
    ((code, told, suggested),) = faults(f"{{id: x, set: {{v: '{{{{ {read} }}}}'}}}}")
    assert code == "unknown-reference"
    assert message in told
    assert (suggested or "").startswith(label or "")
    assert (label is None) == (suggested is None)


@pytest.mark.parametrize(
    "read",
    [
        "free.any.thing",
        "found.amount",
        "found.owner.name",
        "texts[0].text",
        "holes.results[0].rows[0].size",
        "kept.whole.owner.name",
    ],
)
def test_what_may_be_there_is_left_alone(read: str) -> None:
    assert faults(f"{{id: x, set: {{v: '{{{{ {read} }}}}'}}}}") == []


def test_a_loop_goes_over_lists_and_its_items_have_a_type() -> None:
    ((code, message, _),) = faults("{id: x, loop: '{{ all }}', tool: look}")
    assert (code, "'all' is a mapping" in message) == ("type-mismatch", True)
    item = "{id: x, loop: '{{ all.files }}', set: {v: '{{ loop.item.path }}'}}"
    ((code, message, _),) = faults(item)
    assert message == "'loop.item' can never have 'path': it is text, which has no members"


def test_arguments_of_tools_are_compared_with_results_of_tools() -> None:
    ((code, message, _),) = faults("{id: x, tool: take, params: {text: '{{ found.rows }}'}}")
    assert (code, "takes text, but 'found.rows' is a list" in message) == ("type-mismatch", True)


def test_the_recipe_says_what_a_tool_returns_that_declares_nothing() -> None:
    """A-164."""
    step = "{id: x, tool: unknown, returns: {rows: [string]}}\n"
    assert faults(f"{step}  - {{id: y, set: {{v: '{{{{ x.rows[0] }}}}'}}}}") == []
    ((_, message, label),) = faults(f"{step}  - {{id: y, set: {{v: '{{{{ x.rosw }}}}'}}}}")
    assert ("it has no 'rosw'" in message, label) == (True, "did you mean 'rows'?")
    loop = step.replace("tool:", "loop: [1, 2], aggregate: true, tool:")
    ((_, message, _),) = faults(f"{loop}  - {{id: y, set: {{v: '{{{{ x[0].rosw }}}}'}}}}")
    assert "it has no 'rosw'" in message


@pytest.mark.parametrize(
    ("returns", "said", "label"),
    [
        (
            "{amuont: number}",
            "'returns' says 'amuont', which no result has",
            "did you mean 'amount'",
        ),
        ("{amount: string}", "'returns' says text at 'amount', but it is a number", None),
        (
            "{type: array, items: {type: string}}",
            "'returns' says a list, but it is a mapping",
            None,
        ),
    ],
)
def test_what_the_recipe_says_does_not_contradict_the_tool(
    returns: str, said: str, label: str | None
) -> None:
    ((code, message, suggested),) = faults(f"{{id: x, tool: look, returns: {returns}}}")
    assert (code, said in message) == ("type-mismatch", True)
    assert (suggested or "").startswith(label or "")
    assert (label is None) == (suggested is None)
    assert faults("{id: x, tool: look, returns: {type: object, required: [amount]}}") == []


def test_a_faulty_schema_is_told_once() -> None:
    ((code, _, _),) = faults("{id: x, tool: look, returns: {type: objekt, properties: {}}}")
    assert code == "bad-schema"


# --- what is not known -----------------------------------------------------------------------


def unchecked(step: str) -> list[str]:
    loaded = check_recipe_text(f"{HEAD}  - {step}\n", "r.yaml", CATALOG)
    assert not loaded.errors
    return [each.message.split("'")[1] for each in loaded.unchecked]


@pytest.mark.parametrize(
    ("step", "names"),
    [
        ("{id: x, set: {v: '{{ free.any }}', w: '{{ free.any.more }}'}}", ["free"]),
        ("{id: x, set: {v: '{{ free }}', w: '{{ free | length }}'}}", []),
        ("{id: x, set: {v: '{{ found.owner.name }}', w: '{{ found.rows[0].path }}'}}", []),
        ("{id: x, loop: '{{ free }}', set: {v: '{{ loop.item.a }}'}}", ["loop.item"]),
        ("{id: x, loop: '{{ found.rows }}', set: {v: '{{ loop.item.path }}'}}", []),
    ],
)
def test_values_of_unknown_type_of_which_a_field_is_read_are_counted(
    step: str, names: list[str]
) -> None:
    assert unchecked(step) == names


def test_what_is_said_of_a_tool_is_checked() -> None:
    step = "{id: x, tool: unknown, returns: {rows: [string]}}\n"
    assert unchecked(f"{step}  - {{id: y, set: {{v: '{{{{ x.rows[0] }}}}'}}}}") == []


# --- filters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "message", "label"),
    [
        ("(found.rows | first).pth", "this value can never have 'pth'", "did you mean 'path'?"),
        ("(found.rows | sort(attribute='size') | last).sise", "'sise'", "did you mean 'size'?"),
        ("found.rows | map(attribute='pat') | join(', ')", "'map' reads", "did you mean 'path'?"),
        ("found.rows | selectattr('sise', 'gt', 3) | list", "'selectattr'", "did you mean 'size'?"),
        ("found.rows | sort(attribute='paht') | length", "'sort' reads", "did you mean 'path'?"),
        ("found.rows | sum(attribute='szie')", "'sum' reads", "did you mean 'size'?"),
        ("(found.rows[:2] | first).pth", "this value", "did you mean 'path'?"),
        ("(found.rows | map(attribute='path') | first).x", "it is text", None),
        ("(found if all.total else found).amout", "'amout'", "did you mean 'amount'?"),
    ],
)
def test_filters_know_the_type_of_their_items(read: str, message: str, label: str | None) -> None:
    """A-164."""
    ((code, told, suggested),) = faults(f'{{id: x, set: {{v: "{{{{ {read} }}}}"}}}}')
    assert (code, message in told, suggested) == ("unknown-reference", True, label)


@pytest.mark.parametrize(
    "read",
    [
        "(found.rows | first).path",
        "found.rows | map(attribute='path') | map('upper') | unique | join(', ')",
        "found.rows | selectattr('size', 'gt', 3) | map(attribute='size') | sum",
        "(free.rows | first).any",
        "free.rows | map(attribute='any.thing') | list",
        "(a.text | split(',') | first) ~ (all.files | reverse | first)",
        "(found.owner | default({'name': 'x'})).name",
    ],
)
def test_what_filters_may_give_is_left_alone(read: str) -> None:
    assert faults(f'{{id: x, set: {{v: "{{{{ {read} }}}}"}}}}') == []


@pytest.mark.parametrize(
    ("over", "read"),
    [
        ("'{{ found.rows | sort(attribute=\"size\") }}'", "pth"),
        ("[{path: a}, {path: b}]", "pth"),
        ("'{{ found.rows[1:] }}'", "pth"),
    ],
)
def test_the_item_of_a_loop_over_an_expression_has_a_type(over: str, read: str) -> None:
    step = f"{{id: x, loop: {over}, set: {{v: '{{{{ loop.item.{read} }}}}'}}}}"
    ((_, message, label),) = faults(step)
    assert "'loop.item' can never have 'pth'" in message
    assert label == "did you mean 'path'?"


def test_a_field_that_an_open_type_does_not_name_is_a_warning() -> None:
    returns: Mapping[str, JsonValue] = {
        "type": "object",
        "properties": {"sum": {"type": "number"}},
        "required": ["sum"],
    }
    add = fake_tool("add", returns=returns).spec
    text = "id: r\nsteps:\n  - {id: a, tool: add}\n  - {id: b, set: {x: '{{ a.summ }}'}}\n"
    loaded = check_recipe_text(text, "r.yaml", Catalog(tools={"add": add}))
    (fault,) = loaded.faults
    assert (fault.code, fault.is_warning) == ("unknown-reference", True)
    assert (fault.message[:22], fault.label) == ("'a' may have no 'summ'", "did you mean 'sum'?")


def test_a_result_that_a_test_gives_is_one_that_the_tool_can_return() -> None:
    """A-164."""
    row = "{path: a, size: 1}"
    given = "tests: [{{tools: {{look: {{amount: 1, rows: [{}], owner: null}}}}}}]\n"
    step = "  - {id: x, set: {v: '{{ found.amount }}'}}\n"

    def told(rows: str) -> list[str]:
        text = f"{HEAD}{step}{given.format(rows)}"
        return [each.message for each in check_recipe_text(text, "r.yaml", CATALOG).errors]

    assert told(row) == []
    (message,) = told("{path: 3, size: 1}")
    assert message == "'look' never returns that: $.rows[0].path: 3 is not of type 'string'"
