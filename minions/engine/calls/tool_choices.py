"""Tool calls of models whose servers give none: which server drops its tools in silence, calls that
stand in the text of an answer, and calls that are asked for in two bound questions.

The two questions are which tool, by a list of names and `none`, and then its arguments, by its
schema. Nothing is sent here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve
from returns.result import Failure, Result, Success

from minions.contracts.calls import ModelCallResponse, ModelFailure, Prompt
from minions.contracts.instructions import OutputInstructions, OutputMode, OutputRequest
from minions.contracts.messages import (
    NO_USAGE,
    Message,
    MessageRole,
    TokenUsage,
    ToolCallRequest,
    assistant,
    border_words,
    system,
    user,
)
from minions.contracts.tool_parameters import sent_parameters
from minions.contracts.tools import Effect, ToolSpec
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps, find_json_value, parse_json
from minions.engine.calls.cut_answers import whole_answer
from minions.engine.compile.borders import border_of_run, within, without_markers

Form: TypeAlias = OutputInstructions[object]
Bind: TypeAlias = Callable[[Form], OutputRequest | None]
"""What holds an answer to a form, as far as is known of the server; None: nothing does."""
Ask: TypeAlias = Callable[[Prompt], Awaitable[Result[ModelCallResponse, ModelFailure]]]
Warn: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Takes the code and the words of a warning."""

NO_TOOL: Final = "none"
_NO_CALL: Final = (
    "The caller of the run demands a call of one of its tools, and the model made none, nor did it "
    "name one when it was asked for the name."
)
_MOST_CHARACTERS_PER_TOKEN: Final = 6
"""Characters that one token of a prompt stands for at most, on the average: texts have about four,
and JSON three."""


@define(eq=False)
class ToolChoice(FieldsRepr):
    """How calls are got of one model in one call of it."""

    bind: Bind
    seed: str
    """Of borders around what tools gave, the run's id."""
    is_needed: bool
    """Whether it is known that the model is not shown tools: it is asked by choice at once."""
    may_be_text: bool = False
    """Whether the server may leave calls in the text of answers."""
    is_doubted: bool = False
    """Whether nothing is known of that: a count of tokens may tell."""
    must_call: bool = False
    """Whether the answer has to be a call of a tool of its prompt: a caller demands it."""
    is_single: bool = False
    """Whether an answer has one call at most: others are left out, and the model makes them again
    once it knows the result."""
    has_shown: bool | None = None
    """Whether the model was shown the tools; None: it was not found out."""
    asked: OutputRequest | None = None
    """How the last question was bound; None: there was none."""

    def is_suspicious(self, prompt: Prompt, answer: ModelCallResponse) -> bool:
        """Whether the answer may hold calls in its text or arguments of the wrong types, or may be
        of a model that was shown no tools.
        """
        if calls := answer.message.tool_calls:
            if self.is_single and len(calls) > 1:
                return True
            for each in calls:  # noqa: SIM110  # this is on the path of every turn
                if '"' in each.arguments and _QUOTED.search(each.arguments):
                    return True
            return False
        may_hold = self.may_be_text and "{" in (answer.text or "")
        return may_hold or self.must_call or (self.is_doubted and _counts_too_few(prompt, answer))


_QUOTED: Final = re.compile(r"""[:\[,]\s*"(?:-?\d|true"|false"|\[|\{)""")
"""A text that may be a value of another type."""


async def answer_with_tools(
    prompt: Prompt,
    choice: ToolChoice,
    ask: Ask,
    answer: ModelCallResponse | None,
    *,
    name: str,
    warn: Warn,
) -> Result[ModelCallResponse, ModelFailure]:
    """The answer with its calls, with those in its text, or with one that is asked for by choice.

    Args:
        answer: As the server gave it; None: it was not asked, since it shows models no tools.
        name: Of the model, for warnings.
    """
    if answer is not None:
        calls = answer.tool_calls
        if not calls and choice.may_be_text and (calls := read_calls(answer.text or "", prompt)):
            await warn("tool-calls-in-text", _LEFT_IN_TEXT.format(name))
        if calls:
            calls = calls[:1] if choice.is_single else calls
            return Success(_with_calls(answer, with_declared_types(calls, prompt.tools)))
        if choice.must_call:
            return await call_by_choice(prompt, choice, ask, answer)
        if not choice.is_doubted or not _counts_too_few(prompt, answer):
            return Success(answer)
        answer = await _compared_without_tools(prompt, answer, choice, ask)
        if choice.has_shown is not False:
            return Success(answer)
    await warn("tools-dropped", _DROPPED.format(name))
    return await call_by_choice(prompt, choice, ask, answer)


_DROPPED: Final = (
    "The server of {} drops the tools of a request in silence: the model is not shown them. It is "
    "asked in two questions instead, which tool, and then for the arguments."
)
_LEFT_IN_TEXT: Final = (
    "The server of {} leaves tool calls in the text of answers: they are read there."
)


