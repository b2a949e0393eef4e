"""Turns errors into messages and exit codes. Loaded only when something failed."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from minions.app.settings.setting_sources import load_settings, user_settings_file
from minions.app.settings.settings import Settings
from minions.app.settings.user_folders import FolderTrust
from minions.contracts.executions import RunStatus
from minions.data.errors import (
    EnvironmentRefusedError,
    FailureInfo,
    MinionsError,
    UsageError,
    words_of,
)
from minions.interfaces.cli.console.console import json_text, keep_to_lines, say, tell
from minions.interfaces.cli.console.printed_results import EXIT_CODES
from minions.interfaces.cli.console.render import error_lines, error_to_json, stderr_painter

_TRUE: Final = ("1", "true", "yes")
_UNDECIDED: Final = frozenset({"call-in-doubt", "decision-needed"})
"""Codes of errors that a decision of a person resolves."""


def report_failure(error: BaseException, arguments: Sequence[str]) -> int:
    """Print an error in the way that flags or configuration ask for; the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        tell(error.format_message())
        return 2
    settings = _settings(arguments)
    if settings.log_format is not None or any(e.startswith("--log-format") for e in arguments):
        keep_to_lines(is_on=True)  # also where the configuration itself is wrong
    if isinstance(error, click.ClickException):
        return _fail(UsageError(_usage_text(error)), settings)
    if settings.debug:
        tell("".join(traceback.format_exception(error)).rstrip("\n"))
    if isinstance(error, MinionsError):
        return _fail(error, settings)
    if isinstance(error, OSError):  # the system refuses; this is no bug
        return _fail(_refusal(error), settings)
    return _fail_internally(error, settings)


def _settings(arguments: Sequence[str]) -> Settings:
    """The settings for the report; a configuration that is wrong itself is ignored."""
    flags = {key: True for key in ("json", "debug") if f"--{key}" in arguments}
    environ = dict(os.environ)
    with contextlib.suppress(MinionsError, OSError):
        user_file = user_settings_file()
        trust = FolderTrust.of(environ, is_given="--trust" in arguments)
        origin = load_settings(flags, environ, folder=Path.cwd(), user_file=user_file, trust=trust)
        return origin.settings
    return Settings(
        json="json" in flags or environ.get("MINIONS_JSON", "").lower() in _TRUE,
        debug="debug" in flags or environ.get("MINIONS_DEBUG", "").lower() in _TRUE,
    )


def _refusal(error: OSError) -> EnvironmentRefusedError:
    where = f" {error.filename}:" if error.filename else ""
    if isinstance(error, FileNotFoundError) and not error.filename:
        where = " (is the current folder still there?)"
    return EnvironmentRefusedError(
        f"The operating system refuses:{where} {error.strerror or error}.", code="system"
    )


_INPUTS: Final = (
    "Inputs are given as -p NAME=VALUE, or as --params FILE with a YAML or JSON file "
    "(--params - reads standard input)."
)
_FOREIGN_OPTIONS: Final = dict.fromkeys(
    ("-i", "--input", "--inputs", "--var", "--vars", "--set", "--arg", "--args", "--data"), _INPUTS
)
"""What to write for options of other programs."""

_EXTRA: Final = "unexpected extra argument"


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.option_name in _FOREIGN_OPTIONS:
        text = f"No such option '{error.option_name}'. {_FOREIGN_OPTIONS[error.option_name]}"
    context = getattr(error, "ctx", None)
    if context is not None:
        options = {each for param in context.command.params for each in param.opts}
        if _EXTRA in text and "=" in text and "-p" in options:
            text = f"{text.rstrip('.')}. {_INPUTS}"
        text += f"\nTry '{context.command_path} --help'."
    return text


def _fail(error: MinionsError, settings: Settings) -> int:
    for line in error_lines(error, stderr_painter()):
        tell(line)
    if settings.json:
        with contextlib.suppress(MinionsError):  # already printed as text
            say(json_text(error_to_json(error)))
    if error.error_code in _UNDECIDED:
        return EXIT_CODES[RunStatus.NEEDS_DECISION]
    if isinstance(error, UsageError):
        return 2
    return 4 if isinstance(error, EnvironmentRefusedError) else 1


def _fail_internally(error: BaseException, settings: Settings) -> int:
    paint = stderr_painter()
    tell(f"{paint('error[internal]', 'red')}: {words_of(error)}")
    tell("This is a bug in minions. Run again with --debug and report what it prints.")
    if settings.json:
        info = FailureInfo(code="internal", message=words_of(error))
        say(json_text({"error": dict(info.to_document())}))
    return 70
