"""`code:` — Python for a sandbox."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from attrs import evolve, field, frozen

from minions.contracts.sandbox import CODE_LIMITS, SandboxLimits
from minions.data.json_values import JsonValue
from minions.recipe.drafts import StepDraft
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import (
    CACHE_KEY,
    TEXTS,
    Key,
    Table,
    choice_key,
    count_key,
    mapping_key,
    text_key,
)
from minions.recipe.text.nodes import MappingNode, ScalarNode
from minions.recipe.text.sections import Report, Section, read_section, suggestion

SANDBOXES: Final = ("monty", "process")
_KIB: Final = 1024


@frozen(kw_only=True)
class CodeSpec(StepSpec):
    """Python for a sandbox; its value is that of its last expression."""

    kind: ClassVar[str] = "code"
    calls_tools: ClassVar[bool] = True
    needs_sandbox: ClassVar[bool] = True

    code: str
    given: Mapping[str, JsonValue] = field(factory=dict)
    """The names that the code sees, with templates of their values (YAML key `with`)."""
    tools: tuple[str, ...] = ()
    """Full names of the tools that it may call, as functions of the module `tools`."""
    sandbox: str = SANDBOXES[0]
    """The name of the sandbox that runs it; no other one does in its place."""
    sandbox_limits: SandboxLimits = CODE_LIMITS

    @property
    def offered_tools(self) -> tuple[str, ...]:
        return self.tools

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.given,)

    @property
    def content(self) -> str:
        return self.code


SANDBOX = Table(
    "sandbox",
    (
        choice_key("name", "The sandbox.", SANDBOXES),
        Key(
            name="timeout_s",
            description="Wall time in seconds. Default: 5.",
            types=("number",),
            above=0,
        ),
        count_key("memory_mb", "Memory in MiB. Default: 100.", minimum=16),
        Key(
            name="cpus",
            description="CPU time as a share of `timeout_s`. Default: 0.5.",
            types=("number",),
            above=0,
        ),
        count_key("output_kb", "Most that it may print, in KiB. Default: 1024."),
    ),
)


SANDBOX_KEY = Key(
    name="sandbox",
    description="`monty` (the default): a small Python that reaches nothing. `process`: Python "
    "with its standard library, in a confined process. A mapping adds limits.",
    types=("string", "object"),
    shape={
        "anyOf": [{"type": "string", "enum": list(SANDBOXES)}, {"$ref": "#/$defs/sandbox"}],
    },
)


class _Code(StepKind):
    name = "code"
    spec = CodeSpec
    table = Table(
        "a code step",
        (
            text_key(
                "code",
                "Python for a sandbox. The value of its last expression is the output, as JSON.",
                is_required=True,
            ),
            mapping_key("with", "The only names that it sees; templates are rendered."),
            Key(
                name="tools",
                description="The tools that it may call, as functions of the module `tools`: "
                "names, or a toolset for all of its tools.",
                types=("array",),
                shape=TEXTS,
            ),
            SANDBOX_KEY,
            CACHE_KEY,
        ),
    )
    templates = ("with",)
    tables: ClassVar = {"sandbox": SANDBOX}
    look = Look(light="#15803d", dark="#4ade80", outline="#16a34a", brackets=("[[", "]]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Reports code that is not Python, names that no code can read, and a sandbox that does
        not exist.
        """
        section = step.section
        _check_code(section, reader.report)
        check_names(section, reader.report)
        read_sandbox(section, reader.report)

    def build(self, step: StepDraft, common: CommonKeys) -> CodeSpec:
        section = step.section
        name, limits = read_sandbox(section, ignore_fault)
        return CodeSpec(
            **common,
            code=section.text("code") or "",
            given=given_mapping(section, "with"),
            tools=step.tools,
            sandbox=name,
            sandbox_limits=limits,
        )

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        return step.tools


CODE = _Code()


TOOL_ERROR: Final = "ToolError"
"""What else the module `tools` has: the class of the errors of calls."""


