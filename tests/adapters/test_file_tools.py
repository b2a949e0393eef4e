"""The file tools: what they give, what they refuse, and that nothing leads out of the root."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import result_of
from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import GlobPattern, Place, _has_choice
from minions.adapters.tools.files_toolset import LineMatcher, files_toolset
from minions.contracts.protected_files import CONFIGURES, SECRETS
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("import os\nprint('hi')\n")
    (folder / "src" / "deep" / "util.py").write_text("def help():\n    return 1\n")
    (folder / "README.md").write_text("# Hi\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]\n")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


class Files:
    """The tools as a caller sees them."""

    def __init__(self, root: Path, **options: JsonValue) -> None:
        opened = files_toolset().open({"root": str(root), **options}, "fs")
        self._tools = {made.spec.name: made for made in opened}

    async def __call__(self, name: str, **arguments: JsonValue) -> JsonValue:
        return await result_of(self._tools[f"fs__{name}"], arguments, SCOPE)

    async def refusal(self, name: str, **arguments: JsonValue) -> ToolError:
        with pytest.raises(ToolError) as caught:
            await self(name, **arguments)
        return caught.value


@pytest.fixture
def files(root: Path) -> Files:
    return Files(root)


# --- the toolset -----------------------------------------------------------------------------


def test_the_toolset_names_its_tools_and_effects() -> None:
    toolset = files_toolset()
    assert {spec.name: spec.effect for spec in toolset.specs} == {
        "read": Effect.PURE,
        "list": Effect.PURE,
        "glob": Effect.PURE,
        "search": Effect.PURE,
        "write": Effect.IDEMPOTENT,
        "edit": Effect.ONCE,
        "overview": Effect.PURE,
        "read_many": Effect.PURE,
        "prepare_changes": Effect.PURE,
        "write_many": Effect.IDEMPOTENT,
        "read_parquet": Effect.PURE,
        "read_pdf": Effect.PURE,
    }
    for spec in toolset.specs:
        check_schema(spec.parameters)
        assert spec.description
    assert {tool.spec.name for tool in toolset.open({}, "fs")} == {
        f"fs__{spec.name}" for spec in toolset.specs
    }


def test_the_options_have_their_defaults_and_refuse_others() -> None:
    validator = SchemaValidator(files_toolset().options)
    properties = files_toolset().options["properties"]
    assert isinstance(properties, Mapping)
    defaults: dict[str, JsonValue] = {}
    for name, schema in properties.items():
        assert isinstance(schema, Mapping)
        defaults[name] = schema["default"]
    assert defaults == {
        "root": ".",
        "max_read_bytes": 262_144,
        "max_write_bytes": 1_048_576,
        "create": False,
        "undo": False,
        "exclude": [".git", "node_modules", "__pycache__", ".venv"],
        "protect": [],
        "allow_config": [],
        "allow_secrets": [],
    }
    assert validator.errors(defaults) == ()
    assert len(validator.errors({"max_read_bytes": 0, "rot": "x"})) == 2


async def test_a_missing_root_is_the_callers_fault_at_the_first_call(tmp_path: Path) -> None:
    files = Files(tmp_path / "none")
    with pytest.raises(UsageError) as caught:
        await files("list")
    assert caught.value.error_code == "no-such-root"
    assert "or set `create: true`" in caught.value.message
    assert await Files(tmp_path / "none", create=True)("list") == {"path": ".", "entries": []}


# --- read ------------------------------------------------------------------------------------


async def test_a_file_is_read_whole(files: Files) -> None:
    assert await files("read", path="src/main.py") == {
        "path": "src/main.py",
        "text": "import os\nprint('hi')\n",
        "lines": 2,
        "truncated": False,
    }


async def test_an_absolute_path_inside_the_root_is_taken(files: Files, root: Path) -> None:
    read = await files("read", path=str(root / "README.md"))
    assert read == {"path": "README.md", "text": "# Hi\n", "lines": 1, "truncated": False}


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [(2, 3, "b\nc\n"), (None, 1, "a\n"), (4, None, "d"), (3, 99, "c\nd"), (4, 4, "d")],
)
async def test_some_lines_of_a_file_are_read(
    files: Files, root: Path, first: int | None, last: int | None, text: str
) -> None:
    (root / "abc").write_text("a\nb\nc\nd")
    read = await files("read", path="abc", start_line=first, end_line=last)
    lines = len(text.splitlines())
    assert read == {"path": "abc", "text": text, "lines": lines, "truncated": False}


async def test_a_large_file_is_refused_and_its_lines_are_read(root: Path) -> None:
    (root / "large").write_text("".join(f"line {n}\n" for n in range(1, 10_001)))
    files = Files(root, max_read_bytes=100)
    error = await files.refusal("read", path="large")
    assert "98894 bytes" in str(error)
    assert "start_line" in str(error)
    read = await files("read", path="large", start_line=9_999)
    assert isinstance(read, Mapping)
    assert read["text"] == "line 9999\nline 10000\n"
    assert (await files.refusal("read", path="large", start_line=2)).error_code == "file-too-large"


@pytest.mark.parametrize("bounds", [(3, 2), (6, None)])
async def test_lines_that_are_not_there_are_refused(
    files: Files, root: Path, bounds: tuple[int, int | None]
) -> None:
    (root / "abc").write_text("a\nb\nc\nd\n")
    error = await files.refusal("read", path="abc", start_line=bounds[0], end_line=bounds[1])
    assert error.error_code == "bad-range"


@pytest.mark.parametrize("data", [b"\0\1", b"caf\xe9", "é".encode("utf-16")])
async def test_what_is_no_text_is_refused(files: Files, root: Path, data: bytes) -> None:
    (root / "data").write_bytes(data)
    assert (await files.refusal("read", path="data")).error_code == "not-text"


async def test_line_ends_are_left_as_they_are(files: Files, root: Path) -> None:
    (root / "dos").write_bytes(b"a\r\nb\r\n")
    read = await files("read", path="dos")
    assert read == {"path": "dos", "text": "a\r\nb\r\n", "lines": 2, "truncated": False}


async def test_a_missing_file_is_told_with_near_names(files: Files, root: Path) -> None:
    error = await files.refusal("read", path="src/mian.py")
    assert error.suggestions == ("main.py",)
    assert str(error) == (
        f"There is no 'src/mian.py' below '{root}'. Did you mean 'main.py'? "
        "In 'src' there are: deep, main.py."
    )
    assert (await files.refusal("read", path="scr/deep/x")).suggestions == ("src",)


# --- list, glob, search ----------------------------------------------------------------------


async def test_a_folder_is_listed_sorted_without_what_is_excluded(files: Files, root: Path) -> None:
    (root / "link").symlink_to("README.md")
    os.mkfifo(root / "pipe")
    assert await files("list") == {
        "path": ".",
        "entries": [
            {"name": "README.md", "type": "file", "size_bytes": 5},
            {"name": "link", "type": "link", "size_bytes": None},
            {"name": "pipe", "type": "other", "size_bytes": None},
            {"name": "src", "type": "directory", "size_bytes": None},
        ],
    }
    assert (await files.refusal("list", path="README.md")).error_code == "file-refused"


async def test_names_that_are_no_unicode_are_shown(files: Files, root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9")).touch()
    found = await files("glob", pattern="caf*")
    assert found == {"files": ["caf\ufffd"], "total": 1, "truncated": False}


async def test_files_are_found_by_pattern(files: Files) -> None:
    assert await files("glob", pattern="**/*.py") == {
        "files": ["src/deep/util.py", "src/main.py"],
        "total": 2,
        "truncated": False,
    }
    assert await files("glob", pattern="**/*", limit=1) == {
        "files": ["README.md"],
        "total": 3,
        "truncated": True,
    }


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/deep/a.py", True),
        ("src/**", "src/deep/a.py", True),
        ("src/**/a.py", "src/a.py", True),
        ("src/*/a.py", "src/a.py", False),
        ("./src/[ab].?y", "src/b.py", True),
        ("**/deep/**/*.py", "src/deep/x/y/a.py", True),
        ("**", "a/b", True),
        ("*", ".env", True),
        ("[[]a]", "[a]", True),
        ("[]]", "]", True),
    ],
)
def test_glob_patterns(pattern: str, path: str, fits: bool) -> None:
    assert GlobPattern(pattern).matches(path.split("/")) is fits


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "**/*.{ts,js}", "src/[ab", "[!]*"])
async def test_patterns_that_could_find_nothing_are_refused(files: Files, pattern: str) -> None:
    assert (await files.refusal("glob", pattern=pattern)).error_code == "bad-pattern"


@pytest.mark.parametrize("pattern", ["{a," * 5_000, "[" * 5_000, "**/" * 400])
async def test_a_pattern_over_the_limit_is_refused(files: Files, pattern: str) -> None:
    """Its translation takes more than linear time and cannot be interrupted."""
    for error in (
        await files.refusal("glob", pattern=pattern),
        await files.refusal("search", pattern="x", glob=pattern),
    ):
        assert error.error_code == "bad-pattern"
        assert f"has {len(pattern)} characters; at most 1000 are allowed" in error.message
        assert len(error.message) < 300


@given(st.text(alphabet="{},a", max_size=12))
def test_a_choice_is_found_wherever_braces_hold_a_comma(pattern: str) -> None:
    assert _has_choice(pattern) is (re.search(r"\{[^}]*,[^}]*\}", pattern) is not None)


def test_an_excluded_pattern_over_the_limit_is_no_option() -> None:
    (error,) = SchemaValidator(files_toolset().options).errors({"exclude": ["[" * 5_000]})
    assert error.startswith("$.exclude[0]: ")


async def test_plain_text_is_found(files: Files, root: Path) -> None:
    (root / "binary").write_bytes(b"import\0")
    (root / "long.txt").write_text("x" * 200_000 + "\nimport " + "y" * 1_000 + "\n")
    found = await files("search", pattern="import")
    assert found == {
        "matches": [
            {"path": "long.txt", "line": 2, "text": "import " + "y" * 292 + "…"},
            {"path": "src/main.py", "line": 1, "text": "import os"},
        ],
        "total": 2,
        "truncated": False,
    }
    # The pattern is plain: its characters mean themselves.
    nothing = await files("search", pattern="import.*")
    assert nothing == {"matches": [], "total": 0, "truncated": False}


async def test_regular_expressions_are_found_in_the_chosen_files(files: Files) -> None:
    found = await files("search", pattern=r"^\s*(return|print)\b", regex=True, limit=1)
    assert found == {
        "matches": [{"path": "src/deep/util.py", "line": 2, "text": "    return 1"}],
        "total": 2,
        "truncated": True,
    }
    none = await files("search", pattern="return", regex=True, glob="*.md")
    assert none == {"matches": [], "total": 0, "truncated": False}


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "a" * 5_000, "(" * 500])
async def test_bad_regular_expressions_are_refused(files: Files, pattern: str) -> None:
    error = await files.refusal("search", pattern=pattern, regex=True)
    assert error.error_code == "bad-pattern"
    assert len(error.message) < 400


def test_a_pattern_that_takes_too_long_is_stopped() -> None:
    with (
        LineMatcher("(.*)(.*)(.*)(.*)(.*)=x", timeout_s=0.2) as matcher,
        pytest.raises(ToolError, match="takes too long"),
    ):
        matcher.matching(["a" * 1_000])


def test_all_batches_of_a_search_have_one_time_together() -> None:
    """A folder of many files may need nearly the whole time of a batch for each."""
    with LineMatcher("(.*)(.*)(.*)(.*)(.*)=x", timeout_s=60, in_all_s=0.2) as matcher:
        assert matcher.matching(["=x"]) == [0]
        with pytest.raises(ToolError, match="takes too long"):
            matcher.matching(["a" * 1_000])
    for pattern in ("a", "a+"):
        with (
            LineMatcher(pattern, in_all_s=0) as matcher,
            pytest.raises(ToolError, match="within 0 s"),
        ):
            matcher.matching(["a"])


def test_only_a_pattern_that_may_take_long_needs_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/there/is/none")
    with LineMatcher("(?i)one|two") as matcher:
        assert matcher.matching(["One", "three", "TWO", "." * 5_000]) == [0, 2]
        with pytest.raises(FileNotFoundError):
            matcher.matching(["One", "." * 5_001])
    for pattern in ("one+", "one.two", "a" * 101, "(?s)one", "(one)"):
        with LineMatcher(pattern) as matcher, pytest.raises(FileNotFoundError):
            matcher.matching(["one"])


def test_a_long_line_is_searched_in_a_process_as_others_are_here() -> None:
    with LineMatcher("one|two") as matcher:
        assert matcher.matching(["no", "one"]) == [1]
        assert matcher.matching(["." * 6_000 + "two", "no", "two"]) == [0, 2]
        assert matcher.matching(["no", "one"]) == [1]


async def test_line_numbers_hold_beyond_one_batch(files: Files, root: Path) -> None:
    (root / "many.txt").write_text("no\n" * 4_999 + "yes\n")
    found = await files("search", pattern="yes", glob="many.txt")
    assert isinstance(found, Mapping)
    assert found["matches"] == [{"path": "many.txt", "line": 5_000, "text": "yes"}]


async def test_a_name_that_is_no_utf_8_is_not_its_own_near_name(files: Files, root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9")).touch()
    error = await files.refusal("read", path="caf�")
    assert "Did you mean" not in error.message
    assert "The name of 'caf�' is not UTF-8" in error.message
    assert error.suggestions == ()


# --- write and edit --------------------------------------------------------------------------


async def test_a_file_is_written_with_its_folders(files: Files, root: Path) -> None:
    written = await files("write", path="new/deep/a.txt", text="naïve\n")
    assert written == {"path": "new/deep/a.txt", "bytes": 7}
    assert (root / "new/deep/a.txt").read_text() == "naïve\n"
    assert [path.name for path in (root / "new/deep").iterdir()] == ["a.txt"]


async def test_writing_replaces_a_file_and_keeps_its_mode(files: Files, root: Path) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)
    await files("write", path="run.sh", text="new")
    assert (root / "run.sh").read_text() == "new"
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o750


async def test_a_file_that_is_there_is_kept_unless_it_may_be_replaced(
    files: Files, root: Path
) -> None:
    error = await files.refusal("write", path="README.md", text="new", overwrite=False)
    assert error.error_code == "file-exists"
    assert (root / "README.md").read_text() == "# Hi\n"
    again = await files("write", path="README.md", text="# Hi\n", overwrite=False)
    assert again == {"path": "README.md", "bytes": 5}


async def test_a_large_file_that_may_not_be_replaced_is_not_read(files: Files, root: Path) -> None:
    """A-124."""
    with (root / "huge").open("wb") as huge:
        huge.truncate(1 << 40)  # a sparse file: reading it would take all memory
    error = await files.refusal("write", path="huge", text="new", overwrite=False)
    assert error.error_code == "file-exists"


async def test_a_file_of_the_same_size_with_other_content_is_kept(files: Files, root: Path) -> None:
    (root / "same").write_text("abc")
    error = await files.refusal("write", path="same", text="abd", overwrite=False)
    assert error.error_code == "file-exists"


@pytest.mark.parametrize(
    "path", ["a/" * 50_000 + "b", "./" * 300 + "README.md", "x" * 5_000, "../" * 50_000]
)
@pytest.mark.parametrize("action", ["read", "list", "write"])
async def test_a_path_that_no_system_opens_is_refused_before_it_is_looked_up(
    files: Files, path: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-124."""

    def looked_up(_: object) -> str:
        raise AssertionError("the path was looked up")

    monkeypatch.setattr("os.path.realpath", looked_up)
    arguments = {"text": "x"} if action == "write" else {}
    error = await files.refusal(action, path=path, **arguments)
    assert error.error_code == "bad-path"
    assert len(error.message) < 300


