"""A chat server in a thread of its own, for commands that run an event loop themselves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from minions.testing.endpoint import Behaviour, ChatEndpoint


@contextlib.contextmanager
def served_models(behaviour: Behaviour) -> Iterator[ChatEndpoint]:
    """The server answers every request so, until the block ends."""
    endpoint = ChatEndpoint(default=behaviour)
    loop = asyncio.new_event_loop()
    begun, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with endpoint:
            begun.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    begun.wait()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
