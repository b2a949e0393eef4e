"""Looks for known vulnerabilities of what the locks name. `make audit` calls it.

It asks a service over the network for each package. Where it cannot, nothing was looked at, and it
says so: an audit that found nothing because it asked nobody is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final  # Any: JSON of another program

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = (
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-docs.lock",
    "requirements-agent-dojo.lock",
    "requirements-quality.lock",
    "requirements-local.lock",
    "requirements-release.lock",
)
CLEAN: Final = 0
VULNERABLE: Final = 1
NOT_AUDITED: Final = 3
"""Exit code where a package could not be looked at."""
_MOST_NAMED: Final = 5


def ask(lock: Path) -> tuple[Mapping[str, Any] | None, str]:
    """What the service says of a lock; None, and why: nothing."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"),
            *("--progress-spinner", "off", "--format", "json", "-r", str(lock)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return None, said[-1]
    return found, ""


def lines_of(name: str, found: Mapping[str, Any] | None, why: str) -> tuple[int, list[str]]:
    """The code of one lock, and what is said of it."""
    if found is None:
        return NOT_AUDITED, [f"{name}: not audited, which needs the network: {why[:300]}"]
    packages = found["dependencies"]
    skipped = [each for each in packages if "skip_reason" in each]
    lines: list[str] = []
    code = CLEAN
    for each in packages:
        for flaw in each.get("vulns", ()):
            mended = ", ".join(flaw.get("fix_versions", ())) or "none yet"
            lines.append(
                f"{name}: {each['name']} {each['version']} has {flaw['id']}; mended in: {mended}"
            )
            code = VULNERABLE
    if skipped:
        names = ", ".join(str(each["name"]) for each in skipped[:_MOST_NAMED])
        more = f" and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
        lines.append(
            f"{name}: {len(skipped)} of {len(packages)} packages were not audited ({names}{more}): "
            f"{str(skipped[0]['skip_reason'])[:200]}"
        )
        code = code or NOT_AUDITED
    looked_at = len(packages) - len(skipped)
    if looked_at:
        count = sum(len(each.get("vulns", ())) for each in packages)
        lines.append(f"{name}: {looked_at} packages looked at, {count or 'no'} known flaws")
    return code, lines


def main(locks: Sequence[str]) -> int:
    """Audit them; 0: all were looked at, and nothing is known."""
    codes = []
    for name in locks or LOCKS:
        code, lines = lines_of(name, *ask(ROOT / name))
        codes.append(code)
        print("\n".join(lines))
    if NOT_AUDITED in codes:
        print("The audit is not complete. It needs the network; try again where there is one.")
    return VULNERABLE if VULNERABLE in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
