"""Conformance tests for every implementation of `CommandSandbox`, also for your own.

In a test module, with pytest-asyncio in its mode `auto`:

    from minions.testing.command_sandbox_suite import *

    @pytest.fixture
    def sandbox():
        return MySandbox()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from minions.contracts.sandbox import (
    COMMAND_LIMITS,
    Command,
    CommandSandbox,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
)
from minions.data.errors import EnvironmentRefusedError
from minions.testing.processes import gone, with_argument

LIMITS = evolve(COMMAND_LIMITS, wall_s=60)
"""Long enough for a busy machine: what has to be stopped is given less."""
SHORT = evolve(COMMAND_LIMITS, wall_s=2)
SMALL = evolve(LIMITS, memory_bytes=200 * 1024 * 1024, processes=32)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("sesame")
    return folder


class Runner:
    """Runs commands in the workspace of a test."""

    def __init__(self, sandbox: CommandSandbox, workspace: Path) -> None:
        self._sandbox = sandbox
        self._workspace = str(workspace)

    async def __call__(
        self,
        *argv: str,
        limits: SandboxLimits = LIMITS,
        network: bool = False,
        protected: tuple[str, ...] = (),
        allow_config: tuple[str, ...] = (),
    ) -> SandboxResult:
        command = Command(
            argv=argv,
            workspace=self._workspace,
            is_merged=True,
            network=network,
            protected=protected,
            allow_config=allow_config,
        )
        return await self._sandbox.run(command, limits)

    async def shell(self, text: str, limits: SandboxLimits = LIMITS) -> SandboxResult:
        """Run text in the shell."""
        return await self("/bin/sh", "-c", text, limits=limits)

    async def python(self, text: str, limits: SandboxLimits = LIMITS) -> SandboxResult:
        """Run Python code."""
        return await self(sys.executable, "-c", text, limits=limits)


@pytest.fixture
def run(sandbox: CommandSandbox, workspace: Path) -> Runner:
    return Runner(sandbox, workspace)


def code_of(result: SandboxResult) -> str:
    assert result.failure is not None, result
    return result.failure.code


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


# --- what works --------------------------------------------------------------------------------


async def test_a_command_ends_with_its_code_and_its_output(run: Runner) -> None:
    result = await run.shell("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.failure) == (3, "out\nerr\n", None)


async def test_the_result_names_the_sandbox(run: Runner, sandbox: CommandSandbox) -> None:
    assert (await run.shell("true")).sandbox == sandbox.name


async def test_output_and_errors_can_be_told_apart(
    sandbox: CommandSandbox, workspace: Path
) -> None:
    argv = ("/bin/sh", "-c", "echo out; echo err >&2")
    result = await sandbox.run(Command(argv=argv, workspace=str(workspace)), LIMITS)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


async def test_an_unknown_program_ends_as_in_a_shell(run: Runner) -> None:
    result = await run("no-such-program")
    assert (result.exit_code, result.failure) == (127, None)
    assert "no-such-program" in result.stdout


async def test_the_workspace_can_be_changed(run: Runner, workspace: Path) -> None:
    result = await run.shell("mkdir -p a/b && echo hi > a/b/c.txt && cat a/b/c.txt && rm a/b/c.txt")
    assert (result.exit_code, result.stdout) == (0, "hi\n")
    assert (workspace / "a" / "b").is_dir()


async def test_new_files_have_the_rights_that_a_command_gives_them(
    run: Runner, workspace: Path
) -> None:
    result = await run.shell("umask 077; : > a; mkdir b; umask 0; : > c; mkdir d")
    assert result.exit_code == 0
    modes = [oct((workspace / each).stat().st_mode & 0o7777) for each in "abcd"]
    assert modes == ["0o600", "0o700", "0o666", "0o777"]


async def test_a_temporary_file_can_be_made(run: Runner, workspace: Path) -> None:
    result = await run.shell('f=$(mktemp) && echo hi > "$f" && cat "$f"')
    assert (result.exit_code, result.stdout, list(workspace.iterdir())) == (0, "hi\n", [])


async def test_python_and_child_processes_work(run: Runner) -> None:
    code = "import subprocess, sys; print(subprocess.check_output(['echo', 'hi']).decode())"
    result = await run("python", "-c", code)
    assert (result.exit_code, result.stdout.strip()) == (0, "hi")


async def test_of_a_long_output_head_and_tail_are_kept(run: Runner) -> None:
    result = await run.shell("echo first; seq 1 100000; echo last")
    assert result.is_cut
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("\nlast\n")
    assert "bytes left out" in result.stdout
    assert len(result.stdout) < LIMITS.shown_bytes + 100


# --- files -------------------------------------------------------------------------------------


async def test_files_outside_cannot_be_read(run: Runner, workspace: Path) -> None:
    (workspace / "link").symlink_to(workspace.parent / "secret.txt")
    for place in ("../secret.txt", str(workspace.parent / "secret.txt"), "link", "/etc/shadow"):
        result = await run("cat", place)
        assert result.exit_code != 0, place
        assert "sesame" not in result.stdout


async def test_files_outside_stay_as_they_are(run: Runner, workspace: Path) -> None:
    secret = workspace.parent / "secret.txt"
    before = (secret.stat(), sorted(workspace.parent.iterdir()))
    (workspace / "link").symlink_to(secret)
    (workspace / "folder").symlink_to(workspace.parent)
    for act in (
        "echo x > ../secret.txt",
        "echo x > link",
        "echo x > folder/made.txt",
        "rm -f ../secret.txt folder/secret.txt",
        "chmod 777 ../secret.txt link",
        "touch -d 2001-01-01 ../secret.txt link",
        "mv ../secret.txt .",
        "truncate -s 0 ../secret.txt",
        "ln ../secret.txt hard && echo x > hard",
    ):
        await run.shell(act)
        after = (secret.stat(), sorted(workspace.parent.iterdir()))
        assert after == before, act
    assert secret.read_text() == "sesame"


async def test_the_system_is_read_only(run: Runner) -> None:
    for place in ("/usr/minions-was-here", "/etc/minions-was-here", "/dev/minions-was-here"):
        result = await run("touch", place)
        assert result.exit_code != 0, place
        assert not Path(place).exists()


async def test_python_itself_stays_as_it_is(run: Runner) -> None:
    place = Path(sys.prefix, "minions-was-here")
    assert (await run("touch", str(place))).exit_code != 0
    assert not place.exists()


async def test_a_command_has_no_special_rights(run: Runner) -> None:
    for act in ("mount -t tmpfs none .", "mknod disk b 8 0", "unshare -r true", "chroot . true"):
        assert (await run.shell(act)).exit_code != 0, act


async def test_protected_files_are_put_back(run: Runner, workspace: Path) -> None:
    settings = workspace / "settings"
    (settings / "more").mkdir(parents=True)
    (workspace / "rules.txt").write_text("be kind\n")
    protected = ("settings/more", "rules.txt")
    for act in (
        "echo evil > settings/more/new",
        "echo evil >> rules.txt",
        "rm -r settings/more && ln -s /tmp settings/more",
        "mv settings old && mkdir -p settings/more && echo evil > settings/more/new",
        "rm -rf settings && ln -s old settings",
        "rm -rf settings && echo old > settings",
        "rm -rf settings rules.txt",
    ):
        result = await run("/bin/sh", "-c", act, protected=protected)
        assert result.restored, act
        assert not settings.is_symlink(), act
        assert (workspace / "rules.txt").read_text() == "be kind\n", act
        assert list((settings / "more").iterdir()) == [], act


async def test_what_one_command_changes_is_no_state_to_put_back_for_another(
    run: Runner, workspace: Path
) -> None:
    (workspace / "rules.txt").write_text("be kind\n")
    act = "echo evil >> rules.txt; sleep 0.2"
    await asyncio.gather(*(run("/bin/sh", "-c", act, protected=("rules.txt",)) for _ in range(4)))
    assert (workspace / "rules.txt").read_text() == "be kind\n"


# --- what Git trusts ---------------------------------------------------------------------------

REPOSITORY = {
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\trepositoryformatversion = 0\n",
    "objects/info/packs": "",
    "refs/heads/main": "1" * 40,
    "hooks/pre-commit.sample": "#!/bin/sh\n",
    "info/exclude": "# nothing\n",
}
"""The files of a repository as `git init` makes one, in short."""


def write_repository(folder: Path) -> None:
    """Write one into a new folder."""
    for name, text in REPOSITORY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def texts_below(folder: Path) -> dict[str, str]:
    """The files below a folder with their texts, and links with what they lead to."""
    found: dict[str, str] = {}
    for each in sorted(folder.rglob("*")):
        name = str(each.relative_to(folder))
        if each.is_symlink():
            found[name] = f"-> {each.readlink()}"
        elif each.is_file():
            found[name] = each.read_text()
    return found


CHANGES_OF_GIT = (
    "echo evil > .git/hooks/pre-commit",
    "echo evil >> .git/config",
    "echo ../.evil > .git/commondir",
    "cp -r .git/. .evil/; echo '[core] fsmonitor=id' > .evil/config; echo ../.evil >.git/commondir",
    "rm -rf .git/objects; rm .git/refs/heads/main; echo ref: x > .git/HEAD",
    "rm -r .git/hooks && ln -s /tmp .git/hooks",
    "mv .git old && mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit",
    "rm -rf .git && ln -s old .git",
    "rm -rf .git && echo 'gitdir: old' > .git",
    "rm -rf .git",
    "ln -s .git link && echo evil > link/config",
    "ln .git/config other && echo evil > other",
    "cd .git && echo evil > config; cd hooks && echo evil > pre-commit",
    "mkdir -p .git/worktrees/x .git/modules/x .git/rebase-merge",
    "touch .git/config.worktree .git/info/attributes",
    "truncate -s 0 .git/config",
    "mkdir new && mv -T new .git; mv --exchange new .git; ln -sfn new .git",
)
CHANGES_OF_GIT_IN_PYTHON = """
import ctypes, os
def tried(act, *given, **more):
    try:
        return act(*given, **more)
    except OSError:
        return None
