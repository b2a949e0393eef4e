"""Runs under another version of their recipe: what ended is kept, or the break is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from attrs import evolve, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult
from minions.contracts.journal.facts import RecipeMoved, StepFinished, StepStarted
from minions.contracts.tools import Effect
from minions.data.errors import JournalError, RecipeError, UsageError
from minions.data.json_values import JsonValue, as_objects
from minions.engine.compile.selection import RunPart
from minions.engine.history.imported_entries import imported_entry
from minions.engine.history.keys import base_key, execution_key
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recipe_moves import (
    RunFate,
    fate_of,
    is_pinned,
    move_back,
    move_run,
    pin_run,
)
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.run.run_start import own_recipe
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World
from nested import among

Steps = Sequence[Mapping[str, JsonValue]]

ASK: Final[Mapping[str, JsonValue]] = {"id": "sure", "ask": "Sure?", "form": {"type": "boolean"}}


@frozen(kw_only=True)
class Play:
    """One run, in one process after the other."""

    world: World
    tool_effect: Effect = Effect.IDEMPOTENT

    def recipe(self, steps: Steps, **settings: JsonValue) -> AgentRecipe:
        document: dict[str, JsonValue] = {
            "id": "recipe",
            "permissions": {"allow_write": True},
            **settings,
            "steps": [dict(step) for step in steps],
        }
        return recipe_from_document(document, self.catalog)

    @property
    def catalog(self) -> Catalog:
        tool = self.world.tool("look", self.tool_effect)
        return Catalog(tools={"look": tool.spec})

    def executor(self) -> AgentExecutor:
        tool = self.world.tool("look", self.tool_effect)
        return self.world.executor(self.world.model(_answer), [tool])

    async def begun(self, recipe: AgentRecipe, dies_at: int | None = None) -> RecordedRun:
        """A run that died at that fact, or waits, or ended."""
        self.world.journal.dies_at = dies_at
        with contextlib.suppress(KilledError):
            await self.executor().execute(recipe)
        self.world.journal.revive()
        return await self.recorded()

    async def recorded(self) -> RecordedRun:
        return await load_recorded_run(self.world.journal, "run_1")

    async def fate(self, after: AgentRecipe) -> RunFate:
        recorded = await self.recorded()
        return fate_of(recorded, own_recipe(recorded, self.catalog), after)

    async def move(self, after: AgentRecipe) -> RunFate:
        recorded, fate = await self.recorded(), await self.fate(after)
        assert fate.fate == "moves", fate
        await move_run(self.executor().services, recorded, after, fate, "Eva")
        return fate

    async def resume(self, **decisions: str) -> AgentResult[JsonValue]:
        result: AgentResult[JsonValue] = await self.executor().resume("run_1", decisions=decisions)
        return result


def _answer(prompt: Prompt) -> Answer:
    words = prompt.messages[-1].content or ""
    return '{"x": 1}' if "as JSON" in words else f"re({words})"


@pytest.fixture
def play() -> Play:
    return Play(world=World())


# --- any recipe, any edit, any progress -----------------------------------------------------------


@st.composite
def steps_of(draw: st.DrawFn, marks: str) -> list[dict[str, JsonValue]]:
    """Up to five steps that may read those before them."""
    count = draw(st.integers(1, 5))
    return [draw(step_of(f"s{n}", [f"s{k}" for k in range(n)], marks)) for n in range(count)]


_ITEMS: Final[dict[str, JsonValue]] = {
    "id": "s0",
    "loop": [1, 2],
    "tool": "look",
    "params": {"n": "{{ loop.item }}"},
}
_LISTS: Final = st.sampled_from([[1, 2], [1, 2], [1, 2, 3], [2, 1]])


@st.composite
def step_of(draw: st.DrawFn, name: str, before: Sequence[str], marks: str) -> dict[str, JsonValue]:
    """One of a random kind; `marks` are words of which its text has one."""
    read = draw(st.sampled_from(["", *before]))
    field = draw(st.sampled_from(["", ".x", ".y"]))
    value = f"{{{{ {read}{field} }}}}" if read else ""
    mark = draw(st.sampled_from(marks))
    kind = draw(st.sampled_from(["goal", "json", "tool", "set", "ask", "loop", "items", "while"]))
    step: dict[str, JsonValue] = {"id": name}
    match kind:
        case "goal":
            step["goal"] = f"{name} {mark} {value}"
        case "json":
            kinds = draw(st.sampled_from(["integer", "string"]))
            step |= {
                "goal": f"{name} as JSON {value}",
                "output": {"type": "object", "properties": {"x": {"type": kinds}}},
            }
        case "tool":
            step |= {"tool": "look", "params": {"n": f"{name} {mark} {value}"}}
        case "set":
            step["set"] = {"x" if mark == marks[0] else "y": value or 1}
        case "ask":
            step["ask"] = f"{mark}?"
        case "loop":
            step |= {"loop": draw(_LISTS), "goal": f"{name} {mark} {{{{ loop.item }}}}"}
            step["aggregate"] = draw(st.booleans())
        case "while":
            most = draw(st.integers(1, 3))
            step |= {"while": f"{name} != '{mark}'", "max_iterations": most, "allow_repeats": True}
            step |= {"goal": f"{name} {mark}", "optional": True}
        case _:
            step |= {"loop": draw(_LISTS), "tool": "look", "params": {"n": f"{name} {mark}"}}
    if draw(st.integers(0, 9)) == 0:
        step["when"] = "true" if mark == marks[0] else "1 == 1"
    return step


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[dict[str, JsonValue]], list[dict[str, JsonValue]]]:
    """A recipe's steps, and these with some replaced, removed, added or moved."""
    steps = draw(steps_of("ab"))
    edited = []
    for number, step in enumerate(steps):
        match draw(st.sampled_from(["keep", "keep", "keep", "replace", "remove", "add"])):
            case "keep":
                edited.append(step)
            case "replace":
                names = [f"s{k}" for k in range(number)]
                edited.append(draw(step_of(f"s{number}", names, "abc")))
            case "add":
                edited.append(draw(step_of(f"n{number}", [], "abc")))
                edited.append(step)
    return steps, edited


