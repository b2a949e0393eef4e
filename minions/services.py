"""The services that every run uses: journals, clock, secrets, output parser, and their errors.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.models.structured_output import InstructorParser
    from minions.adapters.stores.body_cipher import BodyCipher, JournalKey
    from minions.adapters.stores.postgres_journal import PostgresJournal
    from minions.adapters.telemetry.open_telemetry import OpenTelemetryMetrics, OpenTelemetryTracer
    from minions.adapters.telemetry.prometheus import PrometheusMetrics
    from minions.adapters.tools.file_restorer import LocalFileRestorer
    from minions.contracts.budgets import (
        BudgetPeriod,
        BudgetRule,
        Budgets,
        BudgetSpender,
        OnThreshold,
    )
    from minions.contracts.calls import OutputParser
    from minions.contracts.file_changes import (
        ChangeRecorder,
        FileChange,
        FileOutcome,
        FileRestorer,
        FileTarget,
        IrreversibleCall,
        RollbackReport,
        RolledBackFile,
    )
    from minions.contracts.flow import FlowControl, Priority
    from minions.contracts.journal.chain import HeadKeeper
    from minions.contracts.journal.journal import EntryDraft, Journal, JournalEntry, Lease
    from minions.contracts.metrics import JointMetrics, Metrics
    from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint
    from minions.contracts.runtime import Clock, Ids, Log, Random, Sleep, SystemClock
    from minions.contracts.secrets import SecretSource
    from minions.contracts.tracing import RunSubject, Span, StepSubject, Tracer
    from minions.data.errors import (
        EnvironmentRefusedError,
        FencedError,
        JournalError,
        LeaseHeldError,
    )
    from minions.engine.services.flow.flow_control import FlowConfig, SharedFlowControl
    from minions.engine.services.memory_journal import MemoryJournal
    from minions.engine.services.run_services import NullLog
    from minions.engine.services.shared_budgets import SharedBudgets
    from minions.recipe.model import OperatorRules


__all__ = [
    "BodyCipher",
    "BudgetPeriod",
    "BudgetRule",
    "BudgetSpender",
    "Budgets",
    "ChangeRecorder",
    "Clock",
    "EndpointLimits",
    "EntryDraft",
    "EnvironmentRefusedError",
    "FencedError",
    "FileChange",
    "FileOutcome",
    "FileRestorer",
    "FileTarget",
    "FlowConfig",
    "FlowControl",
    "HeadKeeper",
    "Ids",
    "InstructorParser",
    "IrreversibleCall",
    "JointMetrics",
    "Journal",
    "JournalEntry",
    "JournalError",
    "JournalKey",
    "Lease",
    "LeaseHeldError",
    "LocalFileRestorer",
    "Log",
    "MemoryJournal",
    "Metrics",
    "ModelEndpoint",
    "NullLog",
    "OnThreshold",
    "OpenTelemetryMetrics",
    "OpenTelemetryTracer",
    "OperatorRules",
    "OutputParser",
    "PostgresJournal",
    "Priority",
    "PrometheusMetrics",
    "Random",
    "RollbackReport",
    "RolledBackFile",
    "RunSubject",
    "SecretSource",
    "SharedBudgets",
    "SharedFlowControl",
    "Sleep",
    "Span",
    "StepSubject",
    "SystemClock",
    "Tracer",
]

_HOMES: Final = {
    "minions.adapters.models.structured_output": ("InstructorParser",),
    "minions.adapters.tools.file_restorer": ("LocalFileRestorer",),
    "minions.contracts.file_changes": (
        "ChangeRecorder",
        "FileChange",
        "FileOutcome",
        "FileRestorer",
        "FileTarget",
        "IrreversibleCall",
        "RollbackReport",
        "RolledBackFile",
    ),
    "minions.adapters.stores.body_cipher": ("BodyCipher", "JournalKey"),
    "minions.adapters.stores.postgres_journal": ("PostgresJournal",),
    "minions.adapters.telemetry.open_telemetry": (
        "OpenTelemetryMetrics",
        "OpenTelemetryTracer",
    ),
    "minions.adapters.telemetry.prometheus": ("PrometheusMetrics",),
    "minions.contracts.budgets": (
        "BudgetPeriod",
        "BudgetRule",
        "BudgetSpender",
        "Budgets",
        "OnThreshold",
    ),
    "minions.contracts.calls": ("OutputParser",),
    "minions.data.errors": (
        "EnvironmentRefusedError",
        "FencedError",
        "JournalError",
        "LeaseHeldError",
    ),
    "minions.contracts.flow": ("FlowControl", "Priority"),
    "minions.contracts.journal.chain": ("HeadKeeper",),
    "minions.contracts.journal.journal": (
        "EntryDraft",
        "Journal",
        "JournalEntry",
        "Lease",
    ),
    "minions.contracts.metrics": ("JointMetrics", "Metrics"),
    "minions.contracts.model_endpoints": ("EndpointLimits", "ModelEndpoint"),
    "minions.contracts.runtime": (
        "Clock",
        "Ids",
        "Log",
        "Random",
        "Sleep",
    ),
    "minions.contracts.secrets": ("SecretSource",),
    "minions.contracts.tracing": ("RunSubject", "Span", "StepSubject", "Tracer"),
    "minions.engine.services.flow.flow_control": ("FlowConfig", "SharedFlowControl"),
    "minions.engine.services.memory_journal": ("MemoryJournal",),
    "minions.engine.services.shared_budgets": ("SharedBudgets",),
    "minions.recipe.model": ("OperatorRules",),
    "minions.engine.services.run_services": (
        "NullLog",
        "SystemClock",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
