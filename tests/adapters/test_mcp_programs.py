"""The program of an MCP server: where it is looked for, and that a replaced one is not started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from minions.adapters.tools.mcp.program import ProgramCheck, find_program, safe_folders


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
