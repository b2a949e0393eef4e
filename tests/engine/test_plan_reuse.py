"""`plan:` steps with `reuse: true`: a plan that succeeded is used again for a task of its kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import MarkRecorded, PlanLookup
from minions.contracts.journal.journal import EntryDraft
from minions.contracts.journal.start_note import StartNote
from minions.data.json_values import JsonValue, as_object
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.engine.sessions.rollback import roll_back_run
from minions.engine.views.run_notes import notes_in
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import check_recipe_text, recipe_from_document

USERS: Final = "Add a command that lists users"
ORDERS: Final = "Add a command that lists orders"


def plan_for(name: str) -> JsonValue:
    return {
        "name": f"List {name}",
        "steps": [
            {
                "id": name,
                "type": "generate",
                "goal": f"A function list_{name}",
                "artifacts": [f"commands/{name}.py"],
            },
        ],
    }


def answer(prompt: Prompt) -> Answer:
    """Plans what the task names, and writes the file of a step."""
    text = "\n".join(message.content or "" for message in prompt.messages)
    if "You plan work" in text:
        [name] = re.findall(r"lists (\w+)", text)[-1:]
        return json.dumps(plan_for(name))
    path = text.rpartition("Write: ")[2].splitlines()[0]
    return f"{path}\n```\nNAME = '{path}'\n```"


def is_planning(prompt: Prompt) -> bool:
    return any("You plan work" in (message.content or "") for message in prompt.messages)


def fails_at_first() -> Callable[[Prompt], Answer]:
    """Gives no file until a step has failed."""
    failed: list[Prompt] = []

    def answered(prompt: Prompt) -> Answer:
        if is_planning(prompt) or len(failed) > 2:
            return answer(prompt)
        failed.append(prompt)
        return "no file"

    return answered


class Person(Decider):
    """Answers each question with the next answer, and without one later."""

    def __init__(self, *answers: JsonValue) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []
        self.approved: list[str] = []

    async def approve(self, request: ApprovalRequest) -> Verdict:
        self.approved.append(request.tool)
        return Verdict.APPROVED

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        self.questions.append(question.text)
        return self.answers.pop(0) if self.answers else NoAnswer.LATER


class Tasks:
    """Runs of one recipe with a plan step, over one journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services: Services = deterministic_services()
        self.plannings = 0
        self.is_untrusted = False
        self.answer: Callable[[Prompt], Answer] = answer

    def recipe(self, **keys: JsonValue) -> AgentRecipe:
        step: dict[str, JsonValue] = {
            "id": "work",
            "plan": "{{ inputs.task }}",
            "workspace": "{{ inputs.folder }}",
            "approval": "none",
            "reuse": True,
            **keys,
        }
        document: dict[str, JsonValue] = {
            "id": "do",
            "inputs": {
                "task": {"type": "string", "untrusted": self.is_untrusted},
                "folder": {"type": "string", "default": str(self.folder)},
            },
            "permissions": {"allow_write": True},
            "steps": [step],
        }
        return recipe_from_document(document, built_in_extensions().catalog())

    def executor(self) -> AgentExecutor:
        def heard(prompt: Prompt) -> Answer:
            self.plannings += is_planning(prompt)
            return self.answer(prompt)

        extensions = built_in_extensions()
        return AgentExecutor(ScriptedModel(heard), extensions=extensions, services=self.services)

    async def run(
        self, task: str, *, folder: Path | None = None, user: str | None = None, **keys: JsonValue
    ) -> AgentResult[object]:
        inputs = {"task": task} if folder is None else {"task": task, "folder": str(folder)}
        recipe = self.recipe(**keys)
        return await self.executor().prepare(recipe, inputs, user=user).execute()

    async def lookups(self, run_id: str) -> list[PlanLookup]:
        rows = await self.services.journal.entries(run_id=run_id)
        return [row.fact for row in rows if isinstance(row.fact, PlanLookup)]

    async def mark(self, result: AgentResult[object], verdict: Literal["good", "bad"]) -> None:
        journal = self.services.journal
        lease = await journal.acquire(result.session_id, result.run_id, "person", 60)
        await journal.append(lease, EntryDraft(key="mark/1", fact=MarkRecorded(verdict=verdict)))
        await journal.release(lease)


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return Tasks(folder)


async def test_a_second_task_of_the_kind_asks_no_planner(tasks: Tasks) -> None:
    first = await tasks.run(USERS)
    second = await tasks.run(ORDERS)
    assert (first.status, second.status) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    assert tasks.plannings == 1
    assert (tasks.folder / "commands/orders.py").read_text() == "NAME = 'commands/orders.py'\n"
    output = as_object(second.output)
    assert output["plan"] == {"id": "List_orders", **as_object(plan_for("orders"))}
    assert output["kept_run"] == first.run_id
    assert "kept_run" not in as_object(first.output)


