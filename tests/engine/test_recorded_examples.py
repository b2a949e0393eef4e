"""Examples from recorded runs: only what a person called good, pinned for the whole of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import evolve

from builders import deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.decision_types import (
    ApprovalRequest,
    Approve,
    Decider,
    Decision,
    NoAnswer,
    Question,
    Reject,
    Verdict,
    word_of,
)
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import ExamplesPinned
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.tools import Effect, Tool
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import archive_lines, load_archive, read_archive, store_archive
from minions.engine.sessions.marking import mark_run
from minions.engine.views.judgements import ExampleReason
from minions.engine.views.recorded_examples import RecordedExamples, examples_of_runs
from minions.recipe.catalog import Catalog
from minions.recipe.examples import Example, ExampleCandidate, newest_examples
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import check_recipe_text, recipe_from_document
from minions.recipe.reading.tested_examples import without_cases
from minions.testing.virtual_time import FakeClock

WORDS: JsonValue = {"category": {"enum": ["bill", "other", "spam"]}}
Seen = list[list[str]]


def document(examples: JsonValue = None, **step: JsonValue) -> dict[str, JsonValue]:
    return {
        "id": "r",
        "inputs": {"text": "string"},
        "steps": [
            {
                "id": "sort",
                "goal": "Sort: {{ inputs.text }}",
                "output": WORDS,
                "examples": examples or {"from": "journal"},
                **step,
            }
        ],
    }


def loaded(given: dict[str, JsonValue] | None = None, tools: Sequence[Tool] = ()) -> AgentRecipe:
    catalog = Catalog(tools={each.spec.name: each.spec for each in tools})
    return recipe_from_document(given or document(), catalog)


def model(seen: Seen | None = None, category: str = "bill") -> ScriptedModel:
    """Answers always the same, and notes the questions and answers that it was shown."""

    def answer(prompt: Prompt) -> JsonValue:
        if seen is not None:
            turns = [each for each in prompt.messages if each.role.value in ("user", "assistant")]
            seen.append([(each.content or "").removeprefix("Sort: ") for each in turns])
        return {"category": category}

    return ScriptedModel(lambda prompt: cast("str", answer(prompt)))


async def ran(
    services: Services,
    text: str,
    *,
    seen: Seen | None = None,
    category: str = "bill",
    mark: str | None = None,
    recipe: AgentRecipe | None = None,
    user: str | None = None,
) -> AgentResult[JsonValue]:
    executor = executor_of(model(seen, category), services=services)
    run = executor.prepare(recipe or loaded(), {"text": text}, user=user)
    result = await run.execute()
    assert result.status is RunStatus.COMPLETED, result.error
    if mark is not None:
        await mark_run(services, result.run_id, "good" if mark == "good" else "bad")
    return result


def said(category: str) -> str:
    return f'{{"category":"{category}"}}'


async def test_what_was_marked_good_stands_as_turns_before_the_question() -> None:
    """A-147: from marked runs."""
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    await ran(services, "Hi.", category="other", mark="bad")
    await ran(services, "Unmarked.", category="other")
    await ran(services, "Win!", category="spam", mark="good")
    await ran(services, "What?", seen=seen)
    assert seen == [["Pay!", said("bill"), "Win!", said("spam")]]


async def test_no_user_is_shown_what_another_one_was_told() -> None:
    """A-150. What has no user is the operator's, who may show it to all."""
    services, seen = deterministic_services(), Seen()
    await ran(services, "Ann pays.", mark="good", user="ann")
    await ran(services, "Bob pays.", mark="good", user="bob")
    await ran(services, "All pay.", mark="good")
    for user in ("ann", "bob", "ann", None):
        await ran(services, "What?", seen=seen, user=user)
    assert [turns[::2] for turns in seen] == [
        ["Ann pays.", "All pay."],
        ["Bob pays.", "All pay."],
        ["Ann pays.", "All pay."],
        ["Ann pays.", "Bob pays.", "All pay."],
    ]


async def test_without_a_mark_there_is_no_example() -> None:
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!")
    await ran(services, "What?", seen=seen)
    assert seen == [[]]


async def test_a_later_mark_wins_and_the_last_output_of_a_question_counts() -> None:
    services, seen = deterministic_services(), Seen()
    first = await ran(services, "Pay!", category="other", mark="good")
    await ran(services, "Pay!", category="bill", mark="good")
    await ran(services, "What?", seen=seen)
    assert seen.pop() == ["Pay!", said("bill")]
    await mark_run(services, first.run_id, "bad")
    lost = await ran(services, "Win!", category="spam", mark="good")
    await mark_run(services, lost.run_id, "bad", address="sort")
    await ran(services, "What?", seen=seen)
    assert seen.pop() == ["Pay!", said("bill")]


