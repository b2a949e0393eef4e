"""What the steps of a recipe from a file or text have in common.

Also their texts with borders around untrusted values, and what a step of code may offer: a
fingerprint of what it would do, or knowing its recorded work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import evolve
from msgspec import Struct

from minions.contracts.context import RunContext
from minions.contracts.instructions import T_co
from minions.contracts.messages import (
    CONTEXT,
    EXAMPLE,
    NEAR_EXAMPLE,
    Message,
    MessageRole,
    ToolCallRequest,
    border_in,
    border_words,
    user,
)
from minions.contracts.retry_config import RetryConfig
from minions.contracts.steps import Step
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.prompt_sections import PromptPart, PromptSection
from minions.recipe.examples import CHARACTERS_PER_TOKEN, Example, ExampleStepSpec
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.terms import Term
from minions.recipe.expressions.values import Reference
from minions.recipe.model import OnError, StepSpec

if TYPE_CHECKING:
    from minions.engine.compile.nearest_examples import NearestExamples
    from minions.engine.history.step_rows import StepRows

_MOST_SHOWN: Final = 4_000
"""How many characters of an output a prompt shows."""


class WrittenStep(FieldsRepr, Step[T_co]):
    """A step that was made of a spec: everything that all kinds take from it."""

    id: str
    spec: StepSpec

    @property
    def templates(self) -> Sequence[Template]:
        """The templates that the step renders; none here."""
        return ()

    @property
    def references(self) -> Sequence[Reference]:
        """The values that its templates read."""
        return [each for template in self.templates for each in template.references]

    @property
    def caches(self) -> bool:
        """Whether it says `cache: true` and has no effect but its output."""
        return self.spec.cache and not self.shares_conversation

    @property
    def asks_model(self) -> bool:
        """Whether a model is certainly asked when the step runs."""
        return self.spec.asks_model

    @property
    def description(self) -> str:
        """The `description` in the recipe."""
        return self.spec.description

    @property
    def is_optional(self) -> bool:
        """Whether the run continues after its failure: `optional`, or `on_error: continue`."""
        spec = self.spec
        return spec.optional or spec.on_error.action is OnError.CONTINUE

    @property
    def retry(self) -> RetryConfig | None:
        """The `retry` in the recipe; None: as the run."""
        return self.spec.retry

    @property
    def decision_tool(self) -> ToolCallRequest | None:
        """The call of the decision tool, with templates; `filled_decision` renders them."""
        decision = self.spec.decision_tool
        if decision is None:
            return None
        return ToolCallRequest(
            id="decide", name=decision.tool, arguments=dumps(dict(decision.params))
        )

    def filled_decision(
        self, values: Mapping[str, JsonValue], compiled: Templates
    ) -> ToolCallRequest | None:
        """The call that chooses the next step, with the values of this execution filled in.

        Args:
            compiled: Compiles the texts of the recipe.
        Raises:
            MissingValueError: A template reads a value that does not exist.
        """
        request, decision = self.decision_tool, self.spec.decision_tool
        if request is None or decision is None:
            return None
        params = compiled.compile(dict(decision.params)).render(values)
        return evolve(request, arguments=dumps(params))

    def older_messages(self, view: RunContext) -> Sequence[Message]:
        """As `messages`, in the words of runs that were recorded before outputs had a border."""
        return self.messages(view)

    def unmarked_messages(self, view: RunContext) -> Sequence[Message]:
        """As `messages`, in the words of runs that were recorded before untrusted values had a
        border.
        """
        return self.messages(view)

    @property
    def metadata(self) -> Mapping[str, object]:
        """Metadata and limits of the step in one mapping, as executors read them."""
        spec = self.spec
        times = {"timeout_s": spec.timeout_s} if spec.timeout_s is not None else {}
        return {**spec.metadata, **spec.limits, **times}


def step_named(reference: Reference, saved: Mapping[str, str]) -> str:
    """The id of the step that a reference reads; `saved` maps `save_as` names to step ids."""
    path = reference.path
    root = str(path[1]) if path[0] == "steps" and len(path) > 1 else str(path[0])
    return saved.get(root, root)


def as_text(value: JsonValue) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def bounded(text: str) -> str:
    """The beginning of a long text, with the number of characters left out."""
    left_out = len(text) - _MOST_SHOWN
    if left_out <= 0:
        return text
    return f"{text[:_MOST_SHOWN]}\n… ({left_out} more characters left out)"


def feedback_in(values: Mapping[str, JsonValue]) -> JsonValue:
    """The failure that led back to a step, among the values of a run; None: there is none."""
    if type(values) is ChainMap:  # of a loop's item, over those of the run
        values = values.maps[-1]
    return values.get("feedback")


def feedback_of(view: RunContext, step: WrittenStep[object]) -> Mapping[str, JsonValue] | None:
    """The failure that led back to this step; None: there is none, or a template of the step reads
    `feedback`.
    """
    feedback = feedback_in(view.values)
    if not isinstance(feedback, Mapping) or feedback.get("to") != step.id:
        return None
    references = (each for part in step.templates for each in part.references)
    return None if any(each.path[0] == "feedback" for each in references) else feedback


def feedback_messages(view: RunContext, step: WrittenStep[object]) -> list[Message]:
    """The failure that led back to this step, as the recipe's own words."""
    feedback = feedback_of(view, step)
    if feedback is None:
        return []
    return [
        user(
            f"An earlier answer of yours was not good enough: step '{feedback['step']}', which "
            f"came after it, failed: {feedback['message']}\nDo it again, and do better."
        )
    ]


