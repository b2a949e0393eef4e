"""Programs in a sandbox that call tools: facts, resumes, approvals, words of strangers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from attrs import evolve

from builders import FakeTool, deterministic_services, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.contracts.executions import AgentResult
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document


async def test_it() -> None:
    done: list[object] = []

    def add(arguments: Mapping[str, JsonValue]) -> object:
        done.append(arguments)
        return {"n": 3}

    tool = fake_tool("add", add, effect=Effect.ONCE)
    recipe = recipe_from_document(
        {
            "id": "r",
            "permissions": {"allow_write": True},
            "steps": [
                {
                    "id": "c",
                    "code": "import tools\nx = [tools.add(value=n)['n'] for n in range(3)]\nx",
                    "tools": ["add"],
                    "sandbox": "process",
                }
            ],
        },
        Catalog(tools={"add": tool.spec}),
    )
    services = deterministic_services()
    executor = AgentExecutor(
        ScriptedModel([]),
        extensions=Extensions(sandboxes={"process": ProcessSandbox()}, tools=Toolbox((tool,))),
        services=services,
    )
    result = await executor.execute(recipe)
    print(result.unwrap(), done)
    for e in await services.journal.entries(result.session_id):
        print(e.position, e.kind, e.key, e.state)
    assert 0
