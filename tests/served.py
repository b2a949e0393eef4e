"""What tests of the server serve: recipes, and a door that a run waits at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from builders import FakeTool, fake_tool
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue
from minions.interfaces.server.app import App

MakeApp: TypeAlias = Callable[..., App]

RECIPES = {
    "adds": """
id: adds
description: Adds two numbers.
inputs:
  a: {type: integer, description: The first.}
  b: {type: integer, default: 1}
steps:
  - {id: sum, set: {total: "{{ inputs.a + inputs.b }}"}}
output: "{{ sum.total }}"
""",
    "waits": """
id: waits
steps:
  - {id: first, set: {n: 1}}
  - {id: second, tool: gate}
output: "{{ second }}"
""",
    "chat": """
id: chat
description: Talks.
inputs:
  message: {type: string}
steps:
  - id: answer
    goal: Answer the user.
    memory: conversation
    tools: [look]
""",
    "signs": """
id: signs
permissions: {allow_write: true, requires_approval: [sign]}
inputs: {text: {type: string, default: a treaty}}
steps:
  - {id: sign, tool: sign, params: {text: "{{ inputs.text }}"}}
output: "{{ sign }}"
""",
    "asks": """
id: asks
steps:
  - {id: who, ask: How many?, form: {type: integer, minimum: 1}}
output: "{{ who }}"
""",
    "broken": "id: broken\nsteps:\n  - {id: a, tol: x}\n",
}


class Door:
    """A run that calls its tool waits until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    def tool(self) -> FakeTool:
        """`gate`."""
        return fake_tool("gate", self._pass, effect=Effect.PURE)

    async def _pass(self, _arguments: Mapping[str, JsonValue]) -> str:
        self.reached.set()
        await self.opened.wait()
        return "through"


def echo(name: str, effect: Effect) -> FakeTool:
    """A tool that tells what it was given."""
    parameters: Mapping[str, JsonValue] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
    }
    return fake_tool(
        name, lambda given: f"{name}: {given.get('text')}", effect=effect, parameters=parameters
    )


async def resume(app: App, run_id: str) -> None:
    runtime = app.app_state.runtime
    recorded = await runtime.recorded(run_id)
    recipe = runtime.own_recipe(recorded)
    executor = runtime.executor(recipe, recorded.inputs, note=recorded.note)
    run = executor.prepare_resume(recorded, recipe=recipe)
    await app.app_state.run_manager.begin(run)
