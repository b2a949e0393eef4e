"""What models hand to tools, what operators allow, and settings."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fuzz.target import Target, text_of
from minions.adapters.http.request_rules import (
    HOST_PATTERN,
    AllowedHost,
    _canonical,
    check_address,
)
from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.stores.postgres_url import hidden_in, is_ambiguous, without_password
from minions.adapters.tools.confined_paths import GlobPattern
from minions.adapters.tools.data_toolset import data_toolset, parse_csv, to_csv
from minions.adapters.tools.default_tools import date_time_tools, state_tools
from minions.adapters.tools.files_toolset import files_toolset
from minions.adapters.tools.function_tool import FunctionTool
from minions.adapters.tools.http_toolset import (
    HttpRequest,
    checked_headers,
    encoded_body,
    parse_url,
    redirected,
    shown_url,
)
from minions.adapters.tools.time_toolset import time_toolset
from minions.app.runs.batch_items import ItemsFile
from minions.app.settings.setting_sources import load_settings
from minions.app.settings.settings import masked
from minions.app.settings.user_folders import FolderTrust
from minions.contracts.decision_types import parse_decision, word_of
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.tools import Tool, ToolScope
from minions.data.codec import encode
from minions.data.errors import MinionsError, ToolError, UsageError
from minions.data.json_values import JsonValue, parse_json
from minions.data.schema import SchemaValidator

__all__ = ["tool_targets"]

_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_SCOPE: Final = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")


def tool_targets(folder: Path) -> Sequence[Target]:
    """The targets.

    Args:
        folder: An empty one, for files that are read.
    """
    return (
        Target(
            name="tool",
            is_json=True,
            check=_ToolTarget(folder).check,
            seeds=lambda: [json.dumps(each).encode() for each in _CALLS],
            words=_CALL_WORDS,
            few=300,
        ),
        Target(
            name="csv",
            check=check_csv,
            seeds=lambda: [
                b'a,b\r\n"x, y",""\r\n\r\n"1\n2","""q"""\r\n',
                b"a;b\n1;2\n",
                b"\xef\xbb\xbfa\n1\n",
            ],
            words=('"', '""', ",", "\r\n", "\r", "\n", ";", "\t"),
            few=600,
        ),
        Target(
            name="items",
            check=_ItemsTarget(folder).check,
            seeds=lambda: [b"a, b\n1,2\n3,4\n", b'{"a": 1}\n\n{"b": [1, null]}\n', b'a\n"x\ny"\n'],
            words=('"', ",", "\r\n", '{"a": 1}\n', "\ufeff", "NaN"),
            few=300,
        ),
        Target(
            name="parquet",
            check=partial(check_binary, folder / "a.parquet"),
            seeds=lambda: [_parquet_seed(), _parquet_seed(compression="none"), b"PAR1PAR1"],
            words=("PAR1", "\x15\x00", "\x19\x1c", "schema", "ARROW:schema"),
            few=12,
        ),
        Target(
            name="pdf",
            check=partial(check_binary, folder / "a.pdf"),
            seeds=lambda: [_PDF, _PDF.replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]"), b"%PDF-1.7\n"],
            words=(
                "/Kids",
                "/Filter",
                "/FlateDecode",
                "/Length",
                "stream\n",
                "1 0 R",
                "xref\n",
                "<<",
            ),
            few=12,
        ),
        Target(
            name="glob",
            check=check_glob,
            seeds=lambda: [
                b"**/*.py",
                b"src/[a-z]?/**/*.{ts,js}",
                b"[!a]*",
                b"./a/../b",
                b"*a*b*c*",
            ],
            words=("**/", "*", "?", "[a-z]", "[!", "]", "[[", "/", "{a,b}", "..", "\\", "*a"),
            most_bytes=2_048,
            few=600,
        ),
        Target(
            name="url",
            check=check_url,
            seeds=lambda: [each.encode() for each in _URLS],
            words=_URL_WORDS,
            most_bytes=8_192,
            few=900,
        ),
        Target(
            name="settings",
            check=_SettingsTarget(folder).check,
            seeds=lambda: [each.encode() for each in _SETTINGS],
            words=_SETTING_WORDS,
            few=240,
        ),
        Target(
            name="decision",
            check=check_decision,
            seeds=lambda: [b"approve", b"reject:abc:why", b'answer:{"a": 1}', b"done:1", b"redo"],
            words=("approve", "reject", "answer", "done", "redo", "fail", ":"),
            few=600,
        ),
        Target(
            name="masking",
            check=check_masking,
            seeds=lambda: [each.encode() for each in _SECRETS],
            words=("sk-", "eyJ", "ghp_", "AKIA", "Bearer ", "-----BEGIN RSA PRIVATE KEY-----", "."),
            most_bytes=65_536,
            few=180,
        ),
    )


# --- tools --------------------------------------------------------------------------------------

_CALLS: Final[Sequence[JsonValue]] = (
    {"tool": "parse_csv", "arguments": {"text": "a,b\n1,2\n", "delimiter": ",", "header": True}},
    {"tool": "to_csv", "arguments": {"rows": [{"a": 1}, {"b": [2]}], "columns": ["a", "b"]}},
    {"tool": "to_csv", "arguments": {"rows": [[1, "x"], [None, "y\r"]], "delimiter": ";"}},
    {"tool": "parse_json", "arguments": {"text": '{"a": [1, 2.5e3, null]}'}},
    {"tool": "now", "arguments": {"timezone": "Europe/Berlin"}},
    {"tool": "shift", "arguments": {"time": "2026-03-29T01:30:00+01:00", "hours": 2, "days": -1}},
    {"tool": "getCurrentDateTime", "arguments": {"timezone": "UTC"}},
    {"tool": "getHoursAgo", "arguments": {"hours": 5, "timezone": "America/New_York"}},
    {"tool": "saveState", "arguments": {"key": "k", "value": {"a": [1, None]}}},
    {"tool": "loadState", "arguments": {"key": "k", "default": 1}},
    {"tool": "read", "arguments": {"path": "a.py", "start_line": 1, "end_line": 2}},
    {"tool": "list", "arguments": {"path": "."}},
    {"tool": "glob", "arguments": {"pattern": "**/*.py"}},
    {"tool": "search", "arguments": {"text": "x", "regex": False, "glob": "*.py"}},
    {"tool": "overview", "arguments": {"text": "look at a.py", "max_lines": 20}},
    {"tool": "read_many", "arguments": {"files": ["a.py", "b/c.md:1-2"], "max_characters": 100}},
    {
        "tool": "prepare_changes",
        "arguments": {
            "files": [{"path": "n.py", "text": "x"}],
            "edits": [{"path": "a.py", "old": "x = 1", "new": "x = 2"}],
            "allowed": ["*.py"],
        },
    },
)
_CALL_WORDS: Final = (
    *("a.py", "b/c.md", "..", "/etc/passwd", "*", "**", "[", "a.py:outline", "a.py:1-99", "regex"),
    *(
        "2026-01-02T03:04:05Z",
        "0001-01-01",
        "9999-12-31T23:59:59-23:59",
        "UTC+02:00",
        "Europe/Rome",
    ),
    *("../../x", "hours", "days", "timezone", "delimiter", "columns", "rows", "\t", "\n"),
)


class _ToolTarget:
    """Arguments that fit the schema of a tool give JSON or a tool error, and no file changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tools"
        (self._folder / "b").mkdir(parents=True)
        (self._folder / "a.py").write_text("x = 1\ny = 2\n", "utf-8")
        (self._folder / "b" / "c.md").write_text("# c\ntext\n", "utf-8")
        options: Mapping[str, JsonValue] = {"root": str(self._folder)}
        tools = (
            *data_toolset().open({}, ""),
            *time_toolset(lambda: _NOW).open({}, ""),
            *date_time_tools(lambda: _NOW),
            *state_tools(MemoryState()),
            *files_toolset().open(options, ""),
        )
        self._tools = {each.spec.name: each for each in tools if not _writes(each)}
        self._validators = {
            name: SchemaValidator(each.spec.parameters) for name, each in self._tools.items()
        }

    def check(self, data: bytes) -> None:
        """One call, as a model writes it."""
        try:
            call = parse_json(text_of(data))
        except ValueError:
            return
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
            return
        name, arguments = str(call.get("tool")), call["arguments"]
        tool = self._tools.get(name)
        if tool is None or self._validators[name].errors(arguments):
            return
        try:
            result = _called(tool, arguments)
        except (ToolError, UsageError):
            return
        json.dumps(encode(result), allow_nan=False)


