"""The tools that a server lists, checked: names, sizes and schemas are a stranger's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minions.adapters.tools.mcp.mcp_failures import failed
from minions.contracts.tool_servers import PinnedTool, ToolServer
from minions.data.errors import SchemaError, UsageError, did_you_mean
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema, check_schema
from minions.data.texts import printable_text, shown_text

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as ListedTool


_MOST_TOOLS: Final = 500
_MOST_PAGES: Final = 50
_MOST_NAME: Final = 64
"""Characters of `server__tool`: the limit of providers."""
_MOST_DESCRIPTION: Final = 10_000
"""Characters of a description: every one is paid for with every call of a model."""
_MOST_SCHEMA: Final = 100_000
"""Characters of a schema as JSON."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


async def listed_tools(server: ToolServer, client: Client) -> Sequence[ListedTool]:
    """All tools that the server lists, of every page.

    Raises:
        ToolServerError: There are too many.
    """
    from mcp_types import PaginatedRequestParams

    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        params = PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        page = await client.session.list_tools(params=params)
        found += page.tools
        cursor = page.next_cursor
        if len(found) > _MOST_TOOLS:
            break
        if cursor is None:
            return found
    raise failed(server.name, f"lists more than {_MOST_TOOLS} tools, or does not end its list")


def pinned_tools(server: ToolServer, listed: Iterable[ListedTool]) -> tuple[PinnedTool, ...]:
    """The tools of the server that are used, as they are now.

    Raises:
        UsageError: `mcp-bad-tools`: names, schemas or sizes are not taken; each fault is told.
    """
    found = list(listed)
    by_name = {tool.name: tool for tool in found}
    missing = [name for name in server.only if name not in by_name]
    doubled = repeated_names(found)
    faults = [f"there is no tool '{name}'.{did_you_mean(name, by_name)}" for name in missing]
    tools: list[PinnedTool] = []
    for name, tool in by_name.items():
        if server.only and name not in server.only:
            continue
        if name in doubled:
            faults.append(f"'{name[:100]}': {doubled[name]} tools have this name")
        pinned = as_pinned(tool)
        faults += _faults(server.name, pinned)
        tools.append(pinned)
    faults += _collisions(tools)
    if faults:
        lines = "".join(f"\n  {printable_text(fault)}" for fault in faults)
        raise UsageError(
            f"Tools of the MCP server '{server.name}' cannot be used:{lines}\nName the tools that "
            f"you want in `tools` of {server.place}.",
            code="mcp-bad-tools",
        )
    return tuple(sorted(tools, key=lambda tool: tool.name))


def repeated_names(listed: Iterable[ListedTool]) -> Mapping[str, int]:
    """The names that several tools have, with how many."""
    counts = Counter(tool.name for tool in listed)
    return {name: count for name, count in counts.items() if count > 1}


def as_pinned(tool: ListedTool) -> PinnedTool:
    """A listed tool as it is compared and kept."""
    hints = tool.annotations
    return PinnedTool(
        name=tool.name,
        shown_as=_UNFIT.sub("_", tool.name),
        description=shown_text(tool.description or tool.title or ""),
        parameters=tool.input_schema,
        output=tool.output_schema,
        is_read_only=bool(hints and hints.read_only_hint),
        is_idempotent=bool(hints and hints.idempotent_hint),
    )


def _faults(server: str, tool: PinnedTool) -> Iterator[str]:
    name = tool.name[:100]
    if not tool.name.strip():
        yield "a tool without a name"
    elif len(f"{server}__{tool.shown_as}") > _MOST_NAME:
        yield f"'{name}': `{server}__{tool.shown_as[:100]}` is longer than {_MOST_NAME} characters"
    if len(tool.description) > _MOST_DESCRIPTION:
        yield f"'{name}': its description has more than {_MOST_DESCRIPTION:,} characters"
    for what, schema in (("parameters", tool.parameters), ("results", tool.output)):
        if schema is not None and (fault := _fault_of(schema)) is not None:
            yield f"'{name}': the schema of its {what} is not taken: {fault}"


