"""Parses YAML text into a tree of nodes that know their place in the text.

Scalars follow YAML 1.2 (`yes` and `no` are text). The meaning of keys is the loader's concern.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, cast

from msgspec import Struct, structs

from minions.contracts.errors import Fault, NotFoundError, RecipeError, UsageError
from minions.contracts.json_values import JsonValue

if TYPE_CHECKING:
    import yaml

__all__ = [
    "Entry",
    "MappingNode",
    "Node",
    "ScalarNode",
    "SequenceNode",
    "Source",
    "node_of",
    "read_document",
    "read_source",
    "to_plain",
]

MAX_BYTES: Final = 1_048_576
"""Bytes of a recipe; a longer one is refused without being parsed."""
MAX_DEPTH: Final = 100
MAX_FAULTS: Final = 100
"""Faults of one recipe that are reported."""
MAX_NODES: Final = 100_000
"""Nodes of a recipe; an alias counts with all nodes that it repeats."""

_BREAKS: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_CORE: Final = "tag:yaml.org,2002:"


class Source(Struct, frozen=True, eq=False, gc=False):
    """The text that nodes point into; without lines where the recipe came as plain data."""

    file: str = "<recipe>"
    lines: tuple[str, ...] = ()

    def line(self, number: int) -> str | None:
        """The line of that number, from 1; None: there is no such line."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else None


class Place(Struct, frozen=True, kw_only=True, eq=False):
    """The place of a node in the text; lines and columns count from 1."""

    source: Source
    line: int = 1
    column: int = 1
    end_line: int = 1
    length: int = 1
    """Characters on the first line."""

    def fault(
        self,
        code: str,
        message: str,
        *,
        label: str | None = None,
        help: str | None = None,  # noqa: A002  # the name that `Fault` gives it
        is_warning: bool = False,
    ) -> Fault:
        """A fault at this place."""
        return Fault(
            code=code,
            message=message,
            file=self.source.file,
            line=self.line,
            column=self.column,
            length=self.length,
            source_line=self.source.line(self.line),
            label=label,
            help=help,
            is_warning=is_warning,
        )


Span: TypeAlias = tuple[int, int, int, int]
"""Line and column of the start, then of the end, from 0.

Plain numbers: an object for each node would be traversed by the garbage collector again and again
while a long recipe is read.
"""
_Marks: TypeAlias = tuple["yaml.Mark", "yaml.Mark"]
_TOP: Final[Span] = (0, 0, 0, 0)


class _NodeWithPlace(Struct, frozen=True, eq=False, gc=False):
    """A node with its place, which is computed on access because
    few nodes are ever asked for it.
    """

    source: Source
    span: Span

    @property
    def place(self) -> Place:
        """Where the node starts and ends in the text."""
        return _place_between(self.source, self.span)


def _place_between(source: Source, span: Span) -> Place:
    line, column, end_line, end_column = span
    length = end_column - column
    if line != end_line:
        length = len((source.line(line + 1) or "").rstrip()) - column
    return Place(
        source=source,
        line=line + 1,
        column=column + 1,
        end_line=end_line + 1,
        length=max(1, length),
    )


class ScalarNode(_NodeWithPlace, frozen=True, eq=False):
    """One scalar value."""

    value: None | bool | int | float | str

    def part(self, offset: int, length: int) -> Place:
        """The place of `length` characters at `offset` of this text, as exactly as possible.

        Escapes and folded lines shift the text, so the same characters are searched in the source.
        """
        text = self.value if isinstance(self.value, str) else ""
        wanted = _BREAKS.split(text[offset : offset + length])[0]
        if not wanted:
            return self.place
        skip = text.count(wanted, 0, offset)
        for line, column in self._occurrences(wanted):
            if skip == 0:
                return structs.replace(self.place, line=line, column=column, length=len(wanted))
            skip -= 1
        return self.place

    def _occurrences(self, wanted: str) -> Iterator[tuple[int, int]]:
        place = self.place
        for number in range(place.line, place.end_line + 1):
            line = place.source.line(number) or ""
            start = place.column - 1 if number == place.line else 0
            while (at := line.find(wanted, start)) >= 0:
                yield number, at + 1
                start = at + len(wanted)


