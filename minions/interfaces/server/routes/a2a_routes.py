"""`/a2a`: recipes as skills of an agent of A2A, or as agents of their own; runs are tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias, cast

from litestar import Router, get, post
from litestar.di import Provide

from minions.app.runs.deployments import version_noted
from minions.contracts.executions import RunState, RunStatus
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.messages import MessageRole
from minions.contracts.run_events import event_to_json
from minions.contracts.session_views import Session
from minions.data.errors import NotFoundError, did_you_mean
from minions.data.json_values import JsonValue, parse_json
from minions.engine.calls.pending_decisions import mismatch
from minions.engine.views.lookup import count_runs, list_runs
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.stored_events import StoredEvents
from minions.interfaces.http.http_answers import EVENT_STREAM, Answer, AsgiApp, RefusedError, RpcId
from minions.interfaces.http.tokens import CALLER, Caller, TokenScope
from minions.interfaces.server.access import ROOT
from minions.interfaces.server.decision_views import unknown_approval, waiting_of
from minions.interfaces.server.documents.a2a_documents import (
    MOST_HISTORY,
    TASK_STATES,
    Fields,
    RpcAnswer,
    RpcRequest,
    SentMessage,
    TaskDecision,
    as_inputs,
    card_of,
    card_of_recipe,
    check_version,
    no_push_notifications,
    read_send,
    refuse_tenant,
    run_states_of,
)
from minions.interfaces.server.documents.run_documents import ApprovalView, DecisionRequest, id_of
from minions.interfaces.server.documents.shared_documents import wrong
from minions.interfaces.server.endpoint_parts import (
    RPC_ID,
    A2aVersion,
    ApiRequest,
    ApiResponse,
    Body,
    InPath,
    SentAnswer,
    check_request,
    read_asked,
    read_object,
    refuses,
)
from minions.interfaces.server.live.a2a_answers import TaskAnswer, TaskEvents
from minions.interfaces.server.live.translated_stream import TranslatedStream
from minions.interfaces.server.routes.asked_runs import (
    AskedRun,
    FollowedRun,
    begin_asked_run,
    begin_decided_run,
    digest_of_parts,
    forms_of,
    headers_of,
)
from minions.interfaces.server.routes.run_routes import cancel_recorded
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.session_routes import session_of
from minions.recipe.model import AgentRecipe

_STREAMS: Final = {EVENT_STREAM: "Of methods that stream: answers of JSON-RPC, each an event."}


# --- cards ----------------------------------------------------------------------------------------


@get("/.well-known/agent-card.json", security=[{}], needs=None)
async def get_agent_card(request: ApiRequest) -> dict[str, JsonValue]:
    """The card of this server for A2A; with a token it names the recipes."""
    return await _card(request, None)


@get("/a2a/{name:str}/.well-known/agent-card.json", responses=refuses(404), needs=TokenScope.READ)
async def get_recipe_card(request: ApiRequest, name: InPath) -> dict[str, JsonValue]:
    """The card of one recipe as an agent of its own."""
    return await _card(request, name)


async def _card(request: ApiRequest, name: str | None) -> dict[str, JsonValue]:
    state = request.app_state
    address = state.options.public_url
    if address is None:
        host = request.headers["host"]
        address = f"{request.scope['scheme']}://{host}{request.scope.get(ROOT, '')}"
    address = address.rstrip("/")
    if name is not None:
        recipe, _ = await state.starter.stored_recipe(name)
        return card_of_recipe(address, recipe, name)
    caller = cast("Caller | None", request.scope.get(CALLER))
    if caller is None or TokenScope.READ not in caller.scopes:
        return card_of(address, None)
    return card_of(address, await _recipes(request))


async def _recipes(request: ApiRequest) -> Sequence[AgentRecipe]:
    stored = await request.app_state.threads.run(request.app_state.recipe_store.all)
    return [each.recipe for each in stored if each.recipe is not None]


# --- the methods ----------------------------------------------------------------------------------


_WITH_TOKEN: Final = [{"token": list[str]()}]
"""A token, and the scope that the method needs."""


@post(
    "/a2a",
    status_code=200,
    texts=_STREAMS,
    responses=refuses(429),
    security=_WITH_TOKEN,
    needs=None,
)
async def call_a2a(
    request: ApiRequest, data: Body[RpcRequest], a2a_version: A2aVersion = None
) -> ApiResponse[RpcAnswer]:
    """Call a method of A2A; the message names the recipe."""
    return await _call(request, None, data, a2a_version)


@post(
    "/a2a/{name:str}",
    status_code=200,
    texts=_STREAMS,
    responses=refuses(429),
    security=_WITH_TOKEN,
    needs=None,
)
async def call_recipe_a2a(
    request: ApiRequest, name: InPath, data: Body[RpcRequest], a2a_version: A2aVersion = None
) -> ApiResponse[RpcAnswer]:
    """Call a method of A2A of one recipe."""
    return await _call(request, name, data, a2a_version)


async def _call(
    request: ApiRequest, name: str | None, data: RpcRequest, version: str | None
) -> ApiResponse[RpcAnswer]:
    request.scope[RPC_ID] = data.id  # type: ignore[typeddict-unknown-key]  # of this app
    check_version(version)
    method = _METHODS.get(data.method)
    if method is None:
        raise RefusedError(
            HTTPStatus.NOT_FOUND,
            "unknown-method",
            f"There is no method '{data.method[:80]}'.{did_you_mean(data.method, _METHODS)} "
            f"Methods are: {', '.join(_METHODS)}.",
        )
    return SentAnswer(await method(request, name, data))


def _answer(data: RpcRequest, result: JsonValue, passed_over: Sequence[str] = ()) -> Answer:
    headers = headers_of(None, passed_over)
    return Answer(200, {"jsonrpc": "2.0", "id": data.id, "result": result}, headers=headers)


async def _send(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    sent = read_send(data.params)
    followed, events = await _follow_sent(request, name, sent, data.id)
    headers, threads = headers_of(followed, sent.passed_over), request.app_state.threads
    if sent.is_immediate:
        followed.stream.give_up()
        return _answer(data, {"task": events.to_json()}, sent.passed_over)
    begun = followed.begun

    async def remember() -> None:
        if sent.history_length:
            events.history = await _history(
                request, begun.run_id, begun.session_id, sent.history_length
            )

    return TaskAnswer(
        followed.stream, events, data.id, at_end=remember, threads=threads, headers=headers
    )


async def _stream(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    sent = read_send(data.params)
    followed, events = await _follow_sent(request, name, sent, data.id)
    headers, threads = headers_of(followed, sent.passed_over), request.app_state.threads
    return TranslatedStream(followed.stream, events, threads=threads, headers=headers)


async def _follow_sent(
    request: ApiRequest, name: str | None, sent: SentMessage, request_id: RpcId
) -> tuple[FollowedRun, TaskEvents]:
    """Begin the run that a message asks for, or decide what one waits for."""
    forms: dict[str, JsonValue] = {}
    if sent.task_id is None:
        followed, skill = await _begin(request, name, sent)
    else:
        followed, skill, forms = await _decide(request, name, sent, sent.task_id)
    begun = followed.begun
    events = TaskEvents(
        begun.run_id,
        begun.session_id,
        skill,
        request_id=request_id,
        step_id=followed.answering,
        forms=forms,
    )
    return followed, events


async def _begin(
    request: ApiRequest, name: str | None, sent: SentMessage
) -> tuple[FollowedRun, str]:
    request.caller.require(TokenScope.RUN)
    session = None
    if sent.context_id is not None:
        session = await session_of(request, sent.context_id)
    asked = await _recipe_name(request, name, sent, session)
    key = digest_of_parts("a2a", sent.message_id)
    recipe, noted = await request.app_state.starter.stored_recipe(
        asked, session=sent.context_id, key=key
    )
    run = AskedRun(
        name=asked,
        recipe=recipe,
        version=version_noted(noted),
        inputs=as_inputs(sent, recipe),
        session=session,
        key=key,
    )
    return await begin_asked_run(request, run), recipe.id


async def _recipe_name(
    request: ApiRequest, name: str | None, sent: SentMessage, session: Session | None
) -> str:
    """The name of the recipe that a message is for: that of the address, of its metadata or of its
    session, or the only one that is served.

    Raises:
        UsageError: `bad-body`; there are several, or two are named.
    """
    if name is not None and sent.skill not in (None, name):
        raise wrong("params.message.metadata.skill", f"is to be '{name}', as the address is.")
    found = name or sent.skill or (session.recipe if session is not None else None)
    if found is not None:
        return found
    names = [each.id for each in await _recipes(request)]
    if len(names) != 1:
        listed = ", ".join(names[:20]) or "none"
        raise wrong(
            "params.message.metadata.skill", f"is to name one of the skills of the card: {listed}."
        )
    return names[0]


async def _decide(
    request: ApiRequest, name: str | None, sent: SentMessage, task_id: str
) -> tuple[FollowedRun, str, dict[str, JsonValue]]:
    """Decide what a task waits for, and follow its run."""
    run = await _find(request, name, task_id)
    request.caller.require(TokenScope.DECIDE, "an answer to a task")
    if sent.context_id not in (None, run.session_id):
        raise wrong("params.message.contextId", f"is to be '{run.session_id}', that of the task.")
    if sent.skill not in (None, run.recipe):
        raise wrong("params.message.metadata.skill", f"is to be '{run.recipe}', that of the task.")
    if run.has_ended and run.status != RunStatus.NEEDS_DECISION:
        raise RefusedError(
            HTTPStatus.CONFLICT,
            "run-ended",
            f"The task '{run.run_id}' has ended: it is {run.status}. A message without a taskId "
            "begins another one.",
        )
    parts = [
        read_object(part, TaskDecision, "A data part of 'params.message.parts'")
        for part in sent.data
    ]
    ids = {each.id for each in parts}

    def is_meant(key: str) -> bool:
        return not ids or None in ids or id_of(run.run_id, key) in ids

    def decide(waiting: Mapping[str, ApprovalView]) -> Mapping[str, DecisionRequest]:
        if not waiting:
            raise unknown_approval()
        if not parts:
            return _answer_in_words(sent.text or "", waiting)
        found: dict[str, DecisionRequest] = {}
        for each in parts:
            meant = [key for key, view in waiting.items() if each.id in (None, view.id)]
            if each.id is None and len(meant) > 1:
                raise wrong("params.message.parts", "are to name by `id` what they decide.")
            if not meant or meant[0] in found:
                raise unknown_approval()
            found[meant[0]] = each.to_request()
        return found

    if parts and sent.text is not None:
        raise wrong("params.message.parts", "are to be a text, or data parts that decide.")
    followed = await begin_decided_run(request, run.run_id, is_meant, decide)
    return followed, run.recipe, dict(followed.waiting)


def _answer_in_words(
    text: str, waiting: Mapping[str, ApprovalView]
) -> Mapping[str, DecisionRequest]:
    """The answer to the only question that waits.

    Raises:
        UsageError: `bad-body`; something else waits, which a text does not decide.
    """
    (key, view), *others = waiting.items()
    if others or view.what != "answer":
        needed = "; ".join(f"{each.words} (id '{each.id}')" for each in waiting.values())
        raise wrong(
            "params.message.parts",
            "are to be data parts that decide, {'id': ID, 'decision': …, 'digest': …}: a text "
            f"answers only one question. The task waits for: {needed}",
        )
    value: JsonValue = text
    if mismatch(text, view.form) is not None:
        try:
            value = parse_json(text, unique_keys=True)
        except ValueError:
            value = text  # which is refused, and why
    return {key: DecisionRequest(decision="answer", value=value)}


async def _find(request: ApiRequest, name: str | None, task_id: str) -> RunSummary:
    """The run of a task.

    Raises:
        NotFoundError: There is none, it is another user's, or another recipe's than that of the
            address.
    """
    run = None
    try:
        run = await find_exact(request, task_id)
    except NotFoundError as error:
        if error.error_code != "unknown-run":
            raise
    if run is None or (name is not None and name.partition("@")[0] != run.recipe):
        raise NotFoundError(f"There is no task '{task_id[:100]}'.", code="unknown-run")
    return run


async def _get(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    request.caller.require(TokenScope.READ)
    passed_over: list[str] = []
    given = Fields(data.params, "params", passed_over)
    refuse_tenant(given)
    task_id, length = given.needed_text("id"), given.number("historyLength", 0, MOST_HISTORY)
    given.close()
    run = await _find(request, name, task_id)
    events = await _task_of(request, run)
    if length:
        events.history = await _history(request, run.run_id, run.session_id, length)
    return _answer(data, events.to_json(), passed_over)


async def _task_of(
    request: ApiRequest, run: RunSummary, request_id: RpcId = None, step_id: str | None = None
) -> TaskEvents:
    """The task of a run as it is now."""
    state = request.app_state
    forms: dict[str, JsonValue] = {}
    if run.status == RunStatus.NEEDS_DECISION:
        forms = forms_of(await waiting_of(state.journal, run, state.runtime.calls_in_doubt))
    events = TaskEvents(
        run.run_id,
        run.session_id,
        run.recipe,
        request_id=request_id,
        step_id=step_id,
        forms=forms,
        state=TASK_STATES[run.status],
    )
    events.status["timestamp"] = (run.finished_at or run.started_at).isoformat()
    if run.has_ended and run.status != RunState.UNREADABLE:
        rows = await state.journal.entries(
            run.session_id, run_id=run.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        stored = StoredEvents(state.journal, run.session_id, run.run_id)
        async for page in stored.after(rows[0].position - 1):
            for event in page:
                for _ in events.take(event_to_json(event)):
                    pass
    return events


async def _history(
    request: ApiRequest, run_id: str, session_id: str, length: int
) -> list[JsonValue]:
    """The newest messages of the task, the oldest first."""
    steps = await request.app_state.repository.get_steps(session_id)
    said = [
        each for each in steps if each.run_id == run_id and each.role in _SPEAKERS and each.content
    ]
    return [
        {
            "messageId": each.id or f"{session_id}/{each.sequence}",
            "taskId": run_id,
            "contextId": session_id,
            "role": _SPEAKERS[each.role],
            "parts": [{"text": each.content, "mediaType": "text/plain"}],
        }
        for each in said[-length:]
    ]


_SPEAKERS: Final[Mapping[MessageRole, str]] = {
    MessageRole.USER: "ROLE_USER",
    MessageRole.ASSISTANT: "ROLE_AGENT",
}


async def _list(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    request.caller.require(TokenScope.READ)
    passed_over: list[str] = []
    given = Fields(data.params, "params", passed_over)
    refuse_tenant(given)
    size = given.number("pageSize", 0, 100) or 50
    token = given.text("pageToken") or "0"
    if not (token.isascii() and token.isdigit() and len(token) < 10):
        raise wrong("params.pageToken", "is to be the nextPageToken of an earlier answer.")
    if given.text("statusTimestampAfter") is not None:
        raise wrong("params.statusTimestampAfter", "is not supported; leave it out.")
    wanted = RunFilter(
        recipe=name,
        session_id=given.text("contextId"),
        statuses=run_states_of(given.text("status")),
        user=request.owner,
    )
    length = given.number("historyLength", 0, MOST_HISTORY) or 0
    has_output = given.flag("includeArtifacts")
    given.close()
    journal, offset = request.app_state.journal, int(token)
    runs = await list_runs(journal, wanted=wanted, limit=size + 1, offset=offset)
    tasks: list[JsonValue] = []
    for run in runs[:size]:
        events = await _task_of(request, run)
        if length:
            events.history = await _history(request, run.run_id, run.session_id, length)
        tasks.append(events.to_json(has_output=has_output))
    result: JsonValue = {
        "tasks": tasks,
        "nextPageToken": str(offset + size) if len(runs) > size else "",
        "pageSize": size,
        "totalSize": await count_runs(journal, wanted, at_most=_MOST_COUNTED),
    }
    return _answer(data, result, passed_over)


_MOST_COUNTED: Final = 10_000


async def _cancel(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    request.caller.require(TokenScope.RUN)
    passed_over: list[str] = []
    given = Fields(data.params, "params", passed_over)
    refuse_tenant(given)
    run = await _find(request, name, given.needed_text("id"))
    given.close()
    state = request.app_state
    execution = state.run_manager.find(run.run_id)
    await cancel_recorded(request, run)
    if execution is not None:  # what is done when it is cancelled may take a moment
        await asyncio.wait([execution.task], timeout=state.options.grace_s)
    events = await _task_of(request, await find_exact(request, run.run_id))
    return _answer(data, events.to_json(), passed_over)


async def _subscribe(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    request.caller.require(TokenScope.READ)
    passed_over: list[str] = []
    given = Fields(data.params, "params", passed_over)
    refuse_tenant(given)
    run = await _find(request, name, given.needed_text("id"))
    given.close()
    state = request.app_state
    after = await state.last_position(run.session_id)
    run = await find_exact(request, run.run_id)
    if run.has_ended and run.status != RunStatus.NEEDS_DECISION:
        raise RefusedError(
            HTTPStatus.CONFLICT,
            "run-ended",
            f"The task '{run.run_id}' has ended: it is {run.status}. GetTask has its output.",
        )
    events = await _task_of(request, run, data.id)
    events.is_over = False  # where it waits: what follows the decision is told
    stream = await state.stream(
        run.session_id, run_id=run.run_id, after=after, caller=request.caller.name
    )
    headers = headers_of(None, passed_over)
    return TranslatedStream(stream, events, threads=state.threads, headers=headers)


async def _get_extended_card(request: ApiRequest, name: str | None, data: RpcRequest) -> AsgiApp:
    request.caller.require(TokenScope.READ)
    passed_over: list[str] = []
    given = Fields(data.params, "params", passed_over)
    refuse_tenant(given)
    given.close()
    return _answer(data, await _card(request, name), passed_over)


async def _refuse_push(_request: ApiRequest, _name: str | None, _data: RpcRequest) -> AsgiApp:
    raise no_push_notifications()


_Method: TypeAlias = Callable[[ApiRequest, str | None, RpcRequest], Awaitable[AsgiApp]]
_METHODS: Final[Mapping[str, _Method]] = {
    "SendMessage": _send,
    "SendStreamingMessage": _stream,
    "GetTask": _get,
    "ListTasks": _list,
    "CancelTask": _cancel,
    "SubscribeToTask": _subscribe,
    "GetExtendedAgentCard": _get_extended_card,
    "CreateTaskPushNotificationConfig": _refuse_push,
    "GetTaskPushNotificationConfig": _refuse_push,
    "ListTaskPushNotificationConfigs": _refuse_push,
    "DeleteTaskPushNotificationConfig": _refuse_push,
}


A2A: Final = Router(
    "/",
    route_handlers=[get_agent_card, get_recipe_card, call_a2a, call_recipe_a2a],
    request_class=ApiRequest,
    response_class=ApiResponse,
    before_request=check_request,
    dependencies={"asked": Provide(read_asked, sync_to_thread=False)},
)
"""As `API`, with errors in A2A's form."""
