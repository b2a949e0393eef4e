"""The job's own process: it gives up its rights one after the other, then executes a command or
Python code.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import NoReturn

from minions.adapters.sandboxes.supervisor.jobs import RESULT_BYTES, CodeJob, Job, JobLimits
from minions.adapters.sandboxes.supervisor.kernel import (
    die_with_parent,
    drop_privileges,
    forbid_more_rights,
    restrict_files,
)
from minions.adapters.sandboxes.supervisor.program_tools import (
    MODULE,
    ToolCaller,
    ToolError,
    ask_over,
    make_repeatable,
)
from minions.adapters.sandboxes.supervisor.seccomp import (
    filter_file,
    install_filter,
    request_changes,
)

_MOST_FILES = 256
_IGNORED_BEFORE = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGPIPE, signal.SIGXFSZ),
)
_SLACK_BYTES = 64 * 1024 * 1024


class Pipes:
    """The pipes between the job and its supervisor."""

    def __init__(self) -> None:
        self.stdout_read, self.stdout = os.pipe()
        self.stderr_read, self.stderr = os.pipe()
        self.result_read, self.result = os.pipe()
        self.refusal_read, self.refusal = os.pipe()
        self.requests_read, self.requests = os.pipe()
        self.answers, self.answers_write = os.pipe()
        """Over these two, code asks for calls of tools."""
        self.channel_read, self.channel = socket.socketpair()
        """Over these the supervisor receives the descriptor of requests for processes."""

    def close_ends_of_job(self) -> None:
        """In the supervisor: so that the end of the job is the end of its pipes."""
        for end in (self.stdout, self.stderr, self.result, self.refusal, self.requests):
            os.close(end)
        os.close(self.answers)
        self.channel.close()


def begin(job: Job, pipes: Pipes, parent: int) -> NoReturn:
    """In the new process: give up rights, then execute the job. Returns never."""
    try:
        _detach(job, pipes, parent)
        code = job["code"]
        if code is None:
            _become(job, pipes.channel)
        if code["engine"] == "monty":
            load_monty(code)
        else:
            limit_memory(job["limits"]["memory_bytes"])
        _confine(job)
    except BaseException as error:  # noqa: BLE001  # it must not begin with more rights
        os.write(pipes.refusal, f"{type(error).__name__}: {error}".encode()[:4000])
        os._exit(1)
    os.close(pipes.refusal)
    pipes.channel.close()
    caller = ToolCaller(ask_over(pipes.requests, pipes.answers))
    _run(code, job["limits"], pipes.result, caller)


def _detach(job: Job, pipes: Pipes, parent: int) -> None:
    os.setsid()  # no terminal
    for number in _IGNORED_BEFORE:
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        die_with_parent(parent)
        with contextlib.suppress(OSError):  # so that the kernel chooses it, if memory is short
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(5)
    null = os.open(os.devnull, os.O_RDONLY)
    ends = (null, pipes.stdout, pipes.stdout if job["merged"] else pipes.stderr)
    for target, end in enumerate(ends):
        os.dup2(end, target)
    kept = {pipes.result, pipes.refusal, pipes.channel.fileno()}
    if job["code"] is not None and job["code"]["tools"] is not None:
        kept |= {pipes.requests, pipes.answers}
    _close_others(kept)
    os.umask(0o022)
    os.chdir(job["folder"])
    _limit(job["limits"])


def _close_others(kept: Iterable[int]) -> None:
    first = 3
    for each in sorted(kept):
        os.closerange(first, each)
        first = each + 1
    os.closerange(first, 65_536)


def _limit(limits: JobLimits) -> None:
    cpu_s = math.ceil(limits["cpu_s"]) + 1
    # Of each process; the sum is watched from outside.
    data = limits["memory_bytes"] * 3 // 2 + _SLACK_BYTES if sys.platform == "linux" else None
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_DATA, data),
    ):
        if most is None:
            continue
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


def _confine(job: Job) -> None:
    if sys.platform == "linux":
        drop_privileges()
    confinement = job["confinement"]
    if confinement is not None:
        restrict_files(
            confinement["read"],
            confinement["write"],
            confinement["devices"],
            network=confinement["network"],
        )
    if job["filter"] is not None and job["filter_argument"] is None:
        install_filter(job["filter"])


def _become(job: Job, channel: socket.socket) -> NoReturn:
    """Become the program; bubblewrap confines itself and installs the filter."""
    forbid_more_rights()
    workspace = job["workspace"]
    listener = request_changes(of_files=workspace is not None and workspace["mounts_at"] is None)
    socket.send_fds(channel, [b"r"], [listener])
    channel.close()
    os.close(listener)
    argv, place = list(job["argv"]), job["filter_argument"]
    if job["filter"] is not None and place is not None:
        argv[place] = str(filter_file(job["filter"]))
    else:
        _confine(job)
    os.execvpe(argv[0], argv, job["env"])  # noqa: S606  # no shell on purpose


def _run(asked: CodeJob, limits: JobLimits, result: int, caller: ToolCaller) -> NoReturn:
    sys.argv = [""]
    if asked["engine"] == "monty":
        answer = run_monty(asked, limits, caller)
    else:
        sys.path = [each for each in sys.path if each.startswith(sys.base_prefix)]
        if asked["tools"] is not None:
            make_repeatable(asked["tools"], caller)
        answer = run_python(asked)
        flush_streams()
    while answer:
        answer = answer[os.write(result, answer) :]
    os._exit(0)


# --- Python code in the job's own process --------------------------------------------------------


_NAME = "code"


def run_python(job: CodeJob) -> bytes:
    """Execute the code; its result as JSON."""
    try:
        return result_of(_value_of(job))
    except BaseException as error:  # noqa: BLE001  # whatever strange code raises ends it
        return trouble_of(error)


def result_of(value: object) -> bytes:
    """A value as a result; one that is not JSON is trouble."""
    try:
        text = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return in_trouble("ResultNotJson", str(error), None)
    if len(text) > RESULT_BYTES:
        return in_trouble("ResultTooLarge", f"{len(text):,} bytes of JSON", None)
    return b'{"trouble": null, "value": ' + text + b"}"


def _value_of(job: CodeJob) -> object:
    tree = ast.parse(job["text"], _NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    scope: dict[str, object] = {"__name__": "__main__", **job["inputs"]}
    _execute(compile(tree, _NAME, "exec"), scope)
    if not isinstance(last, ast.Expr):
        return None
    value: object = eval(compile(ast.Expression(last.value), _NAME, "eval"), scope)  # noqa: S307
    return value


def _execute(code: CodeType, scope: dict[str, object]) -> None:
    exec(code, scope)  # noqa: S102  # the reason why there is a sandbox


def trouble_of(error: BaseException) -> bytes:
    """An exception as a result."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # a stranger's __str__ may raise anything
        message = "(its text cannot be shown)"
    return in_trouble(type(error).__name__, message, _line_of(error))


