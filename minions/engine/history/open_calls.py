"""Tool calls in doubt: begun, their end not known."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from minions.contracts.executions import address_of
from minions.contracts.journal.facts import Fact, ToolCallOutcome, ToolCallStarted, UnreadableFact
from minions.contracts.journal.journal import JournalEntry
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.engine.history.entry_checks import fact_in

_REFUSALS: Final = frozenset({"unknown-tool", "permission-denied", "bad-arguments"})
"""Failure codes of calls whose tool was not called."""


def was_refused(fact: Fact | UnreadableFact) -> bool:
    """Whether the fact is the end of a call whose tool was not called."""
    error = fact.error if isinstance(fact, ToolCallOutcome) else None
    return error is not None and error.get("code") in _REFUSALS


@frozen(kw_only=True)
class OpenCall(FieldsRepr):
    """A tool call that was started and whose end is unknown."""

    key: str
    step_id: str
    tool: str
    arguments: str

    @property
    def address(self) -> str:
        """The address of the execution that made the call: `outer[1]/step[2]`."""
        return address_of(self.key)

    def to_json(self) -> dict[str, JsonValue]:
        """What events say of it: which call is in doubt, without its arguments."""
        return {
            "key": self.key,
            "step_id": self.step_id,
            "address": self.address,
            "what": "doubt",
            "tool": self.tool,
        }


def open_call(entry: JournalEntry) -> OpenCall:
    """The call that this row says was started.

    Raises:
        JournalError: `corrupt-entry`; the row is no start of a call.
    """
    fact = fact_in(entry, ToolCallStarted)
    return OpenCall(key=entry.key, step_id=fact.step_id, tool=fact.tool, arguments=fact.arguments)
