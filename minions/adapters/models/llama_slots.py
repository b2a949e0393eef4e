"""The slots of a llama.cpp server: requests that begin alike go to the same one.

Each slot keeps the prompt that it read last and reads only what is new behind its beginning; no
slot has what another one read.
Source: llama.cpp, tools/server/README.md: `id_slot`, `cache_prompt` and `/props`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import evolve
from msgspec import Struct

from minions.adapters.models.server_facts import OpenPool, slot_count
from minions.contracts.calls import DeltaSink, ModelCallResponse, ModelFailure, Prompt

if TYPE_CHECKING:
    from returns.result import Result

_ID_SLOT: Final = "id_slot"
"""The field of a request that names its slot; -1: the server chooses."""
_LEAST_SHARE: Final = 0.1
"""A prompt that shares less with what a slot holds is no reason to take that slot, as with the
server's own `--slot-prompt-similarity`."""
_MOST_QUESTIONS: Final = 3
"""How often a server that does not say how many slots it has is asked."""

Ask: TypeAlias = Callable[
    [Prompt, DeltaSink | None], "Awaitable[Result[ModelCallResponse, ModelFailure]]"
]


class _Slot(Struct, eq=False):
    """One slot of the server, as far as this process knows."""

    id: int
    held: Prompt | None = None
    """What it read last; None: nothing of ours."""
    used: int = 0
    """When it was last taken: the number of that request."""
    is_free: bool = True


class LlamaSlots:
    """Which slot of the server reads which prompt; for calls of several event loops and threads."""

    def __init__(self, base_url: str, open_get: OpenPool, warn: Callable[[str], None]) -> None:
        """Nothing was asked yet.

        Args:
            base_url: The base URL of the chat completions.
            warn: Called once if the server does not say how many slots it has.
        """
        self._base_url = base_url
        self._open_get = open_get
        self._warn = warn
        self._lock = threading.Lock()
        self._slots: Sequence[_Slot] = ()
        self._questions = 0
        self._asking: asyncio.Future[None] | None = None
        self._taken = 0
        self._waiting: deque[asyncio.Future[_Slot]] = deque()

    def chooses_for(self, prompt: Prompt) -> bool:
        """Whether nobody has named a slot for the prompt so far."""
        return _ID_SLOT not in prompt.options.extra

    async def complete(
        self, ask: Ask, prompt: Prompt, on_delta: DeltaSink | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer of the slot that holds most of the beginning of the prompt, of those that are
        free; while none is, the call waits. Where the number of slots is not known, the server
        chooses.

        Args:
            ask: Sends the request.
        """
        if not self._slots:
            await self._ask_once()
        slot = await self._take(prompt) if self._slots else None
        options = prompt.options
        place = -1 if slot is None else slot.id
        extra = {"cache_prompt": True, **options.extra, _ID_SLOT: place}
        asked = evolve(prompt, options=evolve(options, extra=extra))
        try:
            return await ask(asked, on_delta)
        finally:
            if slot is not None:
                self._give_back(slot)

    async def _ask_once(self) -> None:
        """Ask for the number of slots; calls that begin meanwhile wait for the same answer."""
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            if self._questions >= _MOST_QUESTIONS:
                return
            self._questions += 1
            asking = self._asking = asyncio.ensure_future(self._ask())
        await asyncio.shield(asking)

    async def _ask(self) -> None:
        count = await slot_count(self._base_url, self._open_get)
        with self._lock:
            if count is not None:
                self._slots = self._slots or tuple(_Slot(id=number) for number in range(count))
            elif self._questions == 1:
                self._warn(
                    f"The server at {self._base_url} does not say at /props how many slots it has: "
                    "it chooses them itself."
                )

    async def _take(self, prompt: Prompt) -> _Slot:
        with self._lock:
            free = [slot for slot in self._slots if slot.is_free]
            if free:
                return self._hand_over(_best_of(free, prompt), prompt)
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
        try:
            slot = await waiting
        except asyncio.CancelledError:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
            if not waiting.cancelled():  # the slot came, and nobody takes it
                self._give_back(waiting.result())
            raise
        with self._lock:
            return self._hand_over(slot, prompt)

    def _hand_over(self, slot: _Slot, prompt: Prompt) -> _Slot:
        self._taken += 1
        slot.is_free, slot.held, slot.used = False, prompt, self._taken
        return slot

    def _give_back(self, slot: _Slot) -> None:
        """Pass the slot to the call that has waited for longest; it may be of another loop."""
        with self._lock:
            while self._waiting:
                waiting = self._waiting.popleft()
                loop = waiting.get_loop()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._resolve, waiting, slot)
                    return
            slot.is_free = True

    def _resolve(self, waiting: asyncio.Future[_Slot], slot: _Slot) -> None:
        if waiting.done():  # it was cancelled meanwhile
            self._give_back(slot)
        else:
            waiting.set_result(slot)


def _best_of(free: Sequence[_Slot], prompt: Prompt) -> _Slot:
    """The slot that holds most of the beginning of the prompt; if none holds enough of it, the one
    that was not used for longest.
    """
    whole = max(1, sum(len(each.content or "") for each in prompt.messages))
    shared = [(_shared_characters(prompt, slot.held), slot) for slot in free]
    most, best = max(shared, key=lambda each: (each[0], -each[1].used))
    return best if most >= whole * _LEAST_SHARE else min(free, key=lambda slot: slot.used)


def _shared_characters(prompt: Prompt, held: Prompt | None) -> int:
    """The length of the beginning that both have; chat templates put tools before all texts."""
    if held is None or prompt.tools != held.tools:
        return 0
    shared = 0
    for one, other in zip(prompt.messages, held.messages, strict=False):
        if one != other:
            if one.role is other.role:
                shared += _common_length(one.content or "", other.content or "")
            break
        shared += len(one.content or "")
    return shared


def _common_length(one: str, other: str) -> int:
    """How many characters at the beginning of both are the same; found by halves, for texts may be
    long.
    """
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
