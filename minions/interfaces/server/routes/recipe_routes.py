"""`/recipes`: stored recipes, as data and as a picture. `/agents`: the same as agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

from attrs import evolve, field, frozen
from litestar import Router, get, post

from minions.analysis.pictures.picture import Picture, picture_of
from minions.app.evaluating.background_scores import StoredWatch, stored_watches
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.interfaces.http.http_answers import FaultView, fault_view, json_bytes_in_parts
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.run_documents import RunAccepted
from minions.interfaces.server.documents.shared_documents import (
    Agents,
    AgentView,
    InputView,
    Page,
    RecipeRow,
    Recipes,
    RecipeView,
    StepOfRecipe,
    TaskRequest,
    WatchedScorerView,
    WatchView,
)
from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    Asked,
    Body,
    IdempotencyKey,
    InPath,
    answer,
    caller_in,
    refuses,
)
from minions.interfaces.server.live.server_runs import RequestedRun
from minions.interfaces.server.recipe_store import StoredRecipe
from minions.interfaces.server.routes.run_routes import accepted
from minions.interfaces.server.routes.session_routes import user_in
from minions.recipe.model import MESSAGE_INPUT, AgentRecipe, InputSpec, StepSpec
from minions.recipe.permissions import tool_specs

_SVG = "image/svg+xml"
_MERMAID = "text/vnd.mermaid"
PICTURE_TYPES = {_SVG: "With format=svg.", _MERMAID: "With format=mermaid."}


@frozen(kw_only=True)
class PictureForm:
    """The format of a picture."""

    format: str = field(default="json", metadata={"schema": {"enum": ["json", "svg", "mermaid"]}})


def is_chat(recipe: AgentRecipe) -> bool:
    """Whether the recipe holds conversations: it has an input `message` and a step with memory."""
    shares = any(step.shares_conversation for step in recipe.steps)
    return MESSAGE_INPUT in recipe.inputs and shares


# --- recipes --------------------------------------------------------------------------------------


@get(needs=TokenScope.READ)
async def list_recipes(request: ApiRequest, asked: Asked[Page]) -> Recipes:
    """List the stored recipes; those with faults have no version and no steps."""
    limit, offset, store = asked.limit, asked.offset, request.app_state.recipe_store

    def listed() -> Recipes:
        stored = store.all()
        rows = tuple(map(_row, stored[offset : offset + limit]))
        watched.update(each.id for each in stored if each.recipe and each.recipe.watch)
        return Recipes(recipes=rows, total=len(stored), limit=limit, offset=offset)

    watched: set[str] = set()
    found = await request.app_state.threads.run(listed)
    views = await _watch_views(request, watched)
    rows = (evolve(each, watch=views.get(each.id)) for each in found.recipes)
    return evolve(found, recipes=tuple(rows)) if views else found


async def _watch_views(request: ApiRequest, watched: Collection[str]) -> Mapping[str, WatchView]:
    """What was found of the runs of these recipes, by their ids; nothing is read for none.

    Raises:
        JournalError: The database cannot be used.
    """
    if not watched or caller_in(request).owner is not None:
        return {}
    services = request.app_state.runtime.services
    found = await stored_watches(request.app_state.marks, services.clock.now(), services.project)
    return {each.recipe: _watch_view(each) for each in found if each.recipe in watched}


def _watch_view(watch: StoredWatch) -> WatchView:
    scorers = () if watch.report is None else watch.report.scorers
    return WatchView(
        looked_at=watch.looked_at.isoformat(),
        scorers=tuple(
            WatchedScorerView(
                scorer=each.scorer,
                scored=each.scored,
                failed=each.failed,
                rate=None if each.recent is None else each.recent.value,
                low=None if each.recent is None else each.recent.low,
                high=None if each.recent is None else each.recent.high,
                before=None if each.before is None else each.before.value,
                alarm_since=None
                if (at := watch.alarms.get(each.scorer)) is None
                else at.isoformat(),
                run_id=each.worse_run,
            )
            for each in scorers
        ),
    )


def _row(stored: StoredRecipe) -> RecipeRow:
    recipe = stored.recipe
    if recipe is None:
        return RecipeRow(id=stored.id, ok=False, fault_count=stored.fault_count)
    return RecipeRow(
        id=stored.id,
        ok=True,
        version=recipe.version,
        name=recipe.name,
        description=recipe.description,
        steps=len(recipe.steps),
        is_agent=is_chat(recipe),
        warnings=_warnings(stored),
    )


def _warnings(stored: StoredRecipe) -> tuple[FaultView, ...]:
    """What the check warned of, with the names of files and without their folders."""
    return tuple(
        evolve(fault_view(each), file=PurePath(each.file).name) for each in stored.warnings
    )


@get("/{recipe_id:str}", responses=refuses(404), needs=TokenScope.READ)
async def get_recipe(request: ApiRequest, recipe_id: InPath) -> RecipeView:
    """One recipe: its inputs, its steps, and what its check warns of."""
    store = request.app_state.recipe_store
    stored = await request.app_state.threads.run(lambda: store.find(recipe_id))
    view = await request.app_state.threads.run(lambda: _recipe_view(request, stored))
    has_watch = stored.recipe is not None and stored.recipe.watch is not None
    watches = await _watch_views(request, [stored.id] if has_watch else ())
    return evolve(view, watch=watches.get(stored.id))


def _recipe_view(request: ApiRequest, stored: StoredRecipe) -> RecipeView:
    recipe = stored.recipe
    assert recipe is not None  # noqa: S101  # what `find` gives can run
    path = f"/recipes/{recipe.id}"
    return RecipeView(
        id=recipe.id,
        version=recipe.version,
        name=recipe.name,
        description=recipe.description,
        is_agent=is_chat(recipe),
        inputs=tuple(_input(name, spec) for name, spec in recipe.inputs.items()),
        steps=tuple(_steps(recipe)),
        warnings=_warnings(stored),
        links={"graph": request.link(f"{path}/graph"), "schema": request.link(f"{path}/schema")},
    )


async def _recipe(request: ApiRequest, recipe_id: str) -> AgentRecipe:
    store = request.app_state.recipe_store
    return await request.app_state.threads.run(lambda: store.get(recipe_id))


def _input(name: str, spec: InputSpec) -> InputView:
    return InputView(
        name=name,
        schema=spec.schema,
        required=not spec.has_default,
        secret=spec.is_secret,
        default=spec.default,
        description=spec.description,
    )


def _steps(recipe: AgentRecipe) -> Sequence[StepOfRecipe]:
    return [
        StepOfRecipe(
            id=step.id,
            kind=type(step).__name__.removesuffix("Step").removesuffix("Spec").lower(),
            description=step.description,
            depends_on=step.depends_on if isinstance(step, StepSpec) else (),
        )
        for step in recipe.steps
    ]


@get("/{recipe_id:str}/graph", responses=refuses(404), texts=PICTURE_TYPES, needs=TokenScope.READ)
async def draw_recipe(
    request: ApiRequest, recipe_id: InPath, asked: Asked[PictureForm]
) -> ApiResponse[dict[str, object]]:
    """The graph of the recipe's steps."""
    recipe = await _recipe(request, recipe_id)
    catalog = request.app_state.runtime.catalog
    return await request.app_state.threads.run(
        lambda: picture_answer(picture_of(recipe, tool_specs(recipe, catalog)), asked)
    )