def with_examples(
    spec: ExampleStepSpec,
    messages: Sequence[Message],
    recorded: Iterable[tuple[str, JsonValue]],
    near: Iterable[Example] | None = None,
) -> list[Message]:
    """The messages with the examples of the step as turns behind the system texts.

    Args:
        recorded: Those of recorded runs, where the step takes them.
        near: Those that were chosen for this question. They stand right before it, behind all that
            is equal for other questions; None: all questions have the same examples.
    """
    if near is not None:
        roles = [each.role for each in messages]
        at = roles.index(MessageRole.GOAL)
        return [*messages[:at], *_example_messages(near, NEAR_EXAMPLE), *messages[at:]]
    examples: Iterable[Example] = spec.examples
    if spec.recorded_examples is not None:
        examples = starmap(Example, recorded)
    first = [each for each in messages if each.role is MessageRole.SYSTEM or each.is_context]
    others = [
        each for each in messages if each.role is not MessageRole.SYSTEM and not each.is_context
    ]
    return [*first, *_example_messages(examples), *others]


def nearest_examples_of(spec: ExampleStepSpec, compiled: Templates) -> NearestExamples | None:
    """What chooses the step's examples for each question; None: they are the same for all."""
    if spec.nearest is None:
        return None
    from minions.engine.compile.nearest_examples import NearestExamples

    return NearestExamples(spec, spec.nearest, compiled)


def choose_near_examples(
    spec: ExampleStepSpec,
    chooser: NearestExamples | None,
    values: Mapping[str, JsonValue],
    recorded: Sequence[tuple[str, JsonValue]],
) -> Sequence[Example] | None:
    """The examples for the question with these values; None: they are the same for all.

    Args:
        recorded: Questions and answers of recorded runs, pinned for this run.
    Raises:
        MissingValueError, EvaluationError: The question reads a value that does not exist, or is of
            the wrong type.
    """
    if chooser is None:
        return None
    pinned = None if spec.recorded_examples is None else tuple(starmap(Example, recorded))
    return chooser.choose(values, pinned)


def _example_messages(examples: Iterable[Example], name: str = EXAMPLE) -> Iterator[Message]:
    """Each example as a question of the user and the model's answer; no server gets their names."""
    for each in examples:
        yield Message(role=MessageRole.USER, content=each.question, name=name)
        yield Message(role=MessageRole.ASSISTANT, content=as_text(each.answer), name=name)


def example_parts(spec: ExampleStepSpec) -> Iterator[PromptPart]:
    """What the examples add to a prompt; the most that they may add, where they are known when a
    run starts or chosen for each question.
    """
    if spec.nearest is not None and spec.recorded_examples is None:
        longest = sorted((each.size for each in spec.examples), reverse=True)[: spec.nearest.most]
        room = spec.nearest.max_tokens * CHARACTERS_PER_TOKEN
        yield PromptPart(PromptSection.EXAMPLES, " " * min(room, sum(longest)))
        return
    for message in _example_messages(spec.examples):
        yield PromptPart(PromptSection.EXAMPLES, message.content or "")
    if spec.recorded_examples is not None:  # which they are is known when a run starts
        yield PromptPart(
            PromptSection.EXAMPLES, " " * spec.recorded_examples.max_tokens * CHARACTERS_PER_TOKEN
        )