async def test_a_run_tells_which_plan_was_used_and_why_none_was(tasks: Tasks) -> None:
    first = await tasks.run(USERS)
    second = await tasks.run(ORDERS)
    third = await tasks.run("Remove a command that lists orders")
    said = [await tasks.lookups(each.run_id) for each in (first, second, third)]
    assert [[(each.run, each.text) for each in listed] for listed in said] == [
        [(None, "No plan of an earlier run serves the task.")],
        [
            (
                first.run_id,
                f"The plan of run {first.run_id} is used again, with users → orders.",
            )
        ],
        [
            (
                None,
                (
                    f"No plan of an earlier run serves the task: of that of run {second.run_id}, "
                    "its task says 'Add' where this one says 'Remove', and that is no name, "
                    "number or path."
                ),
            )
        ],
    ]
    assert tasks.plannings == 2
    rows = await tasks.services.journal.entries(run_id=second.run_id)
    [note] = [each for each in notes_in(rows) if each.kind == "plan"]
    assert (note.step_id, note.state) == ("work", "looked_up")


async def test_a_plan_that_was_used_again_is_kept_too(tasks: Tasks) -> None:
    first = await tasks.run(USERS)
    second = await tasks.run(ORDERS)
    await tasks.mark(first, "bad")
    third = await tasks.run("Add a command that lists carts")
    assert as_object(third.output)["kept_run"] == second.run_id
    assert tasks.plannings == 1


async def test_a_loop_uses_the_plan_of_its_first_item_for_the_others(tasks: Tasks) -> None:
    result = await tasks.run(
        "", loop=["users", "orders", "carts"], plan="Add a command that lists {{ loop.item }}"
    )
    assert result.status is RunStatus.COMPLETED
    assert tasks.plannings == 1
    assert len(list((tasks.folder / "commands").iterdir())) == 3


async def test_without_the_key_each_task_is_planned(tasks: Tasks) -> None:
    await tasks.run(USERS)
    second = await tasks.run(ORDERS, reuse=False)
    assert tasks.plannings == 2
    assert await tasks.lookups(second.run_id) == []


async def test_a_plan_that_would_write_over_a_file_is_not_used(tasks: Tasks) -> None:
    first = await tasks.run(USERS)
    second = await tasks.run(USERS)
    assert tasks.plannings == 2
    [lookup] = await tasks.lookups(second.run_id)
    assert lookup.text == (
        f"No plan of an earlier run serves the task: of that of run {first.run_id}, it creates "
        "'commands/users.py', which exists already."
    )


async def test_a_plan_that_failed_is_not_used(tasks: Tasks) -> None:
    tasks.answer = lambda prompt: answer(prompt) if is_planning(prompt) else "no file"
    first = await tasks.run(USERS, max_replans=0)
    assert first.status is RunStatus.FAILED
    tasks.answer = answer
    second = await tasks.run(ORDERS)
    assert (second.status, tasks.plannings) == (RunStatus.COMPLETED, 2)


async def test_a_plan_whose_run_was_marked_bad_is_not_used(tasks: Tasks) -> None:
    await tasks.mark(await tasks.run(USERS), "bad")
    await tasks.run(ORDERS)
    assert tasks.plannings == 2


async def test_a_plan_whose_run_was_marked_good_is_used(tasks: Tasks) -> None:
    await tasks.mark(await tasks.run(USERS), "good")
    await tasks.run(ORDERS)
    assert tasks.plannings == 1


async def test_a_plan_of_a_run_that_came_from_a_file_is_not_used(tasks: Tasks) -> None:
    for note in (StartNote(is_imported=True), StartNote(is_strangers=True)):
        run = tasks.executor().prepare(tasks.recipe(), {"task": USERS}, note=note.to_json())
        assert (await run.execute()).status is RunStatus.COMPLETED
        (tasks.folder / "commands/users.py").unlink()
    tasks.plannings = 0
    await tasks.run(ORDERS)
    assert tasks.plannings == 1


async def test_of_many_runs_those_with_words_of_the_task_are_read(tasks: Tasks) -> None:
    for number in range(20):  # all at one time, and then by id: `run_9` is the last one
        task = USERS if number == 8 else f"Something else lists n{number}"
        await tasks.run(task, reuse=False)
    result = await tasks.run(ORDERS)
    assert as_object(result.output)["kept_run"] == "run_9"


async def test_calls_that_hold_a_strangers_words_are_asked_about_with_a_kept_plan_too(
    tasks: Tasks,
) -> None:
    person = Person()
    tasks.services = evolve(tasks.services, decider=person)
    tasks.is_untrusted = True
    await tasks.run(USERS)
    assert person.approved == ["files__write_many"]
    result = await tasks.run(ORDERS)
    assert "kept_run" in as_object(result.output)
    assert person.approved == ["files__write_many"] * 2


async def test_a_plan_of_another_user_is_not_used(tasks: Tasks) -> None:
    await tasks.run(USERS, user="ann")
    await tasks.run("Add a command that lists carts", user="bob")
    await tasks.run("Add a command that lists books")
    assert tasks.plannings == 3
    await tasks.run(ORDERS, user="ann")
    assert tasks.plannings == 3


async def test_a_plan_of_another_project_is_not_used(tasks: Tasks) -> None:
    tasks.services = evolve(tasks.services, project="/a")
    await tasks.run(USERS)
    tasks.services = evolve(tasks.services, project="/b")
    await tasks.run(ORDERS)
    assert tasks.plannings == 2


