"""The executions that a retry from an address runs again: that one, and all that come after it."""

from __future__ import annotations

from collections.abc import Iterator

from minions.contracts.executions import address_of
from minions.engine.history.keys import enclosing
from minions.engine.history.replay import Replay
from minions.engine.run.recipe_changes import step_versions, steps_from
from minions.engine.views.run_names import unknown_address
from minions.recipe.model import AgentRecipe, StepSpec


def is_address(name: str, recipe: AgentRecipe) -> bool:
    """Whether it can only be the address of an iteration or nested step: it is no step's id."""
    return name not in step_versions(recipe) and any(sign in name for sign in "/[")


def reruns_from(recipe: AgentRecipe, replay: Replay, address: str) -> frozenset[str]:
    """The addresses of the executions that run again, as `Replay.retry` takes them.

    Of the executions around it only what comes after it runs again: with `sub[1]/each[2]` the other
    items of `each`, the steps before it and the other items of `sub` are replayed. After an
    attempt of a `while` the later attempts run again.

    Raises:
        NotFoundError: `unknown-step`; nothing with that address was executed in the run.
    """
    known = {address_of(base): base for base in replay.bases()}
    if address not in known:
        raise unknown_address(address, known)
    found = {f"{address}/"}
    scope, inner = "", recipe if recipe.steps else None
    for base in (*enclosing(known[address]), known[address]):
        found |= {address_of(base), _of_step(base)}  # alone, without what is within
        found |= {f"{each}/" for each in _later_attempts(replay, base)}
        found |= {f"{each}/" for each in _later_steps(replay, base, scope, inner)}
        scope, inner = f"{address_of(base)}/", _recipe_of(inner, base)
    return frozenset(found)


def _of_step(base: str) -> str:
    """The step as a whole, where the execution is one of its iterations."""
    return address_of(f"{base.rpartition('/')[0]}/0")


def _later_attempts(replay: Replay, base: str) -> Iterator[str]:
    """Later attempts of a `while`; items of a loop do not read each other."""
    head, _, iteration = base.rpartition("/")
    whole = replay.execution(f"{head}/0")
    if whole is None or whole.start is None or whole.start.attempts is None:
        return
    number = int(iteration.partition("#")[0])
    while number and replay.execution(f"{head}/{(number := number + 1)}") is not None:
        yield address_of(f"{head}/{number}")


def _later_steps(
    replay: Replay, base: str, scope: str, recipe: AgentRecipe | None
) -> Iterator[str]:
    """The steps that come after it in its recipe; of one that code called, as they began."""
    step_id = base.rpartition("~")[2].partition("/")[0]
    if recipe is not None:
        yield from (f"{scope}{each}" for each in steps_from(recipe, step_id) - {step_id})
        return
    prefix = base.rpartition("~")[0]
    begun = replay.began_at(base)
    for other in replay.bases():
        is_beside = other.rpartition("~")[0] == prefix
        if is_beside and replay.began_at(other) > begun and _of_step(other) != _of_step(base):
            yield _of_step(other)


def _recipe_of(recipe: AgentRecipe | None, base: str) -> AgentRecipe | None:
    """The recipe that the execution runs; None: code called it, so that it is not known here."""
    step_id = base.rpartition("~")[2].partition("/")[0]
    specs = recipe.steps if recipe is not None else ()
    return next(
        (spec.inner for spec in specs if isinstance(spec, StepSpec) and spec.id == step_id), None
    )
