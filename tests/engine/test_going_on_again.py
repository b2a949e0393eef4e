"""Seams: what waits when a run goes back; what a retry keeps, and what it counts anew."""

from __future__ import annotations

import pytest

from builders import deterministic_services, fake_tool, run_of
from going_back import PAYS, executor_for, payer
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import BackEdge
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue
from minions.engine.calls.pending_decisions import pending_decisions
from minions.engine.history.replay import Replay
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import World
from patience import leap

Document = dict[str, JsonValue]
APPROVAL_OF_11 = "pay({\"amount\":11}) in step 'p' needs approval"


def recipe_with(
    document: Document, tools: list[Tool] | None = None, **recipes: Document
) -> AgentRecipe:
    tools = tools or []

    def find(name: str, directory: str | None) -> FoundRecipe:
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=recipes[name])

    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools}, find_recipe=find)
    names: list[JsonValue] = [tool.spec.name for tool in tools]
    return recipe_from_document({"id": "recipe", "tools": names, **document}, catalog)


def code_of(result: AgentResult[object]) -> str | None:
    return result.error.code if result.error else None


async def waiting(journal: MemoryJournal) -> list[str]:
    recorded = await load_recorded_run(journal, "run_")
    replay = Replay(recorded.entries, recorded.generation + 1)
    return [each.words for each in pending_decisions(replay)]


# --- going back while somebody is asked ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_only_the_newest_visit_of_a_step_waits(mode: str) -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    executor = executor_for(journal, [tool])
    first = await executor.execute(recipe_with({**PAYS, "execution_mode": mode}, [tool]))
    assert first.status is RunStatus.NEEDS_DECISION
    assert await waiting(journal) == [APPROVAL_OF_11]
    done = await executor.resume(first.run_id, decisions={"p": "approve"})
    assert done.status is RunStatus.COMPLETED
    assert tool.asked == [{"amount": 11}]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_after_a_kill_at_any_row_of_a_back_edge_one_call_waits(mode: str) -> None:
    recipe = recipe_with({**PAYS, "execution_mode": mode}, [payer()])
    kills = 0
    for at in range(1, 40):
        world, tool = World(), payer()
        executor = executor_for(world.journal, [tool])
        if not await world.killed(executor, recipe, at):
            break
        kills += 1
        (run_id,) = {entry.run_id for entry in await world.journal.entries()}
        again = await executor.resume(run_id)
        assert again.status is RunStatus.NEEDS_DECISION
        assert await waiting(world.journal) == [APPROVAL_OF_11]
        done = await executor.resume(run_id, decisions={"p": "approve"})
        assert (done.status, tool.asked) == (RunStatus.COMPLETED, [{"amount": 11}])
    assert kills > 10


async def test_nobody_consents_to_a_call_that_a_back_edge_took_back_before_a_kill() -> None:
    recipe, at, edges = recipe_with(PAYS, [payer()]), 0, 0
    while True:
        at += 1
        world, tool = World(), payer()
        executor = executor_for(world.journal, [tool])
        if not await world.killed(executor, recipe, at):
            break
        entries = await world.journal.entries()
        if not any(isinstance(entry.fact, BackEdge) for entry in entries):
            continue
        edges += 1
        assert await waiting(world.journal) in ([], [APPROVAL_OF_11])
    assert edges > 3