class Entry(_NodeWithPlace, frozen=True, eq=False):
    """One key with its value; its place is that of the key."""

    key: str
    value: Node

    @property
    def key_node(self) -> ScalarNode:
        """The key as a node of its own; needed only for faults."""
        return ScalarNode(self.source, self.span, self.key)


class MappingNode(_NodeWithPlace, frozen=True, eq=False):
    """Keys and values, in the order of the text."""

    entries: tuple[Entry, ...]

    def find(self, key: str) -> Entry | None:
        """The entry of that key; None: there is none."""
        return next((entry for entry in self.entries if entry.key == key), None)


class SequenceNode(_NodeWithPlace, frozen=True, eq=False):
    """Items, in the order of the text."""

    items: tuple[Node, ...]


Node: TypeAlias = ScalarNode | MappingNode | SequenceNode


def to_plain(node: Node) -> JsonValue:
    """The node as plain data."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [to_plain(item) for item in node.items]
    return {entry.key: to_plain(entry.value) for entry in node.entries}


def node_of(value: JsonValue, file: str = "<recipe>") -> Node:
    """Plain data as a tree without places, for recipes that were stored or built by a program.

    Raises:
        RecipeError: It is nested too deep, or not JSON.
    """
    return _plain_node(value, Source(file), 0)


def _plain_node(value: object, source: Source, depth: int) -> Node:
    place = Place(source=source)
    if depth > MAX_DEPTH:
        raise RecipeError([_too_deep(place)])
    if isinstance(value, Mapping):
        entries = []
        for key, item in value.items():
            if not isinstance(key, str):
                raise RecipeError([_bad_key(place, repr(key))])
            node = _plain_node(item, source, depth + 1)
            entries.append(Entry(source, _TOP, key, node))
        return MappingNode(source, _TOP, tuple(entries))
    if isinstance(value, list | tuple):
        items = tuple(_plain_node(item, source, depth + 1) for item in value)
        return SequenceNode(source, _TOP, items)
    if value is None or isinstance(value, bool | int | float | str):
        return ScalarNode(source, _TOP, value)
    message = f"{type(value).__name__} is not JSON: {value!r:.80}"
    raise RecipeError([place.fault("wrong-type", message)])


def read_source(path: Path) -> bytes:
    """The bytes of a recipe file; of a file that is too long only enough to detect it.

    Raises:
        NotFoundError: There is no such file (`recipe-not-found`).
        UsageError: It cannot be read (`recipe-unreadable`).
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no recipe file {path}.", code="recipe-not-found") from error
    except OSError as error:
        raise UsageError(
            f"The recipe {path} cannot be read: {error.strerror}.", code="recipe-unreadable"
        ) from error


def read_document(text: str | bytes, file: str = "<recipe>") -> Node:
    """Parse the one YAML document in `text`.

    Raises:
        RecipeError: It is not YAML, or not plain data; `faults` says where.
    """
    checked = _checked_text(text, file)
    source = Source(file, tuple(_BREAKS.split(checked)))
    return _Builder(source).document(checked)


def _checked_text(text: str | bytes, file: str) -> str:
    top = Place(source=Source(file))
    if len(text) > MAX_BYTES:
        raise RecipeError([top.fault("too-large", f"a recipe may be 1 MiB long; {file} is longer")])
    decoded = _decoded(text, top) if isinstance(text, bytes) else text
    decoded = decoded.removeprefix("\ufeff")
    if (bad := _not_printable().search(decoded)) is not None:
        raise RecipeError([_unprintable(decoded, bad.start(), file)])
    return decoded


