"""`tool:` steps: one tool call; a model fills in the parameters that templates leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import (
    ConversationStarted,
    ToolCallInDoubt,
    ToolCallOutcome,
    ToolCallStarted,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import Message, message_to_json
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import Effect, ToolSpec
from minions.data.errors import UNFIT_RESULT, FailureInfo, StepFailedError
from minions.data.json_values import JsonValue, as_object_of_objects, dumps, parse_json
from minions.data.patterns import match_beside_loop
from minions.data.schema import SchemaValidator
from minions.engine.compile.engine_scope import EngineScope, render_beside
from minions.engine.compile.extraction import extraction_question
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import (
    CacheableStep,
    Fingerprint,
    Replayable,
    WrittenStep,
    step_named,
)
from minions.engine.history.step_rows import StepRows
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.values import MissingValueError, Reference, type_name
from minions.recipe.kinds.tool_kind import ToolSpecStep, without_argument


@frozen(kw_only=True)
class ToolCallStep(WrittenStep[JsonValue], PythonStep[JsonValue], Replayable, CacheableStep):
    """A `tool:` step: one tool call."""

    id: str
    spec: ToolSpecStep
    params: Mapping[str, Template]
    shown: tuple[str, ...]
    """Steps whose outputs a model may use to fill in the parameters that templates leave open."""
    has_untrusted_data: bool
    """Whether these outputs may hold text that a stranger wrote."""
    asks_model: bool = False
    """Whether a parameter is left out that a model fills in."""
    returns: SchemaValidator | None = None
    """Of what `returns` says; None: the step says nothing."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of the parameters."""
        return list(self.params.values())

    async def run(self, scope: StepScope) -> JsonValue:
        """Render the parameters, ask a model for those that it may fill in, then call the tool.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: `missing-param`: a parameter that no model may fill in has no argument;
                or the model's answer lacks one. The tool was not called. `bad-result`: the result
                does not fit what the step says of it.
        """
        arguments, missing = await render_beside(
            scope, self.references, lambda: self._render_params(scope.context)
        )
        filled: tuple[str, ...] = ()
        if missing:
            shown = [Reference(path=(name,), text=name) for name in self.shown]
            messages, output = await render_beside(
                scope, shown, lambda: self._question(scope.context, missing)
            )
            answer = await scope.ask_model(messages, output)
            found = as_object_of_objects(answer)["params"]
            filled = tuple(name for name in found if name not in arguments)
            arguments = {**found, **arguments}  # what is known wins
        if filled:
            assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
            result = await scope.call_filled_tool(self.spec.tool, arguments, filled)
        else:
            result = await scope.call_tool(self.spec.tool, arguments)
        if (declared := self.returns) is not None:
            errors = await match_beside_loop(lambda: declared.errors(result))
            if errors:
                message = (
                    f"The tool '{self.spec.tool}' returned {type_name(result)} that does not fit "
                    f"what `returns` of the step '{self.id}' says: {'; '.join(errors)}."
                )
                raise StepFailedError(FailureInfo(code=UNFIT_RESULT, message=message))
        return result

    def _render_params(self, view: RunContext) -> tuple[dict[str, JsonValue], list[str]]:
        """The parameters that are known, and the names of those that a model has to fill in."""
        known: dict[str, JsonValue] = {}
        missing: list[str] = []
        for name, template in self.params.items():
            try:
                known[name] = template.render(view.values)
            except MissingValueError:
                if not (self.spec.is_older and template.is_whole):
                    raise
                missing.append(name)
        tool = view.tools.find(self.spec.tool)
        if tool is not None:
            missing += self.spec.filled_in(tool.spec)
            self._refuse_without_argument(tool.spec, missing)
        return known, missing

    def _refuse_without_argument(self, tool: ToolSpec, missing: Sequence[str]) -> None:
        """Refuse a call whose argument nobody gives and no model may make.

        Raises:
            StepFailedError: `missing-param`.
        """
        left_out = without_argument(tool, {*self.params, *missing})
        if not left_out:
            return
        message = (
            f"The tool '{tool.name}' needs {', '.join(left_out)}, and is not declared pure: no "
            f"model fills that in unasked. Write it under `params`, or `fill: [{left_out[0]}]`."
        )
        raise StepFailedError(FailureInfo(code="missing-param", message=message))

    def _question(
        self,
        view: RunContext,
        missing: Sequence[str],
        *,
        is_older: bool = False,
        shows_parameters: bool = False,
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
            seed=view.run_id if self.has_untrusted_data and not is_older else None,
            takes_others=self.spec.is_older or tool.spec.effect is Effect.PURE,
            shows_parameters=shows_parameters,
        )

    def fingerprint(self, view: RunContext) -> Fingerprint:
        """The known arguments, and the question for the missing ones."""
        known, missing = self._render_params(view)
        asked: dict[str, JsonValue] = {"tool": self.spec.tool, "arguments": known}
        if self.spec.returns is not None:
            asked["returns"] = self.spec.returns  # an output of before may not fit it
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
        known, missing = self._render_params(view)
        if not missing:
            return arguments == dumps(known)
        facts = (row.fact for row in recorded.rows)
        asked = (fact.messages for fact in facts if isinstance(fact, ConversationStarted))
        forms = [
            self._question(view, missing, is_older=older, shows_parameters=shows)[0][-1]
            for older, shows in ((False, False), (False, True), (True, True))
        ]
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
    tool = parts.tools.get(spec.tool).spec  # refused here rather than in the run
    params = {name: parts.templates.compile(value) for name, value in spec.given.items()}
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
        asks_model=bool(spec.filled_in(tool)),
        returns=SchemaValidator(spec.returns) if spec.returns is not None else None,
    )


class _ToolCompiler(StepCompiler[ToolSpecStep]):
    def build(self, spec: ToolSpecStep, parts: BuildParts) -> ToolCallStep:
        return _step(spec, parts)

    def plan(self, spec: ToolSpecStep, step: Step[object], planner: Planner) -> PlannedStep:
        tool = planner.tools.get(spec.tool).spec
        return PlannedStep(
            step_id=spec.id,
            kind="tool",
            target=spec.tool,
            shown=planner.shown(dict(spec.given)),
            writes=tool.is_write,
            asks_for=spec.filled_in(tool),
        )


COMPILER: Final = _ToolCompiler()
