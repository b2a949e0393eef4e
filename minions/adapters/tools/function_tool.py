"""`@tool` makes tools of typed functions. The engine validates
arguments; here they get their types.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

from attrs import evolve, frozen

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, ToolSpec
from minions.data.codec import decode, encode
from minions.data.errors import SchemaError, ToolError, UsageError, near_names
from minions.data.field_repr import FieldsRepr
from minions.data.hint_schemas import result_schema_of, schema_of
from minions.data.json_values import JsonValue, as_object
from minions.data.schema import JsonSchema

P = ParamSpec("P")
R = TypeVar("R")

EffectName: TypeAlias = Effect | Literal["pure", "idempotent", "once", "undeclared"]
ReadsName: TypeAlias = Reads | Literal["trusted", "untrusted", "private", "undeclared"]


class FunctionTool(Tool, Generic[P, R]):
    """A function that is a tool, and can still be called as a function."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self, function: Callable[P, R], spec: ToolSpec, parameters: Sequence[_Parameter]
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._spec = spec
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._is_async = _is_async(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self._spec.name!r}>"

    def by_name_only(self) -> FunctionTool[P, R]:
        """The same tool, which the name of its toolset does not offer to a model."""
        return self._with(evolve(self._spec, is_offered=False))

    def recording_changes(self) -> FunctionTool[P, R]:
        """The same tool, which records all that it changes."""
        return self._with(evolve(self._spec, records_changes=True))

    def _with(self, spec: ToolSpec) -> FunctionTool[P, R]:
        return FunctionTool(self.__wrapped__, spec, tuple(self._parameters.values()))

    @property
    def spec(self) -> ToolSpec:
        """The spec made of the signature, the docstring and the decorator's arguments."""
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Calls the function; one that is not async blocks a thread of `scope.blocking`.

        Raises:
            ToolError: The types of arguments refuse their values; one text for all of them.
        """
        values = self._structure_arguments(arguments)
        for parameter in self._parameters.values():
            if parameter.is_scope:
                values[parameter.name] = scope
        call = cast("Callable[[], object]", functools.partial(self.__wrapped__, **values))  # type: ignore[arg-type]  # made to fit by _structure_arguments
        if self._is_async:
            result = call()
        elif scope.blocking is not None:
            result = await scope.blocking.run(call)
        else:
            result = await run_in_daemon_thread(call)
        return await result if inspect.isawaitable(result) else result

    def _structure_arguments(self, arguments: Mapping[str, JsonValue]) -> dict[str, object]:
        values: dict[str, object] = {}
        faults: list[str] = []
        visible = [p for p in self._parameters.values() if not p.is_scope]
        for parameter in visible:
            if parameter.name not in arguments:
                if parameter.is_required:
                    faults.append(f"'{parameter.name}' is missing")
                continue
            try:
                values[parameter.name] = decode(arguments[parameter.name], parameter.type)
            except ValueError as error:
                faults.append(f"'{parameter.name}': {error}")
        known = [parameter.name for parameter in visible]
        faults.extend(_unknown(name, known) for name in arguments if name not in known)
        if faults:
            raise ToolError(
                f"The arguments of '{self._spec.name}' do not fit: {'; '.join(faults)}.",
                code="bad-arguments",
            )
        return values


def _unknown(name: str, known: Sequence[str]) -> str:
    near = near_names(name, known, limit=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known) or 'none'}"
    return f"there is no '{name}' ({hint})"


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = Effect.UNDECLARED,
    timeout_s: float | None = None,
    success_key: bool = True,
    reads: ReadsName = Reads.UNDECLARED,
    is_local: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = Effect.UNDECLARED,
    timeout_s: float | None = None,
    success_key: bool = True,
    reads: ReadsName = Reads.UNDECLARED,
    is_local: bool = False,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a typed function, sync or async: `@tool` or `@tool(effect="pure")`.

    Its parameters become the schema; `Annotated[int, "text"]` or the docstring's `Args` describes
    them, `Annotated[int, {"minimum": 1}]` adds keywords. A parameter of type `ToolScope` receives
    the scope and is not shown to the model. The return annotation is the type of the results:
    recipes are checked by it, and a result that does not fit fails its call.

    Args:
        name: The tool's name for the model; None: the function's name.
        description: None: the first paragraph of the docstring.
        effect: What it changes outside; decides about retries, permissions and recovery.
        timeout_s: Seconds per attempt; None: the step's `tool_timeout_s`.
        success_key: Whether a mapping result with `success: false` counts as a failure.
        reads: Whether a stranger may have written text in its results; see `Reads`.
        is_local: Whether what it changes stays where its own toolset reads; see `ToolSpec`.
    Raises:
        UsageError: An invalid name, or parameters that JSON cannot express; names every one of
            them.
    """

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        tool_name = _checked_name(
            getattr(function, "__name__", type(function).__name__) if name is None else name
        )
        known = _describe_function(function)
        spec = ToolSpec(
            name=tool_name,
            description=known.summary if description is None else description,
            parameters=_schema(known.parameters, tool_name),
            returns=known.returns,
            effect=_effect(effect, tool_name),
            timeout_s=timeout_s,
            success_key=success_key,
            reads=_reads(reads, tool_name),
            is_local=is_local,
        )
        return FunctionTool(function, spec, known.parameters)

    return make if function is None else make(function)


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be the name of a tool: 1 to 64 letters, digits, '_' and '-' are "
            "taken. Give one with tool(name=…).",
            code="bad-tool-name",
        )
    return name


