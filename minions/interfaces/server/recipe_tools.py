"""Recipes as tools for other programs: what each takes and gives, and its runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

from attrs import evolve, frozen

from minions.contracts.executions import AgentResult
from minions.contracts.run_events import RunEvent, StepFinished, StepStarted, ToolProgress
from minions.data.codec import encode
from minions.data.errors import FailureInfo, NotFoundError, near_hint, near_names
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema
from minions.data.texts import with_options
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import Caller
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.server_runtime import ServerRuntime
from minions.recipe.model import AgentRecipe, InputSpec, StepSpec

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME: Final = 64

RunProgress: TypeAlias = Callable[[float, float, str], None]
"""Takes how many steps have ended, of how many, and what happens now."""


@frozen(kw_only=True)
class RecipeTool:
    """A recipe, as another program sees it."""

    name: str
    recipe: AgentRecipe

    @property
    def description(self) -> str:
        """What it does, in the author's words."""
        recipe = self.recipe
        return recipe.description.strip() or recipe.name or f"Runs {recipe.id}."

    @property
    def input_schema(self) -> dict[str, JsonValue]:
        """JSON Schema of the inputs."""
        inputs = self.recipe.inputs
        required: list[JsonValue] = [name for name, spec in inputs.items() if not spec.has_default]
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {name: _property(spec) for name, spec in inputs.items()},
            "additionalProperties": False,
        }
        return {**schema, "required": required} if required else schema

    @property
    def output_schema(self) -> JsonSchema | None:
        """JSON Schema of the output, where the recipe promises one: its last step declares an
        object, and gives the output of the run. None: anything may come.
        """
        last = self.recipe.steps[-1] if self.recipe.steps else None
        if self.recipe.output is not None or self.recipe.graph is not None:
            return None
        if not isinstance(last, StepSpec) or last.loop is not None or last.repeat is not None:
            return None
        if last.when is not None or last.optional:
            return None
        schema: JsonSchema | None = getattr(last, "output", None)
        is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
        return schema if is_object else None


def _property(spec: InputSpec) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = dict(spec.schema)
    about = spec.description
    if spec.is_secret:
        about = f"{about} A reference to a secret, such as env:NAME; never the secret.".strip()
    if about:
        schema["description"] = about
    if spec.has_default and not spec.is_secret:
        schema["default"] = spec.default
    return schema


def _tool_name(recipe_id: str) -> str:
    return _UNFIT.sub("_", recipe_id)[:_MOST_NAME]


@frozen(kw_only=True)
class ToolOutcome:
    """How a run ended."""

    output: JsonValue
    error: FailureInfo | None
    """None: it completed."""
    run_id: str


class RecipeTools:
    """The recipes of folders, and runs of them for callers who are trusted with no more than the
    inputs that the operator offers.
    """

    def __init__(
        self, store: RecipeStore, runtime: ServerRuntime, *, max_runs: int, options: str = ""
    ) -> None:
        """Nothing is read yet.

        Args:
            max_runs: Runs at a time; further ones are refused.
            options: What the operator's commands need to find a run of this server again.
        """
        self._options = options
        self._store = store
        self._runtime = runtime
        self._threads = runtime.threads
        self._max_runs = max_runs
        self._active = 0

    async def list(self) -> Sequence[RecipeTool]:
        """The recipes that can run, by id. One with faults harms no other."""
        found = await self._threads.run(self._store.all)
        tools: dict[str, RecipeTool] = {}
        for each in found:
            name = _tool_name(each.id)
            if each.recipe is not None and name not in tools:
                tools[name] = RecipeTool(name=name, recipe=each.recipe)
        return tuple(tools.values())

    def collisions(self) -> Sequence[tuple[str, str]]:
        """Recipes that are left out, each with the one that has its name. Reads all of them."""
        owners: dict[str, str] = {}
        found: list[tuple[str, str]] = []
        for each in self._store.all():
            owner = owners.setdefault(_tool_name(each.id), each.id) if each.recipe else each.id
            if owner != each.id:
                found.append((each.id, owner))
        return found

    async def find(self, name: str) -> RecipeTool:
        """The recipe of that name.

        Raises:
            NotFoundError: There is none.
        """
        tools = {tool.name: tool for tool in await self.list()}
        if name not in tools:
            near = near_names(name, tools)
            raise NotFoundError(
                f"There is no recipe '{name:.100}'.{near_hint(near)} Recipes are: "
                f"{', '.join(tools) or 'none'}.",
                code="recipe-not-found",
                suggestions=near,
            )
        return tools[name]

    async def run(
        self,
        name: str,
        inputs: Mapping[str, JsonValue],
        progress: RunProgress | None = None,
        caller: Caller | None = None,
    ) -> ToolOutcome:
        """Run the recipe to its end. Cancelled, the run is; what it did is recorded.

        Args:
            caller: Whose token it is, for whose user it runs; None: there is no token.
        Raises:
            NotFoundError: There is no such recipe.
            UsageError: Inputs are wrong; nothing was started.
            RefusedError: A folder or secret that is not offered, or too many runs.
        """
        tool = await self.find(name)
        if self._active >= self._max_runs:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too-many-runs",
                f"{self._active} runs are active; no more at a time. Try again later.",
            )
        self._active += 1
        try:
            return await self._run(tool.recipe, inputs, progress, caller)
        finally:
            self._active -= 1

    async def _run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        progress: RunProgress | None,
        caller: Caller | None,
    ) -> ToolOutcome:
        user, token = (None, None) if caller is None else (caller.user, caller.name)
        note = self._runtime.note(token=token)
        executor = self._runtime.executor(recipe, inputs, note=note)
        run = await match_beside_loop(
            lambda: executor.prepare(recipe, inputs, note=note, user=user)
        )
        if progress is not None:
            run.listen(_Steps(len(recipe.steps), progress))
        result: AgentResult[JsonValue] = await run.execute()
        output = encode(result.output) if result.error is None else None
        error = result.error
        if error is not None:
            message = with_options(error.message, result.run_id, self._options)
            error = evolve(error, message=message)
        return ToolOutcome(output=output, error=error, run_id=result.run_id)

    async def aclose(self) -> None:
        """Close what runs opened."""
        await self._runtime.aclose()


class _Steps:
    """Tells which of the recipe's own steps have ended."""

    def __init__(self, count: int, progress: RunProgress) -> None:
        self._count = count
        self._progress = progress
        self._ended: set[str] = set()

    def __call__(self, event: RunEvent) -> None:
        """Tell the progress that an event means."""
        if isinstance(event, StepStarted) and event.index is None:
            self._tell(event.step_id)
        elif isinstance(event, StepFinished) and event.index is None and "/" not in event.address:
            self._ended.add(event.step_id)
            self._tell(event.step_id)
        elif isinstance(event, ToolProgress):
            self._tell(f"{event.step_id}: {event.tool} {event.message or ''}".rstrip())

    def _tell(self, words: str) -> None:
        done = min(len(self._ended), self._count)
        self._progress(float(done), float(self._count), words)
