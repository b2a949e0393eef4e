"""Tool calls of agents: registered functions, called in parallel with checked arguments."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, TypeVar

from minions.contracts.agent_errors import StepResult, ValidationError
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Tool, ToolScope
from minions.data.codec import encode
from minions.data.errors import NotFoundError, ToolError, near_hint, near_names, words_of
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, SchemaValidator
from minions.engine.agents.results import category_of, peak_memory_bytes
from minions.engine.services.event_loop import DaemonPool
from minions.engine.services.retry import is_being_cancelled
from minions.engine.services.run_services import Services

T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0
"""Seconds for an agent step and for a tool call, where neither step nor context says another."""


class RegisteredTool(TypedDict):
    """A tool as `register_tool` stores it."""

    func: Callable[..., object]
    schema: JsonSchema | None
    is_async: bool


def seconds_in(context: Mapping[str, object] | None, default: float | None) -> float | None:
    """The `timeout` of the context in seconds; the default where it has none.

    Raises:
        ValidationError: It is no number.
    """
    own = (context or {}).get("timeout")
    if own is None:
        return default
    if isinstance(own, bool) or not isinstance(own, int | float):
        raise ValidationError(f"The timeout is {own!r}; a number of seconds was expected.")
    return own


def validate_against_schema(value: object, schema: JsonSchema) -> None:
    """Check a value against a JSON Schema.

    Raises:
        ValidationError: It does not fit; the message has one part for each wrong place.
        SchemaError: The schema is invalid.
    """
    _check(value, SchemaValidator(schema))


def _check(value: object, validator: SchemaValidator) -> None:
    try:
        errors = validator.errors(encode(value))
    except TypeError as error:
        errors = (f"$: {error}",)
    if errors:
        raise ValidationError(f"The value does not fit its schema: {'; '.join(errors)}.")


class ToolCalls:
    """The part of an executor of agent steps that calls tools."""

    def __init__(self, services: Services, timeout_s: float | None, pool_size: int) -> None:
        self._services = services
        self._agent_log = services.log
        self._tool_timeout_s = timeout_s
        self._blocking = DaemonPool(pool_size)
        self._tool_registry: dict[str, RegisteredTool] = {}
        self._validators: dict[str, SchemaValidator] = {}

    def register_tool(
        self,
        tool_name: str,
        tool_func: Callable[..., object] | Tool,
        validation_schema: JsonSchema | None = None,
    ) -> None:
        """Register a function, async or not, or a `Tool`; one of the same name is replaced.

        Args:
            validation_schema: JSON Schema of the arguments; None: that of a `Tool`, and for a
                function only whether it takes arguments of these names.
        Raises:
            SchemaError: The schema is invalid or unsafe.
        """
        if isinstance(tool_func, Tool):
            validation_schema = validation_schema or tool_func.spec.parameters
            tool_func = _invoking(tool_func, self._services)
        if validation_schema is not None:
            self._validator(validation_schema)
        self._tool_registry[tool_name] = {
            "func": tool_func,
            "schema": validation_schema,
            "is_async": inspect.iscoroutinefunction(tool_func),
        }

    async def execute_tool_calls(
        self,
        tool_calls: Sequence[Mapping[str, object] | ToolCallRequest],
        context: Mapping[str, object] | None = None,
    ) -> list[StepResult]:
        """Call tools in parallel, once each, and return their results in the order of the calls.

        Args:
            tool_calls: Each with `name` (or `tool_name`) and `arguments` (or `args`, `parameters`),
                a mapping or JSON text, and perhaps an `id`; or those of a model's answer, also in
                the provider's form (`function`).
            context: Its `timeout` are the seconds for each call.
        Returns:
            For each call `tool_name`, `result`, `error` (None: it succeeded) and `execution_time`
            in seconds, of a call with an id its `tool_call_id`, and of a failure `error_type`,
            `category` and what belongs to the type.
        Raises:
            ValidationError: The timeout is no number; nothing was called.
        """
        seconds_in(context, None)  # a wrong one is refused before anything is called
        calls = [_as_call(call) for call in tool_calls]
        tasks = [self._execute_single_tool(call, context) for call in calls]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return self._format_tool_results(calls, results)

    async def execute_blocking_tool(
        self,
        tool_func: Callable[..., T],
        *args: object,
        **kwargs: object,
    ) -> T:
        """The result of a function that blocks, called on one of the executor's daemon threads.

        Context variables are those of the caller. A call that is cancelled leaves its thread alone.
        """
        return await self._blocking.run(functools.partial(tool_func, *args, **kwargs))

    # --- what a subclass may override or call -------------------------------------------------

    async def _execute_single_tool(
        self, tool_call: Mapping[str, object], context: Mapping[str, object] | None
    ) -> StepResult:
        """The result of one call; a failure is a result, too."""
        clock = self._services.clock
        begin = clock.monotonic()
        timeout_s = seconds_in(context, self._tool_timeout_s)
        result: StepResult = {"tool_name": _name_of(tool_call), "result": None, "error": None}
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                result["result"] = await self._call_tool(tool_call)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            result |= _failure(error, None)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the rim of a tool call: a stranger's code raises anything
            result |= _failure(error, timeout_s if deadline.expired() else None)
        result["execution_time"] = clock.monotonic() - begin
        return result | _id_of(tool_call)

    def _format_tool_results(
        self,
        tool_calls: Sequence[Mapping[str, object]],
        results: Sequence[StepResult | BaseException],
    ) -> list[StepResult]:
        """The results in the order of the calls; an exception becomes an error result."""
        return [
            {"tool_name": _name_of(call), "result": None, **_failure(result, None)}
            | {"execution_time": 0.0}
            | _id_of(call)
            if isinstance(result, BaseException)
            else result
            for call, result in zip(tool_calls, results, strict=True)
        ]

    async def _call_tool(self, tool_call: Mapping[str, object]) -> object:
        name, arguments = _name_of(tool_call), _arguments_of(tool_call)
        tool = self._tool_registry.get(name)
        if tool is None:
            near = near_names(name, self._tool_registry)
            raise _UnknownToolError(
                f"There is no tool '{name}'.{near_hint(near)} Tools are: "
                f"{', '.join(self._tool_registry) or 'none'}.",
                suggestions=near,
            )
        if (schema := tool["schema"]) is not None:
            validator = self._validator(schema)
            await match_beside_loop(lambda: _check(arguments, validator))
        call = _bind_arguments(tool["func"], arguments)
        result = call() if tool["is_async"] else await self.execute_blocking_tool(call)
        return await result if inspect.isawaitable(result) else result

    def _validator(self, schema: JsonSchema) -> SchemaValidator:
        """One for each schema: to compile it takes milliseconds."""
        text = dumps(schema)
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = SchemaValidator(schema)
        return validator


class _UnknownToolError(NotFoundError):
    """No tool of that name is registered."""


# --- calls -----------------------------------------------------------------------------------


def _as_call(tool_call: object) -> Mapping[str, object]:
    """The call as a mapping; of anything else one that names no tool."""
    if isinstance(tool_call, ToolCallRequest):
        return {"id": tool_call.id, "name": tool_call.name, "arguments": tool_call.arguments}
    return tool_call if isinstance(tool_call, Mapping) else {}


def _name_of(tool_call: Mapping[str, object]) -> str:
    function = tool_call.get("function")
    named = function if isinstance(function, Mapping) else tool_call
    return str(named.get("name") or named.get("tool_name") or named.get("tool") or "")


def _id_of(tool_call: Mapping[str, object]) -> StepResult:
    found = tool_call.get("id") or tool_call.get("tool_call_id")
    return {"tool_call_id": found} if found else {}


def _arguments_of(tool_call: Mapping[str, object]) -> Mapping[str, object]:
    """The arguments of the call.

    Raises:
        ValidationError: They are neither a mapping nor the JSON text of one.
    """
    function = tool_call.get("function")
    holder = function if isinstance(function, Mapping) else tool_call
    keys = ("arguments", "args", "parameters", "params")
    given = next((holder[key] for key in keys if holder.get(key) is not None), {})
    if isinstance(given, str):
        try:
            given = parse_json(given or "{}")
        except ValueError as error:
            raise ValidationError(f"The arguments are not JSON ({error}).") from error
    if not isinstance(given, Mapping):
        raise ValidationError(f"The arguments are {type(given).__name__}, not a mapping.")
    return given


def _bind_arguments(
    function: Callable[..., object], arguments: Mapping[str, object]
) -> Callable[[], object]:
    """The call of the function.

    Raises:
        ValidationError: The function does not take arguments of these names.
    """
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValidationError(f"The arguments do not fit the function: {error}.") from error
    except ValueError:  # a function of an extension module tells no signature
        pass
    return functools.partial(function, **arguments)


def _invoking(tool: Tool, services: Services) -> Callable[..., object]:
    """A function that calls the tool, each time under a key of its own."""

    async def invoke(**arguments: JsonValue) -> object:
        call_id = services.ids("call")
        scope = ToolScope(
            run_id="",
            step_id="",
            call_id=call_id,
            idempotency_key=call_id,
            now=services.clock.now,
            sleep=services.sleep,
        )
        return await tool.invoke(arguments, scope)

    return invoke


# --- failures --------------------------------------------------------------------------------


def _failure(error: BaseException, timeout_s: float | None) -> StepResult:
    result = _failure_of_type(error, timeout_s)
    result["category"] = category_of(result, error)
    return result


def _failure_of_type(error: BaseException, timeout_s: float | None) -> StepResult:
    match error:
        case ValidationError():
            return {"error": error.message, "error_type": "validation_error"}
        case _UnknownToolError():
            near = list(error.suggestions)
            return {"error": error.message, "error_type": "tool_not_found", "suggestions": near}
        case ToolError():
            is_mismatch = error.error_code == "bad-arguments"
            kind = "validation_error" if is_mismatch else "tool_error"
            return {"error": error.message, "error_type": kind}
        case TimeoutError():
            text = f"The tool timed out after {timeout_s:g} s" if timeout_s else words_of(error)
            return {"error": text, "error_type": "timeout", "timeout_seconds": timeout_s}
        case MemoryError():
            usage = peak_memory_bytes()
            text = "Memory limit exceeded"
            return {"error": text, "error_type": "resource_limit", "memory_usage": usage}
        case _:
            return {"error": words_of(error), "error_type": "tool_error"}
