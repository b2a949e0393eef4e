"""`minions sessions export` and `import`: write a session to a file, and read it again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import click
from attrs import frozen

from minions.data.bounded_files import open_regular
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.secrets import environment_and_files
from minions.engine.sessions.archive import (
    Archive,
    archive_lines,
    load_archive,
    read_archive_file,
    store_archive,
)
from minions.engine.sessions.deletion import find_session
from minions.engine.views.lookup import find_run
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    ExtensionOptions,
    command_context,
    naming_the_journal,
    takes_options,
)


@frozen(kw_only=True, slots=False)
class _ExportOptions(DatabaseOption, ExtensionOptions):
    """Where the journal is, and the code that draws a recipe."""


@click.command("export")
@click.argument("name", metavar="ID")
@click.option("-o", "--output", metavar="FILE", help="Write there; else to standard output.")
@click.option(
    "--html", "page", metavar="FILE", help="Write one run as a page without scripts, to send it."
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@takes_options(_ExportOptions)
def export(
    options: _ExportOptions, name: str, output: str | None, page: str | None, *, force: bool
) -> int:
    """Write a session to one file of JSON lines: all rows, and the blobs that they name.

    ID is a session's or a run's, or a unique start of one. The file of a fork also has the rows of
    its parents that it reads. With --html it is the run as a page for people; secrets are masked.
    """
    context = command_context(options)
    if page is not None and output is not None:
        raise UsageError("-o and --html exclude each other: rows to import, or a page to read.")
    if page is not None:
        return _export_page(context, name, page, force=force)
    target = Path(output) if output and output != "-" else None
    _check_free(target, force=force)
    archive = asyncio.run(_export(context, name))
    rows = sum(len(each.entries) for each in archive.sessions)
    if target is None:
        for line in archive_lines(archive):
            say(line)
    else:
        _write(target, archive_lines(archive))
        if context.settings.json:
            shown: dict[str, JsonValue] = {"session_id": archive.session_id, "file": str(target)}
            say(json_text({**shown, "rows": rows, "blobs": len(archive.blobs)}))
    tell(f"Exported {_named(archive)}: {rows} rows, {len(archive.blobs)} blobs.")
    return 0


def _check_free(target: Path | None, *, force: bool) -> None:
    if target is not None and target.exists() and not force:
        raise UsageError(
            f"{target} exists already. Name another file, or overwrite it with --force.",
            code="file-exists",
        )


def _export_page(context: CommandContext, name: str, file: str, *, force: bool) -> int:
    target = Path(file) if file != "-" else None
    _check_free(target, force=force)
    text = asyncio.run(_page(context, name))
    if target is None:
        say(text)
        return 0
    _write(target, text.removesuffix("\n").split("\n"))  # other line breaks are part of a value
    tell(f"{target}: {target.stat().st_size:,} bytes")
    return 0


async def _page(context: CommandContext, name: str) -> str:
    from minions.app.pages.run_page import load_run_page

    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            run = await find_run(journal, name)
        page = await load_run_page(journal, run, context.catalog(), environment_and_files)
        return page.html()
    finally:
        await journal.aclose()


async def _export(context: CommandContext, name: str) -> Archive:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            return await load_archive(journal, await find_session(journal, name))
    finally:
        await journal.aclose()


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write the file as a whole, so that no reader finds a part of it; for its owner only."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _named(archive: Archive) -> str:
    parents = [each.session_id for each in archive.sessions[:-1]]
    return archive.session_id + (f" (with {', '.join(parents)})" if parents else "")


@click.command("import")
@click.argument("file", metavar="FILE")
@takes_options(DatabaseOption)
def import_(options: DatabaseOption, file: str) -> int:
    """Import a session that `export` wrote, with its ids. FILE `-` is standard input.

    Nothing is stored if the file is damaged or the session exists already.
    """
    context = command_context(options)
    archive = _read(file, context)
    stored = asyncio.run(_import(context, archive))
    if context.settings.json:
        say(json_text({"session_id": archive.session_id, "stored": list(stored)}))
        return 0
    say(archive.session_id)
    rows = sum(len(each.entries) for each in archive.sessions if each.session_id in stored)
    tell(f"Imported {_named(archive)}: {rows} rows, {len(archive.blobs)} blobs.")
    return 0


def _read(file: str, context: CommandContext) -> Archive:
    if file == "-":
        return read_archive_file(context.stdin.stream("FILE -"), name="standard input")
    with closing(_opened(file)) as opened:
        return read_archive_file(opened, name=file)


def _opened(file: str) -> BinaryIO:
    try:
        return open_regular(file)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}. Name a file that `minions sessions "
            "export` wrote.",
            code="no-file",
            where=file,
        ) from error


async def _import(context: CommandContext, archive: Archive) -> tuple[str, ...]:
    journal = context.journal()
    try:
        return await store_archive(journal, archive, project=context.project)
    finally:
        await journal.aclose()
