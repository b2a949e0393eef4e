"""`python -m minions` as a process of its own, without the time that Python takes to load it;
likewise `python -m pytest` and a program of the tests.

The process is forked off one that has loaded everything, as a child of the tests' process: signals,
exit codes, pipes, files and kills are those of any process. What a start loads, and how, is not
to be seen here: a test of that starts Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import AnyStr, Final, NoReturn

__all__ = ["PROGRAM", "ForkedCommand", "run_forked"]

PROGRAM: Final = (sys.executable, "-m", "minions")

_CLONE_PARENT: Final = 0x8000
"""The new process is a child of the parent of the process that makes it, which can wait for it."""
_CLONE: Final = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CAN_FORK: Final = sys.platform == "linux" and _CLONE is not None
_LONGEST_ORDER: Final = 1_000_000
_OTHERS: Final = (
    *("pytest", "minions.testing", "batch_program", "regex", "tomllib"),
    *("minions.adapters.tools.files_toolset", "minions.engine.step.iteration.loop"),
    *("minions.interfaces.cli.commands.evaluation_commands", "minions.recipe.expressions.filters"),
    "minions.interfaces.cli.commands.resume_commands",
)
"""What other programs and commands load: of `pytest` its own modules, none of the plugins that it
rewrites."""
_OF_POSTGRES: Final = (
    *("dbos", "dbos._sys_db_postgres", "psycopg"),
    *("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite"),
    *("minions.adapters.dispatch.dbos_dispatch", "minions.adapters.stores.postgres_journal"),
    "minions.adapters.stores.postgres_side_tables",
)
"""What commands load whose journal is there: half a second each. They may not be installed."""
_TOOL: Final = """
from minions import tool

@tool(effect="pure")
def double(n: int) -> int:
    "Doubles."
    return n * 2
"""
_RECIPE: Final = """
id: r
steps: [{id: a, goal: Say.}, {id: b, tool: double, params: {n: 1}, depends_on: a}]
"""
_GIVEN: Final = ("--extensions", "t.py", "--trust", "-m", "scripted/s.yaml")
_WARMING: Final = (
    ("run", "recipes/r.yaml", "--db", "j.sqlite", *_GIVEN, "--json"),
    ("sessions", "list", "--db", "j.sqlite"),
    *(
        ("batch", "recipes/r.yaml", "i.jsonl", "--db", "j.sqlite", *_GIVEN, *each)
        for each in (("--detach", "-o", "later"), ("-o", "now"))
    ),
    ("worker", "--once", "--db", "j.sqlite", "--extensions", "t.py", "--trust"),
    ("serve", "--help"),
    ("worker", "--help"),
    ("mcp", "serve", "--db", "j.sqlite"),  # its input has an end
    ("chat", "--help"),
)


class ForkedCommand(subprocess.Popen[AnyStr]):
    """As `subprocess.Popen([*PROGRAM, ...])`, or of another module, or of the path of a program."""

    def _execute_child(self, args: Sequence[str], executable: None, *given: object) -> None:
        """As in `subprocess`: start the process, and close what is its own of the pipes."""
        if not _CAN_FORK:
            super()._execute_child(args, executable, *given)  # type: ignore[misc]  # as above
            return
        preexec, _, _, cwd, env, _, _, shell, *rest = given
        pipes, (_, *identity, session, group) = rest[:6], rest[6:]
        assert args[0] == sys.executable, args
        assert args[1] == "-m" or args[1].endswith(".py"), args
        assert (preexec, shell, group) == (None, False, -1)
        assert identity == [None, None, None, -1]
        assert env is None or isinstance(env, Mapping)
        order = {
            "arguments": list(args[1:]),
            "folder": str(cwd or Path.cwd()),
            "environ": dict(os.environ if env is None else env),
            "is_session": bool(session),
        }
        ends = [int(str(each)) for each in (pipes[0], pipes[3], pipes[5])]
        try:
            self.pid = _forking_process().start(order, [max(each, -1) for each in ends])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # as above


def run_forked(
    arguments: Sequence[str],
    *,
    input: AnyStr | None = None,  # noqa: A002  # as `subprocess.run` has it
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: object,
) -> subprocess.CompletedProcess[AnyStr]:
    """As `subprocess.run([*PROGRAM, ...])`, or of what else `ForkedCommand` starts."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ForkedCommand[AnyStr](arguments, **options) as process:  # type: ignore[call-overload]  # all of them
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class _ForkingProcess:
    """The process that the others are forked off; it ends with the process of the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_ORDER)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def start(self, order: Mapping[str, object], ends: Sequence[int]) -> int:
        """Start a process; its id.

        Args:
            ends: What its input, output and error output are; -1: those of this process.
        """
        files = [number if end < 0 else end for number, end in enumerate(ends)]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            return int(self._socket.recv(100))


@cache
def _forking_process() -> _ForkingProcess:
    return _ForkingProcess()


# --- in the process that is forked ------------------------------------------------------------


def _main(number: int) -> None:
    for name in _needed_modules():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as orders:
        while True:
            data, files, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, 3)
            if not data:
                return
            pid = _fork()
            if pid == 0:
                orders.close()
                _become_command(json.loads(data), files)
            orders.send(str(pid).encode())
            for each in files:
                os.close(each)


def _needed_modules() -> Sequence[str]:
    """The modules of some commands. They run in a process of their own: nothing is left of them."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        from minions.interfaces.cli.main import run_command_line

        nothing = os.open(os.devnull, os.O_RDWR)
        for each in (1, 2):
            os.dup2(nothing, each)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            os.environ["HOME"] = folder
            Path("recipes").mkdir()
            Path("recipes/r.yaml").write_text(_RECIPE, "utf-8")
            Path("t.py").write_text(_TOOL, "utf-8")
            Path("s.yaml").write_text("answers: [Hi.]\n", "utf-8")
            Path("i.jsonl").write_text("{}\n", "utf-8")
            codes = [run_command_line(command) for command in _WARMING]
            _make_server(Path(folder))
            for other in _OTHERS:
                importlib.import_module(other)
            with contextlib.suppress(ImportError):
                for other in _OF_POSTGRES:
                    importlib.import_module(other)
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps([] if any(codes) else [*sys.modules]))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names: list[str] = json.load(pipe)
    os.waitpid(pid, 0)
    assert names, "a command that is only run for its modules failed"
    return [each for each in names if not each.startswith("__")]


