"""The commands in the files to deploy workers have options that there are."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import click
import pytest
import yaml

from minions.interfaces.cli.main import command as minions

DEPLOY: Final = Path(__file__).parents[2] / "docs" / "deploy"


def _commands() -> Iterator[tuple[str, list[str]]]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    for name, service in compose["services"].items():
        if "build" in service and "command" in service:
            yield f"compose.yaml {name}", cast("list[str]", service["command"])
    docker = (DEPLOY / "Dockerfile").read_text("utf-8")
    for found in re.findall(r"^CMD (\[.*\])$", docker, re.MULTILINE):
        yield "Dockerfile", json.loads(found)
    unit = (DEPLOY / "minions-worker.service").read_text("utf-8")
    for found in re.findall(r"^ExecStart=\S+/minions (.*)$", unit, re.MULTILINE):
        yield "minions-worker.service", shlex.split(found)


@pytest.mark.parametrize(("place", "words"), list(_commands()))
def test_a_command_of_a_file_to_deploy_can_be_parsed(place: str, words: list[str]) -> None:
    command = minions.get_command(click.Context(minions), words[0])
    assert command is not None, place
    # A command keeps the help option of its first context, whose names it has.
    with command.make_context(words[0], words[1:], **minions.context_settings) as context:
        assert not context.args, place


def test_a_stopped_container_or_unit_has_the_time_that_a_worker_takes_to_drain() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["worker"]
    unit = (DEPLOY / "minions-worker.service").read_text("utf-8")
    drains = [
        *(word for word in compose["command"] if word.endswith("s") and word[:-1].isdigit()),
        *re.findall(r"--drain (\d+s)", unit),
    ]
    waits = [compose["stop_grace_period"], *re.findall(r"TimeoutStopSec=(\d+)", unit)]
    for drain, wait in zip(drains, waits, strict=True):
        assert int(wait.rstrip("s")) >= int(drain.rstrip("s")) + 15
