"""A run as one HTML file that can be sent to somebody."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

from minions.app.pages.run_page import RunPage
from minions.app.settings.settings import masked
from minions.data.json_values import JsonValue
from minions.engine.views.run_detail import RunDetail, StepSummary
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.step_details import StepDetail

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class _Reader(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.text += data


def page_of(text: str, *, picture: str = "", recipe: str = "r") -> str:
    summary = RunSummary(
        run_id="run_1", session_id="ses_1", recipe=recipe, status="failed", started_at=NOW
    )
    detail = RunDetail(
        summary=summary, inputs={"text": text}, output=text, error=None, steps=(), messages=()
    )
    message: dict[str, JsonValue] = {"role": "assistant", "content": text}
    call: JsonValue = {"function": {"name": "send", "arguments": text}}
    message["tool_calls"] = [call]
    step = StepDetail(
        summary=StepSummary(step_id="each[3]", status="failed", reason=text),
        messages=(message,),
        prompts=(),
    )
    return RunPage(detail=detail, steps={"each[3]": step}, picture=picture).html()


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    return reader


def test_what_models_and_tools_said_is_text_and_never_markup() -> None:
    found = read(page_of(HOSTILE, recipe=HOSTILE))
    assert not {"script", "img", "link", "iframe", "object"} & set(found.tags)
    assert found.text.count("alert(1)") >= 5
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]


def test_the_file_holds_all_and_forbids_to_load_anything() -> None:
    page = page_of("hello")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert not re.findall(r'(?:href|src)="', page)


def test_what_looks_like_a_key_is_masked_wherever_it_stands() -> None:
    keys = ("sk-abcdefghij0123456789", "ghp_abcdefghij0123456789", "AKIAABCDEFGHIJKLMNOP")
    page = page_of(" ".join(keys), picture=f"<svg><text>{keys[0]}</text></svg>")
    assert not [key for key in keys if key in page]
    assert masked("Authorization: Bearer abcdef0123456789xyz") == "Authorization: Bearer [masked]"
    assert masked("a risk-based ask, 12 skis") == "a risk-based ask, 12 skis"


def test_a_long_text_that_begins_a_token_again_and_again_is_masked_in_one_walk() -> None:
    token = f"eyJ{'a' * 1_000}.{'b' * 10_000}.{'c' * 1_000}"
    assert masked(f"{'eyJabcdefghij-' * 40_000} {token}") == f"{'eyJabcdefghij-' * 40_000} [masked]"


def test_half_characters_and_deep_json_do_not_break_the_file() -> None:
    for text in ("\ud800", "[" * 100_000, '{"a": NaN}'):
        assert page_of(text).encode()
