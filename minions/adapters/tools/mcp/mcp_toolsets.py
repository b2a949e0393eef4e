"""Toolsets of MCP servers: what the lock says of a server, and tools that call it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, assert_never, cast

from attrs import define, field, frozen
from msgspec import Struct

from minions.contracts.messages import media_type_of
from minions.contracts.tool_servers import OWN_SERVER, SERVER, PinnedServer, PinnedTool, ToolServer
from minions.contracts.tools import Reads, Tool, ToolScope, Toolset, ToolSpec
from minions.data.errors import EnvironmentRefusedError, ToolError, UsageError
from minions.data.json_values import JsonValue, as_object
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, SchemaValidator

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

    from minions.adapters.tools.mcp.program import ProgramCheck
    from minions.adapters.tools.mcp.started_server import McpServer, ServerParts

_OPTIONS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "tools": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of its tools that are there; else all that are locked.",
        }
    },
    "additionalProperties": False,
}


class LockedServer(Struct, frozen=True, kw_only=True):
    """A server, and what somebody saw of it."""

    server: ToolServer
    pinned: PinnedServer | None
    """None: nobody looked at it."""
    check: ProgramCheck | None = None
    """What its program has to be; None: anything."""

    @property
    def is_locked(self) -> bool:
        """Whether it is reached as when somebody looked at it."""
        return self.pinned is not None and self.pinned.fingerprint == self.server.fingerprint

    @property
    def replaced(self) -> str | None:
        """What of its program is not as somebody looked at it, in words for people; None: nothing.
        Reads the files of the program.
        """
        if self.check is None:
            return None
        from minions.adapters.tools.mcp.program import find_program

        server = self.server
        try:
            program = find_program(server.command, server.folder, server.variables)
            changes = self.check.changes(program)
        except OSError:  # which is told by the one who starts it
            return None
        return "; ".join(each.words for each in changes) or None

    def refusal(self, problem: str | None) -> str | None:
        """Why runs do not call it, and what to do, in words for people; None: they do.

        Args:
            problem: Why no lock counts, for messages; None: it does.
        """
        what = f"The MCP server '{self.server.name}'"
        if problem is not None:
            return f"{what} is not locked: {problem}."
        if self.is_locked:
            return None
        why = "was not looked at yet"
        if self.pinned is not None:
            why = (
                "is reached in another way than when it was locked: its command, address, "
                "variables, headers or protocol changed"
            )
        return f"{what} {why}. Look at its tools: {self.server.lock_command}."


class McpToolsets(Mapping[str, Toolset]):
    """The toolsets of servers by name: `mcp.NAME` of configured ones, `mcp:DIGEST` of those that
    recipes bring along. Servers are started by calls, and shared by all runs.
    """

    def __init__(
        self,
        configured: Mapping[str, LockedServer],
        own: Mapping[str, LockedServer],
        parts: Callable[[], ServerParts],
        problem: str | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            configured: By name.
            own: By fingerprint, the servers of recipes that somebody looked at.
            problem: Why the lock does not count, for messages; None: it does.
        """
        self._locked = {f"{SERVER}{name}": each for name, each in configured.items()}
        self._locked |= {f"{OWN_SERVER}{digest}": each for digest, each in own.items()}
        self._parts = parts
        self._problem = problem
        self._toolsets: dict[str, Toolset] = {}
        self._servers: dict[str, McpServer] = {}
        self._is_closed = False

    def __getitem__(self, name: str) -> Toolset:
        if name not in self._toolsets:
            found = self._locked.get(name)
            if found is None and not name.startswith(OWN_SERVER):
                raise KeyError(name)
            self._toolsets[name] = self._toolset(name, found)
        return self._toolsets[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._locked or name.startswith(OWN_SERVER))

    def __iter__(self) -> Iterator[str]:
        return iter(self._locked)

    def __len__(self) -> int:
        return len(self._locked)

    async def aclose(self) -> None:
        """End all servers of this event loop, at the same time. None is started any more."""
        import asyncio

        self._is_closed = True
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))

    def _refuse_closed(self, server: ToolServer) -> None:
        if self._is_closed:
            raise UsageError(
                f"The MCP server '{server.name}' cannot be used: the application is closed.",
                code="closed",
            )

    def _toolset(self, name: str, found: LockedServer | None) -> Toolset:
        if found is None or found.pinned is None or found.refusal(self._problem) is not None:
            return _make_unlocked(name, found, self._problem)
        server, pinned = found.server, found.pinned
        only = frozenset(server.only)
        tools = {each.shown_as: each for each in pinned.tools if not only or each.name in only}

        def open_(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
            only = options.get("tools")
            names = frozenset(map(str, only)) if isinstance(only, list | tuple) else None
            from minions.adapters.tools.mcp.started_server import McpServer

            check_extra()
            self._refuse_closed(server)
            shared = self._servers.get(name)
            if shared is None:
                shared = self._servers[name] = McpServer(server, pinned, self._parts(), found.check)
            return [
                _McpTool(_spec(tool, prefix), tool, shared, ResultReader(server.name, tool))
                for shown_as, tool in tools.items()
                if names is None or shown_as in names or tool.name in names
            ]

        return Toolset(
            name=name,
            description=f"Tools of the MCP server '{server.name}'.",
            options=_OPTIONS,
            specs=tuple(_spec(tool, None) for tool in tools.values()),
            open=open_,
        )


_OWN: Final = "The recipe's own MCP server"


def check_extra() -> None:
    """Check that the SDK is there, before a run begins.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    import importlib.util

    from minions.adapters.tools.mcp.mcp_failures import NO_EXTRA

    if importlib.util.find_spec("mcp") is None:
        raise EnvironmentRefusedError(
            "MCP servers need the package 'mcp', which is not installed. Install the extra: "
            "pip install 'minions-engine[mcp]'.",
            code=NO_EXTRA,
        )


def _spec(tool: PinnedTool, prefix: str | None) -> ToolSpec:
    return ToolSpec(
        name=tool.shown_as if prefix is None else f"{prefix}__{tool.shown_as}",
        description=tool.description,
        parameters=tool.parameters,
        # An open tool checks its results itself, beside the event loop: the schema is a stranger's.
        returns=returned_by(tool.output) if prefix is None else None,
        effect=tool.effect,
        reads=Reads.UNTRUSTED,
        success_key=False,  # the protocol has a way of its own to say so
    )


def returned_by(declared: JsonSchema | None) -> JsonSchema | None:
    """What `ResultReader.value_of` makes of results of that schema: the value, or a mapping with it
    where there are images or resources, too. None: unknown.
    """
    if declared is None or not _can_be_moved(declared):
        return None
    contents: JsonSchema = {"type": "array", "items": {"type": "object"}}
    with_media: JsonSchema = {
        "type": "object",
        "properties": {
            "value": {"$ref": "#/$defs/minions.value"},
            "images": contents,
            "resources": contents,
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    named = {name: declared[name] for name in ("$defs", "definitions") if name in declared}
    value = {name: each for name, each in declared.items() if name not in named}
    definitions = {**as_object(named.get("$defs", {})), "minions.value": value}
    either: JsonSchema = {"anyOf": [{"$ref": "#/$defs/minions.value"}, with_media]}
    return {**either, **named, "$defs": definitions}


_TIED: Final = frozenset({"$dynamicRef", "$dynamicAnchor", "$anchor", "$id"})
_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")


def _can_be_moved(node: JsonValue) -> bool:
    """Whether the schema means the same as a part of another that has its definitions."""
    if isinstance(node, list | tuple):
        return all(map(_can_be_moved, node))
    if not isinstance(node, Mapping):
        return True
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith(_DEFINITIONS):
        return False
    return _TIED.isdisjoint(node) and all(map(_can_be_moved, node.values()))


def _make_unlocked(name: str, found: LockedServer | None, problem: str | None) -> Toolset:
    """A toolset whose tools are not known: it opens nothing."""
    from minions.adapters.tools.mcp.mcp_failures import NOT_LOCKED

    what = f"The MCP server '{found.server.name}'" if found is not None else _OWN
    words = found.refusal(problem) if found is not None else None
    if words is None:
        why = "was not looked at yet. Look at its tools: `minions mcp lock RECIPE`"
        words = f"{_OWN} {why if problem is None else f'is not locked: {problem}'}."

    def refuse(_options: Mapping[str, JsonValue], _prefix: str) -> Sequence[Tool]:
        raise UsageError(words, code=NOT_LOCKED)

    return Toolset(
        name=name,
        description=what,
        options=_OPTIONS,
        specs=(),
        open=refuse,
        unverified=words,
    )


@frozen(eq=False, repr=False)
class _McpTool(Tool):
    """A tool of a server."""

    _spec: ToolSpec
    tool: PinnedTool
    server: McpServer = field(repr=False)
    reader: ResultReader = field(repr=False)

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """What the server gives.

        Raises:
            ToolError: The tool, or the server, says what is wrong with the call.
            ToolServerError: The server failed.
        """
        result = await self.server.call(self.tool, arguments, scope)
        return await self.reader.value_of(result, scope)


# --- results of calls ----------------------------------------------------------------------------


_MOST_ERROR: Final = 4_000
"""Characters of an error that a model reads."""
_MOST_BLOCKS: Final = 200


@define(eq=False, repr=False)
class ResultReader:
    """Reads the results of one tool."""

    server: str
    tool: PinnedTool
    _validator: SchemaValidator | None = field(default=None, init=False)

    async def value_of(self, result: CallToolResult, scope: ToolScope) -> JsonValue:
        """What the tool gives: its structured result, its text, or `{text, images, resources}`.

        Contents of images and files are stored with the run; the value names them.

        Raises:
            ToolError: The tool says that it failed.
            ToolServerError: `mcp-bad-result`: it does not fit what the tool declares, or is none.
        """
        from minions.adapters.tools.mcp.mcp_failures import BAD_RESULT, failed

        if len(result.content) > _MOST_BLOCKS:
            raise failed(self.server, f"gave more than {_MOST_BLOCKS} contents", code=BAD_RESULT)
        if result.is_error:
            text = "\n".join(_texts(result.content))[:_MOST_ERROR]
            raise ToolError(text or f"The tool '{self.tool.name}' failed.", code="tool-error")
        value = cast("JsonValue", result.structured_content)
        await match_beside_loop(lambda: self._check(value, is_there=value is not None))
        parts = await self._parts(result.content, scope)
        if value is None:
            return parts if parts.keys() - {"text"} else parts["text"]
        media = {key: each for key, each in parts.items() if key != "text"}
        return {"value": value, **media} if media else value

    def _check(self, value: JsonValue, *, is_there: bool) -> None:
        """Check a structured result by the schema that was looked at, within our bounds."""
        from minions.adapters.tools.mcp.mcp_failures import BAD_RESULT, failed

        schema = self.tool.output
        if schema is None:
            return
        if not is_there:
            raise failed(
                self.server,
                f"gave no structured result of '{self.tool.name}', which declares one",
                code=BAD_RESULT,
            )
        if self._validator is None:
            self._validator = SchemaValidator(schema)
        if errors := self._validator.errors(value):
            raise failed(
                self.server,
                f"gave a result of '{self.tool.name}' that does not fit its schema: "
                f"{'; '.join(errors)[:500]}",
                code=BAD_RESULT,
            )

    async def _parts(
        self, content: Sequence[ContentBlock], scope: ToolScope
    ) -> dict[str, JsonValue]:
        images: list[JsonValue] = []
        resources: list[JsonValue] = []
        for block in content:
            match block.type:
                case "text":
                    pass
                case "image" | "audio":
                    target = images if block.type == "image" else resources
                    target.append(await self._store_content(block.data, block.mime_type, scope))
                case "resource":
                    resources.append(await self._read_embedded(block.resource, scope))
                case "resource_link":
                    about = {"uri": f"{block.uri}", "name": block.name}
                    resources.append({**about, "media_type": block.mime_type})
                case _:
                    assert_never(block.type)
        parts: dict[str, JsonValue] = {"text": "\n".join(_texts(content))}
        if images:
            parts["images"] = images
        if resources:
            parts["resources"] = resources
        return parts

    async def _read_embedded(self, resource: object, scope: ToolScope) -> JsonValue:
        from mcp_types import BlobResourceContents, TextResourceContents

        if isinstance(resource, TextResourceContents):
            about: dict[str, JsonValue] = {"uri": f"{resource.uri}", "text": resource.text}
            return {**about, "media_type": resource.mime_type}
        assert isinstance(resource, BlobResourceContents)  # noqa: S101  # there are two
        stored = await self._store_content(resource.blob, resource.mime_type, scope)
        return {"uri": f"{resource.uri}", **stored}

    async def _store_content(
        self, text: str, said: str | None, scope: ToolScope
    ) -> dict[str, JsonValue]:
        """The content, stored; what kind of image it is its first bytes say, not the server."""
        from minions.adapters.tools.mcp.mcp_failures import BAD_RESULT, failed

        try:
            data = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise failed(
                self.server, "gave contents that are no base64", code=BAD_RESULT
            ) from error
        kind = media_type_of(data) or said
        about: dict[str, JsonValue] = {"media_type": kind, "size": len(data)}
        if scope.store_blob is not None:
            about["digest"] = await scope.store_blob(data)
        return about


def _texts(content: Sequence[ContentBlock]) -> list[str]:
    return [block.text for block in content if block.type == "text"]
