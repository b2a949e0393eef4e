"""The tools that a step offers where its model finds the others: `find_tools`, those that are
always there, and those that were found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from minions.contracts.messages import Message
from minions.contracts.steps import ToolSearch
from minions.contracts.tool_search import FEWEST_TOOLS, FIND_TOOLS, found_names
from minions.contracts.tools import Effect, Reads, Tool, Toolbox, ToolScope, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.texts import one_line
from minions.engine.compile.prompt_sections import CHARACTERS_PER_TOKEN, tool_characters
from minions.engine.compile.text_index import TextField, TextIndex, stem_of, words_of

_MOST_TOOLS: Final = 12
_MOST_TOKENS: Final = 2_000
"""Tools, and tokens of their texts together, above which they are searched unasked."""
_MOST_FOUND: Final = 30
"""Tools beside those that are always offered; of more the older half is no longer offered."""
_MOST_GROUPS: Final = 20
"""Groups of tools that are listed in the description of `find_tools`."""
_MOST_SAID: Final = 120
"""Characters of a description in a result."""
_MOST_AT_ONCE: Final = 10
_USUAL_AT_ONCE: Final = 5


def searches(search: ToolSearch, specs: Sequence[ToolSpec]) -> bool:
    """Whether a model that may call these tools finds them by `find_tools`.

    A step with a tool of that name has its own way, unless it asks for this one.
    """
    if search.is_on is not None:
        return search.is_on and any(spec.name not in search.always for spec in specs)
    if len(specs) < FEWEST_TOOLS:
        return False
    has_many = len(specs) > _MOST_TOOLS
    has_many = has_many or tool_characters(specs) > _MOST_TOKENS * CHARACTERS_PER_TOKEN
    return has_many and not any(spec.name == FIND_TOOLS for spec in specs)


def first_specs(search: ToolSearch, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """What the first request of a step offers whose tools are searched."""
    always = [spec for spec in specs if spec.name in search.always]
    hidden = [spec for spec in specs if spec.name not in search.always]
    return (*always, FindTools(hidden).spec)


class FindTools(Tool):
    """Finds tools by words. What it found is offered from the next request on."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Take the tools to be found; they are read at the first call."""
        self._specs = {spec.name: spec for spec in specs}
        self._index: ToolIndex | None = None
        self._groups = _groups_of(self._specs)
        self._spec = ToolSpec(
            name=FIND_TOOLS,
            description=f"Find tools by what they do. {len(specs)} tools are not listed here: "
            f"{self._groups}. Found tools can be called from your next answer on.",
            parameters={
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "A few words: what to do, and with what.",
                        "minLength": 1,
                        "maxLength": 1_000,
                    },
                    "most": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": _MOST_AT_ONCE,
                        "default": _USUAL_AT_ONCE,
                    },
                },
                "required": ["query"],
                "additionalProperties": False,
            },
            effect=Effect.PURE,
            reads=Reads.TRUSTED,
        )

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """The tools that fit, best first, each with the beginning of what it says of itself."""
        most = arguments.get("most", _USUAL_AT_ONCE)
        assert isinstance(most, int | float)  # noqa: S101  # 5.0 is an integer to the schema
        if self._index is None:
            self._index = ToolIndex(tuple(self._specs.values()))
        found = self._index.find(str(arguments["query"]), int(most))
        if not found:
            hint = f"No tool has these words. Try others, in English. There are: {self._groups}."
            return {"tools": [], "hint": hint}
        return {
            "tools": [
                {"name": name, "description": _beginning(self._specs[name].description)}
                for name in found
            ]
        }


def _groups_of(names: Iterable[str]) -> str:
    """`github (14), slack (9) and 3 others`: the prefixes of toolsets with their tools."""
    counts = Counter(name.partition("__")[0] if "__" in name else "" for name in names)
    others = counts.pop("", 0)
    listed = [f"{name} ({count})" for name, count in counts.items()]
    others += sum(list(counts.values())[_MOST_GROUPS:])
    text = ", ".join(listed[:_MOST_GROUPS])
    if not others:
        return text
    return f"{text} and {others} others" if text else f"{others} of no toolset"


def _beginning(description: str) -> str:
    """The first sentence of a description, in one line."""
    text = " ".join(one_line(description[: 4 * _MOST_SAID]).replace("\\n", " ").split())
    sentence = text.partition(". ")[0]
    return sentence if len(sentence) <= _MOST_SAID else f"{sentence[: _MOST_SAID - 1]}…"


