"""`goal:` steps: a model loop with tools and a declared output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import Factory, evolve, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.completion import CompletionCriteria, CompletionLink, StepCompletionChain
from minions.contracts.context import RunContext
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import HistoryWindow, OutputInstructions
from minions.contracts.messages import CONTEXT, Message, MessageRole, border_words, user
from minions.contracts.steps import Step, ToolSearch
from minions.data.errors import UsageError, near_names
from minions.data.schema import SchemaValidator
from minions.engine.compile.completion_links import (
    ArtifactsLink,
    DefaultStepCompletionChain,
    ToolOutcomeLink,
)
from minions.engine.compile.kinds.compiler import (
    BuildParts,
    Planner,
    PromptUse,
    StepCompiler,
    tool_names,
)
from minions.engine.compile.prompt_sections import PromptPart, PromptSection
from minions.engine.compile.recipe_step import (
    IsUntrusted,
    MarkedTexts,
    StepText,
    WrittenStep,
    as_text,
    bounded,
    choose_near_examples,
    example_parts,
    feedback_data,
    feedback_in,
    feedback_messages,
    nearest_examples_of,
    plain_texts,
    step_named,
    with_examples,
    with_marked_feedback,
)
from minions.recipe.checks.flows import UntrustedText
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.terms import Term
from minions.recipe.kinds.goal_kind import GoalSpec, ProgramSpec

if TYPE_CHECKING:
    from minions.engine.compile.nearest_examples import NearestExamples
    from minions.engine.compile.planned_step import PlannedStep


@frozen(kw_only=True)
class GoalStep(WrittenStep[object], Step[object]):
    """A `goal:` step: a model loop with tools and a declared output."""

    id: str
    spec: GoalSpec
    texts: tuple[StepText, ...]
    """Its messages, in prompt order."""
    shown: tuple[str, ...]
    """Steps that the author listed under `depends_on` and that no template of this step reads:
    their outputs are appended to the prompt."""
    available_tools: frozenset[str]
    completion_criteria: CompletionCriteria
    completion_chain: StepCompletionChain | None
    output: OutputInstructions[object] | None
    is_untrusted: IsUntrusted
    marks_feedback: bool
    """Whether the failure that led back to it may hold untrusted text."""
    files: tuple[tuple[Template, ...], ...] = ()
    """For each of `texts` the paths of the images and files that its model sees with it."""
    directory: str | None = None
    """The recipe's folder, where images are read; None: it has none."""
    near_examples: NearestExamples | None = field(eq=False, default=None)
    """Chooses its examples for each question; None: they are the same for all."""
    fixed: tuple[Message, ...] | None = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: self._fixed_messages(), takes_self=True),
    )
    """The messages where no value of a run is in them; None: there are some."""
    is_plain: bool = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: self._is_plain(), takes_self=True),
    )
    """Whether the messages are the texts, with trusted values in them, and nothing else."""
    openings: dict[tuple[str | None, str | None], object] = field(
        factory=dict, init=False, eq=False, repr=False
    )
    """What was made of the fixed messages with a system prompt and a goal of the recipe."""

    def _fixed_messages(self) -> tuple[Message, ...] | None:
        has_values = self.shown or any(self.files) or self.spec.recorded_examples is not None
        has_values = has_values or self.near_examples is not None
        if has_values or any(True for each in self.texts for _ in each.template.terms()):
            return None
        return tuple(with_examples(self.spec, plain_texts(self.texts, {}), ()))

    def _is_plain(self) -> bool:
        spec = self.spec
        if self.shown or any(self.files) or spec.examples or spec.recorded_examples is not None:
            return False  # also those nearest to a question stand in `examples`
        is_system = [each.role is MessageRole.SYSTEM for each in self.texts]
        terms = [term for each in self.texts for term in each.template.terms()]
        return is_system == sorted(is_system, reverse=True) and not any(
            map(self.is_untrusted, terms)
        )

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of all messages, in prompt order, and of the images' paths."""
        paths = (path for own in self.files for path in own)
        return [*(each.template for each in self.texts), *paths]

    @property
    def tool_failure(self) -> str:
        """The policy for failed tool calls: `tool_failure` in the recipe."""
        return self.spec.tool_failure

    @property
    def tool_search(self) -> ToolSearch:
        """How its model comes to its tools: `tools` in the recipe."""
        return self.spec.tool_search

    @property
    def at_limit(self) -> str:
        """What happens when a limit on model calls is reached: `at_limit` in the recipe."""
        return self.spec.at_limit

    @property
    def shares_conversation(self) -> bool:
        """Whether the step uses the run's conversation: `memory: conversation` in the recipe."""
        return self.spec.memory == "conversation"

    @property
    def history(self) -> HistoryWindow | None:
        """The bound of its prompts: `history` in the recipe."""
        return self.spec.history

    def messages(self, view: RunContext) -> Sequence[Message]:
        """The messages with the values of this execution filled in, and its images, which are
        files of some MiB at most.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: An image cannot be shown.
        """
        if (self.fixed is not None or self.is_plain) and feedback_in(view.values) is None:
            return self.fixed if self.fixed is not None else plain_texts(self.texts, view.values)
        shown = _show_outputs(self.shown, view)
        told = feedback_data(view, self) if self.marks_feedback else []
        data = [*shown.values(), *told]
        seed = view.border_seed
        texts = MarkedTexts.of(self.texts, view.values, self.is_untrusted, seed, data)
        if any(self.files):
            texts = replace(texts, messages=self._with_files(texts.messages, view))
        outputs = _with_outputs(texts, shown, seed, told, is_older=view.has_older_borders)
        recorded = () if self.spec.recorded_examples is None else view.recorded_examples
        near = choose_near_examples(self.spec, self.near_examples, view.values, recorded)
        messages = with_examples(self.spec, outputs, recorded, near)
        if self.marks_feedback:
            return with_marked_feedback(messages, view, self)
        return [*messages, *feedback_messages(view, self)]

    def unmarked_messages(self, view: RunContext) -> Sequence[Message]:
        """With values of templates as they are."""
        shown = _show_outputs(self.shown, view)
        texts = MarkedTexts(messages=self._render_messages(view), border=None)
        outputs = _with_outputs(texts, shown, view.border_seed)
        return [*outputs, *feedback_messages(view, self)]

    def older_messages(self, view: RunContext) -> Sequence[Message]:
        """With outputs as texts."""
        values = view.values
        parts = [
            f"Result of step '{step_id}':\n{bounded(as_text(values[step_id]))}"
            for step_id in self.shown
            if step_id in values
        ]
        results = [user("\n\n".join(parts))] if parts else []
        return [*self._render_messages(view), *results, *feedback_messages(view, self)]

    def _render_messages(self, view: RunContext) -> list[Message]:
        return plain_texts(self.texts, view.values)

    def _with_files(self, messages: Sequence[Message], view: RunContext) -> list[Message]:
        """The messages with the images and files of their texts; data may stand between them."""
        from minions.engine.compile.image_files import read_images

        first = sum(each.role is MessageRole.SYSTEM or each.name == CONTEXT for each in self.texts)
        more = len(messages) - len(self.texts)
        found = list(messages)
        for index, own in enumerate(self.files):
            if own:
                at = index if index < first else index + more
                attached = read_images(own, view.values, self.directory)
                found[at] = evolve(found[at], attachments=attached)
        return found


