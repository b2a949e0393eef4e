"""Roles, and callers whom a proxy names: what each may do, and what no header makes of a caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest

from asgi_client import TOKEN, Client
from minions.app.settings.settings import Settings
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.interfaces.http.http_answers import AsgiApp, Receive, Scope, Send, StandardLog
from minions.interfaces.http.proxy_access import ProxyAccess
from minions.interfaces.http.token_file import read_token_file
from minions.interfaces.http.tokens import CallerRole, CallerToken, digest_of, rights_of
from minions.interfaces.server.app import api_document, create_app
from minions.interfaces.server.projects import ProjectServer
from minions.interfaces.server.server_options import ServerOptions
from served import MakeApp

LEAST_ROLE: Final[Mapping[str | None, Sequence[str]]] = {
    None: ("getHealth", "getReady", "getAgentCard"),
    "viewer": (
        *("listRecipes", "getRecipe", "drawRecipe", "getInputsSchema", "listAgents"),
        *("listRuns", "getRun", "followRun", "listRunItems", "getRunStep", "getRunValue"),
        *("searchRun", "getRunJournal", "exportRun", "drawRun", "captureRun"),
        *("listSessions", "getSession", "followSession", "listSteps", "getStep", "getContext"),
        *("listApprovals", "listWorkers", "listQueues", "listQueuedRuns", "listSchedules"),
        *("listDeployments", "listProjects", "listProjectRuns", "listProjectSessions"),
        "listProjectApprovals",
        *("listBatches", "getBatch", "listEvaluations", "getEvaluation", "getCosts"),
        *("getSystem", "listModels", "getModel", "getRecipeCard"),
        *("callA2a", "callRecipeA2a"),  # by method: `run` to send a message, `read` to look
    ),
    "approver": ("decide", "decideRun", "markOutput"),
    "operator": (
        *("startRun", "startPlan", "cancelRun", "resumeRun", "retryRun", "rollBackFiles"),
        *("runAgent", "runAgUi", "createChatCompletion", "createResponse"),
        *("createSession", "forgetSession", "deleteSteps", "forkSession"),
        *("sendMessage", "retrySession", "resumeSession", "pauseSchedule", "resumeSchedule"),
    ),
}
"""The least role that each operation of the OpenAPI document takes; None: it takes no caller."""

TEXTS = {role: f"a-token-of-the-role-{role}" for role in CallerRole}
TOKENS = [CallerToken.of(str(role), TEXTS[role], role=role) for role in CallerRole]
ORDER = [None, *CallerRole]


def operations() -> Iterator[tuple[str, str, str]]:
    paths = cast("Mapping[str, Mapping[str, Any]]", api_document()["paths"])  # Any: JSON
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield operation["operationId"], method.upper(), path.replace("{", "").replace("}", "")


OPERATIONS = [*operations()]


def test_the_table_of_roles_has_each_operation_of_the_document_once() -> None:
    placed = [name for names in LEAST_ROLE.values() for name in names]
    assert sorted(placed) == sorted(name for name, _, _ in OPERATIONS)


@pytest.mark.parametrize("role", CallerRole)
async def test_a_role_may_do_what_the_table_says_and_nothing_else(
    make_app: MakeApp, role: CallerRole
) -> None:
    client = Client(make_app(token="", tokens=TOKENS))
    least = {name: each for each, names in LEAST_ROLE.items() for name in names}
    for name, method, path in OPERATIONS:
        headers = {"authorization": f"Bearer {TEXTS[role]}"}
        reply = await client.ask(method, path, None, headers)
        may = ORDER.index(role) >= ORDER.index(cast("CallerRole | None", least[name]))
        is_refused = reply.status == 403 and b"missing-scope" in reply.body
        assert is_refused is not may, (name, reply.status, reply.body)
        assert reply.status != 401
        if is_refused:
            assert f"The role '{least[name]}' has it." in reply.body.decode(), name


@pytest.mark.parametrize("role", CallerRole)
async def test_a_caller_learns_their_role(make_app: MakeApp, role: CallerRole) -> None:
    client = Client(make_app(tokens=TOKENS))
    reply = await client.get("/system", authorization=f"Bearer {TEXTS[role]}")
    assert (reply.json["caller"]["role"], reply.json["caller"]["is_user"]) == (role, False)


# --- a proxy --------------------------------------------------------------------------------------


SECRET = "a-secret-of-the-proxy"
PROXY = ProxyAccess(
    user_header="X-Forwarded-User",
    groups_header="X-Forwarded-Groups",
    secret_header="X-Proxy-Secret",
    secret_sha256=digest_of(SECRET),
    groups={
        "staff": rights_of("viewer"),
        "finance": rights_of("approver", ["all"]),
        "oncall": rights_of("operator", ["all"]),
    },
    users={"eve@example.org": rights_of("operator")},
)
PROOF = ("x-proxy-secret", SECRET)
ANN = ("x-forwarded-user", "ann@example.org")
OPERATORS = ("x-forwarded-groups", "oncall")
NO_TOKEN: Final = {"authorization": None}


def through(app: AsgiApp, *headers: tuple[str, str], peer: str | None = "127.0.0.1") -> Client:
    """Asks by a proxy that adds these headers, and connects from that address."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        more = [(name.encode(), value.encode()) for name, value in headers]
        client = None if peer is None else (peer, 1)
        await app({**scope, "headers": [*scope["headers"], *more], "client": client}, receive, send)

    return Client(pass_on)


