"""Migration: an instruction in prose, and the recipe that turns
it into a recipe. Nothing runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.bounded_files import read_regular
from minions.data.errors import Fault, NotFoundError, RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.planning.step_edit import recipe_diff
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, Permissions
from minions.recipe.permissions import ALLOW_WRITE
from minions.recipe.reading.load import check_recipe_text, load_recipe_text
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.sections import NAME_WORDS, TYPE_WORDS
from minions.recipe.text.yaml_reader import read_document

MAX_BYTES: Final = 100_000
"""Bytes of an instruction: all of it becomes part of a prompt."""
_YAML: Final = (".yaml", ".yml")
_OLDER: Final = re.compile(r"^(?:steps|instructions):", re.MULTILINE)
"""A key of the older format."""
_ROOM: Final = "minions.planning"


@frozen(kw_only=True)
class Instruction:
    """A file that describes work in prose, or in an older format."""

    text: str
    name: str
    """The name of the recipe to be written."""
    is_recipe: bool = False
    """Whether it has steps: it is a recipe already and needs no migration."""
    permissions: Permissions = field(factory=Permissions)
    """What it says that may be changed: `allow_write`, `allow_TOOL`, `requires_approval`."""

    @property
    def may_write(self) -> bool:
        """Whether the instruction itself allows all writes."""
        return self.permissions.allow_write


def read_instruction(path: Path) -> Instruction:
    """The instruction in a YAML file or in a text file of any kind.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It cannot be read, is empty, too long, or not text.
        RecipeError: Its name says YAML, but it is not YAML.
    """
    text = _text_of(path)
    plain = _mapping_of(text, path)
    steps = plain.get("steps")
    is_yaml = path.suffix.lower() in _YAML
    return Instruction(
        text=text,
        name=_name_of(plain.get("id") or plain.get("name") or path.stem),
        is_recipe="steps" in plain if is_yaml else isinstance(steps, list | tuple),
        permissions=_permissions_in(plain.get("permissions")),
    )


def _permissions_in(said: object) -> Permissions:
    known = said if isinstance(said, Mapping) else {}
    asked = known.get("requires_approval")
    return Permissions(
        allow_write=known.get(ALLOW_WRITE) is True,
        tools={
            key.removeprefix("allow_"): value
            for key, value in known.items()
            if isinstance(key, str)
            and key.startswith("allow_")
            and key != ALLOW_WRITE
            and isinstance(value, bool)
        },
        requires_approval=tuple(map(str, asked)) if isinstance(asked, list | tuple) else (),
    )


def _text_of(path: Path) -> str:
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.", code="file-not-found") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", code="unreadable") from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{path} has more than {MAX_BYTES:,} bytes: too much for one prompt. Keep what is to "
            "be done, and leave the rest to files that the recipe reads.",
            code="too-long",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_text(path, f"byte {error.start} is not UTF-8") from error
    if "\0" in text:
        raise _no_text(path, "it holds zero bytes")
    if not text.strip():
        raise UsageError(f"{path} is empty: there is nothing to migrate.", code="empty")
    return text


def _no_text(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is not text: {why}.", code="no-text")


def _mapping_of(text: str, path: Path) -> Mapping[str, JsonValue]:
    """The mapping in a YAML file, whatever its name; empty for any other text."""
    is_yaml = path.suffix.lower() in _YAML
    if not is_yaml and _OLDER.search(text) is None:
        return {}
    try:
        plain = to_plain(read_document(text, str(path)))
    except RecipeError:
        if is_yaml:
            raise
        return {}  # prose with a word before a colon
    return plain if isinstance(plain, Mapping) else {}


def _name_of(value: object) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(value).lower()).strip("_")[:60] or "recipe"


# --- the recipe and what it is given ------------------------------------------------------------


def migration_recipe(catalog: Catalog) -> AgentRecipe:
    """The recipe that writes recipes.

    Args:
        catalog: The names that are available; `check_recipe` must be among its tools.
    """
    text = files(_ROOM).joinpath("migrate.yaml").read_text("utf-8")
    return load_recipe_text(text, "migrate.yaml", catalog)


def migration_inputs(instruction: Instruction, catalog: Catalog) -> dict[str, JsonValue]:
    """The inputs of `migration_recipe`.

    Args:
        catalog: The names that the new recipe may use.
    """
    rights = _rights_words(instruction.permissions, catalog)
    return {
        "instruction": instruction.text,
        "recipe_id": instruction.name,
        "language": files(_ROOM).joinpath("language.md").read_text("utf-8"),
        "tools": "\n".join(_tool_lines(catalog)),
        "rights": rights,
    }


def _rights_words(permissions: Permissions, catalog: Catalog) -> str:
    """What the recipe may change, for the model."""
    granted = [f"allow_{name}: true" for name, yes in permissions.tools.items() if yes]
    if not permissions.allow_write and not granted:
        return "Writing is not allowed: no permissions."
    kept = [f"allow_{name}: false" for name in _forbidden(permissions, catalog)]
    asked = ", ".join(_asked_tools(permissions, catalog))
    if permissions.allow_write and not kept and not asked:
        return "It may write."
    said = [*(["allow_write: true"] if permissions.allow_write else granted), *kept]
    if asked:
        said.append(f"requires_approval: [{asked}]")
    return f"It may write: permissions: {{{', '.join(said)}}}."


def _forbidden(permissions: Permissions, catalog: Catalog) -> list[str]:
    """The tools that it forbids, as far as there are such tools."""
    return [name for name, yes in permissions.tools.items() if not yes and name in catalog.tools]


def _asked_tools(permissions: Permissions, catalog: Catalog) -> list[str]:
    """The tools whose calls are to be approved, as far as there are such tools."""
    return [name for name in permissions.requires_approval if name in catalog.tools]


def _tool_lines(catalog: Catalog) -> Iterator[str]:
    """Every tool in one line, below the toolset that it belongs to."""
    yield "These need no entry under `tools`:"
    yield from (_tool_line(spec) for spec in catalog.tools.values())
    for name in catalog.toolsets:
        toolset = catalog.toolsets[name]
        options = toolset.options.get("properties")
        named = ", ".join(options) if isinstance(options, Mapping) and options else "none"
        yield f"Toolset `{name}` (options: {named}), under `tools` of the recipe:"
        for spec in toolset.specs:
            yield _tool_line(evolve(spec, name=f"{name}__{spec.name}"))


def _tool_line(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties")
    required = spec.parameters.get("required")
    needed = required if isinstance(required, list | tuple) else ()
    known = properties if isinstance(properties, Mapping) else {}
    parameters = ", ".join(name if name in needed else f"{name}?" for name in known)
    writes = " (writes)" if spec.is_write else ""
    summary = spec.description.partition("\n")[0]
    return f"- {spec.name}({parameters}){writes}: {summary}"


# --- the check ----------------------------------------------------------------------------------


@frozen
class CheckRecipe(Tool):
    """The static checks of recipes as a tool, for the model that writes a recipe."""

    catalog: Catalog
    """The names that are available where the recipes are going to run."""
    permissions: Permissions = field(factory=Permissions, kw_only=True)
    """What the instruction allows; a recipe must not allow more."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name="check_recipe",
            description="All faults of a recipe.",
            parameters={
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
                "additionalProperties": False,
            },
            returns={
                "type": "object",
                "properties": {
                    "ok": {"type": "boolean"},
                    "text": {"type": "string"},
                    "faults": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["ok", "text", "faults"],
                "additionalProperties": False,
            },
            effect=Effect.PURE,
        )

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Returns `{ok, text, faults}`: whether there are none, the text without a
        code fence, one line per fault.
        """
        text = _without_fence(str(arguments["text"]))
        loaded = check_recipe_text(text, "recipe.yaml", self.catalog)
        faults = [_describe_fault(fault) for fault in loaded.errors]
        if loaded.recipe is not None:
            faults += self._excess(loaded.recipe.permissions)
        return {"ok": not faults, "text": text, "faults": faults}

    def _excess(self, given: Permissions) -> Iterator[str]:
        """What a recipe may do that the instruction does not say."""
        said = self.permissions
        if given.allow_write and not said.allow_write:
            yield "permissions.allow_write: the instruction does not allow writing."
        for name, is_allowed in given.tools.items():
            if is_allowed and not said.allow_write and said.tools.get(name) is not True:
                yield f"permissions.allow_{name}: the instruction does not allow it."
        for name in _forbidden(said, self.catalog):
            if given.tools.get(name) is not False:
                yield f"permissions.allow_{name}: the instruction says false; keep it."
        for name in _asked_tools(said, self.catalog):
            if name not in given.requires_approval:
                yield f"permissions.requires_approval: the instruction lists {name}; keep it."


def _without_fence(text: str) -> str:
    """The text without a code fence: models put YAML into one, asked to or not."""
    found = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL)
    return (found[1] if found else text).strip("\n") + "\n"


def _describe_fault(fault: Fault) -> str:
    parts = [f"line {fault.line}: {fault.message}", fault.label, fault.help]
    line = f" | {fault.source_line.strip()}" if fault.source_line else ""
    return "; ".join(part for part in parts if part) + line


# --- mends the text of a recipe ------------------------------------------------------------------


_MOST_ROUNDS: Final = 20
"""A mended word may show faults that it hid; each round mends what the one before it showed."""
_KEY_LABEL: Final = re.compile(r"(?:write|did you mean) '([A-Za-z_]\w*)'\??")
_TYPE_LABEL: Final = re.compile(r"write ([a-z]+)(?:, or .*)?")
_COMMENT: Final = re.compile(r"\s#.*")


@frozen(kw_only=True)
class WordReplacement:
    """One word that was replaced."""

    line: int
    """Line number in the mended text, from 1."""
    before: str
    after: str


@frozen(kw_only=True)
class MendedRecipe:
    """A recipe's text with its mendings, and the faults that are left."""

    before: str
    text: str
    mendings: tuple[WordReplacement, ...]
    left: tuple[Fault, ...]
    """Faults and warnings, in the order of the mended text."""

    @property
    def errors(self) -> tuple[Fault, ...]:
        """The faults that a person has to mend."""
        return tuple(fault for fault in self.left if not fault.is_warning)

    def diff(self, name: str) -> str:
        """The change as a unified diff; empty where nothing was mended.

        Args:
            name: The name of the file.
        """
        return recipe_diff(self.before, self.text, name)


