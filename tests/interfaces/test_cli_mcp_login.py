"""`minions mcp login`: a person logs in once, and runs send and renew what that gave."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from mcp.client.auth import OAuthFlowError

from command_line import Cli, Write
from fake_login_server import SECRET, LoginServer, login_server
from minions import Minions
from minions.adapters.tools.mcp.bounded_http import CONNECT_TO, _connecting_to
from minions.adapters.tools.mcp.login import _GuardedLogin, _peer_of, login_of
from minions.adapters.tools.mcp.login_store import LoginStore
from minions.adapters.tools.mcp.mcp_failures import Ending
from minions.contracts.tool_servers import ServerLogin
from minions.data.errors import ToolServerError
from minions.mcp import McpSettings, Protocol, lock_servers

RECIPE = """\
id: r
tools: [mcp: private]
steps:
  - {id: said, tool: private__who}
output: "{{ said }}"
"""


@pytest.fixture
def server(write: Write) -> Iterator[LoginServer]:
    """A server that is configured, and a recipe that calls its tool."""
    write("r.yaml", RECIPE)
    with login_server() as running:
        write("minions.toml", f'[mcp.private]\nurl = "{running.url}"\nprotocol = "handshake"\n')
        yield running


def visit(url: str) -> bool:
    """A browser: follows wherever it is sent."""
    with urllib.request.urlopen(url) as answer:
        assert b"You are logged in" in answer.read()
    return True


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], bool]], None]:
    """Put a function in the place of the browser."""

    def put(open_: Callable[[str], bool]) -> None:
        monkeypatch.setattr("webbrowser.open", open_)

    put(visit)
    return put


def logins(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "data" / "minions" / "mcp-logins").glob("*"))


def changed(tmp_path: Path, **values: object) -> None:
    """Change what the login left."""
    (path,) = logins(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}))


@pytest.mark.usefixtures("browser")
def test_a_person_logs_in_once_and_runs_send_what_that_gave(
    cli: Cli, server: LoginServer, tmp_path: Path
) -> None:
    """A-135."""
    refused = cli("mcp", "lock", "private")
    assert refused.code == 1
    assert "(HTTP 401); log in: `minions mcp login private`" in refused.err
    done = cli("mcp", "login", "private")
    assert (done.code, done.out) == (
        0,
        "Logged in to private: 1 tools. Now let runs call them: minions mcp lock private\n",
    ), done.err
    assert f"{server.issuer}/authorization?" in done.err
    (kept,) = logins(tmp_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert cli("mcp", "lock", "private").code == 0
    ran = cli("run", "r.yaml", "--no-store", "--json")
    assert (ran.code, ran.json["output"]) == (0, "token-1"), ran.err
    assert (server.grants, server.visits) == (["authorization_code"], 1)


@pytest.mark.usefixtures("browser")
def test_tokens_that_are_over_are_renewed_where_they_came_from(
    cli: Cli, server: LoginServer, tmp_path: Path
) -> None:
    """Another process knows of them what was stored, and nothing else."""
    assert cli("mcp", "login", "private").code == 0
    assert cli("mcp", "lock", "private").code == 0
    changed(tmp_path, expires_at=1.0)
    ran = cli("run", "r.yaml", "--no-store", "--json")
    assert (ran.code, ran.json["output"]) == (0, "token-2"), ran.err
    assert server.grants == ["authorization_code", "refresh_token"]
    again = cli("run", "r.yaml", "--no-store", "--json")
    assert again.json["output"] == "token-2"
    assert server.visits == 1


@pytest.mark.usefixtures("browser")
def test_a_login_that_is_over_is_told_with_the_command_and_opens_no_browser(
    cli: Cli, server: LoginServer, tmp_path: Path
) -> None:
    assert cli("mcp", "login", "private").code == 0
    assert cli("mcp", "lock", "private").code == 0
    changed(tmp_path, expires_at=1.0)
    server.renews = False
    ran = cli("run", "r.yaml", "--no-store")
    assert ran.code == 1
    assert "mcp-login-needed" in ran.err
    assert "nobody is logged in any more" in " ".join(ran.err.split())
    assert "minions mcp login private" in " ".join(ran.err.split())
    assert server.visits == 1


@pytest.mark.usefixtures("browser")
def test_who_logs_out_is_asked_again(cli: Cli, server: LoginServer, tmp_path: Path) -> None:
    assert cli("mcp", "login", "private").code == 0
    assert cli("mcp", "logout", "private").out == "Logged out of private.\n"
    assert logins(tmp_path) == []
    assert cli("mcp", "logout", "private").out == "Nobody is logged in to private.\n"
    assert cli("mcp", "login", "private").code == 0
    assert server.visits == 2


def test_a_login_that_a_person_refuses_is_told(
    cli: Cli, server: LoginServer, browser: Callable[[Callable[[str], bool]], None]
) -> None:
    def refuse(url: str) -> bool:
        with urllib.request.urlopen(url) as answer:
            assert b"There was no login." in answer.read()
        return True

    server.refuses = True
    browser(refuse)
    done = cli("mcp", "login", "private")
    assert done.code == 1
    assert "the login was refused: access_denied" in done.err
    assert "Traceback" not in done.err


def test_what_comes_back_without_the_state_that_was_sent_is_not_heard(
    cli: Cli, server: LoginServer, browser: Callable[[Callable[[str], bool]], None]
) -> None:
    def visited_by_two(url: str) -> bool:
        back = dict(parse_qsl(urlsplit(url).query))["redirect_uri"]
        for path in ("?code=stolen&state=guessed", "?code=stolen", "/elsewhere", "?" + "a=b&" * 99):
            with pytest.raises((HTTPError, OSError)):
                urllib.request.urlopen(f"{back}{path}")
        return visit(url)

    browser(visited_by_two)
    assert cli("mcp", "login", "private").code == 0
    assert server.grants == ["authorization_code"]


@pytest.mark.usefixtures("browser")
def test_tokens_are_not_fetched_in_plain_text_from_elsewhere(cli: Cli, server: LoginServer) -> None:
    """The server says who gives them out: it may not send us round the inner network."""
    server.issuer_said = "http://169.254.169.254/latest"
    done = cli("mcp", "login", "private")
    assert done.code == 1
    assert "'http://169.254.169.254/" in done.err
    assert "which is not https" in done.err


INNER = [
    ("93.184.216.34", "https://169.254.169.254", ["169.254.169.254"]),
    ("93.184.216.34", "https://127.0.0.1:8443", ["127.0.0.1"]),
    ("93.184.216.34", "https://[::1]", ["::1"]),
    ("93.184.216.34", "https://[::ffff:10.0.0.1]", ["::ffff:10.0.0.1"]),
    ("93.184.216.34", "https://login.example", ["10.0.0.7"]),
    ("93.184.216.34", "https://login.example", ["93.184.216.35", "192.168.1.1"]),
    ("93.184.216.34", "https://0x7f.1", ["127.0.0.1"]),
    ("2606:2800:220:1::1", "https://login.example", ["fe80::1%eth0"]),
    ("2606:2800:220:1::1", "https://login.example", ["::"]),
    ("10.0.0.5", "https://login.example", ["127.0.0.1"]),
    ("10.0.0.5", "https://login.example", ["169.254.169.254"]),
    ("127.0.0.1", "https://login.example", ["169.254.169.254"]),
    ("127.0.0.1", "https://login.example", ["168.63.129.16"]),
    ("10.0.0.5", "https://login.example", ["::ffff:169.254.169.254"]),
    ("10.0.0.5", "https://login.example", ["0.0.0.0"]),
    ("10.0.0.5", "https://login.example", ["::"]),
    ("10.0.0.5", "https://login.example", ["224.0.0.1"]),
    ("10.0.0.5", "https://login.example", ["ff02::1"]),
]


@pytest.mark.parametrize(("peer", "said", "at"), INNER)
async def test_a_server_elsewhere_names_no_inner_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, peer: str, said: str, at: list[str]
) -> None:
    """A-153: by an address, by any spelling of one, or by a name that leads there."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return at

    monkeypatch.setattr("minions.adapters.tools.mcp.login.resolve_by_system", resolve)
    auth = a_login(tmp_path, peer)
    with pytest.raises(OAuthFlowError, match=r"at an inner address .*the server is elsewhere"):
        await auth._checked_address(f"{said}/token")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "login.example"])
