"""Several projects behind one server, each with a database of its own.

A project's requests are those beneath `/projects/NAME`; it is served by a whole app, which knows of
no other. Only what is said of all of them is here: which there are, and their runs in one list.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import parse_qsl, quote

from attrs import evolve, field, fields, frozen

from minions.adapters.stores.memory_stores import RESERVED
from minions.adapters.stores.postgres_url import is_postgres_url, without_password
from minions.app.settings.settings import Settings
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow, SessionFilter, SessionRow
from minions.contracts.runtime import Log
from minions.data.codec import decode, encode
from minions.data.errors import MinionsError, UsageError, words_of
from minions.engine.calls.inbox import ItemKind
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import (
    Answer,
    AsgiApp,
    Incidents,
    Receive,
    RefusedError,
    Scope,
    Send,
    refusal,
)
from minions.interfaces.http.tokens import CALLER, Caller, TokenScope
from minions.interfaces.server.access import ROOT, AccessMiddleware
from minions.interfaces.server.app import App
from minions.interfaces.server.decision_views import all_waiting
from minions.interfaces.server.documents.project_documents import (
    ProjectApproval,
    ProjectApprovals,
    ProjectApprovalsQuery,
    ProjectRow,
    ProjectRunRow,
    ProjectRuns,
    ProjectRunsQuery,
    Projects,
    ProjectSessionRow,
    ProjectSessions,
    ProjectSessionsQuery,
    UnreachableProject,
)
from minions.interfaces.server.documents.run_documents import ApprovalView
from minions.interfaces.server.server_options import ServerOptions
from minions.recipe.recipe_files import toml_values

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX: Final = re.compile(r"/projects/([^/]+)(?=/|$)")
_ALL: Final = "/api/v1/projects"
_RUNS_OF_ALL: Final = f"{_ALL}/runs"
_SESSIONS_OF_ALL: Final = f"{_ALL}/sessions"
_APPROVALS_OF_ALL: Final = f"{_ALL}/approvals"
_PATHS: Final = (_ALL, _RUNS_OF_ALL, _SESSIONS_OF_ALL, _APPROVALS_OF_ALL)
_MOST: Final = 1_000
"""Runs or sessions of each project that are read for one page of the list of all."""
_ANSWER_S: Final = 5.0
"""How long a list of all projects waits for each of them."""


# --- which project is in which database ----------------------------------------------------------


@frozen(kw_only=True)
class ProjectSettings:
    """A project of the table: `[projects.NAME]`."""

    db: str = field(repr=False)
    """Its database, as the setting `db` names one."""
    replica: str | None = field(default=None, repr=False)
    """A standby of it, from which lists are read; None: they are read from the database itself."""


@frozen(kw_only=True)
class ProjectTable:
    """The projects of a server, by name."""

    default: str
    """The project of requests that name none."""
    projects: Mapping[str, ProjectSettings]

    def settings_of(self, name: str, settings: Settings) -> Settings:
        """The settings of the server, with the project's database."""
        own = self.projects[name]
        journal = evolve(settings.journal, replica=own.replica)
        return evolve(settings, db=own.db, journal=journal)


