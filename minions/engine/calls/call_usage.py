"""Estimates of what a model call uses: before it is made, and where its server counts nothing."""

from __future__ import annotations

from minions.contracts.attachments import CHARACTERS_PER_IMAGE, attachments_of
from minions.contracts.calls import (
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
    context_exceeded,
)
from minions.contracts.messages import Conversation, TokenUsage
from minions.engine.compile.prompt_sections import CHARACTERS_PER_TOKEN, prompt_characters
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.services.pricing import context_tokens_of, own_context_tokens, with_cost
from minions.engine.services.services import Services
from minions.engine.services.spending import CallEstimate

_SHORTEST_CONTEXT = 4000
"""Tokens of a prompt that every listed model takes: it is not looked up."""


def prompt_too_long(
    call: ModelCall, model: ChatModel | None, view: StepView
) -> ModelFailure | None:
    """The failure of a prompt that the server would refuse; None: nothing speaks against it."""
    prompt, services = call.prompt, view.context.scope.services
    own = own_context_tokens(model, services)
    characters = Conversation.of(prompt.messages).texts
    is_short = characters < _SHORTEST_CONTEXT * CHARACTERS_PER_TOKEN
    if is_short and prompt.options.context_tokens is None and own is None:
        return None
    most = context_tokens_of(model, prompt.options, services)
    tokens = -(-prompt_characters(prompt) // CHARACTERS_PER_TOKEN)
    if most is None or tokens <= most:
        return None
    name = model.name if model is not None else "the model"
    return context_exceeded(
        f"The prompt of step '{view.address}' has about {tokens} tokens, and '{name}' "
        f"takes {most}. It was not sent."
    )


def call_estimate(call: ModelCall, model: ChatModel | None, services: Services) -> CallEstimate:
    """What the call may use at most."""
    return CallEstimate(
        characters=prompt_characters(call.prompt)
        + CHARACTERS_PER_IMAGE * len(attachments_of(call.prompt.messages)),
        max_output_tokens=call.prompt.options.max_output_tokens,
        cost_usd=lambda usage: with_cost(usage, model, services).cost_usd,
    )


async def estimated_usage(
    prompt: Prompt, response: ModelCallResponse, context: AgentContext
) -> TokenUsage:
    """The usage of a call whose server counts none, with one warning per run."""
    if not any(warned.code == "usage-unknown" for warned in context.progress.warnings):
        await context.warn(
            "usage-unknown",
            f"The model '{response.model_name}' reports no token usage: the run's tokens are "
            "estimated from characters.",
        )
    asked = Conversation.of(prompt.messages).texts
    said = len(response.text or "") + sum(len(c.arguments) for c in response.tool_calls)
    return TokenUsage(input_tokens=asked // 4 + 1, output_tokens=said // 4 + 1)
