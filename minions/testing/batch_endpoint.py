"""`BatchEndpoint`: a model's server on 127.0.0.1 with the batch API of a provider, and its faults.

    time = VirtualTime()
    async with BatchEndpoint(BatchForm.OPENAI, now=time.now, takes_s=3600) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        ...
    assert server.paid.total() == 10 and not server.live

Time passes by the clock that is handed in: what a batch has answered is worked out when it is asked
for. Calls that are made alone are answered at once.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from attrs import field, frozen, mutable

from minions.data.json_values import JsonValue, as_object, as_objects, as_text
from minions.testing.endpoint import ChatEndpoint, answer
from minions.testing.exchange import Exchange, completion

__all__ = ["BatchEndpoint", "BatchFate", "BatchFaults", "BatchForm", "HeldBatch"]

_Object: TypeAlias = Mapping[str, JsonValue]
Say: TypeAlias = Callable[[_Object], "str | _Object"]
"""What the model answers to the body of a request: a text, or a document in the server's form."""

USAGE: Final = (100, 20)
"""Tokens of a prompt and of an answer, as the server counts them."""


class BatchForm(StrEnum):
    """Whose batch API it is."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


class BatchFate(StrEnum):
    """How one request of a batch ends."""

    ANSWERED = "answered"
    BUSY = "busy"
    """With an error that may pass."""
    WRONG = "wrong"
    """With an error that does not."""
    EXPIRED = "expired"
    MISSING = "missing"
    """There is no line of it among the results."""


@frozen(kw_only=True)
class BatchFaults:
    """What goes wrong. The functions are asked with the number of the batch, from 0."""

    refusals: Mapping[str, Sequence[int]] = field(factory=dict)
    """By `upload`, `create`, `status`, `results`, `list` and `cancel`: HTTP statuses of the first
    requests of that kind, 0 for one that is carried out and whose answer is lost, 1 for one that is
    carried out and whose answer is no JSON."""
    fails: Callable[[int], bool] = lambda _batch: False
    """Whether the provider refuses the batch as a whole."""
    fate: Callable[[int, int], BatchFate] = lambda _batch, _request: BatchFate.ANSWERED
    """How the request with that number ends, in the order in which the batch has them."""
    shuffles: bool = False
    """Whether results come in any order."""
    repeats: bool = False
    """Whether each line of results comes twice, with lines between that are none."""
    gives_keys: bool = True
    """Whether Gemini gives back the keys of requests."""
    halves: int = 0
    """How many of the first readings of results end in the middle, as if that were all."""
    keeps_metadata: bool = True
    """Whether a server of OpenAI's form gives back the metadata of batches."""


@mutable(kw_only=True)
class HeldBatch:
    """A batch that was created."""

    id: str
    number: int
    name: str | None
    uploaded: str | None
    requests: Sequence[tuple[str, _Object]]
    """Custom ids and bodies."""
    created_at: datetime
    cancelled_at: datetime | None = None
    is_counted: bool = False


