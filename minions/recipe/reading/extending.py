"""`templates` and `extends`: a step takes the keys that it does not state from a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode
from minions.recipe.text.sections import Report, suggestion, type_of

__all__ = ["extended", "read_step_templates"]

_EXTENDS: Final = "extends"


def read_step_templates(node: Node | None, report: Report) -> Mapping[str, MappingNode]:
    """The templates by name; a fault in one is reported at the steps that use it."""
    if not isinstance(node, MappingNode):
        return {}
    found: dict[str, MappingNode] = {}
    for entry in node.entries:
        if not isinstance(entry.value, MappingNode):
            report(
                entry.value.place.fault(
                    "wrong-type",
                    f"a template is a mapping of step keys, but this is {type_of(entry.value)}",
                )
            )
        elif entry.value.find("id") is not None:
            place = entry.value.find("id")
            assert place is not None  # noqa: S101  # just found
            report(
                place.key_node.place.fault(
                    "bad-value",
                    "a template has no id: each step that extends it has its own",
                )
            )
        else:
            found[entry.key] = entry.value
    return found


def extended(node: Node, templates: Mapping[str, MappingNode], report: Report) -> Node:
    """The step with the keys that only its template states; each key keeps its place in the
    text.

    Mappings such as `params` are not merged: the step's own replaces that of the template.
    """
    seen: list[str] = []
    while isinstance(node, MappingNode) and (entry := node.find(_EXTENDS)) is not None:
        template = _named(entry, templates, seen, report)
        if (
            template is None
        ):  # `extends` stays: keys that the template would have added are not reported
            return node
        own = [each for each in node.entries if each is not entry]
        keys = {each.key for each in own}
        more = [each for each in template.entries if each.key not in keys]
        node = structs.replace(node, entries=(*own, *more))
    return node


def _named(
    entry: Entry, templates: Mapping[str, MappingNode], seen: list[str], report: Report
) -> MappingNode | None:
    value = entry.value
    names = tuple(templates)
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str):
        return None  # the check of the key reports it
    if value.value not in templates:
        shown = value.value
        report(
            value.place.fault(
                "unknown-template",
                f"unknown template '{shown:.60}'" if names else "there are no templates to extend",
                label=suggestion(shown, names),
                help=f"templates are: {', '.join(names)}"
                if names
                else "write them as 'templates: {name: {…}}' beside 'steps'",
            )
        )
        return None
    name = value.value
    if name in seen:
        report(value.place.fault("cycle", f"the template '{name}' extends itself"))
        return None
    seen.append(name)
    return templates[name]