def mend_recipe(text: str, file: str, catalog: Catalog) -> MendedRecipe:
    """Mend what has one meaning; the text stays as it is where that makes it no better.

    Args:
        file: Name of the file, for places; relative paths start from its folder.
    """
    before, mendings = text, list[WordReplacement]()
    faults = _faults(text, file, catalog)
    for _ in range(_MOST_ROUNDS):
        changes = list(_changes(text, faults))
        if not changes:
            break
        mended = _apply(text, changes)
        now = _faults(mended, file, catalog)
        if _same(faults, now):
            break
        text, faults = mended, now
        mendings += [
            WordReplacement(line=each.line, before=each.old, after=each.new) for each in changes
        ]
    mendings.sort(key=lambda each: each.line)
    return MendedRecipe(before=before, text=text, mendings=tuple(mendings), left=faults)


def _faults(text: str, file: str, catalog: Catalog) -> tuple[Fault, ...]:
    try:
        return check_recipe_text(text, file, catalog).faults
    except RecipeError as error:  # it is no YAML
        return error.faults


def _same(before: Sequence[Fault], after: Sequence[Fault]) -> bool:
    """Whether a round changed no fault."""
    return [(each.where, each.message) for each in before] == [
        (each.where, each.message) for each in after
    ]


@frozen(kw_only=True)
class _Change:
    """One replacement in a line."""

    line: int
    start: int
    """Column of the first character, from 0."""
    old: str
    new: str


