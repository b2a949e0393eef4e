"""The program of an MCP server: where it is looked for, and that a replaced one is not started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from minions.adapters.tools.mcp.program import (
    ProgramCheck,
    digest_of_file,
    find_program,
    safe_folders,
)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("entry", ["", ".", "bin", "./bin", "../bin"])
def test_an_empty_or_relative_entry_of_path_names_no_program(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-153: the working folder may be a stranger's."""
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    for folder in (".", "bin", "../bin"):
        program(Path(folder) / "the-server")
    with pytest.raises(OSError, match=r"the-server in the folders of PATH; the one in '.*' is not"):
        find_program(["the-server"], None, {"PATH": f"{entry}:/usr/bin"})
    good = program(tmp_path / "good" / "the-server")
    found = find_program(["the-server"], None, {"PATH": f"{entry}:{good.parent}"})
    assert (found.path, found.folders) == (str(good), str(good.parent))


def test_an_entry_that_everybody_may_write_names_no_program(tmp_path: Path) -> None:
    """A-153."""
    shared = program(tmp_path / "shared" / "the-server").parent
    for mode in (0o777, 0o1777):
        shared.chmod(mode)
        assert safe_folders(str(shared)) == ([], [str(shared)])
    shared.chmod(0o755)
    assert safe_folders(str(shared)) == ([str(shared)], [])
    below = program(tmp_path / "open" / "bin" / "the-server").parent
    below.parent.chmod(0o777)  # who may rename `bin` may put another one in its place
    assert safe_folders(str(below)) == ([], [str(below)])
    below.parent.chmod(0o1777)
    assert safe_folders(str(below)) == ([str(below)], [])
    link = tmp_path / "link"
    link.symlink_to(shared)
    shared.chmod(0o777)
    assert safe_folders(f"{link}:/usr/bin") == (["/usr/bin"], [str(link)])


def test_a_relative_command_starts_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    program(tmp_path / "there" / "tool.sh")
    found = find_program(["./tool.sh"], str(tmp_path / "there"), {})
    assert Path(found.path).resolve() == tmp_path / "there" / "tool.sh"
    with pytest.raises(OSError, match="there is no program"):
        find_program(["./tool.sh"], None, {})


def seen(command: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> set[str]:
    return set(find_program(command, str(folder), variables or {}).seen())


def test_what_an_interpreter_is_told_to_run_or_load_belongs_to_the_program(tmp_path: Path) -> None:
    """A-153."""
    for name in ("server.py", "lib.so", "hook.js", "pkg/__main__.py", "pkg/__init__.py", "start"):
        program(tmp_path / name, "#!/bin/sh\n")
    (tmp_path / "start").chmod(0o644)
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "plain").write_text("print()")
    python, sh = sys.executable, shutil.which("sh") or "/bin/sh"
    assert seen([python, "-I", "server.py", "data.json"], tmp_path) == {python, "server.py"}
    assert seen([python, "plain", "data.json"], tmp_path) == {python, "plain"}
    assert seen([python, "start"], tmp_path) == {python, "start"}
    assert seen([python, "-m", "pkg"], tmp_path) == {python, "pkg/__init__.py", "pkg/__main__.py"}
    assert seen([python, "pkg"], tmp_path) == {python, "pkg/__main__.py"}
    assert seen([sh, "-c", "exec ./start --x"], tmp_path) == {sh, "./start"}
    assert seen(["env", "A=b", "python3", "server.py"], tmp_path) == {"env", "server.py"}
    assert seen([sh, "--rcfile=hook.js"], tmp_path) == {sh, "hook.js"}
    variables = {"NODE_OPTIONS": "--require=./hook.js", "LD_PRELOAD": "lib.so", "A": "data.json"}
    assert seen([sh], tmp_path, variables) == {sh, "./hook.js", "lib.so"}


