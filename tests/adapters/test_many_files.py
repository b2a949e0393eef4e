"""Several files at once: one text for a prompt, checked changes, writes that may be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import result_of
from minions.adapters.tools.files_toolset import files_toolset
from minions.adapters.tools.many_files import imported_files, outline_of
from minions.contracts.tools import ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")
SHOP: Final = '''\
"""The shop."""

from __future__ import annotations

import json

LIMIT = 10
NAMES: list[str] = []
LONG = "0123456789012345678901234567890123456789012345678901234567890123456789"


@decorated(1)
class Item(Base, total=False):
    """One thing.

    More about it.
    """

    name: str
    price: float = 1.0

    def cost(self, count: int = 1, *, tax: float = 0.2) -> float:
        """What so many cost."""
        return self.price * count

    async def order(self): return None


def load(path: str) -> list[Item]:
    total = 0
    return json.loads(path)


class Empty: pass
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "items.py").write_text(SHOP)
    (folder / "README.md").write_text("# Shop\n\nText.\n\n## Use\n\nMore.")
    (folder / "empty.txt").write_text("")
    (folder / "image.png").write_bytes(b"\x89PNG\0\xff")
    return folder


class Files:
    """The tools as a caller sees them."""

    def __init__(self, root: Path, **options: JsonValue) -> None:
        opened = files_toolset().open({"root": str(root), **options}, "fs")
        self._tools = {made.spec.name: made for made in opened}

    async def __call__(self, name: str, **arguments: JsonValue) -> dict[str, JsonValue]:
        done = await result_of(self._tools[f"fs__{name}"], arguments, SCOPE)
        assert isinstance(done, dict)
        return done

    async def refusal(self, name: str, **arguments: JsonValue) -> ToolError:
        with pytest.raises(ToolError) as caught:
            await self(name, **arguments)
        return caught.value


@pytest.fixture
def files(root: Path) -> Files:
    return Files(root)


# --- outlines -----------------------------------------------------------------------------------


def test_the_outline_of_python_has_signatures_and_first_lines_of_docstrings() -> None:
    outline = outline_of("items.py", SHOP)
    assert outline.title == "outline"
    assert (
        outline.text
        == '''\
LIMIT = 10
NAMES: list[str] = []
LONG = ...
@decorated(1)
class Item(Base, total=False):
    """One thing."""
    name: str
    price: float = 1.0
    def cost(self, count: int=1, *, tax: float=0.2) -> float:
        """What so many cost."""
    async def order(self): ...
def load(path: str) -> list[Item]: ...
class Empty: ...'''
    )


def test_the_outline_of_python_that_cannot_be_parsed_says_so() -> None:
    outline = outline_of("a.py", "class A:\n    def b(self):\n  oops(\n")
    assert outline.title == "declaration lines: the file is no valid Python"
    assert outline.text == "1: class A:\n2:     def b(self):"


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("export default async function load(a) {", True),
        ("pub(crate) fn main() {", True),
        ("interface Item extends Base {", True),
        ("type Item struct {", True),
        ("func (s *Shop) Add(item Item) error {", True),
        ("export const LIMIT = 10;", True),
        ("CREATE TABLE users (", True),
        ("## A heading", True),
        ("[section]", True),
        ("public class Item implements Base {", True),
        ("  return value;", False),
        ("type: string", False),
        ("    const inner = 1;", False),
        ("class = 'x'", False),
        ("functional programming", False),
        ("", False),
    ],
)
def test_lines_that_declare_something_make_the_outline_of_other_files(
    line: str, *, is_shown: bool
) -> None:
    outline = outline_of("a.txt", f"x\n{line}\n")
    assert outline.title == "declaration lines"
    assert outline.text == (f"2: {line}" if is_shown else "")


@given(st.text() | st.text("class def:()\n #[]= "), st.sampled_from(["a.py", "a.ts", "a.md"]))
def test_any_text_has_an_outline(text: str, path: str) -> None:
    assert isinstance(outline_of(path, text).text, str)


# --- read_many ----------------------------------------------------------------------------------


async def test_files_are_read_as_one_text_in_the_order_of_the_request(files: Files) -> None:
    done = await files(
        "read_many", files=["README.md", "shop/items.py:7-8", "shop/items.py:outline", "empty.txt"]
    )
    text = str(done["text"])
    assert text.startswith("### README.md\n# Shop\n\nText.\n\n## Use\n\nMore.\n\n### shop/items.py")
    assert "### shop/items.py (lines 7-8)\nLIMIT = 10\nNAMES: list[str] = []\n\n" in text
    assert "### shop/items.py (outline)\nLIMIT = 10\n" in text
    assert text.endswith("\n### empty.txt\n")
    assert isinstance(done["files"], list)
    assert [each["form"] for each in done["files"] if isinstance(each, dict)] == [
        *("whole", "lines 7-8", "outline", "whole")
    ]
    assert done["left_out"] == []


async def test_what_does_not_fit_is_shown_as_its_outline_or_named(files: Files) -> None:
    done = await files(
        "read_many", files=["shop/items.py", "README.md", "empty.txt"], max_characters=380
    )
    assert done["files"] == [
        {"path": "shop/items.py", "form": "outline", "characters": 357},
        {"path": "empty.txt", "form": "whole", "characters": 14},
    ]
    assert done["left_out"] == ["README.md"]
    assert str(done["text"]).startswith("### shop/items.py (outline)\n")


@pytest.mark.parametrize(
    ("path", "text", "imported"),
    [
        ("tests/test_a.py", "from shop.items import Item\n", ["shop/items.py"]),
        ("tests/test_a.py", "from shop import items, sales\n", ["shop/items.py", "shop/sales.py"]),
        ("tests/test_a.py", "import shop.items as x\n", ["shop/items.py"]),
        ("shop/test_a.py", "from . import items\n", ["shop/items.py"]),
        ("shop/tests/test_a.py", "from ..sales import x\n", ["shop/sales.py"]),
        ("tests/test_a.py", "def test() -> None:\n    from shop import sales\n", ["shop/sales.py"]),
        ("tests/test_a.py", "from shop import (\n    sales,\n)\n", ["shop/sales.py"]),
        ("tests/test_a.py", "from shop import items(\n", ["shop/items.py"]),
        ("tests/test_a.py", "# from shop import items\n", []),
        ("web/a.test.ts", "import { x } from './cart';\n", ["web/cart.ts"]),
        ("web/a.test.ts", "import {\n  x,\n} from '../web/cart';\n", ["web/cart.ts"]),
        ("web/a.spec.js", "const cart = require('./cart')\n", ["web/cart.ts"]),
        ("tests/a_test.rs", "use crate::shop::lib_a::Item;\n", ["src/lib_a.rs"]),
        ("tests/a_test.c", '#include "../src/a.h"\n', ["src/a.h"]),
    ],
)
def test_what_a_test_imports_is_found(path: str, text: str, imported: list[str]) -> None:
    among = ["shop/items.py", "shop/sales.py", "web/cart.ts", "src/lib_a.rs", "src/a.h"]
    assert imported_files(path, text, among) == imported


@given(st.text() | st.text("import from()'./ab \n\"."), st.sampled_from(["a.py", "a.ts", "a.md"]))
def test_any_text_imports_something_or_nothing(text: str, path: str) -> None:
    assert set(imported_files(path, text, ["b.py", "c/b.ts"])) <= {"b.py", "c/b.ts"}


@pytest.mark.parametrize(
    "failure",
    [
        "tests/test_items.py:3: AssertionError",
        'File "/srv/space/tests/test_items.py", line 3, in test',
        "at Object.<anonymous> (./tests/test_items.py:3:5)",
    ],
)
async def test_what_a_failing_test_imports_is_shown_whole_and_first(
    files: Files, root: Path, failure: str
) -> None:
    (root / "tests").mkdir()
    (root / "tests" / "test_items.py").write_text("from shop.items import Item\n")
    asked = ["README.md:outline", "empty.txt"]
    among = ["shop/items.py", "README.md", "gone.py"]
    done = await files("read_many", files=asked, failure=failure, among=among)
    assert isinstance(done["files"], list)
    assert [(each["path"], each["form"]) for each in done["files"] if isinstance(each, dict)] == [
        ("shop/items.py", "whole"),
        ("empty.txt", "whole"),
        ("README.md", "declaration lines"),
    ]


async def test_what_a_test_imports_besides_what_is_shown_costs_nothing(
    files: Files, root: Path
) -> None:
    """A-97: the file that it is about was made with it, and is there."""
    (root / "tests").mkdir()
    (root / "tests" / "test_items.py").write_text("import shop.items\nimport shop.other\n")
    (root / "shop" / "other.py").write_text("x = 1\n")
    asked = ["README.md:outline", "tests/test_items.py", "shop/items.py"]
    among = ["shop/other.py", "shop/items.py"]
    failure = "tests/test_items.py:1: AssertionError"
    done = await files("read_many", files=asked, failure=failure, among=among)
    assert isinstance(done["files"], list)
    assert [each["path"] for each in done["files"] if isinstance(each, dict)] == [
        "shop/items.py",
        "tests/test_items.py",
        "README.md",
    ]


@pytest.mark.parametrize("failure", ["", "no path", "../tests/test_x.py", "tests/test_gone.py"])
async def test_a_failure_that_names_no_test_changes_nothing(files: Files, failure: str) -> None:
    asked: list[JsonValue] = ["empty.txt", "README.md"]
    done = await files("read_many", files=asked, failure=failure, among=["shop/items.py"])
    assert "shop/items.py" not in str(done["text"])


async def test_a_file_that_is_named_twice_is_shown_once(files: Files) -> None:
    done = await files("read_many", files=["README.md", "./README.md"])
    assert str(done["text"]).count("# Shop") == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nothing.py", "no-such-file"),
        ("../secret.txt", "outside-root"),
        ("image.png", "not-text"),
        (".git/config:outline", "excluded-path"),
        ("shop/items.py:900-901", "bad-range"),
        ("shop/items.py:9-2", "bad-range"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_by_name(
    files: Files, path: str, code: str
) -> None:
    error = await files.refusal("read_many", files=["README.md", path])
    assert error.error_code == code


# --- prepare_changes ----------------------------------------------------------------------------


async def test_changes_are_checked_and_nothing_is_written(files: Files, root: Path) -> None:
    done = await files(
        "prepare_changes",
        files=[{"path": "new/a.py", "text": "x = 1\n"}, {"path": "empty.txt", "text": ""}],
        edits=[
            {"path": "README.md", "old": "Text.", "new": "Words."},
            {"path": "README.md", "old": "Words.", "new": "Words!"},
            {"path": "new/a.py", "old": "1", "new": "2"},
        ],
    )
    assert done["files"] == [
        {"path": "new/a.py", "text": "x = 2\n"},
        {"path": "empty.txt", "text": ""},
        {"path": "README.md", "text": "# Shop\n\nWords!\n\n## Use\n\nMore."},
    ]
    assert done["actions"] == {
        "new/a.py": "created",
        "empty.txt": "unchanged",
        "README.md": "edited",
    }
    assert done["diff"] == (
        "--- /dev/null\n+++ b/new/a.py\n@@ -0,0 +1 @@\n+x = 2\n"
        "--- a/README.md\n+++ b/README.md\n@@ -1,6 +1,6 @@\n # Shop\n \n-Text.\n+Words!\n \n"
        " ## Use\n \n"
    )
    assert not (root / "new").exists()
    assert "Text." in (root / "README.md").read_text()


async def test_all_faults_of_changes_are_told_at_once(files: Files, root: Path) -> None:
    error = await files.refusal(
        "prepare_changes",
        files=[
            {"path": "../out.py", "text": "x"},
            {"path": "shop/items.py", "text": "\ud800"},
            {"path": "README.md", "text": "a"},
            {"path": "README.md", "text": "b"},
            {"path": "image.png", "text": "b"},
        ],
        edits=[
            {"path": "nothing.py", "old": "a", "new": "b"},
            {"path": "shop/items.py", "old": "self", "new": "b"},
            {"path": "shop/items.py", "old": "not there", "new": "b"},
        ],
        allowed=["shop/*", "*.md", "image.png", "nothing.py"],
    )
    assert error.error_code == "bad-changes"
    told = str(error).splitlines()[1:]
    assert [line.split(":")[0] for line in told] == [
        *("- ../out.py", "- shop/items.py", "- README.md", "- image.png", "- nothing.py"),
        *("- shop/items.py", "- shop/items.py"),
    ]
    assert (root / "README.md").read_text().startswith("# Shop")


@pytest.mark.parametrize(
    ("path", "allowed", "is_allowed"),
    [
        ("shop/new.py", ["shop/new.py"], True),
        ("shop/new.py", ["shop/**"], True),
        ("shop/new.py", [], True),
        ("app/[id]/page.tsx", ["app/[id]/page.tsx"], True),
        ("shop/new.py", ["shop/other.py"], False),
        ("other.py", ["shop/**"], False),
    ],
)
async def test_only_allowed_files_are_changed(
    files: Files, path: str, allowed: list[JsonValue], *, is_allowed: bool
) -> None:
    given: list[JsonValue] = [{"path": path, "text": "x"}]
    if is_allowed:
        assert (await files("prepare_changes", files=given, allowed=allowed))["files"]
    else:
        error = await files.refusal("prepare_changes", files=given, allowed=allowed)
        assert "only these may be changed: " + str(allowed[0]) in str(error)


async def test_a_long_diff_is_cut_and_says_so(files: Files, root: Path) -> None:
    (root / "long.txt").write_text("line\n" * 10_000)
    changes: list[JsonValue] = [
        {"path": "long.txt", "text": "other\n"},
        {"path": "wide.txt", "text": "y" * 50_000},
    ]
    diff = str((await files("prepare_changes", files=changes))["diff"])
    assert "… (10000 lines become 1)" in diff
    assert diff.endswith("more characters left out)\n")
    assert len(diff) < 41_000


# --- write_many ---------------------------------------------------------------------------------


async def test_several_files_are_written(files: Files, root: Path) -> None:
    given: list[JsonValue] = [
        {"path": "new/deep/a.py", "text": "x\n"},
        {"path": "README.md", "text": "ä"},
    ]
    for _ in range(2):  # a repeated call does the same again
        done = await files("write_many", files=given)
        assert done == {
            "files": [{"path": "new/deep/a.py", "bytes": 2}, {"path": "README.md", "bytes": 2}]
        }
    assert (root / "new" / "deep" / "a.py").read_text() == "x\n"
    assert (root / "README.md").read_text() == "ä"


async def test_a_file_that_is_refused_keeps_all_from_being_written(
    files: Files, root: Path
) -> None:
    error = await files.refusal(
        "write_many", files=[{"path": "a.py", "text": "x"}, {"path": "../b.py", "text": "x"}]
    )
    assert error.error_code == "outside-root"
    assert not (root / "a.py").exists()


async def test_prepared_files_can_be_written_as_they_are(files: Files, root: Path) -> None:
    prepared = await files("prepare_changes", files=[{"path": "a.py", "text": "x"}])
    made = prepared["files"]
    assert isinstance(made, list)
    await files("write_many", files=made)
    assert (root / "a.py").read_text() == "x"
