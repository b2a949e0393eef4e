"""Begins the run that a client asks for with a conversation, and follows it from the start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from attrs import frozen

from minions.contracts.decision_types import word_of
from minions.contracts.session_views import Session, SessionStep
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.server.app_state import EventStreamAnswer
from minions.interfaces.server.decision_views import decision_of, waiting_of
from minions.interfaces.server.documents.run_documents import ApprovalView, DecisionRequest
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
    earlier: Sequence[tuple[str, str]] = ()
    """Role, `user` or `assistant`, and text of each message of the conversation before it."""
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
                SessionStep(session_id=run.session_id, role=role, content=text)
                for role, text in asked.earlier
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
    return FollowedRun(begun=begun, stream=streams[0], answering=answering, reads_earlier=brings)


async def begin_decided_run(
    request: ApiRequest,
    run_id: str,
    is_meant: Callable[[str], bool],
    decide: Callable[[Mapping[str, ApprovalView]], Mapping[str, DecisionRequest]],
) -> tuple[FollowedRun, Sequence[ApprovalView]]:
    """Decide what a run waits for, resume it and follow it; what else it waits for.

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
    followed = FollowedRun(
        begun=StartedRun(resumed.run_id, resumed.session_id),
        stream=stream,
        answering=answering_step(resumed.context.recipe),
        reads_earlier=False,
    )
    return followed, tuple(waiting.values())


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
