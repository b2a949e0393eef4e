"""Which tools a recipe may call: a nested recipe has no more rights than the recipes around it.

A recipe may open a toolset under another prefix. Permissions of outer recipes hold for a tool under
every name; within one recipe, two openings of a toolset have separate permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve
from msgspec import Struct, structs
from msgspec.structs import replace

from minions.contracts.approvals import ApprovalRule
from minions.contracts.tools import Effect, Reads, ToolSpec
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue, parse_json
from minions.recipe.catalog import Catalog
from minions.recipe.expressions.template import Templates
from minions.recipe.model import (
    AgentRecipe,
    CallRule,
    OperatorRules,
    Permissions,
    Reviewer,
    StepSpec,
    ToolsetUse,
    UntrustedRule,
)
from minions.recipe.model_config import ModelConfig

ALLOW_WRITE: Final = "allow_write"
_JOINING: Final = frozenset("_/\\@%&=+#~$|^*-")
"""Signs that continue a name, an address or a number, as letters and digits do."""
_ENDING: Final = ".,;:!?"
"""Signs that end a text, unless it continues behind them: `example:80`."""
_MOST_SIGNS: Final = 32
"""Signs behind a text that are looked at."""
_MOST_LOOKS: Final = 20_000
"""Texts of a result, and places in them, that are looked at: they take some milliseconds."""
_CHARACTERS_OF_LOOK: Final = 2_000
"""Characters that are searched in the time of a look."""
WORDS_OF: Final = "words_of"
DECIDED_BY: Final = "decided_by"
STANDS_IN: Final = "stands_in"
READ_BY_POLICIES: Final = ("args", WORDS_OF, DECIDED_BY, STANDS_IN)
"""What a policy reads of a call; a recipe's reads its inputs, too."""
BY_ARGUMENT: Final = (WORDS_OF, STANDS_IN)
"""What of that is told by argument."""


class CallWords(Struct, frozen=True, kw_only=True):
    """Whose words may be in a call, as policies read it."""

    anywhere: Sequence[str]
    """All of them."""
    by_argument: Mapping[str, Sequence[str]] | None
    """Those in each argument; None: all may be in any."""
    deciding: Sequence[str]
    """Those that may have decided that the call is made."""
    results: Callable[[], Iterable[tuple[str, JsonValue]]]
    """What tools gave as it is, by step; it is looked for where a policy asks."""

    def scope(self, tool: ToolSpec, args: JsonValue, condition: str) -> Mapping[str, JsonValue]:
        """What a policy reads beside the arguments and inputs: `words_of` and `stands_in`, each
        with the parameters of the tool, and `decided_by`.
        """
        known, values = tool.parameters.get("properties"), args if isinstance(args, Mapping) else {}
        names = dict.fromkeys((*(known if isinstance(known, Mapping) else ()), *values))
        given, anywhere = self.by_argument, list(self.anywhere)
        words: dict[str, JsonValue] = {
            name: anywhere if given is None else list(given.get(name, ())) for name in names
        }
        scope: dict[str, JsonValue] = {WORDS_OF: words, DECIDED_BY: list(self.deciding)}
        if STANDS_IN in condition:
            results = list(self.results())
            scope[STANDS_IN] = {
                name: [step for step, result in results if _stands_in(values.get(name), result)]
                for name in names
            }
        return scope

    def told(self, words: Sequence[str]) -> tuple[str, ...]:
        """Some of them as a person reads them: with the argument, where that is known."""
        if self.by_argument is None:
            return tuple(words)
        given = self.by_argument
        told = [f"{name}: {x}" for name, held in given.items() for x in held if x in words]
        placed = {each for held in given.values() for each in held}
        told += [f"whether it is called: {each}" for each in words if each not in placed]
        return tuple(told)


