"""Begins the run that a client asks for with a conversation, and follows it from the start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from attrs import field, frozen

from minions.contracts.context import Limits
from minions.contracts.decision_types import Answer, word_of
from minions.contracts.journal.facts import RunBeginning, RunResumed
from minions.contracts.journal.start_note import (
    NO_CHOICE,
    TOKEN,
    CallerChoice,
    CallerTool,
    StartNote,
    name_noted,
)
from minions.contracts.messages import Message
from minions.contracts.session_views import Session, SessionStep
from minions.data.errors import NotFoundError
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.run.agent_run import AgentRun
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.app_state import EventStreamAnswer
from minions.interfaces.server.decision_views import decision_of, unknown_approval, waiting_of
from minions.interfaces.server.documents.caller_tool_documents import (
    CallResult,
    id_of_call,
    run_of_call,
    unknown_call,
)
from minions.interfaces.server.documents.run_documents import ApprovalView, DecisionRequest
from minions.interfaces.server.documents.shared_documents import wrong
from minions.interfaces.server.endpoint_parts import ApiRequest
from minions.interfaces.server.live.openai_answers import answering_step
from minions.interfaces.server.live.server_runs import RequestedRun, StartedRun
from minions.interfaces.server.routes.decision_routes import decided_run, deciding
from minions.interfaces.server.routes.recipe_routes import is_chat
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.session_routes import user_in
from minions.recipe.model import AgentRecipe


@frozen(kw_only=True)
class AskedRun:
    """What a request asks a recipe."""

    name: str
    """The id of a recipe, or the name of a deployment."""
    recipe: AgentRecipe
    """The recipe of that name."""
    version: int | None = None
    """Which version of the deployment it is; None: of none."""
    inputs: Mapping[str, JsonValue]
    earlier: Sequence[Message] = ()
    """The messages of the conversation before it."""
    caller_tools: tuple[CallerTool, ...] = ()
    """The tools that the caller brings."""
    caller_choice: CallerChoice = NO_CHOICE
    """What the caller wants of calls of them."""
    session: Session | None = None
    """The session in which it begins; None: it gets one of its own."""
    new_session: str | None = None
    """The id of the session of its own; None: any."""
    user: str | None = None
    key: str | None = None
    """The idempotency key; None: there is none."""


@frozen(kw_only=True)
class FollowedRun:
    """A run that has begun."""

    begun: StartedRun
    stream: EventStreamAnswer
    """Its events, from the first one that it had when it was asked for."""
    answering: str | None
    """Its `answering_step`; None: it has none, or the request was repeated, so that some of its
    words were said before."""
    reads_earlier: bool
    """Whether the earlier messages of the request are in its conversation."""
    waiting: Mapping[str, JsonValue] = field(factory=dict)
    """What it waits for already, as of `forms_of`."""
    caller_tools: tuple[CallerTool, ...] = ()
    """The tools that its caller brought."""
    caller_choice: CallerChoice = NO_CHOICE
    """What its caller wants of calls of them."""


async def begin_asked_run(request: ApiRequest, asked: AskedRun) -> FollowedRun:
    """Begin the run and follow it.

    Raises:
        MinionsError: As of `RunStarter.begin`.
    """
    state, recipe = request.app_state, asked.recipe
    repository = state.repository
    user = await user_in(request, asked.session, asked.user)
    inputs = dict(asked.inputs)
    session_id = None if asked.session is None else asked.session.id
    if session_id is not None and is_chat(recipe):
        own, before = await repository.inputs_of(session_id)
        known = {each: value for each, value in before.items() if each in recipe.inputs}
        inputs = {**known, **own, **inputs}
    brings = bool(asked.earlier) and session_id is None and is_chat(recipe)
    if session_id is None and (brings or asked.new_session is not None):
        session_id = asked.new_session
        if session_id is None or not await state.last_position(session_id):
            made = await repository.create_session(recipe.id, session_id=session_id, user=user)
            session_id = made.id
    streams: list[EventStreamAnswer] = []
    answering: str | None = None

    async def follow(run: AgentRun) -> None:
        nonlocal answering
        answering = answering_step(run.context.recipe)  # of the version that the run got
        if brings and not await repository.get_step_count(run.session_id):
            said = [
                SessionStep(
                    session_id=run.session_id,
                    role=each.role,
                    content=each.content,
                    tool_calls=each.tool_calls,
                    tool_call_id=each.tool_call_id,
                )
                for each in asked.earlier
            ]
            await repository.save_steps_batch(said)
        streams.append(await stream_of(request, run))

    wanted = RequestedRun(
        recipe=asked.name,
        version=asked.version,
        inputs=inputs,
        session=session_id,
        user=user,
        key=asked.key,
        owner=request.owner,
        token=request.caller.name,
        caller_tools=asked.caller_tools,
        caller_choice=asked.caller_choice,
    )
    try:
        begun = await state.starter.begin(wanted, follow)
    except BaseException:
        for stream in streams:
            stream.give_up()
        raise
    if not streams:
        streams.append(
            await state.stream(begun.session_id, run_id=begun.run_id, caller=request.caller.name)
        )
    return FollowedRun(
        begun=begun,
        stream=streams[0],
        answering=answering,
        reads_earlier=brings,
        caller_tools=asked.caller_tools,
        caller_choice=asked.caller_choice,
    )


async def begin_decided_run(
    request: ApiRequest,
    run_id: str,
    is_meant: Callable[[str], bool],
    decide: Callable[[Mapping[str, ApprovalView]], Mapping[str, DecisionRequest]],
) -> FollowedRun:
    """Decide what a run waits for, resume it and follow it.

    Args:
        is_meant: Whether the decision with that key is meant.
        decide: The decisions, by the key of what waits.
    Raises:
        NotFoundError: There is no such run, or it does not wait for that.
        UsageError, RefusedError: A decision does not fit, or the caller may not make it.
    """
    state = request.app_state
    async with deciding(request, run_id, is_meant):
        run = await find_exact(request, run_id)  # as the decision before left it
        in_doubt = state.runtime.calls_in_doubt
        waiting = {each.key: each for each in await waiting_of(state.journal, run, in_doubt)}
        words: dict[str, str] = {}
        for key, decision in decide(waiting).items():
            checked = partial(decision_of, waiting.pop(key), decision)
            words[key] = word_of(await match_beside_loop(checked))
        resumed = await decided_run(request, run.run_id, words)
        stream = await stream_of(request, resumed)
        try:
            await state.run_manager.begin(resumed)
        except BaseException:
            stream.give_up()
            raise
    noted = StartNote.of(resumed.note)
    return FollowedRun(
        begun=StartedRun(resumed.run_id, resumed.session_id),
        stream=stream,
        answering=answering_step(resumed.context.recipe),
        reads_earlier=False,
        waiting=forms_of(waiting.values()),
        caller_tools=noted.caller_tools,
        caller_choice=noted.caller_choice,
    )


async def begin_answered_run(
    request: ApiRequest,
    recipe: AgentRecipe,
    results: Sequence[CallResult],
    name: str,
    *,
    session_id: str | None = None,
) -> FollowedRun:
    """Give the results of calls of the caller's tools to the run that waits for them; follow it.

    Results that are given again as they were have the answer that follows them again.

    Args:
        recipe: The one that the request names.
        results: Of all calls that the run's last answer asked for.
        name: Of the parameter with the results.
        session_id: The session that the run is in; None: it may be any.
    Raises:
        NotFoundError: `unknown-call`; no run of this caller, and of that recipe, waits for one.
        UsageError: `bad-body`; a result is missing, there twice or too long, or they are of several
            runs.
        RefusedError: `already-decided`: there is another result. The caller may not give it: the
            run is of another token, and this one decides nothing.
    """
    first, given = results[0], {each.id: each for each in results}
    for each in results:
        if given[each.id] is not each:
            raise wrong(given[each.id].where, f"is a second result of '{each.id[:100]}'.")
        if run_of_call(each.id) != run_of_call(first.id):
            raise wrong(each.where, "is a result for another run than those before it.")
    try:
        run = await _run_of_caller(request, recipe, run_of_call(first.id))
        if session_id not in (None, run.session_id):
            raise unknown_call(first.id)
        run_id = run.run_id
        return await begin_decided_run(
            request,
            run_id,
            lambda key: id_of_call(run_id, key) in given,
            lambda waiting: _decisions(run_id, waiting, given, recipe, name),
        )
    except NotFoundError as error:
        raise unknown_call(first.id) from error
    except RefusedError as error:
        if error.error_code != _DECIDED:
            raise
        again = await _answered_before(request, run, given)
        if again is None:  # a client that repeats what is refused would be refused again
            headers = {"x-should-retry": "false"}
            raise RefusedError(error.status, _DECIDED, error.message, headers=headers) from error
        return again


async def _run_of_caller(request: ApiRequest, recipe: AgentRecipe, run_id: str) -> RunSummary:
    """The run of that recipe, if its caller asks.

    Raises:
        NotFoundError: There is none, or it is another user's.
        RefusedError: It is of another token, and this one decides nothing.
    """
    run = await find_exact(request, run_id)
    if run.recipe != recipe.id:
        raise unknown_approval()
    rows = await request.app_state.journal.entries(
        run.session_id, run_id=run.run_id, kinds={"run"}, limit=1
    )
    begun = rows[0].fact if rows else None
    note = begun.note if isinstance(begun, RunBeginning) else None
    if name_noted(note or {}, TOKEN) != request.caller.name:
        request.caller.require(TokenScope.DECIDE, "a result for the run of another token")
    return run


def _decisions(
    run_id: str,
    waiting: Mapping[str, ApprovalView],
    given: Mapping[str, CallResult],
    recipe: AgentRecipe,
    name: str,
) -> Mapping[str, DecisionRequest]:
    """The results as answers, by the key of what waits; one that a person gave meanwhile counts.

    Raises:
        NotFoundError: It waits for none of them.
        UsageError: One is missing, or too long.
    """
    calls = {id_of_call(run_id, key): each for key, each in waiting.items() if each.kind == "call"}
    if not given.keys() & calls.keys():
        raise unknown_approval()
    if missing := [made for made in calls if made not in given]:
        raise wrong(name, f"lacks the results of calls: {', '.join(missing)}.")
    most = Limits.from_metadata(recipe.limits).max_tool_result_bytes
    for made in calls:
        size = len(given[made].text.encode("utf-8", "surrogatepass"))
        if size > most:
            raise wrong(given[made].where, f"has {size} bytes; a result has at most {most}.")
    return {
        each.key: DecisionRequest(decision="answer", value=given[made].text)
        for made, each in calls.items()
    }


_DECIDED: Final = "already-decided"


async def _answered_before(
    request: ApiRequest, run: RunSummary, given: Mapping[str, CallResult]
) -> FollowedRun | None:
    """The run from where it got just these results; None: it did not."""
    state = request.app_state
    rows = await state.journal.entries(run.session_id, run_id=run.run_id, kinds={"run"})
    for row in reversed(rows):
        fact = row.fact
        if not isinstance(fact, RunResumed):
            continue
        said = {id_of_call(run.run_id, key): each for key, each in fact.decided.items()}
        if said.keys() == given.keys() and all(
            isinstance(each, Answer) and each.value == given[made].text
            for made, each in said.items()
        ):
            stream = await state.stream(
                run.session_id, run_id=run.run_id, after=row.position, caller=request.caller.name
            )
            in_doubt, noted = state.runtime.calls_in_doubt, StartNote.of(fact.note)
            return FollowedRun(
                begun=StartedRun(run.run_id, run.session_id),
                stream=stream,
                answering=None,
                reads_earlier=False,
                waiting=forms_of(await waiting_of(state.journal, run, in_doubt)),
                caller_tools=noted.caller_tools,
                caller_choice=noted.caller_choice,
            )
    return None


def forms_of(waiting: Iterable[ApprovalView]) -> dict[str, JsonValue]:
    """By key the tool and the arguments, or the form of the answer, of what a run waits for."""
    return {
        each.key: {"tool": each.tool, "arguments": each.arguments, "form": each.form}
        for each in waiting
    }


def digest_of_parts(*parts: str) -> str:
    """A digest of texts that a caller chose, the same each time."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


async def stream_of(request: ApiRequest, run: AgentRun) -> EventStreamAnswer:
    """The events of a run from now on."""
    state = request.app_state
    after = await state.last_position(run.session_id)
    return await state.stream(
        run.session_id, run_id=run.run_id, after=after, caller=request.caller.name
    )


_MOST_HEADER = 1_000


def headers_of(followed: FollowedRun | None, passed_over: Sequence[str]) -> dict[str, str]:
    """The headers of the answer: the ids of a run, and what of the request has no effect."""
    headers: dict[str, str] = {}
    if followed is not None:
        headers = {
            "x-minions-run": followed.begun.run_id,
            "x-minions-session": followed.begun.session_id,
            "x-request-id": followed.begun.run_id,
        }
    if passed_over:
        shown = ", ".join(passed_over).encode("ascii", "backslashreplace").decode()
        text = "".join(each if each.isprintable() else "?" for each in shown)
        headers["x-minions-ignored"] = text[:_MOST_HEADER]
    return headers
