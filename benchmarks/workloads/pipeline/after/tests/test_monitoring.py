import unittest

from pipeline.monitoring import Monitor, TooManyFaultsError
from pipeline.processing import read_lines

GOOD = '{"station": "a", "time": "2026-03-01", "celsius": 1, "percent": 2}'


class MonitoringTest(unittest.TestCase):
    def test_faults_are_counted_by_field(self) -> None:
        monitor = Monitor()
        monitor.saw(read_lines([GOOD, GOOD, "no", '{"station": 1}']))
        self.assertEqual(monitor.faults, {"no JSON": 1, "station": 1})
        self.assertEqual(monitor.share, 0.5)
        monitor.check()

    def test_too_many_faults_are_an_error(self) -> None:
        monitor = Monitor()
        monitor.saw(read_lines([GOOD, "no", "no"]))
        with self.assertRaisesRegex(TooManyFaultsError, "67% of 3 lines"):
            monitor.check()

    def test_parts_are_measured_also_when_they_fail(self) -> None:
        times = iter([0.0, 2.0])
        monitor = Monitor(clock=lambda: next(times))
        with self.assertRaises(KeyError), monitor.part("read"):
            raise KeyError
        self.assertEqual(monitor.report(), "0 lines; faults: none; read 2.00 s")
