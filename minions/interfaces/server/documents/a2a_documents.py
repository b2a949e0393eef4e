"""What callers of A2A send and what a server says of itself: requests, messages, cards.

Source: A2A 1.0, its binding to JSON-RPC. A name that the protocol does not have is passed over, as
it demands, and the answer names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, Literal

from attrs import evolve, field, frozen

from minions import __version__
from minions.contracts.executions import RunState
from minions.data.json_values import JsonValue
from minions.interfaces.http.http_answers import RefusedError, RpcId
from minions.interfaces.server.documents.openai_documents import text_input
from minions.interfaces.server.documents.run_documents import DecisionRequest
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    JsonObject,
    text_schema,
    wrong,
)
from minions.recipe.model import AgentRecipe

VERSION: Final = "1.0"
"""The version of the protocol."""
_VERSION: Final = re.compile(r"1(\.[0-9]{1,9})*")
TEXT: Final = "text/plain"
JSON: Final = "application/json"


@frozen(kw_only=True)
class RpcRequest:
    """A request of JSON-RPC 2.0."""

    jsonrpc: Literal["2.0"]
    method: str = field(metadata=text_schema(100))
    """`SendMessage`, `SendStreamingMessage`, `GetTask`, `ListTasks`, `CancelTask`,
    `SubscribeToTask` or `GetExtendedAgentCard`."""
    id: RpcId = field(
        default=None,
        metadata={"schema": {"type": ["string", "number", "null"]}},
    )
    """The answer has it, too."""
    params: JsonObject = field(factory=dict)
    """As A2A has them for the method."""


@frozen(kw_only=True)
class RpcAnswer:
    """An answer of JSON-RPC 2.0: `result` or `error`."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: RpcId = field(
        default=None,
        metadata={"schema": {"type": ["string", "number", "null"]}},
    )
    result: JsonValue = None
    error: JsonObject | None = None
    """`code`, `message`, and `data`, whose `metadata` has the code that commands print."""


def check_version(version: str | None) -> None:
    """Refuse a caller that speaks another version; who names none speaks 0.3.

    Raises:
        RefusedError: `unsupported-protocol`.
    """
    if version is None or not _VERSION.fullmatch(version.strip()):
        asked = f"'{version[:40]}'" if version is not None else "0.3, which no A2A-Version means,"
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "unsupported-protocol",
            f"A2A {asked} is not spoken here. Send the header 'A2A-Version: {VERSION}'.",
        )


class Fields:
    """The fields of an object of a request, each read once; notes what of it is not read."""

    def __init__(self, value: JsonValue, where: str, passed_over: list[str]) -> None:
        """Read an object.

        Args:
            where: Its place, as errors and the answer name it.
            passed_over: Gets the places of what has no effect.
        Raises:
            UsageError: `bad-body`; it is no object.
        """
        if not isinstance(value, Mapping):
            raise wrong(where, "is to be an object.")
        self.where = where
        self._passed_over = passed_over
        # As JSON of protocol buffers is read: either spelling, and null is no value.
        self._left = {_camel(name): each for name, each in value.items() if each is not None}

    def take(self, name: str) -> JsonValue:
        """The value of a field; None: it is missing."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """The text of a field; None: it is missing or empty.

        Raises:
            UsageError: `bad-body`; it is no text.
        """
        value = self.take(name)
        if not isinstance(value, str | None):
            raise wrong(f"{self.where}.{name}", "is to be a text.")
        return value or None

    def needed_text(self, name: str) -> str:
        """The text of a field.

        Raises:
            UsageError: `bad-body`; it is missing, empty or no text.
        """
        text = self.text(name)
        if text is None:
            raise wrong(f"{self.where}.{name}", "is to be a text that is not empty.")
        return text

    def number(self, name: str, least: int, most: int) -> int | None:
        """The whole number of a field; None: it is missing.

        Raises:
            UsageError: `bad-body`; it is none, or not within these bounds.
        """
        value = self.take(name)
        if value is None:
            return None
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(whole, int) or isinstance(whole, bool) or not least <= whole <= most:
            raise wrong(f"{self.where}.{name}", f"is to be a whole number, {least} to {most}.")
        return whole

    def flag(self, name: str) -> bool:
        """Whether a field is true; it is not where it is missing.

        Raises:
            UsageError: `bad-body`; it is neither true nor false.
        """
        value = self.take(name)
        if not isinstance(value, bool | None):
            raise wrong(f"{self.where}.{name}", "is to be true or false.")
        return bool(value)

    def array(self, name: str) -> Sequence[JsonValue]:
        """The elements of a field; none where it is missing.

        Raises:
            UsageError: `bad-body`; it is no array.
        """
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise wrong(f"{self.where}.{name}", "is to be an array.")
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an object in a field; none where it is missing.

        Raises:
            UsageError: `bad-body`; it is no object.
        """
        value = self.take(name)
        where = f"{self.where}.{name}"
        return Fields({} if value is None else value, where, self._passed_over)

    def close(self) -> None:
        """Note what was not read."""
        unread = (name for name, value in self._left.items() if value not in _NOTHING)
        self._passed_over += [f"{self.where}.{name[:80]}" for name in unread]


