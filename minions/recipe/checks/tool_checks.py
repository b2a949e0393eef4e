"""Checks of the tools that steps name, and of the arguments that they pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.steps import ToolSearch
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import Effect, ToolSpec
from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Mismatch, Shape, find_dead_end, kind_names, kind_of
from minions.recipe.checks.sources import KnownShape, Sources
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.template import has_templates
from minions.recipe.expressions.terms import Path
from minions.recipe.expressions.values import nearest, path_text
from minions.recipe.kinds.code_kind import TOOL_ERROR, function_name, functions_read
from minions.recipe.kinds.goal_kind import STEP_TOOLS, writes_program
from minions.recipe.kinds.tool_kind import without_argument
from minions.recipe.permissions import ALLOW_WRITE, missing_permission
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    Place,
    ScalarNode,
    SequenceNode,
    to_plain,
)
from minions.recipe.text.sections import Report, Section, read_section, read_texts, suggestion

if TYPE_CHECKING:
    from minions.recipe.checks.narrowing import Narrowings


def check_tools(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    """Report unknown tools, unknown and missing parameters, and constants of the wrong type.

    Also for the arguments of `Step` classes that the operator registered.
    """
    validators: dict[str, SchemaValidator] = {}
    for step in draft.steps:
        if step.decision is not None:
            _check_decision(draft, step, step.decision, validators, report)
        if step.kind in ("goal", "plan", "code"):
            _read_offered(draft, step, report)
            if step.kind == "code":
                _check_program(draft, step, report)
            if step.kind == "code" or writes_program(step.section):
                _check_functions(step, report)
        elif step.kind == "tool":
            _check_call(draft, step, validators, report)
        elif step.kind == "uses":
            _check_use(step, catalog.steps, validators, report)


def _check_use(
    step: StepDraft,
    kinds: Mapping[str, JsonSchema],
    validators: dict[str, SchemaValidator],
    report: Report,
) -> None:
    """Check the arguments (`with`) of a registered `Step` class."""
    name = step.section.text("uses")
    if name is None:
        return
    place = step.section.place_of("uses")
    schema = kinds.get(name)
    if schema is None:
        report(
            place.fault(
                "unknown-step-class",
                f"unknown Step class '{name:.60}'",
                label=suggestion(name, tuple(kinds)),
                help=f"registered are: {', '.join(kinds) or 'none; see --extensions'}",
            )
        )
        return
    node = step.section.mapping("with")
    given = {entry.key: entry for entry in node.entries} if node else {}
    required = schema.get("required")
    names = [str(each) for each in required] if isinstance(required, list | tuple) else []
    misspelt = names_misspelt(schema, given)
    if missing := [each for each in names if each not in given and each not in misspelt]:
        listed = ", ".join(f"'{each}'" for each in missing)
        report(place.fault("missing-param", f"'{name}' needs {listed}", help="give it under with:"))
    check_against_schema(schema, given, f"'{name}'", report, validators, f"uses {name}")


def _read_offered(draft: RecipeDraft, step: StepDraft, report: Report) -> None:
    """Note the tools that the model of the step may call, and how it comes to them."""
    node = step.section.mapping("tools")
    if node is None:
        step.tools = _named_tools(draft, step.section.items("tools"), report)
        return
    section = read_section(node, STEP_TOOLS, report)
    is_on, always = section.plain("search"), _named_tools(draft, section.items("always"), report)
    if section.node("names") is None and "names" not in section.refused:
        names = tuple(name for family in draft.tools.prefixes.values() for name in family)
        names = tuple(name for name in names if draft.tools.specs[name].is_offered)
    else:
        names = _named_tools(draft, section.items("names"), report)
    step.tools = tuple(dict.fromkeys((*names, *always)))
    step.tool_search = ToolSearch(
        is_on=is_on if isinstance(is_on, bool) else None,
        always=always,
        caller=section.plain("caller") is True,
    )
    if is_on is False and always:
        message = "'always' says what is offered before anything is found, and nothing is searched"
        help_ = "leave out one of `always` and `search: false`"
        report(section.place_of("always").fault("bad-value", message, help=help_))
    if is_on is True and FIND_TOOLS in step.tools:
        message = f"a tool of the step is called '{FIND_TOOLS}', as the one that finds tools"
        help_ = "rename it (`name=` on a function), or write search: false"
        report(section.place_of("search").fault("duplicate-tool", message, help=help_))


def _named_tools(draft: RecipeDraft, nodes: tuple[Node, ...], report: Report) -> tuple[str, ...]:
    """The full names of the tools that a list names; a toolset stands for those that it offers."""
    names: list[str] = []
    for text in read_texts(nodes, "a tool's name", report):
        if text.text in draft.tools.prefixes:
            family = draft.tools.prefixes[text.text]
            names.extend(name for name in family if draft.tools.specs[name].is_offered)
        elif text.text in draft.tools.specs:
            names.append(text.text)
        else:
            _report_unknown(draft, text.text, text.node.place, report)
    return tuple(dict.fromkeys(names))


def _check_functions(step: StepDraft, report: Report) -> None:
    """Report tools that would be one function of the module `tools`."""
    tools: dict[str, str] = {}
    for name in step.tools:
        function = function_name(name)
        other = tools.setdefault(function, name)
        if other != name:
            message = f"'{other:.60}' and '{name:.60}' would both be the function '{function:.60}'"
            help_ = "name one of them only, or rename one (`name=` on a function)"
            report(step.section.place_of("tools").fault("duplicate-tool", message, help=help_))


def _check_program(draft: RecipeDraft, step: StepDraft, report: Report) -> None:
    """Report functions of the module `tools` that code reads and the step names no tool of."""
    if "tools" in step.section.refused:
        return
    known = (*map(function_name, step.tools), TOOL_ERROR)
    others = {function_name(each): each for each in draft.tools.specs}
    for name in functions_read(step.section.text("code") or ""):
        if name in known:
            continue
        near = suggestion(name, known) if name not in others else None
        help_ = None
        if name in others:
            help_ = f"name it under tools: [{others[name]:.60}]"
        elif near is None:
            help_ = f"functions are: {', '.join(known[:-1]) or 'none; name tools under tools:'}"
        what = f"the code reads 'tools.{name:.60}', and the step does not name that tool"
        place = step.section.place_of("code")
        report(place.fault("unknown-tool", what, label=near, help=help_))


def _report_unknown(draft: RecipeDraft, name: str, place: Place, report: Report) -> None:
    if "tools" in draft.section.refused or (not draft.tools.is_complete and "__" in name):
        return  # its toolset may be what is faulty, which was reported
    known = (*draft.tools.specs, *draft.tools.prefixes)
    report(
        place.fault(
            "unknown-tool",
            f"unknown tool '{name:.60}'",
            label=suggestion(name, known),
            help=f"tools are: {', '.join(draft.tools.specs) or 'none; add some under tools:'}",
        )
    )


def _check_call(
    draft: RecipeDraft, step: StepDraft, validators: dict[str, SchemaValidator], report: Report
) -> None:
    name = step.section.text("tool")
    if name is None:
        return
    place = step.section.place_of("tool")
    spec = draft.find_tool(name)
    if spec is None:
        _report_unknown(draft, name, place, report)
        return
    _check_permission(draft, step, spec, place, report)
    given = given_parameters(step)
    _check_required(draft, step, spec, given, place, report)
    check_against_schema(spec.parameters, given, f"the tool '{name}'", report, validators, name)
    if step.goal.schema is not None and spec.returns is not None:
        _check_returns(step, spec, step.goal.schema, Shape.of(spec.returns), report)


def _check_returns(
    step: StepDraft, spec: ToolSpec, said: JsonSchema, declared: Shape, report: Report
) -> None:
    """Report a `returns` that no result of the tool fits, as the tool declares them."""
    place = step.section.place_of("returns")
    wanted = Shape.of(said)
    told = f"the tool '{spec.name}' returns {declared.in_words()}"
    if (mismatch := declared.mismatch(wanted)) is not None:
        where = f" at '{path_text(mismatch.path)}'" if mismatch.path else ""
        message = f"'returns' says {mismatch.wanted}{where}, but it is {mismatch.given}: {told}"
        report(place.fault("type-mismatch", message))
        return
    node = step.section.mapping("returns")
    for name in wanted.names():
        if find_dead_end(declared, (name,)) is not None:
            entry = node.find(name) if node is not None else None
            report(
                (entry.key_node.place if entry is not None else place).fault(
                    "type-mismatch",
                    f"'returns' says '{name:.60}', which no result has: {told}",
                    label=suggestion(name, declared.names()),
                )
            )


def _check_permission(
    draft: RecipeDraft, step: StepDraft, spec: ToolSpec, place: Place, report: Report
) -> None:
    """Report a call that no permission allows: a warning where the run may end well without it, and
    in plain data.
    """
    lacks = missing_permission(draft.permissions, draft.uses, spec)
    if lacks is None or draft.has_faulty_permissions or "permissions" in draft.section.refused:
        return
    is_certain = lacks == ALLOW_WRITE and not draft.has_graph
    is_certain = is_certain and step.section.entries.keys().isdisjoint(_AVOIDING)
    what = "changes something" if lacks == ALLOW_WRITE else f"is denied by '{lacks}'"
    report(
        place.fault(
            "write-not-allowed",
            f"'{spec.name}' {what} and will be refused",
            help=f"set permissions: {{{lacks}: true}}",
            is_warning=not (is_certain and draft.is_text),
        )
    )


_AVOIDING: Final = ("when", "loop", "optional", "on_error")
"""Keys with which a run may skip a step or continue after its failure."""


def _check_decision(
    draft: RecipeDraft,
    step: StepDraft,
    section: Section,
    validators: dict[str, SchemaValidator],
    report: Report,
) -> None:
    """Check the tool that names the next step: no model fills in missing arguments here."""
    name = section.text("tool")
    if name is None:
        return
    place = section.place_of("tool")
    spec = draft.find_tool(name)
    if spec is None:
        _report_unknown(draft, name, place, report)
        return
    _check_permission(draft, step, spec, place, report)
    params = section.mapping("params")
    given = {entry.key: entry for entry in params.entries} if params else {}
    required = spec.parameters.get("required")
    names = [str(each) for each in required] if isinstance(required, list | tuple) else []
    misspelt = names_misspelt(spec.parameters, given)
    if missing := [f"'{each}'" for each in names if each not in given and each not in misspelt]:
        message = f"the tool '{spec.name}' needs {', '.join(missing)}"
        report(place.fault("missing-param", message, help="write it under params"))
    check_against_schema(spec.parameters, given, f"the tool '{name}'", report, validators, name)


def given_parameters(step: StepDraft) -> dict[str, Entry]:
    """The arguments as the call will see them: `params_template` over `params`."""
    given: dict[str, Entry] = {}
    for section in ("params", "params_template"):
        node = step.section.mapping(section)
        given.update({entry.key: entry for entry in node.entries} if node else {})
    return given


def _check_required(
    draft: RecipeDraft,
    step: StepDraft,
    spec: ToolSpec,
    given: Mapping[str, Entry],
    place: Place,
    report: Report,
) -> None:
    """Check that each required parameter has an argument, or may be filled in by a model."""
    properties = spec.parameters.get("properties")
    known = list(properties) if isinstance(properties, Mapping) else []
    filled = _check_fill(step, spec, given, known, report)
    misspelt = names_misspelt(spec.parameters, given) if draft.is_text else ()
    missing = [name for name in without_argument(spec, given) if name not in filled]
    missing = [name for name in missing if name not in misspelt]
    if not missing or not {"params", "params_template"}.isdisjoint(step.section.refused):
        return
    listed = ", ".join(f"'{name}'" for name in missing)
    is_filled = draft.is_older or spec.effect is Effect.PURE
    if is_filled:
        message = f"the tool '{spec.name}' needs {listed}: a model call will fill that in"
        ways = "write it under params to save the call"
    else:
        message = f"the tool '{spec.name}' needs {listed}: it is not declared pure, so no model "
        message += "fills that in unasked"
        ways = f"write it under params, or let a model do so: fill: [{', '.join(missing)}]"
        if spec.effect is Effect.UNDECLARED:
            ways += ", or declare the tool's effect"
    is_error = not is_filled and draft.is_text  # plain data may be a stored run's, and fails there
    ways += f"; its parameters are: {', '.join(known or missing)}"
    report(place.fault("missing-param", message, help=ways, is_warning=not is_error))


def _check_fill(
    step: StepDraft,
    spec: ToolSpec,
    given: Mapping[str, Entry],
    known: Sequence[str],
    report: Report,
) -> frozenset[str]:
    """The parameters that `fill` lists; each is one of the tool's, and has no argument."""
    texts = read_texts(step.section.items("fill"), "a parameter", report)
    for each in texts:
        if known and each.text not in known:
            report(
                each.node.place.fault(
                    "unknown-key",
                    f"the tool '{spec.name}' has no parameter '{each.text:.60}'",
                    label=suggestion(each.text, tuple(known)),
                    help=f"it has: {', '.join(known)}",
                )
            )
        elif each.text in given:
            report(
                each.node.place.fault(
                    "bad-value",
                    f"'{each.text}' has an argument, so no model fills it in",
                    help="take it out of `fill`, or out of the arguments",
                )
            )
    return frozenset(each.text for each in texts)


