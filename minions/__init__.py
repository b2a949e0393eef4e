"""Minions: reliable, cheap, typed steps for LLM agents.

What most applications need is here; the rest is in `minions.guide`, `sessions`, `events`,
`decisions`, `batches`, `caching`, `mcp`, `models`, `prices`, `recipes`, `sandboxes`, `services`,
`testing` and `server`.

Each name is imported when it is first used.
"""

from minions import _working_folder as _working_folder  # comes before every other import

# isort: split
from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.models.openai import OpenAIModel
    from minions.adapters.models.scripted import ScriptedModel
    from minions.adapters.stores.sqlite_journal import SqliteJournal
    from minions.adapters.tools.function_tool import tool
    from minions.app.application.application import Minions
    from minions.app.application.library import arun, astream, load, run
    from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, Prompt
    from minions.contracts.completion import CompletionCriteria, CompletionLink
    from minions.contracts.context import RunContext
    from minions.contracts.executions import (
        AgentExecutionError,
        AgentResult,
        Completion,
        CompletionMode,
        RunStatus,
        StepExecution,
        StepStatus,
    )
    from minions.contracts.instructions import OutputInstructions
    from minions.contracts.messages import Message, MessageBundle, MessageRole
    from minions.contracts.run_events import RunEvent
    from minions.contracts.secrets import SecretRef
    from minions.contracts.steps import DefaultStep, PythonStep, Step, StepScope
    from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
    from minions.data.errors import MinionsError, RecipeError, ToolError, UsageError
    from minions.engine.compile.extensions import Extensions
    from minions.engine.compile.function_steps import step
    from minions.engine.run.agent_executor import AgentExecutor
    from minions.engine.services.run_services import Services
    from minions.engine.sessions.runner import ChatAgent, StepRunner
    from minions.engine.sessions.store import StepRepository
    from minions.recipe.model import AgentRecipe, Permissions

__version__ = "0.2.0"

__all__ = [
    "AgentExecutionError",
    "AgentExecutor",
    "AgentRecipe",
    "AgentResult",
    "ChatAgent",
    "ChatModel",
    "Completion",
    "CompletionCriteria",
    "CompletionLink",
    "CompletionMode",
    "DefaultStep",
    "Effect",
    "Extensions",
    "Message",
    "MessageBundle",
    "MessageRole",
    "Minions",
    "MinionsError",
    "ModelCallResponse",
    "ModelFailure",
    "OpenAIModel",
    "OutputInstructions",
    "Permissions",
    "Prompt",
    "PythonStep",
    "RecipeError",
    "RunContext",
    "RunEvent",
    "RunStatus",
    "ScriptedModel",
    "SecretRef",
    "Services",
    "SqliteJournal",
    "Step",
    "StepExecution",
    "StepRepository",
    "StepRunner",
    "StepScope",
    "StepStatus",
    "Tool",
    "ToolError",
    "ToolScope",
    "ToolSpec",
    "UsageError",
    "arun",
    "astream",
    "load",
    "run",
    "step",
    "tool",
]

_HOMES: Final = {
    "minions.adapters.models.openai": ("OpenAIModel",),
    "minions.adapters.models.scripted": ("ScriptedModel",),
    "minions.adapters.stores.sqlite_journal": ("SqliteJournal",),
    "minions.adapters.tools.function_tool": ("tool",),
    "minions.contracts.calls": (
        "ChatModel",
        "ModelCallResponse",
        "ModelFailure",
        "OutputInstructions",
        "Prompt",
    ),
    "minions.contracts.completion": (
        "CompletionCriteria",
        "CompletionLink",
    ),
    "minions.contracts.context": ("RunContext",),
    "minions.data.errors": (
        "MinionsError",
        "RecipeError",
        "ToolError",
        "UsageError",
    ),
    "minions.contracts.run_events": ("RunEvent",),
    "minions.contracts.executions": (
        "AgentExecutionError",
        "AgentResult",
        "Completion",
        "CompletionMode",
        "RunStatus",
        "StepExecution",
        "StepStatus",
    ),
    "minions.contracts.messages": (
        "Message",
        "MessageBundle",
        "MessageRole",
    ),
    "minions.contracts.secrets": ("SecretRef",),
    "minions.contracts.steps": (
        "DefaultStep",
        "PythonStep",
        "Step",
        "StepScope",
    ),
    "minions.contracts.tools": (
        "Effect",
        "Tool",
        "ToolScope",
        "ToolSpec",
    ),
    "minions.engine.compile.extensions": ("Extensions",),
    "minions.engine.compile.function_steps": ("step",),
    "minions.engine.run.agent_executor": ("AgentExecutor",),
    "minions.engine.services.run_services": ("Services",),
    "minions.engine.sessions.runner": (
        "ChatAgent",
        "StepRunner",
    ),
    "minions.engine.sessions.store": ("StepRepository",),
    "minions.app.application.application": ("Minions",),
    "minions.app.application.library": (
        "arun",
        "astream",
        "load",
        "run",
    ),
    "minions.recipe.model": (
        "AgentRecipe",
        "Permissions",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
