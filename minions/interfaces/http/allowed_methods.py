"""Answers to OPTIONS: the methods of each path, all of them.

Litestar makes its own answer when it registers the first method of a path, and knows no later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from re import Pattern

from minions.interfaces.http.responses import AsgiApp, NoContent, Receive, Scope, Send


class AllowedMethods:
    """Answers OPTIONS for known paths, and passes all else to the app."""

    def __init__(self, app: AsgiApp, methods: Mapping[str, Sequence[str]]) -> None:
        """Answer instead of `app`.

        Args:
            methods: By path, with `{name}` for its variable parts.
        """
        self._app = app
        self._known = [(_pattern(path), sorted(allowed)) for path, allowed in methods.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        allowed = self._allowed(scope["path"]) if scope.get("method") == "OPTIONS" else None
        answer = self._app if allowed is None else NoContent({"allow": ", ".join(allowed)})
        await answer(scope, receive, send)

    def _allowed(self, path: str) -> Sequence[str] | None:
        fitting = (allowed for pattern, allowed in self._known if pattern.fullmatch(path))
        return next(fitting, None)


def _pattern(path: str) -> Pattern[str]:
    parts = re.split(r"\{\w+\}", path)
    return re.compile("[^/]+".join(map(re.escape, parts)) + "/?")
