"""What a server was measured to do with one of its models, and where such profiles are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from math import sqrt
from typing import Final, TypeAlias

from attrs import evolve, field, frozen

from minions.contracts.calls import ChatModel, ModelCapabilities
from minions.contracts.instructions import OutputMode
from minions.data.field_repr import FieldsRepr
from minions.data.texts import shell_word


class Support(StrEnum):
    """What a server does with a part of a request."""

    BINDS = "binds"
    """It holds every answer to it."""
    IGNORES = "ignores"
    """It answers as if the part were not there."""
    REFUSES = "refuses"
    """It refuses the request."""
    FAILS = "fails"
    """It takes the request, and no answer comes of it: an error of the server, or an end without
    the answer that was asked for.
    """


class Feature(StrEnum):
    """A part of a request that servers support or not."""

    JSON_SCHEMA = "json_schema"
    """An answer held to a schema."""
    STRICT = "strict"
    """`strict` beside a schema."""
    SCHEMA_WITH_TOOLS = "schema_with_tools"
    """A schema and tools in one request: the calls come, and the answer is held to the schema."""
    JSON_OBJECT = "json_object"
    """An answer held to any JSON object."""
    TOOLS = "tools"
    """Tools that the model may call."""
    FORCED_TOOL = "forced_tool"
    """A call that has to be made (`tool_choice: required`)."""
    NAMED_TOOL = "named_tool"
    """A call of one tool that is named."""
    TYPE_LISTS = "type_lists"
    """Lists of types in the schema of a tool."""
    PARALLEL_CALLS = "parallel_calls"
    """Several calls in one answer."""
    SYSTEM_ROLE = "system_role"
    """System messages."""
    STREAMED_USAGE = "streamed_usage"
    """The usage of a streamed answer."""


Features: TypeAlias = Mapping[Feature, Support]

_HELD, _AGAINST = "+", "-"
_MOST_SEEN: Final = 20
"""Answers that are remembered of a feature."""
_Z: Final = 1.645
"""Standard deviations of a confidence of 95 % on one side."""
LESSON_DAYS: Final = 7
"""Days for which a lesson counts; then the server is asked as if nothing were known."""


@frozen(kw_only=True)
class Lesson(FieldsRepr):
    """What answers in runs told of a feature: single ones may be anybody's apology.

    It counts where the last answers say, with a confidence of 95 % (Wilson's interval), that more
    than half of all are against it: three of three, fifteen of twenty.
    """

    support: Support
    """What the server did with it in the last answer against it."""
    seen: str = ""
    """The last answers, oldest first: `+` it was held to, `-` it was not."""
    learned_at: datetime | None = None
    """Since when it counts; None: it does not."""

    @property
    def against(self) -> int:
        """How many of the answers that are remembered are against the feature."""
        return self.seen.count(_AGAINST)

    @property
    def was_held_to(self) -> bool:
        """Whether one of the answers was held to the feature."""
        return _HELD in self.seen

    @property
    def is_news(self) -> bool:
        """Whether the last answer is worth a write: it is against the feature, or the first."""
        return self.seen.endswith(_AGAINST) or len(self.seen) == 1

    def after(self, support: Support | None, now: datetime) -> Lesson:
        """With one more answer.

        Args:
            support: What the server did with the feature; None: it was held to.
        """
        if self.has_expired(now):
            return Lesson(support=self.support).after(support, now)
        mark = _HELD if support is None else _AGAINST
        lesson = evolve(self, seen=(self.seen + mark)[-_MOST_SEEN:])
        if support is not None:
            lesson = evolve(lesson, support=support)
        if not lesson.is_sure:
            return evolve(lesson, learned_at=None)
        return lesson if lesson.learned_at is not None else evolve(lesson, learned_at=now)

    @property
    def is_sure(self) -> bool:
        """Whether more than half of all answers are against it, as far as these can tell."""
        count = len(self.seen)
        if not count:
            return False
        share, squared = self.against / count, _Z * _Z
        middle = share + squared / (2 * count)
        spread = _Z * sqrt(share * (1 - share) / count + squared / (4 * count * count))
        return (middle - spread) / (1 + squared / count) > 0.5

    def counts(self, now: datetime) -> bool:
        """Whether it decides how the server is asked."""
        return self.learned_at is not None and not self.has_expired(now)

    def has_expired(self, now: datetime) -> bool:
        """Whether it was learned too long ago."""
        return self.learned_at is not None and now >= self.until

    @property
    def until(self) -> datetime:
        """When it ends to count; only of one that was learned."""
        assert self.learned_at is not None  # noqa: S101  # as said
        return self.learned_at + timedelta(days=LESSON_DAYS)


_OF_MODE: Final = {
    OutputMode.JSON_SCHEMA: Feature.JSON_SCHEMA,
    OutputMode.JSON: Feature.JSON_OBJECT,
    OutputMode.TOOLS: Feature.FORCED_TOOL,
}
"""What a way to ask for output needs; words alone need nothing."""

_ORDER: Final = (OutputMode.JSON_SCHEMA, OutputMode.JSON, OutputMode.TOOLS, OutputMode.MD_JSON)


@frozen(kw_only=True)
class ModelProfile(FieldsRepr):
    """What one server does with one model, as far as it was measured or seen in runs."""

    base_url: str
    model: str
    """The model as `provider/name`."""
    measured_at: datetime
    """When it was measured, or last changed by a run."""
    server_version: str | None = None
    """The server's version, as the server says it; None: it does not."""
    features: Features = field(factory=dict, hash=False)
    """What is known; a feature that is missing was not measured."""
    context_tokens: int | None = None
    """Tokens of context, as the server says; None: it does not."""
    schema_depth: int | None = None
    """Levels of a schema that were taken, at most as many as were tried; None: not measured."""
    is_learned: bool = False
    """Whether only runs tell it: no probe measured the server."""
    lessons: Mapping[Feature, Lesson] = field(factory=dict, hash=False)
    """What runs of one project told; `at` joins it with what was measured."""
    _applied: list[tuple[ModelCapabilities, ModelCapabilities]] = field(
        factory=list, init=False, eq=False, hash=False, repr=False
    )
    """The capabilities that were asked for last, and what became of them."""

    def at(self, now: datetime) -> ModelProfile:
        """The profile in which what runs told counts, as far as it does at that time."""
        told = {name: each.support for name, each in self.lessons.items() if each.counts(now)}
        return evolve(self, features={**self.features, **told}) if told else self

    def with_answer(self, feature: Feature, support: Support | None, now: datetime) -> ModelProfile:
        """With what one more answer tells of a feature.

        Args:
            support: What the server did with it; None: the answer was held to it.
        """
        lesson = self.lessons.get(feature) or Lesson(support=support or Support.BINDS)
        return evolve(self, lessons={**self.lessons, feature: lesson.after(support, now)})

    def with_proof(self, feature: Feature, support: Support, now: datetime) -> ModelProfile:
        """With what one answer proved, which counts at once."""
        lesson = Lesson(support=support, seen=_AGAINST, learned_at=now)
        return evolve(self, lessons={**self.lessons, feature: lesson})

    def words_of(self, feature: Feature) -> str:
        """A line about a lesson that began or ceased to count."""
        lesson = self.lessons[feature]
        what = f"{self.model} at {self.base_url}: '{feature}'"
        if lesson.learned_at is None:
            return f"{what} is asked for again."
        return (
            f"{what} {_DID[lesson.support]} in {lesson.against} of {len(lesson.seen)} answers: it "
            f"is not asked for in this project until {lesson.until:%Y-%m-%d}. What `minions models "
            f"probe {shell_word(self.model)} --fresh` measures counts instead."
        )

    def support(self, feature: Feature) -> Support | None:
        """What the server does with the feature; None: it is not known."""
        return self.features.get(feature)

    def modes(self, usual: OutputMode) -> tuple[OutputMode, ...]:
        """The ways to ask for output, best first: what binds, then what may, then words alone.

        Args:
            usual: The way that is tried first where nothing is known.
        """
        order = (usual, *(mode for mode in _ORDER if mode is not usual))
        ranked = [(self._rank(mode), mode) for mode in order]
        return tuple(mode for rank, mode in sorted(ranked, key=lambda each: each[0]) if rank < _OUT)

    def _rank(self, mode: OutputMode) -> int:
        """How early a mode is tried: 0 it binds, 1 not known, 2 no better than words; else never.

        What is ignored does no harm, but says nothing either: words alone cost less.
        """
        feature = _OF_MODE.get(mode)
        if feature is None:
            return 2
        if mode is OutputMode.TOOLS and self.support(Feature.TOOLS) is Support.REFUSES:
            return _OUT
        known = self.support(feature)
        return {None: 1, Support.BINDS: 0}.get(known, _OUT)

    def applied(self, declared: ModelCapabilities) -> ModelCapabilities:
        """The capabilities with what is measured, where the operator has not said it."""
        kept = self._applied[0] if self._applied else None
        if kept is None or kept[0] is not declared:
            kept = (declared, self._join_capabilities(declared))
            self._applied[:] = [kept]
        return kept[1]

    def _join_capabilities(self, declared: ModelCapabilities) -> ModelCapabilities:
        modes = declared.modes
        if not declared.is_mode_declared and declared.output_mode is not None:
            modes = self.modes(declared.output_mode)
        together = self.support(Feature.SCHEMA_WITH_TOOLS)
        return evolve(
            declared,
            output_mode=modes[0] if modes else declared.output_mode,
            fallback_modes=modes[1:],
            tools_with_schema=declared.tools_with_schema
            or (together is Support.BINDS and not declared.is_together_declared),
            takes_strict=declared.takes_strict
            and self.support(Feature.STRICT) not in (Support.REFUSES, Support.FAILS),
            takes_system=self.support(Feature.SYSTEM_ROLE) is not Support.REFUSES,
            takes_tools=declared.takes_tools
            and self.support(Feature.TOOLS) in (None, Support.BINDS),
            context_tokens=declared.context_tokens or self.context_tokens,
            binds=self._binds(modes),
        )

    def _binds(self, modes: Sequence[OutputMode]) -> bool | None:
        feature = _OF_MODE.get(modes[0]) if modes else None
        known = None if feature is None else self.support(feature)
        if feature is None:
            return False
        return None if known is None else known is Support.BINDS


_DID: Final = {
    Support.BINDS: "was held to",
    Support.IGNORES: "was ignored",
    Support.REFUSES: "was refused",
    Support.FAILS: "gave no answer",
}
_OUT: Final = 9
"""The rank of a mode that is not tried."""


class ProfileBook(ABC):
    """The profiles of models. What it keeps is advice: no run fails for want of it."""

    @abstractmethod
    def find(self, model: ChatModel) -> ModelProfile | None:
        """The newest profile of the model at its server; None: there is none. It never raises."""

    @abstractmethod
    def keep(self, profile: ModelProfile) -> None:
        """Keep what was measured in place of an older profile of the same model, server and
        version; what runs told before is forgotten.

        It never raises: a profile that cannot be stored is lost, and measured later.
        """

    @abstractmethod
    def learn(self, profile: ModelProfile, changed: Feature, *, is_told: bool) -> None:
        """Keep what runs told, in the project in which they ran.

        It never raises, as `keep`.

        Args:
            profile: With the lesson of one more answer.
            changed: Of which feature.
            is_told: Whether the lesson began or ceased to count: a person is told of that.
        """

    @abstractmethod
    def profiles(self) -> Sequence[ModelProfile]:
        """All profiles, by model."""