class _OwnRights(Struct, frozen=True):
    """The permissions that one recipe states."""

    permissions: Permissions
    toolsets: Mapping[str, str]
    """The toolset's own name, by the prefix under which the recipe opens it."""
    templates: Templates | None = None
    """Compiles its conditions."""
    inputs: Mapping[str, JsonValue] = {}
    """What conditions read as `inputs`."""
    is_operators: bool = False
    """Whether the operator states them, above all recipes."""

    @classmethod
    def by(cls, permissions: Permissions, uses: Iterable[ToolsetUse]) -> _OwnRights:
        """The permissions of a recipe that opens these toolsets."""
        return cls(permissions, {use.prefix or use.name: use.name for use in uses})

    @classmethod
    def of(cls, recipe: AgentRecipe, inputs: Mapping[str, JsonValue] | None) -> _OwnRights:
        """The permissions of a recipe, in a run with these inputs."""
        own = cls.by(recipe.permissions, recipe.tools)
        if not (recipe.permissions.approval_when or recipe.permissions.policies):
            return own
        return structs.replace(own, templates=recipe.templates, inputs=inputs or {})

    @classmethod
    def of_operator(cls, rules: OperatorRules) -> _OwnRights:
        """What the operator says: of strangers' words alone, all else recipes decide."""
        said = Permissions(allow_write=True, policies=rules.policies, untrusted=rules.untrusted)
        return cls(said, {}, rules.templates, is_operators=True)

    def missing(self, tool: ToolSpec, *, is_own: bool) -> str | None:
        """The permission that the tool lacks in this recipe; None: it may be called."""
        said = self.permissions.tools
        if not said and (self.permissions.allow_write or not tool.is_write):
            return None
        for written in (name for name, is_allowed in said.items() if not is_allowed):
            if self._is_about(written, tool, is_own=is_own):
                return f"allow_{written}"
        if self.permissions.allow_write or not tool.is_write:
            return None
        granted = [name for name, is_allowed in said.items() if is_allowed]
        is_granted = any(self._grants(written, tool, is_own=is_own) for written in granted)
        return None if is_granted else ALLOW_WRITE

    def asks(self, tool: ToolSpec, *, is_own: bool, arguments: str | None = None) -> bool:
        """Whether each call of the tool needs approval: the tool is named, or its toolset; or this
        call does.

        Args:
            arguments: Of the call, as JSON text; None: no call is meant.
        """
        permissions = self.permissions
        if permissions.is_strangers and _reaches_out(tool):
            return True
        if permissions.requires_approval and any(
            self._is_about(written, tool, is_own=is_own, with_toolset=True)
            for written in permissions.requires_approval
        ):
            return True
        if arguments is None or not permissions.approval_when:
            return False
        return any(
            self._is_about(written, tool, is_own=is_own)
            and self._holds(condition, arguments, otherwise=True)
            for written, conditions in permissions.approval_when.items()
            for condition in conditions
        )

    def rules_of(self, tool: ToolSpec, arguments: str, *, is_own: bool) -> Iterator[CallRule]:
        """Who may approve this call, as far as the recipe says so."""
        for each in self.rules_about(tool, is_own=is_own):
            if each.when is None or self._holds(each.when, arguments, otherwise=True):
                yield each

    def rules_about(self, tool: ToolSpec, *, is_own: bool) -> Iterator[CallRule]:
        """The rules of calls of that tool, whatever their conditions."""
        for each in self.permissions.approval_rules:
            about = (
                self._is_about(written, tool, is_own=is_own, with_toolset=True)
                for written in each.tools
            )
            if any(about):
                yield each

    def untrusted(
        self, tool: ToolSpec, arguments: str, words: CallWords, *, is_own: bool
    ) -> UntrustedRule | None:
        """What the recipe says of a call whose arguments may hold strangers' words; None: nothing.

        Args:
            arguments: As JSON text.
        """
        permissions = self.permissions
        for written, condition in permissions.policies.items():
            if self._is_about(written, tool, is_own=is_own):
                if self._holds(condition, arguments, otherwise=False, of=tool, words=words):
                    return UntrustedRule.ALLOW
                if self.is_operators:
                    return permissions.untrusted or _ASK
        return permissions.untrusted

    def has_policy(self, tool: ToolSpec) -> bool:
        """Whether a policy of somebody else is about a recipe's tool."""
        said = self.permissions.policies
        return any(self._is_about(written, tool, is_own=False) for written in said)

    def _holds(
        self,
        condition: str,
        arguments: str,
        *,
        otherwise: bool,
        of: ToolSpec | None = None,
        words: CallWords | None = None,
    ) -> bool:
        """Whether a condition over a call is true.

        Args:
            otherwise: The answer where it cannot be told: an argument is not there, or is of
                another type than the condition takes.
            of: The tool, for a policy.
            words: Whose words may be in the call, for a policy.
        """
        if self.templates is None:
            return otherwise
        try:
            args = parse_json(arguments or "{}")
            scope: dict[str, JsonValue] = {"args": args, "inputs": self.inputs}
            if of is not None and words is not None:
                scope |= words.scope(of, args, condition)
            return self.templates.compile_condition(condition).holds(scope)
        except (MinionsError, ValueError):
            return otherwise

    def _is_about(
        self, written: str, tool: ToolSpec, *, is_own: bool, with_toolset: bool = False
    ) -> bool:
        """Whether a restriction under that name applies to the tool, by its
        present or its original name; of an operator by this one alone, since recipes choose others.
        """
        if self.is_operators:
            return written == (tool.origin or tool.name)
        origin = self._origin(written)
        if is_own and origin is not None:
            called, meant = {tool.name}, {written}
        else:
            called, meant = {tool.name, tool.origin or tool.name}, {written, origin or written}
        if not called.isdisjoint(meant):
            return True
        below = tuple(f"{name}__" for name in meant)
        return with_toolset and any(name.startswith(below) for name in called)

    def _grants(self, written: str, tool: ToolSpec, *, is_own: bool) -> bool:
        """Whether a permission under that name applies to the tool: not if the
        name means another tool here.
        """
        origin = self._origin(written)
        if origin is None or is_own:
            return written in (tool.name, tool.origin)
        return origin == (tool.origin or tool.name)

    def _origin(self, written: str) -> str | None:
        """The original name of what the recipe opens under that name;
        None: it opens no such toolset.
        """
        prefixes = [prefix for prefix in self.toolsets if f"{written}__".startswith(f"{prefix}__")]
        if not prefixes:
            return None
        longest = max(prefixes, key=len)
        return f"{self.toolsets[longest]}{written[len(longest) :]}"


