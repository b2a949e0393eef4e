"""Code steps in tests of applications, without a sandbox."""

from __future__ import annotations

import pytest

import minions as m
from minions import tool
from minions.contracts.executions import AgentResult
from minions.contracts.sandbox import CodeSandbox
from minions.recipe.kinds.code_kind import SANDBOXES
from minions.testing import UnconfinedSandbox
from minions.testing.code_sandbox_suite import (  # noqa: F401  # the tests are its names
    test_a_call_gives_code_the_value_of_its_tool,
    test_a_call_that_fails_raises_a_runtime_error_with_code_and_message,
    test_a_value_is_json_or_a_failure,
    test_a_value_that_is_not_json_fails,
    test_an_exception_of_the_code_is_told_with_its_line,
    test_arguments_and_results_that_are_too_long_are_errors_of_the_call,
    test_arguments_have_names_and_are_json,
    test_code_that_is_not_python_fails,
    test_code_without_a_last_expression_has_no_value,
    test_code_without_tools_has_no_module_of_that_name,
    test_executions_at_the_same_time_do_not_mix,
    test_one_execution_leaves_nothing_for_the_next,
    test_the_value_of_the_last_expression_is_the_result,
    test_what_the_caller_of_a_tool_raises_ends_the_code_and_leaves_no_process,
)
from minions.testing.recipe_runner import RecipeRunner


@pytest.fixture
def sandbox() -> CodeSandbox:
    return UnconfinedSandbox()


@tool(effect="once")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


RECIPE = """
id: pay
permissions: {{allow_write: true, requires_approval: {approval}}}
steps:
  - id: all
    tools: [pay]
    sandbox: {sandbox}
    code: |
      from tools import pay
      paid = []
      for each in (1, 2):
          try:
              paid.append(pay(amount=each))
          except BaseException:
              paid.append("nothing")
      paid
"""


def run(approval: str, name: str = "monty") -> AgentResult[object]:
    return RecipeRunner()(
        RECIPE.format(approval=approval, sandbox=name),
        tools=[pay],
        extensions=m.Extensions(sandboxes={name: UnconfinedSandbox(name)}),
        approve="wait",
    )


@pytest.mark.parametrize("name", SANDBOXES)
def test_a_recipe_with_code_runs_in_a_test_on_any_machine(name: str) -> None:
    assert run("[]", name).unwrap() == ["paid 1", "paid 2"]


def test_code_that_catches_everything_calls_nothing_after_a_call_that_waits() -> None:
    result = run("[pay]")
    assert result.status is m.RunStatus.NEEDS_DECISION
    assert result.error is not None
    assert '{"amount":1}' in result.error.message
    assert '{"amount":2}' not in result.error.message
