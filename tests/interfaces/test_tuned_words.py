"""Tuning a prompt's words: a model writes others from answers that did not pass."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import pytest
from attrs import field, frozen

from command_line import Cli, Write
from minions import Message, Minions, ModelCallResponse, Prompt, ScriptedModel
from minions.app.evaluating.reflection import Reflection
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.evaluation.cases import Case
from minions.evaluation.report import CaseOutcome, SampleOutcome
from minions.evaluation.tuning_search import TuningReport
from minions.guide import TokenUsage
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe_text

RECIPE: Final = """\
id: triage
inputs: {text: string}
steps:
  - id: label
    goal: "Sort this: {{ inputs.text }}"
    output: {kind: {enum: [bug, other]}}
    model: scripted/small
output: "{{ label }}"
"""
COUNT: Final = 30
BETTER: Final = "White pages are bugs. Sort this: {{ inputs.text }}"


def text_of(number: int) -> str:
    return f"page {number} is white, and so it has been since Monday" if number % 2 else "hello"


CASES: Final = [
    {
        "text": f"{text_of(number)} ({number})",
        "expected": {"kind": "bug" if number % 2 else "other"},
    }
    for number in range(COUNT)
]


@frozen
class Models:
    """One that takes white pages for bugs only if it is told, and one that writes words."""

    words: Sequence[str] = (BETTER,)
    """What is written, one after the other; the last one again and again."""
    asked: list[str] = field(factory=list)
    """What the writer read."""
    labelled: list[str] = field(factory=list)

    @property
    def small(self) -> ScriptedModel:
        return ScriptedModel(self._label, name="scripted/small")

    @property
    def writer(self) -> ScriptedModel:
        return ScriptedModel(self._write, name="scripted/writer")

    def _label(self, prompt: Prompt) -> ModelCallResponse:
        text = str(prompt.messages[-1].content)
        if "The texts:" in text:
            return self._write(prompt)
        self.labelled.append(text)
        kind = "bug" if "White pages are bugs" in text and "is white" in text else "other"
        return answer({"kind": kind}, 0.001)

    def _write(self, prompt: Prompt) -> ModelCallResponse:
        self.asked.append("\n".join(str(each.content) for each in prompt.messages))
        words = self.words[min(len(self.asked), len(self.words)) - 1]
        return answer({"cause": "they say nothing of pages", "goal": words}, 0.01)


def answer(output: Mapping[str, str], cost_usd: float) -> ModelCallResponse:
    usage = TokenUsage(input_tokens=100, output_tokens=10, cost_usd=cost_usd)
    return ModelCallResponse(
        message=Message(role="assistant", content=json.dumps(output)), usage=usage
    )


async def tuned(
    writers: Models, /, recipe: str = RECIPE, *, own: bool = False, **more: object
) -> TuningReport:
    async with Minions(model=writers.small, journal=more.pop("journal", None)) as app:  # type: ignore[arg-type]
        settings: dict[str, object] = {"over": ["words"], "at_least": 0.9, "name": "t", **more}
        if not own:
            settings["reflector"] = writers.writer
        return await app.tune(recipe, CASES, **settings)  # type: ignore[arg-type]  # of a test


async def test_words_that_pass_are_found_from_what_went_wrong() -> None:
    models = Models()
    report = await tuned(models)
    assert report.is_passed
    assert report.result.chosen.label == "label: words 1"
    assert f'+    goal: "{BETTER}"' in report.diff
    (read,) = models.asked
    assert "goal: Sort this: {{ inputs.text }}" in read
    assert re.search(r'1\. inputs: \{"text":\s?"page', read)
    assert 'answer: {"kind":"other"}' in read.replace('": "', '":"')
    assert 'expected: {"kind":"bug"}' in read.replace('": "', '":"')
    assert report.chosen is not None
    assert report.chosen.rate is not None
    assert report.chosen.rate.value == 1.0


async def test_the_model_that_answers_the_step_writes_where_no_other_is_named() -> None:
    report = await tuned(models := Models(), own=True)
    assert report.result.chosen.label == "label: words 1"
    assert len(models.asked) == 1


async def test_no_case_that_is_held_out_is_read() -> None:
    models = Models(words=tuple(f"Sort {n}: {{{{ inputs.text }}}}" for n in range(9)))
    report = await tuned(models, rounds=8)
    assert len(models.asked) > 4
    read = "\n".join(models.asked)
    shown = {number for number in range(COUNT) if f"({number})" in read}
    assert 0 < len(shown) <= report.searched


async def test_what_went_wrong_is_read_in_turns() -> None:
    """The second reflection reads other answers than the first."""
    models = Models(words=("Sort it well.",))
    await tuned(models, rounds=2)
    first, second = (set(re.findall(r"\((\d+)\)", each)) for each in models.asked)
    assert first
    assert not first & second


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("White pages are bugs.", "it leaves out {{inputs.text}}"),
        ("White pages: {{ inputs.text }} {{ inputs.other }}", "it adds {{inputs.other}}"),
        ("Sort this: {{ inputs.text }}", "it changes nothing"),
        (
            "PAGE 1 is white, and so it has been since Monday (1) is a bug. {{ inputs.text }}",
            "it quotes case",
        ),
        ("Use sk-proj-abcdefghijklmnopqrstuvwx1234567890 {{ inputs.text }}", "looks like a key"),
        ("Sort this: {{ inputs.text }}\n", "it changes nothing"),
        ("{% if 1 %} {{ inputs.text }}", "label: "),
    ],
)
async def test_words_that_may_not_stand_in_the_recipe_are_not_tried(words: str, why: str) -> None:
    models = Models(words=(words, BETTER))
    report = await tuned(models, rounds=2)
    (refused,) = report.refused
    assert why in refused
    assert report.result.chosen.label == "label: words 1"
    assert not any("White pages are bugs" not in each and words in each for each in models.labelled)


async def test_a_recipe_that_passes_gets_no_other_words() -> None:
    report = await tuned(models := Models(), RECIPE.replace("Sort", "White pages are bugs. Sort"))
    assert not models.asked
    assert report.result.chosen.label == "as it is"


async def test_words_are_written_as_often_as_was_said_and_no_more() -> None:
    models = Models(words=tuple(f"Sort {n}: {{{{ inputs.text }}}}" for n in range(9)))
    report = await tuned(models, rounds=4)
    assert len(models.asked) == 4
    assert not report.is_passed
    assert report.diff == ""


async def test_what_was_written_is_not_written_again(tmp_path: Path) -> None:
    first, second = Models(), Models()
    before = await tuned(first, journal=tmp_path / "j.sqlite")
    after = await tuned(second, journal=tmp_path / "j.sqlite")
    assert before.text == after.text
    assert after.spent_usd == pytest.approx(before.spent_usd)
    assert (second.asked, second.labelled) == ([], [])


async def test_words_written_for_one_model_are_tried_with_the_next_one() -> None:
    models = Models()
    large = ScriptedModel(lambda prompt: answer({"kind": "other"}, 0.0005), name="scripted/cheap")
    report = await tuned(models, over=["words", "model"], models=[large], rounds=1)
    tried = [each.configuration.label for each in report.result.trials]
    assert "label: scripted/cheap, words 1" in tried
    assert report.result.chosen.label.startswith("label: words")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"over": ["model"]}, "reflector"), ({"rounds": 0}, "from 1 to 20"), ({"rounds": 21}, "20")],
)
async def test_arguments_of_no_use_are_refused(settings: Mapping[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await tuned(Models(), **settings)  # type: ignore[arg-type]  # of a test


async def test_a_step_without_a_text_of_its_own_is_told() -> None:
    recipe = RECIPE.replace(
        'goal: "Sort this: {{ inputs.text }}"',
        'goal: Sort.\n    messages: [{role: user, content: "{{ inputs.text }}"}]',
    )
    report = await tuned(models := Models(), recipe)
    assert not models.asked
    assert set(report.steps[0].closed.values()) == {"its prompt is a list of messages"}


async def test_without_a_bar_to_miss_it_is_told_why_no_words_are_written() -> None:
    report = await tuned(models := Models(), at_least=None)
    assert not models.asked
    (why,) = report.steps[0].closed.values()
    assert "--at-least" in why
    other = ScriptedModel(lambda _: answer({"kind": "bug"}, 0.1), name="scripted/other")
    report = await tuned(models, at_least=None, over=["words", "model"], models=[other])
    assert report.steps[0].rounds == 3


# --- one reflection ---------------------------------------------------------------------------

NOW: Final = {"goal": "Sort: {{ inputs.text }}", "system_prompt": "Be brief, and say why not."}


def asked(*texts: str) -> tuple[Case, ...]:
    return tuple(
        Case(index=at, name=f"case {at}", inputs={"text": text, "more": [{"a": [text]}]})
        for at, text in enumerate(texts)
    )


def read(goal: str, system_prompt: object = "Be brief.", **known: object) -> object:
    reflection = Reflection(words=NOW, wrong=(), **known)  # type: ignore[arg-type]  # of a test
    return reflection.read({"goal": goal, "system_prompt": system_prompt})  # type: ignore[dict-item]


def test_all_texts_of_an_answer_are_taken_together() -> None:
    goal = "Sort {{inputs.text}}"
    assert read(goal) == {"goal": goal, "system_prompt": "Be brief."}
    assert read(NOW["goal"]) == {"goal": NOW["goal"], "system_prompt": "Be brief."}
    assert read(NOW["goal"], NOW["system_prompt"]) == "it changes nothing"
    assert read(goal, None) == "its answer does not have all texts"
    assert read(goal, 3) == "its answer does not have all texts"
    assert read("{{ inputs.b }} {{ inputs.a }}") == "it adds {{inputs.a}}"
    assert read(goal, "Use sk-proj-abcdefghijklmnopqrstuvwx1234567890") == (
        "it holds what looks like a key"
    )


def test_what_is_asked_is_quoted_from_24_characters_on() -> None:
    goal = "{{ inputs.text }} is bad. "
    long, short = "x" * 24, "x" * 23
    assert read(goal + long, asked=asked("a", long)) == "it quotes case case 1"
    assert read(goal + short, asked=asked(short)) != "it quotes case case 0"
    known = "Be brief, and say why not."  # it stands in the present texts
    assert read(goal + known, asked=asked(known)) == {
        "goal": goal + known,
        "system_prompt": "Be brief.",
    }


def test_the_recipe_that_asks_bounds_the_texts_and_takes_the_models_own_settings() -> None:
    model: dict[str, JsonValue] = {
        "name": "a/b",
        "temperature": 0,
        "max_output_tokens": 5,
        "output_mode": "tools",
    }
    asking = load_recipe_text(
        Reflection(words=NOW, wrong=(), model=model).recipe, "r.yaml", Catalog()
    )
    (step,) = asking.steps
    assert isinstance(step, GoalSpec)
    assert step.own_model == ModelConfig(name="a/b", temperature=0)
    schema = step.declared_output
    assert schema is not None
    assert schema["additionalProperties"] is False
    properties = cast("Mapping[str, Mapping[str, object]]", schema["properties"])
    assert list(properties) == ["cause", "goal", "system_prompt"]
    assert properties["goal"]["maxLength"] == 1_000 + 3 * len(NOW["goal"])


def test_answers_that_tell_nothing_of_a_model_are_not_read() -> None:
    (case,) = asked("a")
    outage = SampleOutcome(run_id="r", status="failed", outage="the server was away")
    wrong = SampleOutcome(run_id="r", status="failed", problem="no output")
    found = [
        Reflection.next_of(
            NOW, [CaseOutcome(case=case, samples=samples)], number=0, model={}, asked=()
        )
        for samples in ((outage,), (outage, wrong))
    ]
    assert found[0] is None
    assert found[1] is not None
    assert "wrong because: no output" in str(found[1].inputs["answers"])
    assert "answer:" not in str(found[1].inputs["answers"])


# --- the command ------------------------------------------------------------------------------

OWN: Final = f"""
from minions import ScriptedModel

