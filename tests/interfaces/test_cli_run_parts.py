"""`run --from`, `--until`, `--only` and `--pin`, and the cache, from the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from command_line import Cli, Outcome, Write
from minions.data.json_values import JsonValue

OWN = """
from pathlib import Path
from minions import tool

def count(name):
    with Path("calls.txt").open("a") as file:
        file.write(name + "\\n")

@tool(effect="pure")
def fetch(topic: str) -> str:
    '''Fetches.'''
    count("fetch")
    return f"news of {topic}"

@tool(effect="pure")
def shorten(text: str) -> str:
    '''Shortens.'''
    count("shorten")
    return text[:9]

@tool(effect="once")
def post(text: str) -> str:
    '''Posts; fails while it is told to.'''
    count("post")
    if Path("broken").exists():
        raise RuntimeError("not now")
    return f"posted {text}"
"""
RECIPE = """
id: news
permissions: {allow_write: true}
inputs: {topic: {type: string, default: tea}}
steps:
  - {id: fetch, tool: fetch, params: {topic: "{{ inputs.topic }}"}%s}
  - {id: short, tool: shorten, params: {text: "{{ fetch }}"}%s}
  - {id: post, tool: post, params: {text: "{{ short }} {{ inputs.topic }}"}}
"""
OPTIONS = ("--extensions", "own.py", "--db", "j.db")


@pytest.fixture
def news(cli: Cli, write: Write) -> Cli:
    """`news …` runs the recipe."""
    write("own.py", OWN)
    write("news.yaml", RECIPE % ("", ""))

    def run(*arguments: str) -> Outcome:
        return cli("run", "news.yaml", *OPTIONS, *arguments)

    return run


def calls(here: Path) -> list[str]:
    """Tools that were called since the last look."""
    path = here / "calls.txt"
    found = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def run_id(outcome: Outcome) -> str:
    return str(outcome.json["run_id"])


def steps(outcome: Outcome) -> dict[str, Mapping[str, JsonValue]]:
    listed = cast("list[Mapping[str, JsonValue]]", outcome.json["steps"])
    return {str(step["id"]): step for step in listed}


# --- parts ----------------------------------------------------------------------------------------


def test_a_part_says_what_is_pinned_and_what_runs_before_it_runs(news: Cli, here: Path) -> None:
    first = run_id(news("--json", "-p", "topic=coffee"))
    calls(here)
    done = news("--from", "short", "--json")
    assert done.code == 0, done.err
    assert calls(here) == ["shorten", "post"]
    assert done.json["output"] == "posted news of c coffee"
    assert steps(done)["fetch"]["pinned_from"] == first
    told = done.err.splitlines()
    assert told[0].endswith("runs a part of 'news'")
    assert told[1:4] == [
        f"  pinned (as in {first}): fetch",
        "  to run: short, post",
        f"  inputs (as in {first}): topic",
    ]
    assert f"✓ fetch (pinned, from {first})" in done.err
    assert "1 pinned, 2 completed" in done.err


def test_one_step_alone_with_another_input(news: Cli, here: Path) -> None:
    news()
    calls(here)
    done = news("--only", "post", "-p", "topic=milk")
    assert (done.out, calls(here)) == ("posted news of t milk\n", ["post"])
    assert "inputs" not in done.err
    assert "  – fetch: not asked for" in done.err


def test_until_needs_no_earlier_run(news: Cli, here: Path) -> None:
    done = news("--until", "short")
    assert (done.out, calls(here)) == ("news of t\n", ["fetch", "shorten"])
    assert "  not asked for: post" in done.err


def test_a_run_to_pin_may_be_named(news: Cli, here: Path) -> None:
    older = run_id(news("--json", "-p", "topic=coffee"))
    news()
    calls(here)
    done = news("--only", "short", "--pin", older, "--json")
    assert (done.json["output"], calls(here)) == ("news of c", ["shorten"])
    again = news("--only", "short", "--json")  # from the newest, which took it from the older one
    assert (again.json["output"], steps(again)["fetch"]["pinned_from"]) == (
        "news of c",
        run_id(done),
    )


def test_a_failed_part_is_retried_as_that_part(news: Cli, cli: Cli, here: Path) -> None:
    news("--until", "short")
    (here / "broken").touch()
    failed = news("--only", "post")
    assert failed.code == 1
    (here / "broken").unlink()
    calls(here)
    done = cli(
        "retry", "run_" + failed.err.rpartition("minions retry run_")[2].split()[0], *OPTIONS
    )
    assert (done.code, calls(here)) == (0, ["post"])
    assert "– fetch: not asked for" in done.err


def test_sessions_show_tells_what_was_pinned_and_what_was_left_out(news: Cli, cli: Cli) -> None:
    first = run_id(news("--json"))
    second = run_id(news("--only", "post", "--json"))
    shown = cli("sessions", "show", second, "--db", "j.db").out.splitlines()
    assert shown[4:6] == [
        "  fetch: skipped · not asked for",
        f"  short: pinned · from {first}",
    ]
    assert shown[6].startswith("  post: completed")


def test_an_edited_pinned_step_is_warned_of(news: Cli, write: Write) -> None:
    first = run_id(news("--json"))
    write("news.yaml", (RECIPE % ("", "")).replace('"{{ inputs.topic }}"}', '"all"}'))
    done = news("--only", "short")
    assert done.code == 0
    assert f"warning: step 'fetch' was edited since {first}; its output is from then" in done.err


def test_what_makes_no_part_is_refused(news: Cli) -> None:
    unknown = news("--from", "shrot")
    assert unknown.code == 2
    assert "no step 'shrot'. Did you mean 'short'?" in unknown.err
    missing = news("--only", "post")
    assert missing.code == 2
    assert "Run it first: `minions run news.yaml --until short`." in missing.err
    assert news("--only", "post", "--until", "fetch").code == 2
    assert news("--from", "post", "--until", "fetch").code == 2
    assert news("--pin", "run_1").code == 2
    nowhere = news("--only", "post", "--pin", "run_1")
    assert nowhere.code == 2
    assert "The journal is" in nowhere.err


def test_a_dry_run_shows_the_part_and_writes_nothing(news: Cli, here: Path) -> None:
    nothing = news("--until", "short", "--dry-run")
    assert [line.split(":")[0].strip() for line in nothing.out.splitlines()] == [
        "1 fetch",
        "2 short",
    ]
    assert news("--only", "short", "--dry-run").code == 2
    assert not (here / "j.db").exists()
    news("-p", "topic=coffee")
    calls(here)
    planned = news("--only", "post", "--dry-run")
    assert planned.out == '  1 post: tool post (writes) {"text":"news of c coffee"}\n'
    assert calls(here) == []


# --- cache ----------------------------------------------------------------------------------------


@pytest.fixture
def cached(news: Cli, write: Write) -> Cli:
    write("news.yaml", RECIPE % (", cache: true", ", cache: true"))
    return news


def test_the_second_run_takes_what_is_the_same_from_the_first(
    cached: Cli, cli: Cli, here: Path
) -> None:
    first = run_id(cached("--json"))
    calls(here)
    done = cached("--json")
    assert (done.code, calls(here)) == (0, ["post"])
    assert steps(done)["fetch"]["cached_from"] == first
    assert "✓ fetch" in done.err
    assert f"cached, from {first}" in done.err
    assert "2 cached, 1 completed" in done.err
    shown = cli("sessions", "show", run_id(done), "--db", "j.db").out
    assert f"  fetch: cached · from {first}\n" in shown
    cached("-p", "topic=teas")
    assert calls(here) == ["fetch", "shorten", "post"]  # `fetch` gave something else


def test_no_cache_does_everything_and_keeps_nothing(cached: Cli, here: Path, write: Write) -> None:
    cached("--no-cache")
    cached()
    assert calls(here) == ["fetch", "shorten", "post"] * 2
    write("minions.toml", "no_cache = true\n")
    cached()
    assert calls(here) == ["fetch", "shorten", "post"]
    (here / "minions.toml").unlink()
    cached()
    assert calls(here) == ["post"]


def test_without_a_store_nothing_is_warned_of_and_nothing_outlives_the_run(
    cached: Cli, here: Path
) -> None:
    for _ in range(2):
        done = cached("--no-store")
        assert "warning" not in done.err
        assert calls(here) == ["fetch", "shorten", "post"]


def test_a_damaged_cache_is_no_reason_to_fail(cached: Cli, here: Path) -> None:
    cached()
    with closing(sqlite3.connect(here / "j.db")) as database, database:
        database.execute("UPDATE step_cache SET output = '{'")
    calls(here)
    assert cached().code == 0
    assert calls(here) == ["fetch", "shorten", "post"]


def test_a_step_with_an_effect_is_refused(cli: Cli, write: Write) -> None:
    write("own.py", OWN)
    write(
        "r.yaml",
        "id: r\npermissions: {allow_write: true}\nsteps:\n"
        "  - {id: a, tool: post, params: {text: x}, cache: true}\n",
    )
    done = cli("validate", "r.yaml", "--extensions", "own.py")
    assert done.code == 2
    assert "error[cache-skips-effect]" in done.err + done.out
    assert "--> r.yaml:4:51" in done.err + done.out
