"""YAML to nodes: scalars of YAML 1.2, places, and everything that is refused."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import Fault, RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.text.nodes import MappingNode, ScalarNode, SequenceNode, node_of, to_plain
from minions.recipe.text.yaml_reader import read_document, read_source


def plain(text: str | bytes) -> JsonValue:
    return to_plain(read_document(text, "r.yaml"))


def faults_of(text: str | bytes) -> tuple[Fault, ...]:
    with pytest.raises(RecipeError) as caught:
        read_document(text, "r.yaml")
    return caught.value.faults


def test_scalars_follow_yaml_1_2() -> None:
    text = "[yes, No, on, off, true, False, null, ~, , 1, -2, 0x1F, 0o17, 1_000, 1:30, 010, +3]"
    assert plain(text.replace(", ,", ", '',")) == [
        "yes", "No", "on", "off", True, False, None, None, "", 1, -2, 31, 15,
        "1_000", "1:30", 10, 3,
    ]  # fmt: skip


def test_floats_keep_being_floats() -> None:
    values = plain("[1.0, -1.5e3, .5, 1., 1e2, 2024-01-01, 1.2.3]")
    assert values == [1.0, -1500.0, 0.5, 1.0, 100.0, "2024-01-01", "1.2.3"]
    assert isinstance(values, list)
    assert [type(value) for value in values[:5]] == [float] * 5


def test_quoted_scalars_are_text() -> None:
    assert plain("""['1', "true", '', "null", 'a ''b''', "tab\\tstop"]""") == [
        "1", "true", "", "null", "a 'b'", "tab\tstop",
    ]  # fmt: skip


def test_core_tags_say_the_type() -> None:
    assert plain("[!!str 1, !!int 2, !!float 3, ! 4, !!str yes]") == ["1", 2, 3.0, "4", "yes"]


def test_an_empty_value_is_null_and_block_text_keeps_its_lines() -> None:
    assert plain("a:\nb: |\n  one\n  two\nc: >-\n  one\n  two\n") == {
        "a": None,
        "b": "one\ntwo\n",
        "c": "one two",
    }


def test_nodes_know_their_places() -> None:
    node = read_document("steps:\n  - id: 'a b'\n    n: [1, 22]\n", "r.yaml")
    assert isinstance(node, MappingNode)
    steps = node.entries[0].value
    assert isinstance(steps, SequenceNode)
    step = steps.items[0]
    assert isinstance(step, MappingNode)
    key, value = step.entries[0].key_node, step.entries[0].value
    assert (key.place.line, key.place.column, key.place.length) == (2, 5, 2)
    assert (value.place.line, value.place.column, value.place.length) == (2, 9, 5)


def test_a_part_of_a_block_text_has_its_own_place() -> None:
    node = read_document("goal: |\n  one x\n  two x and x\n", "r.yaml")
    assert isinstance(node, MappingNode)
    text = node.entries[0].value
    assert isinstance(text, ScalarNode)
    assert isinstance(text.value, str)
    place = text.part(text.value.rindex("x"), 1)
    assert (place.line, place.column, place.length) == (3, 13, 1)


def test_windows_line_ends_and_a_byte_order_mark_are_taken() -> None:
    assert plain(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


def test_aliases_repeat_values() -> None:
    assert plain("a: &x {n: [1]}\nb: *x\n") == {"a": {"n": [1]}, "b": {"n": [1]}}


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (fault,) = faults_of("\n".join(lines))
    assert fault.code == "too-large"
    assert "100,000" in fault.message


def test_an_anchor_inside_itself_is_refused() -> None:
    (fault,) = faults_of("a: &a [1, *a]")
    assert (fault.code, fault.line, fault.column) == ("bad-yaml", 1, 11)


def test_aliases_count_towards_the_depth() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 120))]
    assert faults_of("\n".join(lines))[-1].code == "too-deep"


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "{? ", "a:\n "])
def test_deep_nesting_is_a_fault_and_not_a_crash(opening: str) -> None:
    assert {fault.code for fault in faults_of(opening * 5_000)} <= {
        "too-deep",
        "bad-yaml",
        "duplicate-key",
    }


def test_a_file_over_one_mebibyte_is_refused_unparsed(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"[" * 10_000_000)
    source = read_source(path)
    assert len(source) == 1_048_577
    assert [fault.code for fault in faults_of(source)] == ["too-large"]


def test_bytes_that_are_no_utf_8_are_placed() -> None:
    (fault,) = faults_of(b"a: 1\nb: \xff\n")
    assert fault.code == "not-utf-8"
    assert "byte 0xff at offset 8" in fault.message
    assert fault.line == 2


@pytest.mark.parametrize(
    ("character", "shown"), [("\0", "U+0000"), ("\x1b", "U+001B"), ("\ud800", "U+D800")]
)
def test_unprintable_characters_are_placed(character: str, shown: str) -> None:
    (fault,) = faults_of(f"a: 1\nb: x{character}\n")
    assert (fault.code, fault.line, fault.column) == ("bad-character", 2, 5)
    assert shown in fault.message
    assert fault.source_line == f"b: x{character}"


def test_two_halves_of_a_character_are_one_in_double_quotes_only() -> None:
    text = """
