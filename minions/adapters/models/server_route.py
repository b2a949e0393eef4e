"""URL, headers and time limits of requests to a server; also those that an SDK client has set."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from attrs import field, frozen
from msgspec import Struct

from minions.adapters.http.request_rules import check_header
from minions.adapters.models.endpoints import OperatorModels, base_url_of, resolve_endpoint
from minions.data.errors import UsageError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


_CONNECT_S: Final = 10.0


@frozen(kw_only=True, eq=False, repr=False)
class ServerRoute:
    """URL, headers and time limits of every request to the server."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    connect_s: float = _CONNECT_S
    most_s: float = math.inf
    """Seconds: an upper limit for every call, whatever the options say."""

    @property
    def is_encrypted(self) -> bool:
        """Whether requests go by HTTPS."""
        return self.url.startswith("https:")


def default_headers(api_key: str | None) -> dict[str, str]:
    """The headers of every request; with a key also the Authorization header."""
    own = {
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "minions",
    }
    return own if api_key is None else {**own, "Authorization": f"Bearer {api_key}"}


def with_headers(usual: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The headers, changed as `more` sets them.

    Raises:
        EnvironmentRefusedError: A value is not valid in HTTP.
    """
    known = {name.lower() for name in more}
    kept = {name: value for name, value in usual.items() if name.lower() not in known}
    return kept | {name: check_header(each, f"the header {name}") for name, each in more.items()}


def openai_itself(model: str, api_key: str | None) -> tuple[str, str | None]:
    """URL and key of OpenAI's own server, as for recipes that name `openai/…`.

    Raises:
        EnvironmentRefusedError: `no-key`.
    """
    return provider_itself("openai", model, api_key)


def provider_itself(provider: str, model: str, api_key: str | None) -> tuple[str, str | None]:
    """URL and key of a built-in provider's own server, as for recipes that name its models.

    Args:
        api_key: None: that of the provider's variable.
    Raises:
        EnvironmentRefusedError: `no-key`.
    """
    name, nobody = f"{provider}/{model}", OperatorModels()
    if api_key is not None:
        return base_url_of(name, _NoWishes(), os.environ, nobody), api_key
    endpoint = resolve_endpoint(name, _NoWishes(), os.environ, nobody)
    return endpoint.base_url, endpoint.api_key


class _NoWishes(Struct, frozen=True):
    """The endpoint settings of a recipe that has none."""

    base_url: str | None = None
    api_key_env: str | None = None
    min_confidence: float | None = None


def sdk_client(client: object) -> AsyncOpenAI | OpenAI:
    """The SDK client itself, out of the client of `instructor` around it.

    Raises:
        UsageError: `unknown-client`: it is none, or its requests differ from those of
            `OpenAIModel`.
    """
    from openai import AsyncOpenAI, OpenAI

    is_wrapped = type(client).__module__.partition(".")[0] == "instructor"
    found = getattr(client, "client", None) if is_wrapped else client
    if isinstance(found, AsyncOpenAI | OpenAI) and found.auth_headers:
        # The SDK's own subclasses, as Azure's, address models and sign requests in their own ways.
        kinds = [each for each in type(found).__mro__ if issubclass(each, AsyncOpenAI | OpenAI)]
        own = [each for each in kinds if each.__module__.partition(".")[0] == "openai"]
        if own in ([AsyncOpenAI], [OpenAI]):
            return found
    raise UsageError(
        f"The client is a {type(found).__name__} without a plain `api_key`, or one that addresses "
        "models in a way of its own. Expected an `openai.AsyncOpenAI` or `openai.OpenAI` with "
        "`api_key=` and `base_url=`, or instructor's client of one; for a server without keys any "
        "text will do as key.",
        code="unknown-client",
    )


def route_of_client(client: AsyncOpenAI | OpenAI, base_url: str) -> ServerRoute:
    """The URL, headers and time limits of the client's requests.

    Raises:
        EnvironmentRefusedError: A header of the client is not valid in HTTP.
    """
    query = urlencode({key: str(value) for key, value in client.default_query.items()})
    timeout = client.timeout
    connect_s: float | None = None
    if timeout is None or isinstance(timeout, float | int):
        most_s = timeout
    else:
        connect_s, most_s = timeout.connect, timeout.read
    return ServerRoute(
        url=f"{base_url}/chat/completions{'?' if query else ''}{query}",
        headers=_headers_of(client),
        connect_s=_CONNECT_S if connect_s is None else connect_s,
        most_s=math.inf if most_s is None else most_s,
    )


def _headers_of(client: AsyncOpenAI | OpenAI) -> dict[str, str]:
    """The headers of `OpenAIModel`, changed as the client sets or omits them."""
    said = client.default_headers
    known = {name.lower() for name in said}
    headers = {
        name: value
        for name, value in default_headers(client.api_key).items()
        if name.lower() not in known
    }
    for name, value in said.items():
        # These headers describe the SDK's own transport, which is not used.
        if isinstance(value, str) and not name.lower().startswith("x-stainless-"):
            headers[name] = check_header(value, f"the client's header {name}")
    return headers


_OPEN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-type",
        "user-agent",
        "openai-organization",
        "openai-project",
    }
)


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers that no message may show."""
    return tuple(
        value for name, value in headers.items() if value and name.lower() not in _OPEN_HEADERS
    )
