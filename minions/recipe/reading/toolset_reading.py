"""The toolsets, servers of tools and registered tools that a recipe names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
from attrs import evolve, frozen

from minions.contracts.tool_servers import OWN_SERVER, SERVER, ToolServer, own_server
from minions.contracts.tools import Reads, Toolset, ToolSpec
from minions.data.errors import Fault
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, texts_in
from minions.data.schema import SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.tool_checks import check_against_schema, names_misspelt
from minions.recipe.drafts import RecipeDraft, ToolNames, read_templates
from minions.recipe.expressions.values import nearest
from minions.recipe.language import recipe_keys as keys
from minions.recipe.model import ToolsetUse
from minions.recipe.text.key_types import STEP_PATTERN, Key
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, to_plain
from minions.recipe.text.sections import (
    Report,
    Section,
    check_value,
    read_section,
    suggestion,
    type_of,
)


def read_tools(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    """Read which tools there are, under which names."""
    reader = _ToolsReader(catalog, report)
    for node in draft.section.items("tools"):
        reader.item(node)
    draft.uses = tuple(reader.uses)
    draft.tools = ToolNames(
        specs=reader.specs, prefixes=reader.prefixes, is_complete=reader.is_complete
    )
    draft.prompt_templates = tuple(
        use
        for node in draft.section.items("tools")
        for use in read_templates(node, report, draft.templates)
    )


class _ToolsReader:
    def __init__(self, catalog: Catalog, report: Report) -> None:
        self._catalog = catalog
        self._toolsets = catalog.toolsets
        self._report = report
        self._validators: dict[str, SchemaValidator] = {}
        self.uses: list[ToolsetUse] = []
        self.specs: dict[str, ToolSpec] = dict(catalog.tools)
        self.prefixes: dict[str, tuple[str, ...]] = {}
        self.is_complete = True

    def item(self, node: Node) -> None:
        if isinstance(node, ScalarNode) and isinstance(node.value, str):
            self._read_named(node, node.value, None)
        elif isinstance(node, MappingNode) and len(node.entries) == 1:
            entry = node.entries[0]
            self._read_named(entry.key_node, entry.key, entry.value)
        else:
            self._fail(
                node.place.fault(
                    "wrong-type",
                    f"a tool is a name or one name with options, but this is {type_of(node)}",
                    help="write 'files' or 'files: {root: .}'",
                )
            )

    def _fail(self, fault: Fault) -> None:
        self.is_complete = False
        self._report(fault)

    def _read_named(self, node: ScalarNode, name: str, options: Node | None) -> None:
        toolset = self._toolsets.get(name)
        if toolset is not None:
            self._toolset(node, toolset, options)
        elif name in self._catalog.tools:
            if options is not None and to_plain(options) is not None:
                self._fail(options.place.fault("wrong-type", f"the tool '{name}' has no options"))
            self.uses.append(ToolsetUse(name=name))
        elif name == "mcp":
            self._server(node, options)
        else:
            known = (*self._toolsets, *self._catalog.tools)
            self._fail(
                node.place.fault(
                    "unknown-toolset",
                    f"unknown toolset or tool '{name:.60}'",
                    label=suggestion(name, known),
                    help=f"there are: {', '.join(known) or 'none'}",
                )
            )

    def _toolset(self, node: ScalarNode, toolset: Toolset, options: Node | None) -> None:
        given = self._options(toolset, options)
        prefix_entry = given.pop("as", None)
        reads_entry = given.pop("reads", None)
        reads = self._reads(reads_entry.value) if reads_entry is not None else None
        prefix = None
        if prefix_entry is not None:
            key = Key(name="as", types=("string",), pattern=STEP_PATTERN)
            if (fault := check_value(prefix_entry.value, key)) is not None:
                self._fail(fault)
                return
            prefix = str(to_plain(prefix_entry.value))
        self._check_options(node, toolset, given)
        for name in toolset.fixed_options & given.keys():
            self._check_fixed(name, given[name].value)
        values = {key: to_plain(entry.value) for key, entry in given.items()}
        self.uses.append(ToolsetUse(name=toolset.name, options=values, prefix=prefix, reads=reads))
        if prefix is None and nearest_options(given, toolset):
            self.is_complete = False  # the prefix is misspelt, which was reported
            return
        self._add_tools(prefix_entry.value if prefix_entry else node, toolset, prefix)

    def _check_fixed(self, name: str, node: Node) -> None:
        """Report a template in an option that opens something."""
        if any("{{" in each or "{%" in each for each in texts_in(to_plain(node))):
            self._fail(
                node.place.fault(
                    "bad-value",
                    f"'{name}' says what is opened, so it has no templates",
                    help="write the names as they are",
                )
            )

    def _server(self, node: ScalarNode, options: Node | None) -> None:
        """A server that the operator configured, or the recipe's own."""
        found = read_tool_server(node, options, self._catalog, self._fail)
        if found is None:
            return
        if (why := found.toolset.unverified) is not None:
            self._fail(
                node.place.fault(
                    "mcp-not-locked",
                    "unverified: the tools of this MCP server are not known",
                    help=why,
                    is_warning=self._catalog.takes_unlocked,
                )
            )
        self.uses.append(found.use)
        self._add_tools(node, found.toolset, found.use.prefix)

    def _reads(self, node: Node) -> Reads | None:
        """Where the recipe says that the toolset's text comes from."""
        choices = tuple(each.value for each in Reads if each is not Reads.UNDECLARED)
        key = Key(name="reads", types=("string",), choices=choices)
        if (fault := check_value(node, key)) is not None:
            self._fail(fault)
            return None
        return Reads(str(to_plain(node)))

    def _options(self, toolset: Toolset, options: Node | None) -> dict[str, Entry]:
        if isinstance(options, MappingNode):
            return {entry.key: entry for entry in options.entries}
        if options is not None and to_plain(options) is not None:
            message = f"options of '{toolset.name}' are a mapping, but this is {type_of(options)}"
            self._fail(options.place.fault("wrong-type", message))
        return {}

    def _check_options(
        self, node: ScalarNode, toolset: Toolset, given: Mapping[str, Entry]
    ) -> None:
        required = toolset.options.get("required")
        misspelt = names_misspelt(toolset.options, given)
        for name in required if isinstance(required, list | tuple) else ():
            if name not in given and name not in misspelt:
                message = f"the toolset '{toolset.name}' needs the option '{name}'"
                self._fail(node.place.fault("missing-key", message))
        check_against_schema(
            toolset.options,
            given,
            f"the toolset '{toolset.name}'",
            self._report,
            self._validators,
            toolset.name,
            more=_OF_EVERY_TOOLSET,
        )

    def _add_tools(self, node: Node, toolset: Toolset, prefix: str | None) -> None:
        prefix = prefix or toolset.name
        if prefix in self.prefixes:
            self._fail(
                node.place.fault(
                    "duplicate-tool",
                    f"two toolsets give tools called '{prefix}__…'",
                    help="give one of them another prefix with 'as: name'",
                )
            )
            return
        full = {f"{prefix}__{spec.name}": spec for spec in toolset.specs}
        self.prefixes[prefix] = tuple(full)
        self.specs.update({name: attrs.evolve(spec, name=name) for name, spec in full.items()})


