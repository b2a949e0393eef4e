"""The schedules of a database, and how far each was carried out: texts beside the journal.

A schedule is configuration, as the limits of a queue are. What came of it is in the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Self

from attrs import evolve, field, frozen
from msgspec.structs import replace

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.start_note import QueuePlace
from minions.data.errors import JournalError, NotFoundError, UsageError, did_you_mean
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.texts import shell_word
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_summary import RunSummary
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, ScheduleSpec
from minions.recipe.nested_recipes import BundledRecipes, bundle_of
from minions.recipe.reading.load import recipe_from_document
from minions.recipe.schedules import cron_problem, next_due, timezone_problem

_SCHEDULES: Final = f"{RESERVED}schedule:"
_PROGRESS: Final = f"{RESERVED}schedule-progress:"
_PROBLEM: Final = f"{RESERVED}schedule-problem:"
_MOST_SKIPPED: Final = 100
"""Skipped times of a schedule that are kept; the number of all is kept beside them."""
_MOST_MOVES: Final = 10
"""Moves of a schedule that can be undone one after another: each holds a recipe's text."""


def recipe_of_texts(
    document: Mapping[str, JsonValue],
    bundle: Mapping[str, JsonValue],
    directory: str | None,
    catalog: Catalog,
    *,
    called: str,
) -> AgentRecipe:
    """The recipe of a text that is stored, with those of the recipes within; no file is read.

    Args:
        called: How faults name it.
    Raises:
        RecipeError: What it names is not registered here.
    """
    known = replace(catalog, find_recipe=BundledRecipes(bundle))
    return recipe_from_document(document, known, file=called, directory=directory)


@frozen(kw_only=True)
class ScheduleMove:
    """What a schedule had before it was moved to another version of its recipe."""

    document: Mapping[str, JsonValue] = field(repr=False)
    bundle: Mapping[str, JsonValue] = field(repr=False)
    directory: str | None
    last_run: str | None
    """The last run that it had started: a later one has the version that it was moved to."""

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        return {
            "document": self.document,
            "bundle": self.bundle,
            "directory": self.directory,
            "last_run": self.last_run,
        }

    @classmethod
    def of_json(cls, stored: Mapping[str, JsonValue]) -> Self:
        """What was stored.

        Raises:
            KeyError, TypeError: It is of another form.
        """
        directory, last_run = stored["directory"], stored["last_run"]
        return cls(
            document=_mapping(stored["document"]),
            bundle=_mapping(stored["bundle"]),
            directory=None if directory is None else str(directory),
            last_run=None if last_run is None else str(last_run),
        )


