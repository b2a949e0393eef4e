"""Sessions over HTTP: A-88."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from asgi_client import TOKEN, Client, Event, Reply, events_in
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import Settings
from minions.contracts.calls import Prompt
from minions.contracts.run_events import StepEventType
from minions.data.json_values import as_object
from minions.interfaces.server.app import api_document, create_app
from minions.interfaces.server.documents import shared_documents
from minions.interfaces.server.server_options import ServerOptions
from served import Door, MakeApp


def told(reply: Reply) -> list[Event]:
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    return list(events_in(reply.body.decode()))


def echoing(prompt: Prompt) -> str:
    """The answer tells how many messages it saw."""
    said = [message for message in prompt.messages if message.role == "user"]
    return f"{len(said)}: {said[-1].content}"


async def talking(client: Client, *contents: str) -> str:
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    for content in contents:
        reply = await client.post(f"/sessions/{session}/messages", {"content": content})
        assert told(reply)[-1].type == "run_completed"
    return str(session)


async def test_a_session_is_made_and_read(client: Client) -> None:
    """A-88: a session has what it was made with; an unknown one is not found."""
    made = await client.post("/sessions", {"recipe": "chat", "name": "Tea", "inputs": {}})
    assert made.status == 201
    assert made.headers["location"] == f"/api/v1/sessions/{made.json['id']}"
    assert (made.json["recipe"], made.json["name"]) == ("chat", "Tea")
    keys = {"id", "recipe", "name", "inputs", "created_at", "updated_at", "is_active", "project"}
    assert set(made.json) == keys
    one = (await client.get(f"/sessions/{made.json['id']}")).json
    assert one == {**made.json, "step_count": 0, "position": 1}
    listed = (await client.get("/sessions")).json
    assert (listed["total"], listed["sessions"]) == (1, [made.json])
    missing = await client.get("/sessions/ses_nobody")
    assert (missing.status, missing.json["code"]) == (404, "unknown-session")


async def test_lists_are_counted_a_little_beyond_what_they_show(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-127: of a million runs not all are counted for each page."""
    for _ in range(4):
        await client.post("/sessions", {"recipe": "chat"})
    monkeypatch.setattr(shared_documents, "_COUNTED_AT_ONCE", 3)
    found = [
        (await client.get(f"/sessions?limit={limit}&offset={offset}")).json
        for limit, offset in ((1, 0), (2, 1), (1, 3))
    ]
    assert [(each["total"], each["total_is_minimum"]) for each in found] == [
        (3, True),
        (4, False),
        (4, False),
    ]
    runs = (await client.get("/runs?limit=1")).json
    assert (runs["total"], runs["total_is_minimum"]) == (0, False)


async def test_inputs_of_a_session_are_checked_when_it_is_made(
    make_app: MakeApp, recipes: Path
) -> None:
    client = Client(make_app(settings=Settings(no_store=True, caller_secrets=("env:KEY",))))
    (recipes / "secret.yaml").write_text(
        "id: secret\ninputs:\n  message: {type: string}\n  key: {type: string, secret: true}\n"
        "steps:\n  - {id: a, goal: Answer., memory: conversation}\n"
    )
    unknown = await client.post("/sessions", {"recipe": "chat", "inputs": {"mesage": "x"}})
    assert (unknown.status, unknown.json["suggestions"]) == (422, ["message"])
    given = {"recipe": "secret", "inputs": {"key": "hunter2-hunter2"}}
    literal = await client.post("/sessions", given)
    assert (literal.status, literal.json["code"]) == (422, "literal-secret")
    assert "hunter2" not in literal.body.decode()
    assert (await client.get("/sessions")).json["total"] == 0
    reference = {"recipe": "secret", "inputs": {"key": "env:KEY"}}
    assert (await client.post("/sessions", reference)).status == 201
    assert (await client.post("/sessions", {"recipe": "none"})).status == 404


