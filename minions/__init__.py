"""Minions: reliable, cheap, typed steps for LLM agents.

Everything an application needs is here; each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from minions.adapters.models.openai import OpenAIModel
    from minions.adapters.models.prices import GenaiPriceBook, OwnPrice
    from minions.adapters.models.script_items import tool_request
    from minions.adapters.models.scripted import ScriptedModel
    from minions.adapters.models.structured_output import InstructorParser
    from minions.adapters.stores.memory_step_cache import MemoryStepCache
    from minions.adapters.stores.postgres_journal import PostgresJournal
    from minions.adapters.stores.postgres_step_cache import PostgresStepCache
    from minions.adapters.stores.sqlite_journal import SqliteJournal
    from minions.adapters.stores.sqlite_step_cache import SqliteStepCache
    from minions.adapters.tools.function_tool import tool
    from minions.contracts.call_executors import ModelCallExecutor, ToolCallExecutor
    from minions.contracts.calls import (
        ChatModel,
        DeltaSink,
        ModelCall,
        ModelCallResponse,
        ModelFailure,
        OutputInstructions,
        Prompt,
        ToolCall,
        ToolCallResponse,
        ToolFailure,
    )
    from minions.contracts.completion import CompletionCriteria, CompletionLink, StepCompletionChain
    from minions.contracts.context import RunContext
    from minions.contracts.decisions import (
        ApprovalRequest,
        Decider,
        NoAnswer,
        Question,
        Verdict,
    )
    from minions.contracts.errors import MinionsError, RecipeError, ToolError
    from minions.contracts.events import (
        RunCompleted,
        RunEvent,
        RunFailed,
        StepCompleted,
        StepDelta,
        StepDeltaEvent,
        StepEvent,
        StepEventType,
    )
    from minions.contracts.executions import (
        AgentExecutionError,
        AgentResult,
        RunStatus,
        StepExecution,
        StepStatus,
    )
    from minions.contracts.json_values import JsonValue
    from minions.contracts.messages import (
        Message,
        MessageBundle,
        MessageRole,
        ToolCallRequest,
    )
    from minions.contracts.retry import RetryConfig
    from minions.contracts.runtime import PriceBook
    from minions.contracts.secrets import SecretRef
    from minions.contracts.sessions import (
        AgentHooks,
        Session,
        SessionStep,
        StepMetrics,
    )
    from minions.contracts.step_cache import CachedStep, StepCache
    from minions.contracts.steps import DefaultStep, PythonStep, Step, StepScope
    from minions.contracts.tools import Tool, ToolScope, ToolSpec
    from minions.contracts.verdicts import Completion, CompletionMode
    from minions.engine.calls.model_calls import ModelCallExecutors
    from minions.engine.calls.tool_calls import tool_call_executors
    from minions.engine.compile.completion import DefaultStepCompletionChain
    from minions.engine.compile.extensions import Extensions
    from minions.engine.compile.graph import DefaultStepGraph
    from minions.engine.compile.selection import RunPart
    from minions.engine.context.agent_context import Agent, AgentContext
    from minions.engine.history.memory import ConversationMemory
    from minions.engine.run.agent_executor import AgentExecutor
    from minions.engine.run.questions import analyze_data, extract_params
    from minions.engine.services.services import Services, SystemClock
    from minions.engine.sessions.context import (
        build_context_from_sequence_range,
        build_context_from_steps,
        get_context_summary,
        messages_from_context,
        validate_context,
    )
    from minions.engine.sessions.runner import (
        ChatAgent,
        StepRunner,
        fork_session,
        retry_from_sequence,
    )
    from minions.engine.sessions.store import (
        StepRepository,
    )
    from minions.engine.step.executor import StepExecutor
    from minions.engine.step.step_manager import StepManager
    from minions.interfaces.library import run
    from minions.recipe.model import AgentRecipe, InputSpec, ModelConfig, Permissions

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentContext",
    "AgentExecutionError",
    "AgentExecutor",
    "AgentHooks",
    "AgentRecipe",
    "AgentResult",
    "ApprovalRequest",
    "CachedStep",
    "ChatAgent",
    "ChatModel",
    "Completion",
    "CompletionCriteria",
    "CompletionLink",
    "CompletionMode",
    "ConversationMemory",
    "Decider",
    "DefaultStep",
    "DefaultStepCompletionChain",
    "DefaultStepGraph",
    "DeltaSink",
    "Extensions",
    "GenaiPriceBook",
    "InputSpec",
    "InstructorParser",
    "JsonValue",
    "MemoryStepCache",
    "Message",
    "MessageBundle",
    "MessageRole",
    "MinionsError",
    "ModelCall",
    "ModelCallExecutor",
    "ModelCallExecutors",
    "ModelCallResponse",
    "ModelConfig",
    "ModelFailure",
    "NoAnswer",
    "OpenAIModel",
    "OutputInstructions",
    "OwnPrice",
    "Permissions",
    "PostgresJournal",
    "PostgresStepCache",
    "PriceBook",
    "Prompt",
    "PythonStep",
    "Question",
    "RecipeError",
    "RetryConfig",
    "RunCompleted",
    "RunContext",
    "RunEvent",
    "RunFailed",
    "RunPart",
    "RunStatus",
    "ScriptedModel",
    "SecretRef",
    "Services",
    "Session",
    "SessionStep",
    "SqliteJournal",
    "SqliteStepCache",
    "Step",
    "StepCache",
    "StepCompleted",
    "StepCompletionChain",
    "StepDelta",
    "StepDeltaEvent",
    "StepEvent",
    "StepEventType",
    "StepExecution",
    "StepExecutor",
    "StepManager",
    "StepMetrics",
    "StepRepository",
    "StepRunner",
    "StepScope",
    "StepStatus",
    "SystemClock",
    "Tool",
    "ToolCall",
    "ToolCallExecutor",
    "ToolCallRequest",
    "ToolCallResponse",
    "ToolError",
    "ToolFailure",
    "ToolScope",
    "ToolSpec",
    "Verdict",
    "analyze_data",
    "build_context_from_sequence_range",
    "build_context_from_steps",
    "extract_params",
    "fork_session",
    "get_context_summary",
    "messages_from_context",
    "retry_from_sequence",
    "run",
    "tool",
    "tool_call_executors",
    "tool_request",
    "validate_context",
]

_HOMES: Final = {
    "minions.engine.sessions.runner": (
        "ChatAgent",
        "StepRunner",
        "fork_session",
        "retry_from_sequence",
    ),
    "minions.engine.sessions.store": ("StepRepository",),
    "minions.engine.sessions.context": (
        "build_context_from_sequence_range",
        "build_context_from_steps",
        "get_context_summary",
        "messages_from_context",
        "validate_context",
    ),
    "minions.contracts.events": (
        "RunCompleted",
        "RunEvent",
        "RunFailed",
        "StepCompleted",
        "StepDelta",
        "StepDeltaEvent",
        "StepEvent",
        "StepEventType",
    ),
    "minions.contracts.sessions": (
        "AgentHooks",
        "Session",
        "SessionStep",
        "StepMetrics",
    ),
    "minions.adapters.tools.function_tool": ("tool",),
    "minions.adapters.models.openai": ("OpenAIModel",),
    "minions.adapters.models.prices": ("GenaiPriceBook", "OwnPrice"),
    "minions.adapters.models.scripted": ("ScriptedModel",),
    "minions.adapters.stores.postgres_journal": ("PostgresJournal",),
    "minions.adapters.stores.postgres_step_cache": ("PostgresStepCache",),
    "minions.adapters.stores.sqlite_journal": ("SqliteJournal",),
    "minions.adapters.stores.sqlite_step_cache": ("SqliteStepCache",),
    "minions.adapters.stores.memory_step_cache": ("MemoryStepCache",),
    "minions.adapters.models.structured_output": ("InstructorParser",),
    "minions.contracts.calls": (
        "ChatModel",
        "DeltaSink",
        "ModelCall",
        "ModelCallResponse",
        "ModelFailure",
        "OutputInstructions",
        "Prompt",
        "ToolCall",
        "ToolCallResponse",
        "ToolFailure",
    ),
    "minions.contracts.completion": (
        "CompletionCriteria",
        "CompletionLink",
        "StepCompletionChain",
    ),
    "minions.contracts.verdicts": ("Completion", "CompletionMode"),
    "minions.contracts.call_executors": ("ModelCallExecutor", "ToolCallExecutor"),
    "minions.adapters.models.script_items": ("tool_request",),
    "minions.contracts.context": ("RunContext",),
    "minions.contracts.decisions": (
        "ApprovalRequest",
        "Decider",
        "Question",
        "NoAnswer",
        "Verdict",
    ),
    "minions.contracts.errors": ("MinionsError", "RecipeError", "ToolError"),
    "minions.contracts.executions": (
        "AgentExecutionError",
        "AgentResult",
        "RunStatus",
        "StepExecution",
        "StepStatus",
    ),
    "minions.contracts.json_values": ("JsonValue",),
    "minions.contracts.messages": (
        "Message",
        "MessageBundle",
        "MessageRole",
        "ToolCallRequest",
    ),
    "minions.contracts.retry": ("RetryConfig",),
    "minions.contracts.runtime": ("PriceBook",),
    "minions.contracts.secrets": ("SecretRef",),
    "minions.contracts.step_cache": ("CachedStep", "StepCache"),
    "minions.contracts.steps": ("DefaultStep", "PythonStep", "Step", "StepScope"),
    "minions.contracts.tools": ("Tool", "ToolScope", "ToolSpec"),
    "minions.engine.run.agent_executor": ("AgentExecutor",),
    "minions.engine.run.questions": ("analyze_data", "extract_params"),
    "minions.engine.compile.completion": ("DefaultStepCompletionChain",),
    "minions.engine.context.agent_context": ("Agent", "AgentContext"),
    "minions.engine.compile.extensions": ("Extensions",),
    "minions.engine.compile.graph": ("DefaultStepGraph",),
    "minions.engine.history.memory": ("ConversationMemory",),
    "minions.engine.calls.model_calls": ("ModelCallExecutors",),
    "minions.engine.compile.selection": ("RunPart",),
    "minions.engine.services.services": ("Services", "SystemClock"),
    "minions.engine.step.executor": ("StepExecutor",),
    "minions.engine.step.step_manager": ("StepManager",),
    "minions.engine.calls.tool_calls": ("tool_call_executors",),
    "minions.interfaces.library": ("run",),
    "minions.recipe.model": ("AgentRecipe", "InputSpec", "ModelConfig", "Permissions"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'minions' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next look finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
