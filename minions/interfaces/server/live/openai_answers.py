"""A run's events as OpenAI's chat completions and responses, streamed or whole.

It reads the stream that any follower of the run gets: so a run at a worker is answered as well, and
one whose caller leaves continues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

from attrs import define, field, frozen

from minions.contracts.executions import RunState
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
    """The answer; of a run that waits what it waits for."""
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

    def __init__(self, run_id: str, step_id: str | None, page: str | None) -> None:
        """Nothing was told yet.

        Args:
            step_id: The `answering_step`; None: nothing is told before the end.
            page: The address of the page for people; None: it is not known.
        """
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
        if kind in ("run_completed", "run_waiting", "run_failed"):
            return self._finish(str(kind), event)
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
        if kind == "run_waiting":
            text = self._say_waiting(data)
        else:
            response = data.get("response")
            text = response if isinstance(response, str) else dumps(response)
            text = "" if response is None else text
        usage = as_object(data.get("metrics") or {})
        self.end = RunEnd(text=text, usage=usage, status=status)
        return self._rest(text, self._call)

    def _say_waiting(self, data: Mapping[str, JsonValue]) -> str:
        lines = []
        pending = data.get("decisions")
        for each in pending if isinstance(pending, list) else ():
            decision = as_object(each)
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


# --- the two forms -------------------------------------------------------------------------------


@frozen(kw_only=True)
class CompletionForm(ABC):
    """How an answer is written."""

    run_id: str
    model: str
    created: int
    """Seconds since 1970."""

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
            "content": end.text,
            "refusal": None,
            "annotations": [],
        }
        choice: dict[str, JsonValue] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "stop",
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
        return f"chatcmpl-{self.run_id}"

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
        last = self._choice({}, "stop")
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


def _data(value: JsonValue) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


@define(kw_only=True)
class _Counter:
    """Numbers the events of one stream."""

    last: int = -1

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
    _counter: _Counter = field(factory=_Counter)

    @property
    def _item_id(self) -> str:
        return f"msg_{self.run_id}"

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
        return ResponseAnswer(
            id=response_id(self.run_id),
            created_at=self.created,
            status=status,  # type: ignore[arg-type]  # one of the three
            error=error,
            metadata=metadata,
            model=self.model,
            output=(self._item(text, "completed"),) if end is not None and not error else (),
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
        item = self._item(None, "in_progress")
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event("response.output_item.added", output_index=0, item=item),
                self._event("response.content_part.added", **self._place(), part=self._part("")),
            )
        )

    def piece(self, text: str) -> bytes:
        named: dict[str, JsonValue] = {"delta": text, "logprobs": []}
        return self._event("response.output_text.delta", **self._place(), **named)

    def finish(self, end: RunEnd, told: str) -> bytes:
        response = encode(self._response(end, told))
        if end.code is not None:
            return self._event("response.failed", response=response)
        item = self._item(told, "completed")
        named: dict[str, JsonValue] = {"text": told, "logprobs": []}
        return b"".join(
            (
                self._event("response.output_text.done", **self._place(), **named),
                self._event("response.content_part.done", **self._place(), part=self._part(told)),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event("response.completed", response=response),
            )
        )

    def _place(self) -> dict[str, JsonValue]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: JsonValue) -> bytes:
        document = {"type": kind, "sequence_number": self._counter.next(), **fields}
        return b"event: " + kind.encode() + b"\n" + _data(document)


_RESPONSE: Final = "resp_"


def response_id(run_id: str) -> str:
    """The id of the response of a run."""
    return _RESPONSE + run_id


def run_of_response(given: str) -> str:
    """The id of the run of a response; one without the prefix is no run's."""
    return given.removeprefix(_RESPONSE) if given.startswith(_RESPONSE) else ""


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
