"""The offline model of `repository_triage`: searches for an issue's words, reads, then judges.

Nothing here knows the sample: the files it names are those whose text has most of the words.
"""

from __future__ import annotations

import json
import re

from minions import Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_TOO_COMMON = {"that", "there", "have", "here", "with", "from", "when", "says", "shop", "every"}
_SIGNS = {
    "documentation": r"\b(typo|readme|documentation)\b",
    "feature": r"\b(please|would be nice|it would|wish)\b",
    "question": r"^how\b|\?$",
}
_COSTLY = r"\b(charged|payment|crash\w*|lost|twice)\b"


def judge(prompt: Prompt) -> Answer:
    """Search, then read what was found most, then answer."""
    title, body = _issue(prompt)
    results = [_content(each.content) for each in prompt.messages if each.role == "tool"]
    words = sorted(set(re.findall(r"[a-z]{4,}", f"{title} {body}".lower())) - _TOO_COMMON)
    kind = _kind(title, body)
    if not results:
        return tool_request("code__search", {"pattern": f"(?i){'|'.join(words)}", "regex": True})
    if len(results) == 1:
        found = _most_named(results[0].get("matches", []), words, kind)
        if found:
            return tool_request("code__read", {"path": found})
    path = str(results[-1].get("path", ""))
    return {
        "kind": kind,
        "severity": _severity(kind, f"{title} {body}".lower()),
        "files": [path] if path else [],
        "reason": f"{path} has to do with: {_shared(results[-1], words)}." if path else "No file.",
    }


def _issue(prompt: Prompt) -> tuple[str, str]:
    for message in prompt.messages:
        text = re.sub(r"<data-\w+>\n?|</data-\w+>", "", message.content or "")
        if found := re.search(r"^Issue \S+: (.*)\n(.*)", text):
            return found[1], found[2]
    return "", ""


def _content(text: str | None) -> dict[str, object]:
    try:
        value = json.loads(text or "")
    except ValueError:  # an error text
        return {}
    return value if isinstance(value, dict) else {}


def _most_named(matches: object, words: list[str], kind: str) -> str | None:
    """The file with the most different words; of a bug or a wish, code before texts."""
    by_path: dict[str, set[str]] = {}
    for match in matches if isinstance(matches, list) else []:
        said = f"{match['path']} {match['text']}".lower()
        by_path.setdefault(match["path"], set()).update(word for word in words if word in said)
    wants_text = kind in ("question", "documentation")
    ranked = sorted(
        by_path,
        key=lambda path: (path.endswith(".md") is not wants_text, -len(by_path[path]), path),
    )
    return ranked[0] if ranked else None


def _shared(read: dict[str, object], words: list[str]) -> str:
    text = str(read.get("text", "")).lower()
    return ", ".join([word for word in words if word in text][:4])


def _kind(title: str, body: str) -> str:
    for kind, sign in _SIGNS.items():
        if re.search(sign, title.lower()) or (kind == "feature" and re.search(sign, body.lower())):
            return kind
    return "bug"


def _severity(kind: str, said: str) -> str:
    if kind != "bug":
        return "low"
    return "high" if re.search(_COSTLY, said) else "medium"


triage = ScriptedModel(judge, name="scripted/repository_triage")
