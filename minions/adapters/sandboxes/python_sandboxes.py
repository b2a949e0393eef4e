"""Sandboxes for Python code: `process`, a confined interpreter, and `monty`, a small one."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from attrs import evolve

from minions.adapters.sandboxes.supervised import job_limits, result_of, supervise, supervise_now
from minions.adapters.sandboxes.supervisor.jobs import CodeJob, CodeTools, Confinement, Job, Report
from minions.adapters.sandboxes.supervisor.kernel import landlock_version
from minions.adapters.sandboxes.supervisor.seccomp import has_filter
from minions.contracts.sandbox import (
    CODE_LIMITS,
    CodeSandbox,
    ProgramTools,
    SandboxLimits,
    SandboxProbe,
    SandboxResult,
)
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue

_OF_INTERPRETER: Final = 160 * 1024 * 1024
"""What Monty's own processes take before any code runs."""
_THREADS_OF_INTERPRETER: Final = 64
_LIBRARIES_OF_PYTHON: Final = (f"{sys.base_prefix}/lib", sysconfig.get_path("stdlib"))
_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")


class ProcessSandbox(CodeSandbox):
    """Python itself, in a process that has given up files, network and other processes.

    Linux with Landlock (5.13 and newer) and seccomp, on x86-64 and 64-bit ARM. The standard library
    is there, other packages are not.
    """

    has_tools: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "process"

    @property
    def help(self) -> str:
        return "`process` needs Linux 5.13 or newer with Landlock and seccomp switched on."

    def probe(self) -> Sequence[SandboxProbe]:
        return _process_probes()

    async def execute(
        self,
        code: str,
        inputs: Mapping[str, JsonValue] | None = None,
        limits: SandboxLimits = CODE_LIMITS,
    ) -> SandboxResult:
        self.require()
        report = await supervise(_process_job(code, inputs, limits))
        return result_of(report, limits, self.name, is_code=True)

    async def execute_with_tools(
        self,
        code: str,
        inputs: Mapping[str, JsonValue],
        limits: SandboxLimits,
        tools: ProgramTools,
    ) -> SandboxResult:
        self.require()
        report = await supervise(_process_job(code, inputs, limits, tools), tools)
        return result_of(report, limits, self.name, is_code=True)


def _process_job(
    code: str,
    inputs: Mapping[str, JsonValue] | None,
    limits: SandboxLimits,
    tools: ProgramTools | None = None,
) -> Job:
    read = [*_LIBRARIES_OF_PYTHON, *_LIBRARIES, "/usr/share/zoneinfo"]
    confinement = Confinement(
        read=read, write=[], devices=["/dev/null", "/dev/urandom"], network=False
    )
    return _job(
        CodeJob(
            engine="python",
            text=code,
            inputs=dict(inputs or {}),
            path=[],
            program="",
            memory_bytes=limits.memory_bytes,
            tools=_code_tools(tools),
        ),
        limits,
        confinement,
        "code",
    )


def _code_tools(tools: ProgramTools | None) -> CodeTools | None:
    if tools is None:
        return None
    return CodeTools(names=list(tools.names), now=tools.now.timestamp(), seed=tools.seed)


def _job(
    code: CodeJob, limits: SandboxLimits, confinement: Confinement | None, kind: str | None
) -> Job:
    return Job(
        code=code,
        argv=[],
        env={},
        folder="/",
        limits=job_limits(limits),
        confinement=confinement,
        filter=kind,
        filter_argument=None,
        merged=False,
        workspace=None,
        protected=[],
        lock=None,
    )


_ESCAPES: Final = """
import os, socket
def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return None
{
    "a file outside": tried(lambda: open(outside).read()),
    "a file written": tried(lambda: open(outside, "w")),
    "its mode changed": tried(lambda: os.chmod(outside, 0o777)),
    "a socket": tried(lambda: socket.socket()),
    "a fork": tried(os.fork),
    "a program": tried(lambda: os.execv("/bin/true", ["true"])),
    "a signal": tried(lambda: os.kill(os.getppid(), 0)),
}
"""


