"""Steps of classes that the operator registered: `uses: NAME`, `with: {…}`."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import TypeVar

from attrs import frozen
from msgspec import Struct

from minions.contracts.completion import CompletionCriteria, StepCompletionChain
from minions.contracts.context import RunContext
from minions.contracts.instructions import HistoryWindow, OutputInstructions
from minions.contracts.messages import Message, ToolCallRequest
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.codec import decode
from minions.data.errors import MinionsError, SchemaError, UsageError, words_of
from minions.data.hint_schemas import result_schema_of, schema_of
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.engine.compile.function_steps import FunctionStep
from minions.engine.compile.recipe_step import WrittenStep
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.kinds.uses_kind import UsesSpec


def parameters_of(kind: type[Step[object]]) -> JsonSchema:
    """The JSON Schema of `with:` for that class: its constructor's arguments without `id`."""
    hints = _hints(kind)
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    is_open = False
    for name, parameter in _parameters(kind):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            is_open = True
            continue
        properties[name] = _schema(hints.get(name))
        if parameter.default is parameter.empty:
            required.append(name)
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if not is_open:
        schema["additionalProperties"] = False
    return schema


def output_of(kind: type[Step[object]]) -> JsonSchema | None:
    """The JSON Schema of what later steps read of that class: of the type that its code returns, or
    that its `Step[…]` names. None: nothing is known.
    """
    hint: object = None
    if issubclass(kind, FunctionStep):
        hint = inspect.signature(kind).return_annotation
    elif issubclass(kind, PythonStep):
        with contextlib.suppress(Exception):  # an application's hints may name anything
            hint = typing.get_type_hints(kind.run).get("return")
    if hint is None or isinstance(hint, TypeVar):
        hint = _type_argument(kind)
    return None if hint is None else result_schema_of(hint)


def _type_argument(kind: type[object]) -> object:
    """What the class puts for the type variable of `Step`, as in `class Look(Step[Report])`."""
    for base in getattr(kind, "__orig_bases__", ()):
        origin, arguments = typing.get_origin(base), typing.get_args(base)
        if isinstance(origin, type) and issubclass(origin, Step) and len(arguments) == 1:
            return None if isinstance(arguments[0], TypeVar) else arguments[0]
    found = (_type_argument(base) for base in kind.__bases__ if issubclass(base, Step))
    return next((each for each in found if each is not None), None)


def _parameters(kind: type[Step[object]]) -> list[tuple[str, inspect.Parameter]]:
    parameters = inspect.signature(kind).parameters.items()
    return [(name, parameter) for name, parameter in parameters if name != "id"]


def _hints(kind: type[Step[object]]) -> Mapping[str, type[object]]:
    """Type hints of the constructor's arguments; attrs classes have them on their fields."""
    for source in (kind, kind.__init__):
        with contextlib.suppress(Exception):  # an application's hints may name anything
            hints = typing.get_type_hints(source)
            if any(name in hints for name, _ in _parameters(kind)):
                return hints
    return {}


def _schema(hint: object) -> dict[str, JsonValue]:
    """The JSON Schema of a type hint; {}: JSON cannot express it."""
    if hint is None:
        return {}
    try:
        return schema_of(hint)
    except SchemaError:
        return {}


class _Maker(Struct, frozen=True):
    """Makes the step for one execution."""

    kind: type[Step[object]]
    given: Mapping[str, Template]

    @property
    def templates(self) -> Sequence[Template]:
        """Those of the arguments."""
        return list(self.given.values())

    @property
    def is_constant(self) -> bool:
        """Whether the arguments are the same for every execution."""
        return all(template.is_constant for template in self.given.values())

    def make(self, step_id: str, values: Mapping[str, JsonValue]) -> Step[object]:
        """Make the step with its arguments rendered and converted.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            UsageError: `bad-step-arguments`; the class refuses them.
        """
        typed = self._convert_arguments(step_id, values)
        try:
            make: typing.Callable[..., Step[object]] = self.kind
            return make(id=step_id, **typed)
        except MinionsError:
            raise
        except Exception as error:  # an application's class raises anything
            raise UsageError(
                f"Step '{step_id}' cannot be made: {self.kind.__name__} refuses what `with` gives "
                f"it. {words_of(error)}",
                code="bad-step-arguments",
            ) from error

    def _convert_arguments(
        self, step_id: str, values: Mapping[str, JsonValue]
    ) -> dict[str, object]:
        """The arguments as the class declares them; all that do not fit are told at once."""
        hints, typed, faults = _hints(self.kind), dict[str, object](), list[str]()
        for name, template in self.given.items():
            value = template.render(values)
            try:
                typed[name] = decode(value, hints[name]) if name in hints else value
            except ValueError as error:
                faults.append(f"'{name}': {error}")
        if faults:
            raise UsageError(
                f"Step '{step_id}' cannot be made: what `with` gives does not fit "
                f"{self.kind.__name__}. {'; '.join(faults)}.",
                code="bad-step-arguments",
            )
        return typed


