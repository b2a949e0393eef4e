"""The `permissions` of a recipe, for its own tools and those of its nested recipes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from minions.recipe.catalog import Catalog
from minions.recipe.drafts import RecipeDraft
from minions.recipe.expressions.values import nearest
from minions.recipe.language import keys
from minions.recipe.model import Permissions
from minions.recipe.steps_within import recipes_within
from minions.recipe.text.nodes import Entry, MappingNode, Node, Place, ScalarNode
from minions.recipe.text.sections import (
    Report,
    read_section,
    read_texts,
    suggestion,
    truth_help,
    type_of,
)


def read_permissions(draft: RecipeDraft, catalog: Catalog, report: Report) -> Permissions:
    """The `permissions` of the recipe; nested recipes have to be loaded before.

    Returns:
        Permissions in which names of nested recipes' tools stay as written.
    """
    node = draft.section.node("permissions")
    if node is None:
        return Permissions()
    names = _names(draft, catalog)
    own, single = _split(node, names)
    section = read_section(own, keys.PERMISSIONS, report)
    approved: list[str] = []
    for text in read_texts(section.items("requires_approval"), "a tool's name", report):
        if text.text not in names.tools and text.text not in names.toolsets:
            _report_unknown(text.node.place, text.text, names, report)
        approved += names.of(text.text)
    return Permissions(
        allow_write=section.plain("allow_write", False) is True,
        tools=_allowed(single, names, report),
        requires_approval=tuple(dict.fromkeys(approved)),
    )


def tools_within(draft: RecipeDraft, catalog: Catalog) -> tuple[str, ...]:
    """Full names of the recipe's own tools, then of those of its nested recipes."""
    return _names(draft, catalog).tools


def _allowed(entries: list[Entry], names: _Names, report: Report) -> dict[str, bool]:
    """The permissions of single tools."""
    allowed = {}
    known = {full.casefold(): full for full in names.tools}
    for entry in entries:
        name = entry.key.removeprefix("allow_")
        tool = known.get(name.casefold())
        if tool is None and name in names.toolsets:
            _report_toolset(entry, name, names, report)
        elif tool is None:
            _report_unknown(entry.key_node.place, name, names, report)
        elif not isinstance(entry.value, ScalarNode) or not isinstance(entry.value.value, bool):
            message = f"'{entry.key}' takes true or false, but this is {type_of(entry.value)}"
            report(entry.value.place.fault("wrong-type", message, help=truth_help(entry.value)))
        else:
            allowed[tool] = entry.value.value
    return allowed


def _split(node: Node, names: _Names) -> tuple[Node, list[Entry]]:
    """The mapping without keys made of tool names, and those keys."""
    if not isinstance(node, MappingNode):
        return node, []
    known = {f"allow_{name}".casefold() for name in names.tools}

    def is_single(key: str) -> bool:
        if not key.startswith("allow_") or key in ("allow_write", "allow_<tool>"):
            return False
        return key.casefold() in known or nearest(key.removeprefix("allow_"), ("write",)) is None

    single = [entry for entry in node.entries if is_single(entry.key)]
    others = tuple(entry for entry in node.entries if entry not in single)
    return structs.replace(node, entries=others), single


def _report_toolset(entry: Entry, name: str, names: _Names, report: Report) -> None:
    """A permission for a toolset: which of its tools may be called has to be said."""
    keys_of_tools = ", ".join(f"allow_{tool}" for tool in names.toolsets[name])
    report(
        entry.key_node.place.fault(
            "unknown-tool",
            f"'{name:.60}' is a toolset, and '{entry.key}' takes one tool",
            help=f"write one of: {keys_of_tools}",
        )
    )


def _report_unknown(place: Place, name: str, names: _Names, report: Report) -> None:
    if not names.is_complete and ("__" in name or names.has_lost_recipes):
        return  # its toolset or recipe may be what is faulty, which was reported
    known = (*names.tools, *names.toolsets)
    report(
        place.fault(
            "unknown-tool",
            f"unknown tool '{name:.60}'",
            label=suggestion(name, known),
            help=f"tools are: {', '.join(names.tools) or 'none; add some under tools:'}",
        )
    )


# --- the names -----------------------------------------------------------------------------------


class _Names(Struct, frozen=True, kw_only=True):
    """The names that permissions may use."""

    tools: tuple[str, ...]
    """Full names of tools, the recipe's own first."""
    toolsets: Mapping[str, tuple[str, ...]]
    """Full names of each toolset's tools, by prefix."""
    nested: frozenset[str]
    """Prefixes of toolsets that only nested recipes open."""
    is_complete: bool
    has_lost_recipes: bool

    def of(self, name: str) -> tuple[str, ...]:
        """The tools that the name stands for; that of a nested toolset also stands for itself."""
        if name not in self.toolsets:
            return (name,)
        return (*((name,) if name in self.nested else ()), *self.toolsets[name])


def _names(draft: RecipeDraft, catalog: Catalog) -> _Names:
    own = draft.tools
    nested = {
        prefix: names
        for prefix, names in _nested_toolsets(draft, catalog).items()
        if prefix not in own.prefixes
    }
    tools = [*own.specs, *(name for names in nested.values() for name in names)]
    is_lost = any(step.kind == "recipe" and step.recipe is None for step in draft.steps)
    return _Names(
        tools=tuple(dict.fromkeys(tools)),
        toolsets={**own.prefixes, **nested},
        nested=frozenset(nested),
        is_complete=own.is_complete and not is_lost,
        has_lost_recipes=is_lost,
    )


def _nested_toolsets(draft: RecipeDraft, catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Full names of the tools of nested recipes' toolsets, by the prefix
    and by the toolset's own name.
    """
    found: dict[str, tuple[str, ...]] = {}
    for step in draft.steps:
        inner = recipes_within(step.recipe) if step.recipe is not None else ()
        for use in (use for recipe in inner for use in recipe.tools):
            if (toolset := catalog.toolsets.get(use.name)) is None:
                continue  # a registered tool, whose name is known here, too
            for prefix in (use.prefix or use.name, use.name):
                found[prefix] = tuple(f"{prefix}__{spec.name}" for spec in toolset.specs)
    return found