def in_trouble(kind: str, message: str, line: int | None) -> bytes:
    """A result that is an error."""
    trouble = {"type": kind[:200], "message": message[:4000], "line": line}
    return json.dumps({"trouble": trouble, "value": None}).encode()


def _line_of(error: BaseException) -> int | None:
    """The line of the code where it happened, deepest call last."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def limit_memory(most_bytes: int) -> None:
    """Let this process grow to that size; what it has reserved but not touched does not count."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
        reserved, resident = (
            int(word) * resource.getpagesize() for word in file.read().split()[:2]
        )
    most = reserved + max(most_bytes - resident, 0)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def flush_streams() -> None:
    """Write out what the code printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os._exit(1)


# --- python code in Monty, an interpreter of its own that can reach nothing of the machine -------


def load_monty(job: CodeJob) -> None:
    """Import the interpreter, before the job gives up its access to files."""
    sys.path[:0] = job["path"]
    import pydantic_monty  # noqa: F401


def run_monty(job: CodeJob, limits: JobLimits, caller: ToolCaller) -> bytes:
    """Execute the code; its result as JSON."""
    import pydantic_monty as monty

    modules: dict[str, monty.ExternalModule] = {}
    policy: monty.OSPolicy = {}
    if (tools := job["tools"]) is not None:
        functions = caller.functions(tools["names"])
        attributes = {name: _crossing(each) for name, each in functions.items()}
        modules[MODULE] = monty.ExternalModule(attributes)
        now = datetime.datetime.fromtimestamp(tools["now"], datetime.UTC)
        policy = {"datetime": now, "random_start": {"seed": tools["seed"]}}

    streams = {"stdout": 1, "stderr": 2}

    def show(stream: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(streams[stream], data) :]

    bounds: monty.ResourceLimits = {
        "max_memory": job["memory_bytes"],
        "max_feed_duration_secs": limits["cpu_s"],
        "max_suspensions": _MOST_SUSPENSIONS,
    }
    try:
        with (
            monty.Monty(binary_path=job["program"], max_processes=1) as pool,
            pool.checkout(limits=bounds, os_policy=policy, external_modules=modules) as session,
        ):
            inputs = dict(job["inputs"])
            value: object = session.feed_run(job["text"], inputs=inputs, print_callback=show)
            return result_of(value)
    except monty.MontyCrashedError as error:
        return in_trouble("InterpreterCrashed", str(error), None)
    except monty.MontyError as error:
        return _told(error)
    except Exception as error:  # noqa: BLE001  # values that do not cross its border
        return trouble_of(error)


_MOST_SUSPENSIONS = 1_000_000
"""Calls that leave the interpreter: those of tools have a limit of their own."""


def _crossing(function: Callable[..., object]) -> Callable[..., object]:
    """The function with errors of a class that crosses the interpreter's border as it is."""

    def crossing(*unnamed: object, **arguments: object) -> object:
        try:
            return function(*unnamed, **arguments)
        except ToolError as error:
            raise RuntimeError(str(error)) from None

    return crossing


def _told(error: Exception) -> bytes:
    inner: BaseException = error.exception()  # type: ignore[attr-defined]  # of MontyError
    trace = getattr(error, "traceback", None)
    frames = trace() if callable(trace) else []
    return in_trouble(type(inner).__name__, str(inner), frames[-1].line if frames else None)
