"""The names in a recipe's text: where each stands, and what kind of name it is.

Names that are free, such as the id of a step that nothing refers to, are no sites: another spelling
of them is another recipe, not a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from attrs import evolve, frozen

from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.schemas import KEYWORDS, TYPES
from minions.recipe.text.yaml_reader import read_document

Kind: TypeAlias = Literal[
    "references",
    "ids",
    "inputs",
    "fields",
    "fields of tool results",
    "declared fields",
    "tools",
    "parameters",
    "filters",
    "keys",
    "schema keywords",
    "types",
    "enum values",
    "required",
    "formats",
]


@frozen(kw_only=True)
class Site:
    """One name in a text."""

    kind: Kind
    word: str
    offset: int
    """Of its first character, from 0."""


def sites_of(text: str) -> tuple[Site, ...]:
    """Every name in the recipe `text`, in its order, each place once."""
    found = {site.offset: site for site in _Walk(text).sites() if len(site.word) > 1}
    read = {site.word for site in found.values() if site.kind == "references"}
    sites = (found[offset] for offset in sorted(found))
    return tuple(site for site in sites if site.kind != "ids" or site.word in read)


_CONDITIONS: Final = frozenset({"when", "unless", "assert", "while", "until", "stop_when", "holds"})
_WORDS: Final = frozenset(
    {"memory", "on_error", "on_item_error", "approval", "execution_mode", "reads", "status", "mode"}
    | {"effect", "on_failure", "kind"}
)
"""Keys whose value is one of a few words."""
_REFERRING: Final = frozenset(
    {"depends_on", "next", "then", "else", "otherwise", "start", "always"}
)
_KEYWORDS: Final = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "is",
        "if",
        "else",
        "true",
        "false",
        "none",
        "null",
        "True",
        "False",
        "None",
    ]
)
_TOKEN: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[A-Za-z_]\w*|\d[\w.]*|[=!<>]=|\S"
)
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*")
_OF_TESTS: Final[Mapping[str, Kind]] = {
    "inputs": "inputs",
    "arguments": "parameters",
    "decisions": "references",
}
_OF_ATTRIBUTES: Final = frozenset({"selectattr", "rejectattr"})


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._root = read_document(text)
        plain = to_plain(self._root)
        steps = plain.get("steps") if isinstance(plain, dict) else None
        self._loop_root = ""
        self._names: list[str] = []
        self._tool_steps: set[str] = set()
        self._steps: set[str] = set()
        for step in steps if isinstance(steps, list) else ():
            if isinstance(step, dict):
                names = {str(step[key]) for key in ("id", "save_as") if key in step}
                self._steps |= names
                if "tool" in step and step["tool"] != "llm_analyze":
                    self._tool_steps |= names
        self._enums = set(_enum_values(plain))

    def sites(self) -> Iterator[Site]:
        if isinstance(self._root, MappingNode):
            yield from self._mapping(self._root, ())

    # --- YAML ---------------------------------------------------------------------------------

    def _mapping(self, node: MappingNode, path: tuple[str, ...]) -> Iterator[Site]:
        loop = node.find("loop") if path[-1:] == ("steps",) else None
        before, self._loop_root = self._loop_root, ""
        if path[-1:] == ("steps",):
            names = (node.find("id"), node.find("save_as"))
            self._names = [str(to_plain(each.value)) for each in names if each is not None]
        if loop is not None and isinstance(loop.value, ScalarNode):
            found = _NAME.search(str(loop.value.value))
            self._loop_root = found[0] if found else ""
        for entry in node.entries:
            kind = self._kind_of_key(entry.key, path)
            if kind is not None:
                yield from self._word(entry.key_node, entry.key, kind)
            yield from self._value(entry.value, (*path, entry.key))
        self._loop_root = before or self._loop_root if path[-1:] != ("steps",) else before

    def _value(self, node: Node, path: tuple[str, ...]) -> Iterator[Site]:
        if isinstance(node, MappingNode):
            yield from self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            for item in node.items:
                yield from self._value(item, path)
        elif isinstance(node.value, str):
            yield from self._scalar(node, node.value, path)

    def _kind_of_key(self, key: str, path: tuple[str, ...]) -> Kind | None:
        if path[:1] == ("inputs",):
            if len(path) == 1:
                return "inputs" if self._is_used(rf"inputs\.{key}\b") else None
            return self._kind_in_schema(key, path[1:])
        if path[:1] == ("metadata",) or "examples" in path or "default" in path:
            return None
        if path[:1] == ("tests",):
            if path[-1] in _OF_TESTS:
                return _OF_TESTS[path[-1]]
            is_key = set(path) <= {"tests", "answers", "tool_calls", "expect"}
            return "fields" if "json" in path else "keys" if is_key else None
        if path[:1] == ("steps",):
            inner = path[1:]
            if inner[:1] in (("params",), ("params_template",), ("with",)):
                return "parameters" if len(inner) == 1 else None
            if inner[:1] in (("set",), ("output_format",)):
                return "declared fields" if self._is_read_of_step(key) else None
            if inner[:1] in (("output",), ("returns",)):
                return self._kind_in_schema(key, inner)
            if inner[:1] == ("input",):
                return None
            return "keys"
        if path[:1] == ("output",):
            return None
        if path[:1] == ("tools",):
            return "tools" if len(path) == 1 else "keys" if len(path) == 2 else None
        return "keys" if len(path) <= 1 or path[0] in ("limits", "permissions") else None

    def _kind_in_schema(self, key: str, path: tuple[str, ...]) -> Kind | None:
        if path[-1] == "properties" or key not in (*KEYWORDS, "secret", "untrusted"):
            needed = re.search(rf"required: \[[^\]]*\b{re.escape(key)}\b", self._text)
            is_read = needed is not None or self._is_read_of_step(key)
            return "declared fields" if is_read else None
        return "schema keywords" if path[-1] != "required" else None

    def _is_used(self, pattern: str) -> bool:
        return re.search(pattern, self._text) is not None

    def _is_read_of_step(self, key: str) -> bool:
        """Whether something reads that member of the step whose keys are walked."""
        name = re.escape(key)
        for step in self._names:
            if self._is_used(rf"\b{re.escape(step)}\b[^\n}}]*(\.{name}\b|[=(]'{name}')"):
                return True
            loops = (
                rf"loop: \"?[^\n]*\b{re.escape(step)}\b(?:(?!\n  - )[\s\S])*loop\.item\.{name}\b"
            )
            if self._is_used(loops):
                return True
        return False

    def _scalar(self, node: ScalarNode, value: str, path: tuple[str, ...]) -> Iterator[Site]:
        key = path[-1]
        if key in _CONDITIONS and path[0] in ("steps", "tests") and "{{" not in value:
            yield from self._expression(*self._span(node))
            return
        if "{{" in value:
            start, end = self._span(node)
            for match in re.finditer(r"\{\{(.*?)\}\}", self._text[start:end], re.DOTALL):
                yield from self._expression(start + match.start(1), start + match.end(1))
            return
        kind = self._kind_of_value(value, path)
        if kind is not None and _NAME.fullmatch(value):
            yield from self._word(node, value, kind)

    def _kind_of_value(self, value: str, path: tuple[str, ...]) -> Kind | None:
        key = path[-1]
        if path == ("steps", "id") or path == ("steps", "save_as"):
            name = re.escape(value)
            uses = len(re.findall(rf"(?<![\w/]){name}(?![\w/])", self._text))
            read = rf"(\{{\{{|\(|\[|: |, |- |\+|not |and )\s*{name}\b"
            return "ids" if uses > 1 and len(re.findall(read, self._text)) > 1 else None
        if path[:2] in (("steps", "params"), ("steps", "params_template"), ("steps", "set")):
            return "enum values" if value in self._enums and path[1] != "set" else None
        is_schema = path[0] == "inputs" or path[:2] in (("steps", "output"), ("steps", "returns"))
        if is_schema:
            if key == "required":
                return "required"
            if key == "format":
                return "formats"
            if key == "enum":
                return "enum values" if self._is_used(rf"'{re.escape(value)}'") else None
            if key == "default":
                return "enum values" if value in self._enums else None
            return "types" if value in TYPES else None
        if path in (("steps", "tool"), ("steps", "tools"), ("tools",)):
            return "tools"
        if path[:1] == ("tests",):
            if path[-2:] == ("tool_calls", "name"):
                return "tools"
            if key in ("status", "error"):
                return "enum values"
            return "enum values" if value in self._enums else None
        if key == "fill":
            return "parameters"
        if key in _WORDS:
            return "enum values"
        if key in _REFERRING and value in self._steps:
            return "references"
        return None

    # --- expressions -----------------------------------------------------------------------------

    def _expression(self, start: int, end: int) -> Iterator[Site]:
        tokens = [
            (match[0], start + match.start()) for match in _TOKEN.finditer(self._text[start:end])
        ]
        words = ["", *(word for word, _ in tokens), "", ""]
        root, function = "", ""
        is_of_tool = False
        for number, (word, offset) in enumerate(tokens, start=1):
            before, after = words[number - 1], words[number + 1]
            if word[0] in "'\"":
                site = Site(kind="enum values", word=word[1:-1], offset=offset + 1)
                if not _NAME.fullmatch(site.word):
                    continue
                if (before == "=" and words[number - 2] == "attribute") or (
                    before == "(" and function in _OF_ATTRIBUTES
                ):
                    yield evolve(site, kind=_field(is_of_tool))
                elif (
                    before == "," and function in _OF_ATTRIBUTES and words[number - 3] == "("
                ) or (before == "(" and function in ("select", "reject")):
                    yield evolve(site, kind="filters")
                elif site.word in self._enums or site.word in ("completed", "failed", "skipped"):
                    yield site
                continue
            if not _NAME.fullmatch(word) or word in _KEYWORDS:
                continue
            site = Site(kind="references", word=word, offset=offset)
            if before == ".":
                yield evolve(site, kind=self._member(words, number, root, is_of_tool))
            elif before == "|" or before == "is" or (before == "not" and words[number - 2] == "is"):
                function = word
                yield evolve(site, kind="filters")
            elif after == "=":
                yield evolve(site, kind="parameters")
            else:
                root = self._loop_root if word == "loop" else word
                is_of_tool = root in self._tool_steps
                yield site

    def _member(self, words: list[str], number: int, root: str, is_of_tool: bool) -> Kind:
        if words[number - 2] == "inputs":
            return "inputs"
        if words[number - 2] in ("steps", "loop", "run") or words[number - 4 : number - 3] == [
            "steps"
        ]:
            return "references"
        return _field(is_of_tool)

    # --- places ---------------------------------------------------------------------------------

    def _span(self, node: ScalarNode) -> tuple[int, int]:
        line, column, end_line, end_column = node.span
        return self._starts[line] + column, self._starts[end_line] + end_column

    def _word(self, node: ScalarNode, word: str, kind: Kind) -> Iterator[Site]:
        start, end = self._span(node)
        at = self._text.find(word, start, end)
        if at >= 0 and at - start <= 1:
            yield Site(kind=kind, word=word, offset=at)


def _field(is_of_tool: bool) -> Kind:
    return "fields of tool results" if is_of_tool else "fields"


def _enum_values(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        words = value.get("enum")
        yield from map(str, words if isinstance(words, list) else ())
        for each in value.values():
            yield from _enum_values(each)
    elif isinstance(value, list):
        for each in value:
            yield from _enum_values(each)
