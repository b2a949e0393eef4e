"""Partial runs: which steps were asked for, and which other steps they need.

`pins` looks up the outputs of those in an earlier run; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final, cast

from attrs import evolve, field, frozen

from minions.contracts.journal.facts import RecordedItem, RecordedPart
from minions.contracts.journal.journal import Journal
from minions.data.errors import NotFoundError, UsageError, near_hint, near_names
from minions.data.json_values import JsonValue, dumps
from minions.data.words import shell_word
from minions.engine.views.lookup import json_of_blob
from minions.recipe.model import AgentRecipe, StepSpec

NOT_ASKED_FOR: Final = "not asked for"
"""Why a step is skipped that is not in the part that runs."""


@frozen(kw_only=True)
class RunPart:
    """Which steps of a recipe run. The outputs that they need of other steps are pinned."""

    first: str | None = None
    """Run this step and all that depend on it."""
    until: str | None = None
    """Run this step and all that it needs."""
    only: str | None = None
    """Run this step alone."""
    pinned: Mapping[str, JsonValue] = field(factory=dict)
    """By step id, the outputs of steps that are needed and do not run."""
    passed_over: tuple[str, ...] = ()
    """Ids of steps that are needed and were skipped by their condition."""
    pinned_from: str = "caller"
    """The run that the pinned outputs come from; `caller`: they were given as arguments."""


@frozen(kw_only=True)
class ChildItem:
    """What a child run executes of its one step."""

    index: int | None = None
    """The index of the item in its loop, from 0; None: the step has no loop."""
    value: JsonValue = None
    """What templates read as `loop.item`."""


@frozen(kw_only=True)
class ChosenSteps:
    """A `RunPart` resolved for one recipe; stored with the run, which keeps it for good."""

    runs: frozenset[str]
    pinned: Mapping[str, JsonValue] = field(factory=dict)
    """Of a child run: what templates read as `steps`."""
    passed_over: frozenset[str] = frozenset()
    pinned_from: str = "caller"
    item: ChildItem | None = None
    """Of a child run, whose one step it is; None: it is no child run."""
    pinned_blob: str | None = None
    """Digest of the blob with `pinned`, where it is stored already."""

    def reason(self, step_id: str) -> str:
        """Why a step is skipped that neither runs nor is pinned."""
        if step_id in self.passed_over:
            return f"its condition `when` was false in {self.pinned_from}"
        return NOT_ASKED_FOR

    async def stored(self, journal: Journal) -> RecordedPart:
        """The record for the run's start; the outputs are stored as a blob."""
        item = self.item
        return RecordedPart(
            runs=sorted(self.runs),
            passed_over=sorted(self.passed_over),
            pinned_from=self.pinned_from,
            pinned=self.pinned_blob or await self.store_pins(journal),
            item=RecordedItem(index=item.index, value=item.value) if item is not None else None,
        )

    async def store_pins(self, journal: Journal) -> str:
        """Store `pinned`; returns the digest of the blob."""
        return await journal.put_blob(dumps(self.pinned).encode("utf-8", "surrogatepass"))

    @classmethod
    async def load(cls, part: RecordedPart | None, journal: Journal) -> ChosenSteps | None:
        """Read the record that `stored` made; None: the whole recipe runs."""
        if part is None:
            return None
        pinned, item = await json_of_blob(journal, part.pinned), part.item
        return cls(
            runs=frozenset(part.runs),
            passed_over=frozenset(part.passed_over),
            pinned_from=part.pinned_from,
            pinned=cast("Mapping[str, JsonValue]", pinned),
            item=ChildItem(index=item.index, value=item.value) if item is not None else None,
            pinned_blob=part.pinned,
        )


def choose_steps(recipe: AgentRecipe, part: RunPart) -> ChosenSteps:
    """Resolve the steps of a part; pins are not checked.

    Raises:
        NotFoundError: The recipe has no step of that name.
        UsageError: Its steps are no dependency graph, or no step is left to run.
    """
    specs = specs_of_parts(recipe)
    names = [name for name in (part.first, part.until, part.only) if name is not None]
    for name in names:
        _check_known(recipe, name)
    if part.only is not None and len(names) > 1:
        raise UsageError(
            "`only` selects one step and cannot be combined with another bound.", code="part"
        )
    runs = {part.only} if part.only is not None else _between(specs, part)
    if not runs:
        raise UsageError(
            f"No step of recipe '{recipe.id}' depends on '{part.first}' and is needed by "
            f"'{part.until}': there is nothing to run.",
            code="empty-part",
        )
    _check_conversation(specs, runs)
    return ChosenSteps(runs=frozenset(runs), pinned_from=part.pinned_from)


