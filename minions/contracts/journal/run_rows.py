"""One row for each run and each session, for lists: a fold of journal entries.

Rows are derived data. A journal stores them beside its entries so that a look-up costs as much as
it returns; the entries stay the truth, and folding them again gives the same rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

from minions.contracts.executions import RunState
from minions.data.texts import has_words

if TYPE_CHECKING:
    pass


LISTED: Final = frozenset(("run", "session"))
"""Kinds of entries from which rows are computed."""
JUDGED: Final = frozenset(("mark", "decision"))
"""Kinds of entries in which people judge the work of runs. Like those that are listed, they are
found over all sessions at the cost of what is found."""

Number: TypeAlias = int | float | None


# --- what was spent --------------------------------------------------------------------------


class Spent(NamedTuple):
    """An amount that counts against budgets."""

    tokens: int = 0
    cost_usd: float = 0.0
    """US dollars, as far as they are known."""

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        """Both together; with `sign=-1` what this one has more."""
        return Spent(self.tokens + sign * other.tokens, self.cost_usd + sign * other.cost_usd)


class StateTotal(NamedTuple):
    """The runs of one state together, by their last ends."""

    runs: int = 0
    spent: Spent = Spent()  # a tuple


MOST_DAYS: Final = 31
"""Days of the longest period in which somebody's spending is asked for."""


def day_of(at: datetime) -> int:
    """The number of the day in UTC, as `date.toordinal` counts."""
    return at.astimezone(UTC).toordinal()


class Spender(Struct, frozen=True):
    """Whose spending is asked for: in all its time, or in a period; None: whoever it is."""

    session_id: str | None = None
    day: int | None = None
    """The first day of the period, as `day_of` numbers it; None: all its time."""
    user: str | None = None
    """The label of the user."""
    days: int = 1
    """How many days the period has."""
    recipe: str | None = None
    """The id of the recipe."""
    schedule: str | None = None
    """The name of the schedule that started the runs."""
    token: str | None = None
    """The name of the token with which the runs were started over HTTP."""
    project: str | None = None
    """The folder of the project in which the runs were started."""

    def of(self, row: RunRow) -> Spent:
        """The part of that run."""
        if not (
            self.session_id in (None, row.session_id)
            and self.user in (None, row.user)
            and self.recipe in (None, row.recipe)
            and self.project in (None, row.project)
            and self.schedule in (None, row.schedule)
            and self.token in (None, row.token)
        ):
            return Spent()
        if self.day is None:
            return row.spent
        if not self.day <= row.day < self.day + self.days:
            return Spent()
        return row.day_spent.plus(self.earlier_of(row))

    def earlier_of(self, row: RunRow) -> Spent:
        """What that run spent in the period before its last day."""
        found = Spent()
        for day, spent in row.earlier:
            if self.day is not None and self.day <= day:
                found = found.plus(spent)
        return found


# --- rows ------------------------------------------------------------------------------------


class RunRow(Struct, frozen=True, kw_only=True):
    """One run, as lists show it."""

    run_id: str
    session_id: str
    position: int
    """Position of the entry with which the run started."""
    recipe: str
    """The recipe's id; `?` if it cannot be read."""
    status: str = RunState.INTERRUPTED.value
    """A member of `RunState` other than `running`: only leases
    tell whether a worker executes it.
    """
    model: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    """When the run last ended; None: no end is recorded, or the run was resumed since."""
    usage: Mapping[str, Number] = field(default_factory=dict)
    """Tokens and cost at its last end."""
    error_code: str | None = None
    error_message: str | None = None
    """The first 200 characters of the error's message."""
    mark: str | None = None
    """How its last execution started. `queue`: through a queue; `server`: by a server; `imported`:
    the run came from a file.
    """
    problem: str | None = None
    """Of an unreadable run: which entry cannot be read, and why."""
    input_words: str | None = None
    """The first words of its inputs, on one line: `question: Where is … · times: 3`; None: it has
    none, or they were not stored with the row.
    """
    user: str | None = None
    """The label of the user for whom it runs; None: it has none, or it came from a file."""
    project: str | None = None
    """The folder of the project in which it was started; None: not known."""
    day: int = 0
    """The UTC day on which its last execution began, as `day_of` numbers it; 0: not known."""
    spent: Spent = Spent()  # a tuple
    """What all its executions spent here, by its last end; what an imported run had used before
    does not count."""
    day_spent: Spent = Spent()  # a tuple
    """The part of `spent` that was not recorded before that day."""
    foreign: Spent = Spent()  # a tuple
    """What it had used when it came from a file."""
    earlier: tuple[tuple[int, Spent], ...] = ()
    """What it spent on days before the last one, as far as they may be of the same month."""
    schedule: str | None = None
    """The schedule that started it; None: none did."""
    token: str | None = None
    """The name of the token with which it was started over HTTP; None: otherwise."""
    version: str | None = None
    """The version that its recipe states, as of its last execution; None: not known."""
    digest: str | None = None
    """Twelve digits that are equal for all runs of that text of the recipe; None: of code."""

    @property
    def known(self) -> Spent:
        """All that it used by its last end, wherever that was."""
        return self.spent.plus(self.foreign)


