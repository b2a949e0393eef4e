"""The OpenAPI document, and whether the server does what it says: A-88."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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

from asgi_client import Client, events_in
from minions.data.schema import SchemaValidator, check_schema
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
    "getHealth": ("GET /health", "", "", "200 Health", ""),
    "getReady": ("GET /ready", "", "", "200 Ready", ""),
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
    "runAgUi": (
        "POST /agents/{name}/ag-ui",
        "",
        "RunAgentInput",
        "200 events",
        "404 409 429",
    ),
    "startPlan": (
        "POST /plans",
        "idempotency-key",
        "PlanRequest",
        "202 RunAccepted",
        "404 409 429",
    ),
    "startRun": ("POST /runs", "idempotency-key", "RunRequest", "202 RunAccepted", "404 409 429"),
    "listRuns": (
        "GET /runs",
        "limit offset recipe status session user project text q",
        "",
        "200 Runs",
        "",
    ),
    "getRun": ("GET /runs/{run_id}", "cut parts", "", "200 RunView", "404 409"),
    "cancelRun": ("POST /runs/{run_id}/cancel", "", "", "202 CancelView", "404 409"),
    "followRun": ("GET /runs/{run_id}/events", "last-event-id after", "", "200 events", "404 409"),
    "listSessions": (
        "GET /sessions",
        "limit offset text project tree",
        "",
        "200 Sessions",
        "404 409",
    ),
    "createSession": ("POST /sessions", "", "NewSession", "201 SessionView", "404 409"),
    "getSession": ("GET /sessions/{session_id}", "", "", "200 SessionView", "404 409"),
    "forgetSession": ("DELETE /sessions/{session_id}", "", "", "204", "404 409"),
    "followSession": (
        "GET /sessions/{session_id}/events",
        "last-event-id after",
        "",
        "200 events",
        "404 409",
    ),
    "listSteps": (
        "GET /sessions/{session_id}/steps",
        "start_seq end_seq limit",
        "",
        "200 Steps",
        "404 409",
    ),
    "deleteSteps": (
        "DELETE /sessions/{session_id}/steps",
        "start_seq",
        "",
        "200 CutView",
        "404 409",
    ),
    "getStep": ("GET /sessions/{session_id}/steps/{sequence}", "", "", "200 StepView", "404 409"),
    "getContext": ("GET /sessions/{session_id}/context", "", "", "200 ContextView", "404 409"),
    "forkSession": (
        "POST /sessions/{session_id}/fork",
        "",
        "ForkRequest",
        "201 ForkView",
        "404 409",
    ),
    "resumeRun": ("POST /runs/{run_id}/resume", "", "", "202 RunAccepted", "404 409 429"),
    "retryRun": ("POST /runs/{run_id}/retry", "", "AgainRequest", "202 RunAccepted", "404 409 429"),
    "captureRun": (
        "POST /runs/{run_id}/capture",
        "",
        "CaptureRequest",
        "200 CaptureView",
        "404 409",
    ),
    "rollBackFiles": (
        "POST /runs/{run_id}/rollback",
        "",
        "RollbackRequest",
        "200 RollbackView",
        "404 409",
    ),
    "markOutput": ("POST /runs/{run_id}/marks", "", "MarkRequest", "201 MarkView", "404 409"),
    "listRunItems": (
        "GET /runs/{run_id}/items",
        "step status limit offset",
        "",
        "200 Items",
        "404 409",
    ),
    "searchRun": ("GET /runs/{run_id}/search", "text limit", "", "200 SearchHits", "404 409"),
    "getRunJournal": ("GET /runs/{run_id}/journal", "", "", "200", "404 409"),
    "exportRun": ("GET /runs/{run_id}/export.html", "", "", "200", "404 409"),
    "getRunValue": ("GET /runs/{run_id}/value", "at address", "", "200 ValueView", "404 409"),
    "getRunStep": ("GET /runs/{run_id}/steps", "cut address", "", "200 RunStepView", "404 409"),
    "drawRun": ("GET /runs/{run_id}/graph", "format", "", "200 object", "404 409"),
    "sendMessage": (
        "POST /sessions/{session_id}/messages",
        "",
        "MessageRequest",
        "200 events",
        "404 409 429",
    ),
    "retrySession": (
        "POST /sessions/{session_id}/retry",
        "",
        "RetryRequest",
        "200 events",
        "404 409 429",
    ),
    "resumeSession": ("POST /sessions/{session_id}/resume", "", "", "200 events", "404 409 429"),
    "listApprovals": (
        "GET /approvals",
        "limit offset project recipe kind",
        "",
        "200 Approvals",
        "",
    ),
    "decide": (
        "POST /approvals/{approval_id}",
        "",
        "DecisionRequest",
        "202 RunAccepted",
        "404 409 429",
    ),
    "decideRun": (
        "POST /runs/{run_id}/decisions",
        "",
        "RunDecisionRequest",
        "202 RunAccepted",
        "404 409 429",
    ),
    "listWorkers": ("GET /workers", "limit offset", "", "200 Workers", ""),
    "listQueues": ("GET /queues", "limit offset", "", "200 Queues", ""),
    "listQueuedRuns": ("GET /queues/runs", "limit offset", "", "200 QueuedRuns", ""),
    "listBatches": ("GET /batches", "limit offset", "", "200 Batches", ""),
    "listEvaluations": ("GET /evaluations", "limit offset", "", "200 Evaluations", ""),
    "getEvaluation": (
        "GET /evaluations/{evaluation_id}",
        "limit offset show",
        "",
        "200 EvaluationCases",
        "404",
    ),
    "getBatch": ("GET /batches/{batch_id}", "limit offset status", "", "200 BatchItems", "404"),
    "getCosts": ("GET /costs", "period by recipe project", "", "200 RunFigures", ""),
    "listProjects": ("GET /projects", "", "", "200 Projects", "404"),
    "listProjectRuns": (
        "GET /projects/runs",
        "id session recipe status user text limit offset after",
        "",
        "200 ProjectRuns",
        "404",
    ),
    "listProjectSessions": (
        "GET /projects/sessions",
        "user text limit offset",
        "",
        "200 ProjectSessions",
        "404",
    ),
    "listProjectApprovals": (
        "GET /projects/approvals",
        "recipe kind limit after",
        "",
        "200 ProjectApprovals",
        "404",
    ),
    "listDeployments": ("GET /deployments", "limit offset", "", "200 Deployments", ""),
    "listSchedules": ("GET /schedules", "limit offset", "", "200 Schedules", ""),
    "pauseSchedule": ("POST /schedules/{schedule}/pause", "", "", "200 ScheduleRow", "404 409"),
    "resumeSchedule": ("POST /schedules/{schedule}/resume", "", "", "200 ScheduleRow", "404 409"),
    "getSystem": ("GET /system", "", "", "200 SystemView", ""),
    "listModels": ("GET /v1/models", "", "", "200 ModelList", ""),
    "getModel": ("GET /v1/models/{model_id}", "", "", "200 ModelView", "404"),
    "getAgentCard": ("GET /.well-known/agent-card.json", "", "", "200 object", ""),
    "getRecipeCard": (
        "GET /a2a/{name}/.well-known/agent-card.json",
        "",
        "",
        "200 object",
        "404",
    ),
    "callA2a": ("POST /a2a", "a2a-version", "RpcRequest", "200 events", "429"),
    "callRecipeA2a": ("POST /a2a/{name}", "a2a-version", "RpcRequest", "200 events", "429"),
    "createChatCompletion": (
        "POST /v1/chat/completions",
        "idempotency-key x-minions-session",
        "ChatRequest",
        "200 events",
        "404 409 429",
    ),
    "createResponse": (
        "POST /v1/responses",
        "idempotency-key x-minions-session",
        "ResponseRequest",
        "200 events",
        "404 409 429",
    ),
}


def _said(where: str, operation: Any) -> tuple[str, ...]:  # Any: JSON of any form
    assert operation["summary"].endswith(".")
    for each in operation["parameters"]:
        assert each["required"] or each["in"] != "path"
        assert "null" not in str(each["schema"])
    names = [each["name"] for each in operation["parameters"] if each["in"] != "path"]
    assert set(re.findall(r"\{(\w+)\}", where)) == {
        each["name"] for each in operation["parameters"] if each["in"] == "path"
    }
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    given = [status for status in operation["responses"] if status < "300"]
    content = operation["responses"][given[0]].get("content", {})
    refused = [status for status in ("404", "409", "429") if status in operation["responses"]]
    has_own = " /v1/" in where or re.search(r" /a2a(/\{name\})?$", where)
    refusal = "application/json" if has_own else "application/problem+json"
    for status, response in operation["responses"].items():
        assert status in (*given, "204") or list(response["content"]) == [refusal]
    kind = "events" if "text/event-stream" in content else _name(content.get("application/json"))
    answer = f"{given[0]} {kind}".strip()
    path = where.replace("/api/v1", "")
    return path, " ".join(names), _name(body), answer, " ".join(refused)


def _name(content: Any) -> str:  # Any: likewise
    if not content:
        return ""
    return str(content["schema"].get("$ref", "/object")).rsplit("/", 1)[-1]


async def test_every_path_names_its_methods(client: Client) -> None:
    """OPTIONS gives them, and so does the refusal of any other."""
    paths = (await client.ask("GET", "/openapi.json")).json["paths"]
    for path, operations in paths.items():
        at = re.sub(r"\{\w+\}", "none", path)
        allowed = ", ".join(sorted(method.upper() for method in (*operations, "options")))
        reply = await client.ask("OPTIONS", at)
        assert (reply.status, reply.headers["allow"]) == (204, allowed), path
        refused = await client.ask("PATCH", at)
        assert (refused.status, refused.headers["allow"]) == (405, allowed), path
    assert (await client.ask("OPTIONS", "/api/v1/nowhere")).status == 404


async def test_operations_are_grouped_and_lead_to_those_that_follow(client: Client) -> None:
    document = (await client.ask("GET", "/openapi.json")).json
    operations = {
        operation["operationId"]: operation
        for paths in document["paths"].values()
        for operation in paths.values()
    }
    groups = {tag["name"] for tag in document["tags"]}
    assert {tag for each in operations.values() for tag in each["tags"]} == groups
    begun = operations["startRun"]["responses"]["202"]["links"]
    assert set(begun) >= {"getRun", "followRun", "cancelRun"}
    for operation in operations.values():
        for response in operation["responses"].values():
            for link in response.get("links", {}).values():
                names = {each["name"] for each in operations[link["operationId"]]["parameters"]}
                assert set(link["parameters"]) <= names


async def test_the_document_says_what_has_to_be_sent(client: Client) -> None:
    """Bodies that may not be empty, whole numbers as far as JSON has them, headers."""
    document = (await client.ask("GET", "/openapi.json")).json
    runs = document["paths"]["/api/v1/runs"]
    assert runs["post"]["requestBody"]["required"]
    assert not document["paths"]["/api/v1/runs/{run_id}/retry"]["post"]["requestBody"]["required"]
    schemas = document["components"]["schemas"]
    rules = _union(schemas, "RunRequest")
    for body, fits in (
        ({"recipe": "a"}, True),
        ({"recipe_text": "a"}, True),
        ({}, False),
        ({"recipe": "a", "recipe_text": "b"}, False),
    ):
        assert (not rules.errors(body)) is fits, body
    for name in ("DecisionRequest", "RunDecisionRequest"):
        decisions = _union(schemas, name)
        assert not decisions.errors({"decision": "approve", "digest": "d"})
        assert not decisions.errors({"decision": "answer", "value": 3})
        assert decisions.errors({"decision": "approve"})
        assert decisions.errors({"decision": "accept", "digest": "d"})
    offset = next(each for each in runs["get"]["parameters"] if each["name"] == "offset")
    most = offset["schema"]["maximum"]
    assert (await client.get(f"/runs?offset={most}")).status == 200
    over = await client.get(f"/runs?offset={most + 1}")
    assert (over.status, "maximum" in over.json["detail"]) == (400, True)
    key = next(each for each in runs["post"]["parameters"] if each["name"] == "idempotency-key")
    for text, fits in (("a key", True), ("", False), ("k" * 256, False), ("ä", False)):
        found = SchemaValidator(key["schema"]).errors(text)
        reply = await client.post("/runs", {"recipe": "asks"}, idempotency_key=text)
        assert ((not found), reply.status) == (fits, 202 if fits else 400), text


async def test_a_whole_number_may_be_written_with_a_point(client: Client) -> None:
    """1.0 is the integer 1, as JSON Schema has it."""
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    reply = await client.post(f"/sessions/{session}/fork", {"sequence": 1.0})
    assert (reply.status, reply.json["code"]) == (409, "empty-session")
    reply = await client.post(f"/sessions/{session}/fork", {"sequence": 1.5})
    assert (reply.status, reply.json["code"]) == (422, "bad-body")


async def test_every_event_of_a_stream_is_one_of_the_document(client: Client) -> None:
    document = (await client.ask("GET", "/openapi.json")).json
    schemas = document["components"]["schemas"]
    stream = document["paths"]["/api/v1/runs/{run_id}/events"]["get"]["responses"]
    assert set(stream) >= {"200", "204", "404", "409"}
    content = stream["200"]["content"]["text/event-stream"]["schema"]
    assert content["anyOf"][1] == {"$ref": "#/components/schemas/ServerSentEvent"}
    event = schemas["ServerSentEvent"]["properties"]["event"]
    assert set(event["enum"]) == set(schemas["RunEvent"]["discriminator"]["mapping"])
    for recipe in ("asks", "signs"):
        run_id = (await client.post("/runs", {"recipe": recipe})).json["run_id"]
        reply = await client.get(f"/runs/{run_id}/events")
        for event in events_in(reply.body.decode()):
            name = schemas["RunEvent"]["discriminator"]["mapping"][event.type].rpartition("/")[2]
            assert not SchemaValidator(_local(schemas[name])).errors(dict(event.data))


async def test_the_document_has_each_schema_as_its_own_operation_answers_it(client: Client) -> None:
    """A step of a run and a message of a session are told apart, and no form is left to `if`."""
    document = (await client.ask("GET", "/openapi.json")).json
    schemas = document["components"]["schemas"]
    run_id = (await client.post("/runs", {"recipe": "asks"})).json["run_id"]
    await client.get(f"/runs/{run_id}/events")
    step = (await client.get(f"/runs/{run_id}/steps?address=who")).json
    assert not SchemaValidator(_local(schemas["RunStepView"])).errors(step)
    assert '"if"' not in json.dumps(document)


async def test_every_operation_of_the_document_is_answered(client: Client) -> None:
    for said, *_ in SAYS.values():
        method, path = said.split(" ")
        root = "" if path.startswith(("/v1/", "/a2a", "/.well-known/")) else "/api/v1"
        reply = await client.ask(method, root + re.sub(r"\{\w+\}", "none", path))
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


def _union(schemas: Any, name: str) -> SchemaValidator:  # Any: JSON of any form
    variants = [each["$ref"].rpartition("/")[2] for each in schemas[name]["oneOf"]]
    return SchemaValidator({"oneOf": [_local(schemas[each]) for each in variants]})


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
        max_examples=5,
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


@pytest.mark.long
def test_a_generator_of_tests_finds_nothing_that_the_document_does_not_say(
    server: Serving, tmp_path: Path
) -> None:
    """A-88: all its checks, at the limits of each value and along the links of operations."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
        *(f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {server.token}"),
        *("-c", "all", "--phases", "coverage,stateful", "-n", "10", "--seed", "1", "--no-color"),
    ]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=5 * HANG_S
    )
    assert ran.returncode == 0, ran.stdout[-5_000:] + ran.stderr
    assert re.search(r"(\d+) generated, \1 passed", ran.stdout)


CONFIG = Path(__file__).with_name("schemathesis.toml")
"""What the document cannot say."""

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
        "schedule": "none",
        "batch_id": "none",
        "evaluation_id": "none",
        "run_id": run,
        "recipe_id": "adds",
        "name": "adds",
        "approval_id": approval,
        "sequence": "1",
        "model_id": "chat",
    }
