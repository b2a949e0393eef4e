"""Spans that wait to be sent: how many together, how many at most, and what becomes of the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

import pytest

from minions.adapters.telemetry import otlp
from minions.adapters.telemetry.otlp import BatchLimits, SpanQueue
from minions.adapters.telemetry.otlp_spans import SpanRecord
from minions.data.errors import EnvironmentRefusedError
from span_records import span_record

NEVER_S = 3600.0
PATIENCE_S = 20.0


def span(name: int | str = 0, size: int = 0) -> SpanRecord:
    """One of about 500 bytes, and `size` more."""
    return span_record(str(name), **({"text": "." * size} if size else {}))


class Sent:
    """What was sent; the thread that sends waits while `is_held`."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.warnings: list[str] = []
        self.began = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self._may_go_on = threading.Event()
        if not is_held:
            self._may_go_on.set()

    def send(self, spans: Sequence[SpanRecord]) -> None:
        self.began.release()
        assert self._may_go_on.wait(PATIENCE_S)
        self.batches.append([each.name for each in spans])
        self.ended.release()

    def let_go(self) -> None:
        self._may_go_on.set()

    def queue(
        self, most_waiting: int = 10, most_sent: int = 3, delay_s: float = NEVER_S
    ) -> SpanQueue:
        limits = BatchLimits(most_waiting=most_waiting, most_sent=most_sent, delay_s=delay_s)
        return SpanQueue(self.send, limits, self.warnings.append)


def test_a_full_batch_is_sent_at_once_and_the_rest_at_the_end() -> None:
    sent = Sent()
    queue = sent.queue()
    for number in range(4):
        queue.add(span(number))
    assert sent.ended.acquire(timeout=PATIENCE_S)
    assert sent.batches == [["0", "1", "2"]]
    queue.close()
    queue.close()
    assert sent.batches[1:] == [["3"]]
    assert (queue.dropped, sent.warnings) == (0, [])


def test_a_batch_that_is_not_full_is_sent_after_a_while() -> None:
    sent = Sent()
    queue = sent.queue(delay_s=0.01)
    queue.add(span())
    assert sent.ended.acquire(timeout=PATIENCE_S)
    assert sent.batches == [["0"]]
    queue.close()


def test_nothing_is_held_up_by_a_full_queue_and_the_rest_is_dropped_and_told() -> None:
    sent = Sent(is_held=True)
    queue = sent.queue(most_waiting=4)
    for number in range(3):
        queue.add(span(number))
    assert sent.began.acquire(timeout=PATIENCE_S)
    for number in range(3, 10):
        queue.add(span(number))
    assert queue.dropped == 3
    sent.let_go()
    queue.close()
    assert [each for batch in sent.batches for each in batch] == list("0123456")
    first, last = sent.warnings
    assert first.startswith("Spans are dropped: more than 4 (OTEL_BSP_MAX_QUEUE_SIZE), or 64 MiB")
    assert last.startswith("3 spans were dropped: ")


def test_large_spans_are_bounded_in_bytes_and_sent_in_smaller_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "_MOST_BYTES", 25_000)
    monkeypatch.setattr(otlp, "_MOST_BYTES_SENT", 12_000)
    sent = Sent()
    queue = sent.queue(most_sent=10)
    for number in range(5):
        queue.add(span(number, size=5_000))
    queue.add(span("large", size=20_000))
    assert queue.dropped == 2
    queue.close()
    assert [len(batch) for batch in sent.batches] == [2, 2]
    again = sent.queue()
    again.add(span("large", size=20_000))
    again.close()
    assert sent.batches[-1] == ["large"]


def test_room_that_was_sent_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_MOST_BYTES", 25_000)
    sent = Sent()
    queue = sent.queue(most_waiting=3)
    for _ in range(5):
        for _ in range(3):
            queue.add(span(size=5_000))
        assert sent.ended.acquire(timeout=PATIENCE_S)
    queue.close()
    assert (len(sent.batches), queue.dropped) == (5, 0)


def test_a_span_that_ends_after_the_end_is_counted_and_starts_nothing() -> None:
    sent = Sent()
    queue = sent.queue()
    queue.close()
    queue.add(span())
    assert (sent.batches, queue.dropped) == ([], 1)


def test_spans_of_many_threads_all_arrive() -> None:
    sent = Sent()
    queue = sent.queue(most_waiting=100_000, most_sent=7)

    def add() -> None:
        for number in range(500):
            queue.add(span(number))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    queue.close()
    assert sum(map(len, sent.batches)) == 2_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_sends_its_own_spans_and_none_of_its_parents() -> None:
    sent = Sent()
    queue = sent.queue()
    queue.add(span("parent"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            queue.add(span("child"))
            queue.close()
            os.write(writer, "|".join(each for batch in sent.batches for each in batch).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        assert told.read() == b"child"
    queue.close()
    assert sent.batches == [["parent"]]


def test_the_variables_of_opentelemetry_say_how_much_is_sent_together() -> None:
    assert BatchLimits.of({}) == BatchLimits()
    told = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "4096",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
    }
    assert BatchLimits.of(told) == BatchLimits(most_waiting=4096, most_sent=100, delay_s=0.25)
    small = BatchLimits.of({"OTEL_BSP_MAX_QUEUE_SIZE": "100"})
    assert small == BatchLimits(most_waiting=100, most_sent=100)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "OTEL_BSP_MAX_QUEUE_SIZE is 'many', which is no"),
        ({"OTEL_BSP_SCHEDULE_DELAY": "0"}, "OTEL_BSP_SCHEDULE_DELAY is '0', which is no whole"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "²"}, "OTEL_BSP_MAX_QUEUE_SIZE is '²'"),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "101"},
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 101, and the queue has room for 100",
        ),
    ],
)
def test_a_limit_that_is_none_is_refused_by_name(environ: Mapping[str, str], told: str) -> None:
    with pytest.raises(EnvironmentRefusedError, match=told) as caught:
        BatchLimits.of(environ)
    assert caught.value.error_code == "bad-telemetry"