def picture_answer(picture: Picture, form: PictureForm) -> ApiResponse[dict[str, object]]:
    """The picture in the requested format."""
    if form.format == "svg":
        from minions.analysis.pictures.svg import svg

        return answer(svg(picture).encode(), media_type=_SVG)
    if form.format == "mermaid":
        from minions.analysis.pictures.text_pictures import mermaid

        return answer(mermaid(picture).encode(), media_type=_MERMAID)
    from minions.analysis.pictures.text_pictures import picture_to_json

    return answer(json_bytes_in_parts(encode(picture_to_json(picture))))


@get("/{recipe_id:str}/schema", responses=refuses(404), needs=TokenScope.READ)
async def get_inputs_schema(request: ApiRequest, recipe_id: InPath) -> dict[str, JsonValue]:
    """The JSON Schema of the recipe's inputs."""
    recipe = await _recipe(request, recipe_id)
    properties: dict[str, JsonValue] = {}
    for name, spec in recipe.inputs.items():
        schema: dict[str, JsonValue] = {**spec.schema}
        if spec.description:
            schema["description"] = spec.description
        if spec.has_default:
            schema["default"] = spec.default
        properties[name] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": recipe.id,
        "type": "object",
        "properties": properties,
        "required": [name for name, spec in recipe.inputs.items() if not spec.has_default],
        "additionalProperties": False,
    }


# --- agents ---------------------------------------------------------------------------------------


@get(needs=TokenScope.READ)
async def list_agents(request: ApiRequest, asked: Asked[Page]) -> Agents:
    """List the recipes as agents: chat agents take a message, others inputs."""
    stored = await request.app_state.threads.run(request.app_state.recipe_store.all)
    able = [each.recipe for each in stored if each.recipe is not None]
    limit, offset = asked.limit, asked.offset
    views = tuple(
        AgentView(
            name=recipe.id,
            description=recipe.description,
            is_chat=is_chat(recipe),
            takes_tools=recipe.offers_caller_tools,
            links={"run": request.link(f"/agents/{recipe.id}/run")},
        )
        for recipe in able[offset : offset + limit]
    )
    return Agents(agents=views, total=len(able), limit=limit, offset=offset)


@post("/{name:str}/run", status_code=202, responses=refuses(404, 409, 429), needs=TokenScope.RUN)
async def run_agent(
    request: ApiRequest,
    name: InPath,
    data: Body[TaskRequest],
    idempotency_key: IdempotencyKey = None,
) -> ApiResponse[RunAccepted]:
    """Start a task of an agent; it continues in the background."""
    inputs: Mapping[str, JsonValue] = data.inputs
    if data.message is not None:
        if MESSAGE_INPUT in inputs:
            raise UsageError("Give the message once: beside `inputs`, or in it.", code="bad-body")
        inputs = {**inputs, MESSAGE_INPUT: data.message}
    wanted = RequestedRun(
        recipe=name,
        inputs=inputs,
        session=data.session,
        user=await user_in(request, data.session, data.user),
        key=idempotency_key,
        owner=request.owner,
        token=request.caller.name,
    )
    return await accepted(request, await request.app_state.starter.begin(wanted))


RECIPES = Router(
    "/recipes", route_handlers=[list_recipes, get_recipe, draw_recipe, get_inputs_schema]
)
AGENTS = Router("/agents", route_handlers=[list_agents, run_agent])