async def test_a_turn_streams_its_events_and_stores_its_steps(make_app: MakeApp) -> None:
    """A-88: the data of every frame is an event, of a documented type."""
    client = Client(make_app(answers=[tool_request("look", {"text": "it"}), "I looked."]))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    events = told(await client.post(f"/sessions/{session}/messages", {"content": "Look!"}))
    assert {event.type for event in events} <= set(StepEventType)
    assert (events[0].type, events[-1].type) == ("run_started", "run_completed")
    assert events[0].data["data"] == {"query": "Look!"}
    assert events[-1].data["data"]["response"] == "I looked."
    completed = [event.data["snapshot"] for event in events if event.type == "step_completed"]
    assert [step["sequence"] for step in completed] == [2, 3, 4]
    steps = (await client.get(f"/sessions/{session}/steps")).json
    assert (steps["total"], steps["session_id"]) == (4, session)
    assert [step["role"] for step in steps["steps"]] == ["user", "assistant", "tool", "assistant"]
    assert steps["steps"][1:] == completed
    assert {step["run_id"] for step in steps["steps"]} == {events[0].data["run_id"]}


async def test_steps_are_read_in_ranges(make_app: MakeApp) -> None:
    """A-88: both ends are included; one step; a step that is not there."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one", "two", "three")
    page = (await client.get(f"/sessions/{session}/steps?start_seq=2&end_seq=5&limit=3")).json
    assert [step["sequence"] for step in page["steps"]] == [2, 3, 4]
    assert page["total"] == 6
    one = (await client.get(f"/sessions/{session}/steps/3")).json
    assert (one["role"], one["content"]) == ("user", "two")
    for wrong in ("7", "0", "x", "-1", "²"):
        reply = await client.get(f"/sessions/{session}/steps/{wrong}")
        assert (reply.status, reply.json["code"]) == (404, "unknown-step")


async def test_a_context_is_what_a_model_reads(make_app: MakeApp) -> None:
    """A-88: messages in the provider's form, and a summary."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one", "two")
    context = (await client.get(f"/sessions/{session}/context")).json
    assert context["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1: one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2: two"},
    ]
    summary = context["summary"]
    assert (summary["total_steps"], summary["sequence_range"]) == (4, {"min": 1, "max": 4})


async def test_a_fork_begins_like_its_parent_and_goes_its_own_way(make_app: MakeApp) -> None:
    """A-88: fork."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one", "two")
    reply = await client.post(f"/sessions/{session}/fork", {"sequence": 2})
    fork = reply.json["new_session_id"]
    assert (reply.status, reply.json) == (
        201,
        {
            "new_session_id": fork,
            "original_session_id": session,
            "forked_at_sequence": 2,
            "copied_steps": 2,
        },
    )
    events = told(await client.post(f"/sessions/{fork}/messages", {"content": "other"}))
    assert events[-1].data["data"]["response"] == "2: other"
    assert (await client.get(f"/sessions/{session}")).json["step_count"] == 4
    one = (await client.get(f"/sessions/{fork}")).json
    assert (one["parent_session_id"], one["forked_at_sequence"]) == (session, 2)
    wrong = await client.post(f"/sessions/{session}/fork", {"sequence": 9})
    assert (wrong.status, wrong.json["code"]) == (422, "sequence-out-of-range")


async def test_the_words_of_a_filter_are_looked_for_in_all_sessions(client: Client) -> None:
    ids = []
    for name in ("Bern in June", "Bern in May", None):
        reply = await client.post("/sessions", {"recipe": "chat", "name": name})
        ids.append(reply.json["id"])
    for text, found in {
        "bern": ids[1::-1],
        "JUNE+in": ids[:1],
        ids[2]: ids[2:],
        "rome": [],
    }.items():
        page = (await client.get(f"/sessions?text={text}")).json
        assert [each["id"] for each in page["sessions"]] == found
        assert page["total"] == len(found)
    page = (await client.get("/sessions?text=bern&limit=1&offset=1")).json
    assert ([each["id"] for each in page["sessions"]], page["total"]) == (ids[:1], 2)


async def test_the_forks_of_a_session_are_listed_among_however_many_others(
    make_app: MakeApp,
) -> None:
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one")
    fork = (await client.post(f"/sessions/{session}/fork", {"sequence": 1})).json["new_session_id"]
    for _ in range(2):
        await client.post("/sessions", {"recipe": "chat"})
    for each in (session, fork):
        page = (await client.get(f"/sessions?tree={each}&limit=2")).json
        assert ([found["id"] for found in page["sessions"]], page["total"]) == ([session, fork], 2)
    assert (await client.get("/sessions?tree=ses_none")).status == 404


async def test_steps_are_taken_out_of_the_conversation(make_app: MakeApp) -> None:
    """A-88: delete."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one", "two")
    path = f"/api/v1/sessions/{session}/steps"
    reply = await client.ask("DELETE", f"{path}?start_seq=3")
    assert (reply.status, reply.json) == (
        200,
        {"deleted_count": 2, "session_id": session, "start_seq": 3},
    )
    assert (await client.get(f"/sessions/{session}/steps")).json["total"] == 2
    assert (await client.ask("DELETE", path)).status == 400
    assert (await client.ask("DELETE", f"{path}?start_seq=0")).status == 400


