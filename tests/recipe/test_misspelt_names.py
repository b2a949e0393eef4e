"""What is said of a misspelt name: refused, once, with the word that was meant."""

from __future__ import annotations

import pytest

from minions.data.errors import near_names
from minions.data.json_values import JsonValue
from recipe.sample_catalog import check

KINDS = (
    "{type: object, properties: {kind: {enum: [bug, wish]}, n: {type: number}}, "
    "required: [kind, n], additionalProperties: false}"
)


def errors(text: str) -> list[tuple[str, str | None]]:
    """Message and label of each error."""
    return [(fault.message, fault.label) for fault in check(text).errors]


@pytest.mark.parametrize(
    ("name", "options", "nearest"),
    [
        ("di", ("goal", "id"), "id"),
        ("linse", ("line", "lines"), "lines"),
        ("trin", ("string", "trim"), "trim"),
        ("mpa", ("max", "map"), "map"),
        ("iputs", ("outputs", "inputs"), "inputs"),
    ],
)
def test_the_nearest_name_is_one_edit_away_where_there_is_such_a_name(
    name: str, options: tuple[str, ...], nearest: str
) -> None:
    assert near_names(name, options)[0] == nearest


@pytest.mark.parametrize(("name", "options"), [("a", ("b", "c")), ("xy", ("ab",)), ("", ("a",))])
def test_names_that_share_nothing_are_not_near(name: str, options: tuple[str, ...]) -> None:
    assert near_names(name, options) == ()


def with_steps(*steps: str) -> str:
    first = (
        f"  - id: all\n    loop: [1, 2]\n    aggregate: true\n    goal: x\n    output: {KINDS}\n"
    )
    return "steps:\n" + first + "".join(f"  - {step}\n" for step in steps)


@pytest.mark.parametrize(
    ("expression", "message", "label"),
    [
        ("all | map(attribute='knd')", "can never have 'knd'", "did you mean 'kind'?"),
        ("all | selectattr('kid', 'eq', 'bug')", "can never have 'kid'", "did you mean 'kind'?"),
        ("all | sort(attribute='m')", "can never have 'm'", None),
        ("(all | first).kimd", "can never have 'kimd'", "did you mean 'kind'?"),
        ("all[2 * 3].kinf", "can never have 'kinf'", "did you mean 'kind'?"),
        ("all | selectattr('kind', 'eqq', 'bug')", "no test 'eqq'", "did you mean 'eq'?"),
        ("all | selectattr('kind', 'eq', 'bgu')", "is never 'bgu'", "did you mean 'bug'?"),
        ("all[0].kind == 'wsh'", "is never 'wsh'", "did you mean 'wish'?"),
        ("all[0].kind in ['bug', 'wush']", "is never 'wush'", "did you mean 'wish'?"),
        ("{'bgu': 1}[all[0].kind]", "is never 'bgu'", "did you mean 'bug'?"),
        ("all | map(atribute='kind')", "cannot be used so", None),
    ],
)
def test_a_name_inside_of_an_expression_is_refused(
    expression: str, message: str, label: str | None
) -> None:
    found = errors(with_steps(f'{{id: b, set: {{x: "{{{{ {expression} }}}}"}}}}'))
    assert len(found) == 1, found
    assert message in found[0][0]
    assert found[0][1] == label


@pytest.mark.parametrize(
    "expression",
    [
        "all | map(attribute='kind') | unique | list",
        "all | selectattr('kind', 'eq', 'bug') | map(attribute='n') | sum",
        "(all | sort(attribute='n') | last).kind",
        "{'bug': 1, 'wish': 2}[all[0].kind]",
        "all | map('length') | list",
        "all[1:] | map(attribute='kind') | join",
        "inputs.any | map(attribute='x') | list",
        "(inputs.any | first).x",
    ],
)
def test_names_that_a_value_may_have_are_taken_inside_of_an_expression(expression: str) -> None:
    step = f'{{id: b, set: {{x: "{{{{ {expression} }}}}"}}}}'
    assert errors("inputs: {any: {type: array}}\n" + with_steps(step)) == []


def test_members_of_what_a_loop_of_set_steps_makes_are_known() -> None:
    steps = (
        '{id: made, loop: "{{ all }}", aggregate: true, set: {sort: "{{ loop.item.kind }}"}}',
        "{id: b, set: {x: \"{{ made | map(attribute='sorr') }}\"}}",
    )
    assert [label for _, label in errors(with_steps(*steps))] == ["did you mean 'sort'?"]


