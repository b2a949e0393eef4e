"""What commands say of a recipe that was edited since its run, and how long a run took."""

from __future__ import annotations

import re

from command_line import Cli, Write

BAD = "id: news\nsteps:\n  - {id: first, assert: [1 > 2]}\n"
FLAGS = ("--db", "j.sqlite")


def failed_run(cli: Cli, write: Write) -> str:
    write("news.yaml", BAD)
    done = cli("run", "news.yaml", *FLAGS, "--json")
    assert "retry: minions retry run_" in done.err
    return str(done.json["run_id"])


def test_the_retry_after_an_edit_names_the_edited_recipe(cli: Cli, write: Write) -> None:
    run_id = failed_run(cli, write)
    write("news.yaml", BAD.replace("1 > 2", "1 > 3"))
    done = cli("retry", run_id, "--recipe", "news.yaml", *FLAGS)
    assert done.code == 1
    assert f"retry: minions retry {run_id[:8]} --db j.sqlite --recipe news.yaml" in done.err


def test_a_retry_tells_that_the_file_was_edited(cli: Cli, write: Write) -> None:
    run_id = failed_run(cli, write)
    assert "edited" not in cli("retry", run_id, *FLAGS).err
    write("news.yaml", BAD.replace("1 > 2", "2 > 1"))
    done = cli("retry", run_id, *FLAGS)
    assert done.code == 1  # the run has its own recipe
    assert "news.yaml was edited since; the run has its own. To use it: --recipe news.yaml" in (
        done.err
    )
    assert f"retry: minions retry {run_id[:8]} --db j.sqlite --recipe news.yaml" in done.err
    assert cli("retry", run_id, "--recipe", "news.yaml", *FLAGS).code == 0


def test_a_retry_tells_of_an_edit_that_is_not_finished(cli: Cli, write: Write) -> None:
    run_id = failed_run(cli, write)
    write("news.yaml", "id: news\nsteps: [")
    assert "news.yaml was edited since" in cli("retry", run_id, *FLAGS).err


def test_the_time_of_a_run_is_told_at_its_end(cli: Cli, write: Write) -> None:
    write("bind.yaml", "id: bind\nsteps:\n  - {id: a, set: {n: 1}}\n")
    done = cli("run", "bind.yaml", "--no-store")
    assert re.search(r"^completed · 1 completed · \d+ ms · no tokens$", done.err, re.MULTILINE)
