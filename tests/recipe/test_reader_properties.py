"""Any text is a document or a recipe error that points into the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from minions.data.errors import Fault, RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.yaml_reader import read_document
from recipe.sample_catalog import CATALOG

PIECES = st.sampled_from(
    [
        *"[]{}:,-&*!|>'\"%@` \n\t?#~.",
        *("- ", ": ", ":\n  ", "\n  - ", "\n", "&a ", "*a", "<<: *a", "!!str ", "|\n ", ">-\n "),
        *(
            "'x'",
            '"\\u0041"',
            '"\\ud800"',
            "null",
            "0o17",
            "1e999",
            "é",
            "\u2028",
            "\ufeff",
            "\x07",
        ),
        *("steps", "id", "goal", "inputs", "tool", "{{ a.b }}", "{{", "---\n", "...\n", "\r\n"),
    ]
)
any_text = st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


def places_are_inside(text: str, faults: tuple[Fault, ...]) -> bool:
    lines = _lines(text)
    return all(_is_inside(lines, fault) for fault in faults)


def _lines(text: str) -> list[str]:
    """YAML's line breaks, which are not all of Python's."""
    return re.split("\r\n|[\r\n\x85\u2028\u2029]", text.removeprefix("\ufeff"))


def _is_inside(lines: list[str], fault: Fault) -> bool:
    """One line and one column behind the end are where something is missing."""
    if not 1 <= fault.line <= len(lines) + 1 or fault.column < 1:
        return False
    line = lines[fault.line - 1] if fault.line <= len(lines) else ""
    return fault.column <= len(line) + 1 and fault.source_line in (line, None)


@settings(deadline=10_000)
@given(any_text)
def test_any_text_is_a_document_or_an_error_that_points_into_it(text: str) -> None:
    try:
        nodes = _all_nodes(read_document(text, "r.yaml"))
    except RecipeError as error:
        nodes, faults = [], error.faults
    else:
        faults = ()
    assert places_are_inside(text, faults)
    assert all(_place_is_inside(text, each) for each in nodes)


def _all_nodes(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        inner = [part for entry in node.entries for part in (entry.key_node, entry.value)]
    else:
        inner = list(node.items) if isinstance(node, SequenceNode) else []
    return [node, *(each for part in inner for each in _all_nodes(part))]


def _place_is_inside(text: str, node: Node) -> bool:
    place = node.place
    return _is_inside(_lines(text), place.fault("x", "x"))


@settings(deadline=10_000)
@given(any_text)
def test_any_text_is_a_recipe_or_faults_that_point_into_it(text: str) -> None:
    loaded = check_recipe_text(text, "r.yaml", CATALOG)
    assert (loaded.recipe is None) is bool(loaded.errors)
    assert places_are_inside(text, loaded.faults)


# --- what other programs write ------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x2FFF), max_size=12)
texts = words | st.lists(words, max_size=4).map("\n".join) | st.sampled_from(
    ["null", "true", "no", "1", "1.5", "~", "2026-01-01", "0x1F", "- a", "a: b", " lead", "trail "]
)  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def dumper_of(style: str) -> type[yaml.SafeDumper]:
    """Texts in that style; plain ones mean other things in YAML 1.1, which the dumper writes."""

    class Dumper(yaml.SafeDumper):
        pass

    tag = "tag:yaml.org,2002:str"
    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar(tag, text, style=style)
    )
    return Dumper


def _texts_in(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts_in(item)


def _is_indented(text: str) -> bool:
    return text[:1].isspace()


@settings(deadline=10_000)
@given(
    value=documents,
    style=st.sampled_from(["'", '"', "|", ">"]),
    is_flow=st.sampled_from([True, False, None]),
    indent=st.integers(2, 6),
    width=st.integers(5, 120),
    is_explicit=st.booleans(),
)
def test_documents_in_every_style_are_read_back(
    value: JsonValue, style: str, is_flow: bool | None, indent: int, width: int, is_explicit: bool
) -> None:
    if value is None or (style in "|>" and any(map(_is_indented, _texts_in(value)))):
        return  # PyYAML writes blocks in lists in lists that no parser reads back
    text = yaml.dump(
        value,
        Dumper=dumper_of(style),
        allow_unicode=True,
        default_flow_style=is_flow,
        indent=indent,
        width=width,
        explicit_start=is_explicit,
        explicit_end=is_explicit,
        sort_keys=False,
    )
    read = to_plain(read_document(text, "r.yaml"))
    if read != value and read == yaml.safe_load(text):
        return  # PyYAML folds some quoted texts so that its own reader reads another one, too
    assert read == value
    assert repr(read) == repr(value)  # 1, 1.0 and true are not the same


@settings(deadline=10_000)
@given(st.lists(words.filter(bool), min_size=1, max_size=5, unique=True))
def test_a_scalar_knows_where_it_stands(names: list[str]) -> None:
    quoted = [
        yaml.dump(name, Dumper=dumper_of('"'), allow_unicode=True, width=99) for name in names
    ]
    text = "".join(f"k{n}:\n  - {each}" for n, each in enumerate(quoted))
    node = read_document(text, "r.yaml")
    assert isinstance(node, MappingNode)
    for number, entry in enumerate(node.entries):
        assert isinstance(entry.value, SequenceNode)
        (item,) = entry.value.items
        assert isinstance(item, ScalarNode)
        assert (entry.key_node.place.line, entry.key_node.place.column) == (2 * number + 1, 1)
        assert (item.place.line, item.place.column) == (2 * number + 2, 5)
