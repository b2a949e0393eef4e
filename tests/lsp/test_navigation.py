"""Hover, definition, references, rename and outline in an editor. `¦` is the cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from lsp_editor import ROOT, Editor, applied, started, within
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.yaml_reader import read_document

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPE = """\
# Bills.
# Of a folder.
inputs:
  folder: {type: string, description: Where the bills are.}
tools: [files]
steps:
  - id: found
    description: Looks for bills.
    goal: Look into {{ inputs.folder }}.
    output:
      bills: [{amount: number, day: string}]
    model: {name: openai/gpt-4o-mini, max_output_tokens: 1000}
  - id: told
    depends_on: [found]
    loop: "{{ found.bills }}"
    goal: |
      Tell {{ loop.item.amount }} of {{ steps.found.output.bills | length }}
      of 😀 {{ found.bills[0].amount }} and found.
  - id: read
    when: steps.found.status == 'completed'
    tool: files__read
    params: {path: "{{ inputs.folder }}"}
  - id: inner
    recipe: other
    with: {name: "{{ inputs.folder }}"}
  - id: last
    goal: Tell {{ inner.size }}.
output: "{{ found }}"
tests:
  - inputs: {folder: a}
    answers: [x]
    expect: {holds: found is defined and inputs.folder == 'a'}
"""
OTHER = """\
description: Measures.
inputs: {name: string}
steps:
  - id: one
    goal: x
    output: {size: integer}
output:
  size: "{{ one.size }}"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "other.yaml").write_text(OTHER, "utf-8")
    (folder / "recipe.yaml").write_text(f"# As it was saved.\n{RECIPE}", "utf-8")
    async with started(folder) as started_editor:
        assert await started_editor.write("recipe.yaml", RECIPE) == []
        yield started_editor


def _lines(found: object) -> list[int]:
    assert isinstance(found, list | tuple)
    return [each.range.start.line + 1 for each in found]


async def _hover(editor: Editor, mark: str) -> str:
    params = types.HoverParams(**editor.at("recipe.yaml", RECIPE, mark))
    found = await within(editor.client.text_document_hover_async(params))
    assert found is not None
    assert isinstance(found.contents, types.MarkupContent)
    return found.contents.value


async def _definition(editor: Editor, mark: str) -> list[tuple[str, int]]:
    params = types.DefinitionParams(**editor.at("recipe.yaml", RECIPE, mark))
    found = await within(editor.client.text_document_definition_async(params))
    assert isinstance(found, list | tuple)
    return [
        (each.uri.rpartition("/")[2], each.range.start.line + 1)
        for each in found
        if isinstance(each, types.Location)
    ]


async def _renamed(editor: Editor, mark: str, name: str, text: str = RECIPE) -> str:
    params = types.RenameParams(new_name=name, **editor.at("recipe.yaml", text, mark))
    found = await within(editor.client.text_document_rename_async(params))
    assert found is not None
    assert found.changes is not None
    return applied(text, found.changes[editor.uri("recipe.yaml")])


async def test_a_value_is_shown_with_its_type_and_where_it_stands(editor: Editor) -> None:
    """Hover with type (A-165)."""
    assert await _hover(editor, "found.bills[0].amo") == (
        "**amount**: a number\n\n*written in line 11; read in line 17, 18*"
    )
    assert "**bills**: a list of {amount: a number, day: text}" in await _hover(
        editor, "found.output.bil"
    )
    assert "Where the bills are." in await _hover(editor, 'path: "{{ inputs.fol')


async def test_a_step_is_shown_with_what_it_costs_at_most(editor: Editor) -> None:
    """Hover with cost (A-165)."""
    words = await _hover(editor, "- id: fou")
    assert words.startswith("**found**: goal step, gives {bills: a list of {")
    assert "Looks for bills." in words
    assert "At most 10 model calls, 0 tool calls, " in words
    assert "$" in words
    assert "written in line 7; read in line 14, 15, 17, 18, 20, 28, 32" in words


async def test_keys_tools_and_recipes_are_shown_with_their_descriptions(editor: Editor) -> None:
    assert (await _hover(editor, "    depe")).startswith("**depends_on**: Steps that must end")
    assert (await _hover(editor, "tool: files__re")).startswith("**files__read**: tool, pure")
    words = await _hover(editor, "recipe: oth")
    assert words.startswith("**other**: recipe, gives {size: a whole number}")
    assert "- `name`: text, required" in words


