"""Faults in an editor: all that the checker finds, at their places, with their suggestions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from lsprotocol import types

from lsp_editor import ROOT, Editor, applied, started, within
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.recipe.reading.load import check_recipe_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROKEN = sorted((ROOT / "tests" / "bad_recipes").glob("*.yaml"))
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))
GOOD = "steps:\n  - id: one\n    goal: Say hello.\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    async with started(tmp_path_factory.mktemp("project")) as started_editor:
        yield started_editor


def _shown(found: list[types.Diagnostic]) -> list[tuple[object, int, int]]:
    return [
        (each.code, each.range.start.line + 1, each.range.start.character + 1) for each in found
    ]


def _count(found: Sequence[types.Diagnostic], fault: types.Diagnostic) -> int:
    return [(each.code, each.message) for each in found].count((fault.code, fault.message))


async def test_every_fault_of_the_checker_is_shown_at_its_place(editor: Editor) -> None:
    """Diagnostics as the text is typed (A-165)."""
    for path in BROKEN:
        text = path.read_bytes().decode("utf-8", "replace")
        if "steps:" not in text:
            continue
        found = await editor.write("recipes-broken.yaml", text)
        file = str(editor.folder / "recipes-broken.yaml")
        loaded = check_recipe_text(text, file, built_in_extensions().catalog())
        # Unlocked servers are a warning to `validate`, too, and models are checked by settings.
        wanted = {(each.code, each.line) for each in loaded.faults if each.file == file}
        assert {(code, line) for code, line, _ in _shown(found)} >= {
            each for each in wanted if each[0] not in ("unlocked-tools", "unlocked-server")
        }, path.name


async def test_a_quick_fix_takes_its_fault_away(editor: Editor) -> None:
    fixes = 0
    for path in BROKEN:
        text = path.read_bytes().decode("utf-8", "replace")
        found = await editor.write("fixes.yaml", text) if "steps:" in text else []
        for fault in found:
            for _, edits in await editor.fixes("fixes.yaml", fault):
                fixed = applied(text, edits)
                again = await editor.write("fixes.yaml", fixed)
                assert _count(again, fault) < _count(found, fault), f"{path.name}: {fault.message}"
                await editor.write("fixes.yaml", text)
                fixes += 1
    assert fixes > 20


async def test_a_misspelt_field_is_replaced_and_nothing_beside_it(editor: Editor) -> None:
    text = (
        "steps:\n  - id: found\n    goal: Find.\n    output: {amount: number}\n"
        "  - id: told\n    goal: 'Tell 😀 {{ found.amout }}, {{ found.amount }}.'\n"
    )
    (fault,) = await editor.write("fix.yaml", text)
    assert fault.message.startswith("'found' can never have 'amout'")
    ((title, edits),) = await editor.fixes("fix.yaml", fault)
    assert title == "Replace by 'amount'"
    fixed = applied(text, edits)
    assert fixed == text.replace("amout", "amount")
    assert await editor.write("fix.yaml", fixed) == []


async def test_a_default_is_written_where_a_value_may_be_missing(editor: Editor) -> None:
    text = (
        "steps:\n  - id: found\n    goal: Find.\n"
        "    output: {note?: string, size: integer | null}\n"
        "  - id: told\n    set: {a: '{{ found.note }}', b: '{{ found.size | abs }}'}\n"
    )
    fixed = text
    for fault in reversed(await editor.write("gaps.yaml", text)):
        ((_, edits),) = await editor.fixes("gaps.yaml", fault)
        fixed = applied(fixed, edits)
    assert fixed == text.replace("found.note", "found.note | default('')").replace(
        "found.size", "found.size | default('', true)"
    )


async def test_the_newest_of_many_versions_is_shown(editor: Editor) -> None:
    await editor.write("typed.yaml", GOOD)
    for length in range(1, 40):
        text = GOOD + "  - id: two\n    goal: '{{ one }} {{ ones }}'\n"[:length]
        editor.next_version("typed.yaml")
        editor.change("typed.yaml", types.TextDocumentContentChangeWholeDocument(text))
    editor.next_version("typed.yaml")
    editor.change("typed.yaml", types.TextDocumentContentChangeWholeDocument(GOOD + "goel: x\n"))
    found = await editor.faults("typed.yaml")
    assert _shown(found) == [("unknown-key", 4, 1)]


async def test_no_version_is_shown_with_the_faults_of_another(editor: Editor) -> None:
    long = GOOD + "".join(f"  - id: s{number}\n    goal: x\n" for number in range(300))
    await editor.write("turns.yaml", long)
    for number in range(2, 42):
        editor.next_version("turns.yaml")
        text = long + ("goel: x\n" if number % 2 else "")
        editor.change("turns.yaml", types.TextDocumentContentChangeWholeDocument(text))
    while True:
        shown = await within(editor.shown.get())
        if shown.uri == editor.uri("turns.yaml"):
            assert shown.version is not None
            assert len(shown.diagnostics) == shown.version % 2
            if shown.version == 41:
                break


async def test_parts_of_a_text_are_changed_where_the_editor_counts(editor: Editor) -> None:
    text = (
        "# 😀\u2028# x\nsteps:\n  - id: one\n    goal: 'Say 😀 {{ inputs.nme }}.'\n"
        "inputs: {name: string}\n"
    )
    (fault,) = await editor.write("parts.yaml", text)
    editor.next_version("parts.yaml")
    editor.change(
        "parts.yaml", types.TextDocumentContentChangePartial(range=fault.range, text="inputs.name")
    )
    assert await editor.faults("parts.yaml") == []


async def test_other_files_of_yaml_are_left_alone(editor: Editor) -> None:
    assert await editor.write("compose.yaml", "services: {web: {image: x}}\n") == []


async def test_a_closed_text_has_no_faults(editor: Editor) -> None:
    assert await editor.write("closed.yaml", "steps: []\n") != []
    editor.client.text_document_did_close(
        types.DidCloseTextDocumentParams(editor.document("closed.yaml"))
    )
    assert list((await within(editor.shown.get())).diagnostics) == []


async def test_shipped_recipes_have_no_faults(editor: Editor) -> None:
    for path in SHIPPED:
        text = path.read_text("utf-8")
        if "\nsteps:" in text:
            found = await editor.write(path.name, text)
            errors = [each for each in found if each.severity == types.DiagnosticSeverity.Error]
            names = {each.code for each in errors}
            # Of these, tools come from an extension, and another recipe stands beside the file.
            elsewhere = {"activity_monitor.yaml": "unknown-tool", "refund.yaml": "unknown-recipe"}
            assert names <= {elsewhere.get(path.name)}, path.name


async def test_code_of_an_opened_folder_is_not_executed(tmp_path: Path) -> None:
    """With no execution and no trust given (A-165)."""
    (tmp_path / "code.py").write_text("open('executed', 'w').close()\n", "utf-8")
    (tmp_path / "minions.toml").write_text('extensions = ["code.py"]\n', "utf-8")
    text = "tools: [mine]\nsteps:\n  - id: one\n    tool: mine\n"
    async with started(tmp_path, "--trust") as editor:
        found = await editor.write("one.yaml", text)
    assert not (tmp_path / "executed").exists()
    assert {each.severity for each in found} == {types.DiagnosticSeverity.Warning}
    assert "executes no Python" in found[0].message


async def test_code_that_the_command_names_is_known(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "from minions import tool\n\n\n@tool\ndef mine() -> str:\n    return 'x'\n",
        "utf-8",
    )
    text = "tools: [mine]\nsteps:\n  - id: one\n    tool: mine\n"
    async with started(tmp_path, "--extensions", "code.py") as editor:
        assert await editor.write("one.yaml", text) == []
