from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful

from minions.adapters.models.script_items import Answer, ScriptItem, tool_request
from minions.adapters.models.scripted import ScriptedModel, load_script
from minions.contracts.calls import (
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    Prompt,
    StepCompletionInstruction,
)
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.messages import TokenUsage, ToolCallRequest, assistant, system, user
from minions.data.errors import UsageError

HELLO = Prompt((user("hello"),))


async def response(model: ScriptedModel, prompt: Prompt = HELLO) -> ModelCallResponse:
    outcome = await model.complete(prompt)
    assert is_successful(outcome), outcome
    return outcome.unwrap()


async def failure(model: ScriptedModel, prompt: Prompt = HELLO) -> ModelFailure:
    outcome = await model.complete(prompt)
    assert not is_successful(outcome), outcome
    return outcome.failure()


# --- answers -----------------------------------------------------------------------------------


async def test_a_text_is_the_answer_with_an_estimated_usage() -> None:
    assert await response(ScriptedModel(["Hello, world"])) == ModelCallResponse(
        message=assistant("Hello, world"),
        usage=TokenUsage(input_tokens=1, output_tokens=3),
        finish_reason="stop",
        model_name="answers",
        provider="scripted",
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("text", assistant("text")),
        ("", assistant("")),
        (assistant("said"), assistant("said")),
        ({"a": [1, "é"]}, assistant('{"a":[1,"é"]}')),
        (
            tool_request("a", {"x": 1}),
            assistant(tool_calls=[ToolCallRequest(id="call_1", name="a", arguments='{"x":1}')]),
        ),
        (
            [tool_request("a"), tool_request("b", "{broken", id="own")],
            assistant(
                tool_calls=[
                    ToolCallRequest(id="call_1", name="a", arguments="{}"),
                    ToolCallRequest(id="own", name="b", arguments="{broken"),
                ]
            ),
        ),
    ],
)
async def test_every_form_of_an_answer_becomes_its_message(answer: Answer, message: object) -> None:
    assert (await response(ScriptedModel([answer]))).message == message


async def test_answers_come_in_order_and_the_prompts_are_remembered() -> None:
    model = ScriptedModel(["one", "two"])
    other = Prompt((user("again"),))
    assert [(await response(model)).text, (await response(model, other)).text] == ["one", "two"]
    assert model.prompts == [HELLO, other]


async def test_a_script_that_is_used_up_says_how_many_answers_it_had() -> None:
    model = ScriptedModel(["one", "two"])
    await response(model)
    await response(model)
    for _ in range(2):
        assert await failure(model) == ModelFailure(
            code="script-exhausted",
            message="The script has no answer for this prompt: it had 2 answers, and all are used. "
            "Add one, or ask less often.",
            suggestions=("add an answer to the script",),
        )
    assert len(model.prompts) == 4


async def test_an_endless_script_never_runs_out() -> None:
    model = ScriptedModel(itertools.cycle(["a", "b"]))
    assert [(await response(model)).text for _ in range(5)] == ["a", "b", "a", "b", "a"]


async def test_a_function_answers_from_the_prompt() -> None:
    def plain(prompt: Prompt) -> Answer:
        return f"to {prompt.messages[0].content}"

    async def later(prompt: Prompt) -> Answer:
        await asyncio.sleep(0)
        return plain(prompt)

    assert (await response(ScriptedModel(plain))).text == "to hello"
    assert (await response(ScriptedModel(later))).text == "to hello"


async def test_a_whole_response_stays_as_it_is_but_for_what_it_leaves_open() -> None:
    whole = ModelCallResponse(
        message=assistant("x"),
        usage=TokenUsage(input_tokens=7, cost_usd=0.5),
        finish_reason="length",
        model_name="m",
        provider="p",
        first_token_latency_ms=3.0,
        completion_instruction=StepCompletionInstruction(is_complete=True),
    )
    assert await response(ScriptedModel([whole])) == whole
    bare = ModelCallResponse(message=assistant(tool_calls=[tool_request("a")]))
    filled = await response(ScriptedModel([bare]))
    assert filled.tool_calls == (ToolCallRequest(id="call_1", name="a"),)
    assert (filled.finish_reason, filled.usage.total_tokens) == ("tool_calls", 2)
    assert filled.completion_instruction is None


