"""What is handed in by mistake is refused with what to hand in."""

from __future__ import annotations

from typing import cast

import pytest

from builders import fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.tools import Toolbox
from minions.data.errors import FailureInfo, UsageError
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.run_factory import RecipeSource
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.store import StepRepository


def test_a_list_of_tools_is_a_toolbox_and_one_of_anything_else_is_none() -> None:
    assert Extensions(tools=[fake_tool()]).tools.names == ("look",)
    with pytest.raises(UsageError, match="tools"):
        Extensions(tools=cast("Toolbox", ["search"]))


def test_a_journal_is_no_services() -> None:
    journal = cast("Services", MemoryJournal(Services().clock))
    with pytest.raises(UsageError, match=r"StepRepository\(Services\(journal=journal\)\)"):
        StepRepository(journal)


def test_a_source_of_recipes_that_gives_none_is_named() -> None:
    executor = AgentExecutor(ScriptedModel([]), recipes=cast("RecipeSource", lambda name: None))
    with pytest.raises(UsageError, match="`recipes` gave NoneType for 'letters'"):
        executor.find("letters")


def test_the_short_form_of_a_failed_result_says_why() -> None:
    error = FailureInfo(code="no-key", message="A key is missing.")
    result: AgentResult[object] = AgentResult(
        run_id="run_1", session_id="ses_1", recipe_id="r", status=RunStatus.FAILED, error=error
    )
    assert repr(result) == "AgentResult(run_1, failed, 0 steps, no-key: A key is missing.)"
