"""A recipe that goes back while one of its calls waits for somebody's consent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from builders import FakeTool, deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.journal.journal import Journal
from minions.contracts.tools import Effect, Tool
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor

__all__ = ["PAYS", "Says", "executor_for", "payer"]

PAYS: Final[dict[str, JsonValue]] = {
    "permissions": {"allow_write": True, "requires_approval": ["pay"]},
    "steps": [
        {"id": "a", "set": {"n": "{{ feedback.attempt if feedback else 0 }}"}},
        {"id": "p", "tool": "pay", "params": {"amount": "{{ a.n + 10 }}"}},
        {"id": "c", "assert": "a.n > 0", "on_error": {"goto": "a"}},
    ],
}
"""`p` waits with the amount 10 when `c` fails, and with 11 after the way back."""


@frozen
class Says(Decider):
    """Always the same."""

    verdict: Verdict

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return self.verdict


def payer(name: str = "pay") -> FakeTool:
    """A tool that must not run twice; it gives its arguments."""
    return fake_tool(name, lambda arguments: dict(arguments), effect=Effect.ONCE)


def executor_for(
    journal: Journal,
    tools: Sequence[Tool] = (),
    model: ScriptedModel | None = None,
    *,
    verdict: Verdict = Verdict.LATER,
) -> AgentExecutor:
    """Whoever is asked for consent says `verdict`."""
    services = evolve(deterministic_services(journal), decider=Says(verdict))
    return executor_of(model or ScriptedModel(()), tools=tools, services=services)
