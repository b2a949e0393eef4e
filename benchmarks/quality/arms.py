"""Who asks, and how: Minions, the bare SDK in three ways, and the libraries of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import evolve, field, frozen
from returns.pipeline import is_successful

from benchmarks.quality.function_calls import Call, CallQuestion, schema_of_calls
from benchmarks.quality.tasks import Loop, Question, object_of
from minions import AgentExecutor, OpenAIModel, RunStatus
from minions.adapters.models.model_probe import probe_model
from minions.contracts.calls import Confidence, ModelCapabilities
from minions.contracts.executions import AgentResult
from minions.contracts.instructions import OutputMode
from minions.contracts.model_profiles import ModelProfile
from minions.contracts.tools import Effect, Reads, Tool, Toolbox, ToolScope, ToolSpec
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue, as_object, find_json_value
from minions.data.schema import JsonSchema
from minions.engine.compile.extensions import Extensions
from minions.engine.services.run_services import MemoryProfiles, Services
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SDK_CALLS: Final = "SDK, schema of calls"
MOST_TOKENS: Final = 200
"""Of each answer, for all who ask."""
MOST_TURNS: Final = 12
"""Requests in one tool loop."""
MOST_WORDS: Final = 4
"""Of a value that is quoted."""
MOST_EXAMPLES: Final = 4
"""Answered questions that a prompt shows."""


class UnansweredError(Exception):
    """There is no answer, and whoever was asked says so."""


_Asks = Callable[[Question], Awaitable[JsonValue]]
_AsksLike = Callable[[Question, Sequence[Question]], Awaitable[JsonValue]]
"""With answered questions of the same kind."""
_Calls = Callable[[CallQuestion], Awaitable[Sequence[Call]]]
_Walks = Callable[[Loop], Awaitable[str]]


@frozen(kw_only=True)
class Arms:
    """The ways to ask, by the name that tables have for them."""

    questions: Mapping[str, _Asks]
    """Fields of texts and schemas; `UnansweredError` where there is no value."""
    problems: Mapping[str, _Asks]
    """Further ways for word problems."""
    calls: Mapping[str, _Calls]
    loops: Mapping[str, _Walks]
    examples: Mapping[str, _AsksLike]
    """Fields of texts, with answered questions of the same kind to show."""
    judged: Callable[[Question], Awaitable[tuple[JsonValue, Confidence]]]
    """Fields of texts, with how sure the model was; `UnansweredError` where either is missing."""


async def probed(base_url: str, key: str | None, model: str) -> ModelProfile:
    """What `minions models probe` finds out about the server, which a user measures once.

    Raises:
        UnansweredError: It does not answer.
    """
    asked = OpenAIModel(model, base_url=base_url, api_key=key, provider="quality")
    try:
        outcome = await probe_model(asked, now=partial(datetime.now, UTC))
    finally:
        await asked.aclose()
    if not is_successful(outcome):
        raise UnansweredError(outcome.failure().message)
    return outcome.unwrap().profile


@asynccontextmanager
async def arms_at(
    base_url: str, model: str, profile: ModelProfile, peers: Path | None
) -> AsyncIterator[Arms]:
    """All arms, whose requests go there.

    Args:
        base_url: Of a server with OpenAI's protocol that needs no key.
        profile: What `probed` found out.
        peers: The Python of the environment of `peer_worker.py`; None: nobody else asks.
    """
    from openai import AsyncOpenAI

    capabilities = ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA)
    ours = OpenAIModel(model, base_url=base_url, provider="quality", capabilities=capabilities)
    profiles = MemoryProfiles()
    profiles.keep(evolve(profile, base_url=ours.base_url or "", model=ours.name))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(ours.aclose)
        client = await stack.enter_async_context(
            AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        )
        by_us, by_sdk = _Minions(ours, model, profiles), _Sdk(client, model)
        questions: dict[str, _Asks] = {
            "Minions": by_us.answer,
            "SDK, schema": by_sdk.by_schema,
            "SDK, tools=": by_sdk.by_tool,
            "SDK, read out of text": by_sdk.by_text,
        }
        calls: dict[str, _Calls] = {
            "Minions": by_us.calls,
            "SDK, tools=": by_sdk.calls,
            SDK_CALLS: by_sdk.calls_by_schema,
            "SDK, read out of text": by_sdk.calls_by_text,
        }
        loops: dict[str, _Walks] = {
            "Minions": by_us.walk,
            "SDK, tools=": by_sdk.walk,
            "SDK, schema of a call": by_sdk.walk_by_schema,
            "Minions, in steps": by_us.walk_in_steps,
        }
        if peers is not None:
            worker = _Worker(peers, {"base_url": base_url, "model": model})
            stack.push_async_callback(worker.aclose)
            for name, label in _PEERS.items():
                questions[label] = worker.answers_of(name)
                if name != "instructor":  # it has no calls beside a value of a class
                    calls[label] = worker.calls_of(name)
                    loops[label] = worker.walks_of(name)
        yield Arms(
            questions=questions,
            problems={
                "Minions, in steps": by_us.answer_in_steps,
                "Minions, computed": by_us.answer_computed,
            },
            calls=calls,
            loops=loops,
            examples={
                "Minions, the first four": by_us.answer_like,
                "Minions, the first four, quoted": by_us.answer_like_quoted,
                "Minions, the nearest four of ten": by_us.answer_like_nearest,
                "SDK, schema, the first four": by_sdk.by_schema_like,
            },
            judged=by_us.judged_answer,
        )


_PEERS: Final = {
    "instructor": "instructor",
    "pydantic_ai": "Pydantic AI",
    "langchain": "LangChain",
}


# --- Minions --------------------------------------------------------------------------------------


@frozen(eq=False)
class _RecordingTool(Tool):
    spec: ToolSpec
    work: Callable[[str, Mapping[str, JsonValue]], JsonValue]

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return self.work(self.spec.name, arguments)


@frozen(eq=False)
class _Minions:
    model: OpenAIModel
    name: str
    profiles: MemoryProfiles

    async def answer(self, question: Question) -> JsonValue:
        """The output of one step."""
        return await self._output([_reading(question)], question.text)

    async def answer_like(self, question: Question, known: Sequence[Question]) -> JsonValue:
        """The output of the same step that shows the first of these as examples."""
        shown = [_example(each) for each in known[:MOST_EXAMPLES]]
        return await self._output([{**_reading(question), "examples": shown}], question.text)

    async def answer_like_quoted(self, question: Question, known: Sequence[Question]) -> JsonValue:
        """The same with texts that have to stand in the question, as the recipe's author knows."""
        shown = [_example(each) for each in known[:MOST_EXAMPLES]]
        step = {**_reading(question), "output": quoting(question.schema), "examples": shown}
        return await self._output([step], question.text)

    async def answer_like_nearest(self, question: Question, known: Sequence[Question]) -> JsonValue:
        """The output of the same step that shows those of these that are like the question."""
        items = [_example(each) for each in known]
        choice: JsonValue = {"items": items, "choose": "nearest", "max": MOST_EXAMPLES}
        return await self._output([{**_reading(question), "examples": choice}], question.text)

    async def judged_answer(self, question: Question) -> tuple[JsonValue, Confidence]:
        """The output of the same step, and how sure the model was of it."""
        step = {**_reading(question), "model": {"min_confidence": 1e-300}}
        result = await self._run([step], question.text)
        (execution,) = result.executions
        said = execution.model_calls[-1].response
        if result.status is not RunStatus.COMPLETED or said is None or said.confidence is None:
            raise UnansweredError(str(result.error))
        return cast("JsonValue", result.output), said.confidence

    async def answer_in_steps(self, question: Question) -> JsonValue:
        """The output of a step that reads what an earlier one worked out, in few words a line."""
        lines: JsonSchema = {
            "type": "array",
            "items": {"type": "string", "maxLength": 60},
            "maxItems": 3,
        }
        steps: list[JsonValue] = [
            {
                "id": "work",
                "system_prompt": f"{question.ask} Work it out line by line.",
                "goal": "{{ inputs.text }}",
                "output": object_of({"lines": lines}),
            },
            {
                "id": "read",
                "goal": (
                    "{{ inputs.text }}\n\nWorked out:\n{{ work.lines | join('\\n') }}\n\n"
                    "Which number is it?"
                ),
                "output": dict(question.schema),
            },
        ]
        return await self._output(steps, question.text)

    async def answer_computed(self, question: Question) -> JsonValue:
        """The result of a calculation whose numbers and operations a step reads."""
        number: JsonSchema = {"type": "integer"}
        operation: JsonSchema = {"type": "string", "enum": ["+", "-", "*", "/"]}
        steps: list[JsonValue] = [
            {
                "id": "read",
                "system_prompt": f"{question.ask} Write the calculation, not its result.",
                "goal": "{{ inputs.text }}",
                "output": object_of(
                    {
                        "first": number,
                        "operation": operation,
                        "second": number,
                        "then": operation,
                        "third": number,
                    }
                ),
            },
            {
                "id": "one",
                "set": {"result": _computed("read.first", "read.operation", "read.second")},
            },
            {
                "id": "two",
                "set": {"answer": _computed("one.result", "read.then", "read.third")},
            },
        ]
        return await self._output(steps, question.text)

    async def calls(self, question: CallQuestion) -> Sequence[Call]:
        """The calls of a step's first answer."""
        calls: list[Call] = []
        tools = _tools(question, calls)
        step: dict[str, JsonValue] = {
            "id": "call",
            "goal": "{{ inputs.text }}",
            "tools": [each.spec.name for each in tools],
        }
        # Calls of the first answer are made; a second one is not asked for.
        await self._run([step], question.text, tools, {"max_model_calls_per_step": 1})
        return calls

    async def walk(self, loop: Loop) -> str:
        """The answer of a step with tools."""
        tools = [
            _RecordingTool(_spec(name, said, _parameters(one)), loop.told)
            for name, said, one in loop.tools
        ]
        step: dict[str, JsonValue] = {
            "id": "walk",
            "goal": "{{ inputs.text }}",
            "tools": [each.spec.name for each in tools],
        }
        limits: dict[str, JsonValue] = {"max_model_calls_per_step": MOST_TURNS}
        result = await self._run([step], loop.text, tools, limits)
        if result.status is not RunStatus.COMPLETED:
            raise UnansweredError(str(result.error))
        return str(result.output)

    async def walk_in_steps(self, loop: Loop) -> str:
        """The same way as a recipe that calls the tool: the model reads one word at a time out of
        what it gave. A word that the tool does not know is the end.
        """
        name, said, one = loop.tools[0]
        tool = _RecordingTool(_spec(name, said, _parameters(one)), loop.told)
        word = object_of({"word": {"type": "string", "x-quoted": 1}})
        steps: list[JsonValue] = [
            {
                "id": "read_0",
                "system_prompt": f"With which {one} does it begin?",
                "goal": "{{ inputs.text }}",
                "output": word,
                "examples": _FIRST_WORDS,
            }
        ]
        for turn in range(1, MOST_TURNS):
            before = f"{{{{ read_{turn - 1}.word }}}}"
            call: JsonValue = {
                "id": f"call_{turn}",
                "tool": name,
                "params": {one: before},
                "on_error": "continue",
            }
            read: JsonValue = {
                "id": f"read_{turn}",
                "system_prompt": f"Which {one}, code or number does the text name?",
                "goal": f"{{{{ call_{turn} }}}}",
                "output": word,
                "examples": _NEXT_WORDS,
            }
            steps += [call, read]
        result = await self._run(steps, loop.text, [tool])
        words = [each.output for each in result.executions if each.step_id.startswith("read")]
        if not any(words):
            raise UnansweredError(str(result.error))
        return str(next(each for each in reversed(words) if each))

    async def _output(self, steps: list[JsonValue], text: str) -> JsonValue:
        result = await self._run(steps, text)
        if result.status is not RunStatus.COMPLETED:
            raise UnansweredError(str(result.error))
        return cast("JsonValue", result.output)

    async def _run(
        self,
        steps: list[JsonValue],
        text: str,
        tools: Sequence[Tool] = (),
        limits: dict[str, JsonValue] | None = None,
    ) -> AgentResult[object]:
        document: dict[str, JsonValue] = {
            "id": "quality",
            "inputs": {"text": "string"},
            "model": {
                "name": f"quality/{self.name}",
                "temperature": 0,
                "max_output_tokens": MOST_TOKENS,
            },
            "tools": [each.spec.name for each in tools],
            "steps": steps,
            "limits": limits or {},
        }
        specs = {each.spec.name: each.spec for each in tools}
        recipe = recipe_from_document(document, Catalog(tools=specs))
        executor = AgentExecutor(
            self.model,
            services=Services(profiles=self.profiles),
            extensions=Extensions(tools=Toolbox(tools)),
        )
        return await executor.execute(recipe, {"text": text})


