"""Type checks across steps: values that never fit a tool's parameter,
loops over what is not a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from minions.data.schema import JsonSchema
from minions.recipe.checks.shapes import Mismatch, Shape, kind_of
from minions.recipe.checks.sources import KnownShape, Sources
from minions.recipe.checks.tools import given_parameters, is_constant
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.terms import Path
from minions.recipe.expressions.values import path_text
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, SequenceNode
from minions.recipe.text.sections import Report

_LIST: Final = Shape.of({"type": "array"})


def check_fitting(draft: RecipeDraft, sources: Sources, report: Report) -> None:
    """Report type mismatches that are certain from the schemas of both sides."""
    for step in draft.steps:
        if step.has_loop:
            _check_loop(step, sources, report)
        spec = draft.tools.specs.get(step.section.text("tool") or "")
        if step.kind == "tool" and spec is not None and step.templates:
            _Consumer(step, f"the tool '{spec.name}'", sources, report).check(spec.parameters)


def _check_loop(step: StepDraft, sources: Sources, report: Report) -> None:
    node = step.section.node("loop")
    use = next((use for use in step.outer_templates if use.node is node), None)
    if use is None:
        return
    shape = sources.shape_of(use)
    if (mismatch := shape.mismatch(_LIST)) is None:
        return
    known = _known(use, sources, None)
    report(
        use.node.place.fault(
            "type-mismatch",
            f"'loop' goes over a list, but {_named(use)} is {mismatch.given}",
            label=_declared(known),
            help=_lists_in(use, shape),
        )
    )


def _lists_in(use: TemplateUse, shape: Shape) -> str | None:
    """A hint that names the value's members that are lists: usually one of them was meant."""
    if not isinstance(use.term, Path):
        return None
    root = path_text(use.term.reference.path)
    names = [
        f"'{root}.{name}'" for name in shape.names() if shape.at((name,)).kinds() == _LIST.kinds()
    ]
    return f"lists in it: {', '.join(names)}" if names else None


class _Consumer(Struct):
    """A step that passes arguments on."""

    step: StepDraft
    owner: str
    sources: Sources
    report: Report

    def check(self, parameters: JsonSchema) -> None:
        """Check every argument that holds a template; constants are checked elsewhere."""
        uses = {id(use.node): use for use in self.step.templates}
        wanted = Shape.of(parameters)
        for key, entry in given_parameters(self.step).items():
            if not is_constant(entry.value):
                for node, shape, path in _pairs(entry.value, wanted.at((key,)), (key,)):
                    self._check_node(node, shape, path, uses.get(id(node)))

    def _check_node(
        self, node: Node, wanted: Shape, path: tuple[str | int, ...], use: TemplateUse | None
    ) -> None:
        given = _shape_of(node) if use is None else self.sources.shape_of(use, self.step)
        if (mismatch := given.mismatch(wanted)) is None:
            return
        known = _known(use, self.sources, self.step) if use is not None else None
        name = path_text((*path, *mismatch.path))
        self.report(
            node.place.fault(
                "type-mismatch",
                f"'{name}' of {self.owner} takes {mismatch.wanted}, "
                f"but {_named(use, mismatch)} is {mismatch.given}",
                label=_declared(known),
            )
        )


def _pairs(
    node: Node, wanted: Shape, path: tuple[str | int, ...]
) -> Iterator[tuple[Node, Shape, tuple[str | int, ...]]]:
    """Every node with the schema and path of its place."""
    yield node, wanted, path
    if isinstance(node, MappingNode):
        for entry in node.entries:
            yield from _pairs(entry.value, wanted.at((entry.key,)), (*path, entry.key))
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.items):
            yield from _pairs(item, wanted.at((index,)), (*path, index))


def _shape_of(node: Node) -> Shape:
    """The type of what is written there, without its members, which are checked one by one."""
    if isinstance(node, ScalarNode):
        return Shape.of({"type": kind_of(node.value)})
    return Shape.of({"type": "object" if isinstance(node, MappingNode) else "array"})


def _known(use: TemplateUse, sources: Sources, reader: StepDraft | None) -> KnownShape | None:
    return sources.known(use.term.reference, reader) if isinstance(use.term, Path) else None


def _named(use: TemplateUse | None, mismatch: Mismatch | None = None) -> str:
    if use is None:
        return "this"
    if not isinstance(use.term, Path):
        return "this template"
    inside = mismatch.path if mismatch is not None else ()
    return f"'{path_text((*use.term.reference.path, *inside))}'"


def _declared(known: KnownShape | None) -> str | None:
    return f"declared at line {known.place.line}" if known is not None else None
