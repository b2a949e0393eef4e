"""`-` is standard input wherever a command reads a recipe or data, or the command says why not."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Final

import click
import pytest

from command_line import Cli, Write
from minions.interfaces.cli.main import command as root

RECIPE: Final = "id: x\ninputs: {n: {type: integer, default: 1}}\nsteps:\n- {id: a, set: {n: 1}}\n"

READ: Final = {
    "run recipe": ("run", "-", "--no-store"),
    "run params": ("run", "x.yaml", "--params", "-", "--no-store"),
    "agents run params": ("agents", "run", "said", "Hi", "--params", "-", "--no-store"),
    "upgrade recipe": ("upgrade", "-"),
    "batch recipe": ("batch", "-", "items.jsonl", "--no-store"),
    "batch items": ("batch", "x.yaml", "-", "--no-store"),
    "batch params": ("batch", "x.yaml", "items.jsonl", "--params", "-", "--no-store"),
    "eval data": ("eval", "x.yaml", "-", "--no-store"),
    "eval params": ("eval", "x.yaml", "cases.jsonl", "--params", "-", "--no-store"),
    "eval recipe": ("eval", "-", "cases.jsonl", "--no-store"),
    "tune data": ("tune", "x.yaml", "-", "--no-store"),
    "tune params": ("tune", "x.yaml", "cases.jsonl", "--params", "-", "--no-store"),
    "watch recipe": ("watch", "-"),
    "sessions import file": ("sessions", "import", "-"),
    "explain recipe": ("explain", "-"),
    "graph recipe": ("graph", "-"),
    "schedules add recipe": ("schedules", "add", "-"),
    "schedules add params": ("schedules", "add", "daily.yaml", "--params", "-"),
    "deploy recipe": ("deploy", "-", "--as", "x"),
    "validate recipes": ("validate", "-"),
    "test recipes": ("test", "-"),
    "check recipe": ("check", "-", "--against", "x.yaml"),
    "format recipes": ("format", "-"),
}
"""A command for each argument that reads a recipe, cases, items or values."""
FILES_ALONE: Final = {
    "chat recipe": ("chat", "-"),
    "tune recipe": ("tune", "-", "cases.jsonl"),
    "learn recipe": ("learn", "-"),
    "drift recipe": ("drift", "-"),
    "migrate file": ("migrate", "-"),
    "stubs recipe": ("stubs", "-"),
}
"""Those whose recipe needs a file, which is changed, found again or named."""
_NAMES: Final = ("recipe", "recipes", "file", "data", "items", "params")
_WRITTEN: Final = ("graph file", "stubs file")


def arguments(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from arguments(inner, (*path, name))
        return
    for each in command.params:
        is_written = isinstance(each, click.Option) and each.name != "params"
        if each.name in _NAMES and not is_written:
            yield " ".join((*path, each.name))


@pytest.fixture(autouse=True)
def _files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("x.yaml", RECIPE)
    write("daily.yaml", f'{RECIPE}schedule: "@daily"\n')
    write(
        "recipes/said.yaml",
        "id: said\ninputs: {text: {type: string}}\nsteps: [{id: a, set: {n: 1}}]\n",
    )
    write("items.jsonl", "{}\n")
    write("cases.jsonl", '{"expected": {"n": 1}}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


def test_each_argument_that_reads_a_file_is_placed() -> None:
    found = {each for each in arguments(root) if each not in _WRITTEN}
    assert found == READ.keys() | FILES_ALONE.keys()


@pytest.mark.parametrize("command", READ.values(), ids=READ.keys())
def test_a_hyphen_reads_standard_input(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    given = _Read(RECIPE.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
    done = cli(*command)
    assert given.tell() > 0, done.err
    assert "error[no-file]" not in done.err
    assert "not-found]" not in done.err


class _Read(io.BytesIO):
    """Remembers how much was read also when it is closed."""

    _place = 0

    def close(self) -> None:
        self._place = super().tell()
        super().close()

    def tell(self) -> int:
        return self._place if self.closed else super().tell()


@pytest.mark.parametrize("command", FILES_ALONE.values(), ids=FILES_ALONE.keys())
def test_a_command_whose_recipe_needs_a_file_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RECIPE.encode())))
    done = cli(*command)
    assert done.code == 2
    assert "file" in done.err
    assert "not-found]" not in done.err


def test_a_recipe_on_standard_input_is_printed_formatted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, code, out in (
        ((), 0, "id: x\nsteps:\n  - {id: a, set: {n: 1}}\n"),
        (("--check",), 1, "-: would change\n"),
    ):
        stdin = io.BytesIO(b"id: x\nsteps:\n- {id: a, set: {n: 1}}\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        done = cli("format", "-", *options)
        assert (done.code, done.out) == (code, out), done.err
