"""Fills in tool parameters that templates leave open, by one focused question to the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import Message, border_words, system, user
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.engine.compile.borders import border_of_run, within, without_markers

_ITEMS_SHOWN: Final = 3
_MOST_SHOWN: Final = 4_000
"""How many characters of one value are shown."""
_ANYTHING: Final[JsonSchema] = {}
_WORDS: Final = (
    "You fill in the parameters of ONE tool call. Take values from the data given here; invent "
    'none. Answer with {"params": {…}} and nothing else.'
)


def extraction_question(
    *,
    step_description: str,
    tool_name: str,
    tool_params: JsonSchema,
    context_data: Mapping[str, JsonValue],
    missing: Iterable[str] | None = None,
    seed: str | None = None,
    takes_others: bool = True,
    shows_parameters: bool = False,
) -> tuple[tuple[Message, ...], OutputInstructions[JsonValue]]:
    """The messages to the model, and the form of its answer: `{"params": {name: value}}`.

    Args:
        tool_params: JSON Schema of the tool's arguments, an object.
        context_data: Known values, by name; long lists are shown by their first items.
        missing: Parameters that must be found; None: those that the schema requires.
        seed: Of the border around the values, the run's id; None: they have none.
        shows_parameters: As it was once asked: with the schema beside the form of the answer, which
            says the same.
        takes_others: Whether the answer may have parameters of the tool that are not `missing`.
    """
    wanted = list(_required_keys(tool_params) if missing is None else missing)
    known = "\n".join(f"{name}: {summarised(value)}" for name, value in context_data.items())
    parameters = f"Parameters: {dumps(tool_params)}\n" if shows_parameters else ""
    text = (
        f"Step: {step_description}\n"
        f"Tool: {tool_name}\n"
        f"{parameters}"
        f"To be found: {', '.join(wanted) or 'whatever fits'}\n"
        "Data:\n"
    )
    head = [system(_WORDS)]
    if seed is not None and known:
        known = without_markers(known)
        border = border_of_run(seed, [text, known])
        head.append(border_words(border))
        known = within(border, known)
    declared = tool_params.get("properties")
    params: JsonSchema = {
        **tool_params,
        "properties": {
            **dict.fromkeys(wanted, _ANYTHING),
            **{
                name: schema
                for name, schema in (declared.items() if isinstance(declared, Mapping) else ())
                if takes_others or name in wanted
            },
        },
        "required": wanted,
        "additionalProperties": False,
    }
    schema: JsonSchema = {
        "type": "object",
        "properties": {"params": params},
        "required": ["params"],
        "additionalProperties": False,
    }
    instructions = OutputInstructions[JsonValue](schema=schema, name="params")
    return (*head, user(f"{text}{known or '(none)'}")), instructions


def _required_keys(schema: JsonSchema) -> list[str]:
    names = schema.get("required")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def summarised(value: JsonValue) -> str:
    """JSON with at most three items of each list, and how many there are."""
    text = dumps(_shorten_value(value))
    left_out = len(text) - _MOST_SHOWN
    return text if left_out <= 0 else f"{text[:_MOST_SHOWN]} … ({left_out} more characters)"


def _shorten_value(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {name: _shorten_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        shown = [_shorten_value(item) for item in value[:_ITEMS_SHOWN]]
        more = len(value) - _ITEMS_SHOWN
        return [*shown, f"… and {more} more, {len(value)} in all"] if more > 0 else shown
    return value