async def test_the_bounds_hold_and_listed_values_are_covered_first() -> None:
    """A-147: in a stable order, within their token limit."""
    services, seen = deterministic_services(), Seen()
    for text, category in (("a", "bill"), ("b", "bill"), ("c", "spam"), ("d", "other")):
        await ran(services, text, category=category, mark="good")
    three = loaded(document({"from": "journal", "max": 3}))
    await ran(services, "What?", seen=seen, recipe=three)
    await ran(services, "Why?", seen=seen, recipe=three)
    assert seen == [["b", said("bill"), "c", said("spam"), "d", said("other")]] * 2
    few = loaded(document({"from": "journal", "max_tokens": 14}))
    await ran(services, "What?", seen=seen, recipe=few)
    assert seen[-1] == ["b", said("bill"), "c", said("spam")]


# --- pinned for a run -----------------------------------------------------------------------------


async def test_runs_that_come_in_meanwhile_change_nothing_not_even_for_a_retry() -> None:
    """A-147: an unchanged step keeps the same prefix from call to call."""
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    given = document()
    steps = cast("list[JsonValue]", given["steps"])
    steps.append({**cast("dict[str, JsonValue]", steps[0]), "id": "again"})
    recipe = loaded(given)
    answers = model(seen)
    fails = ScriptedModel([{"category": "bill"}, RuntimeError("lost")])
    failed = await executor_of(fails, services=services).execute(recipe, {"text": "What?"})
    assert failed.status is RunStatus.FAILED
    await ran(services, "Win!", category="spam", mark="good")
    done = await executor_of(answers, services=services).retry(failed.run_id)
    assert done.status is RunStatus.COMPLETED
    assert seen == [[]]  # 'again' has no output of its own that was marked
    done = await executor_of(answers, services=services).retry(failed.run_id, from_step="sort")
    assert seen[1] == ["Pay!", said("bill")]
    new = await executor_of(answers, services=services).execute(recipe, {"text": "What?"})
    assert seen[2] == ["Pay!", said("bill"), "Win!", said("spam")]
    rows = await services.journal.entries(kinds={"examples"})
    of_run = [row for row in rows if row.run_id == failed.run_id]
    assert [(row.generation, row.key) for row in of_run] == [
        (1, "examples/r:sort"),
        (1, "examples/r:again"),
    ]
    pinned = [row.fact for row in rows if row.run_id == new.run_id]
    assert isinstance(pinned[0], ExamplesPinned)
    assert [each.question for each in pinned[0].examples] == ["Sort: Pay!", "Sort: Win!"]


async def test_an_edited_goal_is_pinned_anew() -> None:
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    before = await ran(services, "What?", seen=seen)
    edited = loaded(document(goal="Sort: {{ inputs.text }} now"))
    executor = executor_of(model(seen), services=services)
    done = await executor.retry(before.run_id, recipe=edited)
    assert done.status is RunStatus.COMPLETED
    assert seen[-1] == ["Pay! now", said("bill")]


async def test_a_step_of_a_nested_recipe_learns_from_runs_of_that_recipe() -> None:
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    inner = loaded()
    outer = recipe_from_document(
        {"id": "o", "steps": [{"id": "sub", "recipe": "r", "with": {"text": "What?"}}]},
        Catalog(recipes={"r": inner}),
    )
    executor = executor_of(model(seen), services=services, recipes={"r": inner})
    assert (await executor.execute(outer)).status is RunStatus.COMPLETED
    assert seen == [["Pay!", said("bill")]]


async def test_a_cached_output_is_not_taken_where_the_examples_differ() -> None:
    from minions.adapters.stores.memory_stores import MemoryStepCache

    services, seen = deterministic_services(), Seen()
    services = evolve(services, cache=MemoryStepCache())
    recipe = loaded(document(cache=True))
    first = await ran(services, "Pay!", recipe=recipe, seen=seen)
    await ran(services, "Pay!", recipe=recipe, seen=seen)
    assert len(seen) == 1
    await mark_run(services, first.run_id, "good")
    await ran(services, "Pay!", recipe=recipe, seen=seen)
    assert len(seen) == 2


