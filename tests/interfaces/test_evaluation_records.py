"""What an evaluation found is recorded when it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.evaluating.evaluation_records import (
    CaseAnswer,
    CaseRecord,
    EvaluationRecord,
    EvaluationRecords,
    evaluation_id,
)
from minions.data.errors import NotFoundError
from minions.engine.services.run_services import Services
from minions.testing.virtual_time import FakeClock

RECIPE: Final = """
id: echo
inputs: {text: string}
steps: [{id: a, set: {text: "{{ inputs.text }}"}}]
output: "{{ a.text }}"
"""
LOUD: Final = RECIPE.replace("id: echo", "id: loud").replace(
    "{{ inputs.text }}", "{{ inputs.text | upper }}"
)
CASES: Final = (
    '{"name": "one", "text": "a", "expected": "a"}\n{"name": "two", "text": "B", "expected": "B"}\n'
)
THREADS: Final = Services().beside
DB: Final = ("--db", "j.db")


def _read(folder: Path) -> list[tuple[EvaluationRecord, list[CaseRecord]]]:
    async def read() -> list[tuple[EvaluationRecord, list[CaseRecord]]]:
        state = SqliteState(folder / "j.db")
        try:
            records = EvaluationRecords(state)
            found, total = await records.page(10, 0)
            cases = [list(await records.cases(each.id, THREADS)) for each in found]
        finally:
            await state.aclose()
        assert total == len(found)
        return list(zip(found, cases, strict=True))

    return asyncio.run(read())


def answer(name: str, *passed: float | None) -> CaseRecord:
    return CaseRecord(name=name, answers=tuple(CaseAnswer(passed=each) for each in passed))


def test_an_evaluation_leaves_its_rates_its_cases_and_their_runs(cli: Cli, write: Write) -> None:
    write("echo.yaml", RECIPE)
    write("loud.yaml", LOUD)
    write("cases.jsonl", CASES)
    command = ("eval", "echo.yaml", "cases.jsonl", "--against", "loud.yaml", *DB)
    assert cli(*command).code in (0, 1)
    ((record, cases),) = _read(Path())
    assert record.title == "echo.yaml on cases.jsonl"
    assert [(each.label, each.pass_rate) for each in record.variants] == [
        ("echo.yaml", 1.0),
        ("loud.yaml", 0.5),
    ]
    assert record.variants[0].low is not None
    assert [each.name for each in cases] == ["one", "two"]
    one = cases[0].answers
    assert [each.passed for each in one] == [1.0, 0.0]
    assert one[1].reason == "fields"  # and not what was answered: that goes with its run
    assert all(each.run_id is not None for each in one)
    assert [each["worse"] for each in record.comparisons] == [1]
    assert cli(*command).code in (0, 1)  # it is the same evaluation, nothing is asked again
    assert len(_read(Path())) == 1


def test_a_case_is_failed_or_different_by_its_answers() -> None:
    found = [answer("a", 1.0, 1.0), answer("b", 1.0, 0.5), answer("c", 0.0, 0.0), answer("d", None)]
    assert [each.is_failed for each in found] == [False, True, True, False]
    assert [each.is_different for each in found] == [False, True, False, False]


async def test_records_are_listed_by_time_and_replaced_by_their_id() -> None:
    clock, records = FakeClock(), EvaluationRecords(MemoryState())

    def record(name: str, *, is_passed: bool = True) -> EvaluationRecord:
        return EvaluationRecord(
            id=evaluation_id([name]),
            title=name,
            ended_at=clock.now(),
            case_count=1,
            samples=1,
            is_passed=is_passed,
            variants=(),
        )

    first = record("first")
    await records.put(first, [], THREADS)
    clock.advance(60)
    await records.put(record("second"), [], THREADS)
    assert [each.title for each in (await records.page(10, 0))[0]] == ["second", "first"]
    clock.advance(60)
    again = evolve(record("first"), is_passed=False)
    await records.put(again, [], THREADS)
    assert await records.find(first.id) == again
    assert (await records.page(10, 0))[1] == 2
    assert [each.title for each in (await records.page(1, 1))[0]] == ["first"]
    with pytest.raises(NotFoundError):
        await records.find("none")


async def test_a_list_reads_no_cases() -> None:
    state, read = MemoryState(), []
    records = EvaluationRecords(state)
    record = EvaluationRecord(
        id="one",
        title="one",
        ended_at=FakeClock().now(),
        case_count=1,
        samples=1,
        is_passed=True,
        variants=(),
    )
    await records.put(record, [answer("a", 1.0)], THREADS)
    get = state.get

    async def noted(key: str) -> str | None:
        read.append(key)
        return await get(key)

    state.get = noted  # type: ignore[method-assign]  # of a test
    assert (await records.page(10, 0))[0] == [record]
    assert await records.find("one") == record
    assert not [key for key in read if "cases" in key]
    assert [each.name for each in await records.cases("one", THREADS)] == ["a"]
    assert await records.cases("none", THREADS) == []
    await state.put(next(key for key in read if "cases" in key), "[{}]")
    assert await records.cases("one", THREADS) == []
