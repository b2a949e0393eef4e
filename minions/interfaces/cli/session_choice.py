"""Sessions on the command line: finds the one that is meant, and makes the runner of its turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minions.app.settings.settings import bounded
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, SessionFilter
from minions.contracts.session_views import Session, SessionStep
from minions.data.errors import NotFoundError, UsageError
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.runner import StepRunner
from minions.engine.sessions.store import StepRepository
from minions.engine.views.run_names import meaning_of, not_unique, unknown_name
from minions.interfaces.cli.options import CommandContext, naming_the_journal
from minions.interfaces.cli.recipe_argument import some_inputs
from minions.interfaces.cli.resume_plan import RecordedRunOpener
from minions.recipe.model import AgentRecipe
from minions.recipe.recipe_files import find_recipe

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MOST_DIGITS: Final = 18
"""The most digits of a message's number, so that it fits 64 bits."""


async def find_session(journal: Journal, name: str) -> Session:
    """The session with that id, name, or unique start of an id; for a run's id its session.

    An id wins over a name, and a name over starts of ids.

    Raises:
        NotFoundError: There is none.
        UsageError: There are several.
    """
    found = await _matching_sessions(journal, name)
    if not found:
        meaning = await meaning_of(journal, name)
        own = [meaning.run.session_id] if meaning.run is not None else meaning.sessions_of_runs
        found = [row.session_id for row in meaning.sessions] or list(own)
    if len(found) > 1:
        raise not_unique(name, found)
    repository = StepRepository(Services(journal=journal))
    for session in await repository.list_sessions(session_ids=found):
        return session
    raise await unknown_name(journal, name, "session")


async def _matching_sessions(journal: Journal, name: str) -> list[str]:
    """The session with that whole id, else those with that name or that last run."""
    if await journal.sessions(SessionFilter(session_ids=[name])):
        return [name]
    found = [row.session_id for row in await journal.sessions(SessionFilter(name=name))]
    for run in await journal.runs(RunFilter(run_ids=[name])):
        own = await journal.sessions(SessionFilter(session_ids=[run.session_id]))
        found += [row.session_id for row in own if row.last_run_id == name]
    return found


async def is_conversation(context: CommandContext, name: str, *, any_run: bool = False) -> bool:
    """Whether the name means a session with messages, which is continued as a conversation.

    Args:
        any_run: Whether the name may also be a run's; else it must be a session's.
    """
    if context.settings.no_store:
        return False
    journal = context.known_journal()
    try:
        if not any_run and not await is_session_named(journal, name):
            return False
        session = await find_session(journal, name)
        return await StepRepository(Services(journal=journal)).get_step_count(session.id) > 0
    except NotFoundError:
        return False
    finally:
        await journal.aclose()


async def is_session_named(journal: Journal, name: str) -> bool:
    """Whether the name means a session, not one of its runs."""
    try:
        session = await find_session(journal, name)
    except NotFoundError:
        return False
    return session.id.startswith(name) or session.name == name


async def named_session(journal: Journal, name: str, project: str | None) -> str:
    """The id of the session that `--session` names; an unknown name is the id of a new session.

    A start of an id is enough only with its prefix: `diary` does not mean `diary2`.

    Args:
        project: The folder of the project whose sessions may be named without an id; None: any.
    Raises:
        UsageError: Several sessions match, the name is not valid, or it is another project's.
        NotFoundError: It looks like an id, and there is no such session.
    """
    if name.startswith(("ses_", "run_")):
        return (await find_session(journal, name)).id
    if await _matching_sessions(journal, name):
        session = await find_session(journal, name)
        if project is not None and session.project not in (None, project):
            raise UsageError(
                f"Session '{name:.100}' is of the project {session.project}, and its messages "
                f"would go to a model of the project {project}. Take another name, or give --all "
                "to continue it here.",
                code="other-project",
            )
        return session.id
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"--session {name!r}: a name has up to 64 letters, digits, '.', '_' and '-'.",
            code="bad-session-name",
        )
    return name


async def last_session(journal: Journal, project: str | None) -> str:
    """The id of the session of the project in which a run began or ended last.

    Args:
        project: The folder of the project; None: any.
    Raises:
        NotFoundError: There is none.
    """
    if newest := await journal.sessions(SessionFilter(project=project), limit=1):
        return newest[0].session_id
    others = await journal.sessions(limit=1)
    raise NotFoundError(
        f"There is no session of the project {project} to continue. Sessions of other projects: "
        "minions sessions list --all. Name one with --session, or give --all for the last one of "
        "all."
        if others
        else "There is no session to continue: nothing ran yet.",
        code="unknown-session",
    )