async def test_a_user_of_the_proxy_has_the_roles_of_their_groups(make_app: MakeApp) -> None:
    app = make_app(proxy=PROXY)
    client = through(app, PROOF, ANN, ("x-forwarded-groups", "staff, dev,,finance"))
    reply = await client.ask("GET", "/api/v1/system", None, NO_TOKEN)
    assert reply.json["caller"] == {
        "name": "ann@example.org",
        "is_user": True,
        "role": "approver",
        "scopes": ["all", "decide", "read"],
        "user": "ann@example.org",
        "expires": None,
    }
    refused = await client.ask("POST", "/api/v1/runs", {"recipe": "adds"}, NO_TOKEN)
    assert (refused.status, refused.json["code"]) == (403, "missing-scope")
    assert "The user 'ann@example.org' lacks the scope 'run'" in refused.json["detail"]


async def test_a_user_has_a_role_of_their_own_and_runs_are_theirs_alone(make_app: MakeApp) -> None:
    app = make_app(proxy=PROXY)
    eve = through(app, PROOF, ("x-forwarded-user", "eve@example.org"))
    body = {"recipe": "adds", "inputs": {"a": 1}}
    assert (await eve.ask("POST", "/api/v1/runs", body, NO_TOKEN)).status == 202
    other = await eve.ask("POST", "/api/v1/runs", {**body, "user": "bob"}, NO_TOKEN)
    assert (other.status, other.json["code"]) == (403, "other-user")
    totals = {
        "eve": await eve.ask("GET", "/api/v1/runs?user=eve@example.org", None, NO_TOKEN),
        "staff": await through(app, PROOF, ANN, ("x-forwarded-groups", "staff")).ask(
            "GET", "/api/v1/runs", None, NO_TOKEN
        ),
        "oncall": await through(app, PROOF, ANN, OPERATORS).ask(
            "GET", "/api/v1/runs", None, NO_TOKEN
        ),
    }
    assert {who: reply.json["total"] for who, reply in totals.items()} == {
        "eve": 1,
        "staff": 0,
        "oncall": 1,
    }


async def test_who_decided_is_the_user_that_the_proxy_names(make_app: MakeApp) -> None:
    app = make_app(proxy=PROXY)
    client = through(app, PROOF, ANN, OPERATORS)
    begun = await client.ask("POST", "/api/v1/runs", {"recipe": "signs"}, NO_TOKEN)
    plain = Client(app)
    await plain.ended(begun.json["run_id"])
    (approval,) = (await plain.get("/approvals")).json["approvals"]
    path, body = f"/api/v1/approvals/{approval['id']}", {"digest": approval["digest"]}
    approve = {**body, "decision": "approve"}
    other = await client.ask("POST", path, {**approve, "by": "Bob"}, NO_TOKEN)
    assert (other.status, other.json["code"]) == (403, "other-name")
    assert (await client.ask("POST", path, approve, NO_TOKEN)).status == 202
    ended = await plain.ended(begun.json["run_id"])
    assert "ann@example.org" in str(ended["notes"])