def _with_calls(answer: ModelCallResponse, calls: tuple[ToolCallRequest, ...]) -> ModelCallResponse:
    """The answer with these calls; the text is dropped that they were read out of."""
    if calls == answer.tool_calls:
        return answer
    text = answer.text if answer.tool_calls else None
    message = evolve(answer.message, content=text, tool_calls=calls)
    return evolve(answer, message=message, completion_instruction=None)


# --- a server that drops its tools ---------------------------------------------------------------


def _counts_too_few(prompt: Prompt, response: ModelCallResponse) -> bool:
    """Whether the server's count of tokens is too small for the texts of the tools, however short
    it writes them: chat templates without a place for tools leave them out, and the request
    succeeds.
    """
    counted = response.usage.input_tokens
    if not counted or count_calls(prompt.messages):
        return False
    shown = sum(len(each.content or "") for each in prompt.messages)
    tools = sum(len(each.name) + len(each.description) + _names(each) for each in prompt.tools)
    return counted * _MOST_CHARACTERS_PER_TOKEN < shown + tools


async def _compared_without_tools(
    prompt: Prompt, answer: ModelCallResponse, choice: ToolChoice, ask: Ask
) -> ModelCallResponse:
    """The answer with the tokens of one more request, of one token: the same without the tools. If
    it counts as many, the model was not shown them.
    """
    options = evolve(prompt.options, max_output_tokens=1)
    outcome = await ask(evolve(prompt, tools=(), searches_tools=False, options=options))
    is_answer = isinstance(outcome, Success)
    usage = outcome.unwrap().usage if is_answer else outcome.failure().usage
    if usage.input_tokens:
        choice.has_shown = usage.input_tokens != answer.usage.input_tokens
    return evolve(answer, usage=answer.usage + usage)


