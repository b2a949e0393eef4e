"""The offline model of `handbook_chat`: searches for words, answers with the line."""

from __future__ import annotations

import json
import re

from minions import Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_TOO_COMMON = {"have", "does", "what", "when", "many", "much", "with", "from", "that", "this"}


def answer(prompt: Prompt) -> Answer:
    """Of the last thing that the user said; what was said before helps to understand it."""
    said = [each.content or "" for each in prompt.messages if each.role == "user"]
    words = sorted(set(re.findall(r"[a-z]{4,}", said[-1].lower())) - _TOO_COMMON)
    last = prompt.messages[-1]
    if not words:
        return f"You have asked {len(said)} things. Ask about leave, travel or equipment."
    if last.role != "tool":
        return tool_request(
            "documents__search", {"pattern": "(?i)" + "|".join(words), "regex": True}
        )
    matches = json.loads(last.content or "{}").get("matches", [])
    best = max(matches, key=lambda match: _fit(match, words), default=None)
    if best is None or _fit(best, words) < min(2, len(words)):
        return "The handbook does not say."
    return f"{str(best['text']).strip()} ({best['path']})"


def _fit(match: dict[str, object], words: list[str]) -> int:
    return sum(word in str(match["text"]).lower() for word in words)


handbook = ScriptedModel(answer, name="scripted/handbook_chat")
