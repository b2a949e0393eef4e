"""Personal data on the command line: encrypted journals, and what is kept of whom for how long."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, Write

CANARY = "Wilhelmine-Krautwurst"
ASKS = """
id: asks
permissions: {allow_write: true}
inputs: {who: {type: string}}
steps:
  - {id: one, goal: "Who is {{ inputs.who }}?", cache: true}
  - {id: two, tool: saveState, params: {key: last, value: "{{ steps.one.output }}"}}
"""
ANSWERS = f"answers:\n  - text: {CANARY} is well\n"
KEY = "A" * 43 + "="
OTHER = "B" * 43 + "="


@pytest.fixture(autouse=True)
def _recipes(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIONS_TRUST", "1")
    write("asks.yaml", ASKS)
    write("answers.yaml", ANSWERS)
    write("minions.toml", CONFIGURATION)


CONFIGURATION = 'db = "j.db"\nmodel = "scripted/answers.yaml"\n'


def encrypt(here: Path, write: Write, keys: str) -> None:
    file = here / "keys"
    file.touch(mode=0o600)
    file.write_text(keys)
    write("minions.toml", f'{CONFIGURATION}[journal]\nencryption_key_file = "{file}"\n')


def ask(cli: Cli, user: str = "ann") -> str:
    told = cli("run", "asks.yaml", "-p", f"who={CANARY}", "--user", user, "--json")
    assert told.code == 0, told.err
    return str(told.json["run_id"])


def database(here: Path) -> bytes:
    return b"".join(file.read_bytes() for file in here.glob("j.db*"))


# --- encryption ----------------------------------------------------------------------------------


def test_an_encrypted_journal_is_listed_and_verified_without_its_key(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-172: the file holds no word of a run, and one error names the key."""
    encrypt(here, write, f"k1 {KEY}\n")
    run_id = ask(cli)
    assert CANARY.encode() not in database(here)
    assert f"{CANARY} is well" in cli("sessions", "show", run_id, "--messages").out
    write("minions.toml", CONFIGURATION)
    listed = cli("sessions", "list")
    assert (listed.code, "(encrypted)" in listed.out, run_id in listed.out) == (0, True, True)
    assert cli("sessions", "verify").code == 0
    for command in (
        ("sessions", "show", run_id),
        ("sessions", "export", run_id),
        ("sessions", "gc"),
        ("sessions", "mark", run_id, "good"),
        ("resume", run_id),
    ):
        told = cli(*command)
        assert told.code != 0
        assert (
            "error[journal-key-missing]: The journal holds what is encrypted with the key 'k1'"
            in (told.err)
        )


