"""`minions plan` and `minions do`: a task is planned, shown, approved and carried out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.app.runs.deciders import TerminalDecider
from minions.contracts.decision_types import Question
from minions.contracts.plan_diffs import PlanProposal, diff_plans
from minions.contracts.plans import Plan, PlanStep, PlanStepType

MODEL: Final = """\
import json
from minions import ScriptedModel

PLAN = {"name": "Notes", "steps": [
    {"id": "write", "type": "generate", "goal": "Write notes", "artifacts": ["notes.md"]},
]}


def answer(prompt):
    text = "\\n".join(message.content or "" for message in prompt.messages)
    if "You plan work" not in text:
        return "notes.md\\n```\\n# Notes\\n```"
    if "'text'" in text or "Write the plan in this form" in text:
        return "PLAN: Text\\nSTEP: write\\nTYPE: generate\\nGOAL: Write\\nARTIFACTS: notes.md\\n"
    return json.dumps(PLAN)


model = ScriptedModel(answer, name="scripted/planner")
"""
OPTIONS: Final = ("-m", "scripted/planner", "--extensions", "model.py", "--db", "j.sqlite")


@pytest.fixture(autouse=True)
def _model(write: Write) -> None:
    write("model.py", MODEL)


def test_a_plan_is_written_as_a_recipe_that_runs(cli: Cli, here: Path) -> None:
    done = cli("plan", "Write notes", "-w", "work", "-o", "notes.yaml", *OPTIONS)
    assert done.code == 0
    assert "PLAN: Notes\n\nSTEP: write\nTYPE: generate\n" in done.err
    assert "Wrote notes.yaml. What it needs and may do: minions explain notes.yaml" in done.err
    assert not (here / "work" / "notes.md").exists()
    assert cli("validate", "notes.yaml").code == 0
    ran = cli("run", "notes.yaml", *OPTIONS)
    assert (ran.code, (here / "work" / "notes.md").read_text()) == (0, "# Notes\n")


def test_a_plan_is_printed_where_no_file_is_named(cli: Cli) -> None:
    done = cli("plan", "Write notes", "-w", "work", *OPTIONS)
    assert done.out.startswith("# Made of the plan below.\n# PLAN: Notes\n")
    shown = json.loads(cli("plan", "Write notes", "-w", "work", "--json", *OPTIONS).out)
    assert shown["plan"]["steps"][0]["id"] == "write"
    assert shown["file"] is None


def test_a_file_that_is_there_is_not_overwritten(cli: Cli, write: Write, here: Path) -> None:
    write("notes.yaml", "mine")
    done = cli("plan", "Write notes", "-o", "notes.yaml", *OPTIONS)
    assert (done.code, "error[already-there]" in done.err) == (2, True)
    assert (here / "notes.yaml").read_text() == "mine"
    assert not (here / "j.sqlite").exists()  # nothing was asked


def test_a_task_is_carried_out_at_once_where_yes_is_said_before(cli: Cli, here: Path) -> None:
    done = cli("do", "Write notes", "-w", "work", "--yes", "--json", *OPTIONS)
    assert done.code == 0
    assert json.loads(done.out)["output"]["steps"] == [
        {
            "id": "write",
            "type": "generate",
            "status": "completed",
            "files": ["notes.md"],
            "artifacts": ["notes.md"],
        }
    ]
    assert (here / "work" / "notes.md").read_text() == "# Notes\n"


def test_without_a_terminal_the_plan_waits_for_an_answer(cli: Cli, here: Path) -> None:
    done = cli("do", "Write notes", "-w", "work", *OPTIONS)
    assert done.code == 3
    assert "PLAN: Notes" in done.err
    assert "minions answer run_" in done.err
    assert not (here / "work" / "notes.md").exists()
    answered = cli("answer", "run_", "yes", "--extensions", "model.py", "--db", "j.sqlite")
    assert answered.code == 0
    assert (here / "work" / "notes.md").exists()


def test_a_rejected_plan_ends_the_run(cli: Cli, here: Path) -> None:
    cli("do", "Write notes", "-w", "work", *OPTIONS)
    answered = cli("answer", "run_", "no", "--extensions", "model.py", "--db", "j.sqlite")
    assert (answered.code, "error[plan-rejected]" in answered.err) == (1, True)
    assert not (here / "work" / "notes.md").exists()


def test_a_task_may_be_a_file(cli: Cli, write: Write, here: Path) -> None:
    write("task.md", "Write notes")
    assert cli("do", "@task.md", "-w", "work", "--yes", "--form", "text", *OPTIONS).code == 0
    assert (here / "work" / "notes.md").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("do", " ", "--yes"), "The task is empty"),
        (("do", "x", "-w", "model.py"), "--workspace model.py is a file"),
        (("plan", "x", "-o", "nowhere/a.yaml"), "There is no folder nowhere"),
        (("plan", "x", "-o", ".", "--force"), ". is a folder. Name a file."),
        (("plan", "x", "-o", "dangling.yaml"), "dangling.yaml exists already"),
        (("do", "x", "-w", "no/such/folder"), "there is no folder"),
        (("do", "@gone.md", "--yes"), "TASK @gone.md: No such file or directory."),
        (("do", "@gone.md", "--yes"), "write @@gone.md for the text itself"),
        (("do", "@empty.md", "--yes"), "TASK @empty.md: there is no text in it"),
        (("do", "x", "--context", "@gone.md"), "--context @gone.md: No such file"),
        (("do", "x", "-w", ""), "--workspace is empty"),
        (("do", "x", "--share", "all"), "'all' is not one of"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(
    cli: Cli, write: Write, arguments: tuple[str, ...], words: str
) -> None:
    write("empty.md", " \n")
    Path("dangling.yaml").symlink_to("gone.yaml")
    done = cli(*arguments, *OPTIONS)
    assert (done.code, words in done.err) == (2, True), done.err


def test_a_plan_is_used_again_for_another_name(cli: Cli, write: Write, here: Path) -> None:
    planner = MODEL.replace(
        'return "notes.md\\n```\\n# Notes\\n```"',
        'name = text.rpartition("Write: ")[2].split()[0]; return f"{name}\\n```\\n# Text\\n```"',
    )
    write("model.py", planner)
    assert cli("do", "Write notes", "-w", "work", "--yes", *OPTIONS).code == 0
    done = cli("do", "Write letters", "-w", "work", "--yes", "--reuse", "--json", *OPTIONS)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (here / "work" / "letters.md").read_text() == "# Text\n"
    said = f"The plan of run {result['output']['kept_run']} is used again, with notes → letters."
    assert f"work: {said}" in done.err
    shown = cli("sessions", "show", result["run_id"], "--db", "j.sqlite")
    assert f"work: {said}" in " ".join(shown.out.split())


LOOKS: Final = """\
import json
from minions import ScriptedModel

