"""A run's events as those of AG-UI, the protocol of front ends for agents.

Source: AG-UI 1.0, as its Python package `ag-ui-protocol` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.contracts.executions import RunState
from minions.data.json_values import JsonValue, as_object, dumps
from minions.interfaces.server.documents.caller_tool_documents import id_of_call
from minions.interfaces.server.live.openai_answers import is_of_caller
from minions.interfaces.server.live.translated_stream import ForeignEvent

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
