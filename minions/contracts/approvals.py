"""Who may approve a call, how many have to, and until when: rules, votes, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.decision_types import ApprovalClass, Approve, Decision, Reject

ROLE: Final = "role:"
"""What stands before the name of a role among deciders."""


class ApprovalStage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who is asked at a time, and for how long."""

    deciders: tuple[str, ...] = ()
    """Names of persons, and `role:NAME`; empty: anybody may decide."""
    quorum: int = 1
    """How many different persons have to approve."""
    expires_s: float | None = None
    """Seconds after which the next stage is asked, or the call counts as rejected; None: never."""


class ApprovalRule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a recipe says of the approval of a call."""

    stages: tuple[ApprovalStage, ...] = (ApprovalStage(),)
    """Who is asked first, and who next when the time is over; at least one."""
    rejections: int = 1
    """How many different persons have to reject a call that counts as rejected."""
    not_by_starter: bool = False
    """Whether whoever started the run may not decide."""


class AskedRule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A rule of a call that waits, and how far it came."""

    rule: ApprovalRule
    since: str
    """When the present stage was asked, in ISO 8601."""
    stage: int = 0
    """The index of the present stage."""
    not_by: tuple[str, ...] = ()
    """Names of whoever started the run and may therefore not decide."""

    @property
    def present(self) -> ApprovalStage:
        """Who is asked now."""
        return self.rule.stages[min(self.stage, len(self.rule.stages) - 1)]

    @property
    def end(self) -> datetime | None:
        """When the time of the present stage is over; None: never."""
        seconds = self.present.expires_s
        if seconds is None:
            return None
        try:
            return datetime.fromisoformat(self.since) + timedelta(seconds=seconds)
        except (ValueError, OverflowError):  # no time, or beyond the year 9999
            return None

    @property
    def is_open(self) -> bool:
        """Whether anybody decides alone, whoever that is."""
        stage, rule = self.present, self.rule
        limits = stage.deciders or rule.not_by_starter
        return not limits and stage.quorum == 1 and rule.rejections == 1

    def allows(self, maker: DecisionMaker | None) -> bool:
        """Whether a vote of that person counts in the present stage."""
        if self.is_open:
            return True
        if maker is None or maker.name is None or maker.is_claimed:
            return False
        if maker.name in self.not_by or maker.user in self.not_by:
            return False
        if self.rule.not_by_starter and not self.not_by and maker.way == "cli":
            return False  # it may be the same person: nothing says who started the run
        deciders = self.present.deciders
        return not deciders or any(name in deciders for name in maker.names)

    def next_stage(self, now: datetime) -> AskedRule | None:
        """The rule with the next stage, which is asked now; None: this was the last one."""
        if self.stage + 1 >= len(self.rule.stages):
            return None
        return replace(self, stage=self.stage + 1, since=now.isoformat())

    def present_at(self, now: datetime) -> AskedRule | None:
        """The rule with the stage that is asked at that time; None: the last one is over."""
        found: AskedRule | None = self
        while found is not None and found.end is not None and now >= found.end:
            found = found.next_stage(now)
        return found


class DecisionMaker(Struct, frozen=True, kw_only=True):
    """Who makes a decision, and by which way."""

    name: str | None = None
    """The person, or the name of their token; None: not known."""
    user: str | None = None
    """The user of the token: two tokens of one user are one person."""
    roles: tuple[str, ...] = ()
    way: str
    """`cli`, `http`, `library` or `run` (whoever was asked while the run was executed)."""
    is_claimed: bool = False
    """Whether the name is only what the caller says: then it counts nowhere that names count."""

    @property
    def person(self) -> str | None:
        """Whose votes count once; None: not known."""
        return self.user or self.name

    @property
    def names(self) -> Iterator[str]:
        """The person and their roles, as deciders name them."""
        for name in (self.name, self.user):
            if name is not None and not name.startswith(ROLE):
                yield name
        yield from (f"{ROLE}{role}" for role in self.roles)


class Vote(Struct, frozen=True, kw_only=True):
    """What one person said of a call."""

    decision: Decision
    maker: DecisionMaker
    at: datetime

    @property
    def edited(self) -> str | None:
        """The arguments with which it is approved; None: those shown."""
        return self.decision.arguments if isinstance(self.decision, Approve) else None