def check_against_schema(
    schema: Mapping[str, JsonValue],
    given: Mapping[str, Entry],
    owner: str,
    report: Report,
    validators: dict[str, SchemaValidator],
    name: str,
    more: tuple[str, ...] = (),
) -> None:
    """Report unknown names, and constants that do not fit. Values with templates are skipped.

    Args:
        validators: Cache of compiled schemas by `name`, shared between calls.
        more: Names that the schema does not know and that may be meant.
    """
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    if known and not {"additionalProperties", "patternProperties"}.intersection(schema):
        # The schema takes any other name, but most say so without meaning it.
        instead = names_misspelt(schema, given).values()
        for key, entry in given.items():
            if key not in known:
                is_warning = key not in instead or not entry.key_node.source.lines
                report(_unknown_parameter(entry, owner, (*known, *more), is_warning=is_warning))
    if schema.get("additionalProperties") is False:
        for key, entry in given.items():
            if key not in known:
                report(_unknown_parameter(entry, owner, (*more, *known)))
    constants = {
        key: entry for key, entry in given.items() if key in known and is_constant(entry.value)
    }
    if all(_is_plainly_right(entry.value, known[key]) for key, entry in constants.items()):
        return
    if name not in validators:
        validators[name] = SchemaValidator({**schema, "required": []})
    values = {key: to_plain(entry.value) for key, entry in constants.items()}
    for error in validators[name].errors(values, limit=20):
        _report_mismatch(error, constants, owner, report)