async def test_a_retry_takes_the_place_of_what_it_regenerates(make_app: MakeApp) -> None:
    """A-88: retry streams events; a sequence that is not there is refused, nothing is changed."""
    answers = iter(["first", "second", "better"])
    client = Client(make_app(answers=lambda _: next(answers)))
    session = await talking(client, "one", "two")
    events = told(await client.post(f"/sessions/{session}/retry", {"sequence": 4}))
    assert {event.type for event in events} <= set(StepEventType)
    steps = (await client.get(f"/sessions/{session}/steps")).json["steps"]
    assert [step["content"] for step in steps] == ["one", "first", "two", "better"]
    for sequence in (9, 1):
        refused = await client.post(f"/sessions/{session}/retry", {"sequence": sequence})
        assert refused.status == 422
    assert (await client.get(f"/sessions/{session}/steps")).json["steps"] == steps


async def test_a_resume_tells_an_answer_again_that_is_there(make_app: MakeApp) -> None:
    """A-88: resume streams one event, and nothing runs."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one")
    [event] = told(await client.post(f"/sessions/{session}/resume"))
    assert (event.type, event.data["data"]["response"]) == ("run_completed", "1: one")
    assert (await client.get("/runs")).json["total"] == 1


async def test_a_resume_regenerates_after_a_failure(make_app: MakeApp) -> None:
    """A-88: the question stayed; resume asks the model again."""
    answers = iter([RuntimeError("no"), "here"])
    client = Client(make_app(answers=lambda _: next(answers)))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    failed = told(await client.post(f"/sessions/{session}/messages", {"content": "Well?"}))
    assert failed[-1].type == "run_failed"
    assert set(failed[-1].data["data"]["error"]) >= {"code", "message"}
    events = told(await client.post(f"/sessions/{session}/resume"))
    assert events[-1].data["data"]["response"] == "here"
    contents = [
        s["content"] for s in (await client.get(f"/sessions/{session}/steps")).json["steps"]
    ]
    assert contents == ["Well?", "here"]


async def test_a_session_without_steps_has_nothing_to_resume(client: Client) -> None:
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    for path, body in (("resume", None), ("retry", {"sequence": 1})):
        reply = await client.post(f"/sessions/{session}/{path}", body)
        assert (reply.status, reply.json["code"]) == (409, "empty-session")


async def test_one_step_with_memory_is_enough_to_talk_with(
    make_app: MakeApp, recipes: Path
) -> None:
    """Its `message` need not be declared, and a run without it is possible as before."""
    (recipes / "short.yaml").write_text(
        "id: short\nsteps: [{id: answer, goal: Answer., memory: conversation}]\n", "utf-8"
    )
    client = Client(make_app(answers=["Good day.", "Still here.", "On my own."]))
    assert (await client.get("/recipes/short")).json["is_agent"]
    session = (await client.post("/sessions", {"recipe": "short"})).json["id"]
    for message in ("Hello", "And now?"):
        turn = await client.post(f"/sessions/{session}/messages", {"content": message})
        assert [*events_in(turn.body.decode())][-1].type == "run_completed"
    steps = (await client.get(f"/sessions/{session}/steps")).json["steps"]
    said = ["Hello", "Good day.", "And now?", "Still here."]
    assert [step["content"] for step in steps] == said
    alone = (await client.post("/runs", {"recipe": "short"})).json["run_id"]
    assert (await client.ended(alone))["output"] == "On my own."


async def test_one_cannot_talk_with_every_recipe(client: Client) -> None:
    before = (await client.get("/sessions")).json["total"]
    reply = await client.post("/sessions", {"recipe": "adds"})
    assert (reply.status, reply.json["code"]) == (422, "not-a-conversation")
    assert (await client.get("/sessions")).json["total"] == before


async def test_two_turns_at_a_time_are_refused(make_app: MakeApp) -> None:
    opened = asyncio.Event()

    async def slowly(_prompt: Prompt) -> str:
        await opened.wait()
        return "done"

    client = Client(make_app(model=ScriptedModel(slowly)))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    path = f"/sessions/{session}/messages"
    async with client.stream("POST", f"/api/v1{path}", {"content": "one"}) as first:
        reply = await client.post(path, {"content": "two"})
        assert (reply.status, reply.json["code"]) == (409, "lease-held")
        assert (await client.ask("DELETE", f"/api/v1/sessions/{session}")).status == 409
        opened.set()
        assert [event.type async for event in first.events()][-1] == "run_completed"


async def test_a_session_is_forgotten_with_all_its_runs(make_app: MakeApp) -> None:
    """A-88: delete of a session; those who follow it are sent away."""
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one")
    async with client.follow(f"/sessions/{session}/events?after=99") as stream:
        reply = await client.ask("DELETE", f"/api/v1/sessions/{session}")
        assert (reply.status, reply.body) == (204, b"")
        assert [event async for event in stream.events()] == []
    assert (await client.get(f"/sessions/{session}")).status == 404
    assert (await client.get("/runs")).json["total"] == 0


async def test_agents_are_recipes_by_what_they_take(make_app: MakeApp, door: Door) -> None:
    client = Client(make_app(answers=echoing))
    agents = {each["name"]: each for each in (await client.get("/agents")).json["agents"]}
    assert (agents["chat"]["is_chat"], agents["adds"]["is_chat"]) == (True, False)
    assert not agents["chat"]["takes_tools"]
    assert "broken" not in agents
    assert agents["adds"]["links"] == {"run": "/api/v1/agents/adds/run"}
    session = await talking(client, "one")
    body = {"message": "two", "session": session}
    run = (await client.post("/agents/chat/run", body, idempotency_key="a")).json
    assert (await client.ended(run["run_id"]))["output"] == "2: two"
    again = (await client.post("/agents/chat/run", body, idempotency_key="a")).json
    assert again["run_id"] == run["run_id"]
    added = (await client.post("/agents/adds/run", {"inputs": {"a": 4}})).json
    assert (await client.ended(added["run_id"]))["output"] == 5
    twice = {"message": "a", "inputs": {"message": "b"}}
    assert (await client.post("/agents/chat/run", twice)).status == 422


async def test_recipes_are_told_with_pictures_and_schemas(client: Client) -> None:
    listed = (await client.get("/recipes?limit=3")).json
    assert (listed["total"], len(listed["recipes"])) == (6, 3)
    rows = {row["id"]: row for row in (await client.get("/recipes")).json["recipes"]}
    assert (rows["broken"]["ok"], rows["broken"]["fault_count"]) == (False, 2)
    adds = (await client.get("/recipes/adds")).json
    assert [(each["name"], each["required"]) for each in adds["inputs"]] == [
        ("a", True),
        ("b", False),
    ]
    assert [(step["id"], step["kind"]) for step in adds["steps"]] == [("sum", "set")]
    for link in adds["links"].values():
        assert (await client.ask("GET", link)).status == 200
    schema = (await client.get("/recipes/adds/schema")).json
    assert (schema["required"], schema["properties"]["b"]) == (
        ["a"],
        {"type": "integer", "default": 1},
    )
    graph = (await client.get("/recipes/waits/graph")).json
    assert [node["id"] for node in graph["nodes"]] == ["first", "second"]
    svg = await client.get("/recipes/waits/graph?format=svg")
    assert (svg.headers["content-type"], svg.body[:4]) == ("image/svg+xml", b"<svg")
    assert (await client.get("/recipes/waits/graph?format=mermaid")).status == 200
    assert (await client.get("/recipes/none/graph")).status == 404
    assert (await client.get("/recipes/broken")).status == 422


async def test_a_recipe_that_changed_is_read_again(client: Client, recipes: Path) -> None:
    assert (await client.get("/recipes/adds")).json["version"] == "1"
    text = (recipes / "adds.yaml").read_text()
    (recipes / "adds.yaml").write_text(f"version: '2'\n{text}")
    assert (await client.get("/recipes/adds")).json["version"] == "2"


async def test_a_session_that_forks_read_from_stays(make_app: MakeApp) -> None:
    client = Client(make_app(answers=echoing))
    session = await talking(client, "one")
    shown = (await client.get(f"/sessions/{session}")).json
    assert (shown["is_active"], shown["position"] > 0) == (False, True)
    fork = (await client.post(f"/sessions/{session}/fork", {"sequence": 1})).json["new_session_id"]
    refused = await client.ask("DELETE", f"/api/v1/sessions/{session}")
    assert (refused.status, refused.json["code"]) == (409, "has-forks")
    assert len((await client.get(f"/sessions/{fork}/steps")).json["steps"]) == 1
    for each in (fork, session):
        assert (await client.ask("DELETE", f"/api/v1/sessions/{each}")).status == 204


async def test_a_turn_is_answered_by_a_model_that_the_operator_lists(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are refused before anything is stored: a model costs the operator's money."""
    monkeypatch.chdir(tmp_path)
    text = "id: talk\nsteps: [{id: a, goal: Answer., memory: conversation}]\n"
    (recipes / "talk.yaml").write_text(text, "utf-8")
    for name in ("own", "other"):
        (tmp_path / f"{name}.yaml").write_text(f"answers: [of {name}, of {name}]\n", "utf-8")
    app = create_app(
        ServerOptions(token=TOKEN),
        recipes=[recipes],
        settings=Settings(
            no_store=True, model="scripted/own.yaml", caller_models=("scripted/other.yaml",)
        ),
    )
    client = Client(app)
    assert (await client.get("/system")).json["models"] == ["scripted/other.yaml"]
    session = (await client.post("/sessions", {"recipe": "talk"})).json["id"]
    path = f"/sessions/{session}/messages"
    refused = await client.post(path, {"content": "Hello", "model": "openai/gpt-5"})
    assert (refused.status, refused.json["code"]) == (403, "model-refused")
    assert "scripted/other.yaml" in refused.json["detail"]
    assert (await client.get(f"/sessions/{session}/steps")).json["total"] == 0
    for model in (None, "scripted/other.yaml", None):
        assert (await client.post(path, {"content": "Hello", "model": model})).status == 200
    steps = (await client.get(f"/sessions/{session}/steps")).json["steps"]
    said = [step["content"] for step in steps if step["role"] == "assistant"]
    assert said == ["of own", "of other", "of own"]
    await app.aclose()


async def test_all_that_is_said_of_a_session_of_a_user_is_documented(client: Client) -> None:
    made = await client.post("/sessions", {"recipe": "chat", "user": "ann"})
    shown = (await client.get(f"/sessions/{made.json['id']}")).json
    assert shown["user"] == "ann"
    schemas = as_object(as_object(api_document()["components"])["schemas"])
    properties = as_object(as_object(schemas["SessionView"])["properties"])
    assert shown.keys() <= properties.keys()
