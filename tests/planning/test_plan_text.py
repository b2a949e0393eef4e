"""The text grammar of plans, and what models put around it: A-91, A-92."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.plans import FileForm, FileUse, Plan, PlanStep, PlanStepType
from minions.data.json_values import JsonValue
from minions.planning.plan_json import read_plan, read_plan_text
from minions.recipe.checks.step_rules import RESERVED
from minions.recipe.expressions.syntax import WORDS
from patience import work_of

DOCUMENTED: Final = """\
PLAN: User Management System
DESCRIPTION: Complete user authentication and management system

STEP: analyze_requirements
TYPE: analyze
GOAL: Understand project structure and requirements
...

STEP: create_user_model
TYPE: generate
DEPENDENCIES: analyze_requirements
GOAL: Create user data model
...
"""


def read(text: str) -> Plan:
    plan = read_plan_text(text)
    assert plan is not None
    return plan


def test_the_documented_plan_is_read_exactly() -> None:
    """A-91."""
    assert read(DOCUMENTED) == Plan(
        id="User_Management_System",
        name="User Management System",
        description="Complete user authentication and management system",
        steps=(
            PlanStep(
                id="analyze_requirements",
                type=PlanStepType.ANALYZE,
                goal="Understand project structure and requirements",
            ),
            PlanStep(
                id="create_user_model",
                type=PlanStepType.GENERATE,
                goal="Create user data model",
                dependencies=("analyze_requirements",),
            ),
        ),
    )


FULL: Final = """\
PLAN: Shop
STEP: model
NAME: The model
TYPE: generate
GOAL: Write it
DESCRIPTION: With all fields
FILES: README.md, shop/base.py:outline, shop/old.py:10-60
DEPENDENCIES: none
ARTIFACTS: shop/model.py, schema
STEP: test
TYPE: validate
GOAL: Test it
DEPENDENCIES: model
COMMAND: python -m pytest -q
END_PLAN
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(FULL, id="as it is"),
        pytest.param(FULL.replace("END_PLAN\n", ""), id="without END_PLAN"),
        pytest.param(f"Here is the plan:\n\n```\n{FULL}```\nTell me what you think.", id="fenced"),
        pytest.param(f"{FULL}STEP: not a step\nGOAL: nothing\n", id="text after END_PLAN"),
        pytest.param(
            "\n".join(
                f"**{key}:** {value}" if value else key
                for key, _, value in (line.partition(": ") for line in FULL.splitlines())
            ),
            id="bold keys",
        ),
        pytest.param(
            FULL.replace("STEP: model", "STEP 1: model").replace("STEP: test", "STEP 2 - test"),
            id="numbered steps",
        ),
        pytest.param(
            FULL.replace("STEP: model", "**Step #1: model**")
            .replace("STEP: test", "**Step #2: test**")
            .replace("DEPENDENCIES: model", "DEPENDENCIES: Step 1"),
            id="dependencies by number",
        ),
        pytest.param(
            FULL.replace("STEP: model", "STEP 1. model").replace(
                "DEPENDENCIES: model", "DEPENDENCIES: [1]"
            ),
            id="bare numbers",
        ),
        pytest.param(
            "\n".join(
                f"{key.capitalize()}: {value}" if value else key
                for key, _, value in (line.partition(": ") for line in FULL.splitlines())
            ),
            id="capitalised keys",
        ),
        pytest.param(
            "\n".join(
                f"{key.lower()}: {value}" if value else key.lower()
                for key, _, value in (line.partition(": ") for line in FULL.splitlines())
            ),
            id="keys in lower case",
        ),
        pytest.param(
            FULL.replace("PLAN:", "Plan:").replace("STEP:", "Step:").replace("GOAL:", "Goal:"),
            id="keys of several cases",
        ),
        pytest.param("\n".join(f"- {line}" for line in FULL.splitlines()), id="bullets"),
        pytest.param(FULL.replace("STEP:", "### STEP:"), id="headings"),
        pytest.param("\n".join(f"    {line}" for line in FULL.splitlines()), id="indented"),
        pytest.param(FULL.replace("\n", "\r\n"), id="Windows line ends"),
        pytest.param(
            FULL.replace("shop/model.py, schema", '["shop/model.py", `schema`]')
            .replace("DEPENDENCIES: none", "DEPENDENCIES: []")
            .replace("DEPENDENCIES: model", "DEPENDENCIES: [model]"),
            id="bracketed lists",
        ),
        pytest.param(
            FULL.replace("shop/model.py, schema", "\n  - shop/model.py\n  - schema"),
            id="lists on lines of their own",
        ),
        pytest.param(
            FULL.replace("base.py:outline", "base.py (outline)").replace(
                "old.py:10-60", "old.py (lines 10-60)"
            ),
            id="forms in words",
        ),
    ],
)
def test_a_plan_is_read_in_whatever_dress_it_comes(text: str) -> None:
    """A-91."""
    assert read(text) == Plan(
        id="Shop",
        name="Shop",
        steps=(
            PlanStep(
                id="model",
                name="The model",
                type=PlanStepType.GENERATE,
                goal="Write it",
                description="With all fields",
                files=(
                    FileUse(path="README.md"),
                    FileUse(path="shop/base.py", form=FileForm.OUTLINE),
                    FileUse(path="shop/old.py", form=FileForm.LINES, first=10, last=60),
                ),
                artifacts=("shop/model.py", "schema"),
            ),
            PlanStep(
                id="test",
                type=PlanStepType.VALIDATE,
                goal="Test it",
                dependencies=("model",),
                command="python -m pytest -q",
            ),
        ),
    )