def test_moving_executes_no_step_again_that_ended_and_a_break_names_a_step() -> None:
    """A-182, over random recipes, edits and progress."""
    fates: dict[str, int] = {}

    @settings(max_examples=120)
    @given(edits(), st.integers(3, 30))
    @example(([{"id": "s0", "set": {"x": 1}}, dict(ASK)], [{"id": "s0", "set": {"y": 1}}]), 30)
    @example(([{"id": "s0", "set": {"x": 1}}, dict(ASK)], [{"id": "s0", "set": {"x": 1}}]), 30)
    @example(([{"id": "s0", "set": {"x": 1}}, dict(ASK)], [{"id": "s0", "set": {"x": 1}}, ASK]), 30)
    @example(([dict(ASK)], [dict(ASK), {"id": "s1", "set": {"x": 1}}]), 30)
    @example(([_ITEMS, dict(ASK)], [{**_ITEMS, "loop": [1, 2, 3]}, dict(ASK)]), 30)
    @example(([_ITEMS, dict(ASK)], [{**_ITEMS, "loop": [1]}, dict(ASK)]), 30)
    @example(([_ITEMS, dict(ASK)], [{**_ITEMS, "aggregate": True}, dict(ASK)]), 30)
    def check(
        versions: tuple[list[dict[str, JsonValue]], list[dict[str, JsonValue]]], dies_at: int
    ) -> None:
        play = Play(world=World())
        try:
            before, after = (play.recipe(steps) for steps in versions)
        except RecipeError:
            return  # an edit that no recipe survives
        fate = asyncio.run(_checked(play, before, after, dies_at))
        fates[fate] = fates.get(fate, 0) + 1

    check()
    assert fates.keys() >= {"goes_on", "moves", "breaks"}, fates


