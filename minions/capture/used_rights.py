"""Tools, permissions and limits of a captured recipe: no more than the recorded runs used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.capture.captured_program import JudgedNode
from minions.capture.traces import Trace
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue

_LONGER: Final = 10
"""A list for whose items a model is asked may be so many times as long as the longest one seen."""
_LEAST_ITEMS: Final = 50


def choose_toolsets(
    declared: JsonValue, used: Sequence[str], toolsets: Mapping[str, str]
) -> list[JsonValue]:
    """Those of the agent's recipe that have a tool that is used.

    Args:
        declared: Its `tools`.
        used: Full names of tools.
        toolsets: By full name of a tool, the name of its toolset.
    """
    names = _names_of(used, toolsets)
    kept: list[JsonValue] = []
    for each in declared if isinstance(declared, list | tuple) else ():
        if isinstance(each, str) and each in names:
            kept.append(each)
        elif isinstance(each, Mapping) and any(
            name in names
            or (name == "mcp" and _may_be_of(options, used))
            or (isinstance(options, Mapping) and options.get("as") in names)
            for name, options in each.items()
        ):
            kept.append(dict(each))
    return kept


def _names_of(used: Sequence[str], toolsets: Mapping[str, str]) -> list[str]:
    """The tools, and the toolsets that have them."""
    return [*used, *(toolsets[each] for each in used if each in toolsets)]


def _may_be_of(server: JsonValue, tools: Sequence[str]) -> bool:
    """Whether a tool may be of an MCP server as `tools:` names it."""
    given = server if isinstance(server, Mapping) else {"server": server}
    prefix = given.get("as") or given.get("server")
    return prefix is None or any(each.startswith(f"{prefix}__") for each in tools)


def choose_permissions(
    declared: JsonValue,
    used: Sequence[str],
    specs: Mapping[str, ToolSpec],
    toolsets: Mapping[str, str],
) -> dict[str, JsonValue]:
    """The rights that are used, with what the agent's recipe has of approvals and policies.

    Args:
        declared: Its `permissions`.
        used: Full names of tools.
        specs: Tools by full name.
        toolsets: By full name of a tool, the name of its toolset.
    """
    given = declared if isinstance(declared, Mapping) else {}
    names = _names_of(used, toolsets)
    kept: dict[str, JsonValue] = {
        f"allow_{each}": True
        for each in used
        if (spec := specs.get(each)) is not None and spec.is_write
    }
    approvals = given.get("requires_approval")
    rules: list[JsonValue] = []
    for rule in approvals if isinstance(approvals, list | tuple) else ():
        named = rule.get("tool") if isinstance(rule, Mapping) else rule
        several = named if isinstance(named, list | tuple) else [named]
        if any(each in names for each in several):
            rules.append(rule)
    if rules:
        kept["requires_approval"] = rules
    policies = given.get("policies")
    if isinstance(policies, Mapping):
        own = {name: rule for name, rule in policies.items() if name in used}
        if own:
            kept["policies"] = own
    wanted = ("untrusted", "approval_timeout_s", "remind_every") if rules else ("untrusted",)
    kept.update({key: given[key] for key in wanted if key in given})
    return kept


def choose_limits(
    declared: JsonValue,
    judged: Sequence[JudgedNode],
    traces: Sequence[Trace],
    *,
    has_agent: bool,
) -> dict[str, JsonValue]:
    """The limits of the agent's recipe that still mean the same, and bounds of what was used.

    Args:
        declared: Its `limits`.
        judged: The model steps.
        traces: The recorded runs.
        has_agent: Whether the agent does what is left after a surprise.
    """
    given = declared if isinstance(declared, Mapping) else {}
    kept = {
        key: value
        for key, value in given.items()
        if key in ("max_cost_usd", "timeout_s", "tool_timeout_s", "max_tool_result_bytes")
    }
    if not (judged or has_agent):
        return kept
    tokens = max(each.usage.total_tokens for each in traces)
    calls = 3 * sum(each.loop is None for each in judged)
    for each in judged:
        if each.loop is not None:  # lists may be longer than those that were seen
            calls += max(_LEAST_ITEMS, _LONGER * max(map(len, each.answers)))
            tokens *= _LONGER
    if has_agent:
        calls += max(10, 2 * max(each.model_calls for each in traces))
        tokens *= 2
    kept["max_model_calls"] = calls
    if tokens:
        kept["max_tokens"] = max(2_000, tokens)
    return kept
