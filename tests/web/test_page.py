"""The page as a person uses it: in a browser, against a server in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from page_project import HOSTILE
from page_server import TOKEN

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import Route, expect

expect.set_options(timeout=30_000)


def _open(window: BrowserContext, served: Served, place: str) -> Page:
    page = window.new_page()
    page.goto(served.at(place))
    return page


# --- coming in ------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_the_right_one_lets_in(
    window: BrowserContext, served: Served
) -> None:
    page = window.new_page()
    page.goto(served.url)
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type("a-token-that-is-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("The server did not take that token.")
    assert page.evaluate("sessionStorage.length") == 0
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


def test_the_token_of_the_address_is_taken_and_removed(
    window: BrowserContext, served: Served
) -> None:
    page = _open(window, served, "/system")
    expect(page.get_by_role("heading", name="System")).to_be_visible()
    assert page.url == f"{served.url}/#/system"


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_is_started_by_its_form_and_watched_while_it_streams(
    window: BrowserContext, served: Served
) -> None:
    page = _open(window, served, "/runs")
    page.get_by_role("link", name="Start a run").first.click()
    page.get_by_role("link", name="story").click()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("textbox", name="about")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("textbox", name="about").fill("slow bees")
    page.get_by_label("length").fill("99")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("99 is greater than the maximum of 9")).to_be_visible()
    page.get_by_label("length").fill("2")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Step tell: running").first.click()
    drawer = page.get_by_role("dialog", name="tell")
    served.let("bees.one")
    expect(drawer.locator(".live")).to_contain_text("and then number two")
    expect(drawer).not_to_contain_text("the end")
    expect(page.locator("h1 .chip")).to_have_text("running")
    served.let("bees.two")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    said = drawer.locator(".said.assistant")
    expect(said).to_have_count(1)
    expect(said).to_contain_text("Once there was number one and then number two and then the end.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Output")).to_contain_text('"words": 13')
    expect(page.get_by_role("button", name="Step judge: skipped").first).to_be_visible()
    expect(page.locator("dl.facts")).to_contain_text("Costunknown")


def test_a_killed_server_comes_back_and_the_page_goes_on_with_it(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/runs")
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    run = own_served.begin("story", '{"about": "slow bees"}')
    page.goto(f"{own_served.url}/#/runs/{run}?step=tell")
    expect(page.locator("h1 .chip")).to_have_text("running")
    line = page.locator("header .line")
    expect(line).to_have_text("live")
    own_served.kill()
    expect(line).to_have_text("server gone")
    own_served.start()
    expect(line).to_have_text("live")
    expect(page.locator("dl.facts")).to_contain_text("Begun2 times")
    own_served.let("bees.one")
    expect(page.locator(".drawer .live")).to_contain_text("then number two")
    own_served.let("bees.two")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".drawer .said.assistant")).to_have_count(1)
    page.get_by_role("tab", name="Attempts").click()
    attempts = page.locator(".drawer .lines").first.locator("li .chip")
    expect(attempts).to_have_text(["interrupted", "completed"])
    expect(page.locator(".fall-row")).to_have_count(4)


def test_a_run_is_stopped_and_resumed(window: BrowserContext, served: Served) -> None:
    run = served.begin("story", '{"about": "slow ants"}')
    page = _open(window, served, f"/runs/{run}")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1 .chip")).to_have_text("cancelled")
    served.let("ants.one")
    served.let("ants.two")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.get_by_role("region", name="Output")).to_contain_text('"words": 13')


def test_a_run_is_retried_from_a_step_and_begun_anew(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("story", '{"about": "bees"}')
    page = _open(window, served, f"/runs/{run}?step=measure")
    page.get_by_role("button", name="Retry from here").click()
    expect(page.locator("dl.facts")).to_contain_text("Begun2 times")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.get_by_role("tab", name="Attempts").click()
    expect(page.locator(".drawer .lines").first.locator("li")).to_have_count(2)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("textbox", name="about")).to_have_value("bees")
    page.get_by_role("textbox", name="about").fill("ants")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("dl.facts")).not_to_contain_text("Begun")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    assert run not in page.url


def test_what_a_model_says_is_shown_as_text(window: BrowserContext, served: Served) -> None:
    run = served.begin("story", '{"about": "hostile bees"}')
    page = _open(window, served, f"/runs/{run}?step=tell&tab=response")
    expect(page.locator(".drawer .said.assistant pre")).to_have_text(HOSTILE)
    expect(page.get_by_role("region", name="Output")).to_contain_text("<script>")
    page.goto(f"{served.url}/#/compare?a={run}")
    page.goto(f"{served.url}/#/runs")
    expect(page.get_by_role("link", name="story").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x], main script").count() == 0


def test_questions_and_calls_are_decided_where_they_are_shown(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("mail")
    page = _open(window, served, f"/runs/{run}")
    answer = page.get_by_label("Your answer")
    answer.fill("A")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("does not answer the question")).to_be_visible()
    answer.fill("Ada")
    answer.press("Enter")
    expect(page.get_by_role("heading", name="May send be called?")).to_be_visible()
    page.get_by_role("link", name="Inbox").click()
    card = page.get_by_role("article", name="Approval of send").filter(
        has=page.locator(f'a[href="#/runs/{run}"]')
    )
    expect(card).to_contain_text('"to": "Ada"')
    card.get_by_role("button", name="Approve").click()
    expect(card).to_have_count(0)
    page.goto(f"{served.url}/#/runs/{run}")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.get_by_role("region", name="Output")).to_have_text("sent to Ada")


def test_a_call_in_doubt_is_decided_and_a_damaged_run_is_only_named(
    window: BrowserContext, served: Served
) -> None:
    """A-123."""
    common = {"run_id": "run_1", "session_id": "ses_1", "recipe": "mail", "digest": None}
    more = {"question": None, "form": None, "default": None}
    call = {"tool": "send", "arguments": '{"to":"Ada"}', "key": "k", "step_id": "letter"}
    none = {"tool": None, "arguments": None, "key": "", "step_id": ""}
    doubt = {**common, **more, **call, "id": "d", "what": "doubt", "words": "send was cut off"}
    bad = {**common, **more, **none, "id": "b", "what": "unreadable", "words": "Entry 3 is broken."}
    said: list[str | None] = []
    page = window.new_page()
    page.route(
        "**/api/v1/approvals?*", lambda route: route.fulfill(json={"approvals": [doubt, bad]})
    )

    def settle(route: Route) -> None:
        said.append(route.request.post_data)
        route.fulfill(status=202, json={})

    page.route("**/api/v1/approvals/d", settle)
    page.goto(served.at("/approvals"))
    named = page.get_by_role("article", name="Unreadable run")
    expect(named).to_contain_text("Entry 3 is broken.")
    expect(named.get_by_role("button")).to_have_count(0)
    card = page.get_by_role("article", name="Call of send in doubt")
    expect(card).to_contain_text('"to": "Ada"')
    card.get_by_role("button", name="Declare it done").click()
    expect(page.get_by_text("Declared done; the run is resumed.")).to_be_visible()
    assert said == ['{"decision":"done"}']


# --- sessions -------------------------------------------------------------------------------------


def test_a_conversation_goes_on_is_regenerated_and_forked(
    window: BrowserContext, served: Served
) -> None:
    page = _open(window, served, "/new?recipe=chat")
    page.get_by_role("button", name="Open a conversation").click()
    field = page.get_by_label("Your message")
    field.fill("Hello")
    field.press("Control+Enter")
    log = page.get_by_role("log")
    expect(log).to_contain_text("Answer 1 to: Hello")
    page.get_by_role("button", name="Regenerate from message 2").click()
    expect(log).to_contain_text("Answer 2 to: Hello")
    expect(log.get_by_role("article")).to_have_count(2)
    field.fill("How is the weather?")
    page.get_by_role("button", name="Send").click()
    expect(log).to_contain_text("Answer 3 to: How is the weather?")
    expect(log.get_by_role("article")).to_have_count(6)
    expect(log).to_contain_text("asks for weather")
    log.get_by_role("link", name="Link to message 2").click()
    page.wait_for_url("**?message=2")
    page.reload()
    named = page.get_by_role("article", name="Message 2 of assistant")
    expect(named).to_be_focused()
    expect(named).to_be_in_viewport(ratio=1)
    expect(page.locator(".bubble[aria-current]")).to_have_count(1)
    page.evaluate("location.hash = location.hash.replace(/message=2/, 'message=99')")
    expect(page.get_by_text("There is no message 99")).to_be_visible()
    page.go_back()
    expect(named).to_be_focused()
    parent = page.url.partition("?")[0]
    page.get_by_role("button", name="Fork here, at message 2").click()
    expect(page.get_by_text("Forked from")).to_be_visible()
    assert page.url != parent
    expect(page.get_by_role("log").get_by_role("article")).to_have_count(2)
    origin = parent.rpartition("/")[2]
    expect(page.locator(".tree a")).to_have_attribute("href", f"#/sessions/{origin}")


# --- how it is used -------------------------------------------------------------------------------


def test_everything_is_reached_by_keys(window: BrowserContext, served: Served) -> None:
    run = served.begin("fragile")
    page = _open(window, served, "/runs")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter runs")).to_be_focused()
    page.keyboard.type(run)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="fragile").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1 .chip")).to_have_text("failed")
    row = page.locator(".fall-row[data-step=boom]")
    for _ in range(40):
        page.keyboard.press("Tab")
        if row.evaluate("row => row === document.activeElement"):
            break
    assert row.evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog", name="boom")
    expect(drawer.get_by_role("heading", name="boom")).to_be_focused()
    page.get_by_role("tab", name="Tool calls").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Output")).to_be_focused()
    expect(page.get_by_role("tab", name="Output")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(row).to_be_focused()


def test_nothing_is_wider_than_a_small_screen(window: BrowserContext, served: Served) -> None:
    run = served.begin("story", '{"about": "bees"}')
    page = _open(window, served, f"/runs/{run}")
    page.set_viewport_size({"width": 400, "height": 800})
    session = page.get_by_role("link", name="Session", exact=True).get_attribute("href") or ""
    places = (
        "#/runs", "#/new?recipe=story", "#/sessions", "#/inbox", "#/recipes", "#/system", session,
        f"#/runs/{run}", f"#/runs/{run}?step=tell&tab=cost", f"#/compare?a={run}&b={run}",
    )  # fmt: skip
    for place in places:
        page.goto(f"{served.url}/{place}")
        if place == "#/system":
            expect(page.locator("dl.facts")).to_contain_text("Health")
        expect(page.locator(".loading")).to_have_count(0)
        wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert (place, wide) == (place, 0)


def test_the_system_view_shows_the_server_and_another_its_recipes(
    window: BrowserContext, served: Served
) -> None:
    page = _open(window, served, "/system")
    expect(page.locator("dl.facts")).to_contain_text("Health")
    page.get_by_role("link", name="Recipes").click()
    expect(page.get_by_role("row", name="broken")).to_contain_text("cannot run")
    expect(page.get_by_text("1 fault", exact=True)).to_be_visible()
    expect(page.get_by_text("sned")).to_have_count(0)
    page.get_by_label("Filter recipes").fill("story")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_what_is_not_there_is_said(window: BrowserContext, served: Served) -> None:
    page = _open(window, served, "/runs/run_nope")
    expect(page.get_by_role("alert")).to_contain_text("There is no run 'run_nope'")
    page.goto(f"{served.url}/#/nowhere")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()


def test_events_are_read_wherever_the_stream_is_cut(window: BrowserContext, served: Served) -> None:
    page = _open(window, served, "/system")
    same = page.evaluate(
        """async () => {
          const { SseParser } = await import("/api.js");
          const text = ': hi\\r\\n\\r\\nid: 7\\r\\nevent: a\\r\\ndata: {"x":1}\\r\\n\\r\\n' +
            'id:8\\ndata:one\\ndata: two\\n\\ndata\\n\\n';
          const read = (parts) => {
            const found = [], parser = new SseParser((event) => found.push(event));
            for (const part of parts) parser.push(part);
            return JSON.stringify(found);
          };
          const whole = read([text]);
          for (let at = 0; at <= text.length; at += 1) {
            if (read([text.slice(0, at), text.slice(at)]) !== whole) return at;
          }
          return whole;
        }"""
    )
    assert same == (
        '[{"id":"7","event":"a","data":"{\\"x\\":1}"},'
        '{"id":"8","event":"message","data":"one\\ntwo"},'
        '{"id":null,"event":"message","data":""}]'
    )
