"""Tool calls: one attempt, the attempts of one call, and the batch of one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    CallStatus,
    ToolCall,
    ToolCallExecutor,
    ToolCallExecutorFactory,
    ToolCallResponse,
    ToolFailure,
)
from minions.contracts.codec import encode
from minions.contracts.context import RunContext
from minions.contracts.errors import MinionsError, ToolError, near_names
from minions.contracts.events import Retrying
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.messages import ToolCallRequest, tool_result
from minions.contracts.schema import SchemaValidator
from minions.contracts.tools import Effect, Tool, ToolScope
from minions.engine.completion import FINAL_ANSWER
from minions.engine.context import StepView
from minions.engine.retry import is_being_cancelled, is_retryable_error, with_retries

__all__ = ["DefaultToolCallExecutor", "ToolBatch", "tool_call_executors"]


def tool_call_executors() -> ToolCallExecutorFactory:
    """The factory for tools in the run's own toolbox."""
    executor = DefaultToolCallExecutor()

    def factory(_call: ToolCall, _context: RunContext) -> ToolCallExecutor:
        return executor

    return factory


class DefaultToolCallExecutor(ToolCallExecutor):
    """Finds the tool, checks permission and arguments, invokes it within its time."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """One attempt."""
        tool = context.tools.find(call.name)
        if tool is None:
            return self._without_tool(call, context)
        if tool.spec.is_write and not context.may_write:
            return Failure(_denied(tool))
        arguments = _arguments(call.request)
        if not is_successful(arguments):
            return Failure(arguments.failure())
        values = arguments.unwrap()
        if errors := self._validator(tool).errors(values):
            return Failure(_misfit(tool, errors))
        return await _invoke(tool, values, call, context)

    def _without_tool(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        if call.name == FINAL_ANSWER:  # ends the step; needs no tool of that name
            return Success(ToolCallResponse(content="The step is complete."))
        names = context.tools.names
        near = near_names(call.name, names)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return Failure(
            ToolFailure(
                code="unknown-tool",
                message=f"There is no tool '{call.name}' here.{hint} "
                f"Available tools: {', '.join(names) or 'none'}.",
                is_mendable=True,
                suggestions=near,
            )
        )

    def _validator(self, tool: Tool) -> SchemaValidator:
        """One per schema: tools need no hash, and each run opens new ones."""
        parameters = tool.spec.parameters
        text = dumps(parameters)
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = SchemaValidator(parameters)
        return validator


def _denied(tool: Tool) -> ToolFailure:
    return ToolFailure(
        code="permission-denied",
        message=f"The tool '{tool.spec.name}' writes ({tool.spec.effect.value}) and the recipe "
        "does not allow it. If it should, set `permissions: {allow_write: true}`.",
    )


def _misfit(tool: Tool, errors: Sequence[str]) -> ToolFailure:
    return ToolFailure(
        code="bad-arguments",
        message=f"The arguments do not fit the tool '{tool.spec.name}': {'; '.join(errors)}. "
        f"Its parameters are: {dumps(tool.spec.parameters.get('properties', {}))}.",
        is_mendable=True,
    )


def _arguments(request: ToolCallRequest) -> Result[Mapping[str, JsonValue], ToolFailure]:
    """The arguments as a mapping; an empty text is none."""
    try:
        value = json.loads(request.arguments or "{}")
    except (ValueError, RecursionError) as error:
        return _no_arguments(request, f"are not JSON ({error})")
    if not isinstance(value, dict):
        return _no_arguments(request, f"are a JSON {type(value).__name__}, not an object")
    return Success(value)


def _no_arguments(
    request: ToolCallRequest, what: str
) -> Result[Mapping[str, JsonValue], ToolFailure]:
    return Failure(
        ToolFailure(
            code="bad-arguments",
            message=f"The arguments of '{request.name}' {what}: {request.arguments[:200]!r}. "
            "Send one JSON object.",
            is_mendable=True,
        )
    )


async def _invoke(
    tool: Tool, arguments: Mapping[str, JsonValue], call: ToolCall, context: RunContext
) -> Result[ToolCallResponse, ToolFailure]:
    spec = tool.spec
    timeout_s = spec.timeout_s or context.limits.tool_timeout_s
    scope = ToolScope(
        run_id=context.run_id,
        step_id=context.step_id,
        call_id=call.request.id,
        idempotency_key=f"{context.run_id}/{call.key}",
        max_result_bytes=context.limits.max_tool_result_bytes,
    )
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            result = await tool.invoke(arguments, scope)
    except ToolError as error:
        return Failure(
            ToolFailure(
                code=error.error_code,
                message=error.message,
                is_mendable=True,
                suggestions=error.suggestions,
            )
        )
    except TimeoutError as error:
        if deadline.expired():
            return Failure(_overrun(tool, timeout_s))
        return Failure(_raised(tool, error))
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        return Failure(_raised(tool, error))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the rim of a tool call: a stranger's code raises anything
        return Failure(_raised(tool, error))
    return _response(tool, result, context.limits.max_tool_result_bytes)


def _overrun(tool: Tool, timeout_s: float) -> ToolFailure:
    """An overrun may still have its effect, so only what changes nothing is tried again."""
    return ToolFailure(
        code="tool-timeout",
        message=f"The tool '{tool.spec.name}' did not answer within {timeout_s:g} s "
        "(limit tool_timeout_s).",
        is_retryable=tool.spec.effect in (Effect.PURE, Effect.IDEMPOTENT),
    )


def _raised(tool: Tool, error: BaseException) -> ToolFailure:
    may_repeat = tool.spec.effect is not Effect.ONCE
    if isinstance(error, MinionsError):
        code, text = error.error_code, error.message
    else:
        code, text = "tool-failed", f"{type(error).__name__}: {error}"
    return ToolFailure(
        code=code,
        message=f"The tool '{tool.spec.name}' failed: {text}",
        is_retryable=may_repeat and is_retryable_error(error, unless_known=True),
    )


def _response(tool: Tool, result: object, most_bytes: int) -> Result[ToolCallResponse, ToolFailure]:
    name = tool.spec.name
    try:
        value = encode(result)
        content = value if isinstance(value, str) else dumps(value)
        size = len(content.encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError) as error:
        return Failure(
            ToolFailure(
                code="tool-result-not-json",
                message=f"The tool '{name}' returned {type(result).__name__}, which is not JSON "
                f"({error}). Return text, numbers, lists, mappings or attrs values.",
            )
        )
    if size > most_bytes:
        return Failure(
            ToolFailure(
                code="tool-result-too-large",
                message=f"The tool '{name}' returned {size:,} bytes; at most {most_bytes:,} are "
                "taken (limit max_tool_result_bytes). Ask for less at a time.",
                is_mendable=True,
            )
        )
    if tool.spec.success_key and isinstance(value, dict) and value.get("success") is False:
        reason = value.get("error") or value.get("message") or content
        return Failure(
            ToolFailure(
                code="tool-unsuccessful",
                message=f"The tool '{name}' says success: false: {reason}",
                is_mendable=True,
            )
        )
    return Success(ToolCallResponse(content=content, value=value))


# --- the attempts of a call, and the batch --------------------------------------------------


@frozen(kw_only=True)
class ToolBatch:
    """Runs the tool calls of one answer and puts their results into memory in request order."""

    view: StepView
    factory: ToolCallExecutorFactory
    reports_failures: bool
    """Policy `report`: what is left over after the retries goes to the model."""

    async def run(
        self, requests: Sequence[ToolCallRequest], key: str, *, remember: bool = True
    ) -> tuple[ToolCall, ...]:
        """All calls, carried out, in request order.

        Workers return values and touch no memory, so one call's failed attempt can never
        erase its neighbour's result.

        Args:
            key: Of the answer; each call's key adds its index.
            remember: Whether a conversation waits for the results.
        """
        calls = [
            ToolCall(key=f"{key}/{index}", request=request)
            for index, request in enumerate(requests)
        ]
        if self.view.limits.sequential_tool_calls or len(calls) == 1:
            done = [await self._carry_out(call) for call in calls]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._carry_out(call)) for call in calls]
            done = [task.result() for task in tasks]
        if remember:
            for call in done:
                await self._remember(call)
        return tuple(done)

    async def _carry_out(self, call: ToolCall) -> ToolCall:
        view, services = self.view, self.view.context.services
        started_at, begin = services.clock.now(), services.clock.monotonic()
        recorder = view.context.recorder
        facts: dict[str, JsonValue] = {
            "step_id": view.step_id,
            "call_id": call.request.id,
            "tool": call.name,
        }
        await recorder.record(
            "tool_call", call.key, "started", {**facts, "arguments": call.request.arguments}
        )
        running = evolve(call, status=CallStatus.EXECUTING, started_at=started_at)
        executor = self.factory(running, view)
        attempted = await with_retries(
            lambda: executor.execute(running, view),
            most=view.limits.max_tool_call_retries + 1,
            config=view.context.recipe.retry,
            services=services,
            on_retry=lambda attempt, delay_s, failure: self._tell_retry(
                call, attempt, delay_s, failure
            ),
        )
        done = self._settled(running, attempted.outcome, attempted.attempts)
        done = evolve(done, completed_at=services.clock.now())
        facts["attempts"] = done.attempts
        facts["duration_ms"] = round((services.clock.monotonic() - begin) * 1000, 3)
        await recorder.record("tool_call", call.key, _state(done), {**facts, **_result_body(done)})
        return done

    def _settled(
        self, call: ToolCall, outcome: Result[ToolCallResponse, ToolFailure], attempts: int
    ) -> ToolCall:
        """A mendable failure, or any under policy `report`, becomes an answer the model reads."""
        if is_successful(outcome):
            return evolve(
                call, status=CallStatus.COMPLETED, response=outcome.unwrap(), attempts=attempts
            )
        failure = outcome.failure()
        answers = failure.is_mendable or (
            self.reports_failures and failure.code != "permission-denied"
        )
        response = ToolCallResponse(content=f"Error: {failure.message}", is_error=True)
        return evolve(
            call,
            status=CallStatus.COMPLETED if answers else CallStatus.FAILED,
            response=response,
            failure=failure,
            attempts=attempts,
        )

    async def _remember(self, call: ToolCall) -> None:
        view = self.view
        content = call.response.content if call.response else ""
        view.memory.save_tool_response(
            view.conversation_id,
            tool_result(content, tool_call_id=call.request.id, name=call.name),
        )
        body: dict[str, JsonValue] = {
            "step_id": view.step_id,
            "conversation": view.conversation_id,
            "call": call.key,
            "tool_call_id": call.request.id,
            "name": call.name,
        }
        await view.context.recorder.record("message", f"{call.key}/answer", "recorded", body)

    def _tell_retry(
        self, call: ToolCall, attempt: int, delay_s: float, failure: ToolFailure
    ) -> None:
        context = self.view.context
        context.services.log.warning(
            "tool_call_retried", tool=call.name, attempt=attempt, code=failure.code
        )
        context.events.publish(
            Retrying(
                run_id=context.run_id,
                session_id=context.session_id,
                timestamp=context.services.clock.now(),
                step_id=self.view.step_id,
                what=call.name,
                attempt=attempt,
                delay_s=delay_s,
                error=dict(failure.info().to_json()),
            )
        )


def _state(call: ToolCall) -> str:
    return "finished" if call.status is CallStatus.COMPLETED else "failed"


def _result_body(call: ToolCall) -> dict[str, JsonValue]:
    """The value, or the words where there is no value; never both."""
    response = call.response
    if response is None:
        return {}
    if call.failure is not None:
        return {"content": response.content, "error": dict(call.failure.info().to_json())}
    if response.value is None or isinstance(response.value, str):
        return {"content": response.content}
    return {"value": response.value}
