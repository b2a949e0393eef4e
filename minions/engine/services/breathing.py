"""Lets the rest of the event loop work after a costly expression."""

from __future__ import annotations

import asyncio

from minions.recipe.expressions.template import Meter

__all__ = ["breathe"]


async def breathe(meter: Meter) -> None:
    """Let others work if the rendering took long: steps that only compute never wait for anything,
    so that neither a timeout nor a cancellation would reach them.
    """
    if meter.is_long:
        await asyncio.sleep(0)
