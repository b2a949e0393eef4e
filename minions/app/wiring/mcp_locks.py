"""Looks at the tools of MCP servers as they are now, and writes what was seen into a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path

from attrs import evolve

from minions.app.settings.settings import McpSettings
from minions.app.wiring.mcp import Lock, read_lock, server_parts, write_lock
from minions.app.wiring.program_servers import program_servers
from minions.contracts.tool_servers import PinnedServer, PinnedTool, ToolServer
from minions.data.errors import EnvironmentRefusedError


async def lock_servers(
    servers: Mapping[str, McpSettings], lock: str | PathLike[str], *, is_check: bool = False
) -> Mapping[str, Mapping[str, str]]:
    """Look at a program's MCP servers, and lock their tools as they are now: runs call these.

    Call it where a person reads what it returns, not at each start of the program: a lock that is
    always new protects from nothing.

    Args:
        servers: By name, as `Minions` takes them.
        lock: Path of the lock file. Other servers in it stay as they are.
        is_check: Whether to compare only, and to write nothing.
    Returns:
        What is new, gone or different since the lock was written, by server and tool; under the
        empty name of a tool that the server is reached in another way, for which runs refuse it.
    Raises:
        UsageError: A server or the lock is wrong, or tools cannot be used. Nothing is written then.
        ToolServerError: A server cannot be asked; nothing is written.
        EnvironmentRefusedError: The extra `mcp` is missing, or the lock cannot be written.
    """
    from minions.adapters.tools.mcp.toolsets import check_extra

    check_extra()
    wanted, path = program_servers(servers), Path(lock)
    before, _ = read_lock(path)
    folder = _folder_of(path)
    now = {name: await looked_at(server, folder) for name, server in wanted.items()}
    if not is_check:
        stored_lock(path, evolve(before, servers={**before.servers, **now}))
    return {
        name: _with_refusal(wanted[name], before.servers.get(name), seen)
        for name, seen in now.items()
    }


def _folder_of(path: Path) -> Path:
    return path.absolute().parent


def _with_refusal(
    server: ToolServer, before: PinnedServer | None, now: PinnedServer
) -> Mapping[str, str]:
    """What changed, and under the empty name why runs do not call the server as it is locked."""
    from minions.adapters.tools.mcp.toolsets import LockedServer

    refusal = LockedServer(server=server, pinned=before).refusal(None) if before else None
    changes = changes_between(before, now, server.only)
    return changes if refusal is None else {"": refusal, **changes}


async def looked_at(server: ToolServer, folder: Path) -> PinnedServer:
    """The server with its tools as they are now.

    Args:
        folder: That of the lock, whose files belong to it.
    Raises:
        ToolServerError: It cannot be asked.
        UsageError: `mcp-bad-tools`: its tools cannot be used.
    """
    from minions.adapters.tools.mcp.listing import pinned_tools
    from minions.adapters.tools.mcp.server import McpServer

    empty = PinnedServer(fingerprint=server.fingerprint)
    files = await asyncio.to_thread(_files_beneath, folder, server) if server.command else None
    listed = await McpServer(server, empty, server_parts()).list_tools()
    return evolve(empty, tools=pinned_tools(server, listed), files=files)


def _files_beneath(folder: Path, server: ToolServer) -> Mapping[str, str] | None:
    """Hashes of the files beneath the folder that decide what the server runs; None: it cannot be
    started.
    """
    from minions.adapters.tools.mcp.program import find_program

    try:
        return find_program(server.command, server.folder, server.variables).seen(folder)
    except OSError:  # which is told by the one who starts it
        return None


def changes_between(
    before: PinnedServer | None, now: PinnedServer, only: Collection[str] = ()
) -> dict[str, str]:
    """What is new, gone or different, as text for people by the name of the tool.

    Args:
        before: As it was when it was locked; None: it was not.
        only: Names of the tools that are used; empty: all.
    """
    from minions.adapters.tools.mcp.listing import about_new, changes_of

    old, new = _by_name(before.tools if before is not None else ()), _by_name(now.tools)
    found = {name: about_new(tool) for name, tool in new.items() if name not in old}
    for name, tool in old.items():
        if only and name not in only:
            found[name] = "- the tool is not used any more: `tools` does not name it"
        elif (change := changes_of(tool, new.get(name))) is not None:
            found[name] = change
    return found


def _by_name(tools: Sequence[PinnedTool]) -> dict[str, PinnedTool]:
    return {tool.name: tool for tool in tools}


def stored_lock(path: Path, lock: Lock) -> bytes:
    """Write the lock; its bytes.

    Raises:
        EnvironmentRefusedError: It cannot be written.
    """
    try:
        return write_lock(path, lock)
    except OSError as error:
        raise EnvironmentRefusedError(
            f"{path} cannot be written: {error.strerror}.", code="bad-mcp-lock"
        ) from error
