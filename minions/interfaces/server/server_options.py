"""The options of the server; those of recipes and runs are settings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt

from minions.contracts.journal.start_note import QueuePlace
from minions.data.errors import UsageError
from minions.interfaces.http.proxy_access import ProxyAccess
from minions.interfaces.http.tokens import CallerToken, check_token

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _check_token(options: ServerOptions, _attribute: Attribute[str], token: str) -> None:
    if token or not (options.tokens or options.proxy):
        check_token(token)


def _check_tokens(
    _options: ServerOptions, _attribute: Attribute[tuple[CallerToken, ...]], tokens: _Tokens
) -> None:
    for what in ("name", "sha256"):
        if len({getattr(each, what) for each in tokens}) < len(tokens):
            raise UsageError(f"Two tokens have the same {what}.", code="bad-token")


_Tokens: TypeAlias = tuple[CallerToken, ...]


def _as_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower().strip("[]") for name in names)


def _as_origins(origins: Iterable[str]) -> frozenset[str]:
    return frozenset(origins)


def _as_tokens(tokens: Iterable[CallerToken]) -> tuple[CallerToken, ...]:
    return tuple(tokens)


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


_ORIGIN: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?"
)
_USUAL_PORTS: Final = (("http", "80"), ("https", "443"))


def _check_origins(
    _options: ServerOptions, _attribute: Attribute[frozenset[str]], origins: frozenset[str]
) -> None:
    for origin in sorted(origins):
        found = _ORIGIN.match(origin.strip().lower())
        near = "" if found is None else found[0]
        if origin == "*":
            why = "every page that somebody opens could ask then. Name each origin"
        elif origin == "null":
            why = "files and sandboxed frames of anybody have it. Serve the page at an address"
        elif found is not None and found.groups() in _USUAL_PORTS:
            near = near.rpartition(":")[0]
            why = "browsers leave this port out, and send another text"
        elif near and near == origin:
            continue
        else:
            why = "an origin is scheme://host or scheme://host:port, in lower case, without a path"
        raise UsageError(
            f"The origin {origin!r:.200}: {why}, such as {near or 'http://localhost:3000'}.",
            code="bad-origin",
        )


@frozen(kw_only=True)
class ServerOptions:
    """Who may send requests, and how much the server does at a time."""

    token: str = field(default="", validator=_check_token, repr=False)
    """The secret that requests send as `Authorization: Bearer …`, but for health and the page. Who
    has it may do everything. Empty: there are only `tokens` and `proxy`."""
    tokens: tuple[CallerToken, ...] = field(
        default=(), converter=_as_tokens, validator=_check_tokens
    )
    """Tokens with names, each with its own scopes."""
    proxy: ProxyAccess | None = None
    """Whose headers say who sends a request; None: no header does."""
    project: str | None = None
    """The project whose roles callers have here; None: those that they have in no project."""
    hosts: frozenset[str] = field(default=LOOPBACK_NAMES, converter=_as_names)
    """Names that the `Host` header may have, without port."""
    origins: frozenset[str] = field(
        default=frozenset(), converter=_as_origins, validator=_check_origins
    )
    """Origins of pages that may send requests and read the answers (CORS), beside the server's own:
    `https://example.org`. They need a token as all others do; what they ask with a cookie they
    cannot read."""
    max_body_bytes: int = field(default=1_048_576, validator=ge(1))
    max_connections: int = field(default=2_500, validator=ge(1))
    """The most requests at a time, with streams."""
    head_timeout_s: float = field(default=5.0, validator=gt(0))
    """Seconds in which the head of a request has to come, where `minions serve` listens."""
    max_followers: int = field(default=2_000, validator=ge(1))
    """The most streams at a time."""
    max_runs: int = field(default=100, validator=ge(1))
    """The most runs at a time."""
    queue_frames: int = field(default=1_024, validator=ge(2))
    """How many events may wait for one follower; a slower one is cut off."""
    heartbeat_s: float = field(default=15.0, validator=gt(0))
    grace_s: float = field(default=3.0, validator=ge(0))
    """How many seconds runs have to end when the server stops."""
    recover_s: float = field(default=5.0, validator=gt(0))
    """Seconds between two searches for runs whose worker has died."""
    public_url: str | None = None
    """The address of the page for people, as hooks are told it; None: it is not known."""
    plan_workspaces: tuple[str, ...] = field(default=(), converter=_as_texts)
    """Folders in which requests may have tasks planned and carried out; empty: they may not."""
    input_folders: tuple[str, ...] = field(default=(), converter=_as_texts)
    """Folders beneath which requests may choose folders and files, where a recipe takes a path as
    an input, beside those beneath the working folder and the folders of recipes."""
    queue: QueuePlace | None = None
    """Where runs are queued for workers; None: the server executes them itself."""
    allow_recipe_bodies: bool = False
    """Whether a request may contain the text of a recipe, which can call every tool there is."""
