"""Ids have a length cap: they stand in every row, link and list."""

from __future__ import annotations

import pytest

from builders import deterministic_services
from minions.data.errors import RecipeError, UsageError
from minions.engine.history.recorder import acquire_lease
from minions.engine.sessions.archive import read_archive
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.recipe.recipe_files import slug_of

LONG = "x" * 201


@pytest.mark.parametrize(("session", "run"), [(LONG, "run"), ("session", LONG * 1_000)])
async def test_a_session_or_run_with_a_long_id_is_refused(session: str, run: str) -> None:
    with pytest.raises(UsageError, match="at most 200") as refused:
        await acquire_lease(deterministic_services(), session, run)
    assert refused.value.error_code == "bad-id"
    assert len(refused.value.message) < 200


async def test_an_id_at_the_cap_is_taken() -> None:
    assert (await acquire_lease(deterministic_services(), LONG[1:], LONG[1:])).epoch == 1


@pytest.mark.parametrize(
    "document",
    [
        {"id": LONG, "steps": [{"id": "a", "set": {}}]},
        {"id": "r", "steps": [{"id": LONG, "set": {}}]},
        {"id": "r", "steps": [{"id": "a", "set": {}, "save_as": LONG}]},
        {"id": "r", "inputs": {LONG: "string"}, "steps": [{"id": "a", "set": {}}]},
    ],
    ids=["recipe", "step", "save_as", "input"],
)
def test_a_recipe_with_a_long_id_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="cannot be 'xxx"):
        recipe_from_document(document, Catalog())  # type: ignore[arg-type]  # JSON


def test_the_id_of_a_long_name_is_cut() -> None:
    assert len(slug_of("Day Watch " * 100)) == 200 - 1


def test_a_session_file_with_a_long_id_is_refused() -> None:
    head = (
        '{"format": "minions-session", "version": 1, "session": "%s", '
        '"sessions": [{"id": "%s", "rows": 0}], "blobs": 0}\n'
    )
    with pytest.raises(UsageError, match="1 to 200 letters"):
        read_archive([(head % (LONG, LONG)).encode()])
