"""`plan:` steps: a task is planned, approved and carried out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.services import Services
from minions.interfaces.wiring.extensions import built_in_extensions
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

PLAN: Final[dict[str, JsonValue]] = {
    "name": "Shop",
    "steps": [
        {"id": "model", "type": "generate", "goal": "Write Item", "artifacts": ["shop/items.py"]},
        {
            "id": "use",
            "type": "generate",
            "goal": "Use Item",
            "dependencies": ["model"],
            "artifacts": ["shop/use.py"],
        },
    ],
}
FILES: Final = {
    "shop/items.py": "class Item:\n    name: str\n",
    "shop/use.py": "from shop.items import Item\n",
}


def text_of(prompt: Prompt) -> str:
    return "\n".join(message.content or "" for message in prompt.messages)


def worker(plan: JsonValue = None, files: Mapping[str, str] = FILES) -> Callable[[Prompt], Answer]:
    """Answers a planner with the plan, and a step with the files that it is to write."""

    def answer(prompt: Prompt) -> Answer:
        text = text_of(prompt)
        if "You plan work" in text:
            return json.dumps(plan if plan is not None else PLAN)
        wanted = text.rpartition("Write: ")[2].splitlines()[0]
        return "\n".join(f"{each}\n```\n{files[each]}```" for each in wanted.split(", "))

    return answer


class Work:
    """A plan step in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services: Services = deterministic_services()
        self.prompts: list[Prompt] = []

    def recipe(self, **keys: JsonValue) -> AgentRecipe:
        step: dict[str, JsonValue] = {
            "id": "work",
            "plan": "Write a shop",
            "workspace": str(self.folder),
            "approval": "none",
            **keys,
        }
        document: dict[str, JsonValue] = {
            "id": "do",
            "permissions": {"allow_write": True},
            "steps": [step],
        }
        return recipe_from_document(document, built_in_extensions().catalog())

    async def run(
        self, answer: Callable[[Prompt], Answer], **keys: JsonValue
    ) -> AgentResult[object]:
        def listened(prompt: Prompt) -> Answer:
            self.prompts.append(prompt)
            return answer(prompt)

        executor = AgentExecutor(
            ScriptedModel(listened), extensions=built_in_extensions(), services=self.services
        )
        return await executor.execute(self.recipe(**keys))

    def files(self) -> dict[str, str]:
        return {
            str(each.relative_to(self.folder)): each.read_text()
            for each in sorted(self.folder.rglob("*"))
            if each.is_file()
        }


@pytest.fixture
def work(tmp_path: Path) -> Work:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return Work(folder)


async def test_a_task_is_planned_and_the_plan_is_carried_out(work: Work) -> None:
    result = await work.run(worker())
    assert result.error is None
    assert result.status is RunStatus.COMPLETED
    assert work.files() == FILES
    assert result.output == {
        "plan": {"id": "Shop", **PLAN},
        "steps": [
            {
                "id": "model",
                "type": "generate",
                "status": "completed",
                "artifacts": ["shop/items.py"],
            },
            {"id": "use", "type": "generate", "status": "completed", "artifacts": ["shop/use.py"]},
        ],
        "replans": 0,
    }
    assert len(work.prompts) == 3