class VoteResult(StrEnum):
    """What the votes of a call come to."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """The time of the last stage is over."""


class Tally(Struct, frozen=True, kw_only=True):
    """What the votes of a call come to, under all of its rules."""

    standing: VoteResult
    decision: Approve | Reject | None = None
    """None: there is none yet, or the time is over."""
    rules: tuple[AskedRule, ...]
    """The rules with their present stages."""
    counted: tuple[Vote, ...] = ()
    """The votes that count now."""
    expired: AskedRule | None = None
    """The rule whose time is over."""


def tally_of(
    rules: Sequence[AskedRule], votes: Iterable[Vote], digest: str, now: datetime
) -> Tally:
    """Count the votes. Of one person the last one counts; one that came too late does not.

    Args:
        votes: In the order in which they were made, since the question was asked.
        digest: Of the call that waits: other ones mean another call.
    """
    cast = [each for each in votes if _digest_of(each.decision) == digest]
    present: list[AskedRule] = []
    expired: AskedRule | None = None
    counted: dict[int, Vote] = {}
    edits: set[str | None] | None = None
    for asked in rules:
        rule: AskedRule | None = asked
        while rule is not None:
            own = _counted(rule, cast)
            counted.update((id(vote), vote) for vote in own)
            rejections = [each for each in own if isinstance(each.decision, Reject)]
            if len(rejections) >= rule.rule.rejections:
                return Tally(
                    standing=VoteResult.REJECTED,
                    decision=Reject(digest, _reasons(rejections)),
                    rules=tuple(rules),
                    counted=tuple(own),
                )
            approved = _approved(rule, own)
            is_over = rule.end is not None and now >= rule.end
            if approved or not is_over:
                present.append(rule)
                edits = approved if edits is None else edits & approved
                break
            expired, rule = rule, rule.next_stage(now)
        if rule is None:
            return Tally(standing=VoteResult.EXPIRED, rules=tuple(rules), expired=expired)
    made = tuple(vote for vote in cast if id(vote) in counted)
    if edits:
        edited = None if None in edits else next(each for each in sorted(map(str, edits)))
        by = tuple(x for x in made if isinstance(x.decision, Approve) and x.edited == edited)
        approval = Approve(digest, edited, like=_common_class(present, by))
        return Tally(
            standing=VoteResult.APPROVED, decision=approval, rules=tuple(present), counted=by
        )
    return Tally(standing=VoteResult.WAITING, rules=tuple(present), counted=made)


def _digest_of(decision: Decision) -> str | None:
    return decision.digest if isinstance(decision, Approve | Reject) else None


def _counted(asked: AskedRule, votes: Iterable[Vote]) -> list[Vote]:
    """The last vote of each person who may decide, as far as it came in time."""
    end = asked.end
    last: dict[str | None, Vote] = {}
    for vote in votes:
        if asked.allows(vote.maker) and (end is None or vote.at < end):
            last.pop(vote.maker.person, None)
            last[vote.maker.person] = vote
    return list(last.values())


def _approved(asked: AskedRule, votes: Iterable[Vote]) -> set[str | None]:
    """The arguments, None for those shown, that enough persons approved."""
    by: dict[str | None, int] = {}
    for vote in votes:
        if isinstance(vote.decision, Approve):
            by[vote.edited] = by.get(vote.edited, 0) + 1
    return {edited for edited, count in by.items() if count >= asked.present.quorum}


def _common_class(rules: Iterable[AskedRule], votes: Iterable[Vote]) -> ApprovalClass | None:
    """Which other calls are approved: what all who approve this one say alike; None: no others, nor
    where the first who are asked let their time go by, since they are asked of other calls again.
    """
    said = {each.decision.like for each in votes if isinstance(each.decision, Approve)}
    is_first = all(each.stage == 0 for each in rules)
    return said.pop() if is_first and len(said) == 1 else None


def _reasons(votes: Iterable[Vote]) -> str | None:
    said = [each.decision.reason for each in votes if isinstance(each.decision, Reject)]
    return "; ".join(dict.fromkeys(each for each in said if each)) or None


def _approver_words(vote: Vote) -> str:
    like = vote.decision.like if isinstance(vote.decision, Approve) else None
    name = vote.maker.name or "?"
    if like is None:
        return name
    equal = [f"equal {each}" for each in like.same]
    conditions = " and ".join([*equal, *([like.when] if like.when is not None else [])])
    return f"{name}, also all calls with {conditions}"


def rule_words(rules: Sequence[AskedRule], votes: Sequence[Vote] = ()) -> str:
    """Who may decide and what is missing, in words: `1 of 2 approvals, of ann or role:finance`."""
    parts: list[str] = []
    for asked in rules:
        stage = asked.present
        whose = " or ".join(stage.deciders) or "anybody"
        if asked.rule.not_by_starter:
            whose += f" but not {' or '.join(asked.not_by) or 'whoever started the run'}"
        if asked.is_open:
            continue
        own = [each for each in _counted(asked, votes) if isinstance(each.decision, Approve)]
        names = f" ({', '.join(map(_approver_words, own))})" if own else ""
        parts.append(f"{len(own)} of {stage.quorum} approvals{names}, of {whose}")
    return "; ".join(dict.fromkeys(parts))
