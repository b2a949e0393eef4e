"""Questions about rows of runs and sessions in the SQL of each database, and look-ups by them."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from minions.adapters.stores.body_cipher import BodyCipher
from minions.adapters.stores.stored_rows import name_keys, search_key, started_by
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import (
    RunFilter,
    RunRow,
    RunUse,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    StateTotal,
    UseGroup,
)

R = TypeVar("R", RunRow, SessionRow)

RUN_COLUMNS: Final = (
    "run_id, session_id, position, recipe, status, started_at, rest, "
    "user_name, project, day, tokens, cost_usd, day_tokens, day_cost_usd, started_by"
)
SESSION_COLUMNS: Final = (
    "session_id, name, parent, updated_at, last_position, user_name, project, expires_at, rest"
)

_RARE: Final = frozenset(
    (
        RunState.QUEUED,
        RunState.RUNNING,
        RunState.INTERRUPTED,
        RunState.NEEDS_DECISION,
        RunState.UNREADABLE,
    )
)
"""Few runs are in one of these states, whatever was recorded."""

_MOST_WORDS: Final = 8
"""Words that a database looks for; they are all looked for in what it finds."""
_LONGEST_WORD: Final = 200
"""Characters of each."""
_PRINTABLE: Final = re.compile("[ -~]+")
_FOLDED_TO_ASCII: Final[Mapping[str, Sequence[str]]] = {
    "\\u00df": (),
    "\\u01": ("30", "49", "7f", "f0"),
    "\\u1e9": (),
    "\\u212a": (),
    "\\ufb0": (),
}
"""How the characters begin and end in JSON that compare as ASCII where no case counts, such as the
German sharp s, the Kelvin sign and ligatures. A text with other ones has an ASCII word only where
its JSON has it."""

_LAST_CHARACTER: Final = "\U0010ffff"
_LARGEST: Final = 2**63 - 1


class Dialect(NamedTuple):
    """What differs between databases."""

    mark: str
    """Where a value goes: `?`."""
    schema: str
    """Before the name of a table."""
    one_of: str
    """`{column}` is one of the values of a list at `mark`."""
    list_of: Callable[[Collection[str]], object]
    """Such a list, to be bound."""
    time: Callable[[datetime], object]
    unordered: str
    """`{column}`, so that no index is chosen for its order."""
    like: str
    """`LIKE`, for ASCII in any case."""
    bytes_of: str
    """The number of bytes of `{column}` in UTF-8."""
    in_state: str
    """`{column}`, a time, as the indexes of runs in one state have it: an index of the order alone
    cannot be chosen then, by which all runs would be read where few are in that state."""


class Part(NamedTuple):
    """Which part of a list is asked for."""

    limit: int | None = None
    offset: int = 0


_FIRST: Final = 500
"""Rows that a database looks through first for a text: most have it in some of these."""
_SEARCHED: Final = 10_000
"""Those that it looks through at once then: some 20 ms."""
FOUND: Final = 500
"""How many of them it returns at most: some 5 ms."""
READ: Final = 2_500
"""Rows at most of which a few values are read at once: some 10 ms."""


class Place(NamedTuple):
    """A place in a list, the newest first: that of a row, whether or not it still exists."""

    at: datetime
    name: str


class Search(NamedTuple):
    """A look for words in a part of a list."""

    words: Sequence[str]
    """Each of them; a text with blanks is looked for as it stands."""
    edge: Place | None
    """The end of that part; None: that of the list."""


class SearchedPart(NamedTuple, Generic[R]):
    """What one look at a part of a list gave that is searched for a text."""

    rows: Sequence[R]
    """Those that may have it."""
    behind: Place | None
    """Where to look next; None: this was the end."""


class UsesPage(NamedTuple):
    """What some runs used, and where the last of them stands."""

    rows: Sequence[RunUse]
    behind: Place | None


class Question(NamedTuple):
    """A statement and its values."""

    sql: str
    values: Sequence[object]


class _Where:
    """Conditions that are put together."""

    def __init__(self, dialect: Dialect) -> None:
        """None yet."""
        self.dialect = dialect
        self._one_of = dialect.one_of
        self.conditions: list[str] = []
        self.values: list[object] = []

    def add(self, condition: str, *values: object) -> None:
        """`{}` in it is where a value goes."""
        self.conditions.append(condition.replace("{}", self.dialect.mark))
        self.values.extend(values)

    def one_of(self, column: str, values: Collection[str], *, negated: bool = False) -> None:
        """The column has one of these values, or none of them."""
        text = self._one_of.format(column=column)
        self.conditions.append(f"NOT ({text})" if negated else text)
        self.values.append(self.dialect.list_of(values))

    def begins(self, column: str, start: str) -> None:
        """A range of an index; nothing sorts behind the last character."""
        self.add(f"{column} >= {{}}", start)
        self.add(f"{column} <= {{}}", start + _LAST_CHARACTER)

    def behind(
        self, time: str, at: datetime, name: str, value: str, *, form: str = "{column}"
    ) -> None:
        """In a list whose times fall and, where they are the same, whose names rise.

        Args:
            form: Of times in the order of the list.
        """
        bound, column, mark = (
            self.dialect.time(at),
            form.format(column=time),
            form.format(column="{}"),
        )
        condition = f"{column} <= {mark} AND ({column} < {mark} OR {name} > {{}})"
        self.add(condition, bound, bound, value)

    def up_to(self, time: str, name: str, edge: Place | None, *, form: str = "{column}") -> None:
        """In such a list, not behind that place."""
        if edge is None:
            return
        at, column = self.dialect.time(edge.at), form.format(column=time)
        mark = form.format(column="{}")
        condition = f"{column} >= {mark} AND ({column} > {mark} OR {name} <= {{}})"
        self.add(condition, at, at, edge.name)

    def may_have(
        self, wanted: Sequence[str], columns: Sequence[str], status: str | None = None
    ) -> None:
        """Only rows that may have all these words in their columns or in `rest`, in any case; a
        few others come, too, but none that has them is missing.

        Args:
            columns: Those beside `rest` in which they may be.
            status: Rows of this state may have any word; None: there are none.
        """
        # What begins with a bracket and a quote is encrypted, and may be any word.
        found = [self._like("rest", ',["', "LIKE")]
        for start, ends in _FOLDED_TO_ASCII.items():
            each = self._like("rest", start, "LIKE")
            ones = " OR ".join(self._like("rest", f"{start}{end}", "LIKE") for end in ends)
            found.append(f"({each} AND ({ones}))" if ones else each)
        if status is not None:
            found.append(f"status = '{status}'")
        bytes_of = self.dialect.bytes_of
        found += [f"{bytes_of.format(column=each)} <> length({each})" for each in columns]
        words = [each.casefold() for each in wanted]
        every = ["1 = 1"]
        if not all(each.isascii() for each in words):
            every.append(self._like("rest", "\\u", "LIKE"))
        # A line break may be between two columns; and of other words their part in ASCII counts.
        parts = (max(_PRINTABLE.findall(each), key=len, default="") for each in words)
        for part in sorted(filter(None, parts), key=len, reverse=True)[:_MOST_WORDS]:
            start = part[:_LONGEST_WORD]
            places = [self._like("rest", json.dumps(start)[1:-1], self.dialect.like)]
            places += [self._like(column, start, self.dialect.like) for column in columns]
            every.append(f"({' OR '.join(places)})")
        found.append(f"({' AND '.join(every)})")
        self.conditions.append(f"({' OR '.join(found)})")

    def _like(self, column: str, text: str, sign: str) -> str:
        for special in "\\%_":
            text = text.replace(special, f"\\{special}")
        self.values.append(f"%{text}%")
        return f"{column} {sign} {self.dialect.mark} ESCAPE '\\'"

    def question(self, start: str, order: str, part: Part | None) -> Question:
        """The whole statement; None: no part of a list, but a number."""
        sql = start + (f" WHERE {' AND '.join(self.conditions)}" if self.conditions else "")
        if part is None:
            return Question(sql, tuple(self.values))
        return _cut(self.dialect, sql, self.values, order, part)

    def count(self, table: str, at_most: int | None) -> Question:
        """How many rows of the table fulfil them; only so many are looked at."""
        if at_most is None:
            return self.question(f"SELECT count(*) FROM {self.dialect.schema}{table}", "", None)  # noqa: S608  # constants
        few = self.question(f"SELECT 1 FROM {self.dialect.schema}{table}", "", None)  # noqa: S608  # constants
        sql = f"SELECT count(*) FROM ({few.sql} LIMIT {self.dialect.mark}) AS few"  # noqa: S608  # constants
        return Question(sql, (*few.values, _within(at_most)))


def _cut(dialect: Dialect, sql: str, values: Sequence[object], order: str, part: Part) -> Question:
    """That part of what is found, in that order."""
    most = _LARGEST if part.limit is None else part.limit
    sql += f" ORDER BY {order} LIMIT {dialect.mark} OFFSET {dialect.mark}"
    return Question(sql, (*values, _within(most), _within(part.offset)))


def _within(number: int) -> int:
    return max(min(number, _LARGEST), 0)


def place_of(row: RunRow | SessionRow | None) -> Place | None:
    """Where the row stands in its list."""
    if row is None:
        return None
    if isinstance(row, RunRow):
        return Place(row.started_at, row.run_id)
    return Place(row.updated_at, row.session_id)


def runs_question(
    dialect: Dialect,
    wanted: RunFilter,
    after: Place | None,
    part: Part,
    *,
    columns: str = RUN_COLUMNS,
    search: Search | None = None,
) -> Question:
    """Runs that fit, but for their text.

    Args:
        search: Only those that may have the words.
    """
    where, is_few = _of_runs(dialect, wanted)
    is_in_state = wanted.statuses is not None and len(wanted.statuses) == 1
    if is_in_state and (wanted.user, wanted.project, wanted.recipe) != (None, None, None):
        form = dialect.in_state
    else:
        form = dialect.unordered if is_few else "{column}"
    if after is not None:
        where.behind("started_at", after.at, "run_id", after.name, form=form)
    if search is not None:
        where.up_to("started_at", "run_id", search.edge, form=form)
        if search.words:  # that an open run is executed, no row says
            named = ("run_id", "session_id", "recipe", "status")
            where.may_have(search.words, named, "interrupted")
    return where.question(
        f"SELECT {columns} FROM {dialect.schema}runs",  # noqa: S608  # built of constants
        f"{form.format(column='started_at')} DESC, run_id",
        part,
    )


_USE_COLUMNS: Final[Mapping[UseGroup, str]] = {
    "recipe": "recipe",
    "model": "NULL",
    "user": "user_name",
    "project": "project",
}


def uses_question(
    dialect: Dialect, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
) -> Question:
    """What runs that fit used: the columns of `stored_use`, and the id."""
    columns = f"{_USE_COLUMNS[by]}, status, started_at, rest, run_id"
    return runs_question(dialect, wanted, after, part, columns=columns)


def runs_count_question(dialect: Dialect, wanted: RunFilter, at_most: int | None) -> Question:
    """How many runs fit, but for their text; None: all of them are counted."""
    return _of_runs(dialect, wanted)[0].count("runs", at_most)


def totals_question(dialect: Dialect, wanted: RunFilter) -> Question:
    """The number of runs in each state, their tokens and US dollars."""
    where, _ = _of_runs(dialect, wanted)
    sums = "status, count(*), sum(tokens), sum(cost_usd)"
    found = where.question(f"SELECT {sums} FROM {dialect.schema}runs", "", None)  # noqa: S608  # constants
    return Question(f"{found.sql} GROUP BY status", found.values)


def _of_runs(dialect: Dialect, wanted: RunFilter) -> tuple[_Where, bool]:
    """The conditions but for the text, and whether few runs fulfil them."""
    where = _Where(dialect)
    is_few = False
    if wanted.run_ids is not None:
        where.one_of("run_id", wanted.run_ids)
        is_few = True
    if wanted.id_start is not None:
        where.begins("run_id", wanted.id_start)
        is_few = True
    if wanted.session_id is not None:
        where.add("session_id = {}", wanted.session_id)
        is_few = True
    if wanted.statuses is not None:
        _has_status(where, wanted)
        is_few = is_few or _RARE.issuperset(wanted.statuses)
    if wanted.recipe is not None:
        where.add("recipe = {}", search_key(wanted.recipe))
    if wanted.user is not None:
        where.add("user_name = {}", search_key(wanted.user))
    if wanted.project is not None:
        where.add("project = {}", search_key(wanted.project))
    if wanted.since is not None:
        where.add("started_at >= {}", dialect.time(wanted.since))
    return where, is_few


def few_question(dialect: Dialect, start: str) -> Question:
    """How many runs have an id that starts so, counted up to two: not newest first, for which all
    of them would be looked at.
    """
    where = _Where(dialect)
    where.begins("run_id", start)
    return where.count("runs", 2)


def spent_question(dialect: Dialect, spender: Spender, without: Collection[str]) -> Question:
    """What somebody spent: tokens, US dollars; in a period on the last day of each run.

    That of a session, of a day and of a user on a day is answered by an index, others by one of the
    days.
    """
    where, prefix = _of_spender(dialect, spender), "day_"
    if spender.day is None:
        prefix = ""
    else:
        where.add("(day_tokens > 0 OR day_cost_usd > 0)")  # as the index says
    if without:
        where.one_of("run_id", sorted(without), negated=True)
    sums = "SELECT coalesce(sum({0}tokens), 0) AS tokens, coalesce(sum({0}cost_usd), 0) AS usd FROM"
    of_runs = f"{sums.format(prefix)} {dialect.schema}runs"
    if spender.day is None or spender.session_id is not None:
        return where.question(of_runs, "", None)
    runs = where.question(of_runs, "", None)
    removed = _of_spender(dialect, spender).question(
        f"{sums.format('')} {dialect.schema}removed_spending", "", None
    )
    both = "SELECT r.tokens + x.tokens, r.usd + x.usd FROM"
    sql = f"{both} ({runs.sql}) AS r, ({removed.sql}) AS x"
    return Question(sql, (*runs.values, *removed.values))


def earlier_question(dialect: Dialect, spender: Spender, without: Collection[str]) -> Question:
    """The rows of runs that spent something before their last day, of which there are few."""
    where = _of_spender(dialect, spender)
    where.add("(tokens > day_tokens OR cost_usd > day_cost_usd)")  # as the index says
    if without:
        where.one_of("run_id", sorted(without), negated=True)
    return where.question(f"SELECT {RUN_COLUMNS} FROM {dialect.schema}runs", "", None)  # noqa: S608  # constants


def _of_spender(dialect: Dialect, spender: Spender) -> _Where:
    where = _Where(dialect)
    if spender.session_id is not None:
        where.add("session_id = {}", spender.session_id)
    if spender.day is not None and spender.days == 1:
        where.add("day = {}", spender.day)
    elif spender.day is not None:
        where.add("day >= {}", spender.day)
        where.add("day < {}", spender.day + spender.days)
    for column, value in (
        ("user_name", spender.user),
        ("recipe", spender.recipe),
        ("project", spender.project),
        ("started_by", started_by(spender)),
    ):
        if value is not None:
            where.add(f"{column} = {{}}", search_key(value))
    return where


def _has_status(where: _Where, wanted: RunFilter) -> None:
    """No row says `running`: it is `interrupted` there, and a worker executes it."""
    statuses = set(map(str, wanted.statuses or ()))
    open_ones = statuses & {RunState.RUNNING.value, RunState.INTERRUPTED.value}
    stored = statuses - {RunState.RUNNING.value}
    if open_ones:
        stored.add(RunState.INTERRUPTED.value)
    if len(stored) == 1:
        where.add("status = {}", str(*stored))
    else:
        is_rare = _RARE.issuperset(stored)  # else too many are found so, and sorted
        column = "status" if is_rare else where.dialect.unordered.format(column="status")
        where.one_of(column, sorted(stored))
    if len(open_ones) != 1:
        return
    is_running = open_ones == {RunState.RUNNING.value}
    others = where.dialect.one_of.format(column="run_id")
    negation = "" if is_running else "NOT "
    where.conditions.append(f"(status <> 'interrupted' OR {negation}({others}))")
    where.values.append(where.dialect.list_of(wanted.running))


def sessions_question(
    dialect: Dialect,
    wanted: SessionFilter,
    after: Place | None,
    part: Part,
    cipher: BodyCipher | None,
    *,
    columns: str = SESSION_COLUMNS,
    search: Search | None = None,
) -> Question:
    """Sessions that fit, but for their text.

    Those whose own time is over and those that ended by a time are found by an index each: one
    condition for both would be looked for in the order of the list, through all that stay.

    Args:
        search: Only those that may have the words.
    """

    def page(fit: SessionFilter, more: str, part: Part) -> Question:
        where, is_few = _of_sessions(dialect, fit, cipher)
        if ended_by is not None:
            where.add(f"updated_at {more} {{}}", dialect.time(ended_by))
        if after is not None:
            where.behind("updated_at", after.at, "session_id", after.name)
        if search is not None:
            where.up_to("updated_at", "session_id", search.edge)
            where.may_have(search.words, ("session_id", "name"))
        begin = dialect.unordered.format(column="updated_at") if is_few else "updated_at"
        return where.question(
            f"SELECT {columns} FROM {dialect.schema}sessions",  # noqa: S608  # built of constants
            f"{begin} DESC, session_id",
            part,
        )

    expiry = wanted.expiry
    ended_by = None if expiry is None else expiry.ended_by
    if expiry is None or ended_by is None:
        return page(wanted, "", part)
    most = Part(limit=None if part.limit is None else part.limit + part.offset)
    over = page(replace(wanted, expiry=replace(expiry, ended_by=None)), ">", most)
    ended = page(replace(wanted, expiry=None), "<=", most)
    both = " UNION ALL ".join(f"SELECT * FROM ({each.sql}) AS half" for each in (over, ended))  # noqa: S608
    return _cut(dialect, both, (*over.values, *ended.values), "updated_at DESC, session_id", part)


def sessions_count_question(
    dialect: Dialect, wanted: SessionFilter, at_most: int | None, cipher: BodyCipher | None
) -> Question:
    """How many sessions fit, but for their text; None: all of them are counted."""
    return _of_sessions(dialect, wanted, cipher)[0].count("sessions", at_most)


def _of_sessions(
    dialect: Dialect, wanted: SessionFilter, cipher: BodyCipher | None
) -> tuple[_Where, bool]:
    """The conditions but for the text, and whether few sessions fulfil them."""
    where = _Where(dialect)
    is_few = False
    if wanted.session_ids is not None:
        where.one_of("session_id", wanted.session_ids)
        is_few = True
    if wanted.id_start is not None:
        where.begins("session_id", wanted.id_start)
        is_few = True
    if wanted.name is not None:
        if cipher is None:
            where.add("name = {}", search_key(wanted.name))
        else:
            where.one_of("name", name_keys(wanted.name, cipher))
        is_few = True
    if wanted.parent is not None:
        where.add("parent = {}", search_key(wanted.parent))
        is_few = True
    if wanted.user is not None:
        where.add("user_name = {}", search_key(wanted.user))
    if wanted.project is not None:
        where.add("project = {}", search_key(wanted.project))
    if (expiry := wanted.expiry) is not None:
        now = dialect.time(expiry.now)
        if expiry.ended_by is None:
            where.add("expires_at <= {}", now)
        else:
            by = dialect.time(expiry.ended_by)
            where.add("(expires_at <= {} OR updated_at <= {})", now, by)
    return where, is_few


# --- look-ups of runs and sessions that two databases have in common -----------------------------


class RowLookups(Journal):
    """A journal that keeps rows of runs and sessions in tables with an index for each filter.

    Texts and bounds are in no index: they are looked for page by page.
    """

    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        """Found by an index for each filter but those of what a row contains."""
        fit = wanted or RunFilter()
        if not fit.is_without_index:
            return await self._runs_page(fit, place_of(after), Part(limit=limit, offset=offset))

        async def look(behind: Place | None, most: int) -> SearchedPart[RunRow]:
            return await self._searched_runs(fit, behind, most)

        most = None if limit is None else offset + limit
        return (await _found(look, fit.has_contents, place_of(after), most))[offset:]

    async def count_runs(
        self, wanted: RunFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """Counted by the database; with a text, by looking at each."""
        if wanted is not None and wanted.is_without_index:
            return len(await self.runs(wanted, limit=at_most))
        return await self._count_runs(wanted or RunFilter(), at_most)

    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        """Found by an index for each filter but `text`."""
        fit = wanted or SessionFilter()
        if not fit.text:
            return await self._sessions_page(fit, place_of(after), Part(limit=limit, offset=offset))

        async def look(behind: Place | None, most: int) -> SearchedPart[SessionRow]:
            return await self._searched_sessions(fit, behind, most)

        most = None if limit is None else offset + limit
        return (await _found(look, fit.has_text, place_of(after), most))[offset:]

    async def count_sessions(
        self, wanted: SessionFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """As runs are."""
        if wanted is not None and wanted.text:
            return len(await self.sessions(wanted, limit=at_most))
        return await self._count_sessions(wanted or SessionFilter(), at_most)

    async def uses(self, wanted: RunFilter, by: UseGroup, *, limit: int) -> Sequence[RunUse]:
        """Read page by page, of what sums need alone; others have their turn in between."""
        found: list[RunUse] = []
        behind: Place | None = None
        while len(found) < limit:
            most = min(READ, limit - len(found))
            page = await self._uses_page(wanted, by, behind, Part(limit=most))
            found += page.rows
            behind = page.behind
            if len(page.rows) < most:
                break
        return found

    @abstractmethod
    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        """Summed up by the database, from an index."""

    @abstractmethod
    async def totals(self, wanted: RunFilter | None = None) -> Mapping[str, StateTotal]:
        """Summed up by the database, over the rows that an index finds."""

    @abstractmethod
    async def is_ambiguous(self, start: str) -> bool:
        """Two of them are looked at, however many there are."""

    @abstractmethod
    async def _runs_page(
        self, wanted: RunFilter, after: Place | None, part: Part
    ) -> Sequence[RunRow]:
        """Runs that fit, but for their text, in rows that are right."""

    @abstractmethod
    async def _searched_runs(
        self, wanted: RunFilter, after: Place | None, most: int
    ) -> SearchedPart[RunRow]:
        """Those of the next `most` runs that may fit, in rows that are right."""

    @abstractmethod
    async def _uses_page(
        self, wanted: RunFilter, by: UseGroup, after: Place | None, part: Part
    ) -> UsesPage:
        """What runs that fit used, by rows that are right."""

    @abstractmethod
    async def _count_runs(self, wanted: RunFilter, at_most: int | None) -> int:
        """How many fit, but for their text; None: all of them are counted."""

    @abstractmethod
    async def _sessions_page(
        self, wanted: SessionFilter, after: Place | None, part: Part
    ) -> Sequence[SessionRow]:
        """Sessions that fit, but for their text, in rows that are right."""

    @abstractmethod
    async def _searched_sessions(
        self, wanted: SessionFilter, after: Place | None, most: int
    ) -> SearchedPart[SessionRow]:
        """Those of the next `most` sessions that may fit, in rows that are right."""

    @abstractmethod
    async def _count_sessions(self, wanted: SessionFilter, at_most: int | None) -> int:
        """How many fit, but for their text; None: all of them are counted."""


async def _found(
    look: Callable[[Place | None, int], Awaitable[SearchedPart[R]]],
    has_text: Callable[[R], bool],
    behind: Place | None,
    most: int | None,
) -> list[R]:
    """Rows with a text, looked for part by part: nobody waits for longer than one takes.

    Args:
        most: Where to stop; None: at the end.
    """
    found: list[R] = []
    is_over, part = False, _FIRST
    while not is_over and (most is None or len(found) < most):
        rows, behind = await look(behind, part)
        found += filter(has_text, rows)
        is_over, part = behind is None, _SEARCHED
    return found[:most]
