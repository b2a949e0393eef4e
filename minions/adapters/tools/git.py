"""The toolset `git`: a repository in the workspace, with fixed commands in a sandbox.

Whatever the repository's configuration names (hooks, filters, pagers, helpers) is switched off, and
what is left runs in the sandbox only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
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
from minions.contracts.protected_files import ALLOW_SECRETS, is_secret
from minions.contracts.sandbox import SandboxResult
from minions.contracts.tools import Effect, Tool, Toolset
from minions.data.errors import ToolError

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
class _Options(WorkspaceOptions):
    """The options that a recipe may set."""

    author: str = field(
        default="Minions <minions@localhost>",
        metadata={
            "schema": {"type": "string", "pattern": "^[^<>\\n]+ <[^<>\\n]+>$"},
            "description": "Author of commits: `Name <address>`.",
        },
    )
    allow_secrets: list[str] = field(factory=list, metadata=ALLOW_SECRETS)


def built_in(_now: Callable[[], datetime]) -> Toolset:
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
        defaults=_Options(),
        tools=_tools,
        choose=choose,
    )


def _tools(options: _Options, workspace: Workspace, prefix: str) -> Sequence[Tool]:
    git = _GitTools(options, workspace)
    effects: tuple[tuple[str, Callable[..., object], Effect], ...] = (
        ("status", git.status, Effect.PURE),
        ("diff", git.diff, Effect.PURE),
        ("log", git.log, Effect.PURE),
        ("show", git.show, Effect.PURE),
        ("add", git.add, Effect.IDEMPOTENT),
        ("commit", git.commit, Effect.ONCE),
    )
    return [
        tool(name=f"{prefix}{name}", effect=effect)(function) for name, function, effect in effects
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

    options: _Options
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
        return await self._shown(asked, _commits(revision), paths)

    async def log(
        self,
        limit: Annotated[int, "Most commits given.", {"minimum": 1}] = 20,
        revision: _AnyRevision = None,
        paths: _Paths = None,
    ) -> GitOutput:
        """List commits, newest first: id, date, author and subject."""
        form = ["--format=%h %as %an: %s", f"--max-count={limit}", "--no-show-signature"]
        return await self._git("log", *form, *_limited(revision, paths or ()))

    async def show(self, revision: _Revision = "HEAD", paths: _Paths = None) -> GitOutput:
        """Show a commit with its changes."""
        asked = ["show", "--no-show-signature", *_PLAIN]
        return await self._shown(asked, _commits(revision), paths)

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

    async def _shown(
        self, asked: list[str], revision: str | None, paths: list[str] | None
    ) -> GitOutput:
        """Changes as text, without those of files that are taken for secrets."""
        names = [*asked, "--name-only", "-z", *(["--format="] if asked[0] == "show" else [])]
        left_out = await self._secrets([*names, *_limited(revision, paths or ())])
        return await self._git(*asked, *_limited(revision, [*(paths or ()), *left_out]))

    async def _secrets(self, listing: list[str], *, prefix: int = 0) -> list[str]:
        """Arguments that leave out the secrets among the files of a listing.

        Args:
            prefix: How many characters of an entry stand before its path.
        Raises:
            ToolError: There are more files than can be looked through.
        """
        done = await self._done(*listing, shown_bytes=_MOST_LISTED)
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
        done = await self._done(*arguments, writes=writes)
        return GitOutput(output=done.stdout, truncated=done.is_cut, sandbox=done.sandbox)

    async def _done(
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
        name, _, address = self.options.author.removesuffix(">").partition(" <")
        above = os.path.dirname(os.path.realpath(self.options.root))  # noqa: PTH120
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", address))
        }
        return {**_ENVIRON, **people, "GIT_CEILING_DIRECTORIES": above}


_PLAIN: Final = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_MOST_LISTED: Final = 4 * 1024 * 1024


def _limited(revision: str | None, paths: Sequence[str]) -> list[str]:
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