call = ctypes.CDLL(None, use_errno=True).syscall
folder = os.open(".git", os.O_PATH)
below = os.open(".git/hooks", os.O_RDONLY)
for place in (folder, below):
    tried(lambda: os.close(os.open("config", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=place)))
    tried(os.mkdir, "made", dir_fd=place)
    tried(os.symlink, "x", "made-link", dir_fd=place)
    tried(os.mkfifo, "made-pipe", dir_fd=place)
    tried(os.unlink, "pre-commit.sample", dir_fd=place)
tried(os.link, ".git/config", "hard")
tried(lambda: os.close(os.open(".git", os.O_TMPFILE | os.O_RDWR)))
tried(os.truncate, ".git/config", 0)
tried(os.rename, ".git", "moved")
tried(os.replace, ".git/config", "moved-config")
os.mkdir("exchanged")
call(316, -100, b".git", -100, b"exchanged", 2)  # exchanges the two, on x86-64
for name in ("hard", "moved-config"):
    if os.path.exists(name):
        tried(lambda: open(name, "a").write("evil"))
"""


async def test_nothing_changes_the_repository(run: Runner, workspace: Path) -> None:
    """Also not what it only holds as data: what a person compares with would be another (A-149)."""
    write_repository(workspace / ".git")
    for text in (*CHANGES_OF_GIT, f"python3 - <<'END'\n{CHANGES_OF_GIT_IN_PYTHON}\nEND\n"):
        await run.shell(text)
        assert not (workspace / ".git").is_symlink(), text
        assert texts_below(workspace / ".git") == REPOSITORY, text


NEW_OF_GIT = (
    "mkdir .git && echo x > .git/config",
    "mkdir -p a/b/.git/refs && mkdir c && mv a/b c",
    "echo 'gitdir: ../evil' > a/.git",
    "ln -s evil .git; ln -s ../evil a/.git",
    "mkdir evil && mv evil a/.git",
    "mkdir a/.GIT a/.Git; touch 'b/.git ' b/.git.; mkdir 'a/git~1'",
    "mkdir node_modules .vscode venv; mkdir node_modules/.git .vscode/.git venv/.git",
    "mkdir -p closed/.git && chmod 000 closed",
    "n=d; for i in $(seq 300); do n=$n/d; done; mkdir -p $n/.git",
    "mkfifo a/.git",
    "touch a/.git; touch moved; mv moved b/.git; cp moved c/.git; mkdir c; ln b/.git c/.git",
)


async def test_no_repository_is_made(run: Runner, workspace: Path) -> None:
    """Git would trust it wherever a person calls it (A-149)."""
    for text in NEW_OF_GIT:
        for name in ("a", "b"):
            (workspace / name).mkdir(exist_ok=True)
        await run.shell(text)
        if (workspace / "closed").exists():
            (workspace / "closed").chmod(0o755)
        made = [
            f"{folder}/{name}"
            for folder, folders, files in os.walk(workspace)
            for name in (*folders, *files)
            if name.casefold().rstrip(". ") in (".git", "git~1")
        ]
        assert made == [], text


BARE = (
    "mkdir -p {0}/objects {0}/refs; echo 'ref: refs/heads/main' > {0}/HEAD; echo x > {0}/config",
    "mkdir -p {0}; ln -s refs/heads/main {0}/HEAD; mkdir {0}/refs {0}/objects",
    "mkdir -p {0}; echo 'ref: refs/heads/main' > {0}/HEAD; echo ../b > {0}/commondir",
    "mkdir -p {0} c/objects c/refs; mv c/objects c/refs {0}; cp HEAD.txt {0}/HEAD",
    "mkdir -p x/refs x/objects && mv x/* {0} && touch {0}/HEAD; mkdir -p {0}; touch {0}/head",
)


@pytest.mark.parametrize("place", [".", "a", "a/b c"])
async def test_no_folder_becomes_one_of_a_repository(
    run: Runner, workspace: Path, place: str
) -> None:
    """Git takes any folder with these parts for one, if a person is in it (A-149)."""
    for text in BARE:
        (workspace / "HEAD.txt").write_text("ref: refs/heads/main\n")
        await run.shell(f"mkdir -p '{place}'; " + text.replace("{0}", f"'{place}'"))
        for folder in (workspace, *workspace.rglob("*")):
            names = {each.name.casefold() for each in folder.iterdir()} if folder.is_dir() else {}
            is_bare = "head" in names and ("commondir" in names or {"objects", "refs"} <= {*names})
            assert not is_bare, (text, folder)
        for each in workspace.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()


async def test_repositories_below_stay_as_and_where_they_are(run: Runner, workspace: Path) -> None:
    """Submodules, worktrees, bare ones, and what pointer files lead to (A-149)."""
    write_repository(workspace / "sub" / "deep" / ".git")
    write_repository(workspace / "bare.git")
    write_repository(workspace / "data")
    (workspace / "data" / "HEAD").rename(workspace / "data" / "kept")
    (workspace / "work").mkdir()
    (workspace / "work" / ".git").write_text("gitdir: ../admin\n")
    (workspace / "admin").mkdir()
    (workspace / "admin" / "HEAD").write_text("ref: refs/heads/x\n")
    (workspace / "admin" / "commondir").write_text("../data\n")
    (workspace / "lost").mkdir()
    (workspace / "lost" / ".git").write_text("gitdir: ../nowhere\n")
    (workspace / "linked").mkdir()
    (workspace / "linked" / ".git").symlink_to("../bare.git")
    before = texts_below(workspace)
    for text in (
        "echo evil >> sub/deep/.git/config; echo evil > bare.git/hooks/post-checkout",
        "mv sub other; mv sub/deep other; rm -rf sub",
        "echo evil >> data/config; mv data old; mkdir -p data; echo evil > data/config",
        "echo ../evil > admin/commondir; echo gitdir: ../evil > work/.git; mv work other",
        "rm linked/.git; ln -s ../evil linked/.git",
        "rm linked/.git; mkdir linked/.git; echo evil > linked/.git/config",
        "mkdir nowhere; echo evil > nowhere/config",
        "mkdir evil; ln -s evil nowhere; echo evil > evil/config; rm -r evil",
    ):
        await run.shell(text)
        after = {
            name: text for name, text in texts_below(workspace).items() if ".refused" not in name
        }
        assert after == before, text


async def test_what_a_configuration_of_git_has_run_is_protected(
    run: Runner, workspace: Path
) -> None:
    """Hooks elsewhere, included files, filters and other programs of the workspace (A-149)."""
    write_repository(workspace / ".git")
    (workspace / ".git" / "config").write_text(
        "[core]\n\thooksPath = tools/hooks\n\tfsmonitor = ./watch.sh\n"
        '[include]\n\tpath = "../more.ini" ; more\n'
        '[filter "x"]\n\tclean = python3 scripts/clean.py %f\n'
        "[alias]\n\tst = status\n\tgo = !sh run.sh\n"
    )
    (workspace / "more.ini").write_text("[diff]\n\texternal = bin/compare\n")
    for name in ("tools/hooks/pre-commit", "scripts/clean.py", "run.sh", "status", "free.txt"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("good\n")
    names = ("watch.sh", "more.ini", "scripts/clean.py", "run.sh", "bin/compare")
    for text in (
        "mkdir -p bin tools/hooks; for f in " + " ".join(names) + "; do echo evil > $f; done",
        "echo evil > tools/hooks/pre-commit; echo evil > tools/hooks/post-merge",
        "mv tools old; mkdir -p tools/hooks; echo evil > tools/hooks/pre-commit",
        "mkdir -p x; echo evil > x/compare; rmdir bin; ln -s x bin",
    ):
        await run.shell(text)
        found = texts_below(workspace)
        there = {name: found.get(name) for name in (*names, "tools/hooks/pre-commit")}
        assert there == {
            "watch.sh": None,
            "more.ini": "[diff]\n\texternal = bin/compare\n",
            "scripts/clean.py": "good\n",
            "run.sh": "good\n",
            "bin/compare": None,
            "tools/hooks/pre-commit": "good\n",
        }, text
        assert "tools/hooks/post-merge" not in found
        assert not (workspace / "bin").is_symlink()
    await run.shell("echo new > free.txt; echo new > status")
    assert (workspace / "free.txt").read_text() == (workspace / "status").read_text() == "new\n"


OF_PERSON = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
BARE_WITH_WATCHER = (
    "mkdir -p {0}/objects {0}/refs; echo ref: refs/heads/x > {0}/HEAD; "
    "printf '[core]\\n\\tfsmonitor = EVIL\\n\\tworktree = ..\\n' > {0}/config"
)
LEFT_FOR_GIT = (
    (
        "cp -r .git/. .evil/; git config -f .evil/config core.fsmonitor EVIL; "
        "echo ../.evil > .git/commondir"
    ),
    "git config core.fsmonitor EVIL",
    BARE_WITH_WATCHER.replace("{0}", "sub/.git"),
    BARE_WITH_WATCHER.replace("{0}", "sub"),
    BARE_WITH_WATCHER.replace("{0}", "evil") + "; echo gitdir: ../evil > sub/.git",
    "git init -q sub; git -C sub config core.fsmonitor EVIL; git add sub; git commit -m x",
)


def call_git(*arguments: str) -> None:
    """As a person would, whatever comes of it."""
    subprocess.run(
        ["git", *arguments], env={**os.environ, **OF_PERSON}, check=False, capture_output=True
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
async def test_a_persons_next_git_runs_nothing_that_a_command_left(
    run: Runner, workspace: Path
) -> None:
    """A-149"""
    marker = workspace.parent / "executed"
    for act in LEFT_FOR_GIT:
        shutil.rmtree(workspace)
        (workspace / "sub").mkdir(parents=True)
        call_git("init", "-q", str(workspace))
        (workspace / "evil.sh").write_text(f"#!/bin/sh\ntouch {marker}\n")
        (workspace / "evil.sh").chmod(0o755)
        await run.shell(act.replace("EVIL", str(workspace / "evil.sh")))
        for folder in (workspace, workspace / "sub"):
            call_git("-C", str(folder), "status")
        assert not marker.exists(), act


# --- what configures other tools ---------------------------------------------------------------


async def test_new_files_that_configure_tools_are_put_aside(run: Runner, workspace: Path) -> None:
    """A-149"""
    text = (
        "mkdir -p src/recipes .github/workflows; for f in Makefile src/conftest.py .envrc "
        "src/recipes/x.yaml .github/workflows/ci.yml src/main.py x.pth; do echo evil > $f; done; "
        "ln -s src/main.py setup.py; mkdir -p venv/bin; echo evil > venv/bin/activate"
    )
    result = await run.shell(text)
    assert result.exit_code == 0
    found = texts_below(workspace)
    assert {each for each in found if ".refused" not in each} == {"src/main.py"}
    assert found["Makefile.refused"] == "evil\n"
    assert {"Makefile", "src/conftest.py", "setup.py", ".github"} <= set(result.restored)


async def test_changed_files_that_configure_tools_are_put_back(
    run: Runner, workspace: Path
) -> None:
    """A-149"""
    (workspace / "pkg").mkdir()
    (workspace / ".vscode").mkdir()
    for name in ("Makefile", "pkg/conftest.py", ".vscode/tasks.json", "pkg/package.json"):
        (workspace / name).write_text("good\n")
    (workspace / "tox.ini").symlink_to("pkg/conftest.py")
    result = await run.shell(
        "echo evil > Makefile; echo evil > pkg/conftest.py; echo evil > .vscode/tasks.json; "
        "ln -sf /etc/passwd tox.ini; mv .vscode old; mkdir .vscode; echo evil > .vscode/tasks.json"
    )
    found = texts_below(workspace)
    assert {name: text for name, text in found.items() if ".refused" not in name} == {
        "Makefile": "good\n",
        "pkg/conftest.py": "good\n",
        "pkg/package.json": "good\n",
        ".vscode/tasks.json": "good\n",
        "tox.ini": "-> pkg/conftest.py",
    }
    assert {"Makefile", "pkg/conftest.py", "tox.ini"} <= set(result.restored)


async def test_what_is_opened_by_name_is_changed_and_git_is_never_opened(
    run: Runner, workspace: Path
) -> None:
    (workspace / "Makefile").write_text("good\n")
    text = (
        "echo new > Makefile; mkdir -p web .vscode .git; echo new > web/package.json; "
        "echo new > .vscode/tasks.json; echo evil > .git/config; echo evil > setup.py"
    )
    names = ("makefile", "web/*.json", ".vscode", ".git", ".git/*")
    await run("/bin/sh", "-c", text, allow_config=names)
    found = texts_below(workspace)
    assert found == {
        "Makefile": "new\n",
        "web/package.json": "new\n",
        ".vscode/tasks.json": "new\n",
        "setup.py.refused": "evil\n",
    }


async def test_files_that_configure_tools_may_be_moved_and_removed(
    run: Runner, workspace: Path
) -> None:
    (workspace / "old").mkdir()
    for name in ("old/Makefile", "old/main.py", "Dockerfile"):
        (workspace / name).write_text("good\n")
    result = await run.shell("mv old new; cp new/Makefile .; rm Dockerfile")
    assert (result.exit_code, result.restored) == (0, ())
    assert {*texts_below(workspace)} == {"new/Makefile", "new/main.py", "Makefile"}


async def test_compiled_files_of_a_command_are_removed(run: Runner, workspace: Path) -> None:
    """They run in place of the source that a person reads (A-149)."""
    cache = workspace / "__pycache__"
    cache.mkdir()
    for name in ("kept.cpython-311.pyc", "changed.cpython-311.pyc"):
        (cache / name).write_text("compiled\n")
    await run.shell("echo evil > __pycache__/changed.cpython-311.pyc; echo evil > made.pyc")
    assert texts_below(workspace) == {"__pycache__/kept.cpython-311.pyc": "compiled\n"}


# --- rights of files ---------------------------------------------------------------------------

SPECIAL_BITS = """
import ctypes, errno, os, stat, sys
call = ctypes.CDLL(None, use_errno=True).syscall
numbers = {"x86_64": {"fchmodat2": 452, "openat2": 437}}.get(os.uname().machine, {})
def tried(act, *given, **more):
    try:
        act(*given, **more)
    except OSError:
        pass
