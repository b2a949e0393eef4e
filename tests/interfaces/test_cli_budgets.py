"""Budgets of sessions, users and days: on the command line, in the configuration, in Python."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from builders import answer_of
from command_line import Cli, Write
from minions.adapters.models.scripted import ScriptedModel
from minions.app.application.application import Minions
from minions.app.settings.setting_sources import load_settings
from minions.app.settings.user_folders import FolderTrust
from minions.contracts.budgets import (
    BudgetPeriod,
    BudgetRule,
    Budgets,
    BudgetSpender,
    OnThreshold,
)
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import UsageError
from minions.engine.batches.result import NOT_STARTED

TRUSTED = FolderTrust(is_given=True)

ASKS = "id: asks\nsteps:\n  - {id: one, analyze: 'One?', input: 1}\n"
ANSWERS = "answers:\n" + "  - {text: fine, usage: {input_tokens: 100, output_tokens: 50}}\n" * 9
MODEL = ("-m", "scripted/answers.yaml", "--db", "j.sqlite")


@pytest.fixture(autouse=True)
def _recipes(write: Write) -> None:
    write("asks.yaml", ASKS)
    write("answers.yaml", ANSWERS)


def test_a_days_budget_in_the_configuration_holds_for_all_processes(cli: Cli, write: Write) -> None:
    write("minions.toml", "[budgets]\ntokens_per_day = 300\n")
    assert [cli("run", "asks.yaml", *MODEL).code for _ in range(2)] == [0, 0]
    stopped = cli("run", "asks.yaml", *MODEL)
    assert stopped.code == 5
    assert "The daily limit tokens_per_day=300 is reached: 300 tokens were used." in stopped.err


def test_a_label_of_a_user_names_whose_budget_a_run_spends(cli: Cli, write: Write) -> None:
    write("minions.toml", "[budgets]\nuser_tokens_per_day = 150\n")
    assert cli("run", "asks.yaml", *MODEL, "--user", "ann").code == 0
    assert cli("run", "asks.yaml", *MODEL, "--user", "bob").code == 0
    assert cli("run", "asks.yaml", *MODEL, "--user", "ann").code == 5
    assert cli("run", "asks.yaml", *MODEL).code == 0
    bad = cli("run", "asks.yaml", *MODEL, "--user", " ")
    assert (bad.code, "error[bad-user]" in bad.err) == (2, True)


def test_runs_are_listed_by_the_label_of_their_user(cli: Cli) -> None:
    ids = {}
    for user in ("ann", "bob"):
        ids[user] = cli("run", "asks.yaml", *MODEL, "--user", user, "--json").json["run_id"]
    cli("run", "asks.yaml", *MODEL)
    listed = json.loads(cli("sessions", "list", "--user", "ann", "--db", "j.sqlite", "--json").out)
    assert [run["run_id"] for run in listed] == [ids["ann"]]
    assert "No run fits." in cli("sessions", "list", "--user", "eve", "--db", "j.sqlite").err


def test_a_run_at_a_budget_of_many_runs_is_told_to_resume(cli: Cli, write: Write) -> None:
    """No edit of its recipe would help: the limit stands in the configuration."""
    write("minions.toml", "[budgets]\nuser_tokens_per_day = 100\n")
    assert cli("run", "asks.yaml", *MODEL, "--user", "ann").code == 0
    stopped = cli("run", "asks.yaml", *MODEL, "--user", "ann")
    last = stopped.err.splitlines()[-1]
    assert "resume: minions resume run_" in last
    assert "EDITED" not in last


def test_turns_of_a_chat_spend_of_the_users_budget(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nMore\n"))
    write("minions.toml", "[budgets]\nuser_tokens_per_day = 150\n")
    first = cli("chat", *MODEL, "--user", "ann")
    assert "The user's daily limit user_tokens_per_day=150 is reached" in first.err


def test_a_batch_stops_where_the_days_budget_is_spent_and_continues_later(
    cli: Cli, write: Write
) -> None:
    write("minions.toml", "[budgets]\nuser_tokens_per_day = 300\n")
    write("items.jsonl", "{}\n" * 4)
    stopped = cli("batch", "asks.yaml", "items.jsonl", "-j", "1", *MODEL, "--user", "ann")
    states = [json.loads(line)["status"] for line in stopped.out.splitlines()]
    assert states == ["completed", "completed", NOT_STARTED, NOT_STARTED]
    assert stopped.code == 5
    assert "stopped[budget-spent]: The user's daily limit" in stopped.err
    assert "continue: minions batch asks.yaml items.jsonl -j 1" in stopped.err
    assert "--user ann" in stopped.err
    write("minions.toml", "")
    again = cli("batch", "asks.yaml", "items.jsonl", "-j", "1", *MODEL, "--user", "ann")
    assert (again.code, again.out.count("completed")) == (0, 4)


def test_budgets_of_a_wrong_type_are_refused_where_they_are_given() -> None:
    with pytest.raises(UsageError, match=r"Write budgets=Budgets\(usd_per_day=5\)"):
        Minions(budgets={"usd_per_day": 5})  # type: ignore[arg-type]  # what a caller may try
    with pytest.raises(TypeError, match="tokens_per_day"):
        Budgets(tokens_per_day=1.5)  # type: ignore[arg-type]  # what a caller may try
    with pytest.raises(TypeError, match="usd_per_day"):
        Budgets(usd_per_day="5")  # type: ignore[arg-type]  # what a caller may try


async def test_a_label_that_is_no_text_is_refused() -> None:
    async with Minions(model=ScriptedModel(["fine"])) as app:
        with pytest.raises(UsageError, match="'3' has not"):
            await app.arun(ASKS, user=3)  # type: ignore[arg-type]  # what a caller may try


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("usd_per_day = 0", "'usd_per_day' is 0; a number above 0 was expected"),
        ("tokens_per_day = 1.5", "'tokens_per_day' is 1.5; a whole number from 1 was expected"),
        ("user_usd = 1", "unknown key 'user_usd'"),
    ],
)
def test_a_wrong_budget_is_told_by_its_place(tmp_path: Path, line: str, expected: str) -> None:
    (tmp_path / "minions.toml").write_text(f"[budgets]\n{line}\n")
    with pytest.raises(UsageError) as refused:
        load_settings({}, {}, folder=tmp_path, user_file=None, trust=TRUSTED)
    assert f"[budgets]: {expected}" in refused.value.message


def test_budgets_are_set_in_files_only(tmp_path: Path) -> None:
    (tmp_path / "minions.toml").write_text("[budgets]\nusd_per_day = 5\nsession_tokens = 7\n")
    found = load_settings(
        {},
        {"MINIONS_BUDGETS": "x"},
        folder=tmp_path,
        user_file=None,
        trust=TRUSTED,
    )
    assert found.settings.budgets == Budgets(usd_per_day=5, session_tokens=7)


async def answering(_prompt: Prompt) -> ModelCallResponse:
    return answer_of("fine")


async def test_runs_of_an_application_share_its_budgets(tmp_path: Path) -> None:
    budgets = Budgets(user_tokens_per_day=30)
    model = ScriptedModel(answering)
    async with Minions(model=model, journal=tmp_path / "j.sqlite", budgets=budgets) as app:
        assert (await app.arun(ASKS, user="ann")).status is RunStatus.COMPLETED
        stream = app.astream(ASKS, user="ann")
        assert [event async for event in stream]
        stopped = await app.execute(app.prepare(ASKS, user="ann"))
        assert stopped.status is RunStatus.LIMIT_REACHED
        batch = app.batch(ASKS, [{}], user="ann")
        assert [each.status async for each in batch] == [NOT_STARTED]
        assert (await app.arun(ASKS)).status is RunStatus.COMPLETED
        rows = await app.services.journal.runs(RunFilter())
        assert sorted(row.user or "" for row in rows) == ["", "ann", "ann", "ann"]


def test_budgets_have_names_and_periods_and_whose_they_are(tmp_path: Path) -> None:
    (tmp_path / "minions.toml").write_text(
        "[budgets]\nusd_per_day = 5\non_threshold = 'warn'\nthreshold = 0.9\nraise_to = 2\n"
        "[budgets.limits.reports]\nper = 'recipe'\nonly = 'report'\nperiod = 'week'\nusd = 20\n"
        "threshold = 0.5\non_threshold = 'ask'\nraise_to = 1.5\n"
        "[budgets.limits.night]\nper = 'schedule'\ntokens = 7\n"
    )
    found = load_settings({}, {}, folder=tmp_path, user_file=None, trust=TRUSTED)
    assert found.settings.budgets == Budgets(
        usd_per_day=5,
        on_threshold=OnThreshold.WARN,
        threshold=0.9,
        raise_to=2,
        limits={
            "reports": BudgetRule(
                per=BudgetSpender.RECIPE,
                only="report",
                period=BudgetPeriod.WEEK,
                usd=20,
                threshold=0.5,
                on_threshold=OnThreshold.ASK,
                raise_to=1.5,
            ),
            "night": BudgetRule(per=BudgetSpender.SCHEDULE, tokens=7),
        },
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("threshold = 1.5", "'threshold' is 1.5; above 0, up to 1 was expected"),
        ("raise_to = 0.5", "'raise_to' is 0.5; from 1 was expected"),
        ("on_threshold = 'wait'", "'on_threshold'"),
        ("[budgets.limits.x]\nper = 'team'", "'per'"),
        ("[budgets.limits.x]\nusd = 0", "'usd' is 0; a number above 0 was expected"),
        ("[budgets.limits.x]\nperiods = 'day'", "unknown key 'periods'"),
    ],
)
def test_a_wrong_limit_of_budgets_is_told_by_its_place(
    tmp_path: Path, line: str, expected: str
) -> None:
    (tmp_path / "minions.toml").write_text(f"[budgets]\n{line}\n")
    with pytest.raises(UsageError) as refused:
        load_settings({}, {}, folder=tmp_path, user_file=None, trust=TRUSTED)
    assert expected in refused.value.message


def test_budgets_are_listed_with_what_is_left_and_who_waits(cli: Cli, write: Write) -> None:
    write(
        "minions.toml",
        "[budgets]\ntokens_per_day = 1000\non_threshold = 'ask'\nthreshold = 0.2\n"
        "[budgets.limits.mine]\nper = 'recipe'\nperiod = 'month'\ntokens = 400\n"
        "on_threshold = 'warn'\n"
        "[budgets.limits.users]\nper = 'user'\ntokens = 4\n",
    )
    runs = [cli("run", "asks.yaml", *MODEL, "--json").json for _ in range(3)]
    assert [run["status"] for run in runs] == ["completed", "completed", "needs_decision"]
    waiting = str(runs[-1]["run_id"])
    listed = " ".join(cli("budgets", "--db", "j.sqlite").out.split())
    assert "limits.mine asks month from " in listed
    assert "300 of 400 tokens used, 0 reserved, 100 left warn at 20%" in listed
    assert "limits.users each user day from " in listed
    assert "300 of 1000 tokens used, 0 reserved, 700 left ask at 20%" in listed
    assert f"waiting: {waiting}" in listed
    approved = cli("approve", waiting, "--db", "j.sqlite", "--json")
    assert approved.json["status"] == "completed"
    (of_all,) = (
        each
        for each in json.loads(cli("budgets", "--db", "j.sqlite", "--json").out)["budgets"]
        if each["budget"] == "per_day"
    )
    assert of_all.pop("until") > of_all.pop("since")
    assert of_all.pop("answer")["run_id"] == waiting
    assert of_all == {
        "budget": "per_day",
        "per": "all",
        "of": None,
        "period": "day",
        "threshold": 0.2,
        "on_threshold": "ask",
        "waiting": [],
        "tokens": {"limit": 1000, "used": 450, "reserved": 0, "left": 550},
    }


def test_no_budgets_are_listed_where_none_is_configured(cli: Cli) -> None:
    listed = cli("budgets", "--db", "j.sqlite")
    assert (listed.code, listed.out) == (0, "")
    assert "No budget is configured." in listed.err


def test_runs_without_budgets_store_nothing_about_them(cli: Cli, here: Path) -> None:
    """What is not configured costs nothing: no row, and no statement."""
    assert cli("run", "asks.yaml", *MODEL).code == 0
    with closing(sqlite3.connect(here / "j.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM state").fetchone() == (0,)


def test_a_queued_run_waits_at_a_threshold_whatever_consents_to_its_calls(
    cli: Cli, write: Write
) -> None:
    """A-170: in a worker nobody is asked, and the rest is queued again by the decision."""
    write(
        "minions.toml",
        "approve = 'all'\n[budgets]\ntokens_per_day = 300\nthreshold = 0.5\non_threshold = 'ask'\n",
    )
    queued = ("--queue", "slow", "--detach")
    first, second = (cli("run", "asks.yaml", *MODEL, *queued, "--json").json for _ in range(2))
    worker = ("worker", "--once", "--slots", "1", "--queues", "slow", "--db", "j.sqlite")
    assert cli(*worker).code == 0

    def states() -> dict[object, object]:
        listed = json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out)
        return {run["run_id"]: run["status"] for run in listed}

    assert states() == {first["run_id"]: "completed", second["run_id"]: "needs_decision"}
    assert cli("approve", str(second["run_id"]), "--db", "j.sqlite").code == 0
    assert cli(*worker).code == 0
    assert set(states().values()) == {"completed"}