async def _checked(play: Play, before: AgentRecipe, after: AgentRecipe, dies_at: int) -> str:
    recorded = await play.begun(before, dies_at)
    if recorded.summary.status not in ("running", "needs_decision"):
        return recorded.summary.status
    fate = await play.fate(after)
    names = {step.id for step in (*before.steps, *after.steps)}
    if fate.fate == "breaks":
        assert fate.step is None or fate.step in names
        assert fate.reason
        return "breaks"
    if fate.fate == "moves":
        await play.move(after)
    replay = Replay(recorded.entries, recorded.generation + 1)
    ended = {
        base: rows
        for base in replay.bases()
        if (rows := replay.execution(base)) is not None and rows.ended is not None
    }
    kept = {b: rows.output for b, rows in ended.items() if isinstance(rows.end, StepFinished)}
    newest = max(entry.position for entry in recorded.entries)
    result = await play.resume()
    since = [each for each in (await play.recorded()).entries if each.position > newest]
    again = {
        base_key(execution_key(each.key))
        for each in since
        if isinstance(each.fact, StepStarted | StepFinished)
    }
    assert not again & kept.keys(), (fate, kept, again)
    if result.error is not None and result.error.code == "missing-value":
        source = result.error.message.split("'")[1].partition(".")[0]
        reader = result.error.where or ""
        # What a recorded output lacks would have broken it, unless it lacked it before the edit, or
        # its reader had failed for that.
        has_failed = f"{reader}/1/0" in ended
        is_told = f"{source}/1/0" in kept and reader in names and not has_failed
        assert not is_told or all(_text(before, n) == _text(after, n) for n in (source, reader))
    for execution in result.executions:
        base = f"{execution.step_id}/1/0"
        if base in kept:
            assert execution.output == kept[base]
    return fate.fate


def _text(recipe: AgentRecipe, step_id: str) -> JsonValue:
    steps = as_objects((recipe.document or {})["steps"])
    return next((dict(each) for each in steps if each["id"] == step_id), None)


# --- each fate ------------------------------------------------------------------------------------

LOOK: Final[Mapping[str, JsonValue]] = {"id": "look", "goal": "Look"}
_WAITS: Final = "it waits for a decision (answer sure/1/0/ask), and it differs"
FETCH: Final[Mapping[str, JsonValue]] = {"id": "fetch", "tool": "look", "params": {}}
REPORT: Final[Mapping[str, JsonValue]] = {"id": "report", "goal": "Report {{ look }} {{ sure }}"}


async def test_a_moved_run_keeps_what_ended_and_does_the_rest_as_the_new_version_says(
    play: Play,
) -> None:
    """A-182."""
    await play.begun(play.recipe([LOOK, ASK, REPORT]))
    after = play.recipe(
        [
            {"id": "look", "goal": "Look twice"},
            ASK,
            {"id": "extra", "goal": "Extra {{ look }}"},
            {"id": "report", "goal": "New {{ look }} {{ extra }} {{ sure }}"},
        ],
        version="2",
    )
    fate = await play.move(after)
    assert (fate.fate, fate.anew, fate.reason) == ("moves", (), "what ended is kept")
    recorded = await play.recorded()
    assert recorded.summary.status == "needs_decision"
    assert recorded.start.version == "2"
    result = await play.resume(sure="answer:true")
    assert result.unwrap() == "re(New re(Look) re(Extra re(Look)) true)"
    assert play.world.asked["Look"] == 1
    assert play.world.asked["Look twice"] == 0
    assert (await play.recorded()).start.version == "2"
    assert (await play.fate(after)).fate == "goes_on"


async def test_a_moved_run_that_dies_again_stays_with_its_version(play: Play) -> None:
    before = play.recipe([LOOK, {"id": "a", "goal": "A"}, {"id": "b", "goal": "B"}])
    after = play.recipe([LOOK, {"id": "a", "goal": "A2"}, {"id": "b", "goal": "B2"}])
    await play.begun(before, 5)
    await play.move(after)
    play.world.journal.dies_at = play.world.journal.count + 4
    with pytest.raises(KilledError):
        await play.resume()
    play.world.journal.revive()
    assert (await play.resume()).unwrap() == "re(B2)"
    assert play.world.asked["Look"] == 1


