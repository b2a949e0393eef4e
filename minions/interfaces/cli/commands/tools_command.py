"""`minions tools`: what steps can call here, with types and effects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import click
from attrs import frozen

from minions.app.wiring.built_in_extensions import built_in_tools
from minions.contracts.tools import Effect, Reads, Toolset, ToolSpec
from minions.data.errors import NotFoundError, near_hint, near_names
from minions.data.json_values import JsonValue
from minions.data.schema_words import schema_words
from minions.data.texts import shown_text
from minions.interfaces.cli.console.console import hanging, json_text, say
from minions.interfaces.cli.options import ExtensionOptions, command_context, takes_options
from minions.recipe.catalog import Catalog

_OWN = "extensions"
_BUILT_IN = "built in"
"""What the tools are listed under that are in no toolset: the operator's, and ours."""
_OF_CALLER = "caller"
"""What those are listed under that are known with a request only."""
_EFFECTS: Mapping[Effect, str] = {
    Effect.PURE: "changes nothing",
    Effect.IDEMPOTENT: "writes, may be repeated",
    Effect.ONCE: "writes once",
    Effect.UNDECLARED: "effect not declared",
}
_READS: Mapping[Reads, str] = {
    Reads.UNTRUSTED: "results untrusted",
    Reads.PRIVATE: "results private",
}


@click.command("tools")
@click.argument("names", nargs=-1, metavar="[TOOLSET|TOOL]...")
@takes_options(ExtensionOptions)
def tools_command(options: ExtensionOptions, names: tuple[str, ...]) -> int:
    """List the tools that steps can call here, by toolset; with names these alone, with their
    parameters.

    A recipe requests a toolset by its name under `tools`, or one tool by its own. It uses no model,
    no tool and no network.
    """
    context = command_context(options)
    groups = list(_groups(context.catalog()))
    if names:
        groups = [_find(name, groups) for name in names]
    if context.settings.json:
        say(json_text([each.to_json() for each in groups]))
        return 0
    lines = itertools.chain.from_iterable(each.lines(is_whole=bool(names)) for each in groups)
    for line in lines:
        say(hanging(line))
    return 0


@frozen(kw_only=True)
class _ToolGroup:
    """Tools that are requested by one name."""

    name: str
    description: str
    tools: Sequence[ToolSpec]
    problem: str | None = None
    """Why its tools are not known; None: they are."""

    def lines(self, *, is_whole: bool) -> Iterator[str]:
        """The lines for a terminal.

        Args:
            is_whole: Whether parameters are described.
        """
        yield shown_text(f"{self.name}: {self.description}" if self.description else self.name)
        if self.problem is not None:
            yield f"  {shown_text(self.problem)}"
        for each in self.tools:
            what = [_EFFECTS[each.effect], *filter(None, [_READS.get(each.reads)])]
            yield shown_text(f"  {each.name}({_parameters(each)}): {'; '.join(what)}")
            if not is_whole:
                continue
            yield shown_text(f"      {each.description}")
            for name, schema in _properties(each).items():
                yield shown_text(f"      {name}: {_type_of(schema)}")

    def to_json(self) -> dict[str, JsonValue]:
        """The group as `--json` prints it."""
        return {
            "name": self.name,
            "description": self.description,
            "problem": self.problem,
            "tools": [
                {
                    "name": each.name,
                    "description": each.description,
                    "parameters": each.parameters,
                    "returns": each.returns,
                    "effect": each.effect.value,
                    "reads": each.reads.value,
                }
                for each in self.tools
            ],
        }


def _groups(catalog: Catalog) -> Iterator[_ToolGroup]:
    """All toolsets in the order of their names, then the tools that are in none."""
    for _, toolset in sorted(catalog.toolsets.items()):
        yield _group_of(toolset)
    ours = {tool.spec.name for tool in built_in_tools()}
    specs = sorted(catalog.tools.values(), key=lambda each: each.name)
    own = [each for each in specs if each.name not in ours]
    built_in = [each for each in specs if each.name in ours]
    if own:
        yield _ToolGroup(name=_OWN, description="Registered by themselves.", tools=own)
    yield _ToolGroup(name=_BUILT_IN, description="Every recipe has them.", tools=built_in)
    yield _ToolGroup(
        name=_OF_CALLER,
        description=(
            "What whoever asks over HTTP brings, for steps with `tools: {caller: true}`; `minions "
            "explain RECIPE` names these steps."
        ),
        tools=(),
    )


def _group_of(toolset: Toolset) -> _ToolGroup:
    return _ToolGroup(
        name=toolset.name,
        description=toolset.description,
        tools=toolset.specs_under(None),
        problem=toolset.unverified,
    )


def _find(name: str, groups: Sequence[_ToolGroup]) -> _ToolGroup:
    """The toolset of that name, or the one tool.

    Raises:
        NotFoundError: `unknown-tool`; there is neither.
    """
    for group in groups:
        if group.name == name:
            return group
        for tool in group.tools:
            if tool.name == name:
                return _ToolGroup(name=group.name, description=group.description, tools=(tool,))
    known = [name for each in groups for name in (each.name, *(tool.name for tool in each.tools))]
    near = near_names(name, known)
    raise NotFoundError(
        f"There is no toolset or tool '{shown_text(name)}' here.{near_hint(near)} `minions tools` "
        "lists them; tools of your own need --extensions FILE.py, those of MCP servers "
        "`minions mcp lock`.",
        code="unknown-tool",
        suggestions=near,
    )


def _properties(spec: ToolSpec) -> Mapping[str, JsonValue]:
    properties = spec.parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _parameters(spec: ToolSpec) -> str:
    """The names of its parameters; those that may be left out with a question mark."""
    required = spec.parameters.get("required")
    needed = required if isinstance(required, list | tuple) else ()
    return ", ".join(name if name in needed else f"{name}?" for name in _properties(spec))


def _type_of(schema: JsonValue) -> str:
    return schema_words(schema) if isinstance(schema, Mapping) else "any"