_FIRST_WORDS: Final[JsonValue] = [
    {"input": {"text": text}, "output": {"word": word}}
    for text, word in (
        ("Drive to the station lille and on to where its sign points.", "lille"),
        ("Open the drawer maple, then whichever its note names. What lies there?", "maple"),
        ("Phone otto and whoever is proposed until somebody agrees.", "otto"),
    )
]
_NEXT_WORDS: Final[JsonValue] = [
    {"input": text, "output": {"word": word}}
    for text, word in (
        ("Drive on to lille.", "lille"),
        ("You have arrived. The number of the locker is maple31.", "maple31"),
        ("otto took it over from me.", "otto"),
        ("Nothing further. The sign reads birch70.", "birch70"),
    )
]
"""Of another kind than any loop: what a recipe's author would write."""


def _computed(left: str, operation: str, right: str) -> str:
    """A template whose value is the result of one operation; a division by nought gives nought."""
    results = {"+": f"{left} + {right}", "-": f"{left} - {right}", "*": f"{left} * {right}"}
    chosen = " else ".join(
        f"({result}) if {operation} == '{sign}'" for sign, result in results.items()
    )
    return f"{{{{ {chosen} else ({left} // {right} if {right} else 0) }}}}"


def _example(question: Question) -> JsonValue:
    return {"input": {"text": question.text}, "output": dict(question.right or {})}


