"""An approval of all calls like the one shown covers those, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pytest
from attrs import evolve
from msgspec.structs import asdict, replace

from builders import FakeTool, deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.app.runs.deciders import Policy
from minions.contracts.approvals import ApprovalRule, ApprovalStage, AskedRule, DecisionMaker
from minions.contracts.decision_types import (
    ApprovalClass,
    Approve,
    Verdict,
    parse_decision,
    word_of,
)
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded, DecisionWaiting
from minions.contracts.tools import Effect, ToolSpec
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.history.approval_classes import (
    ApprovalClasses,
    checked_class,
    class_words,
    recorded_class,
)
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, CallRule, LoopSpec, Permissions
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

ANN = DecisionMaker(name="ann", way="cli")


def mails(items: Sequence[JsonValue], *rules: ApprovalRule) -> AgentRecipe:
    """One call for each item, one after another."""
    permissions = Permissions(
        allow_write=True,
        requires_approval=("send",),
        approval_rules=tuple(CallRule(tools=("send",), rule=rule) for rule in rules),
    )
    step = ToolSpecStep(
        id="mail",
        tool="send",
        params={"to": "{{ loop.item.to }}", "text": "{{ loop.item.text }}"},
        loop=LoopSpec(over=list(items)),
    )
    return AgentRecipe(id="mails", permissions=permissions, steps=(step,))


ITEMS: list[JsonValue] = [
    {"to": "ann", "text": "one"},
    {"to": "ann", "text": "two"},
    {"to": "bob", "text": "three"},
    {"to": "ann", "text": "four"},
]


def sender(description: str = "") -> FakeTool:
    tool = fake_tool("send", dict, effect=Effect.ONCE)
    return FakeTool(evolve(tool.spec, description=description), tool.work)


class World:
    """A journal and a tool that outlive the executors."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.clock = FakeClock()
        self.journal = journal or MemoryJournal(self.clock)
        self.tool = sender()

    async def run(
        self,
        recipe: AgentRecipe,
        decisions: Mapping[str, str] | None = None,
        by: DecisionMaker | None = None,
    ) -> AgentResult[object]:
        services = evolve(
            deterministic_services(self.journal, self.clock), decider=Policy(Verdict.LATER)
        )
        works = executor_of(ScriptedModel(()), tools=[self.tool], services=services)
        if decisions is None:
            return await works.execute(recipe)
        return await works.resume("run_1", recipe=recipe, decisions=decisions, decided_by=by or ANN)

    @property
    def sent(self) -> list[JsonValue]:
        return [each["text"] for each in self.tool.asked]

    async def covered(self) -> list[str | None]:
        rows = await self.journal.entries(kinds={"decision"})
        return [each.fact.by_class for each in rows if isinstance(each.fact, DecisionRecorded)]


def like(*same: str, **limits: object) -> str:
    return word_of(Approve(like=ApprovalClass(same=same, **limits)))  # type: ignore[arg-type]  # as each test says


@pytest.fixture
def world() -> World:
    return World()


async def test_calls_that_are_alike_are_decided_once(world: World) -> None:
    """A-169: the others wait; each that is let through says by which decision."""
    recipe = mails(ITEMS)
    await world.run(recipe)
    result = await world.run(recipe, {"mail[0]": like("args.to")})
    assert result.status is RunStatus.NEEDS_DECISION
    assert world.sent == ["one", "two", "four"]
    result = await world.run(recipe, {"mail[2]": "approve"})
    assert result.status is RunStatus.COMPLETED
    assert world.sent == ["one", "two", "four", "three"]
    first = (await world.journal.entries(kinds={"decision"}))[0].key
    assert await world.covered() == [None, first, first, None]


async def test_calls_before_the_one_that_was_shown_are_covered_too(world: World) -> None:
    recipe = mails(ITEMS)
    await world.run(recipe)
    await world.run(recipe, {"mail[3]": like("to")})
    assert world.sent == ["one", "two", "four"]
    assert [each is None for each in await world.covered()] == [True, False, False]


