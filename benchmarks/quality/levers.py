"""What each lever for weak models adds: the same questions with one of them, with none, with all.

A lever is a place of the engine, which is replaced by what would stand there without it as long as
the questions are asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from attrs import frozen

from minions.adapters.models import strict_schema
from minions.contracts.instructions import OutputInstructions
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.engine.calls import cut_answers, tool_choices
from minions.engine.step import model_work
from minions.engine.step.model_answers import ModelAnswers


@frozen(kw_only=True)
class Lever:
    """One of them."""

    name: str
    owner: object
    """The module or class where it stands."""
    attribute: str
    without: object
    """What takes its place."""


def _whole_texts(tools: Sequence[ToolSpec], _: Sequence[str]) -> str:
    listed = "\n".join(
        f"- {each.name}: {each.description} {json.dumps(each.parameters)}" for each in tools
    )
    return f"Which tool answers the question?\n{listed}\n- none: no tool is about it"


_FORM: Final = tool_choices.form_of_choice


def _names_alone(names: Sequence[str]) -> OutputInstructions[object]:
    return _FORM([each for each in names if each != tool_choices.NO_TOOL])


def _as_declared(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return dict(schema)


def _nothing(*_: object) -> None:
    return None


def _no_words(_: OutputInstructions[object]) -> str:
    return ""


_BOUNDS: Final = Lever(
    name="bounds of lists, and of texts in them",
    owner=strict_schema,
    attribute="bounded_schema",
    without=_as_declared,
)
LEVERS: Final[Mapping[str, Sequence[Lever]]] = {
    "calls": (
        Lever(
            name="two bound questions instead of `tools=`",
            owner=ModelAnswers,
            attribute="_tool_choice",
            without=_nothing,
        ),
        Lever(
            name="`none` as an answer",
            owner=tool_choices,
            attribute="form_of_choice",
            without=_names_alone,
        ),
        Lever(
            name="first sentences instead of schemas for the choice",
            owner=tool_choices,
            attribute="_choice_words",
            without=_whole_texts,
        ),
        _BOUNDS,
    ),
    "fields": (
        _BOUNDS,
        Lever(
            name="cut answers closed and completed",
            owner=cut_answers,
            attribute="closed_answer",
            without=_nothing,
        ),
        Lever(
            name="words about the form beside the schema",
            owner=model_work,
            attribute="output_words",
            without=_no_words,
        ),
    ),
}
"""By part. The first one of `calls` is what the others act on: it stands with each of them."""


def ways(part: str) -> Iterator[tuple[str, Sequence[Lever]]]:
    """The rows of a part's table: their names, and the levers that stand in them."""
    levers = LEVERS[part]
    needed = levers[:1] if part == "calls" else ()
    yield "none", ()
    for each in levers:
        beside = [other for other in needed if other is not each]
        yield each.name if not beside else f"the first, and {each.name}", [*beside, each]
    yield "all", levers


@contextmanager
def only(part: str, standing: Sequence[Lever]) -> Iterator[None]:
    """Replace the levers of the part, but for these, as long as the block runs."""
    with ExitStack() as stack:
        for each in LEVERS[part]:
            if each not in standing:
                stack.enter_context(mock.patch.object(each.owner, each.attribute, each.without))
        yield