@frozen(kw_only=True)
class UsedCode(WrittenStep[object], PythonStep[object]):
    """A registered `PythonStep`, made for each execution."""

    id: str
    spec: UsesSpec
    maker: _Maker

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of `with`."""
        return self.maker.templates

    async def run(self, scope: StepScope) -> object:
        """Make the registered step, and run it.

        Raises:
            Exception: Any exception that the class raises.
        """
        step = self.maker.make(self.id, scope.context.values)
        assert isinstance(step, PythonStep)  # noqa: S101  # a class of such steps was registered
        output: object = await step.run(scope)
        return output


@frozen(kw_only=True)
class UsedStep(WrittenStep[object], Step[object]):
    """A registered `Step`, made once if its arguments are constant, else for each execution."""

    id: str
    spec: UsesSpec
    maker: _Maker
    inner: Step[object] | None = None
    """The registered step; None: it is made when its execution begins."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of `with`."""
        return self.maker.templates

    def bound(self, values: Mapping[str, JsonValue]) -> Step[object]:
        """The step for one execution; if it cannot be made, a step that fails with the reason."""
        if self.inner is not None:
            return self
        try:
            inner = self.maker.make(self.id, values)
        except MinionsError as error:
            return _Unmade(id=self.id, spec=self.spec, error=error)
        return UsedStep(id=self.id, spec=self.spec, maker=self.maker, inner=inner)

    @property
    def _made(self) -> Step[object]:
        assert self.inner is not None  # noqa: S101  # executions begin with `bound`
        return self.inner

    @property
    def metadata(self) -> Mapping[str, object]:
        """The metadata of the registered step, overlaid by the recipe's."""
        own = self.inner.metadata if self.inner is not None else {}
        return {**own, **super().metadata}

    @property
    def goal(self) -> Message | None:
        """The goal of the registered step."""
        return self._made.goal

    @property
    def system_prompt(self) -> Message | None:
        """The system prompt of the registered step."""
        return self._made.system_prompt

    @property
    def available_tools(self) -> frozenset[str]:
        """The tools of the registered step; empty before it is made."""
        return self._made.available_tools if self.inner is not None else frozenset()

    @property
    def completion_criteria(self) -> CompletionCriteria:
        """The completion criteria of the registered step."""
        return self._made.completion_criteria

    @property
    def completion_chain(self) -> StepCompletionChain | None:
        """The completion chain of the registered step."""
        return self._made.completion_chain

    @property
    def output(self) -> OutputInstructions[object] | None:
        """The output of the registered step; None before it is made."""
        return self._made.output if self.inner is not None else None

    @property
    def decision_tool(self) -> ToolCallRequest | None:
        """The decision tool of the registered step; None before it is made."""
        return self._made.decision_tool if self.inner is not None else None

    @property
    def tool_failure(self) -> str:
        """The `tool_failure` of the registered step."""
        return self._made.tool_failure

    @property
    def at_limit(self) -> str:
        """The `at_limit` of the registered step."""
        return self._made.at_limit

    @property
    def history(self) -> HistoryWindow | None:
        """The `history` of the registered step; None before it is made."""
        return self.inner.history if self.inner is not None else None

    @property
    def shares_conversation(self) -> bool:
        """The `shares_conversation` of the registered step; False before it is made."""
        return self.inner is not None and self.inner.shares_conversation

    @property
    def version(self) -> str:
        """The version of the registered step; `1` before it is made."""
        return self._made.version if self.inner is not None else "1"

    def messages(self, view: RunContext) -> Sequence[Message]:
        """The messages of the registered step."""
        return self._made.messages(view)


@frozen(kw_only=True)
class _Unmade(WrittenStep[object], PythonStep[object]):
    """Replaces a step that could not be made."""

    id: str
    spec: UsesSpec
    error: MinionsError

    async def run(self, scope: StepScope) -> object:
        """Fail with the reason.

        Raises:
            MinionsError: Always.
        """
        raise self.error


def used_step(
    spec: UsesSpec, kinds: Mapping[str, type[Step[object]]], compiled: Templates
) -> UsedCode | UsedStep:
    """Build the step of a spec.

    Raises:
        UsageError: The class is not registered, or refuses constant arguments.
    """
    kind = kinds.get(spec.uses)
    if kind is None:
        raise UsageError(
            f"Step '{spec.id}' uses '{spec.uses}', which is not registered. Registered steps: "
            f"{', '.join(kinds) or 'none'}.",
            code="unknown-step-class",
        )
    given = {name: compiled.compile(value) for name, value in spec.given.items()}
    maker = _Maker(kind, given)
    if issubclass(kind, PythonStep):
        return UsedCode(id=spec.id, spec=spec, maker=maker)
    inner = maker.make(spec.id, {}) if maker.is_constant else None
    return UsedStep(id=spec.id, spec=spec, maker=maker, inner=inner)
