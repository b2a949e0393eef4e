"""Decisions on the page: edited arguments, where the focus goes, many of them; the theme."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import Route, expect

expect.set_options(timeout=30_000)


def _waiting_letter(window: BrowserContext, served: Served) -> Page:
    run = served.begin("mail")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    page.get_by_label("Your answer").fill("Ada")
    page.get_by_label("Your answer").press("Enter")
    expect(page.get_by_role("heading", name="May send be called?")).to_be_visible()
    return page


def test_a_call_is_approved_with_edited_arguments_that_are_checked_as_they_are_typed(
    window: BrowserContext, served: Served
) -> None:
    """A-118."""
    page = _waiting_letter(window, served)
    page.get_by_text("Edit the arguments").click()
    editor = page.get_by_label("Edited arguments")
    editor.fill('{"to": "Ida", ')
    expect(page.get_by_text("This is no JSON")).to_be_visible()
    editor.fill("[1]")
    expect(page.get_by_text("Arguments are a JSON object")).to_be_visible()
    page.get_by_role("button", name="Approve").click()
    expect(editor).to_be_focused()
    editor.fill('{"to": "Ida", "text": "Dear Ida."}')
    page.get_by_role("button", name="Approve as edited").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.get_by_role("region", name="Output")).to_have_text("sent to Ida")
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def test_a_rejection_carries_its_reason(window: BrowserContext, served: Served) -> None:
    page = _waiting_letter(window, served)
    page.get_by_label("Reason of a rejection").fill("wrong person")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("main").get_by_role("alert").first).to_contain_text("wrong person")


def test_pending_decisions_come_in_pages_and_the_focus_goes_to_the_next_one(
    window: BrowserContext, served: Served
) -> None:
    common = {"session_id": "ses_1", "recipe": "mail", "step_id": "letter", "key": "k"}
    call = {"what": "approval", "tool": "send", "words": "", "arguments": "{}", "digest": "d"}
    form = {"question": None, "form": None, "default": None}
    cards = [{**common, **call, **form, "id": f"d{at}", "run_id": f"run_{at}"} for at in range(120)]

    def listed(route: Route) -> None:
        query = dict(each.split("=") for each in route.request.url.partition("?")[2].split("&"))
        limit, offset = int(query["limit"]), int(query.get("offset", "0"))
        part = cards[offset : offset + limit]
        route.fulfill(json={"approvals": part, "total": len(cards), "limit": 1, "offset": 0})

    def settle(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        assert json.loads(route.request.post_data or "")["digest"] == "d"
        cards[:] = [each for each in cards if each["id"] != name]
        route.fulfill(status=202, json={})

    page = window.new_page()
    page.route("**/api/v1/approvals?*", listed)
    page.route("**/api/v1/approvals/d*", settle)
    page.goto(served.at("/approvals"))
    found = page.get_by_role("article")
    expect(found).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    expect(found).to_have_count(20)
    expect(page.get_by_text("101–120 of 120")).to_be_visible()
    found.first.get_by_role("button", name="Approve").click()
    expect(found).to_have_count(19)
    expect(found.first.get_by_role("heading", level=2)).to_be_focused()


def test_the_result_of_a_caller_s_tool_may_be_given_by_hand(
    window: BrowserContext, served: Served
) -> None:
    card = {
        "id": "d1",
        "run_id": "run_1",
        "session_id": "ses_1",
        "recipe": "mail",
        "key": "k",
        "step_id": "letter",
        "kind": "call",
        "what": "answer",
        "tool": "weather",
        "question": "What does the caller's tool 'weather' give?",
        "words": "",
        "digest": "d",
        "arguments": '{"town":"Bern"}',
        "form": None,
        "default": None,
        "can_decline": True,
    }
    sent: list[object] = []

    def settle(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or ""))
        route.fulfill(status=202, json={})

    page = window.new_page()
    listed = {"approvals": [card], "total": 1, "limit": 50, "offset": 0}
    page.route("**/api/v1/approvals?*", lambda route: route.fulfill(json=listed))
    page.route("**/api/v1/approvals/d1", settle)
    page.goto(served.at("/approvals"))
    found = page.get_by_role("article", name="Result of weather")
    expect(found).to_contain_text("The program that asked carries this out")
    expect(found).to_contain_text("Bern")
    found.get_by_label("The result").fill("sunny")
    found.get_by_role("button", name="Answer", exact=True).click()
    expect(page.get_by_text("Answered; the run is resumed.")).to_be_visible()
    assert sent == [{"decision": "answer", "value": "sunny"}]


def test_a_theme_is_chosen_and_kept(window: BrowserContext, served: Served) -> None:
    run = served.begin("forty")
    page = window.new_page()
    page.emulate_media(color_scheme="light")
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")  # a box has the colour of its state
    body, box = page.locator("body"), page.locator(".minions-steps .box").first

    def colours() -> tuple[str, str]:
        found = [
            each.evaluate(f"el => getComputedStyle(el).{name}")
            for each, name in ((body, "backgroundColor"), (box, "fill"))
        ]
        return str(found[0]), str(found[1])

    def are(wanted: tuple[str, str]) -> None:
        expect(body).to_have_css("background-color", wanted[0])
        expect(box).to_have_css("fill", wanted[1])

    expect(box).to_have_css("fill", "rgb(220, 252, 231)")  # drawn again once its step completed
    light = colours()
    page.get_by_label("Theme").select_option("dark")
    expect(body).not_to_have_css("background-color", light[0])
    expect(box).not_to_have_css("fill", light[1])
    dark = colours()
    page.reload()
    are(dark)
    page.get_by_label("Theme").select_option("auto")
    are(light)
    page.emulate_media(color_scheme="dark")
    are(dark)


def test_a_form_has_a_field_for_each_value_and_a_question_of_a_tool_can_be_declined(
    window: BrowserContext, served: Served
) -> None:
    """A-135."""
    form = {
        "type": "object",
        "properties": {
            "town": {"type": "string", "title": "Town", "description": "Where to."},
            "count": {"type": "integer", "default": 2},
        },
        "required": ["town", "count"],
    }
    question = {
        "id": "q",
        "run_id": "run_1",
        "session_id": "ses_1",
        "recipe": "trip",
        "key": "k",
        "step_id": "book",
        "what": "answer",
        "words": "book asks",
        "question": "Which?",
        "tool": None,
        "arguments": None,
        "digest": None,
        "default": None,
        "form": form,
    }
    said: list[str | None] = []
    page = window.new_page()
    views = [{**question, "can_decline": True}, {**question, "id": "s", "can_decline": False}]
    page.route("**/api/v1/approvals?*", lambda route: route.fulfill(json={"approvals": views}))

    def take(route: Route) -> None:
        said.append(route.request.post_data)
        route.fulfill(status=202, json={})

    page.route("**/api/v1/approvals/q", take)
    page.goto(served.at("/approvals"))
    card = page.get_by_role("article", name="Question").first
    card.get_by_role("button", name="Answer", exact=True).click()
    expect(card.get_by_label("Town")).to_be_focused()
    expect(card).to_contain_text("This is needed.")
    card.get_by_label("Town").fill("Oslo")
    card.get_by_role("button", name="Answer", exact=True).click()
    expect(page.get_by_text("Answered; the run is resumed.")).to_be_visible()
    card.get_by_role("button", name="Decline to answer").click()
    expect(page.get_by_text("Declined; the tool is told so.")).to_be_visible()
    assert said == [
        '{"decision":"answer","value":{"town":"Oslo","count":2}}',
        '{"decision":"reject"}',
    ]
    expect(page.get_by_role("button", name="Decline to answer")).to_have_count(1)


def test_all_calls_like_one_are_approved_after_it_was_shown_which(
    window: BrowserContext, served: Served
) -> None:
    """A-169."""
    call = {
        "id": "d",
        "run_id": "run_1",
        "session_id": "ses_1",
        "recipe": "mail",
        "key": "k",
        "step_id": "letter",
        "what": "approval",
        "kind": "approval",
        "tool": "send",
        "words": "",
        "arguments": '{"to": "Ada", "text": "Dear Ada."}',
        "digest": "d",
        "question": None,
        "form": None,
        "default": None,
        "who": "1 of 2 approvals (ann)",
        "asked_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "votes": [{"decision": "approve", "by": "ann", "at": "2026-01-01T00:00:00Z"}],
    }
    said: list[str | None] = []
    page = window.new_page()
    page.route("**/api/v1/approvals?*", lambda route: route.fulfill(json={"approvals": [call]}))

    def take(route: Route) -> None:
        said.append(route.request.post_data)
        route.fulfill(status=202, json={})

    page.route("**/api/v1/approvals/d", take)
    page.goto(served.at("/approvals"))
    card = page.get_by_role("article")
    expect(card).to_contain_text("1 of 2 approvals (ann)")
    expect(card).to_contain_text("ann approved")
    expect(card).to_contain_text("expires")
    card.locator("summary").filter(has_text="Approve all like this").click()
    approve = card.get_by_role("button", name="Approve all like this")
    expect(approve).to_be_hidden()
    card.get_by_label("to", exact=True).check()
    expect(card).to_contain_text("All calls of send in step 'letter' with to = \"Ada\"")
    approve.click()
    expect(page.get_by_text("Approved with all calls like it")).to_be_visible()
    assert json.loads(said[0] or "") == {
        "decision": "approve",
        "digest": "d",
        "all_like": {"same": ["to"]},
    }
