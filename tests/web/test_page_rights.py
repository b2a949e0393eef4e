"""The page with a token that may not do everything: what does not work is disabled and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from page_server import TOKEN, Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")
from playwright.sync_api import Route, expect

READER = "a-token-that-may-only-look"
DECIDER = "a-token-that-may-look-and-decide"
SECRET = "a-secret-of-the-proxy"
TABLE = f"""
[[tokens]]
name = "ops"
token = "{TOKEN}"
scopes = ["admin"]

[[tokens]]
name = "board"
token = "{READER}"
scopes = ["read"]

[[tokens]]
name = "ann"
token = "{DECIDER}"
scopes = ["read", "decide"]

[proxy]
user_header = "X-Forwarded-User"
groups_header = "X-Forwarded-Groups"
secret_header = "X-Proxy-Secret"
secret = "{SECRET}"

[[proxy.groups]]
name = "staff"
role = "approver"
scopes = ["all"]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With three tokens, and behind a proxy."""
    served = Served(tmp_path_factory.mktemp("served") / "project")
    _write(served.folder / "token")
    served.start()
    yield served
    served.kill()


def _write(file: Path) -> None:
    file.write_text(TABLE, "utf-8")
    file.chmod(0o600)


def opened(window: BrowserContext, served: Served, token: str, place: str) -> Page:
    page = window.new_page()
    page.goto(f"{served.url}/#token={token}&{place}")
    return page


def test_a_token_that_only_reads_sees_runs_and_starts_none(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("changing")
    page = opened(window, served, READER, f"/runs/{run}")
    again = page.get_by_role("button", name="Run again")
    expect(again).to_be_disabled()
    expect(again).to_have_attribute(
        "title", 'Your role, viewer, lacks the scope "run"; an operator has it.'
    )
    rights = page.get_by_text("viewer", exact=True)
    expect(rights).to_be_visible()
    page.goto(f"{served.url}/#/new?recipe=changing")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()


def test_a_token_that_only_reads_sees_what_waits_and_decides_nothing(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("planned")
    page = opened(window, served, READER, f"/runs/{run}")
    yes = page.get_by_role("button", name="Carry it out", exact=True)
    expect(yes).to_be_disabled()
    expect(yes).to_have_attribute(
        "title", 'Your role, viewer, lacks the scope "decide"; an approver has it.'
    )


def test_a_token_that_decides_does_so_under_its_own_name(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("planned")
    page = opened(window, served, DECIDER, f"/runs/{run}")
    name = page.get_by_label("Your name is that of your token")
    expect(name).to_have_value("ann")
    expect(name).not_to_be_editable()
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("h1 .chip")).to_have_text("failed")
    expect(page.get_by_text("approver", exact=True)).to_be_visible()


def test_a_token_that_may_do_everything_sees_no_restriction(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("changing")
    page = opened(window, served, TOKEN, f"/runs/{run}")
    expect(page.get_by_role("button", name="Run again")).to_be_enabled()
    expect(page.get_by_text("viewer", exact=True)).to_have_count(0)


def test_only_who_may_decide_marks_an_output(window: BrowserContext, served: Served) -> None:
    run = served.begin("changing")
    page = opened(window, served, READER, f"/runs/{run}")
    button = page.get_by_role("button", name="Mark good").first
    expect(button).to_be_disabled()
    expect(button).to_have_attribute(
        "title", 'Your role, viewer, lacks the scope "decide"; an approver has it.'
    )
    page = opened(window, served, DECIDER, f"/runs/{run}")
    page.get_by_role("button", name="Mark good").first.click()
    expect(page.get_by_role("group", name="Mark of the output").first).to_contain_text("by ann")


def test_behind_a_proxy_the_page_asks_for_no_token_and_names_the_user(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("planned")
    page = window.new_page()
    page.goto(served.url)
    expect(page.get_by_label("Token")).to_be_visible()  # nobody says who it is
    expect(page.get_by_text("did not take that token")).to_have_count(0)
    proxy = {"X-Forwarded-User": "cy@example.org", "X-Proxy-Secret": SECRET}
    window.set_extra_http_headers({**proxy, "X-Forwarded-Groups": "dev,staff"})
    page.goto(f"{served.url}/#/runs/{run}")
    page.reload()
    expect(page.get_by_text("cy@example.org · approver")).to_be_visible()
    again = page.get_by_role("button", name="Run again")
    expect(again).to_be_disabled()
    expect(page.get_by_label("Your name is that of your account")).to_have_value("cy@example.org")
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("h1 .chip")).to_have_text("failed")
    window.set_extra_http_headers(proxy)
    page.reload()
    expect(page.get_by_role("heading", name="No role")).to_be_visible()
    expect(page.get_by_text("has no role on this server")).to_be_visible()


# --- what ends meanwhile --------------------------------------------------------------------------


def test_a_token_that_expires_leads_to_the_form_with_the_reason(
    window: BrowserContext, own_served: Served
) -> None:
    file = own_served.folder / "token"
    own_served.kill()
    _write(file)
    own_served.start()
    page = opened(window, own_served, DECIDER, "/inbox")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    own_served.kill()
    ann = 'name = "ann"\n'
    assert ann in TABLE
    file.write_text(TABLE.replace(ann, f"{ann}expires = 2020-01-01T00:00:00Z\n"), "utf-8")
    own_served.start()  # the stream of changes comes back, and is refused
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.get_by_role("alert")).to_contain_text("The token 'ann' expired at 2020-01-01")
    assert page.evaluate("sessionStorage.length") == 0
    page.keyboard.type(READER)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


FORM = "<!doctype html><title>Log in</title><form></form>"


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param(302, {"location": "/oauth2/start"}, id="a redirect"),
        pytest.param(401, {"content-type": "text/html"}, id="a refusal as a page"),
        pytest.param(200, {"content-type": "text/html; charset=utf-8"}, id="the form itself"),
    ],
)
def test_a_login_that_ends_at_a_proxy_is_said_and_the_page_can_be_loaded_again(
    window: BrowserContext, served: Served, status: int, headers: dict[str, str]
) -> None:
    page = opened(window, served, TOKEN, "/new?recipe=story")
    page.get_by_label("about").fill("unsent words")
    line = page.locator("header .line")
    expect(line).to_have_text("live")
    login = lambda route: route.fulfill(status=status, headers=headers, body=FORM)  # noqa: E731
    page.route("**/api/v1/**", login)
    page.get_by_role("button", name="Start", exact=True).click()
    alert = page.locator(".relogin").get_by_role("alert")
    expect(alert).to_contain_text("Your login has ended")
    expect(line).to_have_text("login ended")
    expect(page.get_by_label("about")).to_have_value("unsent words")
    page.unroute("**/api/v1/**", login)
    alert.get_by_role("button", name="Reload to log in").click()
    expect(line).to_have_text("live")
    expect(alert).to_have_count(0)
    expect(page.get_by_label("about")).to_have_value("")


def test_a_stream_that_meets_a_login_says_so_and_goes_on_after_it(
    window: BrowserContext, served: Served
) -> None:
    page = window.new_page()
    seen = []

    def login(route: Route) -> None:
        seen.append(route.request.url)
        route.fulfill(status=401, headers={"content-type": "text/html"}, body=FORM)

    page.route("**/api/v1/changes", login)
    page.goto(f"{served.url}/#token={TOKEN}&/costs")
    alert = page.locator(".relogin").get_by_role("alert")
    expect(alert).to_contain_text("Your login has ended")
    page.unroute("**/api/v1/changes", login)
    expect(alert).to_have_count(0)
    expect(page.locator("header .line")).to_have_text("live")
    assert seen