@pytest.mark.parametrize("text", ["x" * 101, "\ud83d"])
async def test_text_that_cannot_be_written_is_refused(root: Path, text: str) -> None:
    error = await Files(root, max_write_bytes=100).refusal("write", path="a", text=text)
    assert error.error_code in ("file-too-large", "bad-text")
    assert not (root / "a").exists()


async def test_a_folder_is_not_written_over(files: Files) -> None:
    assert (await files.refusal("write", path="src", text="x")).error_code == "not-a-file"
    assert (await files.refusal("write", path=".", text="x")).error_code == "tool-error"
    error = await files.refusal("write", path="README.md/a", text="x")
    assert error.error_code == "file-refused"


async def test_one_occurrence_is_edited(files: Files, root: Path) -> None:
    edited = await files("edit", path="src/main.py", old="'hi'", new="'ho'\r\n")
    assert edited == {"path": "src/main.py", "replacements": 1, "bytes": 24}
    assert (root / "src/main.py").read_bytes() == b"import os\nprint('ho'\r\n)\n"


@pytest.mark.parametrize(("old", "count"), [("absent", 0), ("a", 3)])
async def test_an_edit_that_is_not_unique_is_refused(
    files: Files, root: Path, old: str, count: int
) -> None:
    (root / "abc").write_text("a b a c a")
    error = await files.refusal("edit", path="abc", old=old, new="x")
    assert f"occurs {count} times" in str(error)
    assert (root / "abc").read_text() == "a b a c a"


