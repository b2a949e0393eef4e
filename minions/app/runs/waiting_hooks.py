"""Tells hooks that a run waits for a person; what they do harms no run."""

from __future__ import annotations

import inspect

from minions.contracts.runtime import Log
from minions.contracts.waiting import OnWaiting, RunWait
from minions.data.errors import words_of


async def tell_hook(hook: OnWaiting, wait: RunWait, log: Log) -> None:
    """Call a hook and wait until it is done; what it raises is logged."""
    try:
        done = hook(wait)
        if inspect.isawaitable(done):
            await done
    except Exception as error:  # noqa: BLE001  # code of an application: the run has ended already
        log.warning("on_waiting_failed", run_id=wait.run_id, error=words_of(error))
