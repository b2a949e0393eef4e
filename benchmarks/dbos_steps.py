"""The functions of `group_commit` as steps of DBOS, in a process of their own.

Reads lines `WIDTH ROUNDS`, and answers each with the seconds and CPU seconds of a step.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from benchmarks.side_by_side import STEPS, step_cost


async def main(url: str) -> None:
    """Until standard input ends."""
    from dbos import DBOS

    logging.getLogger("dbos").addHandler(logging.NullHandler())
    DBOS(config={"name": "benchmark", "system_database_url": url, "enable_otlp": False})

    @DBOS.step()
    async def add_one() -> int:
        return 1

    @DBOS.workflow()
    async def ten() -> int:
        return sum([await add_one() for _ in range(STEPS)])

    await asyncio.to_thread(DBOS.launch)
    while line := await asyncio.to_thread(sys.stdin.readline):
        width, rounds = map(int, line.split())
        cost = await step_cost(ten, width, rounds)
        print(cost.wall_s, cost.cpu_s, flush=True)
    await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
