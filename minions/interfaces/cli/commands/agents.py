"""`minions agents`: lists what can be run by name with a text, and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from attrs import frozen

from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.data.words import shell_word
from minions.interfaces.cli.commands.run import RunOptions, run_with
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    command_context,
    takes_options,
)
from minions.recipe.text_input import text_input

if TYPE_CHECKING:
    from minions.engine.compile.named_agents import NamedAgents
    from minions.recipe.model import AgentRecipe


@click.group("agents")
def command() -> None:
    """List the agents that can be run by name, and run one with a text."""


@frozen(kw_only=True)
class _Listed:
    """An agent, as far as it can be read."""

    name: str
    recipe: AgentRecipe | None
    """None: it has faults."""

    @property
    def takes(self) -> str | None:
        """The input that takes the text; None: it cannot be run with a text alone."""
        return text_input(self.recipe) if self.recipe is not None else None

    def to_json(self) -> dict[str, JsonValue]:
        recipe = self.recipe
        return {
            "name": self.name,
            "description": recipe.description if recipe is not None else "",
            "inputs": list(recipe.inputs) if recipe is not None else [],
            "text_input": self.takes,
            "is_readable": recipe is not None,
        }

    def words(self) -> str:
        """What it does, and what keeps it from being run with a text."""
        if self.recipe is None:
            return f"has faults: minions validate {shell_word(self.name)}"
        about = self.recipe.description.strip()
        if self.takes is not None:
            return about
        inputs = ", ".join(self.recipe.inputs) or "none"
        return f"{about} (takes no text; inputs: {inputs})".strip()


@command.command("list")
@takes_options(ExtensionOptions)
def list_(options: ExtensionOptions) -> int:
    """List the registered recipes and those under ./recipes, by name."""
    context = command_context(options)
    found = asyncio.run(_listed(context))
    if context.settings.json:
        say(json_text({"agents": [each.to_json() for each in found]}))
        return 0
    if not found:
        tell("There are no agents: no recipe is registered, and there is none under ./recipes.")
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        say(hanging(f"{each.name:<{width}}  {each.words()}".rstrip()))
    return 0


async def _listed(context: CommandContext) -> Sequence[_Listed]:
    async with context.runtime(is_stored=False) as runtime:
        agents = runtime.agents
        return [_read(name, agents) for name in sorted(agents.names())]


def _read(name: str, agents: NamedAgents) -> _Listed:
    try:
        return _Listed(name=name, recipe=agents.find(name))
    except MinionsError:
        return _Listed(name=name, recipe=None)


@command.command("run")
@click.argument("name")
@click.argument("text")
@takes_options(RunOptions)
def run(options: RunOptions, name: str, text: str) -> int:
    """Run the agent NAME with TEXT, and print its result: `minions run` with one input given.

    NAME is a registered recipe or the id of one under ./recipes. TEXT is the value of its one
    required input, or of its input requirements, task or message; @FILE and @- are read as with -p.
    """
    return run_with(name, text, options)
