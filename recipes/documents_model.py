"""The offline model of `questions_over_documents`: searches, and cites the line that fits best."""

from __future__ import annotations

import json
import re

from minions import Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_TOO_COMMON = {"have", "does", "what", "when", "many", "much", "with", "from", "that", "this"}
_ENOUGH = 2
"""Different words of the question that a line must have to be an answer."""


def answer(prompt: Prompt) -> Answer:
    """First search for the question's words, then answer from what was found."""
    results = [each for each in prompt.messages if each.role == "tool"]
    words = sorted(set(re.findall(r"[a-z]{4,}", _question(prompt).lower())) - _TOO_COMMON)
    if not results:
        return tool_request("documents__search", {"query": " ".join(words)})
    found = _best(json.loads(results[-1].content or "{}").get("passages", []), words)
    if found is None:
        return {"is_answered": False, "answer": "The documents do not say.", "citations": []}
    file, line, quote = found
    citation = {"file": file, "line": line, "quote": quote}
    return {"is_answered": True, "answer": quote, "citations": [citation]}


def _question(prompt: Prompt) -> str:
    for message in prompt.messages:
        if found := re.match(r"Question: (.*)", message.content or ""):
            return found[1]
    return ""


def _best(passages: list[dict[str, str]], words: list[str]) -> tuple[str, int, str] | None:
    """File, number and text of the line with most words; None: no line has enough."""

    def fit(line: tuple[str, int, str]) -> int:
        return sum(word in line[2].lower() for word in words)

    lines = []
    for passage in passages:
        for row in passage["text"].splitlines():
            number, _, text = row.partition(": ")
            lines.append((passage["file"], int(number), text))
    ranked = sorted(lines, key=fit, reverse=True)
    return ranked[0] if ranked and fit(ranked[0]) >= _ENOUGH else None


documents = ScriptedModel(answer, name="scripted/questions_over_documents")