def test_the_last_step_is_there_once() -> None:
    assert [each.id for each in read(FULL).steps] == ["model", "test"]


@pytest.mark.parametrize("word", ["none", "None", "n/a", "N/A", "-", "", "[]", "[none]", "nothing"])
def test_words_for_nothing_are_no_dependency(word: str) -> None:
    """A-91."""
    plan = read(f"PLAN: a\nSTEP: b\nGOAL: c\nDEPENDENCIES: {word}\nARTIFACTS: {word}\n")
    assert (plan.steps[0].dependencies, plan.steps[0].artifacts) == ((), ())


@pytest.mark.parametrize("word", ["deploy", "", "Analysis", "generate or modify"])
def test_an_unknown_type_is_analyze(word: str) -> None:
    """A-92."""
    assert read(f"PLAN: a\nSTEP: b\nTYPE: {word}\nGOAL: c\n").steps[0].type is PlanStepType.ANALYZE


@pytest.mark.parametrize("word", ["GENERATE", "Generate", "[generate]", "`generate`."])
def test_a_type_is_read_in_any_spelling(word: str) -> None:
    assert read(f"PLAN: a\nSTEP: b\nTYPE: {word}\nGOAL: c\n").steps[0].type is PlanStepType.GENERATE


@pytest.mark.parametrize("text", ["", "I cannot do that.", "PLAN: a\nDESCRIPTION: b\nEND_PLAN\n"])
def test_a_text_without_steps_is_no_plan(text: str) -> None:
    """A-92."""
    assert read_plan_text(text) is None


def test_values_go_on_until_the_next_key() -> None:
    plan = read("PLAN: a\nDESCRIPTION: one\ntwo\nSTEP: b\nGOAL: three\n  four\n\nTYPE: modify\n")
    assert plan.description == "one\ntwo"
    assert plan.steps[0].goal == "three\nfour"


def test_a_word_with_a_colon_in_a_value_is_no_key() -> None:
    plan = read("PLAN: a\nSTEP: b\nGOAL: fields\nname: text\ntype: text\nTYPE: generate\n")
    assert plan.steps[0].goal == "fields\nname: text\ntype: text"
    assert plan.steps[0].type is PlanStepType.GENERATE


def test_ids_that_are_names_are_made_ids_and_dependencies_follow() -> None:
    plan = read(
        "PLAN: a\nSTEP: Create User Model\nGOAL: c\nSTEP: 2nd\nDEPENDENCIES: Create User Model\n"
    )
    assert [(each.id, each.dependencies) for each in plan.steps] == [
        ("Create_User_Model", ()),
        ("step_2nd", ("Create_User_Model",)),
    ]
    assert plan.steps[0].name == "Create User Model"


@pytest.mark.parametrize(
    "text",
    [
        "First I look.\nStep 1: open the file\nStep 2: change it\n",
        "Steps:\n1. Step 1: look\n2. Step 2: write\n",
        "My plan: look at it\nStep one: look\n",
    ],
)
def test_prose_that_counts_its_steps_is_no_plan(text: str) -> None:
    """A-92."""
    assert read_plan(text) is None


def test_a_goal_keeps_its_words_when_a_plan_is_read_as_it_was_written() -> None:
    goal = "Fields:\nName: text\nFiles: many\nStep 1: nothing\nstep: none\nplan: none"
    plan = Plan(id="p", name="p", steps=(PlanStep(id="a", type=PlanStepType.GENERATE, goal=goal),))
    assert read(plan.to_text()) == plan


def test_json_in_a_goal_is_no_plan() -> None:
    plan = read_plan('PLAN: p\nSTEP: a\nTYPE: generate\nGOAL: Write [{"id": "x", "type": "y"}]')
    assert plan is not None
    assert [(each.id, each.type) for each in plan.steps] == [("a", PlanStepType.GENERATE)]


