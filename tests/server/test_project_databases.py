"""Several projects behind one server, each in a database of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from attrs import evolve

from asgi_client import TOKEN, Client, Reply
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import Settings
from minions.contracts.journal.journal import Journal
from minions.data.errors import UsageError
from minions.engine.sessions.archive import load_archive, store_archive
from minions.interfaces.http.http_answers import StandardLog
from minions.interfaces.http.tokens import CallerToken
from minions.interfaces.server.app import App, create_app
from minions.interfaces.server.projects import ProjectServer, read_project_table
from minions.interfaces.server.server_options import ServerOptions
from patience import HANG_S
from postgres import PostgresServer

_NAMES = ("shop", "news", "lab")
_ONE_USER = "a-token-of-one-user-alone"
_OPTIONS = ServerOptions(
    token=TOKEN, tokens=(CallerToken.of("ann", _ONE_USER, ["read"], user="ann"),), grace_s=1.0
)


class Served:
    """A server of three projects."""

    def __init__(self, server: ProjectServer, urls: dict[str, str]) -> None:
        self.server = server
        self.urls = urls
        self._client = Client(server)

    def of(self, project: str) -> Client:
        """Requests beneath its prefix."""
        return Client(self.server, root=f"/projects/{project}")

    def journal(self, project: str) -> Journal:
        """That of its app."""
        return self.server._apps[project].app_state.journal

    async def all(self, path: str, token: str = TOKEN) -> Reply:
        return await self._client.get(f"/projects{path}", authorization=f"Bearer {token}")


@contextmanager
def databases(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    with postgres.journal() as one, postgres.journal() as two, postgres.journal() as three:
        yield dict(zip(_NAMES, (one, two, three), strict=True))


@pytest_asyncio.fixture
async def served(postgres: PostgresServer, recipes: Path, tmp_path: Path) -> AsyncIterator[Served]:
    with databases(postgres) as urls:
        file = tmp_path / "projects.toml"
        rows = [f'[projects.{name}]\ndb = "{url}"' for name, url in urls.items()]
        file.write_text("\n".join(['default = "shop"', *rows]), "utf-8")
        server = make_server(file, recipes)
        yield Served(server, urls)
        await server.aclose()


def make_server(file: Path, recipes: Path) -> ProjectServer:
    table = read_project_table(file)

    def app_of(name: str) -> App:
        settings = table.settings_of(name, Settings())
        return create_app(_OPTIONS, recipes=[recipes], settings=settings, models=ScriptedModel([]))

    apps = {name: app_of(name) for name in table.projects}
    return ProjectServer(apps, table.default, _OPTIONS, StandardLog())


async def begin(client: Client, a: int) -> str:
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": a}})
    assert reply.status == 202, reply.json
    return str(reply.json["run_id"])


async def asks(client: Client) -> str:
    """The id of a run that waits for an answer."""
    reply = await client.post("/runs", {"recipe": "asks", "inputs": {}})
    run_id = str(reply.json["run_id"])
    await until(client, run_id, "needs_decision")
    return run_id


async def until(client: Client, run_id: str, status: str) -> None:
    async with asyncio.timeout(HANG_S):
        while (await client.get(f"/runs/{run_id}")).json["status"] != status:  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)


async def test_each_project_has_its_own_runs_sessions_and_costs(served: Served) -> None:
    runs = {name: await begin(served.of(name), 1) for name in _NAMES}
    for name in _NAMES:
        listed = (await served.of(name).get("/runs")).json
        assert [row["run_id"] for row in listed["runs"]] == [runs[name]]
        assert (await served.of(name).get("/sessions")).json["total"] == 1
        assert (await served.of(name).get(f"/runs/{runs[name]}")).status == 200
    assert (await served.of("news").get(f"/runs/{runs['shop']}")).status == 404


async def test_requests_without_a_project_are_those_of_the_default(served: Served) -> None:
    run = await begin(served.of("shop"), 1)
    assert (await Client(served.server).get(f"/runs/{run}")).status == 200


@pytest.mark.parametrize("projects", [3, 1])
async def test_the_list_of_all_is_one_order_and_its_pages_fit_together(
    served: Served, projects: int
) -> None:
    begun = [await begin(served.of(_NAMES[at % projects]), at) for at in range(7)]
    paged, offset, has_more = list[str](), 0, True
    while has_more:
        page = (await served.all(f"/runs?limit=3&offset={offset}")).json
        paged += [row["run_id"] for row in page["runs"]]
        has_more, offset = page["has_more"], offset + 3
        assert page["unreachable"] == []
    assert paged == begun[::-1]
    first = (await served.all("/runs?limit=1")).json["runs"][0]
    assert (first["project"], first["recipe"]) == ("shop", "adds")
    assert first["url"] == f"/projects/shop/api/v1/runs/{begun[-1]}"


async def test_a_page_begins_behind_the_last_one_however_many_runs_began_meanwhile(
    served: Served,
) -> None:
    begun = [await begin(served.of(_NAMES[at % 3]), at) for at in range(5)]
    paged = list[str]()
    after: str | None = ""
    while after is not None:
        page = (await served.all(f"/runs?limit=2{after}")).json
        paged += [row["run_id"] for row in page["runs"]]
        assert page["has_more"] == (page["next"] is not None)
        after = None if page["next"] is None else f"&after={page['next']}"
        await begin(served.of("shop"), 9)
    assert paged == begun[::-1]


async def test_a_run_that_is_in_two_projects_is_on_one_page_in_both(served: Served) -> None:
    run = await begin(served.of("shop"), 1)
    await until(served.of("shop"), run, "completed")
    (row,) = await served.journal("shop").runs()
    archive = await load_archive(served.journal("shop"), row.session_id)
    await store_archive(served.journal("lab"), archive)
    page = (await served.all("/runs?limit=1")).json
    assert {(row["project"], row["run_id"]) for row in page["runs"]} == {
        ("shop", run), ("lab", run),
    }  # fmt: skip
    assert (page["has_more"], page["next"]) == (False, None)


@pytest.mark.parametrize("projects", [3, 1])
async def test_sessions_of_all_projects_are_one_list_by_what_happened_last(
    served: Served, projects: int
) -> None:
    runs = [
        (_NAMES[at % projects], await begin(served.of(_NAMES[at % projects]), at))
        for at in range(5)
    ]
    for name, run in runs:
        await until(served.of(name), run, "completed")
    rows = [(name, row) for name in _NAMES for row in await served.journal(name).sessions()]
    rows.sort(key=lambda each: each[1].updated_at, reverse=True)
    paged, offset, has_more = list[tuple[str, str]](), 0, True
    while has_more:
        page = (await served.all(f"/sessions?limit=2&offset={offset}")).json
        paged += [(row["project"], row["session_id"]) for row in page["sessions"]]
        has_more, offset = page["has_more"], offset + 2
        assert page["unreachable"] == []
    assert paged == [(name, row.session_id) for name, row in rows]
    project, session = paged[-1]
    (found,) = (await served.all(f"/sessions?text={session}")).json["sessions"]
    assert (found["recipe"], found["user"]) == ("adds", None)
    assert found["url"] == f"/projects/{project}/api/v1/sessions/{session}"
    assert (await served.all("/sessions?user=nobody")).json["sessions"] == []


async def test_decisions_of_all_projects_are_one_list_with_places_that_stay(
    served: Served,
) -> None:
    asked = [await asks(served.of(name)) for name in ("news", "shop", "lab", "news")]
    first = (await served.all("/approvals?limit=3")).json
    assert [row["approval"]["run_id"] for row in first["approvals"]] == asked[:3]
    assert [row["project"] for row in first["approvals"]] == ["news", "shop", "lab"]
    assert (first["total"], first["unreachable"]) == (4, [])
    url = first["approvals"][1]["url"]
    assert url == f"/projects/shop/api/v1/approvals/{first['approvals'][1]['approval']['id']}"
    decided = await Client(served.server).ask(
        "POST", url, {"decision": "answer", "value": 3},
        {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
    )  # fmt: skip
    assert decided.status == 202, decided.json
    second = (await served.all(f"/approvals?limit=3&after={first['next']}")).json
    assert [row["approval"]["run_id"] for row in second["approvals"]] == asked[3:]
    assert second["next"] is None
    none = (await served.all("/approvals?kind=approval")).json
    assert (none["approvals"], none["total"]) == ([], 0)
    assert (await served.all("/approvals?recipe=else")).json["total"] == 0


async def test_the_lists_of_all_are_beneath_each_project_too(served: Served) -> None:
    """For its page, which knows its own API alone."""
    await begin(served.of("lab"), 1)
    for path in ("", "/runs", "/sessions", "/approvals"):
        of_all = await served.all(path)
        assert (of_all.status, (await served.of("news").get(f"/projects{path}")).json) == (
            200,
            of_all.json,
        )
    assert (await served.of("none").get("/projects")).json["code"] == "unknown-project"
    seen = {name: (await served.of(name).get("/system")).json["project_name"] for name in _NAMES}
    assert seen == dict.fromkeys(_NAMES)  # its apps were made without the names


async def test_an_id_is_looked_for_in_every_project(served: Served) -> None:
    await begin(served.of("shop"), 1)
    run = await begin(served.of("lab"), 1)
    (found,) = (await served.all(f"/runs?id={run}")).json["runs"]
    assert (found["project"], found["run_id"]) == ("lab", run)
    same = (await served.all(f"/runs?session={found['session_id']}")).json["runs"]
    assert [row["project"] for row in same] == ["lab"]


async def test_a_database_that_is_down_stops_its_project_alone(
    postgres: PostgresServer, recipes: Path, tmp_path: Path
) -> None:
    with databases(postgres) as urls:
        down = urls["news"].replace(str(postgres.folder), str(tmp_path))
        file = tmp_path / "projects.toml"
        rows = [f'[projects.{name}]\ndb = "{url}"' for name, url in (urls | {"news": down}).items()]
        file.write_text("\n".join(['default = "shop"', *rows]), "utf-8")
        server = make_server(file, recipes)
        served = Served(server, urls)
        run = await begin(served.of("lab"), 1)
        refused = await served.of("news").get("/runs")
        assert (refused.status, refused.json["code"]) == (503, "database-unreachable")
        assert str(tmp_path) in refused.json["detail"]
        waiting = (await served.all("/approvals")).json
        assert [row["project"] for row in waiting["unreachable"]] == ["news"]
        listed = (await served.all("/runs")).json
        assert [row["run_id"] for row in listed["runs"]] == [run]
        (missing,) = listed["unreachable"]
        assert missing["project"] == "news"
        assert "cannot be reached" in missing["problem"]
        rows_of_projects = (await served.all("")).json["projects"]
        assert [(row["name"], row["is_reachable"]) for row in rows_of_projects] == [
            ("shop", True), ("news", False), ("lab", True),
        ]  # fmt: skip
        await server.aclose()


async def test_a_project_that_does_not_answer_in_time_is_not_waited_for_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.interfaces.server.projects._ANSWER_S", 0.0)
    slow = (await served.all("/runs")).json["unreachable"]
    assert {row["project"] for row in slow} == set(_NAMES)
    again = (await served.all("/runs")).json["unreachable"]
    assert {row["problem"] for row in again} == {"its database does not answer"}
    monkeypatch.undo()
    await asyncio.gather(*served.server._late.values())
    assert (await served.all("/runs")).json["unreachable"] == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/runs?colour=red", 400, "bad-query"),
        ("/runs?limit=600&offset=600", 400, "bad-query"),
        ("/runs?limit=-1", 400, "bad-query"),
        ("/runs?status=odd", 400, "bad-query"),
        ("?limit=1", 400, "bad-query"),
        ("/runs?after=yesterday", 400, "bad-query"),
        ("/runs?after=2026-01-01T00:00:00Z", 400, "bad-query"),
        ("/runs?after=2026-01-01T00:00:00Z~run_1&offset=1", 400, "bad-query"),
        ("/sessions?after=x", 400, "bad-query"),
        ("/sessions?limit=600&offset=600", 400, "bad-query"),
        ("/approvals?offset=1", 400, "bad-query"),
        ("/approvals?kind=odd", 400, "bad-query"),
        ("/approvals?limit=1001", 400, "bad-query"),
    ],
)
async def test_what_is_not_there_is_refused_by_name(
    served: Served, path: str, status: int, code: str
) -> None:
    reply = await served.all(path)
    assert (reply.status, reply.json["code"]) == (status, code)


async def test_another_project_is_unknown_to_who_has_a_token_and_to_nobody_else(
    served: Served,
) -> None:
    refused = await served.of("none").get("/runs")
    assert (refused.status, refused.json["code"]) == (404, "unknown-project")
    assert "shop, news, lab" in refused.json["detail"]
    assert (await served.of("none").get("/runs", authorization=None)).status == 401


async def test_only_who_may_read_everything_is_told_of_all_projects(served: Served) -> None:
    assert (await served.all("/runs", token="")).status == 401
    assert (await served.all("/runs", token=_ONE_USER)).status == 403
    assert (await served.all("/approvals", token=_ONE_USER)).status == 403
    assert (await Client(served.server).post("/projects", {})).status == 405


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('default = "a"\n[projects.a]\ndb = "a.sqlite"\n[projects.b]\ndb = "./a.sqlite"', "same"),
        ('default = "c"\n[projects.a]\ndb = "a.sqlite"', "none of the projects: a"),
        ('default = "a b"\n[projects."a b"]\ndb = "a.sqlite"', "is no name"),
        ('default = "a"\n[projects.a]\nbd = "a.sqlite"', "bd"),
        ("default = ", "TOML"),
    ],
)
def test_faults_of_the_table_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "projects.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=words) as refused:
        read_project_table(file)
    assert str(file) in refused.value.message


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("postgresql://me@h/d", "postgres://you:pw@H:5432/d?application_name=x", True),
        ("postgresql://me@h/d", "postgresql://me@h./%64?sslmode=prefer", True),
        ("postgresql:///d?host=h&port=5433", "postgresql://h:5433/d", True),
        ("postgresql://localhost/d", "postgresql://[::1]/d", True),
        ("postgresql://me@h", "postgresql://h/me", True),
        ("postgresql://a,b:5433/d", "postgresql://b:5433,a/d", True),
        ("postgresql://h/d", "postgresql://h/e", False),
        ("postgresql://h/d", "postgresql://h/D", False),
        ("postgresql://h/d", "postgresql://h:5433/d", False),
        ("postgresql://h/d", "postgresql://i/d", False),
        ("postgresql:///?service=one", "postgresql:///?service=two", False),
        ("postgresql:///d?host=/run/a", "postgresql:///d?host=/run/b", False),
        ("real.sqlite", "link.sqlite", True),
        ("real.sqlite", "hard.sqlite", True),
        ("real.sqlite", "below/../real.sqlite", True),
        ("new.sqlite", "./new.sqlite", True),
        ("real.sqlite", "new.sqlite", False),
    ],
)
def test_one_database_in_two_spellings_is_refused(
    tmp_path: Path, one: str, other: str, *, is_same: bool
) -> None:
    (tmp_path / "real.sqlite").touch()
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "real.sqlite")
    (tmp_path / "hard.sqlite").hardlink_to(tmp_path / "real.sqlite")
    file = tmp_path / "projects.toml"
    file.write_text(
        f'default = "a"\n[projects.a]\ndb = "{one}"\n[projects.b]\ndb = "{other}"', "utf-8"
    )
    if not is_same:
        assert set(read_project_table(file).projects) == {"a", "b"}
        return
    with pytest.raises(UsageError, match="'a' and 'b' have the same database") as refused:
        read_project_table(file)
    assert "pw" not in refused.value.message


async def test_one_database_behind_two_names_of_its_server_is_refused(
    postgres: PostgresServer, recipes: Path, tmp_path: Path
) -> None:
    other_name = tmp_path / "other"
    other_name.symlink_to(postgres.folder)
    with databases(postgres) as urls:
        same = urls["shop"].replace(str(postgres.folder), str(other_name))
        down = urls["lab"].replace(str(postgres.folder), str(tmp_path))
        for lab, words in ((same, "'shop' and 'lab' have the same database"), (down, None)):
            file = tmp_path / "projects.toml"
            rows = [
                f'[projects.{name}]\ndb = "{url}"' for name, url in (urls | {"lab": lab}).items()
            ]
            file.write_text("\n".join(['default = "shop"', *rows]), "utf-8")
            server = make_server(file, recipes)
            if words is None:
                await server.tell_apart()  # who cannot be reached is compared with nobody
            else:
                with pytest.raises(UsageError, match=words):
                    await server.tell_apart()
            left = [await server._apps[each].app_state.marks.keys() for each in ("shop", "news")]
            assert left == [[], []]
            await server.aclose()


def test_a_table_that_cannot_be_read_is_named_with_what_it_should_hold(tmp_path: Path) -> None:
    words = r"none\.toml: it cannot be read: No such file or directory\. Expected: default = "
    with pytest.raises(UsageError, match=words):
        read_project_table(tmp_path / "none.toml")


def test_a_relative_path_starts_in_the_folder_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "projects.toml"
    file.write_text('default = "a"\n[projects.a]\ndb = "a.sqlite"', "utf-8")
    settings = read_project_table(file).settings_of("a", evolve(Settings(), model="x/y"))
    assert (settings.db, settings.model) == (str(tmp_path / "a.sqlite"), "x/y")
