"""Images of a step: read beneath the recipe's folder, stored as blobs, shown to the model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import StepStarted
from minions.contracts.messages import Attachment, Message, image_of, message_to_json, user
from minions.contracts.tools import Effect, Tool, Toolbox, ToolScope, ToolSpec
from minions.data.codec import decode
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.engine.calls.call_records import store_attachments, with_attachments
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe, load_recipe_text
from minions.testing.virtual_time import FakeClock

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
DIGEST = hashlib.sha256(PNG).hexdigest()
RECIPE = """
id: see
inputs: {file: {type: string, default: a.png}}
steps:
  - {id: look, goal: What is it?, images: ["{{ inputs.file }}"]}
"""


class Seen:
    """A model that keeps what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.model = ScriptedModel(self._answer)

    def _answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        return "A dot."

    @property
    def attached(self) -> list[Attachment]:
        return [each for message in self.prompts[-1].messages for each in message.attachments]


async def run(
    folder: Path, file: str, seen: Seen, services: Services | None = None
) -> AgentResult[object]:
    (folder / "see.yaml").write_text(RECIPE, "utf-8")
    recipe = load_recipe(folder / "see.yaml", Catalog())
    executor = AgentExecutor(seen.model, services=services or deterministic_services())
    return await executor.execute(recipe, {"file": file})


async def test_the_model_sees_the_image_and_the_row_its_digest(tmp_path: Path) -> None:
    """A-134."""
    (tmp_path / "a.png").write_bytes(PNG)
    journal = SqliteJournal(tmp_path / "runs.sqlite", FakeClock())
    seen = Seen()
    result = await run(tmp_path, "a.png", seen, Services(journal=journal))
    assert result.output == "A dot."
    expected = Attachment(media_type="image/png", digest=DIGEST, size=len(PNG), name="a.png")
    assert seen.attached == [expected]
    assert seen.attached[0].data == PNG
    entries = await journal.entries(result.session_id)
    started = next(each.fact for each in entries if isinstance(each.fact, StepStarted))
    assert started.messages is not None
    assert started.messages[-1].attachments == (expected,)
    assert started.messages[-1].attachments[0].data is None
    assert await journal.get_blob(DIGEST) == PNG
    await journal.aclose()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("missing.png", "No such file"),
        ("../outside.png", "not beneath the recipe's folder"),
        ("/etc/passwd", "not beneath the recipe's folder"),
        ("link.png", "not beneath the recipe's folder"),
        (".hidden.png", "hidden"),
        ("see.yaml", "no PNG, JPEG, GIF or WebP"),
        ("folder", "regular file"),
        ("pipe.png", "regular file"),
        ("id_rsa", "taken for a secret"),
        ("to_a_secret.png", "taken for a secret"),
        ("huge.png", "larger than 5 MiB"),
        ("a\0b.png", "no path"),
    ],
)
async def test_a_file_that_cannot_be_shown_fails_the_step_and_asks_no_model(
    tmp_path: Path, file: str, words: str
) -> None:
    """A-134."""
    folder = tmp_path / "project"
    folder.mkdir()
    for place in (tmp_path / "outside.png", folder / ".hidden.png"):
        place.write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "id_rsa").write_bytes(PNG)
    (folder / "to_a_secret.png").symlink_to("id_rsa")
    (folder / "huge.png").write_bytes(PNG + bytes(5 * 1_048_576))
    seen = Seen()
    result = await run(folder, file, seen)
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "bad-image"
    assert words in result.error.message
    assert seen.prompts == []


PARTS = """
id: see
steps:
  - id: look
    system_prompt: Be brief.
    goal: Which differ?
    messages:
      - user: [{text: The first}, {image: a.png}, {text: is old.}]
      - user: [{file: b.pdf}]
      - {user: Look well.}
"""


async def test_parts_of_a_message_are_texts_images_and_files(tmp_path: Path) -> None:
    """A-134."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7".ljust(40))
    (tmp_path / "see.yaml").write_text(PARTS, "utf-8")
    seen = Seen()
    recipe = load_recipe(tmp_path / "see.yaml", Catalog())
    result = await AgentExecutor(seen.model, services=deterministic_services()).execute(recipe, {})
    assert result.output == "A dot."
    told = [
        (each.content, [file.media_type for file in each.attachments])
        for each in seen.prompts[-1].messages
    ]
    assert told == [
        ("Be brief.", []),
        ("The first\n\nis old.", ["image/png"]),
        ("", ["application/pdf"]),
        ("Look well.", []),
        ("Which differ?", []),
    ]


@pytest.mark.parametrize("part", ["{}", "{text: a, image: b}", "{pdf: c}", "x"])
def test_a_part_is_one_thing(part: str) -> None:
    text = f"id: r\nsteps: [{{id: a, goal: g, messages: [{{user: [{part}]}}]}}]\n"
    with pytest.raises(RecipeError):
        load_recipe_text(text, "r.yaml", Catalog())


async def test_an_input_that_is_left_empty_shows_no_image(tmp_path: Path) -> None:
    seen = Seen()
    assert (await run(tmp_path, "", seen)).output == "A dot."
    assert seen.attached == []


async def test_a_message_from_the_journal_gets_its_image_back_before_a_call(
    tmp_path: Path,
) -> None:
    """A-134: as when a run is resumed."""
    journal = SqliteJournal(tmp_path / "runs.sqlite", FakeClock())
    image = image_of(PNG, "a.png")
    message = evolve(user("What is it?"), attachments=(image,))
    await store_attachments(journal, [message])
    bare = decode(json.loads(json.dumps(message_to_json(message))), Message)
    assert bare.attachments[0].data is None
    asked = await with_attachments(journal, Prompt((user("x"), bare)))
    assert asked.messages[1].attachments[0].data == PNG
    assert await with_attachments(journal, asked) is asked
    await journal.aclose()


class _Camera(Tool):
    """Stores an image with the run, and gives what names it."""

    def __init__(self, media_type: str = "image/png") -> None:
        self.media_type = media_type

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name="camera", effect=Effect.PURE)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        assert scope.store_blob is not None
        digest = await scope.store_blob(PNG)
        shown = {"media_type": self.media_type, "size": len(PNG), "digest": digest}
        return {"text": "a dot", "images": [shown]}


SHOWS = """
id: shows
steps:
  - {id: shot, tool: camera}
  - {id: look, goal: What is it?, images: ["{{ shot.images }}"], depends_on: [shot]}
"""


async def show(seen: Seen, camera: _Camera) -> AgentResult[object]:
    tools = Toolbox([camera])
    catalog = Catalog(tools={"camera": camera.spec})
    executor = AgentExecutor(seen.model, extensions=Extensions(tools=tools))
    return await executor.execute(load_recipe_text(SHOWS, "shows.yaml", catalog))


async def test_the_model_sees_an_image_that_a_tool_stored() -> None:
    """A-135."""
    seen = Seen()
    result = await show(seen, _Camera())
    assert result.error is None
    assert [(each.media_type, each.data) for each in seen.attached] == [("image/png", PNG)]


async def test_what_a_tool_stored_and_is_no_image_is_not_shown() -> None:
    seen = Seen()
    result = await show(seen, _Camera("text/html"))
    assert result.error is not None
    assert result.error.code == "bad-image"
    assert seen.prompts == []