async def test_a_name_leads_to_where_it_is_declared(editor: Editor) -> None:
    """Definition, also over files (A-165)."""
    assert await _definition(editor, "[0].amo") == [("recipe.yaml", 11)]
    assert await _definition(editor, 'loop: "{{ fou') == [("recipe.yaml", 7)]
    assert await _definition(editor, "depends_on: [fou") == [("recipe.yaml", 7)]
    assert await _definition(editor, 'path: "{{ inputs.fo') == [("recipe.yaml", 4)]
    assert await _definition(editor, "recipe: oth") == [("other.yaml", 1)]
    assert await _definition(editor, "inner.si") == [("other.yaml", 8)]


async def test_every_mention_of_a_name_is_listed(editor: Editor) -> None:
    """References (A-165)."""

    async def references(mark: str) -> list[int]:
        params = types.ReferenceParams(
            context=types.ReferenceContext(include_declaration=True),
            **editor.at("recipe.yaml", RECIPE, mark),
        )
        return _lines(await within(editor.client.text_document_references_async(params)))

    assert await references("- id: fou") == [7, 14, 15, 17, 18, 20, 28, 32]
    assert await references("  fold") == [4, 9, 22, 25, 30, 32]
    assert await references("bills: [{amo") == [11, 17, 18]


async def test_a_renamed_step_is_renamed_wherever_it_is_named(editor: Editor) -> None:
    """Rename (A-165)."""
    after = await _renamed(editor, "- id: fou", "search")
    expected = RECIPE.replace("found", "search").replace("and search.", "and found.")
    assert after == expected
    assert await editor.write("after.yaml", after) == []


async def test_a_renamed_input_is_renamed_in_templates_and_tests(editor: Editor) -> None:
    after = await _renamed(editor, 'with: {name: "{{ inputs.fol', "place")
    expected = RECIPE.replace("folder", "place").replace("Of a place", "Of a folder")
    assert after == expected


async def test_an_input_is_renamed_in_the_recipes_that_give_it(editor: Editor) -> None:
    await editor.write("other.yaml", OTHER)
    params = types.RenameParams(new_name="label", **editor.at("other.yaml", OTHER, "inputs: {na"))
    found = await within(editor.client.text_document_rename_async(params))
    assert found is not None
    changes = found.changes or {}
    assert applied(OTHER, changes[editor.uri("other.yaml")]) == OTHER.replace("name:", "label:", 1)
    # The text as it is open in the editor, which is another one on the disk.
    after = applied(RECIPE, changes[editor.uri("recipe.yaml")])
    assert after == RECIPE.replace("with: {name:", "with: {label:")


FIELDS = """\
inputs:
  bill:
    type: object
    properties: {sum: {type: number}, day: {type: string}}
    required: [sum]
    default: {sum: 1, day: monday}
steps:
  - id: found
    goal: Find bills like {{ inputs.bill.sum }}.
    output:
      bills:
        - {amount: number, day: string}
      day: string
    examples:
      - {input: {bill: {sum: 1}}, output: {bills: [{amount: 3, day: x}], day: x}}
  - id: told
    loop: "{{ found.bills }}"
    goal: Tell {{ loop.item.amount }}.
    output: {note: string}
  - id: sums
    set:
      most: "{{ found.bills | map(attribute='amount') | max }}"
      dear: "{{ found.bills | selectattr('amount', 'gt', 5) | list | length }}"
output: "{{ steps.found.output.bills[0].amount }}"
tests:
  - inputs: {bill: {sum: 2}}
    answers:
      - json: {bills: [{amount: 2, day: y}], day: z}
      - json: {note: amount}
    expect: {holds: "found.bills[0].amount == 2"}
"""


async def test_a_field_is_renamed_in_examples_that_are_chosen_for_each_question(
    editor: Editor,
) -> None:
    listed = "    examples:\n      choose: nearest\n      items:\n"
    text = FIELDS.replace("    examples:\n", listed)
    try:
        assert await editor.write("recipe.yaml", text) == []
        after = await _renamed(editor, "bills[0].amo", "price", text)
        assert after == text.replace("amount", "price").replace("note: price", "note: amount")
    finally:
        await editor.write("recipe.yaml", RECIPE)


