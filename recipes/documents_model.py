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
        pattern = "(?i)" + "|".join(words)
        return tool_request("documents__search", {"pattern": pattern, "regex": True})
    found = _best(json.loads(results[-1].content or "{}").get("matches", []), words)
    if found is None:
        return {"is_answered": False, "answer": "The documents do not say.", "citations": []}
    quote = str(found["text"]).strip()
    citation = {"file": found["path"], "line": found["line"], "quote": quote}
    return {"is_answered": True, "answer": quote, "citations": [citation]}


def _question(prompt: Prompt) -> str:
    for message in prompt.messages:
        if found := re.match(r"Question: (.*)", message.content or ""):
            return found[1]
    return ""


def _best(matches: list[dict[str, object]], words: list[str]) -> dict[str, object] | None:
    def fit(match: dict[str, object]) -> int:
        return sum(word in str(match["text"]).lower() for word in words)

    ranked = sorted(matches, key=fit, reverse=True)
    return ranked[0] if ranked and fit(ranked[0]) >= _ENOUGH else None


documents = ScriptedModel(answer, name="scripted/questions_over_documents")
