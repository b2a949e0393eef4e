"""Names of artifacts that steps declare."""

from __future__ import annotations

import re
from typing import Final

_NAMED: Final = re.compile(r"[^\s/]*\.\w{1,10}|\.\w*(?:ignore|config|attributes)")
FILES_BY_NAME: Final = frozenset(
    {
        *("Makefile", "makefile", "GNUmakefile", "Dockerfile", "Containerfile", "Jenkinsfile"),
        *("Procfile", "Vagrantfile", "Gemfile", "Rakefile", "Pipfile", "Brewfile", "Caddyfile"),
        *("Justfile", "justfile", "LICENSE", "LICENCE", "COPYING", "CODEOWNERS"),
    }
)
"""Names of files without an extension; another is a file only within a folder."""


def is_path(artifact: str) -> bool:
    """Whether an artifact's name is that of a file: it has a folder or an extension, or is one of
    the names that files have without.
    """
    return "/" in artifact or artifact in FILES_BY_NAME or _NAMED.fullmatch(artifact) is not None
