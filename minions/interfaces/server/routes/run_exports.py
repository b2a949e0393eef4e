"""`/runs/{run_id}/search`, `/journal`, `/export.html`: a run as text to search or to send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from litestar import Router, get

from minions.app.pages.run_page import load_run_page
from minions.contracts.journal.journal import JournalEntry
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import current_rows
from minions.engine.views.run_search import hits_in
from minions.interfaces.http.responses import json_bytes_in_parts
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.steps import SearchHits, SearchHitView, SearchQuery
from minions.interfaces.server.endpoints import (
    ApiRequest,
    ApiResponse,
    Asked,
    InPath,
    answer,
    refuses,
)
from minions.interfaces.server.routes.run_views import find_exact

_LINES: Final = "application/x-ndjson"
_HTML: Final = "text/html"


@get("/search", responses=refuses(404, 409), needs=TokenScope.READ)
async def search_run(request: ApiRequest, run_id: InPath, asked: Asked[SearchQuery]) -> SearchHits:
    """Search a text in the prompts, answers, calls, outputs and errors of a run."""
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    found = await request.app_state.threads.run(
        lambda: hits_in(current_rows(rows), asked.text, asked.limit + 1)
    )
    shown = found[: asked.limit]
    return SearchHits(
        hits=tuple(
            SearchHitView(
                address=each.address,
                part=each.part,
                before=each.before,
                match=each.match,
                after=each.after,
            )
            for each in shown
        ),
        has_more=len(found) > len(shown),
    )


@get("/journal", media_type=_LINES, responses=refuses(404, 409), needs=TokenScope.READ)
async def get_run_journal(request: ApiRequest, run_id: InPath) -> ApiResponse[str]:
    """All entries of the run's journal as JSON lines, those of superseded executions, too."""
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    lines = await request.app_state.threads.run(lambda: b"".join(_lines(rows)))
    return _file(lines, _LINES, f"{run.run_id}.jsonl")


def _lines(rows: Sequence[JournalEntry]) -> Iterator[bytes]:
    for row in rows:
        line: dict[str, JsonValue] = {
            "position": row.position,
            "generation": row.generation,
            "at": row.at.isoformat(),
            "kind": row.kind,
            "state": row.state,
            "key": row.key,
            "body": row.body,
        }
        yield json_bytes_in_parts(line) + b"\n"


@get("/export.html", media_type=_HTML, responses=refuses(404, 409), needs=TokenScope.READ)
async def export_run(request: ApiRequest, run_id: InPath) -> ApiResponse[str]:
    """The run as one HTML file without scripts, to send to somebody; secrets are masked."""
    app_state = request.app_state
    run = await find_exact(request, run_id)
    runtime = app_state.runtime
    source = runtime.services.secrets
    threads = app_state.threads
    page = await load_run_page(app_state.journal, run, runtime.catalog, source, threads=threads)
    html = await threads.run(lambda: page.html().encode())
    return _file(html, f"{_HTML}; charset=utf-8", f"{run.run_id}.html")


def _file(data: bytes, media_type: str, name: str) -> ApiResponse[str]:
    """A response that browsers store under that name, and never show within the page's origin."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return answer(data, media_type=media_type, headers=headers)


RUN_EXPORTS = Router("/runs/{run_id:str}", route_handlers=[search_run, get_run_journal, export_run])
