"""Which model answers which recipe, where one process serves many."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, Write
from minions.app.settings.settings import ProviderSettings, Settings
from minions.app.wiring.configured_models import ModelChoice, Models
from minions.contracts.instructions import OutputMode
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text


async def test_each_recipe_is_answered_by_its_own_offline_model(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("answers: [hello]\n", "utf-8")
    settings = Settings(offline_models={name: f"scripted/{name}.yaml" for name in ("one", "two")})
    models = Models(settings, Extensions(), environ={}, folder_of=lambda _: tmp_path)

    def name_of(recipe_id: str) -> str:
        text = f"id: {recipe_id}\nsteps: [{{id: a, goal: Go}}]\n"
        source = models.source(load_recipe_text(text, "r.yaml", Catalog()))
        return source(ModelConfig()).name

    assert [name_of(each) for each in ("one", "two", "one")] == [
        "scripted/one.yaml",
        "scripted/two.yaml",
        "scripted/one.yaml",
    ]
    await models.aclose()


@pytest.mark.parametrize("name", ["../../answers.yaml", "{}/answers.yaml", "link.yaml"])
def test_a_script_that_a_recipe_names_lies_in_its_project(
    cli: Cli, write: Write, here: Path, name: str
) -> None:
    """What is wrong with another file is not told; the person may name any with -m."""
    write("answers.yaml", "answers: [hi]\npassword: hunter2\n")
    write("project/minions.toml", "")
    (here / "project" / "recipes").mkdir()
    (here / "project" / "recipes" / "link.yaml").symlink_to(here / "answers.yaml")
    recipe = f"id: r\nmodel: scripted/{name.format(here)}\nsteps: [{{id: a, goal: x}}]\n"
    write("project/recipes/r.yaml", recipe)
    done = cli("run", "project/recipes/r.yaml", "--no-store")
    assert (done.code, "error[outside-project]" in done.err) == (2, True)
    assert "password" not in done.out + done.err
    own = cli("run", "project/recipes/r.yaml", "--no-store", "-m", "scripted/answers.yaml")
    assert "password" in own.err


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        pytest.param(ModelConfig(output_mode=OutputMode.TOOLS), OutputMode.TOOLS, id="of any"),
        pytest.param(ModelConfig(output_ladder=("tools",)), OutputMode.TOOLS, id="a ladder"),
        pytest.param(
            ModelConfig(name="openai/gpt-5", output_mode=OutputMode.TOOLS),
            OutputMode.JSON_SCHEMA,
            id="of another one",
        ),
        pytest.param(
            ModelConfig(name="mine/small", output_mode=OutputMode.TOOLS),
            OutputMode.TOOLS,
            id="of this one",
        ),
        pytest.param(ModelConfig(), OutputMode.JSON_SCHEMA, id="nothing"),
    ],
)
async def test_the_output_mode_of_a_recipe_holds_where_the_caller_names_the_model(
    tmp_path: Path, config: ModelConfig, mode: OutputMode
) -> None:
    """As its other options do: what is said of a named model is for that one."""
    provider = ProviderSettings(base_url="http://127.0.0.1:9/v1")
    settings = Settings(providers={"mine": provider})
    models = Models(settings, Extensions(), environ={}, folder_of=lambda _: tmp_path)
    recipe = load_recipe_text("id: r\nsteps: [{id: a, goal: Go}]\n", "r.yaml", Catalog())
    source = models.source(recipe, ModelChoice(override="mine/small"))
    found = source(config).capabilities
    assert found.output_mode is mode
    assert found.is_mode_declared is (mode is OutputMode.TOOLS)
    await models.aclose()
