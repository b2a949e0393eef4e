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
from minions.contracts.errors import ToolError
from minions.contracts.tools import Effect, Tool, Toolset

__all__ = ["GitOutput", "built_in", "git_toolset"]

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
        kind = ["--cached"] if staged else []
        return await self._git("diff", *_PLAIN, *kind, *_limited(revision, paths))

    async def log(
        self,
        limit: Annotated[int, "Most commits given.", {"minimum": 1}] = 20,
        revision: _AnyRevision = None,
        paths: _Paths = None,
    ) -> GitOutput:
        """List commits, newest first: id, date, author and subject."""
        form = ["--format=%h %as %an: %s", f"--max-count={limit}", "--no-show-signature"]
        return await self._git("log", *form, *_limited(revision, paths))

    async def show(self, revision: _Revision = "HEAD", paths: _Paths = None) -> GitOutput:
        """Show a commit with its changes."""
        plain = ["--no-show-signature", *_PLAIN]
        return await self._git("show", *plain, *_limited(revision, paths))

    async def add(
        self, paths: Annotated[list[str], "Files and folders.", {"minItems": 1}]
    ) -> GitOutput:
        """Stage files for the next commit; deleted ones too."""
        return await self._git("add", "--all", "--", *paths)

    async def commit(
        self, message: Annotated[str, "What changes and why.", {"minLength": 1}]
    ) -> GitOutput:
        """Commit what is staged."""
        return await self._git("commit", "--no-verify", "--no-gpg-sign", f"--message={message}")

    async def _git(self, *arguments: str) -> GitOutput:
        settings = [part for each in _SETTINGS for part in ("-c", each)]
        argv = ("git", "--no-pager", "--no-replace-objects", *settings, *arguments)
        result = await self.workspace.run(argv, environ=self._environ(), is_merged=False)
        if result.failure is not None:
            raise ToolError(result.failure.message, code=result.failure.code)
        if result.exit_code != 0:
            said = (result.stderr or result.stdout).strip()
            raise ToolError(f"git {arguments[0]} failed: {said[-2000:]}", code="git-failed")
        return GitOutput(output=result.stdout, truncated=result.is_cut)

    def _environ(self) -> Mapping[str, str]:
        name, _, address = self.options.author.removesuffix(">").partition(" <")
        above = os.path.dirname(os.path.realpath(self.options.root))  # noqa: PTH120
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", address))
        }
        return {**_ENVIRON, **people, "GIT_CEILING_DIRECTORIES": above}


_PLAIN: Final = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


def _limited(revision: str | None, paths: list[str] | None) -> list[str]:
    """What follows the options: nothing in it can be one."""
    found = [revision] if revision is not None else []
    return ["--end-of-options", *found, "--", *(paths or [])]