LOOP: Final[Mapping[str, JsonValue]] = {"id": "a", "loop": [1, 2], "goal": "A {{ loop.item }}"}
REPEAT: Final[Mapping[str, JsonValue]] = {"id": "a", "goal": "A", "while": "1 == 2"}


@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        (LOOP, {**LOOP, "loop": [1, 2, 3]}, "breaks"),
        (LOOP, {**LOOP, "loop": [1]}, "breaks"),
        (LOOP, {**LOOP, "loop": [2, 1]}, "breaks"),
        (LOOP, {**LOOP, "aggregate": True}, "breaks"),
        (LOOP, {**LOOP, "on_item_error": "collect"}, "breaks"),
        (LOOP, {**LOOP, "max_parallel": 2}, "moves"),
        (LOOP, {**LOOP, "goal": "B {{ loop.item }}"}, "moves"),
        (REPEAT, {**REPEAT, "while": "1 == 1", "allow_repeats": True}, "breaks"),
        (REPEAT, {**REPEAT, "goal": "B"}, "moves"),
    ],
)
async def test_iterations_that_ended_are_those_of_the_new_version_or_the_run_breaks(
    play: Play, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], fate: str
) -> None:
    await play.begun(play.recipe([before, ASK]))
    found = await play.fate(play.recipe([after, ASK], version="2"))
    assert (found.fate, found.step) == (fate, "a" if fate == "breaks" else None), found
    if fate == "breaks":
        assert found.reason == "it ended with other iterations than it has now"
        return
    await play.move(play.recipe([after, ASK], version="2"))
    await play.resume(sure="answer:true")
    assert {text for text in play.world.asked if text.startswith("B")} == set()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Look {{ bad }}", "it ended, and now reads 'bad', which failed"),
        ("Look {{ bad | default('') }}", None),
        ("Look again", None),
    ],
)
async def test_a_step_that_ended_and_now_reads_what_failed_breaks_the_run(
    play: Play, text: str, reason: str | None
) -> None:
    """It would be skipped, and what it came to lost."""
    bad: Mapping[str, JsonValue] = {"id": "bad", "assert": "1 == 2", "optional": True}
    await play.begun(play.recipe([bad, LOOK, ASK]))
    edited = play.recipe([bad, {**LOOK, "goal": text}, ASK, REPORT], version="2")
    found = await play.fate(edited)
    if reason is not None:
        assert (found.fate, found.step, found.reason) == ("breaks", "look", reason)
        return
    await play.move(edited)
    assert (await play.resume(sure="answer:true")).unwrap() == "re(Report re(Look) true)"


@pytest.mark.parametrize("dies_at", [8, None])
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"loop": "{{ inputs.ns }}", "goal": "A {{ loop.item }}"}, "inputs.ns"),
        ({"loop": "{{ inputs.ns }}", "goal": "EDITED {{ loop.item }}"}, "inputs.ns"),
        ({"goal": "A", "while": "inputs.ns | length > 2"}, "inputs.ns"),
        ({"loop": [1, 2], "goal": "A {{ loop.item }} {{ inputs.ns }}"}, None),
    ],
)
async def test_iterations_that_an_input_decides_break_the_run_where_its_default_differs(
    play: Play, step: Mapping[str, JsonValue], reason: str | None, dies_at: int | None
) -> None:
    def version(*default: JsonValue) -> AgentRecipe:
        inputs: Mapping[str, JsonValue] = {
            "ns": {"type": "array", "items": {"type": "integer"}, "default": list(default)}
        }
        text = str(step["goal"]).replace("EDITED", "B" if len(default) > 2 else "A")
        done = {"id": "a", **step, "goal": text}
        return play.recipe([done, ASK], inputs=inputs, version=f"{len(default)}")

    await play.begun(version(1, 2), dies_at)
    found = await play.fate(version(1, 2, 3))
    if reason is None:
        assert found.fate == "moves"
    else:
        assert (found.fate, found.step) == ("breaks", "a")
        assert found.reason == f"what it executes is decided by {reason}, which differs"
    assert (await play.fate(evolve(version(1, 2), version="9"))).fate == "goes_on"