def function_name(tool: str) -> str:
    """The name of a tool as a function of the module `tools`: `_` stands for what no name has, and
    follows one that Python, or the module, has for something else.
    """
    name = re.sub(r"\W", "_", tool, flags=re.ASCII)
    if name[:1].isdigit():
        return f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == TOOL_ERROR else name


def functions_read(code: str) -> Sequence[str]:
    """The names that code reads of the module `tools`, as far as they stand in it, each once, but
    for the class of errors; none of code that is not Python.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = [name for name in _names_of_module(tree) if name != TOOL_ERROR]
    return tuple(dict.fromkeys(names))


def _names_of_module(tree: ast.Module) -> Iterator[str]:
    modules = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for each in node.names
        if each.name == "tools"
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="tools", level=0):
                yield from (each.name for each in node.names if each.name != "*")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Load()) if (
                name in modules
            ):
                yield attribute


def ignore_fault(_: object) -> None:
    """Faults were reported when the step was read."""


def _check_code(section: Section, report: Report) -> None:
    code = section.text("code")
    if code is None:
        return
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = f" (line {error.lineno} of it)" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        fault = section.place_of("code").fault("bad-code", f"this is not Python: {said}{at}")
        report(fault)
        return
    if any(isinstance(statement, ast.Return) for statement in tree.body):
        message = "'return' stands outside of a function"
        help_ = "end with an expression: its value is the output"
        report(section.place_of("code").fault("bad-code", message, help=help_))
    if any(_is_in_double_braces(node) for node in ast.walk(tree)):
        message = "templates are not filled in here: the code is taken as it stands"
        help_ = 'give the value a name: with: {x: "{{ … }}"}'
        report(section.place_of("code").fault("bad-code", message, help=help_))


def _is_in_double_braces(node: ast.AST) -> bool:
    """Whether it is `{{ … }}`: to Python a set of a set, which cannot be."""
    return isinstance(node, ast.Set) and [type(each) for each in node.elts] == [ast.Set]


def check_names(section: Section, report: Report) -> None:
    """Report names under `with` that no code can read."""
    given = section.node("with")
    for entry in given.entries if isinstance(given, MappingNode) else ():
        if not entry.key.isidentifier() or keyword.iskeyword(entry.key):
            message = f"'{entry.key:.60}' is no name that Python code can read"
            help_ = "letters, digits and _, not beginning with a digit, and no keyword"
            report(entry.key_node.place.fault("bad-value", message, help=help_))


def read_sandbox(section: Section, report: Report) -> tuple[str, SandboxLimits]:
    """The sandbox that the step names, and its limits."""
    node = section.node("sandbox")
    if node is None:
        return SANDBOXES[0], CODE_LIMITS
    if isinstance(node, ScalarNode):
        name = str(node.value)
        if name not in SANDBOXES:
            report(
                node.place.fault(
                    "bad-value",
                    f"'sandbox' cannot be '{name:.60}'",
                    label=suggestion(name, SANDBOXES),
                    help=f"choices are: {', '.join(SANDBOXES)}",
                )
            )
        return name, CODE_LIMITS
    values = read_section(node, SANDBOX, report).values()
    return str(values.get("name", SANDBOXES[0])), _limits(values)


def _limits(values: Mapping[str, JsonValue]) -> SandboxLimits:
    limits = CODE_LIMITS
    match values.get("timeout_s"):
        case int() | float() as wall_s:
            limits = evolve(limits, wall_s=float(wall_s))
    match values.get("cpus"):
        case int() | float() as cpus:
            limits = evolve(limits, cpus=float(cpus))
    match values.get("memory_mb"):
        case int() as memory_mb:
            limits = evolve(limits, memory_bytes=memory_mb * _KIB * _KIB)
    match values.get("output_kb"):
        case int() as output_kb:
            limits = evolve(limits, output_bytes=output_kb * _KIB)
    return limits
