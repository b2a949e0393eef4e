"""What may be attached to a message: kinds of images by their content, and their limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from minions.contracts.messages import Attachment, Conversation, Message

MOST_IMAGES: Final = 20
"""Images of one step."""
MOST_IMAGE_BYTES: Final = 5 * 1_048_576
"""Bytes of one image: what all providers take."""
CHARACTERS_PER_IMAGE: Final = 6_400
"""How many characters of text an image counts as, where tokens are estimated."""

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The kinds of images that providers take."""

_PDF: Final = b"%PDF-"
_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def media_type_of(data: bytes) -> str | None:
    """The kind of an image by its first bytes; None: it is no image that providers take."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS if data.startswith(start)), None)


def image_of(data: bytes, name: str | None = None) -> Attachment:
    """The image as a part of a message.

    Raises:
        ValueError: It is too large, or no PNG, JPEG, GIF or WebP.
    """
    if len(data) > MOST_IMAGE_BYTES:
        raise ValueError(f"it is larger than {MOST_IMAGE_BYTES // 1_048_576} MiB")
    kind = media_type_of(data)
    if kind is None:
        raise ValueError("its content is no PNG, JPEG, GIF or WebP")
    digest = hashlib.sha256(data).hexdigest()
    return Attachment(media_type=kind, digest=digest, size=len(data), name=name, data=data)


def attachment_of(data: bytes, name: str | None = None) -> Attachment:
    """The image or PDF file as a part of a message.

    Raises:
        ValueError: It is too large, or neither.
    """
    if not data.startswith(_PDF):
        return image_of(data, name)
    if len(data) > MOST_IMAGE_BYTES:
        raise ValueError(f"it is larger than {MOST_IMAGE_BYTES // 1_048_576} MiB")
    digest = hashlib.sha256(data).hexdigest()
    return Attachment(
        media_type="application/pdf", digest=digest, size=len(data), name=name, data=data
    )


def attachments_of(messages: Iterable[Message]) -> list[Attachment]:
    """All that is attached to these messages."""
    if isinstance(messages, Conversation) and not messages.attached:
        return []
    return [each for message in messages for each in message.attachments]
