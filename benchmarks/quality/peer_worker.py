"""Asks by the libraries of others, in an environment of its own: questions come as lines of JSON.

A line in is a `Job` of `arms.py` as an object, a line out `{"answer": …}`, `{"calls": [[name,
arguments], …]}` or `{"error": …}`. It imports nothing of the project.
"""
# mypy: ignore-errors
# The libraries are not installed where types are checked.

import asyncio
import json
import sys
from typing import Any, Literal

from openai import AsyncOpenAI, OpenAI


def class_of(schema: dict[str, Any]) -> type:
    """A class of Pydantic with the fields of a flat schema."""
    from pydantic import create_model

    types = {"string": str, "integer": int, "boolean": bool, "number": float, "array": list[str]}
    fields = {
        name: (Literal[tuple(said["enum"])] if "enum" in said else types[said["type"]], ...)
        for name, said in schema["properties"].items()
    }
    return create_model("Answer", **fields)


def messages_of(job: dict[str, Any]) -> list[dict[str, str]]:
    """The question as chat messages."""
    system = [{"role": "system", "content": job["ask"]}] if job["ask"] else []
    return [*system, {"role": "user", "content": job["text"]}]


def told(loop: dict[str, Any], tool: str, argument: str) -> str:
    """What a call of a loop gives, as `Loop.told`."""
    name, _, parameter = loop["tools"][0]
    if tool != name:
        return "It has nothing to do with it."
    place = argument.lower()
    return loop["places"].get(place) or f"There is no {parameter} {place!r}."


def functions_of(loop: dict[str, Any]) -> list[Any]:
    """A function for each tool of a loop, with its name, docstring and parameter."""
    made = []
    for name, said, parameter in loop["tools"]:
        scope = {"told": told, "loop": loop}
        exec(
            f"def {name}({parameter}: str) -> str: return told(loop, {name!r}, {parameter})", scope
        )
        scope[name].__doc__ = said
        made.append(scope[name])
    return made


async def instructor(job: dict[str, Any]) -> dict[str, Any]:
    """A value by `response_model`, in the mode for servers with schemas."""
    import instructor as library

    client = library.from_openai(
        OpenAI(base_url=job["base_url"], api_key="none", max_retries=0),
        mode=library.Mode.JSON_SCHEMA,
    )
    answer = client.chat.completions.create(
        model=job["model"],
        messages=messages_of(job),
        response_model=class_of(job["schema"]),
        temperature=0,
        max_tokens=job["max_tokens"],
    )
    return {"answer": answer.model_dump()}


async def pydantic_ai(job: dict[str, Any]) -> dict[str, Any]:
    """A value by `NativeOutput`, calls by an external toolset."""
    import pydantic_ai as library
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=job["base_url"], api_key="none", max_retries=0)
    model = OpenAIChatModel(job["model"], provider=OpenAIProvider(openai_client=client))
    settings = {"temperature": 0, "max_tokens": job["max_tokens"]}
    if "schema" in job:
        output = library.NativeOutput(
            class_of(job["schema"])
            if job["is_flat"]
            else library.StructuredDict(job["schema"], name="answer")
        )
        agent = library.Agent(
            model, output_type=output, instructions=job["ask"], model_settings=settings
        )
        answer = (await agent.run(job["text"])).output
        return {"answer": answer if isinstance(answer, dict) else answer.model_dump()}
    if "loop" in job:
        agent = library.Agent(model, tools=functions_of(job["loop"]), model_settings=settings)
        limits = library.UsageLimits(request_limit=job["most_turns"])
        return {"answer": (await agent.run(job["text"], usage_limits=limits)).output}
    from pydantic_ai import DeferredToolRequests
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import ExternalToolset

    tools = [
        ToolDefinition(name=name, description=description, parameters_json_schema=schema)
        for name, description, schema in job["tools"]
    ]
    agent = library.Agent(
        model,
        output_type=[str, DeferredToolRequests],
        toolsets=[ExternalToolset(tools)],
        model_settings=settings,
    )
    output = (await agent.run(job["text"])).output
    calls = [] if isinstance(output, str) else output.calls
    return {"calls": [[each.tool_name, each.args_as_dict()] for each in calls]}


async def langchain(job: dict[str, Any]) -> dict[str, Any]:
    """A value by `with_structured_output`, calls by `bind_tools`."""
    from langchain_core.messages import ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=job["model"],
        base_url=job["base_url"],
        api_key="none",
        temperature=0,
        max_tokens=job["max_tokens"],
        max_retries=0,
    )
    messages = [(each["role"], each["content"]) for each in messages_of(job)]
    if "schema" in job:
        said = (
            class_of(job["schema"])
            if job["is_flat"]
            else {"title": "answer", "description": "The answer.", **job["schema"]}
        )
        asking = model.with_structured_output(said, method="json_schema")
        answer = await asking.ainvoke(messages)
        return {"answer": answer if isinstance(answer, dict) else answer.model_dump()}
    if "loop" in job:
        functions = functions_of(job["loop"])
        by_name = {each.__name__: each for each in functions}
        for _ in range(job["most_turns"]):
            message = await model.bind_tools(functions).ainvoke(messages)
            if not message.tool_calls:
                return {"answer": message.text}
            messages.append(message)
            messages += [
                ToolMessage(by_name[each["name"]](**each["args"]), tool_call_id=each["id"])
                for each in message.tool_calls
            ]
        raise RuntimeError("too many turns")
    tools = [
        {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema},
        }
        for name, description, schema in job["tools"]
    ]
    message = await model.bind_tools(tools).ainvoke(messages)
    return {"calls": [[each["name"], each["args"]] for each in message.tool_calls]}


PEERS = {"instructor": instructor, "pydantic_ai": pydantic_ai, "langchain": langchain}


def main() -> None:
    """Answer until there are no more lines."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    # One loop for all: LangChain keeps its connections from one question to the next.
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            job = json.loads(line)
            try:
                answer = runner.run(PEERS[job["peer"]](job))
            except Exception as error:  # noqa: BLE001  # each library has failures of its own
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
