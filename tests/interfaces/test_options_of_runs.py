"""The options of a run are written once, and shown by every way to run."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

import minions
from minions.app.runs.application_runs import (
    SessionRunOptions,
    SingleRunOptions,
)

WAYS: Final[list[tuple[Callable[..., object], type]]] = [
    (minions.run, SingleRunOptions),
    (minions.arun, SingleRunOptions),
    (minions.astream, SingleRunOptions),
    (minions.Minions.arun, SessionRunOptions),
    (minions.Minions.astream, SessionRunOptions),
]
IDS: Final = [way.__qualname__ for way, _ in WAYS]
EVERY_WAY: Final[list[Callable[..., object]]] = [
    *(way for way, _ in WAYS),
    minions.Minions.prepare,
    minions.Minions.decide,
    minions.Minions.resume,
    minions.Minions.retry,
]
RECIPE: Final = "id: r\nsteps: [{id: a, set: {x: 1}}]\n"


@pytest.mark.parametrize(("way", "options"), WAYS, ids=IDS)
def test_help_shows_each_option(way: Callable[..., object], options: type) -> None:
    parameters = inspect.signature(way).parameters
    named = {"recipe", "work", "inputs", "run", "key", "verdict", "self", "output_class"}
    written = options.__annotations__
    assert set(parameters) - named == set(written) - named
    for name in written:
        shown = parameters[name]
        assert (shown.kind, shown.default) == (
            inspect.Parameter.KEYWORD_ONLY,
            () if name == "tools" else None,
        )
        assert f"{name}: {shown.annotation!r}" in pydoc.plain(pydoc.render_doc(way))


@pytest.mark.parametrize("way", [minions.run, minions.Minions.arun], ids=["run", "Minions.arun"])
def test_each_option_is_explained_where_it_is_looked_up(way: Callable[..., object]) -> None:
    text = inspect.getdoc(way) or ""
    told = set(re.findall(r"^ {4}(\w+): ", text, re.MULTILINE))
    assert set(inspect.signature(way).parameters) - {"self", "recipe"} <= told


@pytest.mark.parametrize("way", EVERY_WAY, ids=[way.__qualname__ for way in EVERY_WAY])
def test_an_option_that_there_is_not_is_refused_by_name(way: Callable[..., object]) -> None:
    """Nothing has begun then."""
    positional = {"decide": ("run_1", "key", "approve")}.get(way.__name__, (RECIPE,))
    app = () if way.__module__.endswith("library") else (minions.Minions(),)

    def call() -> object:
        begun = way(*app, *positional, modle="openai/gpt-5-mini")
        return minions.run(begun) if isinstance(begun, Coroutine) else begun

    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        call()


def test_options_go_all_the_way() -> None:
    """Through each way to run to where the run is prepared."""
    model = minions.ScriptedModel(["one"] * 3)
    text = "id: r\nsteps: [{id: a, goal: Go., completion: text}]\n"

    async def all_ways() -> list[tuple[Any, Any]]:
        found = [await minions.arun(text, model=model, user="ann")]
        async with minions.Minions() as app:
            found.append(await app.arun(text, model=model, session="ses_own", user="ann"))
            found.append(await app.astream(text, model=model, session="ses_own"))
        return [(each.unwrap(), each.session_id == "ses_own") for each in found]

    assert minions.run(all_ways()) == [("one", False), ("one", True), ("one", True)]
