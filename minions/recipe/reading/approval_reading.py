"""The rules of `requires_approval`: who may decide about a call, how many, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from minions.contracts.approvals import ROLE, ApprovalRule, ApprovalStage
from minions.recipe.language import recipe_keys as keys
from minions.recipe.model import AgentRecipe, Reviewer, StepSpec
from minions.recipe.text.nodes import MappingNode, Place, ScalarNode
from minions.recipe.text.sections import (
    Report,
    Section,
    read_duration,
    read_section,
    read_texts,
    suggestion,
)


def read_rule(section: Section, roles: frozenset[str], report: Report) -> ApprovalRule | None:
    """The rule of an item of `requires_approval`; None: anybody decides alone, without a limit.

    Args:
        roles: Those that there are; empty: they are not known.
    """
    return _Reader(report, roles).rule(section)


FindReviewer: TypeAlias = Callable[[str, Place, Report], AgentRecipe | None]
"""The recipe of a name; None: there is none, or it has faults, which was reported."""

REVIEWED: Final = ("tool", "arguments", "words_of", "step")
"""Inputs that a reviewer may have."""
VERDICTS: Final = frozenset({"reject", "pass"})
"""What a reviewer may say."""


def read_reviewer(section: Section, find: FindReviewer, report: Report) -> Reviewer | None:
    """The reviewer of an item of `requires_approval`; None: it has none, or a faulty one."""
    name = section.text("reviewer")
    if name is None:
        return None
    place = section.place_of("reviewer")
    recipe = find(name, place, report)
    if recipe is None:
        return None
    problem = _reviewer_problem(recipe)
    if problem is not None:
        message = f"'{name:.60}' cannot review calls: {problem}"
        report(place.fault("bad-reviewer", message, help=_REVIEWER_HELP))
        return None
    return Reviewer(name=name, recipe=recipe)


_REVIEWER_HELP: Final = (
    "its inputs are `arguments: {type: object, untrusted: true}` and, where it wants them, `tool`, "
    "`step` and `words_of`; its output is `{verdict: reject | pass, reason: string}`"
)


def _reviewer_problem(recipe: AgentRecipe) -> str | None:
    """Why the recipe is no reviewer; None: it is one."""
    taken = recipe.inputs.get("arguments")
    if taken is None or not taken.is_untrusted:
        return "it has no input 'arguments' that is untrusted"
    foreign = [
        name
        for name, each in recipe.inputs.items()
        if name not in REVIEWED and not each.has_default
    ]
    if foreign:
        return f"nothing gives its input '{foreign[0]}'"
    if recipe.tools or recipe.permissions.allow_write or any(recipe.permissions.tools.values()):
        return "it opens tools or asks for the right to write, and a reviewer does neither"
    if any(isinstance(step, StepSpec) and step.asks_person for step in recipe.steps):
        return "it asks a person"
    if recipe.offers_caller_tools:
        return "it calls tools of whoever asks"
    fields = recipe.known_output.get("properties")
    verdict = fields.get("verdict") if isinstance(fields, Mapping) else None
    words = verdict.get("enum", ()) if isinstance(verdict, Mapping) else None
    if not isinstance(words, list | tuple) or not {*map(str, words)} <= VERDICTS:
        return "its output has no field 'verdict' that is `reject` or `pass`"
    return None


class _Reader(Struct, frozen=True):
    """Reads who may decide, and until when."""

    report: Report
    roles: frozenset[str]

    def rule(self, section: Section) -> ApprovalRule | None:
        """The rule of an item; None: it says nothing of who decides."""
        stages = tuple(self._stages(section, "deciders"))
        rejections, starter = section.plain("rejections"), section.plain("not_by_starter")
        count = rejections if isinstance(rejections, int) else 1
        deciders = stages[0].deciders
        if deciders and count > len(deciders) and not _has_role(deciders):
            self._report_count(section, "rejections", count, deciders)
        rule = ApprovalRule(stages=stages, rejections=count, not_by_starter=starter is True)
        return None if rule == ApprovalRule() else rule

    def _stages(
        self, section: Section, key: str, expires_s: float | None = None
    ) -> Iterator[ApprovalStage]:
        deciders = self._deciders(section, key)
        expires_s = read_duration(section, "expires", self.report) or expires_s
        quorum = section.plain("quorum")
        needed = quorum if isinstance(quorum, int) else 1
        if deciders and needed > len(deciders) and not _has_role(deciders):
            self._report_count(section, "quorum", needed, deciders)
        yield ApprovalStage(deciders=deciders, quorum=needed, expires_s=expires_s)
        following = section.node("then")
        if following is None:
            return
        if expires_s is None:
            message = "'then' says what follows an expiry, and nothing expires"
            help_ = "say when: expires: 2h"
            self.report(following.place.fault("bad-value", message, help=help_))
        if isinstance(following, MappingNode):
            inner = read_section(following, keys.NEXT_DECIDERS, self.report)
            yield from self._stages(inner, "ask", expires_s)
        elif not (isinstance(following, ScalarNode) and following.value == "reject"):
            message = "'then' is `reject` or `{ask: [OTHERS]}`"
            self.report(following.place.fault("bad-value", message))

    def _deciders(self, section: Section, key: str) -> tuple[str, ...]:
        node = section.node(key)
        if node is None:
            return ()
        named = [each.text for each in read_texts(section.items(key), "a decider", self.report)]
        empty = [name for name in named if not name.removeprefix(ROLE).strip()]
        if empty or not named:
            message = f"'{key}' names persons, and roles as `role:NAME`"
            self.report(node.place.fault("bad-value", message, help="[ann, role:finance]"))
        for each in named:
            role = each.removeprefix(ROLE)
            if self.roles and each != role and role not in self.roles:
                message = f"nobody has the role '{role:.60}', as far as the configuration says"
                label = suggestion(role, tuple(sorted(self.roles)))
                self.report(node.place.fault("unknown-role", message, label=label, is_warning=True))
        return tuple(dict.fromkeys(named))

    def _report_count(
        self, section: Section, key: str, count: int, deciders: tuple[str, ...]
    ) -> None:
        persons = "person decides" if len(deciders) == 1 else "persons decide"
        message = f"'{key}' is {count}, and only {len(deciders)} {persons}"
        help_ = f"at most {len(deciders)}, or name further deciders"
        self.report(section.place_of(key).fault("bad-value", message, help=help_))


def _has_role(deciders: Iterable[str]) -> bool:
    """Whether it is not known how many persons there are."""
    return any(name.startswith(ROLE) for name in deciders)
