"""Options of commands as typed values: what a field of a class of options brings about."""

from __future__ import annotations

from pathlib import Path

import attrs
import click
import pytest
from attrs import frozen

from minions.interfaces.cli.commands.run_command import RunOptions
from minions.interfaces.cli.options import (
    CommonOptions,
    OutputOptions,
    command_context,
    given_words,
    option,
    takes_options,
)


@frozen(kw_only=True, slots=False)
class Wanted(CommonOptions):
    """A setting, an option of a command's own, and a field that is no option."""

    max_parallel: int | None = option("--max-parallel", type=click.IntRange(min=1))
    words: tuple[str, ...] = option("-w", "--word", multiple=True)
    is_loud: bool = option("--loud", is_flag=True)
    pace: int = option("--pace", type=int, default=3)
    found: str = "nothing"


def parsed(kind: type, *arguments: str) -> object:
    """The value that a command line gives."""
    seen: list[object] = []

    @click.command("show")
    @takes_options(kind)
    def show(options: object) -> int:
        seen.append(options)
        return 0

    show.main(args=list(arguments), standalone_mode=False)
    return seen[0]


def test_options_are_one_value_with_the_defaults_of_their_fields() -> None:
    assert parsed(Wanted) == Wanted()
    assert parsed(Wanted, "-w", "a", "--word", "b", "--loud", "--db", "x.db") == Wanted(
        words=("a", "b"), is_loud=True, db="x.db"
    )


def test_options_are_listed_as_the_class_has_them_its_own_first() -> None:
    names = [each.name for each in _shown(Wanted)]
    assert names[:4] == ["max_parallel", "words", "is_loud", "pace"]
    assert names[4:] == [each.name for each in _shown(CommonOptions)]


def test_a_field_with_the_name_of_a_setting_is_that_setting_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = command_context(Wanted(max_parallel=2, words=("a",), is_loud=True, json=True))
    assert context.flags == {"max_parallel": 2, "json": True}
    assert (context.settings.max_parallel, context.settings.json) == (2, True)
    assert context.origin.origins["max_parallel"] == "flag"


@pytest.mark.parametrize(
    "options",
    [
        Wanted(),
        Wanted(words=("a b", "-c"), is_loud=True, pace=0),
        RunOptions(
            pairs=("a=1", "b=@x"),
            model="p/m",
            max_cost_usd=0.5,
            session="s",
            continues=True,
            annotations=True,
            detach=True,
            priority=0,
            extensions=("a.py", "b"),
        ),
    ],
)
def test_the_words_of_given_options_give_the_same_options(options: OutputOptions) -> None:
    words = [word for each in given_words(options, type(options)) for word in each]
    found = parsed(type(options), *words)
    names = [each.name for each in attrs.fields(type(options))]
    assert {name: getattr(found, name) for name in names} == {
        name: getattr(options, name) for name in names
    }


def test_given_words_leave_out_what_another_command_line_says() -> None:
    options = Wanted(words=("a",), db="x.db", json=True)
    assert given_words(options, Wanted, but=CommonOptions) == [("-w", "a")]


def _shown(kind: type) -> list[click.Parameter]:
    @click.command("show")
    @takes_options(kind)
    def show(options: object) -> int:
        return 0

    return show.params
