"""`minions sessions verify`, `export`, `import` and `rm`: checked, to a file, from one, removed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import click
from attrs import evolve, frozen
from msgspec.structs import replace

from minions.adapters.stores.memory_stores import head_key
from minions.contracts.journal.chain import ChainFault, ChainReport
from minions.data.bounded_files import open_regular
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.texts import one_line
from minions.engine.services.run_services import Services
from minions.engine.services.secret_sources import environment_and_files
from minions.engine.sessions.archive import (
    Archive,
    HeadSignature,
    archive_lines,
    load_archive,
    read_archive_file,
    signed_bytes,
    store_archive,
)
from minions.engine.sessions.deletion import (
    CleanUp,
    child_sessions,
    clean_up,
    find_session,
    remove_sessions,
)
from minions.engine.views.lookup import find_run
from minions.interfaces.cli.commands.personal_data_commands import export_user, remove_user
from minions.interfaces.cli.console.console import counted, json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    ExtensionOptions,
    command_context,
    naming_the_journal,
    option_seconds,
    takes_options,
)


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _ExportOptions(DatabaseOption, ExtensionOptions):
    """Where the journal is, and the code that draws a recipe."""


@click.command("export")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--user", metavar="LABEL", help="Everything of this user, instead of one session.")
@click.option("-o", "--output", metavar="FILE", help="Write there; else to standard output.")
@click.option(
    "--html", "page", metavar="FILE", help="Write one run as a page without scripts, to send it."
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@click.option("--sign", "key", metavar="KEYFILE", help="Sign the file by an Ed25519 key in PEM.")
@takes_options(_ExportOptions)
def export(
    options: _ExportOptions,
    name: str | None,
    user: str | None,
    output: str | None,
    page: str | None,
    key: str | None,
    *,
    force: bool,
) -> int:
    """Write a session to one file of JSON lines: all rows, and the blobs that they name.

    ID is a session's or a run's, or a unique start of one. The file of a fork also has the rows of
    its parents that it reads. Nothing is written if a row is not as it was stored. With --html it
    is the run as a page for people; secrets are masked. With --user it is all sessions of that
    user, one after another, with a first line that lists them.
    """
    context = command_context(options)
    if (name is None) == (user is None):
        raise UsageError("Name a session or run as ID, or a user as --user LABEL.")
    if user is not None and (page is not None or key is not None):
        raise UsageError("--user excludes --html and --sign: it is many sessions.")
    if page is not None and output is not None:
        raise UsageError("-o and --html exclude each other: rows to import, or a page to read.")
    if page is not None and key is not None:
        raise UsageError("--sign and --html exclude each other: a page has no chain to sign.")
    if page is not None:
        return _export_page(context, name or "", page, force=force)
    target = Path(output) if output and output != "-" else None
    _check_free(target, force=force)
    if user is not None:
        return _export_user(context, user, target)
    archive = asyncio.run(_export(context, name or ""))
    if key is not None:
        from minions.adapters.head_signing import fingerprint_of, sign

        public_key, signature = sign(signed_bytes(archive), Path(key))
        archive = evolve(
            archive, signature=HeadSignature(public_key=public_key, signature=signature)
        )
        tell(f"Signed by the key {fingerprint_of(public_key)}.")
    rows = sum(len(each.entries) for each in archive.sessions)
    if target is None:
        for line in archive_lines(archive):
            say(line)
    else:
        write_lines(target, archive_lines(archive))
        if context.settings.json:
            shown: dict[str, JsonValue] = {"session_id": archive.session_id, "file": str(target)}
            shown |= {"rows": rows, "blobs": len(archive.blobs), "head": archive.sessions[-1].head}
            say(json_text(shown))
    tell(f"Exported {_describe_sessions(archive)}: {rows} rows, {len(archive.blobs)} blobs.")
    return 0


def _export_user(context: CommandContext, user: str, target: Path | None) -> int:
    lines, told = asyncio.run(export_user(context, user))
    if target is None:
        for line in lines:
            say(line)
    else:
        write_lines(target, lines)
    tell(told)
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
    write_lines(
        target, text.removesuffix("\n").split("\n")
    )  # other line breaks are part of a value
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


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write the file as a whole, so that no reader finds a part of it; for its owner only."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _describe_sessions(archive: Archive) -> str:
    parents = [each.session_id for each in archive.sessions[:-1]]
    return archive.session_id + (f" (with {', '.join(parents)})" if parents else "")


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option("--public-key", metavar="KEYFILE", help="Refuse what this key has not signed (PEM).")
@takes_options(DatabaseOption)
def import_(options: DatabaseOption, file: str, public_key: str | None) -> int:
    """Import a session that `export` wrote, with its ids. FILE `-` is standard input.

    Nothing is stored if the file is damaged or the session exists already, or if its signature is
    wrong.
    """
    context = command_context(options)
    archive = _read(file, context)
    _check_signature(archive, file, public_key)
    if uncovered := sum(each.uncovered for each in archive.sessions):
        tell(
            f"note: {counted(uncovered, 'row')} of {file} have no chain value, as a version "
            "without chains wrote them: nothing shows whether they are as they were exported."
        )
    stored = asyncio.run(_import(context, archive))
    if context.settings.json:
        say(json_text({"session_id": archive.session_id, "stored": list(stored)}))
        return 0
    say(archive.session_id)
    rows = sum(len(each.entries) for each in archive.sessions if each.session_id in stored)
    tell(f"Imported {_describe_sessions(archive)}: {rows} rows, {len(archive.blobs)} blobs.")
    return 0


def _check_signature(archive: Archive, file: str, demanded: str | None) -> None:
    """Say who signed the file.

    Raises:
        UsageError: `bad-signature`; nobody did, or somebody else, or the file was changed.
    """
    signature = archive.signature
    if signature is None and demanded is None:
        return
    from minions.adapters.head_signing import fingerprint_of, is_signed, read_public_key

    wanted = None if demanded is None else read_public_key(Path(demanded))
    why = None
    if signature is None:
        why = "it is not signed"
    elif not is_signed(signed_bytes(archive), signature.public_key, signature.signature):
        why = "its signature is not one of what it holds"
    elif wanted not in (None, signature.public_key):
        why = f"another key has signed it: {fingerprint_of(signature.public_key)}"
    if signature is None or why is not None:
        raise UsageError(
            f"{file} is refused: {why}. Nothing was stored.", code="bad-signature", where=file
        )
    known = " as you demanded" if wanted else "; --public-key demands a certain one"
    tell(f"Signed by the key {fingerprint_of(signature.public_key)}{known}.")


def _read(file: str, context: CommandContext) -> Archive:
    if file == "-":
        return read_archive_file(context.stdin.stream("FILE -"), name="standard input")
    with closing(_open_file(file)) as opened:
        return read_archive_file(opened, name=file)


def _open_file(file: str) -> BinaryIO:
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


# --- `minions sessions verify` -------------------------------------------------------------------


@click.command("verify")
@click.argument("names", metavar="[ID]…", nargs=-1)
@click.option("--head", metavar="HEX", help="A chain value that the one session must contain.")
@click.option("--public-key", metavar="FILE", help="The key that must have signed the last head.")
@takes_options(DatabaseOption)
def verify(
    options: DatabaseOption, names: Sequence[str], head: str | None, public_key: str | None
) -> int:
    """Check that no row of sessions was changed, removed or inserted since it was stored.

    ID is a session's or a run's, or a unique start of one; without any, all sessions are checked.
    The exit code is 1 if one of them is not as it was stored. The head is the value of the last
    entry, which covers all before it: note it elsewhere, and a later check asks for it with --head.
    """
    context = command_context(options)
    if head is not None and (len(names) != 1 or _HEAD.fullmatch(head) is None):
        raise UsageError(
            "--head goes with one ID, and is the 64 hexadecimal digits that `minions sessions "
            "verify ID` printed."
        )
    demanded = _demanded_key(context, public_key)
    checked = asyncio.run(_verify(context, names, demanded, is_required=public_key is not None))
    signers = [whose for _, whose in checked]
    reports = [each if head is None else _with_head(each, head) for each, _ in checked]
    if context.settings.json:
        shown = [_report_as_json(*each) for each in zip(reports, signers, strict=True)]
        say(json_text({"ok": not any(each.fault for each in reports), "sessions": shown}))
    else:
        for each, whose in zip(reports, signers, strict=True):
            for line in _report_lines(each, whose):
                say(line)
        if not reports:
            tell("There are no sessions.")
    return 1 if any(each.fault for each in reports) else 0


_HEAD: Final = re.compile(r"[0-9a-f]{64}")


def _demanded_key(context: CommandContext, file: str | None) -> str | None:
    """The key that must have signed what is signed: that of the file, else of the setting; None:
    any one.
    """
    own = context.settings.journal.signing_key_file
    if file is None and own is None:
        return None
    from minions.adapters.head_signing import public_key_of, read_public_key
    from minions.app.wiring.signed_heads import signing_key_file

    if file is not None:
        return read_public_key(Path(file))
    return public_key_of(signing_key_file(f"{own}"))


async def _verify(
    context: CommandContext, names: Sequence[str], public_key: str | None, *, is_required: bool
) -> list[tuple[ChainReport, str | None]]:
    """What each session is like, and the fingerprint of the key that signed its last head.

    Args:
        is_required: Whether a session of which no head is signed is faulty.
    """
    from minions.app.wiring.databases import state_beside

    journal = context.known_journal()
    state = state_beside(journal)
    try:
        known = await journal.chained_sessions()
        with naming_the_journal(context):
            ids = [
                name if name in known else await find_session(journal, name) for name in names
            ] or known
        found: list[tuple[ChainReport, str | None]] = []
        for session_id in dict.fromkeys(ids):
            report, whose = await journal.verify(session_id), None
            text = await state.get(head_key(session_id))
            if text is not None or is_required:
                from minions.app.wiring.signed_heads import with_signature

                report, whose = with_signature(report, text, public_key)
            found.append((report, whose))
        return found
    finally:
        await state.aclose()
        await journal.aclose()


def _with_head(report: ChainReport, head: str) -> ChainReport:
    if report.fault is not None or head in report.values:
        return report
    words = "no entry has the head that was asked for: entries were removed or written again"
    fault = ChainFault(position=report.entries, what="cut", words=words)
    return replace(report, fault=fault)


def _report_as_json(report: ChainReport, whose: str | None) -> JsonValue:
    return {
        "session_id": report.session_id,
        "ok": report.fault is None,
        "entries": report.entries,
        "uncovered": report.uncovered,
        "head": report.head,
        "signed_by": whose,
        "fault": encode(report.fault),
    }


def _report_lines(report: ChainReport, whose: str | None) -> Sequence[str]:
    name, count = one_line(report.session_id), counted(report.entries, "row")
    if (fault := report.fault) is not None:
        return [f"{name}: {fault.what} · row {fault.position}: {one_line(fault.words)}"]
    lines = [f"{name}: ok · {count} · {report.head or 'no chain'}"]
    if whose is not None:
        lines.append(f"  signed by the key {whose}")
    if report.uncovered:
        older = counted(report.uncovered, "older row")
        lines.append(f"  not covered: {older}, of a version without chains")
    return lines


# --- `minions sessions rm` and `gc` --------------------------------------------------------------


@click.command("rm")
@click.argument("names", metavar="[ID]…", nargs=-1)
@click.option("--user", metavar="LABEL", help="Everything of this user, instead of some sessions.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@takes_options(DatabaseOption)
def rm(options: DatabaseOption, names: Sequence[str], user: str | None, *, yes: bool) -> int:
    """Remove sessions, with all their runs.

    ID is a session's or a run's, or a unique start of one. `sessions gc` then frees the data that
    only they needed. With --user it is everything of that user, which is listed first: sessions,
    child runs, forks, what only they needed, and what was cached or taken as an example.
    """
    context = command_context(options)
    if bool(names) == (user is not None):
        raise UsageError("Name sessions or runs as ID, or a user as --user LABEL.")
    if user is not None:
        return asyncio.run(remove_user(context, user, None if yes else ask_to_remove))
    removed = asyncio.run(_remove(context, names, is_agreed=yes))
    if context.settings.json:
        say(json_text({"removed": list(removed)}))
        return 0
    for session_id in removed:
        say(f"removed {session_id}")
    return 0


async def _remove(
    context: CommandContext, names: Sequence[str], *, is_agreed: bool
) -> tuple[str, ...]:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            ids = list(dict.fromkeys([await find_session(journal, name) for name in names]))
        if not is_agreed:
            children = len(await child_sessions(journal, ids))
            ask_to_remove(
                ", ".join(ids) + (f" with {counted(children, 'child run')}" if children else "")
            )
        return await remove_sessions(Services(journal=journal), ids)
    finally:
        await journal.aclose()


def ask_to_remove(shown: str) -> None:
    """Ask the person at the terminal; without a terminal nothing is removed.

    Args:
        shown: What would be removed.
    Raises:
        UsageError: `not-agreed`; there is no terminal.
        click.Abort: The person said no.
    """
    if not _is_terminal():
        raise UsageError(
            f"Removing {shown} cannot be undone, and there is no terminal to ask at. Nothing was "
            "removed. Add --yes; `minions sessions export` makes a copy before.",
            code="not-agreed",
        )
    click.confirm(f"Remove {shown}, for good?", abort=True, err=True)


def _is_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


@frozen(kw_only=True)
class _CleanUpResult:
    """What a clean-up removed."""

    cleaned: CleanUp
    cached: int = 0
    """How many cached outputs of steps were removed."""
    bytes_of_file: int = 0
    """By how many bytes the database's file became smaller."""


