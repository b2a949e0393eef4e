"""An instruction in prose becomes a recipe that is valid, or nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from command_line import Cli, Write
from minions.data.json_values import JsonValue

PROSE: Final = """\
name: Activity monitor
description: Looks after my workouts
schedule: "0 * * * *"
enabled: true
permissions: {allow_write: true}
tools: [loadState, saveState]
instructions: |
  Look up when you ran last. Then remember that it is now.
"""
GOOD: Final = """\
id: activity_monitor
permissions: {allow_write: true}
metadata: {schedule: 0 * * * *, enabled: true}
steps:
  - {id: last, tool: loadState, params: {key: last_run}}
  - {id: now, tool: getCurrentDateTime, depends_on: [last]}
  - {id: kept, tool: saveState, params: {key: last_run, value: "{{ now.datetime.iso }}"}}
"""
BAD: Final = GOOD.replace("saveState", "keepState").replace("now.datetime", "then.datetime")
HEAD: Final = "# Made of monitor.yaml by scripted/answers.yaml. Read it before you run it.\n"
MIGRATE: Final = ("migrate", "monitor.yaml", "-m", "scripted/answers.yaml", "--no-store")


@pytest.fixture
def monitor(write: Write) -> None:
    write("monitor.yaml", PROSE)


Answers: TypeAlias = Callable[..., None]


@pytest.fixture
def answers(write: Write) -> Answers:
    """Write the script of the model: recipes in the order in which it gives them."""

    def put(*recipes: str) -> None:
        items: list[JsonValue] = [
            {"json": {"recipe": recipe, "notes": ["No kudos are counted."]}} for recipe in recipes
        ]
        write("answers.yaml", json.dumps({"answers": items}))

    return put


@pytest.mark.usefixtures("monitor")
def test_a_recipe_that_is_right_at_once_is_printed(cli: Cli, answers: Answers, here: Path) -> None:
    answers(GOOD)
    done = cli(*MIGRATE)
    assert (done.code, done.out) == (0, HEAD + GOOD)
    assert "note: No kudos are counted.\n" in done.err
    assert sorted(path.name for path in here.iterdir()) == [".git", "answers.yaml", "monitor.yaml"]


@pytest.mark.usefixtures("monitor")
def test_faults_go_back_to_the_model(cli: Cli, answers: Answers, here: Path) -> None:
    answers(BAD, f"```yaml\n{GOOD}```")
    done = cli(*MIGRATE, "-o", "made.yaml", "--db", "j.sqlite")
    assert done.code == 0, done.err
    assert (done.out, (here / "made.yaml").read_text("utf-8")) == ("", HEAD + GOOD)
    assert cli("validate", "made.yaml").code == 0


def asked(cli: Cli) -> list[str]:
    """What the model was told, first prompt of each step."""
    detail = json.loads(cli("sessions", "show", "run_", "--db", "j.sqlite", "--json").out)
    return [
        f"{step_id}: {message['content']}"
        for step_id, message in detail["messages"]
        if message["role"] == "goal"
    ]


@pytest.mark.usefixtures("monitor")
def test_the_model_is_told_its_faults_and_what_it_wrote(cli: Cli, answers: Answers) -> None:
    answers(BAD, BAD, GOOD)
    stored = (*MIGRATE[:-1], "--db", "j.sqlite")
    done = cli(*stored)
    assert (done.code, done.out) == (0, HEAD + GOOD)
    draft, mended, again = asked(cli)
    assert draft.startswith(
        "draft: Turn this instruction into a recipe with the id activity_monitor"
    )
    assert PROSE.strip() in draft
    assert "It may write." in draft
    faults = "<faults>\nline 7: unknown tool 'keepState'; did you mean 'saveState'?; "
    for prompt in (mended, again):
        assert faults in prompt
        assert "unknown name 'then'" in prompt
        assert BAD.strip() in prompt
        assert PROSE.strip() in prompt


@pytest.mark.usefixtures("monitor")
@pytest.mark.parametrize("command", ["resume", "retry"])
def test_a_migration_that_failed_is_said_again_and_not_resumed(
    cli: Cli, answers: Answers, command: str
) -> None:
    answers(BAD)
    assert cli(*MIGRATE[:-1], "--db", "j.sqlite").code == 1
    done = cli(command, "run_", "--db", "j.sqlite")
    assert done.code == 2
    assert done.err.startswith("error[other-command]: Run 'run_")
    assert "was made by `minions migrate monitor.yaml`, which cannot be resumed" in done.err


@pytest.mark.usefixtures("monitor")
def test_where_dry_runs_are_configured_no_model_is_asked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIONS_DRY_RUN", "true")
    done = cli(*MIGRATE)
    told = "dry_run is set: no model is asked, nothing is written.\n"
    assert (done.code, done.out, done.err) == (0, "", told)


@pytest.mark.usefixtures("monitor")
def test_three_times_wrong_is_told_and_nothing_is_written(
    cli: Cli, answers: Answers, here: Path
) -> None:
    answers(BAD, BAD, BAD)
    done = cli(*MIGRATE, "-o", "made.yaml")
    assert (done.code, done.out) == (1, "")
    assert "unknown tool 'keepState'; did you mean 'saveState'?" in done.err
    assert "unknown name 'then'" in done.err
    assert "Nothing was written." in done.err
    assert not (here / "made.yaml").exists()


def test_a_text_gives_no_right_to_write(cli: Cli, write: Write, answers: Answers) -> None:
    write("notes.md", "# Monitor\n\nRemember when it is.\n")
    answers(GOOD, GOOD, GOOD)
    done = cli("migrate", "notes.md", *MIGRATE[2:])
    assert (done.code, done.out) == (1, "")
    assert "permissions.allow_write: the instruction does not allow writing." in done.err


def test_a_text_becomes_a_recipe(cli: Cli, write: Write, answers: Answers) -> None:
    write("What time.md", "Tell the time. {{ not.a.template }}\n")
    answers("id: what_time\nsteps:\n  - {id: now, tool: getCurrentDateTime}\n")
    done = cli("migrate", "What time.md", *MIGRATE[2:-1], "--db", "j.sqlite", "--json")
    assert done.code == 0, done.err
    assert done.json == {
        "recipe": "# Made of What time.md by scripted/answers.yaml. Read it before you run it.\n"
        "id: what_time\nsteps:\n  - {id: now, tool: getCurrentDateTime}\n",
        "notes": ["No kudos are counted."],
        "file": None,
        "run_id": done.json["run_id"],
    }
    [draft] = asked(cli)
    assert "a recipe with the id what_time. Writing is not allowed: no permissions." in draft
    assert "Tell the time. {{ not.a.template }}" in draft


def test_the_operators_own_tools_may_be_named(cli: Cli, write: Write, answers: Answers) -> None:
    write(
        "own.py",
        "from minions import tool\n\n@tool(effect='pure')\ndef kudos(name: str) -> int:\n"
        '    """How many somebody gave."""\n    return 1\n',
    )
    write("a.txt", "How many kudos did Ada give?")
    answers("id: a\nsteps:\n  - {id: n, tool: kudos, params: {name: Ada}}\n")
    words = ("migrate", "a.txt", "-m", "scripted/answers.yaml", "--db", "j.sqlite")
    assert cli(*words, "--extensions", "own.py").code == 0
    detail = json.loads(cli("sessions", "show", "run_", "--db", "j.sqlite", "--json").out)
    system = detail["messages"][0][1]["content"]
    assert "- kudos(name): How many somebody gave.\n" in system
    assert "- files__search(pattern, regex?, glob?, limit?): Find lines in text files." in system


def test_what_is_a_recipe_already_is_checked_and_no_model_is_asked(
    cli: Cli, write: Write, here: Path
) -> None:
    write("done.yaml", GOOD)
    done = cli("migrate", "done.yaml", "-o", "made.yaml")
    told = "done.yaml is a recipe already, and it is valid. Nothing to do.\n"
    assert (done.code, done.out, done.err) == (0, "", told)
    write("done.yaml", BAD)
    done = cli("migrate", "done.yaml")
    assert (done.code, done.err) == (2, cli("validate", "done.yaml").err)
    assert sorted(path.name for path in here.iterdir()) == [".git", "done.yaml"]


@pytest.mark.usefixtures("monitor")
def test_a_file_that_is_there_stays_unless_force_is_used(
    cli: Cli, answers: Answers, here: Path
) -> None:
    answers(GOOD)
    (here / "made.yaml").write_text("mine")
    refused = cli(*MIGRATE, "-o", "made.yaml")
    assert refused.code == 2
    assert refused.err.startswith("error[already-there]: made.yaml exists already")
    assert (here / "made.yaml").read_text() == "mine"
    forced = cli(*MIGRATE, "-o", "made.yaml", "--force")
    assert forced.code == 0, forced.err
    assert (here / "made.yaml").read_text() == HEAD + GOOD


@pytest.mark.usefixtures("monitor")
@pytest.mark.parametrize(
    ("target", "code"), [("no/where.yaml", "not-writable"), (".", "already-there")]
)
def test_where_nothing_can_be_written_no_model_is_asked(cli: Cli, target: str, code: str) -> None:
    done = cli("migrate", "monitor.yaml", "-o", target, "--force")
    assert done.code == 2
    assert done.err.startswith(f"error[{code}]: ")


@pytest.mark.usefixtures("monitor")
def test_without_a_model_three_commands_are_told(cli: Cli, here: Path) -> None:
    done = cli("migrate", "monitor.yaml")
    assert (done.code, done.out) == (4, "")
    assert done.err == (
        "error[no-model]: Recipe 'migrate' needs a model and none is configured. Try one of:\n"
        "  minions migrate monitor.yaml -m local   (a small model that comes along; see minions "
        "models)\n"
        "  minions migrate monitor.yaml -m ollama/llama3.2   (a local server, no key)\n"
        "  OPENAI_API_KEY=… minions migrate monitor.yaml   (OpenAI)\n"
        "  minions migrate monitor.yaml -m scripted/answers.yaml   (scripted answers, offline)\n"
    )


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "error[file-not-found]: There is no file in.yaml."),
        (b"", "error[empty]: in.yaml is empty: there is nothing to migrate."),
        (b" \n\n", "error[empty]: in.yaml is empty: there is nothing to migrate."),
        (b"\x89PNG\r\n\x1a\n", "error[no-text]: in.yaml is not text: byte 0 is not UTF-8."),
        (b"a\0b", "error[no-text]: in.yaml is not text: it holds zero bytes."),
        (b"a: [\n", "error["),
        (b"x" * 100_001, "error[too-long]: in.yaml has more than 100,000 bytes"),
    ],
    ids=["missing", "empty", "blank", "picture", "zeros", "no yaml", "long"],
)
def test_what_is_no_instruction_is_refused(
    cli: Cli, here: Path, content: bytes | None, error: str
) -> None:
    if content is not None:
        (here / "in.yaml").write_bytes(content)
    done = cli("migrate", "in.yaml", "-m", "scripted/answers.yaml")
    assert done.code == 2
    assert done.err.startswith(error)
    assert "Traceback" not in done.err


def test_a_folder_is_no_instruction(cli: Cli, here: Path) -> None:
    (here / "in").mkdir()
    done = cli("migrate", "in")
    assert (done.code, done.err) == (2, "error[unreadable]: in cannot be read: Is a directory.\n")


def test_the_right_to_write_may_be_given_on_the_command_line(
    cli: Cli, write: Write, answers: Answers
) -> None:
    write("notes.md", "# Monitor\n\nRemember when it is.\n")
    answers(GOOD)
    done = cli("migrate", "notes.md", "--allow-write", *MIGRATE[2:])
    assert (done.code, done.out) == (0, HEAD.replace("monitor.yaml", "notes.md") + GOOD)


def test_rights_for_single_tools_are_enough(cli: Cli, write: Write, answers: Answers) -> None:
    write("monitor.yaml", PROSE.replace("{allow_write: true}", "{allow_saveState: true}"))
    answers(GOOD, GOOD.replace("allow_write", "allow_saveState"))
    done = cli(*MIGRATE)
    assert done.code == 0, done.err
    assert "permissions: {allow_saveState: true}" in done.out


OLDER: Final = """\
name: Night watch
permissions: {allow_write: true}
steps:
  - id: "now"
    tool: "getCurrentDateTime"
    params: {}
    save_as: "current_time"
  - id: "kept"
    tool: "saveState"
    params_template: {key: "last", value: "{{current_time.datetime.iso}}"}
