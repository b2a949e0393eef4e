"""Sandboxes for code and commands, their limits and results, and the toolsets that use them.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox
    from minions.adapters.sandboxes.workspaces import (
        BubblewrapSandbox,
        LandlockSandbox,
        command_sandbox,
    )
    from minions.adapters.tools.workspace_toolsets import git_toolset, shell_toolset
    from minions.contracts.sandbox import (
        CodeSandbox,
        Command,
        CommandSandbox,
        ProgramAnswer,
        ProgramTools,
        Sandbox,
        SandboxCode,
        SandboxLimits,
        SandboxProbe,
        SandboxResult,
    )


__all__ = [
    "BubblewrapSandbox",
    "CodeSandbox",
    "Command",
    "CommandSandbox",
    "LandlockSandbox",
    "MontySandbox",
    "ProcessSandbox",
    "ProgramAnswer",
    "ProgramTools",
    "Sandbox",
    "SandboxCode",
    "SandboxLimits",
    "SandboxProbe",
    "SandboxResult",
    "command_sandbox",
    "git_toolset",
    "shell_toolset",
]

_HOMES: Final = {
    "minions.adapters.sandboxes.python_sandboxes": ("MontySandbox", "ProcessSandbox"),
    "minions.adapters.sandboxes.workspaces": (
        "BubblewrapSandbox",
        "LandlockSandbox",
        "command_sandbox",
    ),
    "minions.adapters.tools.workspace_toolsets": (
        "git_toolset",
        "shell_toolset",
    ),
    "minions.contracts.sandbox": (
        "CodeSandbox",
        "Command",
        "CommandSandbox",
        "ProgramAnswer",
        "ProgramTools",
        "Sandbox",
        "SandboxCode",
        "SandboxLimits",
        "SandboxProbe",
        "SandboxResult",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # type checkers must still report misspelled names
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
