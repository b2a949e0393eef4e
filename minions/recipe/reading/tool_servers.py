"""The MCP servers that a recipe names, or brings along. Nothing is started or asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.contracts.tool_servers import OWN_SERVER, SERVER, ToolServer, own_server
from minions.contracts.tools import Reads, Toolset
from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.language import keys
from minions.recipe.model import ToolsetUse
from minions.recipe.text.key_types import STEP_PATTERN
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode
from minions.recipe.text.sections import Section, read_section, suggestion

_PREFIX: Final = re.compile(STEP_PATTERN)

_QUOTE: Final = "put the text between quotes"


@frozen(kw_only=True)
class NamedServer:
    """A server as the recipe names it."""

    use: ToolsetUse
    toolset: Toolset
    """With the tools that the recipe wants of it."""


def read_tool_server(
    node: ScalarNode, value: Node | None, catalog: Catalog, report: Callable[[Fault], None]
) -> NamedServer | None:
    """The server under the key `mcp`, as a name or a mapping; None: what is wrong was reported."""
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return _configured(value, value.value, None, catalog, report)
    if not isinstance(value, MappingNode):
        report(
            node.place.fault(
                "wrong-type",
                "an MCP server is a name, or a mapping",
                help="write 'mcp: NAME' or 'mcp: {server: NAME, tools: [search]}'",
            )
        )
        return None
    section = read_section(value, keys.MCP_SERVER, report)
    ways = [name for name in ("server", "command", "url") if name in section.entries]
    if len(ways) != 1:
        what = f"'{ways[0]}' and '{ways[1]}' exclude each other" if ways else "its way is missing"
        message = f"{what}: an MCP server has one of server, command and url"
        if section.refused.keys().isdisjoint(("server", "command", "url")):
            report(node.place.fault("bad-value", message))
        return None
    if ways == ["server"]:
        name = section.text("server") or ""
        return _configured(section.entries["server"].value, name, section, catalog, report)
    return _own(node, section, catalog, report)


def _configured(
    node: Node,
    name: str,
    section: Section | None,
    catalog: Catalog,
    report: Callable[[Fault], None],
) -> NamedServer | None:
    toolset = catalog.toolsets.get(f"{SERVER}{name}")
    if toolset is not None:
        return _with_options(toolset, name, section, report)
    known = [each[len(SERVER) :] for each in catalog.toolsets if each.startswith(SERVER)]
    report(
        node.place.fault(
            "mcp-unknown-server",
            f"no MCP server '{name:.60}' is configured",
            label=suggestion(name, tuple(known)),
            help=f"configured are: {', '.join(known) or 'none'}; a server is a table [mcp.NAME] "
            "with 'command' or 'url' in minions.toml, or one of Minions(mcp_servers=…)",
        )
    )
    return None


def _own(
    node: ScalarNode, section: Section, catalog: Catalog, report: Callable[[Fault], None]
) -> NamedServer | None:
    """The recipe's own server: known by how it is reached, and only where it was locked."""
    prefix = section.text("as")
    if prefix is None:
        if "as" not in section.refused:
            report(
                node.place.fault(
                    "missing-key",
                    "the recipe's own MCP server needs a name for its tools",
                    help="write 'as: NAME': its tools are then called NAME__tool",
                )
            )
        return None
    for item in section.items("command"):
        if not (isinstance(item, ScalarNode) and isinstance(item.value, str)):
            report(item.place.fault("wrong-type", "a command is a list of texts", help=_QUOTE))
            return None
    server = own_server(prefix, _texts(section.plain("command")), section.text("url"))
    toolset = catalog.toolsets.get(f"{OWN_SERVER}{server.fingerprint}")
    if toolset is None:
        message = "recipes cannot bring MCP servers along here"
        help_text = "ask the operator to configure it"
        report(node.place.fault("mcp-unknown-server", message, help=help_text))
        return None
    return _with_options(toolset, prefix, section, report)


def _with_options(
    toolset: Toolset,
    prefix: str,
    section: Section | None,
    report: Callable[[Fault], None],
) -> NamedServer | None:
    if section is not None:
        prefix = section.text("as") or prefix
    if not _PREFIX.fullmatch(prefix):
        return None
    only = _texts(section.plain("tools")) if section is not None else ()
    options: dict[str, JsonValue] = {"tools": list(only)} if only else {}
    reads = section.text("reads") if section is not None else None
    if section is not None and toolset.unverified is None:
        _report_unknown(section, toolset, only, report)
    kept = tuple(spec for spec in toolset.specs if not only or spec.name in only)
    return NamedServer(
        use=ToolsetUse(
            name=toolset.name,
            options=options,
            prefix=prefix,
            reads=Reads(reads) if reads is not None else None,
        ),
        toolset=evolve(toolset, specs=kept),
    )


def _report_unknown(
    section: Section, toolset: Toolset, only: Sequence[str], report: Callable[[Fault], None]
) -> None:
    known = tuple(spec.name for spec in toolset.specs)
    for name in only:
        if name not in known:
            report(
                section.place_of("tools").fault(
                    "unknown-tool",
                    f"the MCP server has no tool '{name:.60}'",
                    label=suggestion(name, known),
                    help=f"locked are: {', '.join(known) or 'none'}",
                )
            )


def own_servers(document: Mapping[str, JsonValue]) -> tuple[ToolServer, ...]:
    """The servers that a recipe brings along, as its document says; what is none is left out."""
    tools = document.get("tools")
    found: list[ToolServer] = []
    for item in tools if isinstance(tools, list | tuple) else ():
        said = item.get("mcp") if isinstance(item, Mapping) else None
        if not isinstance(said, Mapping):
            continue
        command, url, name = _texts(said.get("command")), said.get("url"), said.get("as")
        if isinstance(name, str) and (command or isinstance(url, str)):
            found.append(own_server(name, command, url if isinstance(url, str) else None))
    return tuple(found)


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