PLAN = {"name": "Look", "steps": [
    {"id": "look", "type": "analyze", "goal": "Look"},
    {"id": "judge", "type": "validate", "goal": "Judge", "dependencies": ["look"]},
]}


def answer(prompt):
    text = "\\n".join(message.content or "" for message in prompt.messages)
    if "You plan work" in text:
        return json.dumps(PLAN)
    return "Bad.\\nVERDICT: FAIL" if "VERDICT" in text else "There are no files."


model = ScriptedModel(answer, name="scripted/planner")
"""


@pytest.mark.parametrize("fails", [True, False])
def test_what_steps_answered_is_printed_however_the_plan_ended(
    cli: Cli, write: Write, fails: bool
) -> None:
    write("model.py", LOOKS if fails else LOOKS.replace("VERDICT: FAIL", "VERDICT: PASS"))
    arguments = ("do", "Look", "-w", "work", "--yes", "--max-replans", "0", *OPTIONS)
    done = cli(*arguments)
    assert done.code == (1 if fails else 0)
    steps = json.loads(done.out)["steps"]
    assert [each["answer"] for each in steps] == [
        "There are no files.",
        "Bad.\nVERDICT: FAIL" if fails else "Bad.\nVERDICT: PASS",
    ]
    shown = json.loads(cli(*arguments, "--json").out)
    keys = {"id", "type", "status", "files", "answer", "error"}
    assert [set(each) for each in shown["plan"]] == [keys, keys]
    assert [each["status"] for each in shown["plan"]] == [
        "completed",
        "failed" if fails else "completed",
    ]


FAILS_ONCE: Final = MODEL.replace(
    "def answer(prompt):\n",
    """def answer(prompt):
    said = "\\n".join(message.content or "" for message in prompt.messages)
    if "An earlier plan failed" in said:
        return json.dumps(PLAN).replace("Write notes", "Write them so")
    if "You plan work" not in said and "Write them so" not in said:
        return "I will not."