async def test_ids_are_unique_in_a_model_even_beside_given_ones() -> None:
    model = ScriptedModel(
        [
            [tool_request("a", id="call_2"), tool_request("b")],
            [tool_request("c"), tool_request("d", id="call_2")],
        ]
    )
    ids = [call.id for _ in range(2) for call in (await response(model)).tool_calls]
    assert ids == ["call_2", "call_1", "call_3", "call_2"]


async def test_the_estimate_counts_all_that_is_sent_and_said() -> None:
    request = OutputRequest(mode=OutputMode.JSON, messages=(system("x" * 40),))
    prompt = Prompt((user("y" * 38),), output_request=request)
    model = ScriptedModel([[tool_request("four", "1234")]])
    assert (await response(model, prompt)).usage == TokenUsage(input_tokens=19, output_tokens=2)


def test_the_name_is_as_given_and_words_are_all_it_takes() -> None:
    model = ScriptedModel([], name="scripted/mine")
    assert model.name == "scripted/mine"
    assert model.capabilities == ModelCapabilities(output_mode=None)


@pytest.mark.parametrize("answers", ["one text", {"a": 1}])
def test_one_answer_instead_of_a_list_is_refused(answers: str) -> None:
    with pytest.raises(UsageError, match="takes a list of answers or a function"):
        ScriptedModel(answers)


# --- failures ------------------------------------------------------------------------------------


async def test_a_failure_is_given_back_as_it_is() -> None:
    limited = ModelFailure(code="rate-limited", message="m", is_retryable=True, retry_after_s=1.5)
    assert await failure(ScriptedModel([limited])) == limited


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (TimeoutError("late"), "model-timeout", True),
        (ConnectionResetError("late"), "model-unreachable", True),
        (TimeoutError(), "model-timeout", True),
        (ValueError("late"), "scripted-error", False),
        (UsageError("late"), "scripted-error", False),
    ],
)
async def test_an_exception_becomes_a_failure(
    error: Exception, code: str, is_retryable: bool
) -> None:
    def raising(prompt: Prompt) -> Answer:
        raise error

    async def raising_later(prompt: Prompt) -> Answer:
        raise error

    for model in (ScriptedModel([error]), ScriptedModel(raising), ScriptedModel(raising_later)):
        found = await failure(model)
        assert (found.code, found.is_retryable) == (code, is_retryable)
        assert (str(error) or "TimeoutError") in found.message


async def test_cancellation_passes_through() -> None:
    with pytest.raises(asyncio.CancelledError):
        await ScriptedModel([asyncio.CancelledError()]).complete(HELLO)


async def test_what_is_no_answer_is_a_failure_that_says_so() -> None:
    wrong: list[object] = [42, None, [1, 2], {"a": float("nan")}, {"a": object()}]
    model = ScriptedModel(wrong)  # type: ignore[arg-type]  # on purpose
    for _ in wrong:
        found = await failure(model)
        assert (found.code, found.is_retryable) == ("scripted-error", False)


# --- streams -------------------------------------------------------------------------------------


@given(st.text(st.characters(codec="utf-8") | st.sampled_from(" \n\t"), max_size=40))
def test_the_pieces_of_a_streamed_text_add_up_to_it(text: str) -> None:
    deltas: list[ModelDelta] = []
    outcome = asyncio.run(ScriptedModel([text]).complete(HELLO, deltas.append))
    assert "".join(delta.content or "" for delta in deltas) == text == outcome.unwrap().text


async def test_a_streamed_answer_comes_in_words_and_fragments_and_is_the_same() -> None:
    calls = (
        ToolCallRequest(id="c1", name="a", arguments='{"x":1}'),
        ToolCallRequest(id="c2", name="b", arguments=""),
    )
    deltas: list[ModelDelta] = []
    answer = assistant(" I  look.\n", tool_calls=calls)
    outcome = await ScriptedModel([answer]).complete(HELLO, deltas.append)
    assert outcome.unwrap() == await response(ScriptedModel([answer]))
    begin = {"index": 0, "id": "c1", "type": "function"}
    assert [delta.content for delta in deltas[:3]] == [" ", "I  ", "look.\n"]
    assert [delta.tool_call for delta in deltas[3:5]] == [
        {**begin, "function": {"name": "a", "arguments": '{"x'}},
        {"index": 0, "function": {"arguments": '":1}'}},
    ]
    assert [delta.tool_call["index"] for delta in deltas[5:] if delta.tool_call] == [1, 1]


