"""`PrefixEndpoint` refuses what Gemini refuses."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from urllib.error import HTTPError

import pytest

from minions.data.json_values import JsonValue, as_object
from minions.testing import FakeClock, PrefixEndpoint

LONG: JsonValue = {"parts": [{"text": "A long text. " * 400}]}
GOAL: JsonValue = [{"role": "user", "parts": [{"text": "Go"}]}]


async def ask(
    server: PrefixEndpoint, method: str, path: str, body: JsonValue = None
) -> tuple[int, dict[str, JsonValue]]:
    """The status and the document."""

    def send() -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body).encode()
        url = f"{server.base_url}/{path}"
        request = urllib.request.Request(url, content, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()

    status, said = await asyncio.to_thread(send)
    return status, dict(as_object(json.loads(said)))


def made_of(text: JsonValue = LONG, **more: JsonValue) -> JsonValue:
    return {"model": "models/m", "ttl": "60s", "systemInstruction": text, **more}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (made_of({"parts": [{"text": "Short."}]}), "too small. total_token_count=1, min_total"),
        (made_of(ttl="1m"), "ttl"),
        (made_of(model="m"), "models/{model}"),
        (made_of(temperature=1), "Unknown name 'temperature'"),
    ],
)
async def test_what_cannot_be_stored_is_refused(body: JsonValue, words: str) -> None:
    async with PrefixEndpoint() as server:
        status, said = await ask(server, "POST", "cachedContents", body)
    assert status == 400
    assert words in json.dumps(said)
    assert not server.made


async def test_a_stored_beginning_is_used_renewed_and_deleted_under_its_name_alone() -> None:
    clock = FakeClock()
    async with PrefixEndpoint(now=clock.now) as server:
        _, made = await ask(server, "POST", "cachedContents", made_of())
        name = str(made["name"])
        use: dict[str, JsonValue] = {"cachedContent": name, "contents": GOAL}
        status, said = await ask(server, "POST", "models/m:generateContent", use)
        usage = as_object(said["usageMetadata"])
        assert (status, usage["cachedContentTokenCount"]) == (200, server.made[0].tokens)
        for wrong, words in (
            ({**use, "systemInstruction": LONG}, "can not be used with"),
            ({**use, "tools": []}, "can not be used with"),
            ({**use, "contents": []}, "contents is not specified"),
        ):
            status, said = await ask(server, "POST", "models/m:generateContent", wrong)
            assert status == 400
            assert words in json.dumps(said)
        status, _ = await ask(server, "POST", "models/other:generateContent", use)
        assert status == 400
        clock.advance(59)
        status, _ = await ask(server, "PATCH", f"{name}?updateMask=ttl", {"ttl": "60s"})
        assert status == 200
        assert (await ask(server, "PATCH", name, {"ttl": "60s"}))[0] == 400
        clock.advance(60)  # its time is over
        for method, path, body in (
            ("POST", "models/m:generateContent", use),
            ("PATCH", f"{name}?updateMask=ttl", {"ttl": "60s"}),
            ("DELETE", name, None),
        ):
            status, said = await ask(server, method, path, body)
            assert (status, as_object(said["error"])["status"]) == (403, "PERMISSION_DENIED")