@pytest.mark.parametrize(
    ("dependency", "first"),
    [("1", "1"), ("Model", "model"), ("create user", "Create User"), ("1", "01")],
)
def test_dependencies_of_json_are_found_by_number_and_in_any_case(
    dependency: str, first: str
) -> None:
    steps: JsonValue = [
        {"id": int(first) if first.isdecimal() else first, "type": "generate", "goal": "a"},
        {"id": "b", "type": "generate", "goal": "b", "dependencies": [dependency]},
    ]
    plan = read_plan({"name": "P", "steps": steps})
    assert plan is not None
    assert plan.steps[1].dependencies == (plan.steps[0].id,)


def test_what_json_escapes_hides_nothing() -> None:
    plan = read_plan('{"steps": [{"id": "a", "type": "validate", "goal": "rm \\u202egnp"}]}')
    assert plan is not None
    assert plan.steps[0].goal == "rm gnp"


@given(st.text())
def test_any_text_is_a_plan_or_none(text: str) -> None:
    for each in (text, f"PLAN: {text}\nSTEP: {text}\nGOAL: {text}\nFILES: {text}\n"):
        plan = read_plan_text(each)
        assert plan is None or plan.steps


@pytest.mark.parametrize("word", [*RESERVED, *WORDS])
def test_a_step_that_is_called_as_a_word_of_templates_gets_another_name(word: str) -> None:
    plan = read(f"PLAN: x\nSTEP: {word}\nGOAL: a\nSTEP: b\nDEPENDENCIES: {word}, b\nGOAL: c\n")
    assert plan.steps[0].id == f"step_{word}"
    assert f"step_{word}" in plan.steps[1].dependencies or word.casefold() in NOTHING


words = st.text("abc xyz", min_size=1, max_size=20).map(str.strip).filter(bool)
NOTHING: Final = ("none", "na", "nil", "null", "nothing")
names = st.from_regex(r"[a-z]{1,5}(_[a-z]{1,5})?", fullmatch=True).filter(
    lambda each: each not in (*NOTHING, "feedback", *RESERVED, *WORDS)
)
paths = st.builds("{}/{}.py".format, names, names)
uses = st.one_of(
    st.builds(FileUse, path=paths),
    st.builds(FileUse, path=paths, form=st.just(FileForm.OUTLINE)),
    st.builds(
        FileUse,
        path=paths,
        form=st.just(FileForm.LINES),
        first=st.integers(1, 99),
        last=st.integers(100, 999),
    ),
)
steps = st.builds(
    PlanStep,
    id=names,
    type=st.sampled_from(PlanStepType),
    goal=words,
    name=words.filter(lambda each: " " in each) | st.just(""),
    description=st.lists(words, min_size=1, max_size=3).map("\n".join) | st.just(""),
    files=st.lists(uses, max_size=3, unique=True).map(tuple),
    dependencies=st.lists(names, max_size=3, unique=True).map(tuple),
    artifacts=st.lists(paths | names, max_size=3, unique=True).map(tuple),
    command=st.none() | words,
)


@given(names, words | st.just(""), st.lists(steps, min_size=1, max_size=5))
def test_what_a_plan_says_of_itself_is_read_as_the_same_plan(
    name: str, description: str, made: list[PlanStep]
) -> None:
    plan = Plan(id=name, name=name, description=description, steps=tuple(made))
    assert read(plan.to_text()) == plan


@pytest.mark.parametrize("path", ["./a//b.py", "a/./b.py", "`a/b.py`", "a/b.py:outline"])
def test_a_path_is_read_in_its_plain_form(path: str) -> None:
    text = f"PLAN: p\nSTEP: s\nGOAL: g\nFILES: {path}\nARTIFACTS: {path}\n"
    answer: JsonValue = {"steps": [{"id": "s", "goal": "g", "artifacts": [path]}]}
    for plan in (read_plan(text), read_plan(answer)):
        assert plan is not None
        assert plan.steps[0].artifacts == ("a/b.py",)


def test_a_plan_of_many_steps_takes_time_in_proportion() -> None:
    """Each step names the one before it: as text, and as JSON."""

    def of(count: int) -> tuple[int, int]:
        steps = [{"id": f"s{at}", "goal": "g", "dependencies": f"S{at - 1}"} for at in range(count)]
        keys = "".join(f"STEP: s{at}\nGOAL: g\nDEPENDENCIES: S{at - 1}\n" for at in range(count))
        answer: JsonValue = {"name": "P", "steps": [*steps]}
        return work_of(lambda: read(f"PLAN: P\n{keys}")), work_of(lambda: read_plan(answer))

    for few, many in zip(of(100), of(400), strict=True):
        assert many < 5 * few
