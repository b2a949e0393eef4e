"""Runs commands in turns and says what each took. Small, for a child's peak memory counts ours.

Reads `{"rounds": 3, "warms_up": true, "commands": [[...]]}` from standard input; writes a list of
`[cpu_s, wall_s, peak_mib]`, the least of all rounds, to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time


def run(command: list[str]) -> tuple[float, float, float]:
    """One process from start to end: CPU seconds, wall seconds, peak resident MiB."""
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss / unit


def main() -> None:
    """Every command once to fill caches where that is wanted, then in turns."""
    wanted = json.load(sys.stdin)
    commands = wanted["commands"]
    for command in commands if wanted["warms_up"] else ():
        run(command)
    taken = [[run(command) for command in commands] for _ in range(wanted["rounds"])]
    by_command = zip(*taken, strict=True)
    print(json.dumps([[min(figure) for figure in zip(*each, strict=True)] for each in by_command]))


if __name__ == "__main__":
    main()
