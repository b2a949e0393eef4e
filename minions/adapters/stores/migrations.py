"""Which migrations a database lacks, and which newer ones this build can work beside.

An additive migration, whose name ends with `.additive`, only adds tables, indexes, and columns that
may be left out of a row: a build that does not know it reads and writes as before. So during a
rolling upgrade the build before works, and starts, beside the one that migrated. The rule is that
of expand and contract: what is added by one version is needed by the next one at the earliest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.data.errors import JournalError

ADDITIVE: Final = ".additive"
"""The end of the name of a migration that older builds work beside."""


def missing_migrations(
    applied: Sequence[str], migrations: Mapping[str, str], place: str, where: str | None = None
) -> Sequence[str]:
    """The names of those that are not applied, oldest first.

    Args:
        applied: Names of the migrations that made the database.
        migrations: SQL by name, oldest first: all that this build knows.
        place: How a person names the database.
        where: Of the fault; None: it has none of its own.
    Raises:
        JournalError: `newer-database`; one was applied that is not known here and not additive.
    """
    unknown = [each for each in applied if each not in migrations and not each.endswith(ADDITIVE)]
    if unknown:
        raise JournalError(
            f"{place} was written by a newer version of this program: it has the migration "
            f"'{unknown[-1]}', the newest known here is '{list(migrations)[-1]}'. Upgrade this "
            "program, or use another database.",
            code="newer-database",
            where=where,
        )
    known = set(applied)
    return [name for name in migrations if name not in known]