class Replayable(ABC):
    """A Python step that can say whether it would repeat its recorded work, without doing it."""

    @abstractmethod
    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the step would do now what `recorded` says it did."""


class RecordedInParts:
    """A Python step whose calls are recorded one by one: if it is run again, they are replayed."""


class Fingerprint(Struct, frozen=True, kw_only=True):
    """Everything that the output of a step depends on, as far as the step itself knows."""

    asked: JsonValue
    """The messages, calls or values that the step would use now."""
    tools: Sequence[str] = ()
    """Names of tools that may be called for the step."""
    has_folder: bool = True
    """Whether the output depends on the current folder."""
    asks_model: bool = True


class CacheableStep(ABC):
    """A Python step whose output can be cached."""

    @abstractmethod
    def fingerprint(self, view: RunContext) -> Fingerprint:
        """What the step would do now, without doing it.

        Raises:
            MinionsError: The step cannot know it.
        """


IsUntrusted: TypeAlias = Callable[[Term], bool]
"""Whether the value of an expression may hold text that a stranger wrote."""


class StepText(Struct, frozen=True):
    """A message of a step."""

    role: MessageRole
    template: Template
    name: str | None = None
    """`CONTEXT` where several steps read it; None as a rule."""

    def message(self, text: str) -> Message:
        """The message with its values filled in."""
        return Message(role=self.role, content=text, name=self.name)


def plain_texts(texts: Sequence[StepText], values: Mapping[str, JsonValue]) -> list[Message]:
    """The messages with values as the templates write them."""
    return [each.message(as_text(each.template.render(values))) for each in texts]


class MarkedTexts(Struct, frozen=True, kw_only=True):
    """The messages of a step, and the border around untrusted values in them."""

    messages: list[Message]
    border: str | None
    """The name of the border; None: no value is untrusted."""

    @classmethod
    def of(
        cls,
        texts: Sequence[StepText],
        values: Mapping[str, JsonValue],
        is_untrusted: IsUntrusted,
        seed: str,
        more: Sequence[str] = (),
    ) -> MarkedTexts:
        """Render the texts.

        Args:
            seed: As for `border_of`.
            more: Further texts of the prompt, which the border must not occur in.
        """
        from minions.engine.compile.borders import border_of, within

        if not any(is_untrusted(term) for each in texts for term in each.template.terms()):
            return cls(messages=plain_texts(texts, values), border=None)
        marks = _Marks(is_untrusted)
        for each in texts:  # first with no border, to learn all texts
            marks.text(each.role, each.template, values)
        marks.border = border_of(seed, [*marks.seen, *more])
        marks.moved.clear()
        messages = [each.message(marks.text(each.role, each.template, values)) for each in texts]
        data = [user(within(marks.border, each)) for each in marks.moved]
        first = sum(each.role is MessageRole.SYSTEM or each.name == CONTEXT for each in texts)
        return cls(messages=[*messages[:first], *data, *messages[first:]], border=marks.border)


class _Marks:
    """Writes untrusted values within the border, and keeps those of system texts for later."""

    def __init__(self, is_untrusted: IsUntrusted) -> None:
        self._is_untrusted = is_untrusted
        self.border = "data"
        self.seen: list[str] = []
        self.moved: list[str] = []
        """Values that a system text reads: they follow in a message of their own."""

    def text(self, role: MessageRole, template: Template, values: Mapping[str, JsonValue]) -> str:
        from minions.engine.compile.borders import as_text_data, within

        is_system = role is MessageRole.SYSTEM

        def mark(term: Term, value: JsonValue) -> str:
            if not isinstance(value, str | list | tuple | Mapping) or not self._is_untrusted(term):
                return as_text(value)
            data = as_text_data(value)
            self.seen.append(data)
            if is_system:
                self.moved.append(data)
                return f"(the text in <{self.border}> tags, number {len(self.moved)})"
            is_line = "\n" not in data
            return (
                f"<{self.border}>{data}</{self.border}>" if is_line else within(self.border, data)
            )

        text = template.marked(values, mark)
        self.seen.append(text)
        return text


def feedback_data(view: RunContext, step: WrittenStep[object]) -> list[str]:
    """The failure as a prompt shows it within its border; empty: nothing led back."""
    from minions.engine.compile.borders import as_text_data

    feedback = feedback_of(view, step)
    return [] if feedback is None else [as_text_data(feedback["message"])]


def with_marked_feedback(
    messages: Sequence[Message], view: RunContext, step: WrittenStep[object]
) -> list[Message]:
    """The messages, then the failure that led back to the step.

    Args:
        messages: If they have a border, it is none that `feedback_data` holds.
    """
    from minions.engine.compile.borders import as_text_data, border_of, within

    feedback = feedback_of(view, step)
    if feedback is None:
        return [*messages]
    data = as_text_data(feedback["message"])
    known = border_in(messages)
    border = known or border_of(view.border_seed, [*(m.content or "" for m in messages), data])
    told = user(
        f"An earlier answer of yours was not good enough: step '{feedback['step']}', which came "
        f"after it, failed:\n{within(border, data)}\nDo it again, and do better."
    )
    return [*([] if known else [border_words(border)]), *messages, told]
