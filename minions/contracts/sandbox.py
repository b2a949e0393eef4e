"""Sandboxes: where code and commands run that nobody has read before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from attrs import field, frozen
from attrs.validators import ge, gt

from minions.data.errors import EnvironmentRefusedError, FailureInfo, StepFailedError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

NO_SANDBOX: Final = "no-sandbox"
"""Code of the error where this machine cannot confine what is to run."""


CODE_DIVERGED: Final = "code-diverged"
"""Code of the error where a program of an interrupted run makes other calls than it made before."""


class SandboxCode(StrEnum):
    """Codes of the failures of what ran in a sandbox."""

    TIMEOUT = "sandbox-timeout"
    CPU = "sandbox-cpu"
    MEMORY = "sandbox-memory"
    OUTPUT = "sandbox-output"
    PROCESSES = "sandbox-processes"
    DISK = "sandbox-disk"
    """It took more space than it may in the folders that it may change."""
    DENIED = "sandbox-denied"
    """It tried what a sandbox does not allow, such as a socket or a file outside."""
    CANCELLED = "sandbox-cancelled"
    """The process that started it ended."""
    RESULT = "sandbox-result"
    """The value is not JSON, or too large."""
    CODE = "sandbox-code-failed"
    """The code raised an exception of its own, or is not Python."""
    CALLS = "sandbox-calls"
    """It asked for calls of tools otherwise than the functions of the module `tools` do."""
    FAILED = "sandbox-failed"
    """The interpreter ended without a value."""


@frozen(kw_only=True)
class SandboxLimits(FieldsRepr):
    """What everything that runs in a sandbox may use together, child processes included."""

    memory_bytes: int = field(default=100 * 1024 * 1024, validator=ge(1024 * 1024))
    cpus: float = field(default=0.5, validator=gt(0))
    """CPU time as a share of `wall_s`: 0.5 with 5 s is 2.5 s of one processor."""
    wall_s: float = field(default=5.0, validator=gt(0))
    """Seconds from start to end."""
    output_bytes: int = field(default=1024 * 1024, validator=ge(0))
    """Most bytes printed; what prints more is stopped."""
    shown_bytes: int = field(default=32 * 1024, validator=ge(2))
    """Of each stream, how much is kept: the head and the tail of it."""
    processes: int = field(default=1, validator=ge(1))
    """Processes and threads together; Python code has one in any case."""
    file_bytes: int = field(default=256 * 1024 * 1024, validator=ge(0))
    """The largest file that may be written."""
    disk_bytes: int = field(default=1024 * 1024 * 1024, validator=ge(0))
    """How much more space the workspace may take at the end than at the beginning."""

    @property
    def cpu_s(self) -> float:
        """Most seconds of CPU time."""
        return self.cpus * self.wall_s


CODE_LIMITS: Final = SandboxLimits()
"""The default limits of code."""
COMMAND_LIMITS: Final = SandboxLimits(
    memory_bytes=1024 * 1024 * 1024,
    cpus=2,
    wall_s=120,
    output_bytes=64 * 1024 * 1024,
    processes=256,
)
"""The default limits of commands."""


@frozen(kw_only=True)
class SandboxProbe(FieldsRepr):
    """One thing that was really tried in a sandbox, and what came of it."""

    name: str
    """What was tried: `a file outside`."""
    ok: bool
    """Whether the sandbox holds."""
    detail: str = ""


@frozen(kw_only=True)
class SandboxResult(FieldsRepr):
    """How code or a command ended."""

    value: JsonValue = None
    """Of code: the value of its last expression."""
    exit_code: int | None = None
    """Of a command; None: it was stopped, or killed by a signal."""
    stdout: str = ""
    """What it printed; of a long text head and tail, with a line between that says so."""
    stderr: str = ""
    output_bytes: int = 0
    """How much it printed in all."""
    is_cut: bool = False
    """Whether `stdout` or `stderr` lacks a part."""
    failure: FailureInfo | None = None
    """Why it was stopped, or why code has no value; None: it ended by itself. A command whose exit
    code is not 0 has not failed in this sense."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_bytes: int = 0
    """As far as it was seen: between two looks it may have been more."""
    disk_bytes: int = 0
    """How much more space the workspace takes than before, as far as it was measured; less than 0:
    there is more room."""
    restored: tuple[str, ...] = ()
    """Protected files that the command had changed, and that were put back; and what was removed,
    because tools outside would trust it. Of many the first, and how many more."""
    sandbox: str = ""
    """The name of the sandbox that held it."""

    def unwrap(self) -> JsonValue:
        """The value of code.

        Raises:
            StepFailedError: It failed; its code is one of `SandboxCode`.
        """
        if self.failure is not None:
            raise StepFailedError(self.failure)
        return self.value


class Sandbox(ABC):
    """A way to confine what runs. Nothing runs in one whose probes fail.

    Every implementation ends the whole process tree at a limit, at the end of its first process,
    when the caller is cancelled, and when the caller's process ends, however it ends.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in recipes and messages."""

    @property
    def help(self) -> str:
        """What to install or change where it is not available; empty: nothing helps."""
        return ""

    @abstractmethod
    def probe(self) -> Sequence[SandboxProbe]:
        """Try to leave the sandbox, really; blocks for some tenths of a second at its first call.

        Later calls give the same answer without trying.
        """

    def require(self) -> None:
        """Return if the sandbox holds.

        Raises:
            EnvironmentRefusedError: `no-sandbox`; the message names each probe.
        """
        if not all(probe.ok for probe in self.probe()):
            raise unavailable([self])


