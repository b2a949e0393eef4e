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
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from minions.contracts.errors import EnvironmentRefusedError
from minions.contracts.sandbox import (
    COMMAND_LIMITS,
    Command,
    CommandSandbox,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
)
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
    ) -> SandboxResult:
        command = Command(
            argv=argv,
            workspace=self._workspace,
            is_merged=True,
            network=network,
            protected=protected,
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
    hooks = workspace / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (workspace / ".git" / "config").write_text("[core]\n")
    protected = (".git/hooks", ".git/config")
    for act in (
        "echo evil > .git/hooks/pre-commit",
        "echo evil >> .git/config",
        "rm -r .git/hooks && ln -s /tmp .git/hooks",
        "mv .git old && mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit",
        "rm -rf .git && ln -s old .git",
        "rm -rf .git && echo 'gitdir: old' > .git",
        "rm -rf .git",
    ):
        result = await run("/bin/sh", "-c", act, protected=protected)
        assert result.restored, act
        assert not (workspace / ".git").is_symlink(), act
        assert (workspace / ".git" / "config").read_text() == "[core]\n", act
        assert not hooks.is_symlink(), act
        assert list(hooks.iterdir()) == [], act


async def test_what_one_command_changes_is_no_state_to_put_back_for_another(
    run: Runner, workspace: Path
) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "config").write_text("[core]\n")
    protected = (".git/hooks", ".git/config")
    act = "echo evil >> .git/config; echo evil > .git/hooks/pre-commit; sleep 0.2"
    await asyncio.gather(*(run("/bin/sh", "-c", act, protected=protected) for _ in range(4)))
    assert (workspace / ".git" / "config").read_text() == "[core]\n"
    assert list((workspace / ".git" / "hooks").iterdir()) == []


async def test_a_new_repository_has_neither_hooks_nor_configuration(
    run: Runner, workspace: Path
) -> None:
    outside = workspace.parent / "outside"
    (outside / "hooks").mkdir(parents=True)
    protected = (".git/hooks", ".git/config")
    made = "mkdir -p .git/hooks; for f in HEAD config hooks/pre-commit; do : > .git/$f; done"
    result = await run("/bin/sh", "-c", made, protected=protected)
    assert (result.exit_code, (workspace / ".git" / "HEAD").exists()) == (0, True)
    assert not any((workspace / each).exists() for each in protected)
    await run("/bin/sh", "-c", "rm -rf .git && ln -s ../outside .git", protected=protected)
    assert not (workspace / ".git").is_symlink()
    assert (outside / "hooks").is_dir()


@pytest.mark.parametrize("place", ["/", "/usr", "/etc", "/home", str(Path.home())])
async def test_a_system_folder_is_no_workspace(sandbox: CommandSandbox, place: str) -> None:
    with pytest.raises(EnvironmentRefusedError) as caught:
        await sandbox.run(Command(argv=("true",), workspace=place), LIMITS)
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
