"""A recorded model answers as the model did: pieces, failures, usage, in whatever order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from builders import deterministic_services
from minions.adapters.models.cassette_models import (
    Cassette,
    CassetteRecorder,
    RecordingModel,
    ReplayModel,
    difference,
)
from minions.adapters.models.cassette_request import request_digest, request_form
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import (
    ChatModel,
    Confidence,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    ModelOptions,
    Prompt,
)
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.messages import (
    Message,
    ToolCallRequest,
    assistant,
    border_words,
    system,
    user,
)
from minions.contracts.tools import ToolSpec
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document


def asked(*texts: str) -> Prompt:
    return Prompt(tuple(map(user, texts)))


def no_warning(line: str) -> None:
    raise AssertionError(line)


async def recorded(
    path: Path, answers: Iterable[Answer], prompts: Sequence[Prompt], *, streams: bool = False
) -> list[ModelDelta]:
    """Record these calls, in this order; the pieces that came."""
    recorder = CassetteRecorder(path, warn=no_warning)
    model = RecordingModel(ScriptedModel(answers, name="scripted/a"), recorder)
    pieces: list[ModelDelta] = []
    for prompt in prompts:
        await model.complete(prompt, pieces.append if streams else None)
    await model.aclose()
    recorder.close()
    return pieces


async def said(model: ReplayModel, prompt: Prompt) -> str | None:
    outcome = await model.complete(prompt)
    return outcome.unwrap().text if is_successful(outcome) else outcome.failure().code


# --- what comes back --------------------------------------------------------------------------


async def test_an_answer_is_replayed_whole_and_costs_nothing(tmp_path: Path) -> None:
    answer = ModelCallResponse(
        message=assistant("Hi \ud83d", tool_calls=[tool_request("t", '{"a": 1', id="c1")]),
        finish_reason="tool_calls",
        model_name="tiny-1",
        confidence=Confidence(0.25, "$.a"),
    )
    await recorded(tmp_path / "c", [answer], [asked("Speak")])
    model = Cassette.read(tmp_path / "c").model()
    got = (await model.complete(asked("Speak"))).unwrap()
    assert (got.message, got.finish_reason, got.model_name) == (
        evolve(answer.message, content="Hi ?"),  # a file cannot hold half a character
        "tool_calls",
        "tiny-1",
    )
    assert got.confidence == answer.confidence
    assert got.usage.total_tokens > 0
    assert got.usage.cost_usd == 0.0
    assert model.name == "replay/scripted/a"
    assert model.endpoint is None


async def test_a_streamed_answer_comes_in_the_recorded_pieces(tmp_path: Path) -> None:
    calls = [tool_request("t", {"a": 1}, id="c1")]
    pieces = await recorded(
        tmp_path / "c", ["one two three", calls], [asked("a"), asked("b")], streams=True
    )
    model = Cassette.read(tmp_path / "c").model()
    got: list[ModelDelta] = []
    await model.complete(asked("a"), got.append)
    await model.complete(asked("b"), got.append)
    assert got == pieces
    assert [piece.content for piece in got[:3]] == ["one ", "two ", "three"]


async def test_an_answer_that_was_not_streamed_comes_in_one_piece(tmp_path: Path) -> None:
    await recorded(tmp_path / "c", ["one two"], [asked("a")])
    got: list[ModelDelta] = []
    await Cassette.read(tmp_path / "c").model().complete(asked("a"), got.append)
    assert got == [ModelDelta(content="one two")]


async def test_a_failure_and_the_answer_after_it_are_replayed_in_turn(tmp_path: Path) -> None:
    busy = ModelFailure(
        code="rate-limited", message="Wait.", is_retryable=True, retry_after_s=60.0, status=429
    )
    await recorded(tmp_path / "c", [busy, "Here."], [asked("a"), asked("a")])
    model = Cassette.read(tmp_path / "c").model()
    failure = (await model.complete(asked("a"))).failure()
    assert (failure.code, failure.status, failure.is_retryable) == ("rate-limited", 429, True)
    assert failure.retry_after_s == 0.0  # no server has to be waited for
    assert await said(model, asked("a")) == "Here."


async def test_a_retry_after_a_replayed_failure_waits_no_time_and_after_another_it_does(
    tmp_path: Path,
) -> None:
    """A-137."""
    down = ModelFailure(code="model-unavailable", message="500", is_retryable=True)
    recipe = recipe_from_document({"id": "r", "steps": [{"id": "a", "goal": "Hi"}]}, Catalog())

    async def waited_with(model: ChatModel) -> float:
        services = deterministic_services()
        begin = services.clock.monotonic()
        result = await AgentExecutor(model, services=services).execute(recipe)
        assert result.unwrap() == "Here."
        return services.clock.monotonic() - begin

    recorder = CassetteRecorder(tmp_path / "c", warn=no_warning)
    real = RecordingModel(ScriptedModel([down, down, "Here."]), recorder)
    assert await waited_with(real) > 0.5
    recorder.close()
    assert await waited_with(Cassette.read(tmp_path / "c").model()) == 0.0


@given(st.permutations(["a", "a", "b", "c", "c", "c"]))
async def test_equal_requests_get_their_answers_in_recorded_order_whatever_comes_between(
    tmp_path_factory: pytest.TempPathFactory, order: Sequence[str]
) -> None:
    path = tmp_path_factory.mktemp("cassette") / "c"
    prompts = ["a", "b", "a", "c", "c", "c"]
    answers = ["a1", "b1", "a2", "c1", "c2", "c3"]
    await recorded(path, answers, [asked(text) for text in prompts])
    model = Cassette.read(path).model()
    got = [await said(model, asked(text)) for text in order]
    for text in "abc":
        own = [answer for answer, of in zip(got, order, strict=True) if of == text]
        assert own == [answer for answer in answers if answer.startswith(text)]


async def test_each_answer_is_given_once(tmp_path: Path) -> None:
    await recorded(tmp_path / "c", ["one"], [asked("a")])
    model = Cassette.read(tmp_path / "c").model()
    assert [await said(model, asked("a")), await said(model, asked("a"))] == [
        "one",
        "cassette-miss",
    ]
    assert "it is there once, and was used up" in model.cassette.misses[0]
    assert await said(model.restarted(), asked("a")) == "one"


async def test_the_newest_recording_answers_first_and_older_ones_fill_in(tmp_path: Path) -> None:
    await recorded(tmp_path / "c", ["old a", "old b"], [asked("a"), asked("b")])
    await recorded(tmp_path / "c", ["new a"], [asked("a")])
    model = Cassette.read(tmp_path / "c").model()
    assert [await said(model, asked(text)) for text in "ab"] == ["new a", "old b"]


async def test_a_recording_while_the_server_is_down_hides_no_older_answer(tmp_path: Path) -> None:
    """A-137."""
    down = ModelFailure(code="unreachable", message="No answer.", is_retryable=True)
    await recorded(tmp_path / "c", [down, "old a", "old b"], [asked(text) for text in "aab"])
    await recorded(tmp_path / "c", [down, down, "new b"], [asked(text) for text in "aab"])
    model = Cassette.read(tmp_path / "c").model()
    got = [await said(model, asked(text)) for text in "aaaab"]
    assert got == ["unreachable", "old a", "unreachable", "unreachable", "new b"]


async def test_an_answer_that_the_journal_replays_is_used_up(tmp_path: Path) -> None:
    await recorded(tmp_path / "c", ["one", "two"], [asked("a"), asked("a")])
    model = Cassette.read(tmp_path / "c").model()
    model.recall(asked("a"))
    assert await said(model, asked("a")) == "two"


# --- what is compared -------------------------------------------------------------------------

BASE = Prompt(
    (system("Be brief."), user("Speak.")),
    ModelOptions(temperature=0.5),
    tools=(ToolSpec(name="look"),),
    output_request=OutputRequest(mode=OutputMode.JSON, body={"response_format": {"type": "j"}}),
)


@pytest.mark.parametrize(
    "change",
    [
        lambda prompt: evolve(prompt, messages=(*prompt.messages, user("Now."))),
        lambda prompt: evolve(prompt, options=evolve(prompt.options, temperature=0.6)),
        lambda prompt: evolve(prompt, options=evolve(prompt.options, max_output_tokens=9)),
        lambda prompt: evolve(prompt, options=evolve(prompt.options, extra={"a": 1})),
        lambda prompt: evolve(prompt, tools=()),
        lambda prompt: evolve(prompt, tools=(ToolSpec(name="look", description="Sees."),)),
        lambda prompt: evolve(prompt, output_request=None),
        lambda prompt: evolve(prompt, output_request=OutputRequest(mode=OutputMode.MD_JSON)),
    ],
)
def test_whatever_decides_the_answer_is_compared(change: Callable[[Prompt], Prompt]) -> None:
    digest = request_digest("m", request_form(BASE))
    assert request_digest("m", request_form(change(BASE))) != digest
    assert request_digest("other", request_form(BASE)) != digest


def test_limits_of_time_are_not_compared() -> None:
    slow = evolve(BASE, options=evolve(BASE.options, timeout_s=1.0, idle_timeout_s=2.0, cache=True))
    assert request_form(slow) == request_form(BASE)


@pytest.mark.parametrize("is_folded", [False, True])
def test_the_names_of_borders_which_differ_from_run_to_run_are_not_compared(
    *, is_folded: bool
) -> None:
    def prompt(name: str) -> Prompt:
        words = border_words(name)
        data = f"<{name}>\nread me\n</{name}>"
        said: tuple[Message, ...] = (words, user(data))
        if is_folded:
            said = (user(f"{words.content}\n\n{data}"),)
        return Prompt(said, folds_system=is_folded)

    one, other = request_form(prompt("data-0a1b2c3d")), request_form(prompt("data-ffffffff"))
    assert one == other
    assert "data-0>" in str(one)


RUN: Mapping[str, JsonValue] = {
    "id": "two",
    "steps": [
        {"id": "a", "goal": "Fetch", "output": {"text": "string"}},
        {"id": "b", "goal": "Use it", "depends_on": ["a"]},
    ],
}


async def test_a_whole_run_with_data_in_borders_is_replayed(tmp_path: Path) -> None:
    recipe = recipe_from_document(RUN, Catalog())
    recorder = CassetteRecorder(tmp_path / "c", warn=no_warning)
    real = RecordingModel(ScriptedModel([{"text": "stuff"}, "done"]), recorder)
    first = await AgentExecutor(real, services=deterministic_services()).execute(recipe)
    recorder.close()
    services = deterministic_services(seed=2)
    services.ids("run")  # another run has another border
    replay = Cassette.read(tmp_path / "c").model()
    second = await AgentExecutor(replay, services=services).execute(recipe)
    assert (first.run_id, second.run_id) == ("run_1", "run_2")
    assert second.unwrap() == first.unwrap()


# --- a miss -----------------------------------------------------------------------------------


async def test_the_diff_is_to_the_request_that_is_most_like_it(tmp_path: Path) -> None:
    prompts = [asked("Sum up\nthe news\nof today"), asked("Translate\nit"), asked("Count")]
    await recorded(tmp_path / "c", ["1", "2", "3"], prompts)
    model = Cassette.read(tmp_path / "c").model()
    failure = (await model.complete(asked("Sum up\nthe news\nof yesterday"))).failure()
    assert failure.code == "cassette-miss"
    assert not failure.is_retryable
    assert "most like it is call 1:" in failure.message
    assert "-of today\n+of yesterday" in failure.message
    assert model.cassette.calls_left == 3


@given(st.lists(st.text(max_size=5), max_size=900), st.lists(st.text(max_size=5), max_size=900))
def test_a_diff_is_bounded(one: list[str], other: list[str]) -> None:
    lines = difference([*one, "x" * 10_000], other).split("\n")
    assert len(lines) <= 62 + sum("\r" in line for line in lines)
    assert max(map(len, lines), default=0) <= 402


def test_a_long_diff_begins_where_the_requests_part() -> None:
    same = [f"line {number}" for number in range(5_000)]
    text = difference([*same, "old"], [*same, "new"])
    assert text.endswith("-old\n+new")
    assert len(text.split("\n")) == 7


# --- models of a recording --------------------------------------------------------------------


async def test_the_capabilities_of_the_recording_hold(tmp_path: Path) -> None:
    measured = ModelCapabilities(
        output_mode=OutputMode.TOOLS, fallback_modes=(), takes_system=False, binds=True
    )
    recorder = CassetteRecorder(tmp_path / "c", warn=no_warning)
    model = RecordingModel(
        ScriptedModel(["one"]), recorder, name="lab/tiny", measured=lambda _: measured
    )
    await model.complete(asked("a"))
    recorder.close()
    replay = Cassette.read(tmp_path / "c").model("lab/tiny")
    assert replay.capabilities == measured


async def test_of_several_models_one_has_to_be_named(tmp_path: Path) -> None:
    recorder = CassetteRecorder(tmp_path / "c", warn=no_warning)
    for name in ("lab/a", "lab/b"):
        await RecordingModel(ScriptedModel([name]), recorder, name=name).complete(asked("Who?"))
    recorder.close()
    cassette = Cassette.read(tmp_path / "c")
    with pytest.raises(UsageError, match=r"calls of several models \(lab/a, lab/b\)"):
        cassette.model()
    with pytest.raises(UsageError, match="Did you mean 'lab/b'"):
        cassette.model("lab/bb")
    assert await said(cassette.model("lab/b"), asked("Who?")) == "lab/b"


def test_two_processes_do_not_record_into_one_cassette(tmp_path: Path) -> None:
    recorder = CassetteRecorder(tmp_path / "c", warn=no_warning)
    with pytest.raises(EnvironmentRefusedError, match="another process records into it"):
        CassetteRecorder(tmp_path / "c", warn=no_warning)
    recorder.close()
    CassetteRecorder(tmp_path / "c", warn=no_warning).close()


@pytest.mark.parametrize("has_other", [False, True])
def test_a_recording_that_got_its_name_meanwhile_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_other: bool
) -> None:
    """The file is opened by one process, and moved by another before the first has locked it."""
    import fcntl

    usual = fcntl.flock

    def moved_first(file: int, operation: int) -> None:
        (tmp_path / "c").rename(tmp_path / "final")
        if has_other:
            (tmp_path / "c").touch()
        usual(file, operation)

    CassetteRecorder(tmp_path / "c", warn=no_warning).close()
    monkeypatch.setattr(fcntl, "flock", moved_first)
    with pytest.raises(EnvironmentRefusedError, match="another process records into it"):
        CassetteRecorder(tmp_path / "c", warn=no_warning)


def test_a_cassette_is_a_regular_file_in_a_folder_that_is_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="it is a pipe, not a file"):
        Cassette.read(tmp_path / "fifo")
    with pytest.raises(EnvironmentRefusedError, match="it is no regular file"):
        CassetteRecorder(tmp_path / "fifo", warn=no_warning)
    with pytest.raises(EnvironmentRefusedError, match=f"there is no folder {tmp_path / 'no'}"):
        CassetteRecorder(tmp_path / "no" / "c", warn=no_warning)
    assert not (tmp_path / "no").exists()


async def test_an_answer_that_was_paid_for_outlives_a_cassette_that_breaks(tmp_path: Path) -> None:
    told: list[str] = []
    recorder = CassetteRecorder(tmp_path / "c", warn=told.append)
    recorder.close()  # as a full disk: each write fails from now on
    model = RecordingModel(ScriptedModel(["one", "two"]), recorder)
    answers = [(await model.complete(asked("a"))).unwrap().text for _ in range(2)]
    assert answers == ["one", "two"]
    assert len(told) == 1
    assert "it lacks this call and those that follow" in told[0]


def test_thoughts_of_earlier_answers_are_not_compared() -> None:
    said = assistant("x", reasoning="hm")
    calls = (ToolCallRequest(id="1", name="t"),)
    form = request_form(Prompt((said, assistant(tool_calls=calls))))
    assert "hm" not in str(form)