def names_misspelt(
    schema: Mapping[str, JsonValue], given: Mapping[str, Entry]
) -> Mapping[str, str]:
    """Required parameters without an argument, each with the unknown name that was written for it:
    one mistake, which is reported where the name stands.
    """
    properties, required = schema.get("properties"), schema.get("required")
    known = tuple(properties) if isinstance(properties, Mapping) else ()
    needed = required if isinstance(required, list | tuple) else ()
    near = {key: nearest(key, known) for key in given if key not in known}
    return {
        name: key
        for key, name in near.items()
        if name is not None and name in needed and name not in given
    }


def is_constant(node: Node) -> bool:
    """Whether no text below `node` holds a template; broken templates were reported elsewhere."""
    return not has_templates(to_plain(node))


def _is_plainly_right(node: Node, schema: JsonValue) -> bool:
    """Whether the value obviously fits, without a validator: text where any text is allowed."""
    if not isinstance(schema, Mapping) or set(schema) - {"type", "description", "title", "default"}:
        return False
    return schema.get("type") == "string" and isinstance(to_plain(node), str)


def _unknown_parameter(
    entry: Entry, owner: str, known: tuple[str, ...], *, is_warning: bool = False
) -> Fault:
    return entry.key_node.place.fault(
        "unknown-key",
        f"{owner} does not know '{entry.key:.60}'",
        label=suggestion(entry.key, known),
        help=f"it knows: {', '.join(known) or 'none'}",
        is_warning=is_warning,
    )


