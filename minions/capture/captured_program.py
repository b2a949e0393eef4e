"""A program: the steps, inputs and output of a recipe before it is written, with their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from minions.capture.alignment import LeftOut
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

OUTPUT: Final = "output"
"""The place of the run's output in evidence and questions."""


@frozen(kw_only=True)
class Evidence:
    """Where one value of the recipe comes from, and why."""

    place: str
    """`send_mail.body`, or `output`."""
    how: str
    """`constant`, `input`, `path`, `judgement` and so on."""
    source: str
    """The expression, or the constant as JSON."""
    because: str
    """In words for people."""


@frozen(kw_only=True)
class Question:
    """A value that may have come from several places: one of them has to be chosen."""

    place: str
    value: JsonValue
    """As it was in the first trace."""
    choices: tuple[str, ...]
    """Templates, the proposed one first."""


@frozen(kw_only=True)
class InputMade:
    """An input that stands for words of the task."""

    name: str
    values: tuple[JsonValue, ...]
    """Its value in each trace."""
    description: str = ""
    schema: JsonSchema = field(factory=dict)
    is_answer: bool = False
    """Whether a person said it when the agent's recipe asked."""


@frozen(kw_only=True)
class LoopOver:
    """What a step is executed for each item of."""

    source: str
    """Template of the list."""
    by_effect: bool
    """Whether its calls have an effect, so that they are made one after another."""


@frozen(kw_only=True)
class ToolNode:
    """A step that makes one call, or one for each item of a list."""

    id: str
    tool: str
    params: Mapping[str, JsonValue]
    loop: LoopOver | None = None
    when: str | None = None
    until: str | None = None
    """A condition over `loop.last`: the call is repeated while it holds."""
    polls: int = 0
    """The most calls of one trace, with `until`."""
    is_paged: bool = False
    """Whether all results together are its output: they are pages of one list."""
    attempts: int = 1
    results: tuple[JsonValue, ...] = ()
    """What it gave, in every trace and iteration."""


@frozen(kw_only=True)
class JudgedField:
    """One value that a model gives."""

    name: str
    schema: JsonSchema
    place: str


@frozen(kw_only=True)
class JudgedNode:
    """A step in which a model gives what no expression gives."""

    id: str
    fields: tuple[JudgedField, ...]
    what_for: str
    """The tool whose arguments they are, or `output`."""
    reads: tuple[str, ...]
    """Names of the steps whose outputs it is shown; `item` is that of its loop."""
    loop: LoopOver | None = None
    when: str | None = None
    answers: tuple[tuple[JsonValue, ...], ...] = ()
    """By trace: what the model gave, for each iteration an object of the fields, or a text."""
    is_text: bool = False
    """Whether the answer is one text."""
    is_way: bool = False
    """Whether it says if the tool is to be called at all."""


@frozen(kw_only=True)
class Program:
    """A recipe before it is written."""

    inputs: tuple[InputMade, ...]
    steps: tuple[ToolNode | JudgedNode, ...]
    output: JsonValue
    """A template."""
    evidence: tuple[Evidence, ...]
    questions: tuple[Question, ...]
    left_out: tuple[LeftOut, ...]
    problems: tuple[str, ...] = ()
    """Why the recipe cannot be what was wanted, in words for people."""
    decisive: frozenset[str] = frozenset()
    """Names of fields whose values decide which way is taken."""
