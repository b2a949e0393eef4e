"""A run as a task of A2A: its state, and its events as those of the protocol.

Source: A2A 1.0, its binding to JSON-RPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from minions.contracts.executions import RunState
from minions.contracts.runtime import BlockingCalls
from minions.data.json_values import JsonValue, as_object, dumps
from minions.engine.services.event_loop import beside
from minions.interfaces.http.http_answers import (
    Answer,
    AsgiApp,
    Message,
    Receive,
    RefusedError,
    RpcId,
    Scope,
    Send,
    a2a_error,
    json_bytes,
)
from minions.interfaces.server.documents.a2a_documents import JSON, TASK_STATES, TEXT
from minions.interfaces.server.documents.run_documents import id_of
from minions.interfaces.server.live.openai_answers import StreamCut, cut_in, events_in
from minions.interfaces.server.live.translated_stream import ForeignEvent

_LONG: Final = 16_384
"""Bytes of events that are decoded at once."""
_WORKING: Final = TASK_STATES[RunState.RUNNING]


class TaskEvents:
    """Translates the events of one run, and keeps its task."""

    def __init__(
        self,
        run_id: str,
        session_id: str,
        skill: str,
        *,
        request_id: RpcId = None,
        step_id: str | None = None,
        forms: Mapping[str, JsonValue] | None = None,
        state: str = TASK_STATES[RunState.QUEUED],
    ) -> None:
        """Nothing was told yet.

        Args:
            skill: The id of its recipe.
            request_id: Of the request that is answered.
            step_id: The `answering_step`; None: the answer comes at the end.
            forms: By key `tool` and `arguments`, or `form`, of what the run waits for already.
            state: Of the task, one of `TASK_STATES`.
        """
        self._run_id = run_id
        self._ids: ForeignEvent = {"taskId": run_id, "contextId": session_id}
        self._metadata: ForeignEvent = {"skill": skill}
        self._request_id = request_id
        self._step_id = step_id
        self._forms = dict(forms or {})
        self.status: ForeignEvent = {"state": state}
        self.history: list[JsonValue] = []
        self._parts: list[JsonValue] = []
        """Those of the output; empty: there is none."""
        self._told = ""
        """The words of the present model call that were sent."""
        self._is_new = True
        """Whether the next words replace those that were sent."""
        self.is_over = False

    def to_json(self, *, has_output: bool = True) -> ForeignEvent:
        """The task."""
        task: ForeignEvent = {
            "id": self._ids["taskId"],
            "contextId": self._ids["contextId"],
            "status": self.status,
            "metadata": self._metadata,
        }
        if self._parts and has_output:
            task["artifacts"] = [self._artifact(self._parts)]
        if self.history:
            task["history"] = self.history
        return task

    def begin(self) -> Iterator[ForeignEvent]:
        """The task as it is now."""
        yield self._result({"task": self.to_json()})

    def take(self, event: Mapping[str, JsonValue]) -> Iterator[ForeignEvent]:
        """The answers that an event means."""
        kind, address = event["type"], event.get("address")
        match kind:
            case "step_started":
                yield self._set_status(_WORKING, event, {"step": address})
            case "step_delta" if address == self._step_id:
                yield from self._say(str(as_object(event["delta"]).get("content") or ""))
            case "retrying" | "model_replaced" if address == self._step_id:
                self._is_new = True
            case "step_completed" if address == self._step_id:
                message = as_object(event["snapshot"])
                if message.get("role") == "assistant":
                    yield from self._end_call(str(message.get("content") or ""))
            case "waiting":
                self._forms[str(event["key"])] = event.get("data")
            case "run_completed" | "run_waiting" | "run_failed":
                yield from self._finish(event)

    def _result(self, result: ForeignEvent) -> ForeignEvent:
        return {"jsonrpc": "2.0", "id": self._request_id, "result": result}

    def _set_status(
        self,
        state: str,
        event: Mapping[str, JsonValue],
        metadata: Mapping[str, JsonValue],
        message: JsonValue = None,
    ) -> ForeignEvent:
        self.status = {"state": state, "timestamp": event.get("timestamp")}
        if message is not None:
            self.status["message"] = message
        update: ForeignEvent = {**self._ids, "status": self.status, "metadata": dict(metadata)}
        return self._result({"statusUpdate": update})

    def _artifact(self, parts: list[JsonValue]) -> ForeignEvent:
        return {"artifactId": "output", "name": "output", "parts": parts}

    def _say(self, text: str) -> Iterator[ForeignEvent]:
        if not text:
            return
        if self._is_new:
            self._told = ""
        update: ForeignEvent = {
            **self._ids,
            "artifact": self._artifact([{"text": text, "mediaType": TEXT}]),
            "append": not self._is_new,
            "lastChunk": False,
        }
        self._told += text
        self._is_new = False
        yield self._result({"artifactUpdate": update})

    def _end_call(self, text: str) -> Iterator[ForeignEvent]:
        if not text.startswith(self._told):  # pieces were lost: it is told whole
            self._is_new = True
        yield from self._say(text if self._is_new else text[len(self._told) :])
        self._is_new = True

    def _finish(self, event: Mapping[str, JsonValue]) -> Iterator[ForeignEvent]:
        self.is_over = True
        run_state, data = str(event.get("status")), as_object(event.get("data") or {})
        state = TASK_STATES.get(run_state, TASK_STATES[RunState.FAILED])
        metadata: ForeignEvent = {"status": run_state, "usage": data.get("metrics")}
        self._metadata |= metadata
        message: JsonValue = None
        if event["type"] == "run_completed":
            yield from self._give_output(data.get("response"))
        elif event["type"] == "run_waiting":
            message = self._ask(data.get("decisions"), event)
        else:
            error = as_object(data.get("error") or {})
            metadata["code"] = self._metadata["code"] = error.get("code", run_state)
            said = str(error.get("message", f"The run is {run_state}."))
            message = self._message([{"text": said, "mediaType": TEXT}], event)
        yield self._set_status(state, event, metadata, message)

    def _give_output(self, output: JsonValue) -> Iterator[ForeignEvent]:
        if output is None:
            return
        if isinstance(output, str):
            self._parts = [{"text": output, "mediaType": TEXT}]
        else:
            text = dumps(output)
            self._parts = [
                {"data": output, "mediaType": JSON},
                {"text": text, "mediaType": TEXT},
            ]
        update: ForeignEvent = {
            **self._ids,
            "artifact": self._artifact(self._parts),
            "append": False,
            "lastChunk": True,
        }
        yield self._result({"artifactUpdate": update})

    def _message(self, parts: list[JsonValue], event: Mapping[str, JsonValue]) -> ForeignEvent:
        return {
            **self._ids,
            "messageId": f"{self._run_id}/{event.get('timestamp')}",
            "role": "ROLE_AGENT",
            "parts": parts,
        }

    def _ask(self, decisions: JsonValue, event: Mapping[str, JsonValue]) -> ForeignEvent:
        """The message that says what the run waits for, and how it is decided."""
        lines: list[str] = []
        asked: list[JsonValue] = []
        for each in decisions if isinstance(decisions, list) else ():
            decision = as_object(each)
            key, what = str(decision["key"]), decision.get("what")
            form = as_object(self._forms.get(key) or {})
            found: ForeignEvent = {"id": id_of(self._run_id, key), "what": what}
            named = {"step": decision.get("step_id"), "digest": decision.get("digest")}
            shown = {name: form.get(name) for name in ("tool", "arguments", "form")}
            found |= {name: value for name, value in (named | shown).items() if value is not None}
            if what == "answer":
                lines.append(str(decision.get("question") or ""))
                found["question"] = lines[-1]
            elif what == "approval":
                lines.append(
                    f"The call of '{decision.get('tool')}' waits for approval. Send a data part: "
                    "{'decision': 'approve', 'digest': DIGEST}, or 'reject' with a 'reason'."
                )
            else:
                lines.append(
                    f"Whether '{decision.get('tool')}' was called is in doubt. Send a data part: "
                    "{'decision': 'redo'}, 'done' with a 'value', or 'fail'."
                )
            asked.append(found)
        parts: list[JsonValue] = [
            {"text": "\n".join(lines), "mediaType": TEXT},
            {"data": {"decisions": asked}, "mediaType": JSON},
        ]
        return self._message(parts, event)

    def fail(self, code: str, message: str) -> Iterator[ForeignEvent]:
        """The end of a stream that ends before its run does."""
        words = f"{message} SubscribeToTask follows the task '{self._run_id}' on."
        status = StreamCut(code).status
        yield a2a_error(RefusedError(status, code, words), self._request_id)


class TaskAnswer:
    """Answers with the task when its run ends or waits for a person."""

    def __init__(
        self,
        stream: AsgiApp,
        events: TaskEvents,
        request_id: RpcId,
        *,
        at_end: Callable[[], Awaitable[None]],
        threads: BlockingCalls,
        headers: Mapping[str, str],
    ) -> None:
        """Nothing is sent yet.

        Args:
            stream: Sends the events of the run, as its followers get them.
            at_end: Called when the run has ended, before the task is sent.
            threads: Decode long events.
            headers: Of the answer.
        """
        self._stream = stream
        self._events = events
        self._request_id = request_id
        self._at_end = at_end
        self._threads = threads
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer."""
        events = self._events
        cut = StreamCut()

        def take(body: bytes) -> None:
            for event in events_in(body):
                for _ in events.take(event):
                    pass

        async def note(message: Message) -> None:
            nonlocal cut
            body: bytes = message.get("body", b"")
            if not message.get("more_body", False):
                cut = cut_in(body)
            await beside(self._threads, len(body) > _LONG, lambda: take(body))

        await self._stream(scope, receive, note)
        await self._at_end()
        body: JsonValue = {
            "jsonrpc": "2.0",
            "id": self._request_id,
            "result": {"task": events.to_json()},
        }
        if not events.is_over:
            words = f"The answer ends before the run does{cut.words}."
            (body,) = events.fail(cut.code, words)
        await Answer(200, json_bytes(body), headers=self._headers)(scope, receive, send)