def _leads_through(path: str, key: str) -> bool:
    """Whether a JSON path such as `$.key[0].a` starts with that key."""
    for first in (f"$.{key}", f"$['{key}']", f'$["{key}"]'):
        if path.startswith(first) and path[len(first) : len(first) + 1] in ("", ".", "["):
            return True
    return False


def _report_mismatch(
    error: str, constants: Mapping[str, Entry], owner: str, report: Report
) -> None:
    path, _, message = error.partition(": ")
    key = next((key for key in constants if _leads_through(path, key)), None)
    if key is None:
        return  # about the whole, such as too few properties: templates may add the rest
    report(
        constants[key].value.place.fault("wrong-type", f"'{key}' does not fit {owner}: {message}")
    )


# --- type checks across steps --------------------------------------------------------------------


_LIST: Final = Shape.of({"type": "array"})


def check_fitting(
    draft: RecipeDraft, sources: Sources, narrowings: Narrowings, report: Report
) -> None:
    """Report type mismatches that are certain from the schemas of both sides, and what may be
    null.
    """
    for step in draft.steps:
        if step.has_loop:
            _check_loop(step, sources, narrowings, report)
        spec = draft.find_tool(step.section.text("tool") or "")
        if step.kind == "tool" and spec is not None and step.templates:
            _Consumer(step, f"the tool '{spec.name}'", sources, narrowings, report).check(
                spec.parameters
            )


