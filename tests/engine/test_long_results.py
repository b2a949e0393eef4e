"""A tool result that is longer than a model reads at once: cut, and read on in pieces."""

from __future__ import annotations

from builders import Ran, answer_of, fake_tool, recipe_of, run_recipe, text_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect
from minions.engine.history.memory import READ_RESULT
from mortal import World

LONG = "".join(f"line {number}\n" for number in range(100))


def reading(call: str, start: int) -> Answer:
    return [tool_request(READ_RESULT, {"call": call, "start": start})]


LOOK: Answer = [ToolCallRequest(id="c1", name="look", arguments="{}")]


async def ran(*answers: Answer, characters: int = 300) -> Ran:
    return await run_recipe(
        text_step(tools=["look"], limits={"max_tool_result_characters": characters}),
        [LOOK, *answers, answer_of("done")],
        tools=[fake_tool("look", lambda _: LONG)],
    )


async def test_the_model_sees_the_beginning_and_how_to_read_on() -> None:
    done = await ran()
    said = done.prompts[1][-1].content or ""
    assert said.startswith(LONG[:300])
    assert said.endswith(
        f'[The first 300 of {len(LONG)} characters. To read on, call {READ_RESULT} with call "c1" '
        "and start 300.]"
    )
    assert done.offered[0] == ["look"]
    assert done.offered[1] == ["look", READ_RESULT]
    (call,) = done.only.tool_calls
    assert call.response is not None
    assert call.response.content == LONG


async def test_it_reads_the_rest_in_pieces_which_are_not_cut_again() -> None:
    done = await ran(reading("c1", 300), reading("c1", 600))
    pieces = [prompt[-1].content or "" for prompt in done.prompts[2:]]
    assert (
        pieces[0]
        == f"{LONG[300:600]}\n[Characters 300 to 600 of {len(LONG)}: read on from start 600.]"
    )
    assert pieces[1].startswith(LONG[600:890])
    assert pieces[1].endswith(": the end.]")


async def test_a_whole_number_with_a_point_says_where_to_read_on() -> None:
    done = await ran(tool_request(READ_RESULT, {"call": "c1", "start": 300.0}))
    assert (done.prompts[2][-1].content or "").startswith(LONG[300:600])


async def test_a_wrong_reference_is_told_to_the_model() -> None:
    done = await ran(reading("c9", 0), reading("c1", 5_000))
    said = [prompt[-1].content for prompt in done.prompts[2:]]
    assert said == [
        "Error: This step has no call 'c9'. Its calls are: c1.",
        f"Error: The result has {len(LONG)} characters; 5000 is behind its end.",
    ]


async def test_a_result_that_fits_is_shown_whole_and_no_tool_is_added() -> None:
    done = await ran(characters=len(LONG))
    assert done.prompts[1][-1].content == LONG
    assert done.offered[1] == ["look"]


async def test_a_resumed_run_sends_the_same_prompts() -> None:
    recipe = recipe_of([text_step(tools=["look"], limits={"max_tool_result_characters": 300})])
    tools = [fake_tool("look", lambda _: LONG, effect=Effect.PURE)]

    def model(world: World, sent: list[str]) -> ScriptedModel:
        def answer(prompt: Prompt) -> Answer:
            sent.append("\n".join(message.content or "" for message in prompt.messages))
            told = sum(1 for message in prompt.messages if message.tool_call_id)
            return (LOOK, reading("c1", 300), "done")[told]

        return world.model(answer)

    world, quiet = World(), list[str]()
    await world.executor(model(world, quiet), tools).execute(recipe)
    assert len(quiet) == 3
    for at in range(2, 40):
        world, sent = World(), list[str]()
        if not await world.killed(world.executor(model(world, []), tools), recipe, at):
            break
        result = await world.executor(model(world, sent), tools).resume("run_1", recipe=recipe)
        assert result.status is RunStatus.COMPLETED
        assert sent == quiet[len(quiet) - len(sent) :]
