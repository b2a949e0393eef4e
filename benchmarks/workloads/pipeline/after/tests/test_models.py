import json
import unittest
from datetime import date

from pipeline.models import ReadingError, parse

GOOD = {"station": "north", "time": "2026-03-01T06:00:00", "celsius": 4, "percent": 80}


class ModelsTest(unittest.TestCase):
    def test_a_line_is_a_reading(self) -> None:
        reading = parse(json.dumps(GOOD))
        self.assertEqual((reading.station, reading.day), ("north", date(2026, 3, 1)))
        self.assertEqual((reading.celsius, reading.percent), (4.0, 80.0))

    def test_faults_say_why(self) -> None:
        for change, why in (
            ({"station": ""}, "station: a text is expected"),
            ({"time": "noon"}, "time: an ISO time is expected"),
            ({"celsius": "warm"}, "celsius: a number is expected"),
            ({"celsius": 99}, "celsius: 99 is out of range"),
            ({"percent": -1}, "percent: -1 is out of range"),
        ):
            with self.assertRaisesRegex(ReadingError, why):
                parse(json.dumps({**GOOD, **change}))
        for text in ("{", "[]"):
            with self.assertRaises(ReadingError):
                parse(text)
