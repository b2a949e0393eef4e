"""Which model answers which recipe, where one process serves many."""

from __future__ import annotations

from pathlib import Path

from minions.engine.extensions import Extensions
from minions.interfaces.settings import Settings
from minions.interfaces.wiring import Models
from minions.recipe.catalog import Catalog
from minions.recipe.load import load_recipe_text
from minions.recipe.model import ModelConfig


async def test_each_recipe_is_answered_by_its_own_offline_model(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("answers: [hello]\n", "utf-8")
    settings = Settings(offline_models={name: f"scripted/{name}.yaml" for name in ("one", "two")})
    models = Models(settings, Extensions(), environ={})

    def name_of(recipe_id: str) -> str:
        text = f"id: {recipe_id}\nsteps: [{{id: a, goal: Go}}]\n"
        source = models.source(load_recipe_text(text, "r.yaml", Catalog()), lambda _: tmp_path)
        return source(ModelConfig()).name

    assert [name_of(each) for each in ("one", "two", "one")] == [
        "scripted/one.yaml",
        "scripted/two.yaml",
        "scripted/one.yaml",
    ]
    await models.aclose()