def _check_conversation(specs: Sequence[StepSpec], runs: Collection[str]) -> None:
    """Refuse a part that needs messages of steps outside it: a conversation cannot be pinned."""
    sharing = [spec.id for spec in specs if _shares_conversation(spec)]
    for at, step_id in enumerate(sharing):
        if step_id in runs and (missing := [each for each in sharing[:at] if each not in runs]):
            raise UsageError(
                f"Step '{step_id}' continues the conversation of step '{missing[-1]}' "
                "(memory: conversation), which is not in the part that runs, and a conversation "
                "cannot be pinned. Run the whole recipe, or from the first of them on.",
                code="no-conversation",
            )


def _shares_conversation(spec: StepSpec) -> bool:
    return spec.shares_conversation


def specs_of_parts(recipe: AgentRecipe) -> Sequence[StepSpec]:
    """The steps of a recipe that can run in parts.

    Raises:
        UsageError: `no-parts`; they are no dependency graph.
    """
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if len(specs) < len(recipe.steps) or recipe.graph is not None:
        raise UsageError(
            f"Recipe '{recipe.id}' is a graph of transitions: which step comes next is known only "
            "in the run, so it has no parts. Run it as a whole.",
            code="no-parts",
        )
    return specs


def _check_known(recipe: AgentRecipe, name: str) -> None:
    ids = [step.id for step in recipe.steps]
    if name not in ids:
        near = near_names(name, ids)
        hint = near_hint(near)
        raise NotFoundError(
            f"Recipe '{recipe.id}' has no step '{name}'.{hint} Steps are: {', '.join(ids)}.",
            code="unknown-step",
            suggestions=near,
        )


def _between(specs: Sequence[StepSpec], part: RunPart) -> set[str]:
    """`first` and the steps after it, `until` and the steps before it, or the steps in both."""
    waits = {spec.id: {*spec.depends_on, *spec.after} for spec in specs}
    order = list(TopologicalSorter(waits).static_order())
    after = set(waits) if part.first is None else {part.first}
    for step_id in order:
        if waits[step_id] & after:
            after.add(step_id)
    before = set(waits) if part.until is None else {part.until}
    for step_id in reversed(order):
        if step_id in before:
            before |= waits[step_id]
    return after & before


@frozen(kw_only=True)
class _Needs:
    """Steps outside a part that steps within it read, in the order of the recipe."""

    required: tuple[str, ...]
    """Dependencies of steps in the part."""
    welcome: tuple[str, ...]
    """Steps that only have to end first: the part can run without them."""


def needed_steps(recipe: AgentRecipe, chosen: ChosenSteps) -> _Needs:
    """The steps outside the chosen ones that these wait for."""
    running = [s for s in recipe.steps if isinstance(s, StepSpec) and s.id in chosen.runs]
    required = {other for spec in running for other in spec.depends_on} - chosen.runs
    welcome = {other for spec in running for other in spec.after} - chosen.runs - required
    ids = [step.id for step in recipe.steps]
    return _Needs(
        required=tuple(step_id for step_id in ids if step_id in required),
        welcome=tuple(step_id for step_id in ids if step_id in welcome),
    )


def with_pins(recipe: AgentRecipe, chosen: ChosenSteps, part: RunPart) -> ChosenSteps:
    """The chosen steps with the pins that they need.

    Raises:
        UsageError: `nothing-pinned`; a needed output is missing.
    """
    needs = needed_steps(recipe, chosen)
    known = {*part.pinned, *part.passed_over}
    missing = [step_id for step_id in needs.required if step_id not in known]
    if missing:
        raise missing_pins(recipe.id, missing, "nothing was pinned")
    wanted = {*needs.required, *needs.welcome}
    return evolve(
        chosen,
        pinned={step_id: part.pinned[step_id] for step_id in part.pinned if step_id in wanted},
        passed_over=frozenset(part.passed_over) & wanted,
    )


def missing_pins(recipe_id: str, missing: Sequence[str], why: str) -> UsageError:
    """The error for steps whose output is needed and missing.

    Args:
        recipe_id: The id, or the name that the caller used, for the command in the message.
        why: Why the outputs are missing.
    """
    names = ", ".join(f"'{step_id}'" for step_id in missing)
    how = (
        f"minions run {shell_word(recipe_id)} --until {shell_word(missing[0])}"
        if len(missing) == 1
        else None
    )
    return UsageError(
        f"The output of {'step' if len(missing) == 1 else 'the steps'} {names} is needed, which "
        f"is not in the part that runs: {why}. Run {'it' if how else 'them'} first: "
        f"`{how or f'minions run {shell_word(recipe_id)}'}`.",
        code="nothing-pinned",
    )
