"""Over HTTP a deployment says which version of a recipe a new run gets."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from asgi_client import Client
from minions.adapters.stores.memory_stores import RESERVED
from minions.app.runs.deployments import Canary, DeploymentEvent, first_deployment
from minions.interfaces.server.app import App
from minions.recipe.reading.load import load_recipe_text
from served import MakeApp

TEXT = """
id: adds
version: '{}'
inputs: {{message: {{type: string, default: x}}}}
steps: [{{id: a, set: {{n: {}}}}}]
output: '{{{{ a.n }}}}'
"""


async def _deploy(app: App, share: float | None) -> None:
    """The recipe of the file's id in two versions, of which the second is a canary."""
    catalog, now = app.app_state.runtime.catalog, app.app_state.runtime.services.clock.now()
    made, _ = first_deployment("adds", load_recipe_text(TEXT.format(1, 1), "a", catalog), now, None)
    made, _ = made.with_version(load_recipe_text(TEXT.format(2, 2), "b", catalog))
    canary = None if share is None else Canary(number=2, share=share, since=now)
    await app.app_state.deployments.change("adds", lambda _: evolve(made, canary=canary))


async def _output(client: Client, name: str, **more: object) -> object:
    reply = await client.post("/runs", {"recipe": name, **more})
    assert reply.status == 202, reply.json
    return (await client.ended(str(reply.json["run_id"])))["output"]


async def test_the_name_means_the_version_that_the_deployment_gives(make_app: MakeApp) -> None:
    app = make_app()
    client = Client(app)
    await _deploy(app, None)
    assert await _output(client, "adds") == 1
    assert await _output(client, "adds@2") == 2
    event = DeploymentEvent(at=app.app_state.started_at, what="promoted", number=2)
    await app.app_state.deployments.change(
        "adds", lambda it: None if it is None else it.promoted(2, event)
    )
    assert await _output(client, "adds") == 2
    assert await _output(client, "adds@1") == 1
    assert await _output(client, "adds@live") == 2


async def test_deployments_are_listed_with_what_was_decided_last(make_app: MakeApp) -> None:
    app = make_app()
    await _deploy(app, 0.25)
    await app.app_state.marks.put(f"{RESERVED}deployment:broken", "{")
    found = (await Client(app).get("/deployments")).json
    adds, broken = found["deployments"]
    assert (found["total"], adds["name"], adds["recipe"], adds["live"]) == (2, "adds", "adds", 1)
    assert (adds["canary"]["number"], adds["canary"]["share"]) == (2, 0.25)
    assert [(each["number"], each["version"]) for each in adds["versions"]] == [(1, "1"), (2, "2")]
    assert (adds["change"], adds["changed_by"], adds["problem"]) == ("deployed", None, None)
    assert "document" not in str(adds)
    assert (broken["name"], broken["live"]) == ("broken", None)
    assert "cannot be read" in broken["problem"]
    part = (await Client(app).get("/deployments?limit=1&offset=1")).json
    assert [each["name"] for each in part["deployments"]] == ["broken"]


async def test_a_canary_of_all_runs_gets_all(make_app: MakeApp) -> None:
    app = make_app()
    await _deploy(app, 1.0)
    assert await _output(Client(app), "adds") == 2


async def test_a_version_that_is_not_there_is_named(make_app: MakeApp) -> None:
    app = make_app()
    await _deploy(app, None)
    reply = await Client(app).post("/runs", {"recipe": "adds@9"})
    assert (reply.status, reply.json["code"]) == (404, "unknown-version")
    reply = await Client(app).post("/runs", {"recipe": "nothing@live"})
    assert (reply.status, reply.json["code"]) == (404, "recipe-not-found")


async def test_a_repeated_request_is_the_run_that_it_began(make_app: MakeApp) -> None:
    app = make_app()
    await _deploy(app, 0.5)
    client = Client(app)
    headers = {"idempotency-key": "k"}
    first = await client.ask("POST", "/api/v1/runs", {"recipe": "adds"}, headers)
    again = await client.ask("POST", "/api/v1/runs", {"recipe": "adds"}, headers)
    assert first.json["run_id"] == again.json["run_id"]


async def test_names_of_deployments_are_not_looked_up_at_each_request(
    make_app: MakeApp, recipes: Path
) -> None:
    app = make_app()
    client, looks = Client(app), []
    (recipes / "plain.yaml").write_text("id: plain\nsteps: [{id: a, set: {n: 3}}]\n", "utf-8")
    names = app.app_state.deployments.names

    async def noted() -> object:
        looks.append(1)
        return await names()

    app.app_state.deployments.names = noted  # type: ignore[method-assign, assignment]  # of a test
    for _ in range(5):
        await _output(client, "plain")
    assert len(looks) == 1


async def test_clients_of_other_protocols_get_the_version_that_is_deployed(
    make_app: MakeApp,
) -> None:
    app = make_app()
    client = Client(app)
    await _deploy(app, None)
    for name, result in (("adds", 1), ("adds@2", 2)):
        body = {"threadId": "t", "runId": name, "messages": []}
        reply = await client.post(f"/agents/{name}/ag-ui", body)
        assert f'"result":{result}}}'.encode() in reply.body
    reply = await client.ask("GET", "/v1/models/adds@9")
    assert (reply.status, reply.json["error"]["code"]) == (404, "unknown-version")


async def test_a_request_is_checked_by_the_version_that_its_run_gets(make_app: MakeApp) -> None:
    """Each draws a version of its own: of 20, some get either."""
    app = make_app()
    await _deploy(app, 0.5)
    state, drawn = app.app_state, []
    stored = state.starter.stored_recipe

    async def noted(*args: object, **named: object) -> object:
        found = await stored(*args, **named)  # type: ignore[arg-type]  # handed on
        drawn.append(str(found[1]))
        return found

    state.starter.stored_recipe = noted  # type: ignore[method-assign, assignment]  # of a test
    client = Client(app)
    for number in range(20):
        drawn.clear()
        body = {"model": "adds", "messages": [{"role": "user", "content": str(number)}]}
        reply = await client.ask("POST", "/v1/chat/completions", body)
        assert reply.status == 200, reply.json
        assert len(set(drawn)) == 1
        assert len(drawn) == 2