@frozen(kw_only=True)
class Schedule:
    """A recipe that workers run at its due times."""

    name: str
    spec: ScheduleSpec
    since: datetime
    """Only later times are due: when it was added or resumed."""
    document: Mapping[str, JsonValue] = field(repr=False)
    """The recipe as it was when the schedule was added."""
    bundle: Mapping[str, JsonValue] = field(repr=False)
    """The recipes that its steps are."""
    directory: str | None = None
    project: str | None = None
    """The folder of the project to which its runs belong."""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Inputs of its runs; secrets as references."""
    note: Mapping[str, JsonValue] = field(factory=dict)
    """The policy of its runs, as it was given by flags."""
    place: QueuePlace = field(factory=QueuePlace)
    is_paused: bool = False
    deployment: str | None = None
    """The deployment that says which version of the recipe its runs get; None: the recipe is the
    one that was added."""
    moves: Sequence[ScheduleMove] = field(default=(), repr=False)
    """Its moves to other versions since it last started a run, the newest last."""

    @property
    def recipe_id(self) -> str:
        """The recipe's id."""
        return str(self.document.get("id", "?"))

    def recipe(self, catalog: Catalog) -> AgentRecipe:
        """The recipe; no file is read.

        Raises:
            RecipeError: What it names is not registered here.
        """
        return recipe_of_texts(
            self.document,
            self.bundle,
            self.directory,
            catalog,
            called=f"<recipe of the schedule {self.name}>",
        )

    def ids_at(self, due: datetime) -> tuple[str, str]:
        """The ids of the run of that time, and of its session: the same in each process."""
        digest = hashlib.sha256(f"{self.name} {due.isoformat()}".encode()).hexdigest()
        return f"run_{digest[:16]}", f"ses_{digest[16:32]}"

    def to_text(self) -> str:
        """The form in which it is stored."""
        return dumps(
            {
                "spec": self.spec.to_json(),
                "since": self.since.isoformat(),
                "document": self.document,
                "bundle": self.bundle,
                "directory": self.directory,
                "project": self.project,
                "inputs": self.inputs,
                "note": self.note,
                "place": self.place.to_note(),
                "paused": self.is_paused,
                "deployment": self.deployment,
                "moves": [each.to_json() for each in self.moves],
            }
        )

    def moved(
        self,
        document: Mapping[str, JsonValue],
        bundle: Mapping[str, JsonValue],
        directory: str | None,
        last_run: str | None,
    ) -> Schedule:
        """With another version of its recipe, which can be undone until it starts a run.

        Args:
            last_run: The last run that it started; None: it started none.
        """
        known = [each for each in self.moves if each.last_run == last_run]
        before = ScheduleMove(
            document=self.document,
            bundle=self.bundle,
            directory=self.directory,
            last_run=last_run,
        )
        moves = (*known, before)[-_MOST_MOVES:]
        return evolve(self, document=document, bundle=bundle, directory=directory, moves=moves)

    def moved_back(self, last_run: str | None) -> Schedule:
        """As it was before its newest move.

        Args:
            last_run: As of `moved`.
        Raises:
            UsageError: `nothing-moved`; there is no such move. `moved-and-run`; it started a run
                since.
        """
        if not self.moves:
            raise UsageError(
                f"The schedule '{self.name}' was not moved to another version: there is nothing "
                "to undo.",
                code="nothing-moved",
            )
        before = self.moves[-1]
        if before.last_run != last_run:
            raise UsageError(
                f"The schedule '{self.name}' has started a run since it was moved, so the move "
                "stays. Move it to the version before by name: minions upgrade OLD.yaml --move "
                f"--only {shell_word(self.name)}",
                code="moved-and-run",
            )
        return evolve(
            self,
            document=before.document,
            bundle=before.bundle,
            directory=before.directory,
            moves=tuple(self.moves[:-1]),
        )

    @classmethod
    def of(cls, name: str, recipe: AgentRecipe, spec: ScheduleSpec, since: datetime) -> Schedule:
        """The schedule of a recipe that was read from a file."""
        return cls(
            name=name,
            spec=spec,
            since=since,
            document=recipe.document or {},
            bundle=bundle_of(recipe),
            directory=recipe.directory,
            is_paused=not recipe.enabled,
        )

    @classmethod
    def of_text(cls, name: str, text: str) -> Schedule:
        """The schedule that was stored.

        Raises:
            JournalError: `corrupt-entry`; the text is of another form.
        """
        try:
            stored = _mapping(parse_json(text))
            spec = _mapping(stored["spec"])
            directory, project = stored["directory"], stored.get("project")
            deployment = stored.get("deployment")
            patience = spec.get("patience")
            moves = stored.get("moves") or ()
            if not isinstance(moves, list | tuple):
                raise TypeError(f"expected a list of moves, found {type(moves).__name__}")
            schedule = cls(
                name=name,
                spec=ScheduleSpec(
                    cron=str(spec["cron"]),
                    timezone=str(spec["timezone"]),
                    missed=str(spec["missed"]),
                    overlap=str(spec["overlap"]),
                    patience=None if patience is None else str(patience),
                ),
                since=datetime.fromisoformat(str(stored["since"])),
                document=_mapping(stored["document"]),
                bundle=_mapping(stored["bundle"]),
                directory=None if directory is None else str(directory),
                project=None if project is None else str(project),
                inputs=_mapping(stored["inputs"]),
                note=_mapping(stored["note"]),
                place=QueuePlace.of_note(stored["place"]) or QueuePlace(),
                is_paused=stored["paused"] is True,
                deployment=None if deployment is None else str(deployment),
                moves=[ScheduleMove.of_json(_mapping(each)) for each in moves],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damage_error(name, f"{error}") from error
        problem = cron_problem(schedule.spec.cron) or timezone_problem(schedule.spec.timezone)
        if problem is not None:
            raise _damage_error(name, problem)
        return schedule


class SkipCause(StrEnum):
    """Why no run was started for a due time."""

    OVERLAP = "overlap"
    """A run of an earlier time had not ended."""
    MISSED = "missed"
    """No worker was there in time."""
    LIMIT = "limit"
    """More times were missed, or waited, than are made up for."""
    BUDGET = "budget"
    """The budget of the day, session or schedule was spent."""
    PAUSED = "paused"
    """The schedule was paused."""


@frozen(kw_only=True)
class SkippedTime:
    """A due time for which no run was started."""

    due: datetime
    cause: SkipCause
    reason: str
    """In words for people, with what has to be known of other runs."""
    after: datetime | None = None
    """It stands for all due times later than this one and up to `due`; None: for `due` alone."""

    def to_json(self) -> dict[str, JsonValue]:
        """The form in which it is stored and printed."""
        after = None if self.after is None else self.after.isoformat()
        said: dict[str, JsonValue] = {"due": self.due.isoformat(), "cause": self.cause.value}
        return {**said, "reason": self.reason, "after": after}

    @classmethod
    def of_json(cls, stored: Mapping[str, JsonValue]) -> Self:
        """What was stored.

        Raises:
            KeyError, ValueError: It is of another form.
        """
        return cls(
            due=datetime.fromisoformat(str(stored["due"])),
            cause=SkipCause(str(stored["cause"])),
            reason=str(stored["reason"]),
            after=_time(stored.get("after")),
        )


@frozen(kw_only=True)
class Progress:
    """How far a schedule was carried out."""

    handled: datetime | None = None
    """The last due time that was handled; None: none was."""
    waiting: tuple[datetime, ...] = ()
    """Due times whose runs start when earlier ones have ended."""
    open_runs: tuple[str, ...] = ()
    """Ids of its runs of which no end was seen."""
    last_run: str | None = None
    skipped: tuple[SkippedTime, ...] = ()
    """The due times that were left out, the oldest first; of many the newest 100."""
    skip_counts: Mapping[SkipCause, int] = field(factory=dict)
    """How many were left out since the schedule was added, by cause; a span of times is one."""

    def skip(self, time: SkippedTime) -> Progress:
        """With one more time that was left out; as it was where that is known."""
        if any(each.due == time.due for each in self.skipped):
            return self
        counts = {**self.skip_counts, time.cause: self.skip_counts.get(time.cause, 0) + 1}
        return evolve(self, skipped=(*self.skipped, time)[-_MOST_SKIPPED:], skip_counts=counts)

    def to_text(self) -> str:
        """The form in which it is stored."""
        return dumps(
            {
                "handled": None if self.handled is None else self.handled.isoformat(),
                "waiting": [each.isoformat() for each in self.waiting],
                "open_runs": list(self.open_runs),
                "last_run": self.last_run,
                "skips": [each.to_json() for each in self.skipped],
                "skip_counts": {cause.value: count for cause, count in self.skip_counts.items()},
            }
        )

    @classmethod
    def of_text(cls, text: str | None) -> Progress:
        """What was stored; nothing where that is of another form: runs have names of their own, so
        that none is started twice.
        """
        try:
            stored = _mapping(parse_json(text or "{}"))
            waiting, runs = stored.get("waiting") or [], stored.get("open_runs") or []
            if not (isinstance(waiting, list) and isinstance(runs, list)):
                return cls()
            last = stored.get("last_run")
            skips, counts = stored.get("skips") or [], _mapping(stored.get("skip_counts") or {})
            if not isinstance(skips, list):
                return cls()
            return cls(
                handled=_time(stored.get("handled")),
                waiting=tuple(datetime.fromisoformat(str(each)) for each in waiting),
                open_runs=tuple(map(str, runs)),
                last_run=None if last is None else str(last),
                skipped=tuple(SkippedTime.of_json(_mapping(each)) for each in skips),
                skip_counts={SkipCause(name): int(str(each)) for name, each in counts.items()},
            )
        except (KeyError, TypeError, ValueError):
            return cls()


@frozen(kw_only=True)
class ListedSchedule:
    """A schedule with what came of it."""

    name: str
    schedule: Schedule | None
    """None: it is damaged."""
    progress: Progress
    last_run: RunSummary | None
    problem: str | None = None
    """Why it is damaged, or why a worker could not carry it out; None: neither."""

    def next_times(self, now: datetime, most: int = 1) -> list[datetime]:
        """When it is due next; empty: it is paused, damaged, or never due."""
        found = list[datetime]()
        if self.schedule is None or self.schedule.is_paused:
            return found
        at: datetime | None = now
        while len(found) < most and at is not None:
            at = next_due(self.schedule.spec, at)
            found += [] if at is None else [at]
        return found


class ScheduleStore:
    """The schedules of a journal. Only commands change a schedule, only workers its progress."""

    def __init__(self, state: StateStore) -> None:
        """Nothing is read yet."""
        self._state = state
        self._read: dict[str, tuple[str, Schedule]] = {}
        """Texts with what was read of them: most looks find no other text."""

    async def put(self, schedule: Schedule) -> bool:
        """Store it in place of one of the same name; whether there was none.

        Raises:
            JournalError: The database cannot be used.
        """
        key = _SCHEDULES + schedule.name
        is_new = await self._state.get(key) is None
        await self._state.put(key, schedule.to_text())
        await self._state.remove(_PROBLEM + schedule.name)  # what was wrong may be mended
        return is_new

    async def remove(self, name: str) -> None:
        """Remove it; its runs stay.

        Raises:
            NotFoundError: There is none of that name.
            JournalError: The database cannot be used.
        """
        await self.get(name)
        await self._state.remove(_SCHEDULES + name)
        await self._state.remove(_PROGRESS + name)
        await self._state.remove(_PROBLEM + name)

    async def set_paused(self, name: str, *, is_paused: bool, now: datetime) -> Schedule:
        """Pause it, or resume it from `now` on.

        Raises:
            NotFoundError: There is none of that name.
            JournalError: The database cannot be used.
        """
        known = await self.get(name)
        if known.is_paused == is_paused:
            return known
        changed = evolve(known, is_paused=is_paused, since=known.since if is_paused else now)
        await self.put(changed)
        return changed

    async def names(self) -> Sequence[str]:
        """The names of all, sorted.

        Raises:
            JournalError: The database cannot be used.
        """
        return [key.removeprefix(_SCHEDULES) for key in await self._state.keys(_SCHEDULES)]

    async def get(self, name: str) -> Schedule:
        """The schedule of that name.

        Raises:
            NotFoundError: There is none.
            JournalError: It is damaged, or the database cannot be used.
        """
        text = await self._state.get(_SCHEDULES + name)
        if text is None:
            names = await self.names()
            raise NotFoundError(
                f"There is no schedule '{name}'.{did_you_mean(name, names)} `minions schedules "
                "list` shows those of the database.",
                code="no-schedule",
            )
        known = self._read.get(name)
        if known is None or known[0] != text:
            known = self._read[name] = (text, Schedule.of_text(name, text))
        return known[1]

    async def listed(self, journal: Journal, name: str) -> ListedSchedule:
        """The schedule of that name with what came of it.

        Raises:
            NotFoundError: There is none.
            JournalError: The database cannot be used.
        """
        progress = await self.progress(name)
        runs = await list_runs(journal, run_id=progress.last_run) if progress.last_run else ()
        schedule, problem = None, None
        try:
            schedule, problem = await self.get(name), await self.problem(name)
        except JournalError as error:
            if error.error_code != "corrupt-entry":
                raise
            problem = error.message
        return ListedSchedule(
            name=name,
            schedule=schedule,
            progress=progress,
            last_run=runs[0] if runs else None,
            problem=problem,
        )

    async def progress(self, name: str) -> Progress:
        """How far it was carried out.

        Raises:
            JournalError: The database cannot be used.
        """
        return Progress.of_text(await self._state.get(_PROGRESS + name))

    async def put_progress(self, name: str, progress: Progress) -> None:
        """Store how far it was carried out.

        Raises:
            JournalError: The database cannot be used.
        """
        await self._state.put(_PROGRESS + name, progress.to_text())

    async def problem(self, name: str) -> str | None:
        """Why a worker could not carry it out; None: each could.

        Raises:
            JournalError: The database cannot be used.
        """
        return await self._state.get(_PROBLEM + name)

    async def put_problem(self, name: str, problem: str | None) -> None:
        """Store why it cannot be carried out, or that it can again.

        Raises:
            JournalError: The database cannot be used.
        """
        if problem is None:
            await self._state.remove(_PROBLEM + name)
        else:
            await self._state.put(_PROBLEM + name, problem)

    async def aclose(self) -> None:
        """Close the store of texts."""
        await self._state.aclose()


def _mapping(value: object) -> Mapping[str, JsonValue]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, found {type(value).__name__}")
    return value


def _time(value: object) -> datetime | None:
    return None if value is None else datetime.fromisoformat(str(value))


def _damage_error(name: str, why: str) -> JournalError:
    return JournalError(
        f"The schedule '{name}' cannot be read: {why[:200]}. Add it again: minions schedules add "
        f"RECIPE --name {shell_word(name)}",
        code="corrupt-entry",
    )
