"""The MCP servers that a program names itself: `Minions(mcp_servers=…)`. No configuration is read.

The lock counts because the program names its file; there is none that is found by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from minions.app.settings.setting_faults import (
    SettingFault,
    bad_configuration,
    faults_of,
    mcp_faults,
)
from minions.app.settings.settings import McpSettings, Settings
from minions.app.wiring.mcp import Lock, mcp_toolsets, read_lock, tool_server
from minions.contracts.tool_servers import ToolServer
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.toolsets import McpToolsets


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
        for name, each in _checked(servers).items()
    }


def _checked(servers: Mapping[str, McpSettings]) -> Mapping[str, McpSettings]:
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
    own = (attrs.evolve(each, table=each.table[1:]) for each in faults)
    return bad_configuration(_SOURCE, own)
