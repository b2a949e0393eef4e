"""Sessions in Python, offline: stream a turn, regenerate an answer, branch the conversation.

Run it: `python recipes/sessions_demo.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import minions as m
from minions import events, guide, sessions, testing


@m.tool(effect="pure")
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return {"Oslo": "snow", "Rome": "sun"}.get(city, "unknown")


def answer(prompt: m.Prompt) -> str | guide.ToolCallRequest:
    """The scripted model: looks the weather up once, then talks about it."""
    last = prompt.messages[-1]
    if last.role == "tool":
        return f"There is {last.content}."
    city = "Rome" if "Rome" in (last.content or "") else "Oslo"
    return testing.tool_request("weather", {"city": city})


async def show(events: AsyncIterator[events.StepEvent]) -> None:
    """Print an answer while it comes."""
    async for event in events:
        if isinstance(event, events.StepDeltaEvent):
            print(event.delta.content or "", end="", flush=True)
    print()


async def main() -> None:
    """A conversation, its last answer anew, and a branch of it."""
    repository = m.StepRepository()
    model = m.ScriptedModel(answer)
    agent = m.ChatAgent(model=model, system_prompt="Be brief.", tools=[weather])
    runner = m.StepRunner(agent, repository=repository)
    session = await repository.create_session(name="weather")

    print("> How is Oslo?")
    await show(runner.run_stream(session, "How is Oslo?"))
    print("> And Rome?")
    await show(runner.run_stream(session, "And Rome?"))

    last = await repository.get_step_count(session.id)
    print(f"message {last} again:")
    await show(sessions.retry_from_sequence(session.id, last, repository, runner))

    branch = await sessions.fork_session(session.id, 4, repository)
    print("a branch that knows only of Oslo:")
    print("> Once more!")
    await show(runner.run_stream(branch, "Once more!"))

    for name in (session.id, branch):
        summary = await sessions.get_context_summary(name, repository)
        print(f"{summary['total_steps']} messages, {summary['total_tool_calls']} tool calls")


if __name__ == "__main__":
    asyncio.run(main())