async def test_all_occurrences_are_edited_on_request(files: Files, root: Path) -> None:
    (root / "abc").write_text("a b a c a")
    edited = await files("edit", path="abc", old="a", new="xx", replace_all=True)
    assert edited == {"path": "abc", "replacements": 3, "bytes": 12}
    error = await files.refusal("edit", path="abc", old="z", new="x", replace_all=True)
    assert "occurs 0 times" in str(error)


async def test_edits_of_one_file_at_the_same_time_are_all_kept(root: Path) -> None:
    (root / "c.txt").write_text("".join(f"<{n}>\n" for n in range(60)))
    toolsets = [Files(root), Files(root / "src" / "..")]
    await asyncio.gather(
        *(
            toolsets[n % 2]("edit", path="c.txt", old=f"<{n}>", new=f"[{n}]", replace_all=False)
            for n in range(60)
        )
    )
    assert (root / "c.txt").read_text() == "".join(f"[{n}]\n" for n in range(60))


_EDITS = """
import sys
from pathlib import Path
from minions.adapters.tools.confined_folder import ConfinedFolder

folder = ConfinedFolder(root=sys.argv[1])
for _ in range(100):
    with folder.changing(folder.place("n.txt")) as (file, replace):
        replace(str(int(file.read()) + 1).encode())
"""


