"""`minions chat`, `agents` and `fork`: turns of a session, agents by name, and branches."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click
from attrs import frozen

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.app.runs.deciders import POLICIES
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.run_events import (
    AttemptFailed,
    RunEvent,
    ServerWait,
    StepCompleted,
    StepDeltaEvent,
    ToolFinished,
    ToolStarted,
)
from minions.contracts.session_views import Session
from minions.data.errors import MinionsError, NotFoundError, UsageError, did_you_mean
from minions.data.json_values import JsonValue, as_count
from minions.data.texts import shell_word
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.engine.sessions.session_context import get_context_summary
from minions.engine.sessions.store import StepRepository
from minions.interfaces.cli.commands.run_command import RunOptions, run_recipe
from minions.interfaces.cli.console.console import for_stream, json_text, say, say_table, tell
from minions.interfaces.cli.console.live_progress import retry_text, server_wait_text
from minions.interfaces.cli.console.printed_results import EXIT_CODES, output_text, result_to_json
from minions.interfaces.cli.console.render import error_lines, stderr_painter
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    ExtensionOptions,
    UserOption,
    command_context,
    naming_the_journal,
    option,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import STANDARD_INPUT, some_inputs
from minions.interfaces.cli.run_follower import with_misses
from minions.interfaces.cli.session_choice import (
    OpenSession,
    find_session,
    message_number,
    message_text,
    what_it_cost,
)
from minions.recipe.inputs import text_input

if TYPE_CHECKING:
    from minions.engine.compile.extensions import NamedAgents
    from minions.recipe.model import AgentRecipe

PLAIN: Final = str(Path(__file__).with_name("chat.yaml"))
_LONGEST_LINE: Final = 500_000
"""Characters of a message that is not typed at a terminal."""
"""The recipe that is used if none is named."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ChatOptions(AllProjectsOption, CassetteOptions, UserOption, CommonOptions):
    """Which session is continued, and what answers."""

    pairs: tuple[str, ...] = option(
        "-p", "--param", multiple=True, metavar="NAME=VALUE", help="An input."
    )
    model: str | None = option(
        "-m", "--model", metavar="MODEL", help="provider/name; wins over the recipe's."
    )
    session: str | None = option(
        "--session",
        metavar="NAME",
        help="Continue this session: an id, a unique start of ses_…, or a name.",
    )
    continues: bool = option(
        "-c", "--continue", is_flag=True, help="Continue the project's last session."
    )
    approve: str | None = option(
        "--approve", type=click.Choice(POLICIES), help="Who approves calls."
    )


@click.command("chat")
@click.argument("recipe", required=False)
@takes_options(_ChatOptions)
def chat_command(options: _ChatOptions, recipe: str | None) -> int:
    """Chat with RECIPE, or with a model alone. Each line is a turn; /help lists commands.

    The recipe has an input `message` and a goal step with `memory: conversation`. Answers go to
    standard output, everything else to standard error.
    """
    context = command_context(options)
    if options.continues and options.session is not None:
        raise UsageError("-c and --session exclude each other: the last session, or that one.")
    if recipe == STANDARD_INPUT:
        raise UsageError(
            f"RECIPE {STANDARD_INPUT}: your messages come from standard input here. Name the "
            "recipe's file.",
            code="no-file",
        )
    out = sys.stdout
    opened = OpenSession(
        context,
        options.session,
        model=options.model,
        recipe=recipe,
        is_new_ok=not options.continues,
        usual=PLAIN,
        user=options.user,
        of_all=options.of_all,
    )
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(_chat(context, opened, options.pairs, out))


async def _chat(
    context: CommandContext, opened: OpenSession, pairs: tuple[str, ...], out: TextIO
) -> int:
    async with opened:
        code = await _Conversation(context, opened, pairs, out).run()
        return with_misses(code, opened.runtime.cassettes)


