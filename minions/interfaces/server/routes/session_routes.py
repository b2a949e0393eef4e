"""`/sessions`: create, list, read, follow, fork, cut and delete, and their turns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen
from litestar import Router, delete, get, post

from minions.contracts.executions import OPEN_STATES, RunStatus
from minions.contracts.journal.journal import Journal
from minions.contracts.run_events import RunCompleted
from minions.contracts.session_views import Session
from minions.data.errors import NotFoundError, UsageError, did_you_mean, near_names
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.data.texts import has_words, shell_word
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.event_loop import beside
from minions.engine.sessions.deletion import remove_sessions
from minions.engine.sessions.runner import StepRunner, check_conversation
from minions.engine.sessions.session_context import build_context_from_steps, get_context_summary
from minions.engine.sessions.store import StepRepository, unknown_session
from minions.engine.views.lookup import total_at_end
from minions.interfaces.http.http_answers import EVENT_STREAM, Answer, RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    MOST_DIGITS,
    STATE,
    USER,
    After,
    JsonObject,
    most_counted,
    number_schema,
)
from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    Asked,
    Body,
    EventStream,
    InPath,
    LastEventId,
    answer,
    refuses,
)
from minions.interfaces.server.live.channels import bytes_of, frame_of
from minions.interfaces.server.routes.run_views import position_after
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

_FEW_STEPS: Final = 50
"""Messages that are listed at once."""


async def session_of(request: ApiRequest, session_id: str) -> Session:
    """The session that the path names.

    Raises:
        NotFoundError: There is none, or it is another user's.
    """
    repository = request.app_state.repository
    if (owner := request.owner) is not None:
        own = await repository.list_sessions(session_ids=[session_id], user=owner)
        if not own:
            raise unknown_session(session_id)  # without near ids, which may be others'
    return await repository.get_session(session_id)


def check_project(request: ApiRequest, session: Session) -> None:
    """Refuse to continue a session of another project.

    Raises:
        RefusedError: `other-project`.
    """
    own = request.app_state.runtime.services.project
    if own is None or session.project in (None, own):
        return
    where = ""
    if request.owner is None:  # who sees one user's sessions alone is told of no folder
        name, folder = shell_word(session.id), shell_word(session.project or "")
        where = f" Continue it there: cd {folder} && minions chat --session {name}"
    raise RefusedError(
        HTTPStatus.CONFLICT,
        "other-project",
        f"Session '{session.id}' is of another project: its messages would go to a model of the "
        f"project in which this server runs.{where}",
    )


async def user_in(
    request: ApiRequest, session: str | Session | None, asked: str | None
) -> str | None:
    """The user of a new run.

    Args:
        session: The session, or its id, in which the run begins; None: it gets one of its own.
        asked: The user that the request names; None: none.
    Raises:
        NotFoundError: There is no such session, or it is another user's.
        RefusedError: `other-user`: the token is bound to another one, or the session is another
            one's. `other-project`: the session is another project's.
    """
    user = request.caller.user_of(asked)
    if session is None:
        return user
    if isinstance(session, str):
        session = await session_of(request, session)
    check_project(request, session)
    if session.user is None:
        return user
    if asked not in (None, session.user):
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "other-user",
            f"Session '{session.id}' is of the user '{session.user}': no other user's runs begin "
            "in it. Leave `user` out, or take another session.",
        )
    return session.user


# --- the sessions themselves ----------------------------------------------------------------------


@get(responses=refuses(404, 409), needs=TokenScope.READ)
async def list_sessions(request: ApiRequest, asked: Asked[SessionsPage]) -> ApiResponse[Sessions]:
    """List all sessions, the newest first."""
    limit, offset, text = asked.limit, asked.offset, asked.text
    tree, repository = asked.tree, request.app_state.repository
    owner, project = request.owner, asked.project
    if tree:
        if owner is not None:
            await session_of(request, tree)
        every = await repository.list_fork_tree(tree)
        own = (
            each for each in every if owner in (None, each.user) and project in (None, each.project)
        )
        found = [each for each in own if has_words(text, each.name, each.recipe, each.id)]
        part, total, most = found[offset : offset + limit], len(found), None
    else:
        most = counted = most_counted(limit, offset)

        async def read(journal: Journal) -> tuple[list[Session], int]:
            lists = StepRepository(evolve(repository.services, journal=journal))
            page = await lists.list_sessions(
                limit=limit, offset=offset, text=text, user=owner, project=project
            )
            total = total_at_end(len(page), limit, offset)
            if total is None:
                total = await lists.count_sessions(
                    text=text, user=owner, project=project, at_most=counted
                )
            return list(page), total

        part, total = await repository.services.journal.read_lists(read)
    shown = [_view(request, session) for session in part]
    reply: dict[str, JsonValue] = {
        "sessions": shown,
        "total": total,
        "total_is_minimum": total == most,
        "limit": limit,
        "offset": offset,
    }
    return answer(reply)


@post(responses=refuses(404, 409), needs=TokenScope.RUN)
async def create_session(request: ApiRequest, data: Body[NewSession]) -> ApiResponse[SessionView]:
    """Create a session of a recipe that can be talked with."""
    app_state = request.app_state
    recipe, _ = await app_state.starter.stored_recipe(data.recipe)

    def check() -> None:
        _check_inputs(recipe, data.inputs)
        app_state.runtime.check_inputs(recipe, data.inputs)

    await beside(app_state.threads, is_large(data.inputs), check)
    check_conversation(recipe)
    session = await app_state.repository.create_session(
        data.recipe,
        name=data.name,
        inputs=data.inputs,
        user=request.caller.user_of(data.user),
    )
    headers = {"location": request.link(f"/sessions/{session.id}")}
    return answer(_view(request, session), headers=headers)


def _check_inputs(recipe: AgentRecipe, given: Mapping[str, JsonValue]) -> None:
    """Check the given inputs; others may come with the turns. So no secret value is stored.

    Raises:
        UsageError: `bad-input`; an input does not exist or does not fit.
    """
    problems = [
        f"There is no input '{name[:100]}'.{did_you_mean(name, recipe.inputs)} Inputs are: "
        f"{', '.join(recipe.inputs) or 'none'}."
        for name in given
        if name not in recipe.inputs
    ]
    if problems:
        near = [each for name in given for each in near_names(name, recipe.inputs, limit=1)]
        raise UsageError("\n".join(problems), code="bad-input", suggestions=near)
    declared = {name: spec for name, spec in recipe.inputs.items() if name in given}
    resolve_inputs(evolve(recipe, inputs=declared), given, base=Path.cwd())


@get("/{session_id:str}", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_session(request: ApiRequest, session_id: InPath) -> ApiResponse[SessionView]:
    """One session."""
    session = await session_of(request, session_id)
    # The position first: later entries are in its stream.
    position = await request.app_state.last_position(session.id)
    count = await request.app_state.repository.get_step_count(session.id)
    more: dict[str, JsonValue] = {"step_count": count, "position": position}
    return answer({**_view(request, session), **more})


def _view(request: ApiRequest, session: Session) -> dict[str, JsonValue]:
    run_id = session.last_run_id
    is_active = run_id is not None and request.app_state.run_manager.find(run_id) is not None
    view = {**session.to_json(), "is_active": is_active}
    if request.owner is not None:
        view.pop("project", None)
    return view


@delete("/{session_id:str}", responses=refuses(404, 409), needs=TokenScope.ADMIN)
async def forget_session(request: ApiRequest, session_id: InPath) -> None:
    """Forget the session and all its runs."""
    session = await session_of(request, session_id)
    await remove_sessions(request.app_state.runtime.services, [session.id])
    request.app_state.channels.close_session(session.id)


@get(
    "/{session_id:str}/events",
    media_type=EVENT_STREAM,
    responses=refuses(404, 409),
    needs=TokenScope.READ,
)
async def follow_session(
    request: ApiRequest,
    session_id: InPath,
    asked: Asked[After],
    last_event_id: LastEventId = None,
) -> EventStream:
    """The events of all its runs: first the stored ones, then live ones."""
    session = await session_of(request, session_id)
    after = position_after(asked, last_event_id)
    return await request.app_state.stream(session.id, after=after, caller=request.caller.name)


# --- steps ----------------------------------------------------------------------------------------


@get("/{session_id:str}/steps", responses=refuses(404, 409), needs=TokenScope.READ)
async def list_steps(
    request: ApiRequest, session_id: InPath, asked: Asked[StepRange]
) -> ApiResponse[Steps]:
    """List messages of the session, in order."""
    session = await session_of(request, session_id)
    repository = request.app_state.repository
    steps = await repository.get_steps(session.id, asked.start_seq, asked.end_seq, asked.limit)
    reply: dict[str, JsonValue] = {
        "steps": await beside(
            request.app_state.threads,
            len(steps) > _FEW_STEPS,
            lambda: [step.to_json() for step in steps],
        ),
        "total": await repository.get_step_count(session.id),
        "session_id": session.id,
    }
    return answer(reply)


@get("/{session_id:str}/steps/{sequence:str}", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_step(
    request: ApiRequest, session_id: InPath, sequence: InPath
) -> ApiResponse[StepView]:
    """One message of the session."""
    session = await session_of(request, session_id)
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= MOST_DIGITS):
        raise NotFoundError("Steps are numbered: 1, 2, 3 …", code="unknown-step")
    step = await request.app_state.repository.get_step(session.id, int(sequence))
    return answer(step.to_json())


@delete(
    "/{session_id:str}/steps", status_code=200, responses=refuses(404, 409), needs=TokenScope.ADMIN
)
async def delete_steps(request: ApiRequest, session_id: InPath, asked: Asked[StepsFrom]) -> CutView:
    """Remove a step and all after it from the conversation."""
    session, start = await session_of(request, session_id), asked.start_seq
    count = await request.app_state.repository.delete_steps(session.id, start)
    return CutView(deleted_count=count, session_id=session.id, start_seq=start)


@get("/{session_id:str}/context", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_context(request: ApiRequest, session_id: InPath) -> ContextView:
    """The conversation in the provider's form, and a summary."""
    session, repository = await session_of(request, session_id), request.app_state.repository
    messages = await build_context_from_steps(session.id, repository)
    summary = await get_context_summary(session.id, repository)
    return ContextView(session_id=session.id, messages=tuple(messages), summary=summary)


