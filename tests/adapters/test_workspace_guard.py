"""What is protected in a workspace before a command, and what is left of it afterwards.

Here the test itself does what a command would; that nothing else can is the sandboxes' part.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minions.adapters.sandboxes.supervisor import git_trust, workspace_guard
from minions.adapters.sandboxes.supervisor import workspace_folders as opened_folders
from minions.adapters.sandboxes.supervisor import workspace_folders as workspace_walk
from minions.adapters.sandboxes.supervisor.git_trust import is_repository, trusted_by_git
from minions.adapters.sandboxes.supervisor.workspace_folders import (
    MovedError,
    WalkedFolder,
    opened,
    remove,
    walk,
)
from minions.adapters.sandboxes.supervisor.workspace_guard import (
    ProtectedPath,
    WorkspaceGuard,
    mounts_of,
    outermost,
)
from minions.testing.command_sandbox_suite import REPOSITORY, texts_below, write_repository


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, of a person without a configuration of their own."""
    monkeypatch.setattr(
        "minions.adapters.sandboxes.supervisor.git_trust._of_person", lambda: iter(())
    )
    folder = tmp_path.resolve() / "work"
    folder.mkdir()
    return folder


def write(folder: Path, *names: str, text: str = "good\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def guard(folder: Path, *opened: str, is_git: bool = False) -> WorkspaceGuard:
    return WorkspaceGuard(str(folder), opened, (), is_git=is_git)


def protected(folder: Path, *opened: str, is_git: bool = False) -> dict[str, bool]:
    """The protected paths, each with whether it is pinned."""
    return dict(guard(folder, *opened, is_git=is_git).protected)


# --- before ------------------------------------------------------------------------------------


def test_repositories_are_protected_where_they_are_and_folders_wherever(work: Path) -> None:
    write_repository(work / ".git")
    write_repository(work / "a" / "b" / ".git")
    write_repository(work / "bare")
    write(work, "sub/.git", text="gitdir: ../.git/modules/sub\n")
    write(work, ".vscode/x", "pkg/.github/y", "Makefile", "a.py", "node_modules/z/.vscode/x")
    assert protected(work) == {
        ".git": True,
        "a/b/.git": True,
        "bare": True,
        "sub/.git": True,
        ".vscode": False,
        "pkg/.github": False,
    }


def test_what_pointers_and_configurations_name_is_protected(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text='[core]\nhooksPath=tools/hooks\n[alias]\nx="!sh run.sh"\n')
    write(work / ".git", "commondir", text="../common\n")
    write(work / ".git", "objects/info/alternates", text="../../pool/objects\n# a comment\n\n")
    write(work, "tools/hooks/pre-commit", "run.sh", "common/config", "pool/objects/x", "sh")
    assert protected(work) == {
        ".git": True,
        "tools/hooks": True,
        "run.sh": True,
        "common": True,
        "pool/objects": True,
        "sh": True,
    }


def test_links_to_what_is_named_are_protected_too(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = link/hooks\n")
    write(work, "real/hooks/pre-commit")
    (work / "link").symlink_to("real")
    assert protected(work) == {".git": True, "link": True, "real/hooks": True}


@pytest.mark.parametrize(
    "config",
    [
        '[filter "x"]\n\tclean = python3 tool.sh %f',
        '[filter "x"]\n\tsmudge = "./tool.sh" %f ; a comment',
        "[core]\n\tfsmonitor = ./tool.sh",
        "[core] sshCommand = ssh -F tool.sh",
        "[include]\n\tpath = ../tool.sh",
        '[includeIf "gitdir:x"]\n\tpath = ../tool.sh',
        '[diff "x"]\n\ttextconv = ./tool.sh',
        "[DIFF]\n\tExternal = ./tool.sh",
        '[merge "x"]\n\tdriver = ./tool.sh %O \\\n  %A',
        "[alias]\n\tgo = !./tool.sh",
        "[pager]\n\tlog = ./tool.sh",
        '[credential "https://x"]\n\thelper = !./tool.sh',
        "[gpg]\n\tprogram = ./tool.sh",
        '[mergetool "x"]\n\tcmd = ./tool.sh "$MERGED"',
        "[sequence]\n\teditor = ./tool.sh",
    ],
)
def test_programs_and_files_of_a_configuration_are_protected(work: Path, config: str) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text=f"# a comment\n{config}\n")
    write(work, "tool.sh")
    assert "tool.sh" in protected(work)


@pytest.mark.parametrize(
    "config",
    [
        "[alias]\n\tgo = tool.sh",
        '[remote "origin"]\n\turl = tool.sh',
        '[branch "main"]\n\tmerge = tool.sh',
        "[user]\n\tname = tool.sh",
        "# [core]\n;\tfsmonitor = ./tool.sh",
    ],
)
def test_what_a_configuration_only_mentions_is_not(work: Path, config: str) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text=f"{config}\n")
    write(work, "tool.sh")
    assert protected(work) == {".git": True}


