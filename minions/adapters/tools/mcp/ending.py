"""Why a connection ended: noted once, by whoever sees it first."""

from __future__ import annotations

import asyncio

from attrs import define, field


@define(eq=False)
class Ending:
    """The end of a connection, which calls in flight report."""

    code: str | None = field(default=None, init=False)
    what: str | None = field(default=None, init=False)
    """What the server did, for a message; None: nothing was noted."""
    status: int | None = field(default=None, init=False)
    """The last status over HTTP that refused a request; None: none did."""
    is_wanted: bool = field(default=False, init=False)
    """Whether we end it."""
    seen: asyncio.Event = field(factory=asyncio.Event, init=False)

    def note(self, code: str, what: str) -> None:
        """Note what ended it; the first note counts."""
        if self.what is None:
            self.code, self.what = code, what
        self.seen.set()

    def want(self) -> None:
        """End it; nothing is waited for where it ended by itself already."""
        self.is_wanted = self.what is None
        self.seen.set()
