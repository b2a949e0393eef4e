"""`tool:` steps: one tool call; a model fills in the parameters that templates leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from attrs import frozen

from minions.contracts.calls import OutputInstructions
from minions.contracts.context import RunContext
from minions.contracts.facts import (
    ConversationStarted,
    ToolCallInDoubt,
    ToolCallOutcome,
    ToolCallStarted,
)
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.contracts.messages import Message, message_to_json
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.engine.compile.engine_scope import render_beside
from minions.engine.compile.extraction import extraction_question
from minions.engine.compile.fingerprint import Fingerprint, Fingerprinted
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import (
    WrittenStep,
    step_named,
)
from minions.engine.history.replayable_steps import Replayable
from minions.engine.history.step_rows import StepRows
from minions.recipe.expressions.template import (
    MissingValueError,
    Reference,
    Template,
    compile_template,
)
from minions.recipe.kinds.tool import ToolSpecStep

__all__ = ["COMPILER", "ToolCallStep"]


@frozen(kw_only=True)
class ToolCallStep(WrittenStep[JsonValue], PythonStep[JsonValue], Replayable, Fingerprinted):
    """A `tool:` step: one tool call."""

    id: str
    spec: ToolSpecStep
    params: Mapping[str, Template]
    shown: tuple[str, ...]
    """Steps whose outputs a model may use to fill in the parameters that templates leave open."""
    has_untrusted_data: bool
    """Whether these outputs may hold text that a stranger wrote."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of the parameters."""
        return list(self.params.values())

    async def run(self, scope: StepScope) -> JsonValue:
        """Render the parameters, ask a model for the missing ones, then call the tool.

        Raises:
            MissingValueError: A template within a longer text reads a value that does not exist.
            StepFailedError: The model's answer lacks a parameter; the tool was not called.
        """
        arguments, missing = await render_beside(
            scope, self.references, lambda: self._rendered(scope.context)
        )
        if missing:
            shown = [Reference(path=(name,), text=name) for name in self.shown]
            messages, output = await render_beside(
                scope, shown, lambda: self._question(scope.context, missing)
            )
            answer = await scope.ask_model(messages, output)
            found = cast("Mapping[str, Mapping[str, JsonValue]]", answer)["params"]
            arguments = {**found, **arguments}  # what is known wins
        return await scope.call_tool(self.spec.tool, arguments)

    def _rendered(self, view: RunContext) -> tuple[dict[str, JsonValue], list[str]]:
        """The parameters that are known, and the names of those that a model has to fill in."""
        known: dict[str, JsonValue] = {}
        missing: list[str] = []
        for name, template in self.params.items():
            try:
                known[name] = template.render(view.values)
            except MissingValueError:
                if not template.is_whole:
                    raise
                missing.append(name)
        tool = view.tools.find(self.spec.tool)
        required = tool.spec.parameters.get("required") if tool is not None else None
        if isinstance(required, list | tuple):
            missing += [str(name) for name in required if name not in self.params]
        return known, missing

    def _question(
        self, view: RunContext, missing: Sequence[str], *, is_older: bool = False
    ) -> tuple[tuple[Message, ...], OutputInstructions[JsonValue]]:
        tool = view.tools.get(self.spec.tool)
        needed = {name: view.values[name] for name in self.shown if name in view.values}
        if "loop" in view.values:
            needed["loop"] = view.values["loop"]
        return extraction_question(
            step_description=self.spec.description or tool.spec.description or self.id,
            tool_name=tool.spec.name,
            tool_params=tool.spec.parameters,
            context_data=needed,
            missing=missing,
            seed=view.border_seed if self.has_untrusted_data and not is_older else None,
        )

    def fingerprint(self, view: RunContext) -> Fingerprint:
        """The known arguments, and the question for the missing ones."""
        known, missing = self._rendered(view)
        asked: dict[str, JsonValue] = {"tool": self.spec.tool, "arguments": known}
        if missing:
            messages, output = self._question(view, missing)
            asked["question"] = [message_to_json(message) for message in messages]
            asked["answer"] = output.json_schema()
        return Fingerprint(asked=asked, tools=[self.spec.tool], asks_model=bool(missing))

    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether the known arguments and the question for the missing ones are as recorded."""
        arguments = next(filter(None, map(_arguments_of, recorded.rows)), None)
        if arguments is None:
            return False
        known, missing = self._rendered(view)
        if not missing:
            return arguments == dumps(known)
        facts = (row.fact for row in recorded.rows)
        asked = (fact.messages for fact in facts if isinstance(fact, ConversationStarted))
        forms = [self._question(view, missing, is_older=each)[0][-1] for each in (False, True)]
        was_asked = any(form in messages for messages in asked for form in forms)
        before = parse_json(arguments)
        return was_asked and isinstance(before, dict) and before == {**before, **known}


def _arguments_of(row: JournalEntry) -> str | None:
    """The arguments of a call that the row records; None: it records none."""
    match row.fact:
        case ToolCallStarted() | ToolCallOutcome() | ToolCallInDoubt() as fact:
            return fact.arguments
        case _:
            return None


def _step(spec: ToolSpecStep, parts: BuildParts) -> ToolCallStep:
    parts.tools.get(spec.tool)  # refused here rather than in the run
    params = {name: compile_template(value) for name, value in spec.given.items()}
    saved = parts.saved
    read = {step_named(each, saved) for value in params.values() for each in value.references}
    listed = set(spec.declared).difference(parts.read_by_control)
    shown = tuple(each for each in spec.depends_on if each in read or each in listed)
    return ToolCallStep(
        id=spec.id,
        spec=spec,
        params=params,
        shown=shown,
        has_untrusted_data=any(map(parts.untrusted.is_of, spec.depends_on)),
    )


class _ToolCompiler(StepCompiler[ToolSpecStep]):
    def build(self, spec: ToolSpecStep, parts: BuildParts) -> ToolCallStep:
        return _step(spec, parts)

    def plan(self, spec: ToolSpecStep, step: Step[object], planner: Planner) -> PlannedStep:
        tool = planner.tools.get(spec.tool).spec
        required = tool.parameters.get("required")
        missing = [
            str(name)
            for name in (required if isinstance(required, list | tuple) else ())
            if name not in spec.given
        ]
        return PlannedStep(
            step_id=spec.id,
            kind="tool",
            target=spec.tool,
            shown=planner.shown(dict(spec.given)),
            writes=tool.is_write,
            asks_for=tuple(missing),
        )


COMPILER: Final = _ToolCompiler()