async def test_a_class_has_a_count_and_a_time(world: World) -> None:
    recipe = mails(ITEMS)
    await world.run(recipe)
    await world.run(recipe, {"mail[0]": like("to", count=1)})
    assert world.sent == ["one", "two"]
    other = World()
    other.tool = fake_tool("send", lambda _: other.clock.advance(60), effect=Effect.ONCE)
    await other.run(recipe)
    await other.run(recipe, {"mail[0]": like("to", expires_s=90)})
    assert other.sent == ["one", "two"]


async def test_a_condition_is_true_of_each_call(world: World) -> None:
    recipe = mails(ITEMS)
    await world.run(recipe)
    await world.run(recipe, {"mail[0]": like(when="args.text | length == 3")})
    assert world.sent == ["one", "two"]


async def test_a_class_survives_each_death_and_counts_what_was_recorded() -> None:
    """A-169: `kill -9` after each fact; no call is made twice, none beyond the count."""
    recipe = mails(ITEMS[:2] + ITEMS[3:])
    for dies_at in range(1, 30):
        journal = MortalJournal(FakeClock())
        world = World(journal)
        await world.run(recipe)
        journal.count, journal.dies_at = 0, dies_at
        try:
            await world.run(recipe, {"mail[0]": like("to", count=1)})
        except KilledError:
            pass
        else:
            assert dies_at > 5
            break
        finally:
            journal.revive()
        world.clock.advance(1000)
        result = await world.run(recipe, {})
        while result.error is not None and result.error.code == "in-doubt":
            (call,) = result.error.suggestions
            key = call.rpartition(" ")[2].partition("=")[0]
            result = await world.run(recipe, {key: "done"})
        assert result.status is RunStatus.NEEDS_DECISION
        assert len(world.sent) == len(set(map(str, world.sent))) <= 2, dies_at
        covered = [each for each in await world.covered() if each is not None]
        assert len(covered) == 1, dies_at


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        (like("args.cc"), "no argument 'cc'; it has: text, to"),
        (like(), "say in which arguments"),
        (like(when="args.to == 'bob'"), "is not true of the call that is shown"),
        (like(when="args.to =="), "is not true of the call"),
        (like("to", count=0), "at least 1"),
        (like("to", expires_s=0), "above 0"),
    ],
)
async def test_a_class_that_does_not_fit_the_call_is_refused(
    world: World, word: str, problem: str
) -> None:
    recipe = mails(ITEMS)
    await world.run(recipe)
    with pytest.raises(UsageError, match="cannot be approved together") as caught:
        await world.run(recipe, {"mail[0]": word})
    assert (caught.value.error_code, problem in caught.value.message) == ("bad-class", True)


async def test_another_tool_of_that_name_is_not_covered(world: World) -> None:
    recipe = mails(ITEMS)
    await world.run(recipe)
    await world.run(recipe, {"mail[0]": like("to", count=1)})
    assert world.sent == ["one", "two"]
    world.tool = sender("Sends to everybody.")
    await world.run(recipe, {"mail[2]": like("text")})
    assert world.sent == ["three"]


async def test_what_was_approved_under_other_rules_covers_nothing(world: World) -> None:
    """A-169: nor does it decide the call that was shown, in this execution or a later one."""
    before, now = (
        mails(ITEMS),
        mails(ITEMS, ApprovalRule(stages=(ApprovalStage(deciders=("bob",)),))),
    )
    await world.run(before)
    for decisions in ({"mail[1]": like("to")}, {}, {}):
        result = await world.run(now, decisions)
        assert result.status is RunStatus.NEEDS_DECISION
    assert world.sent == []


BOB = DecisionMaker(name="bob", way="cli")
TWO = ApprovalRule(stages=(ApprovalStage(deciders=("ann", "bob"), quorum=2, expires_s=60),))


@pytest.mark.parametrize(
    ("others", "sent"),
    [
        (like("to"), ["one", "two", "four"]),
        (like("text"), ["one"]),
        (like("to", count=1), ["one"]),
        ("approve", ["one"]),
    ],
)
async def test_calls_are_approved_together_if_all_who_decide_say_the_same(
    world: World, others: str, sent: list[str]
) -> None:
    """A-169: else the one that was shown, whose words say what the first one approved."""
    recipe = mails(ITEMS, TWO)
    await world.run(recipe)
    first = await world.run(recipe, {"mail[0]": like("to")})
    assert "1 of 2 approvals (ann, also all calls with equal to), of ann or bob" in str(first.error)
    assert world.sent == []
    await world.run(recipe, {"mail[0]": others}, by=BOB)
    assert world.sent == sent