@post("/{session_id:str}/fork", responses=refuses(404, 409), needs=TokenScope.RUN)
async def fork_session(
    request: ApiRequest, session_id: InPath, data: Body[ForkRequest]
) -> ApiResponse[ForkView]:
    """Fork the session after a step."""
    session = await session_of(request, session_id)
    made = await request.app_state.repository.fork(session.id, data.sequence, name=data.name)
    reply = ForkView(
        new_session_id=made.id,
        original_session_id=session.id,
        forked_at_sequence=data.sequence,
        copied_steps=data.sequence,
    )
    headers = {"location": request.link(f"/sessions/{made.id}")}
    return ApiResponse(reply, headers=headers)


SESSIONS = Router(
    "/sessions",
    route_handlers=[
        list_sessions,
        create_session,
        get_session,
        forget_session,
        follow_session,
        list_steps,
        delete_steps,
        get_step,
        get_context,
        fork_session,
    ],
)


# --- turns of a session, each a stream of events -------------------------------------------------


_CUT_OFF = (
    *OPEN_STATES,
    RunStatus.CANCELLED,
    RunStatus.LIMIT_REACHED,
    RunStatus.NEEDS_DECISION,
)
"""States of a last run that a resume of the session continues."""


@post(
    "/messages",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def send_message(
    request: ApiRequest, session_id: InPath, data: Body[MessageRequest]
) -> EventStream:
    """Send a message: one turn of the session, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(
        request, session, model=data.model, user=await user_in(request, session, data.user)
    )
    return await _stream(request, await runner.prepare_turn(session, data.content))


@post(
    "/retry",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def retry_session(
    request: ApiRequest, session_id: InPath, data: Body[RetryRequest]
) -> EventStream:
    """Regenerate the session from a step on, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(request, session, user=await user_in(request, session, data.user))
    return await _stream(request, await runner.prepare_retry(session, data.sequence))


@post(
    "/resume",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def resume_session(request: ApiRequest, session_id: InPath) -> EventStream:
    """Resume the session, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(request, session, user=await user_in(request, session, None))
    run = await runner.prepare_resume(session)
    return await (_replay(request, session) if run is None else _stream(request, run))


async def _runner(
    request: ApiRequest, session: Session, *, model: str | None = None, user: str | None = None
) -> StepRunner:
    """The runner of the session's recipe.

    Args:
        model: The model that the caller chose for the turn; None: none was chosen.
        user: The label of the user for whom it runs; None: none was given.
    Raises:
        UsageError: `no-recipe`; the session names none.
        NotFoundError: The recipe is not stored here.
        RefusedError: `secret-refused`, `model-refused`.
    """
    app_state = request.app_state
    if session.recipe is None:
        raise UsageError(
            f"Session '{session.id}' has no recipe of its own: start a run in it with POST "
            "/api/v1/runs.",
            code="no-recipe",
        )
    recipe, noted = await app_state.starter.stored_recipe(session.recipe, session=session.id)
    note = app_state.runtime.note(token=request.caller.name) | noted
    if session.last_run_id is not None and session.status in _CUT_OFF:
        note |= (await app_state.runtime.recorded(session.last_run_id)).note
    if model is not None:
        note |= app_state.runtime.chosen_model(model)
    # A turn has the inputs of the last run, too, which may be a run of another recipe.
    own, before = await app_state.repository.inputs_of(session.id)
    executor = app_state.runtime.executor(recipe, {**before, **own}, note=note)
    return StepRunner(
        recipe, repository=app_state.repository, executor=executor, note=note, user=user
    )


async def _stream(request: ApiRequest, run: AgentRun) -> EventStream:
    """The events of a run that begins now."""
    app_state = request.app_state
    after = await app_state.last_position(run.session_id)
    stream = await app_state.stream(
        run.session_id, run_id=run.run_id, after=after, caller=request.caller.name
    )
    try:
        await app_state.run_manager.begin(run)
    except BaseException:
        stream.give_up()
        raise
    return stream


async def _replay(request: ApiRequest, session: Session) -> EventStream:
    app_state = request.app_state
    last = await app_state.repository.get_last_step(session.id)
    event = RunCompleted(
        run_id=last.run_id if last is not None else "",
        session_id=session.id,
        timestamp=app_state.runtime.services.clock.now(),
        status=RunStatus.COMPLETED.value,
        data={"response": last.content if last is not None else None},
    )
    data = await bytes_of([frame_of(event)], app_state.threads)
    return Answer(HTTPStatus.OK, data, EVENT_STREAM)


TURNS = Router(
    "/sessions/{session_id:str}", route_handlers=[send_message, retry_session, resume_session]
)


# --- bodies of requests and responses about sessions, as classes ---------------------------------


_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_991}
}
_MAYBE_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 9_007_199_254_740_991}
}


# --- requests -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NewSession:
    """A session to create."""

    recipe: str = field(metadata={"schema": {"type": "string", "minLength": 1, "maxLength": 200}})
    """The id of the recipe that each turn runs."""
    inputs: JsonObject = field(factory=dict)
    """Inputs of each turn, besides the message."""
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )
    user: str | None = field(default=None, metadata=USER)
    """The label of the user to whom the session belongs, such as an account's number."""


@frozen(kw_only=True)
class MessageRequest:
    """A message of the user."""

    content: str = field(metadata={"schema": {"type": "string", "minLength": 1}})
    model: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The model that answers this turn, one of the `models` of `GET /system`; None: the recipe's
    own, or the configured one."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs, whose daily budget it spends from; None: none."""


@frozen(kw_only=True)
class RetryRequest:
    """The first message to regenerate."""

    sequence: int = field(metadata=_SEQUENCE)
    user: str | None = field(default=None, metadata=USER)
    """As of a message; None: that of the session's last run."""


@frozen(kw_only=True)
class ForkRequest:
    """The last step that the fork has in common with its parent."""

    sequence: int = field(metadata=_SEQUENCE)
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )


@frozen(kw_only=True)
class SessionsPage:
    """Which part of the list of sessions to return, and a filter."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Words, each of which is part of the name, the recipe or the id of the session."""
    project: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder of the project in which the session was made."""
    tree: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The id of a session: only the sessions of its fork tree, parents first."""


@frozen(kw_only=True)
class StepRange:
    """Which steps to return; both ends are included."""

    start_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    end_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    limit: int = field(
        default=100, metadata={"schema": {"type": "integer", "minimum": 1, "maximum": 1_000}}
    )


@frozen(kw_only=True)
class StepsFrom:
    """The first step to remove; all after it are removed, too."""

    start_seq: int = field(metadata=_SEQUENCE)


# --- answers --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SessionView:
    """A session. Unknown values are absent."""

    id: str
    recipe: str | None = None
    name: str | None = None
    inputs: JsonObject = field(factory=dict)
    created_at: datetime
    updated_at: datetime
    parent_session_id: str | None = None
    forked_at_sequence: int | None = None
    last_run_id: str | None = None
    status: str | None = field(default=None, metadata=STATE)
    """The state of its last run."""
    is_active: bool
    """Whether this process executes that run now."""
    step_count: int | None = None
    """The number of messages; only in the response about one session."""
    position: int | None = None
    """The position of its newest row, after which its events can be followed; as `step_count`."""
    user: str | None = None
    """The label of the user to whom it belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; not told to a token that sees one user's
    sessions alone."""


@frozen(kw_only=True)
class Sessions:
    """A part of the list of sessions, the newest first."""

    sessions: tuple[SessionView, ...]
    total: int
    total_is_minimum: bool
    """Whether counting ended there: it ends at a full thousand behind the part."""
    limit: int
    offset: int


@frozen(kw_only=True)
class StepView:
    """A message of a session. Unknown values are absent."""

    session_id: str
    id: str | None = None
    run_id: str | None = None
    sequence: int | None = None
    role: str
    content: str | None = None
    tool_calls: tuple[JsonObject, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    metrics: JsonObject = field(factory=dict)
    created_at: datetime | None = None


@frozen(kw_only=True)
class Steps:
    """A part of the steps, in order."""

    steps: tuple[StepView, ...]
    total: int
    """The number of all steps of the session."""
    session_id: str


@frozen(kw_only=True)
class CutView:
    """The steps that were removed from the conversation."""

    deleted_count: int
    session_id: str
    start_seq: int


@frozen(kw_only=True)
class ForkView:
    """A new session that was forked from another one."""

    new_session_id: str
    original_session_id: str
    forked_at_sequence: int
    copied_steps: int


@frozen(kw_only=True)
class ContextView:
    """The context that a model gets of the session, and a summary."""

    session_id: str
    messages: tuple[JsonObject, ...]
    """The messages in the provider's form, oldest first."""
    summary: Mapping[str, JsonValue]