async def test_so_it_is_with_a_recipe_that_was_gone_back_over() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    inner: Document = {
        "id": "inner",
        "inputs": {"n": 0},
        "permissions": {"allow_write": True},
        "steps": [{"id": "p", "tool": "pay", "params": {"amount": "{{ inputs.n }}"}}],
    }
    document: Document = {
        **PAYS,
        "steps": [
            {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
            {"id": "all", "recipe": "inner", "with": {"n": "{{ a.n + loop.item }}"}, "loop": [1]},
            {"id": "c", "assert": "a.n > 0", "on_error": {"goto": "a"}},
        ],
    }
    executor = executor_for(journal, [tool])
    first = await executor.execute(recipe_with(document, [tool], inner=inner))
    assert await waiting(journal) == ["pay({\"amount\":2}) in step 'all[0]/p' needs approval"]
    done = await executor.resume(first.run_id, decisions={"all": "approve"})
    assert (done.status, tool.asked) == (RunStatus.COMPLETED, [{"amount": 2}])


# --- failures beside what waits ------------------------------------------------------------------


async def test_with_on_failure_continue_what_waits_can_be_answered_beside_a_failure() -> None:
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, [])
    recipe = recipe_with(
        {
            "on_failure": "continue",
            "steps": [
                {"id": "bad", "assert": "1 == 2"},
                {"id": "q", "ask": "How?"},
                {"id": "after", "set": {"v": "{{ q }}"}},
            ],
        }
    )
    first = await executor.execute(recipe)
    assert first.status is RunStatus.NEEDS_DECISION
    done = await executor.resume(first.run_id, decisions={"q": "answer:so"})
    assert (done.status, done.step("after").output) == (RunStatus.FAILED, {"v": "so"})


async def test_an_answer_is_kept_when_the_run_has_failed_otherwise() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer("work")
    tool = fake_tool("work", lambda _: {"success": False})
    executor = executor_for(journal, [tool])
    document: Document = {
        "execution_mode": "parallel",
        "steps": [{"id": "q", "ask": "How?"}, {"id": "bad", "tool": "work"}],
    }
    first = await executor.execute(recipe_with(document, [tool]))
    assert first.status is RunStatus.FAILED
    again = await executor.resume(first.run_id, decisions={"q": "answer:so"})
    assert again.status is RunStatus.FAILED
    good = fake_tool("work", lambda _: "fine")
    done = await executor_for(journal, [good]).retry(first.run_id)
    assert (done.status, done.step("q").output) == (RunStatus.COMPLETED, "so")


# --- what is told of it --------------------------------------------------------------------------


async def test_everything_that_waits_is_told_once_each_with_a_command_that_a_shell_takes() -> None:
    journal, tool = MemoryJournal(FakeClock()), payer()
    inner: Document = {
        "id": "inner",
        "permissions": {"allow_write": True},
        "steps": [{"id": "p", "tool": "pay"}],
    }
    document: Document = {
        **PAYS,
        "execution_mode": "parallel",
        "steps": [
            {"id": "all", "tool": "pay", "loop": [1, 2]},
            {"id": "nest", "recipe": "inner"},
        ],
    }
    executor = executor_for(journal, [tool])
    first = await executor.execute(recipe_with(document, [tool], inner=inner))
    assert first.error is not None
    lines = first.error.message.splitlines()
    assert [line.strip().partition(" waits")[0] for line in lines[1:4]] == [
        "Step 'all[0]'",
        "Step 'all[1]'",
        "Step 'nest/p'",
    ]
    assert first.error.message.count("It is resumed by") == 1
    assert len(first.error.suggestions) == 3
    assert all(
        not set("<>'#;& ") & set(each.split()[3]) or "'" in each for each in first.error.suggestions
    )
    decisions = {"all[1]": "approve", "nest": "approve"}
    again = await executor.resume(first.run_id, decisions=decisions)
    assert (again.status, len(tool.asked)) == (RunStatus.NEEDS_DECISION, 2)


# --- retries -------------------------------------------------------------------------------------


async def test_a_retry_of_a_repeated_recipe_that_was_stuck_asks_its_model_again() -> None:
    told = ["a", "a"]

    def answer(_: Prompt) -> Answer:
        return told.pop(0)

    inner: Document = {"id": "inner", "steps": [{"id": "say", "goal": "Say."}]}
    document: Document = {"steps": [{"id": "g", "recipe": "inner", "while": "g != 'seven'"}]}
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, [], ScriptedModel(answer))
    first = await executor.execute(recipe_with(document, inner=inner))
    assert code_of(first) == "while-stuck"
    told.extend(["b", "seven"])
    again = await executor.retry(first.run_id)
    assert (again.status, again.output) == (RunStatus.COMPLETED, "seven")