@pytest.mark.parametrize(
    ("edited", "step", "reason"),
    [
        (
            [LOOK, {**ASK, "ask": "Really?"}],
            "sure",
            "it waits for a decision (answer sure/1/0/ask)",
        ),
        ([LOOK, {**LOOK, "id": "other"}], "sure", _WAITS),
        (
            [LOOK, {**ASK, "when": "1 == 1"}],
            "sure",
            "it waits for a decision (answer sure/1/0/ask)",
        ),
        (
            [{**LOOK, "output": {"type": "object"}}, ASK],
            "look",
            "its output does not fit what it declares now: $: 're(Look)' is not of type 'object'",
        ),
        ([{"id": "look", "set": {"x": 1}}, ASK], "look", "it ended as a step `goal:` and is one"),
        ([{**LOOK, "loop": [1]}, ASK], "look", "it ended with other iterations than it has now"),
        ([{**LOOK, "when": "1 == 1"}, ASK], "look", "it ran when: true, which differs"),
        (
            [LOOK, FETCH, ASK, {"id": "report", "goal": "{{ fetch.price }}"}],
            "report",
            "step 'report' reads fetch.price, which 'fetch' did not give",
        ),
        (
            [LOOK, FETCH, ASK, {"id": "report", "goal": "x", "when": "steps.fetch.output.n > 1"}],
            "report",
            "step 'report' reads steps.fetch.output.n, which 'fetch' did not give",
        ),
    ],
)
async def test_what_breaks_a_run_is_named(
    play: Play, edited: Steps, step: str, reason: str
) -> None:
    """A-182: the step, the reference or the decision."""
    await play.begun(play.recipe([LOOK, FETCH, ASK]))
    fate = await play.fate(play.recipe(edited))
    assert (fate.fate, fate.step) == ("breaks", step)
    assert fate.reason.startswith(reason)


async def test_a_value_with_a_default_may_be_missing(play: Play) -> None:
    await play.begun(play.recipe([FETCH, ASK]))
    report = {"id": "report", "goal": "{{ fetch.price | default(1) }}"}
    assert (await play.fate(play.recipe([FETCH, ASK, report]))).fate == "moves"


async def test_the_output_of_the_recipe_is_read_too(play: Play) -> None:
    await play.begun(play.recipe([FETCH, ASK]))
    fate = await play.fate(play.recipe([FETCH, ASK], output="{{ fetch.x }}"))
    assert (fate.fate, fate.step) == ("breaks", None)
    assert fate.reason == "its output reads fetch.x, which 'fetch' did not give"
    assert (await play.fate(play.recipe([FETCH, ASK], output="{{ fetch }}"))).fate == "moves"


async def test_a_step_that_began_and_differs_begins_again_where_nothing_is_lost(
    play: Play,
) -> None:
    await play.begun(play.recipe([LOOK, {"id": "a", "goal": "A"}]), 5)
    fate = await play.move(play.recipe([LOOK, {"id": "a", "goal": "A2"}]))
    assert fate.anew == ("a",)
    assert fate.reason == "what ended is kept; what had begun begins again: a"
    assert (await play.resume()).unwrap() == "re(A2)"


async def test_a_step_that_has_called_a_tool_and_differs_breaks_the_run(play: Play) -> None:
    steps: Steps = [{"id": "a", "tool": "look", "params": {"n": 1}}]
    await play.begun(play.recipe(steps), 4)
    fate = await play.fate(play.recipe([{"id": "a", "tool": "look", "params": {"n": 2}}]))
    assert (fate.fate, fate.step) == ("breaks", "a")
    assert fate.reason == "it began and has called look, and it differs"


async def test_a_loop_of_which_items_are_done_and_that_differs_breaks_the_run(play: Play) -> None:
    loop: Mapping[str, JsonValue] = {
        "id": "a",
        "loop": [1, 2, 3],
        "goal": "A {{ loop.item }}",
    }
    await play.begun(play.recipe([loop]), 8)
    fate = await play.fate(play.recipe([{**loop, "goal": "B {{ loop.item }}"}]))
    assert (fate.fate, fate.step) == ("breaks", "a")
    assert fate.reason == "2 of its executions are done, and it differs"
    assert (await play.fate(play.recipe([loop], version="2"))).fate == "moves"


