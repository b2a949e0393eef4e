"""The MCP servers of a process: configured ones, those of recipes, and what the lock says of them.

The lock stands beside the configuration and counts as that does: once it was trusted, until it
changes. `minions mcp lock` writes and trusts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import msgspec
from attrs import evolve
from msgspec import Struct
from msgspec.structs import replace

from minions.app.settings.setting_sources import (
    SettingFault,
    bad_configuration,
    faults_of,
    mcp_faults,
)
from minions.app.settings.settings import McpSettings, Settings
from minions.app.settings.user_folders import FolderTrust, user_data_folder
from minions.contracts.tool_servers import Grant, PinnedServer, PinnedTool, ServerLogin, ToolServer
from minions.data.bounded_files import read_regular
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.recipe.recipe_files import project_file

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.login import Visitor
    from minions.adapters.tools.mcp.login_store import LoginStore
    from minions.adapters.tools.mcp.mcp_toolsets import LockedServer, McpToolsets
    from minions.adapters.tools.mcp.started_server import ServerParts

LOCK_NAME: Final = "mcp.lock.json"
_MOST_BYTES: Final = 16 * 1_048_576
_VERSION: Final = 1
_LOGINS: Final = "mcp-logins"
"""Folder in the user's data, with the tokens of each server."""


class OwnServer(Struct, frozen=True, kw_only=True):
    """A server that a recipe brings along, as somebody looked at it."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    pinned: PinnedServer


class Lock(Struct, frozen=True, kw_only=True):
    """What somebody saw of servers."""

    version: int = _VERSION
    servers: Mapping[str, PinnedServer] = msgspec.field(default_factory=dict)
    """Configured servers by name."""
    of_recipes: tuple[OwnServer, ...] = ()


def lock_path(folder_of: Callable[[str], Path]) -> Path:
    """Where the lock is: beside the file with the servers, else beside the project's file."""
    folder = folder_of("mcp")
    found = project_file(folder) if folder == Path.cwd() else None
    return (folder if found is None else found.parent) / LOCK_NAME


