"""An MCP server over HTTP that asks for a login, and the server that gives out its tokens."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any  # Any: JSON as it comes
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from attrs import define, field

__all__ = ["SECRET", "LoginServer", "login_server"]

SECRET = "a-secret-of-nobody"


@define
class LoginServer:
    """What the two servers on this machine do, and what they were asked."""

    url: str = ""
    """Of the MCP server; the other one has another origin."""
    issuer: str = ""
    expires_in: int = 3600
    refuses: bool = False
    """Whether a person says no."""
    renews: bool = True
    registers: bool = True
    issuer_said: str | None = None
    """What the MCP server says of who gives out tokens; None: the truth."""
    valid: set[str] = field(factory=set)
    """Access tokens that are taken."""
    public_key: Any = None
    """What checks the signatures of a program; None: it shows its secret."""
    grants: list[str] = field(factory=list)
    """The kind of each token that was asked for."""
    visits: int = 0

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any, Any]:
        parts = urlsplit(path)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/mcp":
            return self._protocol(method, headers, body)
        if parts.path.startswith("/.well-known/oauth-protected-resource"):
            issuers = [self.issuer_said or self.issuer]
            return 200, {"resource": self.url, "authorization_servers": issuers}, {}
        if parts.path == "/.well-known/oauth-authorization-server":
            ends = {f"{each}_endpoint": f"{self.issuer}/{each}" for each in _ENDPOINTS}
            ways = {
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "grant_types_supported": ["authorization_code", "client_credentials"],
            }
            return 200, {"issuer": self.issuer, **ends, **ways}, {}
        if parts.path == "/registration" and not self.registers:
            return 403, {"error": "invalid_client_metadata"}, {}
        if parts.path == "/registration":
            return 201, {**json.loads(body), "client_id": "registered"}, {}
        if parts.path == "/authorization":
            self.visits += 1
            said = {"error": "access_denied"} if self.refuses else {"code": "c"}
            back = urlencode({**said, "state": query["state"]})
            return 302, {}, {"Location": f"{query['redirect_uri']}?{back}"}
        if parts.path == "/token":
            return self._token(dict(parse_qsl(body.decode())), headers)
        return 404, {}, {}

    def _token(self, said: dict[str, str], headers: Any) -> tuple[int, Any, Any]:
        grant = said["grant_type"]
        if grant == "refresh_token" and not self.renews:
            return 400, {"error": "invalid_grant"}, {}
        if grant == "client_credentials" and self.public_key is not None:
            signed = said.get("client_assertion", "")
            ways = ["ES256", "RS256", "EdDSA"]
            try:
                who = jwt.decode(signed, self.public_key, ways, audience=self.issuer)["sub"]
            except jwt.InvalidTokenError:
                who = ""
            if who != "robot" or said["client_assertion_type"] != _SIGNED:
                return 401, {"error": "invalid_client"}, {}
        elif grant == "client_credentials":
            basic = base64.b64encode(f"robot:{SECRET}".encode()).decode()
            if headers.get("Authorization") != f"Basic {basic}":
                return 401, {"error": "invalid_client"}, {}
        self.grants.append(grant)
        token = f"token-{len(self.grants)}"
        self.valid = {token}
        found = {"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in}
        return 200, {**found, "refresh_token": "r"}, {}

    def _protocol(self, method: str, headers: Any, body: bytes) -> tuple[int, Any, Any]:
        if method != "POST":
            return 405, {}, {}
        sent = headers.get("Authorization", "").removeprefix("Bearer ")
        if sent not in self.valid:
            where = self.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
            return 401, {}, {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'}
        asked = json.loads(body)
        if "id" not in asked:
            return 202, None, {}
        result: Any = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            },
            "tools/list": {
                "tools": [
                    {
                        "name": "who",
                        "description": "Says who asks.",
                        "inputSchema": {"type": "object", "properties": {}},
                        "annotations": {"readOnlyHint": True},
                    }
                ]
            },
            "tools/call": {"content": [{"type": "text", "text": sent}]},
        }[asked["method"]]
        return 200, {"jsonrpc": "2.0", "id": asked["id"], "result": result}, {}


_SIGNED = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ENDPOINTS = ("authorization", "token", "registration")


@contextlib.contextmanager
def login_server() -> Iterator[LoginServer]:
    """Both servers, in threads."""
    state = LoginServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that the base class calls
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, answer, headers = state.answer(self.command, self.path, self.headers, body)
            content = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_DELETE = do_POST  # noqa: N815  # as above

        def log_message(self, *words: object) -> None:
            """Nothing is printed."""

    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(2):
            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = True
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ports.append(server.server_address[1])
        state.url, state.issuer = f"http://127.0.0.1:{ports[0]}/mcp", f"http://127.0.0.1:{ports[1]}"
        yield state
