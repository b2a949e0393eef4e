"""The recipe of a plan: it has no fault, whatever the plan, and does what the plan says."""

from __future__ import annotations

from typing import Final, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.tools.confined_paths import GlobPattern
from minions.app.wiring.built_in_extensions import built_in_toolsets
from minions.contracts.plans import FileUse, Plan, PlanStep, PlanStepType
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.planning.plan_checks import check_plan
from minions.planning.plan_json import PlanForm, Sharing
from minions.planning.plan_recipe import INSTRUCTIONS, SYSTEM, recipe_document
from minions.recipe.catalog import Catalog
from minions.recipe.expressions.template import compile_template
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text

CATALOG: Final = Catalog(
    toolsets=built_in_toolsets(), tools={"look": ToolSpec(name="look"), "ask": ToolSpec(name="ask")}
)


def loaded(plan: Plan, form: PlanForm) -> LoadedRecipe:
    return check_recipe_text(yaml.safe_dump(recipe_document(plan, form)), "plan.yaml", CATALOG)


def step(step_id: str, kind: PlanStepType = PlanStepType.GENERATE, **more: object) -> PlanStep:
    return PlanStep(id=step_id, type=kind, goal=f"Do {step_id}", **more)  # type: ignore[arg-type]  # fields


WHOLE: Final = Plan(
    id="shop",
    steps=(
        step("look", PlanStepType.ANALYZE, files=(FileUse(path="README.md"),)),
        step("model", dependencies=("look",), artifacts=("shop/model.py",)),
        step("use", PlanStepType.MODIFY, dependencies=("model",), files=(FileUse(path="a.py"),)),
        step("test", PlanStepType.VALIDATE, dependencies=("use",), command="make test"),
        step("judge", PlanStepType.VALIDATE, dependencies=("model",)),
        step("tidy", PlanStepType.CLEANUP, dependencies=("test",), files=(FileUse(path="a.py"),)),
    ),
)


@pytest.mark.parametrize("share", Sharing)
def test_the_recipe_of_a_plan_has_no_fault(share: Sharing) -> None:
    checked = loaded(WHOLE, PlanForm(share=share))
    assert {fault.code for fault in checked.faults} == {"untrusted-flow"}
    assert checked.recipe is not None


def test_in_a_trusted_workspace_there_is_no_warning_either() -> None:
    assert loaded(WHOLE, PlanForm(is_trusted=True)).faults == ()


def test_a_plan_without_a_command_opens_no_shell() -> None:
    plan = Plan(id="p", steps=(step("a", artifacts=("a.py",)),))
    document = recipe_document(plan, PlanForm())
    assert [list(each) for each in document["tools"]] == [["files"]]  # type: ignore[union-attr, arg-type]  # a list of mappings


def test_the_instructions_of_a_step_are_short() -> None:
    """They are paid on every call: four characters are about a token."""
    assert all(len(SYSTEM) + len(text) < 4 * 250 for text in INSTRUCTIONS.values())


@pytest.mark.parametrize(
    "words",
    [
        "a page with {% block x %}{{ title }}{% endblock %} {# note #}",
        'answer with {"a": {}}, {{"a": {}}} and {{{ x }}}',
        "{ {% }} %} {",
        "{}}{{}",
    ],
)
def test_no_words_of_a_plan_are_a_template(words: str) -> None:
    form = PlanForm(context=words)
    assert loaded(saying(words), form).errors == ()
    assert references(saying(words), form) == references(saying("x"), form)


def references(plan: Plan, form: PlanForm) -> list[object]:
    """What the templates of the recipe of a plan read."""
    document = recipe_document(plan, form)
    steps = cast("list[dict[str, JsonValue]]", document["steps"])
    texts = [{**each, "description": ""} for each in steps]  # descriptions are no templates
    found = compile_template([document["system_prompt"], *texts]).references
    return [each.path for each in found]


def saying(words: str) -> Plan:
    """A plan that says the words wherever a plan has words."""
    use = FileUse(path=f"{words}.txt")
    change = PlanStep(id="a", type=PlanStepType.MODIFY, goal=words, description=words, files=(use,))
    test = PlanStep(
        id="t",
        type=PlanStepType.VALIDATE,
        goal=words,
        dependencies=("a",),
        files=(use,),
        command=words,
    )
    return Plan(id="p", name=words, description=words, steps=(change, test))


ids = st.sampled_from(["a", "b", "c", "d", "e"])
texts = st.text(min_size=1, max_size=30).filter(str.strip)
paths = st.sampled_from(["x.py", "y/z.md", "b.txt"])
steps = st.builds(
    PlanStep,
    id=ids,
    type=st.sampled_from(PlanStepType),
    goal=texts,
    name=st.just("") | texts,
    description=st.just("") | texts,
    dependencies=st.lists(ids, max_size=3, unique=True).map(tuple),
    files=st.lists(st.builds(FileUse, path=paths), max_size=2, unique=True).map(tuple),
    artifacts=st.lists(paths | texts, max_size=3, unique=True).map(tuple),
    tools=st.lists(st.sampled_from(["look", "ask", "files__search"]), max_size=2).map(tuple),
)


