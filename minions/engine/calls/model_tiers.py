"""The models of one step, smallest first: which of them is asked, and when the next one is.

Of each it is known in which mode it gives structured output. And what one answer of them is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from minions.contracts.calls import ChatModel, ModelCallResponse, ModelCapabilities, ModelOptions
from minions.contracts.context import ModelCallExecutorFactory
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.messages import TokenUsage
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook, Support
from minions.contracts.runtime import Clock
from minions.contracts.session_views import MemorySnapshot
from minions.data.errors import FailureInfo
from minions.engine.calls.model_executors import ModelCallExecutors, model_of
from minions.engine.services.run_services import Services

_FEATURES: Final = {
    OutputMode.JSON_SCHEMA: Feature.JSON_SCHEMA,
    OutputMode.JSON: Feature.JSON_OBJECT,
    OutputMode.TOOLS: Feature.FORCED_TOOL,
}
_SPENT: Final = frozenset({"output-rejected", "no-tool-call", "empty-response"})
"""Failures of a server that took the request, and of which no answer came."""
_FORM_WORDS: Final = re.compile(
    r"response_format|json|schema|grammar|guided|structured|tool|function|strict|not support|"
    r"unsupported|unrecognized|unknown (field|parameter|argument)|extra (inputs|fields)",
    re.IGNORECASE,
)
"""Words of a refusal that is about the form of the answer."""
_PROBABILITIES: Final = re.compile(r"log_?prob", re.IGNORECASE)
"""Words of a refusal that is about `min_confidence`, which no other form of the answer mends."""
_BOUNDS: Final = re.compile(r"max_?items|max_?length|repetition", re.IGNORECASE)
_STRICT: Final = re.compile(r"\bstrict\b", re.IGNORECASE)

ENDLESS_TOKENS: Final = 4096
"""Tokens of an answer that was cut off, from which on more room would not bring it to an end."""


class Answer(Struct, frozen=True, kw_only=True):
    """An answer, and the snapshot that removes it from the conversation."""

    raw: ModelCallResponse
    """As the model sent it: the parser reads this."""
    response: ModelCallResponse
    """As it stands in the conversation."""
    mark: MemorySnapshot
    """The conversation before the answer."""
    phase: str = "model"
    mode: OutputMode | None = None
    """How it was constrained; None: it was not."""
    is_strict: bool = False
    """Whether it was constrained by a strict schema."""
    is_bounded: bool = False
    """Whether bounds were sent that the declared schema does not have."""
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    """Of its call, with all attempts."""


class OutputModes:
    """The ways to ask one model for output that are left, best first. Each is given up once, so
    that there is always an end.
    """

    def __init__(
        self,
        model: ChatModel | None,
        declared: ModelCapabilities,
        book: ProfileBook,
        clock: Clock,
    ) -> None:
        """Begin with what the profile says.

        Args:
            model: None: an application carries out the calls itself, and nothing is learned.
            declared: The capabilities without what was measured.
        """
        self.declared = declared
        self.declared_rungs = declared.output_rungs
        """The rungs of the output ladder that are declared; None: none are."""
        self._model = model
        self._book = book
        self._clock = clock
        profile = book.find(model) if model is not None else None
        known = declared if profile is None else profile.at(clock.now()).applied(declared)
        self._doubtless = set[Feature]()
        """Features against which no answer speaks: one more that was held to them tells nothing."""
        self._doubts_system = False
        self._measured = profile
        """What was known of the server at the beginning; None: nothing was."""
        self._tool_doubts: tuple[bool, bool] | None = None
        """`may_leave_calls` and `doubts_tools`, once they were asked for."""
        if profile is not None:
            lessons = profile.lessons
            self._doubtless |= {name for name, each in lessons.items() if not each.against}
            self._doubts_system = Feature.SYSTEM_ROLE in lessons
        self.tools_with_schema = known.tools_with_schema
        self.is_strict = known.takes_strict
        """Whether `strict` is sent beside a schema."""
        self.takes_bounds = True
        """Whether lists and texts without a bound are sent with one."""
        self.takes_system = known.takes_system
        """Whether system messages are sent as such."""
        self.takes_tools = known.takes_tools
        """Whether the model is shown the tools of a request."""
        self.binds = known.binds
        """Whether answers are held to the present way; None: it is not known."""
        self.is_unbound = known.binds is False
        """Whether it was known at the beginning that answers are held to nothing."""
        self._modes = list(known.modes)
        self._guessed: OutputMode | None = None
        """A way that was refused for a reason that the server did not say."""

    @property
    def mode(self) -> OutputMode | None:
        """The present way; None: the answer is not constrained."""
        return self._modes[0] if self._modes else None

    @property
    def may_leave_calls(self) -> bool:
        """Whether the server may leave calls in the text of answers: it was not measured."""
        return self._find_tool_doubts()[0]

    @property
    def doubts_tools(self) -> bool:
        """Whether it is not known whether the model is shown the tools of a request."""
        return self._find_tool_doubts()[1]

    def _find_tool_doubts(self) -> tuple[bool, bool]:
        if self._tool_doubts is None:
            may_leave = self._model is not None and self._model.base_url is not None
            is_known = not may_leave
            if may_leave and (profile := self._measured) is not None:
                gives = (profile.support(Feature.TOOLS), profile.support(Feature.SCHEMA_WITH_TOOLS))
                may_leave = Support.BINDS not in gives
                lesson = profile.lessons.get(Feature.TOOLS)
                is_known = Feature.TOOLS in profile.features or not may_leave
                is_known = is_known or (lesson is not None and lesson.was_held_to)
            self._tool_doubts = may_leave, not is_known
        return self._tool_doubts

    def give_up(self, failure: FailureInfo, asked: OutputRequest | None) -> bool:
        """Whether the same may be asked in another way after this failure.

        Args:
            asked: How it was asked.
        """
        if failure.code == "template-refused" and self.takes_system:
            self.takes_system = False
            self._learn(Feature.SYSTEM_ROLE, Support.REFUSES)
            return True
        if asked is None or asked.mode is OutputMode.MD_JSON:
            return False
        if failure.code in _SPENT:
            return self._drop(asked.mode, Support.FAILS)
        if failure.code != "bad-request" or _PROBABILITIES.search(failure.message):
            return False
        return self._refused(failure, asked)

    def _refused(self, failure: FailureInfo, asked: OutputRequest) -> bool:
        if asked.unbounded is not None and _BOUNDS.search(failure.message):
            self.takes_bounds = False
            return True
        if self.is_strict and asked.is_strict and _STRICT.search(failure.message):
            self.is_strict = False
            self._learn(Feature.STRICT, Support.REFUSES)
            return True
        if _FORM_WORDS.search(failure.message):
            return self._drop(asked.mode, Support.REFUSES)
        if self._guessed is not None or OutputMode.MD_JSON not in self._modes:
            return False
        # It does not say what it refuses: the plainest request tells, and is the last.
        self._guessed = asked.mode
        self._modes = [OutputMode.MD_JSON]
        return True

    def note_answer(self) -> None:
        """The request was answered: what was given up for a reason that was a guess is known.

        Where the server has taken it before, something else was the reason.
        """
        if self._guessed is not None:
            feature, profile = _FEATURES.get(self._guessed), self._profile()
            lesson = profile.lessons.get(feature) if profile is not None and feature else None
            if lesson is None or not lesson.was_held_to:
                self._learn_mode(self._guessed, Support.REFUSES)
            self._guessed = None
        if self._doubts_system and self.takes_system:
            self._learn(Feature.SYSTEM_ROLE, None)

    def note_tools(self, *, are_shown: bool) -> None:
        """It was found out whether the model is shown the tools of a request."""
        self.takes_tools = are_shown
        self._tool_doubts = self.may_leave_calls, False
        self._learn(Feature.TOOLS, None if are_shown else Support.IGNORES, is_proved=True)

    def note_held(self, asked: OutputMode | None, *, is_strict: bool) -> None:
        """The answer is of the form that the server was to hold it to."""
        feature = _FEATURES.get(asked) if asked is not None else None
        for each in (feature, Feature.STRICT if is_strict else None):
            if each is not None and each not in self._doubtless:
                self._learn(each, None)

    def note_ignored(self, asked: OutputMode | None) -> None:
        """The answer is not of the form that the server was to hold it to."""
        feature = _FEATURES.get(asked) if asked is not None else None
        profile = self._profile()
        known = profile.features.get(feature) if profile is not None and feature else None
        if asked is None or feature is None or known is Support.BINDS:
            return
        if self.declared.is_mode_declared and asked is self.declared.output_mode:
            self.binds = False
            self._learn(feature, Support.IGNORES)
            return
        self._drop(asked, Support.IGNORES)

    def _drop(self, mode: OutputMode, support: Support) -> bool:
        self._learn_mode(mode, support)
        left = [each for each in self._modes if each is not mode]
        if not left:
            return False
        self._modes = left
        self.binds = False
        return True

    def _learn_mode(self, mode: OutputMode, support: Support) -> None:
        if (feature := _FEATURES.get(mode)) is not None:
            self._learn(feature, support)

    def _profile(self) -> ModelProfile | None:
        return self._book.find(self._model) if self._model is not None else None

    def _learn(self, feature: Feature, support: Support | None, *, is_proved: bool = False) -> None:
        """One more answer tells what the server does with a feature.

        Args:
            support: None: it was held to it.
            is_proved: Whether the answer alone is enough to know.
        """
        model = self._model
        if model is None or model.base_url is None:
            return
        now = self._clock.now()
        known = self._profile() or ModelProfile(
            base_url=model.base_url, model=model.name, measured_at=now, is_learned=True
        )
        before = known.lessons.get(feature)
        if is_proved and support is not None:
            after = known.with_proof(feature, support, now)
        else:
            after = known.with_answer(feature, support, now)
        was = before is not None and before.learned_at is not None  # also where that has expired
        lesson = after.lessons[feature]
        (self._doubtless.discard if lesson.against else self._doubtless.add)(feature)
        self._book.learn(after, feature, is_told=was != (lesson.learned_at is not None))


COOLDOWN_S: Final = 60.0
"""Seconds for which a model that failed is passed over by steps that have another one, unless the
recipe says `cooldown_s`."""

_OF_SERVER: Final = frozenset(
    {
        "model-unreachable",
        "model-unavailable",
        "model-timeout",
        "model-not-found",
        "rate-limited",
        "quota-exhausted",
        "circuit-open",
        "stream-interrupted",
        "malformed-response",
        "auth-rejected",
    }
)
"""Failures of a server, after which another model is asked the same."""


class ModelTier(Struct, frozen=True, kw_only=True):
    """One model of a step, and how it is asked."""

    factory: ModelCallExecutorFactory
    options: ModelOptions
    capabilities: ModelCapabilities
    modes: OutputModes
    is_fallback: bool = False
    """Whether it takes the place of the model before it, where that one's server fails."""
    cooldown_s: float = COOLDOWN_S
    """Seconds for which it is not asked after its server failed, where there is another one."""

    @property
    def name(self) -> str:
        """The name of the model; `own`: an application carries out the calls."""
        model = model_of(self.factory)
        return model.name if model is not None else "own"

    @property
    def key(self) -> tuple[str, str]:
        """The server and the model, to remember that it failed."""
        model = model_of(self.factory)
        return (model.base_url or "", model.name) if model is not None else ("", "own")


