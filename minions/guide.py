"""The parts of the Java guide, for running single steps by hand, and the executor of agent steps.

The names of the guide are those of its classes, so that it can be read beside the code.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.app.application.agent_sandbox import AgentSandbox, AgentStepExecutor
    from minions.app.application.step_executor_agent import (
        ExecutionResult,
        PlanGenerator,
        StepExecutorAgent,
        run_step_executor,
    )
    from minions.contracts.agent_errors import (
        AgentNotFoundError,
        AgentStepError,
        SecurityError,
        StepResult,
        ValidationError,
    )
    from minions.contracts.calls import (
        CallOrigin,
        CallStatus,
        Confidence,
        DeltaSink,
        ModelCall,
        ModelCapabilities,
        ModelDelta,
        ModelOptions,
        StepCompletionInstruction,
        ToolCall,
        ToolCallResponse,
        ToolFailure,
    )
    from minions.contracts.completion import StepCompletionChain, StepCompletionLink
    from minions.contracts.context import (
        Limits,
        ModelCallExecutor,
        ModelCallExecutorFactory,
        ToolCallExecutor,
        ToolCallExecutorFactory,
    )
    from minions.contracts.instructions import OutputMode, OutputRequest
    from minions.contracts.messages import TokenUsage, ToolCallRequest
    from minions.contracts.plans import FileUse, Plan, PlanStep, PlanStepType
    from minions.contracts.session_views import MemorySnapshot, ModelMemory
    from minions.contracts.steps import StepGraph, ToolSearch
    from minions.contracts.tools import Reads, Toolbox, Toolset
    from minions.data.errors import FailureInfo, GraphError, MetadataError, StepFailedError
    from minions.engine.agents.agent_tool_calls import validate_against_schema
    from minions.engine.agents.agents import StepAgent
    from minions.engine.agents.parallel_steps import (
        ExecutionStep,
        JoinPolicy,
        ParallelResults,
        StepType,
    )
    from minions.engine.agents.registry import AgentRegistry
    from minions.engine.agents.response_validator import ResponseValidator, ValidationResult
    from minions.engine.agents.step_hooks import ExecutionMetrics, LRUCache
    from minions.engine.calls.model_executors import ModelCallExecutors
    from minions.engine.compile.completion_links import DefaultStepCompletionChain
    from minions.engine.compile.selection import DefaultStepGraph
    from minions.engine.context.agent_context import Agent, AgentContext
    from minions.engine.context.agent_memory import AgentMemory, AgentMessage
    from minions.engine.context.scope import RunScope
    from minions.engine.history.memory import ConversationMemory
    from minions.engine.run.agent_run import AgentRun
    from minions.engine.run.run_factory import tool_call_executors
    from minions.engine.step.executor import StepExecutor
    from minions.engine.step.next_step import (
        DecisionToolLink,
        FirstInOrderLink,
        InstructedStepLink,
        NextStepChain,
        NextStepLink,
        SingleNextStepLink,
        StepManager,
        Transition,
    )


__all__ = [
    "Agent",
    "AgentContext",
    "AgentMemory",
    "AgentMessage",
    "AgentNotFoundError",
    "AgentRegistry",
    "AgentRun",
    "AgentSandbox",
    "AgentStepError",
    "AgentStepExecutor",
    "CallOrigin",
    "CallStatus",
    "Confidence",
    "ConversationMemory",
    "DecisionToolLink",
    "DefaultStepCompletionChain",
    "DefaultStepGraph",
    "DeltaSink",
    "ExecutionMetrics",
    "ExecutionResult",
    "ExecutionStep",
    "FailureInfo",
    "FileUse",
    "FirstInOrderLink",
    "GraphError",
    "InstructedStepLink",
    "JoinPolicy",
    "LRUCache",
    "Limits",
    "MemorySnapshot",
    "MetadataError",
    "ModelCall",
    "ModelCallExecutor",
    "ModelCallExecutorFactory",
    "ModelCallExecutors",
    "ModelCapabilities",
    "ModelDelta",
    "ModelMemory",
    "ModelOptions",
    "NextStepChain",
    "NextStepLink",
    "OutputMode",
    "OutputRequest",
    "ParallelResults",
    "Plan",
    "PlanGenerator",
    "PlanStep",
    "PlanStepType",
    "Reads",
    "ResponseValidator",
    "RunScope",
    "SecurityError",
    "SingleNextStepLink",
    "StepAgent",
    "StepCompletionChain",
    "StepCompletionInstruction",
    "StepCompletionLink",
    "StepExecutor",
    "StepExecutorAgent",
    "StepFailedError",
    "StepGraph",
    "StepManager",
    "StepResult",
    "StepType",
    "TokenUsage",
    "ToolCall",
    "ToolCallExecutor",
    "ToolCallExecutorFactory",
    "ToolCallRequest",
    "ToolCallResponse",
    "ToolFailure",
    "ToolSearch",
    "Toolbox",
    "Toolset",
    "Transition",
    "ValidationError",
    "ValidationResult",
    "run_step_executor",
    "tool_call_executors",
    "validate_against_schema",
]

_HOMES: Final = {
    "minions.contracts.agent_errors": (
        "AgentNotFoundError",
        "AgentStepError",
        "SecurityError",
        "StepResult",
        "ValidationError",
    ),
    "minions.engine.agents.agents": ("StepAgent",),
    "minions.app.application.agent_sandbox": ("AgentSandbox", "AgentStepExecutor"),
    "minions.app.application.step_executor_agent": (
        "ExecutionResult",
        "PlanGenerator",
        "StepExecutorAgent",
        "run_step_executor",
    ),
    "minions.engine.agents.registry": ("AgentRegistry",),
    "minions.engine.agents.response_validator": (
        "ResponseValidator",
        "ValidationResult",
    ),
    "minions.engine.agents.step_hooks": ("ExecutionMetrics", "LRUCache"),
    "minions.engine.agents.parallel_steps": (
        "ExecutionStep",
        "JoinPolicy",
        "ParallelResults",
        "StepType",
    ),
    "minions.engine.agents.agent_tool_calls": ("validate_against_schema",),
    "minions.engine.context.agent_memory": (
        "AgentMemory",
        "AgentMessage",
    ),
    "minions.contracts.calls": (
        "CallOrigin",
        "CallStatus",
        "Confidence",
        "DeltaSink",
        "ModelCall",
        "ModelCapabilities",
        "ModelDelta",
        "ModelOptions",
        "OutputMode",
        "OutputRequest",
        "StepCompletionInstruction",
        "ToolCall",
        "ToolCallResponse",
        "ToolFailure",
    ),
    "minions.contracts.completion": (
        "StepCompletionChain",
        "StepCompletionLink",
    ),
    "minions.contracts.context": (
        "Limits",
        "ModelCallExecutor",
        "ModelCallExecutorFactory",
        "ToolCallExecutor",
        "ToolCallExecutorFactory",
    ),
    "minions.data.errors": (
        "FailureInfo",
        "GraphError",
        "MetadataError",
        "StepFailedError",
    ),
    "minions.contracts.steps": ("StepGraph", "ToolSearch"),
    "minions.contracts.session_views": (
        "MemorySnapshot",
        "ModelMemory",
    ),
    "minions.contracts.messages": (
        "TokenUsage",
        "ToolCallRequest",
    ),
    "minions.contracts.plans": (
        "FileUse",
        "Plan",
        "PlanStep",
        "PlanStepType",
    ),
    "minions.contracts.tools": (
        "Reads",
        "Toolbox",
        "Toolset",
    ),
    "minions.engine.calls.model_executors": ("ModelCallExecutors",),
    "minions.engine.run.run_factory": ("tool_call_executors",),
    "minions.engine.compile.completion_links": ("DefaultStepCompletionChain",),
    "minions.engine.compile.selection": ("DefaultStepGraph",),
    "minions.engine.context.agent_context": (
        "Agent",
        "AgentContext",
    ),
    "minions.engine.context.scope": ("RunScope",),
    "minions.engine.history.memory": ("ConversationMemory",),
    "minions.engine.run.agent_run": ("AgentRun",),
    "minions.engine.step.executor": ("StepExecutor",),
    "minions.engine.step.next_step": (
        "DecisionToolLink",
        "FirstInOrderLink",
        "InstructedStepLink",
        "NextStepChain",
        "NextStepLink",
        "SingleNextStepLink",
        "StepManager",
        "Transition",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
