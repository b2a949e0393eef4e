"""Streams of events: stored, then published; nothing is missed and nothing comes twice."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from returns.result import Result, Success

from asgi_client import Client, Event, events_in
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelDelta,
    ModelFailure,
    Prompt,
)
from minions.contracts.messages import assistant
from minions.contracts.run_events import ServerWait, StepDelta, StepDeltaEvent, StepEventType
from minions.contracts.runtime import SystemClock
from minions.interfaces.server.live.channels import HEARTBEAT
from patience import HANG_S
from served import Door, MakeApp, resume


async def events_of(client: Client, run_id: str, **headers: str) -> list[Event]:
    reply = await client.get(f"/runs/{run_id}/events", **headers)
    return list(events_in(reply.body.decode()))


async def test_a_stream_is_the_stored_events_in_order_and_ends_with_the_run(
    client: Client,
) -> None:
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}})
    run_id, session_id = reply.json["run_id"], reply.json["session_id"]
    stream = await client.get(f"/runs/{run_id}/events")
    assert stream.headers["content-type"] == "text/event-stream"
    events = list(events_in(stream.body.decode()))
    assert [event.type for event in events] == [
        "run_started",
        "step_finished",
        "run_completed",
    ]
    assert [event.id for event in events] == [event.data["position"] for event in events]
    assert {event.data["session_id"] for event in events} == {session_id}
    assert events[0].data["data"] == {"query": {"a": 2, "b": 1}}
    assert events[-1].data["data"]["response"] == 3
    assert stream.body.endswith(b"\n\n")
    assert {event.type for event in events} <= set(StepEventType)


async def test_a_stream_ends_with_its_run_although_something_comes_while_it_is_read(
    make_app: MakeApp,
) -> None:
    """A heartbeat, or what others stored and the journal was read for already."""
    app = make_app()
    client = Client(app)
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}})
    run_id, session_id = reply.json["run_id"], reply.json["session_id"]
    whole = await client.ended(run_id)
    assert whole["status"] == "completed"
    following = client.follow(f"/runs/{run_id}/events")
    async with asyncio.timeout(HANG_S), following as stream:
        app.app_state.channels.of(session_id).push(HEARTBEAT)
        types = [event.type async for event in stream.events()]
    assert types == ["run_started", "step_finished", "run_completed"]
    assert stream.comments == [": still here"]


async def test_whoever_comes_again_misses_nothing_and_sees_nothing_twice(
    make_app: MakeApp,
) -> None:
    """A-88: a reader may come again at any place, also between a call of a tool and its answer."""
    client = Client(make_app(answers=[tool_request("look", {"text": "there"}), "I looked."]))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    turn = await client.post(f"/sessions/{session}/messages", {"content": "Look!"})
    first = next(iter(events_in(turn.body.decode())))
    whole = await events_of(client, first.data["run_id"])
    assert [e.type for e in whole if e.type == "step_completed"] == ["step_completed"] * 3
    for index, event in enumerate(whole):
        for rest in (
            await events_of(client, first.data["run_id"], last_event_id=str(event.id)),
            list(
                events_in(
                    (
                        await client.get(f"/runs/{first.data['run_id']}/events?after={event.id}")
                    ).body.decode()
                )
            ),
        ):
            assert rest == whole[index + 1 :]


async def test_a_reader_catches_up_and_goes_on_live(client: Client, door: Door) -> None:
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    async with client.follow(f"/runs/{run_id}/events") as stream:
        events = stream.events()
        seen = [await anext(events) for _ in range(4)]
        door.opened.set()
        seen += [event async for event in events]
    assert [event.type for event in seen] == [
        "run_started",
        "step_finished",
        "step_started",
        "tool_started",
        "tool_finished",
        "step_finished",
        "run_completed",
    ]
    assert seen == await events_of(client, run_id)


async def test_a_session_is_followed_over_all_its_runs(client: Client, door: Door) -> None:
    first = (await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})).json
    await client.ended(first["run_id"])
    async with client.follow(f"/sessions/{first['session_id']}/events") as stream:
        events = stream.events()
        seen = [await anext(events) for _ in range(3)]
        body = {"recipe": "waits", "session": first["session_id"]}
        second = (await client.post("/runs", body)).json
        door.opened.set()
        seen += [await anext(events) for _ in range(7)]
    runs = [first["run_id"]] * 3 + [second["run_id"]] * 7
    assert [event.data["run_id"] for event in seen] == runs
    ids = [event.id for event in seen if event.id is not None]
    assert ids == sorted(set(ids))


async def test_runs_of_another_process_are_followed_through_the_journal(
    make_app: MakeApp, door: Door, tmp_path: Path
) -> None:
    here = Client(make_app(journal=tmp_path / "j.sqlite"))
    elsewhere = Client(make_app(journal=tmp_path / "j.sqlite"))
    reply = (await here.post("/runs", {"recipe": "waits"})).json
    await door.reached.wait()
    async with (
        elsewhere.follow(f"/runs/{reply['run_id']}/events") as stream,
        elsewhere.follow(f"/sessions/{reply['session_id']}/events") as of_session,
    ):
        events = stream.events()
        seen = [await anext(events) for _ in range(4)]
        door.opened.set()
        seen += [event async for event in events]
        told = of_session.events()
        assert [await anext(told) for _ in seen] == seen
        body = {"recipe": "adds", "inputs": {"a": 1}, "session": reply["session_id"]}
        await elsewhere.post("/runs", body)
        assert (await anext(told)).type == "run_started"
    assert seen == await events_of(here, reply["run_id"])


class Typing(ChatModel):
    """Says words one by one, when it is told to."""

    name = "typing/model"
    capabilities = ScriptedModel([]).capabilities

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        text = ""
        while (word := await self.words.get()) is not None:
            text += word
            if on_delta is not None:
                on_delta(ModelDelta(content=word))
        return Success(ModelCallResponse(message=assistant(text)))


async def chat_with(client: Client, words: str = "Hello") -> tuple[str, str]:
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    run = await client.post("/agents/chat/run", {"message": words, "session": session})
    return session, run.json["run_id"]


async def test_a_piece_of_an_answer_is_forwarded_at_once(make_app: MakeApp) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    _, run_id = await chat_with(client)
    async with client.follow(f"/runs/{run_id}/events") as stream:
        events = stream.events()
        while (await anext(events)).type != "step_started":
            pass
        for word in ("Good", " ", "day", "!"):
            model.words.put_nowait(word)
            event = await within_turns(100, anext(events))
            assert (event.type, event.id, event.data["delta"]) == (
                "step_delta",
                None,
                {"content": word},
            )
        model.words.put_nowait(None)
        rest = [event async for event in events]
    assert rest[0].type == "step_completed"
    assert rest[0].data["snapshot"]["content"] == "Good day!"


async def within_turns(many: int, event: Awaitable[Event]) -> Event:
    """It comes within so many turns of the event loop: nothing waits for a moment to pass."""
    coming = asyncio.ensure_future(event)
    for _ in range(many):
        await asyncio.sleep(0)
    assert coming.done()
    return await coming


async def test_a_run_goes_on_when_its_reader_leaves(make_app: MakeApp) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    path = f"/api/v1/sessions/{session}/messages"
    async with client.stream("POST", path, {"content": "Hello"}) as stream:
        started = await anext(stream.events())
    model.words.put_nowait("Here.")
    model.words.put_nowait(None)
    run = await client.ended(started.data["run_id"])
    assert (run["error"], run["output"]) == (None, "Here.")


async def test_a_reader_that_is_too_slow_is_cut_off_and_comes_again(make_app: MakeApp) -> None:
    model = Typing()
    app = make_app(model=model, queue_frames=8)
    client = Client(app)
    _, run_id = await chat_with(client)
    async with (
        client.follow(f"/runs/{run_id}/events") as slow,
        client.follow(f"/runs/{run_id}/events") as quick,
    ):
        events = quick.events()
        first, _ = [await anext(events) for _ in range(2)]
        slow_events = slow.events()
        last = [await anext(slow_events) for _ in range(2)][-1]
        slow.is_blocked.clear()
        for _ in range(20):
            model.words.put_nowait("word ")
            assert (await anext(events)).type == "step_delta"
        slow.is_blocked.set()
        rest = [event async for event in slow_events]
        assert slow.comments == [": too slow; come again with Last-Event-ID"]
        assert len(rest) < 20
        model.words.put_nowait(None)
        whole = [event async for event in events]
    again = await events_of(client, run_id, last_event_id=str(last.id))
    assert [event.type for event in again] == [event.type for event in whole if event.id]
    assert first.type == "run_started"


async def test_heartbeats_keep_a_silent_stream_alive(make_app: MakeApp, door: Door) -> None:
    client = Client(make_app(heartbeat_s=0.02))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    async with client.follow(f"/runs/{run_id}/events") as stream:
        chunks = stream.chunks()
        text = b""
        while text.count(b": still here\n\n") < 3:
            text += await anext(chunks)
        door.opened.set()


async def test_many_readers_cost_one_encoding(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    _, run_id = await chat_with(client)
    async with asyncio.TaskGroup() as group:
        ready, done = asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def read() -> None:
            async with client.follow(f"/runs/{run_id}/events") as stream:
                async for event in stream.events():
                    if event.type == "step_started":
                        ready.release()
                    elif event.type == "step_delta":
                        done.release()

        for _ in range(200):
            group.create_task(read())
        for _ in range(200):
            await ready.acquire()
        encoded: list[object] = []
        monkeypatch.setattr(
            "minions.interfaces.server.live.channels.event_to_json", _counted(encoded)
        )
        model.words.put_nowait("word")
        for _ in range(200):
            await done.acquire()
        assert len(encoded) == 1
        model.words.put_nowait(None)


def _counted(encoded: list[object]):  # type: ignore[no-untyped-def]  # stands for a function
    from minions.contracts.run_events import event_to_json

    def count(event: object) -> Mapping[str, object]:
        encoded.append(event)
        return event_to_json(event)  # type: ignore[arg-type]  # an event

    return count


async def test_a_place_that_is_none_is_refused(client: Client) -> None:
    run_id = (await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})).json["run_id"]
    for headers, query in (({"last_event_id": "x"}, ""), ({}, "?after=-1"), ({}, "?after=x")):
        reply = await client.get(f"/runs/{run_id}/events{query}", **headers)
        assert reply.status == 400
    assert (await client.get("/runs/run_none/events")).status == 404
    assert (await client.get("/sessions/ses_none/events")).status == 404


@pytest.mark.parametrize("seed", range(2))
async def test_readers_that_come_and_go_at_any_time_see_every_event_once(
    make_app: MakeApp, door: Door, recipes: Path, tmp_path: Path, seed: int
) -> None:
    (recipes / "many.yaml").write_text(
        "id: many\nsteps:\n  - {id: first, tool: gate}\n"
        f"  - {{id: each, depends_on: [first], loop: {list(range(40))}, max_parallel: 3, "
        "tool: look, params: {text: x}}\n"
    )
    chance = random.Random(seed)
    here = Client(make_app(journal=tmp_path / "j.sqlite", queue_frames=20 + 200 * (seed % 2)))
    elsewhere = Client(make_app(journal=tmp_path / "j.sqlite"))
    begun = (await here.post("/runs", {"recipe": "many"})).json
    run_id, session_id = begun["run_id"], begun["session_id"]

    async def read(client: Client, path: str) -> list[Event]:
        """Come again after a few events, until the run has ended."""
        seen: list[Event] = []
        while not seen or seen[-1].type != "run_completed":
            headers = {"last_event_id": str(seen[-1].id)} if seen else {}
            left = chance.randrange(1, 60)
            async with client.follow(path, **headers) as stream:
                async for event in stream.events():
                    seen.append(event)
                    left -= 1
                    if left == 0 or event.type == "run_completed":
                        break
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
        return seen

    readers = [
        asyncio.ensure_future(read(client, path))
        for client in (here, elsewhere)
        for path in (f"/runs/{run_id}/events", f"/sessions/{session_id}/events")
        for _ in range(5)
    ]
    await asyncio.sleep(0)
    door.opened.set()
    whole = await asyncio.gather(*readers)
    complete = await events_of(here, run_id)
    assert len(complete) > 100
    for seen in whole:
        assert seen == complete


async def test_a_place_that_is_not_there_yet_is_the_last_one(
    make_app: MakeApp, door: Door, tmp_path: Path
) -> None:
    here = Client(make_app(journal=tmp_path / "j.sqlite"))
    elsewhere = Client(make_app(journal=tmp_path / "j.sqlite"))
    run_id = (await here.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    path = f"/runs/{run_id}/events?after=99999"
    async with here.follow(path) as stream, elsewhere.follow(path) as other:
        door.opened.set()
        for each in (stream, other):
            events = [event.type async for event in each.events()]
            assert events == ["tool_finished", "step_finished", "run_completed"]


async def test_a_run_that_was_killed_is_followed_when_it_goes_on(
    make_app: MakeApp, door: Door, tmp_path: Path
) -> None:
    app = make_app(journal=tmp_path / "j.sqlite")
    run_id = (await Client(app).post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    await app.aclose()
    client = Client(make_app(journal=tmp_path / "j.sqlite"))
    before = await events_of(client, run_id)
    assert before[-1].data["status"] == "cancelled"
    door.opened.set()
    session = before[0].data["session_id"]
    await resume(client.app, run_id)
    rest = await events_of(client, run_id, last_event_id=str(before[-1].id))
    assert rest[0].type == "run_started"
    assert rest[-1].data["data"]["response"] == "through"
    journal = SqliteJournal(tmp_path / "j.sqlite", SystemClock())
    rows = await journal.entries(session)
    assert json.dumps([event.id for event in (*before, *rest)])
    assert rows[-1].position == rest[-1].id
    await journal.aclose()


async def test_a_burst_does_not_cut_off_who_takes_all_of_it(make_app: MakeApp) -> None:
    words = " ".join(str(number) for number in range(200))
    client = Client(make_app(answers=[words], queue_frames=8))
    session_id, run_id = await chat_with(client)
    events = await events_of(client, run_id)
    assert events[-1].type == "run_completed"
    assert events[-1].data["data"]["response"] == words
    assert "cost_usd" not in events[-1].data["data"]["metrics"]
    assert session_id


async def test_a_reader_that_has_all_of_a_finished_run_is_told_not_to_come_again(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """204 is the one answer after which an `EventSource` does not reconnect."""
    here = Client(make_app(journal=tmp_path / "j.sqlite"))
    elsewhere = Client(make_app(journal=tmp_path / "j.sqlite"))
    run_id = (await here.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})).json["run_id"]
    await here.ended(run_id)
    whole = await events_of(here, run_id)
    for client in (here, elsewhere):
        for last in (whole[-1].id, 9_007_199_254_740_991):
            for path, headers in (
                (f"/runs/{run_id}/events", {"last_event_id": str(last)}),
                (f"/runs/{run_id}/events?after={last}", {}),
            ):
                reply = await client.get(path, **headers)
                assert (reply.status, reply.body) == (204, b"")
                assert not {"content-type", "content-length"} & set(reply.headers)
        before = await client.get(f"/runs/{run_id}/events", last_event_id=str(whole[-2].id))
        assert list(events_in(before.body.decode())) == whole[-1:]
        assert await events_of(client, run_id) == whole


async def test_a_reader_that_has_all_of_a_waiting_run_gets_what_follows_the_decision(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """A-119: the stream ends with the waiting event; one that comes again waits for more."""
    here = Client(make_app(journal=tmp_path / "j.sqlite"))
    elsewhere = Client(make_app(journal=tmp_path / "j.sqlite"))
    run_id = (await here.post("/runs", {"recipe": "asks"})).json["run_id"]
    run = await here.ended(run_id)
    before = await events_of(here, run_id)
    assert before[-1].type == "run_waiting"
    headers = {"last_event_id": str(before[-1].id)}
    async with (
        here.follow(f"/runs/{run_id}/events", **headers) as stream,
        elsewhere.follow(f"/runs/{run_id}/events", **headers) as other,
    ):
        path = f"/approvals/{run['waiting'][0]['id']}"
        assert (await here.post(path, {"decision": "answer", "value": 7})).status == 202
        rest = [event async for event in stream.events()]
        assert [event async for event in other.events()] == rest
    assert (rest[0].type, rest[-1].type) == ("run_started", "run_completed")
    assert rest[-1].data["data"]["response"] == 7
    assert await events_of(here, run_id) == [*before, *rest]


async def test_whoever_comes_later_sees_what_waits_for_a_server(
    make_app: MakeApp, door: Door
) -> None:
    """A-156."""
    app = make_app()
    client = Client(app)
    reply = (await client.post("/runs", {"recipe": "waits"})).json
    run_id, session_id = str(reply["run_id"]), str(reply["session_id"])
    await door.reached.wait()
    channel, now = app.app_state.channels.of(session_id), datetime.now(UTC)
    channel.tell(
        ServerWait(
            run_id=run_id,
            session_id=session_id,
            timestamp=now,
            step_id="wait",
            model="x/y",
            server="http://x",
            until=now + timedelta(minutes=1),
        )
    )
    async with client.follow(f"/runs/{run_id}/events") as stream:
        async for event in stream.events():
            if event.type == "server_wait":
                assert event.data["server"] == "http://x"
                break
        else:
            pytest.fail("it did not come")
    went_on = StepDeltaEvent(
        run_id=run_id,
        session_id=session_id,
        timestamp=now,
        step_id="wait",
        delta=StepDelta(content="a"),
    )
    channel.tell(went_on)
    async with client.follow(f"/runs/{run_id}/events") as stream:
        events = stream.events()
        seen = [(await anext(events)).type]
        door.opened.set()
        seen += [event.type async for event in events]
    assert "server_wait" not in seen
