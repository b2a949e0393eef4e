"""The offline model of `write_function`: its first try is wrong, and the test tells."""

from __future__ import annotations

import json

from minions import Prompt, ScriptedModel
from minions.testing import Answer, tool_request

_WRONG = "def is_leap_year(year: int) -> bool:\n    return year % 4 == 0\n"
_RIGHT = """\
def is_leap_year(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
"""
_TEST = """\
import unittest

from function import is_leap_year


class TestLeapYears(unittest.TestCase):
    def test_every_fourth_year_is_one(self):
        self.assertTrue(is_leap_year(2024))
        self.assertFalse(is_leap_year(2023))

    def test_centuries_are_none(self):
        self.assertFalse(is_leap_year(1900))

    def test_every_fourth_century_is_one(self):
        self.assertTrue(is_leap_year(2000))


if __name__ == "__main__":
    unittest.main()
"""


def develop(prompt: Prompt) -> Answer:
    """What a developer does next, by what the last tool said."""
    last = prompt.messages[-1]
    if last.role != "tool":
        return _write("function.py", _WRONG)
    said = json.loads(last.content or "{}")
    if said.get("path") == "function.py" and not _has_run(prompt):
        return _write("test_function.py", _TEST)
    if "exit_code" not in said:
        return tool_request("shell__exec", {"argv": ["python3", "-m", "unittest", "-q"]})
    if said["exit_code"] != 0:
        return _write("function.py", _RIGHT)
    return {"function": "is_leap_year", "edges": ["1900", "2000"]}


def _write(path: str, text: str) -> Answer:
    return tool_request("files__write", {"path": path, "text": text})


def _has_run(prompt: Prompt) -> bool:
    return any('"exit_code"' in (each.content or "") for each in prompt.messages)


developer = ScriptedModel(develop, name="scripted/write_function")
