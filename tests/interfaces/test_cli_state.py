"""Tools that recipes use without naming a toolset, from the command line and the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import minions as m
from command_line import Cli, Write
from forked_commands import PROGRAM, run_forked
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.data.json_values import JsonValue
from minions.testing.virtual_time import FakeClock

SAVE = """
id: save
permissions: {allow_write: true}
steps:
  - id: keep
    tool: saveState
    params: {key: seen, value: {ids: [1, 2.5, null], text: "h\\u00e9 \\U0001F642", none: {}}}
"""
LOAD = """
id: load
steps:
  - {id: seen, tool: loadState, params: {key: seen}}
  - {id: other, tool: loadState, params: {key: other, default: [7]}}
  - {id: keys, tool: listStateKeys}
output: {seen: "{{ seen }}", other: "{{ other }}", keys: "{{ keys }}"}
"""
OWN = """
import minions as m

@m.tool(effect="pure")
def loadState(key: str) -> str:
    return f"mine: {key}"
"""


def run(here: Path, *arguments: str) -> Mapping[str, JsonValue]:
    done = run_forked(
        [*PROGRAM, "run", *arguments, "--json"],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, JsonValue] = json.loads(done.stdout)
    return result


def test_what_one_process_saved_another_loads_unchanged(here: Path, write: Write) -> None:
    """A-69: two processes and one file; a key that was never saved is not found."""
    write("save.yaml", SAVE)
    write("load.yaml", LOAD)
    run(here, "save.yaml", "--db", "j.sqlite")
    assert run(here, "load.yaml", "--db", "j.sqlite")["output"] == {
        "seen": {
            "success": True,
            "key": "seen",
            "value": {"ids": [1, 2.5, None], "text": "h\u00e9 \U0001f642", "none": {}},
            "found": True,
        },
        "other": {"success": True, "key": "other", "value": [7], "found": False},
        "keys": {"success": True, "keys": ["seen"], "count": 1},
    }


def test_saving_needs_the_permission_to_write(cli: Cli, write: Write) -> None:
    write("save.yaml", SAVE.replace("permissions: {allow_write: true}\n", ""))
    outcome = cli("run", "save.yaml", "--no-store", "--json")
    assert outcome.code == 2
    assert "write-not-allowed" in outcome.out


def test_validate_and_a_run_without_a_store_leave_no_file(
    cli: Cli, write: Write, here: Path
) -> None:
    write("save.yaml", SAVE)
    before = sorted(here.iterdir())
    assert cli("validate", "save.yaml").out == "save.yaml: ok\n"
    assert cli("run", "save.yaml", "--no-store").code == 0
    assert sorted(here.iterdir()) == before


def test_a_tool_of_ones_own_takes_the_place_of_a_built_in_one(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write("r.yaml", "id: r\nsteps:\n  - {id: a, tool: loadState, params: {key: k}}\n")
    assert cli("validate", "r.yaml", "--extensions", "own.py").code == 0
    outcome = cli("run", "r.yaml", "--extensions", "own.py", "--no-store", "--json")
    assert outcome.json["output"] == "mine: k"


def test_a_time_some_hours_ago_is_read_as_a_number(cli: Cli, write: Write) -> None:
    write(
        "r.yaml",
        "id: r\nsteps:\n  - {id: then, tool: getDateTimeHoursAgo, params: {hours: 24},"
        " save_as: time_24h_ago}\n  - {id: now, tool: getCurrentDateTime}\n"
        "output: '{{ [time_24h_ago.datetime.unix_timestamp, now.datetime.unix_timestamp] }}'\n",
    )
    output = cli("run", "r.yaml", "--no-store", "--json").json["output"]
    assert isinstance(output, list)
    then, now = output
    assert isinstance(then, int)
    assert isinstance(now, int)
    assert 86_400 <= now - then <= 86_460


def test_the_library_keeps_state_where_its_journal_is(here: Path, write: Write) -> None:
    write("save.yaml", SAVE)
    write("load.yaml", LOAD)

    def seen(journal: SqliteJournal | None) -> JsonValue:
        services = m.Services(journal=journal) if journal else None
        m.run(Path("save.yaml"), services=services).unwrap()
        output = m.run(Path("load.yaml"), services=services).unwrap()
        if journal:
            m.run(journal.aclose())
        assert isinstance(output, Mapping)
        keys = output["keys"]
        assert isinstance(keys, Mapping)
        return keys["keys"]

    assert seen(None) == []
    assert seen(SqliteJournal(here / "j.db", FakeClock())) == ["seen"]


def test_the_library_prefers_the_tools_it_was_given(here: Path, write: Write) -> None:
    @m.tool(effect="pure")
    def getCurrentDateTime() -> str:  # noqa: N802  # the name of the built-in one
        return "noon"

    write("r.yaml", "id: r\nsteps: [{id: a, tool: getCurrentDateTime}]\n")
    assert m.run(Path("r.yaml"), tools=[getCurrentDateTime]).unwrap() == "noon"