class SearchedTools:
    """The tools of one step whose model finds them. What was found follows from the messages of its
    conversation alone, so that a resumed run, a retry and a fork offer the same.
    """

    def __init__(self, search: ToolSearch, tools: Toolbox, memo: dict[object, object]) -> None:
        """Nothing is found yet.

        Args:
            memo: Of the run's tools: what finds these is the same for each item of a loop.
        """
        specs = [tool.spec for tool in tools]
        hidden = [spec for spec in specs if spec.name not in search.always]
        key = (FIND_TOOLS, tuple([spec.name for spec in hidden]))
        finder = memo.get(key)
        if not isinstance(finder, FindTools):
            finder = memo[key] = FindTools(hidden)
        self.toolbox = tools.plus([finder])
        """All that the step may call: also what was not found yet."""
        self._hidden = {spec.name: spec for spec in hidden}
        self._first = (*(spec for spec in specs if spec.name in search.always), finder.spec)
        self._found: dict[str, None] = {}
        self._read: Sequence[Message] = ()
        self._offered = self._first

    def offered(self, messages: Sequence[Message]) -> tuple[ToolSpec, ...]:
        """What a request with these messages offers: always the same first, then what was found, or
        called unfound, in that order, so that earlier parts of the prompt stay as they were.
        """
        known = len(self._read)
        if known > len(messages) or (known and messages[known - 1] is not self._read[-1]):
            known = 0  # the conversation went back
            self._found = {}
        before = tuple(self._found)
        for message in messages[known:]:
            self._add(found_names(message))
            self._add([call.name for call in message.tool_calls])
        self._read = messages
        if not known or tuple(self._found) != before:
            self._offered = (*self._first, *(self._hidden[name] for name in self._found))
        return self._offered

    def _add(self, names: Iterable[str]) -> None:
        self._found.update((name, None) for name in names if name in self._hidden)
        if len(self._found) > _MOST_FOUND:
            self._found = dict.fromkeys(list(self._found)[-_MOST_FOUND // 2 :])


# --- finds tools by words: an index over their names, descriptions and parameters ----------------


_FIELDS: Final = {
    "name": TextField(weight=2.0, most_words=12),
    "description": TextField(most_words=60),
    "parameters": TextField(weight=0.3, most_words=60),
}
_ALIKE: Final = 0.5
"""What a word counts that means about the same as one of the query."""
_MOST_QUERY: Final = 64
"""Words of a query that count."""
_LEAST_SHARE: Final = 0.5
"""Of the score of the best tool, which others need to be found."""


class ToolIndex:
    """Finds tools by words: BM25 over their texts, where a name counts more than what is said."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        """Read the texts of the tools; some 50 µs for each."""
        self._names = [spec.name for spec in specs]
        self._index = TextIndex(_FIELDS, [_words_by_field(spec) for spec in specs])

    def find(self, query: str, most: int) -> tuple[str, ...]:
        """The names of the tools that the words fit, best first; empty: no word is known.

        Tools that fit equally well stand in the order in which they were given.
        """
        scores = self._index.score(_query_words(query))
        ranked = sorted((-score, at) for at, score in scores.items())
        least = -ranked[0][0] * _LEAST_SHARE if ranked else 0.0
        return tuple(self._names[at] for score, at in ranked[:most] if -score >= least)


def _query_words(query: str) -> Mapping[str, float]:
    """The words of a query and what each counts; those that mean about the same count less."""
    own = dict.fromkeys(list(words_of(query))[:_MOST_QUERY])
    shares: dict[str, float] = {}
    for word in own:
        for other in _ALIKE_WORDS.get(word, ()):
            shares[other] = max(shares.get(other, 0.0), _ALIKE)
    shares.update(dict.fromkeys(own, 1.0))
    return shares


def _words_by_field(spec: ToolSpec) -> dict[str, Iterator[str]]:
    return {
        "name": words_of(spec.name),
        "description": words_of(spec.description),
        "parameters": _parameter_words(spec.parameters),
    }


def _parameter_words(schema: Mapping[str, JsonValue]) -> Iterator[str]:
    """The names and descriptions of the parameters, and the values that they take."""
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, Mapping) else ():
        yield from words_of(name)
        if isinstance(each, Mapping):
            said, values = each.get("description"), each.get("enum")
            if isinstance(said, str):
                yield from words_of(said)
            for value in values if isinstance(values, list | tuple) else ():
                if isinstance(value, str):
                    yield from words_of(value)


# --- words of one meaning ----------------------------------------------------------------------


_MEANINGS: Final = (
    "create make new add open start build generate insert put report submit raise register",
    "delete remove erase drop forget clear destroy discard",
    "update change modify edit alter replace adjust close",
    "get read fetch retrieve load show look view see display print give what content inside",
    "list show enumerate browse all overview which what every",
    "search find look query locate where lookup which",
    "send post write tell notify publish say announce",
    "write save store put insert",
    "run execute start call invoke",
    "move rename relocate",
    "copy duplicate clone fork",
    "upload attach push",
    "download fetch pull",
    "directory folder dir",
    "repository repo project",
    "image picture photo screenshot graphic",
    "audio sound recording music video media",
    "media image audio picture photo screenshot",
    "web url page site website internet link online",
    "user people person member who someone somebody",
    "database db sql sqlite row",
    "message chat text mail",
    "comment reply respond answer note",
    "time clock hour date today when",
    "issue bug ticket problem error",
    "schema structure column",
    "meeting event appointment calendar",
    "compare difference diff",
    "size large big",
    "execute run query select",
)
"""Words that tools and their users choose among for the same; each line is of one meaning."""


def _alike_words() -> dict[str, tuple[str, ...]]:
    alike: dict[str, set[str]] = {}
    for line in _MEANINGS:
        stems = {stem_of(word) for word in line.split()}
        for each in stems:
            alike.setdefault(each, set()).update(stems - {each})
    return {word: tuple(sorted(others)) for word, others in alike.items()}


_ALIKE_WORDS: Final = _alike_words()
