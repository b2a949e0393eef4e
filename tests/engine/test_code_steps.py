"""`code` steps: which sandbox runs them, what they see, and how they fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve, field, frozen, mutable

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.sandboxes.python_sandboxes import MontySandbox, ProcessSandbox
from minions.contracts.executions import AgentResult
from minions.contracts.journal.facts import StepFinished
from minions.contracts.sandbox import (
    CODE_LIMITS,
    CodeSandbox,
    SandboxLimits,
    SandboxProbe,
    SandboxResult,
    probe_words,
)
from minions.data.errors import EnvironmentRefusedError, FailureInfo, RecipeError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document


@mutable
class Recording(CodeSandbox):
    """A sandbox that executes nothing and tells what it was asked."""

    name: str = "monty"
    holds: bool = True
    result: SandboxResult = field(factory=SandboxResult)
    asked: list[tuple[str, Mapping[str, JsonValue], SandboxLimits]] = field(factory=list)

    def probe(self) -> Sequence[SandboxProbe]:
        return (SandboxProbe(name="a socket", ok=self.holds, detail="tried"),)

    async def execute(
        self,
        code: str,
        inputs: Mapping[str, JsonValue] | None = None,
        limits: SandboxLimits = CODE_LIMITS,
    ) -> SandboxResult:
        self.asked.append((code, inputs or {}, limits))
        return self.result


def loaded(*steps: dict[str, JsonValue]) -> AgentRecipe:
    return recipe_from_document({"id": "recipe", "steps": [*steps]}, Catalog())


async def run(recipe: AgentRecipe, **sandboxes: CodeSandbox) -> AgentResult[JsonValue]:
    executor = AgentExecutor(
        ScriptedModel([]),
        extensions=Extensions(sandboxes=sandboxes),
        services=deterministic_services(),
    )
    return await executor.execute(recipe)


async def test_the_code_sees_its_inputs_and_its_value_is_the_output() -> None:
    sandbox = Recording(result=SandboxResult(value=[1, 2]))
    recipe = loaded(
        {"id": "a", "set": {"n": 2}},
        {"id": "c", "code": "list(range(n))", "with": {"n": "{{ a.n }}"}},
    )
    assert (await run(recipe, monty=sandbox)).unwrap() == [1, 2]
    assert sandbox.asked == [("list(range(n))", {"n": 2}, CODE_LIMITS)]


async def test_the_recipe_sets_sandbox_and_limits() -> None:
    sandbox = Recording(name="process")
    settings: dict[str, JsonValue] = {
        "name": "process",
        "timeout_s": 9,
        "memory_mb": 64,
        "cpus": 1,
        "output_kb": 2,
    }
    await run(loaded({"id": "c", "code": "1", "sandbox": settings}), process=sandbox)
    limits = evolve(CODE_LIMITS, wall_s=9, memory_bytes=64 << 20, cpus=1, output_bytes=2048)
    assert sandbox.asked == [("1", {}, limits)]


async def test_a_failure_in_the_sandbox_fails_the_step_with_its_code() -> None:
    failure = FailureInfo(code="sandbox-timeout", message="It took too long.")
    result = await run(
        loaded({"id": "c", "code": "1"}), monty=Recording(result=SandboxResult(failure=failure))
    )
    assert result.error is not None
    assert (result.error.code, result.error.where) == ("sandbox-timeout", "c")


async def test_the_result_and_the_journal_name_the_sandbox_that_held_the_code() -> None:
    services = deterministic_services()
    executor = AgentExecutor(
        ScriptedModel([]),
        extensions=Extensions(sandboxes={"process": Recording(name="process")}),
        services=services,
    )
    steps: tuple[dict[str, JsonValue], ...] = (
        {"id": "a", "set": {"n": 1}},
        {"id": "c", "code": "1", "sandbox": "process"},
    )
    result = await executor.execute(loaded(*steps))
    assert [each.sandbox for each in result.executions] == [None, "process"]
    rows = await services.journal.entries(result.session_id, run_id=result.run_id)
    ends = [each.fact for each in rows if isinstance(each.fact, StepFinished)]
    assert [each.sandbox for each in ends] == [None, "process"]


@pytest.mark.parametrize("name", ["monty", "process"])
async def test_code_runs_in_no_other_sandbox_than_its_own(name: str) -> None:
    other = {"monty": "process", "process": "monty"}[name]
    broken, good = Recording(name=name, holds=False), Recording(name=other)
    with pytest.raises(EnvironmentRefusedError) as caught:
        await run(loaded({"id": "c", "code": "1", "sandbox": name}), **{name: broken, other: good})
    assert caught.value.error_code == "no-sandbox"
    assert f"{name}: a socket NOT OK (tried)" in caught.value.message
    assert broken.asked == good.asked == []


def test_faults_of_code_are_found_before_the_run() -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(
            {"id": "a", "code": "1 +"},
            {"id": "b", "code": "return 1"},
            {"id": "c", "code": "1", "sandbox": "docker"},
            {"id": "d", "code": "1", "sandbox": {"name": "monty", "memory_mb": 1, "disk": 2}},
            {"id": "e", "code": "1", "with": {"class": 1, "a-b": 2, "fine": 3}},
            {"id": "f", "code": "print({{ inputs.x }})"},
        )
    assert [(fault.code, fault.message) for fault in caught.value.faults] == [
        ("bad-code", "this is not Python: invalid syntax (line 1 of it)"),
        ("bad-code", "'return' stands outside of a function"),
        ("bad-value", "'sandbox' cannot be 'docker'"),
        ("bad-value", "'memory_mb' must be at least 16, not 1"),
        ("unknown-key", "unknown key 'disk' in sandbox"),
        ("bad-value", "'class' is no name that Python code can read"),
        ("bad-value", "'a-b' is no name that Python code can read"),
        ("bad-code", "templates are not filled in here: the code is taken as it stands"),
    ]


CODES: tuple[tuple[str, frozenset[str]], ...] = (
    ("while True:\n    pass", frozenset({"sandbox-cpu", "sandbox-timeout"})),
    ("[0] * 10**10", frozenset({"sandbox-memory"})),
    (
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        frozenset({"sandbox-denied", "sandbox-code-failed"}),
    ),
)


@frozen
class Case:
    """A sandbox and what it has to stop."""

    sandbox: CodeSandbox
    code: str
    expected: frozenset[str]


@pytest.mark.parametrize(
    "case",
    [
        Case(sandbox, code, expected)
        for sandbox in (MontySandbox(), ProcessSandbox())
        for code, expected in CODES
    ],
    ids=lambda case: f"{case.sandbox.name}: {case.code[:16]}",
)
async def test_code_that_loops_hoards_or_dials_out_is_stopped(case: Case) -> None:
    """A-50"""
    if not all(probe.ok for probe in case.sandbox.probe()):
        pytest.skip(f"{case.sandbox.name} does not hold: {probe_words(case.sandbox.probe())}")
    name = case.sandbox.name
    settings: dict[str, JsonValue] = {"name": name, "timeout_s": 4}
    recipe = loaded({"id": "c", "code": case.code, "sandbox": settings})
    result = await run(recipe, **{name: case.sandbox})
    assert result.error is not None
    assert result.error.code in case.expected
