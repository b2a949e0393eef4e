"""A run's events as OpenAI's chat completions and responses, streamed or whole.

It reads the stream that any follower of the run gets: so a run at a worker is answered as well, and
one whose caller leaves continues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Literal, TypeVar

from attrs import define, field, frozen

from minions.contracts.executions import RunState
from minions.contracts.journal.start_note import NO_CHOICE, CallerChoice, CallerTool
from minions.contracts.messages import ToolCallRequest
from minions.contracts.runtime import BlockingCalls
from minions.data.codec import encode
from minions.data.json_values import JsonValue, as_object, dumps, parse_json
from minions.engine.services.event_loop import beside
from minions.interfaces.http.http_answers import (
    EVENT_STREAM,
    Answer,
    AsgiApp,
    Message,
    Receive,
    Scope,
    Send,
    json_bytes,
    openai_error,
)
from minions.interfaces.http.tokens import TOKEN_EXPIRED
from minions.interfaces.server.documents.caller_tool_documents import id_of_call
from minions.interfaces.server.documents.openai_documents import ChatCompletion, ResponseAnswer
from minions.interfaces.server.live.channels import HEARTBEAT
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe

T = TypeVar("T")

_LONG: Final = 16_384
"""Bytes of events that are decoded at once, and characters of an answer that is encoded so."""
_BODY: Final = "http.response.body"


@frozen(kw_only=True)
class RunEnd:
    """How the execution of a run ended, as far as its caller is told."""

    text: str = ""
    """The answer; of a run that waits for a person what it waits for."""
    calls: tuple[ToolCallRequest, ...] = ()
    """Calls of the caller's tools whose results it waits for."""
    usage: Mapping[str, JsonValue] = field(factory=dict)
    status: str = RunState.COMPLETED.value
    code: str | None = None
    """The code of its failure; None: there is an answer."""
    problem: str = ""
    """The failure in words."""


def answering_step(recipe: AgentRecipe) -> str | None:
    """The id of the step whose model writes the run's output word by word; None: there is none, so
    that the answer comes when the run ends.
    """
    if recipe.graph is not None or not recipe.steps:
        return None
    last = recipe.steps[-1]
    if recipe.output is not None:
        named = str(recipe.output).strip().removeprefix("{{").removesuffix("}}").strip()
        found = (each for each in recipe.steps if each.id == named)
        last = next(found, last)
        if last.id != named:
            return None
    if not isinstance(last, GoalSpec) or last.loop is not None or last.repeat is not None:
        return None
    if last.output is not None or last.artifacts:
        return None
    return last.id


