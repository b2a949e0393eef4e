import unittest
from datetime import datetime

from pipeline.models import Reading
from pipeline.processing import daily, read_lines


def reading(hour: int, celsius: float, station: str = "north") -> Reading:
    time = datetime(2026, 3, 1, hour)
    return Reading(station=station, time=time, celsius=celsius, percent=50.0)


class ProcessingTest(unittest.TestCase):
    def test_faulty_lines_are_kept(self) -> None:
        batch = read_lines(["", "what?", "[]"])
        self.assertEqual([each.line for each in batch.faults], [2, 3])
        self.assertEqual(batch.lines, 2)

    def test_figures_are_by_station_and_day(self) -> None:
        found = daily([reading(1, 3.0, "south"), reading(2, 1.0), reading(3, 2.0)])
        self.assertEqual([each.station for each in found], ["north", "south"])
        north = found[0]
        self.assertEqual((north.readings, north.least, north.mean, north.most), (2, 1.0, 1.5, 2.0))

    def test_without_readings_there_are_no_figures(self) -> None:
        self.assertEqual(daily([]), [])
