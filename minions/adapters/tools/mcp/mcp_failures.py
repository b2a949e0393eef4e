"""How servers fail, how much they may send, and why their connections ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from attrs import define, field

from minions.data.errors import ToolServerError

if TYPE_CHECKING:
    import asyncio


FAILED: Final = "mcp-server-failed"
"""Code of a call whose server cannot be started or reached, or does not speak the protocol."""
ENDED: Final = "mcp-server-ended"
"""Code of a call during which the connection to the server ended."""
FLOODED: Final = "mcp-server-flooded"
"""Code of a call whose server sent more than is taken."""
CHANGED: Final = "mcp-tools-changed"
"""Code of a call of a tool that is not as it was when somebody looked at it."""
NOT_LOCKED: Final = "mcp-not-locked"
"""Code of a run with a server whose tools nobody has looked at."""
BAD_RESULT: Final = "mcp-bad-result"
"""Code of a call whose result is none, or does not fit what the tool declares."""
REFUSED: Final = "mcp-refused"
"""Code of a call that the server refused: a wrong key, no right, an unknown method."""
NEEDS_HANDSHAKE: Final = "mcp-needs-handshake"
"""Code of a call whose server asks a person, which it cannot without `initialize`."""
REPLACED: Final = "mcp-program-replaced"
"""Code of a call whose server's program is not the one that somebody looked at."""
LOGIN: Final = "mcp-login-needed"
"""Code of a call whose server asks for a login that nobody did, or that is over."""
NO_EXTRA: Final = "missing-extra"


def failed(name: str, what: str, *, code: str = FAILED, transient: bool = False) -> ToolServerError:
    """The failure of the server of that name.

    Args:
        what: What happened, without a full stop.
        transient: Whether the same call may succeed later.
    """
    return ToolServerError(f"The MCP server '{name}' {what}.", code=code, is_transient=transient)


# --- why a connection ended ----------------------------------------------------------------------


def _make_event() -> asyncio.Event:
    import asyncio  # a command that asks no server loads this module, and no event loop

    return asyncio.Event()


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
    _seen: asyncio.Event = field(factory=_make_event, init=False)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._seen.is_set()

    async def wait(self) -> Literal[True]:
        """Until it ends."""
        return await self._seen.wait()

    def finish(self) -> None:
        """It has ended."""
        self._seen.set()

    def note(self, code: str, what: str) -> None:
        """Note what ended it; the first note counts."""
        if self.what is None:
            self.code, self.what = code, what
        self._seen.set()

    def want(self) -> None:
        """End it; nothing is waited for where it ended by itself already."""
        self.is_wanted = self.what is None
        self._seen.set()


# --- how much a server may send ------------------------------------------------------------------


MOST_MESSAGE_BYTES: Final = 8 * 1_048_576
"""Bytes of one message: a few images in base64."""
_UNCOUNTED_BYTES: Final = 1_048_576
"""A message up to here is parsed in some 40 ms, whatever it holds."""
_MOST_SIGNS: Final = 60_000
"""Commas and brackets of a longer one: an image in base64 has hardly any."""
_MOST_PARTS: Final = 500
"""Contents of one result, or tools of one page: to check each takes 14 µs."""
_BURST: Final = 2_000
"""Messages that may come at once."""
_PER_S: Final = 500.0
"""Messages a second that may come for long."""
_MOST_QUOTED: Final = 200
"""Characters of such a line that are told."""
_MOST_GARBAGE: Final = 20
"""Lines that are no messages."""


@define(eq=False)
class Inflow:
    """Counts what a connection receives."""

    clock: Callable[[], float]
    """Seconds that never go back."""
    _credit: float = field(default=float(_BURST), init=False)
    _counted_at: float | None = field(default=None, init=False)
    _garbage: int = field(default=0, init=False)
    _first: str | None = field(default=None, init=False)
    """The beginning of the first line that is no message."""

    def asked(self) -> None:
        """A message was sent, which may have an answer."""
        self._credit = min(_BURST, self._credit + 1)

    def message(self) -> str | None:
        """Count a message; why it is one too many, None: it is not."""
        now = self.clock()
        if self._counted_at is not None:
            self._credit = min(_BURST, self._credit + (now - self._counted_at) * _PER_S)
        self._counted_at = now
        self._credit -= 1
        if self._credit >= 0:
            return None
        return f"sent more than {_BURST:,} messages, and more than {_PER_S:,.0f} a second"

    def garbage(self, line: str) -> str | None:
        """Count a line that is no message, as people may read it; why the connection ends, None: it
        does not.
        """
        self._garbage += 1
        self._first = self._first or line[:_MOST_QUOTED]
        return self.told_garbage() if self._garbage > _MOST_GARBAGE else None

    def told_garbage(self) -> str | None:
        """What it wrote that is no message, in words for people; None: nothing."""
        if self._first is None:
            return None
        return f"wrote what is no message of the protocol to its standard output: '{self._first}'"


def count_signs(text: bytes) -> int:
    """How many values a text may hold, at the most."""
    return sum(map(text.count, (b",", b"{", b"[")))


def too_many_values(size: int, signs: int) -> str | None:
    """Why a message of so many bytes and signs is not parsed, which would hold the event loop;
    None: it is.
    """
    if size <= _UNCOUNTED_BYTES or signs <= _MOST_SIGNS:
        return None
    return f"sent a message of more than {size // 1_048_576} MiB with too many values"


def too_many_parts(result: Mapping[str, object]) -> str | None:
    """Why a parsed result is not handed on; None: it is."""
    for key in ("content", "tools"):
        parts = result.get(key)
        if isinstance(parts, list) and len(parts) > _MOST_PARTS:
            return f"sent a message with more than {_MOST_PARTS} items of '{key}'"
    return None