def label(prompt):
    text = str(prompt.messages[-1].content)
    if "The texts:" in text:
        return {{"cause": "nothing of pages", "goal": {BETTER!r}}}
    is_bug = "White pages are bugs" in text and "is white" in text
    return {{"kind": "bug" if is_bug else "other"}}

small = ScriptedModel(label, name="scripted/small")
"""


@pytest.fixture
def _files(write: Write) -> None:
    write("own.py", OWN)
    write("triage.yaml", RECIPE)
    write("cases.jsonl", "\n".join(map(json.dumps, CASES)))


@pytest.mark.usefixtures("_files")
def test_the_command_writes_words_only_if_it_is_asked_to(cli: Cli) -> None:
    options = ("triage.yaml", "cases.jsonl", "--extensions", "own.py", "--trust", "--no-store")
    usual = cli("tune", *options, "--at-least", "0.9")
    assert usual.code == 1
    assert "words" not in usual.out
    found = cli("tune", *options, "--at-least", "0.9", "--over", "words")
    assert found.code == 0, found.err
    assert "label: other words, from 4 wrong answers …" in found.err
    assert "cheapest that passes: label: words 1" in found.out
    bar = ("--at-least", "0.9")
    dry = cli("tune", *options, "--over", "words", "--rounds", "5", "--dry-run", *bar)
    assert "words: written 5 times at most for each model that misses" in dry.out
    assert "unbounded because" in dry.out
    odd = cli("tune", *options, "--over", "model", "--reflector", "scripted/small")
    assert odd.code == 2
    assert "--reflector is of no use: --over leaves out 'words'" in odd.err


@pytest.mark.usefixtures("_files")
def test_what_is_written_counts_within_the_budget(cli: Cli, write: Write) -> None:
    write("own.py", OWN.replace("White pages are bugs. Sort", "Sort it"))
    write("minions.toml", '[prices."scripted/small"]\ninput_per_mtok = 10\noutput_per_mtok = 10')
    options = ("triage.yaml", "cases.jsonl", "--extensions", "own.py", "--trust", "--no-store")
    words = ("--at-least", "0.9", "--over", "words", "--rounds", "20", "--json")
    whole = json.loads(cli("tune", *options, *words).out)
    assert whole["stopped"] is None
    most = whole["cost_usd"] * 0.6
    cut = json.loads(cli("tune", *options, *words, "--max-cost", str(most)).out)
    assert cut["cost_usd"] <= most
    assert "are spent" in cut["stopped"]
