"""`minions learn`: what good runs teach a recipe, what it shows, and what it never does unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Cli, Outcome, Write

RECIPE = """# sorts messages
id: sort
inputs: {text: {type: string}}
model: smart
steps:
  - id: sort
    goal: "Sort: {{ inputs.text }}"   # one word
    output: {category: {enum: [bill, other, spam]}}
tests:
  - {name: winner, inputs: {text: Win a boat!}, expect: {output: {category: spam}}}
  - {name: bill, inputs: {text: Pay!}, expect: {output: {category: bill}}}
"""
MODEL = '''
from minions import Extensions, ScriptedModel


def answer(prompt):
    """Knows spam where it was shown what spam is."""
    asked = prompt.messages[-1].content
    shown = [each.content for each in prompt.messages if each.name == "example"]
    is_spam = "Win" in asked and any("spam" in each for each in shown)
    known = "spam" if is_spam else "bill"
    return {"category": known}


extensions = Extensions(models={"smart": ScriptedModel(answer)})
'''
FLAGS = ("--db", "j.sqlite", "--extensions", "own.py")


@pytest.fixture
def recipe(write: Write, here: Path) -> Path:
    write("own.py", MODEL)
    write("sort.yaml", RECIPE)
    return here / "sort.yaml"


def ran(cli: Cli, write: Write, text: str, category: str, mark: str | None = "good") -> None:
    write("said.yaml", f"answers: [{{json: {{category: {category}}}}}]\n")
    name = f"s{abs(hash((text, category)))}"
    done = cli("run", "sort.yaml", "-m", "scripted/said.yaml", "-p", f"text={text}",
               "--session", name, *FLAGS)  # fmt: skip
    assert done.code == 0, done.err
    if mark is not None:
        assert cli("sessions", "mark", name, mark, "--db", "j.sqlite").code == 0


def learn(cli: Cli, *more: str) -> Outcome:
    return cli("learn", "sort.yaml", *more, *FLAGS)


def test_good_runs_become_examples_and_the_tests_say_what_they_change(
    cli: Cli, write: Write, recipe: Path
) -> None:
    ran(cli, write, "Win a car!", "spam")
    ran(cli, write, "Hello.", "other")
    ran(cli, write, "Hi.", "other", "bad")
    ran(cli, write, "Unmarked", "bill", None)
    done = learn(cli)
    assert done.code == 0, done.err
    assert '+      - {input: {text: "Win a car!"}, output: {category: "spam"}}' in done.out
    assert '+      - {input: {text: "Hello."}, output: {category: "other"}}' in done.out
    assert "Hi." not in done.out
    assert "Unmarked" not in done.out
    assert "sort: 2 new examples, about" in done.err
    assert "2 marked good" in done.err
    assert "tests without them: 1 of 2 passed" in done.err
    assert "tests with them:    2 of 2 passed" in done.err
    assert "pass now: winner" in done.err
    assert "nothing was written · minions learn sort.yaml --write" in done.err
    assert recipe.read_text() == RECIPE


def test_a_dry_run_asks_no_model_and_says_so(cli: Cli, write: Write, recipe: Path) -> None:
    ran(cli, write, "Win a car!", "spam")
    (recipe.parent / "own.py").write_text(
        MODEL.replace(
            "def answer(prompt):", "def answer(prompt):\n    raise RuntimeError('asked')\n"
        )
    )
    done = learn(cli, "--dry-run")
    assert done.code == 0, done.err
    assert "not known (dry run): no model was asked in 2 tests" in done.err
    assert "Win a car!" in done.out


def test_it_writes_where_it_is_told_and_learns_nothing_twice(
    cli: Cli, write: Write, recipe: Path
) -> None:
    ran(cli, write, "Win a car!", "spam")
    assert learn(cli, "--dry-run", "-o", "copy.yaml").code == 0
    assert recipe.read_text() == RECIPE
    done = learn(cli, "--dry-run", "--write", "--json")
    told = json.loads(done.out)
    assert told["written"].endswith("sort.yaml")
    assert told["steps"][0]["added"][0]["because"] == "marked good"
    assert (recipe.parent / "copy.yaml").read_text() == recipe.read_text()
    assert recipe.read_text().startswith("# sorts messages\n")
    assert cli("validate", "sort.yaml", "--extensions", "own.py").code == 0
    again = learn(cli, "--dry-run", "--write")
    assert "nothing was learnt" in again.err
    assert again.out == ""
    ran(cli, write, "Hello.", "other")
    assert learn(cli, "--dry-run", "--write").code == 0
    text = recipe.read_text()
    assert text.index("Win a car!") < text.index('"Hello."')


def test_a_test_is_not_shown_its_own_answer(cli: Cli, write: Write, recipe: Path) -> None:
    ran(cli, write, "Win a boat!", "spam")
    done = learn(cli)
    assert "tests with them:    1 of 2 passed" in done.err, done.err


def test_what_looks_like_a_key_is_not_written(cli: Cli, write: Write, recipe: Path) -> None:
    ran(cli, write, "Pay with sk-0123456789abcdefghijkl", "bill")
    done = learn(cli, "--dry-run")
    assert "1 left out: holds what looks like a key" in done.err
    assert "sk-0123" not in done.out + done.err


def test_bounds_are_those_of_all_examples_of_the_step(cli: Cli, write: Write, recipe: Path) -> None:
    for text, category in (("a", "bill"), ("b", "other"), ("c", "spam")):
        ran(cli, write, text, category)
    assert learn(cli, "--dry-run", "--write", "--max", "2").code == 0
    done = learn(cli, "--dry-run", "--max", "2")
    assert "sort: 0 new examples · 2 kept" in done.err
    assert "sort: 1 new example, about" in learn(cli, "--dry-run").err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--step", "srt"), 2, "has no step 'srt'"),
        (("--write", "-o", "x.yaml"), 2, "two files to write to"),
        (("-o", "own.py"), 2, "exists already"),
    ],
)
def test_what_cannot_be_done_is_said_before_a_model_is_asked(
    cli: Cli, recipe: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    refused = learn(cli, *words)
    assert (refused.code, said in refused.err.lower()) == (code, True), refused.err


def test_a_step_that_takes_its_examples_from_elsewhere_is_left_alone(
    cli: Cli, write: Write, recipe: Path
) -> None:
    write("sort.yaml", RECIPE.replace("tests:\n", "    examples: {from: tests}\ntests:\n", 1))
    ran(cli, write, "Win a car!", "spam")
    assert "it takes its examples from tests" in learn(cli, "--dry-run").err
    refused = learn(cli, "--step", "sort")
    assert (refused.code, "error[no-examples]" in refused.err) == (2, True)


def test_an_analysis_learns_and_shows_its_examples(cli: Cli, write: Write, here: Path) -> None:
    """The question of an example is the task with the data, as the model reads it."""
    write("own.py", MODEL)
    head, _, tail = RECIPE.partition('    goal: "Sort: {{ inputs.text }}"   # one word\n')
    write(
        "sort.yaml",
        head + "    analyze: Which category?\n    input: '{{ inputs.text }}'\n" + tail,
    )
    for text, category in (("Win a car!", "spam"), ("Pay this.", "bill")):
        ran(cli, write, text, category)
    done = learn(cli, "--write")
    assert done.code == 0, done.err
    text = (here / "sort.yaml").read_text("utf-8")
    assert 'text: "Win a car!"' in text
    shown = cli("run", "sort.yaml", "-p", "text=Win a boat!", "--json", *FLAGS)
    assert shown.json["output"] == {"category": "spam"}


def test_an_analysis_takes_examples_from_tests(cli: Cli, write: Write) -> None:
    write("own.py", MODEL)
    head, _, tail = RECIPE.partition('    goal: "Sort: {{ inputs.text }}"   # one word\n')
    asked = "    analyze: Which category?\n    input: '{{ inputs.text }}'\n"
    asked += "    examples: {from: tests}\n"
    write("sort.yaml", head + asked + tail)
    shown = cli("run", "sort.yaml", "-p", "text=Win a bus!", "--json", *FLAGS)
    assert (shown.code, shown.json["output"]) == (0, {"category": "spam"})
    wrong = asked.replace("{from: tests}", "[{input: {txt: a}, output: {category: spam}}]")
    write("sort.yaml", head + wrong + tail)
    refused = cli("validate", "sort.yaml", *FLAGS[2:])
    assert "the step reads no 'txt'" in refused.err
