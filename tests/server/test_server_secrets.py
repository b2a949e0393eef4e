"""Secrets over HTTP: a caller does not choose what the server reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from asgi_client import Client, Reply, events_in
from minions.app.settings.settings import Settings
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from served import MakeApp
from serving import Serving

VALUE = "a-value-of-the-server"
KEYED = """
id: keyed
inputs:
  token: {type: string, secret: true, default: "env:OWN_TOKEN"}
  other: {type: string, secret: true, default: "env:OTHER_TOKEN"}
permissions: {allow_write: true}
steps:
  - {id: send, tool: sign, params: {text: "{{ inputs.token }}"}}
"""
TALKS = """
id: talks
inputs:
  message: {type: string}
  token: {type: string, secret: true, default: "env:OWN_TOKEN"}
steps:
  - {id: answer, goal: Answer the user., memory: conversation}
"""


@pytest.fixture(autouse=True)
def stored(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recipes / "keyed.yaml").write_text(KEYED)
    (recipes / "talks.yaml").write_text(TALKS)
    for name in ("OWN_TOKEN", "OTHER_TOKEN", "THIRD_TOKEN"):
        monkeypatch.setenv(name, f"{VALUE}-{name}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    path.write_text(VALUE)
    return path


def listing(*references: str) -> Settings:
    return Settings(no_store=True, caller_secrets=references)


def assert_refused(reply: Reply, reference: str) -> None:
    assert (reply.status, reply.json["code"]) == (403, "secret-refused")
    assert f"--allow-secret {reference}" in reply.json["detail"]
    assert VALUE not in reply.body.decode()


async def run_of(client: Client, **inputs: JsonValue) -> Reply:
    return await client.post("/runs", {"recipe": "keyed", "inputs": inputs})


@pytest.mark.parametrize("form", ["file:{}", "${{secret:file:{}}}"])
async def test_a_reference_that_the_operator_does_not_list_is_refused(
    client: Client, file: Path, form: str
) -> None:
    reply = await run_of(client, token=form.format(file))
    assert_refused(reply, f"file:{file}")
    missing = await run_of(client, token=form.format(f"{file}.none"))
    assert_refused(missing, f"file:{file}.none")  # nothing is told of whether it is there
    assert (await client.get("/runs")).json["total"] == 0


async def test_the_message_says_which_input_and_what_the_operator_can_do(client: Client) -> None:
    reply = await run_of(client, token="env:THIRD_TOKEN")
    assert reply.json["detail"] == (
        "The input 'token' is secret: over HTTP it takes the recipe's default, or a reference "
        "that the operator lists, and env:THIRD_TOKEN is neither. The operator lists it with "
        "`minions serve --allow-secret env:THIRD_TOKEN`, or under caller_secrets in minions.toml."
    )


async def test_the_recipes_default_may_be_left_out_and_may_be_given(client: Client) -> None:
    for inputs in ({}, {"token": "env:OWN_TOKEN"}, {"token": "${secret:env:OWN_TOKEN}"}):
        reply = await client.post("/runs", {"recipe": "keyed", "inputs": inputs})
        assert reply.status == 202
        assert (await client.ended(reply.json["run_id"]))["status"] == "completed"


async def test_the_default_of_one_input_is_not_allowed_for_another(client: Client) -> None:
    """Else the secret for one service could be sent to another one."""
    assert_refused(await run_of(client, token="env:OTHER_TOKEN"), "env:OTHER_TOKEN")


async def test_references_that_the_operator_lists_may_be_given(
    make_app: MakeApp, file: Path
) -> None:
    client = Client(make_app(settings=listing(f"file:{file}", "env:THIRD_TOKEN")))
    for reference in (f"file:{file}", "env:THIRD_TOKEN"):
        assert (await run_of(client, token=reference)).status == 202
    around = f"file:{file.parent}/x/../{file.name}"
    assert_refused(await run_of(client, token=around), around)


async def test_a_wrong_reference_in_the_operators_list_is_refused_at_the_start(
    make_app: MakeApp,
) -> None:
    with pytest.raises(UsageError) as caught:
        make_app(settings=listing("OWN_TOKEN"))
    assert caught.value.error_code == "bad-configuration"
    assert "caller_secrets" in caught.value.message


async def test_agents_take_no_other_references_than_runs(client: Client, file: Path) -> None:
    body = {"inputs": {"token": f"file:{file}"}}
    assert_refused(await client.post("/agents/keyed/run", body), f"file:{file}")


async def test_a_recipe_in_a_request_chooses_no_secret_by_its_default(
    make_app: MakeApp, file: Path
) -> None:
    text = KEYED.replace("env:OWN_TOKEN", f"file:{file}")
    client = Client(make_app(allow_recipe_bodies=True))
    assert_refused(await client.post("/runs", {"recipe_text": text}), f"file:{file}")
    listed = listing(f"file:{file}", "env:OTHER_TOKEN")
    client = Client(make_app(allow_recipe_bodies=True, settings=listed))
    assert (await client.post("/runs", {"recipe_text": text})).status == 202


async def test_a_session_keeps_no_reference_that_is_not_allowed(client: Client) -> None:
    body = {"recipe": "talks", "inputs": {"token": "env:THIRD_TOKEN"}}
    assert_refused(await client.post("/sessions", body), "env:THIRD_TOKEN")
    assert (await client.get("/sessions")).json["total"] == 0


async def test_a_turn_takes_no_reference_from_the_run_of_another_recipe(
    make_app: MakeApp, recipes: Path
) -> None:
    """A turn takes the inputs of the session's last run, whatever recipe that was of."""
    client = Client(make_app(answers=["hello", "again"]))
    session = (await client.post("/sessions", {"recipe": "talks"})).json["id"]
    said = await client.post(f"/sessions/{session}/messages", {"content": "Hi"})
    assert list(events_in(said.body.decode()))[-1].type == "run_completed"
    text = KEYED.replace("id: keyed", "id: other").replace("OWN_TOKEN", "THIRD_TOKEN")
    (recipes / "other.yaml").write_text(text)
    begun = await client.post("/runs", {"recipe": "other", "session": session})
    await client.ended(begun.json["run_id"])
    for path, body in (
        ("messages", {"content": "Hi"}),
        ("retry", {"sequence": 2}),
        ("resume", {}),
    ):
        reply = await client.post(f"/sessions/{session}/{path}", body)
        assert_refused(reply, "env:THIRD_TOKEN")


