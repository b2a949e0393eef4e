"""Strangers' words: which of what tools and inputs gave may be in what a step works on.

Nothing is stored for it: it is folded from the calls that the run made, of which there are facts,
over the ways that words can take in the recipe. So a resumed run knows what the first one knew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from minions.contracts.steps import Step
from minions.contracts.tools import Reads, ToolSpec
from minions.data.json_values import JsonValue
from minions.recipe.checks.flows import WordPaths, toolset_of
from minions.recipe.checks.text_edges import ARGUMENT, CONTROL, DECISION, WORK, Source
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import StepSpec, UntrustedRule

WordsOf: TypeAlias = tuple[str, ...]
"""Whose words, each as a person reads it: `http__get (step read)`, `input ticket`."""
_SAID: Final = frozenset({Reads.UNTRUSTED, Reads.PRIVATE})
_HISTORY: Final = "earlier turns of the session"
NO_PATHS: Final = WordPaths(frozenset(), {}, ())


def may_bring_words(tool: ToolSpec) -> bool:
    """Whether the tool says that its results hold what strangers wrote."""
    return tool.reads in _SAID


class StrangersWords:
    """Those in one recipe of a run."""

    def __init__(
        self,
        steps: Sequence[StepSpec | Step[object]],
        paths: WordPaths,
        has_ended: Callable[[str], bool],
        *,
        path: str = "",
        given: Mapping[str, WordsOf] | None = None,
        everywhere: WordsOf = (),
        rule: UntrustedRule = UntrustedRule.ALLOW,
        private: dict[str, str] | None = None,
    ) -> None:
        """Nothing has been read yet.

        Args:
            steps: Of the recipe, in its order; those of its graph where it has no list.
            paths: The ways that words can take in the recipe.
            has_ended: Whether a step ran and ended, so that others read what it gave.
            path: Before the ids of its steps, `outer/` in a recipe within the run.
            given: By untrusted input of a recipe that is a step: the words in it. None: the recipe
                is the run's own.
            everywhere: The words in a recipe that was itself written, or asked for, by a model that
                had read them.
            rule: What the recipes say around one with words everywhere: it cannot say less.
            private: Those of the recipe around it, which is added to; None: it has its own.
        """
        self.rule = rule
        self.private: dict[str, str] = {} if private is None else private
        """The toolset of private data, by the words that tell it; "" where it is not known."""
        self._steps = tuple(steps)
        self._paths = paths
        self._has_ended = has_ended
        self._path = path
        self._given = given
        self._everywhere = dict.fromkeys(everywhere)
        self._places = {step.id: at for at, step in enumerate(self._steps)}
        self._read: dict[int, dict[str, None]] = {}

    def read(self, step_id: str, tool: ToolSpec) -> None:
        """A step of the recipe was given the result of a call."""
        words = f"{tool.name} (step {self._path}{step_id})"
        if tool.reads is Reads.PRIVATE:
            self.private[words] = toolset_of(tool)
        self.add(step_id, (words,))

    def add(self, step_id: str, words: Iterable[str]) -> None:
        """What a step gives holds these words, too."""
        at = self._places.get(step_id)
        if at is not None:
            self._read.setdefault(at, {}).update(dict.fromkeys(words))

    def keep(self, step_id: str) -> None:
        """A step failed, and others read its error after what it had worked on was taken back."""
        self.add(step_id, self.reaching(step_id))

    def assume(self, step_id: str, what: str) -> None:
        """A step was given an output of which nothing is known: that of another run, or of a cache.

        Then it holds the words that it can hold.
        """
        at, words = self._places.get(step_id), f"{what} (step {self._path}{step_id})"
        if at in self._paths.reached:
            self.add(step_id, (words,))
        if at in self._paths.private:
            self.private[words] = ""

    def assume_all(self, what: str) -> None:
        """As `assume`, of every step: the run executes one item of another one."""
        for step_id in self._places:
            self.assume(step_id, what)

    def reaching(
        self, step_id: str, tool: str | None = None, *, has_history: bool = False
    ) -> WordsOf:
        """The words that may be in what a step works on, or gives a call.

        Args:
            tool: Of the call: what a step gives a tool that it calls itself was made before. None:
                whatever the step has read meanwhile counts.
            has_history: Whether it continues a conversation that has earlier turns, of which
                nothing is known here.
        """
        at = self._places.get(step_id)
        if at is None:
            return tuple(self._everywhere)
        step = self._steps[at]
        found = dict(self._everywhere)
        slot, is_own = WORK, False
        if isinstance(step, StepSpec):
            decision = step.decision_tool
            is_own = tool in step.called_tools
            if not is_own and decision is not None and tool == decision.tool:
                slot, is_own = DECISION, True
        if has_history and self._is_shared_in(self._paths.reached):
            found[_HISTORY] = None
            if self._is_shared_in(self._paths.private):
                self.private[_HISTORY] = ""
        self._collect(self._paths.sources(at, slot), found)
        if not is_own:
            found.update(self._read.get(at, {}))
        return tuple(found)

    def in_arguments(
        self, step_id: str, tool: str, filled: Sequence[str]
    ) -> Mapping[str, WordsOf] | None:
        """The words that may be in each argument that a step gives the tool which it calls itself.

        What decides that the call is made is not among them.

        Args:
            filled: The parameters that a model filled in: it had read whatever reaches the step.
        Returns:
            None: a model made the whole call, and whatever reaches the step may be anywhere in it.
        """
        at = self._places.get(step_id)
        step = self._steps[at] if at is not None else None
        if at is None or not isinstance(step, ToolSpecStep) or tool != step.tool:
            return None
        given: dict[str, WordsOf] = dict.fromkeys(filled, self.reaching(step_id, tool))
        for name in step.given:
            if name not in given:
                found = dict(self._everywhere)
                self._collect(self._paths.sources(at, ARGUMENT + name), found)
                given[name] = tuple(found)
        return given

    def results(self, outputs: Callable[[str], JsonValue]) -> Iterator[tuple[str, JsonValue]]:
        """What tools gave of strangers' words or private data as they are: results of calls of this
        run that steps made themselves, with arguments that hold no such words.

        Args:
            outputs: Of a step that ended, by its id.
        Returns:
            The steps, each with its result.
        """
        for at, step in enumerate(self._steps):
            if not isinstance(step, ToolSpecStep) or not self._has_ended(step.id):
                continue
            own = f"{step.tool} (step {self._path}{step.id})"
            if tuple(self._read.get(at, ())) == (own,) and not self.reaching(step.id, step.tool):
                yield step.id, outputs(step.id)

    def making(self, step_id: str) -> tuple[WordsOf, Sequence[str]]:
        """The words that may be in a recipe which a step made or named, and the tools that the step
        lends it.

        A plan is made of what reached its step, before the files of its workspace were read.
        """
        at = self._places.get(step_id)
        step = self._steps[at] if at is not None else None
        if at is None or not isinstance(step, StepSpec) or not step.carries_out_plans:
            return self.reaching(step_id), ()
        found = dict(self._everywhere)
        self._collect(self._paths.sources(at, WORK), found)
        return tuple(found), step.offered_tools

    def deciding(self, step_id: str) -> WordsOf:
        """The words that may have decided that a step runs, or how often."""
        found = dict(self._everywhere)
        if (at := self._places.get(step_id)) is not None:
            self._collect(self._paths.sources(at, CONTROL), found)
        return tuple(found)

    def given_to(self, step_id: str, inputs: Iterable[str]) -> Mapping[str, WordsOf] | None:
        """The words in each input that a step gives to its recipe; None: the recipe is not a part
        of this one, but was made or named while it ran.
        """
        at = self._places.get(step_id)
        step = self._steps[at] if at is not None else None
        if at is None or not isinstance(step, StepSpec) or step.inner is None:
            return None
        given: dict[str, WordsOf] = {}
        for name in inputs:
            found = dict(self._everywhere)
            self._collect(self._paths.sources(at, name), found)
            spec = step.inner.inputs.get(name)
            if spec is not None and spec.is_untrusted:
                words = f"input {name} (step {self._path}{step_id})"
                found[words] = None
                if spec.is_private:
                    self.private[words] = ""
            given[name] = tuple(found)
        return given

    def in_output(self) -> WordsOf:
        """The words that may be in the output of the recipe."""
        found = dict(self._everywhere)
        self._collect(self._paths.output, found)
        return tuple(found)

    def private_among(self, words: WordsOf, tool: ToolSpec) -> WordsOf:
        """Those of the words that tell private data of another toolset than the tool's."""
        own = toolset_of(tool)
        return tuple(each for each in words if self.private.get(each, own) != own)

    def all_private_among(self, words: WordsOf) -> WordsOf:
        """Those of the words that tell private data."""
        return tuple(each for each in words if each in self.private)

    def foreign_among(self, words: WordsOf, tool: ToolSpec) -> WordsOf:
        """Those of the words that are not of the tool's own toolset."""
        own = toolset_of(tool)
        return tuple(each for each in words if self.private.get(each) != own)

    def _is_shared_in(self, steps: frozenset[Source]) -> bool:
        return any(at in steps and step.shares_conversation for at, step in enumerate(self._steps))

    def _collect(self, sources: Sequence[Source], found: dict[str, None]) -> None:
        """Follow the words from where they arrive to where they were read."""
        pending, seen = list(sources), set(sources)
        while pending:
            source = pending.pop()
            if isinstance(source, str):
                given = self._given
                words = (f"input {source}",) if given is None else given.get(source, ())
                found.update(dict.fromkeys(words))
                continue
            read = self._read.get(source)
            if read is not None:
                found.update(read)
            # What a condition skipped holds no words of others; that it was skipped is theirs.
            has_worked = read is not None or self._has_ended(self._steps[source].id)
            for each in self._paths.sources(source, WORK if has_worked else CONTROL):
                if each not in seen:
                    seen.add(each)
                    pending.append(each)
