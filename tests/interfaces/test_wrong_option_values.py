"""Values that an option cannot have are refused at once, by the option's name."""

from __future__ import annotations

import pytest

from command_line import Cli, Write

RECIPE = "id: r\nschedule: '@daily'\nsteps: [{id: a, set: {x: 1}}]\n"
DEPLOY = ("deploy", "r.yaml", "--as", "d", "--canary", "5%")
DB = ("--db", "j.db")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *((("worker", "--timeout", value), "--timeout") for value in ("", "0", "-1", "nan", "x")),
        *((("run", "r.yaml", "--timeout", value), "--timeout") for value in ("0", "inf")),
        *((("worker", f"--max-cost={value}"), "--max-cost") for value in ("0", "-1", "nan")),
        (("schedules", "add", "r.yaml", "--max-cost", "inf"), "--max-cost"),
        *((("worker", "--drain", value), "--drain: '") for value in ("", "0", "nan")),
        *((("worker", "--patience", value), "--patience: '") for value in (" ", "-1")),
        *((("worker", "--heartbeat", value), "--heartbeat: '") for value in ("0", "x")),
        (("worker", "--heartbeat", "999999999999"), "--heartbeat 999999999999: expected 0.2 s to"),
        (("worker", "--extensions", ""), "--extensions ''"),
        (("worker", "--db", " "), "--db ' '"),
        (("schedules", "add", "r.yaml", "--model", ""), "--model ''"),
        (("schedules", "add", "r.yaml", "--name", ""), "--name : the name of a schedule has"),
        (("schedules", "add", "r.yaml", "--name=-1"), "--name -1: the name of a schedule has"),
        (("upgrade", "r.yaml", "--from", ""), "--from ''"),
        (("worker", "queues", "pause", "q", "--reason", " "), "--reason ' '"),
        (("worker", "queues", "dead", "--again", "--reason", ""), "--reason ''"),
        (("worker", "queues", "set", "q", "--rate", "5/x"), "--rate: 'x' is not a duration"),
        (("worker", "queues", "set", "q", "--rate", f"{'9' * 5000}/5s"), "--rate 9999"),
        (
            (*DEPLOY, "--bar", "error_rate < 1", "--until", "9" * 5000),
            "--until 9999",
        ),
        (("worker", "queues", "set", "q", "--age", "9999d"), "--age 9999d: the time is 365 days"),
        (("worker", "queues", "set", "q", "--age", "nan"), "--age: 'nan' is not a duration"),
        (("run", "r.yaml", "--detach", "--delay", "0"), "--delay: '0' is not a duration"),
        (("sessions", "gc", "--older-than", "x"), "--older-than: 'x' is not a duration"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(
    cli: Cli, write: Write, words: tuple[str, ...], told: str
) -> None:
    write("r.yaml", RECIPE)
    refused = cli(*words, *(() if "--db" in words else DB))
    assert (refused.code, refused.out) == (2, "")
    assert told in refused.err


def test_a_configured_time_that_is_none_is_refused_before_a_run_begins(
    cli: Cli, write: Write
) -> None:
    write("r.yaml", RECIPE)
    write("minions.toml", "timeout = 0\n")
    refused = cli("run", "r.yaml", "--trust", *DB)
    assert (refused.code, "a time such as 90, 90s or 10m" in refused.err) == (2, True)
