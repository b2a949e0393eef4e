"""Texts that are just being written, and broken in any way: nothing that an editor asks fails."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.data.fault_fixes import fix_of
from minions.interfaces.lsp.checked_text import ClientPlaces, Project, Spot, check_text
from minions.interfaces.lsp.completions import completions_at
from minions.interfaces.lsp.hovers import hover_at
from minions.interfaces.lsp.language_server import folds_of, parts_of
from minions.interfaces.lsp.mentions import references_of, targets_of

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [
    path.read_text("utf-8")
    for path in (*sorted((ROOT / "recipes").glob("*.yaml")), ROOT / "minions/planning/plan.yaml")
]
SIGNS = ("", "{{ ", "}}", "[", "{", "- ", ": ", "\n", "|", '"', "'", "x.", "&a ", "*a", "😀", "\t")
PROJECT = Project(catalog=built_in_extensions().catalog())


@given(st.sampled_from(RECIPES), st.data(), st.sampled_from(SIGNS), st.booleans())
def test_no_text_makes_an_answer_fail(
    text: str, data: st.DataObject, sign: str, is_cut: bool
) -> None:
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + sign + ("" if is_cut else text[at:])
    checked = check_text(text, ROOT / "recipes" / "any.yaml", PROJECT)
    spot = Spot(text.count("\n", 0, at), at - text.rfind("\n", 0, at) - 1)
    completions_at(checked, spot)
    hover_at(checked, spot)
    targets_of(checked, spot)
    references_of(checked, spot, with_definition=True)
    parts_of(checked)
    for fault in checked.loaded.faults:
        fix_of(fault)
    last = len(checked.lines)
    assert all(0 <= first < end < last for first, end in folds_of(checked))


@given(st.text(alphabet="ab😀\n\r\u2028\x85", max_size=30), st.data())
def test_places_of_the_editor_come_back_as_they_went(text: str, data: st.DataObject) -> None:
    places = ClientPlaces(text, lambda part: len(part.encode("utf-16-le")) // 2)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    line = data.draw(st.integers(0, len(lines) - 1))
    own = lines[line][: data.draw(st.integers(0, len(lines[line])))]
    column = len(own.encode("utf-16-le")) // 2
    assert text[: places.offset_of(line, column)].endswith(own)
    spot = places.of_client(line, column)
    assert places.to_client(spot) == (line, column)
