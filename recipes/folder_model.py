"""The offline model of `ask_folder`: finds a tool, searches with it, and names the best file.

Nothing here knows the sample, nor the name of a tool: it takes the first that it finds.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from minions import Message, Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_TOO_COMMON = {"which", "what", "when", "where", "file", "files", "does", "have", "that", "this"}


def answer(prompt: Prompt) -> Answer:
    """First find a tool, then search for the question's words, then answer from what was found."""
    found = [each for each in prompt.messages if each.name == "find_tools"]
    results = [each for each in prompt.messages if each.role == "tool" and each not in found]
    if not found:
        return tool_request("find_tools", {"query": "search the lines of text files", "most": 1})
    words = sorted(set(re.findall(r"[a-z]{4,}", _question(prompt).lower())) - _TOO_COMMON)
    if not results:
        name = str(_content(found[-1])["tools"][0]["name"])
        return tool_request(name, {"pattern": f"(?i){'|'.join(words)}", "regex": True})
    counts = Counter(str(each["path"]) for each in _content(results[-1])["matches"])
    if not counts:
        return {"answer": "No file says it.", "file": ""}
    file = max(counts, key=lambda path: (any(word in path for word in words), counts[path], path))
    return {"answer": f"{file} has most of the words.", "file": file}


def _content(message: Message) -> dict[str, list[dict[str, object]]]:
    value: dict[str, list[dict[str, object]]] = json.loads(message.content or "{}")
    return value


def _question(prompt: Prompt) -> str:
    texts = (each.content or "" for each in prompt.messages)
    return next((text for text in texts if text.startswith("Question: ")), "")[10:]


folder = ScriptedModel(answer, name="scripted/ask_folder")
