"""Large values on the page: cut, with a way to see all of them, and compared by all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

from page_server import TOKEN

expect.set_options(timeout=30_000)


def test_a_long_answer_is_cut_and_shown_whole_when_that_is_asked_for(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("essay", '{"letters": 200000}')
    page = window.new_page()
    sizes: list[int] = []
    page.on(
        "response",
        lambda reply: sizes.append(len(reply.body())) if reply.url.endswith("cut=8000") else None,
    )
    page.goto(served.at(f"/runs/{run}?step=write"))
    drawer = page.get_by_role("dialog", name="write")
    answer = drawer.locator(".said.assistant")
    expect(answer).to_contain_text("Only the beginning is shown")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    assert len(answer.inner_text()) < 10_000
    assert max(sizes) < 100_000
    answer.get_by_role("button", name="Show all").click()
    expect(answer).to_contain_text("The end.")
    assert len(answer.locator("pre").text_content() or "") > 200_000
    page.goto(served.at("/runs"))
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.go_back()  # all is drawn again, and what was asked for is still shown in whole
    expect(answer).to_contain_text("The end.")
    expect(answer.get_by_role("button", name="Show all")).to_have_count(0)
    page.keyboard.press("Escape")
    output = page.get_by_role("region", name="Output")
    assert len(output.inner_text()) < 10_000
    page.get_by_role("button", name="Show all of the output").click()
    expect(output).to_contain_text("The end.")


def test_nothing_is_written_in_a_step_that_has_ended_while_the_events_of_its_run_come(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("essay", '{"letters": 200}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=write"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    asked = {"Accept": "text/event-stream", "Authorization": f"Bearer {TOKEN}"}
    reply = page.request.get(f"{served.url}/api/v1/runs/{run}/events", headers=asked)
    events = reply.text().split("\n\n")
    begin = next(at for at, each in enumerate(events) if '"step_started"' in each)
    first = "\n\n".join([*events[: begin + 1], ""])
    page.route(
        "**/events*", lambda route: route.fulfill(content_type="text/event-stream", body=first)
    )
    page.goto(served.at(f"/runs/{run}?step=write"))
    expect(page.locator("h1 .chip")).to_have_text("running")  # as far as events have come
    answer = page.get_by_role("dialog", name="write").locator(".said.assistant")
    expect(answer).to_contain_text("The end.")
    expect(answer).to_have_count(1)


def test_how_sure_a_model_was_stands_beside_what_its_answer_took(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("essay", '{"letters": 10}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=write&tab=cost"))
    drawer = page.get_by_role("dialog", name="write")
    expect(drawer.get_by_role("columnheader", name="Least sure")).to_be_visible()
    expect(drawer.get_by_role("cell", name="0.13 of $.text")).to_be_visible()


def test_values_that_differ_behind_their_beginning_are_told_apart(
    window: BrowserContext, served: Served
) -> None:
    runs = [served.begin("essay", f'{{"letters": {n}}}') for n in (50_000, 50_000, 50_005)]
    page = window.new_page()
    for run in runs:
        page.goto(served.at(f"/runs/{run}"))
        expect(page.locator("h1 .chip")).to_have_text("completed")
    for other, word in ((runs[1], "the same"), (runs[2], "differs")):
        page.goto(f"{served.url}/#/compare?a={runs[0]}&b={other}")
        heading = page.get_by_role("heading", name="Output")
        expect(heading).to_contain_text(word)
        row = page.get_by_role("row", name="write").last
        expect(row.locator(".mark-cell")).to_have_text(word.removeprefix("the "))


def test_prompts_and_inputs_of_two_runs_are_compared_by_words(
    window: BrowserContext, served: Served
) -> None:
    runs = [served.begin("story", f'{{"about": "{about}"}}') for about in ("bees", "ants")]
    page = window.new_page()
    for run in runs:
        page.goto(served.at(f"/runs/{run}"))
        expect(page.locator("h1 .chip")).to_have_text("completed")
    page.goto(f"{served.url}/#/compare?a={runs[0]}&b={runs[1]}")
    marks = page.locator("section", has_text="Inputs").locator("mark")
    expect(marks).to_have_text(["differs: bees", "differs: ants"])
    page.locator("summary", has_text="tell").click()
    opened = page.locator("details", has_text="tell")
    expect(opened.get_by_role("heading", name="Prompt differs")).to_be_visible()
    expect(opened.locator("mark")).to_have_text(["differs: bees", "differs: ants"])
    expect(opened.get_by_role("heading", name="Output the same")).to_be_visible()
    page.locator("summary", has_text="judge").click()  # it was skipped in both
    skipped = page.locator("details", has_text="judge")
    expect(skipped.get_by_role("heading", name="Prompt the same")).to_be_visible()


def test_the_prompt_of_a_step_tells_what_its_tokens_were_spent_on(
    window: BrowserContext, served: Served
) -> None:
    """A-110."""
    run = served.begin("story", '{"about": "bees"}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=tell&tab=prompt"))
    sections = page.get_by_role("region", name="Sections of the prompt")
    expect(sections.get_by_role("heading")).to_contain_text("sent, by section")
    expect(sections.get_by_role("row", name="Goal")).to_contain_text("100 %")
    expect(sections.get_by_role("meter", name="Goal: 100 % of the prompt")).to_be_visible()


def test_a_failed_step_opens_on_its_error_and_the_run_leads_to_it(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("fragile")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    page.get_by_role("link", name="Open step boom").click()
    drawer = page.get_by_role("dialog", name="boom")
    expect(drawer.get_by_role("tab", name="Error")).to_have_attribute("aria-selected", "true")
    expect(drawer.get_by_role("alert")).to_contain_text("cannot take 'some words'")


def test_runs_are_listed_with_their_inputs_and_found_by_them(
    window: BrowserContext, served: Served
) -> None:
    served.begin("story", '{"about": "quiet hedgehogs", "length": 2}')
    page = window.new_page()
    page.goto(served.at("/runs?text=hedgehogs"))
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("about: quiet hedgehogs · length: 2")


def test_a_text_is_searched_within_a_run_and_leads_to_its_place(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("crowd", '{"names": ["Ada", "nobody <b>", "Ida"]}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("partial")
    page.keyboard.press("/")
    page.keyboard.type("cannot greet")
    results = page.get_by_role("region", name="Search results")
    expect(results.locator("mark").first).to_have_text("cannot greet")
    results.get_by_role("link", name="greet[1]").first.click()
    drawer = page.get_by_role("dialog", name="greet[1]")
    expect(drawer.get_by_role("alert")).to_contain_text("nobody <b>")
    page.keyboard.press("Escape")
    page.get_by_label("Search in this run").fill("no such words")
    expect(results).to_contain_text("“no such words” does not occur in this run.")


def test_a_run_is_downloaded_as_a_page_that_shows_what_it_was(
    window: BrowserContext, served: Served, tmp_path: Path
) -> None:
    run = served.begin("story", '{"about": "hostile bees"}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.get_by_text("Download", exact=True).click()
    for label, name in (("Raw journal", f"{run}.jsonl"), ("Page to send", f"{run}.html")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=label).click()
        assert waiting.value.suggested_filename == name
        waiting.value.save_as(tmp_path / name)
    first = json.loads((tmp_path / f"{run}.jsonl").read_text("utf-8").splitlines()[0])
    assert first["body"]["recipe"] == "story"
    requests: list[str] = []
    alone = window.new_page()
    alone.on("request", lambda request: requests.append(request.url))
    alone.goto((tmp_path / f"{run}.html").as_uri())
    expect(alone.get_by_role("heading", name="story · completed")).to_be_visible()
    alone.locator("summary", has_text="tell").click()
    expect(alone.get_by_text("window.hacked").first).to_be_visible()
    assert alone.evaluate("window.hacked") is None
    assert len(requests) == 1


def test_hidden_characters_are_shown_as_escapes(window: BrowserContext, served: Served) -> None:
    """What a person approves is what they see."""
    page = window.new_page()
    page.goto(served.url)
    source = page.locator("script[src$='app.js']").first.evaluate("each => each.src")
    shown = page.evaluate(
        """async (source) => {
            const { h, plain } = await import(source.replace("app.js", "dom.js"));
            const text = "rm \\u202egnp.sh\\u200b";
            const titled = h("p", { text, title: text });
            return [h("p", text).textContent, titled.title, plain("\\u{e0041}")];
        }""",
        source,
    )
    assert shown == [*[r"rm \u202egnp.sh\u200b"] * 2, r"\U000e0041"]
