"""`minions migrate` of a recipe with words of other tools: it is mended, with its comments."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from command_line import Cli, Write

FOREIGN: Final = """\
# What we write each morning.
id: morning
inputs: {topic: string, tags: [string]}
steps:
  - id: draft   # first
    prompt: Write about {{ inputs.topic }}.  # short!
    output: {text: string, score: number}
  - "name": each
    needs: [draft]
    for_each: "{{ inputs.tags }}"
    goal: "Tag {{ item }} of {{ index }}"
  - id: last
    gaol: Say good-bye.
"""
MENDED: Final = """\
# What we write each morning.
id: morning
inputs: {topic: string, tags: [string]}
steps:
  - id: draft   # first
    goal: Write about {{ inputs.topic }}.  # short!
    output: {text: string, score: number}
  - "id": each
    depends_on: [draft]
    loop: "{{ inputs.tags }}"
    goal: "Tag {{ loop.item }} of {{ loop.index }}"
  - id: last
    goal: Say good-bye.
"""


def test_words_of_other_tools_are_mended_and_comments_stay(
    cli: Cli, write: Write, here: Path
) -> None:
    write("morning.yaml", FOREIGN)
    done = cli("migrate", "morning.yaml")
    assert done.code == 0, done.err
    assert (here / "morning.yaml").read_text("utf-8") == MENDED
    assert "-    prompt: Write about {{ inputs.topic }}.  # short!\n" in done.out
    assert "+    goal: Write about {{ inputs.topic }}.  # short!\n" in done.out
    assert "Mended 7 words: morning.yaml" in done.err
    assert cli("validate", "morning.yaml").code == 0
    assert "it is valid. Nothing to do." in cli("migrate", "morning.yaml").err


def test_what_has_several_meanings_is_left_with_its_place_and_what_to_do(
    cli: Cli, write: Write, here: Path
) -> None:
    write(
        "ci.yaml",
        "id: ci\nsteps:\n  - id: a\n    run: make test\n    env: {TOKEN: x}\n"
        "  - {id: b, prompt: Hi}\n",
    )
    done = cli("migrate", "ci.yaml")
    assert done.code == 2
    assert "- {id: b, goal: Hi}" in (here / "ci.yaml").read_text("utf-8")
    assert "left for you: " in done.err
    assert "--> ci.yaml:4:5" in done.err
    assert "write 'tool' or 'code'" in done.err


def test_a_template_without_quotes_is_quoted(cli: Cli, write: Write, here: Path) -> None:
    write(
        "q.yaml",
        "id: q\ninputs: {topic: string}\nsteps:\n  - id: a\n"
        "    goal: {{ inputs.topic }} in short  # why not\n",
    )
    done = cli("migrate", "q.yaml")
    assert done.code == 0, done.err
    assert '    goal: "{{ inputs.topic }} in short"  # why not\n' in (here / "q.yaml").read_text()


def test_a_dry_run_shows_the_change_and_writes_nothing(cli: Cli, write: Write, here: Path) -> None:
    write("morning.yaml", FOREIGN)
    done = cli("migrate", "morning.yaml", "--dry-run")
    assert "+    loop:" in done.out
    assert "7 words can be mended; nothing was written." in done.err
    assert (here / "morning.yaml").read_text("utf-8") == FOREIGN


def test_it_is_written_elsewhere_with_o(cli: Cli, write: Write, here: Path) -> None:
    write("morning.yaml", FOREIGN)
    assert cli("migrate", "morning.yaml", "-o", "new.yaml").code == 0
    assert (here / "morning.yaml").read_text("utf-8") == FOREIGN
    assert (here / "new.yaml").read_text("utf-8") == MENDED
    assert cli("migrate", "morning.yaml", "-o", "new.yaml").code == 2


def test_line_ends_and_rights_of_the_file_stay(cli: Cli, here: Path) -> None:
    path = here / "w.yaml"
    path.write_bytes(b"id: w\r\nsteps:\r\n  - {id: a, prompt: Hi}\r\n")
    path.chmod(0o640)
    assert cli("migrate", "w.yaml").code == 0
    assert path.read_bytes() == b"id: w\r\nsteps:\r\n  - {id: a, goal: Hi}\r\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_on_a_full_disk_the_file_stays_as_it_was_alone(cli: Cli, write: Write, here: Path) -> None:
    write("morning.yaml", FOREIGN)
    before = sorted(here.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        done = cli("migrate", "morning.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (done.code, "cannot be written" in done.err) == (2, True), done.err
    assert (here / "morning.yaml").read_text("utf-8") == FOREIGN
    assert sorted(here.iterdir()) == before


def test_json_lists_what_was_mended_and_what_is_left(cli: Cli, write: Write) -> None:
    write("ci.yaml", "id: ci\nsteps:\n  - {id: a, run: make}\n  - {id: b, prompt: Hi}\n")
    done = cli("migrate", "ci.yaml", "--json")
    assert done.code == 2
    assert done.json["mended"] == [{"line": 4, "before": "prompt", "after": "goal"}]
    assert done.json["written"] == "ci.yaml"
    left = done.json["left"]
    assert isinstance(left, list)
    assert isinstance(left[0], dict)
    assert left[0]["line"] == 3


def test_a_misspelt_name_of_a_step_is_left(cli: Cli, write: Write, here: Path) -> None:
    text = (
        "id: x\nsteps:\n  - {id: fetch, set: {n: 1}}\n"
        "  - {id: b, set: {n: 1}, depends_on: [ftech]}\n"
    )
    write("x.yaml", text)
    done = cli("migrate", "x.yaml")
    assert (done.code, (here / "x.yaml").read_text()) == (2, text)
    assert "did you mean 'fetch'?" in done.err
