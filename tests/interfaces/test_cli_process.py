"""The command line as a process of its own: signals, pipes, terminals, imports."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line import Write
from forked_commands import PROGRAM, ForkedCommand
from minions.interfaces.cli.console.console import tell
from patience import HANG_S

SLOW = """
import asyncio, time
from minions import tool

@tool
def blocks() -> int:
    '''Cannot be cancelled.'''
    print("blocking", flush=True)
    time.sleep(3600)
    return 1

@tool
async def waits() -> int:
    '''Can be cancelled.'''
    print("waiting", flush=True)
    await asyncio.sleep(3600)
    return 1
"""
RECIPE = "id: slow\nsteps:\n  - {id: first, set: {n: 1}}\n  - {id: second, tool: %s}\n"


def start(here: Path, *arguments: str, through: Sequence[str] = ()) -> subprocess.Popen[str]:
    start_process: type[subprocess.Popen[str]] = subprocess.Popen if through else ForkedCommand
    return start_process(
        [*through, *PROGRAM, *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("tool", "word"), [("blocks", "blocking"), ("waits", "waiting")])
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_stops_the_run_within_two_seconds_and_keeps_what_was_done(
    here: Path, write: Write, tool: str, word: str, number: signal.Signals, code: int
) -> None:
    write("own.py", SLOW)
    write("slow.yaml", RECIPE % tool)
    process = start(
        here, "run", "slow.yaml", "--extensions", "own.py", "--db", "j.sqlite", "--json"
    )
    assert process.stderr is not None
    assert word in iter(process.stderr.readline, "").__next__() or any(
        word in line for line in process.stderr
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_S)  # the tool itself would take much longer
    assert process.returncode == code
    result = json.loads(out)
    assert result["status"] == "cancelled"
    assert [step["status"] for step in result["steps"]] == ["completed", "failed"]
    assert result["steps"][1]["error"]["code"] == "cancelled"
    last_line = err.strip().splitlines()[-1]
    command = f"minions resume {result['run_id'][:8]} --db j.sqlite --extensions own.py"
    assert last_line.endswith(f"resume: {command}")
    assert "Traceback" not in err
    shown = start(here, "sessions", "show", result["run_id"], "--db", "j.sqlite")
    assert "cancelled" in shown.communicate(timeout=HANG_S)[0]


def test_under_nohup_a_closed_terminal_stops_nothing(here: Path, write: Write) -> None:
    write("own.py", SLOW)
    write("slow.yaml", RECIPE % "waits")
    process = start(
        here, "run", "slow.yaml", "--extensions", "own.py", "--no-store", through=("nohup",)
    )
    assert process.stderr is not None
    assert any("waiting" in line for line in process.stderr)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 143
    assert "SIGTERM: stopping" in err
    assert "SIGHUP" not in err


class _InUse(io.StringIO):
    """Standard error while the same thread is in the middle of printing to it."""

    def write(self, text: str) -> int:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    def fileno(self) -> int:
        return 2


def test_a_signal_s_handler_is_heard_also_while_its_thread_prints(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", _InUse())
    tell("SIGTERM: stopping")
    monkeypatch.undo()
    assert capfd.readouterr().err == "SIGTERM: stopping\n"


def test_a_reader_that_goes_away_is_no_error(here: Path, write: Write) -> None:
    write("big.yaml", "id: big\nsteps:\n  - {id: a, set: {text: '%s'}}\n" % ("x" * 500_000))
    command = f"{sys.executable} -m minions run big.yaml --no-store | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == '{\n  "text"'
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


HEAVY = (
    "openai", "instructor", "pydantic", "rich", "httpx2", "aiohttp", "msgspec", "jsonschema",
    "cattrs", "attr", "structlog", "returns", "typing_extensions", "yaml", "regex", "platformdirs",
    "asyncio", "ssl", "socket", "sqlite3", "logging", "tomllib", "json", "difflib", "traceback",
    "dataclasses", "importlib.metadata", "importlib.resources",
    "minions.contracts", "minions.engine", "minions.recipe", "minions.adapters",
)  # fmt: skip


SLOW_IMPORT = """
import asyncio, time
from pathlib import Path
import minions.interfaces.cli.main as cli
from minions.__main__ import main
from minions.adapters.daemon_thread import import_in_daemon_thread

def load():
    time.sleep(0.5)  # longer than the command line takes to come to its end
    Path("imported").touch()

async def begin():
    asyncio.ensure_future(import_in_daemon_thread(load))
    await asyncio.sleep(0)

def command(arguments):
    asyncio.run(begin())
    return 143

cli.run_command_line = command
main()
"""


def test_the_process_does_not_end_inside_an_import(here: Path) -> None:
    """The end of the interpreter while a C extension is initialised is a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (143, "")
    assert (here / "imported").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import minions",
        "from minions.__main__ import main",
        "from minions.interfaces.cli.main import run_command_line as r; assert r(['--help']) == 0",
    ],
)
def test_what_only_looks_loads_nothing_heavy(here: Path, code: str) -> None:
    check = f"{code}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_validate_loads_no_engine(here: Path, write: Write) -> None:
    write("r.yaml", "id: r\nsteps: [{id: a, goal: x, output: {n: integer}, when: '{{ 1 > 0 }}'}]\n")
    check = (
        "from minions.interfaces.cli.main import run_command_line as r\n"
        "assert r(['validate', 'r.yaml']) == 0\n"
        "import sys; print([m for m in ('minions.engine', 'asyncio', 'sqlite3', 'jsonschema', "
        "'cattrs', 'returns') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_validate_and_a_run_without_models_load_no_provider_library(
    here: Path, write: Write
) -> None:
    write("r.yaml", "id: r\nsteps: [{id: a, set: {n: 1}}]\n")
    check = (
        "from minions.interfaces.cli.main import run_command_line as r\n"
        "assert r(['validate', 'r.yaml']) == 0\n"
        "assert r(['run', 'r.yaml', '--no-store']) == 0\n"
        "import sys; print([m for m in ('openai', 'instructor', 'pydantic', 'httpx2') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=here, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def on_terminal(here: Path, columns: int, *arguments: str) -> tuple[int, str]:
    """Run with standard error and output on a terminal of that width; code and what it showed."""
    pid, descriptor = pty.fork()
    if pid == 0:  # pragma: no cover  # the child
        os.chdir(here)
        environ = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR")}
        environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
        os.execve(sys.executable, [sys.executable, "-m", "minions", *arguments], environ)
    shown = b""
    while select.select([descriptor], [], [], HANG_S)[0]:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        shown += piece
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.mark.parametrize("columns", [40, 120])
def test_on_a_terminal_a_live_table_shows_every_step(
    here: Path, write: Write, columns: int
) -> None:
    write("s.yaml", json.dumps({"answers": ["Hello [bold]there[/bold]!"]}))
    write("r.yaml", "id: r\nsteps:\n  - {id: bind, set: {n: 1}}\n  - {id: talk, goal: talk}\n")
    code, shown = on_terminal(here, columns, "run", "r.yaml", "-m", "scripted/s.yaml", "--no-store")
    assert code == 0
    assert "\x1b[" in shown
    assert "✓" in shown
    assert "bind" in shown
    assert "talk" in shown
    assert "Hello [bold]there[/bold]!" in shown