def _check_loop(step: StepDraft, sources: Sources, narrowings: Narrowings, report: Report) -> None:
    node = step.section.node("loop")
    use = next((use for use in step.outer_templates if use.node is node), None)
    if use is None:
        return
    shape = sources.shape_of(use)
    if (mismatch := shape.mismatch(_LIST)) is None:
        _check_null(use, shape, _LIST, "'loop' goes over a list", step, narrowings, report)
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
    narrowings: Narrowings
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
            if use is not None:
                taken = kind_names(wanted.kinds() or frozenset())
                why = f"'{path_text(path)}' of {self.owner} takes {taken}"
                _check_null(use, given, wanted, why, self.step, self.narrowings, self.report)
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


def _check_null(
    use: TemplateUse,
    given: Shape,
    wanted: Shape,
    why: str,
    step: StepDraft,
    narrowings: Narrowings,
    report: Report,
) -> None:
    """Warn of a value that may be null where null is not taken."""
    kinds, taken = given.kinds() or (), wanted.kinds()
    if use.term is None or "null" not in kinds or taken is None or "null" in taken:
        return
    if narrowings.is_solid(use.term, use, step, ()):
        return
    from minions.recipe.checks.narrowing import absence_of

    name = path_text(use.term.reference.path) if isinstance(use.term, Path) else "this"
    fault = absence_of(use.node.place, name, f"{_named(use)} may be null: {why}")
    narrowings.tell(step, name, fault, report)


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