_NOTHING: Final[tuple[JsonValue, ...]] = ("", 0, False, [], {})


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in rest)


@frozen(kw_only=True)
class SentMessage:
    """A message to the agent, and how it is to be answered."""

    message_id: str
    context_id: str | None
    task_id: str | None
    """The task that it is about; None: it begins one."""
    skill: str | None
    """The recipe that its metadata names; None: none."""
    text: str | None
    """Its text parts, one below the other; None: it has none."""
    data: tuple[JsonObject, ...]
    """Its data parts."""
    history_length: int
    is_immediate: bool
    """Whether the answer does not wait for the end of the task."""
    passed_over: tuple[str, ...]
    """The places of what has no effect."""


MOST_HISTORY: Final = 1_000


def read_send(params: JsonObject) -> SentMessage:
    """What `SendMessage` and `SendStreamingMessage` are sent.

    Raises:
        UsageError: `bad-body`, or `unsupported-parameter`.
        RefusedError: `unsupported-content`, `no-push-notifications`.
    """
    passed_over: list[str] = []
    given = Fields(params, "params", passed_over)
    refuse_tenant(given)
    message, configuration = given.inner("message"), given.inner("configuration")
    given.close()
    role = message.take("role")
    if role not in ("ROLE_USER", 1):
        raise wrong("params.message.role", "is to be 'ROLE_USER'.")
    metadata = message.inner("metadata")
    skill = metadata.text("skill")
    metadata.close()
    texts, data = _read_parts(message.array("parts"), passed_over)
    modes = configuration.array("acceptedOutputModes")
    if modes and not any(each in _MODES for each in modes):
        raise unsupported_content(
            "params.configuration.acceptedOutputModes", f"Recipes give {TEXT} and {JSON}."
        )
    if configuration.take("taskPushNotificationConfig"):
        raise no_push_notifications()
    sent = SentMessage(
        message_id=message.needed_text("messageId"),
        context_id=message.text("contextId"),
        task_id=message.text("taskId"),
        skill=skill,
        text="\n".join(texts) if texts else None,
        data=tuple(data),
        history_length=configuration.number("historyLength", 0, MOST_HISTORY) or 0,
        is_immediate=configuration.flag("returnImmediately"),
        passed_over=(),
    )
    message.close()
    configuration.close()
    return evolve(sent, passed_over=tuple(passed_over))


_MODES: Final = (TEXT, JSON, "text/*", "application/*", "*/*", "text", "json")


