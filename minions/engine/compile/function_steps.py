"""Typed functions as steps: `@step`. A function with a body is code; else a model does the work."""

from __future__ import annotations

import dis
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Final, Generic, ParamSpec, Self, TypeVar, cast, overload

from attrs import evolve, frozen
from msgspec import Struct

from minions.contracts.completion import CompletionCriteria
from minions.contracts.context import RunContext
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import OutputInstructions, T_co
from minions.contracts.messages import Message, MessageRole
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.codec import decode, encode
from minions.data.errors import FailureInfo, SchemaError, StepFailedError, UsageError
from minions.data.field_repr import FieldsRepr
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object, dumps
from minions.data.schema import SchemaValidator
from minions.recipe.expressions.template import Template, compile_template

P = ParamSpec("P")
R = TypeVar("R")


class _Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of a step function."""

    name: str
    type: type[object]
    is_scope: bool
    default: object
    """The default; `inspect.Parameter.empty`: there is none."""

    @property
    def is_required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is inspect.Parameter.empty


@frozen(kw_only=True)
class _Definition(FieldsRepr):
    """What is known of a step function from its signature, docstring and decorator."""

    id: str
    description: str
    goal: str
    parameters: tuple[_Parameter, ...]
    returns: type[object]
    tools: frozenset[str]
    metadata: Mapping[str, object]
    version: str

    @property
    def visible(self) -> Iterator[_Parameter]:
        """The parameters that receive values: all but the scope."""
        return (parameter for parameter in self.parameters if not parameter.is_scope)

    def arguments(
        self, values: Mapping[str, JsonValue], given: Mapping[str, object]
    ) -> dict[str, object]:
        """The arguments of the function, without the scope.

        Args:
            values: The values that templates may read: inputs, and outputs of earlier steps.
            given: Arguments that are bound already, of the declared types.
        Raises:
            StepFailedError: `bad-step-arguments`; lists each one that is missing or does not fit.
        """
        inputs = as_object(values.get("inputs") or {})
        found: dict[str, object] = dict(given)
        faults: list[str] = []
        for parameter in self.visible:
            name = parameter.name
            if name in given:
                continue
            if name in values or name in inputs:
                value = values[name] if name in values else inputs[name]
                try:
                    found[name] = decode(value, parameter.type)
                except ValueError as error:
                    faults.append(f"'{name}': {error}")
            elif parameter.is_required:
                faults.append(f"'{name}': no earlier step and no input has this name")
        if faults:
            raise _failure("bad-step-arguments", f"Step '{self.id}': {'; '.join(faults)}.")
        return found


class FunctionStep(Step[T_co], Generic[P, T_co]):
    """A function that is a step and can still be called as a function.

    Its id is the function's name, and its output has the function's return type. Each parameter is
    the output of the earlier step of that name, else the input of that name; one of type
    `StepScope` receives the scope.
    """

    __name__: str
    __wrapped__: Callable[..., Awaitable[T_co]]

    def __init__(
        self,
        function: Callable[P, Awaitable[T_co]],
        definition: _Definition,
        given: Mapping[str, object] | None = None,
    ) -> None:
        """Use `step` instead, which checks the function."""
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._definition = definition
        self._given = dict(given or {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]:
        """Call the function itself, for Python callers and tests."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<step {self.id!r}>"

    @property
    def id(self) -> str:
        """The name of the function, or the `id` of the decorator."""
        return self._definition.id

    @property
    def description(self) -> str:
        """The first paragraph of the docstring, or the `description` of the decorator."""
        return self._definition.description

    @property
    def metadata(self) -> Mapping[str, object]:
        """The `metadata` of the decorator."""
        return self._definition.metadata

    @property
    def version(self) -> str:
        """The `version` of the decorator."""
        return self._definition.version

    def named(self, id: str, **given: object) -> Self:  # noqa: A002  # as everywhere in recipes
        """The same step under another id, with some of its parameters bound.

        Raises:
            UsageError: The function has no such parameter.
        """
        known = {parameter.name for parameter in self._definition.visible}
        for name in given:
            if name not in known:
                raise UsageError(
                    f"Step '{self.id}' has no parameter '{name}'. There are: "
                    f"{', '.join(sorted(known)) or 'none'}.",
                    code="bad-step-arguments",
                )
        definition = evolve(self._definition, id=id)
        function: Callable[P, Awaitable[T_co]] = self.__wrapped__
        return type(self)(function, definition, {**self._given, **given})

    def as_class(self) -> type[Step[object]]:
        """The class that recipes use by name: made with `id` and the function's parameters."""
        parameters = list(self._definition.visible)
        kind = inspect.Parameter.KEYWORD_ONLY
        signature = inspect.Signature(
            [inspect.Parameter(each.name, kind, default=each.default) for each in parameters],
            return_annotation=self._definition.returns,
        )
        function: Callable[P, Awaitable[T_co]] = self.__wrapped__
        definition = self._definition

        def make(made: FunctionStep[P, T_co], *, id: str, **given: object) -> None:  # noqa: A002
            FunctionStep.__init__(made, function, evolve(definition, id=id), given)

        body = {
            "__init__": make,
            "__doc__": self.__doc__,
            "__module__": self.__wrapped__.__module__,
            "__signature__": signature,
            "__annotations__": {each.name: each.type for each in parameters},
        }
        return cast("type[Step[object]]", type(self.__name__, (type(self),), body))