def _stands_in(part: JsonValue, result: JsonValue) -> bool:
    """Whether a text stands as it is in a result, between spaces or punctuation; no, if that is not
    seen in so many looks as hold nobody up.
    """
    if not isinstance(part, str) or not part.strip():
        return False
    left = _MOST_LOOKS
    for text in _texts_in(result):
        at = text.find(part)
        while at >= 0 and left > 0:
            if _stands_alone(text, at, at + len(part)):
                return True
            left -= 1
            at = text.find(part, at + 1)
        left -= 1 + len(text) // _CHARACTERS_OF_LOOK
        if left <= 0:
            return False
    return False


def _stands_alone(text: str, begin: int, end: int) -> bool:
    before, after = text[max(begin - 1, 0) : begin], text[end : end + _MOST_SIGNS]
    rest = after.lstrip(_ENDING)
    continues = _joins(rest[:1]) if rest else len(after) == _MOST_SIGNS
    return not (_joins(before) or before == "." or continues)


def _joins(sign: str) -> bool:
    return sign.isalnum() or sign in _JOINING


def _texts_in(value: JsonValue) -> Iterator[str]:
    """All texts of a value, those of its names not."""
    pending = [value]
    while pending:
        match pending.pop():
            case str(text):
                yield text
            case Mapping() as members:
                pending.extend(members.values())
            case list() | tuple() as items:
                pending.extend(items)


def _reaches_out(tool: ToolSpec) -> bool:
    """Whether it reads or changes anything that is not the run's own."""
    is_own = tool.effect is Effect.PURE and tool.reads is Reads.TRUSTED
    return not (is_own or tool.is_contained)


def missing_permission(
    permissions: Permissions, uses: Iterable[ToolsetUse], tool: ToolSpec
) -> str | None:
    """The permission that a recipe's own tool lacks, whatever recipes are around it; None: none.

    Args:
        uses: The toolsets that the recipe opens.
    """
    return _OwnRights.by(permissions, uses).missing(tool, is_own=True)


_ASK: Final = UntrustedRule.ASK
_STRICTNESS: Final = (UntrustedRule.ALLOW, _ASK, UntrustedRule.REFUSE)


def stricter(*rules: UntrustedRule) -> UntrustedRule:
    """The strictest of these."""
    return max(rules, key=_STRICTNESS.index)