def test_included_files_and_those_of_submodules_and_worktrees_count(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[include]\npath = more\n")
    write(work / ".git", "more", text="[core]\nfsmonitor = ./a.sh\n[include]\npath = more\n")
    write(work / ".git", "modules/x/config", text="[core]\nfsmonitor = ./b.sh\n")
    write(work / ".git", "worktrees/y/config.worktree", text="[core]\nfsmonitor = ./c.sh\n")
    write(work, "a.sh", "b.sh", "c.sh")
    assert set(protected(work)) == {".git", "a.sh", "b.sh", "c.sh"}


def test_the_repository_around_the_workspace_counts(work: Path) -> None:
    write_repository(work.parent / ".git")
    write(work.parent / ".git", "config", text="[core]\nhooksPath = work/hooks\n")
    write(work, "hooks/pre-commit")
    assert set(protected(work)) == {"hooks"}


def test_the_persons_own_configuration_counts_for_each_repository(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = work.parent / "gitconfig"
    own.write_text("[core]\nhooksPath = .hooks\n")
    monkeypatch.setattr(
        "minions.adapters.sandboxes.supervisor.git_trust._of_person", lambda: iter([str(own)])
    )
    write_repository(work / "sub" / ".git")
    write(work, ".hooks/x", "sub/.hooks/x")
    assert set(protected(work)) == {"sub/.git", ".hooks", "sub/.hooks"}


def test_what_is_open_is_not_protected_and_what_git_trusts_is(work: Path) -> None:
    write_repository(work / ".git")
    write(work, ".vscode/x", "pkg/.vscode/x", ".idea/x")
    assert set(protected(work, ".vscode", ".git", ".git/*")) == {".git", ".idea"}
    assert set(protected(work, "pkg")) == {".git", ".idea", ".vscode"}


def test_what_is_protected_as_a_whole_is_not_walked(work: Path) -> None:
    write(work, ".git/sub/.git/x", ".vscode/.git/x", ".vscode/.idea/x", "bare/x/.git/y")
    write_repository(work / "bare")
    assert set(protected(work)) == {".git", ".vscode", "bare"}
    made = guard(work)
    write(work, ".git/new/Makefile", ".vscode/new/Makefile", "bare/new/Makefile")
    assert made.restore() == []


def test_a_pointer_to_nowhere_is_no_repository_that_git_writes(work: Path) -> None:
    write(work, ".git", text="gitdir: nowhere\n")
    assert guard(work, is_git=True).writable == frozenset()


def test_git_writes_data_of_the_repository_of_the_workspace_only(work: Path) -> None:
    write_repository(work / ".git")
    write_repository(work / "sub" / ".git")
    write(work / ".git", "index", "packed-refs", "rebase-merge/todo", "logs/HEAD", "HEAD.lock")
    made = guard(work, is_git=True)
    assert made.writable == {".git"}
    assert {each.path for each in made.protected} == {
        ".git/config",
        ".git/hooks",
        ".git/info",
        ".git/objects/info",
        ".git/rebase-merge",
        "sub/.git",
    }
    assert guard(work).writable == frozenset()


def test_git_writes_what_a_pointer_of_the_workspace_leads_to(work: Path) -> None:
    write_repository(work / "data")
    write(work, ".git", text="gitdir: data\n")
    made = guard(work, is_git=True)
    assert made.writable == {"data"}
    assert {".git", "data/config", "data/hooks"} <= {each.path for each in made.protected}


@pytest.mark.parametrize("place", [".", ".git", ".git/hooks"])
def test_a_repositorys_own_folder_is_no_workspace(work: Path, place: str) -> None:
    write_repository(work if place == "." else work / ".git")
    with pytest.raises(OSError, match="repository's own folder"):
        guard(work / place)


def test_too_much_to_protect_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, *(f"p{at}/.vscode/x" for at in range(5)))
    monkeypatch.setattr(workspace_guard, "_MOST_PROTECTED", 4)
    with pytest.raises(OSError, match="5 repositories and folders that configure tools"):
        guard(work)
    assert protected(work, ".vscode") == {}
    monkeypatch.setattr(workspace_guard, "_MOST_PROTECTED", 5)
    guard(work)
    write(work, "Makefile", "sub/Makefile")
    monkeypatch.setattr(workspace_guard, "_MOST_BYTES", 10)
    guard(work)
    monkeypatch.setattr(workspace_guard, "_MOST_BYTES", 9)
    with pytest.raises(OSError, match="more than 0 MiB"):
        guard(work)


def test_mounts_come_after_those_of_the_folders_above(work: Path) -> None:
    write(work, "a/b/.git", "a/.vscode/x")
    (work / "link").symlink_to("a")
    found = mounts_of(
        str(work),
        [
            ProtectedPath("a/.vscode", is_pinned=False),
            ProtectedPath("a/b/.git", is_pinned=True),
            ProtectedPath("c/.idea", is_pinned=False),
            ProtectedPath("link", is_pinned=True),
        ],
    )
    plain = [each.removeprefix(f"{work}/") for each in found]
    assert plain == [
        *("--bind", "a", "a"),
        *("--bind", "a/b", "a/b"),
        *("--ro-bind", "a/.vscode", "a/.vscode"),
        *("--ro-bind", "a/b/.git", "a/b/.git"),
        *("--ro-bind", "c/.idea", "c/.idea"),
    ]


# --- after -------------------------------------------------------------------------------------


def test_nothing_is_done_where_nothing_was_changed(work: Path) -> None:
    write_repository(work / ".git")
    write(work, "Makefile", ".vscode/x", "a/__pycache__/b.pyc", "a.py")
    (work / "setup.py").symlink_to("a.py")
    made = guard(work)
    write(work, "a.py", "new/b.py", text="new\n")
    assert made.restore() == []
    assert texts_below(work / ".git") == REPOSITORY


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "folder": (lambda work: (work / ".git").mkdir(), [".git"]),
    "deep": (lambda work: (work / "a/b/.GIT/x").mkdir(parents=True), ["a/b/.GIT"]),
    "pointer": (lambda work: write(work, "a/.git", text="gitdir: ../x\n"), ["a/.git"]),
    "link": (lambda work: (work / ".git").symlink_to("a"), [".git"]),
    "pipe": (lambda work: os.mkfifo(work / "a/.git"), ["a/.git"]),
    "in packages": (lambda work: write(work, "node_modules/x/.git/y"), ["node_modules/x/.git"]),
    "in a new folder": (lambda work: write(work, ".idea/.git/y"), [".idea"]),
    "bare": (lambda work: write_repository(work / "a"), ["a/HEAD"]),
    "bare above": (lambda work: write_repository(work), ["HEAD"]),
    "bare by a pointer": (lambda work: write(work, "x/HEAD", "x/commondir"), ["x/HEAD"]),
    "config": (lambda work: write(work, "a/Makefile"), ["a/Makefile"]),
    "config by a link": (lambda work: (work / "setup.py").symlink_to("a"), ["setup.py"]),
    "config folder": (lambda work: write(work, "a/.vscode/x"), ["a/.vscode"]),
    "compiled": (lambda work: write(work, "a/x.PYC"), ["a/x.PYC"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_new_and_trusted_is_gone(work: Path, name: str) -> None:
    write(work, "a/main.py")
    change, expected = CHANGES[name]
    made = guard(work)
    change(work)
    assert made.restore() == expected
    assert guard(work).protected == ()
    assert made.restore() == expected  # of which nothing is left to do


def test_only_as_many_parts_of_a_repository_are_taken_as_make_it_one(work: Path) -> None:
    write(work, "a/HEAD", "b/refs/x", "b/objects/x", "c/HEAD", "c/refs/x")
    made = guard(work)
    write(work, "a/commondir", "a/refs/x", "a/objects/x", "b/HEAD", "c/objects/x")
    assert made.restore() == ["a/commondir", "a/refs", "b/HEAD", "c/objects"]
    assert (work / "a" / "HEAD").read_text() == "good\n"


def test_of_a_folder_put_aside_nothing_is_trusted_either(work: Path) -> None:
    made = guard(work)
    write(work, "venv/bin/activate", "venv/.vscode/.idea/x", "venv/src/.git/config")
    made.restore()
    assert set(texts_below(work)) == {
        "venv.refused/bin/activate.refused",
        "venv.refused/.vscode.refused/.idea.refused/x",
    }


def test_changed_files_are_put_back_with_their_rights(work: Path) -> None:
    write(work, "Makefile", "a/setup.py")
    (work / "Makefile").chmod(0o754)
    (work / "conftest.py").symlink_to("a/setup.py")
    made = guard(work)
    write(work, "Makefile", text="evil\n")
    (work / "a" / "setup.py").unlink()
    (work / "a" / "setup.py").symlink_to("/etc/passwd")
    (work / "conftest.py").unlink()
    write(work, "conftest.py", text="evil\n")
    assert made.restore() == ["Makefile", "a/setup.py", "conftest.py"]
    assert texts_below(work) == {
        "Makefile": "good\n",
        "Makefile.refused": "evil\n",
        "a/setup.py": "good\n",
        "conftest.py": "-> a/setup.py",
        "conftest.py.refused": "evil\n",
    }
    assert stat.S_IMODE((work / "Makefile").stat().st_mode) == 0o754


def test_of_very_many_paths_only_the_first_are_kept(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guard(work)
    write(work, "a/Makefile", "b/Makefile", "c/Makefile")
    monkeypatch.setattr(workspace_guard, "_MOST_KEPT", 2)
    assert len(made.restore()) == 2
    assert set(texts_below(work)) == {f"{each}/Makefile.refused" for each in "abc"}


def swapped_while_walked(
    work: Path, monkeypatch: pytest.MonkeyPatch, name: str, leads_to: str
) -> None:
    """The folder is replaced by a link after its name was read, once."""

    def swapping(root: str) -> Iterator[WalkedFolder]:
        for folder in walk(root):
            if not folder.path and (work / name).is_dir() and not (work / name).is_symlink():
                (work / name).rename(work / "swapped")
                (work / name).symlink_to(leads_to)
            yield folder
        monkeypatch.setattr(workspace_guard, "walk", walk)

    monkeypatch.setattr(workspace_guard, "walk", swapping)


def test_a_link_that_takes_the_place_of_a_folder_makes_no_other_folder_known(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who changes the workspace meanwhile would have any folder trusted under that name."""
    write(work, ".vscode/x", "evil/tasks.json")
    swapped_while_walked(work, monkeypatch, ".vscode", "evil")
    made = guard(work)
    (work / ".vscode").unlink()
    (work / "evil").rename(work / ".vscode")
    assert ".vscode" in made.restore()
    assert not (work / ".vscode").exists()


def test_a_link_to_a_known_folder_in_the_place_of_a_new_one_is_put_aside(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, ".idea/x")
    made = guard(work)
    write(work, ".vscode/x")
    swapped_while_walked(work, monkeypatch, ".vscode", ".idea")
    assert ".vscode" in made.restore()
    assert not (work / ".vscode").is_symlink()


def test_a_folder_of_that_name_in_place_of_the_one_before_is_put_aside(work: Path) -> None:
    write(work, ".vscode/x")
    made = guard(work)
    (work / ".vscode").rename(work / "old")
    write(work, ".vscode/x", text="evil\n")
    assert made.restore() == [".vscode"]
    assert texts_below(work) == {"old/x": "good\n", ".vscode.refused/x": "evil\n"}


def test_copied_moved_and_deleted_files_are_left(work: Path) -> None:
    write(work, "a/Makefile", "b/setup.py", "c/.vscode/x", "d/e.pyc")
    made = guard(work)
    (work / "a").rename(work / "moved")
    shutil.copy(work / "moved" / "Makefile", work / "Makefile")
    (work / "b" / "setup.py").unlink()
    (work / "c" / ".vscode").rename(work / ".vscode")
    (work / "d").rename(work / "f")
    assert made.restore() == []
    write(work, "tox.ini")  # the same content, but of another name
    assert made.restore() == ["tox.ini"]


def test_pointers_are_put_back_whatever_is_there_instead(work: Path) -> None:
    write(work, "a/.git", "b/.git", text="gitdir: ../x\n")
    (work / "c").mkdir()
    (work / "c" / ".git").symlink_to("../x")
    made = guard(work)
    (work / "a" / ".git").unlink()
    write(work, "a/.git/config", text="evil\n")
    (work / "b" / ".git").unlink()
    (work / "c" / ".git").unlink()
    (work / "c" / ".git").symlink_to("../evil")
    assert made.restore() == ["a/.git", "b/.git", "c/.git"]
    pointer = "gitdir: ../x\n"
    assert texts_below(work) == {"a/.git": pointer, "b/.git": pointer, "c/.git": "-> ../x"}


def test_what_is_named_and_was_missing_is_not_made(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = tools/hooks\nfsmonitor = ./w.sh\n")
    write(work / ".git", "commondir", text="../common\n")
    made = guard(work)
    write(work, "tools/hooks/x", "w.sh", "common/config")
    assert made.restore() == ["common", "tools/hooks", "w.sh"]
    write(work, "x/hooks/y")
    (work / "tools").rename(work / "t")
    (work / "tools").symlink_to("x")
    assert "tools" in made.restore()
    assert not (work / "tools").is_symlink()


def test_a_file_may_stand_where_a_folder_is_named(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = tools/hooks\n")
    write(work, "tools")
    made = guard(work)
    assert made.restore() == []
    write(work, "tools", text="changed\n")
    assert made.restore() == ["tools"]
    assert (work / "tools").read_text() == "good\n"


def test_a_pointer_that_may_not_be_read_is_removed_where_it_was_changed(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was is not known, and Git follows what it is now."""
    write(work, "a/.git", "b/.git", "c/.git", text="gitdir: ../x\n")
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == ".git":
            raise PermissionError(13, "closed")
        return really(path, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        made = guard(work)
        (work / "a" / ".git").write_text("gitdir: ../evil\n")
        shutil.rmtree(work / "c")
        assert made.restore() == ["a/.git"]
    assert texts_below(work) == {"b/.git": "gitdir: ../x\n"}
    assert not (work / "c").exists()


def test_what_git_runs_is_no_copy_of_a_file_of_that_name(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nfsmonitor = ./setup.py\n")
    write(work, "sub/setup.py")
    made = guard(work)
    shutil.copy(work / "sub" / "setup.py", work / "setup.py")
    assert made.restore() == ["setup.py"]


def test_what_is_no_file_is_no_copy_of_an_empty_one(work: Path) -> None:
    write(work, "sub/Makefile", text="")
    made = guard(work)
    os.mkfifo(work / "Makefile")
    assert made.restore() == ["Makefile"]


def test_what_is_named_and_was_there_stays_as_it_is(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = link/hooks\nfsmonitor = ./w.sh\n")
    write(work, "real/hooks/x", "w.sh", "more/w.sh")
    (work / "link").symlink_to("real")
    made = guard(work)
    assert made.restore() == []
    write(work, "w.sh", text="evil\n")
    assert made.restore() == ["w.sh"]
    (work / "real").rename(work / "old")
    write(work, "real/hooks/x", text="evil\n")
    (work / "link").unlink()
    assert made.restore() == ["link", "real/hooks", "w.sh"]
    assert (work / "link").readlink() == Path("real")
    assert not (work / "real" / "hooks").exists()
    assert (work / "w.sh").read_text() == "good\n"
    (work / "w.sh").write_text("evil\n")
    (work / "scripts").mkdir()
    shutil.copy(work / "w.sh", work / "scripts" / "w.sh")
    made.restore()
    assert (work / "w.sh").read_text() == "good\n"


def test_links_of_trusted_names_are_links_and_no_folders(work: Path) -> None:
    write(work, "a/x", "b/x")
    (work / ".vscode").symlink_to("a")
    (work / "x.pyc").symlink_to("a/x")
    made = guard(work)
    assert made.protected == ()
    assert made.restore() == []
    (work / ".vscode").unlink()
    (work / ".vscode").symlink_to("b")
    (work / ".idea").symlink_to("a")
    (work / "y.pyc").symlink_to("nowhere")
    assert made.restore() == [".idea", ".vscode", "y.pyc"]
    assert (work / ".vscode").readlink() == Path("a")
    assert sorted(each.name for each in work.iterdir()) == [".vscode", "a", "b", "x.pyc"]


def test_only_content_that_a_file_of_that_name_had_is_known(work: Path) -> None:
    write(work, "a/Makefile", "b.txt")
    (work / "c").mkdir()
    os.mkfifo(work / "c" / "Makefile")
    made = guard(work)
    write(work, "Makefile", text="")
    write(work, "d/Makefile", text="other\n")
    assert made.restore() == ["Makefile", "d/Makefile"]


def test_what_was_put_aside_last_stands_aside(work: Path) -> None:
    made = guard(work)
    long = f"{'x' * 250}.mk"
    for text in ("one\n", "two\n"):
        write(work, ".vscode/x", "Makefile", long, text=text)
        made.restore()
    assert texts_below(work) == {".vscode.refused/x": "two\n", "Makefile.refused": "two\n"}


def test_a_file_that_may_not_be_read_is_left_unless_it_changes(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, "Makefile", "a/Makefile")
    closed = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "Makefile" and not flags & os.O_CREAT:
            raise PermissionError(13, "closed")
        return closed(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    made = guard(work)
    assert made.restore() == []
    write(work, "b/Makefile", text="new\n")
    (work / "Makefile").write_text("changed\n")
    assert made.restore() == ["Makefile", "b/Makefile"]
    assert not (work / "Makefile").exists()  # what it was is not known
    assert (work / "a" / "Makefile").exists()


def test_a_new_file_of_any_size_is_put_aside(work: Path) -> None:
    write(work, "Makefile", "sub/setup.py")
    made = guard(work)
    write(work, "Makefile", "tox.ini", text="x" * 100)
    write(work, "a/Makefile", "a/setup.py", text="evil\n")
    assert made.restore() == ["Makefile", "a/Makefile", "a/setup.py", "tox.ini"]
    assert (work / "Makefile").read_text() == (work / "sub" / "setup.py").read_text() == "good\n"
    assert len((work / "tox.ini.refused").read_text()) == 100


def test_pointers_are_put_back_with_the_folder_that_they_were_in(work: Path) -> None:
    write(work, "a/b/.git", text="gitdir: ../../x\n")
    made = guard(work)
    shutil.rmtree(work / "a")
    assert made.restore() == ["a/b/.git"]
    assert texts_below(work) == {"a/b/.git": "gitdir: ../../x\n"}


def test_other_objects_that_were_named_before_stay(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "objects/info/alternates", text="/elsewhere\n")
    assert guard(work, is_git=True).restore() == []
    assert (work / ".git" / "objects" / "info" / "alternates").exists()


def test_of_a_repository_that_was_written_only_data_stays(work: Path) -> None:
    write_repository(work / ".git")
    made = guard(work, is_git=True)
    data = ["index", "ORIG_HEAD", "logs/HEAD", "objects/aa/x", "refs/tags/y", "COMMIT_EDITMSG"]
    trusted = ["commondir", "config.worktree", "worktrees/x/gitdir", "rebase-merge/todo"]
    write(work / ".git", *data, *trusted)
    assert made.restore() == [
        ".git/commondir",
        ".git/config.worktree",
        ".git/rebase-merge",
        ".git/worktrees",
    ]
    assert set(texts_below(work / ".git")) == {*REPOSITORY, *data}


def test_other_objects_are_not_named_in_a_repository_that_was_written(work: Path) -> None:
    write_repository(work / ".git")
    shutil.rmtree(work / ".git" / "objects" / "info")
    made = guard(work, is_git=True)
    write(work / ".git", "objects/info/alternates", "objects/info/packs")
    assert made.restore() == [".git/objects/info/alternates"]


def test_what_cannot_be_undone_is_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = guard(work)
    write(work, ".git/config")
    monkeypatch.setattr(workspace_guard, "remove", lambda folder, name: None)
    with pytest.raises(OSError, match="changed whenever it is looked at"):
        made.restore()


def test_what_cannot_be_undone_keeps_nothing_else_from_being_undone(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guard(work)
    write(work, "a/Makefile", "a/setup.py", "b/.git/config", "c.mk")
    real = workspace_guard._put_aside

    def failing(folder: int, name: str) -> str | None:
        if name == "Makefile":
            raise PermissionError(1, "it is closed")
        return real(folder, name)

    monkeypatch.setattr(workspace_guard, "_put_aside", failing)
    with pytest.raises(PermissionError, match="it is closed"):
        made.restore()
    assert set(texts_below(work)) == {"a/Makefile", "a/setup.py.refused", "c.mk.refused"}


def test_who_moves_folders_meanwhile_is_waited_for(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = guard(work)
    write(work, "a/.git/config")
    real, calls = walk, iter(range(3))

    def moving(root: str) -> Iterator[WalkedFolder]:
        at = next(calls)
        if at < 2:
            raise (MovedError("a folder was moved"), FileNotFoundError("a file is gone"))[at]
        return real(root)

    monkeypatch.setattr(workspace_guard, "walk", moving)
    monkeypatch.setattr(workspace_guard, "_TRIALS", 3)
    with pytest.raises(OSError, match="changed whenever"):
        made.restore()
    assert next(calls, None) is None
    monkeypatch.setattr(workspace_guard, "walk", real)
    assert made.restore() == ["a/.git"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_looked_into_and_stays_closed(work: Path) -> None:
    made = guard(work)
    write(work, "closed/.git/config")
    (work / "closed").chmod(0)
    assert made.restore() == ["closed/.git"]
    assert stat.S_IMODE((work / "closed").stat().st_mode) == 0
    (work / "closed").chmod(0o700)


def test_very_deep_folders_are_walked_and_removed(work: Path) -> None:
    made = guard(work)
    here = os.open(work, os.O_RDONLY)
    for _ in range(2_500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.mkdir(".git", dir_fd=here)
    os.close(here)
    try:
        assert len(made.restore()) == 1
        assert sum(1 for _ in walk(str(work))) == 2_501
    finally:  # nobody else could
        with opened(str(work), ()) as folder:
            remove(folder, "d")
    assert list(work.iterdir()) == []


def test_paths_are_told_without_those_below_and_as_text() -> None:
    assert outermost(["b/c", "b", "a", "b-c", "b/d/e"]) == ["a", "b-c", "b"]
    assert outermost([os.fsdecode(b"\xff/.git")]) == ["�/.git"]
    many = outermost(f"{at:03}" for at in range(102))
    assert many[-2:] == ["099", "… and more"]
    assert outermost(f"{at:03}" for at in range(101))[-1] == "… and more"
    assert len(outermost(f"{at:03}" for at in range(100))) == 100


# --- the walk ----------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def open_files() -> list[str]:
    return names_in(Path("/proc/self/fd"))


def walked(work: Path) -> list[str]:
    return sorted(folder.path for folder in walk(str(work)))


def test_every_folder_is_walked_and_no_link(work: Path) -> None:
    write(work, "a/b/c/x", "a/d/x", "e/x", "file")
    (work / "link").symlink_to("a")
    (work / "up").symlink_to("..")
    (work / "loop").symlink_to("loop")
    before = open_files()
    assert walked(work) == ["", "a", "a/b", "a/b/c", "a/d", "e"]
    assert next(walk(str(work))).path == ""
    assert open_files() == before
    for folder in walk(str(work)):
        names = sorted(each.name for each in folder.entries)
        assert names == names_in(work / folder.path)
        assert os.fstat(folder.descriptor).st_ino == (work / folder.path).stat().st_ino


def test_who_looks_at_a_folder_says_what_is_walked_next(work: Path) -> None:
    write(work, "a/x", "b/x", "file")
    found = []
    for folder in walk(str(work)):
        found.append(folder.path)
        if not folder.path:
            folder.below = ["gone", "b", "file"]
    assert found == ["", "b"]


def test_a_folder_that_is_moved_is_told(work: Path) -> None:
    write(work, "a/b/x", "c/x")
    before = open_files()
    folders = walk(str(work))
    assert any(folder.path == "a/b" for folder in folders)
    (work / "a" / "b").rename(work / "b")
    with pytest.raises(MovedError):
        list(folders)
    assert open_files() == before


def test_too_many_entries_are_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, "a/b", "a/c", "d")  # with the workspace: two folders, four entries
    monkeypatch.setattr(workspace_walk, "_MOST_ENTRIES", 6)
    assert len(walked(work)) == 2
    monkeypatch.setattr(workspace_walk, "_MOST_ENTRIES", 5)
    with pytest.raises(OSError, match="more than 5 files"):
        walked(work)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("may_enter", [True, False])
def test_a_folder_that_may_not_be_read(
    work: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool, may_enter: bool
) -> None:
    """Its owner lets himself in, and closes it again; who else may only enter it is told."""
    write(work, "closed/x", "other/x")
    (work / "closed").chmod(0o100)
    really, modes, before = os.open, list[int](), open_files()

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path in ("closed", ".") and not flags & os.O_PATH:
            modes.append(stat.S_IMODE((work / "closed").stat().st_mode))
            if not modes[-1] & 0o400:
                raise PermissionError(13, "closed")
        return really(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "access", lambda *_, **__: may_enter)
    if not is_own:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if is_own:
        assert walked(work) == ["", "closed", "other"]
    elif may_enter:
        with pytest.raises(PermissionError):
            walked(work)
    else:
        assert walked(work) == ["", "other"]
    assert stat.S_IMODE((work / "closed").stat().st_mode) == 0o100
    assert modes == ([0o100, 0o700] if is_own else [0o100])
    assert open_files() == before


@pytest.mark.parametrize(
    ("mode", "is_own", "within"),
    [(0o400, True, 0o700), (0o400, False, 0o400), (0o500, True, 0o500), (0o500, False, 0o500)],
)
def test_a_folder_whose_entries_cannot_be_looked_at_is_open_while_it_is_walked(
    work: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_own: bool, within: int
) -> None:
    write(work, "closed/below/x")
    (work / "closed").chmod(mode)
    if not is_own:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    seen = {each.path: stat.S_IMODE((work / "closed").stat().st_mode) for each in walk(str(work))}
    assert seen == {"": mode, "closed": within, "closed/below": within}
    assert stat.S_IMODE((work / "closed").stat().st_mode) == mode


def test_a_folder_that_cannot_be_opened_keeps_its_rights(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, "closed/x")
    (work / "closed").chmod(0o100)
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path in ("closed", ".") and not flags & os.O_PATH:
            raise PermissionError(13, "closed")
        return really(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError):
        walked(work)
    assert stat.S_IMODE((work / "closed").stat().st_mode) == 0o100


@pytest.mark.parametrize("mode", [0, 0o400, 0o300])
def test_closed_folders_in_closed_folders_are_walked_and_changed(work: Path, mode: int) -> None:
    """As a user who is not root, whom rights hold up."""
    write(work, "a/b/c/Makefile", "a/z/x")
    made = guard(work, "Makefile")
    write(work, "a/b/c/.git/config")
    closed = [work / each for each in ("a/b/c", "a/b", "a/z", "a")]
    for each in closed:
        each.chmod(mode)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(work)
            if os.geteuid() == 0:
                for each in closed:
                    os.chown(each, 65534, -1)
                os.chown(work / "a/b/c/.git", 65534, -1)
                os.seteuid(65534)
            made._workspace = "."
            code = 0 if made.restore() == ["a/b/c/.git"] and len(list(walk("."))) == 5 else 2
            any(each.path == "a/b/c" for each in walk("."))  # it is left in the midst
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [stat.S_IMODE(each.stat().st_mode) for each in reversed(closed)] == [mode] * 4
    assert not (work / "a/b/c/.git").exists()
    for each in reversed(closed):
        each.chmod(0o700)


@pytest.mark.parametrize("leads_to", ["outside", None])
def test_rights_are_never_changed_through_a_link(
    work: Path, monkeypatch: pytest.MonkeyPatch, leads_to: str | None
) -> None:
    """A job that is still there may put a link where a closed folder was, or nothing at all."""
    write(work, "closed/x")
    outside = work.parent / "outside"
    outside.mkdir(mode=0o510)
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "closed" and (work / "closed").is_dir() and not flags & os.O_PATH:
            shutil.rmtree(work / "closed")
            if leads_to is not None:
                (work / "closed").symlink_to(work.parent / leads_to)
            raise PermissionError(13, "closed")
        return really(path, flags, mode, dir_fd=dir_fd)

    changed: list[object] = []
    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "chmod", lambda *given, **_: changed.append(given))
    assert walked(work) == [""]
    assert changed == []


def test_what_takes_the_place_of_a_folder_that_is_removed_keeps_its_rights(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = work.parent / "outside"
    outside.mkdir(mode=0o510)
    (work / "link").symlink_to(outside)
    monkeypatch.setattr(opened_folders, "status_of", lambda *_: work.stat())  # as it was before
    with opened(str(work), ()) as folder, pytest.raises(NotADirectoryError):
        remove(folder, "link")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o510


# --- what a configuration says ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('[core]\nhooksPath = "a b#c"\n', {"a b#c"}),
        ("[core]\nhooksPath = a b # a comment\n", {"a b"}),
        ("[core]\nhooksPath = a;b\n", {"a"}),
        ('[core]\nhooksPath = "a"b"c d"\n', {"abc d"}),
        ('[core]\nhooksPath = a\\"b\\\\c\n', {'a"b\\c'}),
        ("[core]\nhooksPath = a\\tb\n", {"a\tb"}),
        ("[core]\nhooksPath = a\\\n", {"a"}),
        ("[core]\nhooksPath = a\\\nb\n", {"ab"}),
        ("[core] hooksPath=a ; b\n", {"a"}),
        ('[core "x"] [core]\n  HOOKSPATH  =  a\n', {"a"}),
        ("hooksPath = a\n", {"a"}),
        ("[core]\n# hooksPath = a\n ; hooksPath = b\n\n", set()),
        ("[core]\nhooksPath\n", set()),
        ("[core]\nhooksPath = .git/hooks\n", set()),
        ("[core]\nhooksPath = /elsewhere\n", set()),
        ("[core]\nhooksPath = .\n", set()),
        ("[core]\nhooksPath = ~/x\n", set()),
        ("[core]\nfsmonitor = ./made later\n", {"made"}),
        ("[core]\nfsmonitor = later\n", set()),
        ("[core]\nfsmonitor = tool.sh\n", {"tool.sh"}),
        ("[core]\neditor = code sub/ sub\n", set()),
        ("[core]\neditor = it's ./tool.sh\n", {"tool.sh"}),
        ("[alias]\nx = !cd sub && ./tool.sh\n", {"tool.sh"}),
        ("[alias]\nx = log ./tool.sh\n", set()),
        ("[pager]\nlog = ./tool.sh\n", {"tool.sh"}),
        ("[user]\nname = !./tool.sh\n", {"tool.sh"}),
        ('[mergetool "x"]\npath = ./tool.sh\n', {"tool.sh"}),
        ('[mergetool "x"]\npath = ../inc\n', {"inc"}),
        ("[include]\npath = ../inc\n", {"inc", "of_inc"}),
        ('[includeIf "x"]\npath = ../later\n', {"later"}),
        ("[include]\nother = ../inc\n", set()),
        ("[other]\npath = ../inc\n", {"inc"}),
        ("# a comment \\\n[core] hooksPath = a\n", {"a"}),
        ("[core] # a comment \\\nhooksPath = a ; more \\\nfsmonitor = ./b\n", {"a", "b"}),
        ("[core]\r\nhooksPath = a\\\r\nb\r\n", {"ab"}),
        ('[core]\nhooksPath = "a # \\\n b"\n', {"a #  b"}),
        ('[core]\nhooksPath = " a"\n', {" a"}),
        ("[core]\nhooksPath = a\\", {"a\\"}),
        ("[core]\nhooksPath = a\x0cb\n", {"a\x0cb"}),
        ("[core]\nhooksPath = a\0b\n", {"a"}),
        ("\ufeff[include]\npath = ../inc\n", {"inc", "of_inc"}),
        ('[core]\nhooksPath = "a\n[core]\nfsmonitor = ./b\n', {"a", "b"}),
    ],
)
def test_values_are_read_as_git_reads_them(work: Path, config: str, expected: set[str]) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text=config)
    write(work, "tool.sh", "sub/x")
    write(work, "inc", text="[core]\nhooksPath = of_inc\n")
    (work.parent / "inc").write_text("[core]\nhooksPath = of_other\n")
    found = trusted_by_git(str(work), [".git"])
    assert found.files == expected
    assert found.folders == frozenset()


def test_of_pointers_only_lines_that_name_something_count(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "objects/info/alternates", text="\n# /x\n  \n../../pool\n")
    write(work / ".git", "commondir", text="../common\n")
    write(work, "common/commondir", text="../further\n")
    write(work, "further/commondir", text="../common\n")
    write(work, "sub/.git", text="gitdir: ../of_sub\n")
    write(work, "other/.git", text="no pointer: ../x\n")
    found = trusted_by_git(str(work), [".git", "sub/.git", "other/.git"])
    assert found.folders == {"pool", "common", "further", "of_sub"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("commondir", "#x\n", {"bare", "bare/#x"}),
        ("commondir", " x\r\n", {"bare", "bare/ x", "bare/x"}),
        ("commondir", "../x\n\n", {"bare", "x"}),
        ("commondir", "../x\0y", {"bare", "x"}),
        ("commondir", "../~x\n", {"bare", "~x"}),
        ("commondir", "\n", {"bare"}),
        ("objects/info/alternates", "\n# ../x\n", {"bare"}),
        ("objects/info/alternates", '"../../x"\n', {"bare", "x"}),
        ("objects/info/alternates", '../x"y\n', {"bare", 'bare/x"y'}),
        ("objects/info/alternates", "../../bare\n" * 9, {"bare"}),  # each of which says it again
        ("objects/info/alternates", "# x\n" * 300 + "../../x", {"bare", "x"}),
        ("objects/info/alternates", "../../a\x0cb\n", {"bare", "a\x0cb"}),
    ],
)
def test_pointers_of_a_repository_are_read_as_git_reads_them(
    work: Path, name: str, text: str, expected: set[str]
) -> None:
    write(work / "bare", name, text=text)
    found = trusted_by_git(str(work), ["bare"])
    assert found.folders == expected


def test_every_link_on_the_way_to_what_git_trusts_is_protected(work: Path) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = one/../hooks\nfsmonitor = ./f\n")
    write(work, "real/hooks/x", "real/below/x", "tool")
    (work / "one").symlink_to("two")
    (work / "two").symlink_to(work / "real" / "below")
    (work / "f").symlink_to("tool")
    assert trusted_by_git(str(work), [".git"]).files == {"one", "two", "real/hooks", "f", "tool"}


def test_of_two_ways_to_the_same_folder_the_links_of_both_are_protected(work: Path) -> None:
    write(work, "real/x")
    write(work, "a/.git", text="gitdir: ../one\n")
    write(work, "b/.git", text="gitdir: ../two\n")
    write(work, "real/commondir", text="../three")
    for link in ("one", "two", "three"):
        (work / link).symlink_to("real")
    found = trusted_by_git(str(work), ["a/.git", "b/.git"])
    assert found.folders == {"one", "two", "three", "real"}


@pytest.mark.parametrize("count", [40, 41])
def test_links_are_followed_as_far_as_the_system_follows_them(work: Path, count: int) -> None:
    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = l1\n")
    (work / "real").mkdir()
    for at in range(1, count + 1):
        (work / f"l{at}").symlink_to("real" if at == count else f"l{at + 1}")
    files = trusted_by_git(str(work), [".git"]).files
    assert {f"l{at}" for at in range(1, count + 1)} == files - {"real"}
    assert ("real" in files) is (work / "l1").is_dir() is (count == 40)


def test_objects_of_a_submodule_hold_no_configuration_and_its_name_may_be_any(work: Path) -> None:
    write(work, ".git/modules/x/objects/config", text="[core]\nhooksPath = data\n")
    write(work, ".git/modules/objects/config", text="[core]\nhooksPath = a\n")
    write(work, ".git/modules/info/info/config", text="[core]\nhooksPath = b\n")
    write_repository(work / ".git" / "modules" / "x")
    assert trusted_by_git(str(work), [".git"]).files == {"a", "b"}


def test_a_persons_home_counts_in_a_configuration(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pwd.getpwuid(os.getuid())

    def found(_user: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((*own[:5], str(work / "home"), *own[6:]))

    def missing(_user: int) -> pwd.struct_passwd:
        raise KeyError

    write_repository(work / ".git")
    write(work / ".git", "config", text="[core]\nhooksPath = ~/x\n")
    monkeypatch.setattr(pwd, "getpwuid", found)
    assert trusted_by_git(str(work), [".git"]).files == {"home/x"}
    write(work / ".git", "config", text="[core]\nhooksPath = ~nobody-of-that-name/x\n")
    assert trusted_by_git(str(work), [".git"]).files == {"~nobody-of-that-name/x"}
    write(work / ".git", "config", text="[core]\nhooksPath = ~/x\n")
    monkeypatch.setattr(pwd, "getpwuid", missing)
    assert trusted_by_git(str(work), [".git"]).files == {"~/x"}


def test_a_folder_with_the_parts_of_a_repository_is_one() -> None:
    assert is_repository(["HEAD", "objects", "refs"])
    assert is_repository(["HEAD", "commondir"])
    assert is_repository(["head", "CommonDir", "x"])
    assert not is_repository(["objects", "refs", "commondir"])
    assert not is_repository(["HEAD", "refs"])
    assert not is_repository(["HEAD", "objects"])


def test_a_configuration_that_cannot_be_read_says_nothing(work: Path) -> None:
    write(work, ".git/config/x")
    (work / ".git" / "commondir").symlink_to("commondir")
    write(work, "a/.git", text="gitdir: x\0y\n")
    os.mkfifo(work / ".git" / "config.worktree")
    before = open_files()
    found = trusted_by_git(str(work), [".git", "a/.git"])
    assert found.folders == {"a/x"}
    assert found.files == frozenset()
    assert open_files() == before


def test_a_configuration_without_end_is_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.adapters.sandboxes.supervisor.git_trust._MOST_CONFIGS", 3)
    write_repository(work / ".git")
    write(work / ".git", "config", text="".join(f"[include]\npath = c{at}\n" for at in range(9)))
    with pytest.raises(OSError, match="too many configurations"):
        trusted_by_git(str(work), [".git"])
    write(work / ".git", "config", text="[include]\npath = c\n")  # with that of the work tree
    trusted_by_git(str(work), [".git"])


def test_repositories_that_lead_to_ever_more_others_are_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_trust, "_MOST_FILES", 3)
    write(work, "a/commondir", text="../b\n")
    write(work, "b/commondir", text="../c\n")
    assert trusted_by_git(str(work), ["a"]).folders == {"a", "b", "c"}
    write(work, "c/commondir", text="../d\n")
    with pytest.raises(OSError, match="too many others"):
        trusted_by_git(str(work), ["a"])


def test_what_is_too_large_to_be_read_is_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git would read on, past what was looked at."""
    write_repository(work / ".git")
    text = "[core]\nhooksPath = a\n"
    write(work / ".git", "config", text=text)
    monkeypatch.setattr(git_trust, "_MOST_BYTES", len(text))
    assert trusted_by_git(str(work), [".git"]).files == {"a"}
    monkeypatch.setattr(git_trust, "_MOST_BYTES", len(text) - 1)
    with pytest.raises(OSError, match="has more than 20 bytes"):
        trusted_by_git(str(work), [".git"])
    monkeypatch.setattr(git_trust, "_MOST_BYTES", 1_000)
    write(work / ".git", "config", text="[alias]\nx = !a b ./c\n")
    monkeypatch.setattr(git_trust, "_MOST_WORDS", 3)
    assert trusted_by_git(str(work), [".git"]).files == {"c"}
    monkeypatch.setattr(git_trust, "_MOST_WORDS", 2)
    with pytest.raises(OSError, match="more than 2 words"):
        trusted_by_git(str(work), [".git"])
