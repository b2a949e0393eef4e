"""`-m local`: which weights a name means, who may name them, and what is told without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attrs import evolve

import minions
from command_line import Cli, Write
from local_engines import answer_of, fake_parts, gguf
from minions.adapters.models.local.engines import LocalEngines
from minions.adapters.models.local.local_model import LocalModel
from minions.app.settings.settings import LocalSettings, ProviderSettings, Settings
from minions.app.settings.user_folders import harmless_keys, user_cache_folder
from minions.app.wiring.configured_models import ModelChoice, Models, is_local
from minions.app.wiring.configured_prices import make_prices
from minions.app.wiring.local_models import LocalModels
from minions.contracts.calls import ChatModel
from minions.contracts.messages import TokenUsage
from minions.data.errors import EnvironmentRefusedError
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text
from minions.services import SystemClock

RECIPE = "id: r\nmodel: {model}\nsteps: [{{id: a, goal: Go, completion: text}}]\n"


def models_of(here: Path, settings: Settings | None = None, *how: str) -> Models:
    settings = settings or Settings()
    local = LocalModels(
        settings,
        folder_of=lambda _: here,
        find_package=lambda name: here / name if name == "xllamacpp" else None,
        engines=LocalEngines(fake_parts(*how)),
        processors=lambda: 3,
    )
    return Models(settings, Extensions(), environ={}, folder_of=lambda _: here, local=local)


def model_of(models: Models, here: Path, name: str, *, by: str = "flag") -> ChatModel:
    """The model of that name, chosen by a flag or written in a recipe in `here/recipes`."""
    own = "" if by == "flag" else f"model: {name}\n"
    text = f"id: r\n{own}steps: [{{id: a, goal: Go}}]\n"
    recipe = evolve(load_recipe_text(text, "r.yaml", Catalog()), directory=str(here / "recipes"))
    choice = ModelChoice(override=name if by == "flag" else None)
    return models.source(recipe, choice)(recipe.model)


def spec_shown(model: ChatModel) -> tuple[str, str | None]:
    assert isinstance(model, LocalModel)
    return model.name, model.base_url


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf())
    return path


# --- names ----------------------------------------------------------------------------------------


def test_a_file_is_named_as_on_the_command_line(here: Path, tmp_path: Path) -> None:
    """A-132."""
    models = models_of(here)
    for name, path in {
        "local/small.gguf": here / "small.gguf",
        f"local/{tmp_path}/a/small.gguf": tmp_path / "a/small.gguf",
        "local/~/small.gguf": Path("~/small.gguf").expanduser(),
        "local/../up.gguf": here.parent / "up.gguf",
    }.items():
        put(path)
        assert spec_shown(model_of(models, here, name)) == (name, path.resolve().as_uri())


def test_what_was_pulled_is_named_without_its_path(cli: Cli, here: Path) -> None:
    put(here / "Qwen3.gguf")
    assert cli("models", "pull", "Qwen3.gguf").code == 0
    path = user_cache_folder() / "models" / "qwen3" / "Qwen3.gguf"
    for by in ("flag", "recipe"):
        assert spec_shown(model_of(models_of(here), here, "local/qwen3", by=by)) == (
            "local/qwen3",
            path.as_uri(),
        )


def test_local_alone_is_the_model_that_comes_along(here: Path) -> None:
    with pytest.raises(EnvironmentRefusedError, match="weights of 'local/smollm2' are not here"):
        model_of(models_of(here), here, "local", by="recipe")


@pytest.mark.parametrize("name", ["ollama/local", "localhost/x.gguf", "locals", "x/local/a.gguf"])
def test_no_other_name_is_a_local_one(name: str) -> None:
    assert not is_local(name, Settings())


def test_a_provider_of_the_operators_with_that_name_wins(here: Path) -> None:
    settings = Settings(providers={"local": ProviderSettings(base_url="http://127.0.0.1:9/v1")})
    model = model_of(models_of(here, settings), here, "local/small.gguf")
    assert (type(model), model.base_url) == (minions.OpenAIModel, "http://127.0.0.1:9/v1")


async def test_context_slots_and_threads_are_those_of_the_settings(here: Path) -> None:
    put(here / "small.gguf")
    told = Settings(local=LocalSettings(context_tokens=600, max_concurrency=5, threads=7))
    keys = ("context_tokens", "slots", "threads")
    for settings, expected in ((Settings(), (4096, 2, 3)), (told, (600, 5, 7))):
        models = models_of(here, settings)
        model = model_of(models, here, "local/small.gguf")
        said = await answer_of(model)
        await models.aclose()
        assert tuple(said[key] for key in keys) == expected
        assert model.capabilities.context_tokens == expected[0]
        assert model.endpoint is not None
        assert model.endpoint.limits.max_concurrency == expected[1]


async def test_models_with_other_options_share_the_engine(here: Path) -> None:
    """A-132: of all steps and runs of a process."""
    put(here / "small.gguf")
    models = models_of(here)
    recipe = load_recipe_text(RECIPE.format(model="x/y"), "r.yaml", Catalog())
    source = models.source(recipe, ModelChoice(override="local/small.gguf"))
    said = [await answer_of(source(ModelConfig(max_output_tokens=n))) for n in (10, 20)]
    await models.aclose()
    assert said[0]["pid"] == said[1]["pid"]


def test_it_costs_nothing_and_a_limit_of_cost_takes_it(here: Path) -> None:
    put(here / "small.gguf")
    model = model_of(models_of(here), here, "local/small.gguf")
    prices, usage = make_prices(Settings()), TokenUsage(input_tokens=9, output_tokens=9)
    now = SystemClock().now()
    assert prices.cost_usd(model.name, usage, at=now, base_url=model.base_url) == 0
    assert prices.cost_usd("local", usage, at=now) == 0
    assert prices.cost_usd("local/x", usage, at=now, base_url="http://127.0.0.1:9/v1") is None
    assert prices.cost_usd("localhost/x", usage, at=now) is None


def test_a_run_survives_a_crash_of_its_engine(here: Path) -> None:
    """A-132."""
    put(here / "small.gguf")
    models = models_of(here)
    recipe = (
        "id: r\nretry: {initial_delay: 0}\n"
        f"steps: [{{id: a, goal: 'crash once {here}/mark', completion: text}}]\n"
    )
    model = model_of(models, here, "local/small.gguf")
    result = minions.run(recipe, model=model)
    asyncio.run(models.aclose())
    assert result.status.value == "completed", result.error
    assert result.usage.output_tokens == 2


# --- who may name them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["local/own.gguf", "local/../out.gguf", "local/{}/out.gguf", "local/~/out.gguf"]
)
def test_a_recipe_names_no_file_that_the_operator_did_not(
    cli: Cli, write: Write, here: Path, name: str
) -> None:
    """Native code reads weights: those of a stranger are like code."""
    name = name.format(here)
    put(here / "recipes" / "own.gguf")
    write("recipes/r.yaml", RECIPE.format(model=name))
    for command in ("validate", "run"):
        done = cli(command, "recipes/r.yaml")
        assert (done.code, "error[weights-refused]" in done.err + done.out) == (2, True), done
        assert "-m local/" in done.err + done.out


def test_a_recipe_names_files_in_the_folders_that_the_operator_lists(
    cli: Cli, write: Write, here: Path, tmp_path: Path
) -> None:
    write("minions.toml", '[local]\nfolders = ["weights"]\n')
    put(here / "weights" / "a.gguf")
    (here / "weights" / "link.gguf").symlink_to(put(tmp_path / "out.gguf"))
    write("recipes/r.yaml", RECIPE.format(model="local/../weights/a.gguf"))
    assert cli("validate", "recipes/r.yaml").code == 0
    write("recipes/r.yaml", RECIPE.format(model="local/../weights/link.gguf"))
    assert "weights-refused" in cli("validate", "recipes/r.yaml").err


def test_an_untrusted_file_names_no_weights_either() -> None:
    assert harmless_keys({"model": "local/x.gguf"}, {}) == set()
    assert harmless_keys({"model": "local"}, {}) == {"model"}
    assert harmless_keys({"local": {"folders": ["/"]}}, {}) == set()


# --- what is told ---------------------------------------------------------------------------------


def test_without_the_extra_the_two_commands_are_told(here: Path) -> None:
    """A-132."""
    models = LocalModels(Settings(), folder_of=lambda _: here, find_package=lambda _: None)
    with pytest.raises(EnvironmentRefusedError) as caught:
        models.make("local", here, lambda *_: pytest.fail("no server"))
    assert caught.value.error_code == "missing-extra"
    assert caught.value.message.endswith(
        "Type these two commands:\n  pip install 'minions-engine[local]'\n  minions models pull"
    )


def test_a_recipe_with_a_local_model_is_valid_where_there_is_none(cli: Cli, write: Write) -> None:
    write("r.yaml", RECIPE.format(model="{name: local, max_output_tokens: 10}"))
    assert cli("validate", "r.yaml").code == 0
    explained = cli("explain", "r.yaml").out
    assert "local: asked by a" in explained
    assert "cost: $0" in explained
    assert "unbounded" not in explained


def test_what_is_no_model_is_refused_before_the_run(here: Path) -> None:
    (here / "x.gguf").write_bytes(b"no model")
    with pytest.raises(minions.MinionsError, match="does not begin with the letters GGUF"):
        model_of(models_of(here), here, "local/x.gguf")


# --- minions models -------------------------------------------------------------------------------


def test_weights_are_pulled_listed_and_removed(cli: Cli, here: Path) -> None:
    put(here / "a.gguf")
    assert cli("models", "list").err.startswith("No weights are here. `minions models pull`")
    pulled = cli("models", "pull", "a.gguf", "--json").json
    assert {key: pulled[key] for key in ("model", "default", "licence", "source")} == {
        "model": "local/a",
        "default": False,
        "licence": "mit",
        "source": "pulled",
    }
    assert cli("models", "list", "--json").json == {"models": [pulled]}
    listed = cli("models", "list").out
    assert listed.split()[:3] == ["MODEL", "SIZE", "LICENCE"]
    assert all(str(pulled[key]) in listed for key in ("model", "path", "sha256", "licence"))
    assert cli("models", "rm", "local/a").out == "removed local/a, 0 MiB\n"
    gone = cli("models", "rm", "a")
    assert (gone.code, "error[missing-weights]" in gone.err) == (2, True)


def test_the_licence_and_what_was_begun_are_shown(cli: Cli, here: Path) -> None:
    put(here / "a.gguf")
    pulled = cli("models", "pull", "a.gguf", "--as", "mine")
    assert "local/mine: 0 MiB" in pulled.out
    assert "  licence: mit\n" in pulled.out
    (user_cache_folder() / "models" / f".begun-{'0' * 64}").write_bytes(b"GGUF")
    assert "Begun: 0 MiB of a download" in cli("models", "list").err


def test_an_address_without_a_hash_is_not_asked(cli: Cli) -> None:
    done = cli("models", "pull", "https://models.example/x.gguf")
    assert (done.code, "add --sha256 HASH" in done.err) == (2, True)


def test_what_is_neither_known_nor_a_file_is_not_pulled(cli: Cli) -> None:
    done = cli("models", "pull", "gpt-5")
    assert (done.code, "There is no file 'gpt-5'" in done.err) == (2, True)