@pytest.mark.parametrize(
    ("schema", "labels"),
    [
        ("{type: object, properties: {name: {}}, required: [nmae]}", ["did you mean 'name'?"]),
        ("{type: object, properties: {name: {}}, required: [other]}", [None]),
        (
            "{type: object, properties: {name: {}}, required: [other], additionalProperties: true}",
            [],
        ),
        ("{type: object, properties: {a: {}}, anyOf: [{required: [b]}, {required: [a]}]}", []),
        ("{type: object, properties: {a: {}}, allOf: [{properties: {b: {}}}], required: [b]}", []),
        ("{properties: {a: {}}, if: {required: [a]}, then: {properties: {}, required: [b]}}", []),
        ("{type: object, properties: {at: {type: string, format: dat-time}}}", ["date-time"]),
        ("{type: object, properties: {at: {type: string, format: date-time}}}", []),
    ],
)
def test_what_a_schema_requires_is_a_property_and_its_formats_are_known(
    schema: str, labels: list[str | None]
) -> None:
    found = [label for _, label in errors(f"steps: [{{id: s, goal: x, output: {schema}}}]")]
    assert len(found) == len(labels)
    for label, wanted in zip(found, labels, strict=True):
        assert (wanted is None and label is None) or (wanted or "") in (label or "")


def test_a_misspelt_format_of_an_input_is_refused() -> None:
    text = "inputs: {a: {type: string, format: pth}}\nsteps: [{id: s, goal: '{{ inputs.a }}'}]"
    assert errors(text) == [("unknown format 'pth'", "did you mean 'path'?")]


def test_a_misspelt_parameter_is_one_fault_that_says_which_was_meant() -> None:
    step = "{id: s, tool: files__write, params: {pth: a, text: b}}"
    text = f"tools: [files]\npermissions: {{allow_write: true}}\nsteps: [{step}]"
    assert errors(text) == [("the tool 'files__write' does not know 'pth'", "did you mean 'path'?")]
    text = "tools: [add]\nsteps: [{id: s, tool: add, params: {a: 1, bb: 2}}]"
    assert errors(text) == [("the tool 'add' does not know 'bb'", "did you mean 'b'?")]


def test_a_misspelt_key_that_is_required_is_one_fault() -> None:
    assert errors("stpes: [{id: s, goal: x}]") == [
        ("unknown key 'stpes' in a recipe", "did you mean 'steps'?")
    ]


def test_a_default_that_is_nearly_a_type_is_refused_and_a_word_is_taken() -> None:
    def of(word: str) -> list[tuple[str, str | None]]:
        return errors(f"inputs: {{a: {word}}}\nsteps: [{{id: s, goal: '{{{{ inputs.a }}}}'}}]")

    assert of("strng") == [("'strng' is no type", "did you mean 'string'?")]
    assert [of(word) for word in ("strong", "numbers", "full", "red")] == [[], [], [], []]


def test_names_in_the_answers_of_a_test_are_those_of_the_recipe() -> None:
    def of(answer: str) -> list[str | None]:
        steps = f"steps: [{{id: s, goal: x, tools: [files__read], output: {KINDS}}}]"
        found = errors(f"tools: [files]\n{steps}\ntests: [{{answers: [{answer}]}}]")
        return [label for _, label in found]

    assert of("{jsn: {kind: bug, n: 1}}") == ["did you mean 'json'?"]
    assert of("{json: {kid: bug, n: 1}}") == ["did you mean 'kind'?"]
    assert of("{tool_calls: [{name: files__raed}]}") == ["did you mean 'files__read'?"]
    assert of("{tool_calls: [{name: files__read, arguments: {pth: a}}]}") == [
        "did you mean 'path'?"
    ]
    # What the model is meant to say wrong is like nothing in the recipe.
    assert of("{tool_calls: [{name: no_such_tool}]}") == []
    assert of("{json: {something: else}}") == []


def test_plain_data_of_a_stored_run_loads_as_it_did() -> None:
    from minions.recipe.reading.load import recipe_from_document
    from recipe.sample_catalog import CATALOG

    output: JsonValue = {
        "type": "object",
        "properties": {"a": {"format": "odd"}},
        "required": ["b"],
    }
    document: dict[str, JsonValue] = {"steps": [{"id": "s", "goal": "x", "output": output}]}
    assert len(recipe_from_document(document, CATALOG).steps) == 1
