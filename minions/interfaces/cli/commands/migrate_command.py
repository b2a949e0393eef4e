"""`minions migrate`: turns an instruction in prose into a recipe, and mends the words of one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

import click
from attrs import evolve, frozen

from minions.app.settings.settings import bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.contracts.executions import AgentResult, RunStatus
from minions.data.bounded_files import read_regular
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue, as_object, as_text, as_texts
from minions.data.texts import shell_word
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.live_progress import PlainProgress
from minions.interfaces.cli.console.printed_results import EXIT_CODES, summary_lines
from minions.interfaces.cli.console.render import fault_to_json, faults_lines, stderr_painter
from minions.interfaces.cli.options import (
    CommandContext,
    CommonOptions,
    command_context,
    option,
    output_file,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import STANDARD_INPUT, refuse_target, write_recipe
from minions.interfaces.cli.run_follower import Signals, note_of
from minions.planning.migration import (
    CheckRecipe,
    Instruction,
    MendedRecipe,
    mend_recipe,
    migration_inputs,
    migration_recipe,
    read_instruction,
)
from minions.recipe.recipe_files import SUFFIXES


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _MigrateOptions(CommonOptions):
    """Whether anything is written."""

    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show the change of a recipe; nothing is written."
    )


@click.command("migrate")
@click.argument("file", metavar="FILE")
@click.option(
    "-o",
    "--output",
    metavar="RECIPE.yaml",
    callback=output_file,
    help="Where to write; else printed.",
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@click.option("-m", "--model", metavar="MODEL", help="provider/name of who writes the recipe.")
@click.option(
    "--allow-write",
    is_flag=True,
    help="The recipe may write, although the instruction does not say so.",
)
@takes_options(_MigrateOptions)
def migrate_command(
    options: _MigrateOptions,
    file: str,
    output: str | None,
    *,
    force: bool,
    model: str | None,
    allow_write: bool,
) -> int:
    """Turn FILE, an instruction in prose or in the older YAML form, into a recipe.

    A recipe with words of other tools or misspelt keys is mended in its place (or at -o), without a
    model: comments stay, the change is printed, and what a person has to mend is listed. Exit code
    2 if anything is left.

    An instruction is given to a model. Its recipe is checked as by `validate`; the faults are sent
    back to the model twice. A recipe that still has some is not written. It may write what the
    instruction's `permissions` allow (`allow_write`, `allow_TOOL`), or anything with --allow-write.
    Read the recipe before you run it.
    """
    context = command_context(options)
    if file == STANDARD_INPUT:
        raise UsageError(
            f"FILE {STANDARD_INPUT}: a recipe is mended in its place, so this takes a file, and no "
            "standard input. Write it to one.",
            code="no-file",
        )
    target = Path(output) if output is not None else None
    instruction = _instruction(Path(file))
    if instruction is None or instruction.is_recipe:
        refuse_target(target, force=force)
        return mend_file(Path(file), target, context, force=force)
    if allow_write:
        permissions = evolve(instruction.permissions, allow_write=True)
        instruction = evolve(instruction, permissions=permissions)
    refuse_target(target, force=force)
    if context.settings.dry_run:
        tell("dry_run is set: no model is asked, nothing is written.")
        return 0
    out = sys.stdout
    # What extensions print is no recipe: only we write to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        migration = _Migration(context=context, file=file, instruction=instruction, model=model)
        result, code = asyncio.run(migration.run())
        if code == 0:
            made = _MigratedRecipe.of(result, file)
            made.put(target, out, json=context.settings.json, force=force)
    return code


def _instruction(file: Path) -> Instruction | None:
    """The instruction in the file; None: it is a recipe that is no YAML as it stands.

    Raises:
        RecipeError: It is neither a recipe nor YAML, which its name says.
    """
    try:
        return read_instruction(file)
    except RecipeError:
        if is_recipe_text(file):
            return None
        raise


@frozen(kw_only=True)
class _Migration:
    """One run of the recipe that writes recipes."""

    context: CommandContext
    file: str
    instruction: Instruction
    model: str | None
    """The argument of `-m`; None: not given."""

    async def run(self) -> tuple[AgentResult[object], int]:
        """Run to the end, with progress on standard error; the result and the exit code."""
        context = self.context
        async with context.runtime() as own:
            check = CheckRecipe(own.catalog, permissions=self.instruction.permissions)
            tools = own.extensions.tools.plus([check])
            runtime = own.evolve(extensions=evolve(own.extensions, tools=tools))
            recipe = bounded(migration_recipe(runtime.catalog), context.settings)
            choice = ModelChoice(override=self.model, asked_as=self.file, command="migrate")
            inputs = migration_inputs(self.instruction, own.catalog)
            note = {**note_of(context, self.model), "command": f"migrate {self.file}"}
            executor = runtime.executor(recipe, choice)
            return await self._watch(executor.prepare(recipe, inputs, note=note))

    async def _watch(self, run: AgentRun) -> tuple[AgentResult[object], int]:
        run.listen(PlainProgress(tell, stderr_painter()).on_event)
        with Signals() as signals:
            signals.stop(run, last_words="Nothing was written.")
            result = await run.execute()
        for line in summary_lines(result, stderr_painter()):
            tell(line)
        if result.status is not RunStatus.COMPLETED:
            tell("Nothing was written. Try another model, or a shorter instruction.")
        if signals.caught is not None and result.status is RunStatus.CANCELLED:
            return result, 128 + signals.caught
        return result, EXIT_CODES[result.status]


@frozen(kw_only=True)
class _MigratedRecipe:
    """A recipe that passed every check."""

    text: str
    notes: Sequence[str]
    """Parts of the instruction that the recipe does not do."""
    run_id: str

    @classmethod
    def of(cls, result: AgentResult[object], file: str) -> _MigratedRecipe:
        """The recipe of a completed run."""
        output = as_object(result.output)
        name = " ".join(Path(file).name.split())  # a line break would end the comment
        head = f"# Made of {name} by {result.model_name}. Read it before you run it.\n"
        return cls(
            text=head + as_text(output["recipe"]),
            notes=as_texts(output["notes"]),
            run_id=result.run_id,
        )

    def put(self, target: Path | None, out: TextIO, *, json: bool, force: bool) -> None:
        """Write the recipe to the file, or to standard output."""
        for note in self.notes:
            tell(f"note: {note}")
        if target is not None:
            write_recipe(target, self.text, force=force)
        if json:
            shown: dict[str, JsonValue] = {
                "recipe": self.text,
                "notes": list(self.notes),
                "file": str(target) if target is not None else None,
                "run_id": self.run_id,
            }
            say(json_text(shown), out)
        elif target is None:
            say(self.text.rstrip("\n"), out)
        if target is not None:
            explain = f"minions explain {shell_word(str(target))}"
            tell(f"Wrote {target}. What it needs and may do: {explain}")


_STEPS: Final = re.compile(r"^steps:", re.MULTILINE)
_MOST_BYTES: Final = 1_048_576
"""Bytes of a recipe."""


def is_recipe_text(file: Path) -> bool:
    """Whether the text has steps, be it YAML or not."""
    return _STEPS.search(_read(file)) is not None


def mend_file(file: Path, target: Path | None, context: CommandContext, *, force: bool) -> int:
    """Mend the recipe, print the change and what is left; the exit code.

    Args:
        target: Where to write; None: in its place.
        force: Whether a target that exists is written over.
    """
    text = _read(file)
    mended = mend_recipe(text, str(file), context.catalog())
    # A text file is no place for a recipe, which is found by its name's ending.
    is_copied = target is not None and file.suffix not in SUFFIXES and not mended.errors
    is_written = bool(mended.mendings or is_copied) and not context.settings.dry_run
    if is_written and target is not None:
        _write_new(target, mended.text, force=force)
    elif is_written:
        _replace(file, mended.text)
    if context.settings.json:
        say(json_text(_to_json(mended, file, target or file if is_written else None)))
    elif diff := mended.diff(str(file)):
        say(diff)
    for line in _lines(mended, file, str(target or file) if is_written else None):
        tell(line)
    return 2 if mended.errors else 0


def _lines(mended: MendedRecipe, file: Path, written: str | None) -> Iterator[str]:
    count = len(mended.mendings)
    if not count and not mended.errors and written is not None:
        yield f"Wrote {written}, the recipe as it is. Nothing had to be mended."
        return
    if not count and not mended.errors:
        yield f"{file} is a recipe already, and it is valid. Nothing to do."
        return
    words = f"{count} word{'s' * (count != 1)}"
    if written is not None:
        yield f"Mended {words}: {written}"
    elif count:
        yield f"{words} can be mended; nothing was written."
    if mended.errors:
        left = len(mended.errors)
        if count:
            yield f"left for you: {left} fault{'s' * (left != 1)}"
        yield from faults_lines(mended.errors, stderr_painter())


def _to_json(mended: MendedRecipe, file: Path, written: Path | None) -> dict[str, JsonValue]:
    return {
        "file": str(file),
        "written": str(written) if written is not None else None,
        "mended": [
            {"line": each.line, "before": each.before, "after": each.after}
            for each in mended.mendings
        ],
        "left": [fault_to_json(fault) for fault in mended.errors],
        "diff": mended.diff(str(file)),
    }


def _read(file: Path) -> str:
    """The text with its line ends, which the reader of instructions has checked."""
    try:
        content = read_regular(file, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{file} has more than 1 MiB: no recipe has.", code="unreadable")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", code="unreadable") from error


def _replace(file: Path, text: str) -> None:
    """Write the file whole or not at all, with its rights."""
    path = file.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode())
            part.chmod(path.stat().st_mode)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(file, error) from error


def _write_new(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("wb" if force else "xb") as stream:
            stream.write(text.encode())
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror}.", code="not-writable")
