"""The child runs of one run: prepared for a queue, found by their ids, and read when they ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.executions import RunState, StepExecution, StepStatus
from minions.contracts.journal.child_run_links import (
    ChildLink,
    ChildRunNames,
    ChildRunQueue,
    QueueableRun,
)
from minions.contracts.journal.facts import RunBeginning, StepFailed, StepFinished, given
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.steps import Step
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.recipe_step import WrittenStep, step_named
from minions.engine.compile.selection import ChildItem, ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.recorded_calls import recorded_error
from minions.engine.run.run_start import RunStart, resume_start, retry_start
from minions.recipe.catalog import Catalog
from minions.recipe.expressions.values import Reference

CHILD_RUN_STOPPED: Final = "child-run-stopped"
"""Code of an item whose run was cancelled or reached a limit of its own."""

Assemble: TypeAlias = Callable[[RunStart], QueueableRun]
"""Makes a run that is ready to be executed or queued."""
_PAGE: Final = 500
_STOPPED: Final = frozenset((RunState.CANCELLED, RunState.LIMIT_REACHED))
_RETRIED: Final = frozenset((RunState.FAILED, RunState.PARTIAL))


class SharedValues(Struct, frozen=True, kw_only=True):
    """What all child runs of a step read besides their item."""

    inputs: Mapping[str, JsonValue]
    chosen: ChosenSteps
    """The step, with what it reads of the others; the item is added for each child run."""
    work: str
    """All of it, and what the step does, as text: other work is another run."""


class ChildRuns:
    """The child runs of one run."""

    def __init__(self, context: AgentContext, built: BuiltRecipe, assemble: Assemble) -> None:
        """Nothing is prepared.

        Args:
            built: The recipe of the run.
            assemble: Makes runs with the parts of this one.
        """
        self._context = context
        self._scope = context.scope
        self._services = context.scope.services
        self._built = built
        self._controls = built.controls
        self._assemble = assemble
        self._journal = context.scope.services.journal

    # --- new ones, and again ----------------------------------------------------------------------

    async def shared(self, step: WrittenStep[object]) -> SharedValues:
        """What all items of the step read; it is stored once, however many they are."""
        from minions.engine.run.recipe_changes import work_of_item

        context = self._context
        references = step.references
        inputs = self._inputs(step, references)
        chosen = ChosenSteps(
            runs=frozenset((step.id,)),
            pinned=self._steps(step, references),
            pinned_from=context.run_id,
        )
        chosen = replace(chosen, pinned_blob=await chosen.store_pins(self._journal))
        work = [work_of_item(context.recipe, step.spec), dict(inputs), chosen.pinned_blob]
        return SharedValues(inputs=inputs, chosen=chosen, work=dumps(work))

    def _inputs(
        self, step: WrittenStep[object], references: Sequence[Reference]
    ) -> Mapping[str, JsonValue]:
        known, built = self._context.inputs, self._built
        texts = [each for each in (built.system_prompt, built.goal) if each is not None]
        recipe = self._context.recipe
        options = [recipe.templates.compile(dict(use.options)) for use in recipe.tools]
        read = [*references, *(each for text in (*texts, *options) for each in text.references)]
        paths = [each.path for each in read if each.path[0] == "inputs"]
        # Registered code may read any of them.
        if step.spec.kind == "uses" or any(len(path) == 1 for path in paths):
            return dict(known)
        names = {str(path[1]) for path in paths}
        return {name: value for name, value in known.items() if name in names}

    def _steps(
        self, step: WrittenStep[object], references: Sequence[Reference]
    ) -> Mapping[str, JsonValue]:
        """What templates of the step read as `steps`; what only its loop reads stays here."""
        saved = {c.save_as: each for each, c in self._controls.items() if c.save_as}
        control = self._built.control(step.id)
        only_around = {step_named(each, saved) for each in control.references}
        own = {step_named(each, saved) for each in references}
        known = self._context.values["steps"]
        assert isinstance(known, Mapping)  # noqa: S101  # so it is made
        if "steps" in own:  # all of them, by no name
            return dict(known)
        wanted = own | (set(step.spec.depends_on) - only_around)
        return {name: record for name, record in known.items() if name in wanted}

    def new(
        self, shared: SharedValues, item: ChildItem, run_id: str, link: ChildLink
    ) -> QueueableRun:
        """The run of an item that has none."""
        start = RunStart(
            recipe=self._context.recipe,
            inputs=shared.inputs,
            run_id=run_id,
            session_id=ChildRunNames.session(run_id),
            note=self._note(link),
            user=self._queue.user,
            project=self._queue.project,
            starters=self._scope.starters,
            chosen=replace(shared.chosen, item=item),
        )
        return self._assemble(start)

    async def again(self, row: RunRow, link: ChildLink) -> QueueableRun:
        """The run of an item that ended without a result that counts: resumed, or retried."""
        from minions.engine.run.recorded_run import load_recorded_run

        recorded, recipe = await load_recorded_run(self._journal, row.run_id), self._context.recipe
        note, catalog = self._note(link), Catalog()  # the recipe is there: nothing is looked up
        if row.status in _RETRIED:
            start = retry_start(
                recorded, catalog, recipe=recipe, is_edited=False, from_step=None, note=note
            )
        else:
            start = resume_start(
                recorded,
                catalog,
                recipe=recipe,
                decisions=None,
                note=note,
                now=self._context.now(),
            )
        return self._assemble(start)

    def _note(self, link: ChildLink) -> Mapping[str, JsonValue]:
        opening = self._scope.opening
        offer = opening.offer.to_note() if opening is not None else {}
        starters = StartNote(starters=self._scope.starters).to_json()
        return {**self._queue.note, **offer, **starters, **link.to_note()}

    @property
    def _queue(self) -> ChildRunQueue:
        queue = self._services.children
        assert queue is not None  # noqa: S101  # else nothing is distributed
        return queue

    # --- what became of them ----------------------------------------------------------------------

    async def rows(self, start: str) -> AsyncIterator[RunRow]:
        """The rows of all child runs whose ids start so, a page at a time."""
        after: RunRow | None = None
        while page := await self._journal.runs(RunFilter(id_start=start), limit=_PAGE, after=after):
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1]

    async def link(self, row: RunRow) -> ChildLink | None:
        """Why that child run was queued last; None: its record does not say."""
        newest = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"run"}, newest_first=True
        )
        begun = next((e.fact for e in newest if isinstance(e.fact, RunBeginning)), None)
        return StartNote.of(begun.note).child if begun is not None else None

    async def execution(
        self, step: Step[object], run_id: str, row: RunRow | None
    ) -> StepExecution[object]:
        """The item as its run executed it.

        Args:
            row: None: that run simply completed.
        """
        session_id = ChildRunNames.session(run_id)
        newest = await self._journal.entries(
            session_id, run_id=run_id, kinds={"step"}, limit=1, newest_first=True
        )
        entry = newest[0] if newest else None
        fact = entry.fact if entry is not None else None
        execution: StepExecution[object] = StepExecution(
            id=f"{run_id}/{entry.key if entry is not None else step.id}",
            step_id=step.id,
            status=StepStatus.FAILED,
            completed_at=entry.at if entry is not None else None,
        )
        has_output = row is None or row.status == RunState.PARTIAL
        if has_output and isinstance(fact, StepFinished):
            return evolve(
                execution,
                status=StepStatus.COMPLETED,
                output=given(fact.output),
                is_partial=fact.partial,
                duration_ms=fact.duration_ms or 0.0,
            )
        is_stopped = row is not None and row.status in _STOPPED
        own = fact.error if isinstance(fact, StepFailed) and not is_stopped else None
        error = recorded_error(own) if own is not None else _stopped(run_id, row)
        return evolve(execution, error=error, reason=error.message)


def _stopped(run_id: str, row: RunRow | None) -> FailureInfo:
    """Why the run of an item ended, where its step did not fail by itself."""
    status = row.status if row is not None else RunState.COMPLETED.value
    words = row.error_message if row is not None else None
    if row is not None and row.status == RunState.FAILED:
        return FailureInfo(code=row.error_code or "step-failed", message=words or "It failed.")
    return FailureInfo(
        code=CHILD_RUN_STOPPED,
        message=f"Run '{run_id}', which executed it, ended as {status}"
        f"{f': {words}' if words else '.'}",
    )