class _Conversation:
    """A conversation at the terminal."""

    def __init__(
        self, context: CommandContext, opened: OpenSession, pairs: tuple[str, ...], out: TextIO
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._opened = opened
        self._runner = opened.runner(pairs)
        self._repository = self._runner.repository
        self._runner.check()
        self._out = out
        self._session_id = opened.session.id
        self._run: AgentRun | None = None
        self._has_ended = asyncio.Event()
        self._code = 0
        self._is_terminal = sys.stdin.isatty()
        self._paint = stderr_painter()
        self._commands: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/history": self._history,
            "/retry": self._retry,
            "/resume": self._resume,
            "/fork": self._fork,
            "/cost": self._cost,
            "/session": self._session,
            "/quit": self._quit,
        }

    async def run(self) -> int:
        """Run until the end of the input, /quit, or a second Ctrl-C; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._is_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # importing it gives the prompt its editing
            tell(f"session {self._session_id} · /help lists commands, Ctrl-D ends")
        while not self._has_ended.is_set():
            line = await self._next_line()
            if line is None:
                break
            if line.strip():
                await self._do(line.strip())
        await self._say_goodbye()
        return self._code

    async def _say_goodbye(self) -> None:
        if self._settings.no_store:
            tell("not stored (--no-store)")
        elif await self._repository.get_step_count(self._session_id):
            again = "".join(self._context.flags_again)
            tell(f"continue: minions chat --session {shell_word(self._session_id)}{again}")

    async def _next_line(self) -> str | None:
        """The next line of the input; None: the input or the conversation has ended."""
        read = asyncio.ensure_future(run_in_daemon_thread(self._read_line))
        ended = asyncio.ensure_future(self._has_ended.wait())
        await asyncio.wait((read, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not read.done():
            read.cancel()
            return None
        return read.result()

    def _read_line(self) -> str | None:
        if not self._is_terminal:
            line = sys.stdin.readline(_LONGEST_LINE + 1)
            if len(line) > _LONGEST_LINE and not line.endswith("\n"):
                raise UsageError(
                    f"A message has more than {_LONGEST_LINE:,} characters in one line. Put what "
                    "is large into a file that the agent reads.",
                    code="bad-input",
                )
            return line or None
        sys.stderr.flush()
        try:
            with contextlib.redirect_stdout(self._out):
                return input("> ")
        except EOFError:
            tell("")
            return None

    def _on_signal(self, number: int) -> None:
        """Ctrl-C cancels a turn that runs; at the prompt it ends the conversation."""
        if self._run is not None and number == signal.SIGINT:
            tell("\nstopping this turn; its messages so far are stored")
            self._run.cancel()
            return
        self._code = 128 + number
        self._has_ended.set()
        if self._run is not None:
            self._run.cancel()

    async def _do(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        try:
            if name in self._commands:
                await self._commands[name](rest.strip())
            elif name.startswith("/"):
                tell(f"There is no command {name}.{did_you_mean(name, self._commands)} See /help.")
            else:
                await self._turn(await self._runner.prepare_turn(self._session_id, line))
        except MinionsError as error:
            if not self._is_terminal:
                raise
            for each in error_lines(error, self._paint):
                tell(each)

    # --- turns ------------------------------------------------------------------------------------

    async def _turn(self, run: AgentRun) -> None:
        """Execute a turn; its answer is written as it is streamed."""
        shown = AnswerPrinter(self._out, is_silent=self._settings.json)
        run.listen(shown)
        self._run = run
        try:
            result = await run.execute()
        finally:
            self._run = None
        shown.close()
        self._report(result, shown)

    def _report(self, result: AgentResult[object], shown: AnswerPrinter) -> None:
        if self._settings.json:
            say(json_text(result_to_json(result)), self._out)
        elif result.status in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            if output_text(result.output) != shown.last:
                say(output_text(result.output), self._out, is_output=True)
            return
        elif result.error is not None and result.status is not RunStatus.CANCELLED:
            message = for_stream(result.error.message, sys.stderr)
            tell(f"{self._paint(f'error[{result.error.code}]', 'red')}: {message}")
            if result.status is RunStatus.NEEDS_DECISION:
                tell("decide in another terminal, then /resume")
            if result.status is RunStatus.FAILED:
                tell("send a message, or /resume to retry the turn")
        if not self._is_terminal:
            self._code = self._code or EXIT_CODES[result.status]

    # --- commands ---------------------------------------------------------------------------------

    async def _help(self, rest: str) -> None:
        tell(
            "/history         the messages with their numbers\n"
            "/retry [NUMBER]  regenerate the last answer, or all from that message on\n"
            "/resume          continue a turn that was cut off\n"
            "/fork [NUMBER]   continue in a copy that ends with that message, or with the last\n"
            "/cost            tokens and cost of the session so far\n"
            "/session         the session's id, and what it was forked from\n"
            "/quit            end; Ctrl-D does the same, Ctrl-C stops a turn"
        )

    async def _history(self, rest: str) -> None:
        for step in await self._repository.get_steps(self._session_id):
            who = f"{step.role} {step.name}" if step.is_tool_step() else str(step.role)
            number = self._paint(f"{step.sequence:>4} {who}", "bold")
            tell(f"{number}  {for_stream(message_text(step), sys.stderr)}")

    async def _retry(self, rest: str) -> None:
        repository = self._repository
        steps = await repository.get_steps(self._session_id)
        last = next((s.sequence for s in reversed(steps) if s.is_assistant_step()), len(steps))
        sequence = _number(rest, last)
        run = await self._runner.prepare_retry(self._session_id, sequence)
        kept = run.keeps or 0
        took = what_it_cost(steps[kept:])
        tell(f"regenerated: messages {kept + 1} to {len(steps)}, which took {took}")
        await self._turn(run)

    async def _resume(self, rest: str) -> None:
        run = await self._runner.prepare_resume(self._session_id)
        if run is None:
            tell("The last message is an answer. /retry regenerates it.")
            return
        await self._turn(run)

    async def _fork(self, rest: str) -> None:
        repository = self._repository
        count = await repository.get_step_count(self._session_id)
        if count == 0:
            raise UsageError(
                "The session has no messages: there is nothing to fork.", code="empty-session"
            )
        fork = await repository.fork(self._session_id, _number(rest, count))
        self._session_id = fork.id
        tell(
            f"now in {fork.id}, which starts with messages 1 to {fork.forked_at_sequence} of "
            f"{fork.parent_session_id}"
        )

    async def _cost(self, rest: str) -> None:
        steps = await self._repository.get_steps(self._session_id)
        tell(f"{len(steps)} messages, {what_it_cost(steps)}")

    async def _session(self, rest: str) -> None:
        repository = self._repository
        try:
            session = await repository.get_session(self._session_id)
        except NotFoundError:  # it is stored with its first turn
            session = self._opened.session
        summary = await get_context_summary(self._session_id, repository)
        origin = ""
        if session.parent_session_id is not None:
            origin = f", from {session.parent_session_id} at {session.forked_at_sequence}"
        tell(f"{session.id}{origin}: {summary['total_steps']} messages")

    async def _quit(self, rest: str) -> None:
        self._has_ended.set()


def _number(text: str, usual: int) -> int:
    return message_number(text) if text else usual


# --- `minions fork` ------------------------------------------------------------------------------


@click.command("fork")
@click.argument("name", metavar="ID")
@click.option(
    "--at",
    type=int,
    metavar="SEQ",
    help="The last message that the fork has; else the session's last.",
)
@click.option("--name", "title", metavar="TEXT", help="What the fork is called.")
@click.option(
    "-p",
    "--param",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input of the fork's turns; else as before.",
)
@takes_options(CommonOptions)
def fork_command(
    options: CommonOptions, name: str, at: int | None, title: str | None, pairs: tuple[str, ...]
) -> int:
    """Branch the session ID (or a run's session) at a message. Nothing is copied, nothing runs."""
    context = command_context(options)
    fork = asyncio.run(_fork(context, name, at, title, pairs))
    if context.settings.json:
        say(json_text(fork.to_json()))
    else:
        say(fork.id)
    return 0


async def _inputs(
    context: CommandContext, name: str, pairs: tuple[str, ...]
) -> Mapping[str, JsonValue]:
    """The inputs, checked against the session's recipe."""
    async with OpenSession(context, name, model=None) as opened:
        return some_inputs(opened.session_recipe(), pairs, opened.context)


async def _fork(
    context: CommandContext, name: str, at: int | None, title: str | None, pairs: tuple[str, ...]
) -> Session:
    inputs = await _inputs(context, name, pairs) if pairs else {}
    if context.settings.no_store:
        raise UsageError("Without a journal there is nothing to fork: leave out --no-store.")
    journal = context.known_journal()
    repository = StepRepository(Services(journal=journal))
    try:
        with naming_the_journal(context):
            session = await find_session(journal, name)
        count = await repository.get_step_count(session.id)
        if count == 0:
            raise UsageError(
                f"Session '{session.id}' has no messages: there is nothing to fork. Only steps "
                "with `memory: conversation` leave messages in their session.",
                code="empty-session",
            )
        fork = await repository.fork(
            session.id, at if at is not None else count, name=title, inputs=inputs
        )
    finally:
        await journal.aclose()
    sequence = as_count(fork.forked_at_sequence)
    tell(f"{fork.id} starts with messages 1 to {sequence} of {session.id}, which has {count}")
    again = "".join(context.flags_again)
    tell(
        f"continue: minions chat --session {shell_word(fork.id)}{again} · "
        f"resume: minions resume {shell_word(fork.id)}{again}"
    )
    return fork


# --- `minions agents` ----------------------------------------------------------------------------


@click.group("agents")
def agents_command() -> None:
    """List the agents that can be run by name, and run one with a text."""


@frozen(kw_only=True)
class _AgentEntry:
    """An agent, as far as it can be read."""

    name: str
    recipe: AgentRecipe | None
    """None: it has faults."""

    @property
    def takes(self) -> str | None:
        """The input that takes the text; None: it cannot be run with a text alone."""
        return text_input(self.recipe) if self.recipe is not None else None

    def to_json(self) -> dict[str, JsonValue]:
        recipe = self.recipe
        return {
            "name": self.name,
            "description": recipe.description if recipe is not None else "",
            "inputs": list(recipe.inputs) if recipe is not None else [],
            "text_input": self.takes,
            "is_readable": recipe is not None,
        }

    def words(self) -> str:
        """What it does, and what keeps it from being run with a text."""
        recipe = self.recipe
        if recipe is None:
            return f"has faults: minions validate {shell_word(self.name)}"
        about = recipe.description.strip()
        if self.takes is not None:
            return about
        inputs = ", ".join(recipe.inputs) or "none"
        return f"{about} (takes no text; inputs: {inputs})".strip()


@agents_command.command("list")
@takes_options(ExtensionOptions)
def list_(options: ExtensionOptions) -> int:
    """List the registered recipes and those under ./recipes, by name."""
    context = command_context(options)
    found = asyncio.run(_list_agents(context))
    if context.settings.json:
        say(json_text({"agents": [each.to_json() for each in found]}))
        return 0
    if not found:
        tell("There are no agents: no recipe is registered, and there is none under ./recipes.")
    say_table(("AGENT", "ABOUT"), [(each.name, each.words()) for each in found])
    return 0


async def _list_agents(context: CommandContext) -> Sequence[_AgentEntry]:
    async with context.runtime(is_stored=False) as runtime:
        agents = runtime.agents
        return [_read(name, agents) for name in sorted(agents.names())]


def _read(name: str, agents: NamedAgents) -> _AgentEntry:
    try:
        return _AgentEntry(name=name, recipe=agents.find(name))
    except MinionsError:
        return _AgentEntry(name=name, recipe=None)


@agents_command.command("run")
@click.argument("name")
@click.argument("text")
@takes_options(RunOptions)
def run(options: RunOptions, name: str, text: str) -> int:
    """Run the agent NAME with TEXT, and print its result: `minions run` with one input given.

    NAME is a registered recipe or the id of one under ./recipes. TEXT is the value of its one
    required input, or of its input requirements, task or message; @FILE and @- are read as with -p.
    """
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # as `minions run`
        return asyncio.run(run_recipe(name, text, options, out))


# --- prints an answer of a conversation while it is streamed -------------------------------------


class AnswerPrinter:
    """Writes a streamed answer and lines on tool calls; call it with every event of the turn."""

    def __init__(self, out: TextIO, *, is_silent: bool) -> None:
        """Nothing is written yet.

        Args:
            is_silent: Whether the answer is not written here, as it is printed in another way.
        """
        self._out = out
        self._is_silent = is_silent
        self._line = ""
        self.last: str | None = None
        """The last answer, as the model sent it; None: there is none yet."""
        self._paint = stderr_painter()

    def __call__(self, event: RunEvent) -> None:
        """Print the event, if it is one of those that are shown."""
        if isinstance(event, StepDeltaEvent):
            self._write(event.delta.content or "")
        elif isinstance(event, StepCompleted) and event.snapshot.is_assistant_step():
            text = event.snapshot.content or ""
            self._write(text.removeprefix(self._line) if text.startswith(self._line) else "")
            self.close()
            self.last = text
        elif isinstance(event, ToolStarted):
            self.close()
            self._tell(f"{event.tool}({event.arguments})")
        elif isinstance(event, ToolFinished) and event.error is not None:
            self._tell(f"{event.tool}: {event.error.get('message')}")
        elif isinstance(event, AttemptFailed):
            self.close()
            self._tell(retry_text(event))
        elif isinstance(event, ServerWait):
            self.close()
            self._tell(server_wait_text(event))

    def _tell(self, text: str) -> None:
        tell(self._paint(f"  {for_stream(text, sys.stderr)}", "dim"))

    def _write(self, text: str) -> None:
        if text and not self._is_silent:
            self._line += text
            self._out.write(for_stream(text, self._out, is_output=True))
            self._out.flush()

    def close(self) -> None:
        """End the current line."""
        if self._line and not self._is_silent:
            say("", self._out)
        self._line = ""
