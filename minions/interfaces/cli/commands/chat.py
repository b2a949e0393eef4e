"""`minions chat`: turns of a session, from the terminal or from lines of standard input."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

import click
from attrs import frozen

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.app.runs.deciders import POLICIES
from minions.contracts.executions import AgentResult, RunStatus
from minions.data.errors import MinionsError, NotFoundError, UsageError, did_you_mean
from minions.data.words import shell_word
from minions.engine.run.agent_run import AgentRun
from minions.engine.sessions.context import get_context_summary
from minions.interfaces.cli.console.answer_printer import AnswerPrinter
from minions.interfaces.cli.console.console import for_stream, json_text, say, tell
from minions.interfaces.cli.console.render import error_lines, stderr_painter
from minions.interfaces.cli.console.results import EXIT_CODES, output_text, result_to_json
from minions.interfaces.cli.options import (
    AllProjectsOption,
    CassetteOptions,
    CommandContext,
    CommonOptions,
    UserOption,
    command_context,
    option,
    takes_options,
)
from minions.interfaces.cli.run_follower import with_misses
from minions.interfaces.cli.session_choice import (
    OpenSession,
    message_number,
    message_text,
    what_it_cost,
)

PLAIN: Final = str(Path(__file__).with_name("chat.yaml"))
_LONGEST_LINE: Final = 500_000
"""Characters of a message that is not typed at a terminal."""
"""The recipe that is used if none is named."""


@frozen(kw_only=True, slots=False)
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
def command(options: _ChatOptions, recipe: str | None) -> int:
    """Chat with RECIPE, or with a model alone. Each line is a turn; /help lists commands.

    The recipe has an input `message` and a goal step with `memory: conversation`. Answers go to
    standard output, everything else to standard error.
    """
    context = command_context(options)
    if options.continues and options.session is not None:
        raise UsageError("-c and --session exclude each other: the last session, or that one.")
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
        self._opened = opened
        self._runner = opened.runner(pairs)
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
        if self._context.settings.no_store:
            tell("not stored (--no-store)")
        elif await self._runner.repository.get_step_count(self._session_id):
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
        shown = AnswerPrinter(self._out, is_silent=self._context.settings.json)
        run.listen(shown)
        self._run = run
        try:
            result = await run.execute()
        finally:
            self._run = None
        shown.close()
        self._report(result, shown)

    def _report(self, result: AgentResult[object], shown: AnswerPrinter) -> None:
        if self._context.settings.json:
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
        for step in await self._runner.repository.get_steps(self._session_id):
            who = f"{step.role} {step.name}" if step.is_tool_step() else str(step.role)
            number = self._paint(f"{step.sequence:>4} {who}", "bold")
            tell(f"{number}  {for_stream(message_text(step), sys.stderr)}")

    async def _retry(self, rest: str) -> None:
        repository = self._runner.repository
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
        repository = self._runner.repository
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
        steps = await self._runner.repository.get_steps(self._session_id)
        tell(f"{len(steps)} messages, {what_it_cost(steps)}")

    async def _session(self, rest: str) -> None:
        repository = self._runner.repository
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