def test_a_replaced_new_or_removed_file_is_a_change(tmp_path: Path) -> None:
    """A-153."""
    tool, lib = program(tmp_path / "tool.sh"), program(tmp_path / "lib.py")

    def now() -> list[str]:
        found = find_program(["./tool.sh", "lib.py", "late.py"], str(tmp_path), {})
        return [change.words for change in check.changes(found)]

    first = find_program(["./tool.sh", "lib.py", "late.py"], str(tmp_path), {})
    check = ProgramCheck(on_machine=first.seen())
    assert now() == []
    os.utime(tool)
    assert now() == []
    program(tool, "#!/bin/sh\n#\n")
    assert now()[0].startswith("./tool.sh was sha256 ")
    program(tool)
    program(tmp_path / "late.py")
    assert now()[0].startswith("late.py is new (sha256 ")
    (tmp_path / "late.py").unlink()
    lib.unlink()
    assert now() == ["lib.py is gone"]


def test_a_lock_knows_the_files_of_its_folder_alone(tmp_path: Path) -> None:
    """Those are the same in every checkout; the interpreters of two machines differ."""
    project = tmp_path / "project"
    script, outside = program(project / "server.py"), program(tmp_path / "outside.py")
    command = [sys.executable, "server.py", str(outside), str(script)]
    found = find_program(command, str(project), {})
    assert len(found.seen()) == 4
    assert set(found.seen(project)) == {"server.py"}
    check = ProgramCheck(in_lock=found.seen(project), folder=project)
    program(outside, "#!/bin/sh\n#\n")
    assert check.changes(find_program(command, str(project), {})) == []
    program(script, "#!/bin/sh\n#\n")
    assert [each.name for each in check.changes(find_program(command, str(project), {}))] == [
        "server.py"
    ]
    venv = program(project / "bin" / "the-server")
    looked_up = find_program(["the-server"], str(project), {"PATH": str(venv.parent)})
    assert looked_up.seen(project) == {}


def test_what_cannot_be_hashed_is_known_by_what_tells_it_from_another(tmp_path: Path) -> None:
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(2**31)
    script = tmp_path / "large.py"
    found = find_program([sys.executable, "large.py"], str(tmp_path), {})
    digest = found.seen()["large.py"]
    assert digest.startswith("unread:")
    os.truncate(script, 2**31 + 1)
    assert found.seen()["large.py"] != digest


def test_a_program_that_is_nowhere_is_not_said_to_be_in_a_refused_folder(tmp_path: Path) -> None:
    for path in (f"bin:{tmp_path}", str(tmp_path)):
        with pytest.raises(
            OSError, match=r"there is no program the-server in the folders of PATH$"
        ):
            find_program(["the-server"], str(tmp_path), {"PATH": path})


def test_it_is_said_in_which_refused_folder_a_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "bin" / "the-server")
    with pytest.raises(OSError, match=r"the one in 'bin' is not taken"):
        find_program(["the-server"], None, {"PATH": "other:bin"})
    program(tmp_path / "the-server")
    with pytest.raises(OSError, match=r"the one in '\.' is not taken"):
        find_program(["the-server"], None, {"PATH": "other:"})


def test_a_folder_that_is_not_there_is_left_in_path() -> None:
    assert safe_folders("/nowhere/bin") == (["/nowhere/bin"], [])


def test_a_program_named_by_its_path_may_be_started(tmp_path: Path) -> None:
    plain = program(tmp_path / "tool")
    plain.chmod(0o644)
    for name in ("./tool", "./absent", "./", str(tmp_path)):
        with pytest.raises(OSError, match="there is no program"):
            find_program([name], str(tmp_path), {})


def test_a_path_of_the_surroundings_is_this_process_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = program(tmp_path / "good" / "the-server").parent
    monkeypatch.setenv("PATH", str(good))
    for variables in ({}, {"PATH": "env:PATH"}):
        assert find_program(["the-server"], None, variables).folders == str(good)
    monkeypatch.setenv("OTHER", f"{good}:/usr/bin")
    assert find_program(["the-server"], None, {"PATH": "env:OTHER"}).folders == f"{good}:/usr/bin"
    assert find_program(["the-server"], None, {"PATH": "/bin"}, str(good)).folders == str(good)
    monkeypatch.setenv("PATH", "")
    assert find_program(["sh"], None, {}).folders == os.defpath


