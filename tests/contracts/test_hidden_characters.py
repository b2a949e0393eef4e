"""What cannot be seen, or turns the direction of text, is shown as an escape."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.texts import HIDDEN, shown_text
from minions.interfaces.cli.console.render import (
    plain,
)

_WEB = Path(__file__).parents[2] / "minions" / "interfaces" / "server" / "web"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm \u202egnp.sh", r"rm \u202egnp.sh"),
        ("pay\u200bpal", r"pay\u200bpal"),
        ("\u2066a\u2069", r"\u2066a\u2069"),
        ("a\U000e0041b", r"a\U000e0041b"),
        ("a\u200db", r"a\u200db"),
        ("\ufefftext", r"\ufefftext"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),
        ("\U0001f469\u200d\U0001f469\u200d\U0001f467", None),
        ("naïve – 漢字, עברית, العربية", None),
    ],
)
def test_hidden_characters_are_escaped_and_scripts_stay_as_they_are(
    text: str, shown: str | None
) -> None:
    assert shown_text(text) == (text if shown is None else shown)
    assert plain(text) == (text if shown is None else shown)


def test_every_character_that_turns_the_direction_or_has_no_width_is_hidden() -> None:
    """Unicode's format characters, apart from those that scripts write with."""
    written = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2}
    written |= {0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    formats = {at for at in range(0x110000) if unicodedata.category(chr(at)) == "Cf"} - written
    hidden = re.compile(f"[{HIDDEN}]")
    assert [hex(at) for at in sorted(formats) if not hidden.fullmatch(chr(at))] == []


@given(st.text())
def test_what_is_shown_hides_nothing_and_is_shown_the_same_again(text: str) -> None:
    once = shown_text(text)
    assert not re.search(f"[{HIDDEN}]", once)
    assert shown_text(once) == once


def test_the_page_hides_and_shows_the_same_characters() -> None:
    source = (_WEB / "dom.js").read_text("utf-8")
    found = re.search(r"const HIDDEN = /\[([^\]]*)\]", source)
    assert found is not None
    of_page = re.sub(r"\\u\{([0-9a-f]+)\}", lambda each: chr(int(each[1], 16)), found[1])
    of_page = re.sub(r"\\u([0-9a-f]{4})", lambda each: chr(int(each[1], 16)), of_page)
    controls = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    assert of_page == controls + HIDDEN