async def test_rules_of_two_recipes_are_fulfilled_by_one_class(world: World) -> None:
    one, other = (ApprovalRule(stages=(ApprovalStage(deciders=(x,)),)) for x in ("ann", "bob"))
    recipe = mails(ITEMS, one, other)
    await world.run(recipe)
    await world.run(recipe, {"mail[0]": like("to")})
    assert world.sent == []
    await world.run(recipe, {"mail[0]": like("to")}, by=BOB)
    assert world.sent == ["one", "two", "four"]


async def test_who_is_asked_later_approves_no_calls_together(world: World) -> None:
    """A-169: nor does a class count that was said before, when the first let their time go by."""
    later = ApprovalStage(deciders=("ann", "bob"), quorum=2)
    first = ApprovalStage(deciders=("ann", "bob", "eve"), quorum=3, expires_s=60)
    recipe = mails(ITEMS, ApprovalRule(stages=(first, later)))
    await world.run(recipe)
    for by in (ANN, BOB):
        await world.run(recipe, {"mail[0]": like("to")}, by=by)
    world.clock.advance(61)
    result = await world.run(recipe, {})
    assert (result.status, world.sent) == (RunStatus.NEEDS_DECISION, ["one"])
    assert await world.covered() == [None]


async def test_a_class_covers_calls_for_the_same_deciders(world: World) -> None:
    recipe = mails(ITEMS, ApprovalRule(stages=(ApprovalStage(deciders=("ann",)),)))
    await world.run(recipe)
    await world.run(recipe, {"mail[0]": like("to")})
    assert world.sent == ["one", "two", "four"]


@pytest.mark.parametrize(
    ("words_of", "is_covered"),
    [((), True), (("look in page",), True), (("look in page", "peek in letter"), False)],
)
def test_a_call_with_words_of_others_than_were_shown_waits(
    words_of: tuple[str, ...], is_covered: bool
) -> None:
    """A-169: `words_of` of a covered call is within what was shown."""
    recipe, now, spec = mails(ITEMS), FakeClock().now(), sender().spec
    shown = DecisionWaiting(
        what="approval",
        step_id="mail",
        tool="send",
        arguments='{"to":"ann","text":"one"}',
        words_of=["look in page"],
    )
    like = recorded_class(ApprovalClass(same=("to",)), shown, spec, recipe, now)
    classes = ApprovalClasses()
    taken = DecisionRecorded(**asdict(shown), word="approve", like=like)
    classes.add("first", taken)
    asked = replace(shown, words_of=words_of, arguments='{"to":"ann","text":"two"}')
    assert classes.take(asked, spec, recipe, now) == ("first" if is_covered else None)
    elsewhere = replace(asked, step_id="other")
    assert classes.take(elsewhere, spec, recipe, now) is None
    edited = evolve(recipe, version="2")
    assert classes.take(asked, spec, edited, now) is None


def test_the_text_form_holds_all_of_a_class() -> None:
    said = Approve("abc", like=ApprovalClass(same=("to",), count=2, expires_s=1.5, when="a: b"))
    assert parse_decision(word_of(said)) == said
    with pytest.raises(ValueError, match="which calls are alike"):
        parse_decision("approve-like:abc:{")


def waiting(**fields: object) -> DecisionWaiting:
    """A call of `send` that waits."""
    shown = DecisionWaiting(
        what="approval", step_id="mail", tool="send", arguments='{"to":"ann","deep":{"n":1}}'
    )
    return replace(shown, **fields)


def asked_rule(*deciders: str, quorum: int = 1, stage: int = 0, stages: int = 1) -> AskedRule:
    one = ApprovalStage(deciders=deciders, quorum=quorum)
    return AskedRule(rule=ApprovalRule(stages=(one,) * stages), since="", stage=stage)


