"""The command group. Loads little, as `--help` needs it; errors are reported by `failures`."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

import minions
from minions.interfaces.cli.console.console import WHOLE_HELP, keep_to_lines, tell

COMMAND_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Start": {
        "init": "Make a project whose recipe runs without a key.",
        "run": "Run a recipe and print its result.",
        "chat": "Chat with a recipe or a model in a session.",
        "do": "Plan a task on a folder, and carry the plan out.",
        "plan": "Plan a task on a folder, as a recipe.",
        "agents": "List what can be run by name with a text, and run it.",
    },
    "Run again": {
        "resume": "Resume a run that was killed, stopped or waits.",
        "retry": "Run failed steps again, also with an edited recipe.",
        "cancel": "End a run that another process executes.",
        "fork": "Branch a session at one of its messages.",
        "rollback": "Restore the files that a run changed.",
        "upgrade": "Move waiting runs to another version of their recipe.",
    },
    "Many": {
        "batch": "Run a recipe once for each line of a file.",
        "eval": "Ask cases with known answers, and compare models and recipes.",
        "tune": "Find the cheapest models, examples and output modes that pass cases.",
        "watch": "Score a sample of a recipe's runs, and say whether they got worse.",
        "learn": "Add examples to a recipe, from recorded runs that were good.",
    },
    "Look": {
        "tools": "List what steps can call, with types and effects.",
        "sessions": "List, show, compare, export and remove runs and sessions.",
        "explain": "Show what a recipe needs, may do and costs at most.",
        "graph": "Draw a recipe's steps.",
        "budgets": "List the budgets: used, reserved, left, and who waits.",
    },
    "Decide": {
        "inbox": "List what waits for a person, and decide it.",
        "approve": "Approve a call that a run waits for.",
        "reject": "Reject a call that a run waits for.",
        "answer": "Answer a question that a run waits for.",
    },
    "Serve": {
        "serve": "Serve recipes and sessions over HTTP, with a page.",
        "worker": "Execute the runs of queues, on any number of machines; list both.",
        "workers": "The older name of `worker list`.",
        "queues": "The older name of `worker queues`.",
        "schedules": "Let workers run recipes at the times of their schedule.",
        "deploy": "Give a version of a recipe to new runs, or to a share of them.",
        "deployments": "List deployments; promote and withdraw versions.",
        "mcp": "List and lock MCP servers; serve recipes as one.",
        "lsp": "Serve an editor that speaks the Language Server Protocol.",
    },
    "Project": {
        "validate": "Check recipes without running anything.",
        "test": "Run the tests of recipes.",
        "check": "Say what a change of a recipe breaks for its callers.",
        "format": "Indent recipes in the usual way; keep comments and texts.",
        "models": "Pull, list and remove models of this machine; probe those of servers.",
        "trust": "Make the configuration of a folder count, until it changes.",
        "doctor": "Check this machine: Python, database, keys, disk, clock.",
        "config": "Show the configuration and where it comes from.",
        "capture": "Write the recipe that does again what recorded runs did.",
        "drift": "Say whether a captured recipe still fits its newest runs.",
        "migrate": "Turn an instruction in prose into a recipe.",
        "stubs": "Write a typed Python client of a recipe.",
        "schema": "Print a JSON Schema for editors.",
        "skill": "Print or install what a coding agent needs to write recipes.",
        "completion": "Print the script for completion in bash, zsh or fish.",
        "help": "Show the help of a command; --all: all commands.",
    },
}
"""What each command is for, by when one needs it."""
_COMMANDS: Final = {name: text for group in COMMAND_GROUPS.values() for name, text in group.items()}
_RARE: Final = frozenset(
    (
        *("agents", "fork", "rollback", "learn", "approve", "reject", "answer", "queues", "lsp"),
        *("workers", "check", "format", "capture", "drift", "migrate", "stubs", "schema"),
        *("budgets", "completion", "config", "deployments"),
    )
)
"""What `minions --help` leaves out: most people need it never, or are told its name."""


_FAMILIES: Final = {
    "agents": "chat_commands",
    "answer": "inbox_command",
    "approve": "inbox_command",
    "budgets": "budgets_command",
    "cancel": "resume_commands",
    "chat": "chat_commands",
    "completion": "setup_commands",
    "config": "setup_commands",
    "deploy": "deploy_commands",
    "deployments": "deploy_commands",
    "do": "task_commands",
    "drift": "capture_command",
    "doctor": "machine_commands",
    "eval": "evaluation_commands",
    "explain": "recipe_commands",
    "fork": "chat_commands",
    "graph": "recipe_commands",
    "help": "setup_commands",
    "init": "setup_commands",
    "learn": "evaluation_commands",
    "mcp": "mcp_commands",
    "models": "model_commands",
    "plan": "task_commands",
    "queues": "worker_commands",
    "reject": "inbox_command",
    "resume": "resume_commands",
    "retry": "resume_commands",
    "rollback": "resume_commands",
    "schedules": "schedule_commands",
    "schema": "recipe_commands",
    "sessions": "session_commands",
    "stubs": "recipe_commands",
    "test": "evaluation_commands",
    "trust": "machine_commands",
    "watch": "evaluation_commands",
    "worker": "worker_commands",
    "workers": "worker_commands",
}
"""The module of commands that share one, and of groups; else it has the name of its command."""


class _LazyGroup(click.Group):
    """Imports a command only when it is called, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if os.environ.get("_MINIONS_COMPLETE", "").endswith("_complete"):
            from minions.interfaces.cli.shell_completion import stand_in

            return stand_in(cmd_name)
        own = f"{cmd_name}_command"
        file = _FAMILIES.get(cmd_name, own)
        module = importlib.import_module(f"minions.interfaces.cli.commands.{file}")
        found: click.Command = getattr(module, own)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_whole = ctx.find_root().meta.get(WHOLE_HELP, False)
        for name, group in COMMAND_GROUPS.items():
            shown = [each for each in group.items() if is_whole or each[0] not in _RARE]
            with formatter.section(name):
                formatter.write_dl(shown)
        if not is_whole:
            formatter.write_paragraph()
            formatter.write_text(f"{len(_RARE)} more: minions help --all")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            from minions.data.errors import did_you_mean

            raise click.UsageError(
                f"No such command '{args[0]}'.{did_you_mean(args[0], _COMMANDS)} "
                f"Commands are: {', '.join(_COMMANDS)}."
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(minions.__version__, prog_name="minions")
def command() -> None:
    """Minions: reliable, cheap, typed steps for LLM agents.

    Exit codes: 0 ok · 1 a step failed · 2 usage or invalid recipe · 3 needs a decision ·
    4 the environment refuses (no model, no key, no database) · 5 a limit was reached ·
    70 internal error · 129 SIGHUP · 130 SIGINT · 143 SIGTERM.
    """


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Prints errors, and a traceback only with `--debug`."""
    keep_to_lines(is_on=False)
    _use_unicode()
    arguments = [_as_unicode(argument) for argument in arguments]
    try:
        with _watch_loop(arguments):
            result = command.main(args=arguments, prog_name="minions", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        tell("Interrupted.")
        return 130
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # the outermost level: a bug must still end in one line
        from minions.interfaces.cli.failure_reports import report_failure

        return report_failure(error, arguments)
    return result if isinstance(result, int) else 0


def _watch_loop(arguments: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """With `--debug` it is told what holds the event loop."""
    if "--debug" not in arguments:
        return contextlib.nullcontext()
    from minions.adapters.telemetry.loop_watchdog import watched_loop

    return watched_loop(lambda found: tell(str(found)))


def _use_unicode() -> None:
    """Escape characters that a stream cannot encode, and read UTF-8 also in an ASCII locale.

    They must not end a run, and not become question marks on their way to a model.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdin.encoding).name == "ascii"
        encoding = "utf-8" if is_ascii else sys.stdin.encoding
        sys.stdin.reconfigure(encoding=encoding, errors="backslashreplace")


def _as_unicode(argument: str) -> str:
    """The argument as UTF-8 says, if the locale could not decode its bytes; else as it is."""
    if argument.isascii():
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument
