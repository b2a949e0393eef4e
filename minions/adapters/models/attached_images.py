"""Whether the images and files of a prompt may be sent to a model."""

from __future__ import annotations

from minions.adapters.models.chat_failures import ChatPeer
from minions.contracts.attachments import attachments_of
from minions.contracts.calls import ModelCapabilities, ModelFailure, Prompt


def refused_attachments(
    prompt: Prompt, capabilities: ModelCapabilities, peer: ChatPeer
) -> ModelFailure | None:
    """The failure of a prompt with images that the model does not take; None: it may go."""
    attached = attachments_of(prompt.messages)
    if not attached or (capabilities.takes_images and all(each.data for each in attached)):
        return None
    if capabilities.takes_images:
        what = f"An image for '{peer.name}' was not loaded, so nothing was sent."
        return ModelFailure(code="bad-request", message=what)
    return ModelFailure(
        code="images-not-taken",
        message=f"'{peer.name}' takes no images, and the prompt has {len(attached)}; "
        "nothing was sent. Use a model that takes them.",
        suggestions=(f"remove `images = false` from [providers.{peer.provider}]",),
    )
