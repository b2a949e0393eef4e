"""One attempt at a tool call: the tool is found, allowed, given its arguments, and timed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from attrs import evolve, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import CallOrigin, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.context import RunContext, ToolCallExecutor
from minions.contracts.messages import ToolCallRequest
from minions.contracts.runtime import BlockingCalls
from minions.contracts.secrets import Secrets
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import AgentCalls, AgentInfo, Effect, Tool, ToolQuestions, ToolScope
from minions.data.codec import encode
from minions.data.errors import (
    UNFIT_RESULT,
    MinionsError,
    ToolError,
    ToolServerError,
    did_you_mean,
    near_hint,
    near_names,
    words_of,
)
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.json_parts import is_large
from minions.data.json_values import (
    JsonValue,
    as_object,
    dumps,
    dumps_in_parts,
    json_type,
    parse_json,
)
from minions.data.schema import JsonSchema, SchemaValidator
from minions.engine.compile.completion_links import FINAL_ANSWER
from minions.engine.services.event_loop import beside
from minions.engine.services.retry import is_being_cancelled, is_retryable_error

T = TypeVar("T")
_MOST_UNKNOWN: Final = 400
"""Characters on names of arguments that are no parameters."""


_MOST_KNOWN: Final = 512
"""Schemas of tools that are found again without a look at their text."""
_LONG: Final = 1_000
"""Values of arguments, and of a result, with which something is done at once."""


class DefaultToolCallExecutor(ToolCallExecutor):
    """Finds the tool, checks permission and arguments, invokes it within its time."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}
        self._known: dict[int, tuple[JsonSchema, SchemaValidator]] = {}
        """By the identity of a schema, which is kept, so that no other one has it."""

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """Run the tool once."""
        tool = context.tools.find(call.request.name)
        if tool is None:
            return self._without_tool(call, context)
        if (reason := context.refusal(tool.spec)) is not None:
            return Failure(ToolFailure(code="permission-denied", message=reason))
        values = await beside(
            context.beside,
            is_large(call.request.arguments, _LONG),
            lambda: self._fitting(tool, call, context),
            matches=True,
        )
        if not isinstance(values, Success):
            return Failure(values.failure())
        returns = tool.spec.returns
        declared = self._validator(returns) if returns is not None else None
        outcome = await _invoke(tool, values.unwrap(), call, context, declared)
        return outcome if isinstance(outcome, Success) else _hidden(outcome, context.secrets)

    def mismatch(self, tool: Tool, call: ToolCall, context: RunContext) -> ToolFailure | None:
        """Why the tool cannot be called with these arguments; None: they fit."""
        values = self._fitting(tool, call, context)
        return None if is_successful(values) else values.failure()

    def _fitting(
        self, tool: Tool, call: ToolCall, context: RunContext
    ) -> Result[Mapping[str, JsonValue], ToolFailure]:
        """The arguments as the tool takes them: defaults filled in, secrets revealed."""
        arguments = _arguments(call.request)
        if not isinstance(arguments, Success):
            return arguments
        written = arguments.unwrap()
        is_own = call.origin is CallOrigin.STEP  # a model's marker of a secret stays a text
        values = _revealed(written, context.secrets) if is_own else written
        if errors := _errors(self._validator(tool.spec.parameters), values, written):
            return Failure(_mismatch(tool, errors, written))
        return Success(values)

    def _without_tool(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        if call.name == FINAL_ANSWER:  # ends the step; needs no tool of that name
            return Success(ToolCallResponse(content="The step is complete."))
        names = context.tools.names
        near = near_names(call.name, names)
        hint = near_hint(near)
        listed = f"Available tools: {', '.join(names) or 'none'}."
        return Failure(
            ToolFailure(
                code="unknown-tool",
                message=f"There is no tool '{call.name}' here.{hint} "
                f"{f'Find tools by {FIND_TOOLS}.' if FIND_TOOLS in names else listed}",
                is_mendable=True,
                suggestions=near,
            )
        )

    def _validator(self, schema: JsonSchema) -> SchemaValidator:
        """One per schema: tools need no hash, and each run opens new ones."""
        place = id(schema)
        if place in self._known:
            return self._known[place][1]
        text = dumps(schema)
        validator = self._validators.get(text)
        if validator is None:
            validator = self._validators[text] = SchemaValidator(schema)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[place] = (schema, validator)
        return validator


def _revealed(written: Mapping[str, JsonValue], secrets: Secrets) -> Mapping[str, JsonValue]:
    """The arguments with the secrets that a step put there."""
    return as_object(secrets.reveal(written))


def _errors(validator: SchemaValidator, values: JsonValue, written: JsonValue) -> Sequence[str]:
    """The schema mismatches of values, told as they are shown: the text of a secret is
    never quoted.
    """
    errors = validator.errors(values)
    if not errors or values == written:
        return errors
    told = {error.partition(": ")[0]: error for error in validator.errors(written)}
    places = [error.partition(": ")[0] for error in errors]
    return [told.get(place, f"{place}: the value with the secret does not fit") for place in places]


def _hidden(
    outcome: Result[ToolCallResponse, ToolFailure], secrets: Secrets
) -> Result[ToolCallResponse, ToolFailure]:
    """The failure with the secrets masked that the tool was given and may have quoted."""
    failure = outcome.failure()
    return Failure(
        evolve(
            failure,
            message=secrets.clean_text(failure.message),
            suggestions=tuple(secrets.clean_text(text) for text in failure.suggestions),
        )
    )


def _mismatch(tool: Tool, errors: Sequence[str], written: Mapping[str, JsonValue]) -> ToolFailure:
    properties = tool.spec.parameters.get("properties", {})
    known = properties if isinstance(properties, Mapping) else {}
    unknown = "".join(
        f"It has no parameter '{name[:60]}'.{did_you_mean(name, known)} "
        for name in (written if known else ())
        if name not in known
    )
    return ToolFailure(
        code="bad-arguments",
        message=f"The arguments do not fit the tool '{tool.spec.name}': {'; '.join(errors)}. "
        f"{unknown[:_MOST_UNKNOWN]}Its parameters are: {dumps(properties)}.",
        is_mendable=True,
    )


def _arguments(request: ToolCallRequest) -> Result[Mapping[str, JsonValue], ToolFailure]:
    """The arguments as a mapping; an empty text is none."""
    try:
        value = parse_json(request.arguments or "{}", unique_keys=True)
    except ValueError as error:
        return _no_arguments(request, f"are not JSON ({error})")
    if not isinstance(value, dict):
        return _no_arguments(request, f"are a JSON {json_type(value)}, not an object")
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
    tool: Tool,
    arguments: Mapping[str, JsonValue],
    call: ToolCall,
    context: RunContext,
    declared: SchemaValidator | None,
) -> Result[ToolCallResponse, ToolFailure]:
    spec = tool.spec
    timeout_s = spec.timeout_s or context.limits.tool_timeout_s
    deadline = asyncio.timeout(timeout_s)
    pool, agents, questions = context.blocking, context.agents, context.questions
    changes = context.change_recorder(call.key)
    scope = ToolScope(
        run_id=context.run_id,
        step_id=context.step_id,
        call_id=call.request.id,
        idempotency_key=call.effect_key or f"{context.run_id}/{call.key}",
        max_result_bytes=context.limits.max_tool_result_bytes,
        now=context.now,
        sleep=context.sleep,
        blocking=_TimedCalls(pool, deadline, timeout_s) if pool is not None else None,
        changes=changes,
        agents=_UntimedAgents(agents, deadline, timeout_s) if agents is not None else None,
        questions=_UntimedQuestions(questions, deadline, timeout_s) if questions else None,
        report_progress=context.progress_reporter(call.key, spec.name),
        store_blob=context.store_blob,
        trace_headers=context.trace_headers,
    )
    try:
        async with deadline:
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
        return Failure(_raised(tool, error, context))
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        return Failure(_raised(tool, error, context))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the rim of a tool call: a stranger's code raises anything
        return Failure(_raised(tool, error, context))
    finally:
        if changes is not None:
            changes.close()
    is_long = is_large(result, _LONG)
    if is_long or declared is not None:
        return await beside(
            context.beside,
            is_long,
            lambda: _response(tool, result, context, declared),
            matches=declared is not None,
        )
    return _response(tool, result, context, None)


