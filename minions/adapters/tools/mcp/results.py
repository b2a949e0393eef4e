"""Results of calls: texts, values, images and resources, as JSON that a run can store."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, assert_never, cast

from attrs import define, field

from minions.adapters.tools.mcp.failures import BAD_RESULT, failed
from minions.contracts.attachments import media_type_of
from minions.contracts.tool_servers import PinnedTool
from minions.contracts.tools import ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.data.schema import SchemaValidator

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


_MOST_ERROR: Final = 4_000
"""Characters of an error that a model reads."""
_MOST_BLOCKS: Final = 200


@define(eq=False)
class ResultReader:
    """Reads the results of one tool."""

    server: str
    tool: PinnedTool
    _validator: SchemaValidator | None = field(default=None, init=False)

    async def value_of(self, result: CallToolResult, scope: ToolScope) -> JsonValue:
        """What the tool gives: its structured result, its text, or `{text, images, resources}`.

        Contents of images and files are stored with the run; the value names them.

        Raises:
            ToolError: The tool says that it failed.
            ToolServerError: `mcp-bad-result`: it does not fit what the tool declares, or is none.
        """
        if len(result.content) > _MOST_BLOCKS:
            raise failed(self.server, f"gave more than {_MOST_BLOCKS} contents", code=BAD_RESULT)
        if result.is_error:
            text = "\n".join(_texts(result.content))[:_MOST_ERROR]
            raise ToolError(text or f"The tool '{self.tool.name}' failed.", code="tool-error")
        value = cast("JsonValue", result.structured_content)
        await match_beside_loop(lambda: self._check(value, is_there=value is not None))
        parts = await self._parts(result.content, scope)
        if value is None:
            return parts if parts.keys() - {"text"} else parts["text"]
        media = {key: each for key, each in parts.items() if key != "text"}
        return {"value": value, **media} if media else value

    def _check(self, value: JsonValue, *, is_there: bool) -> None:
        """Check a structured result by the schema that was looked at, within our bounds."""
        schema = self.tool.output
        if schema is None:
            return
        if not is_there:
            raise failed(
                self.server,
                f"gave no structured result of '{self.tool.name}', which declares one",
                code=BAD_RESULT,
            )
        if self._validator is None:
            self._validator = SchemaValidator(schema)
        if errors := self._validator.errors(value):
            raise failed(
                self.server,
                f"gave a result of '{self.tool.name}' that does not fit its schema: "
                f"{'; '.join(errors)[:500]}",
                code=BAD_RESULT,
            )

    async def _parts(
        self, content: Sequence[ContentBlock], scope: ToolScope
    ) -> dict[str, JsonValue]:
        images: list[JsonValue] = []
        resources: list[JsonValue] = []
        for block in content:
            match block.type:
                case "text":
                    pass
                case "image" | "audio":
                    target = images if block.type == "image" else resources
                    target.append(await self._stored(block.data, block.mime_type, scope))
                case "resource":
                    resources.append(await self._embedded(block.resource, scope))
                case "resource_link":
                    about = {"uri": f"{block.uri}", "name": block.name}
                    resources.append({**about, "media_type": block.mime_type})
                case _:
                    assert_never(block.type)
        parts: dict[str, JsonValue] = {"text": "\n".join(_texts(content))}
        if images:
            parts["images"] = images
        if resources:
            parts["resources"] = resources
        return parts

    async def _embedded(self, resource: object, scope: ToolScope) -> JsonValue:
        from mcp_types import BlobResourceContents, TextResourceContents

        if isinstance(resource, TextResourceContents):
            about: dict[str, JsonValue] = {"uri": f"{resource.uri}", "text": resource.text}
            return {**about, "media_type": resource.mime_type}
        assert isinstance(resource, BlobResourceContents)  # noqa: S101  # there are two
        stored = await self._stored(resource.blob, resource.mime_type, scope)
        return {"uri": f"{resource.uri}", **stored}

    async def _stored(self, text: str, said: str | None, scope: ToolScope) -> dict[str, JsonValue]:
        """The content, stored; what kind of image it is its first bytes say, not the server."""
        try:
            data = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise failed(
                self.server, "gave contents that are no base64", code=BAD_RESULT
            ) from error
        kind = media_type_of(data) or said
        about: dict[str, JsonValue] = {"media_type": kind, "size": len(data)}
        if scope.store_blob is not None:
            about["digest"] = await scope.store_blob(data)
        return about


def _texts(content: Sequence[ContentBlock]) -> list[str]:
    return [block.text for block in content if block.type == "text"]
