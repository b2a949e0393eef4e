"""Tools that a request brings, the calls of them that a run waits for, and the results of those.

They are a stranger's: what is read here has bounds, and no name that the recipe has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.contracts.journal.start_note import NO_CHOICE, CallerChoice, CallerTool
from minions.contracts.messages import Message, MessageRole
from minions.contracts.tool_search import FIND_TOOLS
from minions.data.errors import NotFoundError, UsageError
from minions.data.json_values import JsonValue, as_object, dumps
from minions.data.schema import check_schema
from minions.engine.compile.completion_links import FINAL_ANSWER
from minions.engine.history.memory import READ_RESULT
from minions.interfaces.server.documents.run_documents import id_of, run_of
from minions.interfaces.server.documents.shared_documents import unsupported, wrong
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import recipes_within
from minions.recipe.permissions import tool_specs

MOST_TOOLS: Final = 64
"""The most tools that a request brings."""
_LONGEST_DESCRIPTION: Final = 4_096
"""Characters of the description of one."""
_MOST_BYTES: Final = 65_536
"""Bytes of all of them, as JSON."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_RESERVED: Final = frozenset({FIND_TOOLS, FINAL_ANSWER, READ_RESULT})
REFUSED_TOOLS: Final = "A recipe calls the tools that it declares, and none of a caller's."
_PARTS: Final = frozenset({"name", "description", "parameters", "strict", "metadata"})


# --- tools ---------------------------------------------------------------------------------------


def read_tools(recipe: AgentRecipe, given: JsonValue, catalog: Catalog) -> tuple[CallerTool, ...]:
    """The tools that a request brings for a run of the recipe.

    Args:
        given: The parameter `tools`: functions in the form of chat completions, of responses or of
            AG-UI.
    Raises:
        UsageError: `unsupported-parameter`; no step of the recipe offers tools of callers, or they
            are other things than functions. `bad-body`; one is not of that form, is beyond the
            bounds, or has a name that is taken.
    """
    if given in (None, []):
        return ()
    if not recipe.offers_caller_tools:
        raise unsupported("tools", REFUSED_TOOLS)
    if not isinstance(given, list | tuple):
        raise wrong("tools", "is to be a list.")
    if len(given) > MOST_TOOLS:
        raise wrong("tools", f"has {len(given)} tools; at most {MOST_TOOLS} are taken.")
    if (size := len(dumps(list(given)).encode("utf-8", "surrogatepass"))) > _MOST_BYTES:
        raise wrong("tools", f"has {size} bytes of JSON; at most {_MOST_BYTES} are taken.")
    found = tuple(_read_tool(each, f"tools[{at}]") for at, each in enumerate(given))
    _check_names([each.name for each in found], recipe, catalog)
    return found


@frozen(kw_only=True)
class OfferedTools:
    """What a request lets the model call of the tools that it brings."""

    brought: tuple[CallerTool, ...] = ()
    """All of them; empty, too, where none may be called."""
    tools: tuple[CallerTool, ...] = ()
    """Those that may be called."""
    choice: CallerChoice = NO_CHOICE
    """What is wanted of calls of these."""


def read_choice(
    wanted: JsonValue, brought: tuple[CallerTool, ...], *, is_single: bool
) -> OfferedTools:
    """The tools that the model may call, and those one of which it has to call.

    Args:
        wanted: The parameter `tool_choice`: `auto`, `none`, `required`, or, in the form of chat
            completions or of responses, a function by its name or `allowed_tools`.
        brought: The tools of the request.
        is_single: Whether an answer has one call at most.
    Raises:
        UsageError: `unsupported-parameter`; the choice is of another form. `bad-body`; the request
            brings no such tool.
    """
    names = [each.name for each in brought]
    tools, must_call = brought, tuple[str, ...]()
    if wanted == "required":
        if not names:
            raise wrong("tool_choice", "is 'required', and the request brings no tools.")
        must_call = tuple(names)
    elif wanted not in (None, "auto", "none"):
        asked = as_object(wanted) if isinstance(wanted, Mapping) else {}
        if asked.get("type") == "allowed_tools":
            allowed, is_demanded = _read_allowed(asked, names)
            tools = tuple(each for each in brought if each.name in allowed)
            must_call = tuple(each.name for each in tools if is_demanded)
        else:
            must_call = (_chosen_name(asked, names, "tool_choice"),)
    if wanted == "none" or not tools:
        return OfferedTools()
    choice = CallerChoice(must_call=must_call, is_single=is_single)
    return OfferedTools(brought=brought, tools=tools, choice=choice)


def _read_allowed(
    asked: Mapping[str, JsonValue], names: Sequence[str]
) -> tuple[frozenset[str], bool]:
    """The names of the allowed tools, and whether one of them has to be called."""
    inner, where = asked.get("allowed_tools"), "tool_choice"
    if inner is not None:  # the form of chat completions
        asked, where = (
            as_object(inner) if isinstance(inner, Mapping) else {},
            f"{where}.allowed_tools",
        )
    mode, listed = asked.get("mode"), asked.get("tools")
    if mode not in ("auto", "required"):
        raise wrong(f"{where}.mode", "is to be 'auto' or 'required'.")
    if not isinstance(listed, list | tuple) or not 0 < len(listed) <= MOST_TOOLS:
        raise wrong(f"{where}.tools", f"is to be a list of 1 to {MOST_TOOLS} functions.")
    found = (as_object(each) if isinstance(each, Mapping) else {} for each in listed)
    named = (_chosen_name(each, names, f"{where}.tools[{at}]") for at, each in enumerate(found))
    return frozenset(named), mode == "required"


