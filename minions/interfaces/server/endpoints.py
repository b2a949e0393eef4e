"""What an endpoint is: its path, what it takes and gives, and who answers. Rows of one table.

The routes and the OpenAPI document are both made of these, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from minions.interfaces.server.http.responses import AsgiApp

if TYPE_CHECKING:
    from minions.interfaces.server.app_state import AppState

__all__ = ["Call", "Endpoint", "EventData", "Nothing"]

B_co = TypeVar("B_co", covariant=True)
Q_co = TypeVar("Q_co", covariant=True)


@frozen(kw_only=True)
class Nothing:
    """No keys at all."""


class EventData:
    """Stands for a stream of events where a body's type is asked for."""


@frozen(kw_only=True)
class Call(Generic[Q_co, B_co]):
    """One request, read and checked."""

    app_state: AppState
    path: Mapping[str, str]
    """What stands in the path's places."""
    query: Q_co
    body: B_co
    headers: Mapping[str, str]
    """Names in lower case; the declared ones and no others."""
    root: str
    """Where the app is mounted: before paths that are given out."""

    def link(self, path: str) -> str:
        """That path of this app, for a caller."""
        return f"{self.root}/api/v1{path}"


Handler: TypeAlias = Callable[[Call[Any, Any]], Awaitable[AsgiApp]]  # Any: each its own query, body


@frozen(kw_only=True)
class Endpoint:
    """One way to ask."""

    method: str
    path: str
    """Under `/api/v1`, with `{name}` where something stands in."""
    name: str
    """Unique; in camel case, for generated clients."""
    summary: str
    handler: Handler
    query: type[object] = Nothing
    body: type[object] | None = None
    """None: it takes none."""
    headers: Mapping[str, str] = field(factory=dict)
    """Names in lower case, to what they are for."""
    gives: Mapping[int, object] = field(factory=dict)
    """Status to the type of the body; `EventData`: a stream; None: no body."""
    media_types: Mapping[str, str] = field(factory=dict)
    """Further media types of its 200, to what they are."""
    refuses: tuple[int, ...] = ()
    """Statuses of problems, beside those that any request may meet."""
    is_public: bool = False
    """Whether it takes no token."""
