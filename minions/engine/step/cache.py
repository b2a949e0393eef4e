"""Steps with `cache: true`: the cache key of an output, and the look-up of stored outputs.

The store is handed in as `Services.cache`; when a step looks there is the step executor's matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import Message, message_to_json
from minions.contracts.steps import USUAL_SEARCH, CachedStep, Step, StepCache
from minions.contracts.tools import Effect, ToolSpec
from minions.data.codec import encode
from minions.data.errors import MinionsError, words_of
from minions.data.json_values import JsonValue
from minions.engine.compile.kinds.goal import GoalStep
from minions.engine.compile.recipe_step import Fingerprint
from minions.engine.context.step_view import StepView

_FORMAT: Final = 1
"""Version of the hashed form; a new number makes every stored output unknown."""


def question_fingerprint(
    step: Step[object], opening: Sequence[Message], output: OutputInstructions[object] | None
) -> Fingerprint:
    """Of a step that puts a question to a model."""
    criteria = step.completion_criteria
    asked: dict[str, JsonValue] = {
        "messages": [message_to_json(message) for message in opening],
        "output": output.json_schema() if output is not None else None,
        "completion": [criteria.mode.value, list(criteria.patterns)],
        "tool_failure": step.tool_failure,
    }
    if (search := step.tool_search) != USUAL_SEARCH:
        asked["tool_search"] = [search.is_on, list(search.always)]
    if isinstance(step, GoalStep):
        asked["links"] = list(step.spec.completion_links)
    tools = sorted(step.available_tools)
    return Fingerprint(asked=asked, tools=tools, has_folder=bool(tools))


@frozen(kw_only=True)
class StepCaching:
    """How one step of one run uses the cache."""

    cache: StepCache | None
    """None: keys are computed, but nothing is looked up or stored."""
    models: Callable[[], JsonValue]
    """Returns the models that the step may ask and their options; None where not known."""
    asked: set[str]
    """Keys that were looked up in the run: a further attempt at the same is no repetition."""

    def note_asked(self, key: str) -> None:
        """The run has looked it up."""
        self.asked.add(key)

    def key(self, fingerprint: Fingerprint, view: StepView) -> str | None:
        """The cache key for that fingerprint; None: it must not be cached, and the log says why."""
        models = self.models() if fingerprint.asks_model else []
        specs = [found.spec for name in fingerprint.tools if (found := view.tools.find(name))]
        opening = view.context.scope.opening
        material = encode(
            {
                "format": _FORMAT,
                "asked": fingerprint.asked,
                "models": models,
                "tools": [_told(spec) for spec in specs],
                "toolsets": list(_toolsets(view, fingerprint.tools)),
                "folder": str(Path.cwd()) if fingerprint.has_folder else None,
                # Else a caller would get what a recipe within read where they may not.
                **({} if opening is None else opening.offer.to_note()),
            }
        )
        if (reason := _refusal(view, material, specs, is_known=models is not None)) is not None:
            view.log.info("step_not_cached", reason=reason)
            return None
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()

    async def find(self, key: str, view: StepView) -> CachedStep | None:
        """The output stored under that key; None: none, or the cache cannot be read."""
        if self.cache is None:
            return None
        try:
            return await self.cache.get(key)
        except Exception as error:  # noqa: BLE001  # an application's store raises anything
            _tell(view, "step_cache_unreadable", error)
            return None

    async def keep(self, key: str, output: JsonValue, view: StepView) -> None:
        """Store the output under that key; a cache that cannot be written is only logged."""
        if self.cache is None:
            return
        now = view.context.scope.services.clock.now()
        entry = CachedStep(output=output, run_id=view.run_id, created_at=now)
        try:
            await self.cache.put(key, entry)
        except Exception as error:  # noqa: BLE001  # likewise
            _tell(view, "step_cache_unwritable", error)


def _tell(view: StepView, event: str, error: Exception) -> None:
    reason = error.message if isinstance(error, MinionsError) else words_of(error)
    view.log.warning(event, reason=reason)


def _told(spec: ToolSpec) -> JsonValue:
    declared = () if spec.returns is None else (spec.returns,)
    return [spec.name, spec.description, spec.parameters, spec.effect.value, *declared]


def _toolsets(view: StepView, tools: Sequence[str]) -> Iterator[JsonValue]:
    """With which options the toolsets of these tools were opened."""
    recipe = view.context.recipe
    for use in recipe.tools:
        prefix = f"{use.prefix or use.name}__"
        if any(name.startswith(prefix) for name in tools):
            options = recipe.templates.compile(use.options)
            yield [use.name, prefix, options.render(view.values)]


def _refusal(
    view: StepView, material: JsonValue, specs: Sequence[ToolSpec], *, is_known: bool
) -> str | None:
    if not is_known:
        return "which model answers is not known: the application carries out model calls itself"
    if view.secrets.are_named_in(material):
        return "a secret is part of what it asks"
    unsafe = [spec.name for spec in specs if spec.effect is not Effect.PURE]
    return f"these tools are not declared pure: {', '.join(unsafe)}" if unsafe else None