@functools.cache
def _process_probes() -> Sequence[SandboxProbe]:
    if sys.platform != "linux":
        return (SandboxProbe(name="linux", ok=False, detail=f"this is {sys.platform}"),)
    kernel = SandboxProbe(
        name="landlock", ok=landlock_version() >= 1, detail=f"version {landlock_version()}"
    )
    if not kernel.ok:
        return (kernel,)
    limits = evolve(CODE_LIMITS, wall_s=20)
    with tempfile.NamedTemporaryFile() as outside:
        inputs: dict[str, JsonValue] = {"outside": outside.name}
        try:
            report = supervise_now(_process_job(_ESCAPES, inputs, limits))
        except (EnvironmentRefusedError, OSError) as error:
            return (kernel, SandboxProbe(name="start", ok=False, detail=str(error)))
    return (kernel, *_answers(report))


def _answers(report: Report) -> Sequence[SandboxProbe]:
    value = report["value"]
    if report["refused"] is not None or not isinstance(value, dict):
        why = report["refused"] or str(report["trouble"] or report["stderr"] or report["stop"])
        return (SandboxProbe(name="start", ok=False, detail=why),)
    return [
        SandboxProbe(name=str(name), ok=bool(error), detail="" if error else "was possible")
        for name, error in value.items()
    ]


class MontySandbox(CodeSandbox):
    """Monty: an interpreter of a part of Python, which has no way to files, network or processes.

    It runs in a process of its own with an empty environment; on Linux that process is watched, and
    confined too as far as the kernel can.
    """

    has_tools: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "monty"

    @property
    def help(self) -> str:
        return "`monty` needs the extra: pip install 'minions-engine[sandbox]'."

    def probe(self) -> Sequence[SandboxProbe]:
        return _monty_probes()

    async def execute(
        self,
        code: str,
        inputs: Mapping[str, JsonValue] | None = None,
        limits: SandboxLimits = CODE_LIMITS,
    ) -> SandboxResult:
        self.require()
        report = await supervise(_monty_job(code, inputs, limits))
        return result_of(report, limits, self.name, is_code=True)

    async def execute_with_tools(
        self,
        code: str,
        inputs: Mapping[str, JsonValue],
        limits: SandboxLimits,
        tools: ProgramTools,
    ) -> SandboxResult:
        self.require()
        report = await supervise(_monty_job(code, inputs, limits, tools), tools)
        return result_of(report, limits, self.name, is_code=True)


def _monty_package() -> Path | None:
    try:
        found = importlib.util.find_spec("pydantic_monty")
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found is not None and found.origin else None


def _monty_program() -> str | None:
    """The interpreter itself, which its package installs among the environment's programs."""
    scripts = Path(sysconfig.get_path("scripts"), "monty")
    return str(scripts) if scripts.is_file() else shutil.which("monty")


def _monty_job(
    code: str,
    inputs: Mapping[str, JsonValue] | None,
    limits: SandboxLimits,
    tools: ProgramTools | None = None,
) -> Job:
    package = _monty_package()
    asked = CodeJob(
        engine="monty",
        text=code,
        inputs=dict(inputs or {}),
        path=[str(package.parent)] if package is not None else [],
        program=_monty_program() or "",
        memory_bytes=limits.memory_bytes,
        tools=_code_tools(tools),
    )
    own = evolve(
        limits,
        memory_bytes=limits.memory_bytes + _OF_INTERPRETER,
        processes=_THREADS_OF_INTERPRETER,
    )
    if landlock_version() < 1 or not has_filter():
        return _job(asked, own, None, None)
    read = [*asked["path"], asked["program"], *_LIBRARIES_OF_PYTHON, *_LIBRARIES]
    devices = ["/dev/null", "/dev/urandom"]
    confinement = Confinement(read=read, write=[], devices=devices, network=False)
    return _job(asked, own, confinement, "commands")


@functools.cache
def _monty_probes() -> Sequence[SandboxProbe]:
    if _monty_package() is None or _monty_program() is None:
        return (SandboxProbe(name="pydantic-monty", ok=False, detail="is not installed"),)
    try:
        report = supervise_now(_monty_job(_MONTY_ESCAPES, {}, evolve(CODE_LIMITS, wall_s=20)))
    except (EnvironmentRefusedError, OSError) as error:
        return (SandboxProbe(name="start", ok=False, detail=str(error)),)
    return _answers(report)


_MONTY_ESCAPES: Final = """
def a_file():
    open("/etc/passwd").read()
def a_socket():
    import socket
def a_fork():
    import os
    os.fork()
def tried(act):
    try:
        act()
    except Exception as error:
        return str(type(error))
    return None
{"a file outside": tried(a_file), "a socket": tried(a_socket), "a fork": tried(a_fork)}
"""
