"""The runs of a recipe that are not over, and its schedules, under another version of it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from minions.app.runs.run_needs import needs_of
from minions.app.runs.run_policy import QUEUE, RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import Schedule, ScheduleStore
from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.facts import digest_of_recipe
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.run.queued_decisions import record_decisions
from minions.engine.run.recipe_changes import is_same_json
from minions.engine.run.recipe_moves import (
    RunFate,
    fate_of,
    is_pinned,
    move_back,
    move_run,
    pin_run,
)
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.run.run_start import own_recipe
from minions.engine.services.run_services import Services
from minions.engine.views.run_names import not_unique
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import bundle_of

_STATES: Final = OPEN_STATES | {RunState.NEEDS_DECISION}
_PAGE: Final = 200
_MOST_NAMED: Final = 6
_FEWEST_DIGITS: Final = 6
"""Of a fingerprint: fewer may be a version, or be those of another text."""
_NOT_PINNED: Final = "A schedule cannot be pinned: it has its version until it is moved."


def recipe_digest(document: Mapping[str, JsonValue], bundle: Mapping[str, JsonValue]) -> str:
    """The digest that runs of that text of a recipe bear.

    Args:
        bundle: The recipes within.
    """
    within = _sha256(bundle) if bundle else None
    return digest_of_recipe(_sha256(document), within) or ""


def _sha256(document: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(dumps(document).encode()).hexdigest()


@frozen(kw_only=True)
class RunUpgrade:
    """A run, what becomes of it, and what was done."""

    run_id: str | None
    """None: it is a schedule."""
    fate: RunFate
    schedule: str | None = None
    version: str | None = None
    """The version that its recipe states."""
    digest: str = ""
    """The fingerprint of its recipe."""
    status: str = ""
    done: str | None = None
    """`moved`, `pinned` or `moved back`; None: nothing was done."""
    problem: str | None = None
    """Why nothing was done although it was asked for."""

    @property
    def name(self) -> str:
        """Its id, or the name of the schedule."""
        return self.run_id or f"schedule {self.schedule}"

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is printed."""
        document: dict[str, JsonValue] = {
            "run_id": self.run_id,
            "fate": self.fate.fate,
            "step": self.fate.step,
            "reason": self.fate.reason,
            "version": self.version,
            "digest": self.digest,
        }
        if self.schedule is not None:
            document["schedule"] = self.schedule
        if self.done is not None or self.problem is not None:
            document |= {"done": self.done, "problem": self.problem}
        return document


@frozen(kw_only=True)
class UpgradeWish:
    """What is to be done about the runs."""

    moves: bool = False
    pins: bool = False
    """Those that are not moved stay with their version, also at later upgrades."""
    undoes: bool = False
    """The newest move of each is undone."""
    only: Collection[str] = ()
    """Beginnings of ids, each of one run, or names of schedules, that are meant; empty: all."""
    before: str | None = None
    """The version, or six or more digits with which its fingerprint begins; None: any."""
    by: str | None = None
    """Who wishes it."""

    def means(self, name: str, version: str | None, digest: str) -> bool:
        """Whether that run or schedule is meant."""
        before = self.before
        is_known = before is None or version == before
        if before is not None and len(before) >= _FEWEST_DIGITS:
            is_known = is_known or digest.startswith(before)
        return is_known and (not self.only or name in self.only)


def unknown_run(name: str, recipe: str) -> UsageError:
    """The error for a name that means no run of the recipe that is not over, and no schedule."""
    return UsageError(
        f"--only {name}: the recipe '{recipe}' has no such run that is not over, and no such "
        "schedule. `minions upgrade RECIPE --json` lists those that it has.",
        code="unknown-run",
    )


