"""What a prompt is made of: its texts by section, and their tokens.

Tokens are estimated from characters; the sections of a prompt that a server counted are its
count, divided by the estimate.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from minions.contracts.calls import ModelCall, Prompt, PromptLayout
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.contracts.messages import Message, MessageRole, is_border_words
from minions.contracts.output import older_output_words, output_words
from minions.contracts.tools import ToolSpec
from minions.data.json_values import dumps

CHARACTERS_PER_TOKEN: Final = 4
"""The estimate of tokens where no server counted them."""


class PromptSection(StrEnum):
    """Where a part of a prompt comes from."""

    SYSTEM = "system"
    CONTEXT = "context"
    EXAMPLES = "examples"
    GOAL = "goal"
    OUTPUTS = "step_outputs"
    SCHEMA = "schema"
    TOOLS = "tools"
    HISTORY = "history"


REASONS: Final[Mapping[PromptSection, str]] = {
    PromptSection.SYSTEM: "system texts of the recipe, the step and the engine",
    PromptSection.CONTEXT: "what several steps read: `context` of the recipe and of templates",
    PromptSection.EXAMPLES: "examples of the step, as earlier turns; at most, where a run chooses",
    PromptSection.GOAL: "goals and messages of the recipe and the step",
    PromptSection.OUTPUTS: "data within a border: outputs under `depends_on`, an analysis' input",
    PromptSection.SCHEMA: "the declared output, in words and as the server binds it",
    PromptSection.TOOLS: "the tools that the model may call",
    PromptSection.HISTORY: "what was said before: answers, tool results, earlier steps and turns",
}


_SECTION_NAMES: Final = {section: section.value for section in PromptSection}
_SECTIONS: Final = tuple(_SECTION_NAMES.values())
_HISTORY: Final = PromptSection.HISTORY.value


class PromptPart(Struct, frozen=True):
    """A text of a prompt."""

    section: PromptSection
    text: str


def section_tokens(parts: Iterable[PromptPart]) -> dict[str, int]:
    """The estimated tokens of each section that is there; they add up to the whole prompt."""
    characters = dict.fromkeys(PromptSection, 0)
    for part in parts:
        characters[part.section] += len(part.text)
    weights = {section.value: count for section, count in characters.items() if count}
    return apportioned(-(-sum(weights.values()) // CHARACTERS_PER_TOKEN), weights)


def apportioned(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """The total divided by the weights into whole numbers that add up to it."""
    whole = 0
    for name in weights:
        whole += weights[name]
    if not whole:
        return {}
    parts: dict[str, int] = {}
    reached = before = 0
    for name in weights:
        reached += weights[name]
        end = total * reached // whole
        parts[name] = end - before
        before = end
    return parts


def section_words(sections: Mapping[str, int]) -> str:
    """`412 tokens: goal 300, schema 112`, the largest first."""
    ranked = sorted(sections.items(), key=lambda each: -each[1])
    listed = ", ".join(f"{name} {count}" for name, count in ranked)
    return f"{sum(sections.values())} tokens: {listed}"


# --- the parts of a prompt -------------------------------------------------------------------


_OPENING: Final = re.compile(r"<(data-[0-9a-f]{8,64})(?: [^<>\n]*)?>\n")
_CLOSING: Final = re.compile(r"\n</(data-[0-9a-f]{8,64})>")


def parts_of_call(call: ModelCall) -> Iterator[PromptPart]:
    """The texts of the prompt that a call sent."""
    return prompt_parts(call.prompt, call.layout)


def prompt_parts(prompt: Prompt, layout: PromptLayout) -> Iterator[PromptPart]:
    """The texts of a prompt, in no particular order of sections."""
    described = _descriptions(prompt.instructions)
    for at, message in enumerate(prompt.messages):
        if at >= layout.opening:
            yield PromptPart(PromptSection.HISTORY, message_text(message))
        else:
            yield from _parts_before(message, layout.history, described)
    yield from _bound_parts(prompt)
    yield from tool_parts(prompt.tools)


def prompt_characters(prompt: Prompt) -> int:
    """The characters of all texts of a prompt, whatever sections they belong to."""
    said = prompt.messages.characters
    sent_with = (*_bound_parts(prompt), *tool_parts(prompt.tools))
    return said + sum([len(part.text) for part in sent_with])


def tokens_of_call(call: ModelCall) -> dict[str, int]:
    """`section_tokens` of the prompt that a call sent; what later prompts of the step share with it
    is counted once.
    """
    prompt, layout = call.prompt, call.layout
    messages = prompt.messages
    opening, memo = messages[: layout.opening], layout.memo
    # Equal parts are those of the prompt before as a rule.
    if "opening" not in memo or memo["opening"][0] != opening:
        described = _descriptions(prompt.instructions) if prompt.instructions is not None else ()
        parts = list[PromptPart]()
        for message in opening:
            parts += _parts_before(message, layout.history, described)
        memo["opening"] = (opening, _weights(parts))
    counted, tools, bound = memo["opening"][1], _NO_WEIGHTS, _NO_WEIGHTS
    if prompt.tools:
        if "tools" not in memo or memo["tools"][0] != prompt.tools:
            memo["tools"] = (prompt.tools, _weights(tool_parts(prompt.tools)))
        tools = memo["tools"][1]
    if prompt.output_request is not None:
        bound = _weights(_bound_parts(prompt))
    said = messages.characters
    for section in counted:
        said -= counted[section]
    weights: dict[str, int] = {}
    whole = 0
    for section in _SECTIONS:
        count = said if section == _HISTORY else 0
        for each in (counted, tools, bound):
            if section in each:
                count += each[section]
        if count:
            weights[section] = count
            whole += count
    return apportioned(-(-whole // CHARACTERS_PER_TOKEN), weights)


_NO_WEIGHTS: Final[Mapping[str, int]] = {}


def _weights(parts: Iterable[PromptPart]) -> Mapping[str, int]:
    weights: dict[str, int] = {}
    for part in parts:
        section = _SECTION_NAMES[part.section]
        length = len(part.text)
        weights[section] = weights[section] + length if section in weights else length
    return weights


def schema_parts(output: OutputInstructions[object] | None, *, is_bound: bool) -> list[PromptPart]:
    """A declared output in words and, where the server binds it, as schema."""
    if output is None:
        return []
    texts = [output_words(output), *([schema_text(output)] if is_bound else [])]
    return [PromptPart(PromptSection.SCHEMA, text) for text in texts]


def tool_parts(tools: Iterable[ToolSpec]) -> list[PromptPart]:
    """The tools as they are sent."""
    return [PromptPart(PromptSection.TOOLS, tool_text(tool)) for tool in tools]


def tool_characters(tools: Iterable[ToolSpec]) -> int:
    """The characters of the tools as they are sent."""
    return sum([len(tool_text(tool)) for tool in tools])


_TOOL_TEXTS: Final[dict[int, tuple[weakref.ref[ToolSpec], str]]] = {}
"""Texts of living specs, by identity: every call counts the tokens of the same few tools."""


def tool_text(tool: ToolSpec) -> str:
    """The tool as it is sent."""
    key = id(tool)
    known = _TOOL_TEXTS.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    text = dumps(tool.to_message_dict())
    _TOOL_TEXTS[key] = (weakref.ref(tool, lambda _: _TOOL_TEXTS.pop(key, None)), text)
    return text


def _descriptions(output: OutputInstructions[object] | None) -> tuple[str, ...]:
    if output is None:
        return ()
    if "words" not in output.texts:
        output.texts["words"] = output_words(output)
        output.texts["older"] = older_output_words(output)
    return output.texts["words"], output.texts["older"]


def schema_text(output: OutputInstructions[object]) -> str:
    """The schema of a declared output as it is sent."""
    if "schema" not in output.texts:
        output.texts["schema"] = dumps(output.json_schema())
    return output.texts["schema"]


def _parts_before(
    message: Message, history: frozenset[Message], described: tuple[str, ...]
) -> list[PromptPart]:
    text = (message.content or "") if not message.tool_calls else message_text(message)
    if message.role is MessageRole.SYSTEM and is_border_words(message):
        return [PromptPart(PromptSection.OUTPUTS, text)]
    if history and message in history:
        return [PromptPart(PromptSection.HISTORY, text)]
    if message.role is MessageRole.SYSTEM:
        section = PromptSection.SCHEMA if text in described else PromptSection.SYSTEM
        return [PromptPart(section, text)]
    if message.is_example:
        return [PromptPart(PromptSection.EXAMPLES, text)]
    if message.is_context:
        return [PromptPart(PromptSection.CONTEXT, text)]
    if text in described:
        return [PromptPart(PromptSection.SCHEMA, text)]
    data = _data_in(text) if "\n</data-" in text else None
    if data is None:
        return [PromptPart(PromptSection.GOAL, text)]
    rest = text[: data.start] + text[data.stop :]
    return [PromptPart(PromptSection.OUTPUTS, text[data]), PromptPart(PromptSection.GOAL, rest)]


def _data_in(text: str) -> slice | None:
    """The first data with their border, up to its last end; None: there are none.

    The text may be a stranger's: it is read once, not once for each beginning of a border.
    """
    ends = {found[1]: found for found in _CLOSING.finditer(text)}
    for opening in _OPENING.finditer(text):
        end = ends.get(opening[1])
        if end is not None and end.start() >= opening.end():
            return slice(opening.start(), end.end())
    return None


def _bound_parts(prompt: Prompt) -> Iterator[PromptPart]:
    request = prompt.output_request
    if request is None:
        return
    for message in request.messages:
        yield PromptPart(PromptSection.SCHEMA, message_text(message))
    is_bound = request.mode in (OutputMode.JSON_SCHEMA, OutputMode.TOOLS)
    if is_bound and prompt.instructions is not None:
        yield PromptPart(PromptSection.SCHEMA, schema_text(prompt.instructions))


def message_text(message: Message) -> str:
    """All that a message says: its text, and its calls with their arguments."""
    if not message.tool_calls:
        return message.content or ""
    calls = "".join(f"{call.name}{call.arguments}" for call in message.tool_calls)
    return f"{message.content or ''}{calls}"