async def test_only_a_server_here_sends_its_login_here_in_plain_text(
    tmp_path: Path, host: str
) -> None:
    with pytest.raises(OAuthFlowError, match="which is not https"):
        await a_login(tmp_path, "127.0.0.1")._checked_address(f"http://{host}/token")


async def test_a_server_with_several_addresses_is_as_far_as_its_farthest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While its answer has not told from which it comes."""

    async def resolve(host: str, _port: int) -> list[str]:
        return ["10.0.0.7"] if host == "login.example" else ["10.0.0.6", "93.184.216.34"]

    monkeypatch.setattr("minions.adapters.tools.mcp.login.resolve_by_system", resolve)
    with pytest.raises(OAuthFlowError, match="an inner address"):
        await a_login(tmp_path, None)._checked_address("https://login.example/token")


@pytest.mark.parametrize("about", [None, "/a/socket", b"", ("10.0.0.7", 443)])
def test_a_connection_without_an_address_says_nothing(about: object) -> None:
    class Stream:
        def get_extra_info(self, _name: str) -> object:
            return about

    assert _peer_of(httpx2.Response(200)) is None
    found = _peer_of(httpx2.Response(200, extensions={"network_stream": Stream()}))
    assert found == ("10.0.0.7" if isinstance(about, tuple) else None)


@pytest.mark.usefixtures("browser", "server")
def test_where_the_server_is_its_connection_says(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may mean another address when it is looked up again."""
    found: list[str | None] = []

    def peer_of(response: httpx2.Response) -> str | None:
        found.append(_peer_of(response))
        return found[-1]

    monkeypatch.setattr("minions.adapters.tools.mcp.login._peer_of", peer_of)
    assert cli("mcp", "login", "private").code == 0
    assert set(found) == {"127.0.0.1"}


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize("said", ["https://login.example", "https://127.0.0.1:1"])
def test_a_login_that_leads_to_an_inner_address_ends_there(
    cli: Cli, server: LoginServer, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A-153."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr("minions.adapters.tools.mcp.login.resolve_by_system", resolve)
    monkeypatch.setattr("minions.adapters.tools.mcp.login._peer_of", lambda _: "93.184.216.34")
    server.issuer_said = said
    done = cli("mcp", "login", "private")
    assert (done.code, "is at an inner address (127.0.0.1)" in done.err) == (1, True), done.err


def a_login(folder: Path, peer: str | None) -> _GuardedLogin:
    store = LoginStore.of(folder, "https://mcp.example/mcp", None)
    store.write({"tokens": {"access_token": "t"}})
    auth = login_of("https://mcp.example/mcp", ServerLogin(), store, Ending())
    assert isinstance(auth, _GuardedLogin)
    auth._peer = peer
    return auth


@pytest.mark.parametrize(
    ("peer", "at", "is_taken"),
    [
        ("93.184.216.34", ["93.184.216.35"], True),
        ("10.0.0.5", ["10.0.0.6"], True),
        ("10.0.0.5", ["93.184.216.35"], True),
        ("127.0.0.1", ["10.0.0.6"], True),
        (None, ["93.184.216.35"], True),
        (None, ["10.0.0.6"], False),
    ],
)
async def test_the_login_goes_to_the_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, peer: str | None, at: list[str], is_taken: bool
) -> None:
    """A-153: what the name means a moment later does not count."""

    async def resolve(host: str, port: int) -> list[str]:
        return at if host == "login.example" else ["93.184.216.34"]

    monkeypatch.setattr("minions.adapters.tools.mcp.login.resolve_by_system", resolve)
    auth = a_login(tmp_path, peer)
    if not is_taken:
        with pytest.raises(OAuthFlowError, match="an inner address"):
            await auth._checked_address("https://login.example/token")
        return
    address = await auth._checked_address("https://login.example/token")
    assert address == at[0]
    assert await auth._checked_address("https://mcp.example/other") is None
    request = httpx2.Request("POST", "https://login.example/token", content=b"x")
    request.extensions = {CONNECT_TO: address}
    sent = _connecting_to(request)
    assert (sent.url.host, sent.headers["host"]) == (address, "login.example")
    assert sent.extensions["sni_hostname"] == "login.example"
    assert _connecting_to(httpx2.Request("GET", "https://a.example/")).url.host == "a.example"


