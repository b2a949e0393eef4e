"""The toolset `shell`: commands in a workspace, each in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from attrs import field, frozen

from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.workspace_options import (
    ChooseSandbox,
    Workspace,
    WorkspaceOptions,
    default_sandbox,
    workspace_toolset,
)
from minions.contracts.protected_files import ALLOW_CONFIG
from minions.contracts.sandbox import SandboxCode, SandboxResult
from minions.contracts.tools import Effect, Tool, Toolset

_GRACE_S: Final = 30.0
"""How much longer a call may take than its command and its wait for others in the workspace: the
sandbox ends it first, and says why."""


@frozen(kw_only=True)
class _Options(WorkspaceOptions):
    """The options that a recipe may set."""

    network: bool = field(
        default=False, metadata={"description": "Whether commands may reach other machines."}
    )
    allow_config: list[str] = field(factory=list, metadata=ALLOW_CONFIG)


def built_in(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return shell_toolset()


def shell_toolset(choose: ChooseSandbox = default_sandbox) -> Toolset:
    """The tools `run` and `exec` (once).

    Args:
        choose: Chooses the sandbox when the toolset is opened.
    """
    return workspace_toolset(
        "shell",
        "Run commands in one folder, in a sandbox.",
        defaults=_Options(),
        tools=_tools,
        choose=choose,
    )


def _tools(options: _Options, workspace: Workspace, prefix: str) -> Sequence[Tool]:
    shell = _ShellTools(options, workspace)
    timeout_s = 2 * options.timeout_s + _GRACE_S
    return [
        tool(name=f"{prefix}{name}", effect=Effect.ONCE, timeout_s=timeout_s)(function)
        for name, function in (("run", shell.run), ("exec", shell.exec))
    ]


@frozen(kw_only=True)
class CommandDone:
    """The result of `run` and `exec`."""

    exit_code: int | None
    """None: the command was stopped."""
    output: str
    """What it printed, stdout and stderr; of a long text head and tail."""
    truncated: bool
    timed_out: bool
    stopped: str | None
    """Why the sandbox stopped it; None: it ended by itself."""
    restored: list[str]
    """What was put back or removed, because tools outside trust it: it is not as the command left
    it."""
    sandbox: str
    """The name of the sandbox that held the command."""


_Seconds = Annotated[
    float | None, "Stop it after that many seconds; at most the option.", {"exclusiveMinimum": 0}
]


_SHELLS: Final = ("/bin/bash", "/usr/bin/bash")


def _shell() -> str:
    """The shell of the commands. A signal does not keep bash from making a process; dash gives up
    where one of its children ends while the sandbox is asked for consent to another.
    """
    return next((shell for shell in _SHELLS if Path(shell).exists()), "/bin/sh")


@frozen
class _ShellTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: _Options
    workspace: Workspace

    async def run(
        self,
        command: Annotated[str, "For a POSIX shell.", {"minLength": 1}],
        timeout_s: _Seconds = None,
    ) -> CommandDone:
        """Run a shell command in the workspace; other files of the machine cannot be changed."""
        return await self._run((_shell(), "-c", command), timeout_s)

    async def exec(
        self,
        argv: Annotated[list[str], "The program and its arguments.", {"minItems": 1}],
        timeout_s: _Seconds = None,
    ) -> CommandDone:
        """Run a program in the workspace, without a shell."""
        return await self._run(tuple(argv), timeout_s)

    async def _run(self, argv: tuple[str, ...], timeout_s: float | None) -> CommandDone:
        options = self.options
        return _done(
            await self.workspace.run(
                argv,
                timeout_s=timeout_s,
                network=options.network,
                allow_config=options.allow_config,
            )
        )


def _done(result: SandboxResult) -> CommandDone:
    failure = result.failure
    return CommandDone(
        exit_code=result.exit_code if failure is None else None,
        output=result.stdout,
        truncated=result.is_cut,
        timed_out=failure is not None and failure.code == SandboxCode.TIMEOUT,
        stopped=failure.message if failure is not None else None,
        restored=list(result.restored),
        sandbox=result.sandbox,
    )
