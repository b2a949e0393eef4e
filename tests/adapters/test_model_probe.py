"""What a probe finds out about servers, and what is kept of it: A-133."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve
from returns.pipeline import is_successful

from minions.adapters.models.model_probe import MOST_REQUESTS, ProbeOutcome, probe_model
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.profile_files import ProfileFiles
from minions.adapters.models.server_facts import ServerFacts, server_facts
from minions.contracts.calls import ModelCapabilities, ModelFailure
from minions.contracts.instructions import OutputMode
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.data.codec import decode
from minions.data.json_values import JsonValue
from minions.testing.endpoint import Behaviour, ChatEndpoint, Exchange, error_body, status
from minions.testing.server_behaviours import ServerHabits, model_server

BINDS, IGNORES = Support.BINDS, Support.IGNORES
REFUSES, FAILS = Support.REFUSES, Support.FAILS
NOW = datetime(2026, 11, 23, tzinfo=UTC)


async def probed(behaviour: Behaviour) -> ProbeOutcome | ModelFailure:
    """The profile of a server that behaves so, or the failure."""
    async with ChatEndpoint(default=behaviour) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        outcome = await probe_model(model, now=lambda: NOW)
        await model.aclose()
    return outcome.unwrap() if is_successful(outcome) else outcome.failure()


async def profile_of(habits: ServerHabits) -> ModelProfile:
    found = await probed(model_server(habits))
    assert isinstance(found, ProbeOutcome)
    assert found.requests <= MOST_REQUESTS
    return found.profile


@pytest.mark.parametrize("tools", [BINDS, REFUSES])
@pytest.mark.parametrize("schema", [BINDS, IGNORES, REFUSES, FAILS])
async def test_a_probe_tells_servers_of_each_profile_apart(schema: Support, tools: Support) -> None:
    """A-133."""
    profile = await profile_of(ServerHabits(schema=schema, tools=tools))
    assert (profile.support(Feature.JSON_SCHEMA), profile.support(Feature.TOOLS)) == (schema, tools)


HABITS: Mapping[Feature, tuple[str, tuple[Support, ...]]] = {
    Feature.STRICT: ("strict", (BINDS, REFUSES)),
    Feature.JSON_OBJECT: ("json_object", (BINDS, IGNORES, REFUSES)),
    Feature.FORCED_TOOL: ("forced_tool", (BINDS, IGNORES, REFUSES, FAILS)),
    Feature.NAMED_TOOL: ("named_tool", (BINDS, IGNORES, REFUSES)),
    Feature.TYPE_LISTS: ("type_lists", (BINDS, REFUSES)),
    Feature.SCHEMA_WITH_TOOLS: ("together", (BINDS, IGNORES, REFUSES)),
    Feature.SYSTEM_ROLE: ("system_role", (BINDS, REFUSES)),
}


@pytest.mark.parametrize(
    ("feature", "habit", "support"),
    [(feature, name, each) for feature, (name, many) in HABITS.items() for each in many],
)
async def test_a_probe_finds_each_habit(feature: Feature, habit: str, support: Support) -> None:
    """A-133."""
    habits = decode({habit: support.value}, ServerHabits)
    profile = await profile_of(habits)
    assert profile.support(feature) is support


async def test_a_server_with_every_habit_of_a_good_one_binds_everything() -> None:
    """A-133."""
    profile = await profile_of(ServerHabits())
    assert dict(profile.features) == dict.fromkeys(Feature, BINDS)
    assert profile.schema_depth == 10


async def test_levels_calls_and_usage_are_measured() -> None:
    """A-133."""
    habits = ServerHabits(most_levels=6, several_calls=False, has_usage=False)
    profile = await profile_of(habits)
    assert profile.schema_depth == 5
    assert profile.support(Feature.PARALLEL_CALLS) is IGNORES
    assert profile.support(Feature.STREAMED_USAGE) is IGNORES


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (status(401, error_body("no such key")), "auth-rejected"),
        (status(404, error_body("no such model")), "model-not-found"),
        (status(400, error_body("The model `m` does not exist")), "model-not-found"),
        (status(400, error_body("model 'm' not found, try pulling it")), "model-not-found"),
        (status(400, error_body("no")), "bad-request"),
        (status(400, error_body("for this model tools is not available")), "bad-request"),
        (status(503, error_body("loading")), "model-unavailable"),
    ],
)
async def test_a_server_that_does_not_answer_is_one_failure(
    behaviour: Behaviour, code: str
) -> None:
    """A-133."""
    found = await probed(behaviour)
    assert isinstance(found, ModelFailure)
    assert found.code == code


# --- what follows of it --------------------------------------------------------------------------


def profile(**features: Support) -> ModelProfile:
    return ModelProfile(
        base_url="http://127.0.0.1:1/v1",
        model="openai/m",
        measured_at=NOW,
        features={Feature(name): support for name, support in features.items()},
    )


@pytest.mark.parametrize(
    ("features", "modes"),
    [
        ({}, ["json_schema", "json", "tools", "md_json"]),
        ({"json_schema": BINDS}, ["json_schema", "json", "tools", "md_json"]),
        ({"json_schema": REFUSES, "json_object": BINDS}, ["json", "tools", "md_json"]),
        ({"json_schema": IGNORES, "forced_tool": BINDS}, ["tools", "json", "md_json"]),
        ({"json_schema": FAILS, "json_object": IGNORES, "tools": REFUSES}, ["md_json"]),
    ],
)
def test_what_binds_is_asked_for_first_and_what_does_not_never(
    features: Mapping[str, Support], modes: list[str]
) -> None:
    """A-133."""
    applied = profile(**features).applied(ModelCapabilities())
    assert [mode.value for mode in applied.modes] == modes


def test_what_the_operator_says_wins_over_what_was_measured() -> None:
    """A-133."""
    declared = ModelCapabilities(
        output_mode=OutputMode.JSON, is_mode_declared=True, context_tokens=100
    )
    measured = evolve(profile(json_schema=BINDS, json_object=REFUSES), context_tokens=5)
    applied = measured.applied(declared)
    assert (applied.output_mode, applied.context_tokens) == (OutputMode.JSON, 100)


# --- where it is kept ----------------------------------------------------------------------------


def model() -> OpenAIModel:
    return OpenAIModel("m", base_url="http://127.0.0.1:1/v1")


def test_a_kept_profile_is_found_by_the_next_process(tmp_path: Path) -> None:
    kept = profile(json_schema=BINDS)
    ProfileFiles(tmp_path / "new").keep(kept)
    assert ProfileFiles(tmp_path / "new").find(model()) == kept
    assert ProfileFiles(tmp_path / "new").profiles() == [kept]


def test_the_newest_profile_of_a_server_counts_whatever_its_version(tmp_path: Path) -> None:
    old = evolve(profile(json_schema=BINDS), server_version="1")
    new = evolve(
        profile(json_schema=REFUSES), server_version="2", measured_at=NOW + timedelta(days=1)
    )
    book = ProfileFiles(tmp_path)
    book.keep(new)
    book.keep(old)
    assert ProfileFiles(tmp_path).find(model()) == new


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"base_url": 1}', b"[" * 70_000])
def test_a_damaged_profile_harms_only_itself(tmp_path: Path, damage: bytes) -> None:
    book = ProfileFiles(tmp_path)
    book.keep(evolve(profile(), model="openai/other"))
    (other,) = tmp_path.iterdir()
    book.keep(profile())
    (mine,) = set(tmp_path.iterdir()) - {other}
    mine.write_bytes(damage)
    again = ProfileFiles(tmp_path)
    assert again.find(model()) is None
    assert [each.model for each in again.profiles()] == ["openai/other"]


def test_a_folder_that_cannot_be_written_loses_the_profile_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    book = ProfileFiles(tmp_path / "file" / "below")
    book.keep(profile())
    assert book.find(model()) == profile()
    assert book.profiles() == []


# --- what servers say of themselves --------------------------------------------------------------


async def test_version_and_context_are_read_where_servers_say_them() -> None:
    """A-133."""
    documents: Mapping[str, JsonValue] = {
        "/v1/models": {"data": [{"id": "other"}, {"id": "m", "meta": {"n_ctx": 4096}}]},
        "/props": {"build_info": "b4242", "default_generation_settings": {"n_ctx": 2048}},
    }

    async def behave(exchange: Exchange) -> None:
        found = documents.get(exchange.request.path)
        await exchange.send(json.dumps(found).encode(), status=404 if found is None else 200)

    async with ChatEndpoint(default=behave) as server:
        asked = OpenAIModel("m", base_url=server.base_url, api_key="key-of-the-server")
        facts = await server_facts(asked.base_url, "m", asked.open_get)
        await asked.aclose()
    assert facts == ServerFacts(version="b4242", context_tokens=2048)
    assert {each.method for each in server.requests} == {"GET"}
    assert all("authorization" in each.headers for each in server.requests)


def test_no_other_server_is_asked_with_the_key() -> None:
    with pytest.raises(ValueError, match="another server"):
        model().open_get("http://127.0.0.2:1/version")