class RecipeUpgrade:
    """Says what becomes of the runs of a recipe under a version of it, and moves them."""

    def __init__(
        self,
        services: Services,
        schedules: ScheduleStore,
        extensions: Extensions,
        queue: RunQueue,
    ) -> None:
        """Nothing is read yet.

        Args:
            extensions: What the versions of the recipe may name.
            queue: Where queued runs that were moved are queued again, with what they need now.
        """
        self._services = services
        self._journal = services.journal
        self._schedules = schedules
        self._extensions = extensions
        self._catalog = extensions.catalog()
        self._queue = queue

    async def upgraded(self, after: AgentRecipe, wish: UpgradeWish) -> AsyncIterator[RunUpgrade]:
        """Each run of the recipe that is not over, and each of its schedules.

        Child runs are left out: they end as the run around them began them.

        Raises:
            UsageError: What is meant alone is none of them, or several; nothing was done.
            JournalError: The journal cannot be read.
        """
        if wish.only:
            wish = evolve(wish, only={await self._meant(each, after.id) for each in wish.only})
        wanted = RunFilter(recipe=after.id, statuses=_STATES)
        last: RunRow | None = None
        while rows := await self._journal.runs(wanted, limit=_PAGE, after=last):
            for row in rows:
                if (found := await self._run(row, after, wish)) is not None:
                    yield found
            last = rows[-1]
        for name in await self._schedules.names():
            schedule = await self._schedules.get(name)
            if schedule.recipe_id == after.id:
                found = await self._schedule(schedule, after, wish)
                if found is not None:
                    yield found

    async def _meant(self, name: str, recipe: str) -> str:
        """The whole id of the run, or the name of the schedule."""
        if not name.strip():
            raise UsageError("--only: The id is empty.")
        is_there = name in await self._schedules.names()
        if is_there and (await self._schedules.get(name)).recipe_id == recipe:
            return name
        wanted = RunFilter(recipe=recipe, statuses=_STATES, id_start=name)
        rows = await self._journal.runs(wanted, limit=_MOST_NAMED)
        ids = [each.run_id for each in rows]
        if not ids:
            raise unknown_run(name, recipe)
        if len(ids) > 1 and name not in ids:
            raise not_unique(name, ids)
        return name if name in ids else ids[0]

    # --- runs -------------------------------------------------------------------------------------

    async def _run(self, row: RunRow, after: AgentRecipe, wish: UpgradeWish) -> RunUpgrade | None:
        try:
            recorded = await load_recorded_run(self._journal, row.run_id)
        except MinionsError as error:
            if not wish.means(row.run_id, None, ""):
                return None
            fate = RunFate(fate="breaks", reason=error.message)
            return RunUpgrade(run_id=row.run_id, fate=fate, status=row.status)
        start = recorded.start
        digest = start.recipe_digest or ""
        if RunPolicy.recorded(recorded.note).child is not None:
            return None
        if not wish.means(row.run_id, start.version, digest):
            return None
        fate = fate_of(recorded, own_recipe(recorded, self._catalog), after)
        if is_pinned(recorded) and not wish.only and fate.fate != "goes_on":
            fate = RunFate(fate="goes_on", reason="it was pinned to its version")
        found = RunUpgrade(
            run_id=row.run_id,
            fate=fate,
            version=start.version,
            digest=digest,
            status=recorded.summary.status,
        )
        try:
            return evolve(found, done=await self._carry_out(recorded, after, fate, wish))
        except MinionsError as error:
            return evolve(found, problem=_problem_to_tell(error, wish))

    async def _carry_out(
        self, recorded: RecordedRun, after: AgentRecipe, fate: RunFate, wish: UpgradeWish
    ) -> str | None:
        services = self._services
        if wish.undoes:
            await move_back(services, recorded, wish.by)
            await self._queue_again(recorded)
            return "moved back"
        if wish.moves and fate.fate == "moves":
            await move_run(services, recorded, after, fate, wish.by)
            await self._queue_again(recorded)
            return "moved"
        if wish.pins and fate.fate != "goes_on":
            await pin_run(services, recorded, wish.by)
            return "pinned"
        return None

    async def _queue_again(self, before: RecordedRun) -> None:
        """A run that is queued, and was moved, needs of its worker what its recipe names now."""
        place = RunPolicy.recorded(before.note).queue
        if before.summary.status != RunState.QUEUED or place is None:
            return
        recorded = await load_recorded_run(self._journal, before.run_id)
        recipe = own_recipe(recorded, self._catalog)
        if recipe is not None:
            cwd = recorded.noted.cwd
            place = evolve(place, needs=needs_of(recipe, cwd, self._extensions))
        note = {**recorded.note, QUEUE: place.to_note()}
        entry = await record_decisions(self._services, recorded, {}, note, None)
        await self._queue.submit(entry, place, replaces=True)

    # --- schedules --------------------------------------------------------------------------------

    async def _schedule(
        self, schedule: Schedule, after: AgentRecipe, wish: UpgradeWish
    ) -> RunUpgrade | None:
        version = schedule.document.get("version")
        said = None if version is None else str(version)
        digest = recipe_digest(schedule.document, schedule.bundle)
        if not wish.means(schedule.name, said, digest):
            return None
        fate = self._fate_of_schedule(schedule, after)
        found = RunUpgrade(
            run_id=None, schedule=schedule.name, fate=fate, version=said, digest=digest
        )
        if not wish.undoes and not (wish.moves and fate.fate == "moves"):
            if wish.pins and wish.only and fate.fate != "goes_on":
                return evolve(found, problem=_NOT_PINNED)
            return found
        last_run = (await self._schedules.progress(schedule.name)).last_run
        if not wish.undoes:
            document, bundle = after.document or {}, bundle_of(after)
            moved = schedule.moved(document, bundle, after.directory, last_run)
            await self._schedules.put(moved)
            return evolve(found, done="moved")
        try:
            await self._schedules.put(schedule.moved_back(last_run))
        except UsageError as error:
            return evolve(found, problem=_problem_to_tell(error, wish))
        return evolve(found, done="moved back")

    def _fate_of_schedule(self, schedule: Schedule, after: AgentRecipe) -> RunFate:
        if schedule.deployment is not None:
            reason = f"the deployment '{schedule.deployment}' says which version its runs get"
            return RunFate(fate="goes_on", reason=reason)
        is_same = is_same_json(schedule.document, after.document or {})
        if is_same and is_same_json(schedule.bundle, bundle_of(after)):
            return RunFate(fate="goes_on", reason="it has this version")
        try:
            resolve_inputs(after, schedule.inputs, from_text=False, base=Path.cwd())
        except UsageError as error:
            return RunFate(fate="breaks", reason=error.message)
        return RunFate(fate="moves", reason="its next runs have the new version")


def _problem_to_tell(error: MinionsError, wish: UpgradeWish) -> str | None:
    """Why nothing was done; None: nobody asked for it of this run or schedule by name."""
    is_asked = bool(wish.only) or error.error_code != "nothing-moved"
    return error.message if is_asked else None
