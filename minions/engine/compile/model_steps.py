"""Steps of a recipe that put a question to a model: `goal` and `analyze`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.calls import OutputInstructions
from minions.contracts.completion import CompletionCriteria, CompletionLink, StepCompletionChain
from minions.contracts.context import RunContext
from minions.contracts.errors import (
    UsageError,
    near_names,
)
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.messages import Message, MessageRole, system, user
from minions.contracts.steps import Step
from minions.contracts.tools import Toolbox
from minions.contracts.verdicts import CompletionMode
from minions.engine.compile.completion import DefaultStepCompletionChain
from minions.engine.compile.recipe_step import WrittenStep, as_text, bounded, step_named
from minions.recipe.expressions.template import (
    Template,
    compile_template,
)
from minions.recipe.kinds.analyze import AnalyzeSpec
from minions.recipe.kinds.goal import GoalSpec

__all__ = ["AnalyzeStep", "GoalStep", "analyze_step", "goal_step"]


@frozen(kw_only=True)
class GoalStep(WrittenStep, Step[object]):
    """A `goal:` step of a recipe."""

    id: str
    spec: GoalSpec
    texts: tuple[tuple[MessageRole, Template], ...]
    """Role and template of each message, in prompt order."""
    shown: tuple[str, ...]
    """Steps that the author wrote under `depends_on` and that no template of this step reads:
    their outputs stand at the end of the prompt."""
    available_tools: frozenset[str]
    completion_criteria: CompletionCriteria
    completion_chain: StepCompletionChain | None
    output: OutputInstructions[object] | None

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [template for _, template in self.texts]

    @property
    def tool_failure(self) -> str:
        """As written."""
        return self.spec.tool_failure

    @property
    def shares_conversation(self) -> bool:
        """As written: `memory`."""
        return self.spec.memory == "conversation"

    def messages(self, view: RunContext) -> Sequence[Message]:
        """Rendered with what is known now.

        Raises:
            MissingValueError: A template names a value that is not there.
        """
        messages = [
            Message(role=role, content=as_text(template.render(view.values)))
            for role, template in self.texts
        ]
        if results := _results(self.shown, view.values):
            messages.append(user(results))
        return [*messages, *feedback_messages(view, self)]


def goal_step(
    spec: GoalSpec,
    saved: Mapping[str, str],
    tools: Toolbox,
    links: Mapping[str, CompletionLink],
    read_by_control: Collection[str],
) -> GoalStep:
    """The step of that spec.

    Args:
        saved: `save_as` names to the ids of their steps.
        read_by_control: Steps whose output `when`, `loop` or `while` reads. A loop's items reach
            the prompt one by one; to show all of them in each would cost their square.
    Raises:
        UsageError: It names a tool or a link that is not there.
    """
    texts: list[tuple[MessageRole, Template]] = []
    if spec.system_prompt is not None:
        texts.append((MessageRole.SYSTEM, compile_template(spec.system_prompt)))
    texts += [
        (MessageRole(message.role), compile_template(message.content)) for message in spec.messages
    ]
    texts.append((MessageRole.GOAL, compile_template(spec.goal)))
    named = {step_named(ref, saved) for _, template in texts for ref in template.references}
    criteria = spec.completion or CompletionCriteria(
        mode=CompletionMode.STRUCTURED if spec.output is not None else CompletionMode.TEXT
    )
    return GoalStep(
        id=spec.id,
        spec=spec,
        texts=tuple(texts),
        shown=tuple(each for each in spec.declared if each not in {*named, *read_by_control}),
        available_tools=frozenset(_tool_names(spec, tools)),
        completion_criteria=criteria,
        completion_chain=_chain(spec, links),
        output=OutputInstructions(schema=spec.output, name=spec.id) if spec.output else None,
    )


def _tool_names(spec: GoalSpec, tools: Toolbox) -> Iterable[str]:
    """Names as they are; a toolset's prefix stands for all its tools."""
    for name in spec.tools:
        family = [other for other in tools.names if other.startswith(f"{name}__")]
        if family and name not in tools:
            yield from family
        else:
            yield tools.get(name).spec.name


def _chain(spec: GoalSpec, links: Mapping[str, CompletionLink]) -> StepCompletionChain | None:
    if not spec.completion_links:
        return None
    for name in spec.completion_links:
        if name not in links:
            raise UsageError(
                f"Step '{spec.id}' names the completion link '{name}', which is not registered. "
                f"Registered links: {', '.join(links) or 'none'}.",
                code="unknown-link",
                suggestions=near_names(name, links),
            )
    return DefaultStepCompletionChain().prepend(*(links[name] for name in spec.completion_links))


def _results(step_ids: Sequence[str], values: Mapping[str, JsonValue]) -> str:
    parts = [
        f"Result of step '{step_id}':\n{bounded(as_text(values[step_id]))}"
        for step_id in step_ids
        if step_id in values
    ]
    return "\n\n".join(parts)


def feedback_messages(view: RunContext, step: GoalStep | AnalyzeStep) -> list[Message]:
    """What went wrong, for the step that the run went back to, where no template says it."""
    feedback = view.values.get("feedback")
    if not isinstance(feedback, Mapping) or feedback.get("to") != step.id:
        return []
    if any(
        reference.path[0] == "feedback" for part in step.templates for reference in part.references
    ):
        return []
    return [
        user(
            f"An earlier answer of yours was not good enough: step '{feedback['step']}', which "
            f"came after it, failed: {feedback['message']}\nDo it again, and do better."
        )
    ]


# --- analyze --------------------------------------------------------------------------------------


_ANALYST: Final = (
    "You answer one question about data. Use only what is given here, and invent nothing: where "
    "the input is empty, so is what was found in it."
)


@frozen(kw_only=True)
class AnalyzeStep(WrittenStep, Step[object]):
    """An `analyze:` step of a recipe: one fresh call, its output declared."""

    id: str
    spec: AnalyzeSpec
    task: Template
    context: Template | None
    input: Template | None
    completion_criteria: CompletionCriteria
    output: OutputInstructions[object] | None

    @property
    def templates(self) -> Sequence[Template]:
        """All that it renders."""
        return [part for part in (self.context, self.task, self.input) if part is not None]

    def messages(self, view: RunContext) -> Sequence[Message]:
        """Context, task and input in one message.

        Raises:
            MissingValueError: A template names a value that is not there.
        """
        values = view.values
        parts = [f"Task:\n{as_text(self.task.render(values))}"]
        if self.context is not None:
            parts.insert(0, f"Context:\n{as_text(self.context.render(values)).strip()}")
        if self.input is not None:
            parts.append(f"Input, as JSON:\n{dumps(self.input.render(values))}")
        question = Message(role=MessageRole.GOAL, content="\n\n".join(parts))
        return [system(_ANALYST), question, *feedback_messages(view, self)]


def analyze_step(spec: AnalyzeSpec) -> AnalyzeStep:
    """The step of that spec."""
    mode = CompletionMode.TEXT if spec.output is None else CompletionMode.STRUCTURED
    return AnalyzeStep(
        id=spec.id,
        spec=spec,
        task=compile_template(spec.task),
        context=compile_template(spec.context) if spec.context is not None else None,
        input=compile_template(spec.input) if spec.has_input else None,
        completion_criteria=CompletionCriteria(mode=mode),
        output=OutputInstructions(schema=spec.output, name=spec.id) if spec.output else None,
    )