open("file", "w").close()
os.mkdir("folder")
for bits in (0o4755, 0o2755, 0o1755, 0o7777):
    name = f"made-{bits:o}"
    for place in ("file", "folder"):
        tried(os.chmod, place, bits)
        descriptor = os.open(place, os.O_RDONLY)
        tried(os.chmod, descriptor, bits)
        folder = os.open(".", os.O_RDONLY)
        tried(os.chmod, place, bits, dir_fd=folder)
    os.umask(0)
    tried(os.open, f"{name}-a", os.O_CREAT | os.O_WRONLY, bits)
    tried(os.open, f"{name}-b", os.O_CREAT | os.O_RDONLY | os.O_EXCL, bits, dir_fd=folder)
    tried(os.mkdir, f"{name}-c", bits)
    tried(os.mkdir, f"{name}-d", bits, dir_fd=folder)
    tried(os.mknod, f"{name}-e", bits | stat.S_IFREG)
    tried(os.mknod, f"{name}-f", bits | stat.S_IFIFO, dir_fd=folder)
    if numbers:
        call(numbers["fchmodat2"], -100, b"file", bits, 0)
        how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, bits, 0)
        call(numbers["openat2"], -100, f"{name}-g".encode(), how, 24)
        call(85, f"{name}-h".encode(), bits)  # creat
