"""The parts of a recipe other than steps: inputs, model, tools, limits, retry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

import attrs
from msgspec import Struct, structs

from minions.contracts.approvals import ApprovalRule
from minions.contracts.context import Limits
from minions.contracts.instructions import OutputMode, OutputRung
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.retry_config import RetryConfig
from minions.contracts.secrets import SecretRef
from minions.data.errors import Fault, MetadataError, UsageError, is_one_edit
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Shape, find_dead_end
from minions.recipe.drafts import (
    RecipeDraft,
    TemplateUse,
    ToolNames,
    read_condition,
    read_templates,
)
from minions.recipe.expressions.values import Reference, nearest
from minions.recipe.kinds.goal_kind import context_texts
from minions.recipe.language import recipe_keys as keys
from minions.recipe.language import step_keys as model_keys
from minions.recipe.model import CallRule, ExecutionMode, InputSpec, Permissions, UntrustedRule
from minions.recipe.model_config import LOCAL_MODEL, ModelConfig
from minions.recipe.nested_recipes import recipes_within
from minions.recipe.permissions import BY_ARGUMENT, DECIDED_BY, READ_BY_POLICIES
from minions.recipe.text.key_types import STEP_PATTERN, Key
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    Place,
    ScalarNode,
    SequenceNode,
    to_plain,
)
from minions.recipe.text.schemas import KEYWORDS, TYPES, read_schema, short_type
from minions.recipe.text.sections import (
    TYPE_WORDS,
    Report,
    Section,
    check_value,
    enum_hint,
    is_of_type,
    masked,
    read_duration,
    read_section,
    read_texts,
    suggestion,
    truth_help,
    type_hint,
    type_of,
)

if TYPE_CHECKING:
    from minions.recipe.reading.approval_reading import FindReviewer


def read_settings(section: Section, catalog: Catalog, report: Report) -> RecipeDraft:
    """Read everything but the steps and the permissions, which may name tools of nested recipes."""
    draft = RecipeDraft(section=section)
    draft.mode = ExecutionMode(section.text("execution_mode") or ExecutionMode.SEQUENTIAL)
    draft.inputs = _read_inputs(section.mapping("inputs"), report)
    if (model := section.node("model")) is not None:
        draft.model = read_model(model, catalog, report)
    draft.limits = read_limits(section.node("limits"), report)
    draft.retain_s = read_duration(section, "retain", report)
    draft.redact = _read_kinds(section, catalog, report)
    draft.retry = read_retry(section.node("retry"), draft.retry, report) or draft.retry
    if section.node("tools") is None:
        draft.tools = ToolNames(specs=dict(catalog.tools), prefixes={}, is_complete=True)
    else:
        from minions.recipe.reading.toolset_reading import read_tools

        read_tools(draft, catalog, report)
    context = context_texts(section.items("context")) or (section.scalar("context"),)
    prompts = (section.node("system_prompt"), *context, section.node("goal"))
    if section.text("context") is not None and section.node("system_prompt") is not None:
        message = "a text under 'context' is another name of 'system_prompt'"
        help_ = "keep one of them, or write context: [{text: …}]"
        report(section.place_of("context").fault("kind-conflict", message, help=help_))
    templates = [use for node in prompts for use in read_templates(node, report, draft.templates)]
    draft.prompt_templates = (*draft.prompt_templates, *templates)
    draft.output_templates = read_templates(section.node("output"), report, draft.templates)
    return draft


def _read_kinds(section: Section, catalog: Catalog, report: Report) -> tuple[str, ...]:
    """The kinds that are redacted; those that nothing finds are reported, where that is known."""
    kinds = read_texts(section.items("redact"), "a kind", report)
    for kind in kinds:
        known = catalog.redactors
        if known is not None and kind.text not in known:
            report(
                kind.node.place.fault(
                    "unknown-redactor",
                    f"nothing here finds '{kind.text}'",
                    label=suggestion(kind.text, tuple(sorted(known))),
                    help=f"known kinds are: {', '.join(sorted(known)) or 'none'}",
                )
            )
    return tuple(kind.text for kind in kinds)


# --- inputs ----------------------------------------------------------------------------------


def _read_inputs(node: MappingNode | None, report: Report) -> dict[str, InputSpec]:
    inputs = {}
    for entry in node.entries if node else ():
        key = Key(name="an input's name", pattern=STEP_PATTERN)
        if (fault := check_value(entry.key_node, key)) is not None:
            report(fault)
        inputs[entry.key] = _read_input(entry.value, report)
    return inputs


def _read_input(node: Node, report: Report) -> InputSpec:
    """One declared input; a faulty one accepts any value, so that
    references to it are not reported.
    """
    if isinstance(node, ScalarNode) and node.value not in TYPES:
        _report_foreign_type(node, report)
        return _short_input(node.value)
    if isinstance(node, ScalarNode) or _is_list_type(node):
        return InputSpec(schema=short_type(node, report) or {})
    if not isinstance(node, MappingNode):
        message = f"an input is a JSON Schema or a default, but this is {type_of(node)}"
        values = to_plain(node)
        choices = enum_hint(values) if isinstance(values, list) else None
        hint = "write {type: array, default: [...]}"
        hint = f"{hint}; for a choice of these {choices}" if choices else hint
        report(node.place.fault("wrong-type", message, help=hint))
        return InputSpec(schema={})
    required = node.find("required")
    if required is not None and isinstance(required.value, ScalarNode):
        report(
            required.key_node.place.fault(
                "bad-schema",
                "'required' is not a key of an input",
                help="an input without a default is required; give a default to make it optional",
            )
        )
        return InputSpec(schema={})
    if (secret := node.find("secret")) is not None:
        if _is_false(secret.value):
            node = _without(node, secret)
        else:
            return _read_secret(node, report)
    return _read_open(node, report)


def _read_open(node: MappingNode, report: Report) -> InputSpec:
    """An input that is not secret."""
    said: dict[str, bool] = {}
    for flag in (_UNTRUSTED, _PRIVATE):
        if (entry := node.find(flag.name)) is not None:
            if (fault := check_value(entry.value, flag)) is not None:
                report(fault)
            said[flag.name] = not _is_false(entry.value)
            node = _without(node, entry)
    schema = read_schema(node, report)
    if schema is None:
        return InputSpec(schema={})
    default = node.find("default")
    if default is not None:
        _check_default(default, schema, report)
    return InputSpec(
        schema={name: value for name, value in schema.items() if name != "default"},
        default=schema.get("default"),
        has_default=default is not None,
        description=str(schema.get("description", "")),
        is_untrusted=any(said.values()),
        is_private=said.get("private", False),
    )


_MISSPELT: Final = tuple(each for each in TYPES if each != "null")
_WORDS_LIKE_TYPES: Final = frozenset(
    [
        "strong",
        "strung",
        "sting",
        "strings",
        "lumber",
        "numbers",
        "integers",
        "booleans",
        "objects",
        "abject",
        "arrays",
    ]
)
"""Words that may well be defaults, though they are one letter away from a type."""
_UNTRUSTED: Final = Key(name="untrusted", types=("boolean",))
_PRIVATE: Final = Key(name="private", types=("boolean",))


def _report_foreign_type(node: ScalarNode, report: Report) -> None:
    """Report a default that is nearly a type, and warn of one that is another language's."""
    word = node.value if isinstance(node.value, str) else ""
    near = None
    if word.isalpha() and word not in TYPE_WORDS:
        near = next((each for each in _MISSPELT if is_one_edit(word, each)), None)
    if near is not None and word not in _WORDS_LIKE_TYPES and node.source.lines:
        report(
            node.place.fault(
                "bad-schema",
                f"'{node.value:.40}' is no type",
                label=f"did you mean '{near}'?",
                help=f"if it is the default, write {{type: string, default: {node.value:.40}}}",
            )
        )
        return
    hint = TYPE_WORDS.get(f"{node.value}") or type_hint(f"{node.value}")
    if hint is not None and f"{node.value}".endswith("?"):
        hint = hint.replace("}", ", default: null}")
    if not isinstance(node.value, str) or hint is None:
        return
    report(
        node.place.fault(
            "bad-schema",
            f"'{node.value}' is a default here, not a type",
            label=hint,
            help=f"if it is the default, write {{type: string, default: {node.value}}}",
            is_warning=True,
        )
    )