def covers(like: ApprovalClass, asked: DecisionWaiting, **changed: object) -> bool:
    """Whether a class that was approved with the usual call covers another one.

    Args:
        changed: `shown`: the call that was approved; `spec`, `now`: those of the other call.
    """
    now, spec = FakeClock().now(), sender().spec
    shown = changed.pop("shown", waiting())
    assert isinstance(shown, DecisionWaiting)
    stored = recorded_class(like, shown, spec, mails(ITEMS), now)
    classes = ApprovalClasses()
    classes.add("other", DecisionRecorded(**asdict(shown), word="approve"))
    classes.add("first", DecisionRecorded(**asdict(shown), word="approve", like=stored))
    later, tool = changed.pop("now", now), changed.pop("spec", spec)
    assert isinstance(later, datetime)
    assert isinstance(tool, ToolSpec)
    return classes.take(asked, tool, mails(ITEMS), later) == "first"


def test_a_class_is_bound_to_tool_rules_and_time() -> None:
    like, now = ApprovalClass(same=("to",), expires_s=60), FakeClock().now()
    assert covers(like, waiting())
    assert not covers(like, waiting(), spec=sender("Sends to everybody.").spec)
    assert not covers(like, waiting(), spec=evolve(sender().spec, effect=Effect.IDEMPOTENT))
    assert covers(like, waiting(), now=now + timedelta(seconds=59))
    assert not covers(like, waiting(), now=now + timedelta(seconds=60))
    assert not covers(like, waiting(rules=(asked_rule("ann"),)))
    ruled = waiting(rules=(asked_rule("ann"),))
    assert covers(like, ruled, shown=ruled)
    assert not covers(like, waiting(), shown=ruled)
    assert not covers(like, waiting(tool="other"))


def test_places_are_of_any_depth_and_values_of_their_type() -> None:
    like = ApprovalClass(same=("deep.n",))
    assert covers(like, waiting(arguments='{"deep": {"n": 1, "m": 2}}'))
    for other in ('{"deep":{"n":true}}', '{"deep":1}', '{"deep":"n"}', "{}", "[]", "", "{"):
        assert not covers(like, waiting(arguments=other)), other


def test_a_count_that_was_not_used_is_given_back() -> None:
    now, spec, recipe = FakeClock().now(), sender().spec, mails(ITEMS)
    like = recorded_class(ApprovalClass(same=("to",), count=1), waiting(), spec, recipe, now)
    classes = ApprovalClasses()
    classes.add("first", DecisionRecorded(**asdict(waiting()), word="approve", like=like))
    assert classes.take(waiting(), spec, recipe, now) == "first"
    assert classes.take(waiting(), spec, recipe, now) is None
    classes.give_back("first")
    assert classes.take(waiting(), spec, recipe, now) == "first"


@pytest.mark.parametrize(
    "rules",
    [
        (asked_rule("ann", stage=1, stages=2),),
        (asked_rule("bob"), asked_rule("ann", stage=1, stages=2)),
    ],
)
def test_after_others_were_asked_calls_are_approved_one_by_one(
    rules: tuple[AskedRule, ...],
) -> None:
    like = ApprovalClass(same=("to",), expires_s=1)
    assert checked_class(like, waiting(rules=(asked_rule("ann"),))) == like
    with pytest.raises(UsageError, match="those who were asked first decide"):
        checked_class(like, waiting(rules=rules))


def test_what_is_covered_is_said_in_words() -> None:
    like = ApprovalClass(same=("args.to",), when="args.deep.n == 1", count=3, expires_s=7200)
    assert class_words(like, waiting(words_of=["look in page"])) == (
        "all calls of send in step 'mail' with to = \"ann\" and args.deep.n == 1, with words of "
        "nobody but look in page, 3 at the most, for 2h, until the run ends"
    )
    assert class_words(ApprovalClass(same=("to", "cc")), waiting()) == (
        "all calls of send in step 'mail' with to = \"ann\" and cc = ?, with no stranger's words, "
        "until the run ends"
    )
    with pytest.raises(UsageError, match="no argument 'to'; it has: none"):
        checked_class(ApprovalClass(same=("to",)), waiting(arguments="{}"))