class OpenSession(RecordedRunOpener):
    """Opens the journal, and finds a session with the recipe of its turns."""

    def __init__(
        self,
        context: CommandContext,
        name: str | None,
        *,
        model: str | None,
        recipe: str | None = None,
        is_new_ok: bool = False,
        usual: str | None = None,
        user: str | None = None,
        of_all: bool = False,
    ) -> None:
        """Load the operator's code, as for a run; nothing is opened yet.

        Args:
            name: The session's name; None: a new session if `is_new_ok`, else the last one.
            recipe: Path or id of the recipe from now on; None: the one used before.
            is_new_ok: Whether the session may be new, and need not be stored.
            usual: The recipe of a session that has none yet.
            user: The label of the user for whom its turns run; None: none was given.
            of_all: Whether the last session is that of all projects, not of this one.
        """
        super().__init__(context, name or "", model=model, needs_store=not is_new_ok)
        self._recipe_name = recipe
        if is_new_ok:
            self._command, self._asked_as = "chat", recipe or ""
        self._is_new_ok = is_new_ok
        self._usual = usual
        self._user = user
        self._project = None if of_all else context.project

    async def _find(self) -> RecordedRun | None:
        with naming_the_journal(self.context):
            self.session = await self._find_session()
        run_id = await self._newest_run(self.session)
        return await load_recorded_run(self._journal, run_id) if run_id is not None else None

    async def _find_session(self) -> Session:
        journal, name = self._journal, self._name
        if not self._is_new_ok:
            return await find_session(journal, name or await last_session(journal, self._project))
        services = Services(journal=journal)
        session_id = (
            await named_session(journal, name, self._project) if name else services.ids("ses")
        )
        if await journal.entries(session_id, limit=1):
            return await StepRepository(services).get_session(session_id)
        now = services.clock.now()  # stored with its first turn, so that none is empty
        return Session(id=session_id, created_at=now, updated_at=now)

    async def _newest_run(self, session: Session) -> str | None:
        """The last run of the session, else of the one it was forked from; None: there is none."""
        repository = StepRepository(Services(journal=self._journal))
        seen: set[str] = set()  # forks in a circle, which only a damaged journal holds, end here
        while session.last_run_id is None and session.parent_session_id is not None:
            if session.id in seen:
                break
            seen.add(session.id)
            session = await repository.get_session(session.parent_session_id)
        return session.last_run_id

    def session_recipe(self) -> AgentRecipe:
        """The recipe that the session's turns run.

        Raises:
            NotFoundError, RecipeError, UsageError: There is none, or it cannot be loaded.
        """
        if self._recipe_name is None and self.has_recorded:
            return self.own_recipe()
        name = self._recipe_name or self.session.recipe or self._usual
        if name is None:
            raise UsageError(
                f"Session '{self.session.id}' names no recipe, and nothing ran in it.",
                code="no-recipe",
            )
        path = find_recipe(name, [Path("recipes")])
        recipes = self.runtime.recipes
        return bounded(recipes.get(path), self.settings)

    def runner(self, pairs: tuple[str, ...] = ()) -> StepRunner:
        """The runner of the session's turns.

        Args:
            pairs: Inputs of its turns, as `-p` gives them.
        """
        recipe = self.session_recipe()
        executor: AgentExecutor = self.executor(recipe)
        return StepRunner(
            recipe,
            repository=StepRepository(executor.services),
            executor=executor,
            note=self.note(),
            inputs=some_inputs(recipe, pairs, self.context),
            user=self._user,
        )


def message_number(text: str) -> int:
    """The number of a message from its text.

    Raises:
        UsageError: `bad-sequence`; it is no number.
    """
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise UsageError(
            f"{shown!r} is not the number of a message; /history and `minions sessions show` "
            "list them.",
            code="bad-sequence",
        )
    return int(text)


def what_it_cost(steps: Sequence[SessionStep]) -> str:
    """Tokens and cost of these messages, in words."""
    tokens = sum(step.metrics.total_tokens or 0 for step in steps)
    answers = [step.metrics for step in steps if step.is_assistant_step()]
    costs = [each.cost_usd for each in answers]
    known = [cost for cost in costs if cost is not None]
    cost = f"${sum(known):.4f}" if len(known) == len(costs) else "an unknown cost"
    return f"{tokens:,} tokens, {cost}"


def message_text(step: SessionStep) -> str:
    """The text of a message, and the calls that it contains."""
    calls = ", ".join(f"{call.name}({call.arguments})" for call in step.tool_calls)
    return " ".join(part for part in (step.content, calls) if part)
