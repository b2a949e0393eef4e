"""Starts the supervisor with one job and waits for its report; a cancelled wait ends the job."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

from minions.adapters.sandboxes.supervisor.jobs import (
    Job,
    JobLimits,
    Report,
    ToolAnswer,
    ToolRequest,
)
from minions.adapters.sandboxes.supervisor.program_tools import fitting_answer
from minions.contracts.sandbox import (
    NO_SANDBOX,
    ProgramTools,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
)
from minions.data.errors import EnvironmentRefusedError, FailureInfo
from minions.data.json_values import JsonValue

_ROOT: Final = str(Path(__file__).parents[3])
_PROGRAM: Final = (
    f"import sys; sys.path.append({_ROOT!r}); "
    "from minions.adapters.sandboxes.supervisor.supervise import main; main()"
)
_GRACE_S: Final = 30.0
"""How much later than the job's own end the supervisor is given up; before it begins, it may wait
as long for other jobs in its workspace."""
_CHECK_S: Final = 600.0
"""How long it may look through what a job left: without that, a tool might trust it."""


def _command(job: Job) -> list[str]:
    # `-I` is `-E -s -P`. Of code that calls tools one variable counts, by which sets have an order.
    flags = ("-s", "-P") if _is_repeatable(job) else ("-I",)
    return [sys.executable, *flags, "-S", "-c", _PROGRAM]


def _environment(job: Job) -> dict[str, str]:
    return {"PYTHONHASHSEED": "0"} if _is_repeatable(job) else {}


def _is_repeatable(job: Job) -> bool:
    return job["code"] is not None and job["code"]["tools"] is not None


def job_limits(limits: SandboxLimits) -> JobLimits:
    """The limits as the supervisor takes them."""
    return JobLimits(
        memory_bytes=limits.memory_bytes,
        cpu_s=limits.cpu_s,
        wall_s=limits.wall_s,
        output_bytes=limits.output_bytes,
        shown_bytes=limits.shown_bytes,
        tasks=limits.processes,
        file_bytes=limits.file_bytes,
        disk_bytes=limits.disk_bytes,
    )


async def supervise(job: Job, tools: ProgramTools | None = None) -> Report:
    """Run a job. Cancelled, it returns when no process of the job is left.

    Args:
        tools: Carries out the calls that the job asks for; None: it can ask for none.
    Raises:
        EnvironmentRefusedError: The supervisor could not be started, or was killed.
        Exception: What `tools.call` raises; no process of the job is left then.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *_command(job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(job),
            start_new_session=True,  # a signal to the caller's group is not meant for it
            limit=_MOST_REPORT_BYTES,
        )
    except OSError as error:
        raise EnvironmentRefusedError(
            f"The sandbox's supervisor ({sys.executable}) cannot be started: {error.strerror}.",
            code="sandbox-failed",
        ) from error
    dialogue = _Dialogue(process, job)
    try:
        line = await dialogue.ask(_encode(job))
        while tools is not None and line.startswith(_REQUEST):
            line = await dialogue.ask(await answer_of(tools, line))
        return _decoded(line, await dialogue.end())
    except BaseException:  # cancelled, or a call raised: the supervisor ends the job, then itself
        _close_stdin(process)
        await _end(asyncio.ensure_future(dialogue.end()))
        raise


_REQUEST: Final = b'{"tool": '
"""How the line of a request begins; no report begins so."""


async def answer_of(tools: ProgramTools, line: bytes) -> bytes:
    """Carry out what a line asks for; the line of its answer."""
    return fitting_answer(await _carry_out(tools, line))


async def _carry_out(tools: ProgramTools, line: bytes) -> ToolAnswer:
    try:
        request: ToolRequest = json.loads(line)
    except RecursionError:  # the supervisor has read it, with more room
        return ToolAnswer(value=None, code="bad-arguments", message="They are nested too deep.")
    arguments = cast("dict[str, JsonValue]", request["arguments"])  # as the line was parsed
    answer = await tools.call(request["tool"], arguments)
    failure = answer.failure
    if failure is not None:
        return ToolAnswer(value=None, code=failure.code, message=failure.message)
    return ToolAnswer(value=answer.value, code=None, message="")


class _Dialogue:
    """Lines to and from a supervisor."""

    def __init__(self, process: asyncio.subprocess.Process, job: Job) -> None:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None  # noqa: PT018, S101
        self._process, self._stdin, self._stdout = process, stdin, stdout
        self._most_s = 2 * job["limits"]["wall_s"] + _GRACE_S + _CHECK_S
        self._problem = b""
        self._said = asyncio.ensure_future(stderr.read())

    async def ask(self, line: bytes) -> bytes:
        """The supervisor's answer to a line; empty: it gives none."""
        try:
            async with asyncio.timeout(self._most_s):
                self._stdin.write(line)
                return await self._stdout.readline()
        except (TimeoutError, ConnectionError, ValueError) as error:
            self._problem = str(error).encode()
            return b""

    async def end(self) -> bytes:
        """Wait until the supervisor has ended; returns what it said to its errors."""
        try:
            async with asyncio.timeout(self._most_s):
                if self._problem:
                    return self._problem
                await self._stdout.read()
                return await asyncio.shield(self._said)
        except TimeoutError as error:
            return str(error).encode()
        finally:
            _close_stdin(self._process)
            if self._process.returncode is None and not self._said.done():
                self._process.kill()
            await self._process.wait()
            await asyncio.wait([self._said])


