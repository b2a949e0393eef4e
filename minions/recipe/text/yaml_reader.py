"""Parses YAML text into the nodes of a recipe.

Scalars follow YAML 1.2 (`yes` and `no` are text). The meaning of keys is the loader's concern.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, cast

from msgspec import Struct, structs

from minions.data.bounded_files import read_regular
from minions.data.errors import Fault, NotFoundError, RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.recipe.text.nodes import (
    LINE_BREAKS,
    MAX_DEPTH,
    MAX_FAULTS,
    Entry,
    MappingNode,
    Node,
    Place,
    ScalarNode,
    SequenceNode,
    Source,
    Span,
    bad_key,
    place_between,
    too_deep,
)

if TYPE_CHECKING:
    import yaml

MAX_BYTES: Final = 1_048_576
"""Bytes of a recipe; a longer one is refused without being parsed."""
MAX_NODES: Final = 100_000
"""Nodes of a recipe; an alias counts with all nodes that it repeats."""

_CORE: Final = "tag:yaml.org,2002:"
_Marks: TypeAlias = tuple["yaml.Mark", "yaml.Mark"]


def read_source(path: Path) -> bytes:
    """The bytes of a recipe file; of a file that is too long only enough to detect it.

    Raises:
        NotFoundError: There is no such file (`recipe-not-found`).
        UsageError: It cannot be read (`recipe-unreadable`).
    """
    try:
        return read_regular(path, MAX_BYTES)
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
    source = Source(file, tuple(LINE_BREAKS.split(checked)))
    return _Builder(source).document(checked)


def _checked_text(text: str | bytes, file: str) -> str:
    top = Place(source=Source(file))
    if len(text) > MAX_BYTES:
        raise RecipeError([top.fault("too-large", f"a recipe may be 1 MiB long; {file} is longer")])
    decoded = _decode_text(text, top) if isinstance(text, bytes) else text
    decoded = decoded.removeprefix("\ufeff")
    if (bad := _not_printable().search(decoded)) is not None:
        raise RecipeError([_unprintable(decoded, bad.start(), file)])
    return decoded


def _decode_text(text: bytes, top: Place) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the recipe is not UTF-8: byte {text[error.start]:#04x} at offset {error.start}"
        line = text.count(b"\n", 0, error.start) + 1
        fault = structs.replace(top, line=line).fault("not-utf-8", message, help="save it as UTF-8")
        raise RecipeError([fault]) from None


def _unprintable(text: str, at: int, file: str) -> Fault:
    before = LINE_BREAKS.split(text[:at])
    source = Source(file, tuple(LINE_BREAKS.split(text)))
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
        # libyaml refuses a surrogate escape even if its pair follows, which is how JSON writes it.
        loader = self._yaml.BaseLoader if _HALF.search(text) else _fast_loader()
        events = iter(self._yaml.parse(text, Loader=loader))
        try:
            node = self._document(events)
        except self._yaml.YAMLError as error:
            fault = self._syntax_fault(error)
            if fault.line not in {known.line for known in self._faults}:
                self._faults.append(fault)
        except RecursionError:
            self._faults.append(too_deep(Place(source=self._source)))
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
        return place_between(self._source, self._span(event))

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        read = self._readers.get(type(event))
        if read is None:
            return self._alias(cast("yaml.AliasEvent", event), depth)
        if depth > self._deepest:
            if depth > MAX_DEPTH:
                self._stop(too_deep(self._place(event)))
            self._deepest = depth
        self._count(1, event)
        anchor = cast("yaml.NodeEvent", event).anchor
        if anchor is None:
            return read(event, events, depth)
        return self._anchor(anchor, lambda: read(event, events, depth), depth)

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._stop(
                self._place(event).fault(
                    "too-large",
                    f"the recipe has more than {MAX_NODES:,} values, aliases counted as used",
                )
            )

    def _anchor(self, anchor: str, read: Callable[[], Node], depth: int) -> Node:
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
            self._stop(too_deep(place))
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
            self._faults.append(_unquoted_template(key) or bad_key(key.place, shown))
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
        text = self._join(event)
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

    def _join(self, event: yaml.ScalarEvent) -> str:
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
        # Only a text that is not YAML needs the module.

        return syntax_fault(error, self._source)


def _unquoted_template(key: Node) -> Fault | None:
    """The fault of a template that YAML reads as a mapping in a mapping; None: it is none."""
    place = key.place
    line = place.source.line(place.line) or ""
    start = place.column - 2
    if not isinstance(key, MappingNode) or start < 0 or not line.startswith("{{", start):
        return None
    end = line.find("}}", start)
    written = line[start : end + 2 if end > 0 else None].rstrip()
    return structs.replace(place, column=start + 1, length=len(written)).fault(
        "bad-yaml",
        "a template is not quoted",
        label=f'quote the whole value, such as "{written:.60}"',
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
"""Characters: converting a text to a number takes quadratic time."""


def is_plain_text(text: str) -> bool:
    """Whether a scalar without quotes would be read as this text, not as a number or a word."""
    if text in _WORDS:
        return False
    try:
        return isinstance(_number(text), str)
    except ValueError:
        return False


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


# --- writes plain data as YAML that `read_document` reads as the same data -----------------------


def yaml_text(value: JsonValue, *, width: int = 100, has_blocks: bool = False) -> str:
    """The value as YAML, with mappings in their order.

    Args:
        width: Characters of a line, as far as texts can be folded.
        has_blocks: Whether texts of several lines are written line by line, behind `|`.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what YAML 1.2 takes for a number: PyYAML writes YAML 1.1, where `1e0` is none."""

    Dumper.add_representer(str, _block_or_text if has_blocks else _text)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=width, allow_unicode=True)


def _block_or_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" not in text:
        return _text(dumper, text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if is_plain_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


# --- faults of texts that are not YAML -----------------------------------------------------------


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


def syntax_fault(error: yaml.YAMLError, source: Source) -> Fault:
    """The fault of a text that is not YAML, with a hint for the usual mistakes."""
    problem = getattr(error, "problem", None) or str(error)
    marks = [getattr(error, name, None) for name in ("problem_mark", "context_mark")]
    if "end of stream" in problem or problem == _NO_COLON:
        marks.reverse()  # where the quote was opened, not where the file ends
    mark = marks[0] or marks[1]
    if problem == _NO_MAPPING:
        mark = _key_without_colon(source, mark) or mark
        problem = _NO_COLON if mark not in marks else problem
    place = Place(source=source)
    if mark is not None:
        place = Place(source=source, line=mark.line + 1, column=mark.column + 1)
    line = source.line(place.line) or ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return place.fault(
            "bad-yaml", "a tab stands in the indentation", help="indent with spaces only"
        )
    if problem == _NO_COLON:
        return _without_colon(place, line)
    context = getattr(error, "context", None)
    hint = _SYNTAX_HINTS.get(problem)
    if problem == _NO_DASH:
        hint = f"items of one list begin at the same column; {_indentation(source, place.line)}"
    return place.fault(
        "bad-yaml", f"not YAML: {problem}{f', {context}' if context else ''}", help=hint
    )


def _key_without_colon(source: Source, mark: yaml.Mark | None) -> yaml.Mark | None:
    """Where the text that ends at `mark` starts, if a key may start there."""
    import yaml

    begin: yaml.Mark | None = None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    with contextlib.suppress(yaml.YAMLError):
        for token in yaml.scan("\n".join(source.lines), Loader=loader):
            is_plain = isinstance(token, yaml.ScalarToken) and token.plain
            begin = cast("yaml.Mark", token.start_mark) if is_plain else begin
    if begin is None or mark is None or begin.line >= mark.line:
        return None
    before = (source.line(begin.line + 1) or "")[: begin.column]
    return begin if not before.strip(" -") else None


def _indentation(source: Source, number: int) -> str:
    """A message about the indentation of that line and its neighbours."""
    lines = source.lines
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
