"""The OpenAPI document, and whether the server does what it says: A-88."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import booleans
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from asgi_client import Client
from minions.contracts.schema import check_schema
from minions.interfaces.server.app import ENDPOINTS
from patience import HANG_S
from served import RECIPES
from serving import EXTENSIONS, Serving


async def test_every_route_is_in_the_document_and_the_other_way_round(client: Client) -> None:
    document = (await client.ask("GET", "/openapi.json")).json
    assert document["openapi"] == "3.1.0"
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert described == {(each.method, f"/api/v1{each.path}") for each in ENDPOINTS}
    names = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(names) == len(set(names))
    for method, path in described:
        reply = await client.ask(method, re.sub(r"\{\w+\}", "none", path))
        assert reply.status not in (405, 500, 501), (method, path)


async def test_every_schema_of_the_document_is_one_and_every_reference_leads_somewhere(
    client: Client,
) -> None:
    document = (await client.ask("GET", "/openapi.json")).json
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        check_schema(_local(schema))
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(schemas)


def _local(value: Any) -> Any:  # Any: JSON of any form
    if isinstance(value, dict):
        return {key: _local(each) for key, each in value.items() if key != "$ref"}
    return [_local(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """A process that is asked at random; with a session, a run and an approval in it."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "own.py").write_text(EXTENSIONS)
    for name, text in RECIPES.items():
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(tmp_path, "--extensions", "own.py", "--no-store", "--approve", "wait") as server:
        yield server


def test_whatever_is_asked_the_server_answers_as_the_document_says(server: Serving) -> None:
    """A-88: no error of the server's own, no status, type or body that is not described."""
    headers = {"Authorization": f"Bearer {server.token}"}
    document = server.ask("GET", "/openapi.json")
    known = _known_ids(server)
    schema = schemathesis.openapi.from_dict(document)
    bounded = settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for found in schema.get_all_operations():
        operation = found.ok()  # type: ignore[union-attr]  # a broken one raises here
        if operation.path.endswith("/sessions/{session_id}") and operation.method == "delete":
            continue  # of what is known, which the others need

        @given(case=operation.as_strategy(), is_known=booleans())
        @bounded
        def ask(case: Any, is_known: bool) -> None:  # Any, bool: hypothesis gives them
            for name in case.path_parameters or {}:
                if is_known and not (name == "session_id" and case.path.endswith("/events")):
                    case.path_parameters[name] = known[name]
            response = case.call(base_url=server.url, headers=headers, timeout=HANG_S)
            case.validate_response(response, checks=CHECKS)

        ask()
    assert server.ask("GET", "/health")["status"] == "ok"


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def _known_ids(server: Serving) -> dict[str, str]:
    """For the places of paths."""
    session = server.ask("POST", "/sessions", {"recipe": "chat"})["id"]
    run = server.ask("POST", "/agents/chat/run", {"message": "Hi", "session": session})["run_id"]
    waiting = server.ask("POST", "/runs", {"recipe": "signs"})["run_id"]
    for run_id in (run, waiting):
        with server.follow(f"/runs/{run_id}/events") as events:
            assert list(events)
    approval = server.ask("GET", "/approvals")["approvals"][0]["id"]
    return {
        "session_id": session,
        "run_id": run,
        "recipe_id": "adds",
        "name": "adds",
        "approval_id": approval,
        "sequence": "1",
    }