async def test_nothing_begins_again_with_a_reference_that_is_not_listed_any_more(
    make_app: MakeApp, tmp_path: Path
) -> None:
    journal = tmp_path / "j.sqlite"
    text = KEYED.replace("allow_write: true", "allow_write: true, requires_approval: [sign]")
    body = {"recipe_text": text, "inputs": {"token": "env:THIRD_TOKEN"}}
    listed = listing("env:THIRD_TOKEN", "env:OTHER_TOKEN")
    first = Client(make_app(journal=journal, settings=listed, allow_recipe_bodies=True))
    run = (await first.post("/runs", body)).json["run_id"]
    assert (await first.ended(run))["status"] == "needs_decision"
    waiting = (await first.get("/approvals")).json["approvals"][0]
    await first.app.aclose()
    second = Client(make_app(journal=journal))
    consent = {"decision": "approve", "digest": waiting["digest"]}
    for path, body in (
        (f"/approvals/{waiting['id']}", consent),
        (f"/runs/{run}/resume", {}),
        (f"/runs/{run}/retry", {}),
    ):
        assert_refused(await second.post(path, body), "env:THIRD_TOKEN")


async def test_what_is_said_in_a_session_is_no_reference_to_a_secret(
    client: Client, recipes: Path, file: Path
) -> None:
    (recipes / "talks.yaml").write_text(
        TALKS.replace("{type: string}", "{type: string, secret: true}")
    )
    reply = await client.post("/sessions", {"recipe": "talks"})
    assert (reply.status, reply.json["code"]) == (422, "not-a-conversation")
    assert "'message' is a secret" in reply.json["detail"]


def test_the_command_line_lists_what_callers_may_refer_to(recipes: Path) -> None:
    (recipes / "keyed.yaml").write_text(KEYED.replace("tool: sign, params:", "set:"))
    with Serving(recipes.parent, "--no-store", "--allow-secret", "env:THIRD_TOKEN") as server:
        wanted = {"recipe": "keyed", "inputs": {"token": "env:THIRD_TOKEN"}}
        assert "run_id" in server.ask("POST", "/runs", wanted)
        wanted = {"recipe": "keyed", "inputs": {"token": "env:HOME"}}
        assert server.ask("POST", "/runs", wanted)["code"] == "secret-refused"