"""


def test_an_older_file_in_a_text_needs_no_model(cli: Cli, write: Write, here: Path) -> None:
    write("watch.txt", OLDER)
    assert cli("run", "watch.txt", "--no-store").code == 0
    done = cli("migrate", "watch.txt")
    assert (done.code, "is a recipe already" in done.err) == (0, True)
    done = cli("migrate", "watch.txt", "-o", "recipes/night.yaml")
    assert (done.code, done.out) == (2, "")  # the folder is not there
    (here / "recipes").mkdir()
    done = cli("migrate", "watch.txt", "-o", "recipes/night.yaml")
    assert done.code == 0, done.err
    assert "Wrote recipes/night.yaml, the recipe as it is." in done.err
    assert (here / "recipes" / "night.yaml").read_text() == OLDER
    assert (here / "watch.txt").read_text() == OLDER


def test_a_recipe_is_run_by_the_name_of_its_file(cli: Cli, write: Write, here: Path) -> None:
    write("recipes/night.yaml", OLDER)
    for name in ("night", "night-watch"):
        assert cli("run", name, "--no-store").code == 0
        assert cli("validate", name).code == 0
    write("recipes/more/day.yaml", OLDER.replace("Night", "Day"))
    write("recipes/again/day.yaml", OLDER.replace("Night", "Noon"))
    done = cli("run", "day", "--no-store")
    assert done.code == 2
    assert "several files are called so: recipes/again/day.yaml, recipes/more/day.yaml" in done.err