async def test_a_field_is_renamed_wherever_it_is_read_or_given(editor: Editor) -> None:
    try:
        assert await editor.write("recipe.yaml", FIELDS) == []
        after = await _renamed(editor, "bills[0].amo", "price", FIELDS)
        assert after == FIELDS.replace("amount", "price").replace("note: price", "note: amount")
        assert await editor.write("recipe.yaml", after) == []
        await editor.write("recipe.yaml", FIELDS)
        after = await _renamed(editor, "required: [su", "total", FIELDS)
        assert after == FIELDS.replace("sum", "total").replace("id: totals", "id: sums")
        await editor.write("recipe.yaml", FIELDS)
        after = await _renamed(editor, "inputs:\n  bi", "note", FIELDS)
        assert after == FIELDS.replace("bill:", "note:").replace("inputs.bill", "inputs.note")
        await editor.write("recipe.yaml", FIELDS)
        with pytest.raises(JsonRpcException, match="There is a field 'day' already"):
            await _renamed(editor, "bills[0].amo", "day", FIELDS)
        with pytest.raises(JsonRpcException, match="Only steps, inputs, "):
            await _renamed(editor, "loop.ite", "entry", FIELDS)
    finally:
        await editor.write("recipe.yaml", RECIPE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("told", "There is a step 'told' already."),
        ("two words", "'two words' is no name"),
        ("with-dash", "The recipe would have a fault then"),
        ("inputs", "The recipe would have a fault then"),
        ("true", "'true' is no name"),
        ("", "'' is no name"),
    ],
)
async def test_a_name_that_would_break_the_recipe_is_refused(
    editor: Editor, name: str, reason: str
) -> None:
    with pytest.raises(JsonRpcException, match=reason):
        await _renamed(editor, "- id: fou", name)


@pytest.mark.parametrize("name", ["run", "loop", "feedback", "env"])
async def test_a_name_that_means_something_else_is_refused(editor: Editor, name: str) -> None:
    text = "steps:\n  - id: one\n    goal: x\n    optional: true\n"
    text += "output: \"{{ one | default('') }}\"\n"
    await editor.write("names.yaml", text)
    params = types.RenameParams(new_name=name, **editor.at("names.yaml", text, "- id: on"))
    try:
        found = await within(editor.client.text_document_rename_async(params))
    except JsonRpcException:
        return
    assert found is not None
    after = applied(text, (found.changes or {})[editor.uri("names.yaml")])
    assert name not in ("run", "loop")
    assert await editor.write("names.yaml", after) == []
    await editor.write("names.yaml", text)


async def test_a_step_that_a_graph_and_a_route_name_is_renamed(editor: Editor) -> None:
    text = (
        "steps:\n  - id: one\n    goal: x\n    output: {ok: boolean}\n"
        "    route: \"{{ 'two' if one.ok else 'three' }}\"\n"
        "  - id: two\n    goal: x\n  - id: three\n    goal: x\n"
        "graph:\n  one: [two, three]\n"
    )
    assert await editor.write("recipe.yaml", text) == []
    try:
        assert await _renamed(editor, "- id: tw", "second", text) == text.replace("two", "second")
    finally:
        await editor.write("recipe.yaml", RECIPE)


async def test_every_step_of_shipped_recipes_can_be_renamed(editor: Editor) -> None:
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        text = path.read_text("utf-8")
        if "\n  - id: " not in text or path.name == "activity_monitor.yaml":
            continue
        try:
            if await editor.write("recipe.yaml", text):
                continue
            after = await _renamed(editor, "\n  - id: ", "renamed_step", text)
            found = await editor.write("recipe.yaml", after)
            assert found == [], path.name
            assert to_plain(read_document(after)) != to_plain(read_document(text))
        finally:
            await editor.write("recipe.yaml", RECIPE)


