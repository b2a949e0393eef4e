"""Where the tokens of a logged-in server are kept: a file of the user's, readable by them alone."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from minions.data.bounded_files import read_regular
from minions.data.json_values import JsonValue, as_object

_MOST_BYTES: Final = 1_048_576


@frozen
class LoginStore:
    """What a login left, in one file for each server.

    The file is named by the address, so that a server with another address never gets its tokens.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, url: str, client_id: str | None) -> LoginStore:
        """The store of a server, and of the client by whose name somebody logged in."""
        name = hashlib.sha256(f"{url}\n{client_id or ''}".encode()).hexdigest()[:32]
        return cls(folder / f"{name}.json")

    def read(self) -> Mapping[str, JsonValue]:
        """What is stored; empty where nothing is, or what is there cannot be read."""
        try:
            found = json.loads(read_regular(self.path, _MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return as_object(found) if isinstance(found, dict) else {}

    def write(self, values: Mapping[str, JsonValue]) -> None:
        """Replace what is stored.

        Raises:
            OSError: It cannot be written.
        """
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=folder)  # readable by the user alone
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(dict(values), file)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def forget(self) -> bool:
        """Remove it; False where nothing was stored."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True
