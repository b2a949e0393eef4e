"""Hooks and webhooks are told of a run that waits, once: A-119."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import evolve, field, mutable

from asgi_client import Client, events_in
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.settings.settings import Settings
from minions.app.wiring.webhook import Webhook, signature, waiting_webhook
from minions.contracts.runtime import Clock, SystemClock
from minions.contracts.waiting import RunWait
from minions.data.errors import UsageError
from minions.engine.services.run_services import NullLog
from patience import HANG_S
from served import MakeApp

BOTH = """
id: both
steps:
  - {id: who, ask: How many?, form: {type: integer}}
  - {id: why, ask: Why?}
"""


@mutable
class Told:
    """A hook that keeps what it was told."""

    waits: list[RunWait] = field(factory=list)
    again: asyncio.Event = field(factory=asyncio.Event)

    async def __call__(self, wait: RunWait) -> None:
        self.waits.append(wait)
        self.again.set()

    async def count(self, most: int) -> int:
        """How many waits were told, once there are so many or nothing more is being told."""
        while len(self.waits) < most:
            self.again.clear()
            await asyncio.wait_for(self.again.wait(), HANG_S)
        return len(self.waits)


async def _rest(client: Client) -> None:
    """Until nothing more is being told."""
    await asyncio.wait_for(client.app.app_state.waiting_notices.told(), HANG_S)


async def test_a_wait_is_told_once_with_what_is_asked_and_where(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """A-119: also where a server starts again, and a resume decides nothing."""
    told, journal = Told(), tmp_path / "j.sqlite"
    client = Client(
        make_app(journal=journal, on_waiting=told, public_url="https://board.example/m/")
    )
    run = (await client.post("/runs", {"recipe": "asks"})).json
    view = await client.ended(run["run_id"])
    assert view["status"] == "needs_decision"
    assert await told.count(1) == 1
    (wait,) = told.waits
    assert (wait.run_id, wait.session_id, wait.recipe) == (
        run["run_id"],
        run["session_id"],
        "asks",
    )
    asked = {"step_id": "who", "what": "answer", "question": "How many?"}
    (decision,) = wait.decisions
    assert {**decision, **asked} == dict(decision)
    assert wait.address == f"https://board.example/m/#/runs/{run['run_id']}"
    await client.post(f"/runs/{run['run_id']}/resume")
    await client.ended(run["run_id"])
    await _rest(client)
    again = Client(make_app(journal=journal, on_waiting=told))
    await again.get("/health")
    await _rest(again)
    assert len(told.waits) == 1


async def test_a_decision_that_leaves_another_one_tells_nothing_and_a_new_one_is_told(
    make_app: MakeApp, recipes: Path
) -> None:
    """A-119: once for each wait."""
    told = Told()
    steps = "  - {id: last, ask: Sure?, depends_on: [who, why]}\n"
    (recipes / "both.yaml").write_text(BOTH + steps, "utf-8")
    client = Client(make_app(on_waiting=told))
    run_id = (await client.post("/runs", {"recipe": "both"})).json["run_id"]
    asked = []
    for value in (3, "because"):
        run = await client.ended(run_id)
        asked.append([each["question"] for each in run["waiting"]])
        path = f"/approvals/{run['waiting'][0]['id']}"
        assert (await client.post(path, {"decision": "answer", "value": value})).status == 202
    await client.ended(run_id)
    await told.count(2)
    await _rest(client)
    questions = [[each["question"] for each in wait.decisions] for wait in told.waits]
    assert [each for wait in questions for each in wait] == ["How many?", "Why?", "Sure?"]
    assert len({wait.id for wait in told.waits}) == len(told.waits)


async def test_a_wait_that_no_process_told_is_told_by_the_next_one(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """A-119: here the first server is gone while it tells."""
    journal, begun = tmp_path / "j.sqlite", asyncio.Event()

    async def hangs(_wait: RunWait) -> None:
        begun.set()
        await asyncio.Event().wait()

    app = make_app(journal=journal, on_waiting=hangs)
    client = Client(app)
    run_id = (await client.post("/runs", {"recipe": "asks"})).json["run_id"]
    run = await client.ended(run_id)
    assert run["status"] == "needs_decision"  # it did not wait for the hook
    await begun.wait()
    await app.aclose()
    told = Told()
    second = Client(make_app(journal=journal, on_waiting=told))
    assert (await second.get("/health")).status == 200
    await told.count(1)
    assert [wait.run_id for wait in told.waits] == [run_id]


async def test_a_hook_that_fails_harms_no_run(make_app: MakeApp) -> None:
    """A-119."""

    def fails(_wait: RunWait) -> None:
        raise RuntimeError("the hook is broken")

    client = Client(make_app(on_waiting=fails))
    run_id = (await client.post("/runs", {"recipe": "asks"})).json["run_id"]
    run = await client.ended(run_id)
    path = f"/approvals/{run['waiting'][0]['id']}"
    assert (await client.post(path, {"decision": "answer", "value": 1})).status == 202
    assert (await client.ended(run_id))["output"] == 1


async def test_the_stream_of_a_waiting_run_ends_and_the_decision_is_streamed(
    make_app: MakeApp,
) -> None:
    """A-119: over HTTP; in Python it is `test_application`, on the page `test_page`."""
    client = Client(make_app())
    run_id = (await client.post("/runs", {"recipe": "signs"})).json["run_id"]
    before = list(events_in((await client.get(f"/runs/{run_id}/events")).body.decode()))
    assert before[-1].type == "run_waiting"
    assert "run_failed" not in {event.type for event in before}
    (waiting,) = (await client.get(f"/runs/{run_id}")).json["waiting"]
    body = {"decision": "approve", "digest": waiting["digest"]}
    accepted = (await client.post(f"/approvals/{waiting['id']}", body)).json
    address = f"{accepted['links']['events']}?after={before[-1].id}"
    rest = list(events_in((await client.ask("GET", address)).body.decode()))
    assert [event.type for event in rest] == [
        "run_started",
        "tool_started",
        "tool_finished",
        "step_finished",
        "run_completed",
    ]


# --- the webhook ------------------------------------------------------------------------------


WAIT = RunWait(
    id="wait_1",
    run_id="run_1",
    session_id="ses_1",
    recipe="asks",
    since=SystemClock().now(),
    decisions=({"key": "k", "step_id": "who", "what": "answer", "question": "How many?"},),
    address="http://127.0.0.1:8642/#/runs/run_1",
)


@mutable
class Receiver:
    """A server that takes posts, and answers with the given statuses in turn."""

    statuses: list[int]
    posts: list[tuple[Mapping[str, str], bytes]] = field(factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.splitlines()[1:] if line]
        headers = {name.lower(): text for name, text in lines}
        self.posts.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status = self.statuses.pop(0) if self.statuses else 204
        location = "Location: /other\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{location}Content-Length: 0\r\n\r\n".encode())
        writer.close()


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    made = Receiver(list(statuses))
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/waiting"
    async with server:
        yield made


@mutable
class Lines(NullLog):
    """A log that keeps its events."""

    events: list[str] = field(factory=list)

    def info(self, event: str, /, **_facts: object) -> None:
        self.events.append(event)

    def warning(self, event: str, /, **_facts: object) -> None:
        self.events.append(event)


def webhook(url: str, log: Lines, slept: list[float], clock: Clock | None = None) -> Webhook:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return Webhook(
        url=url, secret="whsec_c2VjcmV0", clock=clock or SystemClock(), sleep=sleep, log=log
    )


async def test_a_webhook_gets_one_signed_document(make_app: MakeApp) -> None:
    """A-119: signed as Standard Webhooks says, so that any of its libraries can check it."""
    async with receiver() as got:
        settings = Settings(no_store=True, on_waiting_url=got.url)
        client = Client(make_app(settings=settings, public_url="http://localhost/"))
        run_id = (await client.post("/runs", {"recipe": "asks"})).json["run_id"]
        await client.ended(run_id)
        await _rest(client)
        log = Lines()
        await webhook(got.url, log, [])(WAIT)
    (unsigned, first), (headers, body) = got.posts
    assert "webhook-signature" not in unsigned
    assert json.loads(first)["data"]["run_id"] == run_id
    assert json.loads(body) == WAIT.to_json()
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == "wait_1"
    moment = headers["webhook-timestamp"]
    assert headers["webhook-signature"] == signature("whsec_c2VjcmV0", "wait_1", moment, body)
    assert log.events == ["webhook_delivered"]


def test_a_signature_is_that_of_the_specification() -> None:
    """Source: the example of the specification's reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("statuses", "tries", "last"),
    [
        ((500, 429), 3, "webhook_delivered"),
        ((302, 404, 500, 503, 500), 5, "webhook_given_up"),
        ((410,), 1, "webhook_given_up"),
    ],
)
async def test_a_post_is_repeated_within_limits(
    statuses: Sequence[int], tries: int, last: str
) -> None:
    """A-119: with the same id, so that the receiver can tell that it had it."""
    log, slept = Lines(), list[float]()
    async with receiver(*statuses) as got:
        await webhook(got.url, log, slept)(WAIT)
    assert len(got.posts) == tries
    assert len({headers["webhook-id"] for headers, _ in got.posts}) == 1
    assert log.events[-1] == last
    assert slept == sorted(slept)
    assert len(slept) == tries - 1