@pytest.mark.parametrize("choose", ["fixed", "nearest"])
async def test_a_case_under_evaluation_is_no_example(choose: str) -> None:
    """A-147: never taken from data under evaluation."""
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    await ran(services, "Win!", category="spam", mark="good")
    recipe = loaded(document({"from": "journal", "choose": choose}))
    held = without_cases(recipe, [{"text": "Pay!"}])
    await ran(services, "Pay!", recipe=held, seen=seen)
    assert seen == [["Win!", said("spam")]]


# --- whose word counts ----------------------------------------------------------------------------


async def test_a_mark_of_an_imported_file_does_not_count() -> None:
    here, elsewhere, seen = deterministic_services(), deterministic_services(), Seen()
    await ran(elsewhere, "a")
    await ran(elsewhere, "b")
    result = await ran(elsewhere, "Pay!", mark="good")  # whose id is free here
    archive = await load_archive(elsewhere.journal, result.session_id)
    await store_archive(
        here.journal, read_archive(line.encode() for line in archive_lines(archive))
    )
    await ran(here, "What?", seen=seen)
    assert seen.pop() == []
    await mark_run(here, result.run_id, "good")
    await ran(here, "What?", seen=seen)
    assert seen.pop() == ["Pay!", said("bill")]


class Approving(Decider):
    """Approves every call, as a policy does; or later, as a person."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return self.verdict

    async def answer(self, question: Question) -> NoAnswer:
        return NoAnswer.LATER


@pytest.mark.parametrize(("verdict", "is_persons"), [("approved", False), ("later", True)])
async def test_what_a_person_approved_counts_and_a_policy_is_nobody(
    verdict: str, *, is_persons: bool
) -> None:
    services, seen = deterministic_services(), Seen()
    services = evolve(services, decider=Approving(Verdict(verdict)))
    tool = fake_tool("file", effect=Effect.ONCE)
    given = document()
    given["permissions"] = {"allow_write": True, "requires_approval": ["file"]}
    steps = cast("list[JsonValue]", given["steps"])
    steps.append({"id": "put", "tool": "file", "params": {"as": "{{ sort }}"}})
    recipe = loaded(given, [tool])
    executor = executor_of(model(seen), tools=[tool], services=services)
    result = await executor.execute(recipe, {"text": "Pay!"})
    if is_persons:
        assert result.status is RunStatus.NEEDS_DECISION
        (row,) = await services.journal.entries(kinds={"decision"})
        result = await executor.resume(result.run_id, decisions={row.key: "approve"})
    assert result.status is RunStatus.COMPLETED
    await executor.execute(recipe, {"text": "What?"})
    assert seen[-1] == (["Pay!", said("bill")] if is_persons else [])


async def decided_run(decision: Decision, params: JsonValue) -> RecordedExamples:
    """What is learnt from a run of which a person decides the call with the output."""
    services, seen = deterministic_services(), Seen()
    services = evolve(services, decider=Approving(Verdict("later")))
    tool = fake_tool("file", effect=Effect.ONCE)
    given = document()
    given["permissions"] = {"allow_write": True, "requires_approval": ["file"]}
    steps = cast("list[JsonValue]", given["steps"])
    steps.append({"id": "put", "tool": "file", "params": params})
    steps.append({"id": "check", "assert": "sort is defined", "depends_on": ["sort"]})
    recipe = loaded(given, [tool])
    executor = executor_of(model(seen), tools=[tool], services=services)
    result = await executor.execute(recipe, {"text": "Pay!"})
    (row,) = await services.journal.entries(kinds={"decision"})
    await executor.resume(result.run_id, decisions={row.key: word_of(decision)})
    return await found_in(services, recipe, *ExampleReason)


@pytest.mark.parametrize(
    ("params", "edited"),
    [
        ({"as": "{{ sort }}"}, {"as": {"category": "spam"}}),
        ({"as": {"it": ["{{ sort }}", 1]}}, {"as": {"it": [{"category": "spam"}, 2]}}),
        ({"as": {"category": "{{ sort.category }}"}}, {"as": {"category": "spam", "more": 1}}),
    ],
)
async def test_what_a_person_corrected_is_an_example_as_it_should_have_been(
    params: JsonValue, edited: JsonValue
) -> None:
    found = await decided_run(Approve(arguments=json.dumps(edited)), params)
    (candidate,) = found.candidates
    assert candidate.example.answer == {"category": "spam"}
    assert candidate.because == "corrected"


@pytest.mark.parametrize(
    ("decision", "params"),
    [
        (Reject(), {"as": "{{ sort }}"}),
        (Approve(arguments='{"as": "nothing of it"}'), {"as": {"it": ["{{ sort }}"]}}),
        (Approve(arguments='{"as": []}'), {"as": ["{{ sort }}"]}),
        (Approve(arguments='{"as": {}}'), {"as": {"category": "{{ sort.category }}"}}),
    ],
)
async def test_what_a_person_rejected_or_replaced_is_none_whatever_a_check_says(
    decision: Decision, params: JsonValue
) -> None:
    assert (await decided_run(decision, params)).candidates == ()


# --- what cannot be an example --------------------------------------------------------------------


async def found_in(
    services: Services, recipe: AgentRecipe, *more: ExampleReason
) -> RecordedExamples:
    (step, *_) = [each for each in recipe.steps if isinstance(each, GoalSpec)]
    runs = await services.journal.runs(RunFilter(recipe=recipe.id))
    return await examples_of_runs(services.journal, runs, recipe, step, reasons=more)


async def test_what_does_not_fit_the_step_now_is_left_out_with_the_reason() -> None:
    services = deterministic_services()
    await ran(services, "Pay!", mark="good")
    other = loaded(document(output={"kind": "string"}))
    found = await found_in(services, other)
    assert found.candidates == ()
    assert found.left_out == {"does not fit the output that the step declares now": 1}
    found = await found_in(
        services, loaded(document(goal="Sort {{ inputs.text }} at {{ run.id }}"))
    )
    assert found.left_out == {"the goal reads 'run'": 1}
    found = await found_in(services, loaded())
    assert [each.input for each in found.candidates] == [{"text": "Pay!"}]
    assert [each.because for each in found.candidates] == ["marked good"]


async def test_items_of_a_loop_and_outputs_of_earlier_steps_are_found_again() -> None:
    services = deterministic_services()
    given: dict[str, JsonValue] = {
        "id": "r",
        "inputs": {"text": "string"},
        "steps": [
            {"id": "split", "set": {"parts": ["a", "b"]}, "save_as": "cut"},
            {
                "id": "sort",
                "loop": "{{ cut.parts }}",
                "goal": "{{ cut.parts | length }} {{ inputs.text }} {{ loop.item }}",
                "output": WORDS,
                "examples": {"from": "journal"},
            },
        ],
    }
    result = await ran(services, "x", recipe=loaded(given))
    await mark_run(services, result.run_id, "good", address="sort[1]")
    found = await found_in(services, loaded(given))
    assert [(each.example.question, each.origin) for each in found.candidates] == [
        ("2 x b", f"{result.run_id} sort[1]")
    ]
    again = loaded({**given, "steps": given["steps"]})
    assert again.steps  # the input reads as an example of the recipe
    (candidate,) = found.candidates
    assert candidate.input == {"cut": {"parts": ["a", "b"]}, "text": "x", "item": "b"}


async def test_a_check_that_completed_counts_only_where_it_is_asked_for() -> None:
    services = deterministic_services()
    given = document()
    cast("list[JsonValue]", given["steps"]).append(
        {"id": "check", "assert": "sort.category != 'spam'"}
    )
    recipe = loaded(given)
    await ran(services, "Pay!", recipe=recipe)
    assert (await found_in(services, recipe)).candidates == ()
    (tested,) = (await found_in(services, recipe, ExampleReason.TESTED)).candidates
    assert tested.because == "tested"


async def test_a_damaged_run_hides_no_other() -> None:
    from builders import draft_of

    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay!", mark="good")
    broken = await ran(services, "Win!", category="spam", mark="good")
    lease = await services.journal.acquire(broken.session_id, broken.run_id, "w", 60)
    await services.journal.append(lease, draft_of("step", "finished", {"step_id": 1}, key="x/1/0"))
    await services.journal.release(lease)
    await ran(services, "What?", seen=seen)
    assert seen == [["Pay!", said("bill")]]


# --- before a run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_text_of_strangers_in_examples_is_named_before_the_run(*, strict: bool) -> None:
    given = document()
    given["inputs"] = {"text": {"type": "string", "untrusted": True}}
    text = json.dumps({**given, "strict": strict})
    (fault,) = check_recipe_text(text, "r.yaml", Catalog()).faults
    assert (fault.code, fault.is_warning) == ("untrusted-examples", not strict)
    given["inputs"] = {"text": "string"}
    assert check_recipe_text(json.dumps(given), "r.yaml", Catalog()).faults == ()


@pytest.mark.parametrize("choose", ["fixed", "nearest"])
def test_a_plan_counts_the_most_tokens_that_they_may_have(choose: str) -> None:
    recipe = loaded(document({"from": "journal", "choose": choose}))
    (planned,) = executor_of(model()).plan(recipe, {"text": "x"})
    assert planned.prompt is not None
    assert planned.prompt.sections["examples"] == 400


async def test_a_batch_looks_at_recorded_runs_once_until_somebody_judges_another() -> None:
    class Counting(MemoryJournal):
        looked = 0

        async def entries(
            self,
            *args: Any,
            **more: Any,  # Any: as the journal takes them
        ) -> Sequence[JournalEntry]:
            kinds = more.get("kinds") or ()
            self.looked += {"step", "mark"} <= set(kinds)
            return await super().entries(*args, **more)

    journal, seen = Counting(FakeClock()), Seen()
    services = deterministic_services(journal)
    recipe = loaded()
    first = await ran(services, "Pay!", mark="good", recipe=recipe)
    for _ in range(3):
        await ran(services, "What?", seen=seen, recipe=recipe)
    assert journal.looked == 1
    assert seen == [["Pay!", said("bill")]] * 3
    await mark_run(services, first.run_id, "bad")
    await ran(services, "What?", seen=seen, recipe=recipe)
    assert (journal.looked, seen[-1]) == (2, [])


# --- chosen for each question ---------------------------------------------------------------------

NEAREST: JsonValue = {"from": "journal", "choose": "nearest", "max": 2}


async def test_of_marked_runs_those_nearest_to_each_question_are_shown() -> None:
    services, seen = deterministic_services(), Seen()
    said = {"Pay the invoice": "bill", "Win a prize": "spam", "An invoice is wrong": "bill"}
    for text, category in said.items():
        await ran(services, text, category=category, mark="good")
    recipe = loaded(document(NEAREST))
    await ran(services, "my invoice", seen=seen, recipe=recipe)
    await ran(services, "the prize", seen=seen, recipe=recipe)
    assert [each[::2] for each in seen] == [
        ["Win a prize", "Pay the invoice"],
        ["Pay the invoice", "Win a prize"],
    ]


async def test_what_may_be_chosen_is_pinned_when_the_run_starts() -> None:
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay the invoice", mark="good")
    recipe = loaded(document(NEAREST))
    first = await ran(services, "invoice", seen=seen, recipe=recipe)
    await ran(services, "invoice", mark="good")
    executor = executor_of(model(seen), services=services)
    again = await executor.retry(first.run_id, from_step="sort")
    assert again.status is RunStatus.COMPLETED
    assert [each[::2] for each in seen] == [["Pay the invoice"], ["Pay the invoice"]]
    await ran(services, "invoice", seen=seen, recipe=recipe)
    assert seen[-1][::2] == ["Pay the invoice", "invoice"]


async def test_runs_with_other_examples_do_not_disturb_each_other() -> None:
    """One recipe that is loaded once, for two users."""
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay the invoice of Ann", mark="good", user="ann")
    await ran(services, "Pay the invoice of Bob", mark="good", user="bob")
    recipe = loaded(document(NEAREST))
    for user in ("ann", "bob", "ann"):
        await ran(services, "invoice", seen=seen, recipe=recipe, user=user)
    assert [each[::2] for each in seen] == [
        ["Pay the invoice of Ann"],
        ["Pay the invoice of Bob"],
        ["Pay the invoice of Ann"],
    ]


async def test_without_a_mark_nothing_is_near() -> None:
    services, seen = deterministic_services(), Seen()
    await ran(services, "Pay", seen=seen, recipe=loaded(document(NEAREST)))
    assert seen == [[]]


def test_a_hundred_of_the_newest_are_pinned_and_each_listed_value_has_one() -> None:
    schema: JsonSchema = {"type": "object", "properties": {"category": {"enum": ["bill", "spam"]}}}
    spam = candidate("Win a prize", "spam")
    many = [candidate(f"Pay number {at}", "bill") for at in range(150)]
    found = newest_examples([spam, *many, candidate("Pay number 149", "bill")], schema)
    assert [each.example.question for each in found] == [
        "Win a prize",
        *(f"Pay number {at}" for at in range(51, 150)),
    ]


def test_what_is_pinned_has_a_bound_of_its_own() -> None:
    long = candidate("x" * 33_000, "bill")
    half = [candidate(f"{at}{'x' * 15_950}", "bill") for at in range(3)]
    found = newest_examples([half[0], long, *half[1:]], None)
    assert found == tuple(half[1:])


def candidate(question: str, category: str) -> ExampleCandidate:
    return ExampleCandidate(
        example=Example(question, {"category": category}),
        input={"text": question},
        origin="run_1 sort",
        because="marked",
        inputs={"text": question},
    )