class AnswerText:
    """The text of a run's answer, taken from its events.

    Pieces of the answering step are told as they come. What was told cannot be taken back: where a
    call was repeated or pieces were lost, the whole text follows after an empty line.
    """

    def __init__(
        self,
        run_id: str,
        step_id: str | None,
        page: str | None,
        waiting: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Nothing was told yet.

        Args:
            step_id: The `answering_step`; None: nothing is told before the end.
            page: The address of the page for people; None: it is not known.
            waiting: As of `forms_of`, of what the run waits for already; None: nothing.
        """
        self._waiting = dict(waiting or {})
        self._run_id = run_id
        self._step_id = step_id
        self._page = page
        self._call = ""
        """What was told of the present or the last model call."""
        self._whole: str | None = None
        """The text of the last model call, as it was recorded; None: no call has ended."""
        self._is_told = False
        self._is_broken = False
        """Whether no more pieces of the present call are told."""
        self.end: RunEnd | None = None

    def take(self, event: Mapping[str, JsonValue]) -> str:
        """The text that an event adds to what was told."""
        kind = event["type"]
        if self.end is not None:
            return ""  # a later execution of the run is another answer
        if kind in ("run_completed", "run_waiting", "run_failed"):
            return self._finish(str(kind), event)
        if kind == "waiting":
            self._waiting[str(event["key"])] = event.get("data")
        if self._step_id is None or event.get("address") != self._step_id:
            return ""
        if kind == "step_delta":
            text = str(as_object(event["delta"]).get("content") or "")
            return self._add_piece(text)
        if kind in ("retrying", "model_replaced"):
            self._is_broken = bool(self._call)
        elif kind == "step_completed":
            message = as_object(event["snapshot"])
            if message.get("role") == "assistant":
                return self._end_call(str(message.get("content") or ""))
        return ""

    def _add_piece(self, text: str) -> str:
        if self._is_broken or not text:
            return ""
        lead = ""
        if self._whole is not None:
            self._call, self._whole = "", None
            lead = "\n\n" if self._is_told else ""
        self._call += text
        self._is_told = True
        return lead + text

    def _end_call(self, text: str) -> str:
        told = self._call if self._whole is None else ""
        more = self._rest(text, told)
        self._call, self._whole, self._is_broken = text, text, False
        return more

    def _rest(self, text: str, told: str) -> str:
        """What is to be told of a text of which this was."""
        if text.startswith(told) and (told or not self._is_told):
            more = text[len(told) :]
        else:
            more = f"\n\n{text}" if text else ""
        self._is_told = self._is_told or bool(text)
        return more

    def _finish(self, kind: str, event: Mapping[str, JsonValue]) -> str:
        data = as_object(event.get("data", {}))
        status = str(event.get("status"))
        if kind == "run_failed":
            error = as_object(data.get("error") or {})
            code = str(error.get("code", status))
            problem = str(error.get("message", f"The run is {status}."))
            self.end = RunEnd(status=status, code=code, problem=problem)
            return ""
        calls: list[ToolCallRequest] = []
        if kind == "run_waiting":
            pending = data.get("decisions")
            decisions = [*map(as_object, pending if isinstance(pending, list) else ())]
            calls = [self._waiting_call(each) for each in decisions if is_of_caller(each)]
            others = [each for each in decisions if not is_of_caller(each)]
            text = self._say_waiting(others) if others else self._whole or ""
        else:
            response = data.get("response")
            text = response if isinstance(response, str) else dumps(response)
            text = "" if response is None else text
        usage = as_object(data.get("metrics") or {})
        self.end = RunEnd(text=text, calls=tuple(calls), usage=usage, status=status)
        return self._rest(text, self._call)

    def _waiting_call(self, decision: Mapping[str, JsonValue]) -> ToolCallRequest:
        key = str(decision["key"])
        known = as_object(self._waiting.get(key) or {})
        return ToolCallRequest(
            id=id_of_call(self._run_id, key),
            name=str(decision["tool"]),
            arguments=str(known.get("arguments") or "{}"),
        )

    def _say_waiting(self, decisions: Sequence[Mapping[str, JsonValue]]) -> str:
        lines = []
        for decision in decisions:
            step, tool = decision.get("step_id"), decision.get("tool")
            match decision.get("what"):
                case "answer":
                    lines.append(str(decision.get("question") or f"Step '{step}' asks a question."))
                case "approval":
                    lines.append(f"The call of '{tool}' in step '{step}' waits for approval.")
                case _:
                    lines.append(f"Step '{step}' waits: whether '{tool}' was called is in doubt.")
        where = f"under {self._page}#/runs/{self._run_id}, " if self._page else ""
        lines.append(
            f"This run waits for a person. Decide {where}with `minions inbox`, or with "
            f"POST /api/v1/runs/{self._run_id}/decisions; then it continues."
        )
        return "\n\n".join(lines)


def is_of_caller(decision: Mapping[str, JsonValue]) -> bool:
    """Whether the caller's tool gives what a run waits for, as an event tells it."""
    return decision.get("what") == "answer" and "tool" in decision


# --- the two forms -------------------------------------------------------------------------------


@frozen(kw_only=True)
class CompletionForm(ABC):
    """How an answer is written."""

    run_id: str
    model: str
    created: int
    """Seconds since 1970."""
    part: str = ""
    """Which answer of the run it is, at the end of its id; empty: the first one."""

    @abstractmethod
    def whole(self, end: RunEnd) -> object:
        """The answer in one piece."""

    @abstractmethod
    def begin(self) -> bytes:
        """What a stream begins with."""

    @abstractmethod
    def piece(self, text: str) -> bytes:
        """A piece of the text."""

    @abstractmethod
    def finish(self, end: RunEnd, told: str) -> bytes:
        """What a stream ends with.

        Args:
            told: All pieces, one after the other.
        """


def _failure(end: RunEnd) -> dict[str, JsonValue]:
    code = end.code or ""
    is_expired = code == TOKEN_EXPIRED
    status = HTTPStatus.UNAUTHORIZED if is_expired else HTTPStatus.INTERNAL_SERVER_ERROR
    return openai_error(status, code, end.problem)


def _count(usage: Mapping[str, JsonValue], name: str) -> int:
    number = usage.get(name)
    return number if isinstance(number, int) else 0


@frozen(kw_only=True)
class ChatForm(CompletionForm):
    """A chat completion, or its chunks."""

    has_usage: bool = False
    """Whether a chunk with the usage ends the stream."""

    def whole(self, end: RunEnd) -> object:
        message: dict[str, JsonValue] = {
            "role": "assistant",
            "content": end.text if end.text or not end.calls else None,
            "refusal": None,
            "annotations": [],
        }
        if end.calls:
            message["tool_calls"] = [each.to_message_dict() for each in end.calls]
        choice: dict[str, JsonValue] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "tool_calls" if end.calls else "stop",
        }
        return ChatCompletion(
            id=self._id,
            created=self.created,
            model=self.model,
            choices=(choice,),
            usage=self._usage(end),
        )

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.run_id}{self.part}"

    def _usage(self, end: RunEnd) -> dict[str, JsonValue]:
        given, made = _count(end.usage, "input_tokens"), _count(end.usage, "output_tokens")
        return {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": given + made,
            "prompt_tokens_details": {"cached_tokens": _count(end.usage, "cached_tokens")},
        }

    def begin(self) -> bytes:
        return self._choice({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        return self._choice({"content": text})

    def finish(self, end: RunEnd, told: str) -> bytes:
        if end.code is not None:
            return _data(_failure(end))
        last = b"".join(
            self._choice({"tool_calls": [{"index": at, **part}]})
            for at, call in enumerate(end.calls)
            for part in _parts_of(call)
        )
        last += self._choice({}, "tool_calls" if end.calls else "stop")
        if self.has_usage:
            last += self._chunk([], self._usage(end))
        return last + b"data: [DONE]\n\n"

    def _choice(self, delta: dict[str, JsonValue], reason: str | None = None) -> bytes:
        choice: dict[str, JsonValue] = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": reason,
        }
        return self._chunk([choice], None)

    def _chunk(self, choices: list[JsonValue], usage: JsonValue) -> bytes:
        chunk: dict[str, JsonValue] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return _data({**chunk, "usage": usage} if self.has_usage else chunk)


def _parts_of(call: ToolCallRequest) -> Iterator[dict[str, JsonValue]]:
    """The deltas of a call: who is called, then with what."""
    named: dict[str, JsonValue] = {"name": call.name, "arguments": ""}
    yield {"id": call.id, "type": "function", "function": named}
    yield {"function": {"arguments": call.arguments}}


def _data(value: JsonValue) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


@define(kw_only=True)
class _Counter:
    """Numbers the events of one stream, and knows how far it is."""

    last: int = -1
    has_message: bool = False
    """Whether the message was begun."""

    def next(self) -> int:
        self.last += 1
        return self.last


@frozen(kw_only=True)
class ResponseForm(CompletionForm):
    """A response, or its events."""

    previous_id: str | None = None
    """The response whose conversation it continues."""
    metadata: Mapping[str, str] = field(factory=dict)
    """That of the request."""
    tools: tuple[CallerTool, ...] = ()
    choice: CallerChoice = NO_CHOICE
    """The functions of the caller that the run may call."""
    _counter: _Counter = field(factory=_Counter)

    @property
    def _item_id(self) -> str:
        return f"msg_{self.run_id}{self.part}"

    def whole(self, end: RunEnd) -> object:
        return self._response(end, end.text)

    def _response(self, end: RunEnd | None, text: str) -> ResponseAnswer:
        """The response.

        Args:
            end: None: the run has not ended.
            text: What it says.
        """
        status, error = "in_progress", None
        metadata = dict(self.metadata)
        if end is not None:
            status = "completed" if end.code is None else "failed"
            if end.code is not None:
                error = {"code": "server_error", "message": f"{end.problem} [{end.code}]"}
            if end.status != RunState.COMPLETED.value:
                metadata["minions_status"] = end.status
        choice: Literal["required", "auto"] = "required" if self.choice.must_call else "auto"
        return ResponseAnswer(
            id=response_id(self.run_id) + self.part,
            created_at=self.created,
            status=status,  # type: ignore[arg-type]  # one of the three
            error=error,
            metadata=metadata,
            model=self.model,
            output=tuple(self._output(end, text)) if end is not None and not error else (),
            tool_choice=choice if self.tools else "none",
            parallel_tool_calls=bool(self.tools) and not self.choice.is_single,
            tools=tuple(
                {"type": "function", **each.to_note(), "strict": False} for each in self.tools
            ),
            previous_response_id=self.previous_id,
            usage=None if end is None or error else self._usage(end),
        )

    def _usage(self, end: RunEnd) -> dict[str, JsonValue]:
        given, made = _count(end.usage, "input_tokens"), _count(end.usage, "output_tokens")
        return {
            "input_tokens": given,
            "input_tokens_details": {
                "cached_tokens": _count(end.usage, "cached_tokens"),
                "cache_write_tokens": 0,
            },
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }

    def _output(self, end: RunEnd, text: str) -> Iterator[dict[str, JsonValue]]:
        if text or not end.calls:
            yield self._item(text, "completed")
        for call in end.calls:
            yield _call_item(call, call.arguments, "completed")

    def _item(self, text: str | None, status: str) -> dict[str, JsonValue]:
        """The message; None: it has no content yet."""
        content: list[JsonValue] = [] if text is None else [self._part(text)]
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self, text: str) -> dict[str, JsonValue]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def begin(self) -> bytes:
        response = encode(self._response(None, ""))
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def _begin_message(self) -> bytes:
        """What the message begins with, where it has not begun."""
        if self._counter.has_message:
            return b""
        self._counter.has_message = True
        item = self._item(None, "in_progress")
        added = self._event("response.output_item.added", output_index=0, item=item)
        part = self._part("")
        return added + self._event("response.content_part.added", **self._place(), part=part)

    def piece(self, text: str) -> bytes:
        named: dict[str, JsonValue] = {"delta": text, "logprobs": []}
        begun = self._begin_message()
        return begun + self._event("response.output_text.delta", **self._place(), **named)

    def finish(self, end: RunEnd, told: str) -> bytes:
        response = encode(self._response(end, told))
        if end.code is not None:
            return self._event("response.failed", response=response)
        events: list[bytes] = []
        if told or not end.calls:
            item = self._item(told, "completed")
            named: dict[str, JsonValue] = {"text": told, "logprobs": []}
            events = [
                self._begin_message(),
                self._event("response.output_text.done", **self._place(), **named),
                self._event("response.content_part.done", **self._place(), part=self._part(told)),
                self._event("response.output_item.done", output_index=0, item=item),
            ]
        for at, call in enumerate(end.calls, start=1 if told else 0):
            events += self._call_events(call, at)
        return b"".join((*events, self._event("response.completed", response=response)))

    def _call_events(self, call: ToolCallRequest, at: int) -> Iterator[bytes]:
        """The events of a call of the caller's tool, as the item at that index."""
        begun, item = (
            _call_item(call, "", "in_progress"),
            _call_item(call, call.arguments, "completed"),
        )
        place: dict[str, JsonValue] = {"item_id": item["id"], "output_index": at}
        kind, arguments = "response.function_call_arguments", call.arguments
        yield self._event("response.output_item.added", output_index=at, item=begun)
        yield self._event(f"{kind}.delta", **place, delta=arguments)
        yield self._event(f"{kind}.done", **place, name=call.name, arguments=arguments)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _place(self) -> dict[str, JsonValue]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: JsonValue) -> bytes:
        document = {"type": kind, "sequence_number": self._counter.next(), **fields}
        return b"event: " + kind.encode() + b"\n" + _data(document)


