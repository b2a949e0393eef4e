"""Completion in an editor: keys, names, and the fields of values. `¦` is the cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lsprotocol import types

from lsp_editor import Editor, applied, started, within

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPE = """\
inputs:
  folder: path
  limit: {type: integer, description: How many at most.}
tools: [files]
steps:
  - id: found
    description: Looks for bills.
    goal: Look into {{ inputs.folder }}.
    output: {bills: [{amount: number, day: string}], kind: {enum: [paid, open]}}
  - id: each-bill
    loop: "{{ found.bills }}"
    goal: Tell {{ loop.item.amount }}.
  - id: read
    tool: files__read
    params: {path: "{{ inputs.folder }}"}
  - id: inner
    recipe: other
    with: {name: x}
  - id: last
    goal: Done.
"""
OTHER = "inputs: {name: string, count: integer}\nsteps:\n  - id: one\n    goal: x\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "other.yaml").write_text(OTHER, "utf-8")
    async with started(folder) as started_editor:
        yield started_editor


async def _items(editor: Editor, text: str) -> list[types.CompletionItem]:
    await editor.write("recipe.yaml", text.replace("¦", ""))
    params = types.CompletionParams(**editor.at("recipe.yaml", text, "¦", after=False))
    found = await within(editor.client.text_document_completion_async(params))
    assert isinstance(found, list | tuple)
    return list(found)


async def _labels(editor: Editor, text: str) -> list[str]:
    return [each.label for each in await _items(editor, text)]


def _last(line: str) -> str:
    return RECIPE.replace("    goal: Done.\n", f"    {line}\n")


@pytest.mark.parametrize(
    ("line", "expected", "others"),
    [
        ('goal: "{{ found.¦ }}"', ["bills", "kind"], ["amount"]),
        ('goal: "{{ found.¦', ["bills", "kind"], ["amount"]),
        ('goal: "{{ found.bills[0].a¦ }}"', ["amount", "day"], ["bills"]),
        ("goal: |\n      Say\n      {{ found.bills[0].¦ }}", ["amount", "day"], ["bills"]),
        ('goal: "{{ steps.found.¦ }}"', ["output", "status", "error"], ["bills"]),
        ('goal: "{{ steps.found.output.¦ }}"', ["bills", "kind"], []),
        ('goal: "{{ inputs.¦ }}"', ["folder", "limit"], ["found"]),
        ('goal: "{{ ¦ }}"', ["found", "read", "inputs.folder", "steps"], ["loop", "last"]),
        ('goal: "{{ found.bills | ¦ }}"', ["length", "join", "default"], ["found"]),
        ("when: found.¦", ["bills", "kind"], []),
        ("when: steps.found.status == '¦'", ["completed", "failed", "skipped"], []),
        ("tool: ¦", ["files__read", "files__glob"], ["found"]),
        ("tool: files__read\n    params:\n      ¦", ["path"], ["goal"]),
        ("tool: files__read\n    params: {¦}", ["path"], ["goal"]),
        ("goal: x\n    tools: {¦}", ["names", "always", "search"], ["goal"]),
        ("goal: x\n    tools: {names: [¦]}", ["files", "files__read"], ["found"]),
        ("goal: x\n    tools:\n      always: [¦]", ["files", "files__glob"], ["found"]),
        ("goal: x\n    examples: {¦}", ["from", "items", "choose", "max"], ["goal", "input"]),
        ("goal: x\n    examples: {from: tests, choose: ¦}", ["fixed", "nearest"], ["tests"]),
        ("goal: x\n    examples: {choose: nearest, items: [{¦}]}", ["input", "output"], ["from"]),
        ("recipe: ¦", ["other"], ["recipe"]),
        ("recipe: other\n    with:\n      ¦", ["name", "count"], ["goal"]),
        ("goal: x\n    depends_on: [¦]", ["found", "each-bill"], []),
        ("goal: x\n    ¦", ["output", "when", "tools"], ["tool", "goal", "ask"]),
        ("¦", ["goal", "tool", "ask", "when"], ["id"]),
        ("goal: x\n    on_error: {¦}", ["goto", "max"], ["goal"]),
        ("goal: x\n    optional: ¦", ["true", "false"], []),
        ("goal: x\n    on_item_error: ¦", ["fail"], ["true"]),
        ("goal: x\ntests:\n  - inputs:\n      ¦", ["folder", "limit"], ["goal"]),
        ("goal: x\n¦", ["output", "permissions", "tests"], ["steps", "inputs", "goal_"]),
    ],
)
async def test_what_may_be_written_is_offered(
    editor: Editor, line: str, expected: list[str], others: list[str]
) -> None:
    """Completion of keys, names and fields (A-165)."""
    found = await _labels(editor, _last(line))
    assert [each for each in expected if each not in found] == []
    assert [each for each in others if each in found] == []


async def test_an_item_of_a_loop_has_the_fields_of_its_list(editor: Editor) -> None:
    text = RECIPE.replace("loop.item.amount", "loop.item.¦")
    assert await _labels(editor, text) == ["amount", "day"]


async def test_a_field_is_shown_with_its_type_and_replaces_what_was_begun(editor: Editor) -> None:
    text = _last('goal: "{{ found.bills[0].am¦ }}"')
    amount = next(each for each in await _items(editor, text) if each.label == "amount")
    assert amount.detail == "a number"
    assert isinstance(amount.text_edit, types.TextEdit)
    expected = text.replace("am¦", "amount")
    assert applied(text.replace("¦", ""), [amount.text_edit]) == expected


async def test_an_input_is_shown_with_its_description(editor: Editor) -> None:
    found = await _items(editor, _last('goal: "{{ inputs.¦ }}"'))
    limit = next(each for each in found if each.label == "limit")
    assert (limit.detail, limit.documentation) == ("a whole number", "How many at most.")


async def test_completion_at_every_place_of_a_text_ends(editor: Editor) -> None:
    await editor.write("recipe.yaml", RECIPE)
    for number, line in enumerate(RECIPE.splitlines()):
        for column in range(0, len(line) + 1, 3):
            params = types.CompletionParams(
                editor.document("recipe.yaml"), types.Position(number, column)
            )
            await within(editor.client.text_document_completion_async(params))