def _step(spec: GoalSpec, parts: BuildParts) -> GoalStep:
    compiled = parts.templates.compile
    texts: list[StepText] = []
    if spec.system_prompt is not None:
        texts.append(StepText(MessageRole.SYSTEM, compiled(spec.system_prompt)))
    contents: list[Term] = []
    for part in spec.context:
        template = compiled(part.text)
        if part.file is not None:
            template = Template.of_value(f"{part.file}:\n", part.text)
            contents += template.terms()
        texts.append(StepText(MessageRole.USER, template, CONTEXT))
    first = len(texts)
    texts += [
        StepText(MessageRole(message.role), compiled(message.content)) for message in spec.messages
    ]
    texts.append(StepText(MessageRole.GOAL, compiled(spec.goal)))
    paths = [*[()] * first, *(message.files for message in spec.messages), spec.images]
    files = tuple(tuple(map(compiled, own)) for own in paths)
    read = [*(each.template for each in texts), *(path for own in files for path in own)]
    named = {step_named(ref, parts.saved) for template in read for ref in template.references}
    criteria = spec.completion or CompletionCriteria(
        mode=CompletionMode.STRUCTURED if spec.output is not None else CompletionMode.TEXT
    )
    return GoalStep(
        id=spec.id,
        spec=spec,
        texts=tuple(texts),
        # A loop's items reach the prompt one by one; to show all of them in each would cost their
        # square. So what `when`, `loop` or `while` reads is not shown.
        shown=tuple(each for each in spec.declared if each not in {*named, *parts.read_by_control}),
        available_tools=frozenset(tool_names(spec.tools, parts.tools)),
        completion_criteria=criteria,
        completion_chain=_chain(spec, parts.extensions.links),
        output=_output(spec),
        is_untrusted=_BorderValues(spec, parts.untrusted, contents),
        marks_feedback=bool(parts.untrusted),
        files=files,
        directory=parts.directory,
        near_examples=nearest_examples_of(spec, parts.templates),
    )


