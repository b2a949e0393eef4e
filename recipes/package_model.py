"""The offline model of `build_package`: it plans, writes, forgets something, and repairs it."""

from __future__ import annotations

import json

from minions import Prompt, ScriptedModel

_PLAN = {
    "name": "Temperature",
    "steps": [
        {
            "id": "convert",
            "type": "generate",
            "goal": "Write `convert(value, source, target)` for the units C, F and K. Values below "
            "absolute zero and unknown units are ValueErrors.",
            "artifacts": ["temperature/__init__.py", "temperature/convert.py"],
        },
        {
            "id": "command",
            "type": "generate",
            "goal": "Write the command line: `python -m temperature 20 C F` prints 68.0.",
            "dependencies": ["convert"],
            "artifacts": ["temperature/__main__.py"],
        },
        {
            "id": "tests",
            "type": "generate",
            "goal": "Write tests of the conversions and of what is refused.",
            "dependencies": ["convert"],
            "artifacts": ["test_temperature.py"],
        },
        {
            "id": "check",
            "type": "validate",
            "goal": "All tests pass.",
            "dependencies": ["command", "tests"],
        },
        {
            "id": "readme",
            "type": "generate",
            "goal": "Write a README with one example.",
            "dependencies": ["check"],
            "artifacts": ["README.md"],
        },
    ],
}
_CONVERT = '''\
"""Conversion of temperatures."""

_ZERO_C = 273.15


def convert(value: float, source: str, target: str) -> float:
    """The temperature in another unit: C, F or K.

    Raises:
        ValueError: An unknown unit, or a value below absolute zero.
    """
    return _from_kelvin(_to_kelvin(value, source), target)


def _to_kelvin(value: float, unit: str) -> float:
    if unit == "C":
        return value + _ZERO_C
    if unit == "F":
        return (value - 32) * 5 / 9 + _ZERO_C
    if unit == "K":
        return value
    raise ValueError(f"{unit!r} is no unit: C, F or K")


def _from_kelvin(kelvin: float, unit: str) -> float:
    if unit == "C":
        return round(kelvin - _ZERO_C, 6)
    if unit == "F":
        return round((kelvin - _ZERO_C) * 9 / 5 + 32, 6)
    if unit == "K":
        return round(kelvin, 6)
    raise ValueError(f"{unit!r} is no unit: C, F or K")
'''
_FILES = {
    "temperature/__init__.py": '"""Temperatures."""\n\nfrom temperature.convert import convert\n\n'
    '__all__ = ["convert"]\n',
    "temperature/convert.py": _CONVERT,
    "temperature/__main__.py": "import sys\n\nfrom temperature.convert import convert\n\n"
    "value, source, target = sys.argv[1:]\nprint(convert(float(value), source, target))\n",
    "test_temperature.py": """\
import unittest

from temperature import convert


class TestConversion(unittest.TestCase):
    def test_units(self):
        self.assertEqual(convert(20, "C", "F"), 68.0)
        self.assertEqual(convert(0, "K", "C"), -273.15)

    def test_what_does_not_exist_is_refused(self):
        with self.assertRaises(ValueError):
            convert(1, "C", "R")
        with self.assertRaises(ValueError):
            convert(-300, "C", "K")
""",
    "README.md": "# Temperature\n\n    $ python -m temperature 20 C F\n    68.0\n",
}
_REPAIR = """\
temperature/convert.py
<<<<<<< SEARCH
    return _from_kelvin(_to_kelvin(value, source), target)
=======
    kelvin = _to_kelvin(value, source)
    if kelvin < 0:
        raise ValueError(f"{value} {source} is below absolute zero")
    return _from_kelvin(kelvin, target)
>>>>>>> REPLACE
"""


def build(prompt: Prompt) -> str:
    """What a developer answers to the prompt of one step."""
    said = "\n".join(message.content or "" for message in prompt.messages)
    if "You plan work" in said:
        return json.dumps(_PLAN)
    if "It failed:" in said:
        return _REPAIR
    wanted = said.rpartition("Write: ")[2].splitlines()[0].split(", ")
    return "\n".join(f"{path}\n```\n{_FILES[path]}```" for path in wanted)


builder = ScriptedModel(build, name="scripted/build_package")
