"""The facts of the journal: what the body of an entry holds, by kind and state of the entry.

A fact is a value of one of these classes, and the class is the schema of its row: a body that lacks
a field, or has one of another type, becomes an `UnreadableFact`. Fields stand in the order of the
row. A field that is missing from the row is None here, or UNSET where the row may also say `null`.

This package holds shapes only. What is computed from facts (a run's state, a conversation, events)
are folds elsewhere.
"""

from __future__ import annotations

from minions.contracts.journal.facts.decision_facts import (
    BackEdge,
    DecisionFact,
    DecisionImported,
    DecisionRecorded,
    DecisionTaken,
    DecisionWaiting,
    PlanReplaced,
    RecordedProposal,
    RouteFailed,
    RouteFinished,
)
from minions.contracts.journal.facts.file_facts import (
    FileChangeFact,
    FileChangeImported,
    FileChangeRecorded,
    FileRollbackFact,
    FileRollbackFinished,
    FileRollbackStarted,
)
from minions.contracts.journal.facts.message_facts import (
    ConversationStarted,
    MessageRecorded,
    ModelCallFact,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallInterrupted,
    ModelCallLoss,
    Rollback,
    SavedMessage,
)
from minions.contracts.journal.facts.remark_facts import (
    ExamplesPinned,
    MarkFact,
    MarkImported,
    MarkRecorded,
    PinnedExample,
    WarningRecorded,
)
from minions.contracts.journal.facts.rows import (
    FACTS,
    Fact,
    UnreadableFact,
    body_of,
    class_of,
    fact_of,
)
from minions.contracts.journal.facts.run_facts import (
    RecordedConversation,
    RecordedItem,
    RecordedPart,
    RunBeginning,
    RunFinished,
    RunLimitReached,
    RunRejected,
    RunResumed,
    RunStarted,
    inputs_in,
)
from minions.contracts.journal.facts.session_facts import SessionCut, SessionForked, SessionOpened
from minions.contracts.journal.facts.shape import given
from minions.contracts.journal.facts.step_facts import (
    StepEnd,
    StepFact,
    StepFailed,
    StepFinished,
    StepInterrupted,
    StepOmission,
    StepOutcome,
    StepSkipped,
    StepStarted,
    StepWithdrawn,
)
from minions.contracts.journal.facts.tool_facts import (
    ToolCallFact,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallInDoubt,
    ToolCallInterrupted,
    ToolCallOutcome,
    ToolCallStarted,
)

__all__ = [
    "FACTS",
    "BackEdge",
    "ConversationStarted",
    "DecisionFact",
    "DecisionImported",
    "DecisionRecorded",
    "DecisionTaken",
    "DecisionWaiting",
    "ExamplesPinned",
    "Fact",
    "FileChangeFact",
    "FileChangeImported",
    "FileChangeRecorded",
    "FileRollbackFact",
    "FileRollbackFinished",
    "FileRollbackStarted",
    "MarkFact",
    "MarkImported",
    "MarkRecorded",
    "MessageRecorded",
    "ModelCallFact",
    "ModelCallFailed",
    "ModelCallFinished",
    "ModelCallInterrupted",
    "ModelCallLoss",
    "PinnedExample",
    "PlanReplaced",
    "RecordedConversation",
    "RecordedItem",
    "RecordedPart",
    "RecordedProposal",
    "Rollback",
    "RouteFailed",
    "RouteFinished",
    "RunBeginning",
    "RunFinished",
    "RunLimitReached",
    "RunRejected",
    "RunResumed",
    "RunStarted",
    "SavedMessage",
    "SessionCut",
    "SessionForked",
    "SessionOpened",
    "StepEnd",
    "StepFact",
    "StepFailed",
    "StepFinished",
    "StepInterrupted",
    "StepOmission",
    "StepOutcome",
    "StepSkipped",
    "StepStarted",
    "StepWithdrawn",
    "ToolCallFact",
    "ToolCallFailed",
    "ToolCallFinished",
    "ToolCallInDoubt",
    "ToolCallInterrupted",
    "ToolCallOutcome",
    "ToolCallStarted",
    "UnreadableFact",
    "WarningRecorded",
    "body_of",
    "class_of",
    "fact_of",
    "given",
    "inputs_in",
]
