"""How the output of a step is asked for: as the server's profile says, and otherwise where it
refuses. What is learned is kept, so that the first request of the next run fits.
"""

from __future__ import annotations

import re
from typing import Final

from minions.contracts.calls import ChatModel, ModelCapabilities
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook, Support
from minions.contracts.runtime import Clock
from minions.data.errors import FailureInfo

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
_BOUNDS: Final = re.compile(r"max_?items|max_?length|repetition", re.IGNORECASE)
_STRICT: Final = re.compile(r"\bstrict\b", re.IGNORECASE)


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
        self._model = model
        self._book = book
        self._clock = clock
        profile = book.find(model) if model is not None else None
        known = declared if profile is None else profile.at(clock.now()).applied(declared)
        self._doubtless = set[Feature]()
        """Features against which no answer speaks: one more that was held to them tells nothing."""
        self._doubts_system = False
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
        return failure.code == "bad-request" and self._refused(failure, asked)

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

    def _learn(self, feature: Feature, support: Support | None) -> None:
        """One more answer tells what the server does with a feature; None: it was held to it."""
        model = self._model
        if model is None or model.base_url is None:
            return
        now = self._clock.now()
        known = self._profile() or ModelProfile(
            base_url=model.base_url, model=model.name, measured_at=now, is_learned=True
        )
        before, after = known.lessons.get(feature), known.with_answer(feature, support, now)
        was = before is not None and before.learned_at is not None  # also where that has expired
        lesson = after.lessons[feature]
        (self._doubtless.discard if lesson.against else self._doubtless.add)(feature)
        self._book.learn(after, feature, is_told=was != (lesson.learned_at is not None))