@pytest.mark.parametrize("path", ["/api/v1/system", "/api/v1/health", "/metrics", "/", "/app.js"])
@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([ANN], "nothing proves"),
        ([OPERATORS], "nothing proves"),
        ([ANN, ("x-proxy-secret", "a-guess-of-the-secret")], "nothing proves"),
        ([ANN, ("x-proxy-secret", "")], "nothing proves"),
        ([ANN, PROOF, PROOF], "nothing proves"),
        ([ANN, ("x-proxy-secret", "a-guess"), PROOF], "nothing proves"),
        ([PROOF, ANN, ANN], "once"),
        ([PROOF, ANN, ("x-forwarded-user", "root")], "once"),
        ([PROOF, ANN, OPERATORS, ("x-forwarded-groups", "staff")], "once"),
        ([PROOF, OPERATORS], "once"),
        ([PROOF, ("x-forwarded-user", "")], "no name of a user"),
        ([PROOF, ("x-forwarded-user", "   ")], "no name of a user"),
        ([PROOF, ("x-forwarded-user", "ann, root")], "no name of a user"),
        ([PROOF, ("x-forwarded-user", "ann\x7f")], "no name of a user"),
        ([PROOF, ("x-forwarded-user", "a" * 101)], "no name of a user"),
    ],
)
async def test_a_header_without_proof_or_without_one_user_is_refused_even_beside_a_token(
    make_app: MakeApp, path: str, headers: list[tuple[str, str]], says: str
) -> None:
    client = through(make_app(proxy=PROXY), *headers)
    for token in (f"Bearer {TOKEN}", None):
        reply = await client.ask("GET", path, None, {"authorization": token})
        assert (reply.status, reply.json["code"]) == (401, "proxy-refused"), reply.body
        assert says in reply.json["detail"]
        assert SECRET not in reply.body.decode()


async def test_a_name_that_is_no_utf_8_is_refused(make_app: MakeApp) -> None:
    app = make_app(proxy=PROXY)

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        more = [(b"x-forwarded-user", b"\xff"), (b"x-proxy-secret", SECRET.encode())]
        await app({**scope, "headers": [*scope["headers"], *more]}, receive, send)

    reply = await Client(pass_on).get("/system")
    assert (reply.status, reply.json["code"]) == (401, "proxy-refused")


async def test_without_the_setting_no_header_says_who_it_is(make_app: MakeApp) -> None:
    app = make_app(tokens=TOKENS)
    client = through(app, PROOF, ANN, OPERATORS)
    assert (await client.ask("GET", "/api/v1/system", None, NO_TOKEN)).status == 401
    reply = await client.get("/system", authorization=f"Bearer {TEXTS[CallerRole.VIEWER]}")
    assert reply.json["caller"]["name"] == "viewer"


async def test_a_token_is_taken_beside_a_proxy_and_never_instead_of_its_user(
    make_app: MakeApp,
) -> None:
    app = make_app(proxy=PROXY)
    assert (await through(app, PROOF).get("/system")).json["caller"]["name"] is None
    by_both = await through(app, PROOF, ANN, ("x-forwarded-groups", "staff")).get("/system")
    assert by_both.json["caller"]["scopes"] == ["read"]


@pytest.mark.parametrize("groups", [None, "", "dev", "Staff", "staff2", "viewer"])
async def test_a_user_without_a_role_is_told_which_role_is_missing(
    make_app: MakeApp, groups: str | None
) -> None:
    more = [] if groups is None else [("x-forwarded-groups", groups)]
    client = through(make_app(proxy=PROXY), PROOF, ANN, *more)
    for path in ("/api/v1/runs", "/api/v1/system", "/v1/models", "/metrics", "/a2a"):
        reply = await client.ask("GET", path, None, NO_TOKEN)
        assert (reply.status, b"missing-role" in reply.body) == (403, True), path
        assert b"'ann@example.org' has no role on this server" in reply.body
        assert b"the role 'viewer'" in reply.body
    assert (await client.ask("GET", "/", None, NO_TOKEN)).status == 200  # the page says so, too


