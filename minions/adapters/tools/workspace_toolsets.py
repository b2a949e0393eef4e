"""The toolset `git`: a repository in the workspace, with fixed commands in a sandbox.

Whatever the repository's configuration names (hooks, filters, pagers, helpers) is switched off, and
what is left runs in the sandbox only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import attrs
from attrs import evolve, field, frozen, mutable

from minions.adapters.tools.function_tool import tool
from minions.contracts.protected_files import (
    ALLOW_CONFIG,
    ALLOW_SECRETS,
    OPENING_OPTIONS,
    is_secret,
)
from minions.contracts.sandbox import (
    Command,
    CommandSandbox,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
)
from minions.contracts.tools import Effect, Reads, Tool, Toolset
from minions.data.codec import decode
from minions.data.errors import EnvironmentRefusedError, ToolError, UsageError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object_of_objects
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
        workspace = Workspace(checked, _choose_sandbox(name, choose))
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


def _choose_sandbox(name: str, choose: ChooseSandbox) -> CommandSandbox:
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
    fields = as_object_of_objects(schema["properties"])
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


_SETTINGS: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.editor=true",
    "core.sshCommand=false",
    "core.askPass=false",
    "credential.helper=",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "log.showSignature=false",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "color.ui=false",
    "safe.directory=*",
)
_ENVIRON: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
}


@frozen(kw_only=True)
class _GitOptions(WorkspaceOptions):
    """The options that a recipe may set."""

    author: str = field(
        default="Minions <minions@localhost>",
        metadata={
            "schema": {"type": "string", "pattern": "^[^<>\\n]+ <[^<>\\n]+>$"},
            "description": "Author of commits: `Name <address>`.",
        },
    )
    allow_secrets: list[str] = field(factory=list, metadata=ALLOW_SECRETS)


def built_in_git(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return git_toolset()


def git_toolset(choose: ChooseSandbox = default_sandbox) -> Toolset:
    """The tools `status`, `diff`, `log`, `show` (pure), `add` (idempotent), `commit` (once).

    Args:
        choose: Chooses the sandbox when the toolset is opened.
    """
    return workspace_toolset(
        "git",
        "Read and write the Git repository of one folder, in a sandbox.",
        defaults=_GitOptions(),
        tools=_git_tools,
        choose=choose,
    )


def _git_tools(options: _GitOptions, workspace: Workspace, prefix: str) -> Sequence[Tool]:
    git = _GitTools(options, workspace)
    read, receipt = Reads.PRIVATE, Reads.TRUSTED
    effects: tuple[tuple[str, Callable[..., object], Effect, Reads], ...] = (
        ("status", git.status, Effect.PURE, read),
        ("diff", git.diff, Effect.PURE, read),
        ("log", git.log, Effect.PURE, read),
        ("show", git.show, Effect.PURE, read),
        ("add", git.add, Effect.IDEMPOTENT, receipt),
        ("commit", git.commit, Effect.ONCE, receipt),
    )
    return [
        tool(name=f"{prefix}{name}", effect=effect, reads=reads, is_local=True)(function)
        for name, function, effect, reads in effects
    ]


@frozen(kw_only=True)
class GitOutput:
    """The result of each tool."""

    output: str
    """What Git printed; of a long text head and tail."""
    truncated: bool
    sandbox: str
    """The name of the sandbox that held it."""


_Revision = Annotated[str, "A commit, branch, tag or range.", {"pattern": "^[^-\\s]\\S*$"}]
_AnyRevision = Annotated[
    str | None, "A commit, branch, tag or range; none: the present.", {"pattern": "^[^-\\s]\\S*$"}
]
_Paths = Annotated[list[str] | None, "Only these files and folders; none: all."]


@frozen
class _GitTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: _GitOptions
    workspace: Workspace

    async def status(self) -> GitOutput:
        """List changed, staged and untracked files, and the branch."""
        return await self._git("status", "--short", "--branch", "--ignore-submodules=all")

    async def diff(
        self,
        staged: Annotated[bool, "What a commit would hold, not what is not added yet."] = False,
        revision: _AnyRevision = None,
        paths: _Paths = None,
    ) -> GitOutput:
        """Show what has changed."""
        asked = ["diff", *_PLAIN, *(["--cached"] if staged else [])]
        return await self._show_changes(asked, _commits(revision), paths)

    async def log(
        self,
        limit: Annotated[int, "Most commits given.", {"minimum": 1}] = 20,
        revision: _AnyRevision = None,
        paths: _Paths = None,
    ) -> GitOutput:
        """List commits, newest first: id, date, author and subject."""
        form = ["--format=%h %as %an: %s", f"--max-count={limit}", "--no-show-signature"]
        return await self._git("log", *form, *_limit(revision, paths or ()))

    async def show(self, revision: _Revision = "HEAD", paths: _Paths = None) -> GitOutput:
        """Show a commit with its changes."""
        asked = ["show", "--no-show-signature", *_PLAIN]
        return await self._show_changes(asked, _commits(revision), paths)

    async def add(
        self, paths: Annotated[list[str], "Files and folders.", {"minItems": 1}]
    ) -> GitOutput:
        """Stage files for the next commit; deleted ones too."""
        found = ["status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"]
        left_out = await self._secrets([*found, "--", *paths], prefix=3)
        return await self._git("add", "--all", "--", *paths, *left_out, writes=True)

    async def commit(
        self, message: Annotated[str, "What changes and why.", {"minLength": 1}]
    ) -> GitOutput:
        """Commit what is staged."""
        plain = ["--no-verify", "--no-gpg-sign", f"--message={message}"]
        return await self._git("commit", *plain, writes=True)

    async def _show_changes(
        self, asked: list[str], revision: str | None, paths: list[str] | None
    ) -> GitOutput:
        """Changes as text, without those of files that are taken for secrets."""
        names = [*asked, "--name-only", "-z", *(["--format="] if asked[0] == "show" else [])]
        left_out = await self._secrets([*names, *_limit(revision, paths or ())])
        return await self._git(*asked, *_limit(revision, [*(paths or ()), *left_out]))

    async def _secrets(self, listing: list[str], *, prefix: int = 0) -> list[str]:
        """Arguments that leave out the secrets among the files of a listing.

        Args:
            prefix: How many characters of an entry stand before its path.
        Raises:
            ToolError: There are more files than can be looked through.
        """
        done = await self._require_success(*listing, shown_bytes=_MOST_LISTED)
        if done.is_cut:
            raise ToolError(
                "These are too many files at once. Name some of them, or folders, as `paths`.",
                code="too-many-files",
            )
        found = dict.fromkeys(each[prefix:] for each in done.stdout.split("\0") if each.strip())
        opened = self.options.allow_secrets
        return [
            f":(top,exclude,literal){each}" for each in found if is_secret(each.split("/"), opened)
        ]

    async def _git(self, *arguments: str, writes: bool = False) -> GitOutput:
        done = await self._require_success(*arguments, writes=writes)
        return GitOutput(output=done.stdout, truncated=done.is_cut, sandbox=done.sandbox)

    async def _require_success(
        self, *arguments: str, writes: bool = False, shown_bytes: int | None = None
    ) -> SandboxResult:
        """The result of a command that succeeded.

        Args:
            writes: Whether it changes the repository.
            shown_bytes: How much of its output is kept; None: as the option says.
        Raises:
            ToolError: It failed.
        """
        settings = [part for each in _SETTINGS for part in ("-c", each)]
        argv = ("git", "--no-pager", "--no-replace-objects", *settings, *arguments)
        result = await self.workspace.run(
            argv,
            environ=self._environ(),
            is_merged=False,
            writes_repository=writes,
            shown_bytes=shown_bytes,
        )
        if result.failure is not None:
            raise ToolError(result.failure.message, code=result.failure.code)
        if result.exit_code != 0:
            said = (result.stderr or result.stdout).strip()
            raise ToolError(f"git {arguments[0]} failed: {said[-2000:]}", code="git-failed")
        return result

    def _environ(self) -> Mapping[str, str]:
        author, root = self.options.author, self.options.root
        name, _, address = author.removesuffix(">").partition(" <")
        above = os.path.dirname(os.path.realpath(root))  # noqa: PTH120
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", address))
        }
        return {**_ENVIRON, **people, "GIT_CEILING_DIRECTORIES": above}


_PLAIN: Final = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_MOST_LISTED: Final = 4 * 1024 * 1024


def _limit(revision: str | None, paths: Sequence[str]) -> list[str]:
    """What follows the options: nothing in it can be one."""
    found = [revision] if revision is not None else []
    return ["--end-of-options", *found, "--", *paths]


def _commits(revision: str | None) -> str | None:
    """The revision, read as a commit or a range of some: else it could be the content of a file."""
    if revision is None:
        return None
    between = next((each for each in ("...", "..") if each in revision), "")
    parts = revision.split(between, 1) if between else [revision]
    return between.join(f"{each}^{{commit}}" if each else "" for each in parts)


# --- the toolset `shell` -------------------------------------------------------------------------


_GRACE_S: Final = 30.0
"""How much longer a call may take than its command and its wait for others in the workspace: the
sandbox ends it first, and says why."""


@frozen(kw_only=True)
class _ShellOptions(WorkspaceOptions):
    """The options that a recipe may set."""

    network: bool = field(
        default=False, metadata={"description": "Whether commands may reach other machines."}
    )
    allow_config: list[str] = field(factory=list, metadata=ALLOW_CONFIG)


def built_in_shell(_now: Callable[[], datetime]) -> Toolset:
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
        defaults=_ShellOptions(),
        tools=_shell_tools,
        choose=choose,
    )


def _shell_tools(options: _ShellOptions, workspace: Workspace, prefix: str) -> Sequence[Tool]:
    shell = _ShellTools(options, workspace)
    timeout_s = 2 * options.timeout_s + _GRACE_S
    return [
        tool(
            name=f"{prefix}{name}",
            effect=Effect.ONCE,
            timeout_s=timeout_s,
            reads=Reads.PRIVATE,
            is_local=True,
        )(function)
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

    options: _ShellOptions
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
        return _describe_end(
            await self.workspace.run(
                argv,
                timeout_s=timeout_s,
                network=options.network,
                allow_config=options.allow_config,
            )
        )


def _describe_end(result: SandboxResult) -> CommandDone:
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