def _read_parts(
    parts: Sequence[JsonValue], passed_over: list[str]
) -> tuple[list[str], list[JsonObject]]:
    texts: list[str] = []
    data: list[JsonObject] = []
    if not parts:
        raise wrong("params.message.parts", "is to hold at least one part.")
    for at, each in enumerate(parts):
        part = Fields(each, f"params.message.parts[{at}]", passed_over)
        kinds = {name: part.take(name) for name in ("text", "data", "raw", "url")}
        found = [name for name, value in kinds.items() if value is not None]
        if len(found) != 1:
            raise wrong(part.where, "is to have one of 'text', 'data', 'raw' and 'url'.")
        media_type = (part.text("mediaType") or "").partition(";")[0].strip().lower()
        match found[0], kinds[found[0]]:
            case "text", str(text) if media_type in ("", JSON) or media_type.startswith("text/"):
                texts.append(text)
            case "data", value if media_type in ("", JSON):
                if not isinstance(value, Mapping):
                    raise wrong(f"{part.where}.data", "is to be an object.")
                data.append(value)
            case "text", value if not isinstance(value, str):
                raise wrong(f"{part.where}.text", "is to be a text.")
            case "text" | "data", _:
                raise unsupported_content(
                    f"{part.where}.mediaType", f"Recipes take {TEXT} and {JSON}."
                )
            case kind, _:
                raise unsupported_content(
                    f"{part.where}.{kind}", "Recipes take text parts and data parts, no files."
                )
        part.close()
    return texts, data


def refuse_tenant(given: Fields) -> None:
    """Refuse a request to a tenant.

    Raises:
        UsageError: `bad-body`.
    """
    if given.text("tenant") is not None:
        raise wrong("params.tenant", "is to be left out: no interface of the card has one.")


def unsupported_content(where: str, why: str) -> RefusedError:
    """The refusal of content that recipes do not take or give."""
    return RefusedError(
        HTTPStatus.BAD_REQUEST, "unsupported-content", f"'{where}' is not supported here. {why}"
    )


def no_push_notifications() -> RefusedError:
    """The refusal to call a client back."""
    return RefusedError(
        HTTPStatus.BAD_REQUEST,
        "no-push-notifications",
        "This server sends no push notifications. Follow a task with SubscribeToTask, or ask with "
        "GetTask.",
    )