@pytest.mark.parametrize(
    ("peers", "peer", "status"),
    [
        (["127.0.0.1"], "127.0.0.1", 200),
        (["127.0.0.1"], "::ffff:127.0.0.1", 200),
        (["127.0.0.1"], "127.0.0.2", 401),
        (["10.1.0.0/24", "::1"], "10.1.0.7", 200),
        (["10.1.0.0/24", "::1"], "10.1.1.7", 401),
        (["10.1.0.0/24", "::1"], "::1", 200),
        (["127.0.0.1"], None, 401),
        (["127.0.0.1"], "testclient", 401),
    ],
)
async def test_a_proxy_is_proven_by_the_address_that_it_connects_from(
    make_app: MakeApp, peers: list[str], peer: str | None, status: int
) -> None:
    proxy = ProxyAccess(user_header="X-User", peers=peers, anyone=rights_of("viewer"))
    app = make_app(proxy=proxy)
    client = through(app, ("x-user", "ann"), ("x-forwarded-for", "127.0.0.1"), peer=peer)
    assert (await client.ask("GET", "/api/v1/system", None, NO_TOKEN)).status == status


async def test_where_an_address_and_a_secret_are_named_both_have_to_be_there(
    make_app: MakeApp,
) -> None:
    proxy = ProxyAccess(
        user_header="X-User",
        secret_header="X-Proxy-Secret",
        secret_sha256=digest_of(SECRET),
        peers=["10.0.0.1"],
        anyone=rights_of("viewer"),
    )
    app, user = make_app(proxy=proxy), ("x-user", "ann")
    statuses = [
        (await through(app, user, *more, peer=peer).ask("GET", "/api/v1/system", None, NO_TOKEN))
        for more, peer in (([PROOF], "10.0.0.1"), ([], "10.0.0.1"), ([PROOF], "10.0.0.2"))
    ]
    assert [reply.status for reply in statuses] == [200, 401, 401]


async def test_a_page_of_another_origin_acts_as_no_user_of_the_proxy(make_app: MakeApp) -> None:
    client = through(make_app(proxy=PROXY), PROOF, ANN, OPERATORS)
    headers = {"authorization": None, "origin": "https://evil.example"}
    reply = await client.ask("POST", "/api/v1/runs", {"recipe": "adds"}, headers)
    assert (reply.status, reply.json["code"]) == (403, "wrong-origin")


# --- projects -------------------------------------------------------------------------------------


async def test_a_token_has_another_role_in_each_project(recipes: Path) -> None:
    text = "a-token-with-roles-by-project"
    token = CallerToken.of("ann", text, projects={"shop": "operator", "news": "viewer"})
    options = ServerOptions(token=TOKEN, tokens=[token], grace_s=1.0)

    def app(name: str) -> Any:  # Any: evolve of attrs takes what create_app is given
        own = ServerOptions(token=TOKEN, tokens=[token], grace_s=1.0, project=name)
        return create_app(own, recipes=[recipes], settings=Settings(no_store=True))

    apps = {name: app(name) for name in ("shop", "news", "lab")}
    server = ProjectServer(apps, "shop", options, StandardLog())
    by = {"authorization": f"Bearer {text}"}
    body = {"recipe": "adds", "inputs": {"a": 1}}
    statuses = {
        name: (await Client(server).ask("POST", f"/projects/{name}/api/v1/runs", body, by))
        for name in apps
    }
    assert {name: (reply.status, reply.json.get("code")) for name, reply in statuses.items()} == {
        "shop": (202, None),
        "news": (403, "missing-scope"),
        "lab": (403, "missing-role"),
    }
    assert "no role in the project 'lab'" in statuses["lab"].json["detail"]
    listed = await Client(server).get("/projects", **by)
    assert [row["name"] for row in listed.json["projects"]] == ["shop", "news"]
    runs = await Client(server).get("/projects/runs", **by)
    assert [row["project"] for row in runs.json["runs"]] == ["shop"]
    everything = await Client(server).get("/projects")
    assert [row["name"] for row in everything.json["projects"]] == ["shop", "news", "lab"]
    await server.aclose()


# --- the file -------------------------------------------------------------------------------------


def file_with(folder: Path, text: str) -> Path:
    file = folder / "tokens.toml"
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    return file