class _CodeStep(FunctionStep[P, T_co], PythonStep[T_co]):
    """A function with a body: Python code."""

    async def run(self, scope: StepScope) -> T_co:
        """Call the function, and check its result.

        Raises:
            StepFailedError: A parameter has no value, or the output is not of the declared type.
            Exception: Any exception that the function raises.
        """
        definition = self._definition
        arguments = definition.arguments(scope.context.values, self._given)
        for parameter in definition.parameters:
            if parameter.is_scope:
                arguments[parameter.name] = scope
        output = await self.__wrapped__(**arguments)
        if errors := self._check.errors(encode(output)):
            what = f"Step '{self.id}' returned something else than it declares: {'; '.join(errors)}"
            raise _failure("invalid-output", f"{what}.")
        return output

    @property
    def returned_type(self) -> object:
        """The return type of the function."""
        return self._definition.returns

    @functools.cached_property
    def _check(self) -> SchemaValidator:
        return SchemaValidator(schema_of(self._definition.returns))


class _PromptStep(FunctionStep[P, T_co]):
    """A function without a body: its docstring is the goal of a model."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]:
        """Never called: a model does the work.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"Step '{self.id}' has no body: a model does its work. Run it in a recipe.",
            code="no-body",
        )

    @property
    def available_tools(self) -> frozenset[str]:
        """The `tools` of the decorator."""
        return self._definition.tools

    @property
    def output(self) -> OutputInstructions[T_co] | None:
        """The schema of the return type; None for `str`: the text of the model's answer."""
        returns = self._definition.returns
        if returns is str:
            return None
        return OutputInstructions(output_class=cast("type[T_co]", returns))

    @property
    def completion_criteria(self) -> CompletionCriteria:
        """The declared output; for `str` the first answer without tool calls."""
        is_text = self._definition.returns is str
        mode = CompletionMode.TEXT if is_text else CompletionMode.STRUCTURED
        return CompletionCriteria(mode=mode)

    def messages(self, view: RunContext) -> Sequence[Message]:
        """The docstring with the parameters filled in; parameters that it does not name follow it.

        Raises:
            StepFailedError: A parameter has no value.
        """
        definition = self._definition
        arguments = definition.arguments(view.values, self._given)
        values: dict[str, JsonValue] = {
            parameter.name: encode(arguments.get(parameter.name, parameter.default))
            for parameter in definition.visible
        }
        text = self._goal.render(values)
        named = {str(reference.path[0]) for reference in self._goal.references}
        rest = [f"{name}: {_as_text(value)}" for name, value in values.items() if name not in named]
        content = "\n\n".join([text if isinstance(text, str) else dumps(text), *rest])
        return [Message(role=MessageRole.GOAL, content=content)]

    @functools.cached_property
    def _goal(self) -> Template:
        return compile_template(self._definition.goal)


@overload
def step(function: Callable[P, Awaitable[R]], /) -> FunctionStep[P, R]: ...


@overload
def step(
    *,
    id: str | None = None,
    description: str | None = None,
    tools: Iterable[str] = (),
    metadata: Mapping[str, object] | None = None,
    version: str = "1",
) -> Callable[[Callable[P, Awaitable[R]]], FunctionStep[P, R]]: ...


def step(
    function: Callable[P, Awaitable[R]] | None = None,
    /,
    *,
    id: str | None = None,  # noqa: A002  # as everywhere in recipes
    description: str | None = None,
    tools: Iterable[str] = (),
    metadata: Mapping[str, object] | None = None,
    version: str = "1",
) -> FunctionStep[P, R] | Callable[[Callable[P, Awaitable[R]]], FunctionStep[P, R]]:
    """Make a step of a typed async function: `@step` or `@step(tools=["search"])`.

    Its return type is the output's schema. Its parameters are outputs of earlier steps and inputs,
    by their names; one of type `StepScope` asks models and calls tools. Where the body is empty
    (`...`, `pass` or `raise NotImplementedError`) a model does the work, and the docstring is its
    goal: `{{ text }}` stands for the parameter `text`.

    Args:
        id: None: the function's name.
        description: For people; None: the first paragraph of the docstring.
        tools: That the model may call; only of a step without a body.
        metadata: Limits (`max_model_calls_per_step` …) and what you like.
        version: Change it when your code changes what a recorded run would do.
    Raises:
        UsageError: Parameters or return type that JSON cannot say; a function that is not async;
            no body and no docstring; tools for a step that is code.
    """

    def make(function: Callable[P, Awaitable[R]]) -> FunctionStep[P, R]:
        goal = inspect.getdoc(function) or ""
        is_prompt = _has_no_body(function)
        name = function.__name__
        _check_function(function, goal, is_prompt=is_prompt, has_tools=bool(tools))
        definition = _Definition(
            id=id or name,
            description=" ".join(goal.partition("\n\n")[0].split())
            if description is None
            else description,
            goal=goal,
            parameters=_parameters(function),
            returns=_returns(function),
            tools=frozenset(tools),
            metadata=dict(metadata or {}),
            version=version,
        )
        kind = _PromptStep if is_prompt else _CodeStep
        return kind(function, definition)

    return make if function is None else make(function)