@click.command("gc")
@click.option("--older-than", metavar="TIME", help="Remove finished sessions this old: 30d, 12h.")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N, however old."
)
@click.option("--cache", is_flag=True, help="Remove outputs cached by `cache: true`, too.")
@click.option(
    "--dry-run", "only_tell", is_flag=True, help="Show what would be removed; remove nothing."
)
@takes_options(DatabaseOption)
def gc(
    options: DatabaseOption,
    older_than: str | None,
    keep: int | None,
    *,
    cache: bool,
    only_tell: bool,
) -> int:
    """Free data that nothing needs: blobs that no session names, and old sessions.

    Sessions are old whose time is over by `retain` of the configuration or of their recipes, and
    those that --older-than and --keep ask for. They stay if a run in them may be resumed, or if a
    fork that stays reads from them.
    """
    context = command_context(options)
    age_s = None if older_than is None else option_seconds("--older-than", older_than)
    freed = asyncio.run(_gc(context, age_s, keep, cache=cache, dry_run=only_tell))
    if context.settings.json:
        say(json_text({"dry_run": only_tell, **_as_json(freed)}))
        return 0
    for line in _lines(freed, dry_run=only_tell):
        say(line)
    return 0


async def _gc(
    context: CommandContext, age_s: float | None, keep: int | None, *, cache: bool, dry_run: bool
) -> _CleanUpResult:
    journal = context.known_journal()
    try:
        cleaned = await clean_up(
            Services(journal=journal),
            older_than_s=age_s,
            keep=keep,
            retain_s=context.settings.journal.retain_s,
            dry_run=dry_run,
        )
        freed = _CleanUpResult(cleaned=cleaned)
        if dry_run:
            return freed
        cached = await _forget_cached(context, None if cache else cleaned.runs)
        return evolve(freed, cached=cached, bytes_of_file=await journal.compact())
    finally:
        await journal.aclose()