@given(st.lists(steps, min_size=1, max_size=5), st.sampled_from(Sharing), texts, st.booleans())
def test_whatever_plan_has_no_fault_makes_a_recipe_without_one(
    made: list[PlanStep],
    share: Sharing,
    context: str,
    is_trusted: bool,  # drawn
) -> None:
    tools = ["look", "ask", "files__search"]
    checked = check_plan(Plan(id="plan", steps=tuple(made)), tools=tools)
    if checked.faults:
        return
    form = PlanForm(share=share, context=context, is_trusted=is_trusted)
    found = loaded(checked.plan, form)
    assert found.errors == ()


def test_a_path_with_brackets_is_the_only_file_that_may_be_changed() -> None:
    plan = Plan(id="p", steps=(step("a", artifacts=("app/[id]/page.tsx",)),))
    steps = cast("list[dict[str, JsonValue]]", recipe_document(plan, PlanForm())["steps"])
    changes = next(each["params"] for each in steps if each["id"] == "a__changes")
    (allowed,) = cast("dict[str, list[str]]", changes)["allowed"]
    glob = GlobPattern(allowed)
    assert glob.matches(("app", "[id]", "page.tsx"))
    assert not glob.matches(("app", "i", "page.tsx"))


def _options(plan: Plan, form: PlanForm, toolset: str = "files") -> dict[str, JsonValue]:
    tools = cast("list[dict[str, dict[str, JsonValue]]]", recipe_document(plan, form)["tools"])
    return next(each[toolset] for each in tools if toolset in each)


PACKAGE = Plan(
    id="p",
    steps=(
        step("a", artifacts=("shop/pyproject.toml", "Makefile", "app/[id]/package.json", "a.py")),
        step(
            "b",
            PlanStepType.MODIFY,
            files=(FileUse(path="tox.ini"), FileUse(path="b.py")),
            artifacts=("b.py",),
        ),
        step("c", kind=PlanStepType.VALIDATE, command="make", dependencies=("a",)),
    ),
)


def test_what_configures_tools_is_open_where_a_person_sees_that_a_plan_names_it() -> None:
    asked = PlanForm(is_asked=True)
    assert "allow_config" not in _options(WHOLE, asked)
    opened = ["shop/pyproject.toml", "Makefile", "app/[[]id]/package.json", "tox.ini"]
    assert _options(PACKAGE, asked)["allow_config"] == opened
    assert _options(PACKAGE, asked, "shell")["allow_config"] == opened
    checked = check_plan(PACKAGE, form=asked)
    assert checked.faults == ()
    assert checked.notes[0] == (
        "These files configure tools that run outside of the plan, and a yes lets it change them: "
        "shop/pyproject.toml, Makefile, app/[id]/package.json, tox.ini."
    )
    assert loaded(PACKAGE, asked).errors == ()


def test_what_configures_tools_is_refused_where_nobody_is_asked_or_opened_it() -> None:
    faults = check_plan(PACKAGE).faults
    assert [each.partition(" configures")[0] for each in faults] == [
        "Step 'a': 'shop/pyproject.toml'",
        "Step 'a': 'Makefile'",
        "Step 'a': 'app/[id]/package.json'",
    ]
    assert all("(`allow_config`)" in each for each in faults)
    form = PlanForm(allow_config=("pyproject.toml", "makefile", "package.json"))
    assert check_plan(PACKAGE, form=form).faults == ()
    assert _options(PACKAGE, form)["allow_config"] == list(form.allow_config)


@pytest.mark.parametrize("form", [PlanForm(), PlanForm(is_asked=True)])
@pytest.mark.parametrize("path", ["a/.git/config", "a/.GIT/hooks/x", ".git", "sub/git~1/config"])
def test_no_plan_writes_what_git_trusts(path: str, form: PlanForm) -> None:
    assert check_plan(Plan(id="p", steps=(step("a", artifacts=(path,)),)), form=form).faults


@pytest.mark.parametrize("path", ["minions.toml", ".env", "a/.venv/x.py", ".husky/pre-push"])
def test_no_plan_writes_what_configures_us_unasked(path: str) -> None:
    (fault,) = check_plan(Plan(id="p", steps=(step("a", artifacts=(path,)),))).faults
    assert path in fault


def test_a_plan_uses_secrets_only_where_they_are_opened_by_name() -> None:
    plan = Plan(id="p", steps=(step("a", files=(FileUse(path=".env"),), artifacts=("a.pem",)),))
    faults = check_plan(plan, form=PlanForm(is_asked=True)).faults
    assert len(faults) == 2
    assert all("`allow_secrets`" in each for each in faults)
    form = PlanForm(allow_secrets=(".env", "*.pem"))
    assert check_plan(plan, form=form).faults == ()
    assert _options(plan, form)["allow_secrets"] == [".env", "*.pem"]