def step_classes(
    steps: Mapping[str, type[Step[object]] | FunctionStep[..., object]],
) -> Mapping[str, type[Step[object]]]:
    """Registered steps, with functions turned into classes."""
    return {
        name: each.as_class() if isinstance(each, FunctionStep) else each
        for name, each in steps.items()
    }


# --- what a function says ------------------------------------------------------------------------


def _check_function(
    function: Callable[..., object], goal: str, *, is_prompt: bool, has_tools: bool
) -> None:
    what = None
    if not inspect.iscoroutinefunction(function):
        what = "it is not async. Write `async def`"
    elif is_prompt and not goal:
        what = "it has neither a body nor a docstring. Write the goal of the model into it"
    elif has_tools and not is_prompt:
        what = "it has a body, and code calls tools by its scope. Leave `tools` out"
    if what is not None:
        raise _refusal(function, f"{what}.")


def _refusal(function: Callable[..., object], what: str) -> UsageError:
    owner = getattr(function, "__qualname__", repr(function))
    return UsageError(f"The function '{owner}' cannot be a step: {what}", code="bad-step")


def _failure(code: str, message: str) -> StepFailedError:
    return StepFailedError(FailureInfo(code=code, message=message))


def _hints(function: Callable[..., object]) -> Mapping[str, type[object]]:
    try:
        return typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError) as error:
        raise _refusal(
            function,
            f"its type hints cannot be read: {error}. Define or import the types where the module "
            "can see them, not inside a function or TYPE_CHECKING.",
        ) from error


def _parameters(function: Callable[..., object]) -> tuple[_Parameter, ...]:
    hints = _hints(function)
    return tuple(
        _parameter(function, item, hints)
        for item in inspect.signature(function).parameters.values()
    )


def _parameter(
    function: Callable[..., object], item: inspect.Parameter, hints: Mapping[str, type[object]]
) -> _Parameter:
    if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD, item.POSITIONAL_ONLY):
        raise _refusal(function, f"'{item.name}' is {item.kind.description}.")
    if item.name not in hints:
        raise _refusal(function, f"'{item.name}' has no type hint.")
    hint = hints[item.name]
    if hint is not StepScope:
        _schema_or_refusal(function, f"'{item.name}'", hint)
    return _Parameter(name=item.name, type=hint, is_scope=hint is StepScope, default=item.default)


def _returns(function: Callable[..., object]) -> type[object]:
    hints = _hints(function)
    if "return" not in hints:
        raise _refusal(function, "it declares no return type, which is the schema of its output.")
    hint = hints["return"]
    _schema_or_refusal(function, "its return type", hint)
    return hint


def _schema_or_refusal(function: Callable[..., object], what: str, hint: type[object]) -> None:
    try:
        schema_of(hint)
    except SchemaError as error:
        raise _refusal(function, f"{what}: {error}") from error


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else dumps(value)


# --- whether there is a body -------------------------------------------------------------------


async def _docstring_alone() -> None:
    """An empty body is recognized by this function and the next ones."""


async def _dots() -> None: ...


async def _not_implemented() -> None:
    raise NotImplementedError


async def _not_implemented_documented() -> None:
    """A docstring and `raise NotImplementedError`."""
    raise NotImplementedError


def _shape(code: CodeType) -> tuple[tuple[str, object], ...]:
    """The instructions of a function, without the indexes of its constants."""
    names = ("LOAD_GLOBAL", "LOAD_CONST", "RETURN_CONST")
    return tuple(
        (each.opname, each.argval if each.opname in names else None)
        for each in dis.get_instructions(code)
    )


_EMPTY: Final = frozenset(
    _shape(each.__code__)
    for each in (_docstring_alone, _dots, _not_implemented, _not_implemented_documented)
)


def _has_no_body(function: Callable[..., object]) -> bool:
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and _shape(code) in _EMPTY
