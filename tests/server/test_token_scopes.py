"""Tokens with names: what each lets its holder do, who decides, and for whom runs are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from asgi_client import TOKEN, Client
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.interfaces.http.token_file import read_token_file
from minions.interfaces.http.tokens import CallerToken, TokenScope
from minions.interfaces.server.app import api_document
from minions.interfaces.server.server_options import ServerOptions
from served import MakeApp

TEXTS = {scope: f"a-token-with-the-scope-{scope}" for scope in TokenScope}
TOKENS = [CallerToken.of(f"{scope}er", TEXTS[scope], [scope]) for scope in TokenScope]


@pytest.fixture
def client(make_app: MakeApp) -> Client:
    """Of a server with one token for each scope, beside the token with all of them."""
    return Client(make_app(tokens=TOKENS))


def by(scope: TokenScope) -> dict[str, str | None]:
    return {"authorization": f"Bearer {TEXTS[scope]}"}


def operations() -> Iterator[tuple[str, str, str]]:
    """Method, path and declared scope of each operation that needs a token."""
    paths = cast("Mapping[str, Mapping[str, Any]]", api_document()["paths"])  # Any: JSON
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert "security" in operation, f"{method} {path} declares no scope"
            for needed in operation["security"][0].get("token", ()):
                yield method.upper(), path.replace("{", "").replace("}", ""), needed
    yield "GET", "/api/v1/changes", "read"
    yield "GET", "/metrics", "read"
    yield "GET", "/openapi.json", "read"


OPERATIONS = [*operations()]


@pytest.mark.parametrize(("method", "path", "needed"), OPERATIONS)
async def test_an_operation_takes_its_scope_and_admin_and_no_other(
    client: Client, method: str, path: str, needed: str
) -> None:
    for scope in TokenScope:
        if path == "/api/v1/changes" and scope in ("read", "admin"):
            continue  # a stream without end
        reply = await client.ask(method, path, None, by(scope))
        if scope in (needed, "admin"):
            assert reply.status != 401
            assert b"missing-scope" not in reply.body
        else:
            problem = reply.json.get("error", reply.json)
            assert (reply.status, problem["code"]) == (403, "missing-scope")
            detail = problem.get("detail") or problem["message"]
            assert f"The token '{scope}er' lacks the scope '{needed}'" in detail


def test_every_scope_is_needed_somewhere() -> None:
    own = set(TokenScope) - {TokenScope.ALL}  # it widens what the others are about
    assert {needed for _, _, needed in OPERATIONS} == own


async def test_the_token_without_a_name_may_do_everything(client: Client) -> None:
    reply = await client.ask("GET", "/api/v1/system")
    assert reply.json["caller"] == {
        "name": None,
        "is_user": False,
        "role": "operator",
        "scopes": ["admin", "decide", "read", "run"],
        "user": None,
        "expires": None,
    }


async def test_a_caller_learns_their_name_and_scopes(client: Client) -> None:
    reply = await client.ask("GET", "/api/v1/system", None, by(TokenScope.READ))
    assert (reply.json["caller"]["name"], reply.json["caller"]["scopes"]) == ("reader", ["read"])


async def test_with_named_tokens_only_no_other_is_taken(make_app: MakeApp) -> None:
    client = Client(make_app(token="", tokens=TOKENS))
    for given in ("Bearer ", "Bearer", f"Bearer {TOKEN}", "Bearer " + "0" * 64, "", None):
        reply = await client.ask("GET", "/api/v1/system", None, {"authorization": given})
        assert reply.status == 401, given
    digest = {"authorization": f"Bearer {TOKENS[0].sha256}"}
    assert (await client.ask("GET", "/api/v1/system", None, digest)).status == 401
    assert (await client.ask("GET", "/api/v1/system", None, by(TokenScope.READ))).status == 200


async def test_a_recipe_in_a_request_takes_admin_because_it_needs_no_approval(
    make_app: MakeApp,
) -> None:
    client = Client(make_app(tokens=TOKENS, allow_recipe_bodies=True))
    body = {"recipe_text": "id: own\nsteps:\n  - {id: a, set: {n: 1}}\n"}
    refused = await client.ask("POST", "/api/v1/runs", body, by(TokenScope.RUN))
    assert (refused.status, refused.json["code"]) == (403, "missing-scope")
    assert "'admin'" in refused.json["detail"]
    assert (await client.ask("POST", "/api/v1/runs", body, by(TokenScope.ADMIN))).status == 202


async def test_a_plan_without_approval_takes_decide(make_app: MakeApp, tmp_path: Path) -> None:
    both = CallerToken.of("both", "a-token-that-runs-and-decides", ["run", "decide"])
    client = Client(make_app(tokens=[*TOKENS, both], plan_workspaces=(str(tmp_path),)))
    body = {"requirements": "Write a file.", "approval": "none"}
    refused = await client.ask("POST", "/api/v1/plans", body, by(TokenScope.RUN))
    assert (refused.status, refused.json["code"]) == (403, "missing-scope")
    taken = {"authorization": "Bearer a-token-that-runs-and-decides"}
    assert (await client.ask("POST", "/api/v1/plans", body, taken)).status == 202
    asking = {**body, "approval": "required"}
    assert (await client.ask("POST", "/api/v1/plans", asking, by(TokenScope.RUN))).status == 202


# --- who decides, and for whom --------------------------------------------------------------------


async def waiting(client: Client) -> Mapping[str, str]:
    """The approval that a new run waits for."""
    begun = await client.ask("POST", "/api/v1/runs", {"recipe": "signs"}, by(TokenScope.ADMIN))
    await client.ended(begun.json["run_id"])
    listed = await client.ask("GET", "/api/v1/approvals")
    (approval,) = listed.json["approvals"]
    return {"id": approval["id"], "digest": approval["digest"], "run": begun.json["run_id"]}


async def decided(client: Client, approval: Mapping[str, str], **more: str) -> tuple[int, str]:
    body = {"decision": "approve", "digest": approval["digest"], **more}
    path = f"/api/v1/approvals/{approval['id']}"
    reply = await client.ask("POST", path, body, by(TokenScope.DECIDE))
    return reply.status, reply.json.get("code", "")


@pytest.mark.parametrize("named", [{}, {"by": "decideer"}])
async def test_the_name_of_the_token_is_who_decided(
    client: Client, named: Mapping[str, str]
) -> None:
    approval = await waiting(client)
    assert await decided(client, approval, **named) == (202, "")
    await client.ended(approval["run"])
    run = await client.ask("GET", f"/api/v1/runs/{approval['run']}")
    assert "decideer" in run.body.decode()


async def test_a_token_with_a_name_decides_as_nobody_else(client: Client) -> None:
    approval = await waiting(client)
    assert await decided(client, approval, by="Ann") == (403, "other-name")


async def test_runs_of_a_token_that_is_bound_to_a_user_are_for_that_user(
    make_app: MakeApp,
) -> None:
    bound = CallerToken.of("ann", "a-token-of-one-user-only", ["read", "run"], user="ann@x")
    client = Client(make_app(tokens=[bound]))
    own = {"authorization": "Bearer a-token-of-one-user-only"}
    body = {"recipe": "adds", "inputs": {"a": 1}}
    for more in ({}, {"user": "ann@x"}):
        assert (await client.ask("POST", "/api/v1/runs", {**body, **more}, own)).status == 202
    other = await client.ask("POST", "/api/v1/runs", {**body, "user": "bob"}, own)
    assert (other.status, other.json["code"]) == (403, "other-user")
    listed = await client.ask("GET", "/api/v1/runs?user=ann@x", None, own)
    assert listed.json["total"] == 2


# --- the file -------------------------------------------------------------------------------------


def file_with(folder: Path, text: str) -> Path:
    file = folder / "tokens.toml"
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    return file


def test_a_file_with_one_token_is_as_it_was(tmp_path: Path) -> None:
    found = read_token_file(file_with(tmp_path, f"{TOKEN}\n"))
    assert (found.token, found.tokens) == (TOKEN, ())


def test_a_file_lists_tokens_or_their_digests_with_names_and_scopes(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"a-token-that-is-not-in-the-file").hexdigest()
    text = f"""