class SessionRow(Struct, frozen=True, kw_only=True):
    """One session in which a run started, or that was opened or forked."""

    session_id: str
    created_at: datetime
    updated_at: datetime
    """When a run of it last started or ended, else when the session was made."""
    last_at: datetime
    """When anything changed, including a cut of the conversation."""
    last_position: int
    """Position of the last entry that the row contains."""
    name: str | None = None
    parent: str | None = None
    """The session from which it was forked."""
    forked_at: int | None = None
    """Sequence of the parent's last message that it starts with."""
    has_inputs: bool = False
    """Whether the session was opened with inputs for its turns."""
    own_recipe: str | None = None
    """The recipe with which the session was opened."""
    ran_recipe: str | None = None
    """The recipe of its last run."""
    is_mixed: bool = False
    """Whether its runs were of several recipes."""
    last_run_id: str | None = None
    status: str | None = None
    """State of its last run, as in `RunRow`; None: it has no run."""
    user: str | None = None
    """The label of the user to whom it belongs: of its opening, or of the run that made it; None:
    it is the operator's, or it came from a file."""
    project: str | None = None
    """The folder of the project in which it was made; None: not known."""
    retain_s: float | None = None
    """Seconds after the end of its last run for which it may stay: the shortest that a run of it
    says; None: none does."""

    @property
    def expires_at(self) -> datetime | None:
        """When that time is over."""
        if self.retain_s is None:
            return None
        try:
            return self.updated_at + timedelta(seconds=self.retain_s)
        except OverflowError:
            return None

    @property
    def recipe(self) -> str | None:
        """The recipe that a turn runs; None: none was named, or the
        runs were of several recipes.
        """
        return self.own_recipe or (None if self.is_mixed else self.ran_recipe)


class RunUse(NamedTuple):
    """What one run used, by its last end: for sums over many runs."""

    group: str | None
    """Its recipe, model, user or project, as was asked for; None: it has none."""
    status: str
    started_us: int
    """When it started, in microseconds since 1970: thousands of times cost less as numbers."""
    took_us: int | None
    """Microseconds from its start to its last end; None: it has not ended."""
    tokens: int
    """0: none, or not known."""
    cost_usd: float | None
    """US dollars; None: not known."""


UseGroup: TypeAlias = Literal["recipe", "model", "user", "project"]


def use_in(usage: Mapping[str, Number]) -> tuple[int, float | None]:
    """The tokens and US dollars of a run's usage, as in `RunUse`."""
    return whole_tokens(usage.get("total_tokens")), usage.get("cost_usd")


def whole_tokens(tokens: Number) -> int:
    """The tokens of a run's usage, as in `RunUse`."""
    if type(tokens) is int:
        return tokens
    return int(tokens) if tokens and isfinite(tokens) else 0


def use_of(row: RunRow, by: UseGroup) -> RunUse:
    """What the run of that row used."""
    groups = {"recipe": row.recipe, "model": row.model, "user": row.user, "project": row.project}
    started, ended = micros(row.started_at), row.ended_at
    took = None if ended is None else micros(ended) - started
    return RunUse(groups[by], row.status, started, took, *use_in(row.usage))


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def time_at(microseconds: int) -> datetime:
    """The time that `micros` gave, in UTC.

    Raises:
        OverflowError: It is none.
    """
    return EPOCH + microseconds * MICROSECOND


# --- filters ---------------------------------------------------------------------------------