def _effect(effect: str, name: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise UsageError(
            f"Tool '{name}': '{effect}' is not an effect. Effects are: {', '.join(Effect)}.",
            code="bad-tool",
            suggestions=near_names(effect, Effect),
        ) from None


def _reads(reads: str, name: str) -> Reads:
    try:
        return Reads(reads)
    except ValueError:
        raise UsageError(
            f"Tool '{name}': '{reads}' does not say what it reads. Say one of: {', '.join(Reads)}.",
            code="bad-tool",
            suggestions=near_names(reads, Reads),
        ) from None


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method is wanted, not whether it is
    )


# --- documentation ---------------------------------------------------------------------------


@frozen
class _Documentation(FieldsRepr):
    """The parts of a function's docstring."""

    summary: str
    arguments: Mapping[str, str]


def _documentation(text: str) -> _Documentation:
    summary, _, rest = text.partition("\n\n")
    arguments: dict[str, str] = {}
    if rest or ":param" in text:  # the parser takes 40 ms to import
        arguments = _argument_descriptions(text)
    return _Documentation(summary=" ".join(summary.split()), arguments=arguments)


def _argument_descriptions(text: str) -> dict[str, str]:
    import docstring_parser

    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return {}  # the docstring's style is unknown: no descriptions of arguments
    return {
        item.arg_name: " ".join((item.description or "").split())
        for item in parsed.params
        if item.description
    }


# --- parameters ------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Parameter(FieldsRepr):
    """One parameter of a function."""

    name: str
    type: type[object]
    """The type hint without `Annotated`."""
    is_scope: bool
    is_required: bool
    schema: Mapping[str, JsonValue]


@frozen(kw_only=True)
class _Signature(FieldsRepr):
    """What a function says of itself."""

    summary: str
    parameters: Sequence[_Parameter]
    returns: JsonSchema | None


def _describe_function(function: Callable[..., object]) -> _Signature:
    if inspect.ismethod(function):  # toolsets make tools of their methods at each opening
        return _describe_method(function.__func__)
    return _signature(function, list(inspect.signature(function).parameters.values()))


@functools.lru_cache(maxsize=128)
def _describe_method(function: Callable[..., object]) -> _Signature:
    return _signature(function, list(inspect.signature(function).parameters.values())[1:])