class Rights(Struct, frozen=True):
    """The rights of a recipe at its place in a run."""

    _said: tuple[_OwnRights, ...]
    """What is stated: by the operator, if anything is, the outer recipes, then by this one."""

    @classmethod
    def of(
        cls,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue] | None = None,
        operator: OperatorRules | None = None,
    ) -> Rights:
        """The rights of the outermost recipe.

        Args:
            inputs: Those of a run, which its conditions read; None: none is meant.
            operator: What counts beside what recipes say; None: nothing does.
        """
        own = _OwnRights.of(recipe, inputs)
        if operator is None or not operator.judges_calls:
            return cls((own,))
        return cls((_OwnRights.of_operator(operator), own))

    def within(self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue] | None = None) -> Rights:
        """The rights of a recipe that is a step of this one.

        Args:
            inputs: Those of a run, which its conditions read; None: none is meant.
        """
        return Rights((*self._said, _OwnRights.of(recipe, inputs)))

    @property
    def may_write(self) -> bool:
        """Whether tools that declare a write may be called, apart from
        permissions for single tools.
        """
        return all(each.permissions.allow_write for each in self._said)

    def missing(self, tool: ToolSpec) -> str | None:
        """The permission that the tool lacks: `allow_write` or `allow_<tool>`, as the outermost
        recipe that denies it calls it; None: the tool may be called.
        """
        own = self._said[-1]
        for each in self._said:
            if (name := each.missing(tool, is_own=each is own)) is not None:
                return name
        return None

    def allows(self, tool: ToolSpec) -> bool:
        """Whether the tool may be called."""
        return self.missing(tool) is None

    def takes_effect(self, tool: ToolSpec) -> bool:
        """Whether the tool writes, sends or spends outside of the run, as it declares; one that
        declares nothing does if writes are allowed.
        """
        if tool.is_contained:
            return False
        if tool.effect is Effect.UNDECLARED:
            return self._said[-1].permissions.tools.get(tool.name) is True or self.may_write
        return tool.is_write

    @property
    def untrusted(self) -> UntrustedRule:
        """What becomes of a call with an effect whose arguments may hold strangers' words: the
        strictest that a recipe here says; a person is asked where none says anything.
        """
        if len(self._said) == 1:
            return self._said[0].permissions.untrusted or _ASK
        said = [each.permissions.untrusted for each in self._said]
        return stricter(*(rule for rule in said if rule is not None)) if any(said) else _ASK

    def untrusted_of(self, tool: ToolSpec) -> UntrustedRule:
        """As `untrusted`, of calls of one tool of which no policy is true."""
        first = self._said[0]
        if first.is_operators and first.has_policy(tool):
            return stricter(self.untrusted, first.permissions.untrusted or _ASK)
        return self.untrusted

    @property
    def approval_timeout_s(self) -> float | None:
        """Seconds for which a call waits for an approval: the shortest that a recipe here says;
        None: for as long as it takes.
        """
        said = [each.permissions.approval_timeout_s for each in self._said]
        return min((each for each in said if each is not None), default=None)

    def approval_rules(self, tool: ToolSpec, arguments: str) -> tuple[CallRule, ...]:
        """Who may approve a call that needs approval: all of these have to be fulfilled. Where a
        rule does not say how long it waits, `approval_timeout_s` does.

        Args:
            arguments: As JSON text.
        """
        if not any(each.permissions.approval_rules for each in self._said):
            return ()
        own, timeout_s = self._said[-1], self.approval_timeout_s
        return tuple(
            replace(rule, rule=_with_timeout(rule.rule, timeout_s))
            for each in self._said
            for rule in each.rules_of(tool, arguments, is_own=each is own)
        )

    def reviewers(self, tool: ToolSpec) -> Mapping[str, Reviewer]:
        """The recipes that may look at calls of that tool, by name."""
        own = self._said[-1]
        rules = (rule for each in self._said for rule in each.rules_about(tool, is_own=each is own))
        return {each.reviewer.name: each.reviewer for each in rules if each.reviewer is not None}

    @property
    def remind_every_s(self) -> float | None:
        """Seconds after which hooks are reminded of what waits: the fewest that a recipe here
        says; None: they are told once.
        """
        said = [each.permissions.remind_every_s for each in self._said]
        return min((each for each in said if each is not None), default=None)

    def untrusted_call(self, tool: ToolSpec, arguments: str, words: CallWords) -> UntrustedRule:
        """As `untrusted`, for one call: a policy that is true of it allows it.

        Args:
            arguments: As JSON text.
            words: Whose they may be.
        """
        own = self._said[-1]
        said = [each.untrusted(tool, arguments, words, is_own=each is own) for each in self._said]
        return stricter(*(rule for rule in said if rule is not None)) if any(said) else _ASK

    def untrusted_model(self, config: ModelConfig) -> UntrustedRule:
        """As `untrusted`, of a call of another party's model with private data in its prompt: what
        a recipe names in `private_models` it allows, unless a stranger brought it.
        """
        if any(each.permissions.is_strangers for each in self._said):
            return stricter(self.untrusted, _ASK)
        said = [
            UntrustedRule.ALLOW
            if config.is_among(each.permissions.private_models)
            else each.permissions.untrusted
            for each in self._said
        ]
        return stricter(*(rule for rule in said if rule is not None)) if any(said) else _ASK

    def needs_approval(self, tool: ToolSpec, arguments: str | None = None) -> bool:
        """Whether each call of the tool needs approval, or this one.

        Args:
            arguments: Of the call, as JSON text; None: no call is meant.
        """
        own = self._said[-1]
        for each in self._said:  # noqa: SIM110  # two calls less for each tool call
            if each.asks(tool, is_own=each is own, arguments=arguments):
                return True
        return False