class BatchEndpoint(ChatEndpoint):
    """A server for `async with`. It keeps its batches when it is left and entered again."""

    def __init__(
        self,
        form: BatchForm = BatchForm.OPENAI,
        *,
        say: Say = lambda _body: "done",
        takes_s: float = 600.0,
        expires_s: float = 86_400.0,
        faults: BatchFaults | None = None,
        has_batches: bool = True,
        on_request: Callable[[str], None] = lambda _kind: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        port: int = 0,
    ) -> None:
        """Prepare; it listens within `async with`.

        Args:
            takes_s: Seconds until all requests of a batch are answered, one after the other.
            expires_s: Seconds after which a batch expires; what is answered by then stays.
            has_batches: Whether it has a batch API at all.
            on_request: Called with the kind of each request about batches, as `BatchFaults` names
                them, after it was carried out and before it is answered.
            now: The time, as the client knows it.
        """
        super().__init__(default=self._serve, port=port)
        self.form = form
        self.batches: dict[str, HeldBatch] = {}
        self.live: list[_Object] = []
        """Bodies of calls that were made alone."""
        self.paid: Counter[str] = Counter()
        """By custom id, how often a request was answered: each time is paid."""
        self.submitted: Counter[str] = Counter()
        """By custom id, in how many batches it was."""
        self._say = say
        self._takes_s = takes_s
        self._expires_s = expires_s
        self._faults = faults or BatchFaults()
        self._refusals = self._faults.refusals
        self._refused: Counter[str] = Counter()
        self._halved = 0
        self._has_batches = has_batches
        self._on_request = on_request
        self._now = now
        self._files: dict[str, Sequence[tuple[str, _Object]]] = {}

    @property
    def base_url(self) -> str:
        """The `base_url` of a model that calls this server."""
        return f"http://{self.host}/{'v1beta' if self.form is BatchForm.GEMINI else 'v1'}"

    def settle(self) -> None:
        """Count what batches have answered so far, as `paid`."""
        for batch in self.batches.values():
            if not batch.is_counted and self._end_of(batch) is not None:
                batch.is_counted = True
                fates = self._fates(batch)
                self.paid.update(each for each, fate in fates if fate is BatchFate.ANSWERED)

    # --- requests --------------------------------------------------------------------------------

    async def _serve(self, exchange: Exchange) -> None:
        url = urlsplit(exchange.request.path)
        method, parts = exchange.request.method, [unquote(each) for each in url.path.split("/")[2:]]
        what = self._kind(method, parts)
        if what is None:
            self.live.append(exchange.request.body)
            document = self._document(exchange.request.body)
            if exchange.request.wants_stream:
                said = as_object(as_objects(document["choices"])[0]["message"])
                await answer(as_text(said["content"]))(exchange)
            else:
                await exchange.send(json.dumps(document).encode())
            return
        if not self._has_batches:
            await exchange.send(b'{"error": {"message": "no such path"}}', status=404)
            return
        refusals = self._refusals.get(what, ())
        number = self._refused[what]
        self._refused[what] += 1
        status = refusals[number] if number < len(refusals) else 200
        if status >= 400:
            await exchange.send(b'{"error": {"message": "not now"}}', status=status)
            return
        query = {name: each[0] for name, each in parse_qs(url.query).items()}
        found = self._carry_out(what, parts, query, exchange.request.raw)
        self._on_request(what)
        if status == 0:
            exchange.reset()
        elif status == 1:
            await exchange.send(b"<html>welcome</html>")
        elif found is None:
            await exchange.send(b'{"error": {"message": "no such batch"}}', status=404)
        else:
            await exchange.send(found)

    def _kind(self, method: str, parts: Sequence[str]) -> str | None:
        """What is asked; None: a call that is made alone."""
        last = parts[-1]
        if last.endswith(":batchGenerateContent"):
            return "create"
        if parts[0] == "files":
            return "upload" if method == "POST" else "results"
        if "batches" not in parts:
            return None
        if last == "cancel" or last.endswith(":cancel"):
            return "cancel"
        if last == "results":
            return "results"
        if last == "batches":
            return "create" if method == "POST" else "list"
        return "status"

    def _carry_out(
        self, what: str, parts: Sequence[str], query: Mapping[str, str], raw: bytes
    ) -> bytes | None:
        """The body of the answer; None: there is no such batch."""
        if what == "upload":
            name = f"file-{len(self._files) + 1}"
            self._files[name] = list(_uploaded(raw))
            return json.dumps({"id": name, "object": "file"}).encode()
        if what == "create":
            return json.dumps(self._shown(self._create(json.loads(raw)))).encode()
        if what == "list":
            return json.dumps(self._list(query)).encode()
        if what == "results" and self.form is BatchForm.OPENAI:
            return self._half(self._file(parts[1]))
        name = parts[parts.index("batches") + 1].removesuffix(":cancel")
        batch = self.batches.get(name)
        if batch is None:
            return None
        if what == "cancel" and self._end_of(batch) is None:
            batch.cancelled_at = batch.cancelled_at or self._now()
        if what == "results":
            self.settle()
            return self._half(b"\n".join(self._lines(batch)))
        return json.dumps(self._shown(batch)).encode()

    def _create(self, body: _Object) -> HeldBatch:
        number, name, uploaded = len(self.batches), None, None
        requests: Sequence[tuple[str, _Object]]
        match self.form:
            case BatchForm.OPENAI:
                uploaded = as_text(body["input_file_id"])
                requests = self._files[uploaded]
                metadata = as_object(body.get("metadata") or {})
                name = as_text(next(iter(metadata.values()), ""))
            case BatchForm.ANTHROPIC:
                requests = [
                    (as_text(each["custom_id"]), as_object(each["params"]))
                    for each in as_objects(body["requests"])
                ]
            case BatchForm.GEMINI:
                batch = as_object(body["batch"])
                name = as_text(batch["display_name"])
                listed = as_object(as_object(batch["input_config"])["requests"])["requests"]
                requests = [
                    (as_text(as_object(each["metadata"])["key"]), as_object(each["request"]))
                    for each in as_objects(listed)
                ]
        batch_id = f"batch_{number}"
        held = HeldBatch(
            id=batch_id,
            number=number,
            name=name,
            uploaded=uploaded,
            requests=requests,
            created_at=self._now(),
        )
        self.batches[batch_id] = held
        self.submitted.update(custom_id for custom_id, _ in requests)
        return held

    # --- what a batch has come to ----------------------------------------------------------------

    def _end_of(self, batch: HeldBatch) -> datetime | None:
        """When it ended; None: it has not."""
        seconds = 0.0 if self._faults.fails(batch.number) else min(self._takes_s, self._expires_s)
        end = batch.created_at + timedelta(seconds=seconds)
        if batch.cancelled_at is not None:
            end = min(end, batch.cancelled_at)
        return end if end <= self._now() else None

    def _fates(self, batch: HeldBatch) -> Sequence[tuple[str, BatchFate | None]]:
        """How each request ended, by custom id; None: it was cancelled."""
        if self._faults.fails(batch.number):
            return ()
        end = self._end_of(batch) or self._now()
        passed_s = (end - batch.created_at).total_seconds()
        share = 1.0 if self._takes_s <= passed_s else passed_s / self._takes_s
        answered = math.ceil(len(batch.requests) * share)
        late = None if batch.cancelled_at is not None else BatchFate.EXPIRED
        return [
            (custom_id, self._faults.fate(batch.number, index) if index < answered else late)
            for index, (custom_id, _) in enumerate(batch.requests)
        ]

    def _counts(self, batch: HeldBatch) -> Counter[BatchFate | None]:
        return Counter(fate for _, fate in self._fates(batch))

    # --- the forms of documents ------------------------------------------------------------------

    def _shown(self, batch: HeldBatch) -> dict[str, JsonValue]:
        has_ended = self._end_of(batch) is not None
        if has_ended:
            self.settle()
        match self.form:
            case BatchForm.OPENAI:
                return self._openai(batch, has_ended=has_ended)
            case BatchForm.ANTHROPIC:
                return self._anthropic(batch, has_ended=has_ended)
            case BatchForm.GEMINI:
                return self._gemini(batch, has_ended=has_ended)

    def _openai(self, batch: HeldBatch, *, has_ended: bool) -> dict[str, JsonValue]:
        status = "in_progress"
        counts = self._counts(batch)
        errors: JsonValue = None
        if has_ended:
            status = "expired" if counts[BatchFate.EXPIRED] else "completed"
            status = "cancelled" if batch.cancelled_at is not None else status
        if self._faults.fails(batch.number):
            status = "failed"
            errors = {"data": [{"code": "token_limit_exceeded", "message": "too much", "line": 1}]}
        has_files = has_ended and status != "failed"
        return {
            "id": batch.id,
            "object": "batch",
            "status": status,
            "errors": errors,
            "input_file_id": batch.uploaded,
            "metadata": {"minions_wave": batch.name} if self._faults.keeps_metadata else None,
            "created_at": int(batch.created_at.timestamp()),
            "request_counts": {
                "total": len(batch.requests),
                "completed": counts[BatchFate.ANSWERED],
                "failed": counts[BatchFate.BUSY] + counts[BatchFate.WRONG],
            },
            "output_file_id": f"out-{batch.id}" if has_files else None,
            "error_file_id": f"err-{batch.id}" if has_files else None,
        }

    def _anthropic(self, batch: HeldBatch, *, has_ended: bool) -> dict[str, JsonValue]:
        counts = self._counts(batch)
        ended: dict[str, JsonValue] = {
            "succeeded": counts[BatchFate.ANSWERED],
            "errored": counts[BatchFate.BUSY] + counts[BatchFate.WRONG],
            "expired": counts[BatchFate.EXPIRED],
            "canceled": counts[None] + counts[BatchFate.MISSING],
        }
        open_ones = {"processing": len(batch.requests)}
        url = f"{self.base_url}/messages/batches/{batch.id}/results"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if has_ended else "in_progress",
            "created_at": batch.created_at.isoformat().replace("+00:00", "Z"),
            "request_counts": ended if has_ended else open_ones,
            "results_url": url if has_ended else None,
        }

    def _gemini(self, batch: HeldBatch, *, has_ended: bool) -> dict[str, JsonValue]:
        state = "RUNNING"
        shown: dict[str, JsonValue] = {"name": f"batches/{batch.id}"}
        if has_ended:
            state = "SUCCEEDED" if batch.cancelled_at is None else "CANCELLED"
            shown["done"] = True
            responses = [json.loads(line) for line in self._lines(batch)]
            shown["response"] = {"inlinedResponses": {"inlinedResponses": responses}}
        if self._faults.fails(batch.number):
            state = "FAILED"
            del shown["response"]
            shown["error"] = {"code": 8, "message": "too much"}
        shown["metadata"] = {"state": f"BATCH_STATE_{state}", "displayName": batch.name}
        return shown

    def _list(self, query: Mapping[str, str]) -> dict[str, JsonValue]:
        newest = sorted(self.batches.values(), key=lambda each: -each.number)
        shown: list[JsonValue] = [self._shown(each) for each in newest]
        if self.form is BatchForm.GEMINI:
            return {"operations": shown}
        after = query.get("after") or query.get("after_id")
        ids = [each.id for each in newest]
        shown = shown[ids.index(after) + 1 :] if after in ids else shown
        size = int(query.get("limit", "20"))
        return {"data": shown[:size], "has_more": len(shown) > size}

    # --- results ---------------------------------------------------------------------------------

    def _half(self, results: bytes | None) -> bytes | None:
        """The results, or the first half of them, as the faults have it."""
        if not results or self._halved >= self._faults.halves:
            return results
        self._halved += 1
        return results[: len(results) // 2]

    def _file(self, name: str) -> bytes | None:
        batch = self.batches.get(name.partition("-")[2])
        if batch is None:
            return None
        is_output = name.startswith("out-")
        lines = self._lines(batch)
        return b"\n".join(each for each in lines if (b'"error": null' in each) is is_output)

    def _lines(self, batch: HeldBatch) -> list[bytes]:
        """The lines of results, as the faults have them."""
        lines: list[bytes] = []
        if self._faults.fails(batch.number):
            return lines
        for (custom_id, fate), (_, body) in zip(self._fates(batch), batch.requests, strict=True):
            if fate is BatchFate.MISSING:
                continue
            line = json.dumps(self._line(custom_id, fate, body)).encode()
            lines += [line, b'{"half": ', b"[]", line] if self._faults.repeats else [line]
        if self._faults.repeats and self.form is BatchForm.GEMINI:
            lines = [each for each in lines if each.endswith(b"}")]
        if self._faults.shuffles:
            random.Random(batch.number).shuffle(lines)  # noqa: S311  # a test
        return lines

    def _line(self, custom_id: str, fate: BatchFate | None, body: _Object) -> dict[str, JsonValue]:
        match self.form:
            case BatchForm.OPENAI:
                return self._openai_line(custom_id, fate, body)
            case BatchForm.ANTHROPIC:
                return {"custom_id": custom_id, "result": self._anthropic_result(fate, body)}
            case BatchForm.GEMINI:
                key: dict[str, JsonValue] = {"metadata": {"key": custom_id}}
                own = key if self._faults.gives_keys else {}
                return {**own, **self._gemini_result(fate, body)}

    def _openai_line(
        self, custom_id: str, fate: BatchFate | None, body: _Object
    ) -> dict[str, JsonValue]:
        line: dict[str, JsonValue] = {"id": "x", "custom_id": custom_id}
        if fate is BatchFate.ANSWERED:
            document = self._document(body)
            return {**line, "response": {"status_code": 200, "body": document}, "error": None}
        if fate in (BatchFate.BUSY, BatchFate.WRONG):
            status = 503 if fate is BatchFate.BUSY else 400
            error: JsonValue = {"error": {"message": "busy" if status == 503 else "wrong"}}
            refused: JsonValue = {"status_code": status, "body": error}
            return {**line, "response": refused, "error": {}}
        code = "batch_cancelled" if fate is None else "batch_expired"
        return {**line, "response": None, "error": {"code": code, "message": "too late"}}

    def _anthropic_result(self, fate: BatchFate | None, body: _Object) -> JsonValue:
        if fate is BatchFate.ANSWERED:
            return {"type": "succeeded", "message": self._document(body)}
        if fate in (BatchFate.BUSY, BatchFate.WRONG):
            kind = "overloaded_error" if fate is BatchFate.BUSY else "invalid_request_error"
            error: JsonValue = {"type": kind, "message": kind}
            return {"type": "errored", "error": {"type": "error", "error": error}}
        return {"type": "canceled" if fate is None else "expired"}

    def _gemini_result(self, fate: BatchFate | None, body: _Object) -> dict[str, JsonValue]:
        if fate is BatchFate.ANSWERED:
            return {"response": self._document(body)}
        codes = {BatchFate.BUSY: 14, BatchFate.WRONG: 3, BatchFate.EXPIRED: 4}
        code = 1 if fate is None else codes[fate]
        return {"error": {"code": code, "message": "not answered"}}

    def _document(self, body: _Object) -> dict[str, JsonValue]:
        """The answer to a request, in the server's form."""
        said = self._say(body)
        if not isinstance(said, str):
            return dict(said)
        asked, answered = USAGE
        match self.form:
            case BatchForm.OPENAI:
                usage: dict[str, JsonValue] = {
                    "prompt_tokens": asked,
                    "completion_tokens": answered,
                    "total_tokens": asked + answered,
                }
                return completion(said, usage=usage)
            case BatchForm.ANTHROPIC:
                return {
                    "id": "msg",
                    "type": "message",
                    "role": "assistant",
                    "model": "fake-1",
                    "content": [{"type": "text", "text": said}],
                    "stop_reason": "end_turn",
                    "usage": {"input_tokens": asked, "output_tokens": answered},
                }
            case BatchForm.GEMINI:
                content: JsonValue = {"role": "model", "parts": [{"text": said}]}
                counts: JsonValue = {
                    "promptTokenCount": asked,
                    "candidatesTokenCount": answered,
                    "totalTokenCount": asked + answered,
                }
                return {
                    "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
                    "usageMetadata": counts,
                    "modelVersion": "fake-1",
                }


def _uploaded(raw: bytes) -> Iterator[tuple[str, _Object]]:
    """Custom ids and bodies in a form with a file of requests."""
    for line in raw.split(b"\n"):
        if line.startswith(b'{"custom_id"'):
            request = as_object(json.loads(line))
            yield as_text(request["custom_id"]), as_object(request["body"])