async def test_a_failure_streams_nothing() -> None:
    deltas: list[ModelDelta] = []
    await ScriptedModel([TimeoutError()]).complete(HELLO, deltas.append)
    assert deltas == []


# --- script files --------------------------------------------------------------------------------

SCRIPT = """
answers:
  - plain text
  - text: "7"
    match: number
  - json: {city: Bern, tags: [a, no]}
  - tool_calls:
      - {name: weather, arguments: {city: Bern}}
      - {name: raw, arguments: "{broken", id: own}
      - {name: none}
    text: I look.
    usage: {input_tokens: 9, output_tokens: 4}
  - fail: rate-limited
    message: slow down
    retryable: true
    retry_after_s: 2
    usage: {input_tokens: 1}
  - fail: refused
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "answers.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_file_holds_every_form_of_an_answer(tmp_path: Path) -> None:
    calls = (
        tool_request("weather", {"city": "Bern"}),
        tool_request("raw", "{broken", id="own"),
        tool_request("none"),
    )
    assert load_script(script(tmp_path, SCRIPT)) == (
        ScriptItem(answer="plain text"),
        ScriptItem(answer=assistant("7"), match="number"),
        ScriptItem(answer=assistant('{"city":"Bern","tags":["a",false]}')),
        ScriptItem(
            answer=ModelCallResponse(
                message=assistant("I look.", tool_calls=calls),
                usage=TokenUsage(input_tokens=9, output_tokens=4),
            )
        ),
        ScriptItem(
            answer=ModelFailure(
                code="rate-limited",
                message="slow down",
                is_retryable=True,
                retry_after_s=2.0,
                usage=TokenUsage(input_tokens=1),
            )
        ),
        ScriptItem(answer=ModelFailure(code="refused", message="The script says: refused.")),
    )


async def test_a_model_from_a_file_is_called_by_the_file_and_answers_from_it(
    tmp_path: Path,
) -> None:
    model = ScriptedModel.from_yaml(script(tmp_path, SCRIPT))
    assert model.name == "scripted/answers.yaml"
    assert (await response(model)).text == "plain text"
    # The prompt holds no "number", so the second answer waits.
    assert (await response(model)).text == '{"city":"Bern","tags":["a",false]}'
    with_calls = await response(model)
    assert [call.id for call in with_calls.tool_calls] == ["call_1", "own", "call_2"]
    assert with_calls.usage == TokenUsage(input_tokens=9, output_tokens=4)
    assert (await failure(model)).code == "rate-limited"
    assert (await response(model, Prompt((user("a number?"),)))).text == "7"
    assert (await failure(model)).code == "refused"
    assert "it had 6 answers, and all are used" in (await failure(model)).message


async def test_the_first_unused_answer_that_fits_is_taken_in_any_order(tmp_path: Path) -> None:
    text = """
answers:
  - {text: first b, match: about b}
  - {text: an a, match: about a}
  - {text: second b, match: about b}
