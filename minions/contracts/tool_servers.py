"""Servers of tools: how one is reached, and its tools as somebody looked at them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.contracts.tools import Effect
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.data.texts import shell_word

SERVER: Final = "mcp."
"""What stands before the name of a configured server in the name of its toolset."""
OWN_SERVER: Final = "mcp:"
"""What stands before the fingerprint of a recipe's own server in the name of its toolset."""


class Protocol(StrEnum):
    """Which revisions of the protocol are spoken with a server."""

    AUTO = "auto"
    """The stateless one where the server knows it, else those that begin with a handshake."""
    STATELESS = "2026-07-28"
    """The stateless one alone; nothing is asked before the first request."""
    HANDSHAKE = "handshake"
    """Only revisions that begin with `initialize`."""


class Grant(StrEnum):
    """How tokens for a server are had (OAuth)."""

    BROWSER = "browser"
    """A person logs in once: `minions mcp login`."""
    CLIENT_CREDENTIALS = "client-credentials"
    """The program logs in itself, by a name and a secret or a key."""


@frozen(kw_only=True)
class ServerLogin(FieldsRepr):
    """How one logs in to a server that asks for tokens."""

    grant: Grant = Grant.BROWSER
    client_id: str | None = None
    """Our name at the server that gives out tokens; a URL: the document that describes us. None: we
    register there."""
    client_secret: str | None = field(default=None, repr=False)
    """A text, or a reference to a secret."""
    private_key: str | None = field(default=None, repr=False)
    """The key that signs who we are, as PEM, or a reference to a secret that is."""
    issuer: str | None = None
    """The only server that is sent `client_secret`, or what `private_key` signs."""
    scope: str | None = None
    """What is asked for, separated by blanks; None: what the server asks for."""


def digest_of(value: JsonValue) -> str:
    """The SHA-256 of a value as JSON with sorted keys, in hex, with its name before it."""
    text = json.dumps(value, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


@frozen(kw_only=True)
class ToolServer(FieldsRepr):
    """How a server is reached: a command that is started, or an address that is asked."""

    name: str
    """What stands before the names of its tools, and in messages."""
    command: tuple[str, ...] = ()
    """The program with its arguments; empty: `url` is asked."""
    folder: str | None = None
    """The folder that the program starts in; None: the current one."""
    variables: Mapping[str, str] = field(factory=dict)
    """What the program finds in its environment: texts, or references to secrets."""
    url: str | None = None
    headers: Mapping[str, str] = field(factory=dict)
    """What is sent with each request: texts, or references to secrets."""
    login: ServerLogin | None = None
    """How tokens are had; None: nobody logs in to it."""
    protocol: Protocol = Protocol.AUTO
    only: tuple[str, ...] = ()
    """Names of the tools that are used, as the server calls them; empty: all."""
    start_timeout_s: float = 30.0
    """Seconds within which the server has to be ready and to list its tools."""
    max_calls: int = 8
    """Calls at a time; further ones wait."""
    is_of_program: bool = False
    """Whether a program names it (`Minions(mcp_servers=…)`), instead of the configuration."""

    @property
    def place(self) -> str:
        """Where it is set up, for messages."""
        return f"mcp_servers['{self.name}']" if self.is_of_program else f"[mcp.{self.name}]"

    @property
    def lock_command(self) -> str:
        """What locks its tools as they are now, for messages."""
        if self.is_of_program:
            return "`await minions.mcp.lock_servers(servers, lock)`"
        return f"`minions mcp lock {shell_word(self.name)}`"

    @property
    def fingerprint(self) -> str:
        """Tells this server from one that is reached in another way. Name, folder, limits and the
        values of secrets do not count.
        """
        return digest_of(
            {
                "command": list(self.command),
                "variables": dict(self.variables),
                "url": self.url,
                "headers": dict(self.headers),
                "protocol": self.protocol.value,
            }
        )

    @property
    def words(self) -> str:
        """What is started or asked, in words for people."""
        import shlex  # here: most commands show no server

        return shlex.join(self.command) if self.command else f"{self.url}"


def own_server(name: str, command: tuple[str, ...], url: str | None) -> ToolServer:
    """The server that a recipe brings along: nothing but what the recipe may say."""
    return ToolServer(name=name, command=command, url=url)


@frozen(kw_only=True)
class PinnedTool(FieldsRepr):
    """A tool as it was when somebody looked at it; nothing else of a server reaches a model."""

    name: str
    """The name that the server gives it."""
    shown_as: str
    """Its name behind that of the server: letters, digits, `_` and `-`."""
    description: str = ""
    parameters: JsonSchema
    output: JsonSchema | None = None
    """JSON Schema of its structured results; None: it declares none."""
    is_read_only: bool = False
    """Whether the server says that it changes nothing."""
    is_idempotent: bool = False
    """Whether the server says that calling it again with the same arguments changes no more."""

    @property
    def effect(self) -> Effect:
        """What the hints of the server say; without hints the most careful."""
        if self.is_read_only:
            return Effect.PURE
        return Effect.IDEMPOTENT if self.is_idempotent else Effect.ONCE

    def to_json(self) -> dict[str, JsonValue]:
        """The tool as lock files hold it."""
        return {
            "name": self.name,
            "shown_as": self.shown_as,
            "description": self.description,
            "parameters": dict(self.parameters),
            "output": dict(self.output) if self.output is not None else None,
            "is_read_only": self.is_read_only,
            "is_idempotent": self.is_idempotent,
        }

    @property
    def digest(self) -> str:
        """Tells the tool from one that differs in anything that matters here."""
        return digest_of(self.to_json())


@frozen(kw_only=True)
class PinnedServer(FieldsRepr):
    """A server with its tools as they were when somebody looked at them."""

    fingerprint: str
    """That of the `ToolServer` that was asked."""
    tools: tuple[PinnedTool, ...] = ()
    files: Mapping[str, str] | None = None
    """Hashes of the files beneath the folder of the lock that decide what its program runs, by the
    names that the command gives them; None: nobody looked at them."""
