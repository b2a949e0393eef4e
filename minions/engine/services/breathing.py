"""Lets the rest of the event loop work after a costly expression, or between many rows."""

from __future__ import annotations

import asyncio

__all__ = ["breathe"]


async def breathe() -> None:
    """Let others work after a rendering whose meter `is_long`.

    Steps that only compute never wait for anything: neither a timeout nor a cancellation would
    reach them.
    """
    await asyncio.sleep(0)