def _writes(tool: Tool) -> bool:
    return tool.spec.name in ("write", "edit", "write_many")


def _called(tool: Tool, arguments: Mapping[str, JsonValue]) -> object:
    """In this thread, whose time is measured."""
    if isinstance(tool, FunctionTool) and not tool._is_async:
        return tool.__wrapped__(**tool._structure_arguments(arguments))
    return asyncio.run(_invoked(tool, arguments))


async def _invoked(tool: Tool, arguments: Mapping[str, JsonValue]) -> object:
    return await tool.invoke(arguments, _SCOPE)


def check_csv(data: bytes) -> None:
    """A table or a tool error; what was written is read back."""
    text = text_of(data)
    for header in (True, False):
        try:
            table = parse_csv(text, header=header)
        except ToolError:
            continue
        if header and not table.columns:
            continue
        written = to_csv(table.rows, columns=table.columns or None, formulas=True)
        assert parse_csv(written, header=header) == table, written


class _ItemsTarget:
    """Files of items give rows, each with inputs or with a problem."""

    def __init__(self, folder: Path) -> None:
        self._paths = (folder / "items.csv", folder / "items.jsonl")

    def check(self, data: bytes) -> None:
        """One file, by both endings."""
        for path in self._paths:
            path.write_bytes(data)
            try:
                rows = list(ItemsFile(path).rows())
            except UsageError as error:
                assert error.error_code == "bad-items"
                continue
            assert all(each.place for each in rows)