def read_lock(path: Path) -> tuple[Lock, bytes]:
    """The lock and its bytes; an empty one where there is no file.

    Raises:
        UsageError: `bad-mcp-lock`: it cannot be read.
    """
    try:
        content = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return Lock(), b""
    except OSError as error:
        raise _bad_lock(path, f"{error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise _bad_lock(path, f"it has more than {_MOST_BYTES // 1_048_576} MiB")
    from minions.data.codec import decode  # here: most folders have no lock
    from minions.data.json_values import parse_json

    try:
        lock = decode(parse_json(content.decode()), Lock)
    except ValueError as error:
        raise _bad_lock(path, f"{error}"[:300]) from error
    if lock.version != _VERSION:
        raise _bad_lock(path, f"it is of version {lock.version}, and {_VERSION} was expected")
    return lock, content


def _bad_lock(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} cannot be read as the lock of MCP servers: {why}. Remove it, and look at the "
        "servers again: `minions mcp lock`.",
        code="bad-mcp-lock",
        where=str(path),
    )


def write_lock(path: Path, lock: Lock) -> bytes:
    """Write the lock, one line for each value, so that a diff shows what changed; its bytes.

    Raises:
        OSError: It cannot be written.
    """
    import json

    from minions.data.codec import encode

    content = json.dumps(encode(lock), indent=2, ensure_ascii=True).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
    return content


def configured_servers(
    settings: Settings, folder_of: Callable[[str], Path]
) -> Mapping[str, ToolServer]:
    """The servers of the configuration, by name.

    Raises:
        UsageError: An address cannot be used.
    """
    folder = folder_of("mcp")
    return {name: tool_server(name, each, folder) for name, each in settings.mcp.items()}


def tool_server(
    name: str, said: McpSettings, folder: Path, *, is_of_program: bool = False
) -> ToolServer:
    """How the server is reached.

    Args:
        folder: Where a relative `folder` of it starts.
        is_of_program: Whether a program names it, instead of the configuration.
    Raises:
        UsageError: Its address cannot be used.
    """
    server = ToolServer(
        name=name,
        command=said.command,
        folder=str(folder / (said.folder or ".")) if said.command else None,
        variables=said.env,
        headers=said.headers,
        protocol=said.protocol,
        only=said.tools,
        start_timeout_s=said.start_timeout_s,
        max_calls=said.max_calls,
        is_of_program=is_of_program,
    )
    return server if said.url is None else _with_address(server, said.url, said)


def _with_address(server: ToolServer, url: str, said: McpSettings) -> ToolServer:
    from minions.adapters.tools.mcp.http_streams import check_url, is_private

    is_asked = said.client_id is not None or said.oauth is not Grant.BROWSER
    has_secrets = bool(said.headers) or is_asked
    url = check_url(url, f"`url` of {server.place}", has_headers=has_secrets)
    return evolve(server, url=url, login=_login(said) if is_private(url) else None)


def _login(said: McpSettings) -> ServerLogin:
    return ServerLogin(
        grant=said.oauth,
        client_id=said.client_id,
        client_secret=said.client_secret,
        private_key=said.private_key,
        issuer=said.issuer,
        scope=said.scope,
    )


def server_parts(visitor: Visitor | None = None) -> ServerParts:
    """What servers need of this process.

    Args:
        visitor: A person with a browser, who can log in; None: nobody is there.
    """
    from importlib.metadata import PackageNotFoundError, version

    from minions.adapters.tools.mcp.connection import Logins
    from minions.adapters.tools.mcp.started_server import ServerParts

    try:
        own = version("minions-engine")
    except PackageNotFoundError:  # it runs from its source
        own = "0"
    logins = Logins(folder=user_data_folder() / _LOGINS, visitor=visitor)
    return ServerParts(reveal=_reveal, client_version=own, logins=logins)


def login_store(server: ToolServer, login: ServerLogin) -> LoginStore:
    """Where the tokens for a server are kept."""
    from minions.adapters.tools.mcp.login_store import LoginStore

    return LoginStore.of(user_data_folder() / _LOGINS, f"{server.url}", login.client_id)


def _reveal(values: Mapping[str, str]) -> Mapping[str, str]:
    """The values with secrets in place of references; looked up when the server starts."""
    from minions.contracts.secrets import SecretRef
    from minions.engine.services.secret_sources import environment_and_files

    found = {}
    for name, value in values.items():
        is_reference = value.startswith(("env:", "file:/"))
        found[name] = environment_and_files(SecretRef.parse(value)) if is_reference else value
    return found


def make_mcp_toolsets(
    settings: Settings, folder_of: Callable[[str], Path], environ: Mapping[str, str]
) -> McpToolsets:
    """The toolsets of all servers; starts nothing. An untrusted lock counts as none.

    Raises:
        UsageError: An address, or the lock, cannot be read.
    """
    path = lock_path(folder_of)
    lock, content = read_lock(path)
    problem = lock_problem(path, content, environ)
    counted = lock if problem is None else Lock()
    programs = FolderTrust().programs_seen(path) if content and problem is None else {}
    servers = configured_servers(settings, folder_of)
    return mcp_toolsets(servers, counted, problem, folder=path.parent, programs=programs)


def lock_problem(path: Path, content: bytes, environ: Mapping[str, str]) -> str | None:
    """Why the lock with that content does not count, in words for people; None: it does."""
    if not content or FolderTrust.of(environ).holds(path, content):
        return None
    return f"{path} is not trusted, or changed: `minions trust --show`, `minions trust`"


def mcp_toolsets(
    servers: Mapping[str, ToolServer],
    lock: Lock,
    problem: str | None = None,
    *,
    folder: Path,
    programs: Mapping[str, Mapping[str, str]] | None = None,
) -> McpToolsets:
    """The toolsets of these servers, and of recipes' own ones in the lock; starts nothing.

    Args:
        servers: By name.
        problem: Why nothing is locked, for messages; None: the lock counts.
        folder: That of the lock.
        programs: By server what its program was on this machine when somebody looked at it.
    """
    from minions.adapters.tools.mcp.mcp_toolsets import McpToolsets

    seen = programs or {}
    named = {
        name: locked_server(server, lock.servers.get(name), folder, seen.get(name))
        for name, server in servers.items()
    }
    own = {
        each.pinned.fingerprint: locked_server(
            as_server(each), each.pinned, folder, seen.get(each.pinned.fingerprint)
        )
        for each in lock.of_recipes
    }
    return McpToolsets(named, own, server_parts, problem)


def locked_server(
    server: ToolServer,
    pinned: PinnedServer | None,
    folder: Path,
    program: Mapping[str, str] | None,
) -> LockedServer:
    """A server, with what somebody saw of it and of its program.

    Args:
        folder: That of the lock.
        program: Hashes of the program's files on this machine; None: nobody looked at them here.
    """
    from minions.adapters.tools.mcp.mcp_toolsets import LockedServer
    from minions.adapters.tools.mcp.program import ProgramCheck

    check = None
    if pinned is not None and server.command:
        check = ProgramCheck(
            in_lock=pinned.files,
            folder=folder,
            on_machine=program,
        )
    return LockedServer(server=server, pinned=pinned, check=check)


def programs_now(servers: Mapping[str, ToolServer]) -> dict[str, dict[str, str]]:
    """By server the hashes of its program's files as they are now; of those that can be started."""
    from minions.adapters.tools.mcp.program import find_program

    found: dict[str, dict[str, str]] = {}
    for key, server in servers.items():
        if server.command:
            with contextlib.suppress(OSError):
                program = find_program(server.command, server.folder, server.variables)
                found[key] = program.seen()
    return found


def as_server(own: OwnServer) -> ToolServer:
    """How the recipe's server is reached."""
    return ToolServer(name=own.name, command=own.command, url=own.url)


def with_own(lock: Lock, own: Iterable[OwnServer]) -> Lock:
    """The lock with these servers of recipes, in place of those that are reached alike."""
    added = {each.pinned.fingerprint: each for each in own}
    kept = [each for each in lock.of_recipes if each.pinned.fingerprint not in added]
    return replace(lock, of_recipes=(*kept, *added.values()))


# --- looks at the tools of MCP servers as they are now, and writes what was seen into a lock -----


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
    from minions.adapters.tools.mcp.mcp_toolsets import check_extra

    check_extra()
    wanted, path = program_servers(servers), Path(lock)
    before, _ = read_lock(path)
    folder = _folder_of(path)
    now = {name: await looked_at(server, folder) for name, server in wanted.items()}
    if not is_check:
        stored_lock(path, replace(before, servers={**before.servers, **now}))
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
    from minions.adapters.tools.mcp.mcp_toolsets import LockedServer

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
    import asyncio  # `validate` loads this module, and no event loop

    from minions.adapters.tools.mcp.listing import pinned_tools
    from minions.adapters.tools.mcp.started_server import McpServer

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


# --- the MCP servers that a program names itself -------------------------------------------------


_SOURCE: Final = "mcp_servers"
_NO_LOCK: Final = (
    "the program names no lock; give Minions(mcp_lock=PATH) the file that "
    "`minions.mcp.lock_servers` wrote"
)


def make_program_toolsets(
    servers: Mapping[str, McpSettings] | None, lock: str | PathLike[str] | None
) -> McpToolsets | None:
    """The toolsets of a program's servers; starts nothing. None: it has neither servers nor a lock.

    Raises:
        UsageError: A server, or the lock, is wrong.
    """
    if servers is None and lock is None:
        return None
    named = program_servers(servers or {})
    if lock is None:
        return mcp_toolsets(named, Lock(), _NO_LOCK, folder=Path.cwd())
    seen, _ = read_lock(Path(lock))
    return mcp_toolsets(named, seen, folder=Path(lock).absolute().parent)


def program_servers(servers: Mapping[str, McpSettings]) -> Mapping[str, ToolServer]:
    """The servers by name, checked as those of the configuration; folders start at the current one.

    Raises:
        UsageError: Has every fault that was found.
    """
    here = Path.cwd()
    return {
        name: tool_server(name, each, here, is_of_program=True)
        for name, each in _check(servers).items()
    }


def _check(servers: Mapping[str, McpSettings]) -> Mapping[str, McpSettings]:
    """The servers as the codec makes them of the tables that say the same."""
    from minions.data.codec import decode
    from minions.data.decoding_faults import decoding_faults

    tables: dict[str, JsonValue] = {}
    for name, each in _entries(servers):
        tables[name] = _table(name, each)
    content: dict[str, JsonValue] = {"mcp": tables}
    faults: list[SettingFault] = [*mcp_faults(content)]
    try:
        decoded = decode(content, Settings)
    except ValueError as error:
        faults += faults_of(decoding_faults(error, content, Settings))
        raise _refusal(faults) from error
    if faults:
        raise _refusal(faults)
    return decoded.mcp


def _entries(servers: object) -> Iterator[tuple[str, McpSettings]]:
    if not isinstance(servers, Mapping):
        raise _wrong_type("this", servers)
    for name, each in servers.items():
        if not isinstance(name, str):
            raise _wrong_type(f"the name {name!r:.60}", name)
        if not isinstance(each, McpSettings):
            raise _wrong_type(f"'{name:.60}'", each)
        yield name, each


def _wrong_type(what: str, value: object) -> UsageError:
    return UsageError(
        f"{_SOURCE} is a mapping from names to McpSettings, and {what} is of type "
        f"{type(value).__name__}. Write mcp_servers={{'tracker': McpSettings(command=(…))}}, with "
        "McpSettings from minions.mcp."
    )


def _table(name: str, said: McpSettings) -> JsonValue:
    """What was said of the server, as a table of the configuration would."""
    from minions.data.codec import encode

    default = McpSettings()
    fields = [each.name for each in attrs.fields(McpSettings)]
    values = {key: getattr(said, key) for key in fields}
    try:
        return {key: encode(each) for key, each in values.items() if each != getattr(default, key)}
    except TypeError as error:
        raise UsageError(f"{_SOURCE}: [{name}]: {error}.", code="bad-configuration") from error


def _refusal(faults: list[SettingFault]) -> UsageError:
    own = (replace(each, table=each.table[1:]) for each in faults)
    return bad_configuration(_SOURCE, own)