async def test_the_outline_has_sections_inputs_steps_and_tests(editor: Editor) -> None:
    params = types.DocumentSymbolParams(editor.document("recipe.yaml"))
    found = await within(editor.client.text_document_document_symbol_async(params))
    assert isinstance(found, list | tuple)
    shown = {
        each.name: [inner.name for inner in each.children or ()]
        for each in found
        if isinstance(each, types.DocumentSymbol)
    }
    assert shown == {
        "inputs": ["folder"],
        "tools": [],
        "steps": ["found", "told", "read", "inner", "last"],
        "output": [],
        "tests": ["test 1"],
    }


async def test_steps_sections_and_comments_fold(editor: Editor) -> None:
    params = types.FoldingRangeParams(editor.document("recipe.yaml"))
    found = await within(editor.client.text_document_folding_range_async(params))
    ranges = [(each.start_line + 1, each.end_line + 1) for each in found or ()]
    assert ranges == [
        (1, 2), (3, 4), (6, 27), (7, 12), (10, 11), (13, 18), (16, 18), (19, 22), (23, 25),
        (26, 27), (29, 32), (30, 32),
    ]  # fmt: skip


async def test_a_text_is_formatted_as_the_command_does_it(editor: Editor) -> None:
    """Formatting (A-165)."""
    text = "steps:\n-   id: one  # 😀  \n    goal: x"
    await editor.write("wide.yaml", text)
    params = types.DocumentFormattingParams(
        editor.document("wide.yaml"), types.FormattingOptions(tab_size=2, insert_spaces=True)
    )
    edits = await within(editor.client.text_document_formatting_async(params))
    after = applied(text, edits or ())
    assert after == "steps:\n  - id: one  # 😀\n    goal: x\n"
    await editor.write("wide.yaml", after)
    assert not await within(editor.client.text_document_formatting_async(params))


async def test_names_in_templates_are_told_by_what_they_are(editor: Editor) -> None:
    legend = editor.answer.capabilities.semantic_tokens_provider
    assert legend is not None
    kinds = legend.legend.token_types
    text = (
        "inputs: {n: string}\nsteps:\n  - id: one\n    goal: '😀 {{ inputs.n }}'\n    save_as: o\n"
    )
    text += "    output: {size: number}\noutput: '{{ one.size }} {{ o }}'\n"
    await editor.write("tokens.yaml", text)
    found = await within(
        editor.client.text_document_semantic_tokens_full_async(
            types.SemanticTokensParams(editor.document("tokens.yaml"))
        )
    )
    assert found is not None
    shown, line, column = [], 0, 0
    for at in range(0, len(found.data), 5):
        lines, columns, length, kind, _ = found.data[at : at + 5]
        line, column = line + lines, columns + (0 if lines else column)
        rest = text.split("\n")[line].encode("utf-16-le")[column * 2 : (column + length) * 2]
        shown.append((rest.decode("utf-16-le"), kinds[kind]))
    assert shown == [
        ("n", "parameter"),
        ("one", "function"),
        ("size", "property"),
        ("o", "variable"),
    ]


async def test_a_recipe_of_500_lines_is_served_whole(editor: Editor) -> None:
    """All of it works on a recipe of 500 lines (A-165); docs/editors.md tells what it takes."""
    text = "steps:\n" + "".join(
        f"  - id: s{number}\n"
        f"    goal: |\n      Say {{{{ s{number - 1}.name }}}}.\n"
        "    output: {name: string}\n"
        f"    when: s{number - 1}.name != ''\n"
        for number in range(1, 100)
    ).replace("s0.name", "s1x.name").replace(
        "  - id: s1\n", "  - id: s1x\n    goal: x\n    output: {name: string}\n  - id: s1\n", 1
    )
    assert text.count("\n") >= 495
    assert await editor.write("long.yaml", text) == []
    place = editor.at("long.yaml", text, "Say {{ s97.na")
    found = await within(
        editor.client.text_document_completion_async(types.CompletionParams(**place))
    )
    assert isinstance(found, list | tuple)
    assert [each.label for each in found] == ["name"]
    places = await within(
        editor.client.text_document_definition_async(types.DefinitionParams(**place))
    )
    assert isinstance(places, list | tuple)
    assert len(places) == 1
    edit = await within(
        editor.client.text_document_rename_async(
            types.RenameParams(new_name="other", **editor.at("long.yaml", text, "Say {{ s9"))
        )
    )
    assert edit is not None
    assert len((edit.changes or {})[editor.uri("long.yaml")]) == 3
