"""What is wrong with a plan is said before it runs: A-92."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.tools.text_files import FileOptions
from minions.contracts.plans import FileUse, Plan, PlanStep, PlanStepType, steps_before
from minions.planning.plan_checks import (
    check_plan,
    configuring_files,
    refusal_of,
    without_completed,
)
from minions.planning.plan_json import PlanForm, Sharing


def step(
    step_id: str,
    kind: str = "generate",
    *,
    needs: str = "",
    reads: str = "",
    makes: str = "",
    command: str | None = None,
    goal: str = "do it",
) -> PlanStep:
    return PlanStep(
        id=step_id,
        type=kind,
        goal=goal,
        dependencies=tuple(needs.split()),
        files=tuple(FileUse.of(each) for each in reads.split()),
        artifacts=tuple(makes.split()),
        command=command,
    )


def faults(*steps: PlanStep, files: frozenset[str] | None = None) -> tuple[str, ...]:
    return check_plan(Plan(id="plan", steps=steps), files=files).faults


def test_a_plan_without_faults() -> None:
    plan = Plan(id="p", steps=(step("a", makes="a.py"), step("b", needs="a", reads="a.py")))
    checked = check_plan(plan, files=frozenset())
    assert (checked.plan, checked.faults, checked.notes) == (plan, (), ())


def test_an_unknown_dependency_is_named_with_what_is_near() -> None:
    """A-92."""
    [fault] = faults(step("model"), step("test", needs="modell"))
    assert fault == "Step 'test' depends on 'modell', which is no step. Did you mean 'model'?"


def test_a_step_of_an_earlier_plan_is_known() -> None:
    checked = check_plan(Plan(id="p", steps=(step("b", needs="a"),)), done=["a"])
    assert checked.faults == ()


def test_a_step_that_depends_on_itself() -> None:
    """A-92."""
    assert faults(step("a", needs="a")) == ("Step 'a' depends on itself.",)


def test_steps_that_wait_for_each_other() -> None:
    """A-92."""
    [fault] = faults(step("a", needs="c"), step("b", needs="a"), step("c", needs="b"), step("d"))
    assert fault in {
        "The steps a -> c -> b -> a wait for each other.",
        "The steps b -> a -> c -> b wait for each other.",
        "The steps c -> b -> a -> c wait for each other.",
    }


def test_an_id_that_occurs_twice() -> None:
    assert faults(step("a"), step("A")) == ("Step 'a' occurs 2 times; ids are unique.",)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd.txt", "../up.py", "a/../../b.py", "~/x.py", "C:/x.py", "a\\b.py", ".git/a.py"],
)
def test_a_path_that_is_not_of_the_workspace(path: str) -> None:
    [fault] = faults(step("a", makes=path))
    assert fault.startswith(f"Step 'a': '{path}' ")
    [fault] = faults(step("a", reads=path))
    assert fault.startswith(f"Step 'a': '{path}' ")


def test_a_file_that_is_nowhere_is_named() -> None:
    present = frozenset({"shop/models.py"})
    assert faults(step("a", "modify", reads="shop/models.py"), files=present) == ()
    [fault] = faults(step("a", "modify", reads="shop/model.py"), files=present)
    assert fault == (
        "Step 'a' reads 'shop/model.py', which is not in the workspace and which no step before "
        "it makes. Did you mean 'shop/models.py'?"
    )
    assert faults(step("a", "modify", reads="anything.py"), files=None) == ()


def test_a_plan_that_is_too_large() -> None:
    [fault] = faults(*(step(f"s{number}") for number in range(51)))
    assert fault == "The plan has 51 steps; 50 are the most."
    [fault] = faults(step("a", goal="x" * 9_000))
    assert fault == "Step 'a': GOAL has 9000 characters; at most 8000."
    [fault] = faults(step("a", makes=" ".join(f"{number}.py" for number in range(101))))
    assert fault == "Step 'a': ARTIFACTS has 101 items; at most 100."


def test_a_plan_may_have_as_much_as_it_may_have() -> None:
    assert faults(*(step(f"s{number}") for number in range(50))) == ()
    assert faults(step("a", goal="x" * 8_000)) == ()
    assert faults(step("a", makes=" ".join(f"{number}.py" for number in range(100)))) == ()
    long = step("a", "validate", command="x" * 8_001)
    assert faults(long) == ("Step 'a': COMMAND has 8001 characters; at most 8000.",)


def test_a_plan_has_a_limit_as_a_whole() -> None:
    def plan(characters: int) -> Plan:
        goals = [8_000] * 12
        made = Plan(
            id="p", steps=tuple(step(f"s{n:02}", goal="x" * g) for n, g in enumerate(goals))
        )
        more = characters - len(made.to_text())
        last = step("s12", goal="y")
        more -= len(evolve(made, steps=(*made.steps, last)).to_text()) - len(made.to_text())
        return evolve(made, steps=(*made.steps, evolve(last, goal="y" * (more + 1))))

    assert len(plan(100_000).to_text()) == 100_000
    assert check_plan(plan(100_000)).faults == ()
    [fault] = check_plan(plan(100_001)).faults
    assert "100001" in fault or "100,001" in fault


def test_a_name_has_a_limit() -> None:
    assert faults(step("a", makes="n" * 300)) == ()
    [fault] = faults(step("a", makes="n" * 301))
    assert fault.endswith("' is no name.")
    [odd] = faults(PlanStep(id="a", goal="x", artifacts=("a\x07",)))
    assert odd.endswith("' is no name.")
    path = f"{'d' * 200}/{'n' * 96}.py"
    assert (len(path), faults(step("a", makes=path))) == (300, ())
    [fault] = faults(step("a", makes=f"d{path}"))
    assert fault.endswith("is too long for the path of a file.")


def test_a_plan_that_is_far_too_large_is_told_and_shown_in_short() -> None:
    listed = tuple(f"f{number}.py" for number in range(90))
    ghosts = tuple(f"ghost{number}" for number in range(5_000))
    large = PlanStep(id="s", goal="x" * 50_000, artifacts=listed, dependencies=ghosts)
    checked = check_plan(Plan(id="p", steps=(large,) * 10_000))
    assert checked.faults[0] == "The plan has 10000 steps; 50 are the most."
    assert checked.faults[-1] == "There are more faults."
    assert len(checked.faults) == 21
    assert len(checked.plan.to_text()) < 50_000


def test_faults_are_told_up_to_twenty() -> None:
    found = faults(
        *(step(f"s{number}", reads="gone.py") for number in range(40)), files=frozenset()
    )
    assert (len(found), found[-1]) == (21, "There are more faults.")


@pytest.mark.parametrize("path", ["my file.py", "a*.py", "a,b.py", "C:\\x", "sub/"])
def test_a_file_that_no_answer_can_give_is_told_before(path: str) -> None:
    made = PlanStep(id="a", type=PlanStepType.GENERATE, goal="x", artifacts=(path,))
    [fault] = faults(made)
    assert fault.startswith(f"Step 'a': '{path}' ")


def test_a_path_in_a_folder_that_tools_leave_out_is_told_before() -> None:
    for folder in FileOptions().exclude:
        [fault] = faults(step("a", makes=f"{folder}/x.py"))
        assert "is in a folder that is left out: .git, .venv, node_modules" in fault


@pytest.mark.parametrize("lines", ["1-1", "2-2", "2-9"])
def test_lines_that_there_may_be_are_read(lines: str) -> None:
    assert faults(step("a", reads=f"a.py:{lines}"), files=frozenset({"a.py"})) == ()


@pytest.mark.parametrize("lines", ["9-2", "0-0"])
def test_lines_that_are_none_are_told_before(lines: str) -> None:
    [fault] = faults(step("a", reads=f"a.py:{lines}"))
    assert "'a.py' has no lines" in fault


def test_a_file_without_an_extension_is_known_by_its_name() -> None:
    """A step may read what a step before it has made."""
    assert (
        faults(step("a", makes="LICENSE"), step("b", needs="a", reads="LICENSE"), files=frozenset())
        == ()
    )


def test_a_name_that_is_no_file_is_an_artifact() -> None:
    assert faults(PlanStep(id="a", goal="x", artifacts=("User model: fields",))) == ()


def test_a_command_belongs_to_a_validation() -> None:
    assert faults(step("a", "validate", command="true")) == ()
    [fault] = faults(step("a", command="true"))
    assert fault == "Step 'a' has a COMMAND, which only a step of type validate may have."


# --- files of several steps ---------------------------------------------------------------------

CONFLICTS: Final = [
    pytest.param(step("a", makes="x.py"), step("b", makes="x.py"), id="both make it"),
    pytest.param(step("a", makes="x.py"), step("b", "analyze", reads="x.py"), id="one reads it"),
    pytest.param(step("a", "analyze", reads="x.py"), step("b", makes="x.py"), id="read before"),
    pytest.param(
        step("a", "modify", reads="x.py"), step("b", "modify", reads="x.py:1-2"), id="edit"
    ),
]


@pytest.mark.parametrize(("first", "second"), CONFLICTS)
def test_steps_that_use_one_file_are_put_in_order(first: PlanStep, second: PlanStep) -> None:
    checked = check_plan(Plan(id="p", steps=(first, second)))
    assert checked.plan.steps[1].dependencies == ("a",)
    assert checked.notes == ("Step 'b' waits for 'a': both use x.py.",)


def test_steps_that_are_in_order_stay_as_they_are() -> None:
    steps = (step("a", makes="x.py"), step("m", needs="a"), step("b", needs="m", makes="x.py"))
    checked = check_plan(Plan(id="p", steps=steps))
    assert (checked.plan.steps, checked.notes) == (steps, ())


def test_steps_that_only_read_a_file_run_side_by_side() -> None:
    steps = (step("a", "analyze", reads="x.py"), step("b", "analyze", reads="x.py"))
    assert check_plan(Plan(id="p", steps=steps)).plan.steps == steps


ids = st.sampled_from("abcdef")
any_steps = st.builds(
    step,
    ids,
    st.sampled_from(["analyze", "generate", "modify", "validate", "cleanup"]),
    needs=st.lists(ids, max_size=3).map(" ".join),
    reads=st.lists(st.sampled_from(["x.py", "y.py"]), max_size=2).map(" ".join),
    makes=st.lists(st.sampled_from(["x.py", "y.py", "z.py"]), max_size=2).map(" ".join),
)


@given(st.lists(any_steps, min_size=1, max_size=6))
def test_whatever_has_no_fault_is_in_order_and_free_of_circles(steps: list[PlanStep]) -> None:
    checked = check_plan(Plan(id="p", steps=tuple(steps)))
    if checked.faults:
        return
    for each in checked.plan.steps:
        assert each.id not in steps_before(checked.plan.steps, each.id)
    assert check_plan(checked.plan).plan == checked.plan


def test_a_file_that_a_step_makes_and_names_in_files_is_its_artifact() -> None:
    plan = Plan(
        id="plan",
        steps=(
            step("a", reads="shop/new.py"),
            step("b", needs="a", reads="shop/new.py", makes="t.py"),
        ),
    )
    checked = check_plan(plan, files=frozenset({"README.md"}))
    assert checked.faults == ()
    assert checked.notes == ("Step 'a' makes shop/new.py: its FILES are taken for ARTIFACTS.",)
    first, second = checked.plan.steps
    assert (first.files, first.made_files) == ((), ("shop/new.py",))
    assert [each.path for each in second.files] == ["shop/new.py"]


@pytest.mark.parametrize(
    "steps",
    [
        (step("a", reads="shop/modle.py"),),  # a slip
        (step("a", reads="new.py:outline"),),  # it is to be seen
        (step("a", "modify", reads="new.py"),),  # what is changed has to be there
        (step("a", reads="new.py", makes="other.py"),),  # it says what it makes
        (step("a", reads="new.py"), step("b", reads="new.py")),  # who makes it?
        (step("a", reads="new.py"), step("b", needs="a", makes="new.py")),  # too early
    ],
)
def test_a_file_that_a_step_can_only_read_stays_a_fault(steps: tuple[PlanStep, ...]) -> None:
    found = faults(*steps, files=frozenset({"shop/model.py"}))
    assert found
    assert "is not in the workspace" in found[0]


# --- what is completed, and what is open ----------------------------------------------------------


def left(plan: tuple[PlanStep, ...], *done: PlanStep, share: Sharing = Sharing.NAMES) -> Plan:
    return without_completed(Plan(id="p", steps=plan), done, share).plan


A, B = step("a", makes="a.py"), step("b", needs="a", makes="b.py")


@pytest.mark.parametrize(
    ("plan", "done", "ids"),
    [
        ((A, B), (), "a b"),
        ((A, B), (A,), "b"),
        ((B, A, step("c")), (A, B), "c"),
        ((A, B), (B,), "a b"),
        ((evolve(A, goal="else"), B), (A,), "b"),
        ((evolve(A, type=PlanStepType.MODIFY), B), (A,), "a b"),
        ((evolve(A, artifacts=("a.py", "c.py")), B), (A,), "a b"),
        ((evolve(A, artifacts=()), B), (A,), "b"),
        ((step("a", "validate", command="x"), B), (step("a", "validate", command="x"),), "a b"),
        ((step("b", needs="old"), A), (step("b"),), "a"),
        ((step("b", needs="old"), step("c", needs="b")), (step("b"),), "c"),
    ],
)
def test_a_step_that_is_completed_is_not_carried_out_again(
    plan: tuple[PlanStep, ...], done: tuple[PlanStep, ...], ids: str
) -> None:
    """Unless it is other work by now, or a step before it is carried out."""
    assert [each.id for each in left(plan, *done).steps] == ids.split()


def test_a_plan_of_which_all_is_completed_is_at_fault() -> None:
    checked = without_completed(Plan(id="p", steps=(A, B)), (A, B), Sharing.NAMES)
    assert checked.faults[0].startswith("All steps of this plan are completed already.")
    assert len(checked.plan.steps) == 2
    untouched = without_completed(Plan(id="p", steps=()), (A,), Sharing.NAMES)
    assert (untouched.faults, untouched.notes) == ((), ())


@pytest.mark.parametrize(
    ("share", "seen"),
    [
        (Sharing.NAMES, ["own.py"]),
        (Sharing.OUTLINE, ["own.py", "a.py:outline"]),
        (Sharing.WHOLE, ["own.py", "a.py"]),
    ],
)
def test_a_step_sees_what_completed_steps_made_for_it_once(share: Sharing, seen: list[str]) -> None:
    made = step("a", makes="a.py own.py")
    reader = step("b", needs="a gone", reads="own.py")
    (found,) = left((made, reader), made, share=share).steps
    assert [str(each) for each in found.files] == seen


def test_files_that_configure_tools_are_told_of_steps_that_change_them() -> None:
    plan = Plan(
        id="p",
        steps=(
            step("a", makes="conftest.py x.py"),
            step("b", "modify", reads="pyproject.toml y.py"),
            step("c", "generate", reads="Makefile"),
            step("d", "validate", reads="setup.py", makes="tox.ini"),
        ),
    )
    assert configuring_files(plan, PlanForm()) == ["conftest.py", "pyproject.toml"]


def test_what_opens_by_the_yes_of_a_person_is_told_to_them() -> None:
    plan = Plan(id="p", steps=(step("a", makes="conftest.py"),))
    asked = check_plan(plan, form=PlanForm(is_asked=True))
    assert (asked.faults, len(asked.notes)) == ((), 1)
    assert asked.notes[0].endswith("a yes lets it change them: conftest.py.")
    open_anyway = PlanForm(is_asked=True, allow_config=("conftest.py",))
    assert check_plan(plan, form=open_anyway).notes == ()
    assert check_plan(plan, form=PlanForm(allow_config=("conftest.py",))).notes == ()


@pytest.mark.parametrize(
    ("path", "form", "is_open"),
    [
        ("conftest.py", PlanForm(), False),
        ("conftest.py", PlanForm(allow_config=("conftest.py",)), True),
        ("conftest.py", PlanForm(is_asked=True), True),
        (".github/x.yml", PlanForm(is_asked=True), True),
        ("git~1/config", PlanForm(is_asked=True), False),
        ("git~1/config", PlanForm(), False),
        ("x.py", PlanForm(), True),
    ],
)
def test_what_configures_tools_is_made_if_it_is_open_but_for_gits(
    path: str, form: PlanForm, *, is_open: bool
) -> None:
    found = check_plan(Plan(id="p", steps=(step("a", makes=path),)), form=form).faults
    assert ([f"'{path}' configures tools" in fault for fault in found] == []) is is_open
    reading = step("b", "analyze", makes=path)  # it changes no file
    assert check_plan(Plan(id="p", steps=(reading,)), form=form).faults == ()


@pytest.mark.parametrize("allowed", [(), ("key.pem",)])
def test_a_secret_is_neither_read_nor_made_unless_it_is_open(allowed: tuple[str, ...]) -> None:
    form = PlanForm(allow_secrets=allowed)
    for used in (step("a", "modify", reads="key.pem"), step("a", makes="key.pem")):
        found = check_plan(Plan(id="p", steps=(used,)), form=form).faults
        assert ["is taken for a secret" in fault for fault in found] == [True] * (not allowed)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{'n' * 252}.py", ""),
        (f"{'n' * 253}.py", "is too long for the path of a file"),
        (f"{'ä' * 126}.py", ""),
        (f"{'ä' * 127}.py", "is too long for the path of a file"),
        (f"d/{'n' * 253}.py", "is too long for the path of a file"),
        ("", "is no path of a file"),
        ("a\x07.py", "is no path of a file"),
        ("a.py", ""),
    ],
)
def test_a_path_is_one_of_a_file(path: str, says: str) -> None:
    assert (refusal_of(path) or "") == says


def test_a_tool_that_is_not_offered_is_named_with_those_that_are() -> None:
    plan = Plan(id="p", steps=(evolve(step("a"), tools=("look", "loook")),))
    [fault] = check_plan(plan, tools=("look",)).faults
    assert fault == (
        "Step 'a' wants the tool 'loook', which is unknown. Did you mean 'look'? Tools are: look."
    )
    assert check_plan(plan).faults[0].endswith("There are no tools.")