@frozen(kw_only=True)
class ProgramAnswer(FieldsRepr):
    """What the call of a tool gives the program that made it."""

    value: JsonValue = None
    failure: FailureInfo | None = None
    """Why there is no value; the program may catch it."""


@frozen(kw_only=True)
class ProgramTools(FieldsRepr):
    """The module `tools` of a program, and what makes the program repeatable.

    A program that is given the same answers makes the same calls: its clock stands still, and its
    random numbers and the order of its sets are fixed.
    """

    names: tuple[str, ...]
    """The functions of the module; each takes arguments by name."""
    call: Callable[[str, Mapping[str, JsonValue]], Awaitable[ProgramAnswer]]
    """Carries out a call. They come one at a time; what it raises ends the program, and
    `execute` raises it. The names are as the program gives them: whatever runs in a sandbox may ask
    for any."""
    now: datetime
    """The time of day that the program reads, from its start to its end; with a zone."""
    seed: str
    """Where its random numbers begin."""


class CodeSandbox(Sandbox):
    """Runs Python code that has no effect outside, but by the tools that it is given."""

    has_tools: ClassVar[bool] = False
    """Whether it has `execute_with_tools`."""

    @abstractmethod
    async def execute(
        self,
        code: str,
        inputs: Mapping[str, JsonValue] | None = None,
        limits: SandboxLimits = CODE_LIMITS,
    ) -> SandboxResult:
        """Run the code in an interpreter of its own, which ends with it.

        Args:
            inputs: Global names of the code, with their values.
        Returns:
            The value of the last expression, or a failure; never half of both.
        Raises:
            EnvironmentRefusedError: The sandbox does not hold here; nothing ran.
        """

    async def execute_with_tools(
        self,
        code: str,
        inputs: Mapping[str, JsonValue],
        limits: SandboxLimits,
        tools: ProgramTools,
    ) -> SandboxResult:
        """As `execute`, of code that may import the module `tools`. A recipe with such code is
        refused where this is not overridden and `has_tools` is not set.

        Args:
            tools: While one of its calls is carried out, `wall_s` does not count.
        Raises:
            EnvironmentRefusedError: The sandbox does not hold here, or has no such module.
            Exception: What `tools.call` raises; no process is left then.
        """
        raise EnvironmentRefusedError(
            f"The sandbox '{self.name}' hands no calls of tools on.", code=NO_SANDBOX
        )


@frozen(kw_only=True)
class Command(FieldsRepr):
    """A command in a workspace."""

    argv: tuple[str, ...]
    workspace: str
    """The folder that it may change: absolute, without links."""
    network: bool = False
    """Whether it may connect to other machines."""
    environ: Mapping[str, str] = field(factory=dict)
    """Variables besides PATH, HOME, LANG and TMPDIR, which the sandbox sets."""
    is_merged: bool = False
    """Whether what it prints to stderr stands between the lines of `stdout`."""
    protected: tuple[str, ...] = ()
    """Files and folders below the workspace that are put back as they were when it has ended."""
    allow_config: tuple[str, ...] = ()
    """Patterns of files that configure tools outside and that it may change all the same; never
    what Git trusts."""
    writes_repository: bool = False
    """Whether it is a fixed command of Git that stages or commits: it may change the index, objects
    and references of the workspace's repository, and nothing else in it."""


class CommandSandbox(Sandbox):
    """Runs commands that change nothing but their workspace.

    Nothing that a command leaves there is run by a tool of a person who does their usual work: what
    Git trusts cannot be changed or made, files that configure tools are put back
    (`minions.contracts.protected_files`), and no file gets the right to run as its owner.
    """

    @abstractmethod
    async def run(self, command: Command, limits: SandboxLimits = COMMAND_LIMITS) -> SandboxResult:
        """Run the command until it ends; what it left in the background is killed then.

        Raises:
            EnvironmentRefusedError: The sandbox does not hold here, or not for this workspace;
                nothing ran.
        """


def unavailable(
    tried: Sequence[Sandbox],
    *,
    what: str = "This needs a sandbox",
    where: str | None = None,
) -> EnvironmentRefusedError:
    """The error of sandboxes none of which holds: every probe, and what to install.

    Args:
        what: What needs one, as the beginning of a sentence.
    """
    told = "; ".join(f"{each.name}: {probe_words(each.probe())}" for each in tried)
    helps = " ".join(each.help for each in tried if each.help)
    return EnvironmentRefusedError(
        f"{what}, and no sandbox holds here; nothing weaker is used instead. {told}. {helps}",
        code=NO_SANDBOX,
        where=where,
    )


def probe_words(probes: Sequence[SandboxProbe]) -> str:
    """What was tried, and what came of it, in one line."""
    marks = {True: "ok", False: "NOT OK"}
    return ", ".join(
        f"{probe.name} {marks[probe.ok]}{f' ({probe.detail})' if probe.detail else ''}"
        for probe in probes
    )