async def test_a_plan_of_another_folder_is_not_used_where_nobody_is_asked(
    tasks: Tasks, tmp_path: Path
) -> None:
    """A stranger's files may have had a say in it, and a person sees it where one is asked."""
    other = tmp_path / "other"
    other.mkdir()
    first = await tasks.run(USERS)
    asked = await tasks.run(ORDERS, folder=other, approval="required")
    [lookup] = await tasks.lookups(asked.run_id)
    assert lookup.run == first.run_id
    second = await tasks.run(ORDERS, folder=other)
    [lookup] = await tasks.lookups(second.run_id)
    assert lookup.text == (
        f"No plan of an earlier run serves the task: of that of run {first.run_id}, it was made in "
        "another folder, and nobody is asked about it."
    )


async def test_the_question_says_whose_plan_it_is_and_a_resume_looks_for_none(
    tasks: Tasks,
) -> None:
    """A plan that is recorded while the question waits changes nothing."""
    first = await tasks.run(USERS)
    person = Person()
    tasks.services = evolve(tasks.services, decider=person)
    waiting = await tasks.run(ORDERS, approval="required")
    assert waiting.status is RunStatus.NEEDS_DECISION
    note = f"Note: The plan of run {first.run_id} is used again, with users → orders."
    assert note in person.questions[-1].splitlines()
    assert not (tasks.folder / "commands/orders.py").exists()
    await tasks.run("Add a command that lists carts")
    person.answers.append("yes")
    result = await tasks.executor().resume(waiting.run_id)
    assert as_object(result.output)["kept_run"] == first.run_id
    assert len(await tasks.lookups(waiting.run_id)) == 1
    assert tasks.plannings == 1


async def test_a_run_that_found_no_plan_stays_without_one_when_it_is_resumed(tasks: Tasks) -> None:
    person = Person()
    tasks.services = evolve(tasks.services, decider=person)
    waiting = await tasks.run(ORDERS, approval="required")
    await tasks.run(USERS)
    person.answers.append("yes")
    result = await tasks.executor().resume(waiting.run_id)
    assert result.status is RunStatus.COMPLETED
    assert "kept_run" not in as_object(result.output)
    [lookup] = await tasks.lookups(waiting.run_id)
    assert lookup.run is None


async def test_a_wish_of_the_person_goes_to_the_planner(tasks: Tasks) -> None:
    await tasks.run(USERS)
    person = Person("with tests", "yes")
    tasks.services = evolve(tasks.services, decider=person)
    result = await tasks.run(ORDERS, approval="required")
    assert result.status is RunStatus.COMPLETED
    assert tasks.plannings == 2
    assert "kept_run" not in as_object(result.output)


async def test_a_plan_with_faults_here_is_not_used_and_that_is_told(tasks: Tasks) -> None:
    """`setup.py` configures tools: where nobody is asked, a plan must not write it."""
    first = await tasks.run(USERS)
    tasks.answer = lambda prompt: (
        json.dumps(plan_for("others")) if is_planning(prompt) else answer(prompt)
    )
    second = await tasks.run("Add a command that lists setup")
    assert (second.status, tasks.plannings) == (RunStatus.COMPLETED, 2)
    found, refused = await tasks.lookups(second.run_id)
    assert found.run == first.run_id
    assert refused.run is None
    assert refused.text.startswith(
        f"The plan of run {first.run_id} is not used: it has faults here.\n- "
    )
    assert "kept_run" not in as_object(second.output)


async def test_after_a_failure_of_a_kept_plan_what_is_left_is_planned(tasks: Tasks) -> None:
    await tasks.run(USERS)
    tasks.answer = fails_at_first()
    result = await tasks.run(ORDERS)
    assert (result.status, tasks.plannings) == (RunStatus.COMPLETED, 2)
    output = as_object(result.output)
    assert (output["replans"], "kept_run" in output) == (1, False)


async def test_a_plan_of_which_a_part_was_planned_again_is_not_used(tasks: Tasks) -> None:
    tasks.answer = fails_at_first()
    first = await tasks.run(USERS)
    assert (first.status, as_object(first.output)["replans"]) == (RunStatus.COMPLETED, 1)
    second = await tasks.run(ORDERS)
    [lookup] = await tasks.lookups(second.run_id)
    assert lookup.run is None


async def test_a_plan_whose_files_were_taken_back_is_not_used(tasks: Tasks) -> None:
    first = await tasks.run(USERS)
    await roll_back_run(tasks.services, first.run_id)
    await tasks.run(ORDERS)
    assert tasks.plannings == 2


def test_a_plan_that_is_given_is_not_looked_for(tasks: Tasks) -> None:
    text = json.dumps(
        {"id": "do", "steps": [{"id": "a", "plan": "x", "given": "y", "reuse": True}]}
    )
    checked = check_recipe_text(text, "do.yaml", built_in_extensions().catalog())
    [fault] = checked.errors
    assert fault.message == (
        "'reuse' and 'given' exclude each other: a plan that is given is carried out"
    )
