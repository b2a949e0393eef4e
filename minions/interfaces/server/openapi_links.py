"""Links between operations for the OpenAPI document: which value of an answer names what follows.

Generators of clients and of tests read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.data.json_values import JsonValue

__all__ = ["TAGS", "links_of_operation", "tag_of"]

TAGS: Final[Mapping[str, str]] = {
    "runs": "Runs of recipes: start, read, follow, cancel, resume, retry, roll back.",
    "approvals": "What runs wait for, and the decisions.",
    "recipes": "Stored recipes: inputs, steps, pictures.",
    "agents": "The same recipes by what they take: a message or inputs.",
    "sessions": "Conversations, their messages and turns.",
    "system": "The server itself.",
}
"""The groups of operations, each with its description."""

_OF_RUN: Final = (
    "getRun",
    "followRun",
    "cancelRun",
    "resumeRun",
    "retryRun",
    "rollBackFiles",
    "drawRun",
)
_OF_SESSION: Final = (
    "getSession",
    "sendMessage",
    "listSteps",
    "getContext",
    "forkSession",
    "retrySession",
    "resumeSession",
    "deleteSteps",
    "forgetSession",
)


def tag_of(path: str) -> str:
    """The tag of an operation: the first part of its path below `/api/v1`."""
    part = path.removeprefix("/api/v1/").partition("/")[0]
    return part if part in TAGS else "system"


def _links(
    names: Sequence[str], parameter: str, pointer: str, more: Mapping[str, str] | None = None
) -> dict[str, JsonValue]:
    parameters: dict[str, JsonValue] = {parameter: f"$response.body#/{pointer}", **(more or {})}
    return {name: {"operationId": name, "parameters": dict(parameters)} for name in names}


_ACCEPTED: Final = {**_links(_OF_RUN, "run_id", "run_id")} | _links(
    ("getSession",), "session_id", "session_id"
)
_RECIPE: Final = ("getRecipe", "drawRecipe", "getInputsSchema")
_LINKS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "startRun": _ACCEPTED,
    "runAgent": _ACCEPTED,
    "resumeRun": _ACCEPTED,
    "retryRun": _ACCEPTED,
    "decide": _ACCEPTED,
    "cancelRun": _links(("getRun", "resumeRun", "followRun"), "run_id", "run_id"),
    "listRuns": _links(_OF_RUN, "run_id", "runs/0/run_id"),
    "getRun": _links(("decide",), "approval_id", "waiting/0/id")
    | _links(("getSession",), "session_id", "session_id"),
    "listApprovals": _links(("decide",), "approval_id", "approvals/0/id")
    | _links(("getRun",), "run_id", "approvals/0/run_id"),
    "listRecipes": _links(_RECIPE, "recipe_id", "recipes/0/id"),
    "listAgents": _links(("runAgent",), "name", "agents/0/name"),
    "createSession": _links(_OF_SESSION, "session_id", "id"),
    "listSessions": _links(_OF_SESSION, "session_id", "sessions/0/id"),
    "forkSession": _links(("getSession", "sendMessage"), "session_id", "new_session_id"),
    "listSteps": _links(
        ("getStep",), "session_id", "session_id", {"sequence": "$response.body#/steps/0/sequence"}
    ),
}
"""By operation: the operations that continue with its answer."""


def links_of_operation(operation_id: str) -> Mapping[str, JsonValue]:
    """The links of an operation's successful answer."""
    return _LINKS.get(operation_id, {})