class _BorderValues(Struct, frozen=True):
    """Which values of a step's texts stand within a border."""

    spec: GoalSpec
    words: UntrustedText
    contents: Sequence[Term]
    """Contents of files: data, whoever wrote them."""

    def __call__(self, term: Term) -> bool:
        return any(term is each for each in self.contents) or self.words.is_in(self.spec, term)


def _output(spec: GoalSpec) -> OutputInstructions[object] | None:
    if not spec.output:
        return None
    takes_text = spec.unfit_output == "text"
    return OutputInstructions(schema=spec.output, name=spec.id, takes_text=takes_text)


def _chain(spec: GoalSpec, links: Mapping[str, CompletionLink]) -> StepCompletionChain | None:
    if not spec.completion_links and not spec.artifacts:
        return None
    for name in spec.completion_links:
        if name not in links:
            raise UsageError(
                f"Step '{spec.id}' names the completion link '{name}', which is not registered. "
                f"Registered links: {', '.join(links) or 'none'}.",
                code="unknown-link",
                suggestions=near_names(name, links),
            )
    chain: StepCompletionChain = DefaultStepCompletionChain()
    if spec.artifacts:  # a tool's word is none for them
        chain = chain.replace(ToolOutcomeLink).prepend(ArtifactsLink(spec.artifacts))
    return chain.prepend(*(links[name] for name in spec.completion_links))


def _show_outputs(step_ids: Sequence[str], view: RunContext) -> dict[str, str]:
    """The outputs of these steps that there are, as data."""
    from minions.engine.compile.borders import as_data

    values = view.values
    return {each: bounded(as_data(values[each])) for each in step_ids if each in values}


def _with_outputs(
    texts: MarkedTexts,
    shown: Mapping[str, str],
    seed: str,
    told: Sequence[str] = (),
    *,
    is_older: bool = False,
) -> list[Message]:
    """The messages, then the outputs, as data within a border.

    Args:
        told: Further texts of the prompt.
        is_older: Whether each output has a border of its own, as in earlier versions.
    """
    from minions.engine.compile.borders import border_of, several_within, within

    messages = texts.messages
    if not shown:
        return [*messages] if texts.border is None else [border_words(texts.border), *messages]
    said = [m.content or "" for m in messages]
    border = texts.border or border_of(seed, [*said, *shown.values(), *told])
    data = (
        "\n".join(within(border, text, step_id=each) for each, text in shown.items())
        if is_older
        else several_within(border, shown)
    )
    return [border_words(border), *messages, user(data)]


