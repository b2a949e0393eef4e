"""What is said in the conversation of a model step, and what is taken back."""

from __future__ import annotations

from attrs import frozen

from minions.contracts.journal.facts import MessageRecorded, Rollback
from minions.contracts.memory import MemorySnapshot
from minions.contracts.messages import Message
from minions.engine.calls.trace import StepTrace
from minions.engine.context.step_view import StepView


@frozen(kw_only=True)
class StepConversation:
    """The messages of one step, recorded before they count."""

    view: StepView
    trace: StepTrace

    async def say(self, message: Message, *, is_of_session: bool = False) -> None:
        """Add a message; words of the engine's own are no part of the session's conversation."""
        view = self.view
        key = self.trace.reserve_note_key()
        sequence = None
        if is_of_session and view.live_conversation is not None:
            view.live_conversation.count += 1
            sequence = view.live_conversation.count
        said = MessageRecorded(
            step_id=view.step_id,
            conversation=view.conversation_id,
            message=message,
            sequence=sequence,
        )
        await view.context.scope.recorder.record(key, said)
        view.memory.save_prompt(view.conversation_id, [message])

    async def take_back(self, mark: MemorySnapshot) -> None:
        """Go back to where the conversation stood."""
        view = self.view
        key = self.trace.reserve_note_key()
        sequence = None
        if view.live_conversation is not None:
            view.live_conversation.count = sequence = view.live_conversation.at_mark(mark.position)
        taken_back = Rollback(
            step_id=view.step_id,
            conversation=view.conversation_id,
            position=mark.position,
            sequence=sequence,
        )
        await view.context.scope.recorder.record(key, taken_back)
        view.memory.restore_snapshot(mark)
