"""The state of a run: one name wherever it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asgi_client import Client
from builders import draft_of
from minions.contracts.executions import RUN_STATES, RunState
from minions.data.json_values import JsonValue
from served import Door, MakeApp

NAMES = [state.value for state in RunState]


async def _states(client: Client, run_id: str, session_id: str) -> set[str]:
    """What is told of the run wherever a state is told."""
    (listed,) = (await client.get(f"/runs?session={session_id}")).json["runs"]
    return {
        (await client.get(f"/runs/{run_id}")).json["status"],
        listed["status"],
        (await client.get(f"/sessions/{session_id}")).json["status"],
        (await client.get("/sessions")).json["sessions"][0]["status"],
    }


async def _filtered(client: Client) -> dict[str, int]:
    """State to how many runs the list has with it, where it has some."""
    totals = {name: (await client.get(f"/runs?status={name}")).json["total"] for name in NAMES}
    return {name: total for name, total in totals.items() if total}


async def test_a_live_run_has_one_state_in_answers_filters_and_events(
    client: Client, door: Door
) -> None:
    """A-128: it is `running` until its end is recorded; then the end's own name is told."""
    begun = (await client.post("/runs", {"recipe": "waits"})).json
    run_id, session_id = begun["run_id"], begun["session_id"]
    await door.reached.wait()
    assert begun["status"] == "running"
    assert await _states(client, run_id, session_id) == {"running"}
    assert await _filtered(client) == {"running": 1}
    steps = (await client.get(f"/runs/{run_id}")).json["steps"]
    assert [step["status"] for step in steps] == ["completed", "running"]
    async with client.follow(f"/runs/{run_id}/events") as stream:
        events = stream.events()
        assert (await anext(events)).data["status"] == "running"
        door.opened.set()
        last = [event async for event in events][-1]
    assert last.data["status"] == "completed"
    await client.ended(run_id)
    assert await _states(client, run_id, session_id) == {"completed"}
    assert await _filtered(client) == {"completed": 1}


async def test_a_run_that_nobody_executes_is_interrupted_everywhere(make_app: MakeApp) -> None:
    """A-128: also where its process died before the end."""
    app = make_app()
    journal, client = app.app_state.journal, Client(app)
    body: dict[str, JsonValue] = {"recipe": "adds", "inputs": {}, "steps": {"sum": "x"}}
    lease = await journal.acquire("ses_1", "run_1", "w", ttl_s=60)
    await journal.append(lease, draft_of("run", "started", body, key="run"))
    assert await _states(client, "run_1", "ses_1") == {"running"}
    await journal.release(lease)
    assert await _states(client, "run_1", "ses_1") == {"interrupted"}
    assert await _filtered(client) == {"interrupted": 1}


async def test_a_state_that_there_is_not_is_refused_with_those_that_there_are(
    client: Client,
) -> None:
    reply = await client.get("/runs?status=unfinished")
    assert (reply.status, reply.json["code"]) == (400, "bad-query")
    assert reply.json["detail"] == (
        f"The query does not fit: $.status: 'unfinished' is not one of {NAMES}"
    )


async def test_the_document_lists_the_states_wherever_one_is_told(client: Client) -> None:
    """A-128: each with its meaning."""
    document = (await client.ask("GET", "/openapi.json")).json
    schemas = document["components"]["schemas"]
    told = [schemas[name]["properties"]["status"] for name in ("RunAccepted", "RunRow", "RunView")]
    told += [schemas["CancelView"]["properties"]["status"], _query(document)]
    told += [schemas[name]["properties"]["status"] for name in OF_RUNS]
    assert [each["enum"] for each in told] == [NAMES] * len(told)
    assert all(f"`{name}`: " in told[0]["description"] for name in NAMES)
    assert schemas["SessionView"]["properties"]["status"]["enum"] == NAMES


def _query(document: Any) -> Any:  # Any: JSON
    parameters = document["paths"]["/api/v1/runs"]["get"]["parameters"]
    return next(each["schema"] for each in parameters if each["name"] == "status")


OF_RUNS = ("RunStarted", "RunCompleted", "RunWaiting", "RunFailed")
"""The events that tell the state of the run."""


def test_the_page_about_the_api_explains_every_state() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
    rows = [f"| `{state.value}` | {means} |" for state, means in RUN_STATES.items()]
    assert "\n".join(rows) in text


async def test_the_prompts_of_a_run_are_told_by_section(make_app: MakeApp, recipes: Path) -> None:
    """A-110: they add up to the input tokens of the run."""
    (recipes / "asks.yaml").write_text("id: asks\nsteps: [{id: a, goal: Say hello}]\n", "utf-8")
    client = Client(make_app(answers=["hello"]))
    begun = (await client.post("/runs", {"recipe": "asks"})).json
    run = await client.ended(begun["run_id"])
    (prompt,) = run["prompts"]
    assert (prompt["step_id"], prompt["phase"]) == ("a", "model")
    assert prompt["sections"] == {"goal": run["usage"]["input_tokens"]}