async def test_a_retry_of_a_step_whose_ways_back_were_used_up_has_them_again() -> None:
    told = ["bad", "bad"]

    def answer(_: Prompt) -> Answer:
        return told.pop(0)

    document: Document = {
        "steps": [
            {"id": "draft", "goal": "Write."},
            {"id": "check", "assert": "draft == 'good'", "on_error": {"goto": "draft", "max": 1}},
        ]
    }
    journal = MemoryJournal(FakeClock())
    executor = executor_for(journal, [], ScriptedModel(answer))
    first = await executor.execute(recipe_with(document))
    assert first.status is RunStatus.FAILED
    told.append("good")
    recorded = await load_recorded_run(journal, first.run_id)
    run = executor.prepare_retry(recorded)
    assert "  to run: check" in list(run.preview())
    again = await run.execute()
    assert (again.status, again.step("draft").output) == (RunStatus.COMPLETED, "good")


async def test_a_retry_with_an_edited_inner_recipe_keeps_inner_steps_that_are_the_same() -> None:
    put, done = payer("put"), MemoryJournal(FakeClock())
    inner: Document = {
        "id": "inner",
        "permissions": {"allow_write": True},
        "steps": [
            {"id": "p", "tool": "put", "params": {"n": 1}},
            {"id": "check", "assert": "p.n == 2"},
        ],
    }
    document: Document = {
        "permissions": {"allow_write": True},
        "steps": [{"id": "x", "recipe": "inner"}],
    }
    executor = executor_for(done, [put])
    first = await executor.execute(recipe_with(document, [put], inner=inner))
    assert first.status is RunStatus.FAILED
    steps = inner["steps"]
    assert isinstance(steps, list)
    edited: Document = {**inner, "steps": [steps[0], {"id": "check", "assert": "p.n == 1"}]}
    recorded = await load_recorded_run(done, first.run_id)
    run = executor.prepare_retry(recorded, recipe=recipe_with(document, [put], inner=edited))
    assert not any("second time" in line for line in run.preview())
    again = await run.execute()
    assert (again.status, len(put.asked)) == (RunStatus.COMPLETED, 1)
    third = await executor.retry(first.run_id, from_step="x")
    assert (third.status, len(put.asked)) == (RunStatus.COMPLETED, 2)


# --- time ----------------------------------------------------------------------------------------


class Leaping(MemoryJournal):
    """An hour passes with the hundredth fact."""

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        entry = await super().append(lease, draft)
        if entry.position == 100:
            leap(3600)
        return entry


@pytest.mark.parametrize(
    "document",
    [
        {"steps": [{"id": "b", "set": {"n": "{{ loop.index }}"}, "while": "true",
                    "max_iterations": 10000}]},
        {"steps": [{"id": "b", "set": {"x": 1}},
                   {"id": "c", "assert": "b.x == 2", "on_error": {"goto": "b", "max": 10000}}]},
        {"graph": {"a": ["b"], "b": ["a"]}, "limits": {"allow_repeated_steps": True,
                                                       "max_steps": 20000},
         "steps": [{"id": "a", "set": {"x": 1}}, {"id": "b", "set": {"x": 1}}]},
    ],
    ids=["while", "goto", "graph"],
)  # fmt: skip
async def test_the_runs_time_is_over_also_where_no_step_waits_for_anything(
    document: Document,
) -> None:
    limits = document.get("limits")
    known = limits if isinstance(limits, dict) else {}
    recipe = recipe_with({**document, "limits": {**known, "timeout_s": 600}})
    done = await run_of(recipe, services=deterministic_services(Leaping(FakeClock())))
    assert done.result.status is RunStatus.LIMIT_REACHED
    assert len(done.entries) < 1_000
