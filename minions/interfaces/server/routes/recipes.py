"""`/recipes`: what can be run, as data and as a picture. `/agents`: the same, by what they take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from attrs import field, frozen

from minions.analysis.pictures.picture import Picture, picture_of
from minions.analysis.tool_specs import tool_specs
from minions.contracts.errors import MinionsError, RecipeError, UsageError
from minions.contracts.json_values import JsonValue
from minions.engine.history.conversation import MESSAGE_INPUT
from minions.interfaces.server.documents.common import (
    Agents,
    AgentView,
    InputView,
    Page,
    RecipeRow,
    Recipes,
    RecipeView,
    StepOfRecipe,
    TaskRequest,
)
from minions.interfaces.server.documents.runs import RunAccepted
from minions.interfaces.server.endpoints import Call, Endpoint, Nothing
from minions.interfaces.server.http.problems import FaultView, fault_view
from minions.interfaces.server.http.responses import Answer, AsgiApp
from minions.interfaces.server.live.run_starter import RequestedRun
from minions.interfaces.server.recipe_store import StoredRecipe
from minions.interfaces.server.routes.runs import accepted
from minions.recipe.model import AgentRecipe, InputSpec, StepSpec

__all__ = ["PICTURE_TYPES", "RECIPE_ENDPOINTS", "PictureForm", "is_chat", "picture_answer"]

_SVG = "image/svg+xml"
_MERMAID = "text/vnd.mermaid"
PICTURE_TYPES = {_SVG: "With format=svg.", _MERMAID: "With format=mermaid."}


@frozen(kw_only=True)
class PictureForm:
    """How the picture is wanted."""

    format: str = field(default="json", metadata={"schema": {"enum": ["json", "svg", "mermaid"]}})


def is_chat(recipe: AgentRecipe) -> bool:
    """Whether one can talk with it: it takes a message, and a step of it shares the session."""
    shares = any(step.shares_conversation for step in recipe.steps)
    return MESSAGE_INPUT in recipe.inputs and shares


# --- recipes --------------------------------------------------------------------------------------


async def all_recipes(call: Call[Page, None]) -> AsgiApp:
    """Broken ones too, with what is wrong."""
    stored = await asyncio.to_thread(call.app_state.recipe_store.all)
    limit, offset = call.query.limit, call.query.offset
    rows = tuple(map(_row, stored[offset : offset + limit]))
    reply = Recipes(recipes=rows, total=len(stored), limit=limit, offset=offset)
    return Answer(HTTPStatus.OK, reply)


def _row(stored: StoredRecipe) -> RecipeRow:
    recipe = stored.recipe
    if recipe is None:
        return RecipeRow(id=stored.id, ok=False, faults=_faults(stored.error))
    return RecipeRow(
        id=stored.id,
        ok=True,
        version=recipe.version,
        name=recipe.name,
        description=recipe.description,
        steps=len(recipe.steps),
        is_agent=is_chat(recipe),
    )


def _faults(error: MinionsError | None) -> tuple[FaultView, ...]:
    if isinstance(error, RecipeError):
        return tuple(map(fault_view, error.faults))
    if error is None:
        return ()
    return (
        FaultView(code=error.error_code, message=error.message, file="<recipe>", line=1, column=1),
    )


async def one_recipe(call: Call[Nothing, None]) -> AsgiApp:
    """Inputs and steps."""
    recipe = await _recipe(call)
    path = f"/recipes/{recipe.id}"
    reply = RecipeView(
        id=recipe.id,
        version=recipe.version,
        name=recipe.name,
        description=recipe.description,
        is_agent=is_chat(recipe),
        inputs=tuple(_input(name, spec) for name, spec in recipe.inputs.items()),
        steps=tuple(_steps(recipe)),
        links={"graph": call.link(f"{path}/graph"), "schema": call.link(f"{path}/schema")},
    )
    return Answer(HTTPStatus.OK, reply)


async def _recipe(call: Call[object, None]) -> AgentRecipe:
    return await asyncio.to_thread(call.app_state.recipe_store.get, call.path["recipe_id"])


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


async def recipe_graph(call: Call[PictureForm, None]) -> AsgiApp:
    """The picture of its steps."""
    recipe = await _recipe(call)
    catalog = call.app_state.runtime.extensions.catalog()
    return picture_answer(picture_of(recipe, tool_specs(recipe, catalog)), call.query)


def picture_answer(picture: Picture, form: PictureForm) -> Answer:
    """As it is wanted."""
    if form.format == "svg":
        from minions.analysis.pictures.svg import svg

        return Answer(HTTPStatus.OK, svg(picture).encode(), _SVG)
    if form.format == "mermaid":
        from minions.analysis.pictures.mermaid import mermaid

        return Answer(HTTPStatus.OK, mermaid(picture).encode(), _MERMAID)
    from minions.analysis.pictures.data import picture_to_json

    return Answer(HTTPStatus.OK, picture_to_json(picture))


async def recipe_schema(call: Call[Nothing, None]) -> AsgiApp:
    """The JSON Schema of the inputs."""
    recipe = await _recipe(call)
    properties: dict[str, JsonValue] = {}
    for name, spec in recipe.inputs.items():
        schema: dict[str, JsonValue] = {**spec.schema}
        if spec.description:
            schema["description"] = spec.description
        if spec.has_default:
            schema["default"] = spec.default
        properties[name] = schema
    reply: dict[str, JsonValue] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": recipe.id,
        "type": "object",
        "properties": properties,
        "required": [name for name, spec in recipe.inputs.items() if not spec.has_default],
        "additionalProperties": False,
    }
    return Answer(HTTPStatus.OK, reply)


# --- agents ---------------------------------------------------------------------------------------


async def all_agents(call: Call[Page, None]) -> AsgiApp:
    """Every recipe that can run."""
    stored = await asyncio.to_thread(call.app_state.recipe_store.all)
    able = [each.recipe for each in stored if each.recipe is not None]
    limit, offset = call.query.limit, call.query.offset
    views = tuple(
        AgentView(
            name=recipe.id,
            description=recipe.description,
            is_chat=is_chat(recipe),
            links={"run": call.link(f"/agents/{recipe.id}/run")},
        )
        for recipe in able[offset : offset + limit]
    )
    reply = Agents(agents=views, total=len(able), limit=limit, offset=offset)
    return Answer(HTTPStatus.OK, reply)


async def run_agent(call: Call[Nothing, TaskRequest]) -> AsgiApp:
    """A run of it, which goes on by itself."""
    body, name = call.body, call.path["name"]
    inputs: Mapping[str, JsonValue] = body.inputs
    if body.message is not None:
        if MESSAGE_INPUT in inputs:
            raise UsageError("Give the message once: beside `inputs`, or in it.", code="bad-body")
        inputs = {**inputs, MESSAGE_INPUT: body.message}
    wanted = RequestedRun(
        recipe=name, inputs=inputs, session=body.session, key=call.headers.get("idempotency-key")
    )
    return await accepted(call, await call.app_state.starter.begin(wanted))


RECIPE_ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/recipes",
        name="listRecipes",
        summary="The stored recipes; broken ones with their faults.",
        handler=all_recipes,
        query=Page,
        gives={200: Recipes},
    ),
    Endpoint(
        method="GET",
        path="/recipes/{recipe_id}",
        name="getRecipe",
        summary="One recipe: its inputs and steps.",
        handler=one_recipe,
        gives={200: RecipeView},
        refuses=(404,),
    ),
    Endpoint(
        method="GET",
        path="/recipes/{recipe_id}/graph",
        name="drawRecipe",
        summary="The recipe's steps and what waits for what.",
        handler=recipe_graph,
        query=PictureForm,
        gives={200: dict[str, object]},
        media_types=PICTURE_TYPES,
        refuses=(404,),
    ),
    Endpoint(
        method="GET",
        path="/recipes/{recipe_id}/schema",
        name="getInputsSchema",
        summary="The JSON Schema of what a run of it takes.",
        handler=recipe_schema,
        gives={200: dict[str, object]},
        refuses=(404,),
    ),
    Endpoint(
        method="GET",
        path="/agents",
        name="listAgents",
        summary="Recipes as agents: chat agents take a message, others inputs.",
        handler=all_agents,
        query=Page,
        gives={200: Agents},
    ),
    Endpoint(
        method="POST",
        path="/agents/{name}/run",
        name="runAgent",
        summary="Let the agent do something; it goes on by itself.",
        handler=run_agent,
        body=TaskRequest,
        headers={"idempotency-key": "The same key and body is the same run."},
        gives={202: RunAccepted},
        refuses=(404, 409, 429),
    ),
)
