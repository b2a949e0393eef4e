"""The offline model of the quickstart: asks for the real tools, computes from their results.

It stands in for a language model so that the recipe can be tried without a key. Nothing here
knows the sample: whatever folder the recipe is given, the answers come from its files.
"""

from __future__ import annotations

import json
import re

from minions import Message, Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_TEXT_ENDINGS = (".md", ".txt", ".rst", ".py", ".toml", ".yaml", ".json")
_MOST_READ = 3


def answer(prompt: Prompt) -> Answer:
    """First read a few files, then sum up what was read."""
    results = [message for message in prompt.messages if message.role == "tool"]
    if not results:
        wanted = _worth_reading(_files(prompt))
        if wanted:
            return [tool_request("files__read", {"path": path}) for path in wanted]
    return _summary(results, _open_work(prompt))


def _files(prompt: Prompt) -> list[str]:
    """The names that the goal lists; the last one may be cut."""
    for message in prompt.messages:
        _, found, names = (message.content or "").partition("\nFiles:\n")
        if found:
            return names.splitlines()
    return []


def _open_work(prompt: Prompt) -> dict[str, list[str]]:
    """The result of that step, as it stands at the end of the prompt."""
    for message in prompt.messages:
        found = re.search(r'<data-\w+ step="open_work">\n(.*)', message.content or "")
        if found:
            try:
                shown = json.loads(found[1])
            except ValueError:  # a long result is cut in the prompt
                return {"matches": re.findall(r'"line":', found[1])}
            return shown if isinstance(shown, dict) else {}
    return {}


def _worth_reading(files: list[str]) -> list[str]:
    """Readmes first, then what lies highest; text files only."""
    readable = [name for name in files if name.lower().endswith(_TEXT_ENDINGS)]
    readable.sort(key=lambda name: ("readme" not in name.lower(), name.count("/"), name))
    return readable[:_MOST_READ]


def _summary(results: list[Message], open_work: dict[str, list[str]]) -> Answer:
    read = [_content(message) for message in results]
    texts = {str(item["path"]): str(item["text"]) for item in read if "text" in item}
    first = next(iter(texts.values()), "")
    return {
        "title": _heading(first) or "A folder without readable text",
        "about": " ".join(_opening(text) for text in texts.values()).strip()
        or "None of its files could be read as text.",
        "files_read": list(texts),
        "open_items": len(open_work.get("matches", [])),
    }


def _content(message: Message) -> dict[str, object]:
    try:
        value = json.loads(message.content or "")
    except ValueError:  # an error text: that file could not be read
        return {}
    return value if isinstance(value, dict) else {}


def _heading(text: str) -> str:
    lines = [line.strip("# \"'") for line in text.splitlines() if line.strip("# \"'")]
    return lines[0][:80] if lines else ""


def _opening(text: str) -> str:
    """The first sentence below the heading."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    body = " ".join(line for line in lines[1:4] if not line.startswith("#"))
    return re.split(r"(?<=[.!?])\s", body)[0][:200] if body else ""


quickstart = ScriptedModel(answer, name="scripted/quickstart")