def _call_item(call: ToolCallRequest, arguments: str, status: str) -> dict[str, JsonValue]:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    }


_RESPONSE: Final = "resp_"
PART: Final = "~"
"""Begins the end of an id that says which answer of its run it is."""


def response_id(run_id: str) -> str:
    """The id of the response of a run."""
    return _RESPONSE + run_id


def run_of_response(given: str) -> str:
    """The id of the run of a response; one without the prefix is no run's."""
    run_id = given.removeprefix(_RESPONSE).partition(PART)[0]
    return run_id if given.startswith(_RESPONSE) else ""


# --- the answer as an ASGI app -------------------------------------------------------------------


class CompletionAnswer:
    """Answers a request with the events of its run, streamed or in one piece at its end."""

    def __init__(
        self,
        stream: AsgiApp,
        text: AnswerText,
        form: CompletionForm,
        *,
        threads: BlockingCalls,
        is_streamed: bool,
        headers: Mapping[str, str],
    ) -> None:
        """Nothing is sent yet.

        Args:
            stream: Sends the events of the run, as its followers get them.
            threads: Decode and encode long answers.
            headers: Of the answer.
        """
        self._threads = threads
        self._stream = stream
        self._text = text
        self._form = form
        self._is_streamed = is_streamed
        self._headers = headers
        self._told = ""
        self._cut = StreamCut()
        """Why the stream of events ended, if it was cut."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer."""

        async def note(message: Message) -> None:
            await self._take(message)

        async def translate(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {"content-type": EVENT_STREAM, "x-accel-buffering": "no", **self._headers}
                headers = [(name.encode(), text.encode("latin-1")) for name, text in named.items()]
                await send({**message, "headers": headers})
                body, is_last = self._form.begin(), False
            else:
                body = b"".join(map(self._form.piece, await self._take(message)))
                is_last = not message.get("more_body", False)
            if is_last:
                end, told = self._end(), self._told
                body += await self._beside(told, lambda: self._form.finish(end, told))
            elif not body and HEARTBEAT.data in message["body"]:
                body = HEARTBEAT.data
            if body:
                await send({"type": _BODY, "body": body, "more_body": not is_last})

        if self._is_streamed:
            await self._stream(scope, receive, translate)
            return
        await self._stream(scope, receive, note)
        end = self._end()
        if end.code is None:
            headers = {**self._headers, "x-minions-status": end.status}
            body = await self._beside(end.text, lambda: json_bytes(encode(self._form.whole(end))))
            answer = Answer(HTTPStatus.OK, body, headers=headers)
        else:
            # A client that repeats requests by itself must not start, and pay, another run.
            headers = {**self._headers, "x-should-retry": "false"}
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            if self._text.end is None:
                status = self._cut.status
            answer = Answer(status, _failure(end), headers=headers)
        await answer(scope, receive, send)

    def _end(self) -> RunEnd:
        if self._text.end is not None:
            return self._text.end
        run = self._form.run_id
        return RunEnd(
            status=RunState.RUNNING.value,
            code=self._cut.code,
            problem=f"The answer ends before its run does{self._cut.words}. GET "
            f"/api/v1/runs/{run} has the run.",
        )

    async def _take(self, message: Message) -> Sequence[str]:
        """What the events in a message add to the text."""
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            self._cut = cut_in(body)
        told = await self._beside(body, lambda: [*map(self._text.take, events_in(body))])
        pieces = [*filter(None, told)]
        self._told += "".join(pieces)
        return pieces

    async def _beside(self, size: str | bytes, work: Callable[[], T]) -> T:
        return await beside(self._threads, len(size) > _LONG, work)


def events_in(body: bytes) -> Sequence[Mapping[str, JsonValue]]:
    """The events of a part of a stream, without its comments."""
    blocks = (each.decode() for each in body.split(b"\n\n") if each and each[:1] != b":")
    return [as_object(parse_json(each.rpartition("\ndata: ")[2])) for each in blocks]


@frozen
class StreamCut:
    """Why a stream of events ended before its run did."""

    code: str = "stream-cut"
    words: str = ""
    """In brackets, behind a blank; empty: its last part does not say why."""

    @property
    def status(self) -> HTTPStatus:
        """The status of an answer in one piece."""
        is_expired = self.code == TOKEN_EXPIRED
        return HTTPStatus.UNAUTHORIZED if is_expired else HTTPStatus.SERVICE_UNAVAILABLE


def cut_in(body: bytes) -> StreamCut:
    """Why a stream of events ended, by its last part."""
    if body.startswith(b"event: error\n"):
        (event,) = events_in(body)
        return StreamCut(str(event["code"]), f" ({event['message']})")
    words = body.strip().removeprefix(b": ").decode()
    return StreamCut(words=f" ({words})" if words else "")
