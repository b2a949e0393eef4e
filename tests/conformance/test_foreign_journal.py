"""An outside author runs the suite on a journal of his own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OWN = """\
import pytest
from minions.services import MemoryJournal
from minions.testing.journal_suite import *

class Forgetful(MemoryJournal):
    async def entries(self, *args, **kwargs):
        return list(await super().entries(*args, **kwargs))[:-1]

@pytest.fixture(params=[MemoryJournal, Forgetful])
async def journal(request, clock):
    made = request.param(clock)
    yield made
    await made.aclose()
"""


def test_the_suite_tells_a_good_journal_from_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "minions.testing.plugin", "--tb=no"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-k", "order_of_their_appending"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