async def _forget_cached(context: CommandContext, run_ids: Collection[str] | None) -> int:
    """Those of removed runs; None: all."""
    if run_ids is not None and not run_ids:
        return 0
    cache = context.cache()
    try:
        return await (cache.clear() if run_ids is None else cache.forget_runs(run_ids))
    finally:
        await cache.aclose()


def _as_json(freed: _CleanUpResult) -> dict[str, JsonValue]:
    cleaned = freed.cleaned
    return {
        "sessions": list(cleaned.sessions),
        "kept": {"unfinished": list(cleaned.unfinished), "forked": list(cleaned.forked)},
        "blobs": encode(cleaned.collected),
        "cached": freed.cached,
        "bytes_of_file": freed.bytes_of_file,
    }


def _lines(freed: _CleanUpResult, *, dry_run: bool) -> Sequence[str]:
    cleaned, collected = freed.cleaned, freed.cleaned.collected
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {session_id}" for session_id in cleaned.sessions]
    for ids, why in (
        (cleaned.unfinished, "a run may be resumed"),
        (cleaned.forked, "a fork that stays reads from it"),
    ):
        lines += [f"kept {session_id}: {why}" for session_id in ids]
    freeing = "would free" if dry_run else "freed"
    lines.append(
        f"{freeing} {counted(len(cleaned.sessions), 'session')}, "
        f"{counted(collected.blobs, 'blob')} ({_size(collected.bytes)})"
    )
    if freed.cached:
        lines.append(f"removed {counted(freed.cached, 'cached output')}")
    if freed.bytes_of_file:
        lines.append(f"the file is {_size(freed.bytes_of_file)} smaller")
    return lines


def _size(count: int) -> str:
    """The size in the largest unit in which it is at least 1."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