async def test_an_address_where_nobody_listens_is_given_up() -> None:
    """A-119."""
    async with receiver() as got:
        pass
    log = Lines()
    await webhook(got.url, log, [])(WAIT)
    assert log.events == ["webhook_failed"] * 4 + ["webhook_given_up"]


def test_the_settings_of_a_webhook_are_checked_at_the_start() -> None:
    def made(settings: Settings) -> Webhook | None:
        return waiting_webhook(
            settings,
            clock=SystemClock(),
            sleep=asyncio.sleep,
            log=NullLog(),
            secrets=lambda ref: f"value of {ref.source}",
        )

    assert made(Settings()) is None
    url = "https://example.org/hook"
    chosen = made(Settings(on_waiting_url=url, on_waiting_secret="env:HOOK"))
    assert chosen is not None
    assert (chosen.url, chosen.secret) == (url, "value of env:HOOK")
    for wrong in ("ftp://example.org", "https://user:word@example.org/"):
        with pytest.raises(UsageError, match="on_waiting_url"):
            made(Settings(on_waiting_url=wrong))
    with pytest.raises(UsageError, match="on_waiting_secret"):
        made(evolve(Settings(on_waiting_url=url), on_waiting_secret="whsec_typed"))


async def test_the_marks_of_told_waits_are_no_values_of_recipes(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """They are beside the journal, under keys of Minions itself."""
    told = Told()
    client = Client(make_app(journal=tmp_path / "j.sqlite", on_waiting=told))
    await client.ended((await client.post("/runs", {"recipe": "asks"})).json["run_id"])
    await told.count(1)
    await _rest(client)
    state = SqliteState(tmp_path / "j.sqlite")
    (key,) = await state.keys()
    assert key == f"minions:told:{told.waits[0].id}"
    await state.aclose()