def _signature(
    function: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> _Signature:
    docs = _documentation(inspect.getdoc(function) or "")
    owner = getattr(function, "__qualname__", repr(function))
    hints = _hints(function, owner, include_extras=True)
    return _Signature(
        summary=docs.summary,
        parameters=_parameters(function, owner, parameters, hints, docs.arguments),
        returns=_result_schema(hints.get("return", object)),
    )


def _parameters(
    function: Callable[..., object],
    owner: str,
    items: Sequence[inspect.Parameter],
    hints: Mapping[str, object],
    descriptions: Mapping[str, str],
) -> Sequence[_Parameter]:
    types = _hints(function, owner, include_extras=False)
    parameters: list[_Parameter] = []
    faults: list[str] = []
    for item in items:
        try:
            parameters.append(_parameter(item, hints, types, descriptions.get(item.name)))
        except SchemaError as error:
            faults.append(f"'{item.name}': {error}")
    if faults:
        raise UsageError(
            f"The function '{owner}' cannot be a tool. {' '.join(faults)}", code="bad-tool"
        )
    return parameters


def _hints(
    function: Callable[..., object], owner: str, *, include_extras: bool
) -> Mapping[str, object]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=include_extras)
    except (NameError, AttributeError, TypeError) as error:
        raise UsageError(
            f"The type hints of '{owner}' cannot be read: {error}. Define or import the types "
            "where the module can see them, not inside a function or TYPE_CHECKING.",
            code="bad-tool",
        ) from error


def _result_schema(hint: object) -> JsonSchema | None:
    """What the return annotation says of the results; None: it says nothing."""
    while typing.get_origin(hint) in _AWAITED:
        hint = typing.get_args(hint)[-1]
    return result_schema_of(hint)


_AWAITED: Final = (collections.abc.Awaitable, collections.abc.Coroutine)


def _parameter(
    item: inspect.Parameter,
    hints: Mapping[str, object],
    types: Mapping[str, object],
    description: str | None,
) -> _Parameter:
    """One parameter of the signature.

    Args:
        types: The type hints without `Annotated`.
    Raises:
        SchemaError: JSON cannot express the parameter.
    """
    if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD, item.POSITIONAL_ONLY):
        raise SchemaError(
            f"it is {item.kind.description}; a model gives every argument by a fixed name."
        )
    if item.annotation is item.empty:
        raise SchemaError("it has no type hint.")
    is_scope = types[item.name] is ToolScope
    return _Parameter(
        name=item.name,
        type=cast("type[object]", types[item.name]),
        is_scope=is_scope,
        is_required=item.default is item.empty,
        schema={} if is_scope else _parameter_schema(item, hints[item.name], description),
    )


def _parameter_schema(
    item: inspect.Parameter, hint: object, description: str | None
) -> dict[str, JsonValue]:
    schema = schema_of(hint)
    if description and not any(isinstance(note, str) for note in _notes(hint)):
        schema["description"] = description
    if item.default is not item.empty:
        # A default that is not JSON is left out of the schema; the function still uses it.
        with contextlib.suppress(TypeError):
            schema["default"] = _as_json(item.default)
    return schema


def _as_json(value: object) -> JsonValue:
    """The value as JSON. Plain values stay as they are: the codec's
    library takes 50 ms to import.
    """
    if value is None or (isinstance(value, bool | int | str) and type(value) in (bool, int, str)):
        return value
    return encode(value)


def _notes(hint: object) -> Sequence[object]:
    """The descriptions and keywords of an `Annotated`."""
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()


def _schema(parameters: Sequence[_Parameter], owner: str) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {}
    definitions: dict[str, JsonValue] = {}
    for parameter in parameters:
        if not parameter.is_scope:
            schema = dict(parameter.schema)
            _merge_definitions(definitions, schema.pop("$defs", {}), owner)
            properties[parameter.name] = schema
    schema = {"type": "object", "properties": properties}
    if required := [p.name for p in parameters if p.is_required and not p.is_scope]:
        schema["required"] = required
    schema["additionalProperties"] = False
    if definitions:
        schema["$defs"] = definitions
    return schema


def _merge_definitions(into: dict[str, JsonValue], more: JsonValue, owner: str) -> None:
    for name, body in as_object(more).items():
        if into.setdefault(name, body) != body:
            raise UsageError(
                f"Tool '{owner}': two of its types are called '{name}'. Rename one.",
                code="bad-tool",
            )