def test_a_server_that_does_not_answer_has_its_own_time(cli: Cli, write: Write) -> None:
    """Only a person has the time that a person takes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        write("minions.toml", f'[mcp.private]\nurl = "{url}"\nstart_timeout_s = 0.2\n')
        done = cli("mcp", "login", "private")
    assert done.code == 1
    assert "The MCP server 'private' was not ready within 0.2 s." in done.err


def test_a_login_that_fails_is_told_without_a_traceback_or_the_same_advice(
    cli: Cli, server: LoginServer
) -> None:
    server.registers = False
    done = cli("mcp", "login", "private")
    assert done.code == 1
    assert "error[mcp-login-needed]" in done.err
    assert "Registration failed: 403" in done.err
    assert "log in:" not in done.err
    assert "Traceback" not in done.err


def test_a_lock_of_nothing_is_not_called_one(cli: Cli, write: Write) -> None:
    write("minions.toml", '[mcp.private]\ncommand = ["/nowhere/at-all"]\n')
    done = cli("mcp", "lock")
    assert done.code == 1
    assert "Locked in" not in done.err


async def test_a_program_sends_what_a_login_left(
    cli: Cli, server: LoginServer, browser: Callable[[Callable[[str], bool]], None], here: Path
) -> None:
    """A-135."""
    servers = {"private": McpSettings(url=server.url, protocol=Protocol.HANDSHAKE)}
    lock = here / "program.lock.json"
    with pytest.raises(ToolServerError, match="has the same address") as refused:
        await lock_servers(servers, lock)
    assert refused.value.error_code == "mcp-login-needed"
    assert (await asyncio.to_thread(cli, "mcp", "login", "private")).code == 0
    await lock_servers(servers, lock)
    async with Minions(mcp_servers=servers, mcp_lock=lock) as app:
        assert (await app.arun("r.yaml")).unwrap() in server.valid


CREDENTIALS = """\
[mcp.private]
url = "{url}"
protocol = "handshake"
oauth = "client-credentials"
client_id = "robot"
client_secret = "env:ROBOT_SECRET"
issuer = "{issuer}"
"""


def test_a_program_logs_in_by_its_secret(
    cli: Cli, write: Write, server: LoginServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-135."""
    write("minions.toml", CREDENTIALS.format(url=server.url, issuer=server.issuer))
    monkeypatch.setenv("ROBOT_SECRET", SECRET)
    assert cli("mcp", "lock", "private").code == 0
    ran = cli("run", "r.yaml", "--no-store", "--json")
    assert ran.code == 0, ran.err
    assert set(server.grants) == {"client_credentials"}
    assert logins(tmp_path) == []
    monkeypatch.setenv("ROBOT_SECRET", "another-secret")
    server.valid = set()
    refused = cli("run", "r.yaml", "--no-store")
    words = " ".join(refused.err.split())
    assert "mcp-login-needed" in words
    assert "look at client_id, client_secret and issuer of [mcp.private]" in words
    assert "another-secret" not in words


