"""The contents of attachments between messages, which have them, and rows, which name them."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from minions.contracts.attachments import attachments_of
from minions.contracts.calls import Prompt
from minions.contracts.journal.journal import Journal
from minions.contracts.messages import Message


async def store_attachments(journal: Journal, messages: Iterable[Message]) -> None:
    """Store the contents as blobs, before the row that names them."""
    for attachment in attachments_of(messages):
        if attachment.data is not None:
            await journal.put_blob(attachment.data)


async def with_attachments(journal: Journal, prompt: Prompt) -> Prompt:
    """The prompt with the contents of what is attached; the same one where nothing is missing.

    Raises:
        NotFoundError: `unknown-blob`: the journal does not hold one of them.
    """
    attached = attachments_of(prompt.messages)
    if not attached or all(each.data is not None for each in attached):
        return prompt
    return evolve(prompt, messages=[await _loaded(journal, each) for each in prompt.messages])


async def _loaded(journal: Journal, message: Message) -> Message:
    if all(each.data is not None for each in message.attachments):
        return message
    loaded = [
        each if each.data is not None else evolve(each, data=await journal.get_blob(each.digest))
        for each in message.attachments
    ]
    return evolve(message, attachments=tuple(loaded))
