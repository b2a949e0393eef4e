"""What the commands share: options that are settings, and the wired surroundings."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from attrs import frozen

from minions.contracts.errors import EnvironmentRefusedError
from minions.contracts.json_values import JsonValue
from minions.interfaces.settings import Origin, Settings, load_settings
from minions.interfaces.wiring import environment, user_settings_file

if TYPE_CHECKING:
    from minions.contracts.journal import Journal
    from minions.engine.context import Extensions

__all__ = ["Surroundings", "common_options", "json_text", "say", "surroundings", "tell"]

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as it finds them


@frozen(kw_only=True)
class Surroundings:
    """One command's settings and environment."""

    origin: Origin
    environ: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        """The values."""
        return self.origin.settings

    def folder_of(self, key: str) -> Path:
        """Where a relative path under that key starts: its file's folder, or here."""
        is_from_file = self.origin.origins[key].endswith(".toml")
        return self.origin.folder if is_from_file else Path.cwd()

    def extensions(self) -> Extensions:
        """The built-in toolsets and the operator's own code."""
        from minions.interfaces.extension_files import load_extensions
        from minions.interfaces.wiring import built_in_extensions

        return load_extensions(
            self.settings.extensions, self.folder_of("extensions"), built_in_extensions()
        )

    def journal(self) -> Journal:
        """The configured one; opens nothing yet."""
        from minions.interfaces.wiring import make_journal

        return make_journal(self.settings, self.folder_of("db"))


def surroundings(flags: Mapping[str, object]) -> Surroundings:
    """Settings from every source, with the flags that were given.

    Raises:
        UsageError: A configuration that is wrong.
    """
    given = {key: value for key, value in flags.items() if value not in (None, (), False)}
    environ = environment()
    origin = load_settings(given, environ, folder=Path.cwd(), user_file=user_settings_file())
    return Surroundings(origin=origin, environ=environ)


def common_options(function: F) -> F:
    """`--extensions`, `--db`, `--no-store`, `--json`, `--debug`."""
    options = (
        click.option("--debug", is_flag=True, help="Show logs and tracebacks."),
        click.option("--json", "json", is_flag=True, help="Print one JSON object at the end."),
        click.option(
            "--no-store", is_flag=True, help="Keep the journal in memory; nothing is stored."
        ),
        click.option("--db", metavar="PATH", help="SQLite file of the journal."),
        click.option(
            "--extensions",
            multiple=True,
            metavar="PATH.py|MODULE",
            help="Your tools, links and models. Repeatable.",
        ),
    )
    for option in options:
        function = option(function)
    return function


def tell(line: str) -> None:
    """To standard error, where everything goes that is not the result.

    Nobody may be there to read it: that is no reason for a run to fail.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the command line's own voice


def say(text: str, stream: TextIO | None = None) -> None:
    """A result, to standard output or the stream that stands for it.

    A reader that went away is no error; what is said after that goes nowhere.

    Raises:
        EnvironmentRefusedError: Nothing can be written there, such as on a full disk.
    """
    out = stream or sys.stdout
    if out is None:
        return
    try:
        print(text, file=out, flush=True)  # the command line's own voice
    except OSError as error:
        _close_off(out)
        if isinstance(error, BrokenPipeError):
            return
        raise EnvironmentRefusedError(
            f"The result cannot be written to standard output: {error.strerror}.", code="no-output"
        ) from error


def _close_off(stream: TextIO) -> None:
    """Lead the stream nowhere: the interpreter would stumble over it again on its way out."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def json_text(value: JsonValue) -> str:
    """One line of JSON that standard output can carry: escaped where its encoding cannot say it."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
