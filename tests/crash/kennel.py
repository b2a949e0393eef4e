"""A process that starts a child per leg: imports are paid once, a leg costs a fork.

`python -m crash.kennel`: one order as JSON per line in, one report per line out. It has one thread
and no event loop or database that is open, so that forking it is safe.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Final, cast

from attrs import evolve, frozen

from crash.legs import Order, carry_out
from minions.adapters.stores.postgres_url import is_postgres_url
from minions.data.codec import decode, encode
from minions.data.json_values import JsonValue, dumps

__all__ = ["Report"]

_LONGEST_LEG_S: Final = 30.0


@frozen(kw_only=True)
class Report:
    """How a leg ended."""

    is_killed: bool
    is_killed_from_outside: bool = False
    is_stuck: bool = False
    duration_ms: float
    said: JsonValue = None
    """What it gave, if it came to that: `result`, `error` or `traceback`."""


def main() -> None:
    """Until there are no more orders; then no child is left."""
    _warm_up()
    for line in sys.stdin:
        order = decode(json.loads(line), Order)
        if is_postgres_url(order.database):
            import psycopg  # noqa: F401  # once, for all children
        report = _in_a_child(order)
        sys.stdout.write(dumps(encode(report)) + "\n")
        sys.stdout.flush()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise AssertionError("a leg is still running")


def _warm_up() -> None:
    """Do what a leg does, so that no child has to import or build anything."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(8):
            order = Order(
                seed=seed,
                database=f"{folder}/{seed}.db",
                world=f"{folder}/world",
                acknowledged=f"{folder}/acknowledged",
            )
            said = carry_out(order)
            encode(decode(encode(order), Order))
            carry_out(evolve(order, run_id=cast("dict[str, str]", said["result"])["run_id"]))
    gc.collect()
    gc.freeze()


def _in_a_child(order: Order) -> Report:
    begin = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _say(writing, order)
        os._exit(0)
    os.close(writing)
    is_stuck = not _wait(reading, order.dies_after_s or _LONGEST_LEG_S)
    if is_stuck:
        os.kill(child, signal.SIGKILL)
    said = b"" if is_stuck else _read(reading)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    is_timed = order.dies_after_s is not None
    return Report(
        is_killed=is_killed,
        is_killed_from_outside=is_killed and is_stuck and is_timed,
        is_stuck=is_stuck and not is_timed,
        duration_ms=round((time.monotonic() - begin) * 1000, 3),
        said=None if is_killed or not said else json.loads(said),
    )


def _say(writing: int, order: Order) -> None:
    try:
        said = carry_out(order)
    except BaseException:  # noqa: BLE001  # the rim of a process: whoever started it is told
        said = {"traceback": traceback.format_exc()}
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(dumps(said).encode())


def _wait(reading: int, seconds: float) -> bool:
    """Whether it said something, or ended, before."""
    ready, _, _ = select.select([reading], [], [], seconds)
    return bool(ready)


def _read(reading: int) -> bytes:
    parts = []
    while part := os.read(reading, 65_536):
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
