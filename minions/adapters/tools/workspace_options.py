"""Toolsets that run commands in a workspace: options, opening, and the sandbox that runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import attrs
from attrs import evolve, field, frozen, mutable

from minions.contracts.protected_files import OPENING_OPTIONS
from minions.contracts.sandbox import Command, CommandSandbox, SandboxLimits, SandboxResult
from minions.contracts.tools import Tool, Toolset
from minions.data.codec import decode
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

ChooseSandbox: TypeAlias = Callable[[], CommandSandbox]
"""Gives the sandbox of commands.

Raises:
    EnvironmentRefusedError: There is none here that holds.
"""

_MIB: Final = 1024 * 1024
_LEAST_DISK: Final = _MIB
_COUNT: Final = {"type": "integer", "minimum": 1}
_SECONDS: Final = {"type": "number", "exclusiveMinimum": 0}


@frozen(kw_only=True)
class WorkspaceOptions:
    """The options that a recipe may set."""

    root: str = field(
        default=".",
        metadata={"description": "The workspace: the only folder that commands can change."},
    )
    timeout_s: float = field(
        default=60.0, metadata={"schema": _SECONDS, "description": "Of each command, in seconds."}
    )
    memory_mb: int = field(
        default=1024,
        metadata={
            "schema": {"type": "integer", "minimum": 16},
            "description": "Memory of all processes of a command together, in MiB.",
        },
    )
    cpus: float = field(
        default=2.0,
        metadata={
            "schema": _SECONDS,
            "description": "CPU time of all its processes, as a share of `timeout_s`.",
        },
    )
    processes: int = field(
        default=256,
        metadata={"schema": _COUNT, "description": "Processes and threads of a command."},
    )
    disk_mb: int = field(
        default=1024,
        metadata={
            "schema": _COUNT,
            "description": "How much larger the workspace may become by all commands of a run, in "
            "MiB.",
        },
    )
    max_output_bytes: int = field(
        default=32 * 1024,
        metadata={
            "schema": {"type": "integer", "minimum": 256, "maximum": 4 * _MIB},
            "description": "Of a longer output only head and tail are given.",
        },
    )

    def limits(self, timeout_s: float | None = None) -> SandboxLimits:
        """The limits of one command.

        Args:
            timeout_s: A shorter time; a longer one counts as the option's.
        """
        return SandboxLimits(
            memory_bytes=self.memory_mb * _MIB,
            cpus=self.cpus,
            wall_s=min(timeout_s or self.timeout_s, self.timeout_s),
            output_bytes=max(64 * _MIB, self.max_output_bytes),
            shown_bytes=self.max_output_bytes,
            processes=self.processes,
            disk_bytes=self.disk_mb * _MIB,
        )


Options = TypeVar("Options", bound=WorkspaceOptions)


def workspace_toolset(
    name: str,
    description: str,
    *,
    defaults: Options,
    tools: Callable[[Options, Workspace, str], Sequence[Tool]],
    choose: ChooseSandbox,
) -> Toolset:
    """A toolset whose tools run commands in a workspace.

    Args:
        tools: Makes them from the options, the workspace, and what their names begin with.
        choose: Chooses the sandbox when the toolset is opened.
    """

    def open_tools(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        checked = decode(options, type(defaults))
        workspace = Workspace(checked, _chosen(name, choose))
        return tools(checked, workspace, f"{prefix}__" if prefix else "")

    unopened = tools(defaults, Workspace(defaults, None), "")
    return Toolset(
        name=name,
        description=description,
        options=_options_schema(defaults),
        specs=tuple(each.spec for each in unopened),
        open=open_tools,
        operator_options=frozenset({"network"}),
        fixed_options=OPENING_OPTIONS,
    )


def _chosen(name: str, choose: ChooseSandbox) -> CommandSandbox:
    try:
        return choose()
    except EnvironmentRefusedError as error:
        raise EnvironmentRefusedError(
            f"The toolset '{name}' runs commands. {error.message}", code=error.error_code
        ) from error


def _options_schema(options: WorkspaceOptions) -> JsonSchema:
    """JSON Schema of options, with the defaults that this object holds."""
    defaults = attrs.asdict(options)
    schema = schema_of(type(options))
    fields = cast("Mapping[str, Mapping[str, JsonValue]]", schema["properties"])
    return {
        "type": "object",
        "properties": {
            name: {**described, "default": defaults[name]} for name, described in fields.items()
        },
        "additionalProperties": False,
    }


@mutable
class _Taken:
    """The space that the commands of one workspace took so far."""

    bytes: int = 0


@frozen
class Workspace:
    """A folder in which commands run, each in a sandbox."""

    options: WorkspaceOptions
    sandbox: CommandSandbox | None
    """None: nothing is run, only the tools' specs are wanted."""
    taken: _Taken = field(factory=_Taken)

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float | None = None,
        network: bool = False,
        environ: Mapping[str, str] | None = None,
        is_merged: bool = True,
        allow_config: Sequence[str] = (),
        writes_repository: bool = False,
        shown_bytes: int | None = None,
    ) -> SandboxResult:
        """Run a command in the workspace.

        Args:
            allow_config: Patterns of what it may change although it configures tools outside.
            writes_repository: Whether it is a fixed command of Git that stages or commits.
            shown_bytes: Of each stream, how much is kept; None: as the option says.
        Raises:
            UsageError: The root does not exist.
            EnvironmentRefusedError: As for `CommandSandbox.run`.
        """
        assert self.sandbox is not None  # noqa: S101  # tools that are called were opened
        command = Command(
            argv=argv,
            workspace=self._root(),
            network=network,
            environ=environ or {},
            is_merged=is_merged,
            allow_config=tuple(allow_config),
            writes_repository=writes_repository,
        )
        limits = self.options.limits(timeout_s)
        # What earlier commands took is not there any more; a little is, to tidy up.
        left = max(limits.disk_bytes - self.taken.bytes, _LEAST_DISK)
        limits = evolve(limits, disk_bytes=left, shown_bytes=shown_bytes or limits.shown_bytes)
        result = await self.sandbox.run(command, limits)
        self.taken.bytes = max(self.taken.bytes + result.disk_bytes, 0)
        return result

    def _root(self) -> str:
        root = os.path.realpath(self.options.root)
        if not os.path.isdir(root):  # noqa: PTH112
            raise UsageError(
                f"The root '{self.options.root}' ({root}) is not a directory. Create it, or set "
                "the toolset's option `root` to one that exists.",
                code="no-such-root",
            )
        return root


def default_sandbox() -> CommandSandbox:
    """Bubblewrap, or Landlock.

    Raises:
        EnvironmentRefusedError: Neither holds here; the message names each probe.
    """
    from minions.adapters.sandboxes.workspaces import command_sandbox

    return command_sandbox()
