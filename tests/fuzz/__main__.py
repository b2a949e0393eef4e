"""Gives the readers of strangers' data inputs that nobody thought of; whatever breaks is shown.

make fuzz                                             all targets, some seconds each
PYTHONPATH=.:tests python -m fuzz recipe --seconds 600 --seed 7    one target, ten minutes
PYTHONPATH=.:tests python -m fuzz recipe --input BASE64|FILE       one input again
PYTHONPATH=.:tests python -m fuzz --corpus DIR        go on with the inputs of an earlier time

Where `atheris` is installed (the group `fuzz`), it finds inputs by the code that they reach; else
they are changes by chance, the same ones for the same seed.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuzz.examination import examined
from fuzz.guided import is_guided_possible
from fuzz.mutator import inputs_of
from fuzz.session import Session, SessionOptions
from fuzz.target import Target
from fuzz.targets import all_targets


def main(arguments: Sequence[str]) -> int:
    """Run the targets; the result is 1 where there are findings."""
    options = _parser().parse_args(arguments)
    out = Path(options.corpus or "out/fuzz").resolve()
    given = None if options.input is None else _input(options.input)
    with tempfile.TemporaryDirectory(prefix="minions-fuzz-") as name:
        folder = Path(name).resolve()
        _leave_surroundings(folder)
        targets = all_targets(folder / "own")
        unknown = [each for each in options.targets if each not in targets]
        if unknown:
            print(f"No target {unknown[0]!r}; there are: {', '.join(targets)}.", file=sys.stderr)
            return 2
        chosen = [targets[each] for each in options.targets or targets]
        if given is not None:
            return _replay(chosen, given, options.cpu_s)
        return _run_all(chosen, options, folder, out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", help="the folder of inputs to go on with; findings go there")
    parser.add_argument("--input", help="one input: a file, or base64")
    parser.add_argument("--cpu-s", type=float, default=1.0, help="CPU time that an input may take")
    parser.add_argument("--own", action="store_true", help="without atheris")
    return parser


def _input(text: str) -> bytes:
    try:
        if Path(text).is_file():
            return Path(text).read_bytes()
    except OSError:
        pass  # base64 is too long for a name
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        sys.exit(f"{text[:60]!r} is neither a file nor base64.")


def _leave_surroundings(folder: Path) -> None:
    """Away from the user's configuration, keys and files."""
    for name in ("home", "own"):
        (folder / name).mkdir()
    for name in [each for each in os.environ if each.startswith("MINIONS_") or "API_KEY" in each]:
        del os.environ[name]
    os.environ.update(HOME=str(folder / "home"), NO_COLOR="1")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        os.environ[name] = str(folder / "home")
    os.chdir(folder / "own")


def _replay(chosen: Sequence[Target], data: bytes, cpu_s: float) -> int:
    found = [examined(target, data, cpu_s=cpu_s) for target in chosen]
    for finding in found:
        print("nothing was found" if finding is None else finding.words())
    return int(any(found))


def _run_all(chosen: Sequence[Target], options: argparse.Namespace, folder: Path, out: Path) -> int:
    guided = is_guided_possible() and not options.own
    total = 0
    print(f"seed {options.seed}, {'coverage by atheris' if guided else 'changes by chance'}")
    for target in chosen:
        asked = SessionOptions(
            target=target.name,
            seed=options.seed,
            seconds=options.seconds,
            cpu_s=options.cpu_s,
            folder=folder / "own",
            findings=out / "findings",
            report=folder / f"{target.name}.json",
            corpus=out / target.name if options.corpus else None,
        )
        figures = _guided(asked) if guided else _unguided(target, asked)
        total += int(figures["findings"])
        rate = figures["inputs"] / max(figures["seconds"], 0.001)
        print(
            f"{target.name:<12} {figures['inputs']:>9,.0f} inputs {rate:>8,.0f}/s "
            f"{figures['findings']:>4,.0f} findings",
            flush=True,
        )
    if total:
        print(f"The inputs of the findings are in {out / 'findings'}.")
    return int(total > 0)


_START_S = 120.0
"""Seconds for a process to load and to run the seeds, on a busy machine."""


def _guided(asked: SessionOptions) -> Mapping[str, float]:
    own = Path(tempfile.mkdtemp(dir=asked.folder.parent))
    text = SessionOptions.read(json.dumps({**json.loads(asked.text()), "folder": str(own)})).text()
    paths = [str(Path(each).resolve()) for each in (*sys.path,) if each]
    command = [sys.executable, "-m", "fuzz.guided", text]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        ended = subprocess.run(
            command,
            cwd=own,
            env=surroundings,
            stderr=subprocess.PIPE,
            text=True,
            timeout=2 * asked.seconds + _START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{asked.target} did not end.")
    if not asked.report.exists():
        sys.exit(f"{asked.target} ended with {ended.returncode}:\n{ended.stderr[-3_000:]}")
    figures: Mapping[str, float] = json.loads(asked.report.read_text("utf-8"))
    return figures


def _unguided(target: Target, asked: SessionOptions) -> Mapping[str, float]:
    kept = sorted(asked.corpus.iterdir()) if asked.corpus and asked.corpus.is_dir() else []
    session = Session(target, cpu_s=asked.cpu_s, findings=asked.findings)
    end = time.monotonic() + asked.seconds
    for data in inputs_of(target, asked.seed, [each.read_bytes() for each in kept]):
        if time.monotonic() > end:
            break
        session.take(data)
    return session.report()


if __name__ == "__main__":
    sys.path[:] = [str(Path(each or ".").resolve()) for each in sys.path]
    sys.exit(main(sys.argv[1:]))
