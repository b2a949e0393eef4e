"""What the pages about models and providers tell people to write leads to a model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from docs.markdown_blocks import Block, blocks_of
from minions.adapters.models.http_model import HttpModel
from minions.app.settings.setting_sources import load_settings
from minions.app.settings.settings import Settings
from minions.app.settings.user_folders import FolderTrust
from minions.app.wiring.configured_models import Models
from minions.contracts.model_endpoints import ModelApi
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text

TRUSTED = FolderTrust(is_given=True)

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "providers.md"
PAGES: Final = (DOCS / "models.md", PAGE)
BUILT_IN: Final = {
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
}
RECIPE: Final = "id: r\n{}steps: [{{id: a, goal: Go.}}]\n"


def _blocks(language: str) -> list[Block]:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    return [block for block in blocks if block.language == language]


def _line(block: Block) -> str:
    return f"line {block.line}"


def _settings(text: str, folder: Path) -> Settings:
    (folder / "minions.toml").write_text(text, "utf-8")
    return load_settings({}, {}, folder=folder, user_file=None, trust=TRUSTED).settings


def _environ(settings: Settings) -> Mapping[str, str]:
    """Everything that the page's blocks take from the environment."""
    keys = [each.api_key_env for each in settings.providers.values() if each.api_key_env]
    return dict.fromkeys(
        (*keys, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "LAB_TEAM"), "a-key"
    )


def _server_of(settings: Settings, environ: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """Name and base URL of the configured model."""
    models = Models(settings, Extensions(), environ=environ, folder_of=lambda _: folder)
    recipe = load_recipe_text(RECIPE.format(""), "r.yaml", Catalog())
    model = models.source(recipe)(ModelConfig())
    assert isinstance(model, HttpModel)
    return model.name, model.base_url


@pytest.mark.parametrize("block", _blocks("toml"), ids=_line)
def test_each_configuration_of_the_page_leads_to_its_model(block: Block, tmp_path: Path) -> None:
    settings = _settings(block.text, tmp_path)
    provider = str(settings.model).partition("/")[0]
    own = settings.providers.get(provider)
    url = (own.base_url if own else None) or BUILT_IN[provider]
    if provider == "gemini" and own is not None and own.api is ModelApi.CHAT:
        url += "/openai"
    assert _server_of(settings, _environ(settings), tmp_path) == (settings.model, url)


@pytest.mark.parametrize("block", _blocks("yaml"), ids=_line)
def test_each_model_of_a_recipe_on_the_page_is_taken(block: Block) -> None:
    recipe = load_recipe_text(RECIPE.format(block.text), "r.yaml", Catalog())
    assert recipe.model.context_tokens is not None


def test_the_variable_for_another_server_leads_there(tmp_path: Path) -> None:
    url = "https://gateway.example/v1"
    environ = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "a-key"}
    assert url in PAGE.read_text("utf-8")
    settings = _settings('model = "openai/gpt-5-mini"\n', tmp_path)
    assert _server_of(settings, environ, tmp_path) == ("openai/gpt-5-mini", url)


def test_each_model_of_the_table_is_configured_below_it() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    named = {line.split("`")[1] for line in lines if line.startswith("| [")}
    configured = {str(tomllib.loads(block.text)["model"]) for block in _blocks("toml")}
    assert configured == named | {"lab/some-model", "gateway/claude-sonnet-4-5"}