def _decoded(text: bytes, top: Place) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the recipe is not UTF-8: byte {text[error.start]:#04x} at offset {error.start}"
        line = text.count(b"\n", 0, error.start) + 1
        fault = structs.replace(top, line=line).fault("not-utf-8", message, help="save it as UTF-8")
        raise RecipeError([fault]) from None


def _unprintable(text: str, at: int, file: str) -> Fault:
    before = _BREAKS.split(text[:at])
    source = Source(file, tuple(_BREAKS.split(text)))
    place = Place(source=source, line=len(before), column=len(before[-1]) + 1)
    return place.fault(
        "bad-character",
        f"the character U+{ord(text[at]):04X} may not stand in a recipe",
        help='inside double quotes it can be written as an escape, such as "\\x1b"',
    )


class _AnchorNode(Struct, frozen=True, eq=False):
    """An anchored node and the number of nodes that an alias adds by repeating it."""

    node: Node
    size: int
    height: int


class _Builder:
    """Builds nodes from parse events. The library's own tree is
    avoided: building it recurses in C.
    """

    def __init__(self, source: Source) -> None:
        import yaml

        self._yaml = yaml
        self._source = source
        self._faults: list[Fault] = []
        self._anchors: dict[str, _AnchorNode | None] = {}
        self._nodes = 0
        self._deepest = 0
        self._readers: Mapping[type[object], Callable[..., Node]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingStartEvent: self._mapping,
        }

    def document(self, text: str) -> Node:
        # libyaml refuses half a character even where the other half follows, as JSON writes it.
        loader = self._yaml.BaseLoader if _HALF.search(text) else _fast_loader()
        events = iter(self._yaml.parse(text, Loader=loader))
        try:
            node = self._document(events)
        except self._yaml.YAMLError as error:
            self._faults.append(self._syntax_fault(error))
        except RecursionError:
            self._faults.append(_too_deep(Place(source=self._source)))
        if self._faults:
            raise RecipeError(self._faults[:MAX_FAULTS])
        return node

    def _document(self, events: Iterator[yaml.Event]) -> Node:
        node: Node | None = None
        for event in events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                if node is not None:
                    self._stop(
                        self._place(event).fault(
                            "several-documents",
                            "a recipe file holds one document; '---' begins a second one",
                        )
                    )
                node = self._node(next(events), events, 0)
        if node is None:
            place = Place(source=self._source)
            self._stop(
                place.fault(
                    "empty-recipe",
                    "the recipe is empty",
                    help="a recipe is a mapping with at least 'steps'",
                )
            )
        return node

    def _stop(self, fault: Fault) -> NoReturn:
        raise RecipeError([*self._faults[:MAX_FAULTS], fault])

    def _span(self, event: yaml.Event) -> Span:
        start, end = cast("_Marks", (event.start_mark, event.end_mark))
        return (start.line, start.column, end.line, end.column)

    def _place(self, event: yaml.Event) -> Place:
        return _place_between(self._source, self._span(event))

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        read = self._readers.get(type(event))
        if read is None:
            return self._alias(cast("yaml.AliasEvent", event), depth)
        if depth > self._deepest:
            if depth > MAX_DEPTH:
                self._stop(_too_deep(self._place(event)))
            self._deepest = depth
        self._count(1, event)
        anchor = cast("yaml.NodeEvent", event).anchor
        if anchor is None:
            return read(event, events, depth)
        return self._anchored(anchor, lambda: read(event, events, depth), depth)

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._stop(
                self._place(event).fault(
                    "too-large",
                    f"the recipe has more than {MAX_NODES:,} values, aliases counted as used",
                )
            )

    def _anchored(self, anchor: str, read: Callable[[], Node], depth: int) -> Node:
        self._anchors[anchor] = None  # known but unfinished: it must not contain itself
        before, others = self._nodes - 1, self._deepest
        self._deepest = depth
        node = read()
        self._anchors[anchor] = _AnchorNode(node, self._nodes - before, self._deepest - depth)
        self._deepest = max(self._deepest, others)
        return node

    def _alias(self, event: yaml.AliasEvent, depth: int) -> Node:
        name, place = event.anchor, self._place(event)
        if name not in self._anchors:
            known = ", ".join(f"&{anchor}" for anchor in self._anchors)
            help_text = f"anchors so far: {known}" if known else None
            self._stop(place.fault("bad-yaml", f"nothing is anchored as &{name}", help=help_text))
        anchored = self._anchors[name]
        if anchored is None:
            self._stop(place.fault("bad-yaml", f"*{name} stands inside its own anchor"))
        self._count(anchored.size, event)
        if depth + anchored.height > MAX_DEPTH:
            self._stop(_too_deep(place))
        self._deepest = max(self._deepest, depth + anchored.height)
        return anchored.node

    def _sequence(
        self, event: yaml.CollectionStartEvent, events: Iterator[yaml.Event], depth: int
    ) -> Node:
        self._check_tag(event, "seq")
        items = []
        end = self._yaml.SequenceEndEvent
        for inner in events:
            if type(inner) is end:
                break
            items.append(self._node(inner, events, depth + 1))
        return SequenceNode(self._source, self._span(event), tuple(items))

    def _mapping(
        self, event: yaml.CollectionStartEvent, events: Iterator[yaml.Event], depth: int
    ) -> Node:
        self._check_tag(event, "map")
        entries: dict[str, Entry] = {}
        end = self._yaml.MappingEndEvent
        for inner in events:
            if type(inner) is end:
                break
            key = self._node(inner, events, depth + 1)
            self._add(entries, key, self._node(next(events), events, depth + 1), inner)
        return MappingNode(self._source, self._span(event), tuple(entries.values()))

    def _add(self, entries: dict[str, Entry], key: Node, value: Node, event: yaml.Event) -> None:
        if not isinstance(key, ScalarNode) or not isinstance(key.value, str):
            shown = getattr(event, "value", None) or "a list or mapping"
            self._faults.append(_bad_key(key.place, shown))
        elif key.value == "<<" and not getattr(event, "style", None):
            self._faults.append(
                key.place.fault(
                    "bad-yaml",
                    "merge keys ('<<') are not supported",
                    help="write the keys out, or use an alias for a whole value",
                )
            )
        elif (first := entries.get(key.value)) is not None:
            self._faults.append(
                key.place.fault(
                    "duplicate-key",
                    f"the key '{key.value}' is given twice",
                    label=f"first given at line {first.key_node.place.line}",
                    help="keep one of the two",
                )
            )
        else:
            entries[key.value] = Entry(key.source, key.span, key.value, value)

    def _check_tag(self, event: yaml.CollectionStartEvent, kind: str) -> None:
        if event.tag not in (None, _CORE + kind):
            self._faults.append(self._unknown_tag(event))

    def _unknown_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> Fault:
        return self._place(event).fault(
            "bad-yaml",
            f"the tag {str(event.tag).replace(_CORE, '!!')} cannot be used here",
            help="recipes are plain data: text, numbers, true/false, null, lists, mappings",
        )

    def _scalar(self, event: yaml.ScalarEvent, _: Iterator[yaml.Event], __: int) -> ScalarNode:
        return ScalarNode(self._source, self._span(event), self._value(event))

    def _value(self, event: yaml.ScalarEvent) -> None | bool | int | float | str:
        text = self._joined(event)
        if event.tag is None:
            # A plain scalar's style is None in the Python parser and '' in the C one.
            return text if event.style else self._plain(event, text)
        if event.tag in ("!", f"{_CORE}str"):
            return text
        known = len(self._faults)
        value = self._plain(event, text) if event.tag in _TAGGED else text
        if len(self._faults) > known:
            return text
        if event.tag not in _TAGGED or not isinstance(value, _TAGGED[event.tag]):
            self._faults.append(self._unknown_tag(event))
            return text
        if event.tag != f"{_CORE}float" or value is None:
            return value
        try:
            return float(value)
        except OverflowError:
            message = f"{text:.40} is too large for a number"
            self._faults.append(self._place(event).fault("bad-value", message))
            return text

    def _joined(self, event: yaml.ScalarEvent) -> str:
        """The text with surrogate pairs of two escapes combined into one character."""
        text: str = event.value
        if text.isascii() or not _SURROGATE.search(text):
            return text
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self._faults.append(
                self._place(event).fault(
                    "bad-character",
                    "half a character (a lone surrogate) is not text",
                    help='write the character itself, or both halves: "\\ud83c\\udf89"',
                )
            )
            return ""

    def _plain(self, event: yaml.ScalarEvent, text: str) -> None | bool | int | float | str:
        if text in _WORDS:
            return _WORDS[text]
        try:
            return _number(text)
        except ValueError as error:
            self._faults.append(
                self._place(event).fault("bad-value", str(error), help="quote it to make it text")
            )
            return text

    def _syntax_fault(self, error: yaml.YAMLError) -> Fault:
        problem = getattr(error, "problem", None) or str(error)
        marks = [getattr(error, name, None) for name in ("problem_mark", "context_mark")]
        if "end of stream" in problem or problem == _NO_COLON:
            marks.reverse()  # where the quote was opened, not where the file ends
        mark = marks[0] or marks[1]
        if problem == _NO_MAPPING:
            mark = self._key_without_colon(mark) or mark
            problem = _NO_COLON if mark not in marks else problem
        place = Place(source=self._source)
        if mark is not None:
            place = Place(source=self._source, line=mark.line + 1, column=mark.column + 1)
        line = self._source.line(place.line) or ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return place.fault(
                "bad-yaml", "a tab stands in the indentation", help="indent with spaces only"
            )
        if problem == _NO_COLON:
            return _without_colon(place, line)
        context = getattr(error, "context", None)
        hint = _SYNTAX_HINTS.get(problem)
        if problem == _NO_DASH:
            hint = f"items of one list begin at the same column; {self._indentation(place.line)}"
        return place.fault(
            "bad-yaml", f"not YAML: {problem}{f', {context}' if context else ''}", help=hint
        )

    def _key_without_colon(self, mark: yaml.Mark | None) -> yaml.Mark | None:
        """Where the text that ends at `mark` starts, if a key may start there."""
        begin: yaml.Mark | None = None
        with contextlib.suppress(self._yaml.YAMLError):
            for token in self._yaml.scan("\n".join(self._source.lines), Loader=_fast_loader()):
                is_plain = isinstance(token, self._yaml.ScalarToken) and token.plain
                begin = cast("yaml.Mark", token.start_mark) if is_plain else begin
        if begin is None or mark is None or begin.line >= mark.line:
            return None
        before = (self._source.line(begin.line + 1) or "")[: begin.column]
        return begin if not before.strip(" -") else None

    def _indentation(self, number: int) -> str:
        """A message about the indentation of that line and its neighbours."""
        lines = self._source.lines
        filled = [at for at, line in enumerate(lines, start=1) if line.strip()]
        above = [at for at in filled if at < number][-2:]
        below = [at for at in filled if at > number][:1]
        told = (
            f"line {at} by {len(lines[at - 1]) - len(lines[at - 1].lstrip())}"
            for at in (*above, number, *below)
        )
        return f"indented are {', '.join(told)} spaces"


def _without_colon(place: Place, line: str) -> Fault:
    key, _, value = line[place.column - 1 :].strip().partition(" ")
    meant = f"{key}: {value}".strip()
    return structs.replace(place, length=max(1, len(line.rstrip()) - place.column + 1)).fault(
        "bad-yaml",
        "a ':' is missing: a line of a mapping is 'key: value'",
        label=f"did you mean '{meant:.60}'?" if _KEY.fullmatch(key) else None,
    )


def _not_printable() -> re.Pattern[str]:
    """PyYAML's own pattern: compiling another such range takes 6 ms."""
    from yaml.reader import Reader

    return Reader.NON_PRINTABLE


_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def _fast_loader() -> type[yaml.BaseLoader | yaml.CBaseLoader]:
    import yaml

    return getattr(yaml, "CBaseLoader", yaml.BaseLoader)


_TAGGED: Final[Mapping[str, type | tuple[type, ...]]] = {
    f"{_CORE}int": int,
    f"{_CORE}float": (int, float),
    f"{_CORE}bool": bool,
    f"{_CORE}null": type(None),
}
_WORDS: Final[Mapping[str, None | bool]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONGEST_NUMBER: Final = 300
_KEY: Final = re.compile(r"[A-Za-z_][\w-]*")
_NO_COLON: Final = "could not find expected ':'"
_NO_DASH: Final = "did not find expected '-' indicator"
_NO_MAPPING: Final = "mapping values are not allowed in this context"
_SYNTAX_HINTS: Final[Mapping[str, str]] = {
    _NO_MAPPING: (
        "text that contains ': ' needs quotes, and keys of one mapping the same indentation"
    ),
    "found unexpected end of stream": "a quote or bracket is not closed",
    "did not find expected key": "check the indentation and the quotes just above",
}


def _number(text: str) -> int | float | str:
    """The number, by the rules of YAML 1.2; else the text itself."""
    if text[0] not in "+-.0123456789":
        return text
    if _NO_NUMBER.fullmatch(text):
        raise ValueError(f"{text} is not a number that JSON can express")
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and not _FLOAT.fullmatch(text):
        return text
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters; at most {_LONGEST_NUMBER} are read")
    if is_integer:
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large for a number")
    return number


def _too_deep(place: Place) -> Fault:
    return place.fault("too-deep", f"nested deeper than {MAX_DEPTH} levels")


def _bad_key(place: Place, shown: str) -> Fault:
    return place.fault("bad-key", f"a key must be text, not {shown:.40}", help="quote the key")
