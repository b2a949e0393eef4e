"""Keeps records by key, in memory or in a file of JSON."""

from __future__ import annotations

import json
from pathlib import Path


class Store:
    """Records are dictionaries; each has a key of its own."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._records: dict[str, dict[str, object]] = {}
        if path is not None and path.exists():
            self._records = json.loads(path.read_text("utf-8"))

    def get(self, key: str) -> dict[str, object] | None:
        """A copy of the record; None: there is none."""
        found = self._records.get(key)
        return dict(found) if found is not None else None

    def put(self, key: str, record: dict[str, object]) -> None:
        """Keep the record in place of an earlier one."""
        self._records[key] = dict(record)
        self._save()

    def delete(self, key: str) -> bool:
        """Whether there was such a record."""
        found = self._records.pop(key, None)
        self._save()
        return found is not None

    def all(self) -> list[dict[str, object]]:
        """Copies of all records, in the order in which they came."""
        return [dict(each) for each in self._records.values()]

    def _save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._records, indent=1), "utf-8")
