"""One walk through a graph, without a run: what is started, stopped, passed over, done again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from attrs import Factory, define, field

from builders import text_step
from minions.contracts.executions import StepStatus
from minions.contracts.steps import Step
from minions.engine.compile.selection import DependencyStepGraph
from minions.engine.run.scheduler import BackEdges, DependencyWalk, Skip

Work = Callable[[], Awaitable[StepStatus]]
Edges = Mapping[str, Sequence[str]]


@define(kw_only=True)
class Walked(BackEdges):
    """A walk of steps that complete, unless `work` says otherwise; it keeps what happened."""

    depends_on: Edges = Factory(dict)
    reads: Edges = Factory(dict)
    work: Mapping[str, Work] = Factory(dict)
    fails: Counter[str] = Factory(Counter)
    """How often each step fails."""
    back: Mapping[str, str] = Factory(dict)
    """Where a failure leads back to."""
    passable: frozenset[str] = frozenset()
    brief: frozenset[str] = frozenset()
    ran: list[str] = field(factory=list, init=False)
    skipped: dict[str, str] = field(factory=dict, init=False)
    withdrawn: list[str] = field(factory=list, init=False)
    readable: str = ""
    """Failed steps that may be read."""
    followed: list[tuple[str, int]] = field(factory=list, init=False)
    """Steps whose back edge was followed, with how many were withdrawn by then."""
    own_tasks: dict[str, bool] = field(factory=dict, init=False)
    """By step: whether it had a task of its own."""
    left_running: int = field(default=0, init=False)
    """Tasks that had not ended when the walk had."""

    async def walk(self, ids: str, max_parallel: int = 1) -> None:
        """To the end; each letter is a step."""
        caller, before = asyncio.current_task(), asyncio.all_tasks()

        async def run(step: Step[object]) -> StepStatus:
            self.ran.append(step.id)
            self.own_tasks[step.id] = asyncio.current_task() is not caller
            if (work := self.work.get(step.id)) is not None:
                return await work()
            self.fails[step.id] -= 1
            return StepStatus.FAILED if self.fails[step.id] >= 0 else StepStatus.COMPLETED

        async def skip(step: Step[object], reason: Skip) -> None:
            self.skipped[step.id] = reason.reason

        steps = [text_step(each) for each in ids]
        walk = DependencyWalk(
            DependencyStepGraph(steps, self.depends_on, reads=self.reads),
            run=run,
            skip=skip,
            stop_reason=lambda _: None,
            back_edges=self,
            is_brief=lambda step: step.id in self.brief,
            max_parallel=max_parallel,
        )
        try:
            await walk.walk()
        finally:
            left = asyncio.all_tasks() - before
            self.left_running = len(left)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def target(self, step: Step[object]) -> str | None:
        return self.back.get(step.id)

    def is_passable(self, step: Step[object]) -> bool:
        return step.id in self.passable

    def leaves_results(self, step: Step[object]) -> bool:
        return step.id in self.readable

    async def withdraw(self, step: Step[object]) -> None:
        self.withdrawn.append(step.id)

    async def follow(self, step: Step[object]) -> None:
        self.followed.append((step.id, len(self.withdrawn)))


async def pause() -> StepStatus:
    """Let the others go on."""
    await asyncio.sleep(0)
    return StepStatus.COMPLETED


# --- an exception ends the walk -------------------------------------------------------------------


class BrokenError(Exception):
    """What a step does not handle, such as a journal that cannot be written."""


async def test_an_exception_ends_the_walk_only_after_the_other_steps_were_stopped() -> None:
    """Nothing writes any more when the walk is over, also where a step cleans up slowly."""
    told: list[str] = []

    async def breaks() -> StepStatus:
        await asyncio.sleep(0)
        raise BrokenError

    async def goes_on() -> StepStatus:
        try:
            for _ in range(50):
                await asyncio.sleep(0)
            told.append("went on")
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            told.append("cleaned up")
        return StepStatus.COMPLETED

    walked = Walked(work={"a": breaks, "b": goes_on})
    with pytest.raises(BrokenError):
        await walked.walk("ab", max_parallel=2)
    assert (told, walked.left_running) == (["cleaned up"], 0)


async def test_an_exception_of_a_step_that_is_stopped_hides_no_earlier_one() -> None:
    async def breaks() -> StepStatus:
        raise BrokenError

    async def breaks_when_stopped() -> StepStatus:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    walked = Walked(work={"a": breaks_when_stopped, "b": breaks})
    with pytest.raises(BrokenError):
        await walked.walk("ab", max_parallel=2)
    assert walked.left_running == 0


async def test_a_walk_that_is_cancelled_stops_its_steps() -> None:
    begun, told = asyncio.Event(), list[str]()

    async def waits() -> StepStatus:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("stopped")
        return StepStatus.COMPLETED

    walked = Walked(work={"a": waits, "b": waits})
    walking = asyncio.ensure_future(walked.walk("ab", max_parallel=2))
    await begun.wait()
    walking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walking
    assert (told, walked.left_running) == (["stopped", "stopped"], 0)


# --- tasks ----------------------------------------------------------------------------------------


async def test_steps_that_run_one_at_a_time_have_no_tasks_of_their_own() -> None:
    walked = Walked()
    await walked.walk("abc")
    assert walked.own_tasks == {"a": False, "b": False, "c": False}


async def test_where_steps_run_together_a_brief_one_and_one_alone_have_no_task() -> None:
    walked = Walked(depends_on={"d": "abc", "e": "d"}, brief=frozenset("b"), work={"a": pause})
    await walked.walk("abcde", max_parallel=4)
    assert walked.own_tasks == {"a": True, "b": False, "c": True, "d": False, "e": False}


# --- gaps -----------------------------------------------------------------------------------------


async def test_after_a_failure_elsewhere_what_reads_completed_steps_runs() -> None:
    walked = Walked(depends_on={"c": "b"}, reads={"c": "b"}, fails=Counter("a"))
    await walked.walk("abc")
    assert (walked.ran, walked.skipped) == (["a", "b", "c"], {})


async def test_a_failure_that_may_be_passed_stops_only_what_reads_it() -> None:
    walked = Walked(
        depends_on={"b": "a", "c": "a"},
        reads={"c": "a"},
        fails=Counter("a"),
        passable=frozenset("a"),
    )
    await walked.walk("abc")
    assert walked.ran == ["a", "b"]
    assert walked.skipped == {"c": "its dependency 'a' failed"}


async def test_a_join_is_passed_over_only_where_it_reads_the_branch_that_was() -> None:
    async def passed_over() -> StepStatus:
        return StepStatus.SKIPPED

    walked = Walked(depends_on={"c": "ab", "d": "ab"}, reads={"c": "b"}, work={"b": passed_over})
    await walked.walk("abcd")
    assert walked.ran == ["a", "b", "d"]
    assert walked.skipped == {"c": "its dependency 'b' was skipped"}


# --- going back -----------------------------------------------------------------------------------


async def test_going_back_withdraws_what_depends_on_the_target_and_nothing_else() -> None:
    walked = Walked(depends_on={"b": "a", "c": "b"}, fails=Counter("b"), back={"b": "a"})
    await walked.walk("abcd")
    assert sorted(walked.withdrawn) == ["a", "b", "c"]
    assert walked.followed == [("b", 3)]  # after all three were withdrawn
    assert walked.ran == ["a", "b", "a", "b", "c", "d"]


async def test_what_was_ready_when_the_walk_went_back_runs_once_and_after_what_it_needs() -> None:
    walked = Walked(depends_on={"b": "a", "c": "a"}, fails=Counter("b"), back={"b": "a"})
    await walked.walk("abcd")
    assert walked.ran == ["a", "b", "a", "b", "c", "d"]


async def test_what_failed_or_was_skipped_before_the_walk_went_back_has_another_chance() -> None:
    walked = Walked(depends_on={"b": "a", "c": "b", "d": "a"}, fails=Counter("bd"), back={"d": "a"})
    await walked.walk("abcd")
    assert walked.skipped == {"c": "its dependency 'b' failed"}
    assert walked.ran == ["a", "b", "d", "a", "b", "c", "d"]


async def test_after_two_ways_back_a_step_still_waits_for_all_that_it_needs() -> None:
    """`b` waits for `d`, which the first way back undid and the second one did not touch."""
    failures = iter([False, True, False])

    async def third() -> StepStatus:
        return StepStatus.FAILED if next(failures) else StepStatus.COMPLETED

    walked = Walked(
        depends_on={"b": "cd", "c": "a", "d": "a", "e": "b"},
        work={"c": third},
        fails=Counter("b"),
        back={"b": "a", "c": "c"},
    )
    await walked.walk("abcde")
    assert walked.ran == ["a", "c", "d", "b", "a", "c", "c", "d", "b", "e"]


async def test_others_have_their_turn_each_time_the_walk_goes_back() -> None:
    """Or neither a timeout nor a person could end a run that goes back for long."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(other())
    walked = Walked(fails=Counter({"a": 20}), back={"a": "a"})
    await walked.walk("a")
    waiting.cancel()
    assert turns >= 20