def read_project_table(path: Path) -> ProjectTable:
    """The table in a TOML file; paths of SQLite files start in its folder.

    Raises:
        UsageError: `bad-projects`; it cannot be read, or has faults. All are named.
    """
    try:
        values = encode(toml_values(path, path.read_bytes()))
        table = decode(values, ProjectTable)
    except OSError as error:
        raise _bad_table(path, f"it cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _bad_table(path, str(error)) from error
    faults, places, dbs = list[str](), dict[str, str](), dict[str, str]()
    for name, project in table.projects.items():
        if not _NAME.fullmatch(name):
            faults.append(f"{name!r} is no name: letters, digits, `.`, `_`, `-`, 64 at most")
        db = project.db if "://" in project.db else str((path.parent / project.db).resolve())
        dbs[name] = db
        if (other := places.setdefault(_key_of(db), name)) != name:
            spelled = "" if dbs[other] == db else ", which is written in two ways"
            faults.append(
                f"{other!r} and {name!r} have the same database{spelled}: give each its own; a "
                "PostgreSQL server has as many as you like"
            )
    if table.default not in table.projects:
        known = ", ".join(table.projects) or "none"
        faults.append(f"default = {table.default!r} is none of the projects: {known}")
    if faults:
        raise _bad_table(path, "; ".join(faults))
    projects = {name: evolve(own, db=dbs[name]) for name, own in table.projects.items()}
    return evolve(table, projects=projects)


def _key_of(db: str) -> str:
    """Equal for the same database, also where it is spelled in two ways."""
    if is_postgres_url(db):
        from minions.adapters.stores.postgres_database import database_key

        try:
            return database_key(db)
        except ImportError:  # whoever opens it says what is to be installed
            return db
    with contextlib.suppress(OSError):  # one that is not there yet
        found = Path(db).stat()
        return f"{found.st_dev}:{found.st_ino}"
    return db


def _bad_table(path: Path, faults: str) -> UsageError:
    return UsageError(
        f'{path}: {faults}. Expected: default = "NAME", and for each project [projects.NAME] with '
        "its `db`.",
        code="bad-projects",
        where=str(path),
    )


# --- the app in front of the apps of all projects ------------------------------------------------


class ProjectServer:
    """An ASGI app that gives each request to the app of its project."""

    def __init__(
        self, apps: Mapping[str, App], default: str, options: ServerOptions, log: Log
    ) -> None:
        """Nothing is opened yet; the apps are closed here.

        Args:
            apps: By the name of the project.
            default: The project of requests that name none.
        """
        self.options = options
        self.log = log
        self._apps = apps
        self._default = apps[default]
        self._late: dict[str, asyncio.Task[object]] = {}
        """The look-up of a project that did not answer in time, as long as it lasts."""
        services = self._default.services
        self._ids = services.ids
        incidents = Incidents(log, services.ids, options.token)
        self._of_all = AccessMiddleware(
            self._answer, options, {}, incidents.report, services.clock.now
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of all apps."""
        if scope["type"] == "lifespan":
            await receive()
            await asyncio.gather(*(app.start() for app in self._apps.values()))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
        path = scope["path"]
        found = _PREFIX.match(path)
        app: AsgiApp = self._default
        below = path[found.end() :] if found is not None else path
        if found is not None and found[1] in self._apps and below in _PATHS:
            app, scope = self._of_all, {**scope, "path": below}  # of the page of a project
        elif found is not None and found[1] in self._apps:
            app, scope = self._apps[found[1]], {**scope, "root_path": found[0]}
        elif found is not None or path in _PATHS:
            app = self._of_all
        await app(scope, receive, send)

    def keep_room(self, most_open: int) -> None:
        """Leave some of so many connections for other requests than streams, in all projects."""
        for app in self._apps.values():
            app.keep_room(max(1, most_open // len(self._apps)))

    async def tell_apart(self) -> None:
        """See that no two projects have one PostgreSQL database, whatever its server is called: a
        text that one of them stores is looked for in the others.

        Raises:
            UsageError: `bad-projects`; two have. One that cannot be reached now is not compared.
        """
        stores = {
            name: app.app_state.marks
            for name, app in self._apps.items()
            if is_postgres_url(app.app_state.place)
        }
        start = f"{RESERVED}project:{self._ids('srv')}:"
        if len(stores) < 2:
            return
        stored = await self._each(stores, lambda name: stores[name].put(start + name, ""))
        found = await self._each(stored, lambda name: stores[name].keys(start))
        await self._each(stored, lambda name: stores[name].remove(start + name))
        for name, keys in found.items():
            others = [key.removeprefix(start) for key in keys if key != start + name]
            if others:
                raise UsageError(
                    f"{name!r} and {others[0]!r} have the same database, behind two names of its "
                    "server: give each its own; a PostgreSQL server has as many as you like.",
                    code="bad-projects",
                )

    async def _each(
        self, names: Collection[str], ask: Callable[[str], Awaitable[T]]
    ) -> dict[str, T]:
        """What each of these projects answers in time; others are left out."""

        async def answer(name: str) -> T:
            async with asyncio.timeout(_ANSWER_S):
                return await ask(name)

        answers = await asyncio.gather(*map(answer, names), return_exceptions=True)
        found = dict[str, T]()
        for name, answered in zip(names, answers, strict=True):
            if isinstance(answered, BaseException):
                if not isinstance(answered, MinionsError | TimeoutError):
                    raise answered
                self.log.warning("project_not_compared", project=name, reason=words_of(answered))
                continue
            found[name] = answered
        return found

    async def stop(self) -> None:
        """Stop the runs of all projects, which can be resumed, and close streams."""
        await asyncio.gather(*(app.stop() for app in self._apps.values()))

    async def aclose(self) -> None:
        """Stop, and close everything."""
        await asyncio.gather(*(app.aclose() for app in self._apps.values()))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer: AsgiApp = await self._about_all(scope)
        except MinionsError as error:
            answer = refusal(error, scope["path"])
        await answer(scope, receive, send)

    async def _about_all(self, scope: Scope) -> Answer:
        if scope["path"] not in _PATHS:
            known = ", ".join(self._apps)
            raise RefusedError(
                HTTPStatus.NOT_FOUND,
                "unknown-project",
                f"There is no such project here. Projects are: {known}.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            raise RefusedError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Projects are only read here.",
                headers={"allow": "GET, HEAD"},
            )
        caller: Caller = scope[CALLER]
        names = [name for name in self._apps if _sees_all(caller, name)]
        if not names:  # a token of one user is told of no other's
            caller.require(TokenScope.READ, "projects")
            caller.require(TokenScope.ALL, "projects")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if scope["path"] == _RUNS_OF_ALL:
            reply: object = await self._runs(_RunsPage.of(query), names, scope)
        elif scope["path"] == _SESSIONS_OF_ALL:
            reply = await self._sessions(_SessionsPage.of(query), names, scope)
        elif scope["path"] == _APPROVALS_OF_ALL:
            reply = await self._approvals(_ApprovalsPage.of(query), names, scope)
        else:
            _refuse_others(query, ())
            _, missing = await self._ask(_check, names)
            reply = Projects(projects=tuple(self._row(name, missing, scope) for name in names))
        return Answer(HTTPStatus.OK, encode(reply))

    async def _runs(self, asked: _RunsPage, names: Sequence[str], scope: Scope) -> ProjectRuns:
        found, missing = await self._ask(asked.read, names)
        runs = [(run, name) for name, rows in found.items() for run in rows]
        runs.sort(key=lambda each: each[0].run_id)
        runs.sort(key=lambda each: each[0].started_at, reverse=True)
        places = [_Place(at=run.started_at, id=run.run_id) for run, _ in runs]
        end = asked.offset + asked.limit
        while 0 < end < len(runs) and places[end] == places[end - 1]:
            end += 1  # else the next page would begin behind what is not on this one
        has_more = end < len(runs)
        return ProjectRuns(
            runs=tuple(_run_row(run, name, scope) for run, name in runs[asked.offset : end]),
            limit=asked.limit,
            offset=asked.offset,
            has_more=has_more,
            next=str(places[end - 1]) if has_more and end > asked.offset else None,
            unreachable=_unreachable(missing),
        )

    async def _sessions(
        self, asked: _SessionsPage, names: Sequence[str], scope: Scope
    ) -> ProjectSessions:
        found, missing = await self._ask(asked.read, names)
        rows = [(row, name) for name, own in found.items() for row in own]
        rows.sort(key=lambda each: each[0].session_id)
        rows.sort(key=lambda each: each[0].updated_at, reverse=True)
        end = asked.offset + asked.limit
        return ProjectSessions(
            sessions=tuple(
                ProjectSessionRow(
                    project=name,
                    session_id=row.session_id,
                    name=row.name,
                    recipe=row.recipe,
                    user=row.user,
                    updated_at=row.updated_at,
                    url=_url_in(name, scope, f"sessions/{quote(row.session_id, safe='')}"),
                )
                for row, name in rows[asked.offset : end]
            ),
            limit=asked.limit,
            offset=asked.offset,
            has_more=end < len(rows),
            unreachable=_unreachable(missing),
        )

    async def _approvals(
        self, asked: _ApprovalsPage, names: Sequence[str], scope: Scope
    ) -> ProjectApprovals:
        found, missing = await self._ask(asked.read, names)
        waiting = [
            (_Place(at=each.asked_at, id=f"{name}/{each.id}"), name, each)
            for name, views in found.items()
            for each in views
        ]
        waiting.sort(key=lambda each: each[0])
        behind = [each for each in waiting if asked.after is None or each[0] > asked.after]
        page = behind[: asked.limit]
        return ProjectApprovals(
            approvals=tuple(
                ProjectApproval(
                    project=name,
                    approval=view,
                    url=_url_in(name, scope, f"approvals/{quote(view.id, safe='')}"),
                )
                for _, name, view in page
            ),
            total=len(waiting),
            limit=asked.limit,
            next=str(page[-1][0]) if page and len(behind) > len(page) else None,
            unreachable=_unreachable(missing),
        )

    async def _ask(
        self, look: Callable[[App], Awaitable[T]], names: Sequence[str]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What each of these projects answers, all at once, and why others do not, by name.

        Who did not answer in time is not asked again before that look-up has ended.
        """
        missing = {
            name: "its database does not answer"
            for name, task in self._late.items()
            if name in names and not task.done()
        }
        tasks = {
            name: asyncio.ensure_future(look(self._apps[name]))
            for name in names
            if name not in missing
        }
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_ANSWER_S)
        found = dict[str, T]()
        for name, task in tasks.items():
            if not task.done():
                self._late[name] = task
                task.add_done_callback(_take_error)
                missing[name] = f"its database did not answer within {_ANSWER_S:g} s"
                continue
            try:
                found[name] = task.result()
            except MinionsError as error:
                missing[name] = error.message
        return found, {name: missing[name] for name in names if name in missing}

    def _row(self, name: str, missing: Mapping[str, str], scope: Scope) -> ProjectRow:
        return ProjectRow(
            name=name,
            is_default=self._apps[name] is self._default,
            database=without_password(self._apps[name].app_state.place),
            is_reachable=name not in missing,
            problem=missing.get(name),
            url=f"{scope[ROOT]}/projects/{name}/",
        )


def _run_row(run: RunSummary, name: str, scope: Scope) -> ProjectRunRow:
    return ProjectRunRow(
        project=name,
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        status=run.status,
        user=run.user,
        started_at=run.started_at,
        url=_url_in(name, scope, f"runs/{quote(run.run_id, safe='')}"),
    )


def _url_in(project: str, scope: Scope, path: str) -> str:
    return f"{scope[ROOT]}/projects/{project}/api/v1/{path}"


def _unreachable(missing: Mapping[str, str]) -> tuple[UnreachableProject, ...]:
    return tuple(UnreachableProject(project=name, problem=why) for name, why in missing.items())


def _sees_all(caller: Caller, project: str) -> bool:
    """Whether the caller reads what is everybody's in that project."""
    own = evolve(caller, scopes=caller.within(project))
    return TokenScope.READ in own.scopes and own.owner is None


def _take_error(task: asyncio.Task[object]) -> None:
    """It was told when the time was over."""
    if not task.cancelled():
        task.exception()


async def _check(app: App) -> None:
    await app.app_state.journal.held_leases()


# --- which part of a list of all projects is asked for -------------------------------------------


@frozen(kw_only=True, order=True)
class _Place:
    """A place in a list, which does not move when others come before it."""

    at: datetime
    id: str

    def __str__(self) -> str:
        """Without a `+`, which is a space in a query."""
        return f"{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}~{self.id}"

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """The place that a page gave as `next`.

        Raises:
            RefusedError: `bad-query`; it is none.
        """
        if text is None:
            return None
        at, _, name = text.partition("~")
        try:
            place = cls(at=datetime.fromisoformat(at).astimezone(UTC), id=name)
        except (ValueError, OverflowError) as error:
            raise _bad_query(f"after={text!r:.80}: expected the `next` of a page.") from error
        if not name or "\0" in name:
            raise _bad_query(f"after={text!r:.80}: expected the `next` of a page.")
        return place


@frozen(kw_only=True)
class _RunsPage:
    """A part of the runs of all projects."""

    wanted: RunFilter
    limit: int
    offset: int
    after: _Place | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """The part that a query names.

        Raises:
            RefusedError: `bad-query`; it has another key, or a value that does not fit.
        """
        _refuse_others(query, tuple(each.name for each in fields(ProjectRunsQuery)))
        limit, offset = _limit_and_offset(
            query, "runs so. Send the `next` of a page as `after` instead"
        )
        after = _Place.of(query.get("after"))
        if after is not None and offset:
            raise _bad_query("Either `after` or `offset`: both say where the page begins.")
        status = query.get("status")
        if status is not None and status not in set(RunState):
            raise _bad_query(f"status={status!r:.40}: expected one of {', '.join(RunState)}.")
        wanted = RunFilter(
            run_ids=[query["id"]] if "id" in query else None,
            session_id=query.get("session"),
            recipe=query.get("recipe"),
            statuses=None if status is None else {RunState(status)},
            user=query.get("user"),
            text=query.get("text"),
        )
        return cls(wanted=wanted, limit=limit, offset=offset, after=after)

    async def read(self, app: App) -> Sequence[RunSummary]:
        """What of one project may stand on the page, and one run more where there are more."""
        gone = app.app_state.runtime.services.is_worker_gone
        after = None
        if self.after is not None:  # only its place counts
            at, run_id = self.after.at, self.after.id
            after = RunRow(run_id=run_id, session_id="", position=0, recipe="", started_at=at)

        async def read(journal: Journal) -> Sequence[RunSummary]:
            most = self.limit + self.offset + 1
            return await list_runs(
                journal, wanted=self.wanted, limit=most, after=after, is_worker_gone=gone
            )

        return await app.app_state.journal.read_lists(read)


@frozen(kw_only=True)
class _SessionsPage:
    """A part of the sessions of all projects."""

    wanted: SessionFilter
    limit: int
    offset: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """The part that a query names.

        Raises:
            RefusedError: `bad-query`; it has another key, or a value that does not fit.
        """
        _refuse_others(query, tuple(each.name for each in fields(ProjectSessionsQuery)))
        limit, offset = _limit_and_offset(query, "sessions")
        wanted = SessionFilter(user=query.get("user"), text=query.get("text"))
        return cls(wanted=wanted, limit=limit, offset=offset)

    async def read(self, app: App) -> Sequence[SessionRow]:
        """What of one project may stand on the page, and one session more where there are more."""
        most = self.limit + self.offset + 1
        return await app.app_state.journal.read_lists(
            lambda journal: journal.sessions(self.wanted, limit=most)
        )


@frozen(kw_only=True)
class _ApprovalsPage:
    """A part of the pending decisions of all projects."""

    recipe: str | None
    kind: str | None
    limit: int
    after: _Place | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """The part that a query names.

        Raises:
            RefusedError: `bad-query`; it has another key, or a value that does not fit.
        """
        _refuse_others(query, tuple(each.name for each in fields(ProjectApprovalsQuery)))
        kind = query.get("kind")
        if kind is not None and kind not in set(ItemKind):
            raise _bad_query(f"kind={kind!r:.40}: expected one of {', '.join(ItemKind)}.")
        limit = _number(query, "limit", 50)
        if limit > _MOST:
            raise _bad_query(f"limit={limit}: expected a number up to {_MOST:,}.")
        after = _Place.of(query.get("after"))
        return cls(recipe=query.get("recipe"), kind=kind, limit=limit, after=after)

    async def read(self, app: App) -> Sequence[ApprovalView]:
        """What runs of one project wait for."""
        state = app.app_state
        found = await all_waiting(state.journal, state.runtime.calls_in_doubt)
        return [
            each
            for each in found
            if self.recipe in (None, each.recipe) and self.kind in (None, each.kind)
        ]


def _refuse_others(query: Mapping[str, str], keys: Sequence[str]) -> None:
    """Refuse a query with other keys.

    Raises:
        RefusedError: `bad-query`.
    """
    for key in query:
        if key not in keys:
            listed = ", ".join(keys) or "none"
            raise _bad_query(f"The query has the unknown key {key!r}. Keys are: {listed}.")


def _limit_and_offset(query: Mapping[str, str], what: str) -> tuple[int, int]:
    """How many a page has, and how many come before it.

    Raises:
        RefusedError: `bad-query`; they are no numbers, or more than are read.
    """
    limit, offset = _number(query, "limit", 50), _number(query, "offset", 0)
    if limit + offset > _MOST:
        raise _bad_query(
            f"limit and offset together are {limit + offset:,}; the list of all projects is read "
            f"up to {_MOST:,} {what}."
        )
    return limit, offset


def _number(query: Mapping[str, str], key: str, usual: int) -> int:
    text = query.get(key, str(usual))
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise _bad_query(f"{key}={text!r:.40}: expected a number up to {_MOST:,}.")
    return int(text)


def _bad_query(message: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, "bad-query", message)
