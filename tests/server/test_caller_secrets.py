"""Which references a caller over HTTP may use for which input."""

from __future__ import annotations

import pytest

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.server_runtime import CallerSecrets
from minions.recipe.model import AgentRecipe, InputSpec

LISTED = SecretRef("env:LISTED")


def recipe(**defaults: JsonValue) -> AgentRecipe:
    """With the secret inputs `token` and `other`, and a plain one."""
    inputs = {
        name: InputSpec(schema={"type": "string"}, default=defaults.get(name), is_secret=True)
        for name in ("token", "other")
    }
    return AgentRecipe(
        id="recipe", inputs={**inputs, "plain": InputSpec(schema={"type": "string"})}, steps=()
    )


def refused(
    made: AgentRecipe, given: dict[str, InputValue], *, is_stored: bool = True
) -> list[str]:
    """The inputs that are named."""
    try:
        CallerSecrets.of(["env:LISTED"]).check(made, given, is_stored=is_stored)
    except RefusedError as error:
        return [line.split("'")[1] for line in str(error).splitlines()]
    return []


def test_a_refusal_has_its_code_and_tells_nothing_of_what_is_there() -> None:
    with pytest.raises(RefusedError, match="env:OTHER is neither") as caught:
        CallerSecrets.of([]).check(recipe(), {"token": "env:OTHER"})
    assert (caught.value.status, caught.value.error_code) == (403, "secret-refused")


@pytest.mark.parametrize("source", ["env:OTHER", "file:/etc/passwd"])
def test_a_caller_chooses_only_among_what_the_operator_lists(source: str) -> None:
    for value in (source, SecretRef(source), SecretRef(source).marker):
        assert refused(recipe(), {"token": value}) == ["token"]
    for listed in ("env:LISTED", LISTED, LISTED.marker):
        assert refused(recipe(), {"token": listed}) == []


def test_every_input_that_is_refused_is_named() -> None:
    assert refused(recipe(), {"token": "env:A", "other": "env:B"}) == ["token", "other"]


def test_the_default_of_a_stored_recipe_is_the_operators_own_word() -> None:
    made = recipe(token="env:MINE")
    assert refused(made, {}) == []
    assert refused(made, {"token": "env:MINE"}) == []
    CallerSecrets.of([]).check(made, {})  # a recipe is the operator's unless it is said


def test_the_default_of_one_input_is_not_for_another() -> None:
    """It could be sent to a service that must not see it."""
    assert refused(recipe(token="env:MINE"), {"other": "env:MINE"}) == ["other"]


def test_the_defaults_of_a_recipe_that_the_caller_brings_are_the_callers_words() -> None:
    assert refused(recipe(token="env:MINE"), {}, is_stored=False) == ["token"]
    assert refused(recipe(token="env:LISTED"), {}, is_stored=False) == []


@pytest.mark.parametrize("value", ["no reference", 7, None])
def test_what_is_no_reference_is_refused_elsewhere(value: JsonValue) -> None:
    assert refused(recipe(), {"token": value}) == []


def test_what_is_no_secret_takes_any_text() -> None:
    assert refused(recipe(), {"plain": "env:OTHER"}) == []


def test_a_list_that_holds_no_reference_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="caller_secrets, or --allow-secret") as caught:
        CallerSecrets.of(["env:LISTED", "LISTED"])
    assert caught.value.error_code == "bad-configuration"
