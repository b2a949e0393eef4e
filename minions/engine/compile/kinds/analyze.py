"""`analyze:` steps: one model call about data, in a new conversation, with a declared output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from minions.contracts.completion import CompletionCriteria
from minions.contracts.context import RunContext
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import Message, MessageRole, border_words, system
from minions.contracts.steps import Step
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.borders import as_text_data, border_of, within
from minions.engine.compile.kinds.compiler import BuildParts, Planner, PromptUse, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.prompt_sections import PromptPart, PromptSection
from minions.engine.compile.recipe_step import (
    IsUntrusted,
    MarkedTexts,
    StepText,
    WrittenStep,
    as_text,
    choose_near_examples,
    example_parts,
    feedback_data,
    feedback_messages,
    nearest_examples_of,
    with_examples,
    with_marked_feedback,
)
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.analyze_kind import AnalyzeSpec

if TYPE_CHECKING:
    from minions.engine.compile.nearest_examples import NearestExamples

_ANALYST: Final = (
    "You answer one question about data. Use only what is given here, and invent nothing: where "
    "the input is empty, so is what was found in it."
)


@frozen(kw_only=True)
class AnalyzeStep(WrittenStep[object], Step[object]):
    """An `analyze:` step: one model call in a new conversation, with a declared output."""

    id: str
    spec: AnalyzeSpec
    task: Template
    context: Template | None
    input: Template | None
    completion_criteria: CompletionCriteria
    output: OutputInstructions[object] | None
    is_untrusted: IsUntrusted
    marks_feedback: bool
    """Whether the failure that led back to it may hold untrusted text."""
    near_examples: NearestExamples | None = field(eq=False, default=None)
    """Chooses its examples for each question; None: they are the same for all."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of context, task and input, as far as the step has them."""
        return [part for part in (self.context, self.task, self.input) if part is not None]

    def messages(self, view: RunContext) -> Sequence[Message]:
        """Context, task and input in one message.

        Raises:
            MissingValueError: A template reads a value that does not exist.
        """
        data = [] if self.input is None else [as_text_data(self.input.render(view.values))]
        told = feedback_data(view, self) if self.marks_feedback else []
        seed = view.border_seed
        texts = MarkedTexts.of(self._texts, view.values, self.is_untrusted, seed, [*data, *told])
        said = [each.content or "" for each in texts.messages]
        if not self.marks_feedback:
            return self._messages(view, said, texts.border)
        return with_marked_feedback(
            self._question_messages(view, said, texts.border, told), view, self
        )

    def unmarked_messages(self, view: RunContext) -> Sequence[Message]:
        """With values of context and task as they are."""
        texts = [as_text(each.template.render(view.values)) for each in self._texts]
        return self._messages(view, texts, None)

    def _messages(
        self, view: RunContext, texts: Sequence[str], border: str | None
    ) -> Sequence[Message]:
        return [*self._question_messages(view, texts, border), *feedback_messages(view, self)]

    def _question_messages(
        self,
        view: RunContext,
        texts: Sequence[str],
        border: str | None,
        told: Sequence[str] = (),
    ) -> Sequence[Message]:
        parts = self._title_texts(texts)
        if self.input is not None:
            data = as_text_data(self.input.render(view.values))
            border = border or border_of(view.border_seed, [*parts, data, *told])
            parts.append(f"Input:\n{within(border, data)}")
        head = [system(_ANALYST), *([border_words(border)] if border is not None else [])]
        question = Message(role=MessageRole.GOAL, content="\n\n".join(parts))
        recorded = () if self.spec.recorded_examples is None else view.recorded_examples
        near = choose_near_examples(self.spec, self.near_examples, view.values, recorded)
        return with_examples(self.spec, [*head, question], recorded, near)

    def older_messages(self, view: RunContext) -> Sequence[Message]:
        """With the input as JSON without a border."""
        parts = self._parts(view)
        if self.input is not None:
            parts.append(f"Input, as JSON:\n{dumps(self.input.render(view.values))}")
        question = Message(role=MessageRole.GOAL, content="\n\n".join(parts))
        return [system(_ANALYST), question, *feedback_messages(view, self)]

    @property
    def _texts(self) -> Sequence[StepText]:
        """Context and task, as far as the step has them."""
        texts = (self.context, self.task)
        return [StepText(MessageRole.GOAL, text) for text in texts if text is not None]

    def _parts(self, view: RunContext) -> list[str]:
        """Context and task."""
        return self._title_texts(
            [as_text(each.template.render(view.values)) for each in self._texts]
        )

    def _title_texts(self, texts: Sequence[str]) -> list[str]:
        *context, task = texts
        return [*(f"Context:\n{text.strip()}" for text in context), f"Task:\n{task}"]


class _AnalyzeCompiler(StepCompiler[AnalyzeSpec]):
    def build(self, spec: AnalyzeSpec, parts: BuildParts) -> AnalyzeStep:
        mode = CompletionMode.TEXT if spec.output is None else CompletionMode.STRUCTURED
        return AnalyzeStep(
            id=spec.id,
            spec=spec,
            task=parts.templates.compile(spec.task),
            context=parts.templates.compile(spec.context) if spec.context is not None else None,
            input=parts.templates.compile(spec.input) if spec.has_input else None,
            completion_criteria=CompletionCriteria(mode=mode),
            output=OutputInstructions(schema=spec.output, name=spec.id) if spec.output else None,
            is_untrusted=partial(parts.untrusted.is_in, spec),
            marks_feedback=bool(parts.untrusted),
            near_examples=nearest_examples_of(spec, parts.templates),
        )

    def plan(self, spec: AnalyzeSpec, step: Step[object], planner: Planner) -> PlannedStep:
        shown: dict[str, JsonValue] = {"task": planner.shown(spec.task)}
        if spec.has_input:
            shown["input"] = planner.shown(spec.input)
        target = planner.model(spec.model)
        use = PromptUse(output=step.output, model=spec.model)
        return PlannedStep(
            step_id=spec.id,
            kind="analysis",
            target=target,
            shown=shown,
            prompt=planner.prompt(list(_own_parts(spec, planner)), use),
        )


def _own_parts(spec: AnalyzeSpec, planner: Planner) -> Iterator[PromptPart]:
    yield PromptPart(PromptSection.SYSTEM, _ANALYST)
    yield from example_parts(spec)
    context = [f"Context:\n{as_text(planner.shown(spec.context)).strip()}"] if spec.context else []
    asked = [*context, f"Task:\n{as_text(planner.shown(spec.task))}"]
    if spec.has_input:
        data, border = as_text_data(planner.shown(spec.input)), border_of("", [])
        yield PromptPart(PromptSection.OUTPUTS, border_words(border).content or "")
        yield PromptPart(PromptSection.OUTPUTS, within(border, data))
        asked.append("Input:\n")
    yield PromptPart(PromptSection.GOAL, "\n\n".join(asked))


COMPILER: Final = _AnalyzeCompiler()
