"""`/v1`: recipes as models, for clients of OpenAI's API: models, chat completions, responses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import evolve, frozen
from litestar import Router, get, post
from litestar.di import Provide

from minions.app.runs.deployments import version_noted
from minions.contracts.session_views import Session
from minions.data.errors import NotFoundError, near_hint
from minions.data.json_values import JsonValue, dumps
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import EVENT_STREAM
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.caller_tool_documents import (
    REFUSED_TOOLS,
    OfferedTools,
    read_choice,
    read_tools,
    run_of_call,
)
from minions.interfaces.server.documents.openai_documents import (
    ChatCompletion,
    ChatRequest,
    ChatTurn,
    ModelList,
    ModelView,
    ResponseAnswer,
    ResponseRequest,
    check_format,
    inputs_in,
    no_model,
    read_messages,
    text_input,
)
from minions.interfaces.server.documents.shared_documents import unsupported, wrong
from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    Body,
    IdempotencyKey,
    InPath,
    InSession,
    SentAnswer,
    check_request,
    read_asked,
    refuses,
)
from minions.interfaces.server.live.openai_answers import (
    PART,
    AnswerText,
    ChatForm,
    CompletionAnswer,
    CompletionForm,
    ResponseForm,
    run_of_response,
)
from minions.interfaces.server.routes.asked_runs import (
    AskedRun,
    FollowedRun,
    begin_answered_run,
    begin_asked_run,
    digest_of_parts,
    headers_of,
)
from minions.interfaces.server.routes.recipe_routes import is_chat
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.session_routes import session_of
from minions.interfaces.server.server_runtime import ids_of_key
from minions.recipe.model import AgentRecipe

_STREAMS: Final = {EVENT_STREAM: "With `stream`: chunks as server-sent events, in OpenAI's form."}


# --- models --------------------------------------------------------------------------------------


@get("/models", needs=TokenScope.READ)
async def list_models(request: ApiRequest) -> ModelList:
    """List the recipes that can be asked with a text, as models."""
    stored = await request.app_state.threads.run(request.app_state.recipe_store.all)
    recipes = (each.recipe for each in stored if each.recipe is not None)
    return ModelList(
        data=tuple(_model(request, each) for each in recipes if text_input(each) is not None)
    )


@get("/models/{model_id:str}", responses=refuses(404), needs=TokenScope.READ)
async def get_model(request: ApiRequest, model_id: InPath) -> ModelView:
    """One recipe as a model."""
    recipe, _ = await _recipe(request, model_id, None)
    return evolve(_model(request, recipe), id=model_id)  # maybe the name of a deployment


_TAKEN: Final = ("metadata", "response_format", "stream", "stream_options", "user")
_OF_TOOLS: Final = ("parallel_tool_calls", "tool_choice", "tools")


def _model(request: ApiRequest, recipe: AgentRecipe) -> ModelView:
    taken = (*_TAKEN, *_OF_TOOLS) if recipe.offers_caller_tools else _TAKEN
    created = int(request.app_state.started_at.timestamp())
    return ModelView(id=recipe.id, created=created, supported_parameters=tuple(sorted(taken)))


async def _recipe(
    request: ApiRequest, model_id: str, session: str | None, key: str | None = None
) -> tuple[AgentRecipe, int | None]:
    """The recipe that is asked, and which version of a deployment it is; None: of none.

    Args:
        session: The id of the session that the run continues; None: a new one.
        key: The idempotency key; None: there is none.
    Raises:
        NotFoundError, RefusedError: There is none that can be asked with a text.
    """
    try:
        recipe, noted = await request.app_state.starter.stored_recipe(
            model_id, session=session, key=key
        )
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no model '{model_id[:100]}'.{near_hint(error.suggestions)} GET /v1/models "
            "lists all: the recipes of this server that take a text.",
            code=error.error_code,
            suggestions=error.suggestions,
        ) from error
    if text_input(recipe) is None:
        raise no_model(recipe.id)
    return recipe, version_noted(noted)


# --- chat completions and responses --------------------------------------------------------------


@post(
    "/chat/completions",
    status_code=200,
    texts=_STREAMS,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def create_chat_completion(
    request: ApiRequest,
    data: Body[ChatRequest],
    idempotency_key: IdempotencyKey = None,
    in_session: InSession = None,
) -> ApiResponse[ChatCompletion]:
    """Run a recipe with a conversation; its output is the answer."""
    passed_over = data.check()
    turn = read_messages(data.messages, "messages")
    recipe, version = await _recipe(request, data.model, in_session, idempotency_key)
    offered = _check_tools(request, recipe, data, turn)
    if data.response_format is not None:
        check_format(recipe, data.response_format, "response_format")
    session = None if in_session is None else await session_of(request, in_session)
    asked = _Question(
        data=data,
        recipe=recipe,
        version=version,
        turn=turn,
        session=session,
        key=idempotency_key,
        passed_over=passed_over,
        offered=offered,
        place="messages",
    )

    def form(followed: FollowedRun, created: int) -> ChatForm:
        return ChatForm(
            run_id=followed.begun.run_id,
            part=_part_of(turn),
            model=data.model,
            created=created,
            has_usage=data.includes_usage,
        )

    return SentAnswer(await _answer(request, asked, form))


@post(
    "/responses",
    status_code=200,
    texts=_STREAMS,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def create_response(
    request: ApiRequest,
    data: Body[ResponseRequest],
    idempotency_key: IdempotencyKey = None,
    in_session: InSession = None,
) -> ApiResponse[ResponseAnswer]:
    """Run a recipe with an input, or with the next one of a conversation."""
    passed_over = list(data.check())
    turn = read_messages(data.input, "input")
    before, known = None, in_session
    if data.previous_response_id is not None:
        if in_session is not None:
            raise wrong("previous_response_id", "and X-Minions-Session name a session each.")
        before = await _earlier_run(request, data.previous_response_id)
        known = before.session_id
        if turn.results and run_of_call(turn.results[0].id) != before.run_id:
            raise wrong("previous_response_id", "is not the response that asked for these results.")
    recipe, version = await _recipe(request, data.model, known, idempotency_key)
    offered = _check_tools(request, recipe, data, turn)
    for name, value in (data.text or {}).items():
        if name == "format":
            check_format(recipe, value, "text.format")
        else:
            passed_over.append(f"text.{name[:80]}")
    session = None if in_session is None else await session_of(request, in_session)
    if before is not None and not turn.results:
        session = await _session_after(request, before)
    asked = _Question(
        data=data,
        recipe=recipe,
        version=version,
        turn=turn,
        session=session,
        key=idempotency_key,
        passed_over=passed_over,
        offered=offered,
        place="input",
    )

    def form(followed: FollowedRun, created: int) -> ResponseForm:
        return ResponseForm(
            run_id=followed.begun.run_id,
            part=_part_of(turn),
            model=data.model,
            created=created,
            previous_id=data.previous_response_id,
            metadata=data.metadata or {},
            tools=followed.caller_tools,
            choice=followed.caller_choice,
        )

    return SentAnswer(await _answer(request, asked, form))


async def _earlier_run(request: ApiRequest, response: str) -> RunSummary:
    """The run of an earlier response.

    Raises:
        NotFoundError: There is no such response, or it is another user's.
    """
    try:
        return await find_exact(request, run_of_response(response))
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no response '{response[:100]}'.", code="unknown-run"
        ) from error


async def _session_after(request: ApiRequest, run: RunSummary) -> Session:
    """The session of an earlier run, or a fork of it where others followed."""
    session = await session_of(request, run.session_id)
    if session.last_run_id == run.run_id:
        return session
    repository = request.app_state.repository
    steps = await repository.get_steps(session.id)
    own = [step.sequence for step in steps if step.run_id == run.run_id]
    return await repository.fork(session.id, own[-1]) if own else session


def _check_tools(
    request: ApiRequest,
    recipe: AgentRecipe,
    data: ChatRequest | ResponseRequest,
    turn: ChatTurn,
) -> OfferedTools:
    """What the request lets the model call of the tools that it brings.

    Raises:
        UsageError: As of `read_tools` and `read_choice`; or messages are about tools, and the
            recipe offers none.
    """
    given = None if data.tools is None else [dict(each) for each in data.tools]
    tools = read_tools(recipe, given, request.app_state.runtime.catalog)
    is_single = data.parallel_tool_calls is False
    offered = read_choice(data.tool_choice, tools, is_single=is_single)
    if turn.of_tools is not None and not recipe.offers_caller_tools:
        raise unsupported(turn.of_tools, REFUSED_TOOLS)
    return offered


def _part_of(turn: ChatTurn) -> str:
    """Which answer of its run a request gets, for the id of the answer."""
    if not turn.results:
        return ""
    return PART + digest_of_parts(*(each.id for each in turn.results))[:8]


_FormOf: TypeAlias = Callable[[FollowedRun, int], CompletionForm]
"""Makes the form of an answer of the run and the time."""


@frozen(kw_only=True)
class _Question:
    """What a request of either form asks."""

    data: ChatRequest | ResponseRequest
    recipe: AgentRecipe
    version: int | None
    """Which version of a deployment the recipe is; None: of none."""
    turn: ChatTurn
    session: Session | None
    key: str | None
    passed_over: Sequence[str]
    offered: OfferedTools
    place: str
    """The name of the parameter with its messages."""


async def _answer(request: ApiRequest, asked: _Question, form: _FormOf) -> CompletionAnswer:
    """Begin the run, or let the one continue whose calls have their results now, and answer with
    its events.

    Raises:
        MinionsError: As of `begin_asked_run` and `begin_answered_run`.
    """
    state, turn = request.app_state, asked.turn
    passed_over, offered = [*asked.passed_over, *turn.passed_over], asked.offered
    if asked.data.parallel_tool_calls is not None and not offered.tools:
        passed_over.append("parallel_tool_calls")
    if turn.results:
        followed = await begin_answered_run(request, asked.recipe, turn.results, asked.place)
        if offered.tools and offered.tools != followed.caller_tools:
            # The run has what it began with.
            is_chosen = offered.brought == followed.caller_tools
            passed_over.append("tool_choice" if is_chosen else "tools")
        choice = offered.choice
        if choice.must_call and "tool_choice" not in passed_over:
            passed_over.append("tool_choice")  # it is about the first answer of a step
        if offered.tools and choice.is_single is not followed.caller_choice.is_single:
            passed_over.append("parallel_tool_calls")
        passed_over += [each for each in ("metadata", "user") if getattr(asked.data, each)]
    else:
        followed = await _begin(request, asked, passed_over)
    return CompletionAnswer(
        followed.stream,
        AnswerText(
            followed.begun.run_id, followed.answering, state.options.public_url, followed.waiting
        ),
        form(followed, int(state.runtime.services.clock.now().timestamp())),
        threads=state.threads,
        is_streamed=bool(asked.data.stream),
        headers=headers_of(followed, passed_over),
    )


async def _begin(request: ApiRequest, asked: _Question, passed_over: list[str]) -> FollowedRun:
    """Begin a new run.

    Args:
        passed_over: Places of what has no effect; added to.
    """
    recipe, turn = asked.recipe, asked.turn
    earlier = [*turn.earlier(asked.offered.brought)]
    name = text_input(recipe)
    assert name is not None  # noqa: S101  # else `_recipe` refuses it
    followed = await begin_asked_run(
        request,
        AskedRun(
            name=asked.data.model,
            recipe=recipe,
            version=asked.version,
            inputs={**dict(inputs_in(recipe, asked.data.metadata)), name: turn.text},
            earlier=[message for message, _ in earlier],
            caller_tools=asked.offered.tools,
            caller_choice=asked.offered.choice,
            session=asked.session,
            new_session=_session_of_key(request, asked) if earlier else None,
            user=asked.data.user,
            key=asked.key,
        ),
    )
    if turn.said and not followed.reads_earlier:
        passed_over.append("earlier messages")  # the session has them, or the recipe takes none
    elif len(earlier) < len(turn.said):
        passed_over.append("calls without results")
    return followed


def _session_of_key(request: ApiRequest, asked: _Question) -> str | None:
    """The id of the session for messages that come with a key, the same each time; None: any."""
    if asked.key is None or not is_chat(asked.recipe):
        return None
    earlier = (each for each, _ in asked.turn.said)
    told: list[JsonValue] = [
        each.to_message_dict()
        if each.tool_calls or each.tool_call_id
        else [each.role, each.content]
        for each in earlier
    ]
    said = dumps(told).encode("utf-8", "surrogatepass")
    whole = f"{request.owner or ''}\0{asked.key}\0{hashlib.sha256(said).hexdigest()}"
    return ids_of_key(whole, request.app_state.runtime.services.ids)("ses")


OPENAI: Final = Router(
    "/v1",
    route_handlers=[list_models, get_model, create_chat_completion, create_response],
    request_class=ApiRequest,
    response_class=ApiResponse,
    before_request=check_request,
    dependencies={"asked": Provide(read_asked, sync_to_thread=False)},
)
"""As `API`, with errors in OpenAI's form."""