def _is_list_type(node: Node) -> TypeGuard[SequenceNode]:
    """Whether it is a list type such as `[string]`."""
    if not isinstance(node, SequenceNode) or len(node.items) != 1:
        return False
    item = node.items[0]
    return isinstance(item, ScalarNode) and (item.value in TYPES or item.value in TYPE_WORDS)


def _is_false(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is False


def _without(node: MappingNode, entry: Entry) -> MappingNode:
    return structs.replace(node, entries=tuple(each for each in node.entries if each is not entry))


_OF_OTHERS: Final = dict.fromkeys(KEYWORDS, "an input that is not secret")


def _read_secret(node: MappingNode, report: Report) -> InputSpec:
    """A secret input. Its schema has no constraints: the message of a
    failed check would show the value.
    """
    default = node.find("default")
    if default is not None and not _is_reference(default.value):
        report(_make_masked_fault(default.value))
        node = _without(node, default)
    section = read_section(node, keys.SECRET_INPUT, report, _OF_OTHERS)
    return InputSpec(
        schema={"type": "string"},
        default=section.text("default"),
        has_default=default is not None,
        description=section.text("description") or "",
        is_secret=True,
    )


def _is_reference(node: Node) -> bool:
    text = node.value if isinstance(node, ScalarNode) else None
    try:
        return isinstance(text, str) and bool(SecretRef.parse(text))
    except UsageError:
        return False


def _make_masked_fault(node: Node) -> Fault:
    return masked(
        node.place.fault(
            "literal-secret",
            "the default of a secret input is a reference, not the value itself",
            help="write env:NAME for an environment variable, or file:/absolute/path",
        )
    )


def _short_input(value: None | bool | int | float | str) -> InputSpec:
    """The short form of an input that names no type: null for any required value, else
    a default that determines the type.
    """
    if value is None:
        return InputSpec(schema={})
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return InputSpec(schema={"type": names[type(value)]}, default=value, has_default=True)


def _check_default(entry: Entry, schema: JsonSchema, report: Report) -> None:
    value = to_plain(entry.value)
    kind = schema.get("type")
    is_simple = isinstance(kind, str) and set(schema) <= {
        "type",
        "description",
        "default",
        "format",
    }
    if is_simple and is_of_type(entry.value, str(kind)):
        return  # the common case needs no validator
    for error in SchemaValidator(schema).errors(value):
        message = f"the default does not fit the input's schema: {error}"
        report(entry.value.place.fault("bad-value", message))


# --- model, retry, limits -----------------------------------------------------------------------


def read_model(node: Node, catalog: Catalog, report: Report) -> ModelConfig:
    """Model settings from a name or a mapping; of a list the first, with the others as tiers."""
    if isinstance(node, SequenceNode):
        return _read_tiers(node, catalog, report)
    if isinstance(node, ScalarNode):
        config = ModelConfig(name=_model_name(node, catalog, report))
        _check_server(config, {"name": node}, catalog, report)
        return config
    section = read_section(node, model_keys.MODEL, report)
    if (name_node := section.scalar("name")) is not None:
        _model_name(name_node, catalog, report)
    if (url := section.scalar("base_url")) is not None:
        try:
            check_base_url(str(url.value), "'base_url'")
        except UsageError as error:
            message, _, expected = error.message.partition(". Expected ")
            report(url.place.fault("bad-value", message, help=f"expected {expected}"))
    values = _model_values(section, catalog, report)
    if (extra := section.mapping("extra")) is not None:
        _check_extra(extra, report)
    config = ModelConfig(**values)  # type: ignore[arg-type]  # the table checked them
    places = {name: entry.value for name, entry in section.entries.items()}
    _check_server(config, places, catalog, report)
    return config


def _model_values(section: Section, catalog: Catalog, report: Report) -> dict[str, object]:
    """The values of a model's mapping, as `ModelConfig` has them."""
    values: dict[str, object] = {**section.values()}
    if "output_mode" in values:
        values["output_mode"] = OutputMode(str(values["output_mode"]))
    if "output_ladder" in values:
        values["output_ladder"] = _read_ladder(section.items("output_ladder"), report)
    if (stop := values.get("stop")) is not None:
        texts = stop if isinstance(stop, list) else [stop]
        values["stop"] = tuple(str(text) for text in texts)
    if "fallbacks" in values:
        values["fallbacks"] = _read_fallbacks(section.items("fallbacks"), catalog, report)
    return values


def _read_tiers(node: SequenceNode, catalog: Catalog, report: Report) -> ModelConfig:
    if not node.items:
        message = "the list of models is empty"
        report(node.place.fault("bad-value", message, help="name one model or more"))
        return ModelConfig()
    for item in node.items:
        if isinstance(item, SequenceNode):
            report(item.place.fault("bad-value", "a model cannot be a list within a list"))
            return ModelConfig()
    first, *others = (read_model(item, catalog, report) for item in node.items)
    for item, config in zip(node.items[1:], others, strict=True):
        if config.name is None:
            report(item.place.fault("bad-value", "a further model needs a name"))
    return attrs.evolve(first, tiers=tuple(others) or None)


def _read_fallbacks(
    items: Sequence[Node], catalog: Catalog, report: Report
) -> tuple[ModelConfig, ...] | None:
    """The models that are asked instead; each is one model with a name, and has no fallbacks."""
    found: list[ModelConfig] = []
    for item in items:
        config = read_model(item, catalog, report)
        if isinstance(item, SequenceNode) or config.fallbacks is not None:
            report(item.place.fault("bad-value", "a fallback is one model, without further ones"))
        elif config.name is None:
            report(item.place.fault("bad-value", "a fallback needs a name"))
        else:
            found.append(config)
    return tuple(found) or None


def _read_ladder(items: Sequence[Node], report: Report) -> tuple[str, ...]:
    """The rungs of a ladder; what is none of them, or stands twice, is reported."""
    known = [each.value for each in (*OutputMode, *OutputRung)]
    rungs: list[str] = []
    for item in items:
        name = str(to_plain(item))
        if name not in known or name in rungs:
            what = "stands twice" if name in rungs else "is no rung of the output ladder"
            expected = f"expected some of {', '.join(known)}"
            report(item.place.fault("bad-value", f"'{name}' {what}", help=expected))
        rungs.append(name)
    return tuple(rungs)


def _check_server(
    config: ModelConfig, places: Mapping[str, Node], catalog: Catalog, report: Report
) -> None:
    """Report a model that the operator's settings refuse.

    Args:
        places: The nodes of the settings, by name.
    """
    if catalog.check_model is None or config.name is None or config.name in catalog.models:
        return
    if "{{" in config.name or "/" not in config.name.strip("/"):
        return  # reported already
    try:
        catalog.check_model(config, places["name"].place.source.file)
    except UsageError as error:
        key = {"key-not-allowed": "api_key_env", "no-confidence": "min_confidence"}.get(
            error.error_code, "name"
        )
        message, _, remedy = error.message.partition(". ")
        report(places[key].place.fault(error.error_code, message, help=remedy))


_OWN_FIELDS: Final = frozenset(
    (
        *("max_completion_tokens", "max_tokens", "messages", "model", "reasoning_effort"),
        *("response_format", "seed", "stop", "stream", "stream_options", "temperature"),
        *("tool_choice", "tools", "top_p"),
    )
)
"""Fields of a request that have a key of their own, or that Minions sets."""


def _check_extra(extra: MappingNode, report: Report) -> None:
    for entry in extra.entries:
        if entry.key in _OWN_FIELDS:
            message = f"'extra' cannot set '{entry.key}', which Minions sets"
            help_text = "it has a key of its own" if entry.key in _KEYED else None
            report(entry.place.fault("bad-value", message, help=help_text))


_KEYED: Final = frozenset(key.name for key in model_keys.MODEL.keys) & _OWN_FIELDS


def _model_name(node: ScalarNode, catalog: Catalog, report: Report) -> str:
    name = str(node.value)
    provider, slash, rest = name.partition("/")
    if "{{" in name:
        report(node.place.fault("bad-value", "a model's name cannot be a template"))
    elif name not in {LOCAL_MODEL, *catalog.models} and not (provider and slash and rest):
        known = tuple(sorted(catalog.models))
        report(
            node.place.fault(
                "unknown-model",
                f"unknown model '{name}'",
                label=suggestion(name, known),
                help="write provider/name, such as openai/gpt-5-mini"
                + (f", or one of: {', '.join(known)}" if known else ""),
            )
        )
    return name


def read_retry(node: Node | None, base: RetryConfig, report: Report) -> RetryConfig | None:
    """The retry settings over `base`, whose stated ones they join; None: there are none."""
    if node is None:
        return None
    values = read_section(node, keys.RETRY, report).values()
    stated = (base.stated or frozenset()) | set(values)
    return attrs.evolve(base, stated=stated, **values)  # type: ignore[arg-type]  # the table checked them


def read_limits(
    node: Node | None, report: Report, *, is_of_step: bool = False
) -> dict[str, JsonValue]:
    """Limits as written; a step may state only those that apply to one step."""
    if node is None:
        return {}
    section = read_section(node, keys.LIMITS, report)
    for name, entry in section.entries.items() if is_of_step else ():
        if keys.STEP_LIMITS.find(name) is None:
            place = entry.key_node.place
            message = f"the limit '{entry.key}' is the run's; a step cannot have its own"
            report(place.fault("bad-value", message, help="set it under 'limits' of the recipe"))
    values = section.values()
    try:
        Limits.from_metadata(values)
    except (
        MetadataError
    ) as error:  # the key table checks the same; this catches a difference between the two
        report(section.place.fault("bad-value", error.message))
    return values


# --- the `permissions` of a recipe, for its own tools and those of its nested recipes ------------


def read_permissions(
    draft: RecipeDraft, catalog: Catalog, report: Report, find_recipe: FindReviewer
) -> Permissions:
    """The `permissions` of the recipe; nested recipes have to be loaded before.

    Args:
        find_recipe: The recipe that an approval names as its reviewer.
    Returns:
        Permissions in which names of nested recipes' tools stay as written.
    """
    node = draft.section.node("permissions")
    if node is None:
        return Permissions()
    names = _names(draft, catalog)
    own, single = _split(node, names)
    section = read_section(own, keys.PERMISSIONS, report)
    approved: list[str] = []
    policies = _Policies(draft, names, report, find_recipe, catalog.roles)
    items = section.items("requires_approval")
    conditional = [each for each in items if isinstance(each, MappingNode)]
    plain = tuple(each for each in items if not isinstance(each, MappingNode))
    for text in read_texts(plain, "a tool's name", report):
        if text.text not in names.tools and text.text not in names.toolsets:
            _report_unknown(text.node.place, text.text, names, report)
        approved += names.of(text.text)
    approvals = policies.approvals(conditional)
    rule = section.text("untrusted")
    return Permissions(
        allow_write=section.plain("allow_write", False) is True,
        tools=_list_allowed(single, names, report),
        requires_approval=tuple(dict.fromkeys((*approved, *approvals.always))),
        approval_timeout_s=_seconds(section.plain("approval_timeout_s", None)),
        remind_every_s=read_duration(section, "remind_every", report),
        approval_when=approvals.conditions,
        approval_rules=approvals.rules,
        policies=policies.policies(section.mapping("policies")),
        untrusted=UntrustedRule(rule) if rule in set(UntrustedRule) else None,
        private_models=tuple(
            each.text for each in read_texts(section.items("private_models"), "a model", report)
        ),
    )


def _seconds(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) else None


class _Approvals(Struct, frozen=True, kw_only=True):
    """The items of `requires_approval` that are mappings."""

    always: tuple[str, ...]
    """Tools of which every call needs approval."""
    conditions: Mapping[str, tuple[str, ...]]
    """Conditions of calls that need approval, by tool."""
    rules: tuple[CallRule, ...]


class _Policies(Struct, frozen=True):
    """Reads conditions over the arguments of calls."""

    draft: RecipeDraft
    names: _Names
    report: Report
    find_recipe: FindReviewer
    roles: frozenset[str]

    def approvals(self, nodes: Sequence[Node]) -> _Approvals:
        """The items of `requires_approval` that say more than the name of a tool."""
        always: list[str] = []
        conditions: dict[str, tuple[str, ...]] = {}
        rules: list[CallRule] = []
        for node in nodes:
            section = read_section(node, keys.APPROVAL, self.report)
            tool, condition = section.scalar("tool"), section.scalar("when")
            if tool is None or "when" in section.refused:
                continue
            tools = self._tools(tool.place, str(tool.value), with_toolsets=True)
            when: str | None = None
            for each in tools:
                if condition is None:
                    always.append(each)
                elif (when := self._condition(each, condition)) is not None:
                    conditions[each] = (*conditions.get(each, ()), when)
            from minions.recipe.reading.approval_reading import read_reviewer, read_rule

            rule = read_rule(section, self.roles, self.report)
            reviewer = read_reviewer(section, self.find_recipe, self.report)
            says_more = rule is not None or reviewer is not None
            if tools and says_more and (condition is None or when is not None):
                found = rule or ApprovalRule()
                rules.append(CallRule(tools=tools, when=when, rule=found, reviewer=reviewer))
        return _Approvals(always=tuple(always), conditions=conditions, rules=tuple(rules))

    def policies(self, node: MappingNode | None) -> dict[str, str]:
        """The conditions under `policies`, by tool."""
        found: dict[str, str] = {}
        for entry in node.entries if node is not None else ():
            if not isinstance(entry.value, ScalarNode):
                message = f"a policy is a condition, but this is {type_of(entry.value)}"
                self.report(entry.value.place.fault("wrong-type", message))
                continue
            for tool in self._tools(entry.key_node.place, entry.key, with_toolsets=False):
                text = self._condition(tool, entry.value, is_policy=True)
                if text is not None:
                    found[tool] = text
        return found

    def _tools(self, place: Place, name: str, *, with_toolsets: bool) -> tuple[str, ...]:
        names = self.names
        if name not in names.tools and not (with_toolsets and name in names.toolsets):
            _report_unknown(place, name, names, self.report)
            return ()
        return names.of(name) if with_toolsets else (name,)

    def _condition(self, tool: str, node: ScalarNode, *, is_policy: bool = False) -> str | None:
        """The expression, without braces; None: it is none, which was reported."""
        uses = read_condition(node, self.report, self.draft.templates)
        for use in uses:
            for reference in use.references:
                self._check(tool, use, reference, is_policy=is_policy)
        return f"{node.value}" if uses else None

    def _check(self, tool: str, use: TemplateUse, reference: Reference, *, is_policy: bool) -> None:
        path, place = reference.path, use.place_of(reference)
        name = str(path[1]) if len(path) > 1 else ""
        readable = READ_BY_POLICIES if is_policy else ("args",)
        if path[0] not in (*readable, "inputs"):
            more = (
                ", whose words are in them, `words_of.NAME`, where they stand as they are, "
                "`stands_in.NAME`, what decided of the call, `decided_by`,"
                if is_policy
                else ""
            )
            self.report(
                place.fault(
                    "unknown-reference",
                    f"'{path[0]!s:.60}' cannot be read here",
                    help=f"a condition over a call reads its arguments, `args.NAME`,{more} and the "
                    "recipe's `inputs.NAME`",
                )
            )
        elif path[0] == "inputs":
            self._check_input(place, name, is_policy=is_policy)
        elif path[0] == DECIDED_BY:
            return
        elif path[0] in BY_ARGUMENT and not name:
            self.report(
                place.fault(
                    "unknown-reference",
                    f"'{path[0]}' names no argument: as a whole it is true of every call",
                    help=f"name the argument that the policy is about, {path[0]}.NAME",
                )
            )
        elif name and (spec := self.draft.find_tool(tool)) is not None:
            shape = Shape.of(spec.parameters)
            dead = find_dead_end(shape, path[1:] if path[0] == "args" else path[1:2])
            if dead is not None:
                self.report(
                    place.fault(
                        "unknown-reference",
                        f"'{tool}' has no argument '{'.'.join(map(str, path[1:])):.60}'",
                        label=suggestion(str(path[1 + dead.depth]), dead.names),
                    )
                )

    def _check_input(self, place: Place, name: str, *, is_policy: bool) -> None:
        inputs = self.draft.inputs
        if name not in inputs:
            self.report(
                place.fault(
                    "unknown-reference",
                    f"unknown input '{name:.60}'",
                    label=suggestion(name, tuple(inputs)),
                )
            )
        elif is_policy and inputs[name].is_untrusted:
            self.report(
                place.fault(
                    "untrusted-policy",
                    f"a policy reads the untrusted input '{name}': a stranger would decide",
                    help="read inputs of whoever starts the run",
                )
            )


def tools_within(draft: RecipeDraft, catalog: Catalog) -> tuple[str, ...]:
    """Full names of the recipe's own tools, then of those of its nested recipes."""
    return _names(draft, catalog).tools


def _list_allowed(entries: list[Entry], names: _Names, report: Report) -> dict[str, bool]:
    """The permissions of single tools."""
    allowed = {}
    known = {full.casefold(): full for full in names.tools}
    for entry in entries:
        name = entry.key.removeprefix("allow_")
        tool = known.get(name.casefold())
        if tool is None and name in names.toolsets:
            _report_toolset(entry, name, names, report)
        elif tool is None:
            _report_unknown(entry.key_node.place, name, names, report)
        elif not isinstance(entry.value, ScalarNode) or not isinstance(entry.value.value, bool):
            message = f"'{entry.key}' takes true or false, but this is {type_of(entry.value)}"
            report(entry.value.place.fault("wrong-type", message, help=truth_help(entry.value)))
        else:
            allowed[tool] = entry.value.value
    return allowed


def _split(node: Node, names: _Names) -> tuple[Node, list[Entry]]:
    """The mapping without keys made of tool names, and those keys."""
    if not isinstance(node, MappingNode):
        return node, []
    known = {f"allow_{name}".casefold() for name in names.tools}

    def is_single(key: str) -> bool:
        if not key.startswith("allow_") or key in ("allow_write", "allow_<tool>"):
            return False
        return key.casefold() in known or nearest(key.removeprefix("allow_"), ("write",)) is None

    single = [entry for entry in node.entries if is_single(entry.key)]
    others = tuple(entry for entry in node.entries if entry not in single)
    return structs.replace(node, entries=others), single


def _report_toolset(entry: Entry, name: str, names: _Names, report: Report) -> None:
    """A permission for a toolset: which of its tools may be called has to be said."""
    keys_of_tools = ", ".join(f"allow_{tool}" for tool in names.toolsets[name])
    report(
        entry.key_node.place.fault(
            "unknown-tool",
            f"'{name:.60}' is a toolset, and '{entry.key}' takes one tool",
            help=f"write one of: {keys_of_tools}",
        )
    )


def _report_unknown(place: Place, name: str, names: _Names, report: Report) -> None:
    if not names.is_complete and ("__" in name or names.has_lost_recipes):
        return  # its toolset or recipe may be what is faulty, which was reported
    known = (*names.tools, *names.toolsets)
    report(
        place.fault(
            "unknown-tool",
            f"unknown tool '{name:.60}'",
            label=suggestion(name, known),
            help=f"tools are: {', '.join(names.tools) or 'none; add some under tools:'}",
        )
    )


# --- the names -----------------------------------------------------------------------------------


class _Names(Struct, frozen=True, kw_only=True):
    """The names that permissions may use."""

    tools: tuple[str, ...]
    """Full names of tools, the recipe's own first."""
    toolsets: Mapping[str, tuple[str, ...]]
    """Full names of each toolset's tools, by prefix."""
    nested: frozenset[str]
    """Prefixes of toolsets that only nested recipes open."""
    is_complete: bool
    has_lost_recipes: bool

    def of(self, name: str) -> tuple[str, ...]:
        """The tools that the name stands for; that of a nested toolset also stands for itself."""
        if name not in self.toolsets:
            return (name,)
        return (*((name,) if name in self.nested else ()), *self.toolsets[name])


def _names(draft: RecipeDraft, catalog: Catalog) -> _Names:
    own = draft.tools
    nested = {
        prefix: names
        for prefix, names in _nested_toolsets(draft, catalog).items()
        if prefix not in own.prefixes
    }
    tools = [*own.specs, *(name for names in nested.values() for name in names)]
    is_lost = any(step.kind == "recipe" and step.recipe is None for step in draft.steps)
    return _Names(
        tools=tuple(dict.fromkeys(tools)),
        toolsets={**own.prefixes, **nested},
        nested=frozenset(nested),
        is_complete=own.is_complete and not is_lost,
        has_lost_recipes=is_lost,
    )


def _nested_toolsets(draft: RecipeDraft, catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Full names of the tools of nested recipes' toolsets, by the prefix
    and by the toolset's own name.
    """
    found: dict[str, tuple[str, ...]] = {}
    for step in draft.steps:
        inner = recipes_within(step.recipe) if step.recipe is not None else ()
        for use in (use for recipe in inner for use in recipe.tools):
            if (toolset := catalog.toolsets.get(use.name)) is None:
                continue  # a registered tool, whose name is known here, too
            for prefix in (use.prefix or use.name, use.name):
                found[prefix] = tuple(f"{prefix}__{spec.name}" for spec in toolset.specs)
    return found
