"""Who may decide, over HTTP: the token says who somebody is, and which roles they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asgi_client import TOKEN, Client
from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.http.token_file import read_token_file
from minions.interfaces.http.tokens import CallerToken
from minions.interfaces.server.decision_views import made_already
from minions.testing.virtual_time import FakeClock
from served import MakeApp

RECIPE = """
id: pays
permissions:
  allow_write: true
  requires_approval:
    - {tool: sign, deciders: [ann, "role:finance"], quorum: 2, not_by_starter: true, expires: 2h}
steps: [{id: sign, tool: sign, params: {text: a cheque}}]
output: "{{ sign }}"
"""
SCOPES = ("read", "run", "decide", "all")
TOKENS = [
    CallerToken.of("ann", "the-token-of-ann", SCOPES),
    CallerToken.of("cfo-phone", "the-token-of-cfo-1", SCOPES, user="cfo", roles=["finance"]),
    CallerToken.of("cfo-desk", "the-token-of-cfo-2", SCOPES, user="cfo", roles=["finance"]),
    CallerToken.of("clerk", "the-token-of-clerk", SCOPES, roles=["finance"]),
    CallerToken.of("eve", "the-token-of-eve", SCOPES),
]
TEXTS = {
    "ann": "the-token-of-ann",
    "cfo-phone": "the-token-of-cfo-1",
    "cfo-desk": "the-token-of-cfo-2",
    "clerk": "the-token-of-clerk",
    "eve": "the-token-of-eve",
    None: TOKEN,
}


@pytest.fixture
def client(make_app: MakeApp, recipes: Path) -> Client:
    (recipes / "pays.yaml").write_text(RECIPE, "utf-8")
    return Client(make_app(tokens=TOKENS))


async def ask(client: Client, who: str | None, method: str, path: str, body: object = None) -> Any:
    headers: dict[str, str | None] = {"authorization": f"Bearer {TEXTS[who]}"}
    return await client.ask(method, f"/api/v1{path}", body, headers)


async def waiting(client: Client, starter: str = "clerk") -> dict[str, Any]:
    run = await ask(client, starter, "POST", "/runs", {"recipe": "pays"})
    await client.ended(run.json["run_id"])
    (view,) = (await client.get("/approvals")).json["approvals"]
    return dict(view)


async def decide(
    client: Client, who: str | None, view: dict[str, Any], word: str = "approve"
) -> Any:
    body = {"decision": word, "digest": view["digest"]}
    reply = await ask(client, who, "POST", f"/approvals/{view['id']}", body)
    await client.ended(view["run_id"])
    return reply


async def test_two_of_those_who_are_asked_decide_and_a_user_counts_once(client: Client) -> None:
    """A-169."""
    view = await waiting(client)
    assert view["deciders"] == ["ann", "role:finance"]
    assert view["who"] == "0 of 2 approvals, of ann or role:finance but not clerk"
    assert view["expires_at"] is not None
    for who in ("cfo-phone", "cfo-desk"):
        assert (await decide(client, who, view)).status == 202
        (view,) = (await client.get("/approvals")).json["approvals"]
        assert view["who"].startswith("1 of 2 approvals (")
    assert [each["by"] for each in view["votes"]] == ["cfo-phone", "cfo-desk"]
    assert (await decide(client, "ann", view)).status == 202
    run = await client.ended(view["run_id"])
    assert (run["status"], run["output"]) == ("completed", "sign: a cheque")


ESCALATES = RECIPE.replace("expires: 2h", "expires: 2h, then: {ask: [cfo], expires: 1h}")


async def test_when_the_time_is_over_the_server_asks_others_and_then_rejects(
    make_app: MakeApp, recipes: Path
) -> None:
    """A-169: of a run that it executed itself, without a request; no worker is there."""
    (recipes / "pays.yaml").write_text(ESCALATES, "utf-8")
    clock = FakeClock()
    client = Client(make_app(tokens=TOKENS, clock=clock))
    view = await waiting(client)
    look = client.app.recovery.look
    for seconds, deciders in ((7_199, ["ann", "role:finance"]), (1, ["cfo"]), (3_599, ["cfo"])):
        clock.advance(seconds)
        await look()
        run = await client.ended(view["run_id"])
        (view,) = (await client.get("/approvals")).json["approvals"]
        assert (run["status"], view["deciders"]) == ("needs_decision", deciders)
    clock.advance(1)
    await look()
    run = await client.ended(view["run_id"])
    assert (run["status"], run["error"]["code"]) == ("failed", "approval-denied")
    assert "nobody decided within 1h" in run["error"]["message"]
    assert (await client.get("/approvals")).json["approvals"] == []


async def test_a_vote_is_no_decision_that_others_are_told_of(client: Client) -> None:
    """Who comes at the same moment is told to try again, not that it is decided."""
    view = await waiting(client)
    assert (await decide(client, "ann", view)).status == 202
    journal = client.app.app_state.journal
    assert await made_already(journal, view["run_id"], lambda _key: True) is None
    assert (await decide(client, "cfo-desk", view)).status == 202
    refusal = await made_already(journal, view["run_id"], lambda _key: True)
    assert refusal is not None
    assert refusal.error_code == "already-decided"


@pytest.mark.parametrize("word", ["approve", "reject"])
@pytest.mark.parametrize("who", ["eve", "clerk", None])
async def test_nobody_else_decides_by_any_address(
    client: Client, who: str | None, word: str
) -> None:
    """A-169: neither somebody else, nor who started the run, nor the token without a name."""
    view = await waiting(client)
    reply = await decide(client, who, view, word)
    assert (reply.status, reply.json["code"]) == (403, "not-a-decider")
    body = {"decision": word, "digest": view["digest"]}
    body |= {"by": "ann"} if who is None else {}
    path = f"/runs/{view['run_id']}/decisions"
    reply = await ask(client, who, "POST", path, body)
    assert (reply.status, reply.json["code"]) == (403, "not-a-decider")
    (again,) = (await client.get("/approvals")).json["approvals"]
    assert again["votes"] == []


def test_the_file_of_tokens_says_their_roles(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    table = '[[tokens]]\nname = "ann"\ntoken = "the-token-of-ann"\nscopes = ["decide"]\n'
    file.write_text(f'{table}roles = ["finance"]\n', "utf-8")
    file.chmod(0o600)
    (token,) = read_token_file(file).tokens
    assert token.roles == ("finance",)
    file.write_text(f"{table}roles = 7\n", "utf-8")
    with pytest.raises(EnvironmentRefusedError, match="`roles` is a list"):
        read_token_file(file)


MANY = """
id: many
permissions: {allow_write: true, requires_approval: [sign]}
steps:
  - {id: sign, tool: sign, loop: [a cheque, a treaty, a cheque], params: {text: "{{ loop.item }}"}}
output: "{{ sign | length }}"
"""


async def test_all_calls_like_the_one_that_was_shown_are_approved(
    client: Client, recipes: Path
) -> None:
    """A-169."""
    (recipes / "many.yaml").write_text(MANY, "utf-8")
    run_id = (await client.post("/runs", {"recipe": "many"})).json["run_id"]
    await client.ended(run_id)
    first, second, _ = (await client.get("/approvals")).json["approvals"]
    body = {"decision": "approve", "digest": first["digest"], "all_like": {"same": ["text"]}}
    path = f"/approvals/{first['id']}"
    wrong = await client.post(path, {**body, "all_like": {"same": ["words"]}})
    assert (wrong.status, wrong.json["code"]) == (422, "bad-class")
    both = await client.post(path, {**body, "arguments": {"text": "b"}})
    assert (both.status, both.json["code"]) == (422, "bad-class")
    assert (await client.post(path, body)).status == 202
    await client.ended(run_id)
    (left,) = (await client.get("/approvals")).json["approvals"]
    assert left["id"] == second["id"]
