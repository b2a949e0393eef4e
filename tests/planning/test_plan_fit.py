"""A plan of an earlier task serves another one that differs in names, numbers and paths alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from attrs import evolve

from minions.contracts.plans import Plan, PlanStep, PlanStepType
from minions.data.json_values import JsonValue
from minions.planning.plan_fit import fit_plan
from minions.recipe.kinds.plan_kind import KeptPlan, PlanFit

TASK: Final = "Write shop/users.py with a class for users, and test it on port 8080."
PLAN: Final = Plan(
    id="Users",
    name="Users",
    steps=[
        PlanStep(
            id="users",
            type=PlanStepType.GENERATE,
            goal="A class Users with list_users(); port 8080",
            files=["shop/base.py:outline"],
            artifacts=["shop/users.py"],
        ),
        PlanStep(
            id="test_users",
            type=PlanStepType.VALIDATE,
            goal="The tests of USERS pass",
            dependencies=["users"],
            command="python -m unittest test_users -q",
        ),
    ],
)


def fit(
    folder: Path,
    task: str,
    *,
    before: str = TASK,
    plan: Plan = PLAN,
    then: Mapping[str, JsonValue] = MappingProxyType({}),
    now: Mapping[str, JsonValue] = MappingProxyType({}),
) -> PlanFit:
    kept = KeptPlan(run_id="run_1", plan=plan, inputs={"task": before, **then})
    return fit_plan(kept, {"task": task, "workspace": str(folder), **now})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/base.py").write_text("class Base: ...\n")
    return tmp_path


def one_step(goal: str, *artifacts: str, files: tuple[str, ...] = ()) -> Plan:
    step = PlanStep(
        id="work", type=PlanStepType.GENERATE, goal=goal, artifacts=artifacts, files=files
    )
    return Plan(id="work", steps=[step])


def test_words_that_differ_are_replaced_in_every_form_that_identifiers_have(folder: Path) -> None:
    task = "Write shop/order_items.py with a class for order_items, and test it on port 9090."
    found = fit(folder, task)
    assert found.plan is not None
    first, second = found.plan.steps
    assert first.goal == "A class OrderItems with list_order_items(); port 9090"
    assert first.artifacts == ("shop/order_items.py",)
    assert str(first.files[0]) == "shop/base.py:outline"
    assert (second.id, second.dependencies) == ("test_order_items", ("order_items",))
    assert second.command == "python -m unittest test_order_items -q"
    assert second.goal == "The tests of ORDER_ITEMS pass"
    assert found.reason == ("shop/users.py → shop/order_items.py, users → order_items, 8080 → 9090")


def test_the_same_task_takes_the_plan_as_it_is(folder: Path) -> None:
    assert fit(folder, TASK) == PlanFit(plan=PLAN, reason="")


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("Write it.", "its task has other words"),
        (
            TASK.replace("class", "function"),
            (
                "its task says 'class' where this one says 'function', and that is no name, "
                "number or path"
            ),
        ),
        (
            TASK.replace("shop/users.py", "shop/users.rs"),
            "'shop/users.py' and 'shop/users.rs' are of different types",
        ),
        (
            TASK.replace("shop/users.py", "shop/orders.py"),
            "'users' differs at one place of the task and stays at another",
        ),
        (
            TASK.replace("shop/users.py", "shop/a;rm.py"),
            "its task says 'shop/users.py' where this one says 'shop/a;rm.py'",
        ),
        (
            TASK.replace("for users", "for orders").replace("shop/users", "shop/items"),
            "the words that differ are not told apart by it",
        ),
        (
            TASK.replace("users", "shop"),
            "it says 'shop/shop.py' already, of something else",
        ),
    ],
)
def test_what_is_not_surely_an_input_is_a_reason_against_it(
    folder: Path, task: str, reason: str
) -> None:
    assert fit(folder, task) == PlanFit(plan=None, reason=reason)


@pytest.mark.parametrize(
    ("before", "now", "plan", "reason"),
    [
        (
            "List `users`",
            "List `orders`",
            one_step("List all users; a user has a name", "users.txt"),
            "it says 'users' in a form in which it is not replaced",
        ),
        (
            "List `users`",
            "List `orders`",
            one_step("List all users, then the orders", "users.txt"),
            "it says 'orders' already, of something else",
        ),
        (
            "List `users`",
            "List `orders`",
            one_step("List all of them", "list.txt"),
            "it does not say 'users', and may depend on it",
        ),
        (
            "Write 12 poems",
            "Write 14 poems",
            one_step("Write 12 poems", "poems.txt"),
            "'12' may be the number of its steps",
        ),
        (
            "Copy `users` to `orders`",
            "Copy `carts` to `carts`",
            one_step("Copy users to orders", "copied.txt"),
            "the words that differ are not told apart by it",
        ),
        (
            "Serve on 8080 and 8080",
            "Serve on 9090 and 9091",
            one_step("Serve on 8080", "serve.py"),
            "'8080' would become two different words",
        ),
        (
            "Serve on port 8080",
            "Serve on port 9090",
            one_step("Serve on port 8080, as p8080", "serve.py"),
            "it says '8080' in a form in which it is not replaced",
        ),
    ],
)
def test_a_plan_that_says_a_word_otherwise_is_not_used(
    folder: Path, before: str, now: str, plan: Plan, reason: str
) -> None:
    assert fit(folder, now, before=before, plan=plan) == PlanFit(plan=None, reason=reason)


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        ({"context": "Python 3.11"}, {}, "it was made with another context"),
        ({}, {"command": "pytest"}, "it was made with another command that tests"),
        ({"tools": {"web": "…"}}, {"tools": {}}, "it was made with other tools"),
    ],
)
def test_a_plan_of_other_circumstances_is_not_used(
    folder: Path, then: dict[str, JsonValue], now: dict[str, JsonValue], reason: str
) -> None:
    assert fit(folder, TASK, then=then, now=now) == PlanFit(plan=None, reason=reason)


def test_a_task_that_differs_in_many_words_is_another_one(folder: Path) -> None:
    names = [f"`name_{number}`" for number in range(100, 121)]
    before, now = " ".join(names), " ".join(each.replace("name", "word") for each in names)
    found = fit(folder, now, before=before, plan=one_step(before, "out.txt"))
    assert found == PlanFit(plan=None, reason="its task differs in more than 20 words")


def test_a_task_may_differ_in_twenty_words(folder: Path) -> None:
    names = [f"`name_{number}`" for number in range(100, 120)]
    before, now = " ".join(names), " ".join(each.replace("name", "word") for each in names)
    reason = fit(folder, now, before=before, plan=one_step(before, "out.txt")).reason
    assert "20 words" not in reason


@pytest.mark.parametrize(("old", "new"), [("camelCase", "größe"), ("größe", "camelCase")])
def test_names_of_which_one_has_other_letters_are_replaced_whole(
    folder: Path, old: str, new: str
) -> None:
    found = fit(folder, f"Write `{new}`", before=f"Write `{old}`", plan=one_step(f"It is {old}"))
    assert found.plan is not None
    assert found.plan.steps[0].goal == f"It is {new}"


def test_a_file_that_an_earlier_step_makes_need_not_be_there(folder: Path) -> None:
    steps = [
        PlanStep(id="one", type=PlanStepType.GENERATE, goal="users", artifacts=["shop/users.py"]),
        PlanStep(
            id="two", type=PlanStepType.GENERATE, goal="users", files=["shop/users.py:outline"]
        ),
    ]
    plan = Plan(id="work", steps=steps)
    found = fit(folder, "List `orders`", before="List `users`", plan=plan)
    assert found.reason == "users → orders"
    assert found.plan is not None
    assert [each.goal for each in found.plan.steps] == ["orders", "orders"]


def test_names_with_other_letters_are_replaced_whole(folder: Path) -> None:
    plan = one_step("Write a letter to Müller", "letters/müller.txt")
    found = fit(folder, "Write to `Çelik`", before="Write to `Müller`", plan=plan)
    assert found.plan is not None
    assert found.plan.steps[0].goal == "Write a letter to Çelik"
    assert found.plan.steps[0].artifacts == ("letters/çelik.txt",)


def test_a_plan_whose_files_are_missing_is_not_used(folder: Path) -> None:
    (folder / "shop/base.py").unlink()
    reason = "it reads 'shop/base.py', which is not in the workspace"
    assert fit(folder, TASK) == PlanFit(plan=None, reason=reason)


def test_a_plan_that_would_write_over_a_file_is_not_used(folder: Path) -> None:
    (folder / "shop/users.py").write_text("")
    reason = "it creates 'shop/users.py', which exists already"
    assert fit(folder, TASK) == PlanFit(plan=None, reason=reason)
    assert fit(folder, TASK.replace("users", "orders")).plan is not None


def test_a_plan_that_changes_a_file_needs_it(folder: Path) -> None:
    [step] = one_step("Change it", "shop/cli.py").steps
    plan = Plan(id="work", steps=[evolve(step, type=PlanStepType.MODIFY)])
    reason = "it changes 'shop/cli.py', which is not in the workspace"
    assert fit(folder, TASK, plan=plan) == PlanFit(plan=None, reason=reason)
    (folder / "shop/cli.py").write_text("")
    assert fit(folder, TASK, plan=plan).plan == plan


def test_a_plan_that_reads_lines_is_not_used_for_they_move(folder: Path) -> None:
    plan = one_step("Go on", "new.py", files=("shop/base.py:1-5",))
    reason = "it reads lines of 'shop/base.py', which may be others now"
    assert fit(folder, TASK, plan=plan) == PlanFit(plan=None, reason=reason)


def test_a_new_name_does_not_lead_out_of_the_workspace(folder: Path) -> None:
    plan = one_step("Write notes/a.md", "notes/a.md")
    found = fit(folder, "Write ../notes/a.md", before="Write notes/a.md", plan=plan)
    assert found.plan is None
    found = fit(folder, "Write /etc/a.md", before="Write notes/a.md", plan=plan)
    assert found.plan is None
    assert "leads out of the workspace" in found.reason