def _with_timeout(rule: ApprovalRule, timeout_s: float | None) -> ApprovalRule:
    stages = tuple(
        each if each.expires_s is not None else structs.replace(each, expires_s=timeout_s)
        for each in rule.stages
    )
    return structs.replace(rule, stages=stages)


# --- the models that private data may reach ------------------------------------------------------


class PrivateReaders(Struct, frozen=True):
    """The models that read private data without being another party: that of the run, what the
    operator names, and what stays on this machine.
    """

    operator: frozenset[str]
    run: ModelConfig | None
    """The run's model; None: no recipe chooses a party, as where nothing that one says counts."""

    @classmethod
    def of(
        cls, recipe: AgentRecipe, operator: OperatorRules | None = None, *, in_full: bool = False
    ) -> PrivateReaders:
        """Those of runs of the recipe. The model of a run is what the recipe names for all of its
        steps, else that of the first step that asks one.

        Args:
            in_full: Whether nothing that a recipe says makes a model one that may read them.
        """
        named = operator.private_models if operator is not None else frozenset[str]()
        return cls(named, None if in_full else next(_models_of(recipe), ModelConfig()))

    def rule(self, config: ModelConfig, rights: Rights) -> UntrustedRule:
        """What becomes of a call of that model with private data in its prompt.

        Args:
            rights: Those of the recipe whose step calls it.
        """
        if config.is_here or (self.run is not None and config.party == self.run.party):
            return UntrustedRule.ALLOW
        if config.base_url is None and config.is_among(self.operator):
            return UntrustedRule.ALLOW
        return rights.untrusted_model(config) if self.run is not None else _ASK


def _models_of(recipe: AgentRecipe) -> Iterator[ModelConfig]:
    """The model of a recipe, then those of its steps, from the first one on."""
    if recipe.model.name is not None:
        yield recipe.model
    for step in (each for each in recipe.steps if isinstance(each, StepSpec)):
        if step.own_model is not None and step.own_model.name is not None:
            yield step.own_model
        elif step.asks_model:
            yield recipe.model
        if step.inner is not None:
            yield from _models_of(step.inner)


# --- the specs of the tools that a recipe can call -----------------------------------------------


def tool_specs(recipe: AgentRecipe, catalog: Catalog) -> Mapping[str, ToolSpec]:
    """Specs by full name: tools of the toolsets that the recipe requests, and registered tools.

    `reads` of a toolset in the recipe replaces what its reading tools declare; under the strictest
    operator no recipe says that they read what can be trusted.
    """
    in_full = catalog.is_strict_in_full
    specs = dict(catalog.tools)
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        named = toolset.specs_under(use.prefix) if toolset is not None else ()
        if use.reads is not None and not (in_full and use.reads is Reads.TRUSTED):
            reads = use.reads
            named = tuple(evolve(x, reads=reads) if x.is_untrusted else x for x in named)
        specs.update({spec.name: spec for spec in named})
    return specs