class Replacement(Struct, frozen=True, kw_only=True):
    """A model whose server failed, and the one that is asked instead."""

    failed: str
    instead: str
    code: str
    """The code of the failure."""
    cooldown_s: float
    """Seconds for which the one that failed is not asked by steps that have another one."""

    @property
    def words(self) -> str:
        """What a person is told."""
        return (
            f"{self.failed} is unavailable ({self.code}): {self.instead} is asked instead, and "
            f"{self.failed} again after {self.cooldown_s:g} s"
        )


def _tier(
    factory: ModelCallExecutorFactory, options: ModelOptions, services: Services
) -> ModelTier:
    if not isinstance(factory, ModelCallExecutors):
        capabilities = ModelCapabilities(output_mode=None)  # not known: plain text only
        modes = OutputModes(None, capabilities, services.profiles, services.clock)
        return ModelTier(factory=factory, options=options, capabilities=capabilities, modes=modes)
    model, cooldown_s = factory.model, factory.cooldown_s
    capabilities = model.capabilities
    return ModelTier(
        factory=factory,
        options=options,
        capabilities=capabilities,
        modes=OutputModes(model, capabilities, services.profiles, services.clock),
        is_fallback=factory.is_fallback,
        cooldown_s=COOLDOWN_S if cooldown_s is None else cooldown_s,
    )