[[tokens]]
name = "board"
token = "{TOKEN}"
scopes = ["read"]

[[tokens]]
name = "ann"
sha256 = "{digest}"
scopes = ["read", "decide"]
user = "ann@example.org"
"""
    found = read_token_file(file_with(tmp_path, text))
    assert found.token == ""
    assert found.tokens == (
        CallerToken.of("board", TOKEN, ["read"]),
        CallerToken.of(
            "ann", "a-token-that-is-not-in-the-file", ["decide", "read"], user="ann@example.org"
        ),
    )


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('name = "a"\ntoken = "SECRET-SECRET-SECRET"', "or at least one scope"),
        ('name = "a"\ntoken = "SECRET-SECRET-SECRET"\nscopes = ["rade"]', "Scopes are: read"),
        ('name = "a"\ntoken = "SECRET-SECRET-SECRET"\nscopes = []', "at least one scope"),
        ('name = "a"\ntoken = "SECRET"\nscopes = ["read"]', "at least 16"),
        ('name = "a"\nsha256 = "SECRET"\nscopes = ["read"]', "lower case hexadecimal"),
        ('token = "SECRET-SECRET-SECRET"\nscopes = ["read"]', "a `name` and either"),
        ('name = "a"\nscopes = ["read"]', "a `name` and either"),
        ('name = "a"\ntokn = "SECRET-SECRET-SECRET"\nscopes = ["read"]', "'tokn' is no key"),
        ('name = 1\ntoken = "SECRET-SECRET-SECRET"\nscopes = ["read"]', "`name` is a text"),
        ('name = ""\ntoken = "SECRET-SECRET-SECRET"\nscopes = ["read"]', "The name of a token"),
        ('name = "a"\ntoken = SECRET-SECRET-SECRET', "is no TOML (at line 3"),
        ('name = "a"\ntoken = "SECRET-SECRET-SECRET"\nscopes = [1]', "`scopes` is a list"),
        (f'name = "a"\nsha256 = "{"0" * 63}G"\nscopes = ["read"]', "lower case hexadecimal"),
        (f'name = "a"\nsha256 = "{"0" * 63}"\nscopes = ["read"]', "lower case hexadecimal"),
        ('name = "a\\n"\ntoken = "SECRET-SECRET-SECRET"\nscopes = ["read"]', "The name of a"),
    ],
)
def test_a_fault_of_the_file_is_named_and_no_token_is_repeated(
    tmp_path: Path, entry: str, says: str
) -> None:
    with pytest.raises(EnvironmentRefusedError) as refused:
        read_token_file(file_with(tmp_path, f"[[tokens]]\n{entry}\n"))
    assert says in str(refused.value)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["tokens = []", "tokens = 1", "tokens = [1]", 'a = 1\n[[tokens]]\nname = "a"\n']
)
def test_a_file_with_a_table_has_tables_of_tokens_and_nothing_else(
    tmp_path: Path, text: str
) -> None:
    says = "a table with name" if text == "tokens = [1]" else "and nothing else"
    with pytest.raises(EnvironmentRefusedError, match=says):
        read_token_file(file_with(tmp_path, text))


def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path) -> None:
    assert len(read_token_file(file_with(tmp_path, "x" * 100_000)).token) == 100_000
    with pytest.raises(EnvironmentRefusedError, match="more than 100,000 bytes"):
        read_token_file(file_with(tmp_path, "x" * 100_001))
    file_with(tmp_path, "").write_bytes(b"\xff")
    with pytest.raises(EnvironmentRefusedError, match="it is no UTF-8 text"):
        read_token_file(tmp_path / "tokens.toml")
    with pytest.raises(EnvironmentRefusedError, match="cannot be read: "):
        read_token_file(tmp_path)


def test_a_new_token_is_kept_for_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = read_token_file(file).token
    assert len(made) >= 16
    assert read_token_file(file).token == made


def test_a_token_has_sixteen_printable_ascii_characters() -> None:
    assert ServerOptions(token="x" * 16).token == "x" * 16
    for wrong in ("x" * 15, "x" * 15 + "\n", "x" * 15 + "\x7f", "x" * 15 + "ä"):
        with pytest.raises(UsageError):
            ServerOptions(token=wrong)


def test_a_name_of_a_token_is_as_long_as_a_label_of_a_user() -> None:
    assert CallerToken.of("n" * 100, TOKEN, ["read"]).name == "n" * 100
    with pytest.raises(UsageError):
        CallerToken.of("n" * 101, TOKEN, ["read"])


async def test_the_holder_of_the_only_token_decides_as_anybody(client: Client) -> None:
    approval = await waiting(client)
    body = {"decision": "approve", "digest": approval["digest"], "by": "Ann"}
    reply = await client.ask("POST", f"/api/v1/approvals/{approval['id']}", body)
    assert reply.status == 202
    await client.ended(approval["run"])
    run = await client.ask("GET", f"/api/v1/runs/{approval['run']}")
    assert "Ann" in run.body.decode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602, 0o610, 0o601])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = file_with(tmp_path, f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\nscopes = ["read"]\n')
    file.chmod(mode)
    with pytest.raises(EnvironmentRefusedError) as refused:
        read_token_file(file)
    assert refused.value.error_code == "open-token-file"


def test_two_tokens_have_neither_the_same_name_nor_the_same_secret() -> None:
    first = CallerToken.of("a", TOKEN, ["read"])
    for second in (CallerToken.of("b", TOKEN, ["run"]), CallerToken.of("a", f"{TOKEN}2", ["run"])):
        with pytest.raises(UsageError):
            ServerOptions(tokens=[first, second])


def test_no_token_is_in_the_text_of_an_entry() -> None:
    entry = CallerToken.of("a", TOKEN, ["read"])
    assert TOKEN not in repr(entry)
    assert entry.sha256 not in repr(entry)