def _changes(text: str, faults: Sequence[Fault]) -> Iterator[_Change]:
    """The replacements that these faults suggest, at most one for each place."""
    lines = text.splitlines()
    taken: set[tuple[int, int]] = set()
    for fault in faults:
        if fault.line > len(lines) or (fault.line, fault.column) in taken:
            continue
        line, start = lines[fault.line - 1], fault.column - 1
        old = line[start : start + fault.length]
        if fault.code == "bad-yaml":
            old = _COMMENT.sub("", line[start:]).rstrip()
        new = _replacement(fault, old)
        if new is not None and new != old:
            taken.add((fault.line, fault.column))
            yield _Change(line=fault.line, start=start, old=old, new=new)


def _replacement(fault: Fault, old: str) -> str | None:
    """What stands for the underlined words; None: a person has to say."""
    label = fault.label or ""
    if fault.code == "unknown-key":
        found = _KEY_LABEL.fullmatch(label)
        return _as_written(old, found[1]) if found is not None else None
    if fault.code == "bad-schema" and old.strip("\"'").casefold() in TYPE_WORDS:
        found = _TYPE_LABEL.fullmatch(label)
        return _as_written(old, found[1]) if found is not None else None
    if fault.code == "unknown-reference" and "in a step with 'loop'" in label:
        return NAME_WORDS.get(old)
    if fault.code == "bad-yaml" and fault.message == "a template is not quoted":
        return _quote(old)
    return None


def _as_written(old: str, new: str) -> str:
    """The new word in the quotes of the old one."""
    quote = old[:1] if old[:1] in ("'", '"') else ""
    return f"{quote}{new}{quote}"


def _quote(value: str) -> str | None:
    """The value in quotes; None: both kinds stand in it."""
    quotes = [quote for quote in ('"', "'") if quote not in value]
    return f"{quotes[0]}{value}{quotes[0]}" if quotes and "\\" not in value else None


def _apply(text: str, changes: Sequence[_Change]) -> str:
    """The text with the changes; those further right come first, so that columns stay right."""
    lines = text.splitlines(keepends=True)
    for each in sorted(changes, key=lambda change: (change.line, change.start), reverse=True):
        line = lines[each.line - 1]
        end = each.start + len(each.old)
        lines[each.line - 1] = f"{line[: each.start]}{each.new}{line[end:]}"
    return "".join(lines)
