"""What a sandbox leaves when the process that uses it is killed, and when it is another user's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import attr
import attrs
import pytest

import minions
from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox
from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.contracts.sandbox import Sandbox, probe_words
from minions.testing.processes import gone, with_argument

PACKAGE = Path(minions.__file__).parent

COMMAND = """\
import asyncio, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup lets its children ignore
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell lets `command &` ignore
from minions.adapters.sandboxes.workspaces import {name}
from minions.contracts.sandbox import Command
text = f"setsid sleep {{sys.argv[2]}} & trap '' TERM HUP INT; sleep {{sys.argv[2]}}"
command = Command(argv=("sh", "-c", text), workspace=sys.argv[1])
asyncio.run({name}().run(command))
"""
CODE = """\
import asyncio, sys
from attrs import evolve
from minions.adapters.sandboxes.python_sandboxes import {name}
from minions.contracts.sandbox import CODE_LIMITS
code = "import time\\nwhile True:\\n    time.sleep(1)"
print("begun", flush=True)
asyncio.run({name}().execute(code, {{}}, evolve(CODE_LIMITS, wall_s=600)))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return str(folder)


def needs(sandbox: Sandbox) -> None:
    probes = sandbox.probe()
    if not all(probe.ok for probe in probes):
        pytest.skip(f"{sandbox.name} does not hold here: {probe_words(probes)}")


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()], ids=lambda s: s.name)
def test_a_killed_process_leaves_no_command_behind(sandbox: Sandbox, workspace: str) -> None:
    """A-50"""
    needs(sandbox)
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    program = COMMAND.format(name=type(sandbox).__name__)
    parent = subprocess.Popen([sys.executable, "-c", program, workspace, seconds])
    while len(with_argument(seconds)) < 4:  # itself, the shell and two sleeps, at least
        assert parent.poll() is None
    parent.kill()
    parent.wait()
    assert gone(with_argument(seconds))


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()], ids=lambda s: s.name)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_leaves_no_command_behind(
    sandbox: Sandbox, number: signal.Signals, workspace: str
) -> None:
    """As from a terminal, `timeout` or a service manager."""
    needs(sandbox)
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    program = COMMAND.format(name=type(sandbox).__name__)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, workspace, seconds],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while len(with_argument(seconds)) < 4:
        assert parent.poll() is None
    os.killpg(parent.pid, number)
    parent.wait()
    assert gone(with_argument(seconds))


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()], ids=lambda s: s.name)
def test_what_tools_would_trust_is_removed_although_the_process_is_killed(
    sandbox: Sandbox, workspace: str
) -> None:
    """A-149"""
    needs(sandbox)
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    made = "echo evil > Makefile; mkdir -p sub/.git; echo evil > done"
    program = COMMAND.format(name=type(sandbox).__name__).replace("trap", f"{made}; trap")
    parent = subprocess.Popen([sys.executable, "-c", program, workspace, seconds])
    while not Path(workspace, "done").exists():
        assert parent.poll() is None
    (supervisor,) = (pid for pid in _below(parent.pid) if _is_child(pid, parent.pid))
    parent.kill()
    parent.wait()
    assert gone(frozenset({supervisor}))
    assert not Path(workspace, "Makefile").exists()
    assert not Path(workspace, "sub", ".git").exists()


