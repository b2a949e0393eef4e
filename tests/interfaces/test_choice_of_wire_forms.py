"""`api` of a provider decides in which form its models are asked, from the configuration on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.structured_output import InstructorParser
from minions.adapters.tools.function_tool import tool
from minions.app.settings.setting_sources import load_settings
from minions.app.settings.user_folders import FolderTrust
from minions.app.wiring.configured_models import Models
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.reading.load import load_recipe
from minions.testing.endpoint import ChatEndpoint
from strict_servers.anthropic import StrictAnthropic
from strict_servers.gemini import StrictGemini
from strict_servers.openai import StrictChat, StrictResponses
from strict_servers.server import KEY, Planned, StrictServer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
RECIPE = """
id: sort
steps:
  - id: look
    goal: What is it?
    images: [a.png]
    tools: [look]
    output: {kind: {type: string, enum: [a, b]}, size: {type: integer, minimum: 1}}
    model: {reasoning_effort: low, max_output_tokens: 20000}
"""
CONFIG = """
model = "lab/NAME"
[providers.lab]
base_url = "URL"
api_key_env = "LAB_KEY"
api = "API"
"""
NAMES = {
    "chat": "gpt-5",
    "responses": "gpt-5",
    "messages": "claude-sonnet-4-5",
    "gemini": "gemini-3-flash",
}


@tool
def look(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@pytest.mark.parametrize(
    "server",
    [StrictChat(), StrictResponses(), StrictAnthropic(), StrictGemini()],
    ids=lambda each: each.name,
)
async def test_a_step_with_all_that_a_model_can_do_completes_in_each_form(
    server: StrictServer, tmp_path: Path
) -> None:
    """A-134: an image, tools, thoughts and a bound output, with nothing but the configuration."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "sort.yaml").write_text(RECIPE, "utf-8")
    calls = Planned(calls=(("look", {"q": "a"}),), thought="Let me look.")
    final = Planned(text=json.dumps({"kind": "a", "size": 2}), thought="Now I know.")
    # Where tools and the schema go apart, the answer is asked for once more.
    behaviours = [server.answer(each) for each in (calls, final, final)]
    async with ChatEndpoint(*behaviours) as endpoint:
        words = {"NAME": NAMES[server.name], "API": server.name, "URL": endpoint.base_url}
        text = re.sub("NAME|API|URL", lambda found: words[found[0]], CONFIG)
        (tmp_path / "minions.toml").write_text(text, "utf-8")
        trust = FolderTrust(is_given=True)
        settings = load_settings({}, {}, folder=tmp_path, user_file=None, trust=trust).settings
        extensions = Extensions(tools=Toolbox([look]))
        models = Models(
            settings, extensions, environ={"LAB_KEY": KEY}, folder_of=lambda _: tmp_path
        )
        recipe = load_recipe(tmp_path / "sort.yaml", extensions.catalog())
        executor = AgentExecutor(
            models.source(recipe),
            extensions=extensions,
            services=evolve(deterministic_services(), parser=InstructorParser()),
        )
        result = await executor.execute(recipe, {})
        await models.aclose()
    assert result.output == {"kind": "a", "size": 2}, result.error
