"""`goal:` — a model loop with tools, a completion chain and a declared output.

`goal_parts` reads the keys that hold more than a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from attrs import frozen

from minions.contracts.completion import CompletionCriteria
from minions.contracts.instructions import HistoryWindow
from minions.contracts.verdicts import CompletionMode
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.drafts import TEXT_OUTPUT, StepDraft
from minions.recipe.examples import EXAMPLE, EXAMPLES_FROM, EXAMPLES_KEY, ExampleStepSpec
from minions.recipe.kinds.goal_parts import COMPLETION, HISTORY, MESSAGE, PART, read_goal_parts
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind
from minions.recipe.model import MessageSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import (
    CACHE_KEY,
    MODEL_KEY,
    TEXTS,
    Key,
    Table,
    choice_key,
    mapping_key,
    text_key,
)
from minions.recipe.text.sections import Section


@frozen(kw_only=True)
class GoalSpec(ExampleStepSpec):
    """A model loop with tools, a completion chain and a declared output."""

    kind: ClassVar[str] = "goal"
    asks_model: ClassVar[bool] = True
    calls_tools: ClassVar[bool] = True

    goal: str
    """The aim; a template."""
    system_prompt: str | None = None
    messages: tuple[MessageSpec, ...] = ()
    tools: tuple[str, ...] = ()
    """Full names of the tools that the model is offered."""
    unfit_output: str = "mend"
    """`mend`, or `text`: the text of an answer that does not fit is the output."""
    artifacts: tuple[str, ...] = ()
    """What the answer has to hold: paths of files, or kinds of `ARTIFACT_KINDS`."""
    images: tuple[str, ...] = ()
    """Paths of images that its model sees with the goal; templates."""
    completion: CompletionCriteria | None = None
    """When the step is complete; None: `structured` where `output` is declared, else `text`."""
    completion_links: tuple[str, ...] = ()
    """Names of registered completion links, which are asked before the default chain."""
    tool_failure: str = "fail"
    at_limit: str = "fail"
    """`fail`, or `answer`: one more call answers from what there is."""
    memory: str = "isolated"
    """`isolated` or `conversation`."""
    history: HistoryWindow | None = None
    """The bound of its prompts; None: there is none."""
    model: ModelConfig | None = None

    @property
    def own_model(self) -> ModelConfig | None:
        return self.model

    @property
    def offered_tools(self) -> tuple[str, ...]:
        return self.tools

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.system_prompt, *(each.content for each in self.messages), self.goal)

    @property
    def declared_output(self) -> JsonSchema | None:
        return self.output if self.unfit_output == "mend" else None  # it may be any text

    @property
    def shares_conversation(self) -> bool:
        return self.memory == "conversation"

    @property
    def example_question(self) -> str:
        return self.goal

    @property
    def content(self) -> str:
        return self.goal


class _Goal(StepKind):
    name = "goal"
    spec = GoalSpec
    table = Table(
        "a goal step",
        (
            text_key("goal", "The aim; a template.", is_required=True),
            text_key("system_prompt", "System message of this step only; a template."),
            Key(
                name="messages",
                description="Further messages, in order.",
                types=("array",),
                shape={"items": {"$ref": "#/$defs/message"}},
            ),
            Key(
                name="tools",
                description="The tools that the model is offered: names, or a toolset for all of "
                "its tools.",
                types=("array",),
                shape=TEXTS,
            ),
            mapping_key("output", "JSON Schema of the answer, or in short `{field: type}`."),
            choice_key(
                "unfit_output",
                "What becomes of an answer that does not fit `output`: the model is asked to mend "
                "it, or its text is the output and no further call is made.",
                ("mend", "text"),
            ),
            Key(
                name="images",
                description="Paths of images that the model sees with the goal: PNG, JPEG, GIF or "
                "WebP beneath the recipe's folder, at most 20 of 5 MiB; templates.",
                types=("array",),
                shape=TEXTS,
            ),
            EXAMPLES_KEY,
            Key(
                name="artifacts",
                description="What the answer, a text, has to hold: paths of files, each in a "
                "fenced block with its path, or `code_blocks`, `files`, `edits`, `config`, "
                "`validation`. The step fails where one is missing.",
                types=("array",),
                shape=TEXTS,
            ),
            choice_key(
                "memory",
                "`isolated`: the prompt holds what templates read, and the bounded outputs of the "
                "steps under `depends_on` that no template reads. `conversation`: also the "
                "messages of earlier steps with `conversation`, and of earlier runs of the "
                "session.",
                ("isolated", "conversation"),
            ),
            Key(
                name="history",
                description="The bound of the prompts of a step with `memory: conversation`.",
                types=("object",),
                shape={"$ref": "#/$defs/history"},
            ),
            Key(
                name="completion",
                description="What completes the step.",
                types=("string", "object"),
                shape={
                    "anyOf": [
                        {"type": "string", "enum": [str(mode) for mode in CompletionMode]},
                        {"$ref": "#/$defs/completion"},
                    ]
                },
            ),
            choice_key(
                "tool_failure",
                "Whether a tool's failure ends the step or is reported to the model.",
                ("fail", "report"),
            ),
            choice_key(
                "at_limit",
                "What happens when a limit on model calls, tokens or cost is reached: the step "
                "fails, or one more call, without tools, answers from what there is; the step and "
                "the run are then partial.",
                ("fail", "answer"),
            ),
            MODEL_KEY,
            CACHE_KEY,
        ),
    )
    templates = ("goal", "system_prompt", "images")
    tables: ClassVar = {
        "message": MESSAGE,
        "part": PART,
        "example": EXAMPLE,
        "examples_from": EXAMPLES_FROM,
        "completion": COMPLETION,
        "history": HISTORY,
    }
    look = Look(light="#7c3aed", dark="#a78bfa", outline="#7c3aed", brackets=("(", ")"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        step.goal = read_goal_parts(step.section, reader)
        step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
        if step.section.text("unfit_output") == "text":
            step.output = {}

    def build(self, step: StepDraft, common: CommonKeys) -> GoalSpec:
        """The spec, with the tools that the checks resolved."""
        section = step.section
        return GoalSpec(
            **common,
            goal=section.text("goal") or "",
            system_prompt=section.text("system_prompt"),
            messages=step.goal.messages,
            tools=step.tools,
            output=step.goal.schema,
            unfit_output=section.text("unfit_output") or "mend",
            artifacts=step.goal.artifacts,
            images=step.goal.images,
            examples=step.goal.examples,
            examples_from=step.goal.examples_from,
            completion=step.goal.completion,
            completion_links=step.goal.links,
            tool_failure=section.text("tool_failure") or _usual_policy(section),
            at_limit=section.text("at_limit") or "fail",
            memory=section.text("memory") or "isolated",
            history=step.goal.history,
            model=step.goal.model,
        )

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        return step.tools

    def cache_problems(self, step: StepDraft) -> Iterator[str]:
        """A shared conversation is a second result, which the cache does not hold."""
        if step.section.text("memory") == "conversation":
            yield "later steps continue its conversation (memory: conversation)"


GOAL = _Goal()


def _usual_policy(section: Section) -> str:
    """The default for `tool_failure`: in a conversation, errors
    of tools are reported to the model.
    """
    return "report" if section.text("memory") == "conversation" else "fail"
