"""Test doubles for applications: model, endpoints, faults, crashes, time, ids, suites, fixtures.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.models.script_items import Answer, tool_request
    from minions.adapters.models.scripted import ScriptedModel
    from minions.testing.batch_endpoint import BatchEndpoint, BatchFate, BatchFaults, BatchForm
    from minions.testing.cassettes import CassetteModels
    from minions.testing.chaos_endpoint import ChaosEndpoint, Served
    from minions.testing.crash_findings import CrashFinding, CrashReport, FindingKind
    from minions.testing.crash_stories import CrashStory
    from minions.testing.endpoint import ChatEndpoint
    from minions.testing.fault_plans import FaultPlan, ServerFault
    from minions.testing.prefix_endpoint import PrefixEndpoint, PrefixFaults
    from minions.testing.recipe_runner import MakeScriptedModel, RecipeCrasher, RecipeRunner
    from minions.testing.unconfined_sandbox import UnconfinedSandbox
    from minions.testing.virtual_time import FakeClock, HangError, VirtualTime, counting_ids


__all__ = [
    "Answer",
    "BatchEndpoint",
    "BatchFate",
    "BatchFaults",
    "BatchForm",
    "CassetteModels",
    "ChaosEndpoint",
    "ChatEndpoint",
    "CrashFinding",
    "CrashReport",
    "CrashStory",
    "FakeClock",
    "FaultPlan",
    "FindingKind",
    "HangError",
    "MakeScriptedModel",
    "PrefixEndpoint",
    "PrefixFaults",
    "RecipeCrasher",
    "RecipeRunner",
    "ScriptedModel",
    "Served",
    "ServerFault",
    "UnconfinedSandbox",
    "VirtualTime",
    "counting_ids",
    "tool_request",
]

_HOMES: Final = {
    "minions.adapters.models.script_items": (
        "Answer",
        "tool_request",
    ),
    "minions.adapters.models.scripted": ("ScriptedModel",),
    "minions.testing.batch_endpoint": (
        "BatchEndpoint",
        "BatchFate",
        "BatchFaults",
        "BatchForm",
    ),
    "minions.testing.cassettes": ("CassetteModels",),
    "minions.testing.chaos_endpoint": (
        "ChaosEndpoint",
        "Served",
    ),
    "minions.testing.crash_findings": (
        "CrashFinding",
        "CrashReport",
        "FindingKind",
    ),
    "minions.testing.crash_stories": ("CrashStory",),
    "minions.testing.virtual_time": (
        "FakeClock",
        "HangError",
        "VirtualTime",
        "counting_ids",
    ),
    "minions.testing.endpoint": ("ChatEndpoint",),
    "minions.testing.unconfined_sandbox": ("UnconfinedSandbox",),
    "minions.testing.fault_plans": (
        "ServerFault",
        "FaultPlan",
    ),
    "minions.testing.prefix_endpoint": (
        "PrefixEndpoint",
        "PrefixFaults",
    ),
    "minions.testing.recipe_runner": (
        "MakeScriptedModel",
        "RecipeCrasher",
        "RecipeRunner",
    ),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # type checkers must still report misspelled names
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