_PDF: Final = b"""%PDF-1.4
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Count 1 /Kids [3 0 R] >> endobj
3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R
 /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >> endobj
4 0 obj << /Length 31 >>
stream
BT /F1 12 Tf 2 2 Td (Hi) Tj ET
endstream endobj
trailer << /Size 5 /Root 1 0 R >>
%%EOF
"""


def _parquet_seed(compression: str = "snappy") -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    file = io.BytesIO()
    table = pa.table({"a": [1, None], "b": ["x", "y"], "c": [[1.5], []], "d": [{"e": b"f"}, None]})
    pq.write_table(table, file, compression=compression)
    return file.getvalue()


def check_binary(path: Path, data: bytes) -> None:
    """Rows or pages that are JSON, or a tool error; whatever happens to the process that reads."""
    path.write_bytes(data)
    name = f"read_{path.suffix[1:]}"
    opened = files_toolset().open({"root": str(path.parent)}, "")
    [tool] = [each for each in opened if each.spec.name == name]
    try:
        result = _called(tool, {"path": path.name})
    except ToolError as error:
        assert "\n" not in error.message
        return
    json.dumps(encode(result), allow_nan=False)


def check_glob(data: bytes) -> None:
    """A tool error, or a pattern that matches or not."""
    text = text_of(data)
    try:
        pattern = GlobPattern(text)
    except ToolError:
        return
    for parts in (("a.py",), ("src", "b", "c.ts"), ("a" * 250,) * 10, ("ab" * 100 + "c",)):
        assert pattern.matches(parts) in (True, False)


# --- addresses ----------------------------------------------------------------------------------

_URLS: Final = (
    "http://127.0.0.1:11434/v1",
    "https://api.example.com:8443/v1/",
    "http://[::1]:80/x",
    "*.example.org:8443",
    "https://user:password@example.org/a?b=c#d",
    "postgresql://user:p%40ss@host:5432/db?password=x&sslmode=require",
    "//other.example/x",
    "::ffff:10.0.0.1",
    "http://2130706433/",
)
_URL_WORDS: Final = (
    *(
        "http://",
        "https://",
        "://",
        "@",
        ":",
        "?",
        "#",
        "[",
        "]",
        "[::1]",
        "%25",
        "%00",
        "..",
        "\\",
    ),
    *(
        "password=",
        "&",
        ":99999",
        ":0",
        "127.0.0.1",
        "0x7f.1",
        "localhost",
        "xn--",
        "*.",
        "。",
        "ⓔ",
    ),
    *("64:ff9b::10.0.0.1", "fe80::1%eth0", "2002:7f00:1::", "HTTP://", "ftp://", "\t", "\u00ad"),
)