""",
)
REPLACED: Final = diff_plans(
    Plan(
        id="Shop",
        steps=(
            PlanStep(id="model", type=PlanStepType.GENERATE, goal="Write it"),
            PlanStep(
                id="use",
                type=PlanStepType.GENERATE,
                goal="Use the item in a way that does not need to be told",
            ),
        ),
    ),
    Plan(id="Rest", steps=(PlanStep(id="use", type=PlanStepType.GENERATE, goal="Use it"),)),
    {"model": "completed", "use": "failed"},
)


def test_a_folder_that_cannot_be_listed_is_refused(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look like an empty one."""
    (here / "closed").mkdir()
    monkeypatch.setattr("os.access", lambda *_arguments, **_more: False)
    done = cli("do", "x", "-w", "closed", *OPTIONS)
    assert (done.code, "--workspace closed cannot be listed" in done.err) == (2, True), done.err


# --- at the terminal ----------------------------------------------------------------------------

QUESTION: Final = Question(
    key="k",
    run_id="run_1",
    step_id="work",
    text="PLAN: a\nSTEP: b\nEND_PLAN\nCarry out this plan?",
    form=None,
    plan=PlanProposal(text="PLAN: a\nSTEP: b\nEND_PLAN\n"),
)


async def _answered(edited: str | None, *lines: str) -> tuple[object, list[str]]:
    waiting, shown = iter(lines), list[str]()

    def edit(text: str) -> str | None:
        shown.append(text)
        return edited

    decider = TerminalDecider(
        lambda _: None, lambda: f"{next(waiting, '')}\n", approvals=None, edit=edit
    )
    return await decider.answer(QUESTION), shown


async def test_the_editor_gets_the_plan_and_gives_the_answer() -> None:
    answer, shown = await _answered("PLAN: a\nSTEP: c\n", "edit")
    assert (answer, shown) == ("PLAN: a\nSTEP: c\n", ["PLAN: a\nSTEP: b\nEND_PLAN\n"])


async def test_an_editor_that_saved_nothing_asks_again() -> None:
    answer, shown = await _answered(None, "e", "yes")
    assert (answer, len(shown)) == ("yes", 1)


REPLAN: Final = evolve(
    QUESTION,
    text=f"{REPLACED.to_text()}\nCarry out this plan?",
    plan=PlanProposal(text="PLAN: Rest\nSTEP: use\nEND_PLAN\n", diff=REPLACED),
)


async def _asked(*lines: str) -> tuple[object, list[str]]:
    waiting, written = iter(lines), list[str]()
    decider = TerminalDecider(written.append, lambda: f"{next(waiting)}\n", width=lambda: 40)
    return await decider.answer(REPLAN), written


async def test_what_differs_is_readable_at_forty_columns() -> None:
    answer, written = await _asked("yes")
    assert answer == "yes"
    assert written[0] == (
        "NEW PLAN: Rest\n"
        "  1 done, 1 changed\n"
        "✓ model (generate): done\n"
        "~ use (generate): changed, it failed\n"
        "    GOAL:\n"
        "    - Use the item in a way that does\n"
        "      not need to be told\n"
        "    + Use it\n"
        "Carry out this plan?"
    )
    assert "show for the whole plan" in written[1]


async def test_the_whole_plan_is_shown_on_demand() -> None:
    answer, written = await _asked("show", "no")
    assert answer == "no"
    assert written[2] == "PLAN: Rest\nSTEP: use\nEND_PLAN"


def test_a_new_plan_is_shown_also_where_nobody_is_asked(cli: Cli, write: Write) -> None:
    write("model.py", FAILS_ONCE)
    done = cli("do", "Write notes", "-w", "work", "--yes", *OPTIONS)
    assert done.code == 0
    assert (
        "    work is planned again:\n"
        "    NEW PLAN: Notes\n"
        "      1 changed\n"
        "    ~ write (generate): changed, it failed\n"
        "        GOAL:\n"
        "        - Write notes\n"
        "        + Write them so\n"
    ) in done.err


def test_a_new_plan_is_told_of_a_recorded_run(cli: Cli, write: Write) -> None:
    write("model.py", FAILS_ONCE)
    cli("do", "Write notes", "-w", "work", "--yes", *OPTIONS)
    shown = cli("sessions", "show", "run_", "--db", "j.sqlite").out
    assert "- work: planned again: 1 changed\n" in shown


