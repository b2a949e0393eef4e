"""`analyze:` — one question to a model about data, in a fresh conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.recipe.drafts import TEXT_OUTPUT, GoalParts, StepDraft
from minions.recipe.examples import EXAMPLE, EXAMPLES_FROM, EXAMPLES_KEY, ExampleStepSpec
from minions.recipe.kinds.goal_kind import read_step_examples
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import (
    CACHE_KEY,
    MODEL_KEY,
    Key,
    Table,
    choice_key,
    mapping_key,
    text_key,
)
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.schemas import read_output_schema, schema_of_example
from minions.recipe.text.sections import Report, Section

_OLDER_TOOL = "llm_analyze"
"""The tool name that makes a tool step of an older recipe an analysis."""


@frozen(kw_only=True)
class AnalyzeSpec(ExampleStepSpec):
    """One question to a model about data, in a fresh conversation."""

    kind: ClassVar[str] = "analyze"
    asks_model: ClassVar[bool] = True

    task: str
    """The question; a template."""
    context: str | None = None
    """Rules and background for the question; a template. None: there are none."""
    input: JsonValue = None
    """The data that the question is about; a template."""
    has_input: bool = False
    """Whether the recipe states an input: an empty input is shown to the model, too."""
    model: ModelConfig | None = None

    @property
    def own_model(self) -> ModelConfig | None:
        return self.model

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.context, self.task, self.input)

    @property
    def example_question(self) -> str:
        return _question(self.context, self.task, self.input if self.has_input else None)

    @property
    def content(self) -> str:
        return self.task


class _Analyze(StepKind):
    name = "analyze"
    spec = AnalyzeSpec
    table = Table(
        "an analyze step",
        (
            text_key("analyze", "The question; a template. Default: the description."),
            choice_key("tool", "The older spelling of this kind.", (_OLDER_TOOL,)),
            text_key("context", "Rules and background; a template."),
            Key(name="input", description="The data; a template. Shown even if empty."),
            mapping_key("output_format", "An example of the answer, which becomes its schema."),
            mapping_key("output", "JSON Schema of the answer, or in short `{field: type}`."),
            EXAMPLES_KEY,
            MODEL_KEY,
            CACHE_KEY,
        ),
    )
    templates = ("analyze", "context", "input")
    tables: ClassVar = {"example": EXAMPLE, "examples_from": EXAMPLES_FROM}
    alias = ("tool", _OLDER_TOOL)
    editor_rules: ClassVar = {
        "anyOf": [{"required": ["analyze"]}, {"required": ["tool", "description"]}]
    }
    look = Look(light="#c026d3", dark="#e879f9", outline="#c026d3", brackets=("([", "])"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        section = step.section
        schema = _answer_schema(section, reader.report)
        if section.text("analyze") is None and not section.text("description"):
            reader.report(
                section.place.fault(
                    "missing-key",
                    "there is no question",
                    help="write it at 'analyze:' or 'description:'",
                )
            )
        model = section.node("model")
        task = section.text("analyze") or section.text("description") or ""
        question = _question(section.text("context"), task, section.plain("input"))
        is_declared = schema is not None
        step.goal = GoalParts(
            schema=schema,
            model=reader.read_model(model) if model is not None else None,
            question=question,
            **read_step_examples(section, question, schema, reader, is_declared=is_declared),
        )
        step.output = TEXT_OUTPUT if schema is None else schema

    def build(self, step: StepDraft, common: CommonKeys) -> AnalyzeSpec:
        section = step.section
        return AnalyzeSpec(
            **common,
            task=section.text("analyze") or section.text("description") or "",
            context=section.text("context"),
            input=section.plain("input"),
            has_input=section.node("input") is not None,
            output=step.goal.schema,
            examples=step.goal.examples,
            examples_from=step.goal.examples_from,
            nearest=step.goal.nearest,
            model=step.goal.model,
        )


ANALYZE = _Analyze()


def _question(context: str | None, task: str, data: JsonValue) -> str:
    """Context, task and data as the model reads them; a template."""
    parts = [f"Context:\n{context.strip()}"] if context is not None else []
    parts.append(f"Task:\n{task}")
    if data is not None:
        parts.append(f"Input:\n{data if isinstance(data, str) else dumps(data)}")
    return "\n\n".join(parts)


def _answer_schema(section: Section, report: Report) -> JsonSchema | None:
    """The declared output; None: none is declared, {}: it is declared but faulty."""
    example, output = section.mapping("output_format"), section.mapping("output")
    schema = None
    is_declared = any(
        section.node(name) is not None or name in section.refused
        for name in ("output", "output_format")
    )
    if example is not None and output is not None:
        message = "the answer is described twice, by 'output' and by 'output_format'"
        report(section.place_of("output_format").fault("kind-conflict", message))
    elif output is not None:
        schema = read_output_schema(output, report)
    elif example is not None:
        schema = schema_of_example(to_plain(example))
    return {} if schema is None and is_declared else schema