def _chosen_name(chosen: Mapping[str, JsonValue], names: Sequence[str], where: str) -> str:
    """The name of a function that is one of these."""
    inner = chosen.get("function", chosen)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if chosen.get("type") != "function" or not isinstance(name, str):
        raise unsupported(
            where,
            "It is 'auto', 'none', 'required', a function by its name, or 'allowed_tools' with "
            "functions by their names.",
        )
    if name not in names:
        raise wrong(where, f"names '{name[:80]}', and the request brings no such tool.")
    return name


def _read_tool(given: JsonValue, where: str) -> CallerTool:
    tool = as_object(given) if isinstance(given, Mapping) else {}
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"{where}.type", f"Tools of type '{str(kind)[:40]}' are not taken.")
    inner = tool.get("function")
    if inner is not None:
        tool, where = as_object(inner) if isinstance(inner, Mapping) else {}, f"{where}.function"
    if unknown := next((name for name in tool if name not in _PARTS and name != "type"), None):
        raise unsupported(f"{where}.{unknown[:80]}", "A tool has no such part here.")
    name, words = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not _NAME.match(name):
        raise wrong(f"{where}.name", "is to be 1 to 64 of: letters, digits, '_' and '-'.")
    if not isinstance(words, str | None) or len(words or "") > _LONGEST_DESCRIPTION:
        raise wrong(
            f"{where}.description", f"is to be a text of at most {_LONGEST_DESCRIPTION} characters."
        )
    form = tool.get("parameters")
    schema = as_object(form) if isinstance(form, Mapping) else {}
    if form is not None and (
        not isinstance(form, Mapping) or schema.get("type", "object") != "object"
    ):
        raise wrong(f"{where}.parameters", "is to be a JSON Schema of type object.")
    try:
        check_schema(schema)
    except UsageError as error:
        raise wrong(f"{where}.parameters", f"is no JSON Schema: {error.message}") from error
    return CallerTool(name=name, description=words or "", parameters={**schema, "type": "object"})


def _check_names(names: Sequence[str], recipe: AgentRecipe, catalog: Catalog) -> None:
    """Refuse a name that two tools would have, or that looks like one of a toolset."""
    taken = {*_RESERVED, *_names_in(recipe, catalog)}
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name in seen:
            raise wrong(f"tools[{at}].name", f"occurs twice: '{name}'.")
        if name in taken or f"{name.partition('__')[0]}__" in taken:
            raise wrong(f"tools[{at}].name", f"is that of a tool of the recipe: '{name}'.")
        seen.add(name)


def _names_in(recipe: AgentRecipe, catalog: Catalog) -> Iterator[str]:
    for each in recipes_within(recipe):
        yield from tool_specs(each, catalog)
        yield from (f"{use.prefix or use.name}__" for use in each.tools)


# --- calls and results ---------------------------------------------------------------------------


_CALL: Final = "call_"


def id_of_call(run_id: str, key: str) -> str:
    """The id of the call whose result a run waits for under that key."""
    return _CALL + id_of(run_id, key)


def run_of_call(given: str) -> str:
    """The id of the run that waits for the result of a call; of another text that of none."""
    return run_of(given.removeprefix(_CALL)) if given.startswith(_CALL) else ""


def unknown_call(given: str) -> NotFoundError:
    """The error for the result of a call that nobody waits for, or not for whoever gives it."""
    return NotFoundError(
        f"No run waits for a result of the call '{given[:100]}'. Its id is the one that the answer "
        "has which asked for it.",
        code="unknown-call",
    )


@frozen(kw_only=True)
class CallResult:
    """What a caller says that its tool gave."""

    id: str
    """The id of the call, as the answer had it that asked for it."""
    text: str
    where: str
    """The place in the request."""


def paired(
    messages: Iterable[tuple[Message, str]], names: frozenset[str]
) -> Iterator[tuple[Message, str]]:
    """The messages of a conversation in which each call has its result, right behind it.

    Calls without a result, and those of other tools, are left out with what was said of them.

    Args:
        messages: Each with its place in the request.
        names: Of the tools that calls may be of.
    """
    known = [*messages]
    for at, (message, where) in enumerate(known):
        if message.role is MessageRole.TOOL:
            continue
        if not message.tool_calls:
            yield message, where
            continue
        given: dict[str, tuple[Message, str]] = {}
        for result, place in known[at + 1 :]:
            if result.role is not MessageRole.TOOL:
                break
            given.setdefault(result.tool_call_id or "", (result, place))
        calls = [each for each in message.tool_calls if each.id in given and each.name in names]
        if calls or message.content:
            yield (
                Message(role=message.role, content=message.content, tool_calls=tuple(calls)),
                where,
            )
        yield from (given[each.id] for each in {each.id: each for each in calls}.values())