def _fault_of(schema: JsonSchema) -> str | None:
    if len(dumps(dict(schema))) > _MOST_SCHEMA:
        return f"it has more than {_MOST_SCHEMA:,} characters"
    if schema.get("type") != "object":
        return "it is not of the type object"
    try:
        check_schema(schema)
    except SchemaError as error:
        return error.message
    return None


def _collisions(tools: Sequence[PinnedTool]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for tool in tools:
        other = seen.setdefault(tool.shown_as, tool.name)
        if other != tool.name:
            yield f"'{other[:100]}' and '{tool.name[:100]}' would both be called '{tool.shown_as}'"


_MOST_ABOUT: Final = 600
"""Characters of a new tool's description that are shown; of a parameter's it is a fifth of that."""
_MOST_PARAMETERS: Final = 30
"""Parameters of a new tool that are shown."""


def about_new(tool: PinnedTool) -> str:
    """A tool that nobody looked at yet, as lines for a person who decides about it."""
    lines = [f"+ new, {tool.effect.value}"]
    lines += (f"  {line}" for line in _shorten(tool.description, _MOST_ABOUT).splitlines())
    fields = tool.parameters.get("properties")
    named = list(fields.items()) if isinstance(fields, Mapping) else []
    needed = tool.parameters.get("required")
    required = needed if isinstance(needed, Sequence) else ()
    for name, schema in named[:_MOST_PARAMETERS]:
        lines.append(f"  · {_about_parameter(name, schema, is_required=name in required)}")
    if len(named) > _MOST_PARAMETERS:
        lines.append(f"  · … {len(named) - _MOST_PARAMETERS} more parameters")
    return "\n".join(lines)


def _about_parameter(name: str, schema: JsonValue, *, is_required: bool) -> str:
    said = schema if isinstance(schema, Mapping) else {}
    kind = said.get("type")
    words = [kind] if isinstance(kind, str) else []
    words += [] if is_required else ["optional"]
    about = said.get("description")
    more = f": {' '.join(about.split())}" if isinstance(about, str) and about.strip() else ""
    kinds = f" ({', '.join(words)})" if words else ""
    return _shorten(f"{name[:100]}{kinds}{more}", _MOST_ABOUT // 5)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… {len(text) - most:,} more characters"


def changes_of(pinned: PinnedTool, now: PinnedTool | None) -> str | None:
    """What changed since somebody looked at the tool, as lines of a diff; None: nothing."""
    if now is None:
        return "- the tool is not there any more"
    if now == pinned:
        return None
    before, after = pinned.to_json(), now.to_json()
    lines = [
        line
        for key in before
        if before[key] != after[key]
        for line in _diff(key, before[key], after[key])
    ]
    return "\n".join(lines)


_MOST_LINES: Final = 40
_MOST_COMPARED: Final = 300
"""Lines of which a diff is made: it takes time in proportion to their square."""
_MOST_LINE: Final = 300


def _diff(key: str, before: JsonValue, after: JsonValue) -> Iterator[str]:
    import difflib

    old, new = _lines(before)[:_MOST_COMPARED], _lines(after)[:_MOST_COMPARED]
    found = difflib.unified_diff(old, new, lineterm="", n=0)
    shown = [line for line in found if not line.startswith(("---", "+++", "@@"))]
    yield f"  {key}:"
    if not shown:
        yield f"  … differs after the first {_MOST_COMPARED} lines"
    for line in shown[:_MOST_LINES]:
        yield f"  {line}"
    if len(shown) > _MOST_LINES:
        yield f"  … {len(shown) - _MOST_LINES} more lines"


def _lines(value: JsonValue) -> list[str]:
    import json

    if isinstance(value, str):
        lines = value.splitlines()
    else:
        lines = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
    return [line[:_MOST_LINE] for line in lines]