def _names(tool: ToolSpec) -> int:
    """Characters of the names and descriptions of its parameters, at the first level."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return 0
    said = (each.get("description") for each in properties.values() if isinstance(each, Mapping))
    return sum(map(len, properties)) + sum(len(each) for each in said if isinstance(each, str))


# --- calls in the text of an answer --------------------------------------------------------------


_TAGS: Final = ("tool_call", "function_call")
_FENCE: Final = "```"
_LANGUAGES: Final = ("json", "tool_call")
"""What stands behind the first fence."""
_MARKS: Final = ("[TOOL_CALLS]", "<|python_tag|>")
"""What models of some families write before their calls."""
_ARGUMENTS: Final = ("arguments", "parameters")


def read_calls(text: str, prompt: Prompt) -> tuple[ToolCallRequest, ...]:
    """The calls that an answer consists of, or that end it between a family's own tags.

    What a model quotes is not what it says: JSON within prose is no call, nor are tags with words
    behind them, nor is a call of a tool that was not offered.
    """
    if "{" not in text:
        return ()
    starts = [at for each in _TAGS if (at := text.find(f"<{each}>")) >= 0]
    parts = _tagged_parts(text[min(starts) :]) if starts else [_bare(text)]
    found: list[tuple[str, Mapping[str, JsonValue]]] = []
    names = {each.name for each in prompt.tools}
    for part in parts:
        try:
            value = parse_json(part)
        except ValueError:
            return ()
        for each in value if isinstance(value, list) else [value]:
            call = _call_in(each)
            if call is None or call[0] not in names:
                return ()
            found.append(call)
    made = count_calls(prompt.messages)
    return tuple(
        ToolCallRequest(id=f"call_{number}", name=name, arguments=dumps(arguments))
        for number, (name, arguments) in enumerate(found, made + 1)
    )


def _tagged_parts(text: str) -> Sequence[str]:
    """What stands between the tags of a text that begins with one; empty: words do, too."""
    parts: list[str] = []
    while text:
        tag = next((each for each in _TAGS if text.startswith(f"<{each}>")), None)
        if tag is None:
            return ()
        part, _, text = text[len(tag) + 2 :].partition(f"</{tag}>")
        parts.append(part)
        text = text.lstrip()
    return parts


def _bare(text: str) -> str:
    bare = text.strip()
    for mark in _MARKS:
        bare = bare.removeprefix(mark).strip()
    if len(bare) < 2 * len(_FENCE) or not (bare.startswith(_FENCE) and bare.endswith(_FENCE)):
        return bare
    fenced = bare[len(_FENCE) : -len(_FENCE)]
    for language in _LANGUAGES:
        fenced = fenced.removeprefix(language)
    return fenced.strip()


def _call_in(value: JsonValue) -> tuple[str, Mapping[str, JsonValue]] | None:
    """Name and arguments of a call in one of the usual forms; None: it is no call."""
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = inner
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, arguments


def count_calls(messages: Sequence[Message]) -> int:
    """The calls in a conversation: ids that are made here count from there."""
    return sum(len(each.tool_calls) for each in messages)


# --- chosen, then filled in ----------------------------------------------------------------------


async def call_by_choice(
    prompt: Prompt, choice: ToolChoice, ask: Ask, answer: ModelCallResponse | None = None
) -> Result[ModelCallResponse, ModelFailure]:
    """One answer to the prompt: a call of one of its tools, or words where none is needed. Where a
    call has to be made and no tool is named, it fails with `no-tool-call`.

    Two requests, whose usage is added up: which tool, then its arguments or the words. A call that
    would tell nothing new is not made: the words are asked for instead, by a third request.

    Args:
        answer: The words that there are already, by a request that was sent before.
    """
    messages = told_in_words(prompt.messages, choice.seed)
    usage = NO_USAGE if answer is None else answer.usage
    in_words = evolve(prompt, messages=messages, tools=(), searches_tools=False)
    if choice.must_call and answer is not None and len(prompt.tools) == 1:
        first, tool = answer, prompt.tools[0]
    else:
        names = [*(each.name for each in prompt.tools), *(() if choice.must_call else (NO_TOOL,))]
        words = _choice_words(prompt.tools, names)
        asked = _bound(prompt, messages, words, form_of_choice(names), choice)
        chosen = _added(usage, _whole(await ask(asked)))
        if not isinstance(chosen, Success):
            return chosen
        first = chosen.unwrap()
        found = _chosen_tool(first.text, prompt.tools)
        if found is None and choice.must_call:
            return Failure(ModelFailure(code="no-tool-call", message=_NO_CALL, usage=first.usage))
        if found is None and answer is not None:
            return Success(evolve(answer, usage=first.usage))
        if found is None:
            return _added(first.usage, await ask(in_words))
        tool = found
    parameters = sent_parameters(tool.parameters)
    if not parameters.get("properties"):
        if _tells_nothing_new(tool, "{}", prompt):
            return _added(first.usage, await ask(in_words))
        return Success(_with_call(prompt, first, tool, "{}"))
    words = f"Call {tool.name}: {first_sentence(tool.description)}\nArguments: {dumps(parameters)}"
    form: Form = OutputInstructions(schema=parameters, name=tool.name)
    asked = _bound(prompt, messages, words, form, choice)
    filled = _added(first.usage, _whole(await ask(asked)))
    if not isinstance(filled, Success):
        return filled
    said: ModelCallResponse = filled.unwrap()
    # Arguments that do not fit are told to the model by the tool, as always.
    if _tells_nothing_new(tool, said.text or "", prompt):
        return _added(said.usage, await ask(in_words))
    return Success(_with_call(prompt, said, tool, said.text or ""))


def _tells_nothing_new(tool: ToolSpec, arguments: str, prompt: Prompt) -> bool:
    """Whether the same call was made, and nothing since then that changes what it gives: weak
    models do not notice, and would repeat it until the step has no calls left.
    """
    pure = {each.name for each in prompt.tools if each.effect is Effect.PURE}
    wanted = (tool.name, _value_of(arguments))
    for message in reversed(prompt.messages):
        if message.role is MessageRole.USER:  # who asks again wants to know what is now
            return False
        for each in message.tool_calls:
            if each.name not in pure:
                return False
            if (each.name, _value_of(each.arguments)) == wanted:
                return True
    return False


def _value_of(arguments: str) -> JsonValue:
    try:
        return parse_json(arguments)
    except ValueError:
        return arguments


def _whole(
    outcome: Result[ModelCallResponse, ModelFailure],
) -> Result[ModelCallResponse, ModelFailure]:
    """The outcome; of an answer that was cut off behind its value the answer."""
    if isinstance(outcome, Success):
        return outcome
    whole = whole_answer(outcome.failure())
    return outcome if whole is None else Success(whole)


def form_of_choice(names: Sequence[str]) -> Form:
    """The form of an answer that is one of these names."""
    return OutputInstructions(
        schema={
            "type": "object",
            "properties": {"tool": {"type": "string", "enum": [*names]}},
            "required": ["tool"],
            "additionalProperties": False,
        },
        name="tool",
    )


def _choice_words(tools: Sequence[ToolSpec], names: Sequence[str]) -> str:
    told = {each.name: first_sentence(each.description) for each in tools}
    told[NO_TOOL] = "no tool is about it"
    listed = "\n".join(f"- {name}: {told[name]}" for name in names)
    return f"Which tool answers the question?\n{listed}"


_SENTENCE: Final = re.compile(r".+?[.!?](?=\s|$)")


def first_sentence(text: str) -> str:
    """The text up to its first full stop, on one line."""
    line = " ".join(text.split())
    found = _SENTENCE.match(line)
    return line if found is None else found.group()


def _bound(
    prompt: Prompt, messages: Sequence[Message], words: str, form: Form, choice: ToolChoice
) -> Prompt:
    """The prompt without tools: the words end its system message, and its answer is held to the
    form.
    """
    choice.asked = request = choice.bind(form)
    if request is None or request.mode is not OutputMode.JSON_SCHEMA:
        words = f"{words}\nAnswer with JSON of this schema: {dumps(form.json_schema())}"
    first = messages[0] if messages and messages[0].role is MessageRole.SYSTEM else None
    told = system(words if first is None else f"{first.content}\n\n{words}")
    rest = messages if first is None else messages[1:]
    return evolve(
        prompt,
        messages=(told, *rest),
        tools=(),
        searches_tools=False,
        instructions=None,
        output_request=request,
    )


def told_in_words(messages: Sequence[Message], seed: str) -> tuple[Message, ...]:
    """A conversation without calls and results of tools in forms that such a server drops; what a
    tool gave stands within a border.

    Args:
        seed: Of the border, the run's id.
    """
    results = [each for each in messages if each.role is MessageRole.TOOL]
    if not results:
        return tuple(messages)
    border = border_of_run(seed, [each.content or "" for each in messages])
    told = border_words(border)
    first = messages[0]
    if first.role is MessageRole.SYSTEM:
        told = evolve(first, content=f"{first.content}\n\n{told.content}")
        messages = messages[1:]
    return (told, *(_told_in_words(each, border) for each in messages))


def _told_in_words(message: Message, border: str) -> Message:
    if message.role is MessageRole.TOOL:
        result = within(border, without_markers(message.content or ""))
        return user(f"{message.name or 'The tool'} gave:\n{result}")
    if not message.tool_calls:
        return message
    said = "\n".join(f"{each.name} {each.arguments}" for each in message.tool_calls)
    return assistant("\n".join(filter(None, (message.content, said))))


def _chosen_tool(text: str | None, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    try:
        value = find_json_value(text or "")
    except ValueError:
        return None
    name = value.get("tool") if isinstance(value, dict) else None
    return next((each for each in tools if each.name == name), None)


def _with_call(
    prompt: Prompt, response: ModelCallResponse, tool: ToolSpec, arguments: str
) -> ModelCallResponse:
    call = ToolCallRequest(
        id=f"call_{count_calls(prompt.messages) + 1}", name=tool.name, arguments=arguments
    )
    return evolve(response, message=assistant(None, tool_calls=(call,)), finish_reason="tool_calls")


def _added(
    usage: TokenUsage, outcome: Result[ModelCallResponse, ModelFailure]
) -> Result[ModelCallResponse, ModelFailure]:
    """The outcome with the tokens of the request before it."""
    if isinstance(outcome, Success):
        response = outcome.unwrap()
        return Success(evolve(response, usage=usage + response.usage))
    failure = outcome.failure()
    return Failure(evolve(failure, usage=usage + failure.usage))


# --- types of arguments --------------------------------------------------------------------------


_LITERALS: Final[Mapping[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def with_declared_types(
    calls: Sequence[ToolCallRequest], tools: Sequence[ToolSpec]
) -> tuple[ToolCallRequest, ...]:
    """The calls, with `"3"` as 3 where a number is declared, and nothing but a number: the text of
    an argument has to be the JSON of just the declared type.
    """
    by_name = {each.name: each.parameters for each in tools}
    return tuple(_with_declared_types(each, by_name.get(each.name)) for each in calls)


def _with_declared_types(
    call: ToolCallRequest, parameters: Mapping[str, JsonValue] | None
) -> ToolCallRequest:
    if parameters is None:
        return call
    try:
        said = parse_json(call.arguments, unique_keys=True)
    except ValueError:
        return call
    typed = _typed(said, parameters)
    return call if typed is said else evolve(call, arguments=dumps(typed))


def _typed(value: JsonValue, schema: JsonValue) -> JsonValue:
    """The value with the declared types; the same object where nothing is to be changed."""
    if not isinstance(schema, Mapping):
        return value
    declared = schema.get("type")
    if isinstance(value, str):
        kinds = _LITERALS.get(declared) if isinstance(declared, str) else None
        return value if kinds is None else _literal(value, kinds)
    if isinstance(value, dict):
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return value
        typed = {name: _typed(each, properties.get(name)) for name, each in value.items()}
        return typed if any(typed[name] is not value[name] for name in value) else value
    if isinstance(value, list):
        listed = [_typed(each, schema.get("items")) for each in value]
        changed = any(one is not other for one, other in zip(listed, value, strict=True))
        return listed if changed else value
    return value


def _literal(text: str, kinds: tuple[type, ...]) -> JsonValue:
    try:
        found = parse_json(text)
    except ValueError:
        return text
    return found if type(found) in kinds else text
