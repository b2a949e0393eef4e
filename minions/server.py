"""The HTTP API as an ASGI application of your own; needs the extra `server`.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.interfaces.http.proxy_access import ProxyAccess
    from minions.interfaces.http.tokens import CallerToken, Rights, TokenScope, rights_of
    from minions.interfaces.server.app import App, create_app
    from minions.interfaces.server.server_options import ServerOptions


__all__ = [
    "App",
    "CallerToken",
    "ProxyAccess",
    "Rights",
    "ServerOptions",
    "TokenScope",
    "create_app",
    "rights_of",
]

_HOMES: Final = {
    "minions.interfaces.server.app": ("App", "create_app"),
    "minions.interfaces.server.server_options": ("ServerOptions",),
    "minions.interfaces.http.proxy_access": ("ProxyAccess",),
    "minions.interfaces.http.tokens": ("CallerToken", "Rights", "TokenScope", "rights_of"),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
