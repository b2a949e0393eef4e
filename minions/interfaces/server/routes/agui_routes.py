"""`/agents/{name}/ag-ui`: a recipe as an agent of AG-UI, whose interrupts are answered there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from attrs import evolve, field, frozen
from litestar import Router, post

from minions.app.runs.deployments import version_noted
from minions.contracts.executions import RunState
from minions.data.json_values import JsonValue, as_object, dumps
from minions.interfaces.http.http_answers import EVENT_STREAM
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.decision_views import unknown_approval
from minions.interfaces.server.documents.caller_tool_documents import (
    CallResult,
    id_of_call,
    read_tools,
    run_of_call,
)
from minions.interfaces.server.documents.openai_documents import ChatTurn, read_messages, text_input
from minions.interfaces.server.documents.run_documents import ApprovalView, DecisionRequest
from minions.interfaces.server.documents.shared_documents import (
    JsonObject,
    text_schema,
    unsupported,
    wrong,
)
from minions.interfaces.server.endpoint_parts import ApiRequest, Body, EventStream, InPath, refuses
from minions.interfaces.server.live.openai_answers import is_of_caller
from minions.interfaces.server.live.translated_stream import ForeignEvent, TranslatedStream
from minions.interfaces.server.routes.asked_runs import (
    AskedRun,
    FollowedRun,
    begin_answered_run,
    begin_asked_run,
    begin_decided_run,
    digest_of_parts,
    headers_of,
)
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.session_routes import session_of
from minions.interfaces.server.server_runtime import ids_of_key
from minions.recipe.model import AgentRecipe

_OBJECTS: Final[JsonObject] = {"items": {"type": "object"}}
_LIST: Final[Mapping[str, JsonObject]] = {"schema": {"type": "array", **_OBJECTS}}
_MAYBE_LIST: Final[Mapping[str, JsonObject]] = {"schema": {"type": ["array", "null"], **_OBJECTS}}


@frozen(kw_only=True)
class RunAgentInput:
    """What a front end sends to run an agent. Source: AG-UI 1.0."""

    passes_unknown: ClassVar[bool] = True
    """Members of later versions of the protocol have no effect, and are no error."""

    threadId: str = field(metadata=text_schema(200))  # noqa: N815  # as the protocol spells it
    """The caller's name of the conversation: the session of that name has it."""
    runId: str = field(metadata=text_schema(200))  # noqa: N815  # as above
    """The caller's name of the run: the same one is begun once."""
    messages: tuple[JsonObject, ...] = field(metadata=_LIST)
    """The conversation; the last message is the user's, or the last ones are results of tools."""
    forwardedProps: JsonValue = None  # noqa: N815  # as above
    """`inputs`: further inputs of the recipe, by name."""
    resume: tuple[JsonObject, ...] | None = field(default=None, metadata=_MAYBE_LIST)
    """Answers to interrupts of one earlier run, which then continues."""
    state: JsonValue = None
    """What the agent and the front end keep in sync, where the recipe has an untrusted input
    `state`."""
    context: tuple[JsonObject, ...] | None = field(default=None, metadata=_MAYBE_LIST)
    """What the front end says of itself, each with `description` and `value`, where the recipe has
    an untrusted input `context`."""
    tools: tuple[JsonObject, ...] | None = field(default=None, metadata=_MAYBE_LIST)
    """Tools that the front end carries out, where the recipe offers them."""
    parentRunId: JsonValue = None  # noqa: N815  # as above
    protocolVersion: JsonValue = None  # noqa: N815  # as above