@pytest.mark.parametrize(
    ("name", "mode", "text", "holds"),
    [
        ("a.PY", 0o644, "pass", True),
        ("a.jar", 0o644, "PK", True),
        ("a.exe", 0o644, "MZ", True),
        ("a.data", 0o755, "pass", True),
        ("a.data", 0o644, "#!/bin/sh", True),
        ("a.data", 0o644, "#", False),
        ("a.data", 0o644, "pass #!", False),
    ],
)
def test_what_is_code_is_told_by_its_name_its_rights_and_its_beginning(
    name: str, mode: int, text: str, holds: bool, tmp_path: Path
) -> None:
    tool = program(tmp_path / "tool")
    program(tmp_path / name, text).chmod(mode)
    expected = {name} if holds else set()
    assert seen([str(tool), "--of", name], tmp_path) == {str(tool), *expected}
    assert seen([str(tool)], tmp_path, {"A": name}) == {str(tool), *expected}


def test_an_interpreter_runs_the_first_file_it_is_given_and_no_more(tmp_path: Path) -> None:
    for name in ("first", "second", "-flag", "folder/index.js", "folder/package.json"):
        program(tmp_path / name, "text").chmod(0o644)
    python, tool = sys.executable, str(program(tmp_path / "tool"))
    assert seen([python, "first", "second"], tmp_path) == {python, "first"}
    assert seen([python, "--of=first", "second"], tmp_path) == {python, "second"}
    assert seen([python, "--of=first"], tmp_path) == {python}
    assert seen([tool, "first"], tmp_path) == {tool}
    inner = {"folder/index.js", "folder/package.json"}
    assert seen([python, "folder"], tmp_path) == {python, *inner}
    assert seen([tool, "folder"], tmp_path) == {tool}
    assert seen([python, "-folder"], tmp_path) == {python}
    program(tmp_path / "-folder" / "index.js", "text").chmod(0o644)
    assert seen([python, "-folder"], tmp_path) == {python}
    program(tmp_path / "of" / "name.py")
    assert seen([tool, "-m", "of.name"], tmp_path) == {tool, "of/name.py"}
    assert seen([tool, "of.name"], tmp_path) == {tool}


def test_the_words_of_a_shell_are_looked_at_one_by_one(tmp_path: Path) -> None:
    program(tmp_path / "run.sh")
    program(tmp_path / "a=b.sh")
    tool = str(program(tmp_path / "tool"))
    assert seen([tool, "cd x&&(run.sh)"], tmp_path) == {tool, "run.sh"}
    assert seen([tool, "x&&run.sh"], tmp_path) == {tool}  # one word: no shell reads it
    assert seen([tool, "a=b.sh"], tmp_path) == {tool, "a=b.sh"}
    assert seen([tool, "\0", "x" * 5_000, ""], tmp_path) == {tool}


def test_only_so_many_files_belong_to_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.adapters.tools.mcp.program._MOST_FILES", 3)
    for name in "abcd":
        program(tmp_path / name)
    tool = str(program(tmp_path / "tool"))
    assert seen([tool, *"abcd"], tmp_path) == {tool, "a", "b"}


def test_a_change_is_told_once(tmp_path: Path) -> None:
    """Of a file that the lock knows and that was looked at on this machine, too."""
    tool = program(tmp_path / "tool.sh")
    first = find_program(["./tool.sh"], str(tmp_path), {})
    check = ProgramCheck(in_lock=first.seen(tmp_path), folder=tmp_path, on_machine=first.seen())
    program(tool, "#!/bin/sh\n#\n")
    (change,) = check.changes(find_program(["./tool.sh"], str(tmp_path), {}))
    assert change.words.startswith("./tool.sh was sha256 ")
    assert ProgramCheck().changes(first) == []


def test_a_file_of_the_largest_size_is_read_and_no_pipe_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.adapters.tools.mcp.program._MOST_BYTES", 10)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert digest_of_file(file).startswith("sha256:")
    file.write_bytes(b"x" * 11)
    assert digest_of_file(file).startswith("unread:")
    os.mkfifo(tmp_path / "pipe")
    assert digest_of_file(tmp_path / "pipe").startswith("unread:")
    with pytest.raises(OSError, match="No such file"):
        digest_of_file(tmp_path / "absent")


def test_a_file_that_cannot_be_read_is_told_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, file = str(program(tmp_path / "tool")), program(tmp_path / "secret")
    file.chmod(0o644)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)  # no mode keeps the superuser out
    assert digest_of_file(file).startswith("unread:")
    assert seen([tool, "secret"], tmp_path) == {tool}