def test_a_waiting_run_shows_what_differs(cli: Cli, write: Write) -> None:
    write("model.py", FAILS_ONCE)
    cli("do", "Write notes", "-w", "work", *OPTIONS)
    stored = ("--extensions", "model.py", "--db", "j.sqlite")
    answered = cli("answer", "run_", "yes", *stored)
    assert answered.code == 3
    assert "~ write (generate): changed, it failed\n" in answered.err
    assert cli("answer", "run_", "yes", *stored).code == 0


def test_a_failed_plan_names_its_step_and_the_cause(cli: Cli, write: Write) -> None:
    write("model.py", FAILS_ONCE)
    done = cli("do", "Write notes", "-w", "work", "--yes", "--max-replans", "0", *OPTIONS)
    assert done.code == 1
    assert "Step 'write': The answer lacks notes.md." in done.err
    assert "work/write" in done.err


@pytest.mark.parametrize("editor", ["false", "/nowhere/editor"])
async def test_an_editor_that_fails_asks_again(
    editor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    lines, told = iter(["edit\n", "yes\n"]), list[str]()
    decider = TerminalDecider(told.append, lambda: next(lines))
    assert await decider.answer(QUESTION) == "yes"
    assert any(each.startswith(f"The editor failed: {editor}: ") for each in told)


def test_what_a_plan_will_cost_is_not_known_before(cli: Cli, write: Write) -> None:
    write(
        "planned.yaml",
        "id: planned\npermissions: {allow_write: true}\n"
        "steps: [{id: work, plan: Write, approval: none}]\n",
    )
    told = cli("explain", "planned.yaml").out
    assert "the plan that 'work' makes decides" in told


def test_the_step_executor_is_listed_and_run_by_name(cli: Cli, here: Path) -> None:
    """A-99."""
    listed = json.loads(cli("agents", "list", "--json").out)["agents"]
    [agent] = [each for each in listed if each["name"] == "StepExecutor"]
    assert agent["text_input"] == "requirements"
    done = cli("agents", "run", "StepExecutor", "Write notes", *OPTIONS)
    assert (done.code, "PLAN: Notes" in done.err) == (3, True)
    answered = cli("answer", "run_", "yes", "--extensions", "model.py", "--db", "j.sqlite")
    assert (answered.code, (here / "notes.md").exists()) == (0, True)


def test_a_plan_is_reported_as_junit(cli: Cli, here: Path) -> None:
    done = cli("do", "Write notes", "-w", "work", "--yes", "--junit", "report.xml", *OPTIONS)
    assert done.code == 0
    assert 'name="work/write__written"' in (here / "report.xml").read_text()


# --- a folder with many files ---------------------------------------------------------------------

LARGE: Final = """\
import json
from pathlib import Path
from minions import ScriptedModel

FIRST = {"name": "Mend", "steps": [
    {"id": "look", "type": "analyze", "goal": "Find who calls f.", "tools": ["files__search"]},
    {"id": "mend", "type": "modify", "goal": "Mend.", "files": ["src/order.py"],
     "dependencies": ["look"], "artifacts": ["src/orders.py"]},
]}
SECOND = json.loads(json.dumps(FIRST).replace("order.py", "orders.py"))


def answer(prompt):
    text = "\\n".join(message.content or "" for message in prompt.messages)
    with Path("prompts.txt").open("a") as file:
        file.write(text + "\\n=====\\n")
    return json.dumps(SECOND if "This plan has faults" in text else FIRST)


model = ScriptedModel(answer, name="scripted/planner")
"""


def test_of_many_files_the_planner_sees_folders_and_those_that_the_task_names(
    cli: Cli, write: Write, here: Path
) -> None:
    write("model.py", LARGE)
    for at in range(400):
        write(f"work/data/{at}.csv", "")
    for name in ("orders", "users"):
        write(f"work/src/{name}.py", "")
    done = cli("plan", "Mend data/7.csv and what is in orders", "-w", "work", *OPTIONS)
    assert done.code == 0, done.err
    first, second, _ = (here / "prompts.txt").read_text().split("=====")
    assert "data/ (400 files: 400 .csv), src/orders.py, src/users.py\n" in first
    assert "Files whose names are in the task: data/7.csv, src/orders.py\n" in first
    assert "may be given the tools files__glob, files__search, files__read." in first
    assert "'src/order.py', which is not in the workspace" in second
    assert "Did you mean 'src/orders.py'?" in second
    assert "- files__search" in done.out