@post(
    "/ag-ui",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def run_ag_ui(request: ApiRequest, name: InPath, data: Body[RunAgentInput]) -> EventStream:
    """Run a recipe as an agent of AG-UI, or resume the run that an interrupt or a call ended."""
    app_state = request.app_state
    session_id = _session_id(request, name, data)
    recipe, noted = await app_state.starter.stored_recipe(name, session=session_id)
    given = [dict(each) for each in data.tools or ()]
    tools = read_tools(recipe, given, app_state.runtime.catalog)
    results = _results(data.messages) if recipe.offers_caller_tools else ()
    shared = _shared_inputs(recipe, data)
    passed_over = [each for each in _SHARED if getattr(data, each)] + [*request.unknown_keys]
    if data.resume:
        followed = await _resume(request, recipe, data)
        passed_over += [each.where for each in results]  # the run waits for them again
    elif results:
        followed = await begin_answered_run(
            request, recipe, results, "messages", session_id=session_id
        )
    else:
        turn, given_inputs = _read(recipe, data)
        inputs = {**shared, **given_inputs}
        passed_over = [each for each in passed_over if each not in shared or each in given_inputs]
        exists = bool(await app_state.last_position(session_id))
        asked = AskedRun(
            name=name,
            recipe=recipe,
            version=version_noted(noted),
            inputs=inputs,
            earlier=[message for message, _ in turn.earlier(())],
            caller_tools=tools,
            session=await session_of(request, session_id) if exists else None,
            new_session=session_id,
            key=digest_of_parts(name, data.threadId, data.runId),
        )
        followed = await begin_asked_run(request, asked)
        passed_over += turn.passed_over
    events = AgUiEvents(
        data.threadId,
        data.runId,
        followed.begun.run_id,
        followed.answering,
        followed.waiting,
        frozenset(each.name for each in followed.caller_tools),
        shares_state="state" in shared,
    )
    if tools and tools != followed.caller_tools:
        passed_over.append("tools")  # the run has those that it began with
    headers = headers_of(followed, passed_over)
    return TranslatedStream(followed.stream, events, threads=app_state.threads, headers=headers)


def _session_id(request: ApiRequest, name: str, data: RunAgentInput) -> str:
    """The id of the session of a conversation, the same each time: a thread is a user's."""
    whole = digest_of_parts("ag-ui", request.owner or "", name, data.threadId)
    return ids_of_key(whole, request.app_state.runtime.services.ids)("ses")


_SHARED: Final = ("state", "context")


def _shared_inputs(recipe: AgentRecipe, data: RunAgentInput) -> Mapping[str, JsonValue]:
    """The state and the context for the inputs of these names that are untrusted: a page may show
    words of anybody. They are given also where they are empty, as those of the turn before are
    over.

    Raises:
        UsageError: `bad-body`; an entry of the context is none.
    """
    found: dict[str, JsonValue] = {}
    entries: list[JsonValue] = []
    for at, each in enumerate(data.context or ()):
        entry = {name: each.get(name) for name in ("description", "value")}
        if missing := next((name for name, text in entry.items() if type(text) is not str), None):
            raise wrong(f"context[{at}].{missing}", "is to be a text.")
        entries.append({**entry})
    for name in _SHARED:
        spec = recipe.inputs.get(name)
        if spec is None or not spec.is_untrusted or spec.is_secret:
            continue
        if name == "state":
            found[name] = {} if data.state is None else data.state
        elif spec.schema.get("type") == "string":
            said = (as_object(each) for each in entries)
            found[name] = "\n".join(f"{each['description']}: {each['value']}" for each in said)
        else:
            found[name] = entries
    return found


def _read(recipe: AgentRecipe, data: RunAgentInput) -> tuple[ChatTurn, Mapping[str, JsonValue]]:
    """The conversation, and the inputs of the run.

    Raises:
        UsageError: `bad-body`, `unsupported-parameter`.
    """
    props = as_object(data.forwardedProps) if isinstance(data.forwardedProps, Mapping) else {}
    given = props.get("inputs", {})
    if not isinstance(given, Mapping):
        raise wrong("forwardedProps.inputs", "is to be an object.")
    others = tuple(f"forwardedProps.{each[:80]}" for each in props if each != "inputs")
    taken = text_input(recipe)
    if taken is None or taken in given:
        return ChatTurn(text="", passed_over=others), given
    messages = list[JsonObject]()
    for at, each in enumerate(data.messages):
        if each.get("role") in _NOT_SAID or each.get("toolCalls"):
            continue
        said = {key: value for key, value in each.items() if key not in ("id", "metadata")}
        if isinstance(parts := said.get("content"), list):
            said["content"] = [part for part in parts if not _is_passed_over(part)]
            others += tuple(
                f"messages[{at}].content[{number}]"
                for number, part in enumerate(parts)
                if _is_passed_over(part)
            )
        messages.append(said)
    if not messages:  # a default may serve; else the run says which input is missing
        return ChatTurn(text="", passed_over=others), given
    turn = read_messages(tuple(messages), "messages")
    return evolve(turn, passed_over=(*turn.passed_over, *others)), {**given, taken: turn.text}


def _is_passed_over(part: JsonValue) -> bool:
    """Whether it is an image, a sound or another part that no recipe takes: the protocol wants the
    run all the same.
    """
    return isinstance(part, Mapping) and part.get("type") not in (None, "text")


def _results(messages: Sequence[JsonObject]) -> tuple[CallResult, ...]:
    """What the front end's tools gave: among the last messages, as far as these are a tool's. What
    the recipe's own tools gave is known.

    Raises:
        UsageError: `bad-body`; one is no such message.
    """
    found: list[CallResult] = []
    for at, each in reversed([*enumerate(messages)]):
        where = f"messages[{at}]"
        if each.get("role") != "tool":
            break
        call, content = each.get("toolCallId"), each.get("content")
        if not isinstance(call, str) or not isinstance(content, str):
            raise wrong(where, "is to have a text as its 'toolCallId' and as its 'content'.")
        if run_of_call(call):
            found.insert(0, CallResult(id=call, text=content, where=where))
    return tuple(found)


_NOT_SAID: Final = ("tool", "activity", "reasoning")
"""Roles of messages that a front end keeps of what it was told: the session has them."""


async def _resume(request: ApiRequest, recipe: AgentRecipe, data: RunAgentInput) -> FollowedRun:
    """Answer interrupts of one run, and follow it.

    Raises:
        NotFoundError: There is no such run, or it does not wait for that.
        UsageError, RefusedError: An answer does not fit, or the caller may not give it.
    """
    request.caller.require(TokenScope.DECIDE, "an answer to an interrupt")
    entries = {str(each.get("interruptId")): each for each in data.resume or ()}
    runs = {parts_of_interrupt(each)[0] for each in entries}
    if len(runs) != 1:
        raise wrong("resume", "is to answer interrupts of one run, each once.")
    run = await find_exact(request, runs.pop())
    if run.recipe != recipe.id:
        raise unknown_approval()
    keys = {parts_of_interrupt(each)[2] for each in entries}

    def decide(waiting: Mapping[str, ApprovalView]) -> Mapping[str, DecisionRequest]:
        decisions: dict[str, DecisionRequest] = {}
        for given, entry in entries.items():
            _, digest, key = parts_of_interrupt(given)
            if key in decisions or key not in waiting:
                raise unknown_approval()
            decisions[key] = _decision(waiting[key], digest, entry)
        return decisions

    return await begin_decided_run(request, run.run_id, keys.__contains__, decide)


def _decision(view: ApprovalView, digest: str, entry: JsonObject) -> DecisionRequest:
    """The decision that an answer to an interrupt means.

    Raises:
        UsageError: `bad-body`; it is none.
    """
    status, payload = entry.get("status"), entry.get("payload")
    if status not in ("resolved", "cancelled"):
        raise wrong("resume.status", "is to be 'resolved' or 'cancelled'.")
    if status == "cancelled":
        return DecisionRequest(decision="reject", digest=digest or None)
    if view.what == "answer":
        return DecisionRequest(decision="answer", value=payload)
    if view.what != "approval":
        raise unsupported(
            "resume", "A call in doubt is decided under /api/v1/approvals: redo, done or fail."
        )
    said = as_object(payload) if isinstance(payload, Mapping) else {}
    approved, reason = said.get("approved"), said.get("reason")
    if not isinstance(approved, bool) or not isinstance(reason, str | None):
        raise wrong("resume.payload", "is to be {'approved': true or false, 'reason': TEXT}.")
    if approved:
        return DecisionRequest(decision="approve", digest=digest)
    return DecisionRequest(decision="reject", digest=digest, reason=reason or None)


AG_UI: Final = Router("/agents/{name:str}", route_handlers=[run_ag_ui])


# --- a run's events as those of AG-UI, the protocol of front ends for agents ---------------------
# Source: AG-UI 1.0, as its Python package `ag-ui-protocol` has it.


_VERSION: Final = "1.0"
_APPROVAL: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""What answers an interrupt about an approval."""


class AgUiEvents:
    """Translates the events of one run."""

    def __init__(
        self,
        conversation_id: str,
        run_id: str,
        own_id: str,
        step_id: str | None,
        forms: Mapping[str, JsonValue],
        callers: frozenset[str] = frozenset(),
        *,
        shares_state: bool = False,
    ) -> None:
        """Nothing was told yet.

        Args:
            conversation_id: The caller's name of the conversation.
            run_id: The caller's name of the run.
            own_id: The id of the run here.
            step_id: The `answering_step`; None: the answer comes at the end.
            forms: By key `tool` and `arguments`, or `form`, of what the run waits for already.
            callers: Names of the tools that the front end carries out.
            shares_state: Whether `state` of the run's output is the state of the conversation.
        """
        self._shares_state = shares_state
        self._callers = callers
        self._told: set[str] = set()
        """Ids of tool calls that were told."""
        self._ids: ForeignEvent = {"threadId": conversation_id, "runId": run_id}
        self._own_id = own_id
        self._step_id = step_id
        self._steps: list[str] = []
        """Addresses of steps that have begun and not ended."""
        self._messages = 0
        self._open = ""
        """The text of the message that is open."""
        self._is_open = False
        self._last = ""
        """The text of the last message."""
        self._calls: list[str] = []
        """Ids of tool calls that have begun and have no result."""
        self._forms = dict(forms)
        self.is_over = False

    def begin(self) -> Sequence[ForeignEvent]:
        """The first event."""
        return [{"type": "RUN_STARTED", **self._ids, "protocolVersion": _VERSION}]

    def take(self, event: Mapping[str, JsonValue]) -> Iterator[ForeignEvent]:
        """The events of AG-UI that an event means."""
        kind, address = event["type"], str(event.get("address", ""))
        data = as_object(event.get("data") or {})
        match kind:
            case "step_started" if address not in self._steps:
                self._steps.append(address)
                yield {"type": "STEP_STARTED", "stepName": address}
            case "step_finished" if address in self._steps:
                yield from self._end_calls(f"{address}/")
                self._steps.remove(address)
                yield {"type": "STEP_FINISHED", "stepName": address}
            case "step_delta" if address == self._step_id:
                yield from self._say(str(as_object(event["delta"]).get("content") or ""))
            case "retrying" | "model_replaced" if address == self._step_id:
                yield from self._end_message()  # what follows is another message
            case "step_completed":
                yield from self._take_message(address, as_object(event["snapshot"]))
            case "tool_started" if event.get("tool") not in self._callers:
                yield from self._begin_call(f"{address}/{event['call_id']}", event)
            case "waiting":
                key = str(event["key"])
                self._forms[key] = dict(data)
                if is_of_caller({"what": event.get("what"), **data}):
                    yield from self._tell_call(id_of_call(self._own_id, key), data)
            case "run_completed" | "run_waiting" | "run_failed":
                yield from self._finish(str(kind), str(event.get("status")), data)

    def _say(self, text: str) -> Iterator[ForeignEvent]:
        if not text:
            return
        if not self._is_open:
            self._messages += 1
            self._is_open = True
            yield {**self._of_message("TEXT_MESSAGE_START"), "role": "assistant"}
        self._open += text
        yield {**self._of_message("TEXT_MESSAGE_CONTENT"), "delta": text}

    def _of_message(self, kind: str) -> ForeignEvent:
        return {"type": kind, "messageId": f"{self._own_id}/{self._messages}"}

    def _end_message(self) -> Iterator[ForeignEvent]:
        if self._is_open:
            yield self._of_message("TEXT_MESSAGE_END")
            self._last, self._open, self._is_open = self._open, "", False

    def _take_message(
        self, address: str, message: Mapping[str, JsonValue]
    ) -> Iterator[ForeignEvent]:
        content = str(message.get("content") or "")
        if message.get("role") == "tool":
            yield from self._end_call(f"{address}/{message.get('tool_call_id')}", content)
        elif message.get("role") == "assistant" and address == self._step_id:
            if not content.startswith(self._open):  # pieces were lost: it is told whole
                yield from self._end_message()
            yield from self._say(content[len(self._open) :])
            yield from self._end_message()

    def _begin_call(self, call_id: str, event: Mapping[str, JsonValue]) -> Iterator[ForeignEvent]:
        self._calls.append(call_id)
        yield from self._tell_call(call_id, event)

    def _tell_call(self, call_id: str, call: Mapping[str, JsonValue]) -> Iterator[ForeignEvent]:
        arguments = call.get("arguments")
        text = arguments if isinstance(arguments, str) else dumps(arguments)
        named: ForeignEvent = {"toolCallId": call_id}
        self._told.add(call_id)
        yield {"type": "TOOL_CALL_START", **named, "toolCallName": call.get("tool")}
        yield {"type": "TOOL_CALL_ARGS", **named, "delta": text}
        yield {"type": "TOOL_CALL_END", **named}

    def _end_call(self, call_id: str, content: str) -> Iterator[ForeignEvent]:
        if call_id in self._calls:
            self._calls.remove(call_id)
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{self._own_id}/{call_id}",
                "toolCallId": call_id,
                "content": content,
                "role": "tool",
            }

    def _end_calls(self, step: str = "") -> Iterator[ForeignEvent]:
        """Results of calls whose text no model read: else they would wait for the front end.

        Args:
            step: How the ids of the calls begin.
        """
        for call_id in [each for each in self._calls if each.startswith(step)]:
            yield from self._end_call(call_id, "")

    def _finish(
        self, kind: str, status: str, data: Mapping[str, JsonValue]
    ) -> Iterator[ForeignEvent]:
        self.is_over = True
        if kind == "run_failed" and status != RunState.CANCELLED.value:
            error = as_object(data.get("error") or {})
            yield from self.fail(str(error.get("code", status)), str(error.get("message", status)))
            return
        outcome: ForeignEvent = {"type": "success"}
        result = data.get("response")
        if kind == "run_failed":
            outcome = {"type": "cancelled"}
        elif kind == "run_waiting":
            pending = [*map(as_object, _list(data.get("decisions")))]
            others = [each for each in pending if not is_of_caller(each)]
            for key in (str(each["key"]) for each in pending if is_of_caller(each)):
                if (made := id_of_call(self._own_id, key)) not in self._told:
                    yield from self._tell_call(made, as_object(self._forms.get(key) or {}))
            if others:  # what the front end carries out itself interrupts nothing
                interrupts = [self._interrupt(each) for each in others]
                outcome = {"type": "interrupt", "interrupts": list(interrupts)}
        said, state = result, None
        if self._shares_state and isinstance(result, Mapping) and "state" in result:
            state = {"type": "STATE_SNAPSHOT", "snapshot": result["state"]}
            said = result.get("message")
        text = said if isinstance(said, str) else dumps(said)
        if said is not None and text != (self._open or self._last):
            yield from self._end_message()
            yield from self._say(text)
        yield from self._close()
        if state is not None:
            yield state
        yield {
            "type": "RUN_FINISHED",
            **self._ids,
            "outcome": outcome,
            "usage": [_usage(as_object(data.get("metrics") or {}))],
            **({} if result is None else {"result": result}),
        }

    def _close(self) -> Iterator[ForeignEvent]:
        yield from self._end_message()
        yield from self._end_calls()
        for address in reversed(self._steps):
            yield {"type": "STEP_FINISHED", "stepName": address}
        self._steps.clear()

    def _interrupt(self, decision: Mapping[str, JsonValue]) -> ForeignEvent:
        key, what = str(decision["key"]), str(decision.get("what"))
        asked = as_object(self._forms.get(key) or {})
        metadata: ForeignEvent = {
            "run_id": self._own_id,
            "step_id": decision.get("step_id"),
            **{name: asked[name] for name in ("tool", "arguments") if name in asked},
        }
        found: ForeignEvent = {
            "id": interrupt_id(self._own_id, key, str(decision.get("digest") or "")),
            "reason": what,
            "metadata": metadata,
        }
        if what == "answer":
            form = asked.get("form")
            found["message"] = str(decision.get("question") or "")
            found |= {"responseSchema": form} if isinstance(form, Mapping) else {}
        elif what == "approval":
            found["message"] = f"The call of '{decision.get('tool')}' waits for approval."
            found["responseSchema"] = dict(_APPROVAL)
        else:
            found["message"] = f"Whether '{decision.get('tool')}' was called is in doubt."
        return found

    def fail(self, code: str, message: str) -> Iterator[ForeignEvent]:
        """The end of a run that failed, or that is not followed any more."""
        yield from self._close()
        yield {"type": "RUN_ERROR", "message": message, "code": code}


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else []


def _usage(metrics: Mapping[str, JsonValue]) -> ForeignEvent:
    counted = {
        "inputTokens": metrics.get("input_tokens"),
        "outputTokens": metrics.get("output_tokens"),
        "totalTokens": metrics.get("total_tokens"),
        "cachedInputTokens": metrics.get("cached_tokens"),
    }
    return {name: count for name, count in counted.items() if isinstance(count, int)}


_MARK: Final = "~"


def interrupt_id(run_id: str, key: str, digest: str) -> str:
    """The id of what a run waits for: consent is to the call of just this digest."""
    return f"{run_id}{_MARK}{digest}{_MARK}{key}"


def parts_of_interrupt(given: str) -> tuple[str, str, str]:
    """Run id, digest and key of an interrupt; of another text the parts that it has."""
    run_id, _, rest = given.partition(_MARK)
    digest, _, key = rest.partition(_MARK)
    return run_id, digest, key