def test_two_processes_that_change_one_file_wait_for_each_other(root: Path) -> None:
    (root / "n.txt").write_text("0")
    command = [sys.executable, "-c", _EDITS, str(root)]
    started = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in started] == [0, 0]
    assert (root / "n.txt").read_text() == "200"


def test_what_an_editor_wrote_meanwhile_is_not_lost(root: Path) -> None:
    folder = ConfinedFolder(root=str(root))
    with folder.changing(folder.place("README.md")) as (_, replace):
        (root / "README.md").write_text("by an editor")
        with pytest.raises(ToolError, match="changed by another program") as caught:
            replace(b"by us")
    assert caught.value.error_code == "file-changed"
    assert (root / "README.md").read_text() == "by an editor"
    assert {path.name for path in root.iterdir()} == {".git", "README.md", "src"}


async def test_only_one_of_many_first_writes_makes_the_file(files: Files, root: Path) -> None:
    outcomes = await asyncio.gather(
        *(files("write", path="new.txt", text=str(n), overwrite=False) for n in range(20)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, ToolError)]
    assert [error.error_code for error in refused] == ["file-exists"] * 19


async def test_a_file_too_large_to_edit_is_no_reason_to_read_lines(root: Path) -> None:
    error = await Files(root, max_write_bytes=10).refusal(
        "edit", path="src/main.py", old="os", new="sys"
    )
    assert error.message == (
        "'src/main.py' has 22 bytes; at most 10 can be edited at once. "
        "The operator can raise the toolset's option `max_write_bytes`."
    )