def _make_server(folder: Path) -> None:
    from minions.app.settings.settings import Settings
    from minions.interfaces.server import process  # noqa: F401  # that it is loaded
    from minions.interfaces.server.app import create_app
    from minions.interfaces.server.server_options import ServerOptions

    create_app(ServerOptions(token="t" * 16), recipes=[folder], settings=Settings(no_store=True))


def _fork() -> int:
    """As `os.fork`, but the child is one of this process's parent."""
    assert _CLONE is not None
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = ctypes.PyDLL(None).syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    assert pid >= 0
    return pid


def _become_command(order: Mapping[str, object], files: Sequence[int]) -> NoReturn:
    """What Python does before and after it runs `minions`."""
    code = 1
    try:
        for number, each in enumerate(files):
            os.dup2(each, number)
        for each in files:
            os.close(each)
        if order["is_session"]:
            os.setsid()
        os.chdir(str(order["folder"]))
        environ = order["environ"]
        assert isinstance(environ, dict)
        os.environ.clear()
        os.environ.update(environ)
        arguments = order["arguments"]
        assert isinstance(arguments, list)
        _open_streams()
        if arguments[0] == "-m":
            sys.path[0] = str(order["folder"])
            name = arguments[1]
            run = partial(runpy.run_module, name, run_name="__main__", alter_sys=True)
            sys.argv = arguments[1:]
        else:
            sys.path[0] = str(Path(arguments[0]).parent)
            run = partial(runpy.run_path, arguments[0], run_name="__main__")
            sys.argv = arguments
        code = _exit_code(run)
    except BaseException:  # noqa: BLE001  # the rim of a process
        traceback.print_exc()
    os._exit(code)


def _open_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # of the process
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", closefd=False)  # noqa: SIM115  # as above
        is_quick = name == "stderr" or raw.isatty()
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, line_buffering=is_quick))
        setattr(sys, f"__{name}__", getattr(sys, name))


def _exit_code(main: object) -> int:
    assert callable(main)
    code: object = 0
    try:
        main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  # as Python itself
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    _main(int(sys.argv[1]))