_OF_EVERY_TOOLSET: Final = ("as", "reads")
"""Options that any toolset takes."""


# --- the MCP servers that a recipe names, or brings along ----------------------------------------


_PREFIX: Final = re.compile(STEP_PATTERN)

_QUOTE: Final = "put the text between quotes"


def nearest_options(given: Mapping[str, Entry], toolset: Toolset) -> bool:
    """Whether an unknown option may be `as`, misspelt."""
    properties = toolset.options.get("properties")
    known = tuple(properties) if isinstance(properties, Mapping) else ()
    unknown = (name for name in given if name not in known)
    return any(nearest(name, (*_OF_EVERY_TOOLSET, *known)) == "as" for name in unknown)


@frozen(kw_only=True)
class NamedServer(FieldsRepr):
    """A server as the recipe names it."""

    use: ToolsetUse
    toolset: Toolset
    """With the tools that the recipe wants of it."""


def read_tool_server(
    node: ScalarNode, value: Node | None, catalog: Catalog, report: Callable[[Fault], None]
) -> NamedServer | None:
    """The server under the key `mcp`, as a name or a mapping; None: what is wrong was reported."""
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return _configured_server(value, value.value, None, catalog, report)
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
        return _configured_server(section.entries["server"].value, name, section, catalog, report)
    return _own(node, section, catalog, report)


def _configured_server(
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