for name in ("security.capability", "system.posix_acl_access", "user.x"):
    try:
        os.setxattr("file", name, b"x")
    except OSError:
        continue
    print(name, "was possible")
print("end")
"""


async def test_no_file_runs_as_its_owner(run: Runner, workspace: Path) -> None:
    """No set-user-id, set-group-id or sticky bit, by any call, and no attributes (A-149)."""
    result = await run.python(SPECIAL_BITS)
    assert (result.stdout, result.exit_code) == ("end\n", 0)
    special = [
        (str(each), oct(each.lstat().st_mode))
        for each in (workspace, *workspace.rglob("*"))
        if each.lstat().st_mode & 0o7000
    ]
    assert special == []


# --- space -------------------------------------------------------------------------------------

MIB = 1024 * 1024


@pytest.mark.parametrize(
    "text",
    [
        "for i in 1 2 3 4 5 6; do head -c 8000000 /dev/zero > f$i; done; sleep 60",
        "python3 -c 'for i in range(3500): open(str(i), \"w\").close()'; sleep 60",
        (
            "python3 -c 'import os\nfor i in range(9): "
            "os.posix_fallocate(os.open(str(i), 66), 0, 5000000)'"
        ),
        "mkdir a; cd a; head -c 30000000 /dev/zero > x; cp x y",
        (
            "python3 -c 'import os, time\nfor i in range(9):\n"
            ' f = os.open("x", 66); os.unlink("x"); os.write(f, bytes(6000000)); time.sleep(.2)'
            "\ntime.sleep(60)'"
        ),
    ],
    ids=["files", "many small files", "reserved", "at its end", "without a name"],
)
async def test_the_space_that_a_command_takes_is_limited(run: Runner, text: str) -> None:
    result = await run.shell(text, evolve(LIMITS, disk_bytes=12 * MIB))
    assert code_of(result) == SandboxCode.DISK
    assert result.failure is not None
    assert "more than 12 MiB of the disk" in result.failure.message


async def test_holes_names_and_what_was_there_take_no_space(run: Runner, workspace: Path) -> None:
    (workspace / "large").write_bytes(bytes(60 * MIB))
    text = (
        "truncate -s 100M hole; head -c 9000000 /dev/zero > x; for i in $(seq 50); do ln x x$i; "
        "done; mv large moved; head -c 20000000 /dev/zero > y; rm y"
    )
    result = await run.shell(text, evolve(LIMITS, disk_bytes=32 * MIB))
    assert (result.failure, result.exit_code) == (None, 0)
    assert (await run.shell("rm moved")).failure is None


@pytest.mark.parametrize("place", ["/", "/usr", "/etc", "/home", "~"])
async def test_a_system_folder_is_no_workspace(sandbox: CommandSandbox, place: str) -> None:
    workspace = str(Path(place).expanduser())
    with pytest.raises(EnvironmentRefusedError) as caught:
        await sandbox.run(Command(argv=("true",), workspace=workspace), LIMITS)
    assert caught.value.error_code == "bad-workspace"


# --- the network, other processes, the environment ---------------------------------------------


async def test_no_other_machine_can_be_reached(run: Runner) -> None:
    with listening() as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        result = await run.python(code)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert result.exit_code != 0


async def test_the_network_is_there_where_it_is_allowed(run: Runner) -> None:
    with listening() as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 9)"
        result = await run(sys.executable, "-c", code, network=True)
        assert (result.exit_code, result.stdout) == (0, "")
        server.accept()[0].close()


@pytest.mark.parametrize("network", [False, True])
async def test_sockets_of_other_programs_cannot_be_reached(
    run: Runner, workspace: Path, network: bool
) -> None:
    name = f"\0minions-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as by_name, socket.socket(socket.AF_UNIX) as by_path:
        by_name.bind(name)
        place = workspace.parent / "s"
        by_path.bind(str(place))
        for server in (by_name, by_path):
            server.listen()
            server.setblocking(False)
        for address in (name, str(place)):
            code = f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})"
            result = await run(sys.executable, "-c", code, network=network)
            assert result.exit_code != 0
        for server in (by_name, by_path):
            with pytest.raises(BlockingIOError):
                server.accept()


async def test_other_processes_cannot_be_signalled(run: Runner) -> None:
    result = await run.python(
        f"import os\nfor pid in ({os.getpid()}, {os.getppid()}):\n"
        "    try:\n        os.kill(pid, 0)\n    except OSError:\n        print('refused')\n"
    )
    assert result.stdout == "refused\nrefused\n"


async def test_children_that_end_do_not_keep_a_program_from_making_more(run: Runner) -> None:
    """Whoever asks for consent to a process is not interrupted by SIGCHLD: fork fails then."""
    loop = "for each in {1..40}; do true | cat | tr a b; done; echo all"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    result = await run(bash, "-c", loop)
    assert (result.stdout, result.stderr) == ("all\n", "")


async def test_the_callers_environment_is_unknown(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY_OF_THE_CALLER", "sesame")
    result = await run.shell("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert "sesame" not in result.stdout
    allowed = {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "TERM",
        "PYTHONDONTWRITEBYTECODE",
        "GIT_CONFIG_NOSYSTEM",
        "PWD",
        "OLDPWD",
    }
    assert names <= {*allowed, "SHLVL", "_"}


# --- limits ------------------------------------------------------------------------------------


async def test_a_command_that_takes_too_long_is_stopped(run: Runner) -> None:
    result = await run("sleep", "100", limits=SHORT)
    assert (code_of(result), result.exit_code) == (SandboxCode.TIMEOUT, None)


async def test_what_was_printed_before_a_timeout_is_kept(run: Runner) -> None:
    result = await run.shell("echo begun; sleep 100", SHORT)
    assert (code_of(result), result.stdout) == (SandboxCode.TIMEOUT, "begun\n")


async def test_a_loop_without_end_is_stopped(run: Runner) -> None:
    limits = evolve(LIMITS, wall_s=10, cpus=0.1)
    assert code_of(await run.shell("while :; do :; done", limits)) == SandboxCode.CPU


async def test_processor_time_is_that_of_all_processes(run: Runner) -> None:
    limits = evolve(LIMITS, wall_s=10, cpus=0.1)
    text = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    assert code_of(await run.shell(text, limits)) == SandboxCode.CPU


@pytest.mark.parametrize(
    "code",
    [
        "held = []\nwhile True: held.append(bytearray(b'x' * 1_000_000))",
        "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): m[at] = 1",
        (
            "import os, time\n"
            "for _ in range(8):\n"
            "    if os.fork() == 0:\n"
            "        held = bytearray(b'x' * 40_000_000)\n"
            "        time.sleep(100)\n"
            "time.sleep(100)"
        ),
    ],
    ids=["one process", "shared memory", "many processes"],
)
async def test_memory_is_limited_for_all_processes_together(run: Runner, code: str) -> None:
    assert code_of(await run.python(code, SMALL)) == SandboxCode.MEMORY


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfile = os.memfd_create('x')\nwhile True: os.write(file, b'x' * 1_000_000)",
        "with open('/dev/shm/x', 'wb') as file:\n    while True: file.write(b'x' * 1_000_000)",
    ],
    ids=["memory file", "shared memory file"],
)
async def test_files_in_memory_do_not_escape_the_limit(run: Runner, code: str) -> None:
    result = await run.python(code, SMALL)
    assert result.exit_code != 0
    assert result.peak_memory_bytes < SMALL.memory_bytes


async def test_a_fork_bomb_is_stopped(run: Runner) -> None:
    result = await run.python("import os\nwhile True: os.fork()", SMALL)
    assert code_of(result) == SandboxCode.PROCESSES


async def test_threads_count_as_processes(run: Runner) -> None:
    code = (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(100,)).start()"
    )
    assert code_of(await run.python(code, SMALL)) == SandboxCode.PROCESSES


async def test_a_gigabyte_of_output_is_stopped(run: Runner) -> None:
    result = await run.shell("head -c 1000000000 /dev/zero | tr '\\0' x")
    assert code_of(result) == SandboxCode.OUTPUT
    assert len(result.stdout) < LIMITS.shown_bytes + 100


async def test_a_huge_file_cannot_be_written(run: Runner, workspace: Path) -> None:
    limits = evolve(LIMITS, file_bytes=1_000_000)
    result = await run.shell("head -c 5000000 /dev/zero > big", limits)
    assert result.exit_code != 0
    assert (workspace / "big").stat().st_size <= limits.file_bytes


# --- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["sleep {0} &", "setsid sleep {0} &", "(setsid sh -c 'sleep {0} & sleep {0}' &)"],
    ids=["background", "own session", "orphan of an orphan"],
)
async def test_what_stays_in_the_background_ends_with_the_command(run: Runner, text: str) -> None:
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    result = await run.shell(f"{text.format(seconds)}\nsleep 0.2; echo done")
    assert result.stdout == "done\n"
    assert gone(with_argument(seconds))


async def test_a_cancelled_command_leaves_no_process(run: Runner) -> None:
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    text = f"setsid sleep {seconds} & trap '' TERM INT HUP; sleep {seconds}"
    working = asyncio.ensure_future(run.shell(text))
    while len(with_argument(seconds)) < 3:
        await asyncio.sleep(0.01)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not with_argument(seconds)