def check_url(data: bytes) -> None:
    """Each reader of addresses takes it or refuses it, and two readers see the same host."""
    text = text_of(data)
    _check_base_url(text)
    _check_sent(text)
    if re.search(HOST_PATTERN, text):
        AllowedHost.of(text).covers("https", "example.org", 443)
    AllowedHost("example.org", None).covers("https", text, 443)
    _check_address(text)
    without_password(text)
    is_ambiguous(text)
    assert "" not in hidden_in(text)


def _check_base_url(text: str) -> None:
    try:
        url = check_base_url(text, "the option")
    except UsageError as error:
        assert error.error_code == "bad-base-url"
        return
    from yarl import URL

    parts = urlsplit(url)
    assert parts.hostname
    assert parts.username is None
    assert _canonical(URL(url).raw_host or "") == _canonical(parts.hostname), url


def _check_sent(text: str) -> None:
    begun = HttpRequest(
        method="POST",
        url=parse_url("https://a.example/x"),
        headers={"authorization": "secret", "accept": "*/*"},
    )
    try:
        url = parse_url(text)
        shown_url(url).encode()
    except ToolError:
        pass
    try:
        sent = redirected(begun, 302, text)
        assert sent.url.raw_host == "a.example" or "authorization" not in sent.headers
    except ToolError:
        pass
    try:
        checked_headers({"x": text, text: "x"})
        encoded_body(None, text)
    except ToolError:
        pass


def _check_address(text: str) -> None:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return  # resolvers give addresses
    try:
        check_address("host", text)
    except ToolError as error:
        assert error.error_code == "address-refused"


# --- settings and texts -------------------------------------------------------------------------

_SETTINGS: Final = (
    'model = "openai/x"\nlog_format = "json"\nno_store = true\n',
    '[providers.local]\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = "KEY"\n',
    '[prices."openai/x"]\ninput_per_million = 1.5\noutput_per_million = 2\n',
    "extensions = ['a.py', \"b.py\"]\n[unknown]\nx = 1979-05-27T07:32:00Z\n",
)
_SETTING_WORDS: Final = (
    *(
        "[providers.x]\n",
        "[prices.x]\n",
        " = ",
        "true",
        "1e999",
        "nan",
        "inf",
        "[[a]]\n",
        "{}",
        "''",
    ),
    *("model", "db", "log_format", "base_url", "extensions", "recipes", "max_cost_usd", "no_store"),
    *(
        "sandbox",
        "json",
        "on_waiting_url",
        '"""',
        "'''",
        "1979-05-27",
        "0x1F",
        "budgets",
        "\\u0000",
    ),
)


class _SettingsTarget:
    """Files and variables become settings, or a usage error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "settings"
        self._folder.mkdir()

    def check(self, data: bytes) -> None:
        """One text, as the project's file, the user's and as the value of every variable."""
        path = self._folder / "minions.toml"
        path.write_bytes(data)
        trust = FolderTrust(is_given=True)
        try:
            load_settings({}, {}, folder=self._folder, user_file=path, trust=trust)
        except MinionsError as error:
            assert isinstance(error, UsageError), error
        path.unlink()
        text = text_of(data)[:200]
        for name in (
            "MODEL",
            "LOG_FORMAT",
            "NO_STORE",
            "DB",
            "MAX_COST_USD",
            "EXTENSIONS",
            "TIMEOUT_S",
        ):
            try:
                load_settings(
                    {}, {f"MINIONS_{name}": text}, folder=self._folder, user_file=None, trust=trust
                )
            except UsageError:
                continue


def check_decision(data: bytes) -> None:
    """A decision that is written as the same word again, or none."""
    word = text_of(data)
    try:
        decision = parse_decision(word)
    except ValueError:
        return
    assert parse_decision(word_of(decision)) == decision


_SECRETS: Final = (
    "key sk-abcdefghijklmnopqrstuvwxyz ends",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0x.abcdef-_123",
    "Authorization: Bearer abcdefghijklmnop.qrst+uv/wx=",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "ghp_abcdefghijklmnopqrstuvwxyz0123 AKIAABCDEFGHIJKLMNOP xoxb-1234567890-ab",
)


def check_masking(data: bytes) -> None:
    """What was masked holds nothing more to mask."""
    text = masked(text_of(data))
    assert masked(text) == text