def test_a_journal_is_encrypted_later_and_under_a_new_key(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-172: `rekey` leaves no word in clear, not even in free pages of the file."""
    run_id = ask(cli)
    assert CANARY.encode() in database(here)
    assert "error[not-encrypted]" in cli("sessions", "rekey").err
    encrypt(here, write, f"k1 {KEY}\n")
    told = cli("sessions", "rekey")
    assert told.code == 0
    assert told.out == (
        "encrypted by the key k1: 1 session (9 rows), 1 blob, 1 saved value; "
        "1 cached output removed\n"
    )
    assert CANARY.encode() not in database(here)
    encrypt(here, write, f"k2 {OTHER}\nk1 {KEY}\n")
    assert cli("sessions", "rekey", "--json").json == {
        "key": "k2",
        "sessions": 1,
        "entries": 9,
        "blobs": 1,
        "values": 1,
        "cached": 0,
        "left": [],
        "backups": [],
    }
    encrypt(here, write, f"k2 {OTHER}\n")
    assert f"{CANARY} is well" in cli("sessions", "show", run_id, "--messages").out
    assert cli("sessions", "verify").code == 0


# --- retention -----------------------------------------------------------------------------------


TIMES = ("entries SET at = at - ?", "blobs SET put_at = put_at - ?")


def age(here: Path, days: int, *changes: str) -> None:
    """As if all of it, or some, had been days ago."""
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        for change in changes or TIMES:
            db.execute(f"UPDATE {change}", (days * 86_400 * 10**6,))  # constants


@pytest.mark.parametrize(
    ("operators", "own", "goes_after"), [("7d", None, 7), ("30d", "7d", 7), ("7d", "30d", 7)]
)
def test_a_session_stays_no_longer_than_the_operator_and_its_recipe_say(
    cli: Cli, write: Write, here: Path, operators: str, own: str | None, goes_after: int
) -> None:
    """A-172: with its blobs and what it left in the cache."""
    write("minions.toml", f'{CONFIGURATION}[journal]\nretain = "{operators}"\n')
    write("asks.yaml", f"{ASKS}retain: {own}\n" if own else ASKS)
    run_id = ask(cli)
    age(here, goes_after - 1)
    assert cli("sessions", "gc").code == 0
    assert run_id in cli("sessions", "list").out
    age(here, 1)
    told = cli("sessions", "gc")
    assert "freed 1 session, 1 blob" in told.out
    assert "removed 1 cached output" in told.out
    assert run_id not in cli("sessions", "list").out


def test_what_an_operator_said_when_a_run_began_counts_later(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-172: each project has a time of its own in one database."""
    write("minions.toml", f'{CONFIGURATION}[journal]\nretain = "7d"\n')
    ask(cli)
    write("minions.toml", CONFIGURATION)
    ask(cli)
    age(here, 8)
    assert "freed 1 session" in cli("sessions", "gc").out


def test_a_time_that_is_none_is_refused(cli: Cli, write: Write) -> None:
    write("asks.yaml", f"{ASKS}retain: for ever\n")
    assert "'for ever' is not a duration" in cli("validate", "asks.yaml").err
    write("minions.toml", f'{CONFIGURATION}[journal]\nretain = "for ever"\n')
    told = cli("sessions", "list")
    assert (told.code, "a duration such as 30d or 12h was expected" in told.err) == (2, True)


def test_a_recipe_keeps_what_a_recipe_within_keeps(cli: Cli, write: Write, here: Path) -> None:
    """A-172: the stricter of both."""
    write("inner.yaml", "id: inner\nretain: 2d\nsteps: [{id: a, set: {b: 1}}]\n")
    write("outer.yaml", "id: outer\nretain: 9d\nsteps: [{id: a, recipe: inner.yaml}]\n")
    told = cli("run", "outer.yaml")
    assert told.code == 0, told.err
    age(here, 3)
    assert "freed 1 session" in cli("sessions", "gc").out


def test_a_key_file_is_an_absolute_path(cli: Cli, write: Write) -> None:
    write("minions.toml", f'{CONFIGURATION}[journal]\nencryption_key_file = "keys"\n')
    told = cli("run", "asks.yaml", "-p", "who=me")
    assert (told.code, "expected an absolute path" in told.err) == (2, True)


def test_an_untrusted_configuration_names_no_keys(
    cli: Cli, write: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-172: a folder's own configuration cannot choose a key, before somebody trusts it."""
    encrypt(here, write, f"k1 {KEY}\n")
    monkeypatch.delenv("MINIONS_TRUST")
    assert "journal" in cli("sessions", "list", "--db", "j.db").err
    told = cli("trust", "--show")
    assert f"encrypts the journal with the keys of {here / 'keys'}" in told.out


# --- everything of one user ----------------------------------------------------------------------

LONG = f"{CANARY} " * 9_000


def talk(cli: Cli, user: str, text: str) -> None:
    """A conversation with a name, a large answer, and a failure."""
    told = cli(
        "run", "asks.yaml", "-p", f"who={text}", "--user", user, "--session", f"{user}-{text[:21]}"
    )
    assert told.code == 0, told.err
    failed = cli("run", "fails.yaml", "-p", f"who={text}", "--user", user)
    assert failed.code == 1, failed.err


@pytest.fixture
def _others(write: Write) -> None:
    write(
        "fails.yaml",
        "id: fails\ninputs: {who: {type: string}}\nsteps:\n"
        "  - {id: a, tool: loadState, params: {key: 'minions:{{ inputs.who }}'}}\n",
    )
    write(
        "asks.yaml",
        "id: asks\ninputs: {who: {type: string}}\n"
        "steps:\n  - {id: one, goal: 'Who is {{ inputs.who }}?', cache: true}\n"
        "  - {id: two, set: {text: '{{ one }}'}}\n",
    )


@pytest.mark.usefixtures("_others")
def test_nothing_of_a_user_is_left_in_the_file(cli: Cli, write: Write, here: Path) -> None:
    """A-172: not in rows, blobs, caches, free pages or the log of the database."""
    write("answers.yaml", "answers:\n  - text: >-\n      " + LONG + "\n  - text: Bob is well\n")
    write(
        "minions.toml",
        f"{CONFIGURATION}[budgets]\nuser_tokens_per_day = 1000000\ntokens_per_day = 1000000\n",
    )
    talk(cli, "ann", LONG)
    ids = {run["session_id"] for run in json.loads(cli("sessions", "list", "--json").out)}
    write("answers.yaml", "answers:\n  - text: Bob is well\n")
    talk(cli, "bob", "Bob")
    assert CANARY.encode() in database(here)
    told = cli("sessions", "rm", "--user", "ann")
    assert (told.code, "error[not-agreed]" in told.err) == (2, True)
    age(here, 1, "blobs SET put_at = put_at - ?")
    told = cli("sessions", "rm", "--user", "ann", "--yes")
    assert told.code == 0, told.err
    assert all(session_id in told.err for session_id in ids)
    assert "removed 2 sessions" in told.out
    assert "1 cached output" in told.out
    assert "Not reached: backups" in told.err
    assert CANARY.encode() not in database(here)
    listed = json.loads(cli("sessions", "list", "--json").out)
    assert {run["user"] for run in listed} == {"bob"}
    assert cli("sessions", "verify").code == 0
    assert cli("sessions", "rm", "--user", "ann", "--yes").code == 2
    assert "error[unknown-user]" in cli("sessions", "export", "--user", "ann").err


@pytest.mark.usefixtures("_others")
def test_everything_of_a_user_is_exported(cli: Cli, here: Path) -> None:
    """A-172: in clear, each session as a file of its own would have it."""
    talk(cli, "ann", CANARY)
    talk(cli, "bob", "Bob")
    told = cli("sessions", "export", "--user", "ann", "-o", "ann.jsonl")
    assert (told.code, told.out) == (0, "")
    assert "Exported 2 sessions of ann. The file is in clear." in told.err
    lines = [json.loads(line) for line in (here / "ann.jsonl").read_text().splitlines()]
    assert (lines[0]["format"], lines[0]["user"]) == ("minions-user", "ann")
    assert [line["session"] for line in lines if line.get("format") == "minions-session"] == (
        lines[0]["sessions"]
    )
    assert "Bob" not in (here / "ann.jsonl").read_text()
    assert (here / "ann.jsonl").stat().st_mode & 0o777 == 0o600
    assert "exists already" in cli("sessions", "export", "--user", "ann", "-o", "ann.jsonl").err


def test_either_sessions_or_a_user_are_named(cli: Cli) -> None:
    for command in (
        ("export",),
        ("export", "x", "--user", "ann"),
        ("export", "--user", "ann", "--html", "x.html"),
        ("rm", "--yes"),
        ("rm", "x", "--user", "ann"),
    ):
        assert cli("sessions", *command).code == 2


# --- redaction -----------------------------------------------------------------------------------

MAIL = "ann@mail.example"


def test_an_operator_has_kinds_and_patterns_replaced_in_everything_that_leaves(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-172: as the recording of the requests shows, of runs, batches and evaluations."""
    settings = '[redaction]\nkinds = ["mail", "customer"]\npatterns = {customer = "K-[0-9]{6}"}\n'
    write("minions.toml", f'{CONFIGURATION}record = "calls.jsonl"\n{settings}')
    write("answers.yaml", "answers:\n" + "  - text: fine\n" * 9)
    write(
        "asks.yaml",
        "id: asks\ninputs: {who: {type: string}}\n"
        "steps: [{id: a, goal: 'Who is {{ inputs.who }}?'}]\n",
    )
    write("list.jsonl", json.dumps({"who": f"{MAIL} K-654321"}) + "\n")
    assert cli("run", "asks.yaml", "-p", f"who={MAIL} K-123456").code == 0
    assert cli("batch", "asks.yaml", "list.jsonl").code == 0
    sent = (here / "calls.jsonl").read_text()
    assert sent.count("Who is <mail-") == 2
    assert sent.count("<customer-") >= 2
    for word in (MAIL, "K-123456", "K-654321"):
        assert word not in sent
    told = cli("trust", "--show").out
    assert "replaces what is found as customer in prompts before they leave" in told
    assert "finds customer in prompts by the pattern K-[0-9]{6}" in told


def test_a_kind_that_nothing_finds_is_a_fault_of_the_recipe(cli: Cli, write: Write) -> None:
    write("asks.yaml", f"{ASKS}redact: [mail, plate]\n")
    told = cli("validate", "asks.yaml")
    assert (told.code, "error[unknown-redactor]: nothing here finds 'plate'" in told.err) == (
        2,
        True,
    )
    write(
        "minions.toml", f'{CONFIGURATION}[redaction]\npatterns = {{plate = "[A-Z]{{2}} [0-9]+"}}\n'
    )
    assert cli("validate", "asks.yaml").code == 0
    write("minions.toml", f'{CONFIGURATION}[redaction]\nkinds = ["plate"]\n')
    told = cli("run", "asks.yaml", "-p", "who=me")
    assert "error[unknown-redactor]" in told.err
