"""The benchmark of small models asks each form the same, and counts what is right."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from benchmarks.counting_proxy import counting_proxy
from benchmarks.small_model import forms_at, measured, page, verdicts
from benchmarks.small_model_tasks import KINDS, Kind, Task, tasks_of
from minions.data.schema import SchemaValidator

RIGHT = {task.text: task.answer for _, task in tasks_of()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_answer_fits_and_no_example_is_a_question(kind: Kind) -> None:
    validator = SchemaValidator(kind.schema())
    tasks, examples = kind.tasks(), kind.examples(4)
    assert len(tasks) == 12
    assert sum(task.is_varied for task in tasks) == 6
    assert len({task.text for task in [*tasks, *examples]}) == 16
    assert not [error for task in [*tasks, *examples] for error in validator.errors(task.answer)]


def test_a_text_is_right_without_regard_to_case_and_a_number_only_as_one() -> None:
    task = Task("", {"city": "Rome", "age": 3, "is_old": False}, is_varied=False)
    assert task.right({"city": " rome.", "age": 3, "is_old": False}) == 3
    assert task.right({"city": "Roma", "age": "3", "is_old": 0}) == 0
    assert task.right({}) == 0


@asynccontextmanager
async def model_that_knows() -> AsyncIterator[str]:
    """It answers what is right, except to one text that it never answers with JSON."""

    async def answer(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        text = next(each["content"] for each in asked["messages"][::-1] if each["role"] == "user")
        known = RIGHT.get(text)
        content = (
            "I do not know." if known is None or text.startswith("Cairo") else json.dumps(known)
        )
        message = {"role": "assistant", "content": content}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
        return web.json_response({**body, "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_what_is_right_is_counted_for_each_form() -> None:
    async with (
        model_that_knows() as base_url,
        counting_proxy(base_url) as counted,
        forms_at(counted.base_url) as forms,
    ):
        asked = [each for each in forms if each.name in ("Minions", "SDK, json_schema")]
        tallies = [await measured(form, counted, KINDS[-1:]) for form in asked]
    assert [each.form.examples for each in tallies] == [0, 1, 2, 4, 0, 4]
    for tally in tallies:
        assert (tally.tasks, tally.valid, tally.refused, tally.whole) == (12, 11, 1, 11)
        assert tally.right == 33 / 36
        assert (sum(tally.made), sum(tally.varied)) == (18, 15)
        assert tally.counted.input_tokens == 10 * tally.counted.requests
    assert tallies[0].counted.requests == 13  # it asks again once
    assert tallies[-1].counted.requests == 12
    assert page(tallies).count("\n") == 7
    *against, reached = verdicts(tallies)
    assert len(against) == 4
    assert "1.00 × the fields of the best of the others (SDK, json_schema)" in against[0]
    assert reached == "- four examples: 92% of the fields right; goal ≥ 85%: yes"
