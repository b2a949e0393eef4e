"""Python code in Monty, an interpreter of its own that can reach nothing of the machine."""

from __future__ import annotations

import os
import sys
from typing import cast

from minions.adapters.sandboxes.supervisor.jobs import CodeJob, JobLimits
from minions.adapters.sandboxes.supervisor.python_code import in_trouble, result_of, trouble_of


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