@frozen(eq=False, repr=False)
class _TimedCalls(BlockingCalls):
    """Blocking calls of one tool call, whose time begins when there is a thread for it."""

    pool: BlockingCalls
    deadline: asyncio.Timeout
    timeout_s: float

    async def run(self, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        self.deadline.reschedule(None)

        def begin() -> None:
            with contextlib.suppress(RuntimeError):  # the call has ended meanwhile
                self.deadline.reschedule(loop.time() + self.timeout_s)

        def timed() -> T:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(begin)
            return function()

        return await self.pool.run(timed)


@frozen(eq=False, repr=False)
class _UntimedAgents(AgentCalls):
    """Agents of one tool call, whose time is stopped while one works: limits of the run and of its
    own recipe bound an agent.
    """

    calls: AgentCalls
    deadline: asyncio.Timeout
    timeout_s: float

    def agents(self) -> Sequence[AgentInfo]:
        return self.calls.agents()

    async def run_agent(self, name: str, requirements: str) -> JsonValue:
        self.deadline.reschedule(None)
        try:
            return await self.calls.run_agent(name, requirements)
        finally:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(RuntimeError):  # the call has ended meanwhile
                self.deadline.reschedule(loop.time() + self.timeout_s)


@frozen(eq=False, repr=False)
class _UntimedQuestions(ToolQuestions):
    """Questions of one tool call, whose time is stopped while a person answers."""

    questions: ToolQuestions
    deadline: asyncio.Timeout
    timeout_s: float

    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        self.deadline.reschedule(None)
        try:
            return await self.questions.ask(text, form)
        finally:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(RuntimeError):  # the call has ended meanwhile
                self.deadline.reschedule(loop.time() + self.timeout_s)


def _overrun(tool: Tool, timeout_s: float) -> ToolFailure:
    """The failure of a timeout; the tool may still take effect, so only pure tools are retried."""
    return ToolFailure(
        code="tool-timeout",
        message=f"The tool '{tool.spec.name}' did not answer within {timeout_s:g} s "
        "(limit tool_timeout_s).",
        is_retryable=tool.spec.effect in (Effect.PURE, Effect.IDEMPOTENT),
    )


def _raised(tool: Tool, error: BaseException, context: RunContext) -> ToolFailure:
    may_repeat = tool.spec.effect is not Effect.ONCE
    retryable = context.retry.retryable_exceptions if context.retry is not None else None
    transient = is_retryable_error(error, unless_known=True, retryable=retryable)
    if isinstance(error, MinionsError):
        code, text = error.error_code, error.message
        transient = isinstance(error, ToolServerError) and error.is_transient
    else:
        code = RESOURCE_LIMIT if isinstance(error, MemoryError) else "tool-failed"
        text = words_of(error)
    return ToolFailure(
        code=code,
        message=f"The tool '{tool.spec.name}' failed: {text}",
        is_retryable=may_repeat and transient,
    )


def _response(
    tool: Tool, result: object, context: RunContext, declared: SchemaValidator | None
) -> Result[ToolCallResponse, ToolFailure]:
    """The result as JSON, without secrets.

    Args:
        declared: Of what the tool declares to return; None: it declares nothing.
    """
    name, most_bytes = tool.spec.name, context.limits.max_tool_result_bytes
    try:
        given = encode(result)
        value = context.secrets.clean(given)
        write = dumps_in_parts if is_large(value, _LONG) else dumps
        content = value if isinstance(value, str) else write(value)
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
    if declared is not None and (errors := _errors(declared, given, value)):
        return Failure(
            ToolFailure(
                code=UNFIT_RESULT,
                message=f"The tool '{name}' returned {_described(value)} that does not fit what it "
                f"declares to return: {'; '.join(errors)}.",
                is_mendable=tool.spec.effect is Effect.PURE,  # another call changes nothing
            )
        )
    return Success(ToolCallResponse(content=content, value=value))


def _described(value: JsonValue) -> str:
    kind = json_type(value)
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
