"""A chain of links is a value: every change gives a new one. A-20."""

from __future__ import annotations

import pytest
from attrs import frozen

from minions.contracts.completion import (
    CompletionCriteria,
    CompletionLink,
    StepCompletionChain,
    StepCompletionLink,
)
from minions.contracts.executions import Completion, CompletionMode, StepExecution, Verdict
from minions.data.errors import UsageError

EXECUTION = StepExecution[object](id="exe_1", step_id="work")


@frozen
class Named(CompletionLink):
    """Says what it was told to; the chain calls it by its name."""

    called: str
    says: Completion = Completion.UNDECIDED

    @property
    def name(self) -> str:
        return self.called

    def check(self, execution: StepExecution[object]) -> Completion:
        return self.says


class First(CompletionLink):
    def check(self, execution: StepExecution[object]) -> Completion:
        return Completion.UNDECIDED


class Second(First):
    pass


def names(chain: StepCompletionChain) -> list[str]:
    return [link.name for link in chain.links]


A, B, X, Y = (Named(name) for name in "abxy")
CHAIN = StepCompletionChain((A, B))


def test_links_are_put_at_every_place() -> None:
    """A-20."""
    assert names(CHAIN.prepend(X, Y)) == ["x", "y", "a", "b"]
    assert names(CHAIN.append(X, Y)) == ["a", "b", "x", "y"]
    assert names(CHAIN.insert_before("b", X, Y)) == ["a", "x", "y", "b"]
    assert names(CHAIN.insert_after("a", X, Y)) == ["a", "x", "y", "b"]
    assert names(CHAIN.insert_before("a", X)) == ["x", "a", "b"]
    assert names(CHAIN.insert_after("b", X)) == ["a", "b", "x"]
    assert names(CHAIN.replace("a", X, Y)) == ["x", "y", "b"]
    assert names(CHAIN.replace("a")) == ["b"]
    assert names(CHAIN) == ["a", "b"]


def test_a_link_is_named_by_its_class_too() -> None:
    """A-20: the first of that class or of one made from it."""
    chain = StepCompletionChain((A, Second(), First()))
    assert names(chain.insert_before(Second, X)) == ["a", "x", "Second", "First"]
    assert names(chain.insert_before(First, X)) == ["a", "x", "Second", "First"]
    assert names(chain.insert_after("First", X)) == ["a", "Second", "First", "x"]


def test_a_link_that_is_not_there_is_named_with_the_near_ones() -> None:
    """A-20."""
    chain = StepCompletionChain((First(), Second()))
    with pytest.raises(UsageError, match="no link 'Frist'") as caught:
        chain.insert_before("Frist", X)
    assert caught.value.suggestions == ("First",)
    for change in (chain.insert_before, chain.insert_after, chain.replace):
        with pytest.raises(UsageError, match="This chain has no link 'Named'"):
            change(Named, X)
    with pytest.raises(UsageError, match="Links are: none"):
        StepCompletionChain().insert_after("x", X)


def test_the_first_decisive_verdict_wins_and_bears_its_links_name() -> None:
    """A-20."""
    yes, no = Named("yes", Completion.complete("fine")), Named("no", Completion.failed("bad"))
    assert StepCompletionChain((A, yes, no)).check(EXECUTION) == Completion(
        Verdict.COMPLETE, "fine", decided_by="yes"
    )
    assert StepCompletionChain((A, no, yes)).check(EXECUTION) == Completion(
        Verdict.FAILED, "bad", decided_by="no"
    )


def test_a_chain_in_which_all_pass_is_undecided() -> None:
    """A-20."""
    assert CHAIN.check(EXECUTION) is Completion.UNDECIDED
    assert StepCompletionChain().check(EXECUTION) is Completion.UNDECIDED


def test_the_guides_name_of_a_link_is_an_alias() -> None:
    assert StepCompletionLink is CompletionLink


def test_a_mode_is_read_from_its_word() -> None:
    assert CompletionCriteria(mode="text").mode is CompletionMode.TEXT
    assert CompletionCriteria().mode is CompletionMode.SIGNAL
    with pytest.raises(ValueError, match="'sometimes' is not a valid CompletionMode"):
        CompletionCriteria(mode="sometimes")