def _close_stdin(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()


async def _end(reading: asyncio.Future[bytes]) -> None:
    while not reading.done():
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError:
            continue  # once is enough: the end is near, and the processes have to be gone
    reading.exception()  # looked at: nobody else will


_MOST_REPORT_BYTES: Final = 64 * 1024 * 1024


def supervise_now(job: Job) -> Report:
    """Run a job, without an event loop; for probes.

    Raises:
        EnvironmentRefusedError: As for `supervise`.
    """
    process = subprocess.Popen(  # noqa: S603  # our own program
        _command(job),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101
    with process:
        try:
            process.stdin.write(_encode(job))
            process.stdin.flush()
            answer = process.stdout.readline()
        except ConnectionError:
            answer = b""
        said = process.stderr.read() if process.stderr is not None and not answer else b""
    return _decoded(answer, said)


def _encode(job: Job) -> bytes:
    return json.dumps(job).encode() + b"\n"


def _decoded(answer: bytes, said: bytes) -> Report:
    if not answer:
        raise EnvironmentRefusedError(
            f"The sandbox's supervisor ({sys.executable}) gave no report: "
            f"{said.decode('utf-8', 'replace')[-2000:] or 'it was killed'}",
            code="sandbox-failed",
        )
    report: Report = json.loads(answer)  # our own program wrote it
    return report


def result_of(
    report: Report, limits: SandboxLimits, sandbox: str, *, is_code: bool
) -> SandboxResult:
    """The report as callers see it.

    Args:
        sandbox: The name of the sandbox that held it.
    Raises:
        EnvironmentRefusedError: Nothing ran, or what it left could not be checked.
    """
    if report["refused"] is not None:
        raise EnvironmentRefusedError(
            f"The sandbox could not be made: {report['refused']}", code=NO_SANDBOX
        )
    if report["unchecked"] is not None:
        raise EnvironmentRefusedError(
            "The command ended, but what it left in its workspace could not be checked: "
            f"{report['unchecked']}. Run nothing there, not even `git status`, before you looked.",
            code="sandbox-unchecked",
        )
    return SandboxResult(
        value=cast("JsonValue", report["value"]) if report["has_value"] else None,
        exit_code=report["exit_code"] if not is_code else None,
        stdout=report["stdout"],
        stderr=report["stderr"],
        output_bytes=report["output_bytes"],
        is_cut=report["is_cut"],
        failure=_make_stop_failure(report, limits)
        or (_make_code_failure(report, limits) if is_code else None),
        cpu_s=report["cpu_s"],
        wall_s=report["wall_s"],
        peak_memory_bytes=report["peak_memory_bytes"],
        restored=tuple(report["restored"]),
        disk_bytes=report["disk_bytes"],
        sandbox=sandbox,
    )


def _make_stop_failure(report: Report, limits: SandboxLimits) -> FailureInfo | None:
    match report["stop"]:
        case None:
            return None
        case "timeout":
            code, what = SandboxCode.TIMEOUT, f"did not end within {limits.wall_s:g} s"
        case "cpu":
            code, what = SandboxCode.CPU, _cpu_words(limits)
        case "memory":
            code, what = SandboxCode.MEMORY, _memory_words(limits)
        case "output":
            code, what = SandboxCode.OUTPUT, f"printed more than {limits.output_bytes:,} bytes"
        case "processes":
            code, what = SandboxCode.PROCESSES, f"had more than {limits.processes} processes"
        case "disk":
            most = limits.disk_bytes / 2**20
            code, what = SandboxCode.DISK, f"took more than {most:,.0f} MiB of the disk"
        case "cancelled":
            code, what = SandboxCode.CANCELLED, "was cancelled"
        case "calls":
            what = "asked for calls of tools otherwise than the functions of the module `tools` do"
            code = SandboxCode.CALLS
    return FailureInfo(code=code, message=f"What ran in the sandbox {what}; it was stopped.")


def _cpu_words(limits: SandboxLimits) -> str:
    return f"used more than {limits.cpu_s:g} s of CPU time ({limits.cpus:g} CPU)"


def _memory_words(limits: SandboxLimits) -> str:
    return f"used more than {limits.memory_bytes / 2**20:,.0f} MiB of memory"


def _make_code_failure(report: Report, limits: SandboxLimits) -> FailureInfo | None:
    """Why code has no value; None: it has one."""
    if report["has_value"]:
        return None
    trouble = report["trouble"]
    if trouble is None:
        how = f"signal {report['signal']}" if report["signal"] else f"code {report['exit_code']}"
        message = (
            f"The interpreter ended without a value ({how}). {report['stderr'][-500:]}".strip()
        )
        return FailureInfo(code=SandboxCode.FAILED, message=message)
    code, what = _of_exception(trouble["type"], trouble["message"], limits)
    at = f" (line {trouble['line']})" if trouble["line"] else ""
    return FailureInfo(code=code, message=f"{what}{at}")


def _of_exception(kind: str, message: str, limits: SandboxLimits) -> tuple[SandboxCode, str]:
    said = f"{kind}: {message}" if message else kind
    if kind == "MemoryError":
        return SandboxCode.MEMORY, f"The code {_memory_words(limits)}: {said}"
    if kind == "TimeoutError" and "time limit exceeded" in message:
        return SandboxCode.CPU, f"The code {_cpu_words(limits)}: {said}"
    if kind == "PermissionError" or (kind == "BlockingIOError" and "temporarily" in message):
        return SandboxCode.DENIED, f"The code tried what the sandbox does not allow: {said}"
    if kind in ("ResultNotJson", "ResultTooLarge"):
        return SandboxCode.RESULT, f"The value of the code cannot be taken: {message}"
    if kind == "InterpreterCrashed":
        return SandboxCode.FAILED, f"The interpreter ended: {message}"
    return SandboxCode.CODE, f"The code failed: {said}"