async def test_inputs_that_do_not_fit_break_the_run_and_new_defaults_count(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    needed = play.recipe([LOOK, ASK], inputs={"n": "integer"})
    fate = await play.fate(needed)
    assert fate.fate == "breaks"
    assert "'n'" in fate.reason
    report = {"id": "report", "goal": "{{ inputs.n }}"}
    after = play.recipe([LOOK, ASK, report], inputs={"n": 7})
    await play.move(after)
    assert (await play.recorded()).inputs == {"n": 7}
    assert (await play.resume(sure="answer:true")).unwrap() == "re(7)"


async def test_a_graph_with_other_transitions_breaks_its_runs(play: Play) -> None:
    steps: Steps = [{"id": "a", "set": {"x": 1}}, ASK, {"id": "b", "set": {"x": 1}}]
    await play.begun(play.recipe(steps, graph={"a": ["sure"], "sure": ["b"]}))
    fate = await play.fate(play.recipe(steps, graph={"a": ["sure", "b"], "sure": ["b"]}))
    assert (fate.fate, fate.reason) == ("breaks", "the transitions of its graph differ")


async def test_a_run_whose_own_version_cannot_be_read_breaks(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    recorded = await play.recorded()
    fate = fate_of(recorded, None, play.recipe([LOOK]))
    assert (fate.fate, "name --extensions" in fate.reason) == ("breaks", True)
    of_code = evolve(recorded, document=None)
    assert "started from Python" in fate_of(of_code, None, play.recipe([LOOK])).reason


async def test_items_of_a_loop_have_to_fit_what_it_declares_and_their_list_does_not(
    play: Play,
) -> None:
    def loop(kind: str, text: str) -> Mapping[str, JsonValue]:
        output: JsonValue = {"type": "object", "properties": {"x": {"type": kind}}}
        return {"id": "a", "loop": [1, 2], "goal": text, "output": output}

    await play.begun(play.recipe([loop("integer", "as JSON {{ loop.item }}"), ASK]))
    fate = await play.fate(play.recipe([loop("string", "as JSON {{ loop.item }}"), ASK]))
    assert (fate.fate, fate.step) == ("breaks", "a")
    assert fate.reason.startswith("its output does not fit what it declares now: $.x")
    edited = play.recipe([loop("integer", "other as JSON {{ loop.item }}"), ASK])
    assert (await play.fate(edited)).fate == "moves"


@pytest.mark.parametrize(
    ("report", "fate"),
    [
        ({"goal": "{{ found.price }}"}, "breaks"),
        ({"goal": "{{ fetch.price if false else 1 }}"}, "moves"),
        ({"goal": "x", "while": "fetch.n > 1"}, "breaks"),
        ({"goal": "{{ steps.fetch.status }}"}, "moves"),
        ({"loop": "{{ fetch.list }}", "goal": "x"}, "breaks"),
    ],
)
async def test_whatever_a_step_reads_has_to_be_there(
    play: Play, report: Mapping[str, JsonValue], fate: str
) -> None:
    fetch = {**FETCH, "save_as": "found"}
    await play.begun(play.recipe([fetch, ASK]))
    found = await play.fate(play.recipe([fetch, ASK, {"id": "report", **report}]))
    assert found.fate == fate
    assert "'fetch' did not give" in found.reason or fate == "moves"


async def test_what_ended_is_not_asked_what_it_would_read_now(play: Play) -> None:
    await play.begun(play.recipe([FETCH, LOOK, ASK]))
    edited = play.recipe([FETCH, {**LOOK, "goal": "Look at {{ fetch.price }}"}, ASK])
    assert (await play.fate(edited)).fate == "moves"


async def test_what_was_missing_before_is_no_fault_of_the_new_version(play: Play) -> None:
    report = {"id": "report", "goal": "{{ fetch.price }} {{ sure }}"}
    await play.begun(play.recipe([FETCH, ASK, report]))
    same = play.recipe([FETCH, ASK, report], version="2")
    assert (await play.fate(same)).fate == "moves"
    source = play.recipe([{**FETCH, "params": {"n": 1}}, ASK, report])
    assert (await play.fate(source)).fate == "breaks"


async def test_a_run_of_a_part_of_the_recipe_breaks(play: Play) -> None:
    recipe = play.recipe([LOOK, ASK])
    await play.executor().execute(recipe, part=RunPart(only="sure"))
    fate = await play.fate(play.recipe([LOOK, ASK], version="2"))
    assert (fate.fate, fate.reason) == ("breaks", "it runs a part of the recipe")


async def test_a_failure_that_led_back_breaks_the_run_where_its_step_differs(play: Play) -> None:
    bad: Mapping[str, JsonValue] = {
        "id": "bad",
        "assert": "sure and look == 'x'",
        "on_error": {"goto": "look"},
    }
    recipe = play.recipe([LOOK, {**ASK, "ask": "{{ look }}?"}, bad])
    await play.begun(recipe)
    await play.resume(sure="answer:true")
    assert (await play.recorded()).summary.status == "needs_decision"
    edited = play.recipe([LOOK, {**ASK, "ask": "{{ look }}?"}, {**bad, "assert": "sure"}])
    fate = await play.fate(edited)
    assert (fate.fate, fate.step) == ("breaks", "bad")
    assert fate.reason == "its failure led back to an earlier step, and it differs"


async def test_a_failure_stays_one(play: Play) -> None:
    bad: Mapping[str, JsonValue] = {"id": "bad", "assert": "1 == 2", "optional": True}
    await play.begun(play.recipe([LOOK, bad, ASK]))
    edited = play.recipe([LOOK, {**bad, "assert": "1 == 1"}, ASK])
    assert (await play.fate(edited)).fate == "moves"


async def test_nobody_pinned_a_run_of_which_nothing_is_said(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    assert not is_pinned(await play.recorded())


def nested(play: Play, inner: Steps, *others: Mapping[str, JsonValue]) -> AgentRecipe:
    """A recipe whose first step is another one."""
    document: dict[str, JsonValue] = {"id": "inner", "steps": [dict(step) for step in inner]}
    steps: list[JsonValue] = [{"id": "sub", "recipe": "inner"}, *map(dict, others)]
    tools = [play.world.tool("look", play.tool_effect)]
    catalog = Catalog(
        tools={each.spec.name: each.spec for each in tools}, find_recipe=among({"inner": document})
    )
    return recipe_from_document({"id": "recipe", "steps": steps}, catalog)


async def test_a_step_within_a_step_that_began_is_compared_by_itself(play: Play) -> None:
    await play.begun(nested(play, [LOOK, ASK, REPORT]))
    assert (await play.recorded()).summary.status == "needs_decision"
    edited = nested(play, [LOOK, ASK, {**REPORT, "goal": "New {{ look }} {{ sure }}"}])
    other = nested(play, [LOOK, {**ASK, "ask": "Really?"}, REPORT])
    fate = await play.fate(other)
    assert (fate.fate, fate.step) == ("breaks", "sub/sure")
    await play.move(edited)
    result = await play.resume(**{"sub/sure": "answer:true"})
    assert result.unwrap() == "re(New re(Look) true)"
    assert play.world.asked["Look"] == 1


@pytest.mark.parametrize(
    ("given", "of_run", "own", "step"),
    [
        ({}, [1, 2], [7], None),
        ({}, [1, 2, 3], [7], None),
        ({}, [1, 2], [7, 8], "sub/each"),
        ({"ns": "{{ inputs.ns }}"}, [1, 2, 3], [7], "sub"),
        ({"ns": [5]}, [1, 2, 3], [7], None),
    ],
)
async def test_iterations_within_a_step_are_decided_by_what_it_is_given(
    play: Play,
    given: dict[str, JsonValue],
    of_run: list[JsonValue],
    own: list[JsonValue],
    step: str | None,
) -> None:
    loop: JsonValue = {"id": "each", "loop": "{{ inputs.ns }}", "goal": "A {{ loop.item }}"}

    def version(of_run: JsonValue, own: JsonValue, name: str) -> AgentRecipe:
        numbers: dict[str, JsonValue] = {"type": "array", "items": {"type": "integer"}}
        inner: dict[str, JsonValue] = {
            "id": "inner",
            "inputs": {"ns": {**numbers, "default": own}},
            "steps": [loop, dict(ASK)],
        }
        document: dict[str, JsonValue] = {
            "id": "recipe",
            "version": name,
            "inputs": {"ns": {**numbers, "default": of_run}},
            "steps": [{"id": "sub", "recipe": "inner", "with": given}],
        }
        return recipe_from_document(document, Catalog(find_recipe=among({"inner": inner})))

    await play.begun(version([1, 2], [7], "1"))
    assert (await play.recorded()).summary.status == "needs_decision"
    found = await play.fate(version(of_run, own, "2"))
    assert (found.fate, found.step) == ("moves" if step is None else "breaks", step)


async def test_what_was_within_a_step_that_ended_does_not_matter_any_more(play: Play) -> None:
    await play.begun(nested(play, [LOOK], ASK))
    edited = nested(play, [{"id": "look", "set": {"x": 1}}], ASK)
    assert (await play.fate(edited)).fate == "moves"


# --- undoing and pinning --------------------------------------------------------------------------


async def test_a_move_is_undone_until_something_was_executed(play: Play) -> None:
    before = play.recipe([LOOK, {"id": "a", "goal": "A"}])
    await play.begun(before, 5)
    first = await play.recorded()
    await play.move(play.recipe([LOOK, {"id": "a", "goal": "A2"}], version="2"))
    services = play.executor().services
    await move_back(services, await play.recorded(), "Eva")
    back = await play.recorded()
    assert (back.document, back.start.version) == (first.document, first.start.version)
    with pytest.raises(UsageError, match="nothing to undo"):
        await move_back(services, back, None)
    # What the step had begun counts again: its key has no number of a later execution.
    assert (await play.resume()).unwrap() == "re(A)"
    keys = [e.key for e in (await play.recorded()).entries if e.key.startswith("a/1/0")]
    assert not [key for key in keys if "@" in key]


async def test_a_move_stays_once_the_run_was_executed(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK, {"id": "b", "goal": "B {{ sure }}"}]))
    await play.move(play.recipe([LOOK, ASK, {"id": "b", "goal": "C {{ sure }}"}]))
    await play.resume(sure="answer:true")
    with pytest.raises(UsageError, match="was executed since it was moved"):
        await move_back(play.executor().services, await play.recorded(), None)


async def test_moves_are_undone_one_after_the_other(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    for version in ("2", "3"):
        await play.move(play.recipe([LOOK, ASK], version=version))
    services, versions = play.executor().services, []
    for _ in range(2):
        await move_back(services, await play.recorded(), None)
        versions.append((await play.recorded()).start.version)
    assert versions == ["2", "1"]


async def test_a_pinned_run_stays_until_it_is_moved(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    await pin_run(play.executor().services, await play.recorded(), "Eva")
    recorded = await play.recorded()
    assert is_pinned(recorded)
    after = play.recipe([LOOK, ASK], version="2")
    await play.move(after)
    assert not is_pinned(await play.recorded())


async def test_a_run_that_went_on_meanwhile_is_not_moved(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    after = play.recipe([LOOK, ASK], version="2")
    stale, fate = await play.recorded(), await play.fate(after)
    await play.resume()
    with pytest.raises(JournalError, match="has new entries"):
        await move_run(play.executor().services, stale, after, fate, None)


async def test_an_imported_move_brings_no_folder(play: Play) -> None:
    await play.begun(play.recipe([LOOK, ASK]))
    after = evolve(play.recipe([LOOK, ASK], version="2"), directory="/etc")
    await play.move(after)
    (moved,) = (e for e in (await play.recorded()).entries if isinstance(e.fact, RecipeMoved))
    fact = imported_entry(moved, None).fact
    assert isinstance(fact, RecipeMoved)
    assert (fact.directory, fact.by, fact.version) == (UNSET, None, "2")