# --- confinement -----------------------------------------------------------------------------


def link_to_parent(root: Path) -> str:
    (root / "up").symlink_to("..")
    return "up/secret.txt"


def link_to_file(root: Path) -> str:
    (root / "link").symlink_to(root.parent / "secret.txt")
    return "link"


def chain_of_links(root: Path) -> str:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("../secret.txt")
    return "one"


def dangling_link(root: Path) -> str:
    (root / "new").symlink_to(root.parent / "new.txt")
    return "new"


WAYS_OUT: Mapping[str, Callable[[Path], str]] = {
    "absolute": lambda root: str(root.parent / "secret.txt"),
    "dots": lambda root: "../secret.txt",
    "hidden-dots": lambda root: "src/../../secret.txt",
    "twin": lambda root: f"../{root.name}2/x",
    "link-to-parent": link_to_parent,
    "link-to-file": link_to_file,
    "chain": chain_of_links,
    "dangling": dangling_link,
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("name", ["read", "list", "write", "edit"])
async def test_no_path_leads_out(files: Files, root: Path, way: str, name: str) -> None:
    path = WAYS_OUT[way](root)
    arguments: Mapping[str, dict[str, JsonValue]] = {
        "write": {"text": "x"},
        "edit": {"old": "secret", "new": "x"},
    }
    error = await files.refusal(name, path=path, **arguments.get(name, {}))
    assert error.error_code == "outside-root"
    assert path in str(error)
    assert str(root) in str(error)
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert sorted(item.name for item in root.parent.iterdir()) == ["root", "secret.txt"]


async def test_links_are_not_followed_by_glob_and_search(files: Files, root: Path) -> None:
    link_to_parent(root)
    link_to_file(root)
    found = await files("search", pattern="secret")
    assert found == {"matches": [], "total": 0, "truncated": False}
    names = await files("glob", pattern="**/*.txt")
    assert names == {"files": [], "total": 0, "truncated": False}


async def test_a_search_reads_what_it_can_of_other_encodings(root: Path) -> None:
    (root / "cafe").write_bytes("é café".encode("latin-1"))
    found = await Files(root)("search", pattern="caf", glob="cafe")
    assert found == {
        "matches": [{"path": "cafe", "line": 1, "text": "\ufffd caf\ufffd"}],
        "total": 1,
        "truncated": False,
    }


async def test_a_link_that_stays_inside_is_followed(files: Files, root: Path) -> None:
    (root / "here").symlink_to("src")
    written = await files("write", path="here/main.py", text="x")
    assert written == {"path": "src/main.py", "bytes": 1}
    assert (root / "here").is_symlink()


@pytest.mark.parametrize("path", [".git/config", ".GIT/hooks/x", "src/.git/x", "git/config"])
async def test_what_is_excluded_cannot_be_used(files: Files, root: Path, path: str) -> None:
    (root / "git").symlink_to(".git")
    for name, more in (("read", {}), ("write", {"text": "x"})):
        error = await files.refusal(name, path=path, **more)
        assert error.error_code == "excluded-path"


async def test_paths_can_be_excluded(root: Path) -> None:
    files = Files(root, exclude=["src/deep", "*.md", ".git"])
    found = await files("glob", pattern="**/*")
    assert found == {"files": ["src/main.py"], "total": 1, "truncated": False}
    error = await files.refusal("read", path="src/deep/util.py")
    assert error.error_code == "excluded-path"


@pytest.mark.parametrize("path", ["a\0b", "\ud83d"])
async def test_impossible_names_are_refused(files: Files, path: str) -> None:
    assert (await files.refusal("read", path=path)).error_code == "bad-path"


async def test_a_path_longer_than_the_system_takes_is_not_found(files: Files) -> None:
    path = "/".join(["a" * 40] * 99)
    assert (await files.refusal("read", path=path)).error_code == "no-such-file"
    for path in ("/".join(["folder"] * 900), f"{'d/' * 3_000}a.py"):
        assert (await files.refusal("read", path=path)).error_code == "bad-path"


async def test_pipes_devices_and_folders_are_not_read(files: Files, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for path in ("pipe", "src", "."):
        assert (await files.refusal("read", path=path)).error_code == "not-a-file"
    assert (await files.refusal("write", path="pipe", text="x")).error_code == "not-a-file"
    (root / "null").symlink_to("/dev/null")
    assert (await files.refusal("read", path="null")).error_code == "outside-root"


async def test_other_failures_of_a_path_are_told(files: Files, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    assert (await files.refusal("read", path="loop")).error_code == "file-refused"
    assert (await files.refusal("read", path="x" * 300)).error_code == "file-refused"
    assert (await files.refusal("read", path="README.md/x")).error_code == "file-refused"


def test_a_link_put_there_after_the_check_is_not_followed(root: Path) -> None:
    folder = ConfinedFolder(root=str(root))
    place = folder.place("src/main.py")
    (root / "src").rename(root / "gone")
    (root / "src").symlink_to(root / "gone")
    with pytest.raises(ToolError), folder.opened(place):
        pass
    with pytest.raises(ToolError):
        folder.replace(place, b"x", overwrite=True)
    final = Place(place.root, ("link",))
    (root / "link").symlink_to(root / "README.md")
    with pytest.raises(ToolError), folder.opened(final):
        pass


def test_importing_the_tools_loads_no_heavy_library() -> None:
    script = (
        "import sys\n"
        "from minions.adapters.tools.files_toolset import files_toolset\n"
        "from minions.adapters.tools.time_toolset import time_toolset\n"
        "files_toolset()\n"
        "heavy = {'cattrs', 'jsonschema', 'docstring_parser', 'openai', 'pydantic', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


# --- what configures ------------------------------------------------------------------------------


def sample_of(pattern: str) -> str:
    """A path that the pattern means."""
    path = re.sub(r"\[(.).*?\]", r"\1", pattern).replace("*", "_")
    return f"{path}inner.txt" if path.endswith("/") else path


CONFIGURING = [
    *(sample_of(patterns.split()[at]) for patterns in CONFIGURES.values() for at in (0, 7, -1)),
    *("below/minions.toml", "PyProject.TOML", "a/.GITHUB/workflows/ci.yml", "x/recipes/y.yaml"),
    *(".husky/pre-commit", ".venv/bin/activate", ".git/hooks/pre-commit", "Makefile.", "setup.py "),
    *("\uff2dakefile", ".g\u200cit/config", "conftest.py::$DATA", "GIT~1/config", ".env.local"),
]


@pytest.mark.parametrize("path", CONFIGURING)
async def test_what_configures_us_is_not_written(root: Path, path: str) -> None:
    files = Files(root, exclude=[])
    assert (await files.refusal("write", path=path, text="x")).error_code == "protected-path"
    many = await files.refusal("write_many", files=[{"path": path, "text": "x"}])
    assert many.error_code == "protected-path"
    drafted = await files.refusal("prepare_changes", files=[{"path": path, "text": "x"}])
    assert "configures tools that run outside" in drafted.message
    assert not (root / path).exists()


@pytest.mark.parametrize(
    "path",
    [
        *("src/main.py", "README.md", "build/out.txt", "configure/notes.md", "workspace/x.py"),
        *("docs/makefile-notes.md", "app/tasks.py", "package/__init__.py", ".env.example"),
        *("envoy/x.py", "recipes/notes.md", "tests/test_conftest.py", "site/index.html"),
    ],
)
async def test_other_files_are_written(files: Files, root: Path, path: str) -> None:
    await files("write", path=path, text="x")
    assert (root / path).read_text() == "x"


async def test_what_configures_us_is_read_and_not_edited(root: Path, files: Files) -> None:
    (root / "pyproject.toml").write_text("[tool]\n")
    assert (await files("read", path="pyproject.toml"))["text"] == "[tool]\n"  # type: ignore[call-overload, index]  # a mapping
    refused = await files.refusal("edit", path="pyproject.toml", old="tool", new="x")
    assert refused.error_code == "protected-path"
    assert (root / "pyproject.toml").read_text() == "[tool]\n"


@pytest.mark.parametrize(
    ("link", "leads_to", "path"),
    [
        ("notes.md", "minions.toml", "notes.md"),
        ("Makefile", "rules.txt", "Makefile"),
        ("Makefile", "rules.txt", "rules.txt"),
        (".vscode", "editor", "editor/tasks.json"),
        ("editor", ".vscode", "editor/tasks.json"),
        ("src/conftest.py", "../shared.py", "shared.py"),
        ("src/conftest.py", "util.txt", "src/util.txt"),
    ],
)
async def test_a_link_to_or_from_what_configures_us_is_not_written_through(
    root: Path, link: str, leads_to: str, path: str
) -> None:
    (root / "editor").mkdir()
    (root / link).parent.mkdir(exist_ok=True)
    if link == "editor":
        (root / "editor").rename(root / ".vscode")
    (root / link).symlink_to(leads_to)
    if link == "src/conftest.py" and path == "shared.py":
        (root / "conftest.py").symlink_to("shared.py")
    refused = await Files(root).refusal("write", path=path, text="x")
    assert refused.error_code == "protected-path"


async def test_a_folder_named_as_a_file_that_configures_us_is_written(root: Path) -> None:
    (root / "build").mkdir()
    await Files(root)("write", path="build/out.txt", text="x")
    assert (root / "build" / "out.txt").read_text() == "x"


async def test_a_link_is_excluded_by_its_own_name(root: Path) -> None:
    (root / "notes.log").symlink_to("README.md")
    files = Files(root, exclude=["*.log"])
    assert (await files.refusal("read", path="notes.log")).error_code == "excluded-path"
    assert "# Hi" in str(await files("read", path="README.md"))


async def test_a_link_to_one_file_keeps_no_other_from_being_written(root: Path) -> None:
    (root / "Makefile").symlink_to("rules.txt")
    await Files(root)("write", path="other.txt", text="x")
    await Files(root, allow_config=["Makefile"])("write", path="rules.txt", text="x")
    assert (root / "rules.txt").read_text() == "x"


@pytest.mark.parametrize(
    "below", [".github", ".vscode", ".git/hooks", ".git/a/b/c", "a/.idea", "recipes"]
)
async def test_a_root_within_what_configures_us_opens_nothing(root: Path, below: str) -> None:
    (root / below).mkdir(parents=True, exist_ok=True)
    refused = await Files(root / below, exclude=[]).refusal("write", path="x.yaml", text="x")
    assert refused.error_code == "protected-path"


async def test_a_recipe_opens_what_configures_us_by_name(root: Path) -> None:
    files = Files(
        root, exclude=[], allow_config=["makefile", "web/*.json", ".vscode", ".git", "*.git*"]
    )
    for path in ("Makefile", "sub/Makefile", "web/package.json", ".vscode/tasks.json"):
        await files("write", path=path, text="x")
        assert (root / path).read_text() == "x"
    for path in ("package.json", "conftest.py", ".git/config", ".git/hooks/x"):
        refused = await files.refusal("write", path=path, text="x")
        assert refused.error_code == "protected-path"
    assert "`allow_config`" in (await files.refusal("write", path="setup.py", text="x")).message
    assert "`git` only" in (await files.refusal("write", path=".git/config", text="x")).message


async def test_a_recipe_may_protect_further_files_and_cannot_protect_fewer(root: Path) -> None:
    refused = await Files(root, protect=["*.lock"]).refusal("write", path="a.lock", text="x")
    assert (refused.error_code, "`protect` decides" in refused.message) == ("protected-path", True)
    refused = await Files(root, protect=[]).refusal("write", path="pyproject.toml", text="x")
    assert refused.error_code == "protected-path"


# --- what is secret -------------------------------------------------------------------------------

SECRET = [
    *(sample_of(patterns.split()[at]) for patterns in SECRETS.values() for at in (0, 2, -1)),
    *("a/.ENV", "ID_RSA", "deploy/server.PEM", ".aws/sso/cache/x.json", ".env.", ".netrc "),
]


@pytest.mark.parametrize("path", SECRET)
async def test_a_secret_is_neither_read_nor_found(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("sesame\n")
    files = Files(root, exclude=[])
    calls: list[tuple[str, dict[str, JsonValue]]] = [
        ("read", {"path": path}),
        ("read_many", {"files": [path]}),
        ("read_many", {"files": [f"{path}:1-2"]}),
        ("edit", {"path": path, "old": "sesame", "new": "x"}),
        ("write", {"path": path, "text": "x"}),
    ]
    for name, arguments in calls:
        refused = await files.refusal(name, **arguments)
        assert refused.error_code in ("secret-file", "protected-path")
        assert "sesame" not in refused.message
    calls = [
        ("search", {"pattern": "ses"}),
        ("glob", {"pattern": "**/*"}),
        ("overview", {"about": path}),
        ("list", {"path": "."}),
    ]
    for name, arguments in calls:
        found = str(await files(name, **arguments))
        assert "sesame" not in found
        assert Path(path).name not in found or "/" in path
    missing = await files.refusal("read", path=f"{path}x")
    assert f"'{Path(path).name}'" not in missing.message
    assert (root / path).read_text() == "sesame\n"


async def test_changes_of_a_secret_are_not_prepared(root: Path) -> None:
    """What was in it would stand in the difference."""
    (root / "server.key").write_text("sesame\n")
    refused = await Files(root).refusal(
        "prepare_changes", files=[{"path": "server.key", "text": "x"}]
    )
    assert "taken for a secret" in refused.message
    assert "sesame" not in refused.message


async def test_a_link_to_a_secret_is_a_secret_and_so_is_what_a_secret_leads_to(
    root: Path,
) -> None:
    (root / ".env").write_text("sesame")
    (root / "notes.txt").symlink_to(".env")
    (root / "folder").mkdir()
    (root / "folder" / "id_rsa").symlink_to("../README.md")
    (root / "keys").symlink_to(root / ".ssh")
    (root / ".ssh").mkdir()
    (root / ".ssh" / "config").write_text("sesame")
    files = Files(root)
    for path in (".env", "notes.txt", "folder/../notes.txt", "folder/id_rsa", "keys/config"):
        assert (await files.refusal("read", path=path)).error_code == "secret-file"
    assert (await files.refusal("list", path="keys")).error_code == "secret-file"


async def test_a_root_within_a_folder_of_secrets_opens_none(root: Path) -> None:
    (root / ".aws" / "sso").mkdir(parents=True)
    (root / ".aws" / "sso" / "token").write_text("sesame")
    files = Files(root / ".aws" / "sso")
    assert (await files.refusal("read", path="token")).error_code == "secret-file"
    assert (await files.refusal("list")).error_code == "secret-file"
    opened = Files(root / ".aws" / "sso", allow_secrets=[".aws"])
    assert "sesame" in str(await opened("read", path="token"))


async def test_a_recipe_opens_secrets_by_name(root: Path) -> None:
    for name in (".env", ".env.test", "a.pem"):
        (root / name).write_text("sesame\n")
    files = Files(root, allow_secrets=[".env.test"], allow_config=[".env.test"])
    assert "sesame" in str(await files("read", path=".env.test"))
    await files("write", path=".env.test", text="x")
    for name in (".env", "a.pem"):
        assert (await files.refusal("read", path=name)).error_code == "secret-file"
    found = str(await files("search", pattern="x")) + str(await files("list"))
    assert ".env.test" in found
    assert "a.pem" not in found


@pytest.mark.parametrize("path", ["id_rsa.pub", ".env.example", "src/credentials/x.py", "a.py"])
async def test_what_only_looks_like_a_secret_is_read(files: Files, root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("hello\n")
    assert "hello" in str(await files("read", path=path))