"""
    model = ScriptedModel.from_yaml(script(tmp_path, text))
    asked = [Prompt((system("you"), user(f"tell about {topic}"))) for topic in "abb"]
    assert [(await response(model, prompt)).text for prompt in asked] == [
        "an a",
        "first b",
        "second b",
    ]


async def test_a_prompt_that_fits_no_answer_says_which_are_left(tmp_path: Path) -> None:
    text = "answers: [{text: x, match: about a}]"
    found = await failure(ScriptedModel.from_yaml(script(tmp_path, text)))
    assert found.code == "script-exhausted"
    assert "it had 1 answer; 1 are left, for prompts that hold 'about a'" in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a list under `answers:`"),
        ("just text", "a list under `answers:`"),
        ("answers: text", "a list under `answers:`"),
        ("answers: []", "at least one answer"),
        ("answers: [a]\nmodel: x", "it holds model; only `answers` is known"),
        ("answers: [", "it is not YAML"),
        ("answers: !!python/object/apply:os.system [ls]", "it is not YAML"),
        ("answers: " + "[" * 5_000, "it is not YAML"),
        ("answers: ['\x00']", "it is not YAML"),
        ("answers: [2026-13-45]", "it is not YAML"),
        ("answers: [42]", "answers[1]: 42 is neither text"),
        ("answers: [null]", "answers[1]: None is neither text"),
        ("answers: [{}]", "answers[1]: it needs one of text, json, tool_calls, fail"),
        ("answers: [{txt: a}]", "there is no key `txt`. Did you mean 'text'?"),
        ("answers: [{1: a}]", "there is no key `1`"),
        ("answers: [{text: 1}]", "`text` must be text"),
        ("answers: [{text: a, json: 1}]", "text and json do not go together"),
        ("answers: [{fail: a, text: b}]", "text and fail do not go together"),
        ("answers: [{json: 2026-01-01}]", "`json` is not JSON"),
        ("answers: [{json: .nan}]", "`json` is not JSON"),
        ("answers: [{json: &a [*a]}]", "with its aliases followed"),
        ("answers: [{tool_calls: {}}]", "`tool_calls` must be a list"),
        ("answers: [{tool_calls: [{}]}]", "`tool_calls[1]` needs a name"),
        ("answers: [{tool_calls: [a]}]", "`tool_calls[1]` needs a name"),
        ("answers: [{tool_calls: [{name: a, args: {}}]}]", "`tool_calls[1]` holds args"),
        ("answers: [{tool_calls: [{name: a, arguments: 1}]}]", "must be a mapping, or JSON text"),
        ("answers: [{tool_calls: [{name: a, arguments: {x: .inf}}]}]", "arguments` is not JSON"),
        ("answers: [{tool_calls: [{name: a, id: 1}]}]", "`tool_calls[1].id` must be text"),
        ("answers: [{text: a, match: ''}]", "`match` must be text"),
        ("answers: [{text: a, usage: 3}]", "`usage` must be a mapping"),
        ("answers: [{text: a, usage: {input: 3}}]", "`usage` knows no `input`"),
        ("answers: [{text: a, usage: {input_tokens: -3}}]", "must be a whole number"),
        ("answers: [{text: a, usage: {input_tokens: true}}]", "must be a whole number"),
        ("answers: [{text: a, retryable: true}]", "retryable go with `fail` only"),
        ("answers: [{fail: 3}]", "`fail` must be a code"),
        ("answers: [{fail: a, message: 3}]", "`message` must be text"),
        ("answers: [{fail: a, retryable: 1}]", "`retryable` must be true or false"),
        ("answers: [{fail: a, retry_after_s: -1}]", "`retry_after_s` must be a number"),
        ("answers: [{fail: a, retry_after_s: .inf}]", "`retry_after_s` must be a number"),
        ("answers: [{fail: a, retry_after_s: soon}]", "`retry_after_s` must be a number"),
    ],
)
def test_a_mistake_in_a_script_is_named_with_file_and_item(
    tmp_path: Path, text: str, words: str
) -> None:
    path = script(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_script(path)
    assert caught.value.error_code == "bad-script"
    assert caught.value.where == str(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_all_mistakes_of_a_script_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_script(script(tmp_path, "answers: [1, fine, {text: 2, match: 3}, {fail: 4}]"))
    for place in ("answers[1]", "answers[3]: `text`", "answers[3]: `match`", "answers[4]: `fail`"):
        assert place in str(caught.value)
    assert "answers[2]" not in str(caught.value)


def test_a_script_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            ScriptedModel.from_yaml(path)
    big = script(tmp_path, "# " + "x" * 1_048_577)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        ScriptedModel.from_yaml(str(big))


async def test_a_file_can_be_used_by_two_models(tmp_path: Path) -> None:
    path = script(tmp_path, "answers: [{tool_calls: [{name: a}]}]")
    first, second = ScriptedModel.from_yaml(path), ScriptedModel.from_yaml(path)
    assert await response(first) == await response(second)


def test_aliases_do_not_make_an_endless_script(tmp_path: Path) -> None:
    """Each line stands for ten of the line before."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 30)]
    values = "\n".join(f"      {line}" for line in lines)
    path = script(tmp_path, f"answers:\n  - json:\n{values}\n")
    with pytest.raises(UsageError, match="with its aliases followed it holds over") as caught:
        load_script(path)
    assert caught.value.error_code == "bad-script"
    assert load_script(script(tmp_path, "answers: [&a {text: one}, *a]\n"))
