import tempfile
import unittest
from pathlib import Path

from accounts.store import Store


class StoreTest(unittest.TestCase):
    def test_a_record_is_a_copy(self) -> None:
        store = Store()
        store.put("a", {"x": 1})
        store.get("a")["x"] = 2
        self.assertEqual(store.get("a"), {"x": 1})

    def test_records_stay_in_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store.json"
            Store(path).put("a", {"x": 1})
            self.assertEqual(Store(path).all(), [{"x": 1}])
