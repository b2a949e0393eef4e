"""What a change of a recipe breaks for whoever calls it: other recipes, programs, schedules, stubs.

Inputs may only take more, outputs only give less than before; a right that a caller has to grant,
and an approval that it has to wait for, are part of the contract as well. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from attrs import frozen

from minions.analysis.bounds import Bound, Place, StepKinds, recipe_bound
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Excess, Shape, excesses
from minions.recipe.model import AgentRecipe, InputSpec, Permissions, UntrustedRule
from minions.recipe.permissions import tool_specs


class ChangeLevel(Enum):
    """What a version number would say of a change. Source: Semantic Versioning 2.0.0."""

    MAJOR = "major"
    """A caller that was right before may fail now."""
    MINOR = "minor"
    """Callers may do more, or have to know something."""
    PATCH = "patch"
    """No caller sees it."""


@frozen(kw_only=True)
class ContractChange:
    """One difference between two versions of a recipe that a caller may notice."""

    level: ChangeLevel
    place: str
    """What changed: `inputs.topic`, `output.items[].price`, `permissions.allow_write` …"""
    message: str

    def to_json(self) -> dict[str, JsonValue]:
        """`{"level", "place", "message"}`."""
        return {"level": self.level.value, "place": self.place, "message": self.message}


@frozen(kw_only=True)
class RecipeVersion:
    """One version of a recipe, with what is known of its output."""

    recipe: AgentRecipe
    output: JsonSchema
    """{}: nothing is known."""


def contract_changes(
    before: RecipeVersion, after: RecipeVersion, catalog: Catalog, kinds: StepKinds
) -> tuple[ContractChange, ...]:
    """Every difference, the breaking ones first.

    Args:
        catalog: What both versions may name.
        kinds: As for `explain`.
    """
    found = [
        *_identity(before.recipe, after.recipe),
        *_inputs(before.recipe.inputs, after.recipe.inputs),
        *_outputs(before.output, after.output),
        *_permissions(before.recipe, after.recipe),
        *_bounds(before.recipe, after.recipe, catalog, kinds),
    ]
    order = list(ChangeLevel)
    return tuple(sorted(found, key=lambda each: order.index(each.level)))


def level_of(changes: tuple[ContractChange, ...]) -> ChangeLevel:
    """The level of all these changes together; none is a patch."""
    order = list(ChangeLevel)
    return min((each.level for each in changes), key=order.index, default=ChangeLevel.PATCH)


def _change(level: ChangeLevel, place: str, message: str) -> ContractChange:
    return ContractChange(level=level, place=place, message=message)


def _identity(before: AgentRecipe, after: AgentRecipe) -> Iterator[ContractChange]:
    if before.id != after.id:
        message = f"is '{after.id}', and was '{before.id}': who names it by its id does not find it"
        yield _change(ChangeLevel.MAJOR, "id", message)


# --- inputs: what callers give ------------------------------------------------------------------


def _inputs(
    before: Mapping[str, InputSpec], after: Mapping[str, InputSpec]
) -> Iterator[ContractChange]:
    for name, spec in before.items():
        place = f"inputs.{name}"
        now = after.get(name)
        if now is None:
            yield _change(ChangeLevel.MAJOR, place, "is gone: who gives it is refused")
            continue
        if spec.is_secret is not now.is_secret:
            what = "a reference to a secret" if now.is_secret else "a value, and was a secret"
            yield _change(ChangeLevel.MAJOR, place, f"takes {what}")
            continue
        for excess in excesses(Shape.of(spec.schema), Shape.of(now.schema)):
            yield _change(ChangeLevel.MAJOR, _at(place, excess), _describe_excess(excess))
        if spec.has_default and not now.has_default:
            yield _change(ChangeLevel.MAJOR, place, "has no default now: who left it out fails")
        elif now.has_default and not spec.has_default:
            yield _change(ChangeLevel.MINOR, place, "may be left out now")
        elif now.default != spec.default:
            message = f"has another default: {_short(now.default)}, and was {_short(spec.default)}"
            yield _change(ChangeLevel.MINOR, place, message)
        if any(True for _ in excesses(Shape.of(now.schema), Shape.of(spec.schema))):
            yield _change(ChangeLevel.MINOR, place, "takes more than before")
    for name in after.keys() - before.keys():
        is_needed = not after[name].has_default
        level = ChangeLevel.MAJOR if is_needed else ChangeLevel.MINOR
        more = ", and has no default: who does not give it is refused" if is_needed else ""
        yield _change(level, f"inputs.{name}", f"is new{more}")


def _describe_excess(excess: Excess) -> str:
    if excess.is_unclear:
        return f"cannot be compared: {excess.reason}"
    return f"refuses what it took: {excess.reason}"


# --- output: what callers read -------------------------------------------------------------------


def _outputs(before: JsonSchema, after: JsonSchema) -> Iterator[ContractChange]:
    if not before:
        if after:
            yield _change(ChangeLevel.MINOR, "output", "has a type now, and had none that is known")
        return
    if not after:
        yield _change(ChangeLevel.MAJOR, "output", "has no known type any more")
        return
    found = excesses(Shape.of(after), Shape.of(before))
    for excess in found:
        level = ChangeLevel.MINOR if excess.is_more_fields else ChangeLevel.MAJOR
        verb = "cannot be compared" if excess.is_unclear else "gives what it never gave"
        yield _change(level, _at("output", excess), f"{verb}: {excess.reason}")
    told = {_at("output", each) for each in found}
    for name in sorted(_names(before) - _names(after)):
        if f"output.{name}" in told:
            continue
        yield _change(ChangeLevel.MAJOR, f"output.{name}", "is gone: who reads it fails")


def _names(schema: JsonSchema, prefix: str = "", depth: int = 0) -> set[str]:
    """The paths of all fields that are known, `a.b[].c`."""
    names: set[str] = set()
    shape = Shape.of(schema)
    pending = [(prefix, shape, depth)]
    while pending:
        path, part, level = pending.pop()
        if level > _DEEPEST:
            continue
        for name in part.names():
            at = f"{path}.{name}" if path else name
            names.add(at)
            pending.append((at, part.at((name,)), level + 1))
        if part.kinds() == frozenset(("array",)):
            pending.append((f"{path}[]", part.items(), level + 1))
    return names


_DEEPEST: Final = 20


# --- rights and bounds ---------------------------------------------------------------------------


def _permissions(before: AgentRecipe, after: AgentRecipe) -> Iterator[ContractChange]:
    was, now = before.permissions, after.permissions
    if now.allow_write and not was.allow_write:
        message = "is asked for: a recipe that runs this one has to allow it, too"
        yield _change(ChangeLevel.MAJOR, "permissions.allow_write", message)
    elif was.allow_write and not now.allow_write:
        yield _change(ChangeLevel.MINOR, "permissions.allow_write", "is not asked for any more")
    for name in sorted(now.tools.keys() | was.tools.keys()):
        asked, asked_before = now.tools.get(name), was.tools.get(name)
        if asked == asked_before:
            continue
        place = f"permissions.allow_{name}"
        if asked and not (was.allow_write and asked_before is None):
            message = "is asked for: a recipe that runs this one has to allow it, too"
            yield _change(ChangeLevel.MAJOR, place, message)
        else:
            yield _change(ChangeLevel.MINOR, place, "is asked for otherwise than before")
    yield from _rules_of_calls(was, now)
    for name in was.requires_approval:
        if name not in now.requires_approval:
            message = f"'{name}' is called without approval"
            yield _change(ChangeLevel.MINOR, "permissions.requires_approval", message)


def _rules_of_calls(was: Permissions, now: Permissions) -> Iterator[ContractChange]:
    """Which calls wait for a person, and which are refused."""
    if now.untrusted is not was.untrusted:
        rules = [
            each.untrusted.value if each.untrusted is not None else "ask" for each in (was, now)
        ]
        level = ChangeLevel.MAJOR if now.untrusted is not UntrustedRule.ALLOW else ChangeLevel.MINOR
        message = f"is '{rules[1]}', and was '{rules[0]}'"
        if rules[0] != rules[1]:
            yield _change(level, "permissions.untrusted", message)
    for name in was.private_models:
        if name not in now.private_models:
            message = f"private data reach '{name}' after a person approved it: who runs it waits"
            yield _change(ChangeLevel.MAJOR, "permissions.private_models", message)
    for name in now.requires_approval:
        if name not in was.requires_approval:
            message = f"each call of '{name}' waits for a person: who runs it unattended stops"
            yield _change(ChangeLevel.MAJOR, "permissions.requires_approval", message)
    for name, conditions in now.approval_when.items():
        for condition in conditions:
            if condition not in was.approval_when.get(name, ()):
                message = f"calls of '{name}' wait for a person where {condition}"
                yield _change(ChangeLevel.MAJOR, "permissions.requires_approval", message)
    for rule in now.approval_rules:
        if rule not in was.approval_rules:
            message = (
                f"calls of {', '.join(map(repr, rule.tools))} are decided by others, or sooner"
            )
            yield _change(ChangeLevel.MAJOR, "permissions.requires_approval", message)
    for name in was.policies:
        if now.policies.get(name) != was.policies[name]:
            message = f"other calls of '{name}' than before are made with strangers' words in them"
            yield _change(ChangeLevel.MAJOR, "permissions.policies", message)


def _bounds(
    before: AgentRecipe, after: AgentRecipe, catalog: Catalog, kinds: StepKinds
) -> Iterator[ContractChange]:
    was, now = (
        recipe_bound(Place.of_run(each, lambda inner: tool_specs(inner, catalog), kinds))
        for each in (before, after)
    )
    pairs = (
        ("model_calls", "model calls", was.model_calls, now.model_calls),
        ("tool_calls", "tool calls", was.tool_calls, now.tool_calls),
    )
    for name, words, old, new in pairs:
        if _exceeds(new, old):
            message = f"at most {_amount(new)} {words}, and were {_amount(old)}: limits of callers"
            yield _change(ChangeLevel.MINOR, f"bound.{name}", f"{message} may end it")


def _exceeds(now: Bound, was: Bound) -> bool:
    if was.unbounded:
        return False
    return bool(now.unbounded) or now.known > was.known


def _amount(bound: Bound) -> str:
    return "any number of" if bound.unbounded else str(bound.known)


def _at(place: str, excess: Excess) -> str:
    for part in excess.path:
        place += "[]" if part == "[]" else f".{part}"
    return place


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST: Final = 60
