"""What the first prompt of a step holds, and what it must not: A-12."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from builders import fake_tool, recipe_of, run_of, run_recipe, signal_step, text_step
from minions.adapters.models.script_items import tool_request
from minions.contracts.context import RunContext
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import (
    Message,
    MessageBundle,
    MessageRole,
    assistant,
    goal,
    system,
    user,
)
from minions.contracts.steps import Step


def texts(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(message.role.value, message.content) for message in messages]


async def test_the_agents_prompt_goal_and_user_message_stand_in_the_prompt_once_each() -> None:
    """A-12: system texts first, then the aim and the rest."""
    step = text_step(
        messages=MessageBundle.of(system="STEP SYSTEM", goal="STEP GOAL", user="STEP USER")
    )
    recipe = recipe_of(
        [step],
        system_prompt="AGENT SYSTEM",
        goal="AGENT GOAL",
        messages=MessageBundle.of(user="HI"),
    )
    ran = await run_of(recipe, ["done"])
    assert texts(ran.prompts[0]) == [
        ("system", "AGENT SYSTEM"),
        ("system", "STEP SYSTEM"),
        ("goal", "AGENT GOAL"),
        ("user", "HI"),
        ("goal", "STEP GOAL"),
        ("user", "STEP USER"),
    ]


async def test_follow_up_calls_hold_them_once_as_well() -> None:
    """A-12."""
    recipe = recipe_of([text_step(tools=["look"])], system_prompt="AGENT SYSTEM", goal="AGENT GOAL")
    ran = await run_of(recipe, [tool_request("look"), "done"])
    contents = [message.content for message in ran.prompts[1]]
    assert contents.count("AGENT SYSTEM") == contents.count("AGENT GOAL") == 1


async def test_goals_answers_and_tool_results_of_one_step_are_not_in_the_next() -> None:
    """A-12: each step sees the agent's own words and its own."""
    steps = [
        text_step("a", messages=MessageBundle.of(system="SYSTEM A", goal="GOAL A", user="USER A")),
        text_step("b", messages=MessageBundle.of(goal="GOAL B")),
    ]
    ran = await run_of(recipe_of(steps, goal="AGENT GOAL"), ["ANSWER A", "ANSWER B"])
    assert texts(ran.prompts[1]) == [("goal", "AGENT GOAL"), ("goal", "GOAL B")]


async def test_the_agents_system_messages_come_before_the_steps() -> None:
    """A-12: with and without a system prompt of the agent."""
    step = text_step(messages=MessageBundle.of(system="STEP SYSTEM"))
    agents = MessageBundle([user("HI"), system("AGENT RULE")])
    without = await run_of(recipe_of([step], messages=agents), ["done"])
    assert texts(without.prompts[0]) == [
        ("system", "AGENT RULE"),
        ("system", "STEP SYSTEM"),
        ("user", "HI"),
    ]
    recipe = recipe_of([step], messages=agents, system_prompt="AGENT SYSTEM")
    assert texts((await run_of(recipe, ["done"])).prompts[0])[:2] == [
        ("system", "AGENT SYSTEM"),
        ("system", "AGENT RULE"),
    ]


async def test_a_bundle_keeps_the_order_it_was_given_in() -> None:
    bundle = MessageBundle(
        [user("example"), assistant("answer"), goal("aim"), user("now"), system("rules")]
    )
    ran = await run_recipe(text_step(messages=bundle), ["done"])
    assert texts(ran.prompts[0]) == [
        ("system", "rules"),
        ("user", "example"),
        ("assistant", "answer"),
        ("goal", "aim"),
        ("user", "now"),
    ]


async def test_a_declared_output_is_told_in_words_after_the_system_texts() -> None:
    output = OutputInstructions[object](
        instructions=["Be short."],
        schema={"properties": {"n": {"type": "integer"}}, "required": ["n"]},
    )
    step = text_step(output=output, messages=MessageBundle.of(system="S"))
    ran = await run_recipe(step, ['{"n":1}'])
    role, words = texts(ran.prompts[0])[1]
    assert (role, texts(ran.prompts[0])[0]) == ("system", ("system", "S"))
    assert words is not None
    assert words.startswith("Be short.\n")
    assert words.endswith('{"n": integer}')


async def test_a_step_that_waits_for_a_signal_is_told_how_to_give_it() -> None:
    ran = await run_recipe(signal_step(), ["thinking", "status: done"])
    assert "`status: done`" in (ran.prompts[0][0].content or "")
    assert texts(ran.prompts[1])[-2:] == [
        ("assistant", "thinking"),
        (
            "user",
            "The step is not complete yet. Continue; when it is complete, say `status: done`.",
        ),
    ]


async def test_without_any_words_the_prompt_is_empty_and_still_sent() -> None:
    ran = await run_recipe(text_step(messages=MessageBundle()), ["done"])
    assert (ran.prompts, ran.result.output) == ([()], "done")


async def test_a_step_of_ones_own_writes_its_messages_from_what_is_known() -> None:
    @frozen
    class Report(Step[object]):
        id: str = "report"
        seen: list[str] = field(factory=list)

        def messages(self, view: RunContext) -> Sequence[Message]:
            self.seen.append(view.step_id)
            return [user(f"Report on {view.values['fetch']!r} for {view.inputs}.")]

    report = Report()
    ran = await run_recipe([text_step("fetch"), report], ["DATA", "status: done"])
    assert texts(ran.prompts[1])[-1] == ("user", "Report on 'DATA' for {}.")
    assert report.seen == ["report"]


async def test_only_the_tools_of_the_step_are_offered_in_the_toolboxs_order() -> None:
    tools = [fake_tool("a"), fake_tool("b"), fake_tool("c")]
    steps = [text_step("one", tools=["c", "a"]), text_step("two")]
    ran = await run_recipe(steps, ["1", "2"], tools=tools)
    executions = ran.result.executions
    offered = [[spec.name for spec in each.model_calls[0].prompt.tools] for each in executions]
    assert offered == [["a", "c"], []]


def test_a_goal_speaks_as_the_user() -> None:
    assert goal("aim").to_message_dict() == {"role": "user", "content": "aim"}
    assert goal("aim").role is MessageRole.GOAL