- "party \\ud83c\\udf89"
- {"\\uD83C\\uDF89": "\\\\ud83c"}
- '\\ud83c'
- \\ud83c\\udf89
"""
    assert plain(text) == ["party 🎉", {"🎉": "\\ud83c"}, "\\ud83c", "\\ud83c\\udf89"]


@pytest.mark.parametrize("half", ["\\ud83c", "\\udf89", "\\udf89\\ud83c", "\\ud83c \\udf89"])
def test_half_a_character_is_a_fault_in_its_place(half: str) -> None:
    (fault,) = faults_of(f'a: 1\nb: "{half}"\n')
    assert (fault.code, fault.line, fault.column) == ("bad-character", 2, 4)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "!!float 1e400", f"!!float 0x{'f' * 290}"])
def test_a_number_that_is_too_large_is_a_fault(number: str) -> None:
    (fault,) = faults_of(f"a: {number}\n")
    assert (fault.code, "is too large for a number" in fault.message) == ("bad-value", True)


def test_several_faults_are_found_at_once() -> None:
    faults = faults_of("a: 1\na: 2\n3: x\nb: !secret y\n")
    assert [(fault.code, fault.line, fault.column) for fault in faults] == [
        ("duplicate-key", 2, 1),
        ("bad-key", 3, 1),
        ("bad-yaml", 4, 4),
    ]


def test_a_quoted_merge_sign_is_a_key_like_any_other() -> None:
    assert plain("'<<': 1") == {"<<": 1}


def test_plain_data_makes_the_same_tree() -> None:
    value: JsonValue = {"a": [1, 2.5, None, {"b": "x"}], "c": True}
    assert to_plain(node_of(value)) == value


def test_plain_data_that_is_no_json_is_refused() -> None:
    with pytest.raises(RecipeError, match="set is not JSON"):
        node_of({"a": {1}})  # type: ignore[dict-item]  # what the test is about
    with pytest.raises(RecipeError, match="a key must be text"):
        node_of({1: "a"})  # type: ignore[dict-item]  # what the test is about
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(RecipeError, match="deeper"):
        node_of(deep)  # type: ignore[arg-type]  # what the test is about


class _Quoted(yaml.SafeDumper):
    """Texts in quotes: plain ones mean other things in YAML 1.1, which the dumper writes."""


_Quoted.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)

texts = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | texts
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_a_yaml_library_wrote_is_read_back(value: JsonValue) -> None:
    if value is not None:
        assert plain(yaml.dump(value, Dumper=_Quoted, allow_unicode=True)) == value


@given(values)
def test_json_is_read_as_it_is(value: JsonValue) -> None:
    read = plain(json.dumps(value))
    assert read == value
    assert not isinstance(read, float) or not math.isnan(read)


@given(st.text(max_size=60) | st.text("[]{}:,-&*!|>'\"%@` \n\ta0?#<.~", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_document(text, "r.yaml")
    except RecipeError as error:
        faults = error.faults
    else:
        return
    assert all(fault.line >= 1 and fault.column >= 1 for fault in faults)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RecipeError):
        read_document(data, "r.yaml")