def test_the_file_has_roles_of_tokens_and_a_proxy(tmp_path: Path) -> None:
    text = f"""
[[tokens]]
name = "ci"
token = "{TOKEN}"
role = "operator"
scopes = ["all"]
projects = {{news = "viewer"}}

[proxy]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"
secret_header = "X-Proxy-Secret"
secret = "{SECRET}"
peers = ["127.0.0.1", "10.0.0.0/8"]
role = "viewer"

[[proxy.groups]]
name = "finance"
role = "approver"

[[proxy.users]]
name = "ann@example.org"
projects = {{shop = "operator"}}
"""
    found = read_token_file(file_with(tmp_path, text))
    assert found.tokens == (
        CallerToken.of("ci", TOKEN, ["all"], role="operator", projects={"news": "viewer"}),
    )
    assert found.tokens[0].within("news") == {"read", "all"}
    assert found.proxy == ProxyAccess(
        user_header="X-Forwarded-User",
        groups_header="X-Forwarded-Groups",
        secret_header="X-Proxy-Secret",
        secret_sha256=digest_of(SECRET),
        peers=["127.0.0.1", "10.0.0.0/8"],
        anyone=rights_of("viewer"),
        groups={"finance": rights_of("approver")},
        users={"ann@example.org": rights_of(projects={"shop": "operator"})},
    )
    found.check_projects(("shop", "news"))
    with pytest.raises(UsageError, match="the project 'news', which this server does not have"):
        found.check_projects(("shop",))
    assert SECRET not in repr(found)
    assert digest_of(SECRET) not in repr(found)


_USER = 'user_header = "X-User"'


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (_USER, "Anybody could send the header"),
        ('secret_header = "X-S"\nsecret = "SECRET-SECRET-SECRET"', "`user_header` is needed"),
        (f'{_USER}\nsecret_header = "X-S"', "go together"),
        (f'{_USER}\nsecret = "SECRET-SECRET-SECRET"', "go together"),
        (f'{_USER}\nsecret_header = "X-S"\nsecret = "SECRET"', "at least 16"),
        (f'{_USER}\nsecret_header = "X-S"\nsha256 = "SECRET"', "lower case hexadecimal"),
        (
            f'{_USER}\nsecret_header = "X-S"\nsecret = "SECRET-SECRET-SECRET"\nsha256 = "a"',
            "either `secret` or `sha256`",
        ),
        (f'{_USER}\nsecret_header = "x-user"\nsecret = "SECRET-SECRET-SECRET"', "are different"),
        (f'{_USER}\npeers = ["proxy"]', "addresses or networks"),
        (f'{_USER}\npeers = "127.0.0.1"', "`peers` is a list"),
        (f'{_USER}\npeers = ["::1"]\nrole = "root"', "Roles are: viewer, approver, operator"),
        (f'{_USER}\npeers = ["::1"]\nrole = ["viewer"]', "`role` is a text"),
        (f'{_USER}\npeers = ["::1"]\nprojects = "a"', "`projects` is a table"),
        (f'{_USER}\npeers = ["::1"]\nscopes = ["rade"]', "Scopes are: read"),
        (f'{_USER}\npeers = ["::1"]\nuser_heder = ""', "did you mean 'user_header'"),
        (f'{_USER}\npeers = ["::1"]\n[[proxy.groups]]\nname = "a"\nrole = "viewer"', "need the"),
        (f'{_USER}\npeers = ["::1"]\n[[proxy.users]]\nname = "a"', "or at least one scope"),
        (f'{_USER}\npeers = ["::1"]\n[[proxy.users]]\nrole = "viewer"', "`name` of its own"),
        (f'{_USER}\npeers = ["::1"]\n[proxy.users]\nann = "viewer"', "are tables"),
        ('user_header = "Authorization"\npeers = ["::1"]', "none of authorization"),
        ('user_header = "X_User"\npeers = ["::1"]', "letters, digits and `-`"),
    ],
)
def test_a_fault_of_the_proxy_is_named_and_no_secret_is_repeated(
    tmp_path: Path, entry: str, says: str
) -> None:
    with pytest.raises(EnvironmentRefusedError) as refused:
        read_token_file(file_with(tmp_path, f"[proxy]\n{entry}\n"))
    assert says.lower() in str(refused.value).lower()
    assert "SECRET-SECRET" not in str(refused.value)