class _GoalCompiler(StepCompiler[GoalSpec]):
    def build(self, spec: GoalSpec, parts: BuildParts) -> WrittenStep[object]:
        step = _step(spec, parts)
        if not isinstance(spec, ProgramSpec):
            return step
        from minions.engine.compile.programs import ProgramStep

        return ProgramStep(
            id=spec.id,
            spec=spec,
            asking=step,
            given={name: parts.templates.compile(each) for name, each in spec.given.items()},
            sandbox=parts.extensions.find_sandbox(spec.sandbox),
            validator=SchemaValidator(spec.output) if spec.output else None,
            available_tools=step.available_tools,
        )

    def plan(self, spec: GoalSpec, step: Step[object], planner: Planner) -> PlannedStep:
        from minions.engine.compile.planned_step import PlannedStep

        if isinstance(spec, ProgramSpec):
            return _plan_program(spec, step, planner)
        use = _use(spec, step)
        return PlannedStep(
            step_id=spec.id,
            kind="model",
            target=planner.model(spec.model),
            shown=planner.shown(spec.goal),
            tools=spec.tools,
            hidden_tools=planner.hidden_tools(use),
            memory=spec.memory if spec.shares_conversation else None,
            prompt=planner.prompt(list(_own_parts(spec, planner)), use),
        )


def _plan_program(spec: ProgramSpec, step: Step[object], planner: Planner) -> PlannedStep:
    from minions.engine.compile.planned_step import PlannedStep
    from minions.engine.compile.programs import ProgramStep, program_words, sandbox_refusal

    assert isinstance(step, ProgramStep)  # noqa: S101  # as it was built
    tools = [planner.tools.get(name).spec for name in sorted(step.available_tools)]
    kinds = dict.fromkeys(spec.given, "object")
    said = program_words(spec.sandbox, tools, spec.output, kinds)
    words = PromptPart(PromptSection.SYSTEM, said)
    shown = step.asking.shown if isinstance(step.asking, GoalStep) else ()
    use = PromptUse(shown=shown, model=spec.model)
    refusal = sandbox_refusal(spec, step.sandbox)
    return PlannedStep(
        step_id=spec.id,
        kind="model",
        target=planner.model(spec.model),
        shown=planner.shown(spec.goal),
        tools=spec.tools,
        prompt=planner.prompt([words, *_own_parts(spec, planner)], use),
        refused=refusal.message if refusal is not None else None,
    )


def _own_parts(spec: GoalSpec, planner: Planner) -> Iterator[PromptPart]:
    for part in spec.context:
        shown = as_text(planner.shown(part.text)) if part.file is None else part.text
        yield PromptPart(PromptSection.CONTEXT, shown)
    yield from example_parts(spec)
    system = [(MessageRole.SYSTEM.value, spec.system_prompt)] if spec.system_prompt else []
    messages = [(message.role, message.content) for message in spec.messages]
    for role, text in (*system, *messages, (MessageRole.GOAL.value, spec.goal)):
        is_system = role == MessageRole.SYSTEM.value
        section = PromptSection.SYSTEM if is_system else PromptSection.GOAL
        yield PromptPart(section, as_text(planner.shown(text)))


def _use(spec: GoalSpec, step: Step[object]) -> PromptUse:
    return PromptUse(
        shown=step.shown if isinstance(step, GoalStep) else (),
        output=step.output,
        tools=step.available_tools,
        search=spec.tool_search,
        model=spec.model,
        waits_for_signal=step.completion_criteria.mode is CompletionMode.SIGNAL,
    )


COMPILER: Final = _GoalCompiler()