def _pem(key: PrivateKeyTypes) -> str:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


def _by_key(url: str, issuer: str) -> str:
    secret = 'client_secret = "env:ROBOT_SECRET"'
    table = CREDENTIALS.replace(secret, 'private_key = "env:ROBOT_KEY"')
    return table.format(url=url, issuer=issuer)


Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
KEYS: dict[str, Callable[[], Key]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "RSA": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_program_logs_in_by_what_its_key_signs(
    cli: Cli,
    write: Write,
    server: LoginServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """A-135."""
    key = KEYS[kind]()
    server.public_key = key.public_key()
    write("minions.toml", _by_key(server.url, server.issuer))
    monkeypatch.setenv("ROBOT_KEY", _pem(key))
    assert cli("mcp", "lock", "private").code == 0
    ran = cli("run", "r.yaml", "--no-store", "--json")
    assert ran.code == 0, ran.err
    assert set(server.grants) == {"client_credentials"}
    assert logins(tmp_path) == []
    monkeypatch.setenv("ROBOT_KEY", _pem(KEYS[kind]()))
    server.valid = set()
    refused = cli("run", "r.yaml", "--no-store")
    words = " ".join(refused.err.split())
    assert "mcp-login-needed" in words
    assert "look at client_id, private_key and issuer of [mcp.private]" in words
    assert "PRIVATE KEY" not in words


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("my-secret-key", "its private key cannot be read: expected PEM of an RSA, P-256"),
        (_pem(ed448.Ed448PrivateKey.generate()), "its private key is of another kind: expected"),
    ],
)
def test_a_key_that_cannot_sign_is_refused_without_being_shown(
    cli: Cli,
    write: Write,
    server: LoginServer,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    told: str,
) -> None:
    write("minions.toml", _by_key(server.url, server.issuer))
    monkeypatch.setenv("ROBOT_KEY", key)
    refused = cli("mcp", "lock", "private")
    words = " ".join(refused.err.split())
    assert refused.code != 0
    assert f"The MCP server 'private' cannot be logged in to: {told}" in words
    assert "my-secret-key" not in words
    assert server.grants == []


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('client_id = "x"\nprivate_key = "env:X"', "belongs to oauth = 'client-credentials'"),
        (
            'oauth = "client-credentials"\nclient_secret = "env:X"\nprivate_key = "env:X"',
            "it has one of 'client_secret' and 'private_key'",
        ),
        (
            'oauth = "client-credentials"\nclient_id = "x"\nprivate_key = "env:X"',
            "oauth = 'client-credentials' needs 'issuer'",
        ),
        ('oauth = "client-credentials"', "oauth = 'client-credentials' needs 'client_id'"),
        ('client_secret = "env:X"', "'client_secret' needs 'client_id'"),
        ('oauth = "device"', "one of browser, client-credentials"),
        ('command = ["a"]\nscope = "x"', "it has one of 'command' and 'url'"),
    ],
)
def test_half_a_login_is_refused_by_its_key(cli: Cli, write: Write, table: str, told: str) -> None:
    write("minions.toml", f'[mcp.private]\nurl = "https://h.example/mcp"\n{table}\n')
    refused = cli("mcp", "list")
    assert refused.code == 2
    assert told in " ".join(refused.err.split())


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('command = ["a"]', "it is a program that is started"),
        ('url = "http://h.example/mcp"', "tokens would be sent in plain text"),
    ],
)
def test_nobody_logs_in_where_that_makes_no_sense(
    cli: Cli, write: Write, table: str, told: str
) -> None:
    write("minions.toml", f"[mcp.private]\n{table}\n")
    refused = cli("mcp", "login", "private")
    assert refused.code == 2
    assert told in " ".join(refused.err.split())
    assert "There is no MCP server 'privat'. Did you mean 'private'" in " ".join(
        cli("mcp", "login", "privat").err.split()
    )
