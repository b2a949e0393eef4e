"""pytest fixtures for applications: `run_recipe`, `crash_recipe`, `scripted_model`, `cassette`.

Heavy imports are made by the fixtures that need them.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pluggy import Result

    from minions.adapters.models.script_items import Answer
    from minions.adapters.models.scripted import ScriptedModel
    from minions.testing.cassettes import CassetteModels
    from minions.testing.recipe_runner import MakeScriptedModel, RecipeCrasher, RecipeRunner

__all__ = ["cassette", "crash_recipe", "run_recipe", "scripted_model"]

# Failures of the suites show values. Here, since a project's `conftest.py` may import them.
pytest.register_assert_rewrite("minions.testing.journal_suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--minions-record`."""
    group = parser.getgroup("minions")
    text = "Ask real models in tests with the fixture `cassette`, and record what they answer."
    group.addoption("--minions-record", action="store_true", help=text)


_HAS_PASSED: Final = pytest.StashKey[bool]()
"""Whether the function of a test has; absent: it was not called."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Result[pytest.TestReport], None]:
    """Keep for the fixture `cassette` whether its test has passed."""
    done = yield
    if call.when == "call":
        item.stash[_HAS_PASSED] = done.get_result().passed


@pytest.fixture
def scripted_model() -> MakeScriptedModel:
    """Makes a scripted model of its answers: `scripted_model("first", {"second": 2})`."""
    from minions.adapters.models.scripted import ScriptedModel

    def make(*answers: Answer) -> ScriptedModel:
        return ScriptedModel(answers)

    return make


@pytest.fixture
def run_recipe() -> RecipeRunner:
    """Runs a recipe with scripted answers, a clock that only sleeps move, and ids that count up."""
    from minions.testing.recipe_runner import RecipeRunner

    return RecipeRunner()


@pytest.fixture
def crash_recipe() -> RecipeCrasher:
    """Plays a recipe's run under kills and faults, and says what can happen twice or be lost."""
    from minions.testing.recipe_runner import RecipeCrasher

    return RecipeCrasher()


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[CassetteModels]:
    """Makes models that answer from the test's recording: `cassette("openai/gpt-5-mini")`.

    With `--minions-record` they are asked, and recorded; names are those of `minions.toml` and the
    environment, as for `minions run`. An older recording stays unless the test passes. A request
    that was not recorded fails the test at its end, whatever the test made of it; recorded calls
    that were not asked for are a warning.
    """
    from minions.testing.cassettes import CassetteModels, cassette_path

    name = request.node.nodeid.partition("::")[2].replace("::", ".")
    path = cassette_path(request.path, name)
    is_recording = request.config.getoption("--minions-record")
    models = CassetteModels(path, is_recording=is_recording, folder=request.path.parent)
    yield models
    has_passed = request.node.stash.get(_HAS_PASSED, False)
    models.close(has_passed=has_passed)
    if models.misses:
        pytest.fail(models.misses[0], pytrace=False)
    if has_passed and (unused := models.unused) is not None:
        warnings.warn(unused, stacklevel=1)
