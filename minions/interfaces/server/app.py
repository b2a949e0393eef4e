"""`create_app`: recipes, runs and sessions as one ASGI app, alone or mounted in another one."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.stores.memory_stores import StateStore
from minions.app.evaluating.background_scores import LiveScores
from minions.app.evaluating.evaluation_records import EvaluationRecords
from minions.app.runs.batch_records import BatchRecords
from minions.app.runs.deployments import DeploymentStore
from minions.app.runs.remote_deltas import remote_deltas
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.unexecuted_runs import (
    MOST_IDLE_EXECUTIONS,
    DueRuns,
    UnexecutedRuns,
    idle_executions,
    may_pass,
)
from minions.app.runs.work_lists import WorkLists
from minions.app.settings.setting_sources import environment
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import make_runtime
from minions.app.wiring.databases import place_of_journal, shared_dispatch, state_beside
from minions.app.wiring.logs import is_logging
from minions.app.wiring.webhook import waiting_webhook
from minions.contracts.calls import ChatModel
from minions.contracts.executions import RunState
from minions.contracts.journal.start_note import SERVER, StartNote
from minions.contracts.runtime import Log
from minions.contracts.tracing import Tracer
from minions.contracts.waiting import OnWaiting
from minions.data.errors import (
    EnvironmentRefusedError,
    LeaseHeldError,
    MinionsError,
    NotFoundError,
    words_of,
)
from minions.data.json_values import JsonValue
from minions.data.schema import load_validator
from minions.data.texts import shell_word
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.run_services import NullLog, Services
from minions.engine.sessions.store import StepRepository
from minions.interfaces.http.http_answers import (
    AsgiApp,
    Incidents,
    Receive,
    RefusedError,
    Scope,
    Send,
    StandardLog,
    refusal,
)
from minions.interfaces.http.metrics_page import with_counts
from minions.interfaces.server.access import AccessMiddleware, StaticFile
from minions.interfaces.server.app_state import AppState
from minions.interfaces.server.live.changes import Changes
from minions.interfaces.server.live.channels import Channels, StreamPlaces
from minions.interfaces.server.live.server_runs import RunLocks, RunManager, RunStarter
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.server_options import ServerOptions
from minions.interfaces.server.server_runtime import ServerRuntime
from minions.recipe.reading.load import load_checks
from minions.recipe.recipe_files import project_of


class App:
    """An ASGI app. Mounted in another app it gets no lifespan events: call `aclose` at the end."""

    def __init__(self, app_state: AppState, log: Log, *, resumes: bool) -> None:
        """Nothing is opened yet; see `create_app`.

        Raises:
            EnvironmentRefusedError: The extra `server` is not installed.
        """
        self.app_state = app_state
        self._runtime = app_state.runtime
        self._scores = app_state.scores
        self._places = app_state.places
        self.services = services = app_state.runtime.services
        """The services of its runs."""
        self.log = log
        """The log of the server."""
        self._resumes = resumes
        self._closers: list[Callable[[], object]] = []
        self.recovery = Recovery(
            app_state.runtime, app_state.run_manager, log, every_s=app_state.options.recover_s
        )
        self._recovering: asyncio.Task[None] | None = None
        self._reminding: asyncio.Task[None] | None = None
        self._scoring: asyncio.Task[None] | None = None
        self._is_stopped = False
        incidents = Incidents(log, services.ids, app_state.options.token)
        routes = _routes(app_state, incidents)
        if (tracer := services.tracer) is not None:
            routes = TracedRequests(routes, tracer)
        self._access = AccessMiddleware(
            routes,
            app_state.options,
            _page(),
            incidents.report,
            services.clock.now,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of the app."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            if not self._is_stopped:  # a mounted app gets no lifespan events
                await self.start()
            await self._access(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Start to resume runs of dead workers, at once and then at intervals."""
        if self._recovering is None:
            recovering = self.recovery.run(resumes_all=self._resumes)
            self._recovering = asyncio.ensure_future(recovering)
            await import_in_daemon_thread(_load_answers)
            notices = self.app_state.waiting_notices
            await notices.tell_untold()
            self._reminding = asyncio.ensure_future(notices.remind_at_intervals())
            self._scoring = asyncio.ensure_future(self._scores.look_at_intervals())

    async def stop(self) -> None:
        """Stop runs, which can be resumed, and close streams. Other requests are still answered."""
        self._is_stopped = True
        if self._recovering is not None:
            self._recovering.cancel()
        for task in (self._reminding, self._scoring):
            if task is not None:
                task.cancel()
        await self.app_state.stop()

    async def aclose(self) -> None:
        """Stop, and close everything that was opened here."""
        await self.stop()
        await self._runtime.aclose()
        for close in self._closers:
            result = close()
            if asyncio.iscoroutine(result):
                await result
        self._closers.clear()

    @property
    def options(self) -> ServerOptions:
        """Who may send requests, and how much is done at a time."""
        return self.app_state.options

    def keep_room(self, most_open: int) -> None:
        """Leave some of so many connections for other requests than streams."""
        self._places.keep_room(most_open)

    def at_end(self, close: Callable[[], object]) -> None:
        """Call `close` at the end, too; a coroutine that it returns is awaited."""
        self._closers.append(close)


