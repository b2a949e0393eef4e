"""`ask:` — a question to a person; the run waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator
from minions.data.texts import seconds_of
from minions.recipe.drafts import TEXT_OUTPUT, GoalParts, StepDraft
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind
from minions.recipe.model import PersonQuestion, StepSpec
from minions.recipe.text.key_types import Key, Table, mapping_key, text_key
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.schemas import read_output_schema


@frozen(kw_only=True)
class AskSpec(StepSpec):
    """A question to a person; the run waits for the answer."""

    kind: ClassVar[str] = "ask"
    asks_person: ClassVar[bool] = True

    ask: str
    """The question; a template."""
    form: JsonSchema | None = None
    """JSON Schema that the answer has to fit; None: any text."""
    waits_s: float | None = None
    """Seconds to wait for an answer (YAML key `timeout`); None: without limit."""
    default: JsonValue = None
    has_default: bool = False

    @property
    def question(self) -> PersonQuestion:
        return PersonQuestion(
            text=self.ask,
            form=self.form,
            timeout_s=self.waits_s,
            default=self.default,
            has_default=self.has_default,
        )

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.ask,)

    @property
    def declared_output(self) -> JsonSchema | None:
        return self.form

    @property
    def content(self) -> str:
        return self.ask


class _Ask(StepKind):
    name = "ask"
    spec = AskSpec
    table = Table(
        "an ask step",
        (
            text_key("ask", "The question to a person; a template.", is_required=True),
            mapping_key(
                "form", "JSON Schema of the answer, or `{field: type}`; default: any text."
            ),
            Key(
                name="timeout",
                description="How long to wait for the answer: seconds, or `10m`, `24h`.",
                types=("number", "string"),
            ),
            Key(name="default", description="The answer if there is none in time."),
        ),
    )
    templates = ("ask",)
    look = Look(light="#be123c", dark="#fb7185", outline="#e11d48", brackets=(">", "]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """The form is the declared output; a default has to fit it."""
        section, report = step.section, reader.report
        if not (section.text("ask") or "?").strip():
            message = "'ask' is empty: there is no question"
            report(section.place_of("ask").fault("bad-value", message, help="write the question"))
        form = section.mapping("form")
        schema = read_output_schema(form, report) if form is not None else None
        is_declared = form is not None or "form" in section.refused
        step.goal = GoalParts(schema={} if schema is None and is_declared else schema)
        step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
        if (timeout := section.scalar("timeout")) is not None:
            try:
                step.waits_s = seconds_of(str(timeout.value))
            except UsageError as error:
                report(timeout.place.fault("bad-value", error.message.rstrip(".")))
        default = section.node("default")
        if default is None or not step.output:
            return
        for problem in SchemaValidator(step.output).errors(to_plain(default)):
            message = f"the default does not fit: {problem}"
            report(default.place.fault("bad-value", message))

    def build(self, step: StepDraft, common: CommonKeys) -> AskSpec:
        section = step.section
        return AskSpec(
            **common,
            ask=section.text("ask") or "",
            form=step.goal.schema,
            waits_s=step.waits_s,
            default=section.plain("default"),
            has_default=section.node("default") is not None,
        )


ASK = _Ask()