@pytest.mark.parametrize("sandbox", [MontySandbox(), ProcessSandbox()], ids=lambda s: s.name)
def test_a_killed_process_leaves_no_code_behind(sandbox: Sandbox) -> None:
    """A-50"""
    needs(sandbox)
    program = CODE.format(name=type(sandbox).__name__)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"begun\n"
    while len(started := _below(parent.pid)) < 2:
        assert parent.poll() is None
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(started)


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()], ids=lambda s: s.name)
def test_a_killed_supervisor_is_told_and_its_command_ends(sandbox: Sandbox, workspace: str) -> None:
    needs(sandbox)
    seconds = f"{uuid.uuid4().int % 10**9 + 10**9}"
    program = COMMAND.format(name=type(sandbox).__name__).replace("setsid sleep", "true")
    parent = subprocess.Popen(
        [sys.executable, "-c", program, workspace, seconds], stderr=subprocess.PIPE, text=True
    )
    while len(with_argument(f"sleep\0{seconds}")) < 1:
        assert parent.poll() is None
    (supervisor,) = (pid for pid in _below(parent.pid) if _is_child(pid, parent.pid))
    os.kill(supervisor, signal.SIGKILL)
    _, said = parent.communicate()
    assert "it was killed" in said
    if isinstance(sandbox, BubblewrapSandbox):  # the kernel ends what Landlock alone cannot
        assert gone(with_argument(seconds))
    for pid in with_argument(seconds):
        os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> frozenset[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            tasks = list(Path(f"/proc/{waiting.pop()}/task").iterdir())
            children = {int(each) for t in tasks for each in (t / "children").read_text().split()}
        except OSError:
            continue
        waiting += children - found
        found |= children
    return frozenset(found)


def _is_child(pid: int, parent: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False
    return stat.rpartition(")")[2].split()[1] == str(parent)


# --- as an ordinary user -----------------------------------------------------------------------

NOBODY = 65_534
AS_USER = """\
import asyncio, json, os, sys
from attrs import evolve
from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.adapters.sandboxes.workspaces import BubblewrapSandbox, LandlockSandbox
from minions.contracts.sandbox import COMMAND_LIMITS, Command, probe_words

sandbox = {"process": ProcessSandbox, "bubblewrap": BubblewrapSandbox, "landlock": LandlockSandbox}[
    sys.argv[1]
]()
COMMANDS = {
    "works": "echo hi > made && cat made",
    "system": "touch /usr/x",
    "passwd": "cat /etc/passwd",
    "outside": "cat ../secret.txt || echo x > ../secret.txt",
    "bomb": "python3 -c 'import os\\nwhile True: os.fork()'",
    "memory": "python3 -c 'a = []\\nwhile True: a.append(bytearray(b\\"x\\" * 1000000))'",
}
CODE = {
    "works": "1 + 1",
    "passwd": "open('/etc/passwd').read()",
    "socket": "import socket\\nsocket.socket()",
    "bomb": "import os\\nwhile True: os.fork()",
    "memory": "a = []\\nwhile True: a.append('x' * 1000000)",
}

async def outcome(text):
    if isinstance(sandbox, ProcessSandbox):
        result = await sandbox.execute(text)
        return result.failure.code if result.failure else result.value
    limits = evolve(COMMAND_LIMITS, memory_bytes=200 * 1024 * 1024, processes=32)
    command = Command(argv=("sh", "-c", text), workspace=sys.argv[2])
    result = await sandbox.run(command, limits)
    return result.failure.code if result.failure else [result.exit_code, result.stdout]

async def main():
    if not all(probe.ok for probe in sandbox.probe()):
        return {"skip": probe_words(sandbox.probe())}
    asked = CODE if isinstance(sandbox, ProcessSandbox) else COMMANDS
    return {name: await outcome(text) for name, text in asked.items()} | {"uid": os.getuid()}

print(json.dumps(asyncio.run(main())))
"""


@pytest.fixture
def copy() -> Iterator[Path]:
    """The package where every user can read it; tests' own folders are their user's."""
    place = Path(tempfile.mkdtemp(prefix="minions-test-"))
    place.chmod(0o755)
    for folder in (PACKAGE, Path(attr.__file__).parent, Path(attrs.__file__).parent):
        shutil.copytree(folder, place / folder.name, ignore=shutil.ignore_patterns("*.pyc"))
    (place / "work").mkdir()
    (place / "work").chmod(0o777)
    (place / "secret.txt").write_text("sesame")
    yield place
    shutil.rmtree(place)


@pytest.mark.skipif(os.getuid() != 0, reason="the whole suite runs as an ordinary user already")
@pytest.mark.parametrize("name", ["process", "bubblewrap", "landlock"])
def test_a_sandbox_holds_for_an_ordinary_user_too(copy: Path, name: str) -> None:
    """A-50"""
    python = next(
        (each for each in (sys.executable, "/usr/bin/python3") if _can_run(each, copy)), None
    )
    if python is None:
        pytest.skip("no Python here can be run by an ordinary user")
    done = subprocess.run(
        [python, "-c", AS_USER, name, str(copy / "work")],
        cwd=copy,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(copy)},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    if "skip" in outcome:
        pytest.skip(f"{name} does not hold here for an ordinary user: {outcome['skip']}")
    stopped = {"bomb": "sandbox-processes", "memory": "sandbox-memory", "uid": NOBODY}
    if name == "process":
        denied = dict.fromkeys(("passwd", "socket", "bomb"), "sandbox-denied")
        assert outcome == {"works": 2, **stopped, **denied}
        return
    assert outcome.pop("works") == [0, "hi\n"]
    for refused in ("system", "passwd", "outside"):
        code, said = outcome.pop(refused)
        assert (code != 0 or name == "bubblewrap", "root:" in said, "sesame" in said) == (
            True,
            False,
            False,
        )
    assert outcome == stopped
    assert (copy / "secret.txt").read_text() == "sesame"


def _can_run(python: str, copy: Path) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import attrs"],
            cwd=copy,
            env={"PYTHONPATH": str(copy)},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
