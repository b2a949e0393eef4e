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
from patience import HANG_S
from served import RECIPES
from serving import EXTENSIONS, Serving


async def test_the_document_says_each_operation_with_what_it_takes_and_gives(
    client: Client,
) -> None:
    document = (await client.ask("GET", "/openapi.json")).json
    assert document["openapi"] == "3.1.0"
    assert document["security"] == [{"token": []}]
    found = {
        operation["operationId"]: _said(f"{method.upper()} {path}", operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert found == SAYS


# Method and path, what the address and the headers may hold, body, answer, refusals of its own.
SAYS = {
    "health": ("GET /health", "", "", "200 Health", ""),
    "listRecipes": ("GET /recipes", "limit offset", "", "200 Recipes", ""),
    "getRecipe": ("GET /recipes/{recipe_id}", "", "", "200 RecipeView", "404"),
    "drawRecipe": ("GET /recipes/{recipe_id}/graph", "format", "", "200 object", "404"),
    "getInputsSchema": ("GET /recipes/{recipe_id}/schema", "", "", "200 object", "404"),
    "listAgents": ("GET /agents", "limit offset", "", "200 Agents", ""),
    "runAgent": (
        "POST /agents/{name}/run",
        "idempotency-key",
        "TaskRequest",
        "202 RunAccepted",
        "404 409 429",
    ),
    "beginRun": ("POST /runs", "idempotency-key", "RunRequest", "202 RunAccepted", "404 409 429"),
    "listRuns": ("GET /runs", "limit offset recipe status session text", "", "200 Runs", ""),
    "getRun": ("GET /runs/{run_id}", "cut parts", "", "200 RunView", "404"),
    "cancelRun": ("POST /runs/{run_id}/cancel", "", "", "202 CancelView", "404 409"),
    "followRun": ("GET /runs/{run_id}/events", "last-event-id after", "", "200 events", "404"),
    "listSessions": ("GET /sessions", "limit offset text tree", "", "200 Sessions", "404"),
    "createSession": ("POST /sessions", "", "NewSession", "201 SessionView", "404 409"),
    "getSession": ("GET /sessions/{session_id}", "", "", "200 SessionView", "404"),
    "forgetSession": ("DELETE /sessions/{session_id}", "", "", "204", "404 409"),
    "followSession": (
        "GET /sessions/{session_id}/events",
        "last-event-id after",
        "",
        "200 events",
        "404",
    ),
    "listSteps": (
        "GET /sessions/{session_id}/steps",
        "start_seq end_seq limit",
        "",
        "200 Steps",
        "404",
    ),
    "deleteSteps": (
        "DELETE /sessions/{session_id}/steps",
        "start_seq",
        "",
        "200 CutView",
        "404 409",
    ),
    "getStep": ("GET /sessions/{session_id}/steps/{sequence}", "", "", "200 StepView", "404"),
    "getContext": ("GET /sessions/{session_id}/context", "", "", "200 ContextView", "404"),
    "forkSession": (
        "POST /sessions/{session_id}/fork",
        "",
        "ForkRequest",
        "201 ForkView",
        "404 409",
    ),
    "resumeRun": ("POST /runs/{run_id}/resume", "", "", "202 RunAccepted", "404 409 429"),
    "retryRun": ("POST /runs/{run_id}/retry", "", "AgainRequest", "202 RunAccepted", "404 409 429"),
    "listRunItems": (
        "GET /runs/{run_id}/items",
        "step status limit offset",
        "",
        "200 Items",
        "404",
    ),
    "searchRun": ("GET /runs/{run_id}/search", "text limit", "", "200 SearchHits", "404"),
    "getRunJournal": ("GET /runs/{run_id}/journal", "", "", "200", "404"),
    "exportRun": ("GET /runs/{run_id}/export.html", "", "", "200", "404"),
    "getRunValue": ("GET /runs/{run_id}/value", "at address", "", "200 ValueView", "404"),
    "getRunStep": ("GET /runs/{run_id}/steps", "cut address", "", "200 StepView", "404"),
    "drawRun": ("GET /runs/{run_id}/graph", "format", "", "200 object", "404"),
    "say": (
        "POST /sessions/{session_id}/messages",
        "",
        "MessageRequest",
        "200 events",
        "404 409 429",
    ),
    "retry": ("POST /sessions/{session_id}/retry", "", "RetryRequest", "200 events", "404 409 429"),
    "resume": ("POST /sessions/{session_id}/resume", "", "", "200 events", "404 409 429"),
    "listApprovals": ("GET /approvals", "limit offset", "", "200 Approvals", ""),
    "decide": (
        "POST /approvals/{approval_id}",
        "",
        "DecisionRequest",
        "202 RunAccepted",
        "404 409 429",
    ),
    "system": ("GET /system", "", "", "200 SystemView", ""),
}


def _said(where: str, operation: Any) -> tuple[str, ...]:  # Any: JSON of any form
    assert operation["summary"].endswith(".")
    for each in operation["parameters"]:
        assert each["required"] or each["in"] != "path"
        assert each["schema"].get("type") != "null"
    names = [each["name"] for each in operation["parameters"] if each["in"] != "path"]
    assert set(re.findall(r"\{(\w+)\}", where)) == {
        each["name"] for each in operation["parameters"] if each["in"] == "path"
    }
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    given = [status for status in operation["responses"] if status < "300"]
    content = operation["responses"][given[0]].get("content", {})
    refused = [status for status in ("404", "409", "429") if status in operation["responses"]]
    for status, response in operation["responses"].items():
        assert status in given or list(response["content"]) == ["application/problem+json"]
    kind = "events" if "text/event-stream" in content else _name(content.get("application/json"))
    answer = f"{given[0]} {kind}".strip()
    path = where.replace("/api/v1", "")
    return path, " ".join(names), _name(body), answer, " ".join(refused)


def _name(content: Any) -> str:  # Any: likewise
    if not content:
        return ""
    return str(content["schema"].get("$ref", "/object")).rsplit("/", 1)[-1]


async def test_every_operation_of_the_document_is_answered(client: Client) -> None:
    for said, *_ in SAYS.values():
        method, path = said.split(" ")
        reply = await client.ask(method, "/api/v1" + re.sub(r"\{\w+\}", "none", path))
        assert reply.status not in (405, 500, 501), said


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