def _load_answers() -> None:
    """Load what checks and answers requests: where files run out later, no module can be."""
    load_validator()
    load_checks()
    refusal(RefusedError(HTTPStatus.OK, "stopping", ""), "/")


def _routes(app_state: AppState, incidents: Incidents) -> AsgiApp:
    with _extra():
        from minions.interfaces.server.router import litestar_app
    return litestar_app(app_state, incidents.report)


def api_document() -> Mapping[str, JsonValue]:
    """The OpenAPI 3.1 document of the server.

    Raises:
        EnvironmentRefusedError: The extra `server` is not installed.
    """
    with _extra():
        from minions.interfaces.server.openapi import openapi_of
    return openapi_of("")


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise EnvironmentRefusedError(
            f"The server needs the package '{error.name}', which is not installed. Install the "
            "extra: pip install 'minions-engine[server]'.",
            code="missing-extra",
        ) from error


@cache  # compressing takes longer than all else of an application's start
def _page() -> Mapping[str, StaticFile]:
    """The files of the web page by their path; read once in a process."""
    root = resources.files("minions.interfaces.server") / "web"
    found = dict(_files(root, "/"))
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found


def _files(folder: Traversable, path: str) -> Sequence[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _files(each, f"{path}{each.name}/")
        elif not each.name.startswith((".", "_")):
            media_type = mimetypes.guess_type(each.name)[0] or "application/octet-stream"
            if media_type.startswith("text/"):
                media_type += "; charset=utf-8"
            found.append((f"{path}{each.name}", StaticFile(each.read_bytes(), media_type)))
    return found


def create_app(
    options: ServerOptions,
    *,
    recipes: Sequence[Path] = (Path("recipes"),),
    settings: Settings | None = None,
    extensions: Extensions | None = None,
    models: ModelSource | ChatModel | None = None,
    services: Services | None = None,
    environ: Mapping[str, str] | None = None,
    folder_of: Callable[[str], Path] | None = None,
    note: Mapping[str, JsonValue] | None = None,
    log: Log | None = None,
    resume: bool = False,
    on_waiting: OnWaiting | None = None,
) -> App:
    """The server as an ASGI app; nothing is opened before the first request.

    Args:
        recipes: Folders with the recipes that may be run, by id.
        settings: The settings of the command line; None: the defaults.
        extensions: Your tools, models and recipes, beside the built-in ones.
        models: Answer instead of the models that recipes name; None: as `settings` and the
            environment say.
        services: Journal, clock and others; None: made from `settings`.
        folder_of: From a key of the settings to the folder where its relative paths start.
        note: Stored with the start of each run, for a resume on the command line.
        log: The server's log; None: the logger `minions.server`.
        resume: Whether runs that the command line left are resumed at the start, too.
        on_waiting: Called once with each run that begins to wait for a person, beside the address
            of the setting `on_waiting_url`.
    Raises:
        EnvironmentRefusedError: The extra `server` is not installed.
        UsageError: A setting is wrong.
    """
    settings, log = settings or Settings(), log or StandardLog()
    folder_of = folder_of or (lambda _: Path.cwd())
    runtime = make_runtime(
        settings,
        extensions or Extensions(),
        environ=environment() if environ is None else environ,
        folder_of=folder_of,
        log=log if is_logging(settings) else NullLog(),
        services=services,
        recipe_folders=tuple(recipes),
        project=(services.project if services is not None else None) or project_of(Path.cwd()),
    ).evolve(models=models)
    runtime = with_counts(runtime)
    note = {**StartNote(cwd=str(Path.cwd()), is_of_server=True).to_json(), **(note or {})}
    offered = (*options.plan_workspaces, *options.input_folders)
    folders: tuple[str | Path, ...] = (*recipes, *offered)
    served = ServerRuntime(settings, runtime, note=note, folders=folders)
    place = "in memory" if settings.no_store else place_of_journal(settings, folder_of("db"))
    marks = state_beside(runtime.services.journal)
    notices = _waiting_notices(options, settings, runtime.services, log, on_waiting, marks)
    state = _app_state(options, served, recipes, log, place, notices, marks)
    return App(state, log, resumes=resume)


def _waiting_notices(
    options: ServerOptions,
    settings: Settings,
    services: Services,
    log: Log,
    on_waiting: OnWaiting | None,
    marks: StateStore,
) -> WaitingNotices:
    webhook = waiting_webhook(
        settings,
        clock=services.clock,
        sleep=services.sleep,
        log=log,
        secrets=services.secrets,
    )
    hooks = tuple(hook for hook in (on_waiting, webhook) if hook is not None)
    return WaitingNotices(
        hooks, services.journal, marks, log, page=options.public_url, clock=services.clock
    )


def _app_state(
    options: ServerOptions,
    runtime: ServerRuntime,
    recipes: Sequence[Path],
    log: Log,
    place: str,
    notices: WaitingNotices,
    marks: StateStore,
) -> AppState:
    services = runtime.services
    repository = StepRepository(services)
    recipe_store = RecipeStore(recipes, runtime.catalog, runtime.bounded, log)
    places = StreamPlaces(options.max_followers)
    channels = Channels(
        services.journal,
        places=places,
        queue_frames=options.queue_frames,
        heartbeat_s=options.heartbeat_s,
        remote=remote_deltas(runtime.settings, services.journal, log, services.secrets),
    )
    scores = LiveScores(runtime, marks, log, notices.tell_once)
    engine = shared_dispatch(runtime.settings, log)
    run_manager = RunManager(
        channels,
        log,
        most=options.max_runs,
        on_waiting=notices.tell,
        on_ended=lambda run: scores.run_ended(run.context.recipe, run.note, services.project),
        queue=RunQueue(engine, services.clock, runtime.extensions),
        place=options.queue,
    )
    allows_text, deployments = options.allow_recipe_bodies, DeploymentStore(marks)
    return AppState(
        options=options,
        journal=services.journal,
        marks=marks,
        repository=repository,
        recipe_store=recipe_store,
        runtime=runtime,
        channels=channels,
        places=places,
        changes=Changes(
            services.journal,
            runtime.calls_in_doubt,
            places=places,
            heartbeat_s=options.heartbeat_s,
        ),
        run_manager=run_manager,
        starter=RunStarter(
            recipe_store,
            runtime,
            run_manager,
            repository,
            deployments=deployments,
            allows_text=allows_text,
        ),
        deployments=deployments,
        waiting_notices=notices,
        scores=scores,
        work=WorkLists(services.journal, marks, engine, services.is_worker_gone),
        schedules=ScheduleStore(marks),
        batches=BatchRecords(marks),
        evaluations=EvaluationRecords(marks),
        deciding=RunLocks(),
        log=log,
        place=place,
        started_at=services.clock.now(),
    )


# --- joins what a request begins to the trace of its caller --------------------------------------


class TracedRequests:
    """Passes each request on; runs that it begins are in the trace that its headers name."""

    def __init__(self, app: AsgiApp, tracer: Tracer) -> None:
        """Wrap `app`."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if "traceparent" not in headers:
            await self._app(scope, receive, send)
            return
        with self._tracer.caller(headers):
            await self._app(scope, receive, send)


# --- resumes runs that a server began: whose worker has died, and whose time to wait is over -----


class Recovery:
    """Finds leases without a live worker, and runs that this process lost with its journal.

    Runs that a person left at the command line, and runs from a session file, are not resumed
    unless `--resume` is given.
    """

    def __init__(
        self, runtime: ServerRuntime, run_manager: RunManager, log: Log, *, every_s: float
    ) -> None:
        """Nothing is searched yet.

        Args:
            every_s: Seconds between two searches.
        """
        self._runtime = runtime
        self._run_manager = run_manager
        self._lost = run_manager.lost
        self._log = log
        self._every_s = every_s
        self._unexecuted = UnexecutedRuns(runtime.services.journal, runtime.is_worker_gone)
        self._due = DueRuns(runtime.services.journal, runtime.services.clock, SERVER)
        """Runs of a server that wait, as for an approval that expires."""
        self._left: set[tuple[str, int]] = set()
        """Run id and lease epoch of runs for which nothing more is to be done here."""
        self._is_lost = False
        """Whether the journal could not be read at the last search."""
        self._logged: set[tuple[str, str]] = set()
        """Run id and reason of runs that are not resumed, each logged once."""

    async def run(self, *, resumes_all: bool) -> None:
        """Search until cancelled.

        Args:
            resumes_all: Whether to resume first the runs that the command line left.
        """
        if resumes_all:
            await self.resume_all()
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Resume every run that can be resumed now; others are tried again at the next search."""
        lost = tuple(self._lost.items())
        for _, worker_id in lost:
            self._runtime.has_ended(worker_id)
        try:
            abandoned = await self._unexecuted.abandoned()
            due = await self._due.find()
        except MinionsError as error:
            if not self._is_lost:
                self._log.warning("journal_lost", reason=error.message)
            self._is_lost = True
            return
        self._is_lost = False
        for run_id, _ in lost:
            if self._run_manager.find(run_id) is None and await self._resume(run_id, is_own=True):
                self._lost.pop(run_id)
        for lease in abandoned:
            place = lease.run_id, lease.epoch
            if place in self._left or self._run_manager.find(lease.run_id) is not None:
                continue
            if await self._resume(lease.run_id):
                self._left.add(place)
        for run_id in due:
            if self._run_manager.find(run_id) is None and not await self._resume(
                run_id, is_due=True
            ):
                self._due.put_off(run_id)

    async def resume_all(self) -> None:
        """Resume every run without an end that nobody executes, the oldest first."""
        try:
            runs = await self._unexecuted.interrupted()
        except MinionsError as error:
            self._log.warning("nothing_resumed", reason=error.message)
            return
        for run in runs:
            await self._resume(run.run_id, is_own=True)

    async def _resume(self, run_id: str, *, is_own: bool = False, is_due: bool = False) -> bool:
        """Try to resume a run; whether nothing more is to be done for it here."""
        runtime = self._runtime
        try:
            recorded = await runtime.recorded(run_id)
            if not self._is_wanted(recorded, is_own=is_own, is_due=is_due):
                return True
            await self._run_manager.begin(await runtime.resumed(recorded))
        except NotFoundError as error:
            if error.error_code != "unknown-session":  # else it is no run: an edit was cut off
                self._log_once("run_not_resumed", run_id, error.message)
            return True
        except LeaseHeldError:
            return False  # another worker executes it by now
        except MinionsError as error:
            is_over = not may_pass(error)
            self._log_once(
                "run_not_resumed" if is_over else "run_not_resumed_yet", run_id, error.message
            )
            return is_over
        except Exception as error:  # noqa: BLE001  # one odd run must not end the others' recovery
            self._log_once("run_not_resumed", run_id, words_of(error))
            return True
        self._log.info("run_resumed", run_id=run_id)
        return True

    def _log_once(self, event: str, run_id: str, reason: str) -> None:
        if (run_id, reason) not in self._logged:
            self._logged.add((run_id, reason))
            self._log.warning(event, run_id=run_id, reason=reason)

    def _is_wanted(self, recorded: RecordedRun, *, is_own: bool, is_due: bool) -> bool:
        is_waiting = is_due and recorded.summary.status == RunState.NEEDS_DECISION
        if (recorded.has_ended and not is_waiting) or recorded.noted.is_imported:
            return False
        if RunPolicy.recorded(recorded.note).queue is not None:
            return False  # it belongs to the workers of that queue
        if not (is_own or recorded.noted.is_of_server):
            return False
        if is_waiting:
            return True
        if idle_executions(recorded.entries) >= MOST_IDLE_EXECUTIONS:
            self._log_once(
                "run_left",
                recorded.run_id,
                f"its last {MOST_IDLE_EXECUTIONS} executions finished nothing; resume "
                f"it with `minions resume {shell_word(recorded.run_id)}`",
            )
            return False
        return True