class UsageBound(Struct, frozen=True, kw_only=True):
    """What a run used, compared with a number. A run whose use is not known does not fulfil it."""

    name: Literal["total_tokens", "cost_usd"]
    sign: Literal[">", ">=", "<", "<="]
    value: float

    def is_kept(self, usage: Mapping[str, Number]) -> bool:
        """Whether that usage is within the bound."""
        used = usage.get(self.name)
        return used is not None and _COMPARISONS[self.sign](used, self.value)


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class RunFilter(Struct, frozen=True, kw_only=True):
    """Selects runs that fulfil all fields. None: the field selects every run."""

    run_ids: Collection[str] | None = None
    id_start: str | None = None
    """Start of the run's id."""
    session_id: str | None = None
    statuses: Collection[str] | None = None
    """States, members of `RunState`."""
    recipe: str | None = None
    user: str | None = None
    """The label of the user for whom it runs."""
    project: str | None = None
    """The folder of the project in which it was started."""
    text: str | None = None
    """Words, each of which occurs in the recipe, the model, the status, an id, the first words of
    the inputs or the error, in any case."""
    since: datetime | None = None
    """Only runs that started at this time or later."""
    phrases: Collection[str] = ()
    """Texts, each of which occurs as it stands where `text` has its words, in any case."""
    bounds: Collection[UsageBound] = ()
    """Bounds of what the runs used by their last ends."""
    running: Collection[str] = ()
    """Ids of runs that a worker executes: without a recorded end they count as `running`."""

    def status_of(self, row: RunRow) -> str:
        """The state of a run, where one without an end may be `running`."""
        is_running = row.status == RunState.INTERRUPTED and row.run_id in self.running
        return RunState.RUNNING.value if is_running else row.status

    def fits(self, row: RunRow) -> bool:
        """Whether the run is selected."""
        return (
            (self.run_ids is None or row.run_id in self.run_ids)
            and (self.id_start is None or row.run_id.startswith(self.id_start))
            and (self.session_id is None or row.session_id == self.session_id)
            and (self.statuses is None or self.status_of(row) in self.statuses)
            and (self.recipe is None or row.recipe == self.recipe)
            and (self.user is None or row.user == self.user)
            and (self.project is None or row.project == self.project)
            and (self.since is None or row.started_at >= self.since)
            and self.has_contents(row)
        )

    @property
    def is_without_index(self) -> bool:
        """Whether a database has to look at each row that fulfils the other fields."""
        return bool(self.text or self.phrases or self.bounds)

    def has_contents(self, row: RunRow) -> bool:
        """Whether the row fulfils the fields for which there is no index."""
        if not all(bound.is_kept(row.usage) for bound in self.bounds):
            return False
        if not (self.text or self.phrases):
            return True
        names = (row.recipe, row.model, self.status_of(row), row.run_id, row.session_id)
        places = (*names, row.input_words, row.error_code, row.error_message)
        return has_words(self.text, *places, phrases=self.phrases)


class Expiry(Struct, frozen=True, kw_only=True):
    """Selects sessions that are older than they may become."""

    now: datetime
    """Sessions whose own time is over then, as their runs say it."""
    ended_by: datetime | None = None
    """Sessions of which no run started or ended after this time, too; None: only those above."""

    def fits(self, row: SessionRow) -> bool:
        """Whether the session is older."""
        expires_at = row.expires_at
        is_over = expires_at is not None and expires_at <= self.now
        return is_over or (self.ended_by is not None and row.updated_at <= self.ended_by)


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Selects sessions that fulfil all fields. None: the field selects every session."""

    session_ids: Collection[str] | None = None
    id_start: str | None = None
    """Start of the session's id."""
    name: str | None = None
    parent: str | None = None
    """The session from which it was forked."""
    user: str | None = None
    """The label of the user to whom it belongs."""
    project: str | None = None
    """The folder of the project in which it was made."""
    text: str | None = None
    """Words, each of which occurs in the name, the recipe or the id, in any case."""
    expiry: Expiry | None = None

    def fits(self, row: SessionRow) -> bool:
        """Whether the session is selected."""
        return (
            (self.expiry is None or self.expiry.fits(row))
            and (self.session_ids is None or row.session_id in self.session_ids)
            and (self.id_start is None or row.session_id.startswith(self.id_start))
            and (self.name is None or row.name == self.name)
            and (self.parent is None or row.parent == self.parent)
            and (self.user is None or row.user == self.user)
            and (self.project is None or row.project == self.project)
            and self.has_text(row)
        )

    def has_text(self, row: SessionRow) -> bool:
        """Whether the session's row contains the words of `text`."""
        return not self.text or has_words(self.text, row.name, row.recipe, row.session_id)
