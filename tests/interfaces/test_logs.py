"""The log of a process: which lines there are, what they say, and what they never say."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import LogFormat, Settings
from minions.app.wiring.logs import make_log
from minions.contracts.calls import ModelFailure
from minions.contracts.secrets import SecretRef
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import NullLog
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JSON: Final = Settings(log_format=LogFormat.JSON)
KEY: Final = "sk-abcdefghijklmnop1234"


class Lines:
    """Collects what is written."""

    def __init__(self, settings: Settings = JSON) -> None:
        self.texts: list[str] = []
        self.log = make_log(settings, self.texts.append, lambda: NOW)

    def only(self) -> dict[str, object]:
        (text,) = self.texts
        return cast("dict[str, object]", json.loads(text))

    def all(self) -> list[dict[str, object]]:
        return [json.loads(text) for text in self.texts]


def test_nothing_is_logged_unless_it_is_asked_for() -> None:
    assert isinstance(make_log(Settings(), print), NullLog)
    assert not isinstance(make_log(Settings(debug=True), print), NullLog)


def test_a_json_line_has_its_time_level_and_event_first() -> None:
    lines = Lines()
    lines.log.warning("price_unknown", model="p/m", tries=3)
    assert list(lines.only().items()) == [
        ("timestamp", "2026-01-02T03:04:05+00:00"),
        ("level", "warning"),
        ("event", "price_unknown"),
        ("model", "p/m"),
        ("tries", 3),
    ]


def test_a_text_line_quotes_only_what_has_blanks() -> None:
    lines = Lines(Settings(log_format=LogFormat.TEXT))
    lines.log.info("step_finished", step_id="a", reason="two words\nand a line")
    (text,) = lines.texts
    assert text == (
        "timestamp=2026-01-02T03:04:05+00:00 level=info event=step_finished step_id=a "
        'reason="two words\\nand a line"'
    )


class Rude:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


class Rough(Exception):
    """Its text cannot be shown either."""

    def __str__(self) -> str:
        raise RuntimeError


def circle() -> list[object]:
    here: list[object] = []
    here.append(here)
    return here


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        10**5_000,
        b"\xff",
        "\ud800 and \x00",
        "two\nlines\r\u2028",
        {1: 2, None: {b"k": {3, 4}}},
        Rude(),
        Rough(),
        ValueError("why"),
        circle(),
        object(),
        NOW,
        "x" * 100_000,
        LogFormat.JSON,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("log_format", list(LogFormat))
def test_whatever_a_fact_is_its_line_is_one_line(value: object, log_format: LogFormat) -> None:
    lines = Lines(Settings(log_format=log_format))
    lines.log.info("odd", value=value, event="mine", level=1, timestamp=2)
    (text,) = lines.texts
    assert text.isascii()
    assert "\n" not in text
    assert len(text) < 50_000
    if log_format is LogFormat.JSON:
        said = lines.only()
        assert (said["event"], said["event_"], said["level_"]) == ("odd", "mine", 1)


FACTS: Final = st.dictionaries(
    st.text(max_size=20),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    max_size=5,
)


@given(FACTS)
def test_every_line_is_json(facts: dict[str, object]) -> None:
    lines = Lines()
    lines.log.info("any", **facts)
    assert lines.only()["event"] == "any"


def nested(value: object) -> object:
    return {"a": [{"b": (value,)}]}


@pytest.mark.parametrize(
    "make",
    [
        lambda key: key,
        lambda key: nested(key),
        lambda key: {key: 1},
        lambda key: ValueError(f"refused {key}"),
        lambda key: f"Authorization: Bearer {key}",
        lambda key: [f"a {key} b"],
    ],
)
@pytest.mark.parametrize("log_format", list(LogFormat))
def test_what_looks_like_a_key_is_masked_at_any_depth_and_in_errors(
    make: Callable[[str], object], log_format: LogFormat
) -> None:
    lines = Lines(Settings(log_format=log_format))
    lines.log.warning("failed", fact=make(KEY))
    (text,) = lines.texts
    assert KEY not in text
    assert "[masked]" in text


@pytest.mark.parametrize(
    "name", ["api_key", "apiKey", "X-Api-Key", "password", "Authorization", "auth_token", "secret"]
)
def test_a_fact_with_the_name_of_a_secret_is_masked_whatever_it_is(name: str) -> None:
    lines = Lines()
    lines.log.info("made", headers={name: "plain words"}, total_tokens=5)
    assert "plain words" not in lines.texts[0]
    assert lines.only()["total_tokens"] == 5


RECIPE: Final = """
id: logged
inputs: {pin: {type: string, secret: true}}
retry: {jitter: false, initial_delay: 0}
steps:
  - {id: ask, goal: Ask.}
  - {id: each, goal: "Item {{ loop.item }}", loop: [a, b]}
  - {id: bound, set: {x: 1}}
"""


async def test_each_line_of_a_run_says_of_which_run_and_step_it_is() -> None:
    lines = Lines()
    refused = ModelFailure(code="rate-limited", message="slow", is_retryable=True)
    services = evolve(
        deterministic_services(), log=lines.log, secrets=lambda ref: f"value of {ref.name}"
    )
    executor = AgentExecutor(ScriptedModel([refused, "one", "two", "three"]), services=services)
    recipe = load_recipe_text(RECIPE, "logged.yaml", Catalog())
    await executor.execute(recipe, {"pin": SecretRef("env:PIN")})
    said = lines.all()
    assert {each["run_id"] for each in said} == {"run_1"}
    assert {each["session_id"] for each in said} == {"ses_1"}
    assert [(each["event"], each.get("step_id"), each.get("address")) for each in said] == [
        ("run_started", None, None),
        ("model_call_retried", "ask", None),
        ("step_finished", "ask", None),
        ("step_finished", "each", "each[0]"),
        ("step_finished", "each", "each[1]"),
        ("step_finished", "bound", None),
        ("run_finished", None, None),
    ]


async def test_secrets_of_a_run_do_not_come_into_its_log() -> None:
    lines = Lines()
    services = evolve(deterministic_services(), log=lines.log, secrets=lambda _: "the value of PIN")
    executor = AgentExecutor(ScriptedModel(["one", "two", "three"]), services=services)
    recipe = load_recipe_text(RECIPE, "logged.yaml", Catalog())
    run = executor.prepare(recipe, {"pin": SecretRef("env:PIN")})
    log = run.context.scope.log
    log.warning("told", words="it is the value of PIN", more={"deep": ["the value of PIN"]})
    assert "the value of PIN" not in lines.texts[0]
    assert "${secret:env:PIN}" in lines.texts[0]