class ModelTiers:
    """Which model a step asks now. It moves to a later one and never back, so it has an end."""

    def __init__(
        self, factory: ModelCallExecutorFactory, options: ModelOptions, services: Services
    ) -> None:
        """Begin with the first model that did not fail a short time ago; else with the first.

        Args:
            factory: Of the first model, with its fallbacks and tiers.
            options: Of all calls of a model that has none of its own.
        """
        tiers = [_tier(factory, options, services)]
        if isinstance(factory, ModelCallExecutors) and factory.tiers:
            tiers += [_tier(each, each.options or options, services) for each in factory.tiers]
        self._tiers = tiers
        self._cooldowns = services.cooldowns
        self._clock = services.clock
        self.current = tiers[0]
        """The model that is asked."""
        self.modes = tiers[0].modes
        """How output is asked for, as far as is known of that model's server."""
        self.index = 0
        """The number of the model that is asked, from 0, in the order of all of them."""
        if len(tiers) > 1:
            self.move_to(next((at for at in range(len(tiers)) if not self._is_cooling(at)), 0))

    def move_to(self, number: int) -> None:
        """Ask the model of that number."""
        self.index = number
        self.current = self._tiers[min(number, len(self._tiers) - 1)]
        self.modes = self.current.modes

    @property
    def name(self) -> str:
        """The name of the model that is asked."""
        return self.current.name

    @property
    def has_own_room(self) -> bool:
        """Whether the options of that model say how long an answer may be."""
        options = self.current.options
        return options.max_output_tokens is not None

    @property
    def next_model(self) -> ChatModel | None:
        """The larger model that comes next; None: there is none, or an application's own way."""
        at = self._next_tier()
        return model_of(self._tiers[at].factory) if at is not None else None

    def advance(self) -> bool:
        """Ask the next larger model from now on; False: there is none.

        A fallback is none: it stands in for a server, and would be asked the same.
        """
        at = self._next_tier()
        if at is None:
            return False
        self.move_to(at)
        return True

    def fall_back(
        self, code: str, *, has_images: bool = False, is_replayed: bool = False
    ) -> Replacement | None:
        """Ask another model after a failure of the present one's server; None: it is no such
        failure, or there is no other model that can be asked.

        Args:
            has_images: Whether the prompt has images: a model that takes none is not asked.
            is_replayed: Whether it failed in an earlier execution of the run: its server may be
                back since.
        """
        if code not in _OF_SERVER or len(self._tiers) == 1:
            return None
        failed = self.current
        if not is_replayed:
            now = self._clock.monotonic()
            self._cooldowns[failed.key] = now + failed.cooldown_s
        able = self._able(has_images=has_images)
        if not able:
            return None
        self.move_to(next((at for at in able if not self._is_cooling(at)), able[0]))
        return Replacement(
            failed=failed.name,
            instead=self.name,
            code=code,
            cooldown_s=failed.cooldown_s,
        )

    def has_other(self, *, has_images: bool) -> bool:
        """Whether another model can be asked where the server of the present one fails."""
        return len(self._tiers) > 1 and bool(self._able(has_images=has_images))

    def _able(self, *, has_images: bool) -> Sequence[int]:
        others = range(self.index + 1, len(self._tiers))
        return [at for at in others if not has_images or self._tiers[at].capabilities.takes_images]

    def unfit(self, code: str) -> Sequence[str]:
        """The names of the models that could be asked after such a failure, but take no images."""
        others = self._tiers[self.index + 1 :] if code in _OF_SERVER else ()
        return [each.name for each in others if not each.capabilities.takes_images]

    def _next_tier(self) -> int | None:
        """The number of the first model behind the present one that is no fallback, or of its
        first fallback where its server failed a short time ago.
        """
        later = range(self.index + 1, len(self._tiers))
        first = next((at for at in later if not self._tiers[at].is_fallback), None)
        if first is None:
            return None
        behind = range(first + 1, len(self._tiers))
        end = next((at for at in behind if not self._tiers[at].is_fallback), len(self._tiers))
        return next((at for at in range(first, end) if not self._is_cooling(at)), first)

    def _is_cooling(self, at: int) -> bool:
        if len(self._tiers) == 1:
            return False
        until = self._cooldowns.get(self._tiers[at].key)
        return until is not None and self._clock.monotonic() < until
