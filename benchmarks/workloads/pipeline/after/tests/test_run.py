import tempfile
import unittest
from pathlib import Path

from pipeline.monitoring import Monitor, TooManyFaultsError
from pipeline.run import as_text, run

SAMPLE = Path(__file__).parents[1] / "data" / "sample.jsonl"


class RunTest(unittest.TestCase):
    def test_the_sample_gives_daily_figures(self) -> None:
        monitor = Monitor()
        figures = run(SAMPLE, monitor)
        self.assertEqual(
            [(each.station, each.day.day, each.mean) for each in figures],
            [("north", 1, 6.0), ("north", 2, 2.0), ("south", 1, 9.0), ("south", 2, 10.0)],
        )
        self.assertEqual(monitor.faults, {"celsius": 1, "no JSON": 1, "percent": 1})
        self.assertEqual(list(monitor.seconds), ["read", "figures"])

    def test_figures_are_one_object_a_line(self) -> None:
        first = as_text(run(SAMPLE, Monitor())).splitlines()[0]
        self.assertIn('"station": "north", "day": "2026-03-01", "readings": 2', first)

    def test_a_file_of_faults_gives_no_figures(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bad.jsonl"
            path.write_text("no\n", "utf-8")
            with self.assertRaises(TooManyFaultsError):
                run(path, Monitor())