def quoting(schema: JsonSchema) -> dict[str, JsonValue]:
    """The schema in which each text is at most four words of the question."""
    found = {
        name: quoting(each) if name == "items" and isinstance(each, Mapping) else each
        for name, each in schema.items()
    }
    properties = found.get("properties")
    if isinstance(properties, Mapping):
        own = {name: as_object(each) for name, each in properties.items()}
        found["properties"] = {name: quoting(each) for name, each in own.items()}
    is_text = found.get("type") == "string" and "enum" not in found
    return {**found, "x-quoted": MOST_WORDS} if is_text else found


def _reading(question: Question) -> dict[str, JsonValue]:
    """The one step that answers it."""
    return {
        "id": "read",
        "system_prompt": question.ask,
        "goal": "{{ inputs.text }}",
        "output": dict(question.schema),
    }


def _spec(name: str, description: str, parameters: Mapping[str, JsonValue]) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters=parameters,
        effect=Effect.PURE,
        reads=Reads.TRUSTED,
    )


def _parameters(name: str) -> dict[str, JsonValue]:
    return object_of({name: {"type": "string"}})


def _tools(question: CallQuestion, calls: list[Call]) -> list[_RecordingTool]:
    def record(name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        calls.append(Call(name, dict(arguments)))
        return "done"

    return [_RecordingTool(_spec(*each), record) for each in question.tools()]


# --- the SDK -----------------------------------------------------------------------------------


@frozen(eq=False)
class _Sdk:
    client: AsyncOpenAI
    model: str

    async def by_schema(self, question: Question) -> JsonValue:
        """An answer with `response_format`."""
        message = await self._ask(question.ask, question.text, _response_format(question.schema))
        return cast("JsonValue", json.loads(message.content))

    async def by_schema_like(self, question: Question, known: Sequence[Question]) -> JsonValue:
        """The same with the first of these as turns before the question."""
        turns = [
            {"role": role, "content": text}
            for each in known[:MOST_EXAMPLES]
            for role, text in (("user", each.text), ("assistant", json.dumps(each.right)))
        ]
        said = [{"role": "system", "content": question.ask}, *turns]
        asked = {"role": "user", "content": question.text}
        message = await self._create([*said, asked], _response_format(question.schema))
        return cast("JsonValue", json.loads(message.content))

    async def by_tool(self, question: Question) -> JsonValue:
        """The arguments of a tool that has to be called."""
        tools = [_sent_tool("answer", "Takes the answer.", question.schema)]
        body = {"tools": tools, "tool_choice": "required"}
        message = await self._ask(question.ask, question.text, body)
        if not message.tool_calls:
            raise UnansweredError("no call")
        return cast("JsonValue", json.loads(message.tool_calls[0].function.arguments))

    async def by_text(self, question: Question) -> JsonValue:
        """The first JSON of an answer in words, told the schema."""
        said = f"{question.ask}\nAnswer with JSON of this schema: {json.dumps(question.schema)}"
        message = await self._ask(said, question.text, {})
        found = find_json_value(message.content or "")
        if found is None:
            raise UnansweredError("no JSON")
        return found

    async def calls(self, question: CallQuestion) -> Sequence[Call]:
        """What the server makes of `tools=`."""
        tools = [_sent_tool(*each) for each in question.tools()]
        message = await self._ask("", question.text, {"tools": tools})
        return [
            Call(each.function.name, json.loads(each.function.arguments))
            for each in message.tool_calls or ()
        ]

    async def calls_by_schema(self, question: CallQuestion) -> Sequence[Call]:
        """A list of calls with `response_format`."""
        said = f"{_listed(question)}\nAnswer with the calls that the question needs; none: []."
        body = _response_format(schema_of_calls(question))
        message = await self._ask(said, question.text, body)
        return _calls_of(json.loads(message.content))

    async def calls_by_text(self, question: CallQuestion) -> Sequence[Call]:
        """A list of calls that is read out of an answer in words."""
        said = (
            f"{_listed(question)}\nAnswer with the calls that the question needs as JSON: "
            '{"calls": [{"name": …, "arguments": {…}}]}; none: {"calls": []}.'
        )
        message = await self._ask(said, question.text, {})
        return _calls_of(find_json_value(message.content or ""))

    async def walk(self, loop: Loop) -> str:
        """The usual loop by hand."""
        tools = [_sent_tool(name, said, _parameters(one)) for name, said, one in loop.tools]
        messages: list[Any] = [{"role": "user", "content": loop.text}]
        for _ in range(MOST_TURNS):
            message = await self._create(messages, {"tools": tools})
            if not message.tool_calls:
                return message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            for each in message.tool_calls:
                told = _told(loop, each.function.name, each.function.arguments)
                messages.append({"role": "tool", "tool_call_id": each.id, "content": told})
        raise UnansweredError("too many turns")

    async def walk_by_schema(self, loop: Loop) -> str:
        """A loop of answers with `response_format`, each of which is a call or the end."""
        listed = "\n".join(f"{name}: {said} Arguments: {one}" for name, said, one in loop.tools)
        said = f"Tools:\n{listed}\nAnswer with the next call, or with the answer at the end."
        calls: list[JsonValue] = [
            object_of({"tool": {"const": name}, "arguments": _parameters(one)})
            for name, _, one in loop.tools
        ]
        schema: dict[str, JsonValue] = {
            "anyOf": [*calls, object_of({"answer": {"type": "string"}})]
        }
        messages: list[Any] = [
            {"role": "system", "content": said},
            {"role": "user", "content": loop.text},
        ]
        for _ in range(MOST_TURNS):
            message = await self._create(messages, _response_format(schema))
            given = json.loads(message.content)
            if "answer" in given:
                return str(given["answer"])
            told = _told(loop, given["tool"], json.dumps(given["arguments"]))
            messages += [
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": told},
            ]
        raise UnansweredError("too many turns")

    async def _ask(self, system: str, text: str, body: Mapping[str, Any]) -> Any:
        said = [{"role": "system", "content": system}] if system else []
        return await self._create([*said, {"role": "user", "content": text}], body)

    async def _create(self, messages: Sequence[Any], body: Mapping[str, Any]) -> Any:
        # Any: the SDK's own types are those of literals
        create = cast("Callable[..., Awaitable[Any]]", self.client.chat.completions.create)
        answer = await create(
            model=self.model,
            messages=messages,
            temperature=0,
            max_tokens=MOST_TOKENS,
            **body,
        )
        return answer.choices[0].message


def _told(loop: Loop, name: str, arguments: str) -> str:
    try:
        return loop.told(name, json.loads(arguments))
    except (ToolError, ValueError) as error:
        return str(error)


def _response_format(schema: Mapping[str, JsonValue]) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _sent_tool(name: str, description: str, schema: Mapping[str, JsonValue]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _listed(question: CallQuestion) -> str:
    return "Functions:\n" + "\n".join(
        f"{name}: {description} Arguments: {json.dumps(schema)}"
        for name, description, schema in question.tools()
    )


def _calls_of(value: Any) -> list[Call]:
    listed = value.get("calls") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        raise UnansweredError("no list of calls")
    return [
        Call(str(each["name"]), each["arguments"])
        for each in listed
        if isinstance(each, dict) and isinstance(each.get("arguments"), dict) and "name" in each
    ]


# --- others ---------------------------------------------------------------------------------------


@frozen(eq=False)
class _Worker:
    """A process with the libraries of others; it starts at the first question."""

    python: Path
    common: Mapping[str, JsonValue]
    _process: list[asyncio.subprocess.Process] = field(factory=list)

    def answers_of(self, peer: str) -> Callable[[Question], Awaitable[JsonValue]]:
        """A way to ask for values."""

        async def ask(question: Question) -> JsonValue:
            is_flat = question.right is not None
            if peer == "instructor" and not is_flat:
                raise UnansweredError("instructor takes classes, no schemas")
            job: dict[str, JsonValue] = {
                "peer": peer,
                "ask": question.ask,
                "text": question.text,
                "schema": dict(question.schema),
                "is_flat": is_flat,
            }
            return cast("JsonValue", (await self._asked(job))["answer"])

        return ask

    def calls_of(self, peer: str) -> Callable[[CallQuestion], Awaitable[Sequence[Call]]]:
        """A way to ask for calls."""

        async def ask(question: CallQuestion) -> Sequence[Call]:
            tools: list[JsonValue] = [[*each] for each in question.tools()]
            job: dict[str, JsonValue] = {
                "peer": peer,
                "ask": "",
                "text": question.text,
                "tools": tools,
            }
            return [Call(*each) for each in (await self._asked(job))["calls"]]

        return ask

    def walks_of(self, peer: str) -> Callable[[Loop], Awaitable[str]]:
        """A way to walk loops."""

        async def walk(loop: Loop) -> str:
            job: dict[str, JsonValue] = {
                "peer": peer,
                "ask": "",
                "text": loop.text,
                "loop": {"tools": [[*each] for each in loop.tools], "places": dict(loop.places)},
                "most_turns": MOST_TURNS,
            }
            return str((await self._asked(job))["answer"])

        return walk

    async def aclose(self) -> None:
        """End the process."""
        for process in self._process:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def _asked(self, job: Mapping[str, JsonValue]) -> dict[str, Any]:
        if not self._process:
            self._process.append(
                await asyncio.create_subprocess_exec(
                    self.python,
                    Path(__file__).with_name("peer_worker.py"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=1 << 22,
                )
            )
        (process,) = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps({**self.common, **job, "max_tokens": MOST_TOKENS})
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()
        answer = json.loads(await process.stdout.readline() or '{"error": "the worker ended"}')
        if "error" in answer:
            raise UnansweredError(answer["error"])
        return cast("dict[str, Any]", answer)