@frozen(kw_only=True)
class TaskDecision:
    """A data part that decides what a task waits for."""

    id: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Which decision of the status message; None: the only one."""
    decision: Literal["approve", "reject", "answer", "redo", "done", "fail"]
    digest: str | None = field(default=None, metadata=MAYBE_TEXT)
    """As the status message has it; needed to approve or reject a call."""
    value: JsonValue = None
    """The answer; for a call that is `done` its result."""
    arguments: JsonObject | None = None
    """Edited arguments of a call that is approved; None: those shown."""
    reason: str | None = field(default=None, metadata=text_schema(10_000, "null"))

    def to_request(self) -> DecisionRequest:
        """The decision as the other API has it."""
        return DecisionRequest(
            decision=self.decision,
            digest=self.digest,
            value=self.value,
            arguments=self.arguments,
            reason=self.reason,
        )


# --- tasks ----------------------------------------------------------------------------------------


TASK_STATES: Final[Mapping[str, str]] = {
    RunState.QUEUED: "TASK_STATE_SUBMITTED",
    RunState.RUNNING: "TASK_STATE_WORKING",
    RunState.INTERRUPTED: "TASK_STATE_WORKING",
    RunState.COMPLETED: "TASK_STATE_COMPLETED",
    RunState.PARTIAL: "TASK_STATE_COMPLETED",
    RunState.FAILED: "TASK_STATE_FAILED",
    RunState.LIMIT_REACHED: "TASK_STATE_FAILED",
    RunState.UNREADABLE: "TASK_STATE_FAILED",
    RunState.NEEDS_DECISION: "TASK_STATE_INPUT_REQUIRED",
    RunState.CANCELLED: "TASK_STATE_CANCELED",
    RunState.REJECTED: "TASK_STATE_REJECTED",
}
"""The state of a task, by the state of its run: an interrupted run is resumed by the server."""
_OTHER_STATES: Final = ("TASK_STATE_AUTH_REQUIRED",)


def run_states_of(state: str | None) -> frozenset[str] | None:
    """The states of runs whose tasks are in that state; None: all.

    Raises:
        UsageError: `bad-body`; there is no such state.
    """
    if state in (None, "TASK_STATE_UNSPECIFIED"):
        return None
    found = frozenset(str(each) for each, named in TASK_STATES.items() if named == state)
    if not found and state not in _OTHER_STATES:
        known = ", ".join(sorted({*TASK_STATES.values(), *_OTHER_STATES}))
        raise wrong("params.status", f"is to be one of {known}.")
    return found


# --- cards ----------------------------------------------------------------------------------------


def card_of(address: str, recipes: Sequence[AgentRecipe] | None) -> dict[str, JsonValue]:
    """The card of the server.

    Args:
        address: Of the server, without a slash at its end.
        recipes: Those that it serves; None: they are not told to whoever asks.
    """
    skills: list[JsonValue] = [_skill_of(each) for each in recipes or ()]
    if recipes is None:
        about = "Runs the recipes of this server. The extended card, which needs a token, has them."
        skills = [{"id": "recipes", "name": "Recipes", "description": about, "tags": ["recipes"]}]
    return _card(
        "minions",
        'Runs recipes. A message names one in its metadata: {"skill": ID}.',
        __version__,
        f"{address}/a2a",
        skills,
    )


def card_of_recipe(address: str, recipe: AgentRecipe, name: str) -> dict[str, JsonValue]:
    """The card of one recipe as an agent of its own.

    Args:
        address: As of `card_of`.
        name: The name under which it is served.
    """
    about = recipe.description or f"Runs the recipe '{recipe.id}'."
    version = recipe.version or __version__
    return _card(name, about, str(version), f"{address}/a2a/{name}", [_skill_of(recipe)])


def _card(
    name: str, about: str, version: str, address: str, skills: list[JsonValue]
) -> dict[str, JsonValue]:
    interface: JsonValue = {
        "url": address,
        "protocolBinding": "JSONRPC",
        "protocolVersion": VERSION,
    }
    token: JsonValue = {"scheme": "Bearer", "description": "A token of this server."}
    return {
        "name": name,
        "description": about,
        "version": version,
        "supportedInterfaces": [interface],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": True,
        },
        "securitySchemes": {"token": {"httpAuthSecurityScheme": token}},
        "securityRequirements": [{"schemes": {"token": {"list": []}}}],
        "defaultInputModes": [TEXT, JSON],
        "defaultOutputModes": [TEXT, JSON],
        "skills": skills,
    }


def _skill_of(recipe: AgentRecipe) -> dict[str, JsonValue]:
    taken = text_input(recipe)
    about = recipe.description or f"Runs the recipe '{recipe.id}'."
    others = [name for name in recipe.inputs if name != taken]
    if taken is not None:
        about += f" A text is its input '{taken}'."
    if others:
        about += f" A data part gives inputs by name: {', '.join(others)}."
    return {
        "id": recipe.id,
        "name": recipe.id,
        "description": about,
        "tags": ["recipe"],
        "inputModes": [TEXT, JSON] if taken is not None else [JSON],
    }


def as_inputs(sent: SentMessage, recipe: AgentRecipe) -> Mapping[str, JsonValue]:
    """The inputs that a message gives.

    Raises:
        UsageError: `bad-body`; one is given twice, or the recipe takes no text.
    """
    inputs: dict[str, JsonValue] = {}
    for part in sent.data:
        for name, value in part.items():
            if name in inputs:
                raise wrong("params.message.parts", f"give the input '{name[:80]}' twice.")
            inputs[name] = value
    if sent.text is None:
        return inputs
    taken = text_input(recipe)
    if taken is None:
        names = ", ".join(recipe.inputs) or "none"
        raise wrong(
            "params.message.parts",
            f"hold a text, which the recipe '{recipe.id}' does not take. Send a data part with "
            f"its inputs by name: {names}.",
        )
    if taken in inputs:
        raise wrong("params.message.parts", f"give the input '{taken}' twice.")
    return {**inputs, taken: sent.text}
