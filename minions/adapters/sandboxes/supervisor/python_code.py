"""Python code in the job's own process: its value is that of its last expression."""

from __future__ import annotations

import ast
import json
import os
import resource
import sys
from types import CodeType
from typing import cast

from minions.adapters.sandboxes.supervisor.jobs import RESULT_BYTES, CodeJob, JobLimits

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


def run_monty(job: CodeJob, limits: JobLimits) -> bytes:
    """Execute the code; its result as JSON."""
    import pydantic_monty as monty

    streams = {"stdout": 1, "stderr": 2}

    def show(stream: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(streams[stream], data) :]

    bounds: monty.ResourceLimits = {
        "max_memory": job["memory_bytes"],
        "max_feed_duration_secs": limits["cpu_s"],
    }
    try:
        with (
            monty.Monty(binary_path=job["program"], max_processes=1) as pool,
            pool.checkout(limits=bounds) as session,
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


def _told(error: Exception) -> bytes:
    inner = cast("BaseException", error.exception())  # type: ignore[attr-defined]  # of MontyError
    trace = getattr(error, "traceback", None)
    frames = trace() if callable(trace) else []
    return in_trouble(type(inner).__name__, str(inner), frames[-1].line if frames else None)
